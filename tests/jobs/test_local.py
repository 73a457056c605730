"""Queue of this machine behind the port of all backends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.jobs.backends.local import LocalBackend
from jobs.backend_contract import BackendContract

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
WORK = """
import sys
from pathlib import Path
from assay.jobs.devices import FakeDevices
from assay.jobs.dispatcher import Dispatcher
from assay.store.job_journal import JobJournal
Dispatcher(JobJournal(Path(sys.argv[1])), FakeDevices("1")).run()
"""


class TestLocal(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalBackend]:
        monkeypatch.setenv("ASSAY_CORES", "16")  # four jobs on the CPU at once
        folder = tmp_path / "queue"
        environment = {**os.environ, "PYTHONPATH": SOURCE}
        work = subprocess.Popen([sys.executable, "-c", WORK, str(folder)], env=environment)
        yield LocalBackend(folder)
        work.terminate()
        work.wait(60)
