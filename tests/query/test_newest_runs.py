"""A list of the newest runs is the head of the whole list, though it looks at few folders."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from assay.formats import run_file
from assay.formats.event_log import Edit
from assay.query.catalog import Asked, open_catalog
from assay.query.table import make_table
from assay.store.index import Index
from assay.store.index_database import index_file
from assay.store.layout import Project, scan_runs
from run_folders import edit, hold_lease, id_of, make_project, make_run

# All that a list can say of a run, but what changes by itself from one moment to the next.
FACTS = ("id", "status", "tag", "kind", "step", "labels", "note", "best", "reason", "created")
NOW_NS = 1_790_000_000 * 10**9


class Store:
    """Folders of runs that are made and changed as by people, programs and accidents."""

    def __init__(self, root: Path, random: Random) -> None:
        self.project = make_project(root)
        self.random = random
        self.changes = 0
        self.aside: list[Path] = []

    def pick(self) -> Path | None:
        """Return any run, the newest rather than others; None without one."""
        folders = sorted(Path(entry.path) for entry in scan_runs(self.project.runs_dir))
        return folders[-1 - self.random.randrange(len(folders)) // 2] if folders else None

    def touch(self, folder: Path) -> None:
        """Let a folder have changed long ago, at another time than ever before."""
        self.changes += 1
        changed_ns = NOW_NS + self.changes * 10**9
        os.utime(folder, ns=(changed_ns, changed_ns))

    def make(self) -> None:
        """A run of any age: of one that a clock of tomorrow wrote, or that was imported, too."""
        status = self.random.choice(["finished", "finished", "failed", "running", "killed"])
        is_open = status in ("running", "killed")
        folder = make_run(
            self.project,
            age_s=self.random.choice([-86_400, 20, 20, 20, 3600, 10**7]) + self.random.random(),
            kind=self.random.choice(["train", "train", "train", "test"]),
            points={"loss": [1.0, 0.5]},
            ran_s=None if is_open else 10,
            status="running" if is_open else status,
        )
        if is_open:
            hold_lease(folder, **({"process_start": "1"} if status == "killed" else {}))
        self.touch(folder)

    def remove(self) -> None:
        if folder := self.pick():
            self.aside.append(folder.rename(self.project.root / f"aside-{folder.name}"))

    def move_in(self) -> None:
        if self.aside:
            moved = self.aside.pop(self.random.randrange(len(self.aside)))
            os.rename(moved, self.project.runs_dir / moved.name.removeprefix("aside-"))

    def rename(self) -> None:
        if folder := self.pick():
            folder.rename(f"{folder}-{self.random.randrange(9)}")

    def replace_by_file(self) -> None:
        if folder := self.pick():
            shutil.rmtree(folder)
            folder.write_text("no folder", "utf-8")

    def label(self) -> None:
        if (folder := self.pick()) and folder.is_dir():
            is_new = not (folder / "edits.jsonl").exists()
            what = self.random.choice(["archived", "archived", "paper"])
            edit(folder, [Edit(what="label", key=what, new=self.random.random() < 0.6)])
            if is_new:
                self.touch(folder)

    def edit_by_hand(self) -> None:
        self._rewrite(lambda run: replace(run, tag=f"by hand {self.changes}"))

    def end(self) -> None:
        self._rewrite(lambda run: replace(run, status="finished", sealed=True))

    def damage(self) -> None:
        if (folder := self.pick()) and (folder / "run.json").exists():
            (folder / "run.json").rename(folder / "run.json.away")
            self.touch(folder)

    def repair(self) -> None:
        for entry in list(scan_runs(self.project.runs_dir)):
            away = Path(entry.path) / "run.json.away"
            if away.exists():
                away.rename(away.with_suffix(""))
                self.touch(Path(entry.path))

    def log(self) -> None:
        if (folder := self.pick()) and folder.is_dir():
            with open(folder / "metrics" / "1.rows", "ab") as file:
                file.write(b"\0")

    def list_all(self) -> None:
        open_catalog(self.project)

    def lose_index(self) -> None:
        index_file(self.project).unlink(missing_ok=True)

    def _rewrite(self, change: Callable[[run_file.RunFile], run_file.RunFile]) -> None:
        folder = self.pick()
        if folder is not None and (folder / "run.json").exists():
            run_file.write(folder, change(run_file.read(folder)))
            self.touch(folder)


CHANGES = [
    *[Store.make] * 4,
    *(Store.remove, Store.move_in, Store.rename, Store.replace_by_file),
    *[Store.label] * 4,
    *(Store.edit_by_hand, Store.end, Store.damage, Store.repair, Store.log),
    *(Store.list_all, Store.lose_index),
]


def cells(project: Project, asked: Asked) -> list[dict[str, Any]]:
    """Return the lines of `assay ls` in a process of its own."""
    return make_table(open_catalog(project, asked=asked), asked).cells


@given(
    changes=st.lists(st.sampled_from(CHANGES), min_size=10, max_size=40),
    seed=st.integers(0, 2**32),
)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink takes minutes
)
def test_the_newest_runs_are_the_head_of_the_whole_list_whatever_happened_since(
    tmp_path_factory: pytest.TempPathFactory, changes: list[Callable[[Store], None]], seed: int
) -> None:
    random = Random(seed)
    folder = tmp_path_factory.mktemp("store")
    store = Store(folder / "project", random)
    for change in changes:
        change(store)
        if random.random() < 0.5:
            continue
        flags: dict[str, Any] = {each: random.random() < 0.3 for each in ("tests", "archived")}
        asked = Asked(columns=FACTS, limit=random.randrange(1, 5), **flags)

        newest = cells(store.project, asked)
        with pytest.MonkeyPatch.context() as patch:  # an index that knows nothing yet
            patch.setenv("XDG_CACHE_HOME", str(folder / f"cache-{store.changes}-{random.random()}"))
            whole = cells(store.project, replace(asked, limit=None))

        assert newest == whole[: asked.limit]


def test_older_runs_are_not_looked_at(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(project.root, Random(0))
    oldest, older, newer, newest = (make_run(project, age_s=age_s) for age_s in (400, 300, 200, 9))
    edit(newer, [Edit(what="label", key="archived", new=True)])
    for folder in (oldest, older, newer, newest):
        store.touch(folder)
    open_catalog(project)
    for folder in (oldest, older, newer, newest):
        store.touch(folder)
    opened = []
    read = run_file.read

    def note_and_read(folder: Path) -> run_file.RunFile:
        opened.append(folder)
        return read(folder)

    monkeypatch.setattr(run_file, "read", note_and_read)

    assert [each["id"] for each in cells(project, Asked(columns=("id",), limit=2))] == [
        id_of(newest),
        id_of(older),
    ]

    assert sorted(opened) == [older, newer, newest]  # what is archived may be so no more


def listed(project: Project, limit: int) -> list[str]:
    return [each["id"] for each in cells(project, Asked(columns=("id",), limit=limit))]


def test_what_comes_forward_in_a_list_is_looked_at_too(project: Project) -> None:
    store = Store(project.root, Random(0))
    old, middle, new = (make_run(project, age_s=age_s) for age_s in (300, 200, 9))
    for folder in (old, middle, new):
        edit(folder, [Edit(what="note", new="a first edit, which makes the file")])
        store.touch(folder)
    edit(middle, [Edit(what="label", key="archived", new=True)])
    open_catalog(project)

    edit(middle, [Edit(what="label", key="archived", new=False)])
    assert listed(project, 2) == [id_of(new), id_of(middle)]

    edit(middle, [Edit(what="label", key="archived", new=True)])
    edit(old, [Edit(what="label", key="archived", new=True)])
    assert listed(project, 2) == [id_of(new)]


def test_a_record_that_can_be_read_again_is_put_in_its_place(project: Project) -> None:
    store = Store(project.root, Random(0))
    half_past_a_minute = 86_400 + time.time() % 60 + 30
    old, new = (make_run(project, age_s=half_past_a_minute - i) for i in range(2))
    (new / "run.json").rename(new / "away")  # its name alone says the minute that it began in
    for folder in (old, new):
        store.touch(folder)
    assert listed(project, 1) == [id_of(old)]

    (new / "away").rename(new / "run.json")
    store.touch(new)

    assert listed(project, 1) == [id_of(new)]


def test_a_question_by_name_or_for_all_looks_at_every_run(project: Project) -> None:
    store = Store(project.root, Random(0))
    old, new = (make_run(project, age_s=age_s, config="lr = 1\n") for age_s in (300, 9))
    store.touch(old)
    store.touch(new)
    open_catalog(project)
    made = run_file.read(old)
    run_file.write(old, replace(made, created_ns=run_file.read(new).created_ns + 1))
    store.touch(old)

    for asked in (
        Asked(columns=("id",), limit=None),
        Asked(columns=("id",), where="lr == 1", limit=1),
        Asked(columns=("id", "lr"), limit=1),
        Asked(columns=("id",), grep="digits", limit=1),
    ):
        assert cells(project, asked)[0]["id"] == id_of(old)
        store.touch(old)
    assert Index(project).newest(1) == [old.name]
