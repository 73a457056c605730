"""Preflight of jobs: forecasts of memory and disk, and refusal at submission."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.compose.launch import Launch
from assay.config.loading import Config, loads
from assay.core.errors import InputError
from assay.formats.rehearsal import Disk, Finding, PeakMemory, Rehearsal
from assay.jobs import submit as module
from assay.jobs.submit import Forecast, preflight

GB = 10**9


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Fields of the report that each rehearsal gives, and the configs that were rehearsed."""
    fields: dict[str, Any] = {"rung": "fake", "device": "cuda"}
    asked: list[Config] = []

    def rehearse(config: Config, launch: Launch) -> Rehearsal:
        asked.append(config)
        return Rehearsal(**fields)

    monkeypatch.setattr(module, "rehearse_apart", rehearse)
    return {"fields": fields, "asked": asked}


def seeds(count: int) -> list[Config]:
    return [loads(f"seed = {i}") for i in range(count)]


def test_each_seed_is_forecast_by_one_rehearsal_with_a_margin_and_a_context(
    rehearsed: dict[str, Any],
) -> None:
    disk = Disk(checkpoint_bytes=GB, checkpoints=3, free_bytes=9 * GB)
    rehearsed["fields"].update(memory=PeakMemory(peak_bytes=20 * GB), disk=disk)

    found = preflight(seeds(3), Launch())

    assert found == [Forecast(memory_bytes=24 * GB, disk_bytes=3 * GB)] * 3
    assert len(rehearsed["asked"]) == 1


def test_memory_of_the_cpu_is_no_forecast(rehearsed: dict[str, Any]) -> None:
    rehearsed["fields"].update(device="cpu", memory=PeakMemory(peak_bytes=20 * GB))

    assert preflight(seeds(1), Launch()) == [Forecast()]


def test_jobs_whose_checkpoints_have_no_room_together_are_refused(
    rehearsed: dict[str, Any],
) -> None:
    disk = Disk(checkpoint_bytes=GB, checkpoints=3, free_bytes=9 * GB)
    rehearsed["fields"].update(disk=disk)

    with pytest.raises(InputError, match="checkpoints of 4 jobs need 12 GB, and 9 GB are free"):
        preflight(seeds(4), Launch())


def test_a_step_that_would_fail_is_refused_with_its_place(
    rehearsed: dict[str, Any], tmp_path: Path
) -> None:
    finding = Finding(kind="shape", message="mat1 and mat2", source="net.py", line=7)
    rehearsed["fields"].update(findings=(finding,))

    with pytest.raises(InputError, match="A rehearsed step failed: mat1 and mat2") as caught:
        preflight(seeds(1), Launch())
    assert "net.py:7" in str(caught.value)
