"""The index says what the folders say, whatever happens to it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import InputError
from assay.formats import run_file
from assay.formats.run_file import Best
from assay.record import edits
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_attempt, start_run
from assay.record.recorder import RunRecorder
from assay.store import index_database, refresh_index
from assay.store.index import open_index, reindex
from assay.store.index_database import index_file
from assay.store.index_rows import IndexRow
from assay.store.layout import Project, open_project
from assay.store.refresh_index import delete_index


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return open_project(tmp_path / "project", create=True)


def refresh(project: Project) -> list[IndexRow]:
    return open_index(project).all_rows()


def begin(project: Project, tag: str = "") -> RunRecorder:
    return start_run(project, AttemptSpec(config_hash="c" * 64, keep_code=False), tag=tag)


def finished(project: Project, tag: str = "") -> RunRecorder:
    with begin(project, tag) as run:
        run.log({"loss": 2.0, "acc": 0.5}, 1)
        run.log({"loss": 1.0, "acc": 0.75}, 2)
        run.set_best(Best(metric="acc", mode="max", value=0.75, step=2))
    return run


def settle(project: Project) -> None:
    """Let every folder look as if it had not been touched for an hour."""
    for folder in project.runs_dir.iterdir():
        hour_ago = folder.stat().st_mtime_ns - 3600 * 1_000_000_000
        os.utime(folder, ns=(hour_ago, hour_ago))


def facts(rows: list[IndexRow]) -> list[tuple[object, ...]]:
    """Rows without what only says how old they are."""
    return [row._replace(folder_mtime_ns=0) for row in rows]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders whose `run.json` was opened."""
    opened: list[Path] = []
    real = run_file.read

    def counted(folder: Path) -> run_file.RunFile:
        opened.append(folder)
        return real(folder)

    monkeypatch.setattr(run_file, "read", counted)
    return opened


def test_a_row_tells_what_the_run_tells(project: Project) -> None:
    run = finished(project, "my tag")

    (row,) = refresh(project)

    assert (row.id, row.folder, row.kind, row.tag) == (
        run.id,
        run.folder.path.name,
        "train",
        "my tag",
    )
    assert (row.status, row.sealed, row.error) == ("finished", 1, "")
    assert (row.best_metric, row.best_mode, row.best_value, row.best_step) == (
        "acc",
        "max",
        0.75,
        2,
    )
    assert (row.step, row.attempts, row.config_hash) == (2, 1, "c" * 64)
    assert row.summaries["loss"].min == 1.0
    assert row.seconds == run_file.read(run.folder.path).seconds
    assert row.edits == []


def test_half_a_character_in_a_record_is_no_end_of_the_list(project: Project) -> None:
    half = "\ud83d"
    with start_run(project, tag=half, desc=half) as run:
        run.log({half: 0.5}, 1)
        run.set_value(half, half)

    index = open_index(project, texts=True)
    assert [(row.tag, row.id) for row in index.all_rows()] == [("?", run.id)]
    assert index.metric_names() == ["?"]
    assert [row.id for row in refresh(project)] == [run.id]


def test_sealed_runs_that_are_known_are_not_opened(project: Project, reads: list[Path]) -> None:
    for _ in range(3):
        finished(project)
    settle(project)
    first = refresh(project)
    assert len(reads) == 3

    assert refresh(project) == first

    assert len(reads) == 3


def test_a_run_that_goes_on_shows_its_newest_points(project: Project) -> None:
    with begin(project) as run:
        run.log({"loss": 3.0}, 1)
        (row,) = refresh(project)
        assert (row.status, row.sealed, row.summaries["loss"].last) == ("running", 0, 3.0)

        run.log({"loss": 2.0}, 2)
        run._metrics.sync()
        (row,) = refresh(project)

    assert row.summaries["loss"].last == 2.0


def test_a_sealed_run_that_is_resumed_is_seen_again(project: Project) -> None:
    run = finished(project)
    settle(project)
    refresh(project)

    with start_attempt(run.folder, AttemptSpec(keep_code=False), from_step=1) as again:
        again.log({"loss": 9.0}, 2)
        assert refresh(project)[0].status == "running"

    (row,) = refresh(project)
    assert (row.status, row.attempts, row.summaries["loss"].last) == ("finished", 2, 9.0)


