"""Filling of result tables: what it costs, and what is refused before anything is held."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import ConflictError, InputError
from assay.record import table_edits
from assay.record.table_edits import MAX_COLUMNS, MAX_ROWS, TableChange, csv_rows
from assay.store import tables
from assay.store.layout import Project
from assay.store.tables import read_history, read_table, table_file, table_revision
from run_folders import make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path / "project")
    table_edits.create(made, "t", columns=["a"])
    return made


def csv_of(rows: int, columns: int = 3) -> str:
    lines = [",".join(f"c{i}" for i in range(columns)), *[",".join("1" * columns)] * rows]
    return "\n".join(lines)


def test_the_work_of_filling_a_table_grows_with_its_cells_alone(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    for name in ("_with_column", "_next_number", "replace"):
        original = getattr(table_edits, name)

        def counted(*args: Any, _name: str = name, _original: Any = original, **named: Any) -> Any:
            calls[_name] += 1
            return _original(*args, **named)

        monkeypatch.setattr(table_edits, name, counted)
    of_ten = Counter()
    for rows in (10, 1_000):
        calls.clear()
        table_edits.fill(project, "t", csv_rows(csv_of(rows)), what="imported")
        of_ten = of_ten or Counter(calls)

    # Each of these looks at all rows or all columns of the table.
    assert calls["_with_column"] == 3
    assert calls["_next_number"] == 1
    assert calls["replace"] <= of_ten["replace"]
    assert len(read_table(project, "t").rows) == 1_010
    assert len({row.key for row in read_table(project, "t").rows}) == 1_010


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        (csv_of(MAX_ROWS + 1), "at most 10,000 rows"),
        ("a\n" + "1\n" * 200_000, "at most 10,000 rows"),
        (csv_of(1, MAX_COLUMNS + 1), "at most 500 columns"),
        ("," * 200_000, "at most 500 columns"),
    ],
)
def test_a_csv_that_is_too_large_is_refused_before_a_table_is_held(text: str, bound: str) -> None:
    with pytest.raises(InputError, match=bound):
        csv_rows("x" + text)


def test_rows_that_do_not_fit_any_more_are_refused_and_change_nothing(project: Project) -> None:
    table_edits.fill(project, "t", csv_rows(csv_of(MAX_ROWS - 5, 1)), what="imported")
    before = table_file(project, "t").read_bytes()

    with pytest.raises(InputError, match="at most 10,000 rows"):
        table_edits.fill(project, "t", csv_rows(csv_of(6, 1)), what="imported")

    assert table_file(project, "t").read_bytes() == before


def test_a_table_that_could_not_be_read_again_is_not_written(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MAX_BYTES", 10_000)
    before = table_file(project, "t").read_bytes()

    with pytest.raises(InputError, match="at most 10 kB are read") as caught:
        table_edits.fill(project, "t", csv_rows(csv_of(1_000)), what="imported")

    assert caught.value.fix
    assert table_file(project, "t").read_bytes() == before


def test_of_two_who_edit_what_they_both_saw_one_is_told_and_none_is_lost(project: Project) -> None:
    table_edits.change(project, "t", TableChange(what="add-row"))
    (row,) = read_table(project, "t").rows
    (column,) = read_table(project, "t").columns
    seen = table_revision(project, "t")
    outcomes: list[str] = []
    begin = threading.Barrier(8)

    def edit(text: str) -> None:
        change = TableChange(what="cell", row=row.key, column=column.key, new=text)
        begin.wait()
        try:
            table_edits.change(project, "t", change, revision=seen)
            outcomes.append(text)
        except ConflictError:
            outcomes.append("conflict")

    threads = [threading.Thread(target=edit, args=(str(number),)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    (written,) = [outcome for outcome in outcomes if outcome != "conflict"]
    assert len(outcomes) == 8
    assert read_table(project, "t").rows[0].cells[column.key] == written


def test_edits_of_one_length_within_one_tick_of_a_clock_are_two_revisions(project: Project) -> None:
    table_edits.change(project, "t", TableChange(what="title", new="one"))
    before, status = table_revision(project, "t"), table_file(project, "t").stat()

    table_edits.change(project, "t", TableChange(what="title", new="two"))
    os.utime(table_file(project, "t"), ns=(status.st_atime_ns, status.st_mtime_ns))

    with pytest.raises(ConflictError):
        table_edits.change(project, "t", TableChange(what="title", new="six"), revision=before)
    assert read_table(project, "t").title == "two"


def test_of_two_who_make_a_table_of_one_name_one_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = table_edits.check_table_name

    def after_somebody_else(name: str) -> str:
        monkeypatch.setattr(table_edits, "check_table_name", check)
        table_edits.create(project, "new", title="theirs")
        return check(name)

    monkeypatch.setattr(table_edits, "check_table_name", after_somebody_else)
    with pytest.raises(InputError, match="There is a table new already"):
        table_edits.create(project, "new", title="mine")
    assert read_table(project, "new").title == "theirs"


def test_rows_added_from_many_sides_at_once_are_all_there_under_keys_of_their_own(
    project: Project,
) -> None:
    def work() -> None:
        table_edits.fill(project, "t", csv_rows(csv_of(300)), what="imported")
        table_edits.change(project, "t", TableChange(what="add-row"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    table = read_table(project, "t")
    assert len(table.rows) == len({row.key for row in table.rows}) == 4 * 301


EDITING = """\
import sys
from pathlib import Path
from assay.record.table_edits import TableChange, change
from assay.store.layout import Project

project = Project(Path(sys.argv[1]))
for number in range(1, 100_000):
    change(project, "t", TableChange(what="title", new=f"title {number}"))
    print(number, flush=True)
"""


@pytest.mark.slow
def test_an_edit_that_returned_survives_kill_9_in_the_table_and_in_its_history(
    project: Project,
) -> None:
    variables = {**os.environ, "PYTHONPATH": str(Path(table_edits.__file__).parents[2])}
    command = [sys.executable, "-c", EDITING, str(project.root)]
    for kept_lines in (1, 7, 23):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
            assert process.stdout is not None
            for _ in range(kept_lines):
                last = int(process.stdout.readline())
            process.kill()
            last = max([last, *map(int, process.stdout.read().split())])

        titles = [edit.new for edit in read_history(project, "t") if edit.what == "title"]
        shown = int(read_table(project, "t").title.removeprefix("title "))
        assert shown in (last, last + 1)  # one more may be written that nobody was told of
        assert titles.count(f"title {last}") >= 1
