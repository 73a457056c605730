"""`assay sweep`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from assay.cli.completion import (
    complete_metrics,
    complete_sweeps,
    complete_variants,
)
from assay.cli.launch import launch_of, split_arguments
from assay.cli.one_config import config_to_open, user_dirs_option
from assay.cli.permission import permission, say, trust_option
from assay.cli.sweep_progress import SweepProgress
from assay.cli.sweep_table import print_summary
from assay.cli.terminal import echo, echo_json
from assay.core.errors import ConfigError, InputError
from assay.core.formatting import number
from assay.core.ids import new_run_id
from assay.query.sweep_summary import SweepSummary, usual_mode

if TYPE_CHECKING:
    from assay.config import Config
    from assay.config.sweep import Point, Sweep
    from assay.config.tree import Node
    from assay.jobs.search import Search
    from assay.jobs.study import SearchSpec
    from assay.jobs.trials import SearchTrial


@click.command(
    name="sweep",
    help="""Search the space of the config's [sweep] for the best values of a metric. The records
    are the only state: a search that was killed is resumed from them.

    \b
    assay sweep digits.toml --sampler tpe --trials 50 --parallel 4
    assay sweep digits.toml --resume kq3fabcd""",
)
@config_to_open
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="Number of trials.")
@click.option(
    "--sampler",
    type=click.Choice(["grid", "zip", "random", "tpe", "cma-es", "nsga2"]),
    help="Left out: the mode of [sweep]. The last three are those of Optuna.",
)
@click.option(
    "--pruner",
    type=click.Choice(["none", "asha", "hyperband", "median"]),
    default="none",
    help="End trials early that fall behind, by their evaluations so far.",
)
@click.option(
    "-m",
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME[:min|max]",
    shell_complete=complete_metrics,
    help="Left out: that of [checkpoint] best. Several: a search for all of them at once.",
)
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Up to N runs at once, each an OS process with a free device to itself.",
)
@click.option(
    "--per-device",
    type=click.IntRange(min=1),
    metavar="N",
    help="Let up to N of them share a device. On the CPU: as many as there are at once.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=1,
    metavar="N",
    help="Repeat each point under N successive seeds; their mean counts.",
)
@click.option("--search-seed", type=click.IntRange(min=0), default=0, help="Seed of the sampler.")
@click.option(
    "--resume",
    "resumed",
    metavar="ID",
    shell_complete=complete_sweeps,
    help="Resume the search with this id.",
)
@user_dirs_option
@click.option(
    "--variant", shell_complete=complete_variants, help="The variant of the file that is searched."
)
@trust_option
@click.option("--device", help="cpu, cuda, cuda:1, mps; runs at once take those of cuda:0,1.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(
    arguments: tuple[str, ...],
    resumed: str | None,
    user_dirs: tuple[str, ...],
    variant: str | None,
    parallel: int,
    per_device: int | None,
    device: str | None,
    trust: bool,
    as_json: bool,
    **asked: Any,
) -> int:
    from assay.compose.run_record import project_around
    from assay.jobs.search import Search
    from assay.jobs.trials import read_spec

    config, plan = _space(arguments, variant, user_dirs, trust)
    project = project_around(config.path)
    spec = read_spec(project, resumed) if resumed else _spec(config, plan, **asked)
    sweep = resumed or new_run_id()
    points: dict[int, Point] = {}
    progress = SweepProgress(spec, sweep, lambda number: _shown_values(points[number]))
    search = Search(
        config=config,
        plan=_fit_count(plan, spec),
        spec=spec,
        sweep=sweep,
        project=project,
        launch=launch_of(device=device, quiet=True),
        parallel=parallel,
        per_device=per_device or 0,
        tell=progress.tell,
        watch=progress.watch,
        warn=progress.warn,
        points=points,
    )
    _print_start(sweep, spec, is_resumed=bool(resumed))
    with closing(progress):
        trials = search.run()
    return _end(search, trials, as_json=as_json)


def _print_start(sweep: str, spec: SearchSpec, *, is_resumed: bool) -> None:
    what = f"{spec.sampler}, {spec.trials} trials"
    if spec.seeds > 1:
        what += f" x {spec.seeds}"
    echo(f"{'resuming ' if is_resumed else ''}sweep {sweep}: {what}", err=True)


def _space(
    arguments: Sequence[str], variant: str | None, user_dirs: Sequence[str], trust: bool
) -> tuple[Config, Sweep]:
    """Return the config and its sweep; every value of the sweep has passed the check."""
    from assay.compose import open_given, problems_of_shape
    from assay.config import expand
    from assay.config.expansion import plan_of, unique_problems, variations

    files, overrides = split_arguments(arguments)
    if len(files) != 1:
        raise InputError("`assay sweep` needs one config file.", fix="assay sweep digits.toml")
    how: dict[str, Any] = {"trust": permission(trust), "tell": say}
    config = open_given(files[0], overrides, user_dir=user_dirs or None, **how)
    plan = plan_of(config)
    if plan is None:
        fix = (
            'write [sweep] and under it "optimizer.lr" = { low = 1e-5, high = 1e-1, scale = "log" }'
        )
        raise InputError(f"{files[0]} has no sweep.", fix=fix)
    problems = unique_problems(variations(config), problems_of_shape)
    if errors := [problem for problem in problems if problem.severity == "error"]:
        raise ConfigError(errors)
    if variant is not None:
        (config,) = expand(config, [variant], sweep=False)
    return config, plan


def _spec(
    config: Config,
    plan: Sweep,
    *,
    trials: int | None,
    sampler: str | None,
    pruner: str,
    metrics: Sequence[str],
    seeds: int,
    search_seed: int,
) -> SearchSpec:
    from assay.jobs.study import ADAPTIVE, SearchSpec

    sampler = sampler or plan.mode
    if sampler in ("grid", "zip") and plan.mode == "random":
        fix = f'write mode = "{sampler}" in [sweep]'
        raise InputError(f"The sweep is random: there is no {sampler}.", fix=fix)
    if sampler == "random" and plan.mode != "random":
        raise InputError("The sweep is not random.", fix='write mode = "random" in [sweep]')
    most = plan.size()
    if sampler not in ADAPTIVE:
        listed = replace(plan, count=trials) if trials and plan.mode == "random" else plan
        trials = min(trials or most, listed.size())
    return SearchSpec(
        sampler=sampler,
        trials=trials or most,
        metrics=_metrics(config, metrics),
        pruner=pruner,
        seed=search_seed,
        seeds=seeds,
    )


def _metrics(config: Config, names: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    from assay.config.standard_keys import sections_of

    best = sections_of(config.root).checkpoint.best
    if not names and best is None:
        fix = "give --metric valid/loss, or write [checkpoint] best = { metric, mode }"
        raise InputError("A search needs a metric.", fix=fix)
    if not names and best is not None:
        return ((best.metric, best.mode),)
    found: list[tuple[str, Any]] = []
    for each in names:
        name, _, mode = each.rpartition(":")
        found.append((name, mode) if mode in ("min", "max") else (each, usual_mode(each)))
    return tuple(found)


def _fit_count(plan: Sweep, spec: SearchSpec) -> Sweep:
    """Return a random sweep with as many points as there are trials."""
    return replace(plan, count=spec.trials) if plan.mode == "random" else plan


def _end(search: Search, trials: Sequence[SearchTrial], *, as_json: bool) -> int:
    """Print the table, the importance of the keys and how to resume; the exit code."""
    from assay.jobs.trials import sweep_runs

    shown = {number: _shown_values(point) for number, point in search.points.items()}
    metric, mode = search.spec.metrics[0]
    summary = SweepSummary.of(search.sweep, sweep_runs(trials, shown), metric, mode)
    weights = _importance(search, trials)
    if as_json:
        echo_json({**summary.to_json(), "importance": weights})
    else:
        print_summary(summary, err=False)
        for line in _front(search, trials):
            echo(line)
        if weights:
            parts = ", ".join(f"{key} {weight:.2f}" for key, weight in weights.items())
            echo(f"importance for {metric}: {parts}")
    if search.is_stopped:
        echo(f"stopped; resume with: assay sweep CONFIG --resume {search.sweep}", err=True)
        return 130
    return int(bool(summary.unfinished or search.lost))


def _shown_values(point: Point) -> dict[str, str]:
    """Return the values of a point as text, by key."""
    return {axis.key: _spell(node) for axis, node in point}


def _spell(node: Node) -> str:
    from assay.config.tree import plain
    from assay.query.diff import write_value

    value = plain(node)
    return number(value) if isinstance(value, float) else write_value(node) or "none"


def _importance(search: Search, trials: Sequence[SearchTrial]) -> dict[str, float]:
    """Return the importance of each key, the largest first; empty where too few have finished."""
    from assay.config.tree import plain
    from assay.query.importance import importances

    points = [dict(search.points[trial.number]) for trial in trials]
    columns: dict[str, Sequence[Any]] = {
        axis.key: [plain(point[axis]) for point in points] for axis in search.plan.axes
    }
    scores = [values[0] if (values := trial.values()) else None for trial in trials]
    found = importances(columns, scores)
    return {each.key: each.forest for each in found.keys if each.forest is not None}


def _front(search: Search, trials: Sequence[SearchTrial]) -> list[str]:
    """Return the Pareto front of a search for several metrics: nothing is better in all of them."""
    metrics = search.spec.metrics
    if len(metrics) < 2:
        return []
    signs = [-1.0 if mode == "max" else 1.0 for _, mode in metrics]
    found = {
        trial.number: values
        for trial in trials
        if (values := trial.values()) is not None and all(map(math.isfinite, values))
    }
    costs = {
        place: tuple(sign * value for sign, value in zip(signs, values, strict=True))
        for place, values in found.items()
    }
    lines = ["", "Pareto front:"]
    for place, cost in costs.items():
        if any(_is_better(other, cost) for other in costs.values()):
            continue
        named = zip(metrics, found[place], strict=True)
        shown = "  ".join(f"{name} {number(value)}" for (name, _), value in named)
        lines.append(f"trial {place + 1}  {shown}")
    return lines


def _is_better(left: Sequence[float], right: Sequence[float]) -> bool:
    """Return whether costs are other ones than `right`, and nowhere higher."""
    return left != right and all(a <= b for a, b in zip(left, right, strict=True))