def test_every_edit_of_a_sealed_run_is_seen(project: Project) -> None:
    run = finished(project)
    settle(project)
    refresh(project)

    edits.note(run.folder, "good one")
    assert [edit.new for edit in refresh(project)[0].edits] == ["good one"]
    settle(project)
    refresh(project)
    edits.retag(run.folder, "better")

    assert [edit.new for edit in refresh(project)[0].edits] == ["good one", "better"]


def test_deleted_runs_are_gone_and_moved_projects_begin_anew(
    project: Project, tmp_path: Path
) -> None:
    first, second = finished(project), finished(project)
    settle(project)
    assert len(refresh(project)) == 2

    shutil.rmtree(first.folder.path)
    assert [row.id for row in refresh(project)] == [second.id]

    moved = project.root.rename(tmp_path / "moved")
    assert [row.id for row in refresh(Project(moved))] == [second.id]
    assert index_file(Project(moved)) != index_file(project)


def delete(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def overwrite(path: Path) -> None:
    path.write_bytes(b"this is no database" * 500)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def scribble(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:8000] = os.urandom(8000 - 4096)
    path.write_bytes(data)


def other_columns(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE runs")
        database.execute("CREATE TABLE runs (folder, something)")
    database.close()


def no_table(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE runs")
    database.close()


@pytest.mark.parametrize("harm", [delete, empty, overwrite, cut, scribble, other_columns, no_table])
def test_an_index_that_was_harmed_is_made_anew(
    project: Project, harm: Callable[[Path], None], reads: list[Path]
) -> None:
    for _ in range(12):
        finished(project)
    settle(project)
    expected = refresh(project)
    harm(index_file(project))

    assert refresh(project) == expected
    assert refresh(project) == expected

    reads.clear()
    assert refresh(project) == expected
    assert reads == [], "it was written again"


def test_an_index_that_cannot_be_written_costs_only_time(
    project: Project, home: Path, reads: list[Path]
) -> None:
    finished(project)
    (home / ".cache").write_text("a file where a folder should be")

    first = refresh(project)

    assert facts(refresh(project)) == facts(first)
    assert len(reads) == 2


def test_an_index_that_somebody_else_holds_costs_only_time(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_database, "_BUSY_S", 0.01)
    finished(project)
    expected = refresh(project)
    other = sqlite3.connect(index_file(project), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        assert facts(refresh(project)) == facts(expected)
    finally:
        other.close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}', '{"format": 1}', "\0" * 100])
def test_a_run_that_cannot_be_read_is_listed_with_the_reason(project: Project, text: str) -> None:
    good, bad = finished(project), finished(project)
    bad.folder.run_json.write_text(text)

    rows = {row.id: row for row in refresh(project)}

    assert rows[good.id].error == ""
    assert rows[bad.id].status == ""
    assert rows[bad.id].error


def test_a_folder_without_a_run_is_listed_with_the_reason(project: Project) -> None:
    run = finished(project)
    run.folder.run_json.unlink()

    (row,) = refresh(project)

    assert row.id == run.id
    assert "run.json is missing" in row.error
    assert row.created_ns > 0


def test_metrics_that_cannot_be_read_hide_no_run(project: Project) -> None:
    with begin(project) as run:
        run.log({"a": 1.0}, 1)
        shutil.rmtree(run.folder.metrics)
        run.folder.metrics.write_bytes(b"rubbish rubbish")
        (row,) = refresh(project)

    assert (row.status, row.summaries) == ("running", {})


def test_many_processes_may_refresh_at_once(project: Project) -> None:
    for _ in range(5):
        finished(project)
    program = (
        "import sys; from pathlib import Path\n"
        "from assay.store.layout import Project; from assay.store.index import open_index\n"
        "home = Project(Path(sys.argv[1]))\n"
        "for _ in range(20): assert len(open_index(home).all_rows()) == 5\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(project.root)]) for _ in range(4)
    ]

    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    assert len(refresh(project)) == 5


def test_an_index_can_be_thrown_away(project: Project) -> None:
    finished(project)
    refresh(project)
    assert index_file(project).exists()

    delete_index(project)
    delete_index(project)

    assert not index_file(project).exists()


def test_reading_leaves_the_project_as_it_was(project: Project) -> None:
    finished(project)

    def tree() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in sorted(project.root.rglob("*"))}

    before = tree()
    refresh(project)

    assert tree() == before


def test_every_transaction_that_writes_is_immediate() -> None:
    source = Path(index_database.__file__).read_text(encoding="utf-8")

    assert source.count('"BEGIN') == source.count('"BEGIN IMMEDIATE"') == 1
    assert "isolation_level=None" in source


def test_rows_are_plain_data_that_json_can_hold(project: Project) -> None:
    finished(project)

    json.dumps(refresh(project)[0]._asdict(), allow_nan=False)


def test_reindexing_makes_it_anew(project: Project, home: Path) -> None:
    finished(project)
    overwrite_path = index_file(project)
    refresh(project)
    overwrite(overwrite_path)

    assert reindex(project) == 1

    shutil.rmtree(home / ".cache")
    (home / ".cache").write_text("a file where a folder should be")
    with pytest.raises(InputError, match="cannot be written"):
        reindex(project)


def test_a_readonly_index_is_asked_with_what_is_new(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(project)
    settle(project)
    refresh(project)
    with begin(project) as run:
        run.log({"other": 1.0}, 1)
    kept = index_file(project)
    real = refresh_index.update

    def update(path: Path, *what: Any) -> None:
        if path == kept:
            raise OSError("as on a disk that cannot be written")
        real(path, *what)

    monkeypatch.setattr(refresh_index, "update", update)

    found = open_index(project)

    assert sorted(found.metric_names()) == ["acc", "loss", "other"]
    assert len(found.all_rows()) == 2


def test_keys_of_configs_are_kept_with_their_types(project: Project) -> None:
    config = 'a = 1\nb = 1.5\nc = true\nd = "x"\nlist = [1, 2]\nday = 2020-01-01\n'
    with start_run(
        project, AttemptSpec(config_toml=config + "[[t]]\nx = 1\n[[t]]\nx = 2\n", keep_code=False)
    ):
        pass

    found = open_index(project)
    (items,) = found.all_items("config", [found.all_rows()[0].folder]).values()

    assert items == {
        "a": 1, "b": 1.5, "c": True, "d": "x", "list": [1, 2], "day": date(2020, 1, 1), "t[0].x": 1, "t[1].x": 2
    }  # fmt: skip


def test_numbers_that_no_database_holds_hide_no_run(project: Project) -> None:
    with begin(project) as run:
        run.log({"nan": math.nan, "inf": math.inf, "big": 1e308}, -5)
        run.set_value("huge", 10**30)

    assert sorted(open_index(project).metric_names()) == ["big", "inf", "nan"]


@pytest.mark.parametrize("harm", [delete, empty, overwrite, no_table])
def test_an_index_that_was_harmed_since_it_was_opened_is_asked_from_the_folders(
    project: Project, harm: Callable[[Path], None]
) -> None:
    finished(project)
    settle(project)
    refresh(project)
    found = open_index(project)
    harm(index_file(project))
    if harm is no_table:
        with contextlib.closing(sqlite3.connect(index_file(project))) as database:
            database.execute("DROP TABLE texts")

    assert found.metric_names() == ["acc", "loss"]


def test_the_newest_runs_are_told_without_reading_known_ones_and_as_the_folders_are(
    project: Project, reads: list[Path]
) -> None:
    old, middle, new = (finished(project).folder.path for _ in range(3))
    settle(project)
    index = open_index(project)
    reads.clear()

    assert index.newest(2) == [new.name, middle.name]
    assert reads == []

    shutil.rmtree(new)
    newer = finished(project).folder.path
    reads.clear()

    assert index.newest(9) == [newer.name, middle.name, old.name]
    assert reads == [newer]


def test_of_many_runs_a_few_at_a_time_wait_in_memory_to_be_written(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(7):
        finished(project)
    written: list[int] = []
    real = refresh_index.update

    def count(file: Path, fresh: list[Any], gone: list[str]) -> None:
        written.append(len(fresh))
        real(file, fresh, gone)

    monkeypatch.setattr(refresh_index, "update", count)
    monkeypatch.setattr(refresh_index, "_MOST_WAITING", 3)

    assert len(refresh(project)) == 7
    assert written == [0, 3, 3, 1]
