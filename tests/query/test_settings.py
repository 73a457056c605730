"""Settings of a run: what it wrote, what it took by default, and what a resume changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import assay
from assay.formats import defaults_file, run_file
from assay.formats.defaults_file import Taken
from assay.formats.run_file import Attempt
from assay.query.catalog import Asked, open_catalog
from assay.query.compare import compare
from assay.query.diff import diff
from assay.query.groups import BY_CONFIG
from assay.query.run import RunView
from assay.query.table import differing_keys, make_group_table, make_table
from assay.store.layout import Project
from run_folders import make_run


def take(folder: Path, defaults: Mapping[str, str]) -> Path:
    taken = tuple(Taken(key=key, value=value, owner="") for key, value in defaults.items())
    defaults_file.write(folder, taken)
    return folder


def resume(folder: Path, *configs: tuple[int, str, str]) -> Path:
    """Resume at a step with a config whose hash is given, as the recorder does, each in turn."""
    for step, config, hash_ in configs:
        run = run_file.read(folder)
        number = len(run.attempts) + 1
        before = folder / "config" / f"before-attempt-{number}"
        before.mkdir(parents=True)
        (folder / "config.toml").rename(before / "config.toml")
        (folder / "config.toml").write_text(config)
        attempt = Attempt(
            number=number, started_ns=1, status="finished", from_step=step, seedless_hash=hash_
        )
        run_file.write(folder, replace(run, attempts=(*run.attempts, attempt)))
    return folder


def tags(project: Project, where: str) -> set[str]:
    return {run.tag for run in assay.runs(where, project=project)}


def test_a_default_is_found_and_compared_as_if_it_had_been_written(project: Project) -> None:
    took = take(make_run(project, tag="took", config="lr = 1\n"), {"width": "32", "seed": "0"})
    wrote = make_run(project, tag="wrote", config="lr = 1\nwidth = 32\nseed = 0\n")
    other = make_run(project, tag="other", config="lr = 1\nwidth = 64\nseed = 0\n")
    views = [RunView(folder) for folder in (took, wrote, other)]
    catalog = open_catalog(project)

    table = make_table(catalog, Asked(columns=("tag", "width", "seed")))

    assert tags(project, "width = 32 and seed = 0") == {"took", "wrote"}
    assert sorted(table.shown_rows()) == [
        ("other", "64", "0"),
        ("took", "32", "0"),
        ("wrote", "32", "0"),
    ]
    assert differing_keys(catalog.select(Asked())) == ["width"]
    assert diff(*views[:2], ("config",)).is_equal
    (change,) = diff(views[0], views[2], ("config",)).config
    assert (change.key, change.left, change.right) == ("width", "32 (default)", "64")
    assert [(row.key, row.values) for row in compare(views, catalog).config] == [
        ("width", ("32 (default)", "32", "64"))
    ]


def test_a_default_of_what_another_run_does_not_have_is_no_difference(project: Project) -> None:
    take(make_run(project, tag="adam", config='kind = "adam"\n'), {"eps": "1e-08"})
    take(make_run(project, tag="sgd", config='kind = "sgd"\n'), {"momentum": "0.0"})

    assert differing_keys(open_catalog(project).select(Asked())) == ["config.kind"]


def test_defaults_that_differ_though_nobody_wrote_them_are_told(project: Project) -> None:
    runs = [
        RunView(take(make_run(project, config="lr = 1\n"), {"width": width}))
        for width in ("32", "64")
    ]

    (change,) = diff(runs[0], runs[1], ("config",)).config
    assert (change.left, change.right) == ("32 (default)", "64 (default)")
    assert differing_keys(open_catalog(project).select(Asked())) == ["width"]


def test_the_recorded_seed_is_one_though_no_file_of_defaults_is_left(project: Project) -> None:
    make_run(project, tag="a", config="lr = 1\n", attempt={"seeds": {"seed": 7}})

    assert tags(project, "seed = 7") == {"a"}


def test_a_run_with_a_changed_setting_is_found_by_both_values_and_is_in_no_group_of_either(
    project: Project,
) -> None:
    folders = [
        make_run(project, tag=tag, config=f"lr = {lr}\n", attempt={"seedless_hash": tag[0]})
        for tag, lr in (("first", 0.003), ("second", 0.0003), ("changed", 0.003))
    ]
    resume(folders[2], (880, "lr = 0.0003\n[display]\nquiet = true\n", "s"))
    run = run_file.read(folders[2])
    run_file.write(
        folders[2],
        replace(run, attempts=(replace(run.attempts[0], seedless_hash="f"), *run.attempts[1:])),
    )
    told = "0.003, then 0.0003 from step 880"
    catalog = open_catalog(project)

    table = make_table(catalog, Asked(columns=("tag", "lr"), sort=("tag",)))
    groups = make_group_table(catalog, Asked(group=(BY_CONFIG,), columns=("lr",)))

    assert tags(project, "lr = 0.003") == {"first", "changed"}
    assert tags(project, "lr = 0.0003") == {"second", "changed"}
    assert tags(project, "lr in (0.0003, 1)") == {"second", "changed"}
    assert tags(project, "lr > 0.001") == {"first", "changed"}
    assert tags(project, "lr ~ then") == {"changed"}
    assert table.shown_rows()[0] == ("changed", told)
    assert json.loads(table.to_json())[0]["lr"] == told
    assert list(table.find_changed().values()) == [f"lr {told}"]
    assert sorted(len(group.ids) for group in groups.groups) == [1, 1, 1]
    changes = diff(RunView(folders[2]), RunView(folders[1]), ("config",)).config
    change = next(each for each in changes if each.key == "lr")
    assert (change.left, change.right) == (told, "0.0003")


@pytest.mark.parametrize(
    ("resumes", "told"),
    [
        ([(5, "lr = 2\n"), (9, "lr = 3\n")], "1, then 2 from step 5, then 3 from step 9"),
        ([(5, "lr = 2\n"), (5, "lr = 1\n")], ""),
        ([(5, "lr = 2\n"), (3, "lr = 1\n")], ""),
        ([(0, "lr = 2\n")], ""),
        ([(5, "lr = 1\nwidth = 2\n")], "(default), then 2 from step 5"),
    ],
)
def test_a_history_has_what_trained_the_weights_that_are_left(
    project: Project, resumes: list[tuple[int, str]], told: str
) -> None:
    folder = make_run(project, config="lr = 1\n")

    resume(folder, *((step, config, "") for step, config in resumes))

    assert [str(each) for each in RunView(folder).changed_settings.values()] == [told] * bool(told)
