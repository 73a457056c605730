"""A test run can be repeated: its examples, its order, and the order of a failed run."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from repeatable import LONGEST

TESTS = Path(__file__).resolve().parent
PROPERTY = """\
from hypothesis import given, strategies as st
seen = []

@given(st.integers(), st.text(), st.floats())
def test_drawn(i, t, f):
    seen.append((i, t, f))

def test_shown():
    open("seen.txt", "a").write(f"{seen!r}\\n")
"""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A folder of tests that pass only in the order in which they stand."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["repeatable"]\n', encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -p no:cov -p no:timeout\n", encoding="utf-8"
    )
    for name in "abc":
        tests = "".join(f"def test_{i}():\n    pass\n" for i in range(6))
        (tmp_path / f"test_{name}.py").write_text(tests, encoding="utf-8")
    return tmp_path


def pytest_in(folder: Path, *arguments: str) -> tuple[int, str]:
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=folder,
        env={**variables, "PYTHONPATH": str(TESTS), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def order(folder: Path) -> list[str]:
    return (folder / ".pytest_cache/d/order/main.txt").read_text(encoding="utf-8").split()


@pytest.mark.thorough
@pytest.mark.slow
def test_a_seed_gives_an_order_that_keeps_modules_together(house: Path) -> None:
    orders = []
    for seed in ("1", "1", "2"):
        code, said = pytest_in(house, "--random-order", seed)
        assert code == 0 and f"random order: seed {seed}" in said
        orders.append(order(house))

    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) and len(orders[0]) == 18
    modules = [each.partition("::")[0] for each in orders[0]]
    assert sum(a != b for a, b in pairwise(modules)) == 2
    assert orders[0] != sorted(orders[0])


def test_the_modules_that_workers_begin_with_are_there() -> None:
    assert [name for name in LONGEST if not (TESTS.parent / name).is_file()] == []


@pytest.mark.thorough
@pytest.mark.slow
def test_a_failed_run_names_the_file_that_repeats_its_order(house: Path) -> None:
    (house / "test_b.py").write_text("def test_it():\n    assert 0\n", encoding="utf-8")

    code, said = pytest_in(house, "-q", "-n2", "--random-order", "5")

    assert code == 1 and "random order: seed 5" in said
    files = [line.partition("@")[2] for line in said.splitlines() if "to be repeated" in line]
    assert [Path(each).name for each in files] == ["gw0.txt", "gw1.txt"]
    listed = [(house / each).read_text(encoding="utf-8").split() for each in files]
    assert sum(map(len, listed)) == 13
    (house / "list.txt").write_text("\n".join(listed[1]), encoding="utf-8")
    pytest_in(house, "@list.txt")
    assert order(house) == listed[1]


@pytest.mark.thorough
@pytest.mark.slow
def test_the_examples_of_a_property_are_the_same_behind_any_other_module(house: Path) -> None:
    (house / "test_property.py").write_text(PROPERTY, encoding="utf-8")
    numbers = ", ".join(map(str, range(10**6, 10**6 + 500)))
    (house / "constants.py").write_text(
        f"NUMBERS = [{numbers}]\nWORDS = ['unheard of']\n", encoding="utf-8"
    )
    (house / "test_a.py").write_text("import constants\n", encoding="utf-8")

    pytest_in(house, "test_property.py")
    pytest_in(house, "test_a.py", "test_property.py")
    pytest_in(house, "test_property.py", "--hypothesis-profile=fuzz", "--hypothesis-seed=1")

    alone, behind, explored = (house / "seen.txt").read_text(encoding="utf-8").splitlines()
    assert alone == behind
    assert len(explored) > 5 * len(alone)


@pytest.mark.parametrize("time", ["once", "again"])
def test_what_a_test_draws_without_a_seed_does_not_depend_on_those_before_it(time: str) -> None:
    drawn = random.random(), np.random.rand(), torch.rand(2).tolist()

    assert drawn == (
        random.Random(0).random(),
        np.random.RandomState(0).rand(),
        torch.rand(2, generator=torch.Generator().manual_seed(0)).tolist(),
    )
