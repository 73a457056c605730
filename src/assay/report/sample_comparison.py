"""Comparison of groups of runs in one metric: means, intervals, tests, effects, seeds needed."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from assay.core.errors import InputError, MissingExtraError
from assay.core.formatting import count
from assay.query.catalog import Catalog, Selection
from assay.query.columns import COLUMNS, Column
from assay.query.find import label_groups, select_group
from assay.query.groups import Spread, choose_counted, compute_spread
from assay.query.run import RunView
from assay.query.significance import (
    LEVEL,
    confidence_interval,
    correct_by_holm,
    paired_t,
    t_quantile,
    welch,
)

if TYPE_CHECKING:
    from types import ModuleType

TestName = Literal["paired-t", "wilcoxon", "welch"]
TESTS: Mapping[TestName, str] = {
    "paired-t": "paired t-test",
    "wilcoxon": "Wilcoxon signed-rank test",
    "welch": "Welch's t-test",
}
MEAN_INTERVAL = "BCa bootstrap of the mean"
ALPHA = 0.05
POWER = 0.8
_RESAMPLES = 9_999
_LEAST_PAIRS_OF_RANKS = 6
_MOST_SEEDS = 100_000
_NAMED = 3
_FOLD = "fold"

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSample:
    """Runs of one expression: the value of each that counts, and why the others do not.

    `pairs` are the seed, and the folds where the config has some, of each run that counts.
    """

    label: str
    where: str
    values: Mapping[str, float]
    pairs: Mapping[str, tuple[Any, ...]]
    left_out: Mapping[str, str]
    fold_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFigures:
    """Figures of one sample; `iqm` is the mean of its middle half, `interval` that of the mean."""

    spread: Spread
    median: float
    iqm: float
    interval: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDifference:
    """Difference of a sample from the first one, with the test that it is of.

    `counts` are the sizes of both samples, or the number of pairs. `holm_p` is corrected for all
    differences of the comparison. `needed` seeds of each, or pairs, would show `detect`.
    """

    label: str
    test: TestName
    paired_by: str
    counts: tuple[int, ...]
    difference: float
    interval: Interval
    interval_method: str
    p: float
    holm_p: float
    effect: float | None
    effect_name: str
    unpaired: tuple[str, ...] = ()
    detect: float | None = None
    needed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleComparison:
    """Samples in one metric; the first is what the others are measured against."""

    metric: str
    samples: tuple[RunSample, ...]
    figures: tuple[SampleFigures, ...]
    differences: tuple[SampleDifference, ...]
    warnings: tuple[str, ...] = field(default=())

    @property
    def alpha(self) -> float:
        """The p below which one of these differences is called one, in `needed`."""
        return ALPHA / len(self.differences)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {
            "metric": self.metric,
            "groups": [
                {
                    "label": sample.label,
                    "where": sample.where,
                    "n": figures.spread.count,
                    "mean": figures.spread.mean,
                    "std": figures.spread.std,
                    "median": figures.median,
                    "iqm": figures.iqm,
                    "interval": figures.interval,
                    "interval_method": MEAN_INTERVAL,
                    "runs": dict(sample.values),
                    "left_out": dict(sample.left_out),
                }
                for sample, figures in zip(self.samples, self.figures, strict=True)
            ],
            "differences": [
                {
                    "group": each.label,
                    "from": self.samples[0].label,
                    "test": TESTS[each.test],
                    "paired_by": each.paired_by,
                    "n": each.counts,
                    "difference": each.difference,
                    "interval": each.interval,
                    "interval_method": each.interval_method,
                    "p": each.p,
                    "p_holm": each.holm_p,
                    "effect": each.effect,
                    "effect_name": each.effect_name,
                    "unpaired": each.unpaired,
                    "detect": each.detect,
                    "needed": each.needed,
                }
                for each in self.differences
            ],
            "level": LEVEL,
            "warnings": self.warnings,
        }


def compare_samples(
    catalog: Catalog,
    expressions: Sequence[str],
    metric: str,
    *,
    test: TestName | None = None,
    detect: float | None = None,
) -> SampleComparison:
    """Compare the runs of the first expression with those of each other, in a column of numbers.

    Paired where all runs of the smaller sample have a run of their seed and folds in the other.
    InputError for an expression without runs, for runs in two samples, and for a sample that is too
    small for the test; MissingExtraError without scipy.
    """
    stats = _scipy_stats()
    column = catalog.known_column(metric)
    selections = [select_group(catalog, each) for each in expressions]
    _refuse_overlap(expressions, selections)
    labels = label_groups(expressions, selections)
    samples = [
        _read_sample(selection, column, where, label)
        for selection, where, label in zip(selections, expressions, labels, strict=True)
    ]
    for sample in samples:
        if len(sample.values) < 2:
            raise InputError(
                f"`{sample.label}` has {count(len(sample.values), 'run')} with {metric} that"
                " counts; a test needs 2.",
                fix="assay run CONFIG --seeds 5",
            )
    figures = tuple(_compute_figures(stats, list(sample.values.values())) for sample in samples)
    first, *others = samples
    found = [_test(stats, first, each, test) for each in others]
    corrected = correct_by_holm([each.p for each in found])
    alpha = ALPHA / len(found)
    differences = tuple(
        replace(
            each,
            holm_p=p,
            detect=detect,
            needed=_seeds_needed(stats, first, sample, each, detect, alpha) if detect else None,
        )
        for each, sample, p in zip(found, others, corrected, strict=True)
    )
    told = [*_warn_of_repeats(samples), *_warn_of_other_data(samples, selections, metric)]
    return SampleComparison(
        metric=metric,
        samples=tuple(samples),
        figures=figures,
        differences=differences,
        warnings=tuple(told),
    )


def _scipy_stats() -> ModuleType:
    try:
        from scipy import stats  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError("`assay compare`", extra="stats") from None
    return stats  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------ the samples


def _refuse_overlap(expressions: Sequence[str], selections: Sequence[Selection]) -> None:
    seen: dict[str, str] = {}
    for where, selection in zip(expressions, selections, strict=True):
        ids = selection.ids()
        shared = [run_id for run_id in ids if run_id in seen]
        if shared:
            more = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
            raise InputError(
                f"The run {shared[0]}{more} is both in `{seen[shared[0]]}` and in `{where}`.",
                fix="narrow one of them with `and ...`",
            )
        seen |= dict.fromkeys(ids, where)


def _read_sample(selection: Selection, column: Column, where: str, label: str) -> RunSample:
    facts = [COLUMNS["id"], COLUMNS["status"], column]
    ids, statuses, cells = selection.values(facts)
    places = range(len(ids))
    counted = choose_counted(places, lambda place: statuses[place])
    values = {ids[place]: cells[place] for place in counted if _is_finite(cells[place])}
    left_out = {}
    for place in places:
        if ids[place] in values:
            continue
        why = statuses[place]
        if place in counted:
            why = f"no {column.name}" if cells[place] is None else f"{column.name} {cells[place]}"
        left_out[ids[place]] = why
    configs = dict(zip(ids, selection.items("config"), strict=True))
    keys = {key for config in configs.values() for key in config}
    folds = tuple(sorted(key for key in keys if key.rpartition(".")[2] == _FOLD))
    pairs = {
        run_id: (configs[run_id].get("seed"), *(configs[run_id].get(key) for key in folds))
        for run_id in values
    }
    return RunSample(
        label=label, where=where, values=values, pairs=pairs, left_out=left_out, fold_keys=folds
    )


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


# ------------------------------------------------------------------------------------ the figures


def _compute_figures(stats: ModuleType, values: Sequence[float]) -> SampleFigures:
    return SampleFigures(
        spread=compute_spread(values),
        median=statistics.median(values),
        iqm=float(stats.trim_mean(values, 0.25)),
        interval=bootstrap_interval(stats, values),
    )


def bootstrap_interval(stats: ModuleType, values: Sequence[float]) -> Interval:
    """Return the BCa interval of the mean of two values or more, from resamples of seed 0."""
    if len(set(values)) == 1:  # all resamples are the same
        return values[0], values[0]
    import numpy as np

    found = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=_RESAMPLES,
        confidence_level=LEVEL,
        method="BCa",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def _test(
    stats: ModuleType, first: RunSample, other: RunSample, asked: TestName | None
) -> SampleDifference:
    pairs, unpaired = _pair(first, other)
    test = asked or ("paired-t" if pairs else "welch")
    if test == "welch":
        return _test_unpaired(first, other)
    if not pairs:
        raise InputError(
            f"The runs of `{first.label}` and `{other.label}` make no pairs: each would need a seed"
            " of its own that the other has, too.",
            fix="--test welch",
        )
    differences = [other.values[right] - first.values[left] for left, right in pairs]
    by = " and ".join(("seed", *first.fold_keys))
    spread = compute_spread(differences)
    found = SampleDifference(
        label=other.label,
        test=test,
        paired_by=by,
        counts=(len(pairs),),
        difference=spread.mean,
        interval=confidence_interval(differences) or (math.nan, math.nan),
        interval_method="Student's t of the differences",
        p=math.nan,
        holm_p=math.nan,
        effect=_ratio(spread.mean, spread.std or 0.0),
        effect_name="Cohen's d_z",
        unpaired=unpaired,
    )
    if test == "paired-t":
        result = paired_t(differences)
        assert result is not None
        return replace(found, p=result.p)
    if len(pairs) < _LEAST_PAIRS_OF_RANKS:
        least = 2.0 ** (1 - len(pairs))
        raise InputError(
            f"`{other.label}`: with {len(pairs)} pairs the p of a Wilcoxon test is at least"
            f" {least:g}, whatever their values are.",
            fix=f"{_LEAST_PAIRS_OF_RANKS} seeds, or --test paired-t",
        )
    return replace(
        found,
        interval=bootstrap_interval(stats, differences),
        interval_method="BCa bootstrap of the differences",
        p=_wilcoxon(stats, differences),
    )


def _wilcoxon(stats: ModuleType, differences: Sequence[float]) -> float:
    if not any(differences):
        return 1.0
    with warnings.catch_warnings():  # of ties, where it takes the normal approximation
        warnings.simplefilter("ignore")
        return float(stats.wilcoxon(differences).pvalue)


def _test_unpaired(first: RunSample, other: RunSample) -> SampleDifference:
    left, right = list(first.values.values()), list(other.values.values())
    result = welch(left, right)
    assert result is not None
    freedom = len(left) + len(right) - 2
    pooled = math.sqrt(
        (
            (len(left) - 1) * statistics.variance(left)
            + (len(right) - 1) * statistics.variance(right)
        )
        / freedom
    )
    effect = _ratio(result.difference, pooled)
    return SampleDifference(
        label=other.label,
        test="welch",
        paired_by="",
        counts=(len(left), len(right)),
        difference=result.difference,
        interval=result.interval(),
        interval_method="Student's t of Welch's test",
        p=result.p,
        holm_p=math.nan,
        effect=None if effect is None else effect * _small_sample_factor(freedom),
        effect_name="Hedges' g",
    )


def _small_sample_factor(freedom: int) -> float:
    """Return what makes Hedges' g of Cohen's d, exactly."""
    gammas = math.lgamma(freedom / 2) - math.lgamma((freedom - 1) / 2)
    return math.exp(gammas) / math.sqrt(freedom / 2)


def _ratio(difference: float, deviation: float) -> float | None:
    if not deviation:
        return None if difference else 0.0
    return difference / deviation


def _pair(first: RunSample, other: RunSample) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Return pairs of runs of one seed and fold, and the runs of the larger sample without one.

    No pairs where a run of the smaller sample has no partner, or two runs have the same seed.
    """
    lefts, rights = ({pair: run for run, pair in each.pairs.items()} for each in (first, other))
    is_whole = len(lefts) == len(first.values) and len(rights) == len(other.values)
    is_known = all(pair[0] is not None for pair in (*lefts, *rights))
    shared = [pair for pair in lefts if pair in rights]
    if first.fold_keys != other.fold_keys or not (is_whole and is_known):
        return [], ()
    if len(shared) < 2 or len(shared) < min(len(lefts), len(rights)):
        return [], ()
    alone = [run for pairs in (lefts, rights) for pair, run in pairs.items() if pair not in shared]
    return [(lefts[pair], rights[pair]) for pair in shared], tuple(alone)


