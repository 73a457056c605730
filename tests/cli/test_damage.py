"""Damage to a record is reported with it, harms no other record, and hides nothing readable."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay import runs
from assay.core.errors import InputError, RecordError
from assay.query.find import find_run
from assay.query.run import RunView
from assay.query.table import list_runs
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.store.layout import Project, RunFolder
from assay.store.trash import list_removed, remove_run
from run_folders import hold_lease, make_run

POINTS = {"train/loss": [0.5, 0.25, 0.125], "valid/acc": [0.9]}


Assay = Callable[..., Any]


def recorded(project: Project, rows: int = 51) -> Path:
    with start_run(project, AttemptSpec(keep_code=False), tag="damaged") as recorder:
        for step in range(1, rows + 1):
            recorder.log({"train/loss": 1 / step, "train/acc": 0.5}, step)
        recorder.log({"valid/acc": 0.75}, rows)
    return recorder.folder.path


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_a_run_that_is_as_it_was_written_has_no_damage(project: Project) -> None:
    assert RunView(recorded(project)).damages == ()
    assert RunView(make_run(project, points=POINTS)).damages == ()


def test_one_flipped_bit_costs_one_row_and_each_command_says_of_which_metrics(
    project: Project, assay: Assay
) -> None:
    folder = recorded(project)
    flip(folder / "metrics" / "2.rows", 7 * 48 + 3)
    view = RunView(folder)

    (told,) = view.damages
    said = "1 row of train/loss, train/acc cannot be read."
    assert told == f"metrics/2.rows is damaged at byte 336 (48 bytes): {said}"
    assert len(view.metric("train/loss")) == 50
    assert view.metric("valid/acc").values.tolist() == [0.75]
    shown = assay("show", "last")
    assert shown.out.count("Damaged") == 1 and said in " ".join(shown.out.split())
    logged = assay("metrics", "last", "--csv")
    assert len(logged.lines) == 1 + 50
    assert f"warning: {told}" in logged.err
    assert f"damaged: {told}" in assay("live", "last", "--once").out


def test_a_curve_that_is_lost_is_not_called_unknown_and_not_suggested(project: Project) -> None:
    folder = recorded(project)
    flip(folder / "metrics" / "1.rows", 39)  # the only point of its metric

    with pytest.raises(
        RecordError, match=r"The curve of `valid/acc` is lost: metrics/1.rows is damaged"
    ) as caught:
        RunView(folder).metric("valid/acc")

    assert "did you mean" not in str(caught.value)


def test_damage_that_costs_no_row_says_so(project: Project) -> None:
    folder = recorded(project)
    flip(folder / "metrics" / "names.jsonl", 20)  # one of two copies

    assert RunView(folder).damages == ("metrics/names.jsonl is damaged. No row is lost.",)


def test_names_that_are_lost_are_told_with_the_number_of_their_rows(project: Project) -> None:
    folder = recorded(project)
    names = folder / "metrics" / "names.jsonl"
    names.write_bytes(names.read_bytes().replace(b"valid/acc", b"valid/xxx"))

    (told,) = RunView(folder).damages

    said = "1 row without their names cannot be read."
    assert told == f"metrics/names.jsonl is damaged: {said}"


def test_a_row_that_was_cut_off_by_a_kill_is_no_damage_and_a_file_cut_off_later_is(
    project: Project,
) -> None:
    killed, ended = make_run(project, ran_s=None, points=POINTS), make_run(project, points=POINTS)
    hold_lease(killed, process_start="1")
    for folder in (killed, ended):
        os.truncate(folder / "metrics" / "1.rows", 150)

    assert RunView(killed).damages == ()
    said = "metrics/1.rows is damaged at byte 120 (30 bytes): 1 row of train/loss, valid/acc cannot"
    assert RunView(ended).damages[0].startswith(said)
    os.truncate(ended / "metrics" / "1.rows", 120)
    said = "metrics is not what was written: 1 row of train/loss, valid/acc cannot be read."
    assert RunView(ended).damages == (said,)


Harm = Callable[[Path], object]
HARMS: dict[str, tuple[Harm, str]] = {
    "a flipped bit in run.json": (
        lambda folder: flip(folder / "run.json", 0),
        "run.json cannot be read",
    ),
    "an empty run.json": (
        lambda folder: (folder / "run.json").write_text(""),
        "run.json cannot be read",
    ),
    "a husk": (lambda folder: (folder / "run.json").unlink(), "run.json is missing"),
    "no folder but a link to itself": (
        lambda folder: as_link(folder, folder.name),
        "it is a link, not a folder",
    ),
    "a link to a run": (lambda folder: as_link(folder, "elsewhere"), "it is a link, not a folder"),
    "a link to nothing": (
        lambda folder: as_link(folder, "/nowhere/at/all"),
        "it is a link, not a folder",
    ),
    "a pipe": (
        lambda folder: instead(folder / "run.json", os.mkfifo),
        "it is a named pipe, not a file",
    ),
    "a folder for a file": (
        lambda folder: instead(folder / "run.json", os.mkdir),
        "it is a folder, not a file",
    ),
    "a time beyond 64 bits": (
        lambda folder: put(folder, "created_ns", 1 << 70),
        "created_ns is a number of 22 digits",
    ),
    "a number of 1,000 digits": (
        lambda folder: put(folder, "created_ns", 10**1000),
        "created_ns is a number of",
    ),
    "a format of the future": (lambda folder: put(folder, "format", 99), "has format 99"),
}


def as_link(folder: Path, to: str) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(to)


def instead(path: Path, make: Callable[[Path], None]) -> None:
    path.unlink()
    make(path)


def put(folder: Path, key: str, value: int) -> None:
    text = (folder / "run.json").read_text()
    before = text.split(f'"{key}": ', 1)[1].split(",", 1)[0]
    (folder / "run.json").write_text(text.replace(f'"{key}": {before}', f'"{key}": {value}', 1))


@pytest.mark.parametrize("harm", HARMS)
def test_a_run_that_cannot_be_read_is_named_and_the_others_are_not_harmed(
    project: Project, assay: Assay, harm: str
) -> None:
    sound = make_run(project, tag="sound", points=POINTS)
    broken = make_run(project, tag="broken", id="kq3fabcd", points=POINTS, age_s=60)
    make, why = HARMS[harm]
    make(broken)

    listed = list_runs(project, columns=["id", "status", "reason"]).cells

    assert [(each["id"], each["status"]) for each in listed] == [
        ("kq3fabcd", "damaged"),
        (RunView(sound).id, "finished"),
    ]
    assert why in listed[0]["reason"]
    assert [run.status for run in runs()] == ["damaged", "finished"]
    view = find_run("kq3f")
    assert why in view.damages[0]
    with pytest.raises(RecordError, match="The run kq3fabcd is damaged") as caught:
        view.file  # noqa: B018 - read for what it raises
    assert "assay rm kq3fabcd" in caught.value.fix
    assert "damaged" in assay("ls").out
    shown = assay("show", "kq3f")
    assert shown.code == 0 and "kq3fabcd" in shown.out and "assay rm kq3fabcd" in shown.out
    assert assay("show", "kq3f", "--json").code == 0
    for command in (["log", "kq3f"], ["live", "kq3f", "--once"], ["metrics", "kq3f", "--csv"]):
        done = assay(*command)
        assert done.code == 0 or "kq3fabcd" in done.err, done.err
    for command in (
        ("resume", "rerun", "test", "replay") if harm in ("a husk", "a link to a run") else ()
    ):
        done = assay(command, "kq3f")
        assert done.code in (1, 2) and "kq3fabcd" in done.err, done.err

    assert assay("rm", "kq3f").code == 0
    assert [folder.path.name for folder in list_removed(project)] == [broken.name]
    assert [each["id"] for each in list_runs(project).cells] == [RunView(sound).id]
    assert assay("gc").code == 0
    assert list_removed(project) == []
    assert RunView(sound).damages == ()


@pytest.mark.parametrize(
    "name",
    [
        "metrics/1.rows",
        "metrics/names.jsonl",
        "events.jsonl",
        "edits.jsonl",
        "config.toml",
        "artifacts/index.json",
    ],
)
@pytest.mark.parametrize("kind", ["pipe", "garbage", "link"])
def test_a_file_that_cannot_be_read_is_told_and_the_rest_is_shown(
    project: Project, assay: Assay, name: str, kind: str
) -> None:
    folder = make_run(project, tag="broken", id="kq3fabcd", points=POINTS)
    (folder / "artifacts").mkdir()
    path = folder / name
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "garbage":
            path.write_bytes(b"\xff{[\0 no = sense\n" * 40)
        case "link":
            path.symlink_to("/etc/passwd")

    shown = assay("show", "kq3f")

    assert shown.code == 0, shown.err
    assert "Damaged" in shown.out or (name == "config.toml" and kind != "garbage")
    assert "root:" not in shown.out
    assert assay("ls").out.count("kq3fabcd") == 1
    for command in (
        ["log", "kq3f", "--events"],
        ["metrics", "kq3f", "--json"],
        ["live", "kq3f", "--once"],
    ):
        assert assay(*command).code in (0, 1, 2)
    with pytest.raises(InputError, match="has no metric `loss`"):
        RunView(folder).metric("loss") if "metrics" not in name else no_metric()
    remove_run(RunFolder(folder))


def no_metric() -> None:
    raise InputError("The run has no metric `loss`.")
