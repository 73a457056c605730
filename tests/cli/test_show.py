"""`assay show`."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import time
from pathlib import Path

from assay.core.facts import Warned
from assay.formats.event_log import Edit
from assay.formats.run_file import Best, Code
from assay.store.layout import Project
from run_folders import edit, hold_lease, make_checkpoint, make_run, tell

from .conftest import Assay

CONFIG = 'tag = "mnist-cnn"\n\n[optimizer]\nlr = 0.001\n'


def test_a_page_tells_everything_in_eighty_columns(project: Project, assay: Assay) -> None:
    folder = make_run(
        project,
        id="kq3f7abc",
        tag="mnist-cnn",
        config=CONFIG,
        points={"train/loss": [3.0, 1.0, 2.0], "void": [math.nan]},
        best=Best(
            metric="valid/acc", mode="max", value=0.98765, step=2, checkpoint="step-000000002"
        ),
        values={"test/acc": 0.5, "why": "a reason"},
        parent="bbbbbbbb@3",
        attempt={
            "command": ("assay", "run", "a config.toml"),
            "environment": {"python": "3.11.7", "cpus": 2, "torch": {"version": "2.6.0"}},
            "devices": ("cuda:0 NVIDIA H200",),
            "code": Code(
                snapshot="ab" * 32,
                files=1,
                left_out=("a", "b"),
                git_commit="c" * 40,
                git_dirty=True,
            ),
            "exactness": "exact (plan)",
        },
    )
    (folder / "README.md").write_text(
        "# mnist-cnn\n\nA baseline. " + "With many words. " * 12 + "\n<!-- assay: begin -->\n"
    )
    for step in (1, 2, 3):
        make_checkpoint(folder, step)
    make_checkpoint(folder, 4, name="step-000000004.tmp")
    edit(
        folder,
        [
            Edit(what="note", new="keep this", who="ada", at_ns=time.time_ns()),
            Edit(what="label", key="paper", new=True),
        ],
    )
    tell(folder, Warned(message="data.train draws from a private generator"))

    said = assay("show", "kq3")

    assert said.code == 0
    assert max(map(len, said.lines)) <= 80
    assert said.lines[0] == "mnist-cnn  kq3f7abc  finished"
    for text in (
        "  A baseline. With many words.",
        "  ran        1 min 12 s\n",
        "  of         bbbbbbbb@3\n",
        "  best       valid/acc 0.98765 at step 2\n",
        "  result     test/acc = 0.5\n",
        "  result     why = a reason\n",
        "  command    assay run 'a config.toml'\n",
        "cuda:0 NVIDIA H200, 2 cpus, python 3.11.7, torch 2.6.0\n",
        "  code       snapshot abababababab, 1 file, git cccccccccc with changes, 2 files\n             left out\n",
        "  exactness  data: exact (plan)\n",
        f"  folder     runs/{folder.name}\n",
        "  train/loss           2           1         2           3         1\n",
        "  void               nan           -         -           -         -\n",
        "  step 2              2 B  now         best\n",
        "  step 3              2 B  now         latest\n",
        "  step-000000004.tmp cannot be used: it was still being written\n",
        "Labels  paper\n",
        "  ada\n    keep this\n",
        "  data.train draws from a private generator\n",
        "  [optimizer]\n  lr = 0.001\n",
        "  assay test kq3f7abc      evaluate it on its test data\n",
    ):
        assert text in said.out


def test_time_memory_and_speed_are_a_line_each_with_whole_numbers(
    project: Project, assay: Assay
) -> None:
    parts = ("data", "forward", "backward", "optimizer", "evaluation", "checkpoint")
    points = {f"time/{part}_s": [0.0123456 / i] for i, part in enumerate(parts, 1)}
    points |= {"loss": [1.0], "speed/steps_per_s": [27.5], f"memory/{'x' * 90}": [3.0]}
    make_run(project, points=points)

    lines = [
        line for line in assay("show").lines if line[:11].strip() in ("speed", "time", "memory")
    ]

    assert [line.split()[0] for line in lines] == ["speed", "time", "memory"]
    assert max(map(len, lines)) <= 80
    assert lines[0] == "  speed      steps_per_s 27.5"
    assert (
        lines[1] == "  time       data_s 0.012346, forward_s 0.0061728, backward_s 0.0041152, ..."
    )
    assert "loss " in assay("show").out and "time/data_s" not in assay("show").out


def test_the_smallest_run_has_a_page_too(project: Project, assay: Assay) -> None:
    make_run(project, tag="", attempts=(), id="kq3f7abc")

    said = assay("show", "last")

    assert said.code == 0
    assert said.lines[0] == "(no tag)  kq3f7abc  finished"
    assert "Metrics" not in said.out and "Checkpoints" not in said.out and "Config" not in said.out


def test_what_to_do_next_depends_on_what_became_of_it(project: Project, assay: Assay) -> None:
    running = make_run(project, ran_s=None)
    hold_lease(running)
    far = make_run(project, ran_s=None)
    hold_lease(far, place="x", host="node3", beat_ns=1)
    failed = make_run(project, status="failed", attempt={"reason": "ValueError: no"})
    make_checkpoint(failed, 3)

    assert "log" in (text := assay("show", str(running)).out) and " -f" in text
    assert "unknown since" in (text := assay("show", str(far)).out) and "what it said last" in text
    assert (
        "assay resume" in (text := assay("show", str(failed)).out)
        and "failed: ValueError: no" in text
    )
    assert "  ran " in text
    assert "test run" in assay("show", str(make_run(project, kind="test"))).out


def test_what_to_do_next_with_a_run_that_lies_elsewhere_is_told_by_its_folder(
    project: Project, assay: Assay, tmp_path: Path
) -> None:
    folder = make_run(project)
    shutil.copytree(folder, tmp_path / "a copy")

    next_line = next(
        line for line in assay("show", str(tmp_path / "a copy")).lines if "what it logged" in line
    )

    assert assay("log", *shlex.split(next_line.partition("  what")[0])[2:]).code == 0
    assert str(tmp_path / "a copy") in next_line


def test_long_lists_are_cut_and_say_where_the_rest_is(project: Project, assay: Assay) -> None:
    config = "".join(f"key{i} = {i}\n" for i in range(100))
    folder = make_run(
        project, config=config, points={f"m{i}": [1.0] for i in range(40)}, id="kq3f7abc"
    )
    for step in range(1, 14):
        make_checkpoint(folder, step)

    said = assay("show", "last")

    assert "... and 60 lines more: assay show kq3f7abc --config" in said.out
    assert "... and 10 more: --json has all" in said.out
    assert "... and 3 older" in said.out
    assert assay("show", "last", "--config").out == config


def test_programs_get_everything(project: Project, assay: Assay) -> None:
    folder = make_run(
        project, id="kq3f7abc", config=CONFIG, points={"loss": [1.0, math.inf]}, tag="old"
    )
    make_checkpoint(folder, 3)
    make_checkpoint(folder, 4, name="step-000000004.tmp")
    edit(folder, [Edit(what="tag", new="new"), Edit(what="note", new="n", who="ada", at_ns=3)])

    data = json.loads(assay("show", "last", "--json").out)

    assert (data["id"], data["tag"], data["status"], data["config"]) == (
        "kq3f7abc",
        "new",
        "finished",
        CONFIG,
    )
    assert data["notes"] == [{"at_ns": 3, "who": "ada", "text": "n"}]
    assert data["summaries"]["loss"]["last"] == "inf"
    assert [(each["step"], each.get("why", "")) for each in data["checkpoints"]] == [
        (None, "it was still being written"),
        (3, ""),
    ]
    assert data["path"] == str(folder)


def test_a_checkpoint_of_a_run_is_shown_as_its_run(project: Project, assay: Assay) -> None:
    make_checkpoint(make_run(project, id="kq3f7abc"), 3)

    assert "kq3f7abc" in assay("show", "last@3").out


def test_a_checkpoint_that_a_run_does_not_have_is_no_address(
    project: Project, assay: Assay
) -> None:
    make_checkpoint(make_run(project, id="kq3f7abc"), 3)

    shown = assay("show", "last@5")

    assert shown.code == 2
    assert "has no checkpoint `5`" in shown.err


def test_a_hostile_record_cannot_paint_the_terminal(project: Project, assay: Assay) -> None:
    evil = "\x1b]0;x\x07"
    folder = make_run(
        project,
        tag=evil,
        config=f"# {evil}\n",
        points={evil: [1.0]},
        values={evil: evil},
        parent=evil,
    )
    edit(folder, [Edit(what="note", new=evil, who=evil), Edit(what="label", key=evil, new=True)])
    tell(folder, Warned(message=evil))
    (folder / "README.md").write_text(evil)

    said = assay("show", "last")

    assert "\x1b" not in said.out and "\x07" not in said.out
