"""Saying which run is meant."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from assay.compose.training import refuse_without_checkpoints
from assay.core.errors import AssayError, CheckpointError, InputError
from assay.engine.checkpoint.saver import Saver
from assay.formats import run_file
from assay.formats.event_log import Edit
from assay.formats.run_file import Best
from assay.query.find import (
    checkpoint_of,
    describe_newer_damage,
    find,
    find_checkpoint,
    find_run,
)
from assay.query.run import RunView
from assay.script import start
from assay.store.known_projects import all_projects, project_here, projects_here
from assay.store.layout import Project, RunFolder
from assay.store.trash import remove_run
from run_folders import edit, make_checkpoint, make_project, make_run

Refused = Callable[[str], str]


@pytest.fixture
def refused(project: Project) -> Refused:
    """The text of the error that an address gives."""

    def text(address: str) -> str:
        with pytest.raises(InputError) as caught:
            find_run(address, project)
        return str(caught.value)

    return text


def test_a_run_is_found_by_id_prefix_tag_folder_name_and_path(project: Project) -> None:
    folder = make_run(project, id="kq3f7abc", tag="MNIST CNN")
    make_run(project, id="kz3f7abc", tag="other")

    for address in (
        "kq3f7abc",
        "kq3",
        "KQ3F",
        "MNIST CNN",
        folder.name,
        str(folder),
        f"{folder}/checkpoints/..",
    ):
        (folder / "checkpoints").mkdir(exist_ok=True)
        assert find_run(address, project).id == "kq3f7abc", address


def test_an_expression_that_one_run_fulfils_is_that_run(project: Project, refused: Refused) -> None:
    for number, run_id in enumerate(("aaaaaaaa", "bbbbbbbb", "cccccccc", "dddddddd", "eeeeeeee")):
        make_run(
            project,
            id=run_id,
            tag="sweep",
            age_s=900 - number,
            config=f"[model]\nwidth = {number}\n",
        )
    make_run(project, id="ffffffff", tag="width = 3")
    make_checkpoint(find_run("bbbbbbbb", project).path, 3)

    assert find_run("tag = sweep and model.width = 1", project).id == "bbbbbbbb"
    assert find_run("width = 3", project).id == "ffffffff"  # a tag goes first
    run, checkpoint = find("model.width = 1@3", project)
    assert (run.id, checkpoint) == ("bbbbbbbb", "3")

    several = refused("tag = sweep")
    assert "5 runs fulfil `tag = sweep`, and one is meant; the newest: eeeeeeee sweep; " in several
    assert "cccccccc" in several and "bbbbbbbb" not in several
    assert "fix: narrow it with `and ...`, or name the run: `assay ls 'tag = sweep'`" in several
    assert "No run fulfils `model.width = 9`." in refused("model.width = 9")
    assert "did you mean" in refused("model.widht = 1")


def test_a_run_of_a_script_without_checkpoints_is_not_told_to_be_trained_again(
    project: Project,
) -> None:
    make_run(project, id="kq3f7abc")

    with pytest.raises(CheckpointError) as caught:
        find_checkpoint("last", project)

    assert "rerun" not in caught.value.fix and "Saver" in caught.value.fix
    assert caught.value.exit_code == 2  # a name that is not there is a mistake of who wrote it


def test_a_path_is_found_from_anywhere_and_from_inside(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(project, id="kq3f7abc")
    inside = make_checkpoint(folder, 3)
    monkeypatch.chdir(folder.parent)

    for address in (folder.name, f"./{folder.name}", str(inside), os.path.relpath(inside)):
        assert find_run(address).id == "kq3f7abc"
    monkeypatch.chdir(inside)
    assert find_run(".").id == "kq3f7abc"
    assert find_run("..").id == "kq3f7abc"


def test_a_path_under_the_home_folder_may_be_written_short(home: Path) -> None:
    make_run(make_project(home / "p"), id="kq3f7abc")

    (folder,) = (home / "p" / "runs").iterdir()
    assert find_run(f"~/p/runs/{folder.name}").id == "kq3f7abc"


def test_of_runs_with_one_tag_the_newest_is_meant(project: Project) -> None:
    make_run(project, age_s=100, id="aaaaaaaa")
    make_run(project, age_s=10, id="bbbbbbbb")
    make_run(project, age_s=1, id="cccccccc", kind="test")

    assert find_run("digits", project).id == "bbbbbbbb"


def test_a_run_is_found_by_the_tag_that_it_was_given_later(project: Project) -> None:
    folder = make_run(project, id="aaaaaaaa", tag="old")
    edit(folder, [Edit(what="tag", new="new")])

    assert find_run("new", project).id == "aaaaaaaa"


def test_a_tag_of_tests_only_is_found_too(project: Project) -> None:
    make_run(project, id="aaaaaaaa", kind="test", tag="check")

    assert find_run("check", project).id == "aaaaaaaa"


def test_last_is_the_newest_training_run_and_counts_back(
    project: Project, refused: Refused
) -> None:
    for i, age in enumerate((300, 200, 100)):
        make_run(project, age_s=age, id="abc"[i] * 8)
    make_run(project, age_s=1, id="dddddddd", kind="test")

    assert [
        find_run(address, project).id[0] for address in ("last", "last-0", "last-1", "last-2")
    ] == list("ccba")
    assert "There is no run `last-3`.\n" in refused("last-3")
    assert "there are 3 runs" in refused("last-3")


def test_the_beginning_of_an_id_must_be_long_enough_and_of_one_run(
    project: Project, refused: Refused
) -> None:
    make_run(project, id="abcdefgh", tag="one")
    make_run(project, id="abcdefgi", tag="two")

    text = refused("abcdefg")

    assert "the beginning of 2 ids" in text
    assert "abcdefgh one, 1 h ago" in text and "abcdefgi two" in text
    assert "needs 3 characters" in refused("ab")


def test_what_is_not_there_names_what_is(project: Project, refused: Refused) -> None:
    assert "train one: `assay run CONFIG`" in refused("mnist")
    assert "There is no run yet" in refused("last")
    make_run(project, tag="mnist-cnn", id="kq3f7abc")

    assert "did you mean `mnist-cnn`?" in refused("mnist-cn")
    assert "did you mean `kq3f7abc`?" in refused("kq3f7abd")
    assert "did you mean `last`?" in refused("lsat")
    assert "the newest is kq3f7abc mnist-cnn, 1 h ago" in refused("zzzz")
    assert "there is 1 run" in refused("last-1")
    assert "no run `\x00`" in refused("\x00")
    assert "There is no run `./nowhere`" in refused("./nowhere")


def test_the_best_run_is_by_the_recorded_mode_or_the_one_that_is_said(
    project: Project, refused: Refused
) -> None:
    best = Best(metric="acc", mode="max", value=0.9, step=1)
    make_run(project, id="aaaaaaaa", points={"acc": [0.5, 0.9], "loss": [3.0]}, best=best)
    make_run(project, id="bbbbbbbb", points={"acc": [0.8, math.nan], "loss": [1.0]})
    make_run(project, id="cccccccc", points={"acc": [0.95]}, kind="test")
    make_run(project, id="dddddddd", points={"loss": [math.nan], "void": [math.nan], "a:b": [1.0]})

    def best_of(metric: str) -> str:
        return find_run(f"best:{metric}", project).id[0]

    assert [
        best_of(m) for m in ("acc", "acc:max", "acc:min", "loss:min", "loss:max", "a:b:min")
    ] == list("aaabad")
    assert "No run says whether small or large is good" in refused("best:loss")
    assert "write `best:loss:min` or `best:loss:max`" in refused("best:loss")
    assert "did you mean `loss`" in refused("best:los:min")
    assert "there are acc, loss" in refused("best:zzz:min")
    assert "never a number" in refused("best:void:min")


def test_runs_that_disagree_on_what_is_best_must_be_told(
    project: Project, refused: Refused
) -> None:
    for mode in ("min", "max"):
        make_run(
            project, points={"acc": [1.0]}, best=Best(metric="acc", mode=mode, value=1.0, step=1)
        )

    assert "Some runs want it small and some large" in refused("best:acc")


def test_the_best_of_no_runs_says_how_to_make_one(refused: Refused) -> None:
    assert "train one: `assay run CONFIG`" in refused("best:acc")


def test_a_checkpoint_is_found_by_step_name_best_and_latest(project: Project) -> None:
    folder = make_run(project, id="kq3f7abc")
    for step in (10, 20):
        make_checkpoint(folder, step)
    (folder / "checkpoints" / "best.json").write_text('{"name": "step-000000010"}')

    def found(address: str) -> str:
        run, path = find_checkpoint(address, project)
        assert run.id == "kq3f7abc"
        return path.name[-2:]

    addresses = (
        "last@10",
        "last@latest",
        "last",
        "kq3@best",
        "last@step-000000020",
        f"{folder}@000000020",
    )
    assert [found(address) for address in addresses] == ["10", "20", "20", "10", "20", "20"]
    assert find_checkpoint("last", project, default="best")[1].name == "step-000000010"


def test_a_checkpoint_that_is_not_there_names_those_that_are(project: Project) -> None:
    folder = make_run(
        project, id="kq3f7abc", config="seed = 1\n", attempt={"launch": {"user_dirs": []}}
    )

    def text(address: str) -> str:
        with pytest.raises(CheckpointError) as caught:
            find_checkpoint(address, project)
        return str(caught.value)

    assert "assay rerun" in text("last") and "assay rerun" in text("last@best")
    for step in range(1, 11):
        make_checkpoint(folder, step)
    (make_checkpoint(folder, 11) / "model.json").unlink()

    assert "it has ..., 3, 4, 5, 6, 7, 8, 9, 10" in text("last@99")
    assert "model.json is missing" in text("last@11")
    assert "ask for `latest` or a step" in text("last@best")
    (folder / "checkpoints" / "best.json").write_text('{"name": "step-000000010"}')
    assert text("last@99").endswith("10 and best")


def test_an_at_sign_in_a_tag_is_no_checkpoint(project: Project) -> None:
    make_run(project, tag="ada@home")

    run, checkpoint = find("ada@home", project)

    assert (run.tag, checkpoint) == ("ada@home", "")
    with pytest.raises(InputError, match="no run `bob`"):
        find("bob@home", project)


def test_a_checkpoint_of_a_view_is_asked_for_directly(project: Project) -> None:
    view = RunView(make_run(project))
    make_checkpoint(view.path, 7)

    assert checkpoint_of(RunView(view.path), "7").step == 7


def test_without_a_project_the_way_to_one_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InputError, match="`assay init` makes this folder one"):
        find_run("last")
    assert projects_here() == []


def test_the_project_is_the_one_around_the_working_directory(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = project.root / "src" / "deep"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)

    assert project_here().root == project.root
    assert [each.root for each in projects_here()] == [project.root]


def test_all_projects_are_this_one_and_those_used_before_each_once(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start("a", project=tmp_path / "other") as run:
        run.log({"x": 1.0}, step=1)
    with start("b", project=project):
        pass
    monkeypatch.chdir(project.root)

    assert [each.root.name for each in all_projects()] == ["project", "other"]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a cut-off file": (
        lambda path: _cut(path / "model.json"),
        "model.json has 1 of 2 bytes",
    ),
    "a file that is gone": (
        lambda path: (path / "model.json").unlink(),
        "model.json is missing",
    ),
    "a cut-off manifest": (lambda path: _cut(path / "manifest.json"), "manifest.json"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "it has no manifest"),
    "the manifest of another": (
        lambda path: path.rename(path.with_name("step-000000011")),
        "its manifest is that of 'step-000000010', step 10",
    ),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_checkpoint_is_named_with_its_file_and_what_is_left(
    how: str, project: Project
) -> None:
    folder = make_run(project, id="kq3f7abc")
    damage, why = DAMAGES[how]
    damage(make_checkpoint(folder, 10))
    damaged = next((folder / "checkpoints").iterdir()).name
    run = find_run("kq3f7abc", project)

    def errors() -> list[str]:
        found = []
        for name in ("latest", "best", damaged):
            with pytest.raises(CheckpointError) as caught:
                find_checkpoint(f"kq3f7abc@{name}", project)
            found.append(str(caught.value))
        for refuse in (lambda: refuse_without_checkpoints(run), lambda: _resume(folder)):
            with pytest.raises(AssayError) as refused:
                refuse()
            found.append(str(refused.value))
        return found

    point_at_best(folder, damaged)
    run_file.write(folder, replace(run_file.read(folder), status="finished"))
    run = find_run("kq3f7abc", project)
    for text in errors():
        assert damaged in text and why in text and "yet" not in text, text
    verdicts = {part.name: (part.verdict, part.why) for part in run.verify()}
    assert verdicts[damaged][0] == "damaged" and why in verdicts[damaged][1]

    make_checkpoint(folder, 5)
    with pytest.raises(CheckpointError, match="it has 5"):
        find_checkpoint(f"kq3f7abc@{damaged}", project)
    run = find_run("kq3f7abc", project)
    left = checkpoint_of(run, "latest")
    assert left.step == 5 and f"{damaged} is damaged: " in describe_newer_damage(run, left)


def _resume(folder: Path) -> object:
    return Saver(folder / "checkpoints").newest()


def point_at_best(folder: Path, name: str) -> None:
    (folder / "checkpoints" / "best.json").write_text(f'{{"name": "{name}"}}')


def test_an_unfinished_checkpoint_and_one_put_aside_are_not_damaged(project: Project) -> None:
    folder = make_run(project, id="kq3f7abc")
    whole = make_checkpoint(folder, 10)
    for name in ("step-000000011.tmp", "step-000000012.left-1"):
        shutil.copytree(whole, whole.with_name(name))

    run = find_run("kq3f7abc", project)

    assert describe_newer_damage(run, checkpoint_of(run, "latest")) == ""
    assert {part.name for part in run.verify()}.isdisjoint(
        {"step-000000011.tmp", "step-000000012.left-1"}
    )


@pytest.mark.parametrize("address", ["kq3f7abc", "KQ3", "gone", "runs/NAME"])
def test_a_removed_run_is_said_to_be_removed_and_comes_back_as_the_error_says(
    project: Project, refused: Refused, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    from assay.cli.main import main

    monkeypatch.chdir(project.root)
    folder = make_run(project, id="kq3f7abc", tag="gone")
    make_run(project, id="kq9zzzzz", tag="gome")
    address = address.replace("NAME", folder.name)
    remove_run(RunFolder(folder))

    text = refused(address)

    command = re.search("`assay (rm --undo .*)`", text)
    assert command is not None and "it was removed" in text, text
    assert main(command[1].split()) == 0
    assert find(address, project)[0].id == "kq3f7abc"
    assert "was removed" not in refused("zzz")


def test_for_the_last_run_and_for_a_whole_id_not_all_runs_are_looked_at(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tag in ("first", "second", "third"):
        make_run(project, id=f"k{tag[:2]}f7abc", tag=tag)
    find_run("last", project)

    monkeypatch.setattr("assay.query.find.open_catalog", None)

    assert find_run("last-2", project).id in {"kfif7abc", "ksef7abc", "kthf7abc"}
    assert find_run("ksef7abc", project).file.tag == "second"
