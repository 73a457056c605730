"""No hostile config is fine, and none takes long, takes much, is obeyed, or steers the terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MAX_RSS_MB = 500
MAX_SAID = 60_000
# What moves a cursor, colors, rings, reorders or hides. A line feed is what separates lines.
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2066-\u2069\ufeff]")


def looked_at(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-B", str(HERE / "hostile.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def faults_of(case: dict[str, Any]) -> list[str]:
    """What is wrong with the answer to one hostile config."""
    said = case["said"]
    faults = {
        f"exit code {case['code']}": case["code"] != 2,
        "hangs": case["hangs"],
        "is fine": said.startswith("fine"),
        "a traceback": "Traceback" in said or "a fault in assay" in said,
        f"{case['rss_mb']} MB": case["rss_mb"] > MAX_RSS_MB,
        f"{len(said)} characters": len(said) > MAX_SAID,
        "steers the terminal": CONTROL.search(said) is not None,
        "says nothing": not said.strip(),
    }
    return [name for name, is_so in faults.items() if is_so]


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_no_hostile_config_is_fine_or_obeyed_or_takes_long(tmp_path: Path) -> None:
    found = looked_at(tmp_path)

    assert {case["name"]: faults for case in found["bad"] if (faults := faults_of(case))} == {}
    assert found["marks"] == []
    assert [(case["code"], case["said"][:6]) for case in found["good"]] == [(0, "fine  ")] * 4


def test_the_corpus_is_as_large_as_it_says() -> None:
    sys.path.insert(0, str(HERE))
    try:
        from hostile import corpus
    finally:
        sys.path.remove(str(HERE))

    cases = corpus()

    assert len(cases) >= 1_000
    assert len({case.name for case in cases}) == len(cases)
    classes = sorted(
        {name for case in cases for name in case.classes.split()}, key=lambda name: int(name[1:])
    )
    assert " ".join(classes) == "S1 S3 S4 S5 S7 S9 S17 S21 S24"
