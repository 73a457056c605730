"""Real processes that share their data do what one process does."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("cases.py")
spec = importlib.util.spec_from_file_location("parallel_cases", SCRIPT)
assert spec is not None and spec.loader is not None
cases = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cases)

Results = dict[str, list[Any]]
EQUAL = ["means", "clipped", "accumulated", "sums", "sums_accumulated", "several", "few", "frozen", "dropout"]


def launched(folder: Path, ranks: int) -> Results:
    """What each rank gave in every case, all of them in one launch."""
    command = [sys.executable, str(SCRIPT), str(folder)]
    running = [
        subprocess.Popen([*command, str(rank), str(ranks), *cases.CASES], stderr=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    told = [each.communicate(timeout=100)[1] for each in running]
    assert not any(each.returncode for each in running), "\n".join(told)
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    return {name: [each[name] for each in found] for name in cases.CASES}


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def several(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Results]:
    ranks = request.param
    return ranks, launched(tmp_path_factory.mktemp("ranks"), ranks)


def alone(name: str, ranks: int) -> Any:
    return json.loads(json.dumps(cases.CASES[name](0, ranks)))


def close(found: Any, expected: Any) -> None:
    """Equal, numbers within rounding in double precision."""
    match expected:
        case float():
            assert found == pytest.approx(expected, rel=1e-10, abs=1e-10)
        case dict():
            assert found.keys() == expected.keys()
            for key in expected:
                close(found[key], expected[key])
        case list():
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                close(one, other)
        case _:
            assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUAL)
def test_ranks_that_share_a_step_update_and_record_as_one_process_does(name: str, several: tuple[int, Results]) -> None:
    ranks, results = several

    # One process has more micro-steps, each of the size that one of a rank has.
    found, expected = ({**each, "micro_steps": 0} for each in (results[name][0], alone(name, ranks)))
    close(found, expected)
    for other in results[name][1:]:
        assert other["weights"] == results[name][0]["weights"]
        assert other.get("micro_steps") == results[name][0].get("micro_steps")


@pytest.mark.slow
def test_a_loss_that_is_not_finite_on_one_rank_is_so_for_all_of_them(several: tuple[int, Results]) -> None:
    ranks, results = several

    assert results["skipped"][0]["skipped"] == 2
    close(results["skipped"][0]["weights"], alone("skipped", ranks)["weights"])
    assert [each["weights"] for each in results["skipped"]] == [results["skipped"][0]["weights"]] * ranks
    assert [each for each in results["spoilt"]] == [alone("spoilt", ranks)] * ranks
    assert results["spoilt"][0]["error"] == "NonFiniteError"


@pytest.mark.slow
def test_ranks_whose_losses_have_other_names_are_told_so(several: tuple[int, Results]) -> None:
    for told in several[1]["disagreeing"]:
        assert "of another kind on rank 1" in told


@pytest.mark.slow
def test_all_ranks_stop_after_the_step_in_which_one_was_asked_to(several: tuple[int, Results]) -> None:
    ranks, results = several

    assert [each["stop"] for each in results["stopped"]] == ["somebody asked"] * ranks
    assert [each["counts"][0] for each in results["stopped"]] == [2] * ranks
    assert [each["counts"][0] for each in results["bounded"]] == [4] * ranks
    assert [each["weights"] for each in results["bounded"]] == [results["bounded"][0]["weights"]] * ranks


@pytest.mark.slow
@pytest.mark.row("F03", "A81", "A75")
@pytest.mark.parametrize("name", ["evaluated", "limited", "own_batches"])
def test_ranks_evaluate_every_sample_once_and_agree_on_what_came_of_it(name: str, several: tuple[int, Results]) -> None:
    ranks, results = several
    expected = alone(name, ranks)

    seen = [sample for each in results[name] for sample in each["seen"]]

    size = 6 if name == "limited" else 21
    assert sorted(seen) == sorted(expected["seen"])
    assert len(seen) == size
    for found in results[name]:
        close(
            {key: found[key] for key in found if key != "seen"}, {key: expected[key] for key in found if key != "seen"}
        )
        assert found["metrics"] == results[name][0]["metrics"]
    assert [results[name][0]["count"], results[name][0]["samples"]] == [size, [size]]


@pytest.mark.slow
@pytest.mark.row("F01")
def test_a_run_stopped_at_any_step_goes_on_to_the_same_bits(several: tuple[int, Results]) -> None:
    ranks, results = several

    for found in [*results["interrupted"], alone("interrupted", ranks)]:
        assert len(found) == (4 if ranks == 2 else 2)
        for stop_at, whole, resumed in found:
            assert resumed == whole, f"stopped at step {stop_at}"
    assert results["interrupted"] == [results["interrupted"][0]] * ranks


@pytest.mark.slow
@pytest.mark.row("E24", "B18")
def test_ranks_go_on_at_the_exact_item_of_a_thousand_and_count_each_once_in_a_test(
    several: tuple[int, Results],
) -> None:
    ranks, results = several
    size = 16 * ranks

    shares, whole = results["thousand"], alone("thousand", ranks)["whole"]

    assert whole[:1000] != whole[1000:] and sorted(whole[:1000]) == sorted(whole[1000:]) == list(range(1000))
    for found in shares:
        assert found["before"] + found["after"] == found["whole"]
        assert (len(found["before"]), found["counted"]) == (13 * 16, [1000])
    assert sorted(item for found in shares for item in found["tested"]) == list(range(1000))
    for step in range(1000 // size):  # the order is that of one process
        dealt = [item for found in shares for item in found["whole"][16 * step : 16 * step + 16]]
        assert dealt == whole[size * step : size * step + size]
