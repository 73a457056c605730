"""Ranks that read a checkpoint read their own slices, and verify it together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.parallel.launching import answers, script
from warm_python import Run

SCRIPT = Path(__file__).with_name("reading_cases.py")
cases = script("reading_cases", SCRIPT)
RANKS = 2
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, warm: Run) -> dict[str, list[Any]]:
    """What each rank gave in every case, all of them in one launch."""
    folder = tmp_path_factory.mktemp("reading")
    told = answers(SCRIPT, folder, RANKS, list(cases.CASES), warm=warm)
    return {name: [each[name] for each in told] for name in cases.CASES}


@pytest.mark.parametrize("case", ["same layout", "from one", "from rows to columns"])
@pytest.mark.parametrize("ending", ["", ", unverified"])
def test_a_rank_reads_its_own_slices_whoever_verifies_their_files(
    found: dict[str, list[Any]], case: str, ending: str
) -> None:
    case += ending
    for each in found[case]:
        assert each["is equal"] and each["groups"]
        assert each["listener"] == 256 * 256
        assert each["share"] < 0.55 * each["state"]
        assert each["read"] <= 1.05 * each["share"]


@pytest.mark.parametrize("case", ["same layout", "from one", "from rows to columns", "replicas"])
def test_each_file_is_verified_by_one_rank_and_each_rank_has_its_part_of_that(
    found: dict[str, list[Any]], case: str
) -> None:
    verified = [each["verified"] for each in found[case]]

    assert sorted(name for names in verified for name in names) == found[case][0]["files"]
    assert all(verified)


def test_ranks_that_each_have_the_whole_model_read_it_and_verify_it_together(
    found: dict[str, list[Any]],
) -> None:
    for each in found["replicas"]:
        assert each["is equal"] and each["groups"]
        assert each["share"] == each["state"]
        assert each["read"] <= 1.05 * each["state"]


def test_a_run_that_begins_with_the_weights_of_another_reads_its_share_of_them(
    found: dict[str, list[Any]],
) -> None:
    for each in found["begun from another run"]:
        assert each["is equal"]
        assert each["read"] <= 1.05 * each["share"]


def test_ranks_that_find_different_checkpoints_do_not_resume(found: dict[str, list[Any]]) -> None:
    assert found["of two minds"] == ["Rank 1 finds another checkpoint than rank 0."] * RANKS


@pytest.mark.parametrize(
    ("case", "file"),
    [
        ("damage of rank 1", "optimizer-rank1.safetensors"),
        ("damage in the rows of rank 1", "EMA.safetensors"),
        ("damage in a header", "model.safetensors"),
    ],
)
def test_damage_stops_all_ranks_with_one_error_and_all_resume_from_the_checkpoint_before(
    found: dict[str, list[Any]], case: str, file: str
) -> None:
    first, *others = found[case]

    told, step, skipped, is_read_unverified = first
    assert told.startswith(f"The checkpoint is damaged: {file} is not what was written.")
    assert "step-000000002" in told and "Take an older one" in told
    assert step == 1
    assert skipped == [f"The checkpoint is damaged: {file} is not what was written"]
    assert is_read_unverified
    assert all(each == first for each in others)


def test_what_one_rank_cannot_read_is_the_error_of_all(found: dict[str, list[Any]]) -> None:
    first, *others = found["one cannot read"]

    assert "MemoryError" in first or "no room" in first
    assert all(each == first for each in others)
