"""Comparison of several runs: keys, files, packages and numbers, and first differing steps."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.core.errors import AssayError
from assay.core.facts import COSTS
from assay.core.formatting import name_some
from assay.formats.run_file import Summary
from assay.formats.verdict import Verdict
from assay.query.config_rows import flat_config
from assay.query.diff import (
    code_store,
    comparable_environments,
    describe_setting,
    flat,
    is_one_setting,
    unwritten_settings,
)
from assay.query.groups import Spread, compute_spread
from assay.query.observations import Members, merge_repeats
from assay.query.run import RunView
from assay.query.significance import TTest, welch
from assay.store.code_trees import CodeFile, read_tree
from assay.store.series import read_series

if TYPE_CHECKING:
    from assay.query.catalog import Catalog
    from assay.store.series import Series

DATA_ORDER = "data/digest"


@dataclass(frozen=True, slots=True)
class DifferingKey:
    """One key, and what each run has there; None where it has nothing."""

    key: str
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class DifferingFile:
    """File of the code that differs from the first run: "added", "removed" or "changed", by run."""

    path: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric of all runs.

    `groups` are the last values of the repeats of each run, those that are finite; `tests` compare
    them with those of the first. Both are None for each run where no run has repeats.
    """

    name: str
    summaries: tuple[Summary | None, ...]
    groups: tuple[Spread | None, ...]
    tests: tuple[TTest | None, ...]


