"""`assay log`."""

from __future__ import annotations

import csv
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from assay.core.facts import Ended, Evaluated, Saved, Started, Warned
from assay.formats import lease
from assay.script import start
from assay.store.layout import Project
from run_folders import hold_lease, make_run, tell

from .conftest import Assay

ROOT = Path(__file__).resolve().parents[2]


def test_a_log_is_shown_whole_or_its_end(project: Project, assay: Assay) -> None:
    with start("digits", project=project):
        for word in ("one", "two", "three"):
            logging.getLogger("assay").info(word)

    assert [line.split()[-1] for line in assay("log", "last").lines] == ["one", "two", "three"]
    assert [line.split()[-1] for line in assay("log", "last", "-n", "2").lines] == ["two", "three"]
    assert len(assay("log", "last", "-n", "99").lines) == 3
    assert assay("log", "last", "-n", "0").lines == []


def test_a_run_that_said_nothing_says_where_to_look(project: Project, assay: Assay) -> None:
    folder = make_run(project)

    said, events = assay("log", "last"), assay("log", "last", "--events")

    assert (said.code, said.out) == (0, "")
    assert said.err == f"Nothing so far. The run is finished; its folder is {folder}\n"
    assert events.err.startswith("No events so far.")


def test_events_are_said_in_words(project: Project, assay: Assay) -> None:
    folder = make_run(project)
    tell(
        folder,
        Started(attempt=1),
        Started(attempt=2, step=30),
        Started(attempt=3, step=30, checkpoint="step-000000030"),
        Evaluated(
            split="valid",
            step=40,
            metrics={"acc": 0.98765, "loss": 0.1},
            partial="10 of 20 batches",
        ),
        Saved(
            name="step-000000040",
            kind="keypoint",
            step=40,
            size_bytes=1_500_000,
            seconds=0.25,
            best=True,
        ),
        Saved(name="step-000000050", kind="checkpoint", step=50),
        Warned(message="hot \x1b[31m"),
        Warned(message="hotter", step=41),
        Ended(status="failed", step=42, reason="ValueError: no", traceback="Traceback:\n  File\n"),
        Ended(status="finished", step=42),
    )

    said = assay("log", "last", "--events")

    assert [line.partition("  ")[2] if line[:2] == "20" else line for line in said.lines] == [
        "started    attempt 1",
        "started    attempt 2 from step 30",
        "started    attempt 3 from step-000000030",
        "evaluated  valid at step 40: acc 0.98765, loss 0.1 (10 of 20 batches)",
        "saved      step-000000040 (keypoint, 1.5 MB, in 0.25 s, best)",
        "saved      step-000000050 (checkpoint, 0 B)",
        "warned     hot \\x1b[31m",
        "warned     at step 41: hotter",
        "ended      failed at step 42: ValueError: no",
        "  Traceback:",
        "    File",
        "ended      finished at step 42",
    ]


def test_a_line_of_the_log_cannot_paint_the_terminal(project: Project, assay: Assay) -> None:
    (make_run(project) / "log.txt").write_bytes(b"a\x1b[31m\xff\tb\r\nc\n")

    assert assay("log", "last").lines == ["a\\x1b[31m\ufffd\tb\\r", "c"]


def finish(folder: Path) -> None:
    """End a run as its recorder does.

    A reader meanwhile finds the old file or the new one, never half of it.
    """
    text = (folder / "run.json").read_text().replace('"running"', '"finished"')
    (folder / "new.json").write_text(text)
    (folder / "new.json").replace(folder / "run.json")
    (folder / lease.FILE_NAME).unlink()


def test_following_shows_lines_as_they_come_and_ends_with_the_run(project: Project) -> None:
    folder = make_run(project, ran_s=None)
    hold_lease(folder)
    log = folder / "log.txt"
    log.write_text("first\nhalf")
    watcher = subprocess.Popen(
        [sys.executable, "-m", "assay", "log", "last", "--follow"],
        cwd=project.root,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watcher.stdout is not None
    try:
        assert watcher.stdout.readline() == "first\n"
        with open(log, "a") as file:
            file.write(" a line\n")
        assert watcher.stdout.readline() == "half a line\n"
        with open(log, "a") as file:
            file.write("the last one has no end")
        finish(folder)
        assert watcher.stdout.readline() == "the last one has no end\n"
        assert watcher.wait(timeout=60) == 0
    finally:
        watcher.kill()
        watcher.communicate()


def test_following_a_run_that_has_ended_ends_at_once(project: Project, assay: Assay) -> None:
    (make_run(project) / "log.txt").write_text("one\n")

    assert assay("log", "last", "-f").lines == ["one"]


def test_events_can_be_followed_too(project: Project, assay: Assay) -> None:
    folder = make_run(project, ran_s=None)
    hold_lease(folder)
    tell(folder, Started(attempt=1))

    def end() -> None:
        time.sleep(0.5)
        tell(folder, Ended(status="finished", step=1))
        finish(folder)

    ending = threading.Thread(target=end)
    ending.start()
    said = assay("log", "last", "--events", "-f")
    ending.join()

    assert [line.split()[2] for line in said.lines] == ["started", "ended"]


def test_metrics_are_a_table_of_csv_with_a_column_each(project: Project, assay: Assay) -> None:
    with start("digits", project=project) as run:
        run.log({"train/loss": 2.5, "=1+1": float("inf")}, 0)
        run.log({"valid/loss": 0.125}, 0)
        run.log({"train/loss": 1.5}, 7)

    read = list(csv.reader(assay("metrics", "last", "--csv").lines))
    last = list(csv.reader(assay("metrics", "last", "--csv", "-n", "1").lines))
    refused = assay("metrics", "last", "--csv", "--json")

    assert read[0] == ["step", "time", "train/loss", "'=1+1", "valid/loss"]
    assert [line[:1] + line[2:] for line in read[1:]] == [
        ["0", "2.5", "inf", "0.125"],
        ["7", "1.5", "", ""],
    ]
    assert all(abs(time.time() - float(line[1])) < 600 for line in read[1:])
    assert [line[2:] for line in last] == [["train/loss"], ["1.5"]]
    assert refused.code == 2 and "two formats" in refused.err


def test_the_output_of_a_script_that_logs_nothing_is_its_log(
    project: Project, assay: Assay
) -> None:
    folder = make_run(project, tag="printed")
    (folder / "output.txt").write_text("epoch 1\nepoch 2\n")

    assert assay("log", "printed", "-n", "1").out == "epoch 2\n"

    (folder / "log.txt").write_text("of the log\n")
    assert assay("log", "printed").out == "of the log\n"
