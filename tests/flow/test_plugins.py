"""Plugins, the symbol table and injection in runs of the toy project, from a config."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import assay
from assay import compose
from assay.compose import RunResult
from assay.formats import run_file

pytestmark = pytest.mark.slow

Assay = Callable[..., Any]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module outside the user's code, in which plugins leave what they saw."""
    module = ModuleType("seen")
    module.log = []  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "seen", module)
    return module


@pytest.fixture
def train(toy: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunResult]:
    """Train the toy project with plugins, whose source is `mine.py`, in this process."""
    monkeypatch.chdir(toy)

    def call(source: str, plugins: str, *, no_file: bool = True, more: str = "") -> RunResult:
        (toy / "mine.py").write_text(source)
        text = (toy / "toy.toml").read_text().replace("epochs = 4", "epochs = 1")
        (toy / "with.toml").write_text(f"plugins = [{plugins}]\n{text}{more}")
        result = assay.run("with.toml", no_file=no_file, check=False)
        return result

    return call


MEMBERS = """
from assay.compat.alchemy import sym_tbl
from assay.engine import on
import seen

NAMES = "registry plugins task model optimizer train_sched cfg device_info device console record_dir".split()

def found(name):
    try:
        return type(getattr(sym_tbl(), name)).__name__
    except Exception as error:
        return f"{type(error).__name__}: {error}"

class Looks:
    def __enter__(self):
        sym_tbl().set("writer", [])
        seen.members = {name: found(name) for name in NAMES}
        seen.plugins = sym_tbl().plugins == [self]

    def __exit__(self, *error):
        seen.written = list(sym_tbl().get("writer"))

    @on("epoch_end")
    def hook(self, state):
        sym_tbl().get("writer").append(f"hook {state.epoch}")

class Seen:
    def reset(self): pass
    def update(self, output): sym_tbl().get("writer").append("evaluation")
    def value(self): return 0.0
"""


@pytest.mark.thorough
@pytest.mark.row("A21", "A22")
def test_members_and_what_a_plugin_sets_are_seen_in_hooks_and_in_evaluation(
    train: Callable[..., RunResult], seen: Any, toy: Path
) -> None:
    text = (toy / "toy.toml").read_text()
    (toy / "toy.toml").write_text(
        text.replace("metrics = {", 'metrics = { seen = { type = "mine.Seen" },')
    )

    trained = train(MEMBERS, '{ type = "mine.Looks" }', no_file=False)

    assert trained.exception is None
    assert seen.members == {
        "registry": "Registry",
        "plugins": "list",
        "task": "Supervised",
        "model": "Net",
        "optimizer": "AdamW",
        "train_sched": "TrainSched",
        "cfg": "dict",
        "device_info": "dict",
        "device": "device",
        "console": "Console",
        "record_dir": type(trained.record_dir).__name__,
    }
    assert seen.plugins is True
    # One batch after the first step, and four.
    assert seen.written.count("evaluation") == 5
    assert seen.written.count("hook 1") == 1

    tested = compose.test(trained.id)

    assert tested.exception is None and tested.record_dir != trained.record_dir
    absent = {name: what for name, what in seen.members.items() if ":" in what}
    assert absent.keys() == {"optimizer", "train_sched"}
    assert all(
        "AbsentError" in what and "this is a test, which does not train" in what
        for what in absent.values()
    )
    assert seen.written == ["evaluation"] * 4


def test_without_a_record_there_is_no_folder(train: Callable[..., RunResult], seen: Any) -> None:
    result = train(MEMBERS, '{ type = "mine.Looks" }')

    assert result.exception is None
    assert seen.members["record_dir"] == "NoneType"


ORDER = """
import pathlib
from contextlib import contextmanager
from assay.engine import on

def note(text):
    with open("order.log", "a") as file:
        file.write(text + " ")

class Noted:
    def __init__(self, name, fails_on_exit=False, fails_at=0):
        self.name, self.fails_on_exit, self.fails_at = name, fails_on_exit, fails_at
    def __enter__(self):
        note(self.name)
    def __exit__(self, *error):
        note(self.name)
        if self.fails_on_exit:
            raise OSError(f"{self.name} cannot be closed")
    @on("step_end")
    def step(self, state):
        if state.step == self.fails_at:
            raise ZeroDivisionError("at step 3")

@contextmanager
def generator(name):
    note(name)
    try:
        yield
    finally:
        note(name)
"""


