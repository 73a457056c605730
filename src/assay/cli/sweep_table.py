"""Summary of several runs on the terminal, as `assay run` and `assay sweep` end with it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from assay.cli.terminal import STATUS_STYLES, echo, paint, use_color, width
from assay.core.errors import AssayError
from assay.core.terminal import elide
from assay.formats.run_file import Summary
from assay.query.sweep_summary import Mode, SweepRun, SweepSummary, score_of, usual_metric

if TYPE_CHECKING:
    from assay.compose import RunResult
    from assay.config import Config

_WIDEST = 160


def summary_of(sweep: str, configs: Sequence[Config], results: Sequence[RunResult]) -> SweepSummary:
    """Return the summary of the configs of a sweep; those without a result were not run."""
    metric, mode = _metric_of(configs, results)
    columns = _columns(configs)
    runs = []
    for i, values in enumerate(columns):
        text = values.pop("seed", "")
        run = SweepRun(
            id="",
            status="not run",
            values=values,
            seed=int(text) if text.isdecimal() else None,
        )
        if i < len(results):
            result = results[i]
            score = score_of(_summaries(result), result.value, metric, mode)
            cause = cause_of(result)
            run = replace(run, id=result.id, status=result.status, score=score, cause=cause)
        runs.append(run)
    return SweepSummary.of(sweep, runs, metric, mode)


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


def _columns(configs: Sequence[Config]) -> list[dict[str, str]]:
    """Return what varies between configs: file, variant and the keys that a sweep assigns."""
    from assay.query.diff import write_value

    rows = []
    for config in configs:
        file = config.path.name if config.path is not None else "-"
        row = {"config": file, "variant": config.variant or "base"}
        row |= {key: write_value(node) or "none" for key, node in config.assigned}
        rows.append(row)
    shared = {key for key in ("config", "variant") if len({row[key] for row in rows}) == 1}
    return [{key: value for key, value in row.items() if key not in shared} for row in rows]


def _metric_of(configs: Sequence[Config], results: Sequence[RunResult]) -> tuple[str, Mode]:
    """Return the metric of `[checkpoint] best`, else the usual one of those that were measured."""
    from assay.config.standard_keys import sections_of

    best = sections_of(configs[0].root).checkpoint.best
    if best is not None:
        return best.metric, best.mode
    return usual_metric(list(dict.fromkeys(name for each in results for name in each.value)))


def _summaries(result: RunResult) -> Mapping[str, Summary]:
    from assay.query.run import RunView

    if result.record_dir is None:
        return {}
    try:
        return RunView(result.record_dir).summaries
    except AssayError:
        return {}
