"""Values from outside a config: each kind of reference, before each command that looks at it."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import assay as house
from assay.compose.run_record import launch_metadata, secrets_of
from assay.config import dump, open_config
from assay.config.diff import changed_keys
from assay.config.freeze import origins_noted
from assay.config.secret_keys import without_secrets
from assay.config.sources.toml import read_toml
from assay.config.tree import Table
from assay.core.errors import ConfigError
from assay.formats import run_file
from assay.query.config_rows import config_rows
from assay.query.diff import diff
from assay.query.run import RunView
from assay.store.authorship import sign
from assay.store.layout import RunFolder
from flow.conftest import CONFIG, Assay

VARIABLE = "AN_OUTSIDE_WIDTH"
SECRET = "AN_OUTSIDE_TOKEN"

SHORT = CONFIG.replace("epochs = 4", "epochs = 1").replace('every = "3 steps"', 'every = "1 epoch"')
PYTHON = """\
import argparse, os, sys
from os import environ

tag = "toy"
seed = 3
WIDTH = {read}
model = dict(type="net.Net", width=8)
model["width"] = WIDTH
_points = lambda split: dict(type="points.Points", split=split, noisy=False)
data = {{
    "train": dict(source=_points(0), batch_size=8),
    "valid": dict(source=_points(1), batch_size=16),
    "test": dict(source=_points(2), batch_size=16),
}}
process = dict(
    type="assay.engine.Supervised",
    criterion=dict(type="torch.nn.CrossEntropyLoss"),
    metrics=dict(acc=dict(type="assay.engine.Accuracy")),
)
optimizer = dict(type="torch.optim.AdamW", lr=1e-2)
train = dict(epochs=1)
checkpoint = dict(every="1 epoch", best=dict(metric="valid/acc", mode="max"))
"""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Way in which the width of the model comes from outside, and how that is set."""

    name: str = "toy.toml"
    text: str
    set_to: Callable[[Assay, Path, int], dict[str, str]]
    words: Callable[[int], list[str]] = lambda width: []
    has_same_data: bool = True


def width(reference: str) -> str:
    return SHORT.replace("width = 8", f'width = "{reference}"')


def by_variable(_: Assay, __: Path, value: int) -> dict[str, str]:
    return {VARIABLE: str(value)}


def by_global(assay: Assay, _: Path, value: int) -> dict[str, str]:
    assert assay("config", "set", "--global", "width", str(value)).returncode == 0
    return {}


def by_data(_: Assay, toy: Path, value: int) -> dict[str, str]:
    text = (toy / "points.py").read_text()
    (toy / "points.py").write_text(re.sub(r"size=\d+", f"size={value * 8}", text))
    return {}


def by_chance(_: Assay, __: Path, ___: int) -> dict[str, str]:
    return {}


KINDS = {
    "env": Kind(text=width(f"${{env:{VARIABLE}}}"), set_to=by_variable),
    "env with a default": Kind(text=width(f"${{env:{VARIABLE},5}}"), set_to=by_variable),
    "env of Hydra": Kind(text=width(f"${{oc.env:{VARIABLE},5}}"), set_to=by_variable),
    "env copied": Kind(
        text=width("${size.width}") + f'\n[size]\nwidth = "${{env:{VARIABLE}}}"\n',
        set_to=by_variable,
    ),
    "env in the tag": Kind(
        text=width(f"${{env:{VARIABLE}}}").replace('"toy"', f'"toy-${{env:{VARIABLE}}}"'),
        set_to=by_variable,
    ),
    "global": Kind(text=width("${global:width}"), set_to=by_global),
    "length": Kind(text=width("${length:data.train}"), set_to=by_data, has_same_data=False),
    "random": Kind(text=width("${random:int:2:5000}"), set_to=by_chance),
    "os.environ": Kind(
        name="toy.py", text=PYTHON.format(read=f'int(os.environ["{VARIABLE}"])'), set_to=by_variable
    ),
    "os.getenv": Kind(
        name="toy.py",
        text=PYTHON.format(read=f'int(os.getenv("{VARIABLE}", "5"))'),
        set_to=by_variable,
    ),
    "sys.argv": Kind(
        name="toy.py",
        text=PYTHON.format(read='int(next(w for w in sys.argv if w.startswith("w-"))[2:])'),
        set_to=by_chance,
        words=lambda value: ["--desc", f"w-{value}"],
    ),
}