def _seeds_needed(
    stats: ModuleType,
    first: RunSample,
    other: RunSample,
    found: SampleDifference,
    detect: float,
    alpha: float,
) -> int | None:
    """Return how many seeds of each, or pairs, find a difference of `detect` with 80 % power.

    None for more than 100,000. The deviation is taken to be that of these samples.
    """
    if found.paired_by:
        pairs, _ = _pair(first, other)
        deviation = statistics.stdev(
            other.values[right] - first.values[left] for left, right in pairs
        )
        error, groups = deviation, 1
    else:
        lefts, rights = first.values.values(), other.values.values()
        error, groups = math.sqrt(statistics.variance(lefts) + statistics.variance(rights)), 2
    return seeds_for(stats, abs(detect), error, groups, alpha)


def seeds_for(
    stats: ModuleType, difference: float, error: float, groups: int, alpha: float
) -> int | None:
    """Return the least n with which a t-test finds a difference with a power of 80 %.

    `error` / sqrt(n) is the standard error of the difference; `groups` of n runs are in it.
    """
    low, high = 1, 2  # `low` is too few
    while _power(stats, difference, error, groups, alpha, high) < POWER:
        low, high = high, high * 2
        if low > _MOST_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        if _power(stats, difference, error, groups, alpha, middle) < POWER:
            low = middle
        else:
            high = middle
    return high


