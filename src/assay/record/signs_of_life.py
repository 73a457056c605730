"""Signs of life of a run in one OS process, for a watcher outside of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from assay.core.ports import Recorder
from assay.core.stacks import offering_stacks
from assay.formats.heartbeats import FileHeartbeats, Heartbeats, NoHeartbeats
from assay.record.recorder import RunRecorder
from assay.store.mounts import is_network


class Beating(Protocol):
    """Part of a run that reports each of its steps to `beats`."""

    beats: Heartbeats


@contextmanager
def signs_of_life(ranks: Beating, recorder: Recorder) -> Iterator[None]:
    """Inside, write heartbeats into the run's folder, and the stacks of all threads on request.

    Ranks do so in the folder of their launcher. On a disk of the network other machines could not
    read the beats, and a memory map may end the process: there is none.
    """
    is_lone = isinstance(ranks.beats, NoHeartbeats)
    if not (is_lone and isinstance(recorder, RunRecorder)) or is_network(recorder.folder.path):
        yield
        return
    folder = recorder.folder
    with ExitStack() as stack:
        try:
            ranks.beats = FileHeartbeats(folder.heartbeat)
            stack.callback(_stop_beating, ranks, folder.heartbeat)
            stack.enter_context(offering_stacks(folder.stacks))
        except OSError:  # the disk is full: the run does without
            ranks.beats = NoHeartbeats()
        yield


def _stop_beating(ranks: Beating, file: Path) -> None:
    ranks.beats = NoHeartbeats()
    file.unlink(missing_ok=True)
