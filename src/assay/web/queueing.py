"""Runs put in line again by `assay rerun --queue`, in an OS process of its own.

What checks and rehearses a config imports torch and the modules of the user: nothing for a server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

from assay.core.errors import ConflictError, InputError
from assay.store.layout import Project
from assay.web.access import TOKEN_VARIABLE

MAX_RERUNS = 100
_PATIENCE_S = 600.0


class RerunSubmitter:
    """Submitter of runs to the queue, one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def submit(self, project: Project, ids: Sequence[str], device: str) -> list[int]:
        """Check, rehearse and freeze runs by id, put them in line, and return their jobs.

        InputError with the words of the command when it refuses; ConflictError while another
        request is at work.
        """
        if not self._lock.acquire(blocking=False):
            raise ConflictError(
                "Another run is being put in line.", fix="try again when that is done"
            )
        try:
            return self._run(project, ids, device)
        finally:
            self._lock.release()

    def close(self) -> None:
        """End a submission that is at work; nothing is in line by then."""
        if self._process is not None:
            self._process.kill()

    def _run(self, project: Project, ids: Sequence[str], device: str) -> list[int]:
        words = [sys.executable, "-m", "assay", "rerun", "--queue", *ids, "--device", device]
        # The job keeps the environment that it is submitted with.
        kept = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
        with subprocess.Popen(
            [*words, "--json"],
            cwd=project.root,
            env={**kept, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            self._process = process
            try:
                out, told = process.communicate(timeout=_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise InputError(
                    f"It was not in line after {_PATIENCE_S:.0f} s.",
                    fix="in a terminal: " + " ".join(["assay", *words[3:]]),
                ) from None
            finally:
                self._process = None
        if process.returncode:
            raise InputError(
                "The queue did not take it.",
                where=told.strip()[-2_000:],
                fix="in a terminal: " + " ".join(["assay", *words[3:]]),
            )
        return [int(job) for job in json.loads(out)["jobs"]]
