"""Removing, bringing back, cleaning up."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from assay.core.errors import InputError
from assay.record.opening import start_run
from assay.record.recorder import RunRecorder
from assay.store.blobs import FileBlobs
from assay.store.code_trees import read_tree
from assay.store.index import open_index
from assay.store.layout import Project, RunFolder
from assay.store.trash import bring_back, clean, list_removed, remove_run
from run_folders import hold_lease, make_project, make_run


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project")


def recorded(project: Project, code: str) -> RunRecorder:
    (project.root / "model.py").write_text(code)
    with start_run(project) as run:
        pass
    return run


def grow_old(project: Project) -> None:
    for path in project.code_dir.rglob("*"):
        os.utime(path, (time.time() - 86_400,) * 2)


def test_a_removed_run_is_in_no_list_and_can_be_brought_back(project: Project) -> None:
    kept, gone = (RunFolder(make_run(project, tag=tag)) for tag in ("kept", "gone"))

    remove_run(gone)
    assert [row.tag for row in open_index(project).all_rows()] == ["kept"]
    assert [run.id for run in list_removed(project)] == [gone.id]
    bring_back(list_removed(project)[0])

    assert len(open_index(project).all_rows()) == 2
    assert kept.path.exists() and gone.run_json.exists()


def test_a_run_that_is_being_written_is_not_removed(project: Project) -> None:
    folder = make_run(project, ran_s=None)
    hold_lease(folder)

    with pytest.raises(InputError, match="being written by process"):
        remove_run(RunFolder(folder))


@pytest.mark.row("C55")
def test_files_of_removed_runs_stay_until_they_are_cleaned_away(project: Project) -> None:
    folder = RunFolder(make_run(project))
    place = remove_run(folder)
    assert (place / "run.json").exists()

    planned = clean(project, dry_run=True)
    assert (place / "run.json").exists()
    done = clean(project)

    assert planned == done
    assert done.runs == (folder.path.name,) and done.size_bytes > 0
    assert not place.exists()


def test_code_that_only_removed_runs_needed_is_cleaned_away_on_request(project: Project) -> None:
    first, second = recorded(project, "x = 1\n"), recorded(project, "x = 2\n")
    blobs = FileBlobs(project.code_dir)
    remove_run(first.folder)
    clean(project)
    assert clean(project, code=True).code_files == 0, "it may belong to a run that begins now"
    grow_old(project)

    assert clean(project, code=True, dry_run=True).code_files == 2
    assert clean(project, code=True).code_files == 2  # the tree, and the file

    tree = read_tree(blobs, second.run.newest.code.snapshot)
    assert blobs.get(tree["model.py"].digest) == b"x = 2\n"
    third = recorded(project, "x = 1\n")
    assert (
        blobs.get(read_tree(blobs, third.run.newest.code.snapshot)["model.py"].digest) == b"x = 1\n"
    )


def test_no_code_is_cleaned_away_while_a_run_cannot_say_what_it_needs(project: Project) -> None:
    first, second = recorded(project, "x = 1\n"), recorded(project, "x = 2\n")
    first.folder.run_json.unlink()
    remove_run(second.folder)
    clean(project)
    grow_old(project)

    done = clean(project, code=True)

    assert done.code_files == 0
    assert "nobody knows which code it needs: run.json is missing" in done.code_kept
