"""Folder of one job: its log, its frozen task, and how its attempts ended."""

from __future__ import annotations

import codecs
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from assay.core.directory import PRIVATE, make_directory, open_directory
from assay.core.errors import RecordError
from assay.core.job import ATTEMPT_VARIABLE, FOLDER_VARIABLE, JOB_VARIABLE
from assay.core.regular_file import open_regular
from assay.formats.task_report import TaskReport, read_report, report_file
from assay.store.queue_files import job_folder, job_log


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Names inside the folder of one job. Nothing here says that a file exists."""

    path: Path

    @classmethod
    def of(cls, queue: Path, job: int) -> JobFolder:
        return cls(job_folder(queue, job))

    def make(self) -> JobFolder:
        """Make the folder if it is missing; return this object. OSError for a link in its place."""
        make_directory(self.path, PRIVATE)
        with open_directory(self.path.parent) as jobs, jobs.folder(self.path.name):
            return self

    @property
    def log(self) -> Path:
        return job_log(self.path)

    def exit_file(self, attempt: int) -> Path:
        """Return the beginning of the name; the supervisor adds its pid."""
        return self.path / f"exit-{attempt}"

    def variables(self, attempt: int) -> dict[str, str]:
        """Return the variables that tell a job who it is."""
        return {
            FOLDER_VARIABLE: str(self.path),
            JOB_VARIABLE: f"{platform.node()}:{self.path.name}",
            ATTEMPT_VARIABLE: str(attempt),
        }

    def report(self, attempt: int) -> TaskReport:
        """Return what the command has left; an empty report when it left none."""
        try:
            return read_report(report_file(self.path, attempt))
        except (FileNotFoundError, RecordError):
            return TaskReport()

    def tail(self, most_bytes: int) -> str:
        """Return the end of the log; "" without one."""
        try:
            with open(open_regular(self.log), "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - most_bytes))
                return file.read().decode("utf-8", "replace")
        except OSError:
            return ""


class LogReader:
    """Reader of a log that grows; a character that is half written waits for its other half."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, *, is_last: bool = False) -> str:
        """Return what was added since the last call; `is_last`: nothing more will come."""
        data = b""
        try:
            with open(open_regular(self._log), "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            pass
        except OSError as error:
            what = f"The log of the job cannot be read: {error.strerror or error}."
            raise RecordError(what, where=str(self._log)) from error
        self._offset += len(data)
        return self._decoder.decode(data, final=is_last)
