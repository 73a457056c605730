"""Every layout gives one process's losses, gradient norms and weights, to double rounding."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from assay.engine.parallel.layout import Layout
from engine.parallel.launching import answers, script
from warm_python import Run

SCRIPT = Path(__file__).with_name("matrix.py")
matrix = script("parallel_matrix", SCRIPT)

CELLS = [
    pytest.param(ranks, layout, way, id=f"{layout}: {way}")
    for ranks, layouts in matrix.LAYOUTS.items()
    for layout in layouts
    for way in matrix.ways_of(layout)
]


@pytest.fixture(scope="session")
def launched(tmp_path_factory: pytest.TempPathFactory, warm: Run) -> Any:
    """What each rank of a launch gave: one launch for all cells of as many processes."""

    @cache  # a failure too: it is not tried again for each cell
    def found(ranks: int) -> tuple[list[dict[str, Any]], str]:
        try:
            return answers(SCRIPT, tmp_path_factory.mktemp("matrix"), ranks, warm=warm), ""
        except (AssertionError, TimeoutError, subprocess.TimeoutExpired) as error:
            return [], str(error)

    def launch(ranks: int) -> list[dict[str, Any]]:
        cells, failure = found(ranks)
        assert not failure, failure
        return cells

    return launch


@pytest.mark.thorough
@pytest.mark.timeout(400)  # the first of each number of processes waits for all of them
@pytest.mark.row("E55")
@pytest.mark.parametrize(("ranks", "layout", "way"), CELLS)
def test_a_layout_trains_what_one_process_does(
    launched: Any, ranks: int, layout: Layout, way: str
) -> None:
    expected = matrix.cell(layout, way)

    cells = [each[str(layout)][way] for each in launched(ranks)]

    for found in cells:
        assert [point[:2] for point in found["points"]] == [
            point[:2] for point in expected["points"]
        ]
        values = [point[2] for point in found["points"]]
        assert values == pytest.approx(
            [point[2] for point in expected["points"]], rel=1e-10, abs=1e-10
        )
        assert found["weights"].keys() == expected["weights"].keys()
        for name, weight in expected["weights"].items():
            assert found["weights"][name] == pytest.approx(weight, rel=1e-10, abs=1e-10), name
