from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.config.settings import global_file
from assay.store.layout import Project

CONFIG = """\
# the first try
partial = true
seed = 1
[model]
type = "torch.nn.Linear"
in_features = 2  # x and y
out_features = "${model.in_features}"
[optimizer]
type = "torch.optim.AdamW"
[train]
epochs = 5
[variants.wide]
"model.in_features" = 512
"""


@pytest.fixture
def config(project: Project) -> Path:
    (project.root / "a.toml").write_text(CONFIG)
    return project.root / "a.toml"


@pytest.mark.row("C51")
def test_variables_are_set_listed_and_unset_and_the_local_one_wins(assay, project: Project) -> None:
    assert assay("config", "set", "--global", "datasets", "/path/to/all/datasets").code == 0
    assert assay("config", "set", "datasets", "/here").code == 0
    assert assay("config", "set", "n", "8").code == 0

    assert assay("config", "get", "datasets").out == "/here\n"
    assert assay("config", "get", "--global", "datasets").out == "/path/to/all/datasets\n"
    assert assay("config", "get").lines == [
        f"local  {project.settings}",
        "  datasets  /here",
        "  n         8",
        f"global  {global_file()}",
        "  datasets  /path/to/all/datasets  (the project has its own)",
    ]
    assert assay("config", "get", "--global").lines[1:] == ["  datasets  /path/to/all/datasets"]
    assert json.loads(assay("config", "get", "--json").out) == {
        "local": {"globals": {"datasets": "/here", "n": 8}},
        "global": {"globals": {"datasets": "/path/to/all/datasets"}},
    }

    assert assay("config", "set", "datasets", "--unset").code == 0
    assert assay("config", "get", "datasets").out == "/path/to/all/datasets\n"
    assert assay("config", "set", "--global", "datasets", "--unset").code == 0
    gone = assay("config", "get", "datasets")
    assert gone.code == 2
    assert "assay config set --global datasets VALUE" in gone.err


def test_settings_of_the_project_go_into_its_file(assay, project: Project) -> None:
    assert assay("config", "set", "runs_dir", "123").code == 0
    assert project.runs_dir == project.root / "123"
    assert assay("config", "set", "--global", "runs_dir", "x").code == 2
    near = assay("config", "set", "run_dir", "x")
    assert near.code == 0 and "did you mean `runs_dir`?" in near.err
    assert assay("config", "set", "runs_dir", "--unset").code == 0
    assert assay("config", "set", "runs_dir", "--unset").code == 2
    assert assay("config", "set", "runs_dir").code == 2
    assert assay("config", "set", "runs_dir", "a", "--unset").code == 2


