"""Folder of a job: its log, read while it grows."""

from __future__ import annotations

from pathlib import Path

from assay.jobs.job_folder import LogReader


def test_a_character_that_is_half_written_is_read_whole_later(tmp_path: Path) -> None:
    log, text = tmp_path / "log.txt", "损失 0.5 ✓\n".encode()
    reader = LogReader(log)
    assert reader.read() == ""

    read = []
    for byte in text:
        with log.open("ab") as file:
            file.write(bytes([byte]))
        read.append(reader.read())

    assert "".join(read) == "损失 0.5 ✓\n"
    assert "\ufffd" not in "".join(read)


def test_half_a_character_at_the_end_is_shown_as_one_that_is_none(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes("ok é".encode()[:-1])

    assert LogReader(log).read(is_last=True) == "ok \ufffd"
