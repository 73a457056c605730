"""Comparison of groups of runs in one metric: means, intervals, tests, effects, seeds needed."""

from __future__ import annotations

import math
import statistics
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np

from assay.core.errors import InputError, MissingExtraError
from assay.core.formatting import count, name_some
from assay.query.catalog import Catalog
from assay.query.columns import COLUMNS, Column
from assay.query.compare import compare_code
from assay.query.find import label_groups, select_group
from assay.query.groups import compute_spread
from assay.query.observations import read_observations
from assay.query.run import RunView
from assay.query.selection import Selection
from assay.query.significance import (
    LEVEL,
    correct_by_holm,
    paired_t,
    t_quantile,
    welch,
)

PAIRED_T, WILCOXON, WELCH = "paired t-test", "Wilcoxon signed-rank test", "Welch's t-test"
TESTS = {"paired-t": PAIRED_T, "wilcoxon": WILCOXON, "welch": WELCH}
_INTERVALS = {
    PAIRED_T: "Student's t of the differences",
    WILCOXON: "BCa bootstrap of the differences",
    WELCH: "Student's t of Welch's test",
}
ALPHA = 0.05
POWER = 0.8
_RESAMPLES = 9_999
_LEAST_RANKS = 6
_MOST_SEEDS = 100_000
_FOLD = "fold"

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSample:
    """Runs of one expression, with the value of each that counts, and why others do not.

    `seeds` are the seed of each run that counts, and its values of `fold_keys`. `std` is the sample
    deviation, `iqm` the mean of the middle half, `interval` the BCa bootstrap interval of the mean.
    """

    label: str
    where: str
    n: int
    mean: float
    std: float
    median: float
    iqm: float
    interval: Interval
    runs: Mapping[str, float]
    left_out: Mapping[str, str]
    seeds: Mapping[str, tuple[Any, ...]]
    fold_keys: tuple[str, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDifference:
    """Difference of a sample from the first one, with the test that it is of.

    `n` are the sizes of both samples, or the number of pairs; `unpaired` runs have no partner.
    `p_holm` is corrected for all differences of the comparison. `effect` is None for a difference
    without a deviation. `larger` is how likely a run of the sample has a larger value than one of
    the first, equal ones by half (rliable's probability of improvement). `needed` seeds of each
    sample, or pairs, would show the difference asked for; None for more than 100,000.
    """

    group: str
    test: str
    paired_by: str
    n: tuple[int, ...]
    difference: float
    interval: Interval
    interval_method: str
    p: float
    p_holm: float
    effect: float | None
    effect_name: str
    larger: float
    unpaired: tuple[str, ...]
    needed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleComparison:
    """Samples in one metric, and the difference of each from the first.

    `alpha` is the p below which `needed` finds `detect`, with a power of 80 %.
    """

    metric: str
    groups: tuple[RunSample, ...]
    differences: tuple[SampleDifference, ...]
    alpha: float
    detect: float | None
    warnings: tuple[str, ...]


def compare_samples(
    catalog: Catalog,
    expressions: Sequence[str],
    metric: str,
    *,
    test: str | None = None,
    detect: float | None = None,
) -> SampleComparison:
    """Compare the runs of the first expression with those of each other, in a column of numbers.

    `test` is one of TESTS; None: paired where all runs of the smaller sample have a run of their
    seed and folds in the other, else Welch's. InputError for an expression without runs, for runs
    in two samples, and for a sample too small for the test; MissingExtraError without scipy.
    """
    try:
        from scipy import stats  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError("`assay compare`", extra="stats") from None
    column = catalog.known_column(metric)
    selections = [select_group(catalog, each) for each in expressions]
    _refuse_overlap(expressions, selections)
    labels = label_groups(expressions, selections)
    asked = zip(selections, expressions, labels, strict=True)
    groups = [_read_sample(stats, column, *each) for each in asked]
    first, *others = groups
    alpha = ALPHA / len(others)
    tested = [each for each in others if min(first.n, each.n) > 1]
    found = [_compare(stats, first, each, test, detect, alpha) for each in tested]
    corrected = correct_by_holm([each.p for each in found])
    differences = (replace(each, p_holm=p) for each, p in zip(found, corrected, strict=True))
    return SampleComparison(
        metric=metric,
        groups=tuple(groups),
        differences=tuple(differences),
        alpha=alpha,
        detect=detect,
        warnings=tuple(_find_doubts(groups, selections, metric)),
    )


def _refuse_overlap(expressions: Sequence[str], selections: Sequence[Selection]) -> None:
    seen: dict[str, str] = {}
    for where, selection in zip(expressions, selections, strict=True):
        ids = selection.ids()
        shared = [run_id for run_id in ids if run_id in seen]
        if shared:
            what = (
                f"The run {name_some(shared, 1)} is both in `{seen[shared[0]]}` and in `{where}`."
            )
            raise InputError(what, fix="narrow one of them with `and ...`")
        seen |= dict.fromkeys(ids, where)


def _read_sample(
    stats: ModuleType, column: Column, selection: Selection, where: str, label: str
) -> RunSample:
    """Return a sample; InputError for fewer than two runs."""
    found = read_observations(selection, column)
    runs = found.values
    if len(runs) + len(found.repeats) < 2:
        ids, cells = selection.values([COLUMNS["id"], column])
        if text := next((cell for cell in cells if isinstance(cell, str)), ""):
            raise InputError(f"`{column.name}` is no number: {text}.", fix="name a metric")
        having = f"`{label}` has {count(len(runs), 'run')} with {column.name} that counts"
        raise InputError(f"{having}; a test needs 2.", fix="assay run CONFIG --seeds 5")
    ids = selection.ids()
    configs = dict(zip(ids, selection.configs()[0], strict=True))
    keys = {key for config in configs.values() for key in config}
    folds = tuple(sorted(key for key in keys if key.rpartition(".")[2] == _FOLD))
    values = list(runs.values())
    spread = compute_spread(values)
    return RunSample(
        label=label,
        where=where,
        n=len(values),
        mean=spread.mean,
        std=math.nan if spread.std is None else spread.std,
        median=statistics.median(values),
        iqm=float(stats.trim_mean(values, 0.25)),
        interval=_bootstrap(stats, values),
        runs=runs,
        left_out=found.left_out,
        seeds={run: tuple(map(configs[run].get, ("seed", *folds))) for run in runs},
        fold_keys=folds,
        warnings=found.warnings,
    )


def _bootstrap(stats: ModuleType, values: Sequence[float]) -> Interval:
    """Return the BCa interval of the mean, the same one each time; of one value nan."""
    if len(values) < 2:
        return math.nan, math.nan
    if len(set(values)) == 1:  # all resamples are the same
        return values[0], values[0]
    found = stats.bootstrap(
        (values,), np.mean, n_resamples=_RESAMPLES, confidence_level=LEVEL, method="BCa",
        rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


def _compare(
    stats: ModuleType,
    first: RunSample,
    other: RunSample,
    asked: str | None,
    detect: float | None,
    alpha: float,
) -> SampleDifference:
    pairs, unpaired = _pair(first, other)
    test = TESTS[asked] if asked else PAIRED_T if pairs else WELCH
    left, right = list(first.runs.values()), list(other.runs.values())
    if test == WELCH:
        found, n, unpaired = welch(left, right), [first.n, other.n], ()
        freedom = sum(n) - 2
        parts = math.sqrt(first.n - 1) * first.std, math.sqrt(other.n - 1) * other.std
        pooled = math.hypot(*parts) / math.sqrt(freedom)
        scale = _hedges_factor(freedom) / pooled if pooled else 0.0
        error = math.hypot(first.std, other.std)
    else:
        if not pairs:
            what = f"The runs of `{first.label}` and `{other.label}` make no pairs"
            needed = "each would need a seed of its own that the other has, too."
            raise InputError(f"{what}: {needed}", fix="--test welch")
        differences = [other.runs[right] - first.runs[left] for left, right in pairs]
        found, n = paired_t(differences), [len(pairs)]
        error = compute_spread(differences).std or 0.0
        scale = 1 / error if error else 0.0
    assert found is not None
    p, interval = found.p, found.interval()
    if test == WILCOXON:
        p, interval = _rank(stats, other.label, differences), _bootstrap(stats, differences)
    return SampleDifference(
        group=other.label,
        test=test,
        paired_by="" if test == WELCH else " and ".join(("seed", *first.fold_keys)),
        n=tuple(n),
        difference=found.difference,
        interval=interval,
        interval_method=_INTERVALS[test],
        p=p,
        p_holm=p,
        effect=found.difference * scale if scale or not found.difference else None,
        effect_name="Hedges' g" if test == WELCH else "Cohen's d_z",
        larger=float(np.sign(np.subtract.outer(right, left)).mean() + 1) / 2,
        unpaired=unpaired,
        needed=seeds_for(stats, detect, error, len(n), alpha) if detect else None,
    )


def _pair(first: RunSample, other: RunSample) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Return pairs of runs of one seed and fold, and the runs of the larger sample without one.

    No pairs where a run of the smaller sample has no partner, or two runs have the same seed.
    """
    lefts, rights = ({seed: run for run, seed in each.seeds.items()} for each in (first, other))
    shared = [seed for seed in lefts if seed in rights]
    is_unique = len(lefts) == first.n and len(rights) == other.n
    is_known = all(seed[0] is not None for seed in (*lefts, *rights))
    is_whole = len(shared) == min(first.n, other.n) and first.fold_keys == other.fold_keys
    if not (is_unique and is_known and is_whole):
        return [], ()
    alone = [run for runs in (lefts, rights) for seed, run in runs.items() if seed not in shared]
    return [(lefts[seed], rights[seed]) for seed in shared], tuple(alone)


def _rank(stats: ModuleType, label: str, differences: Sequence[float]) -> float:
    """Return p of the test of signed ranks; InputError for pairs that are too few for any."""
    if len(differences) < _LEAST_RANKS:
        least = f"the p of a Wilcoxon test is at least {2.0 ** (1 - len(differences)):g}"
        what = f"`{label}`: with {len(differences)} pairs {least}, whatever their values are."
        raise InputError(what, fix=f"{_LEAST_RANKS} seeds, or --test paired-t")
    if not any(differences):
        return 1.0
    with warnings.catch_warnings():  # of ties, where it takes the normal approximation
        warnings.simplefilter("ignore")
        return float(stats.wilcoxon(differences).pvalue)


def _hedges_factor(freedom: int) -> float:
    """Return what makes Hedges' g of Cohen's d, exactly."""
    gammas = math.lgamma(freedom / 2) - math.lgamma((freedom - 1) / 2)
    return math.exp(gammas) / math.sqrt(freedom / 2)


def seeds_for(
    stats: ModuleType, difference: float, error: float, samples: int, alpha: float
) -> int | None:
    """Return the least n with which a t-test finds a difference with a power of 80 %.

    `error` / sqrt(n) is the standard error of the difference; n runs are in each of `samples`. None
    for more than 100,000.
    """

    def is_enough(n: int) -> bool:
        freedom, limit = samples * (n - 1), t_quantile(alpha, samples * (n - 1))
        shift = abs(difference) / error * math.sqrt(n) if error else math.inf
        # The tail on the other side is too small to count. Far out scipy has nan for a power of 1.
        return not stats.nct.sf(limit, freedom, shift) < POWER

    sizes = range(2, _MOST_SEEDS + 1)
    place = bisect_left(sizes, True, key=is_enough)
    return sizes[place] if place < len(sizes) else None


def _find_doubts(
    groups: Sequence[RunSample], selections: Sequence[Selection], metric: str
) -> Iterator[str]:
    """Yield what may make samples incomparable: a seed twice, code and data that differ.

    Data are files that the runs read, by digest, and the config section of the data of the metric.
    """
    section = f"data.{metric.partition('/')[0]}." if "/" in metric else "/"  # of no key
    first: dict[str, set[str]] | None = None
    for sample, selection in zip(groups, selections, strict=True):
        found = zip(selection.rows(), selection.configs()[0], strict=True)
        configs = {row.path: config for row, config in found if row and row.id in sample.runs}
        views = [RunView(path) for path in configs]
        data: dict[str, set[str]] = {}
        for view, config in zip(views, configs.values(), strict=True):
            facts = {key: value for key, value in config.items() if key.startswith(section)}
            facts |= view.environment.get("inputs", {}).get("files", {})
            for name, value in facts.items():
                if name.rpartition(".")[2] != _FOLD:
                    data.setdefault(name, set()).add(str(value))
        yield from (f"{sample.label}: {each}" for each in sample.warnings)
        if sample.n < 2:
            yield f"{sample.label}: one observation, with which nothing is tested"
        seeds = [seed for seed in sample.seeds.values() if seed[0] is not None]
        if twice := next((seed for seed in seeds if seeds.count(seed) > 1), None):
            yield f"{sample.label}: runs of other configs have the seed {twice[0]}, and count each"
        mixed = {
            "data": sorted(name for name, values in data.items() if len(values) > 1),
            "code": [file.path for file in compare_code(views)[0]],
        }
        for kind, names in mixed.items():
            if names:
                yield f"{sample.label}: its runs are of different {kind}: {name_some(names)}"
        first = data if first is None else first
        named = sorted(key for key in {*first, *data} if first.get(key) != data.get(key))
        other = [key for key in named if key.startswith(section) or (key in first and key in data)]
        if other:
            both = f"{sample.label} and {groups[0].label}"
            yield f"{both} are of different data: {name_some(other)}"
