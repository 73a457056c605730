"""`--json` of commands that train or evaluate: one object on stdout, progress on stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Assay

pytestmark = pytest.mark.slow


def test_the_result_is_the_only_thing_on_stdout(toy: Path, assay: Assay) -> None:
    with open(toy / "net.py", "a") as file:
        file.write('\nprint("printed by the user")\n')

    ran = assay("run", "toy.toml", "--max-steps", "3", "--json")
    tested = assay("test", "--json")
    refused = assay("run", "toy.toml", "train.epocs=2", "--json")

    result, test = json.loads(ran.stdout), json.loads(tested.stdout)
    assert "printed by the user" in ran.stderr and "epoch" in ran.stderr
    assert (result["status"], result["step"], result["exit_code"]) == ("finished", 3, 0)
    assert result["reason"] == "limit of 3 steps"
    assert Path(result["record"]).is_dir() and "valid/acc" in result["values"]
    assert test["note"].startswith(f"weights of {result['id']}@")
    assert (
        refused.returncode == 2
        and refused.stdout == ""
        and "did you mean `epochs`" in refused.stderr
    )


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--no-isolate"], id="in one process"),
        pytest.param([], marks=pytest.mark.thorough, id="isolated"),
    ],
)
def test_several_runs_are_a_list_in_one_object(flags: list[str], toy: Path, assay: Assay) -> None:
    ran = assay("run", "toy.toml", "toy.toml", "--max-steps", "1", "--json", *flags)

    runs = json.loads(ran.stdout)["runs"]
    assert [run["status"] for run in runs] == ["finished", "finished"]
    assert "valid/acc" in assay("show").stdout
