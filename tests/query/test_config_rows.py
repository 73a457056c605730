"""The config of a run, key by key, and the texts and commands beside it."""

from __future__ import annotations

import os

from assay.formats import defaults_file
from assay.formats.defaults_file import Taken
from assay.query.config_rows import config_files, config_rows, flat_config
from assay.query.rerun import commands_for
from assay.query.run import RunView
from assay.query.text_files import text_files, text_part
from assay.store.layout import Project, RunFolder
from run_folders import make_checkpoint, make_run

GIVEN = 'lr = 0.1\nbetas = [0.9, 0.99]\nname = "a"\n[model]\nwidth = 8\n'


def test_each_value_says_where_it_came_from(project: Project) -> None:
    saved = GIVEN.replace("0.1", "0.5").replace('"a"', '"resolved"')
    path = make_run(
        project, config=saved, attempt={"command": ("assay", "run", "toy.toml", "lr=0.5")}
    )
    (path / "config").mkdir()
    (path / "config" / "toy.toml").write_text(GIVEN)
    (path / "config" / "broken.toml").write_text("= 1")
    (path / "config" / "a.py").write_text("raise SystemExit")
    defaults_file.write(
        path,
        (Taken(key="seed", value="0", owner="the config"), Taken(key="lr", value="1", owner="x")),
    )
    run = RunView(RunFolder(path))

    rows = {row.key: (row.value, row.kind, row.origin) for row in config_rows(run)}

    assert rows == {
        "lr": ("0.5", "override", "lr=0.5"),
        "betas": ("[0.9, 0.99]", "file", "toy.toml:2"),
        "name": ('"resolved"', "resolved", ""),
        "model.width": ("8", "file", "toy.toml:5"),
        "seed": ("0", "default", "the config"),
    }
    assert set(config_files(run)) == {"toy.toml", "broken.toml", "a.py"}
    assert flat_config(run) == {
        "lr": "0.5",
        "betas": "[0.9, 0.99]",
        "name": '"resolved"',
        "model.width": "8",
    }


def test_texts_are_found_by_name_and_read_in_parts(project: Project) -> None:
    folder = RunFolder(make_run(project))
    folder.log.write_text("one\ntwo\n")
    folder.ranks.mkdir()
    for name in ("10.txt", "2.txt", "x.txt"):
        (folder.ranks / name).write_text(name)
    os.mkfifo(folder.output)

    assert [each.name for each in text_files(folder)] == ["log", "rank-2", "rank-10"]
    assert text_part(folder, "log", 4, 7) == b"two"
    assert text_part(folder, "log", 4, 2) == b""
    assert text_part(folder, "../run.json", 0, 9) is None


def test_the_commands_to_copy_are_those_that_the_run_can_take(project: Project) -> None:
    failed = make_run(project, status="failed", config_path="toy.toml")
    make_checkpoint(failed, 3)
    script = make_run(project, attempt={"command": ("python", "train it.py")})

    ours = [each.line.split()[1] for each in commands_for(RunView(RunFolder(failed)))]
    theirs = [each.line for each in commands_for(RunView(RunFolder(script)))]

    assert ours == ["resume", "rerun", "test", "replay", "log"]
    assert theirs[0] == "python 'train it.py'" and len(theirs) == 2
