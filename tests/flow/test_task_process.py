"""Task of another OS process: one file, one hidden command, one report."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.cli.main import TASK_COMMAND, main
from assay.compose import launch
from assay.compose.launch import Launch, ProcessTask, RunResult, report_of
from assay.config import open_config, plain
from assay.config.tree import get_at
from assay.core.errors import InputError, PeerError
from assay.formats.task_report import read_report, report_file, write_report

CONFIG = """\
seed = 3

[model]
type = "torch.nn.Linear"
in_features = 4
out_features = "${model.in_features}"
"""


def test_another_os_process_reads_the_config_and_the_launch_that_were_given(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(CONFIG, encoding="utf-8")
    config = open_config(file, ["seed=4", "model.bias=false"])
    given = Launch(device="cpu", nproc=2, command=("assay", "run"), sweep="abcdefgh")

    ProcessTask.of("job", config, given, parent="abcd").write(tmp_path / "task.json")
    task = ProcessTask.read(tmp_path / "task.json")
    read = task.read_config(tmp_path / "config.toml")

    assert task.read_launch() == given
    assert task.options == {"parent": "abcd"}
    assert plain(read.root) == plain(config.root)
    assert get_at(read.root, ("seed",)).origin == get_at(config.root, ("seed",)).origin
    assert (read.path, read.user_dirs, read.files) == (file, config.user_dirs, config.files)


def test_a_report_holds_numbers_that_json_lacks_and_the_test_after_the_run(tmp_path: Path) -> None:
    measured = RunResult(record_dir=None, config=None, status="finished", value={"loss": 2.0})
    result = RunResult(
        record_dir=tmp_path,
        config=None,
        status="finished",
        value={"loss": float("inf")},
        id="kq3f",
        test=measured,
    )

    write_report(report_file(tmp_path), report_of(result))
    report = read_report(report_file(tmp_path))

    assert (report.run, report.record_dir, report.value) == ("kq3f", str(tmp_path), result.value)
    assert report.test is not None and report.test.value == {"loss": 2.0}


@pytest.mark.parametrize(
    ("error", "failure", "follows"),
    [
        (InputError("no such file"), "config", False),
        (MemoryError("all of it"), "out-of-memory", False),
        (PeerError("rank 1 is gone"), "exception", True),
    ],
)
def test_a_report_says_why_a_run_failed(error: Exception, failure: str, follows: bool) -> None:
    failed = RunResult(record_dir=None, config=None, status="failed", exception=error)

    report = report_of(failed)

    assert (report.failure, report.follows) == (failure, follows)
    assert report.error.endswith(str(error)) and report.error_type == type(error).__name__


def test_a_run_that_a_signal_stopped_reports_the_signal_and_no_error() -> None:
    stopped = RunResult(
        record_dir=None,
        config=None,
        status="stopped",
        exception=KeyboardInterrupt(),
        exit_code=130,
    )

    report = report_of(stopped)

    assert (report.status, report.signal, report.error, report.failure) == ("stopped", 2, "", "")


def test_one_hidden_command_does_all_tasks() -> None:
    assert TASK_COMMAND == launch.TASK_COMMAND
    assert launch.task_arguments(Path("a.json")) == ["-m", "assay", TASK_COMMAND, "a.json"]


@pytest.mark.parametrize("words", [["_rank", "."], ["_job", "a.json"], [TASK_COMMAND]])
def test_no_other_hidden_command_is_known(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert f"There is no command `{words[0]}`." in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "", "[]", '{"kind": "rank"}', '{"kind": "shell"}'])
def test_a_file_that_holds_no_task_is_one_clear_error(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "task.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")

    assert main([TASK_COMMAND, str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: There is no task to do: ") and f"at:  {file}" in said