@pytest.mark.thorough
@pytest.mark.row("A28")
def test_plugins_of_a_config_are_left_in_reverse_also_when_step_3_raises(
    assay: Assay, toy: Path
) -> None:
    (toy / "mine.py").write_text(ORDER)
    text = (toy / "toy.toml").read_text()
    a, b, c = (
        '{ type = "mine.Noted", name = "a"%s }',
        '{ type = "mine.generator", name = "b" }',
        '{ type = "mine.Noted", name = "c"%s }',
    )
    (toy / "fine.toml").write_text(f"plugins = [{a % ''}, {b}, {c % ''}]\n{text}")
    raises = f"plugins = [{a % ', fails_at = 3'}, {b}, {c % ', fails_on_exit = true'}]\n{text}"
    (toy / "raises.toml").write_text(raises)

    fine = assay("run", "fine.toml", "train.epochs=1")
    assert fine.returncode == 0, fine.stderr
    assert (toy / "order.log").read_text().split() == list("abccba")

    (toy / "order.log").unlink()
    failed = assay("run", "raises.toml")
    assert failed.returncode == 1
    assert (toy / "order.log").read_text().split() == list("abccba")
    assert (
        "ZeroDivisionError: at step 3" in failed.stderr
        and "OSError: c cannot be closed" in failed.stderr
    )
    assert sorted(run_file.read(run).status for run in (toy / "runs").iterdir()) == [
        "failed",
        "finished",
    ]

    listed = assay("check", "--show", "callbacks", "fine.toml")
    assert listed.stdout.count("Noted.step") == 2


HOOKS = """
import seen
import torch
from torch.optim import Optimizer
from assay.compat.alchemy import sym_tbl
from assay.engine import State, on

class Listens:
    def __init__(self, second=False): self.second = second
    def __enter__(self):
        if self.second:
            sym_tbl().set("second", torch.optim.SGD(sym_tbl().model.parameters(), lr=1.0))
    def __exit__(self, *error): pass

    @on("step_end")
    def hook(ARGUMENTS):
        seen.log.append(VALUE)
"""


@pytest.mark.thorough
@pytest.mark.row("D08")
def test_a_hook_that_wants_one_thing_more_only_says_so(
    train: Callable[..., RunResult], seen: Any
) -> None:
    before = HOOKS.replace("ARGUMENTS", "self").replace("VALUE", "0")
    after = HOOKS.replace("ARGUMENTS", "self, state: State").replace("VALUE", "state.step")

    assert train(before, '{ type = "mine.Listens" }').exception is None
    assert seen.log == [0] * 8
    seen.log.clear()
    assert train(after, '{ type = "mine.Listens" }').exception is None
    assert seen.log == list(range(1, 9))


@pytest.mark.thorough
@pytest.mark.row("D09")
def test_a_hook_gets_what_the_config_built_by_type_and_of_two_the_one_it_names(
    train: Callable[..., RunResult], seen: Any
) -> None:
    def hook(argument: str) -> str:
        name = argument.partition(":")[0]
        return HOOKS.replace("ARGUMENTS", f"self, {argument}").replace(
            "VALUE", f"type({name}).__name__"
        )

    one, two = '{ type = "mine.Listens" }', '{ type = "mine.Listens", second = true }'
    assert train(hook("any_name: Optimizer"), one).exception is None
    assert set(seen.log) == {"AdamW"}

    error = train(hook("any_name: Optimizer"), two).exception
    assert "More than one `Optimizer`" in str(
        error
    ) and "`optimizer` (AdamW) and `second` (SGD)" in str(error)
    for name, kind in {"optimizer": "AdamW", "second": "SGD"}.items():
        seen.log.clear()
        assert train(hook(f"{name}: Optimizer"), two).exception is None
        assert set(seen.log) == {kind}
    for argument, kind in {
        "model: torch.nn.Module": "Net",
        "train_loader": "Loader",
        "valid_loader": "Loader",
    }.items():
        seen.log.clear()
        assert train(hook(argument), two).exception is None
        assert set(seen.log) == {kind}


WEAK = """
import weakref
import seen
from assay.compat.alchemy import sym_tbl
from assay.engine import on

class Weak:
    def __enter__(self):
        table = sym_tbl()
        seen.log += [weakref.ref(thing) for thing in (table.model, table.task, table.optimizer, self)]
        table.set("kept", [table.model, self])
    def __exit__(self, *error): pass
    @on("step_end")
    def step(self, state, model):
        if seen.fails and state.step == 2:
            raise ZeroDivisionError
"""


@pytest.mark.thorough
@pytest.mark.row("A24")
def test_five_runs_in_one_process_leave_no_model_behind(
    train: Callable[..., RunResult], seen: Any
) -> None:
    results = []
    for number in range(5):
        seen.fails = number == 3
        results.append(train(WEAK, '{ type = "mine.Weak" }'))
        gc.collect()
        assert len(seen.log) == 4 * (number + 1)
        assert [ref() for ref in seen.log] == [None] * len(seen.log)

    assert [type(result.exception).__name__ for result in results] == [
        *["NoneType"] * 3,
        "ZeroDivisionError",
        "NoneType",
    ]