def test_the_first_setting_makes_a_project_and_says_so(
    assay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    said = assay("config", "set", "a", "1")

    assert f"{tmp_path} is a project now" in said.err
    assert (tmp_path / ".assay" / "settings.toml").read_text().endswith("[globals]\na = 1\n")


def test_a_package_is_trusted_and_no_longer(assay, project: Project) -> None:
    (project.root / "a.toml").write_text('partial = true\n[model]\ntype = "timm.create_model"\n')
    assert "assay config trust timm" in assay("check", "--shape", "a.toml").out

    assert assay("config", "trust", "timm").code == 0
    assert assay("config", "trust").out == "timm\n"
    assert assay("check", "--shape", "a.toml").code == 0

    assert assay("config", "trust", "--remove", "timm").code == 0
    assert assay("check", "--shape", "a.toml").code == 2
    assert assay("config", "trust", "os").code == 2
    assert assay("config", "trust", "--global", "timm").code == 2


@pytest.mark.row("E16")
def test_the_origin_of_a_value_is_told_wherever_it_came_from(assay, config: Path) -> None:
    def lines(*arguments: str) -> list[str]:
        said = assay("config", "explain", *arguments)
        assert said.code == 0, said.err
        return said.lines

    assert lines("model.in_features", "a.toml", "model.in_features=3", "--variant", "wide") == [
        "model.in_features = 3",
        "  set       <cli>:1:19                   model.in_features=3",
        '  replaces  a.toml:13:23 (variant wide)  "model.in_features" = 512',
        "  replaces  a.toml:6:15                  in_features = 2  # x and y",
    ]
    assert lines("model.out_features", "a.toml")[1:] == [
        '  set                       a.toml:7:16  out_features = "${model.in_features}"',
        "  copies model.in_features  a.toml:6:15  in_features = 2  # x and y",
    ]
    assert lines("train.precision", "a.toml") == [
        'train.precision = "fp32"',
        "  is the default of [train]  a.toml:10:2",
    ]
    assert lines("optimizer.lr", "a.toml") == [
        "optimizer.lr = 0.001",
        "  is the default of torch.optim.AdamW  a.toml:9:8",
    ]
    assert lines("optimizer.params", "a.toml")[0] == "optimizer.params = (injected)"
    wrong = assay("config", "explain", "modle.in_features", "a.toml")
    assert wrong.code == 2 and "did you mean `model.in_features`?" in wrong.err


def test_a_value_from_outside_is_told_with_its_place_and_a_secret_is_not_shown(
    assay, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text('[model]\ntype = "a.B"\nroot = "${global:sets}"\nkey = "${env:HF_TOKEN}"\n')
    monkeypatch.setenv("HF_TOKEN", "open sesame")
    assay("config", "set", "sets", "/data")

    root = assay("config", "explain", "model.root", "a.toml")
    assert root.lines[0] == "model.root = /data"
    assert "takes the global sets" in root.out and "settings.toml" in root.out
    key = json.loads(assay("config", "explain", "model.key", "a.toml", "--json").out)
    assert key["value"] == "<redacted>" and "sesame" not in json.dumps(key)


def test_the_listing_names_every_variant_with_its_hash_and_what_it_changes(
    assay, config: Path
) -> None:
    said = assay("check", "a.toml", "--list")

    assert said.code == 0, said.err
    base, wide, _, end = said.lines
    assert base.split()[0] == "base" and len(base.split()[1]) == 16
    assert wide.startswith("wide  ") and wide.endswith(
        "  model.in_features = 512  model.out_features = 512"
    )
    assert end == "1 variant: assay run a.toml --variant all"


def test_a_listing_is_never_wider_than_a_terminal(assay, config: Path) -> None:
    config.write_text(
        CONFIG
        + "optimizer = { type = 'torch.optim.SGD', lr = 0.125, momentum = 0.9, dampening = 0.125, nesterov = true }\n"
        "[variants.a-variant-with-a-name-that-nobody-would-ever-want-to-type-twice]\nseed = 7\n"
        "[sweep]\nseed = { low = 1, high = 3, count = 3 }\nmodel.in_features = [1, 2]\n"
    )

    said = assay("check", "a.toml", "--list")

    assert said.code == 0, said.err
    assert max(map(len, said.lines)) <= 80
    assert sum(line.startswith("point ") for line in said.lines) == 6
    assert said.lines[-1] == "6 points: assay run a.toml"


def test_a_listing_ends_with_the_command_that_runs_it(assay, config: Path) -> None:
    said = assay("check", "a.toml", "--list", "sweep.seed=[1, 2]")

    assert said.lines[-1] == "2 points: assay run a.toml 'sweep.seed=[1, 2]'"


def test_the_listing_for_programs_has_values_and_whole_hashes(assay, config: Path) -> None:
    config.write_text(
        f'{CONFIG}"optimizer.weight_decay" = inf\nschedule = {{ type = "assay.engine.WarmupCosine" }}\n"train" = "@delete"\n'
    )

    found = json.loads(assay("check", "a.toml", "--list", "--json").out)["configs"]

    assert [each["name"] for each in found] == ["base", "wide"]
    assert len({each["hash"] for each in found}) == 2 and len(found[0]["hash"]) == 64
    changes = {each["key"]: each for each in found[1]["changes"]}
    assert changes["model.in_features"] == {"key": "model.in_features", "before": 2, "after": 512}
    assert changes["optimizer.weight_decay"]["after"] == "inf"
    assert changes["train"]["removed"] is True


def test_a_mistake_in_a_variant_is_told_by_the_check_of_the_file(assay, config: Path) -> None:
    config.write_text(f'{CONFIG}"model.in_faetures" = 3\n"optimizer.lr" = "fast"\n')

    said = assay("check", "a.toml")

    assert said.code == 2
    assert (
        "2 errors" in said.out
        and "(variant wide)" in said.out
        and "did you mean `in_features`?" in said.out
    )
    assert assay("check", "a.toml", "--list").code == 2


def test_a_target_has_one_hash_whatever_it_is_called(assay, config: Path) -> None:
    config.write_text(
        f'{CONFIG}"model.in_features" = 2\n'.replace('"model.in_features" = 512\n', "")
        + '"model.type" = "torch.nn.modules.linear:Linear"\n'
    )

    base, wide, *_ = assay("check", "a.toml", "--list").lines

    assert base.split()[1] == wide.split()[1]