def recorded(toy: Path) -> list[RunView]:
    runs = [RunView(path) for path in (toy / "runs").iterdir()]
    return sorted(runs, key=lambda run: run.file.created_ns)


def trained_width(run: RunView) -> int:
    return int(run.config["model"]["width"])


def rerun_is_the_same(assay: Assay, toy: Path, run: RunView, other: dict[str, str]) -> None:
    done = assay("rerun", run.id, "--device", "cpu", **other)
    assert done.returncode == 0, done.stderr
    again = recorded(toy)[-1]
    assert again.file.parent == run.id
    assert again.file.newest.config_hash == run.file.newest.config_hash
    assert trained_width(again) == trained_width(run)
    # The data set of now has another default length, where the run asked for that.
    changes = diff(run, again).config
    assert all(
        each.key.startswith("data.") and each.right.endswith("(default)") for each in changes
    )
    assert origins_noted(again.config_text, again.config_tree) == origins_noted(
        run.config_text, run.config_tree
    )


def test_is_of_that_model(assay: Assay, toy: Path, run: RunView, other: dict[str, str]) -> None:
    done = assay("test", run.id, "--device", "cpu", **other)
    assert done.returncode == 0, done.stderr


test_is_of_that_model.__test__ = False  # type: ignore[attr-defined]


def resume_goes_on(assay: Assay, toy: Path, run: RunView, other: dict[str, str]) -> None:
    done = assay("resume", run.id, "train.epochs=2", "--device", "cpu", **other)
    assert done.returncode == 0, done.stderr
    assert "model.width" not in done.stderr + done.stdout
    assert trained_width(RunView(run.path)) == trained_width(run)


def model_is_loaded(assay: Assay, toy: Path, run: RunView, other: dict[str, str]) -> None:
    model = house.load_model(str(run.path))
    assert model.layers[0].out_features == trained_width(run)


def check_names_the_same_config(
    assay: Assay, toy: Path, run: RunView, other: dict[str, str]
) -> None:
    done = assay("check", str(run.path / "config.toml"), "--user-dir", str(toy), **other)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-1] == run.file.newest.config_hash[:16]


def query_finds_it(assay: Assay, toy: Path, run: RunView, other: dict[str, str]) -> None:
    wanted = f"model.width = {trained_width(run)}"
    done = assay("ls", wanted, "--json", **other)
    assert run.id in done.stdout, done.stderr
    others = [each.id for each in recorded(toy) if trained_width(each) != trained_width(run)]
    assert others and not any(each in done.stdout for each in others)


def origin_is_shown(run: RunView) -> None:
    row = next(row for row in config_rows(run) if row.key == "model.width")
    assert row.kind == "resolved"
    assert re.match(r"from env:|from global:|drawn by \$\{|known by \$\{", row.origin), row
    assert f"width = {row.value}  # {row.origin}\n" in run.config_text


READERS = [
    query_finds_it,
    check_names_the_same_config,
    model_is_loaded,
    test_is_of_that_model,
    rerun_is_the_same,
]


def record_twice(kind: Kind, assay: Assay, toy: Path) -> tuple[RunView, RunView]:
    (toy / kind.name).write_text(kind.text)
    for value in (4, 6):
        variables = kind.set_to(assay, toy, value)
        done = assay("run", kind.name, "--device", "cpu", *kind.words(value), **variables)
        assert done.returncode == 0, done.stderr
    first, second = recorded(toy)
    return first, second


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_reader_has_the_value_that_a_run_had_and_diff_names_it(
    assay: Assay, toy: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS[name]

    first, second = record_twice(kind, assay, toy)

    widths = trained_width(first), trained_width(second)
    assert widths == (4, 6) or name == "random"
    changed = {change.key: (change.left, change.right) for change in diff(first, second).config}
    assert changed["model.width"] == tuple(map(str, widths))
    assert first.tag == ("toy-4" if name == "env in the tag" else "toy")
    assert first.file.newest.seedless_hash != second.file.newest.seedless_hash
    if kind.name == "toy.toml":
        origin_is_shown(first)
    else:
        assert set(changed) == {"model.width"}
    monkeypatch.chdir(toy)
    rerun_is_the_same(assay, toy, first, {})
    other = kind.set_to(assay, toy, 9)
    for reader in READERS:
        reader(assay, toy, first, other)
    if kind.has_same_data:
        resume_goes_on(assay, toy, first, other)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["env", "global", "os.getenv"])
