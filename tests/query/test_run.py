"""Looking at one run."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path

import pytest

from assay.core.errors import ConfigError, InputError, RecordError
from assay.core.facts import Ended, Started
from assay.formats import lease
from assay.formats.event_log import Edit
from assay.formats.run_file import Best, Code, RunFile
from assay.query.catalog import open_catalog
from assay.query.run import RunView
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.script import start
from assay.store.layout import Project
from run_folders import SECOND, edit, hold_lease, make_checkpoint, make_run


def test_a_run_recorded_by_a_script_shows_all_of_itself(project: Project) -> None:
    with start(
        "größer", {"optimizer": {"lr": 0.5}}, "A first try.\n\nWith care.", project=project
    ) as run:
        for step in range(1, 4):
            run.log({"loss": 1 / step, "acc": step}, step=step)
        run.artifact(b"picture", "plot.png")

    assert run.folder is not None
    view = RunView(run.folder)

    assert (view.id, view.kind, view.tag, view.status) == (run.id, "train", "größer", "finished")
    assert view.desc == "A first try.\n\nWith care."
    assert view.config == {"optimizer": {"lr": 0.5}}
    assert "lr = 0.5" in view.config_text
    assert view.metrics == ["loss", "acc"]
    assert view.metric("loss").values.tolist() == [1.0, 0.5, 1 / 3]
    assert view.metric("loss").steps.tolist() == [1, 2, 3]
    assert view.summaries["acc"].last == 3
    assert [type(event.fact) for event in view.events] == [Started, Ended]
    assert [artifact.name for artifact in view.artifacts] == ["plot.png"]
    assert view.environment["python"]
    assert view.duration_s > 0
    assert view.id in repr(view)


def test_a_run_that_goes_on_shows_what_it_has_so_far(project: Project) -> None:
    with start("live", project=project) as run:
        run.log({"loss": 0.25}, step=1)
        assert run.folder is not None
        view = RunView(run.folder)

        assert view.status == view.status_text == "running"
        assert view.summaries["loss"].last == 0.25
        assert view.duration_s > 0


def test_a_run_whose_process_is_gone_was_killed(project: Project) -> None:
    folder = make_run(project, ran_s=None, age_s=100)
    started_ns = RunView(folder).file.created_ns
    hold_lease(folder, process_start="1", beat_ns=started_ns + 40 * SECOND)
    shutil.rmtree(folder / "metrics")
    (folder / "config.toml").unlink()

    view = RunView(folder)

    assert view.status == view.status_text == "killed"
    assert view.duration_s == pytest.approx(40)


@pytest.mark.parametrize("set_s", [-8 * 3600, 8 * 3600])
def test_a_run_without_an_end_lasts_as_long_as_it_ran_though_the_wall_clock_was_set(
    project: Project, set_s: int
) -> None:
    killed = make_run(project, ran_s=None, age_s=set_s)
    alive = make_run(project, ran_s=None, age_s=set_s)
    for folder, changes in ((killed, {"process_start": "1"}), (alive, {})):
        started_ns = RunView(folder).file.created_ns
        hold_lease(folder, beat_ns=time.time_ns(), steady_ns=started_ns + 40 * SECOND, **changes)

    assert [RunView(folder).status for folder in (killed, alive)] == ["killed", "running"]
    for folder in (killed, alive):
        assert 40 <= RunView(folder).duration_s < 100
    rows = open_catalog(project).all_rows()
    assert [40 <= (row.duration_s or 0.0) < 100 for row in rows] == [True, True]


def test_a_killed_run_lasted_no_longer_than_to_the_beat_that_did_not_come(
    project: Project,
) -> None:
    folder = make_run(project, ran_s=None, age_s=1000)
    started_ns = RunView(folder).file.created_ns
    hold_lease(folder, process_start="1", beat_ns=started_ns + 40 * SECOND)
    (folder / "log.txt").write_text("of the clock before it was set back\n")

    assert RunView(folder).duration_s == pytest.approx(50)


def test_a_run_without_an_end_and_without_a_lease_was_killed_here_and_is_unknown_elsewhere(
    project: Project,
) -> None:
    here = make_run(project, ran_s=None)
    elsewhere = make_run(project, ran_s=None, attempts=())
    shutil.rmtree(elsewhere / "metrics")

    assert RunView(here).status == "killed"
    assert RunView(elsewhere).status == "unknown"
    assert RunView(elsewhere).status_text == "unknown since its start"


def test_the_silence_of_another_host_is_unknown_since_then(project: Project) -> None:
    folder = make_run(project, ran_s=None, age_s=7200)
    long_ago_ns = time.time_ns() - 3600 * SECOND
    hold_lease(folder, host="node3", place="node3/x/y", beat_ns=long_ago_ns)
    shutil.rmtree(folder / "metrics")
    (folder / "config.toml").unlink()

    view = RunView(folder)

    assert view.status == "unknown"
    assert view.status_text.startswith("unknown since 20")
    assert view.duration_s == pytest.approx(3600, abs=1)


def test_a_run_that_ended_between_two_looks_has_ended(project: Project) -> None:
    folder = make_run(project, ran_s=None)
    hold_lease(folder)
    view = RunView(folder)
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace('"running"', '"finished"'))
    (folder / lease.FILE_NAME).unlink()

    assert view.status == "finished"


def test_a_run_whose_file_vanished_between_two_looks_is_unknown(project: Project) -> None:
    folder = make_run(project, ran_s=None)
    view = RunView(folder)
    (folder / "run.json").unlink()

    assert view.status == "unknown"


def test_a_failure_says_why(project: Project) -> None:
    folder = make_run(project, status="failed", attempt={"reason": "ValueError: no"})

    assert RunView(folder).status_text == "failed: ValueError: no"


def test_edits_are_merged_and_the_record_stays(project: Project) -> None:
    folder = make_run(project, tag="first", values={"test/acc": 0.5, "seen": 3})
    edit(
        folder,
        [
            Edit(what="tag", new="second", old="first"),
            Edit(what="note", new="good", who="ada", at_ns=1),
            Edit(what="label", key="paper", new=True),
            Edit(what="label", key="draft", new=True),
            Edit(what="label", key="draft", new=False, old=True),
            Edit(what="value", key="test/acc", new=0.6, old=0.5),
        ],
    )

    view = RunView(folder)

    assert (view.tag, view.file.tag) == ("second", "first")
    assert [note.new for note in view.notes] == ["good"]
    assert view.labels == ["paper"]
    assert view.values == {"test/acc": 0.6, "seen": 3}


def test_checkpoints_are_in_the_order_of_steps_and_what_is_none_says_why(project: Project) -> None:
    folder = make_run(
        project,
        best=Best(metric="acc", mode="max", value=1.0, step=900, checkpoint="step-000000900"),
    )
    for step in (1_000_000_000, 900, 20):
        make_checkpoint(folder, step)
    make_checkpoint(folder, 50, name="step-000000050.tmp")
    make_checkpoint(folder, 60, name="step-000000060.left-1")
    short = make_checkpoint(folder, 70)
    (short / "model.json").write_bytes(b"")
    (folder / "checkpoints" / "step-000000080").mkdir()
    (folder / "checkpoints" / "scratch").mkdir()
    make_checkpoint(folder, 30, name="keep-me", kind="keypoint")

    view = RunView(folder)

    assert [each.step for each in view.checkpoints] == [20, 30, 900, 1_000_000_000]
    assert {each.name: each.why for each in view.incomplete_checkpoints} == {
        "step-000000050.tmp": "it was still being written",
        "step-000000060.left-1": "a later attempt went on from before it",
        "step-000000070": "model.json has 0 of 2 bytes",
        "step-000000080": "The checkpoint is not complete: it has no manifest.",
        "scratch": "it has no manifest",
    }
    assert view.best is not None
    assert view.best_checkpoint is not None
    assert view.best_checkpoint.step == 900


def test_the_best_checkpoint_is_the_one_that_its_saver_points_at(project: Project) -> None:
    folder = make_run(project)
    make_checkpoint(folder, 5)
    assert RunView(folder).best_checkpoint is None

    (folder / "checkpoints" / "best.json").write_text('{"format": 1, "name": "step-000000005"}')

    found = RunView(folder).best_checkpoint
    assert found is not None
    assert found.step == 5


def test_a_metric_that_is_not_there_names_its_neighbour(project: Project) -> None:
    view = RunView(make_run(project, points={"train/loss": [1.0]}))

    with pytest.raises(InputError, match="did you mean `train/loss`"):
        view.metric("train/los")
    with pytest.raises(InputError, match="it has train/loss"):
        view.metric("zzz")
    with pytest.raises(InputError) as caught:
        RunView(make_run(project)).metric("zzz")
    assert caught.value.fix == ""


def test_an_empty_run_has_nothing_and_says_so_without_failing(project: Project) -> None:
    folder = make_run(project, attempts=())
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "run.json":
            path.unlink()

    view = RunView(folder)

    assert (view.config_text, view.desc, view.log_text, view.notes, view.events) == (
        "",
        "",
        "",
        [],
        [],
    )
    assert (view.checkpoints, view.artifacts, view.metrics, view.best) == ([], (), [], None)
    assert (view.code, dict(view.environment), view.config) == (Code(), {}, {})
    assert view.duration_s == 0
    assert view.created.timestamp() == pytest.approx(view.file.created_ns / 1e9)


def test_a_page_without_a_title_is_all_description(project: Project) -> None:
    folder = make_run(project)
    (folder / "README.md").write_text("just words\n")

    assert RunView(folder).desc == "just words"


def test_a_damaged_config_is_shown_where_it_is_damaged(project: Project) -> None:
    view = RunView(make_run(project, config="lr = = 3\n"))

    with pytest.raises(ConfigError) as caught:
        _ = view.config

    assert "config.toml:1" in str(caught.value)


def test_a_folder_without_a_run_and_a_run_of_the_future_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run in this folder"):
        RunView(tmp_path)

    (tmp_path / "run.json").write_text('{"format": 99}')
    view = RunView(tmp_path)
    assert view.status == "damaged"
    with pytest.raises(RecordError, match="format 99"):
        view.file  # noqa: B018 - read for what it raises


def test_a_metric_that_was_only_nan_is_there(project: Project) -> None:
    view = RunView(make_run(project, points={"loss": [math.nan]}))

    assert math.isnan(view.summaries["loss"].last)
    assert isinstance(view.file, RunFile)


@pytest.mark.row("B33")
def test_what_was_logged_is_indexed_by_epoch_and_step(project: Project) -> None:
    from assay.record.opening import start_run

    with start_run(project) as run:
        for step, epoch in ((1, 0), (2, None), (3, 1), (4, None)):
            run.log({"loss": 1 / step} | ({} if epoch is None else {"epoch": epoch}), step)
        run.log({"acc": 0.5}, 2)
    view = RunView(run.folder)

    assert list(view.history("loss")) == [(0, 1), (0, 2), (1, 3), (1, 4)]
    assert view.history()[0, 2] == {"loss": 0.5, "acc": 0.5}
    with pytest.raises(InputError, match="no metric `los`"):
        view.history("los")
    with start_run(project) as other:
        other.log({"loss": 1.0}, 7)
    assert RunView(other.folder).history() == {(0, 7): {"loss": 1.0}}


def test_a_config_that_is_not_what_was_written_is_damage(project: Project) -> None:
    with start_run(project, AttemptSpec(config_toml="seed = 1\n")) as recorder:
        recorder.log({"loss": 1.0}, step=1)
    view = RunView(recorder.folder.path)
    assert view.damages == ()

    view.folder.config_toml.write_text("seed = 2\n")

    assert RunView(view.path).damages == ("config.toml is damaged: it is not what was written.",)
