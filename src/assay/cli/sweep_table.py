"""Summary of several runs on the terminal, as `assay run` and `assay sweep` end with it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from assay.cli.terminal import STATUS_STYLES, echo, paint, use_color, width
from assay.config.expansion import SEEDS
from assay.config.tree import Leaf
from assay.core.errors import AssayError
from assay.core.terminal import elide
from assay.query.sweep_summary import (
    Mode,
    SweepRun,
    SweepSummary,
    scores_of,
    spell_assigned,
    usual_metric,
)

if TYPE_CHECKING:
    from assay.compose import RunResult
    from assay.config import Config
    from assay.query.run import RunView

_WIDEST = 160


def summary_of(sweep: str, configs: Sequence[Config], results: Sequence[RunResult]) -> SweepSummary:
    """Return the summary of the configs of a sweep; those without a result were not run."""
    metric, mode = _metric_of(configs, results)
    ended = [*results, *[None] * (len(configs) - len(results))]
    runs = [
        _row(config, result, metric, mode) for config, result in zip(configs, ended, strict=True)
    ]
    for key in ("config", "variant"):
        if len({run.values[key] for run in runs}) == 1:
            runs = [replace(run, values=_without(key, run.values)) for run in runs]
    return SweepSummary.of(sweep, runs, metric, mode)


def _row(config: Config, result: RunResult | None, metric: str, mode: Mode) -> SweepRun:
    """Return what the record of a run says, and of one without a record its config."""
    view = _view(result) if result is not None else None
    root = view.config_tree if view is not None and view.config_text else config.root
    swept = [(key, node) for key, node in config.assigned if key != "seed"]
    file = config.path.name if config.path is not None else "-"
    values = {"config": file, "variant": config.variant or "base"}
    values |= spell_assigned(root, swept)
    seeds = [node for key, node in config.assigned if key == "seed"]
    seed = seeds[-1].value if seeds and isinstance(seeds[-1], Leaf) else None
    # Points of a sweep over the seed are repeats of what is left of them.
    is_swept = any(node.origin.source != SEEDS for node in seeds)
    run = SweepRun(
        id="",
        status="not run",
        values=values,
        point="" if is_swept else f"{config.path} {config.variant} {config.point}",
        seed=seed if isinstance(seed, int) else None,
    )
    if result is None:
        return run
    (score,), step = scores_of(view, [(metric, mode, "best")]) if view is not None else ((None,), 0)
    if score is None:
        score, step = result.value.get(metric), result.step
    cause = cause_of(result)
    return replace(run, id=result.id, status=result.status, score=score, step=step, cause=cause)


def _without(key: str, values: Mapping[str, str]) -> dict[str, str]:
    return {each: value for each, value in values.items() if each != key}


def print_summary(summary: SweepSummary, *, has_records: bool = True, err: bool = True) -> None:
    """Print the table of a sweep, and the commands that look further."""
    stream = sys.stderr if err else sys.stdout
    color = use_color(stream)
    limit = width(stream) or _WIDEST
    for line in summary.text():
        line = elide(line, limit)
        for status in ("failed", "stopped", "killed"):
            if f"  {status}  " in line:
                painted = paint(status, STATUS_STYLES[status], on=color)
                line = line.replace(status, painted, 1)
        echo(line, err=err)
    if has_records and summary.sweep:
        where = shlex.quote(f"sweep = {summary.sweep}")
        echo(f"\nassay ls {where} --group --diff", err=err)
        if summary.metric:
            metric = shlex.quote(summary.metric)
            echo(f"assay figure curves {where} -m {metric} -o sweep.pdf", err=err)


def cause_of(result: RunResult) -> str:
    """Return why a run failed, in one line; "" for one that did not."""
    error = result.exception
    if error is None:
        return ""
    first = str(error).strip().split("\n", 1)[0]
    return first if isinstance(error, AssayError) else f"{type(error).__name__}: {first}"


def _metric_of(configs: Sequence[Config], results: Sequence[RunResult]) -> tuple[str, Mode]:
    """Return the metric of `[checkpoint] best`, else the usual one of those that were measured."""
    from assay.config.standard_keys import sections_of

    best = sections_of(configs[0].root).checkpoint.best
    if best is not None:
        return best.metric, best.mode
    return usual_metric(list(dict.fromkeys(name for each in results for name in each.value)))


def _view(result: RunResult) -> RunView | None:
    from assay.query.run import RunView

    if result.record_dir is None:
        return None
    try:
        return RunView(result.record_dir)
    except AssayError:
        return None
