"""Run folders for tests, written with the functions of core, as by any recorder."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from assay.core.facts import Ended, RunFact
from assay.core.ids import folder_name, new_run_id
from assay.formats import lease, manifest, run_file
from assay.formats.event_log import Edit, edit_line, event_line
from assay.formats.json_codec import write_json
from assay.formats.manifest import Manifest, ManifestFile
from assay.formats.metrics_file import KeySet
from assay.formats.run_file import Attempt, RunFile, Summary
from assay.store.layout import Project, open_project
from assay.store.series import Block
from assay.store.write_blocks import write_blocks

SECOND = 10**9
Points = Mapping[str, Sequence[float]]


def make_project(root: Path) -> Project:
    root.mkdir(parents=True, exist_ok=True)
    return open_project(root, create=True)


def make_run(
    project: Project,
    *,
    tag: str = "digits",
    age_s: float = 3600,
    points: Points | None = None,
    config: str = "",
    ran_s: float | None = 72,
    attempt: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Path:
    """Make a run that began `age_s` ago and ended after `ran_s` (None: it wrote no end).

    Its curves begin at step 1.
    """
    created_ns = time.time_ns() - int(age_s * SECOND)
    run_id = fields.pop("id", None) or new_run_id()
    folder = project.runs_dir / folder_name(
        datetime.fromtimestamp(created_ns / SECOND), run_id, tag
    )
    folder.mkdir(parents=True)
    status = fields.pop("status", "running" if ran_s is None else "finished")
    one = Attempt(
        **{
            "number": 1,
            "started_ns": created_ns,
            "status": status,
            "host": lease.mine(1).host,
            **(attempt or {}),
        }
    )
    if ran_s is not None:
        one = replace(one, ended_ns=created_ns + int(ran_s * SECOND))
    write_metrics(folder, points or {})
    (folder / "config.toml").write_text(config, encoding="utf-8")
    run = RunFile(
        **{
            "id": run_id,
            "kind": "train",
            "tag": tag,
            "created_ns": created_ns,
            "project": str(project.root),
            "status": status,
            "sealed": status != "running",
            "attempts": (one,),
            **fields,
        }
    )
    run_file.write(folder, run)
    return folder


def id_of(folder: Path) -> str:
    """Return the id of the run in a folder."""
    return folder.name.split("-")[2]


def write_metrics(folder: Path, points: Points) -> None:
    """Write the metrics of a run, each logged alone, from step 1 on and at its ns."""
    blocks = []
    for name, values in points.items():
        steps = np.arange(1, len(values) + 1)
        column = np.array(values, np.float64).reshape(-1, 1)
        blocks.append(Block(KeySet((name,)), steps, steps, steps, 0 * steps, column))
    write_blocks(folder / "metrics", blocks)


def summary(value: float) -> Summary:
    return Summary(
        last=value, step=3, count=3, min=value / 2, at_min=1, max=value * 2, at_max=2, mean=value
    )


def hold_lease(folder: Path, **changes: Any) -> None:
    """Let this process hold the run, or whoever `changes` make of it."""
    held = replace(lease.mine(1), **changes)
    if "steady_ns" not in changes:
        held = replace(held, steady_ns=held.beat_ns)
    write_json(folder / lease.FILE_NAME, held)


def tell(folder: Path, *facts: RunFact, at_ns: int = 1_700_000_000 * SECOND) -> None:
    with open(folder / "events.jsonl", "a", encoding="utf-8") as file:
        file.writelines(event_line(fact, at_ns) + "\n" for fact in facts)


def tell_now(folder: Path, *facts: RunFact) -> None:
    """Write events of this moment: news to whoever has not looked since."""
    tell(folder, *facts, at_ns=time.time_ns())


def edit(folder: Path, edits: Iterable[Edit]) -> None:
    with open(folder / "edits.jsonl", "a", encoding="utf-8") as file:
        file.writelines(edit_line(each) + "\n" for each in edits)


def make_checkpoint(
    folder: Path, step: int, *, name: str = "", kind: manifest.Kind = "checkpoint"
) -> Path:
    path = folder / "checkpoints" / (name or manifest.folder_of_step(step))
    path.mkdir(parents=True)
    (path / "model.json").write_bytes(b"{}")
    written = Manifest(
        kind=kind,
        name=path.name,
        step=step,
        epoch=0,
        samples=0,
        run="",
        attempt=1,
        created_ns=time.time_ns(),
        files=(ManifestFile(name="model.json", size_bytes=2, sha256=""),),
        parts=(),
    )
    manifest.write(path, written)
    return path


HALF = "half\udcff"
"""Text that no UTF-8 can hold: Python makes it of a file name with a byte that is no text."""


def make_unprintable_run(project: Project) -> Path:
    """Make a failed run with `HALF` in all of its names and texts, and with such files."""
    folder = make_run(project, config="lr = 0.1\n", points={HALF: [0.5], "loss": [1.0]})
    run = run_file.read(folder)
    attempt = replace(run.attempts[0], host=HALF, command=(HALF,), cwd=f"/{HALF}")
    write_json(
        folder / run_file.FILE_NAME,
        replace(run, tag=HALF, values={HALF: HALF}, attempts=(attempt,)),
    )
    for name in (b"config/x\xff.toml", b"artifacts/a\xff.txt"):
        file = folder / os.fsdecode(name)
        file.parent.mkdir(exist_ok=True)
        file.write_text("lr = 0.1\n", encoding="utf-8")
    (folder / "log.txt").write_bytes(b"half \xff\n")
    tell_now(folder, Ended(status="failed", step=2, reason=HALF, traceback=HALF))
    return folder


def make_many(project: Project, count: int, config: str) -> None:
    """Make `count` ended runs quickly, with `{i}` of their config and their loss set to i.

    They appear to be a day old.
    """
    first = make_run(project, tag="many")
    told = (first / run_file.FILE_NAME).read_text(encoding="utf-8")
    own_id = run_file.read(first).id
    long_ago_ns = time.time_ns() - 86_400 * SECOND
    for i in range(count):
        run_id = new_run_id()
        folder = project.runs_dir / first.name.replace(own_id, run_id)
        folder.mkdir()
        text = told.replace(own_id, run_id)
        (folder / run_file.FILE_NAME).write_text(text, encoding="utf-8")
        write_metrics(folder, {"loss": [float(i)]})
        (folder / "config.toml").write_text(config.replace("{i}", str(i)), encoding="utf-8")
        os.utime(folder, ns=(long_ago_ns, long_ago_ns))
    shutil.rmtree(first)
