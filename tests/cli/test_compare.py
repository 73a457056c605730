"""`assay compare`: groups of runs in one metric, each number with its test and its n."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from scipy import stats

from assay.formats.run_file import Code
from assay.report.sample_comparison import seeds_for
from assay.store.code_trees import CodeFile, code_blobs, put_tree
from assay.store.layout import Project
from cli.conftest import Assay
from run_folders import id_of, make_run

SLEEP = (
    [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
    [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4],
)
DARWIN = [6, 8, 14, 16, 23, 24, 28, 29, 41, -48, 49, 56, 60, -67, 75]
IQM_OF_WIKIPEDIA = [5, 8, 4, 38, 8, 6, 9, 7, 7, 3, 1, 6]


def make_runs(
    project: Project, tag: str, values: Sequence[float], *, first_seed: int = 0, **more: Any
) -> list[str]:
    """Make a run a value, with seeds from `first_seed` on; return their ids."""
    config = more.pop("config", "")
    return [
        id_of(
            make_run(
                project,
                tag=tag,
                age_s=1000 - seed,
                points={"valid/acc": [float(value)]},
                config=f"seed = {seed}\n{config}",
                **more,
            )
        )
        for seed, value in enumerate(values, first_seed)
    ]


def compared(assay: Assay, *arguments: str) -> dict[str, Any]:
    said = assay("compare", *arguments, "-m", "valid/acc", "--json")
    assert said.code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def scaled(count: int, mean: float, deviation: float) -> list[float]:
    values = [float(i % 7) + i / 100 for i in range(count)]
    middle, spread = statistics.mean(values), statistics.stdev(values)
    return [mean + (value - middle) / spread * deviation for value in values]


@pytest.mark.row("C77")
def test_groups_of_the_same_seeds_are_compared_in_pairs(project: Project, assay: Assay) -> None:
    for tag, values in zip(("first", "second"), SLEEP, strict=True):
        make_runs(project, tag, values)

    found = compared(assay, "tag = first", "tag = second", "--detect", "1")

    (each,) = found["differences"]
    assert (each["test"], each["paired_by"], each["n"]) == ("paired t-test", "seed", [10])
    assert each["p"] == pytest.approx(0.002833, abs=1e-6)
    assert each["interval"] == pytest.approx([0.7001142, 2.4598858])
    assert (each["effect_name"], round(each["effect"], 4)) == ("Cohen's d_z", 1.2846)
    assert (each["group"], round(each["difference"], 2)) == ("second", 1.58)
    first, second = found["groups"]
    assert (first["n"], round(first["mean"], 2), round(first["median"], 2)) == (10, 0.75, 0.35)
    assert second["iqm"] == pytest.approx(stats.trim_mean(SLEEP[1], 0.25))
    low, high = first["interval"]
    assert low < first["mean"] < high
    assert found == compared(assay, "tag = first", "tag = second", "--detect", "1")


def test_groups_of_other_seeds_are_compared_by_welchs_test(project: Project, assay: Assay) -> None:
    make_runs(project, "first", SLEEP[0])
    make_runs(project, "second", SLEEP[1], first_seed=5)

    (each,) = compared(assay, "tag = first", "tag = second")["differences"]

    theirs = stats.ttest_ind(SLEEP[1], SLEEP[0], equal_var=False)
    ends = theirs.confidence_interval(0.95)
    assert (each["test"], each["n"]) == ("Welch's t-test", [10, 10])
    assert each["p"] == pytest.approx(theirs.pvalue)
    assert each["interval"] == pytest.approx([ends.low, ends.high])


def test_the_signed_ranks_of_darwins_plants_are_those_that_were_published(
    project: Project, assay: Assay
) -> None:
    make_runs(project, "self", [0.0] * len(DARWIN))
    make_runs(project, "cross", DARWIN)

    (each,) = compared(assay, "tag = self", "tag = cross", "--test", "wilcoxon")["differences"]

    assert (each["test"], each["n"]) == ("Wilcoxon signed-rank test", [15])
    assert each["p"] == pytest.approx(0.041259765625)
    assert each["interval_method"] == "BCa bootstrap of the differences"


def test_the_effect_the_middle_mean_and_the_seeds_needed_are_those_that_were_published(
    project: Project, assay: Assay
) -> None:
    # Borenstein et al. (2009), chapter 4: d = 0.5970, g = 0.5924.
    make_runs(project, "control", scaled(50, 100, 4.5))
    make_runs(project, "treated", scaled(50, 103, 5.5), first_seed=100)
    make_runs(project, "middle", IQM_OF_WIKIPEDIA, first_seed=200)
    make_runs(project, "even", scaled(20, 0, 1), first_seed=300)
    make_runs(project, "odd", scaled(20, 9, 1), first_seed=400)

    effect = compared(assay, "tag = control", "tag = treated")["differences"][0]
    middle = compared(assay, "tag = control", "tag = middle")["groups"][1]
    needed = compared(assay, "tag = even", "tag = odd", "--detect", "0.5")["differences"][0]

    assert (effect["effect_name"], round(effect["effect"], 4)) == ("Hedges' g", 0.5924)
    assert middle["iqm"] == pytest.approx(6.5)
    assert needed["needed"] == 64


def test_middle_means_and_the_chance_of_improvement_are_those_of_rliables_own_example(
    project: Project, assay: Assay
) -> None:
    # The scores x and y of tests/rliable/metrics_test.py, of google-research/rliable (f59f80b).
    make_runs(project, "x", [1, 2, 2, 2, 1, 1, 2, 1])
    make_runs(project, "y", [1, 1, 2, 2, 3, 3], first_seed=100)

    found = compared(assay, "tag = y", "tag = x")
    y, x = found["groups"]

    assert (x["mean"], x["iqm"]) == (1.5, 1.5)
    assert (y["mean"], y["iqm"]) == (2, 2)
    # Its probability of improvement of x over y; each of its two tasks has these scores.
    assert found["differences"][0]["larger"] == pytest.approx(1 / 3)
    swapped = compared(assay, "tag = x", "tag = y")["differences"][0]
    assert swapped["larger"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("difference", "error", "samples", "alpha", "needed"),
    [
        # Of two groups, by Cohen (1988) and G*Power: a small, middle and large effect.
        (0.2, 2**0.5, 2, 0.05, 394),
        (0.5, 2**0.5, 2, 0.05, 64),
        (0.8, 2**0.5, 2, 0.05, 26),
        (0.5, 1.0, 1, 0.05, 34),  # of pairs
        (-0.5, 1.0, 1, 0.05, 34),
        (50.0, 1.0, 1, 0.05, 2),
        (0.5, 0.0, 1, 0.05, 2),
        (0.001, 1.0, 1, 0.05, None),
    ],
)
def test_seeds_needed_are_those_of_published_tables(
    difference: float, error: float, samples: int, alpha: float, needed: int | None
) -> None:
    assert seeds_for(stats, difference, error, samples, alpha) == needed


def test_a_failed_run_is_named_and_left_out_and_its_partner_is_not_paired(
    project: Project, assay: Assay
) -> None:
    first = make_runs(project, "a", [0.5, 0.6, 0.7, 0.8])
    make_runs(project, "b", [0.6, 0.8, 0.7])
    (failed,) = make_runs(project, "b", [0.1], first_seed=3, status="failed")

    said = assay("compare", "tag = a", "tag = b", "-m", "valid/acc")

    assert said.code == 0
    assert f"left out of b  {failed} (failed)" in said.out
    assert "n = 3 pairs by seed" in said.out and f"not paired  {first[3]}" in said.out
    assert max(map(len, said.lines)) <= 80


@pytest.mark.row("C77")
def test_several_groups_are_held_against_the_first_with_holms_correction(
    project: Project, assay: Assay
) -> None:
    for tag, shift in (("a", 0.0), ("b", 0.02), ("c", 0.5)):
        make_runs(project, tag, [value + shift + i / 50 for i, value in enumerate([3, 5, 4, 6, 5])])

    arguments = ("tag = a", "tag = c", "tag = b", "--test", "welch")
    found = compared(assay, *arguments)
    said = assay("compare", *arguments, "-m", "valid/acc", "--detect", "1")

    c, b = found["differences"]
    assert c["p_holm"] == pytest.approx(min(1, 2 * c["p"])) and b["p_holm"] >= b["p"]
    assert said.out.count("by Holm for 2 tests") == 2 or "by Holm" in said.out
    assert "0.05 / 2 tests" in " ".join(said.out.split())
    assert "c against a" in said.lines and "b against a" in said.lines


def test_runs_of_folds_are_paired_by_seed_and_fold(project: Project, assay: Assay) -> None:
    for tag, shift in (("a", 0.0), ("b", 0.1)):
        for fold in range(3):
            for seed in range(2):
                make_run(
                    project,
                    tag=tag,
                    points={"valid/acc": [fold + seed / 10 + shift * (fold + 1)]},
                    config=f"seed = {seed}\n[cv]\nfold = {fold}\n",
                )

    (each,) = compared(assay, "tag = a", "tag = b")["differences"]

    assert (each["paired_by"], each["n"]) == ("seed and cv.fold", [6])


def test_a_comparison_without_scipy_names_the_extra(
    project: Project, assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)

    said = assay("compare", "tag = a", "tag = b", "-m", "valid/acc")

    assert said.code == 2 and "pip install 'assay[stats]'" in said.err


def test_what_cannot_be_compared_is_told_in_one_line(project: Project, assay: Assay) -> None:
    (first, *_) = make_runs(project, "a", [0.5, 0.6, 0.7])
    make_runs(project, "b", [0.5])
    make_run(project, tag="other", points={"train/loss": [1.0]})

    for arguments, what in (
        (("tag = a",), "Two groups of runs make a comparison."),
        (("tag = a", "tag = nobody"), "No run fulfils `tag = nobody`."),
        (("tag = a", "b"), "`b` is no expression of `assay ls`."),
        (("tag = a", "seed < 9"), f"The run {first} and 2 more is both in `tag = a`"),
        (("tag = a", "tag = b"), "`b` has 1 run with valid/acc that counts; a test needs 2."),
        (("tag = a", "tag = other"), "`other` has 0 runs with valid/acc that counts"),
        (("tag = a and seed < 2", "tag = a and seed = 2"), "has 1 run"),
        (("tag = a", "tag = b", "--detect", "0"), "`--detect` takes a difference other than 0."),
        (("tga = a", "tag = b"), "did you mean `tag`?"),
    ):
        said = assay("compare", *arguments, "-m", "valid/acc")
        assert (said.code, what in said.err, said.out) == (2, True, ""), (arguments, said.err)
        assert "Traceback" not in said.err
    text = assay("compare", "tag = a", "tag = b", "-m", "tag")
    assert text.code == 2 and "`tag` is no number: a.\n  fix: name a metric" in text.err
    unknown = assay("compare", "tag = a", "tag = b", "-m", "valid/acd")
    assert unknown.code == 2 and "valid/acc" in unknown.err


def test_too_few_pairs_for_a_test_of_ranks_are_refused(project: Project, assay: Assay) -> None:
    make_runs(project, "a", [0.5, 0.6, 0.7, 0.8, 0.9])
    make_runs(project, "b", [0.6, 0.8, 0.8, 0.8, 0.9])

    said = assay("compare", "tag = a", "tag = b", "-m", "valid/acc", "--test", "wilcoxon")

    assert said.code == 2
    assert "with 5 pairs the p of a Wilcoxon test is at least 0.0625" in said.err


def test_runs_of_other_data_and_runs_of_one_seed_are_warned_of(
    project: Project, assay: Assay
) -> None:
    data = '[data.valid.source]\ntype = "points"\npart = {}\n'
    files = {"inputs": {"files": {"data.csv": "10 B, 1234"}}}
    make_runs(project, "a", [0.5, 0.6], config=data.format(1), attempt={"environment": files})
    files = {"inputs": {"files": {"data.csv": "10 B, 9999"}}}
    make_runs(project, "b", [0.6, 0.8], config=data.format(2), attempt={"environment": files})
    make_runs(project, "b", [0.6], config=data.format(2), attempt={"environment": files})

    said = assay("compare", "tag = a", "tag = b", "-m", "valid/acc")

    assert said.code == 0 and "Welch's t-test, n = 2 and 3 runs" in said.out
    assert "warning: b part=2: runs of other configs have the seed 0, and count each" in said.err
    assert (
        "b part=2 and a part=1 are of different data: data.csv, data.valid.source.part" in said.err
    )


def test_runs_of_one_group_that_are_of_different_data_or_code_are_warned_of(
    project: Project, assay: Assay
) -> None:
    blobs = code_blobs(project)
    for seed, text in enumerate((b"width = 8", b"width = 9")):
        snapshot = put_tree(blobs, {"net.py": CodeFile(digest=blobs.put(text))})
        files = {"inputs": {"files": {"data.csv": f"10 B, {seed}"}}}
        attempt = {"code": Code(snapshot=snapshot), "environment": files}
        make_runs(project, "a", [0.5 + seed / 10], first_seed=seed, attempt=attempt)
        same = {"code": Code(snapshot=snapshot)} if not seed else {}
        make_runs(project, "b", [0.6 + seed / 10], first_seed=seed, attempt=same)

    said = assay("compare", "tag = a", "tag = b", "-m", "valid/acc")

    assert "warning: a: its runs are of different code: net.py\n" in said.err
    assert "warning: a: its runs are of different data: data.csv\n" in said.err
    assert "b: its runs" not in said.err  # the code of one of them is not here


def test_a_run_without_the_metric_or_with_nan_is_named(project: Project, assay: Assay) -> None:
    make_runs(project, "a", [0.5, 0.6])
    make_runs(project, "b", [0.6, 0.8])
    (lost,) = make_runs(project, "b", [float("nan")], first_seed=2)
    silent = id_of(make_run(project, tag="b", config="seed = 3\n"))

    left_out = compared(assay, "tag = a", "tag = b")["groups"][1]["left_out"]

    assert left_out == {lost: "valid/acc nan", silent: "no valid/acc"}


def test_repeats_of_one_seed_are_one_observation_and_are_told(
    project: Project, assay: Assay
) -> None:
    for tag in ("a", "b"):
        for _ in range(3):
            make_runs(project, tag, [len(tag)], attempt={"seedless_hash": tag})
    make_runs(project, "c", [5.0, 6.0], attempt={"seedless_hash": "c"})
    make_runs(project, "c", [7.0], attempt={"seedless_hash": "c"})
    make_runs(project, "d", [1.0, 2.0])

    nothing = compared(assay, "tag = a", "tag = b")
    (pairs,) = compared(assay, "tag = d", "tag = c")["differences"]

    assert [group["n"] for group in nothing["groups"]] == [1, 1]
    assert nothing["differences"] == []
    assert nothing["warnings"] == [
        told
        for tag in ("a", "b")
        for told in (
            f"{tag}: runs of one seed are one observation: seed 0",
            f"{tag}: one observation, with which nothing is tested",
        )
    ]
    assert (pairs["n"], pairs["difference"]) == ([2], 4.5)


@pytest.mark.parametrize("status", ["failed", "stopped", "running"])
def test_a_group_of_which_no_run_finished_is_compared_and_that_is_told(
    project: Project, assay: Assay, status: str
) -> None:
    make_runs(project, "a", [0.8, 0.82, 0.79])
    make_runs(project, "b", [0.2, 0.3], status=status, attempt={"status": status})

    said = assay("compare", "tag = a", "tag = b", "-m", "valid/acc")

    assert "warning: b: none of its 2 runs has finished: 2 " in said.err


def test_a_deviation_of_zero_is_told(project: Project, assay: Assay) -> None:
    make_runs(project, "a", [0.8, 0.8])
    make_runs(project, "b", [0.2, 0.3])

    (told,) = compared(assay, "tag = a", "tag = b")["warnings"]
    assert told == "a: all 2 values are the same, so the deviation is 0"