def test_a_replay_in_another_shell_has_the_values_of_then(
    assay: Assay, toy: Path, name: str
) -> None:
    kind = KINDS[name]
    first, _ = record_twice(kind, assay, toy)
    other = kind.set_to(assay, toy, 9)

    done = assay("replay", first.id, **other)

    assert done.returncode == 0, done.stdout + done.stderr


def as_an_older_record(run: RunView, reference: str, outside: dict[str, Any]) -> RunView:
    """Write a run as it was when references stayed in the config, their values beside it."""
    folder = RunFolder(run.path)
    text = re.sub(r"(?m)^width = .*$", f'width = "{reference}"', run.config_text)
    folder.config_toml.write_text(text)
    (attempt,) = run.file.attempts
    launch = {**attempt.launch, "outside": outside}
    file = replace(run.file, attempts=(replace(attempt, launch=launch, config_digest=""),))
    run_file.write(folder.path, sign(folder, file))
    return RunView(run.path)


@pytest.mark.slow
def test_a_record_that_kept_values_beside_its_config_is_read_with_them(
    assay: Assay, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS["env"]
    now, other = record_twice(kind, assay, toy)
    old = as_an_older_record(now, f"${{env:{VARIABLE}}}", {f"env:{VARIABLE}": "4"})
    monkeypatch.chdir(toy)

    changed = {change.key: (change.left, change.right) for change in diff(old, other).config}
    assert changed == {"model.width": ("4", "6")}
    model_is_loaded(assay, toy, old, {})
    for variables in ({}, {VARIABLE: "9"}):
        test_is_of_that_model(assay, toy, old, variables)
        done = assay("rerun", old.id, "--device", "cpu", **variables)
        assert done.returncode == 0, done.stderr
        assert trained_width(recorded(toy)[-1]) == 4
    resume_goes_on(assay, toy, old, {VARIABLE: "9"})


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["env", "global"])
def test_an_older_record_is_replayed_with_its_values(assay: Assay, toy: Path, kind: str) -> None:
    now, _ = record_twice(KINDS[kind], assay, toy)
    name = f"env:{VARIABLE}" if kind == "env" else "global:width"
    value: Any = "4" if kind == "env" else 4
    old = as_an_older_record(now, f"${{{name}}}", {name: value})
    other = KINDS[kind].set_to(assay, toy, 9)

    done = assay("replay", old.id, **other)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_secret_is_in_no_file_counts_in_the_comparison_and_is_asked_for_where_it_is_needed(
    assay: Assay, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = (toy / "points.py").read_text().replace("size=60", "size=60, token='', password=''")
    (toy / "points.py").write_text(points)
    text = SHORT.replace(
        "noisy = true", f'token = "${{env:{SECRET}}}", password = "literal sesame"', 1
    )
    (toy / "toy.toml").write_text(text)
    for secret in ("sesame", "sesame", "barley"):
        done = assay("run", "toy.toml", "--device", "cpu", **{SECRET: secret})
        assert done.returncode == 0, done.stderr
    first, same, other = recorded(toy)

    for path in toy.rglob("runs/**/*"):
        if path.is_file() and not path.is_symlink():
            assert not {b"sesame", b"barley"} & {
                word for word in (b"sesame", b"barley") if word in path.read_bytes()
            }, path
    assert first.file.newest.config_hash == other.file.newest.config_hash
    assert diff(first, same).config == ()
    (change,) = diff(first, other).config
    assert change.key == f"env:{SECRET}" and change.left != change.right
    assert str(change.left).startswith("<redacted>") and str(change.right).startswith("<redacted>")

    monkeypatch.chdir(toy)
    assert house.load_model(str(first.path)).layers[0].out_features == 8
    for command in (["rerun"], ["test"], ["resume"], ["replay"]):
        refused = assay(*command, first.id)
        assert refused.returncode == 2, refused.stdout
        assert "keeps no secrets" in refused.stderr and "data.train.source" in refused.stderr
    literal = "data.train.source.password=literal sesame"
    refused = assay("rerun", first.id, literal)
    assert refused.returncode == 2 and f"export {SECRET}=..." in refused.stderr
    done = assay("rerun", first.id, literal, "--device", "cpu", **{SECRET: "sesame"})
    assert done.returncode == 0, done.stderr
    assert diff(first, recorded(toy)[-1]).config == ()
    changed = assay("rerun", first.id, f"{literal}s", "--device", "cpu", **{SECRET: "sesame"})
    assert changed.returncode == 0, changed.stderr
    (change,) = diff(first, recorded(toy)[-1]).config
    assert change.key == "data.train.source.password" and "sesame" not in str(change)


def test_a_secret_that_is_not_set_is_asked_for_where_it_is_built_and_nowhere_else(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = f'plugins = [{{ type = "talk.Talk", token = "${{env:{SECRET}}}" }}]\n'
    (toy / "talk.py").write_text(
        "class Talk:\n    def __init__(self, token): ...\n    def handlers(self): return []\n"
    )
    (toy / "toy.toml").write_text(plugin + SHORT)
    monkeypatch.chdir(toy)
    monkeypatch.setenv(SECRET, "sesame")
    result = house.run("toy.toml", device="cpu")
    monkeypatch.delenv(SECRET)

    with pytest.raises(ConfigError, match=f"env:{SECRET}.*has no value here"):
        house.load_model(result.id)


NAMES = ("AN_OUTSIDE_A", "AN_OUTSIDE_B_TOKEN", "AN_OUTSIDE_C")
VALUES = st.sampled_from(
    ["4", "6", "a", "", "0123", "1e3", "@x", "${y}", "ghp_" + "a1B2c3" * 6, "ghp_" + "c3B2a1" * 6]
)
WRITTEN = (
    'X = "${{env:{0}}}"',
    'X = "${{env:{0},7}}"',
    'X = "at ${{env:{0},7}} and on"',
    'X = ["${{env:{0},7}}", "${{env:{1},8}}"]',
    'X.token = "${{env:{0},7}}"',
    'X = "${{oc.env:{0},null}}"',
)


def kept(path: Path, values: dict[str, str | None]) -> tuple[Table, dict[str, Any]]:
    """Return what a record would hold: the saved config, and the values beside it."""
    is_set = {name: value for name, value in values.items() if value is not None}
    clear = {name: value for name, value in os.environ.items() if name not in NAMES}
    with mock.patch.dict(os.environ, {**clear, **is_set}, clear=True):
        config = open_config(path)
        secrets = secrets_of(config)
        text = dump(without_secrets(config.root, secrets), with_origins=True)
        return read_toml(text, "config.toml"), launch_metadata(config, secrets).get("outside", {})


@given(st.data(), st.sampled_from(WRITTEN), st.permutations(NAMES))
@settings(max_examples=150, deadline=None)
def test_whatever_value_from_outside_is_changed_the_comparison_names_it(
    data: st.DataObject, text: str, names: list[str]
) -> None:
    before = {name: data.draw(VALUES | st.none()) for name in NAMES}
    now = data.draw((VALUES | st.none()).filter(lambda value: value != before[names[0]]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.toml")
        path.write_text(text.format(*names))

        left, right = kept(path, before), kept(path, {**before, names[0]: now})

    said = [change.key for change in changed_keys(left[0], right[0])]
    said += [key for key in {**left[1], **right[1]} if left[1].get(key) != right[1].get(key)]
    if ",7}" in text and {before[names[0]], now} == {None, "7"}:
        return  # the default and the value are one
    assert said, (left, right)
