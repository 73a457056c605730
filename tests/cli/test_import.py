"""`assay import`: what other trackers left behind, as records."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from assay.formats.run_file import IMPORTED
from assay.interop.event_file import EventFile
from assay.interop.foreign_run import ForeignFile, ForeignRun, ForeignSource, block_of
from assay.interop.import_run import write_run
from assay.query.find import find_run
from assay.script import start as assay_start
from assay.store.blobs import FileBlobs
from assay.store.layout import Project, run_folders
from foreign_files import unpacked

from .conftest import Assay

TAGS = {
    "tensorboard": ["first", "first/best", "killed", "resumed", "sweep/lr=0.01", "sweep/lr=0.1"],
    "mlflow-db": [
        "first: a run whose name is so long that YAML has to fold it, 'quoted', over two lines",
        "../../child",
        "still open",
    ],
    "wandb": ["first", "failed", "../../killed"],
}
FOLDERS = {"tensorboard": "logs", "mlflow-db": ".", "wandb": "."}


def listed(assay: Assay, *arguments: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(assay("ls", *arguments, "--json").out)
    return found


@pytest.mark.parametrize("archive", TAGS)
def test_each_run_becomes_a_record_once(
    assay: Assay, project: Project, tmp_path: Path, archive: str
) -> None:
    tool = archive.partition("-")[0]
    folder = str(unpacked(archive, tmp_path / "theirs") / FOLDERS[archive])
    theirs = sorted(tmp_path.joinpath("theirs").rglob("*"))

    dry = assay("import", tool, folder, "--dry-run")
    assert (dry.code, run_folders(project)) == (0, [])
    first = assay("import", tool, folder)
    again = assay("import", tool, folder)

    assert first.code == again.code == 0
    assert len(dry.lines) == len(first.lines) == len(TAGS[archive]) + 1
    assert [line.replace("would import", "imported") for line in dry.lines[:-1]] == first.lines[:-1]
    assert again.out.startswith(f"skipped: {len(TAGS[archive])} runs that are here already")
    assert sorted(str(row["tag"]) for row in listed(assay)) == sorted(TAGS[archive])
    assert {row["imported.from"] for row in listed(assay, "--columns", "imported.from")} == {tool}
    assert {each.path.parent for each in run_folders(project)} == {project.runs_dir}
    assert sorted(tmp_path.joinpath("theirs").rglob("*")) == theirs
    assert [
        path.name for path in project.runs_dir.iterdir() if path.name.startswith(".import")
    ] == []


def test_an_imported_run_is_one_like_all_others(
    assay: Assay, project: Project, tmp_path: Path
) -> None:
    theirs = unpacked("wandb", tmp_path / "theirs")
    assert assay("import", "wandb", os.path.relpath(theirs)).code == 0

    (row,) = listed(
        assay, "label = try and lr < 0.01 and train/loss.last = 0.25 and said = 'a word'"
    )
    view = find_run(str(row["id"]))
    assert (view.tag, view.status, view.desc, view.labels) == (
        "first",
        "finished",
        "does it learn?",
        ["try", "nlp/ärzte"],
    )
    assert view.origin["id"] == "abcd1234"
    assert Path(view.origin["path"]).parent == theirs / "wandb"
    loss = view.metric("train/loss")
    np.testing.assert_array_equal(loss.values, [2.0, np.nan, 0.5, np.inf, -np.inf, 0.25])
    assert loss.steps.tolist() == [0, 1, 2, 3, 4, 5]
    assert (view.metric("valid/loss").axis, view.metric("valid/loss").xs.tolist()) == (
        "tokens",
        [8192.0],
    )
    image = next(each for each in view.artifacts if each.name == "dots")
    assert FileBlobs(view.folder.artifacts).get(image.digest).startswith(b"\x89PNG")
    assert view.folder.output.read_text() == "a line that it printed\n"

    page = assay("show", view.id).out
    assert "from wandb" in page
    assert IMPORTED not in page
    assert assay("find", "dots").out.startswith(view.id)
    assert assay("diff", view.id, "killed").code == 2
    assert "lr" in assay("diff", view.id, "../../killed", "--config").out


def test_a_run_inside_of_another_is_its_child(
    assay: Assay, project: Project, tmp_path: Path
) -> None:
    assay("import", "mlflow", str(unpacked("mlflow-files", tmp_path / "theirs")))

    (child,) = listed(assay, "status = failed", "--columns", "id,parent")
    assert find_run(str(child["parent"])).tag.startswith("first: a run")


def test_only_runs_that_differ_in_nothing_but_their_seed_are_one_group(
    assay: Assay, project: Project
) -> None:
    for seed, lr in [(0, 0.1), (1, 0.1), (0, 0.2)]:
        config = {"lr": lr, "seed": seed}
        run = ForeignRun(
            tag=f"{lr}",
            config=config,
            created_ns=1 + seed,
            ended_ns=2,
            blocks=[block_of(["a"], [1], [1], [[lr]])],
        )
        found = ForeignSource(
            tool="wandb", key=f"{lr} {seed}", name="", path=project.root, read=lambda run=run: run
        )
        write_run(project, found, run)
        assay_start(tag=f"own {lr}", config=config, project=project).finish()

    groups = json.loads(assay("ls", "--group", "--json").out)

    assert sorted((group["name"], len(group["runs"])) for group in groups) == [
        ("lr=0.1", 4),
        ("lr=0.2", 2),
    ]


def test_what_was_left_behind_is_a_branch_and_damage_is_told_once(
    assay: Assay, project: Project, tmp_path: Path
) -> None:
    logs = unpacked("tensorboard", tmp_path / "theirs") / "logs"

    said = assay("import", "tensorboard", str(logs))

    assert len(said.err.splitlines()) == 1
    assert "truncated record in data; what follows its first 20 events was left out" in said.err
    view = find_run("resumed")
    assert view.metric("loss").values.tolist() == [0, 1, 2, 3.5, 4.5, 5.5, 6.5, 7.5]
    assert "truncated record in data" in " ".join(assay("show", "killed").out.split())


def test_a_run_that_went_on_is_taken_anew_and_keeps_what_was_said_of_it(
    assay: Assay, project: Project, tmp_path: Path
) -> None:
    file = EventFile(tmp_path / "theirs" / "run")
    file.scalars([("loss", 1.0)], 1, 5.0)
    file.flush()
    theirs = str(tmp_path / "theirs")
    assay("import", "tensorboard", theirs)
    assay("edit", "last", "--note", "look at this")
    assay("edit", "last", "--label", "good")
    view = find_run("last")
    view.folder.readme.write_text("my page\n" + view.folder.readme.read_text())
    file.scalars([("loss", 0.5)], 2, 6.0)
    file.close()

    assert "skipped: 1 run" in assay("import", "tensorboard", theirs).out
    said = assay("import", "tensorboard", theirs, "--again")

    assert said.lines[0] == f"imported again: {view.id}  run  1 metric, 2 points"
    now = find_run(view.id)
    assert now.metric("loss").values.tolist() == [1.0, 0.5]
    assert (now.labels, [note.new for note in now.notes]) == (["good"], ["look at this"])
    assert now.folder.readme.read_text().startswith("my page\n")
    assert [each.path for each in run_folders(project)] == [now.path]
    assert [path.name for path in project.runs_dir.iterdir()] == [now.path.name]
    assert [row["loss"] for row in listed(assay, "--columns", "loss")] == [0.5]


def test_a_run_that_cannot_be_replaced_stays_as_it_is(
    assay: Assay, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = str(unpacked("tensorboard", tmp_path / "theirs") / "logs" / "killed")
    assay("import", "tensorboard", logs)
    (folder,) = run_folders(project)
    before = folder.run_json.read_bytes()
    rename = os.rename

    def refuse(source: str, to: str, **folders: int) -> None:
        if Path(to) == folder.path and ".old" not in str(source):
            raise PermissionError(13, "Permission denied")
        rename(source, to, **folders)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        said = assay("import", "tensorboard", logs, "--again")

    assert (said.code, "no permission" in said.err) == (1, True)
    assert folder.run_json.read_bytes() == before
    assert list(project.runs_dir.iterdir()) == [folder.path]


def test_a_run_of_our_own_is_never_replaced(assay: Assay, project: Project, tmp_path: Path) -> None:
    logs = unpacked("tensorboard", tmp_path / "theirs") / "logs" / "killed"
    assay("import", "tensorboard", str(logs))
    path = run_folders(project)[0].run_json
    path.write_text(path.read_text().replace("imported.from", "result"))

    said = assay("import", "tensorboard", str(logs), "--again")

    assert said.code == 1
    assert "was not imported" in said.err
    assert path.exists()


def test_a_run_that_was_removed_can_be_imported_again(
    assay: Assay, project: Project, tmp_path: Path
) -> None:
    logs = str(unpacked("tensorboard", tmp_path / "theirs") / "logs" / "killed")
    assay("import", "tensorboard", logs)
    assay("rm", "last")

    assert "imported:" in assay("import", "tensorboard", logs).out
    assert len(run_folders(project)) == 1


HOSTILE = ["../../etc/passwd", "a\nb", "nul\0", "/absolute", "\u202egnp", "x" * 10_000, "[31m"]


def test_hostile_names_are_data(assay: Assay, project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "theirs" / "run\n\x1b[31m"
    file = EventFile(folder)
    for name in HOSTILE:
        file.scalars([(name, 0.5)], 1, 5.0)
        file.text(name, "text", 1, 5.0)
    file.close()
    before = {path for path in tmp_path.rglob("*") if project.runs_dir not in path.parents}

    said = assay("import", "tensorboard", str(folder.parent))

    assert said.code == 0
    assert "\x1b" not in said.out + said.err
    view = find_run("last")
    assert sorted(view.metrics) == sorted(HOSTILE)
    assert sorted(each.name for each in view.artifacts) == sorted(HOSTILE)
    after = {path for path in tmp_path.rglob("*") if project.runs_dir not in path.parents}
    assert {path for path in after - before if project.assay_dir not in path.parents} <= {
        project.runs_dir
    }


def test_a_run_that_cannot_be_read_keeps_no_other_from_it(
    assay: Assay, project: Project, tmp_path: Path
) -> None:
    theirs = unpacked("wandb", tmp_path / "theirs")
    (broken,) = theirs.glob("wandb/*failed01/*.wandb")
    broken.write_bytes(b"nothing of wandb")

    said = assay("import", "wandb", str(theirs))

    assert said.code == 1
    assert "2 runs imported" in said.out
    (line,) = [line for line in said.err.splitlines() if line.startswith("error:")]
    assert str(broken.parent) in line


def test_what_no_file_of_ours_can_hold_is_kept_as_text(assay: Assay, project: Project) -> None:
    half = "\ud83d"  # of a character, as JSON can have it
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    run = ForeignRun(
        tag=f"tag {half}",
        desc=half,
        config={"lr": 0.1, half: 1, "text": half, "deep": deep, "none": "@none"},
        values={"result": half, "deep": deep},
        labels=[half, " ", "a"],
        created_ns=1,
        ended_ns=1 << 63,
        blocks=[
            block_of([half], [1], [1], [[0.5]]),
            block_of(["x" * 70_000], [1], [1], [[0.5]]),
            block_of(["ok"], [1], [1], [[0.5]]),
        ],
        files=[
            ForeignFile(name=half, source=b"data", at_ns=1),
            ForeignFile(name="gone", source=Path("gone"), at_ns=1),
        ],
    )

    found = ForeignSource(tool="wandb", key="k", name="k", path=project.root, read=lambda: run)
    _, warnings = write_run(project, found, run)

    assert "lr = 0.1" in assay("show", "last", "--config").out
    assert [row["lr"] for row in listed(assay, "ok = 0.5", "--columns", "lr")] == [0.1]
    assert sum("kept as text" in each for each in warnings) >= 3
    assert sum("A curve was left out" in each for each in warnings) == 1
    assert sum("gone could not be copied" in each for each in warnings) == 1


@pytest.mark.parametrize("tool", ["tensorboard", "mlflow", "wandb"])
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    assay: Assay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    said = assay("import", tool, str(tmp_path))

    assert (said.code, f"pip install 'assay[{tool}]'" in said.err) == (2, True)


def test_wrong_words_are_answered(assay: Assay, project: Project, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "text.db").write_text("text\n" * 200)

    for arguments, words in {
        ("tensorbord", "."): "did you mean `tensorboard`?",
        ("sacred", "."): "there are tensorboard, mlflow, wandb",
        ("wandb", str(tmp_path / "nowhere")): "There is no such folder",
        ("wandb", str(tmp_path / "file")): "a file, not a folder",
        ("mlflow", str(tmp_path / "file")): "no runs of MLflow",
        ("mlflow", str(tmp_path / "text.db")): "no database that can be read",
        ("tensorboard", str(tmp_path / "empty")): "events.out.tfevents",
        ("mlflow", str(tmp_path / "empty")): "mlflow.db",
        ("wandb", str(tmp_path / "empty")): "offline-run-",
    }.items():
        said = assay("import", *arguments)
        assert (said.code, said.out) == (2, "")
        assert words in said.err
    assert run_folders(project) == []


def test_a_folder_that_is_no_project_becomes_one_only_when_something_is_written(
    assay: Assay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = str(unpacked("tensorboard", tmp_path / "theirs") / "logs")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    assert assay("import", "tensorboard", logs, "--dry-run").code == 0
    assert list(here.iterdir()) == []
    assert "is a project now" in assay("import", "tensorboard", logs).err
    assert len(run_folders(Project(here))) == 6


@pytest.mark.skipif(sys.platform == "win32", reason="needs permissions of POSIX")
def test_a_full_or_closed_place_leaves_no_half_of_a_run(
    assay: Assay, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = str(unpacked("tensorboard", tmp_path / "theirs") / "logs" / "killed")

    def no_room(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("assay.interop.import_run.readme.write_first", no_room)
    said = assay("import", "tensorboard", logs)

    assert said.code == 1
    assert "the disk is full" in said.err
    assert list(project.runs_dir.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.chdir(project.root)
    assert assay("import", "tensorboard", logs).code == 0
    shutil.rmtree(project.runs_dir)
