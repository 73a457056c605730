"""What other ranks print, copied while they print it."""

from __future__ import annotations

import os
from pathlib import Path

from assay.core.secrets.replacement import Secrets
from assay.record.rank_output import RankOutput


def test_what_a_rank_prints_to_two_streams_is_kept_as_a_screen_without_secrets(
    tmp_path: Path,
) -> None:
    out, errors, kept = tmp_path / "stdout.log", tmp_path / "stderr.log", tmp_path / "ranks/1.txt"
    kept.parent.mkdir()
    kept.write_text("of the attempt before")
    secrets = Secrets(["tr0ub4dor&3-horse"])
    output = RankOutput(kept, secrets)

    out.write_bytes("epoch 1 é".encode()[:-1])
    output.follow([out])
    with out.open("ab") as file:
        file.write("é".encode()[-1:] + b" 10 %\rtr0ub4dor&3-horse\n")
    errors.write_text("warning\n")
    output.follow([errors, out])
    shown = kept.read_text()
    errors.write_text("warning\nand the last word")
    output.follow([errors, out])
    output.close()

    assert "tr0ub4dor" not in shown and "warning" in shown
    assert kept.read_text().splitlines()[0] == "of the attempt before"
    assert kept.read_text().splitlines()[-1] == "and the last word"
    assert "tr0ub4dor" not in kept.read_text()


def test_nothing_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    (tmp_path / "stdout.log").write_text("hello\n")

    output = RankOutput(tmp_path / "1.txt", Secrets())
    output.follow([tmp_path / "stdout.log"])
    output.close()

    assert (tmp_path / "1.txt").read_text() == "hello\n"
    assert not before or len(os.listdir("/proc/self/fd")) == before