@dataclass(frozen=True, slots=True)
class CurveDivergence:
    """First step at which a curve differs from that of the first run, to the last bit."""

    step: int
    metric: str


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Everything in which runs differ from each other; `equal_*` count what is the same in all."""

    runs: tuple[RunView, ...]
    config: tuple[DifferingKey, ...]
    equal_config: int
    environment: tuple[DifferingKey, ...]
    equal_environment: int
    code: tuple[DifferingFile, ...]
    equal_code: int
    code_missing: tuple[str, ...]
    metrics: tuple[MetricRow, ...]
    partings: tuple[CurveDivergence | None, ...]
    repeats: tuple[int, ...]
    sentence: str = ""
    verdicts: tuple[Verdict, ...] = ()
    """Verdicts of `diverge` about any two of the runs, the newest first."""
    warnings: tuple[str, ...] = ()
    """Doubts in the means and tests: runs that did not finish, seeds that were run twice."""


def compare(runs: Sequence[RunView], catalog: Catalog) -> RunComparison:
    """Compare runs with the first of them."""
    configs = [_config(run) for run in runs]
    keys = dict.fromkeys([*chain.from_iterable(configs), *unwritten_settings(runs)])
    configs = [
        {key: describe_setting(run, key, config.get(key)) for key in keys}
        for run, config in zip(runs, configs, strict=True)
    ]
    environments = [dict(flat(each)) for each in comparable_environments(runs)]
    config, equal_config = _differing(configs)
    environment, equal_environment = _differing(environments)
    code, equal_code, missing = compare_code(runs)
    alike = [catalog.repeats_of(run.id) for run in runs]
    members = Members.of(catalog.select_ids(sorted(set(chain.from_iterable(alike)))))
    repeats = [
        members.at([place for place, run_id in enumerate(members.ids) if run_id in group])
        for group in alike
    ]
    groups = [[each.ids[place] for place in each.counted] for each in repeats]
    metrics = _metrics(runs, groups, catalog, members)
    partings = tuple(None if run is runs[0] else first_parting(runs[0], run) for run in runs)
    found = RunComparison(
        tuple(runs),
        config,
        equal_config,
        environment,
        equal_environment,
        code,
        equal_code,
        missing,
        metrics,
        partings,
        tuple(len(group) for group in groups),
        verdicts=_verdicts(runs),
        warnings=tuple(
            f"{run.id}: {told}"
            for run, each in zip(runs, repeats, strict=True)
            for told in each.describe(are_merged=True)
        ),
    )
    return RunComparison(**{**_fields(found), "sentence": _sentence(found)})


def first_parting(left: RunView, right: RunView) -> CurveDivergence | None:
    """Return where the curves of two runs differ first, clock metrics aside; None for nowhere."""
    a, b = (_curves(run) for run in (left, right))
    found = []
    for name in a.keys() & b.keys():
        step = _first_difference(a[name], b[name])
        if step is not None:
            found.append(CurveDivergence(step, name))
    # At the same step what was read comes before what was made of it.
    return min(
        found, key=lambda each: (each.step, each.metric != DATA_ORDER, each.metric), default=None
    )


def _fields(comparison: RunComparison) -> dict[str, Any]:
    return {name: getattr(comparison, name) for name in RunComparison.__slots__}


def _config(run: RunView) -> dict[str, Any]:
    """Return a saved config, and values from outside that it does not hold, as text by key.

    Nothing of one that is damaged.
    """
    try:
        return {**flat_config(run), **dict(flat(run.outside))}
    except AssayError:
        return {}


def _differing(values: Sequence[Mapping[str, Any]]) -> tuple[tuple[DifferingKey, ...], int]:
    keys = list(dict.fromkeys(key for each in values for key in each))
    rows = [DifferingKey(key, tuple(each.get(key) for each in values)) for key in keys]
    found = tuple(row for row in rows if not is_one_setting(row.values))
    return found, len(rows) - len(found)


def compare_code(
    runs: Sequence[RunView],
) -> tuple[tuple[DifferingFile, ...], int, tuple[str, ...]]:
    """Return the files that differ from the first run, how many do not, and runs without code."""
    trees: list[dict[str, CodeFile] | None] = []
    for run in runs:
        tree = None
        if run.code.snapshot:
            with contextlib.suppress(KeyError, AssayError):
                tree = read_tree(code_store(run), run.code.snapshot)
        trees.append(tree)
    missing = tuple(run.id for run, tree in zip(runs, trees, strict=True) if tree is None)
    first = trees[0]
    if first is None:
        return (), 0, missing
    paths = sorted({path for tree in trees for path in tree or ()})
    rows = [
        DifferingFile(path, tuple(_change(path, first, tree) for tree in trees)) for path in paths
    ]
    found = tuple(row for row in rows if any(row.changes))
    return found, len(rows) - len(found), missing


def _change(path: str, first: Mapping[str, CodeFile], tree: Mapping[str, CodeFile] | None) -> str:
    if tree is None:
        return ""
    ours = first.get(path)
    theirs = tree.get(path)
    if ours is None or theirs is None:
        return "" if ours is theirs else "added" if ours is None else "removed"
    return "" if ours.digest == theirs.digest else "changed"


def _metrics(
    runs: Sequence[RunView],
    groups: Sequence[Sequence[str]],
    catalog: Catalog,
    members: Members,
) -> tuple[MetricRow, ...]:
    summaries = [run.summaries for run in runs]
    names = list(dict.fromkeys(name for each in summaries for name in each))
    names.sort(key=lambda name: name.startswith(COSTS))
    tested: list[str] = []
    if max(map(len, groups)) > 1:
        tested = [name for name in names if not name.startswith(COSTS)]
    ids = sorted({run_id for group in groups for run_id in group})
    values = {name: catalog.values_of(ids, name) for name in tested}
    rows = []
    for name in names:
        spreads: tuple[Spread | None, ...] = (None,) * len(runs)
        tests: tuple[TTest | None, ...] = (None,) * len(runs)
        if name in values:
            observed = {run: members.observe(place) for place, run in enumerate(members.ids)}
            samples = [
                merge_repeats({run: values[name].get(run) for run in group}, observed)
                for group in groups
            ]
            spreads = tuple(compute_spread(sample) if sample else None for sample in samples)
            tests = tuple(
                None if groups[0] == group else welch(samples[0], sample)
                for group, sample in zip(groups, samples, strict=True)
            )
        row = MetricRow(name, tuple(each.get(name) for each in summaries), spreads, tests)
        rows.append(row)
    return tuple(rows)


def _curves(run: RunView) -> dict[str, Series]:
    try:
        found = read_series(run.folder.metrics)
    except (AssayError, OSError):
        return {}
    return {name: each for name, each in found.items() if not name.startswith((*COSTS, "compile/"))}


def _first_difference(left: Series, right: Series) -> int | None:
    """Return the first step at which two curves differ in a bit.

    None when one is the beginning of the other.
    """
    count = min(len(left), len(right))
    is_other = left.steps[:count] != right.steps[:count]
    is_other |= left.values[:count].view(np.int64) != right.values[:count].view(np.int64)
    if not is_other.any():
        return None
    at = int(np.argmax(is_other))
    return int(min(left.steps[at], right.steps[at]))


def _sentence(found: RunComparison) -> str:
    """Return the differences in one line: `same code, same environment; differ in optimizer.lr`."""
    same = []
    if not found.code and not found.code_missing:
        same.append("same code")
    if not found.environment:
        same.append("same environment")
    data = [row for row in found.config if row.key.startswith("data.")]
    if not data and found.equal_config:
        same.append("same data settings")
    parts = [", ".join(same)] if same else []
    differ = [row.key for row in found.config if row.key not in ("tag", "desc")]
    if differ:
        parts.append(f"differ in {name_some(differ, noun='key')}")
    elif found.equal_config:
        parts.append("same config")
    if found.code:
        names = [row.path for row in found.code]
        parts.append(f"code differs in {name_some(names, noun='file')}")
    if found.code_missing:
        parts.append(f"the code of {', '.join(found.code_missing)} is not here")
    partings = [each for each in found.partings if each is not None]
    if partings:
        first = min(partings, key=lambda each: each.step)
        parts.append(f"first different step {first.step} ({first.metric})")
    elif len(found.runs) > 1 and any(row.summaries[0] is not None for row in found.metrics):
        parts.append("no step differs where both have one")
    return "; ".join(parts)


def _verdicts(runs: Sequence[RunView]) -> tuple[Verdict, ...]:
    """Return the verdicts about any two of these runs, once each; both runs keep a copy."""
    ids = {run.id for run in runs}
    found = {
        (verdict.question, verdict.runs, verdict.at_ns): verdict
        for run in runs
        for verdict in run.verdicts
        if len(verdict.runs) > 1 and set(verdict.runs) <= ids
    }
    return tuple(sorted(found.values(), key=lambda verdict: -verdict.at_ns))
