"""Offline runs as wandb writes them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import InputError, RecordError
from assay.interop.foreign_run import ForeignRun, quiet_library
from assay.interop.wandb import find
from assay.interop.wandb_log import WandbLog
from foreign_files import unpacked

WHOLE = 184
"""Rows of the run that was killed that came to the disk as a whole."""
NUMBERS = [2.0, math.nan, 0.5, math.inf, -math.inf, 0.25]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("wandb", tmp_path_factory.mktemp("wandb"))


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, ForeignRun]:
    return {found.name: found.read() for found in find(folder)}


def test_a_run_has_its_config_labels_notes_and_project(runs: dict[str, ForeignRun]) -> None:
    run = runs["first"]

    assert run.config == {
        "lr": 0.003,
        "model": {"width": 16, "layers": [16, 8]},
        "act": None,
        "a.b": "dotted",
        "later": True,
    }
    assert (run.labels, run.desc) == (["try", "nlp/ärzte"], "does it learn?")
    named = {key: value for key, value in run.about.items() if value}
    assert named == {"id": "abcd1234", "project": "points", "group": "pair", "job_type": "train"}
    assert run.values == {"best": 0.125, "said": "a word"}
    assert (run.host, run.environment["python"][:2]) == ("host", "3.")
    assert (
        run.output.read_text() == "a line that it printed\n"
        if isinstance(run.output, Path)
        else False
    )


def test_rows_are_curves_and_a_step_metric_is_their_axis(runs: dict[str, ForeignRun]) -> None:
    together, valid, inner = runs["first"].blocks

    assert together.keys.names == ("train/acc", "train/loss")
    assert list(together.steps) == [0, 1, 2, 3, 4, 5]
    np.testing.assert_array_equal(together.values[:, 1], NUMBERS)
    assert (valid.keys.names, valid.keys.axis, list(valid.steps)) == (
        ("tokens", "valid/loss"),
        0,
        [7],
    )
    assert (inner.keys.names, list(inner.values[:, 0])) == (("nested.a",), [1.0])
    assert (
        runs["first"].created_ns
        <= together.times_ns[0]
        <= together.times_ns[5]
        <= runs["first"].ended_ns
    )


def test_media_are_files_under_the_name_and_step_they_were_logged_with(
    runs: dict[str, ForeignRun],
) -> None:
    kept = {(file.name, file.kind, file.step): file.source for file in runs["first"].files}

    assert kept["rows", "table", 10] == b"a,b\n1,x\n"
    assert json.loads(bytes(kept["weights", "histogram", 9]))["counts"] == [1, 2]  # type: ignore[arg-type]
    assert Path(str(kept["dots", "image", 8])).read_bytes().startswith(b"\x89PNG")
    assert ("requirements.txt", "text", None) in kept
    (warning,) = runs["first"].warnings
    assert warning.endswith("not copied: weights")


def test_the_end_is_told_as_it_was(runs: dict[str, ForeignRun]) -> None:
    assert (runs["first"].status, runs["first"].reason) == ("finished", "")
    assert (runs["failed"].status, runs["failed"].reason) == ("failed", "exit code 3")
    assert (runs["../../killed"].status, runs["../../killed"].reason) == (
        "stopped",
        "wandb has no end of it",
    )


def test_a_run_that_was_killed_gives_all_rows_but_the_torn_one(runs: dict[str, ForeignRun]) -> None:
    run = runs["../../killed"]

    (loss,) = run.blocks
    assert list(loss.steps) == list(range(WHOLE))
    assert loss.values[:, 0][-1] == 1 / WHOLE
    (warning,) = run.warnings
    assert "run-killed01.wandb: it ends inside of a record at byte" in warning


def test_the_attempts_of_a_resumed_run_are_one_run(tmp_path: Path) -> None:
    (found,) = find(unpacked("wandb-resumed", tmp_path))

    run = found.read()

    (loss,) = run.blocks
    assert list(loss.steps) == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7]
    assert list(loss.values[:, 0]) == [1.0, 1.1, 1.2, 1.3, 1.4, 2.0, 2.1, 2.2, 2.3, 2.4]
    assert list(loss.branches) == [0, 0, 0, 2, 2, 0, 0, 0, 0, 0]
    assert (run.status, run.config, run.about["id"]) == ("finished", {"lr": 0.2}, "again001")
    assert run.created_ns < run.blocks[0].times_ns[5] - 1_000_000_000
    assert run.output == b"attempt 1\nattempt 2\n"
    first = min(tmp_path.glob("wandb/*"))
    (alone,) = find(first)
    assert alone.run_id == found.run_id  # imported again after it was resumed, it is the same run


def record(**parts: Any) -> Any:
    """A record of wandb with these parts."""
    with quiet_library():
        from wandb.proto.wandb_internal_pb2 import Record
    return ParseDict(parts, Record())


def history(step: int, at_s: int, values: dict[str, float]) -> Any:
    items = {**values, "_step": step, "_timestamp": at_s}
    return record(history={"item": written(items)})


def written(values: dict[str, Any]) -> list[dict[str, str]]:
    return [{"key": name, "value_json": json.dumps(value)} for name, value in values.items()]


Attempts = list[list[tuple[int, dict[str, float]]]]


def resumed(attempts: Attempts) -> dict[str, list[tuple[int, float]]]:
    """The curves of a run whose attempts logged these rows."""
    log = WandbLog()
    at_s = 1_000_000
    for rows in attempts:
        log.begin_attempt()
        for step, values in rows:
            at_s += 1
            log.add(history(step, at_s, values))
    curves: dict[str, list[tuple[int, int, float]]] = {}
    for block in log.blocks():
        assert list(block.times_ns) == sorted(block.times_ns)
        for name, column in zip(block.keys.names, block.values.T, strict=True):
            points = zip(block.times_ns, block.steps, column, block.branches, strict=True)
            curves.setdefault(name, []).extend(point[:3] for point in points if not point[3])
    return {name: [point[1:] for point in sorted(points)] for name, points in curves.items()}


TEN = [(step, {"loss": 1 / (step + 1)}) for step in range(10)]
LOSS = [(step, 1 / (step + 1)) for step in range(10)]
BOTH = [(step, {"loss": 1.0, "acc": 0.5}) for step in range(4)]
RESUMED: dict[str, tuple[Attempts, dict[str, list[tuple[int, float]]]]] = {
    "a test alone, at step 0": (
        [TEN, [(0, {"test/acc": 0.9})]],
        {"loss": LOSS, "test/acc": [(0, 0.9)]},
    ),
    "the same metric again": (
        [TEN, [(3, {"loss": 9.0})]],
        {"loss": [*LOSS[:3], (3, 9.0)]},
    ),
    "one of two that were logged together": (
        [BOTH, [(1, {"loss": 7.0})]],
        {"loss": [(0, 1.0), (1, 7.0)], "acc": [(step, 0.5) for step in range(4)]},
    ),
    "both, one after the other, from where the attempt began": (
        [BOTH, [(1, {"loss": 7.0}), (3, {"acc": 0.7})]],
        {"loss": [(0, 1.0), (1, 7.0)], "acc": [(0, 0.5), (3, 0.7)]},
    ),
    "three attempts": (
        [BOTH, [(1, {"loss": 7.0})], [(2, {"acc": 0.8})], [(0, {"test": 1.0})]],
        {
            "loss": [(0, 1.0), (1, 7.0)],
            "acc": [(0, 0.5), (1, 0.5), (2, 0.8)],
            "test": [(0, 1.0)],
        },
    ),
}


@pytest.mark.parametrize("how", RESUMED)
def test_a_resumed_run_leaves_only_what_it_logged_again(how: str) -> None:
    attempts, curves = RESUMED[how]

    assert resumed(attempts) == curves


def test_a_resumed_run_keeps_what_its_beginning_alone_said_of_it() -> None:
    log = WandbLog()
    of_run = {"run_id": "r1", "project": "points"}
    log.add(record(run={**of_run, "run_group": "pair", "job_type": "train"}))
    log.begin_attempt()
    log.add(record(run={**of_run, "job_type": "test"}))

    assert (log.about["group"], log.about["job_type"]) == ("pair", "test")


@pytest.mark.parametrize(
    ("summary", "ended", "results"),
    [
        ({"acc": 0.9, "loss": 0.25, "note": "x"}, True, {"summary/acc": 0.9, "note": "x"}),
        ({"acc": 0.9, "loss": 0.25, "note": "x"}, False, {"note": "x"}),
        ({"acc": 0.5, "bad": "NaN"}, True, {}),
    ],
)
def test_a_summary_that_a_program_set_is_kept_beside_the_curve(
    summary: dict[str, float | str], ended: bool, results: dict[str, float | str]
) -> None:
    log = WandbLog()
    log.begin_attempt()
    log.add(history(0, 1_000_000, {"acc": 0.9, "loss": 0.5}))
    log.add(history(1, 1_000_001, {"acc": 0.5, "loss": 0.25, "bad": math.nan}))
    log.add(record(summary={"update": written(summary)}))
    if ended:
        log.add(record(exit={"runtime": 5}))

    assert dict(log.results()) == results


@pytest.mark.parametrize("at", [20_000, 40_000])
def test_a_log_is_read_up_to_its_first_damage_and_that_is_said(
    folder: Path, tmp_path: Path, at: int
) -> None:
    (whole,) = folder.glob("wandb/*killed01/*.wandb")
    data = bytearray(whole.read_bytes())
    data[at] ^= 1
    (tmp_path / "run-killed01.wandb").write_bytes(data)

    run = find(tmp_path)[0].read()

    steps = list(run.blocks[0].steps)
    assert steps == list(range(len(steps)))
    assert 0.2 < len(steps) / WHOLE < 0.9
    (warning,) = run.warnings
    assert "a record is damaged at byte" in warning


@given(data=st.binary(max_size=300))
def test_whatever_stands_in_a_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "run-any.wandb"
    path.write_bytes(b":W&B\xe1\xbe\x00" + data)

    try:
        assert find(path.parent)[0].read().points == 0
    except RecordError as error:
        assert "It cannot be read" in error.what


def test_names_in_the_rows_are_no_paths(folder: Path, tmp_path: Path) -> None:
    (whole,) = folder.glob("wandb/*abcd1234/*.wandb")
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"hidden")
    given = tmp_path / "given" / "files"
    given.mkdir(parents=True)
    (given.parent / whole.name).write_bytes(whole.read_bytes())
    (given / "link.png").symlink_to(secret)

    run = find(given.parent)[0].read()

    assert secret not in [file.source for file in run.files]
    assert any("link.png is a link that leads out" in warning for warning in run.warnings)
    assert any("2 of what was logged is in no file" in warning for warning in run.warnings)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no runs of wandb[\s\S]*offline-run-"):
        find(tmp_path)
    (tmp_path / "run-x.wandb").write_bytes(b"something else")
    with pytest.raises(RecordError, match="no file of wandb"):
        find(tmp_path)[0].read()
