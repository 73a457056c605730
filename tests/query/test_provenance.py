"""Which run made a file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from assay.core.errors import InputError
from assay.query.provenance import find_by_name, find_origins
from assay.record.opening import start_run
from assay.store.layout import Project
from run_folders import make_checkpoint, make_run


def with_checkpoint(project: Project, tag: str, step: int, data: bytes) -> Path:
    import hashlib
    import json

    path = make_checkpoint(make_run(project, tag=tag), step)
    (path / "model.json").write_bytes(data)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][0] |= {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


@pytest.mark.row("C47")
def test_a_copy_of_a_checkpoint_is_found_with_its_run_and_step(
    project: Project, tmp_path: Path
) -> None:
    with_checkpoint(project, "other", 5, b"other weights")
    path = with_checkpoint(project, "mine", 100, b"weights")
    copy = tmp_path / "renamed.ckpt"
    shutil.copy(path / "model.json", copy)

    (found,) = find_origins(copy, [project])

    assert (found.run.tag, found.what, found.step) == ("mine", "checkpoint", 100)
    folder = shutil.copytree(path, tmp_path / "whole")
    assert [each.run.tag for each in find_origins(folder, [project])] == ["mine"]
    copy.write_bytes(b"weightS")
    assert find_origins(copy, [project]) == []


def test_artifacts_and_code_are_found_too(project: Project, tmp_path: Path) -> None:
    (project.root / "model.py").write_text("x = 1\n")
    with start_run(project, tag="first") as first:
        first.artifact(b"a picture", "plots/a.png")
    with start_run(project, tag="second"):
        pass
    picture, code = tmp_path / "b.png", tmp_path / "copy.py"
    picture.write_bytes(b"a picture")
    code.write_text("x = 1\n")

    assert [(each.run.tag, each.name) for each in find_origins(picture, [project])] == [
        ("first", "plots/a.png")
    ]
    assert [(e.run.tag, e.what, e.name) for e in find_origins(code, [project])] == [
        ("first", "code", "model.py")
    ]
    assert [each.name for each in find_by_name("png", [project])] == ["plots/a.png"]


def test_an_empty_folder_is_no_file(project: Project, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(InputError, match="no file in this folder"):
        find_origins(tmp_path / "empty", [project])


def test_a_damaged_run_hides_no_other(project: Project, tmp_path: Path) -> None:
    (make_run(project) / "run.json").write_text("{")
    (with_checkpoint(project, "bad", 1, b"w") / "manifest.json").write_text("{")
    path = with_checkpoint(project, "good", 7, b"w")

    assert [each.run.tag for each in find_origins(path / "model.json", [project])] == ["good"]


@pytest.mark.row("C47", "S-C9")
def test_a_file_of_a_watched_folder_is_found_by_name_and_by_content(
    project: Project, tmp_path: Path
) -> None:
    with start_run(project, tag="mine") as run:
        (run.watch("save", [".ckpt"]) / "1.ckpt").write_bytes(b"weights")
    with start_run(project, tag="other"):
        pass
    copy = tmp_path / "renamed.bin"
    copy.write_bytes(b"weights")

    (by_content,) = find_origins(copy, [project])
    (by_name,) = find_by_name("ckpt", [project])

    for found in (by_content, by_name):
        assert (found.run.tag, found.what, found.name) == ("mine", "file", "save/1.ckpt")
