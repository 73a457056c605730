"""The recipes for clusters: real files, whose commands are those of assay."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from assay.cli.run import command
from examples import EXAMPLES

CLUSTER = EXAMPLES / "cluster"
OPTIONS = {option for parameter in command.params for option in parameter.opts}
FAKES = {
    "srun": 'echo srun "$@" >> calls\nshift\n"$@"\n',
    "assay": 'echo assay "$@" >> calls\nexit "$CODE"\n',
    "scontrol": 'echo scontrol "$@" >> calls\n',
}


@pytest.mark.parametrize("code", [0, 1, 143])
@pytest.mark.parametrize("name", ["slurm.sbatch", "slurm-restarts.sbatch"])
def test_a_job_of_slurm_is_put_back_when_the_run_was_saved_and_stopped(
    name: str, code: int, tmp_path: Path
) -> None:
    for fake, text in FAKES.items():
        (tmp_path / fake).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / fake).chmod(0o755)
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "12",
        "SLURM_NNODES": "2",
    }

    done = subprocess.run(
        ["bash", str(CLUSTER / name), "gpt.toml", "model.width=8"],
        cwd=tmp_path,
        env={**variables, "CODE": str(code)},
        check=False,
    )

    calls = (tmp_path / "calls").read_text().splitlines()
    assert done.returncode == code
    assert calls[1].startswith("assay run gpt.toml model.width=8")
    assert calls[2:] == (["scontrol requeue 12"] if code == 143 else [])


def test_what_the_recipes_type_are_options_of_assay() -> None:
    launcher = re.search(
        r"assay run .*", (CLUSTER / "slurm-restarts.sbatch").read_text(encoding="utf-8")
    )
    documents = yaml.safe_load_all((CLUSTER / "kubernetes.yaml").read_text(encoding="utf-8"))
    job = next(each for each in documents if each["kind"] == "Job")
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert launcher is not None
    typed = [launcher[0], " ".join(container["command"] + container["args"])]

    used = {option for text in typed for option in re.findall(r"(?<=\s)--[a-z-]+", text)}

    assert used <= OPTIONS
    assert {
        "--nnodes",
        "--nproc",
        "--max-restarts",
        "--node-rank",
        "--rendezvous",
        "--resume",
    } <= used
