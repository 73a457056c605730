"""A record from any script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from assay.core.errors import InputError
from assay.core.facts import Warned
from assay.formats import run_file
from assay.script import start
from assay.store.layout import open_project, run_folders
from assay.store.series import read_series


def test_five_lines_make_a_whole_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "confusion.png").write_bytes(b"png")

    with start(tag="mnist", config={"lr": 1e-3, "model": {"width": 32}}, desc="baseline") as run:
        run.log({"train/loss": 0.3}, step=1)
        run.artifact("confusion.png")
        run.tell(Warned(message="hot"))

    assert run.folder is not None
    written = run_file.read(run.folder.path)
    assert (written.tag, written.status, written.sealed, written.id) == (
        "mnist",
        "finished",
        True,
        run.id,
    )
    assert run.folder.config_toml.read_text() == "lr = 0.001\n\n[model]\nwidth = 32\n"
    assert len(written.newest.config_hash) == 64
    assert read_series(run.folder.metrics)["train/loss"].values.tolist() == [0.3]


def test_a_new_project_is_said_in_one_line_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    start().finish()
    start().finish()

    assert (
        capsys.readouterr().err
        == f"assay: {tmp_path} is a project now (it has a folder .assay/).\n"
    )
    assert len(run_folders(open_project(tmp_path))) == 2


@pytest.mark.parametrize("value", ["off", "OFF", "0"])
def test_switched_off_every_call_does_nothing_and_no_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASSAY", value)

    with start(tag="x", config={"a": object()}) as run:
        run.log({"a": 1.0}, 1)
        run.log({"a": 1.0}, step=2)
        assert run.artifact(b"x", "x") == ""
        run.tell(Warned(message="x"))
        run.finish()

    assert (run.id, run.folder) == ("", None)
    assert list(tmp_path.iterdir()) == []


def test_a_config_that_is_no_mapping_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="A config is a mapping, not list"):
        start(config=[1], project=tmp_path / "new")

    assert not (tmp_path / "new").exists()


def test_none_in_a_config_is_written_so_that_it_reads_back(tmp_path: Path) -> None:
    with start(config={"clip": None}, project=tmp_path) as run:
        assert run.folder is not None
        assert run.folder.config_toml.read_text() == 'clip = "@none"\n'


def test_a_script_loads_no_torch_and_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    program = (
        "import sys; from assay.script import start\n"
        "with start(config={'lr': 1}, project=sys.argv[1]) as run: run.log({'a': 1}, 1)\n"
        "unused = {'torch', 'numpy', 'pydantic', 'rich', 'sqlite3', 'assay.core.sections'}\n"
        "print(sorted((unused | {'assay.formats.verdict'}) & set(sys.modules)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"
