"""An index that follows its folders tells what one made anew would, whatever happened."""

from __future__ import annotations

import os
import shutil
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
from assay.store.index_database import index_file
from assay.store.layout import Project, scan_runs
from run_folders import edit, hold_lease, make_project, make_run

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
    return make_table(open_catalog(project), asked).cells


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
def test_a_list_is_that_of_an_index_made_anew_whatever_happened_since(
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
