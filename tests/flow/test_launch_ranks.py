"""End of a run of several ranks, as its launcher concludes it from their reports."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.compose.launch import Launch
from assay.compose.ranks import launch_as_before, outcome_of
from assay.config import loads
from assay.core.errors import PeerError
from assay.engine.parallel.rank_folder import SECONDS_TO_OBEY, EndOrder, RankFolder, error_behind
from assay.formats.task_report import TaskReport


def test_a_rank_that_torch_ended_after_a_death_does_not_lend_the_run_its_exit_code(
    tmp_path: Path,
) -> None:
    ranks = RankFolder(tmp_path)
    ranks.report(0, TaskReport(status="stopped", signal=15, exit_code=143))
    ranks.report_death(1, "Rank 1 (pid 7) was killed by SIGKILL.")

    outcome = outcome_of(ranks, ranks.reports()[0], [], 0)

    assert (outcome["status"], outcome["exit_code"]) == ("failed", 1)
    assert "was killed by SIGKILL" in str(outcome["exception"])


def test_a_mistake_that_another_rank_told_first_keeps_its_exit_code(tmp_path: Path) -> None:
    """Rank 0 found the same, but obeyed the SIGTERM of torch before it could say so."""
    ranks = RankFolder(tmp_path)
    ranks.report(0, TaskReport(status="stopped", signal=15, exit_code=143))
    ranks.report(1, TaskReport(status="failed", exit_code=2, error="rank 1: no such layer"))

    outcome = outcome_of(ranks, ranks.reports()[0], [], 0)

    assert (outcome["status"], outcome["exit_code"]) == ("failed", 2)
    assert "no such layer" in str(outcome["exception"])


def test_the_exit_code_is_that_of_the_rank_which_failed_by_itself(tmp_path: Path) -> None:
    """The stages before the last of a pipeline end because that one has refused the loss."""
    ranks = RankFolder(tmp_path)
    failed = TaskReport(status="failed", exit_code=1, error="rank 1 is gone", follows=True)
    ranks.report(0, failed)
    ranks.report(1, TaskReport(status="failed", exit_code=2, error="rank 1: unknown"))

    outcome = outcome_of(ranks, ranks.reports()[0], [], 0)

    assert (outcome["status"], outcome["exit_code"]) == ("failed", 2)


def test_the_word_of_a_launcher_that_comes_a_moment_after_a_death_is_waited_for(
    tmp_path: Path,
) -> None:
    ranks = RankFolder(tmp_path)
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / "pid-1").write_text(str(dead.pid))
    assert ranks.ended_by() == f"Rank 1 (pid {dead.pid}) ended without a word."

    told = threading.Timer(0.2, ranks.report_death, (1, "Rank 1 was killed by SIGKILL."))
    told.start()
    cause = ranks.ended_by(patience_s=30)
    told.join()

    assert cause == "Rank 1 was killed by SIGKILL."


def test_a_rank_whose_peer_obeyed_an_order_leaves_its_own_end_to_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the record would have the signal, and not the rank that stood still."""
    ranks = RankFolder(tmp_path)
    ranks.order(EndOrder(cause="Rank 1 (pid 7) has stood still for 3 s.", signal=2))
    ranks.report(1, TaskReport(status="stopped", signal=2, exit_code=130))

    def end(seconds: float) -> None:
        raise InterruptedError(seconds)

    monkeypatch.setattr("assay.engine.parallel.rank_folder.time.sleep", end)

    with pytest.raises(InterruptedError, match=str(SECONDS_TO_OBEY)):
        error_behind(PeerError("rank 1 is gone"), ranks)


@pytest.mark.parametrize(
    ("before", "given", "expected"),
    [
        ({"nproc": 2, "device": "cpu"}, {}, (2, "cpu")),
        ({"nproc": 2, "device": "auto"}, {}, (2, None)),
        ({"device": "cuda:3"}, {}, (None, None)),
        ({"nproc": 2}, {"nproc": 1}, (1, None)),
        ({"nproc": 2, "device": "cpu"}, {"device": "cuda"}, (2, "cuda")),
        ({"nproc": 2, "nnodes": 2}, {}, (None, None)),
    ],
)
def test_a_resumed_run_has_the_ranks_and_the_kind_of_device_that_it_had(
    before: dict[str, Any], given: dict[str, Any], expected: tuple[int | None, str | None]
) -> None:
    attempt = SimpleNamespace(launch=before, environment={})
    view: Any = SimpleNamespace(file=SimpleNamespace(attempts=[attempt], newest=attempt))

    launch = launch_as_before(view, loads("[train]\nepochs = 1\n"), Launch(**given))

    assert (launch.nproc, launch.device) == expected
