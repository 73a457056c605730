"""End of a run of several ranks, as its launcher concludes it from their reports."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from assay.compose.launch_ranks import _outcome
from assay.compose.rank_folder import RankFolder


def test_a_rank_that_torch_ended_after_a_death_does_not_lend_the_run_its_exit_code(
    tmp_path: Path,
) -> None:
    ranks = RankFolder(tmp_path)
    obeyed = {"status": "stopped", "error": "", "follows": False, "signal": 15, "exit_code": 143}
    ranks.tell(0, obeyed)
    ranks.tell_killed(1, "Rank 1 (pid 7) was killed by SIGKILL.")

    outcome = _outcome(ranks, ranks.told()[0], [], 0)

    assert (outcome["status"], outcome["exit_code"]) == ("failed", 1)
    assert "was killed by SIGKILL" in str(outcome["exception"])


def test_the_word_of_a_launcher_that_comes_a_moment_after_a_death_is_waited_for(
    tmp_path: Path,
) -> None:
    ranks = RankFolder(tmp_path)
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / "pid-1").write_text(str(dead.pid))
    assert ranks.ended_by() == f"Rank 1 (pid {dead.pid}) ended without a word."

    told = threading.Timer(0.2, ranks.tell_killed, (1, "Rank 1 was killed by SIGKILL."))
    told.start()
    cause = ranks.ended_by(patience_s=30)
    told.join()

    assert cause == "Rank 1 was killed by SIGKILL."
