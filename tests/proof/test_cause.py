"""Cause of a difference: the table of the docs, row by row, and that nothing untraced is named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.formats.trace_file import PHASES, Phase
from assay.formats.verdict import Cause, Difference
from assay.proof.cause import OUTSIDE, cause_of, changed_inputs
from assay.query.run import RunView
from assay.query.traces import ABSENT, Alignment, Compared
from run_folders import make_project, make_run

DOCS = Path(__file__).parents[2] / "docs" / "tour" / "diverge.md"
OPERATIONS: frozenset[Compared] = frozenset({*PHASES, "order", "operations"})
DEFAULT = OPERATIONS - {"operations"}
CONFIG = {"config model.width": ("1", "2")}
VARIABLE = {"environment variables.GAIN": ("1", "2")}
FILE = {"file data.bin": ("1", "2")}


def parted(
    phase: Phase,
    name: str = "x",
    *,
    step: int = 7,
    known: frozenset[Compared] = OPERATIONS,
    before: frozenset[Compared] = OPERATIONS,
    kind: Any = "tensor",
    left: str = "1",
) -> Alignment:
    """Two runs that differ in a phase of a step, with what is compared of it and the one before."""
    return Alignment(
        difference=Difference(step=step, phase=phase, name=name, left=left, right="2"),
        kind=kind,
        traced={step - 1: before, step: known},
    )


NOTHING: frozenset[Compared] = frozenset()
UNTRACED = parted("loss", "train/loss", step=1, known=NOTHING, before=NOTHING)

TABLE: list[tuple[Cause, Alignment, dict[str, Any], bool | None]] = [
    ("init", parted("init", "weight", step=0), CONFIG, None),
    ("init", parted("init", "weight", step=0), VARIABLE, None),
    ("data order", parted("data", "sample indices"), CONFIG, None),
    ("data order", parted("data", "data/order", known=NOTHING), CONFIG, None),
    ("data", parted("data", "batch.0"), CONFIG, None),
    ("data", parted("data", "data/digest", known=frozenset({"order"})), {}, None),
    ("data", parted("data", "batch.0"), FILE, True),
    ("data or data order: not traced", parted("data", "batch.0", known=NOTHING), CONFIG, None),
    ("data or data order: not traced", parted("data", "data/digest", known=NOTHING), {}, None),
    ("randomness", parted("randomness", "generator"), CONFIG, None),
    ("randomness", parted("forward", kind="random operation"), CONFIG, None),
    ("forward", parted("forward", kind="operation"), CONFIG, None),
    ("forward", parted("forward", kind="operation"), VARIABLE, False),
    ("forward", parted("loss", known=DEFAULT, before=DEFAULT), CONFIG, None),
    ("forward", parted("state", "running_mean"), CONFIG, None),
    ("backward", parted("backward"), CONFIG, None),
    ("backward", parted("backward", "gradient norm", known=DEFAULT, left=ABSENT), CONFIG, None),
    ("forward or backward: not traced", parted("backward", known=DEFAULT), CONFIG, None),
    ("optimizer", parted("optimizer", known=DEFAULT), CONFIG, None),
    ("optimizer", parted("optimizer", "train/lr", known=NOTHING, before=NOTHING), CONFIG, None),
    ("optimizer", parted("average", known=DEFAULT, before=NOTHING), CONFIG, None),
    ("evaluation", parted("evaluation", "valid/loss", known=NOTHING), CONFIG, None),
    ("environment", parted("forward"), VARIABLE, None),
    ("environment", UNTRACED, {**VARIABLE, **FILE}, None),
    ("environment", parted("loss"), {**CONFIG, **VARIABLE}, True),
    (OUTSIDE, UNTRACED, FILE, None),
    (OUTSIDE, UNTRACED, {}, True),
    (OUTSIDE, parted("loss"), CONFIG, True),
    (OUTSIDE, parted("data", "batch.0", known=NOTHING), {}, True),
    ("data, init or forward: not traced", UNTRACED, CONFIG, None),
    ("data, init or forward: not traced", UNTRACED, {}, False),
    ("this step or one before it: not traced", parted("loss", known=NOTHING), CONFIG, None),
    ("this step or one before it: not traced", parted("loss", before=NOTHING), CONFIG, None),
    (
        "this step or one before it: not traced",
        parted("optimizer", known=frozenset({"optimizer"})),
        CONFIG,
        None,
    ),
    ("this step or one before it: not traced", parted("average", known=NOTHING), CONFIG, None),
]


@pytest.mark.parametrize(("cause", "found", "changed", "repeats"), TABLE)
def test_each_row_of_the_table_has_its_cause(
    cause: Cause, found: Alignment, changed: dict[str, Any], repeats: bool | None
) -> None:
    assert cause_of(found, changed, repeats=repeats) == cause


def test_the_docs_have_every_cause_and_no_other() -> None:
    section = DOCS.read_text().partition("## Causes")[2]
    first_cells = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    documented = {cause for cell in first_cells for cause in re.findall(r"`([^`]+)`", cell)}

    assert documented == {cause for cause, *_ in TABLE}
    assert documented <= set(get_args(Cause))


@given(
    st.sampled_from([phase for phase in PHASES if phase not in ("init", "data", "randomness")]),
    st.sets(st.sampled_from(sorted(OPERATIONS))),
    st.sets(st.sampled_from(sorted(OPERATIONS))),
)
def test_a_phase_is_never_named_unless_what_comes_before_it_is_compared(
    phase: Phase, known: set[Compared], before: set[Compared]
) -> None:
    cause = cause_of(parted(phase, known=frozenset(known), before=frozenset(before)), CONFIG)

    if phase not in ("evaluation", "average") and not before & {"init", "optimizer"}:
        assert cause is not None and cause.endswith(": not traced")
    if phase in ("forward", "loss", "state", "backward") and "data" not in known:
        assert cause is not None and cause.endswith(": not traced")


@pytest.mark.parametrize(
    ("more", "listed"),
    [
        ("", []),
        (
            '[schedule]\ntype = "torch.optim.lr_scheduler.ReduceLROnPlateau"\n',
            ["config evaluate.every"],
        ),
        ('[[plugins]]\ntype = "assay.engine:EarlyStop"\n', ["config evaluate.every"]),
    ],
)
def test_evaluations_are_an_input_of_runs_that_train_by_their_numbers(
    tmp_path: Path, more: str, listed: list[str]
) -> None:
    project = make_project(tmp_path)
    views = []
    for every in ("1 epoch", "2 steps"):
        config = f'{more}[evaluate]\nevery = "{every}"\n[log]\nevery = "{every}"\n'
        folder = make_run(project, config=config)
        (folder / "trace").mkdir()
        (folder / "trace" / "1-0.bin").touch()
        views.append(RunView(folder))

    first = Difference(step=5, phase="optimizer", module="head", name="weight")

    assert list(changed_inputs(*views, first)) == listed


def test_equal_runs_have_no_cause() -> None:
    assert cause_of(Alignment(), CONFIG) is None
