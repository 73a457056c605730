"""Foreign records: readers answer whatever is in one, it harms no other run, and can be removed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from assay.formats.lease import FILE_NAME as LEASE_NAME
from run_folders import id_of, make_project

sys.path.insert(0, str(Path(__file__).resolve().parent))
from records import (
    attacked,
    fresh_record,
    harmed,
    home_in_memory,
    recorded,
    rewrite,
    said,
)

SEED, NUMBER = (
    int(os.environ.get("ASSAY_ATTACK_SEED", 0)),
    int(os.environ.get("ASSAY_ATTACKS", 500)),
)


@pytest.mark.thorough
def test_no_damaged_record_breaks_a_reader_harms_another_run_or_cannot_be_removed() -> None:
    """Of so many as `ASSAY_ATTACKS` says, beginning with that of the number `ASSAY_ATTACK_SEED`."""
    with home_in_memory() as home:
        for number in range(SEED, SEED + NUMBER // 5):
            assert list(attacked(number, home)) == []


@pytest.mark.slow
def test_no_reader_waits_for_a_named_pipe_in_the_place_of_a_file() -> None:
    with home_in_memory() as home:
        folder = fresh_record(home)[1]
        names = {
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        }
        shutil.rmtree(home / "project")
        assert {"run.json", "config.toml", "README.md"} <= names

        for name in sorted(names | {"trace/1-0.bin", "heartbeat.bin", "stacks.txt", LEASE_NAME}):
            assert list(harmed(home, lambda folder, name=name: in_place_of(folder / name))) == []


def in_place_of(path: Path) -> list[str]:
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    return [f"a pipe in the place of {path.name}"]


@pytest.mark.parametrize("name", ["run.json", "metrics/*.rows", "events.jsonl", "config.toml"])
def test_each_of_many_flipped_bits_of_a_file_is_read_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    project = make_project(tmp_path)
    folder = recorded(project)
    monkeypatch.chdir(tmp_path)
    run_id = id_of(folder)
    file = min(folder.glob(name))
    whole = file.read_bytes()

    for place in range(0, len(whole), len(whole) // 12 + 1):
        data = bytearray(whole)
        data[place] ^= 0x10
        rewrite(file, bytes(data))

        assert run_id in said(["ls"])
        assert run_id in said(["show", run_id])
