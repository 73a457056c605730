"""Runs that no longer learn."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.formats.run_file import Summary
from assay.query.standstill import plateau_of
from assay.store.layout import RunFolder
from run_folders import make_project, make_run


def run_with(tmp_path: Path, values: list[float], name: str = "valid/loss") -> RunFolder:
    return RunFolder(make_run(make_project(tmp_path / "p"), points={name: values}))


def summary(values: list[float]) -> Summary:
    steps = range(len(values))
    low, high = min(steps, key=values.__getitem__), max(steps, key=values.__getitem__)
    return Summary(
        last=values[-1],
        step=len(values),
        count=len(values),
        min=values[low],
        at_min=low + 1,
        max=values[high],
        at_max=high + 1,
        mean=sum(values) / len(values),
    )


@pytest.mark.parametrize(
    ("values", "is_plateau"),
    [
        ([1 / step for step in range(1, 41)], False),
        ([1 / min(step, 10) + 1e-6 * step for step in range(1, 41)], True),
        ([1 / min(step, 25) + 1e-6 * step for step in range(1, 41)], False),
        ([1.0, 0.1] + [0.5] * 10, False),
    ],
    ids=["learns", "since a quarter", "since a short while", "too few"],
)
def test_a_best_value_of_long_ago_is_a_plateau(
    tmp_path: Path, values: list[float], is_plateau: bool
) -> None:
    folder = run_with(tmp_path, values)

    found = plateau_of(folder, ("", ""), {"valid/loss": summary(values)})

    assert (found is not None) is is_plateau
    if found is not None:
        assert "valid/loss has not improved on 0.1" in found.text


def test_a_plateau_keeps_its_moment_as_the_run_goes_on(tmp_path: Path) -> None:
    accuracies = [min(step, 10) / 100 - 1e-6 * step for step in range(1, 61)]
    best = ("valid/acc", "max")
    folder = run_with(tmp_path, accuracies, "valid/acc")

    moments = {
        found.at_ns
        for count in (30, 45, 60)
        if (found := plateau_of(folder, best, {"valid/acc": summary(accuracies[:count])}))
    }

    assert len(moments) == 1
