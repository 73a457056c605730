"""Class of a failure, from an exception or from the last lines of a log."""

from __future__ import annotations

import traceback

import pytest

from assay.core.errors import InputError
from assay.core.job import FailureClass, classify, failure_of


@pytest.mark.parametrize(
    "note",
    [
        "while loading the sample 3 of data.train",
        "while loading the samples 3, 7 of data.train",
        "in loader worker 1:\n  File ...",
    ],
)
def test_an_error_with_a_note_of_the_loader_is_one_of_the_data(note: str) -> None:
    error = ValueError("cannot identify image file")
    error.add_note(note)

    assert failure_of(error) == "data"
    printed = "".join(traceback.format_exception(error))
    assert classify(1, 0, printed) == "data"


@pytest.mark.parametrize(
    ("last_lines", "failure"),
    [
        ("RuntimeError: CUDA out of memory. Tried to allocate", "out-of-memory"),
        ("NonFiniteError: the loss is not finite", "nan"),
        ("assay.engine.data.worker_faults.WorkerError: worker 2", "data"),
        ("ValueError: while loading was mentioned in passing", "exception"),
        ("a network worker raised its rate", "exception"),
    ],
)
def test_a_log_says_the_class_of_a_failure(last_lines: str, failure: FailureClass) -> None:
    assert classify(1, 0, last_lines) == failure


def test_a_mistake_of_the_person_is_one_of_the_config() -> None:
    assert failure_of(InputError("no such file")) == "config"
