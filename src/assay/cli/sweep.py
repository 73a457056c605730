"""`assay sweep`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    from assay.jobs.search import Search
    from assay.jobs.search_plan import SearchFolder, SearchMetric, SearchPlan
    from assay.store.layout import Project

_CHECKED_DRAWS = 20
"""Draws of a space that are examined beside its ends and lists, before a study proposes points."""
_SAID = {"config": "the config", "overrides": "KEY=VALUE (or --tag)", "metrics": "--metric"}


@click.command(
    name="sweep",
    help="""Search the space of the config's [sweep] for the best values of a metric. The search is
    a plan that is kept when it begins: `--resume ID` needs nothing else.

    \b
    assay sweep digits.toml --sampler tpe --trials 50 --parallel 4
    assay sweep --resume kq3fabcd --trials 80""",
)
@config_to_open
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of trials; with --resume that of all of them together.",
)
@click.option(
    "--sampler",
    type=click.Choice(["tpe", "cma-es", "nsga2"]),
    help="Let Optuna propose the points. Left out: those of [sweep].",
)
@click.option(
    "--pruner",
    type=click.Choice(["none", "asha", "hyperband", "median"]),
    help="End trials early that fall behind, by their evaluations so far.",
)
@click.option(
    "-m",
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME[:min|max][:last]",
    shell_complete=complete_metrics,
    help="The best value of each run counts, or its last. Left out: that of [checkpoint] best."
    " Several: a search for all of them at once.",
)
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
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
    metavar="N",
    help="Repeat each point under N successive seeds; their mean counts.",
)
@click.option("--search-seed", type=click.IntRange(min=0), help="Seed of the sampler.")
@click.option(
    "--resume",
    "resumed",
    metavar="ID",
    shell_complete=complete_sweeps,
    help="Resume the search with this id, by its plan.",
)
@user_dirs_option
@click.option(
    "--variant", shell_complete=complete_variants, help="The variant of the file that is searched."
)
@trust_option
@click.option("--tag", help="Instead of the config's tag.")
@click.option("--device", help="cpu, cuda, cuda:1, mps; runs at once take those of cuda:0,1.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(
    arguments: tuple[str, ...],
    resumed: str | None,
    user_dirs: tuple[str, ...],
    trust: bool,
    tag: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    from assay.config.sources.literals import quote
    from assay.jobs.search import Search
    from assay.jobs.search_plan import SearchFolder, project_of_search

    asked = {name: value for name, value in options.items() if value not in (None, ())}
    files, overrides = split_arguments(arguments)
    if len(files) != 1 and not (resumed and not files):
        raise InputError("`assay sweep` needs one config file.", fix="assay sweep digits.toml")
    overrides += [f"tag={quote(tag)}"] if tag is not None else []
    config = _open(files[0], overrides, user_dirs, trust) if files else None
    project = project_of_search(config)
    sweep = resumed or new_run_id()
    folder = SearchFolder.of(project, sweep)
    if resumed:
        plan = _resumed_plan(project, folder, config, overrides, asked)
    else:
        assert config is not None
        plan = _new_plan(config, **asked)
    search = Search(
        config=plan.read_config(),
        plan=plan,
        sweep=sweep,
        project=project,
        launch=launch_of(device=plan.device, quiet=True),
    )
    progress = SweepProgress(plan, sweep, search.points, search.trials)
    search.tell, search.watch, search.warn = progress.tell, progress.watch, progress.warn
    what = f"{plan.sampler}, {plan.trials} trials"
    what += f" x {plan.seeds}" if plan.seeds > 1 else ""
    echo(f"{'resuming ' if resumed else ''}sweep {sweep}: {what}", err=True)
    with closing(progress):
        search.run()
    return _end(search, as_json=as_json)


def _open(file: str, overrides: Sequence[str], user_dirs: Sequence[str], trust: bool) -> Config:
    from assay.compose import open_given

    how: dict[str, Any] = {"trust": permission(trust), "tell": say}
    config = open_given(file, overrides, user_dir=user_dirs or None, **how)
    _refuse(config.read_problems)
    return config


def _refuse(problems: Sequence[Any]) -> None:
    if errors := [problem for problem in problems if problem.severity == "error"]:
        raise ConfigError(errors)


def _new_plan(config: Config, **asked: Any) -> SearchPlan:
    """Return the plan that was asked for; all that it could train has passed the check."""
    from assay.config import expand
    from assay.config.expansion import plan_of, refuse_swept_seed
    from assay.jobs.search_plan import SearchPlan
    from assay.jobs.study import refuse_plan

    sweep = plan_of(config)
    if sweep is None:
        fix = (
            'write [sweep] and under it "optimizer.lr" = { low = 1e-5, high = 1e-1, scale = "log" }'
        )
        raise InputError(f"{config.path} has no sweep.", fix=fix)
    if "variant" in asked:
        found, *others = expand(config, [asked["variant"]], sweep=False)
        if others:
            fix = f"name one, or train all of them: assay run {config.path} --variant all"
            raise InputError("A search is of one variant, not of several.", fix=fix)
        asked["variant"] = found.variant
    if asked.get("seeds", 1) > 1:
        refuse_swept_seed(axis.key for axis in sweep.axes)
    asked.setdefault("sampler", sweep.mode)
    asked["metrics"] = _metrics(config, asked.get("metrics", ()))
    asked.setdefault("trials", sweep.size())
    plan = SearchPlan.of(config, **asked)
    refuse_plan(plan)
    return _examine(plan, config)


def _resumed_plan(
    project: Project,
    folder: SearchFolder,
    config: Config | None,
    overrides: Sequence[str],
    asked: Mapping[str, Any],
) -> SearchPlan:
    """Return the plan of a search with more trials, if they are asked for.

    InputError for all else that is given beside it and is not as in the plan.
    """
    from assay.jobs.search_plan import SearchPlan

    plan = folder.read()
    now = dict(asked)
    if "metrics" in now:
        now["metrics"] = tuple(map(_metric, now["metrics"]))
    other = replace(plan, **now)
    if config is not None:
        found = SearchPlan.of(config, sampler="", trials=0, metrics=())
        there = ("config", "overrides", "user_dirs", "path")
        other = replace(other, **{name: getattr(found, name) for name in there})
    elif overrides:
        other = replace(other, overrides=tuple(overrides))
    changed = [each for each in plan.changes(other) if each != "trials"]
    if changed:
        said = [_SAID.get(each, f"--{each.replace('_', '-')}") for each in changed]
        verb = "is" if len(said) == 1 else "are"
        raise InputError(
            f"{' and '.join(said)} {verb} not as in the plan of the search {folder.path.name}.",
            where=str(folder.path),
            fix=f"assay sweep --resume {folder.path.name}, or begin another search without it",
        )
    return _extend(plan, other, project, folder) if other.trials != plan.trials else other


def _extend(
    plan: SearchPlan, other: SearchPlan, project: Project, folder: SearchFolder
) -> SearchPlan:
    """Return the plan with another number of trials; InputError for one that cannot be."""
    from assay.jobs.trials import read_trials

    begun = max(read_trials(project, folder.path.name, plan.metrics), default=-1) + 1
    examined = _examine(other, other.read_config())
    if other.trials < begun or examined.trials < other.trials:
        what = f"`--trials {other.trials}`: the search has begun {begun} trials already."
        if examined.trials < other.trials:
            what = f"`--trials {other.trials}`: the sweep has {examined.trials} points."
        raise InputError(what, fix=f"assay sweep --resume {folder.path.name}")
    return examined


def _examine(plan: SearchPlan, config: Config) -> SearchPlan:
    """Return the plan with as many trials as it has points, once each of them passed the check."""
    from itertools import islice

    from assay.compose import examine_runs
    from assay.config.standard_keys import metric_problems
    from assay.core.diagnostics import Origin
    from assay.jobs.study import ADAPTIVE

    sweep = plan.sweep_of(config)
    if plan.sampler in ADAPTIVE:
        points = replace(sweep, count=min(plan.trials, _CHECKED_DRAWS)).points_to_check()
    else:
        plan = replace(plan, trials=min(plan.trials, sweep.size()))
        points = islice(sweep.points(), plan.trials)
    configs = [plan.config_at(config, point) for point in points]
    examine_runs(configs, launch_of(device=plan.device))
    for metric in plan.metrics:
        _refuse(metric_problems(configs[0].root, metric.name, Origin(source="--metric")))
    return plan


def _metrics(config: Config, names: Sequence[str]) -> tuple[SearchMetric, ...]:
    from assay.config.standard_keys import sections_of
    from assay.jobs.search_plan import SearchMetric

    if names:
        return tuple(map(_metric, names))
    best = sections_of(config.root).checkpoint.best
    if best is None:
        fix = "give --metric valid/loss, or write [checkpoint] best = { metric, mode }"
        raise InputError("A search needs a metric.", fix=fix)
    return (SearchMetric(name=best.metric, mode=best.mode),)


def _metric(text: str) -> SearchMetric:
    """Return the metric of `valid/acc:max:last`."""
    from assay.jobs.search_plan import SearchMetric

    name, *words = text.split(":")
    modes = [word for word in words if word in ("min", "max")]
    picks = [word for word in words if word in ("best", "last")]
    if not name or len(modes) > 1 or len(picks) > 1 or len(modes) + len(picks) < len(words):
        fix = "write valid/acc, valid/acc:max or valid/acc:max:last"
        raise InputError(f"`--metric {text}` is no metric.", fix=fix)
    mode: Any = modes[0] if modes else usual_mode(name)
    pick: Any = picks[0] if picks else "best"
    return SearchMetric(name=name, mode=mode, pick=pick)


def _end(search: Search, *, as_json: bool) -> int:
    """Print the table, the importance of the keys and how to resume; the exit code."""
    from assay.jobs.trials import sweep_runs

    first = search.plan.metrics[0]
    runs = sweep_runs(search.trials, search.points)
    summary = SweepSummary.of(search.sweep, runs, first.name, first.mode)
    weights = _importance(search)
    front = _front(search)
    if as_json:
        echo_json({**summary.to_json(), "importance": weights, "front": front})
    else:
        print_summary(summary, err=False)
        if front:
            echo("\nPareto front:")
        for each in front:
            shown = "  ".join(f"{name} {number(value)}" for name, value in each["values"].items())
            echo(f"trial {each['trial']}  {shown}")
        if weights:
            parts = ", ".join(f"{key} {weight:.2f}" for key, weight in weights.items())
            echo(f"importance for {first.name}: {parts}")
    if search.heard:
        echo(f"stopped; resume with: assay sweep --resume {search.sweep}", err=True)
        return 128 + search.heard
    return int(bool(summary.unfinished or search.lost))


def _importance(search: Search) -> dict[str, float]:
    """Return the importance of each key, the largest first; empty where too few have finished."""
    from assay.config.tree import plain
    from assay.query.importance import importances

    rows = [each.set_values(search.points[number]) for number, each in search.trials.items()]
    columns: dict[str, Sequence[Any]] = {
        key: [plain(row[key]) for row in rows] for key in (rows[0] if rows else ())
    }
    scores = [values[0] if (values := each.values()) else None for each in search.trials.values()]
    found = importances(columns, scores)
    return {each.key: each.eta_squared for each in found.keys if each.eta_squared is not None}


def _front(search: Search) -> list[dict[str, Any]]:
    """Return the Pareto front of a search for several metrics: nothing is better in all of them."""
    metrics = search.plan.metrics
    if len(metrics) < 2:
        return []
    signs = [-1.0 if metric.mode == "max" else 1.0 for metric in metrics]
    found = {
        trial.number: values
        for trial in search.trials.values()
        if (values := trial.values()) is not None and all(map(math.isfinite, values))
    }
    costs = {
        place: tuple(sign * value for sign, value in zip(signs, values, strict=True))
        for place, values in found.items()
    }
    return [
        {
            "trial": place + 1,
            "values": dict(zip((each.name for each in metrics), found[place], strict=True)),
            "runs": [run.view.id for run in search.trials[place].runs.values()],
        }
        for place, cost in sorted(costs.items())
        if not any(_is_better(other, cost) for other in costs.values())
    ]


def _is_better(left: Sequence[float], right: Sequence[float]) -> bool:
    """Return whether costs are other ones than `right`, and nowhere higher."""
    return left != right and all(a <= b for a, b in zip(left, right, strict=True))
