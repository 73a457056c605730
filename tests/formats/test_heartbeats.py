"""Heartbeats are read by another OS process while they are written."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from assay.formats.heartbeats import read_heartbeat

BEATING = """
import itertools, sys
from pathlib import Path
from assay.formats.heartbeats import FileHeartbeats
beats = FileHeartbeats(Path(sys.argv[1]))
for step in itertools.count():
    beats.step(step)
"""


def test_who_reads_in_the_middle_of_a_heartbeat_sees_a_time_of_now(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    begun = time.monotonic()
    seen = []
    with subprocess.Popen([sys.executable, "-c", BEATING, str(path)]) as rank:
        while rank.poll() is None and len(seen) < 20_000:
            beat = read_heartbeat(path)
            if beat is not None:
                seen.append(beat.at_s)
        rank.kill()

    assert len(seen) == 20_000, "the rank ended by itself"
    assert min(seen) >= begun
    assert len(set(seen)) > 2