def _power(
    stats: ModuleType, difference: float, error: float, groups: int, alpha: float, n: int
) -> float:
    if not error:
        return 1.0
    freedom = groups * (n - 1)
    shift = difference / error * math.sqrt(n)
    limit = t_quantile(alpha, freedom)
    found = stats.nct.sf(limit, freedom, shift) + stats.nct.cdf(-limit, freedom, shift)
    return 1.0 if math.isnan(found) else float(found)


# ---------------------------------------------------------------------- what makes them doubtful


def _warn_of_repeats(samples: Sequence[RunSample]) -> list[str]:
    """Return a line for each sample with runs of one seed: they are no independent ones."""
    found = []
    for sample in samples:
        pairs = [pair for pair in sample.pairs.values() if pair[0] is not None]
        twice = next((pair for pair in pairs if pairs.count(pair) > 1), None)
        if twice is not None:
            found.append(
                f"{sample.label}: several runs have the seed {twice[0]}, and count as if they had"
                " seeds of their own"
            )
    return found


def _warn_of_other_data(
    samples: Sequence[RunSample], selections: Sequence[Selection], metric: str
) -> list[str]:
    """Return a line for each sample whose data is not that of the first one.

    That is a file that it read, of another digest, and the section of the data of the metric.
    """
    section = f"data.{metric.partition('/')[0]}." if "/" in metric else ""
    facts = [
        _data_of(sample, selection, section)
        for sample, selection in zip(samples, selections, strict=True)
    ]
    lines = []
    for sample, data in zip(samples[1:], facts[1:], strict=True):
        other = [name for name, found in data.items() if found != facts[0].get(name, found)]
        other += [
            name for name in facts[0].keys() ^ data.keys() if name.startswith(section or "\0")
        ]
        if other:
            more = f" and {len(other) - _NAMED} more" if len(other) > _NAMED else ""
            named = ", ".join(sorted(other)[:_NAMED])
            lines.append(
                f"{sample.label} and {samples[0].label} are of different data: {named}{more}"
            )
    return lines


def _data_of(sample: RunSample, selection: Selection, section: str) -> dict[str, set[str]]:
    """Return the values of each data key and the digests of each file that the runs read."""
    found: dict[str, set[str]] = {}
    rows = [row for row in selection.rows() if row is not None and row.id in sample.values]
    configs = dict(zip(selection.ids(), selection.items("config"), strict=True))
    for row in rows:
        config = configs[row.id].items()
        facts = {key: str(value) for key, value in config if section and key.startswith(section)}
        files = RunView(row.path).environment.get("inputs", {}).get("files", {})
        facts |= {str(name): str(digest) for name, digest in files.items()}
        for name, value in facts.items():
            if name.rpartition(".")[2] != _FOLD:
                found.setdefault(name, set()).add(value)
    return found