PROVIDES = """
from assay.build import inject, provides
import seen

class Tokenizer: ...
class Vocab: ...

class Texts:
    @provides
    def tokenizer(self, vocab: Vocab) -> Tokenizer:
        return Tokenizer()

class Words:
    @provides
    def vocab(self) -> Vocab:
        seen.log.append("vocab")
        return Vocab()

from points import Points

class Reads(Points):
    def __init__(self, tokenizer: Tokenizer, split=0):
        super().__init__(split)
        seen.log.append(type(tokenizer).__name__)
"""


@pytest.mark.thorough
def test_what_a_plugin_provides_is_there_for_everything_the_config_builds(
    train: Callable[..., RunResult], seen: Any, toy: Path
) -> None:
    text = (toy / "toy.toml").read_text()
    (toy / "toy.toml").write_text(
        text.replace('"points.Points", split = 0, noisy = true', '"mine.Reads"')
    )

    result = train(PROVIDES, '{ type = "mine.Words" }, { type = "mine.Texts" }')

    assert result.exception is None
    assert seen.log == ["vocab", "Tokenizer"]


@pytest.mark.row("D04")
def test_what_no_provider_can_make_is_told_by_check_with_the_path_before_anything_is_built(
    assay: Assay, toy: Path
) -> None:
    (toy / "seen.py").write_text("log = []\n")
    (toy / "mine.py").write_text(PROVIDES)
    text = (
        (toy / "toy.toml")
        .read_text()
        .replace('"points.Points", split = 0, noisy = true', '"mine.Reads"')
    )
    loop = PROVIDES.replace("def vocab(self)", "def vocab(self, tokenizer: Tokenizer)")
    (toy / "missing.toml").write_text(f'plugins = [{{ type = "mine.Texts" }}]\n{text}')
    (toy / "circle.toml").write_text(
        f'plugins = [{{ type = "mine.Words" }}, {{ type = "mine.Texts" }}]\n{text}'
    )

    missing = json.loads(assay("check", "missing.toml", "--json").stdout)
    (toy / "mine.py").write_text(loop)
    circle = assay("check", "circle.toml")

    told = json.dumps(missing)
    assert (
        "nothing provides `vocab` (Vocab), needed by `data` -> `data.train` -> `data.train.source` -> `tokenizer`"
        in told
    )
    assert circle.returncode == 2
    assert "`tokenizer` -> `vocab` -> `tokenizer`" in circle.stdout + circle.stderr
    assert "circle.toml:10:10" in circle.stdout + circle.stderr
    assert not (toy / "runs").exists()


HOLDS = """
from assay.build import Context
from points import Points

class Stage:
    def __init__(self, owner): self.owner = owner

class Holds(Points):
    num_workers = 2
    def __init__(self, context: Context):
        super().__init__(0)
        self.stages = [Stage(None), Stage(context)]
"""


@pytest.mark.row("A26")
def test_a_source_with_workers_that_holds_the_context_is_refused_with_its_path(
    train: Callable[..., RunResult], toy: Path
) -> None:
    text = (toy / "toy.toml").read_text()
    (toy / "toy.toml").write_text(
        text.replace('"points.Points", split = 0, noisy = true', '"mine.Holds"')
    )

    result = train(HOLDS, "")

    assert "`data.train.source.stages[1].owner` holds the context of the run" in str(
        result.exception
    )
    assert result.exit_code == 2


NAMED = """
from assay.build import provides
from assay.engine import on
from assay.engine.loop.names import *
import seen

class Named:
    @provides
    def sizes(self, first: TrainLoader, second: ValLoader) -> dict:
        return {"train": first.batch_size, "valid": second.batch_size}

    @on("run_end")
    def look(self, sizes, a: TrainLoader, b: ValLoader, net: Model, o: Optimizer, s: Scheduler, d: Device, at: State):
        seen.log.append((sizes, a.split, b.split))
        seen.log.append([type(each).__name__ for each in (net, o, s, d)] + [at.step])

    @on("run_end")
    def by_name(self, train_loader, valid_loader):
        seen.log.append([train_loader.split, valid_loader.split])
"""


@pytest.mark.row("D11")
def test_standard_types_find_the_things_of_a_run(train, seen: ModuleType) -> None:
    result = train(NAMED, '{ type = "mine.Named" }')

    assert result.exception is None, result.exception
    assert sorted(seen.log, key=len, reverse=True) == [
        ["Net", "AdamW", "WarmupCosine", "device", 8],
        ({"train": 8, "valid": 16}, "train", "valid"),
        ["train", "valid"],
    ]


def test_a_loader_that_is_asked_for_before_it_is_there_is_told(train, seen: ModuleType) -> None:
    source = """
from assay.engine.loop.names import TrainLoader

class Early:
    def __init__(self, batches: TrainLoader): ...
"""
    error = train(source, '{ type = "mine.Early" }').exception

    assert "`train_loader` is made later than this" in str(error)
