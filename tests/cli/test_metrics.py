"""`assay metrics`: what a run logged, as numbers."""

from __future__ import annotations

import csv
import json

import pytest

from assay.script import start
from assay.store.layout import Project

from .conftest import Assay


def log_run(project: Project) -> None:
    with start("digits", project=project) as run:
        run.log({"train/loss": 2.5}, 1)
        run.log({"valid/loss": 2.0}, 1)
        run.log({"train/loss": 1.5, "speed/steps_per_s": 90.0}, 2)


def test_metrics_of_one_step_stand_in_one_row_without_those_of_speed(
    project: Project, assay: Assay
) -> None:
    log_run(project)

    rows = [line.split() for line in assay("metrics").lines]

    assert rows[0] == ["step", "time", "train/loss", "valid/loss"]
    assert [[row[0], *row[2:]] for row in rows[1:]] == [["1", "2.5", "2"], ["2", "1.5"]]


def test_only_the_metrics_that_are_named_are_printed(project: Project, assay: Assay) -> None:
    log_run(project)

    table = list(csv.reader(assay("metrics", "last", "-m", "valid/loss", "--csv").lines))
    objects = [json.loads(line) for line in assay("metrics", "-m", "train/loss", "--json").lines]
    of_speed = assay("metrics", "-m", "speed/steps_per_s").lines[-1].split()

    assert [row[:1] + row[2:] for row in table] == [["step", "valid/loss"], ["1", "2.0"]]
    assert [each["metrics"] for each in objects] == [{"train/loss": 2.5}, {"train/loss": 1.5}]
    assert of_speed[0] == "2" and of_speed[2] == "90"


def test_a_metric_that_is_mistyped_is_told_its_neighbour(project: Project, assay: Assay) -> None:
    log_run(project)

    said = assay("metrics", "last", "-m", "valid/los")

    assert said.code == 2 and "did you mean `valid/loss`?" in said.err
    assert "assay metrics last --json" in assay("log", "last", "--json").err


@pytest.mark.parametrize("form", ["--csv", "--json"])
def test_what_was_logged_at_one_step_is_one_row_in_every_form(
    project: Project, assay: Assay, form: str
) -> None:
    with start("digits", project=project) as run:
        for step in (1, 2):
            run.log({"a": step}, step)
            run.log({"b": step}, step)
        run.log({"a": 5.0}, 1)

    lines = assay("metrics", "last", form).lines

    if form == "--json":
        found = [(row["step"], row["metrics"]) for row in map(json.loads, lines)]
    else:
        table = csv.DictReader(lines)
        found = [(int(row["step"]), {k: float(row[k]) for k in "ab"}) for row in table]
    assert found == [(1, {"a": 5.0, "b": 1.0}), (2, {"a": 2.0, "b": 2.0})]
