"""Influence of config keys on a metric."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from assay.query.importance import importances

RUNS = 300
RNG = np.random.default_rng(0)
LR = 10 ** RNG.uniform(-4, -1, RUNS)
ACT = RNG.choice(["relu", "gelu", "tanh"], RUNS)
METRIC = -((np.log10(LR) + 2.5) ** 2) + (ACT == "gelu") * 0.8 + 0.1 * RNG.normal(size=RUNS)
CAUSES: dict[str, list[Any]] = {"lr": LR.tolist(), "act": ACT.tolist()}


def shares(more: dict[str, list[Any]]) -> dict[str, float | None]:
    found = importances({**more, **CAUSES}, METRIC.tolist())
    return {each.key: each.eta_squared for each in found.keys}


@pytest.mark.parametrize(
    "values",
    [
        [f"out/run{i}" for i in range(RUNS)],
        [f"note {i // 2}" for i in range(RUNS)],
        [[i] for i in range(RUNS)],
        list(range(RUNS)),
        [i * 7919 % 1000 / 3 for i in range(RUNS)],
        [bool(i * 7919 % 2) for i in range(RUNS)],
    ],
)
def test_a_key_that_is_no_cause_takes_nothing_from_one_that_is(values: list[Any]) -> None:
    alone, found = shares({}), shares({"other": values})

    assert (found["lr"], found["act"]) == (alone["lr"], alone["act"])
    assert found["lr"] > 0.6 and 0.1 < found["act"] < 0.4  # type: ignore[operator]
    assert (found["other"] or 0.0) < 0.05
    assert list(found) == ["lr", "act", "other"]


def test_each_number_comes_with_its_n_and_a_key_that_most_runs_lack_is_not_ranked() -> None:
    half = [value if i % 2 else None for i, value in enumerate(LR.tolist())]
    few = [value if i % 3 == 0 else None for i, value in enumerate(LR.tolist())]
    metric = [*METRIC[:-10].tolist(), *[None] * 5, *[float("nan")] * 5]

    found = importances({"half": half, "few": few, "same": [1] * RUNS}, metric)

    (only,) = found.keys
    assert (found.runs, only.key, only.n, only.values) == (290, "half", 145, 145)
    assert found.left_out == ("few",)


def test_a_rank_correlation_is_of_numbers_alone_and_true_is_no_number() -> None:
    metric = [float(i) for i in range(30)]
    flags = [i >= 15 for i in range(30)]

    number, flag = importances({"n": metric, "flag": flags}, metric).keys

    assert (number.key, number.correlation) == ("n", 1.0)
    assert (flag.correlation, flag.values) == (None, 2)
    assert number.eta_squared == pytest.approx(0.955, abs=0.01)
    assert flag.eta_squared == pytest.approx(0.74, abs=0.02)
    assert importances({"n": metric}, [1e300] * 29 + [-1e300]).keys[0].eta_squared is not None
