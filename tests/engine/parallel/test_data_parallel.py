"""Real processes that share their data do what one process does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.engine import Saver
from assay.engine.checkpoint.weights import load_weights
from engine.parallel.launching import answers, close, script
from warm_python import Run

SCRIPT = Path(__file__).with_name("cases.py")
cases = script("parallel_cases", SCRIPT)

Results = dict[str, list[Any]]
SHARED = [
    "means",
    "clipped",
    "accumulated",
    "sums",
    "sums_accumulated",
    "several",
    "few",
    "frozen",
    "dropout",
]
EQUAL = [*SHARED, "sparse", *(f"{how} {name}" for how in ("sharded", "late") for name in SHARED)]
HOW = ["", "sharded ", "late "]
"""Weights whole, shared out, and whole with numbers that are read later, as on a GPU."""


def launched(folder: Path, ranks: int, warm: Run) -> Results:
    """Return what each rank gave in every case, all of them in one launch."""
    found = answers(SCRIPT, folder, ranks, list(cases.CASES), warm=warm)
    return {name: [each[name] for each in found] for name in cases.CASES}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(2, id="2 ranks"),
        pytest.param(3, id="3 ranks", marks=pytest.mark.thorough),
    ],
)
def several(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, warm: Run
) -> tuple[int, Results]:
    ranks = request.param
    return ranks, launched(tmp_path_factory.mktemp("ranks"), ranks, warm)


def alone(name: str, ranks: int) -> Any:
    return json.loads(json.dumps(cases.CASES[name](0, ranks)))


@pytest.mark.thorough
@pytest.mark.parametrize("name", EQUAL)
def test_ranks_that_share_a_step_update_and_record_as_one_process_does(
    name: str, several: tuple[int, Results]
) -> None:
    ranks, results = several

    # One process has more micro-steps, each of the size that one of a rank has.
    found, expected = (
        {**each, "micro_steps": 0} for each in (results[name][0], alone(name, ranks))
    )
    close(found, expected)
    for other in results[name][1:]:
        assert other["weights"] == results[name][0]["weights"]
        assert other.get("micro_steps") == results[name][0].get("micro_steps")


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_a_loss_that_is_not_finite_on_one_rank_is_so_for_all_of_them(
    how: str, several: tuple[int, Results]
) -> None:
    ranks, results = several
    skipped, spoilt = results[f"{how}skipped"], results[f"{how}spoilt"]

    assert skipped[0]["skipped"] == 2
    close(skipped[0]["weights"], alone("skipped", ranks)["weights"])
    assert [each["weights"] for each in skipped] == [skipped[0]["weights"]] * ranks
    assert spoilt == [alone("spoilt", ranks)] * ranks
    assert spoilt[0]["error"] == "NonFiniteError"


@pytest.mark.slow
def test_ranks_agree_on_all_that_a_step_needs_before_its_update_at_once(
    several: tuple[int, Results],
) -> None:
    # Losses with their kinds and whether somebody logged, gradients, whether to stop; this last
    # once more before an epoch.
    for found in several[1]["talking"]:
        assert found == [3, 3, 4, 3, 3]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("early", 4), ("in_pieces", 0)])
def test_gradients_are_sent_while_the_backward_pass_makes_others_unless_they_come_in_pieces(
    name: str, count: int, several: tuple[int, Results]
) -> None:
    ranks, results = several
    expected, _ = alone(name, ranks)

    for found, sent in results[name]:
        close(found, expected)
        # Of two micro-batches the last one counts; in the first step it is not known yet.
        assert sent[:6] == [0, 0, 0, count, 0, count]
        assert set(sent[::2]) == {0} and set(sent[3::2]) == {count}


@pytest.mark.slow
def test_the_epoch_of_an_older_text_averages_the_gradients_of_all_ranks(
    several: tuple[int, Results],
) -> None:
    ranks, results = several

    for found in results["older_epoch"]:
        close(found, alone("older_epoch", ranks))


@pytest.mark.slow
def test_a_step_whose_numbers_are_read_later_reads_only_what_the_host_agreed_on(
    several: tuple[int, Results],
) -> None:
    # Kinds of losses with whether somebody logged, whether to stop: neither waits for a device. At
    # the end of an epoch all numbers are fetched at once, and ranks agree once more.
    for found in several[1]["late reading"]:
        assert found == [2, 4, 2, 2, 4, 2, 2]


@pytest.mark.slow
def test_all_ranks_end_after_the_step_in_which_one_finds_numbers_that_are_not_finite(
    several: tuple[int, Results],
) -> None:
    first, *others = several[1]["late impatient"]

    steps, error = first
    assert steps == list(range(1, len(steps) + 1)) and len(steps) < 6
    assert error == f"The loss is inf at step {steps[-1]}."
    assert others == [first] * len(others)


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_a_window_without_a_label_on_any_rank_is_left_out_by_all(
    how: str, several: tuple[int, Results]
) -> None:
    ranks, results = several
    expected = alone("unlabelled", ranks)

    assert [each["skipped"] for each in expected] == [[1, 1], [1, 1]]
    for found in results[f"{how}unlabelled"]:
        assert [each["skipped"] for each in found] == [[1, 1], [1, 1]]
        close([each["weights"] for each in found], [each["weights"] for each in expected])


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_a_sample_that_is_not_finite_is_named_by_all_whichever_rank_has_it(
    how: str, several: tuple[int, Results]
) -> None:
    _, results = several
    told = results[f"{how}stray"]

    assert told == [told[0]] * len(told)
    assert "  at:  the data: batch[1] holds nan, in sample 17 of data.train (rank " in told[0]
    assert "Mend or leave out that sample" in told[0]


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_in_the_part_of_one_rank_is_left_out_by_all(
    several: tuple[int, Results],
) -> None:
    ranks, results = several
    expected = alone("skipped_late", ranks)

    assert expected["skipped"] == 1
    for found in results["sharded skipped_late"]:
        assert found["skipped"] == 1
        close(found["weights"], expected["weights"])


@pytest.mark.slow
def test_averages_norms_and_what_is_frozen_are_of_the_whole_model(
    several: tuple[int, Results],
) -> None:
    ranks, results = several
    expected = alone("watched", ranks)

    for found in results["sharded watched"]:
        assert [each[:2] for each in found["points"]] == [each[:2] for each in expected["points"]]
        assert "weight_norm/3" in {each[0] for each in found["points"]}
        for key in ("weights", "average"):
            assert found[key] == pytest.approx(expected[key], rel=1e-6, abs=1e-6)
        values = [each[2] for each in found["points"]]
        assert values == pytest.approx([each[2] for each in expected["points"]], rel=1e-4, abs=1e-5)


@pytest.mark.slow
@pytest.mark.row("C38", "B21")
def test_a_checkpoint_that_all_ranks_wrote_is_that_of_one_process_or_none_at_all(
    several: tuple[int, Results],
) -> None:
    ranks, results = several
    found = results["sharded saved"]
    folder = Path(found[0]["folder"])

    parts = Saver(folder).load("latest")
    model = cases.net()
    load_weights(model, folder / "weights.safetensors")

    flat = [value for each in parts["model"].values() for value in each.flatten().tolist()]
    assert flat == found[0]["weights"]
    assert [value for each in model.parameters() for value in each.flatten().tolist()] == found[0][
        "weights"
    ]
    for each in found:
        assert "step 99 was not written" in each["told"] and "no space left" in each["told"]
        assert f"rank {ranks - 1}" in each["told"]
    assert [each.step for each in Saver(folder).find_checkpoints()] == [3, 6]
    assert not list(folder.glob("*.tmp"))
    manifest = Saver(folder).find("latest")
    assert {shard.file for each in manifest.part("optimizer").sharded for shard in each.shards} == {
        "optimizer.safetensors",
        *(f"optimizer-rank{rank}.safetensors" for rank in range(1, ranks)),
    }


@pytest.mark.slow
def test_weights_gathered_in_half_precision_are_gone_until_the_backward_pass(
    several: tuple[int, Results],
) -> None:
    for by_autocast, by_gathering in several[1]["sharded half"]:
        assert by_autocast["kept"] == 4 * 64 * 64 * 2
        assert by_gathering["kept"] == 0
        assert by_gathering["dtypes"] == ["torch.float32"]
        assert by_gathering["weights"] == pytest.approx(by_autocast["weights"], abs=0.02)


@pytest.mark.slow
def test_weights_used_in_parts_are_told_as_such(several: tuple[int, Results]) -> None:
    for told in several[1]["sharded reaching"]:
        assert "used while they were in parts" in told
        assert "model(x)" in told


@pytest.mark.slow
def test_a_view_that_a_sharded_model_gives_is_no_reason_to_warn_and_may_be_written_into_where_nothing_is_lost(
    several: tuple[int, Results],
) -> None:
    ranks, results = several
    expected = alone("viewed", ranks)

    for found in results["sharded viewed"]:
        for one, other in zip(found, expected, strict=True):
            close(one["weights"], other["weights"])
    for told in results["sharded written_into"]:
        assert "a view of another tensor, was changed in place" in told
    assert results["written_into"] == [""] * ranks


@pytest.mark.slow
def test_ranks_whose_losses_have_other_names_are_told_so(several: tuple[int, Results]) -> None:
    for told in several[1]["disagreeing"]:
        assert "of another kind on rank 1" in told


@pytest.mark.slow
def test_all_ranks_stop_after_the_step_in_which_one_was_asked_to(
    several: tuple[int, Results],
) -> None:
    ranks, results = several

    assert [each["stop"] for each in results["stopped"]] == ["somebody asked"] * ranks
    assert [each["counts"][0] for each in results["stopped"]] == [2] * ranks
    assert [each["counts"][0] for each in results["bounded"]] == [4] * ranks
    assert [each["weights"] for each in results["bounded"]] == [
        results["bounded"][0]["weights"]
    ] * ranks


@pytest.mark.slow
@pytest.mark.row("D22")
def test_all_ranks_end_an_epoch_after_the_step_in_which_one_did(
    several: tuple[int, Results],
) -> None:
    ranks, results = several
    expected = alone("ended", ranks)

    assert [each["counts"] for each in results["ended"]] == [[6, 70, 3]] * ranks
    for found in results["ended"]:
        close(found["weights"], expected["weights"])


@pytest.mark.slow
def test_what_was_counted_on_the_gpu_of_each_rank_is_put_together_on_the_cpu(
    several: tuple[int, Results],
) -> None:
    ranks, results = several
    expected = alone("on_devices", ranks)

    for found in results["on_devices"]:
        close(found, expected)


@pytest.mark.slow
def test_the_state_of_a_criterion_is_that_of_the_first_rank_on_all_of_them(
    several: tuple[int, Results],
) -> None:
    _, results = several

    assert set(results["centred"]) == {results["centred"][0]} != {0.0}


@pytest.mark.slow
@pytest.mark.row("F03", "A81", "A75")
@pytest.mark.parametrize("how", ["", "sharded "])
@pytest.mark.parametrize("name", ["evaluated", "limited", "own_batches", "one_batch"])
def test_ranks_evaluate_every_sample_once_and_agree_on_what_came_of_it(
    name: str, how: str, several: tuple[int, Results]
) -> None:
    ranks, results = several
    expected = alone(name, ranks)
    name = how + name

    seen = [sample for each in results[name] for sample in each["seen"]]

    size = {"limited": 6, "one_batch": 2}.get(name.split()[-1], 21)
    assert sorted(seen) == sorted(expected["seen"])
    assert len(seen) == size
    for found in results[name]:
        close(
            {key: found[key] for key in found if key != "seen"},
            {key: expected[key] for key in found if key != "seen"},
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

    assert whole[:1000] != whole[1000:] and sorted(whole[:1000]) == sorted(whole[1000:]) == list(
        range(1000)
    )
    for found in shares:
        assert found["before"] + found["after"] == found["whole"]
        assert (len(found["before"]), found["counted"]) == (13 * 16, [1000])
    assert sorted(item for found in shares for item in found["tested"]) == list(range(1000))
    for step in range(1000 // size):  # the order is that of one process
        dealt = [item for found in shares for item in found["whole"][16 * step : 16 * step + 16]]
        assert dealt == whole[size * step : size * step + size]
