"""Two traces, aligned: which place is named when one of them has more, or something else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.formats.trace_file import Digest, Level, Phase, SiteKind, TraceSite
from assay.query.traces import ABSENT, TracedStep, align

Entry = tuple[Phase, str, str, int]


def traced(
    *entries: Entry, step: int = 1, level: Level = "full", kind: SiteKind = "operation"
) -> TracedStep:
    """A step with these fingerprints: phase, module, name, number."""
    seen: dict[tuple[str, str, str], int] = {}
    digests = []
    for i, (phase, module, name, number) in enumerate(entries):
        occurrence = seen[phase, module, name] = seen.get((phase, module, name), -1) + 1
        site = TraceSite(
            id=i, phase=phase, module=module, name=name, dtype="float32", shape=(2,), kind=kind
        )
        digests.append(Digest(step, site, occurrence, number))
    return TracedStep(step, level, "crc32", tuple(digests))


def named(
    left: Sequence[TracedStep], right: Sequence[TracedStep]
) -> tuple[int, str, str, str, str] | None:
    first = align(iter(left), iter(right)).difference
    return (
        None
        if first is None
        else (first.step, first.module, first.op or first.name, first.left, first.right)
    )


MM: Entry = ("forward", "a", "mm", 1)
RELU: Entry = ("forward", "b", "relu", 2)
OUT: Entry = ("forward", "c", "mm", 3)


def other(entry: Entry) -> Entry:
    return (*entry[:3], entry[3] + 100)


def test_the_first_number_that_differs_is_named() -> None:
    found = named([traced(MM, RELU, OUT)], [traced(MM, other(RELU), other(OUT))])

    assert found == (1, "b", "relu", "00000002", "00000066")


def test_an_operation_in_place_of_another_is_named_with_both() -> None:
    gelu: Entry = ("forward", "b", "gelu", 9)

    found = named([traced(MM, RELU, OUT)], [traced(MM, gelu, other(OUT))])

    assert found == (1, "b", "relu", "relu", "gelu")


@pytest.mark.parametrize("is_left", [True, False])
def test_an_operation_that_only_one_has_comes_before_what_it_changed(is_left: bool) -> None:
    noise: Entry = ("forward", "b", "add", 9)
    more, less = [traced(MM, noise, other(RELU))], [traced(MM, RELU)]

    found = named(more, less) if is_left else named(less, more)

    assert found is not None and found[:3] == (1, "b", "add")
    assert ABSENT in found[3:]


def test_operations_that_change_no_tensor_are_no_difference() -> None:
    grad: Entry = ("backward", "a", "weight.grad", 5)

    def step(*entries: Entry, result: Entry) -> TracedStep:
        tensors = traced(result, kind="tensor").digests
        return TracedStep(1, "full", "crc32", (*traced(*entries).digests, *tensors))

    assert named([step(MM, result=grad)], [step(MM, RELU, result=grad)]) is None
    assert named([step(MM, result=grad)], [step(MM, RELU, result=other(grad))]) is not None


def test_an_operation_before_an_equal_phase_is_not_what_made_the_difference() -> None:
    extra: Entry = ("forward", "", "ones_like", 9)
    loss: Entry = ("loss", "", "sum", 7)
    update: Entry = ("optimizer", "", "add_", 8)

    found = named([traced(MM, extra, loss, update)], [traced(MM, loss, other(update))])

    assert found is not None and found[:3] == (1, "", "add_")


def test_phases_and_steps_that_only_one_traced_are_no_difference() -> None:
    grad: Entry = ("backward", "a", "weight.grad", 5)

    assert (
        named([traced(MM), traced(MM, step=2)], [traced(MM, grad), traced(other(MM), step=3)])
        is None
    )


def test_operations_are_left_out_where_only_one_has_them() -> None:
    loss: Entry = ("loss", "", "loss", 7)
    full = TracedStep(
        1, "full", "crc32", (*traced(MM).digests, *traced(loss, kind="tensor").digests)
    )

    assert named([full], [traced(loss, level="default", kind="tensor")]) is None


def test_fingerprints_of_other_kinds_are_not_compared() -> None:
    right = traced(other(MM))

    found = align(iter([traced(MM)]), iter([TracedStep(1, "full", "fold64", right.digests)]))

    assert found.compared == 0
    assert found.notes == ["fingerprints of crc32 and of fold64 do not compare"]


ENTRIES = st.lists(
    st.tuples(
        st.sampled_from(["data", "forward", "backward"]),
        st.sampled_from("ab"),
        st.just("x"),
        st.integers(0, 3),
    ),
    max_size=8,
)


@given(st.lists(ENTRIES, max_size=4), st.data())
def test_a_trace_is_equal_to_itself_and_one_change_is_found_where_it_is(
    steps: list[list[Entry]], data: st.DataObject
) -> None:
    def made(change: tuple[int, int] | None = None) -> Iterator[TracedStep]:
        for i, entries in enumerate(steps):
            numbers = [other(each) if change == (i, j) else each for j, each in enumerate(entries)]
            yield traced(*numbers, step=i)

    assert align(made(), made()).difference is None
    places = [(i, j) for i, entries in enumerate(steps) for j in range(len(entries))]
    if places:
        i, j = data.draw(st.sampled_from(places))
        first = align(made(), made((i, j))).difference
        assert first is not None
        assert (first.step, first.phase, first.module) == (i, *steps[i][j][:2])


GRAD: Entry = ("backward", "a", "weight.grad", 5)
WEIGHT: Entry = ("optimizer", "a", "weight", 6)
BUFFER: Entry = ("state", "a", "mean", 7)
WRITTEN: Entry = ("evaluation", "a", "mean", 8)


def tensors(*entries: Entry, step: int) -> TracedStep:
    return traced(*entries, step=step, kind="tensor")


@pytest.mark.parametrize("is_left", [True, False])
def test_a_buffer_that_one_evaluation_wrote_is_named_before_what_it_changed(is_left: bool) -> None:
    plain = [tensors(WEIGHT, BUFFER, step=1), tensors(GRAD, step=2)]
    evaluated = [tensors(WEIGHT, BUFFER, WRITTEN, step=1), tensors(other(GRAD), step=2)]

    found = named(evaluated, plain) if is_left else named(plain, evaluated)

    assert found is not None and found[:3] == (1, "a", "mean")
    assert ABSENT in found[3:]


def test_a_buffer_that_an_evaluation_wrote_is_no_difference_unless_something_changes() -> None:
    plain = [tensors(WEIGHT, BUFFER, step=1), tensors(GRAD, WEIGHT, BUFFER, step=2)]
    evaluated = [tensors(WEIGHT, BUFFER, WRITTEN, step=1), plain[1]]
    later = [*evaluated, tensors(other(GRAD), step=3)]

    assert named(plain, evaluated) is None
    assert named([*plain, tensors(GRAD, step=3)], later) == (
        *(3, "a", "weight.grad"),
        *("00000005", "00000069"),
    )


def test_an_evaluation_after_steps_that_were_not_traced_is_not_blamed() -> None:
    """What it wrote may be what it was given."""
    plain = [tensors(WEIGHT, BUFFER, step=1), tensors(GRAD, step=9)]
    evaluated = [plain[0], tensors(WRITTEN, step=5), tensors(other(GRAD), step=9)]

    found = named(plain, evaluated)

    assert found is not None and found[:3] == (9, "a", "weight.grad")


def test_what_was_compared_of_each_step_is_told() -> None:
    indices: Entry = ("data", "", "sample indices", 1)
    left = [traced(MM, step=1), tensors(indices, WEIGHT, step=2)]

    assert align(iter(left), iter(left)).traced == {
        1: {"forward", "operations"},
        2: {"data", "order", "optimizer"},
    }
