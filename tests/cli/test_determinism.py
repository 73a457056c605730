"""`assay show RUN --determinism`: on what the bits of a run depend."""

from __future__ import annotations

import json
from typing import Any

import pytest

from assay.formats.event_log import Edit
from assay.formats.json_codec import to_plain
from assay.formats.verdict import Verdict
from assay.query.determinism import KINDS, conditions
from assay.query.run import RunView
from assay.store.layout import Project
from run_folders import edit, make_run

from .conftest import Assay

CPU = {
    "seeds": {"seed": 3},
    "devices": ("cpu",),
    "exactness": "exact (plan)",
    "environment": {
        "python": "3.11.7",
        "packages": {"numpy": "2.4.6"},
        "torch": {"version": "2.13.0", "threads": 2, "cpu": "AVX2"},
        "variables": {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "2", "MKL_CBWR": "AVX2"},
    },
    "launch": {"fused": True},
}
GPU = {
    **CPU,
    "devices": ("cuda:0",),
    "environment": {
        "torch": {"version": "2.13.0", "cuda": "12.8", "cudnn": 91002, "cudnn_benchmark": True},
        "driver": "570.1",
    },
}


def kinds_of(project: Project, config: str, attempt: dict[str, Any]) -> dict[str, str]:
    view = RunView(make_run(project, config=config, attempt=attempt))
    return {each.name: each.kind for each in conditions(view)}


def test_a_keyed_run_on_a_cpu_has_no_trap(project: Project) -> None:
    found = kinds_of(project, "[train]\nepochs = 2\n", CPU)

    assert "trap" not in found.values()
    assert [name for name, kind in found.items() if kind == "safe"] == [
        *("seed", "data.train", "PYTHONHASHSEED", "train.deterministic")
    ]
    assert {"device", "threads", "train.precision", "optimizer fused", "versions", "variables"} == {
        name for name, kind in found.items() if kind == "bound"
    }


def test_each_trap_of_a_gpu_is_told_with_its_remedy(project: Project) -> None:
    view = RunView(make_run(project, config="[train]\nepochs = 2\n", attempt=GPU))

    traps = {each.name: each.remedy for each in conditions(view) if each.kind == "trap"}

    assert list(traps) == ["train.deterministic", "CUBLAS_WORKSPACE_CONFIG", "cudnn.benchmark"]
    assert all("train.deterministic = true" in remedy for remedy in traps.values())
    found = kinds_of(project, "[train]\nepochs = 2\ndeterministic = true\n", GPU)
    assert "trap" not in found.values() and found["train.deterministic"] == "safe"


@pytest.mark.parametrize(
    ("config", "attempt", "name", "kind"),
    [
        ("[train]\ntime = '2 h'\n", {}, "train.time", "trap"),
        ("[train]\ncompile = 'blocks'\n", {}, "train.compile", "bound"),
        ("[train]\nepochs = 1\n", {"exactness": "exact (position)"}, "data.train", "safe"),
        ("[train]\nepochs = 1\n", {"exactness": "not tried (replayed)"}, "data.train", "code"),
        ("[train]\nepochs = 1\n", {"exactness": "not exact: an iterator"}, "data.train", "trap"),
        ("[parallel]\ndata = 2\ntensor = 4\n", {}, "processes", "bound"),
        ("", {"launch": {"nproc": 2, "nnodes": 2}}, "processes", "bound"),
        ("", {"changed": ("optimizer.lr",)}, "attempts", "bound"),
        ("", {"seeds": {}}, "seed", "code"),
        ("", {"environment": {}}, "PYTHONHASHSEED", "code"),
        ("", {}, "code", "code"),
    ],
)
def test_a_condition_is_of_the_right_kind(
    project: Project, config: str, attempt: dict[str, Any], name: str, kind: str
) -> None:
    assert kinds_of(project, config, {**CPU, **attempt})[name] == kind


def test_the_page_fits_into_eighty_columns_and_has_everything_as_data(
    project: Project, assay: Assay
) -> None:
    folder = make_run(project, id="kq3f7abc", config="[train]\nepochs = 2\n", attempt=GPU)

    page = assay("show", "kq3f7abc", "--determinism")
    data = json.loads(assay("show", "kq3f7abc", "--determinism", "--json").out)

    assert all(len(line) <= 80 for line in page.lines)
    titles = [line.partition(":")[0] for line in page.lines if ": " in line and line[0] != " "]
    assert titles[:3] == ["Traps", "Code", "Bound"]
    assert "-> train.deterministic = true" in page.out
    assert page.out.rstrip().endswith("never tried: assay replay kq3f7abc")
    assert data[0]["name"] == "train.deterministic" and data[0]["kind"] == "trap"
    assert {each["kind"] for each in data} <= KINDS.keys()
    verdict = Verdict(
        question="replay", runs=("a", "b"), equal=True, first_step=1, last_step=9, compared=9
    )
    edit(folder, [Edit(what="verdict", key="replay", new=to_plain(verdict))])
    assert "Replay  replay: equal, steps 1 to 9" in assay("show", "kq3f7abc", "--determinism").out


def test_one_page_at_a_time(project: Project, assay: Assay) -> None:
    make_run(project, id="kq3f7abc")

    said = assay("show", "kq3f7abc", "--determinism", "--config")

    assert said.code == 2 and "are 2 pages" in said.err
