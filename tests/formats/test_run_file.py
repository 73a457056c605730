"""run.json, and the two other facts that are kept as one JSON file each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.core.errors import RecordError
from assay.formats import run_file
from assay.formats.json_codec import dataclass_from, to_plain
from assay.formats.rehearsal import Finding, PeakMemory, Rehearsal
from assay.formats.run_file import Attempt, Best, Code, RunFile
from assay.formats.verdict import Difference, Verdict

INT = st.integers(-(2**53), 2**53)
TEXT = st.text(max_size=12)
FLOAT = st.floats(allow_nan=False)
STATUS = st.sampled_from(["running", "finished", "failed", "stopped"])
codes = st.builds(
    Code,
    snapshot=TEXT,
    files=INT,
    left_out=st.tuples(TEXT),
    git_commit=TEXT,
    git_dirty=st.booleans(),
    git_remote=TEXT,
)
attempts = st.builds(
    Attempt,
    number=INT,
    started_ns=INT,
    ended_ns=st.none() | INT,
    status=STATUS,
    reason=TEXT,
    command=st.lists(TEXT, max_size=3).map(tuple),
    changed=st.lists(TEXT, max_size=2).map(tuple),
    code=codes,
    environment=st.dictionaries(TEXT, TEXT | INT | st.booleans() | st.none(), max_size=2),
    seeds=st.dictionaries(TEXT, INT, max_size=2),
)
runs = st.builds(
    RunFile,
    id=TEXT,
    kind=st.sampled_from(["train", "test"]),
    tag=TEXT,
    created_ns=INT,
    status=STATUS,
    sealed=st.booleans(),
    attempts=st.lists(attempts, max_size=2).map(tuple),
    best=st.none()
    | st.builds(Best, metric=TEXT, mode=st.sampled_from(["min", "max"]), value=FLOAT, step=INT),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(run=runs)
def test_a_run_comes_back_equal(tmp_path: Path, run: RunFile) -> None:
    run_file.write(tmp_path, run)

    assert run_file.read(tmp_path) == run


def test_the_newest_attempt_is_the_last_and_the_seconds_are_of_ended_ones() -> None:
    first = Attempt(number=1, started_ns=0, ended_ns=2_000_000_000)
    second = Attempt(number=2, started_ns=5_000_000_000)
    run = RunFile(id="a", kind="train", created_ns=0, attempts=(first, second))

    assert run.newest is second
    assert run.seconds == 2.0


@pytest.mark.parametrize("wall_s", [-3600, 0, 2, 8 * 3600])
def test_an_attempt_lasts_as_long_as_it_ran_whatever_the_wall_clock_did(wall_s: int) -> None:
    attempt = Attempt(number=1, started_ns=10**18, ended_ns=10**18 + wall_s * 10**9, seconds=2.0)

    assert attempt.duration_s == 2.0
    assert replace(attempt, seconds=None).duration_s == max(0, wall_s), "a record of before"


def test_unknown_keys_are_left_alone_and_wrong_types_name_their_path(tmp_path: Path) -> None:
    path = tmp_path / run_file.FILE_NAME
    data = {"format": 1, "id": "a", "kind": "train", "created_ns": 1, "mood": "good"}
    path.write_text(json.dumps(data))
    assert run_file.read(tmp_path) == RunFile(id="a", kind="train", created_ns=1)

    path.write_text(json.dumps({**data, "attempts": [{"number": 1, "started_ns": "noon"}]}))
    with pytest.raises(
        RecordError, match=r"run\.json\.attempts\[0\]\.started_ns is 'noon'; expected int"
    ):
        run_file.read(tmp_path)


def test_a_newer_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / run_file.FILE_NAME).write_text('{"format": 2}')

    with pytest.raises(RecordError, match="format 2; this assay knows 1") as caught:
        run_file.read(tmp_path)

    assert "newer" in caught.value.fix
    assert caught.value.where.endswith("run.json")


def test_a_folder_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run_file.read(tmp_path)


def test_a_verdict_and_a_rehearsal_come_back_equal() -> None:
    verdict = Verdict(
        question="replay",
        runs=("a", "b"),
        equal=False,
        first_step=1,
        last_step=9,
        compared=12,
        difference=Difference(step=3, phase="backward", module="net.0", left="ab", right="cd"),
        cause="code",
        changed_inputs={"code": ["model.py"]},
    )
    rehearsal = Rehearsal(
        rung="fake",
        findings=(Finding(kind="shape", message="3 is not 4", module="net.0", line=7),),
        memory=PeakMemory(peak_bytes=1 << 40),
        layout={"data": 2},
    )

    assert dataclass_from(Verdict, to_plain(verdict)) == verdict
    assert dataclass_from(Rehearsal, to_plain(rehearsal)) == rehearsal
