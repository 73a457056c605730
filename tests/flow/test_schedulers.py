"""`assay run --on SCHEDULER`: from the command to finished runs, with the code of the submission."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import time
from pathlib import Path

import pytest

import assay as house
from assay.formats import run_file
from assay.store.job_journal import JobJournal
from assay.store.layout import Project
from flow.conftest import Assay
from jobs import kubectl

pytestmark = pytest.mark.thorough

SOURCE = str(Path(house.__file__).parents[1])
KUBERNETES = """
[kubernetes]
image = "registry.example.org/gpt:1"
claim = "projects"
mount = "{mount}"
"""


@pytest.fixture
def two(toy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two short configs."""
    text = (toy / "toy.toml").read_text().replace("epochs = 4", "steps = 2")
    for tag in ("one", "two"):
        (toy / f"{tag}.toml").write_text(text.replace('tag = "toy"', f'tag = "{tag}"'))
    monkeypatch.chdir(toy)
    return toy


def finished(toy: Path) -> list[str]:
    """Tags of the finished runs."""
    files = (run_file.read(each.parent) for each in (toy / "runs").glob("*/run.json"))
    return sorted(each.tag for each in files if each.status == "finished")


def assert_one_sweep(toy: Path) -> None:
    launches = [run_file.read(each.parent).newest.launch for each in toy.glob("runs/*/run.json")]
    assert len({launch["sweep"] for launch in launches}) == 1


def await_two(toy: Path) -> None:
    until = time.monotonic() + 300
    while len(finished(toy)) < 2:
        assert time.monotonic() < until, list((toy / "runs").glob("*"))
        time.sleep(0.2)


def test_a_cluster_of_kubernetes_trains_the_code_that_was_submitted(
    assay: Assay, two: Path, tmp_path: Path
) -> None:
    """A stand-in for kubectl, whose pods are OS processes that share the project."""
    home, programs = tmp_path / "cluster", tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    for name, words in (("kubectl", [kubectl.__file__]), ("python3", [])):
        command = shlex.join([sys.executable, *words])
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / name).chmod(0o755)
    settings = Project(two).settings
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(KUBERNETES.format(mount=two))
    own = {"PATH": f"{programs}:/usr/bin:/bin", "KUBECTL_HOME": str(home), "PYTHONPATH": SOURCE}

    ran = assay("run", "one.toml", "two.toml", "--on", "k8s", "--device", "cpu", **own)
    (two / "net.py").write_text("raise RuntimeError('half-edited')")

    assert ran.returncode == 0, ran.stderr
    names = [line.split() for line in ran.stdout.splitlines()]
    assert [(words[0], words[2]) for words in names] == [("k8s", "one"), ("k8s", "two")]
    assert [words[1].partition("/")[2] for words in names] == ["0", "1"]
    await_two(two)
    assert finished(two) == ["one", "two"]
    assert_one_sweep(two)


def test_the_queue_of_this_machine_takes_the_same_command(
    assay: Assay, two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = two / "queue"
    own = {"ASSAY_QUEUE_DIR": str(queue), "PYTHONPATH": SOURCE}

    ran = assay("run", "one.toml", "two.toml", "--queue", "--no-rehearse", "--device", "cpu", **own)
    (two / "net.py").write_text("raise RuntimeError('half-edited')")

    assert ran.returncode == 0, ran.stderr
    assert [line.split() for line in ran.stdout.splitlines()] == [
        ["job", "1", "one"],
        ["job", "2", "two"],
    ]
    assert "No dispatcher is at work" in ran.stderr
    assert assay("queue", "work", "--until-empty", **own).returncode == 0
    with JobJournal(queue) as journal:
        assert journal.counts() == {"finished": 2}
    assert finished(two) == ["one", "two"]
    assert_one_sweep(two)
    refused = assay("run", "one.toml", "--priority", "2", **own)
    assert refused.returncode == 2 and "give --queue, too" in refused.stderr


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="there is no Ray here: pip install 'assay[ray]'"
)
def test_a_ray_of_this_machine_trains_while_the_command_waits(assay: Assay, two: Path) -> None:
    own = {"PYTHONPATH": os.pathsep.join([SOURCE, *sys.path])}

    ran = assay("run", "one.toml", "two.toml", "--on", "ray", "--device", "cpu", **own)

    assert ran.returncode == 0, ran.stderr
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert [words[0] for words in lines[:2]] == ["ray", "ray"]
    assert sorted(tuple(words[::2]) for words in lines[2:]) == [
        ("finished", "one"),
        ("finished", "two"),
    ]
    assert finished(two) == ["one", "two"]
