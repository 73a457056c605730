from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.build.signatures import calls, check_signatures
from assay.config.torch_targets import ALLOWED
from assay.config.tree import Leaf, Node, Table, dotted, from_plain
from assay.core.diagnostics import Origin, Problem, render

Write = Callable[..., Path]
Tree = Callable[[str], Table]

MODEL = """
    from __future__ import annotations
    import enum, typing
    from collections.abc import Callable, Iterable
    from dataclasses import dataclass
    from pathlib import Path
    from typing import TYPE_CHECKING, Literal, Protocol
    if TYPE_CHECKING:
        from nowhere import Ghost

    class Color(enum.Enum):
        red = "red"

    @dataclass
    class Head:
        size: int
        name: str = "h"

    class Speaks(Protocol):
        def speak(self): ...

    class Net:
        def __init__(self, width: int, depth: int = 1, *, rate: float = 0.1, color: Color = Color.red,
                     where: Path | None = None, sizes: tuple[int, int] = (1, 1), head: Head | None = None,
                     act: Literal["relu", "gelu"] = "relu", ghost: Ghost | None = None, speaks: Speaks | None = None,
                     names: list[str] = [], table: dict[str, int] = {}, many: Iterable[int] = (), free=None,
                     part: Inner | None = None, on: bool = False):
            pass
        class Inner: pass

    class Open:
        def __init__(self, width: int, **kwargs): pass

    def variadic(*sizes: int, **rest): pass
    def position_only(x: int, y: int, /, z: int = 1): pass
    def needs(model, optimizer, device, dtype, other): pass
    class Wild:
        def __init__(self, width: "this is no type"): pass
    class Angry:
        @classmethod
        def __get_pydantic_core_schema__(cls, source, handler):
            raise RuntimeError("no schema")
    def angry(x: Angry): pass
"""


def summary(problems: list[Problem]) -> list[tuple[str, str]]:
    return [(problem.kind, problem.key) for problem in problems]


def check(tree: Table, *user_dirs: Path, **how: Any) -> list[Problem]:
    return check_signatures(tree, user_dirs=user_dirs, **how)


def test_a_sound_config_has_no_problems(write: Write, tree: Tree) -> None:
    project = write(model=MODEL)
    root = tree(
        """
        [model]
        type = "model.Net"
        width = 3
        rate = 1
        color = "red"
        where = "/tmp/x"
        sizes = [1, 2]
        head = { size = 3 }
        act = "gelu"
        ghost = 3
        speaks = 4
        names = ["a"]
        table = { a = 1 }
        many = [1, 2]
        free = { anything = [1] }
        on = true
        [optimizer]
        type = "torch.optim.AdamW"
        lr = 1e-3
        betas = [0.9, 0.99]
        """
    )

    assert check(root, project) == []


def test_every_problem_is_told_at_once_with_its_place(write: Write, tree: Tree) -> None:
    project = write(model=MODEL)
    root = tree(
        """
        [model]
        type = "model.Net"
        widht = 3
        depth = "2"
        rate = true
        act = "tanh"
        sizes = [1, "b"]
        head = { size = "x" }

        [optimizer]
        type = "torch.optim.AdmaW"
        lr = 1e-3

        [schedule]
        type = "torch.hub.load"
        """
    )

    problems = check(root, project)

    assert [(p.kind, str(p.origin)) for p in problems] == [
        ("unknown-argument", "digits.toml:3:1"),
        ("wrong-type", "digits.toml:4:9"),
        ("wrong-type", "digits.toml:5:8"),
        ("wrong-type", "digits.toml:6:7"),
        ("wrong-type", "digits.toml:7:13"),
        ("wrong-type", "digits.toml:8:17"),
        ("unknown-target", "digits.toml:11:8"),
        ("target-not-allowed", "digits.toml:15:8"),
    ]
    assert problems[0].fix == "did you mean `width`?"
    assert (problems[1].message, problems[1].fix) == (
        '`depth` of `model.Net` must be a whole number, not "2"',
        "write it without quotes: 2",
    )
    assert problems[3].message == '`act` of `model.Net` must be "relu" or "gelu", not "tanh"'
    assert problems[4].message == '`sizes.1` of `model.Net` must be a whole number, not "b"'
    assert problems[5].message == '`head.size` of `model.Net` must be a whole number, not "x"'
    assert problems[6].fix.startswith("did you mean `AdamW`?")
    assert "pydantic" not in render(problems, color=False)


def test_the_members_of_a_union_are_told_in_one_sentence(tree: Tree) -> None:
    root = tree('[optimizer]\ntype = "torch.optim.AdamW"\nlr = "fast"\nbetas = [0.9]\n')

    lr, betas = check(root)

    assert lr.message == (
        '`lr` of `torch.optim.AdamW` must be a number or an object (a call, or a reference to one), not "fast"'
    )
    assert str(betas.origin) == "digits.toml:4:9"


def test_nested_calls_are_checked_and_not_held_against_the_type(write: Write, tree: Tree) -> None:
    project = write(model=MODEL)
    root = tree(
        """
        [model]
        type = "model.Net"
        width = { type = "model.Net" }
        depth = "@optimizer"
        names = ["@optimizer", 3]
        table = { a = { type = "model.Gone" } }
        free = "${env:HOME}"
        rate = "${env:RATE}"
        """
    )

    assert summary(check(root, project)) == [
        ("missing-argument", "model.width"),
        ("unknown-target", "model.table.a.type"),
    ]


def test_a_reference_where_a_target_belongs_is_left_to_the_builder(tree: Tree) -> None:
    assert check(tree('[model]\ntype = "@other"\n')) == []


def test_escapes_and_none_are_judged_as_what_they_mean(write: Write, tree: Tree) -> None:
    project = write(model=MODEL)
    root = tree(
        '[model]\ntype = "model.Net"\nwidth = 1\nact = "@@relu"\nhead = "@none"\nnames = ["@@x"]\n'
    )

    assert [p.message for p in check(root, project)] == [
        '`act` of `model.Net` must be "relu" or "gelu", not "@relu"'
    ]


def test_what_injection_fills_is_not_missing(write: Write, tree: Tree) -> None:
    project = write(
        model=MODEL,
        parts="""
        from assay.build import Context, inject
        class Writer: pass
        @inject
        class Marked: pass
        def hook(writer: Writer, context: Context, marked: Marked, anything): pass
        """,
    )
    root = tree('[process]\ntype = "model.needs"\n[hook]\ntype = "parts.hook"\n')

    def missing(**how: Any) -> list[str]:
        return [p.message.split("`")[3] for p in check(root, project, **how)]

    assert missing(roles=()) == [
        "model",
        "optimizer",
        "device",
        "dtype",
        "other",
        "writer",
        "anything",
    ]
    assert missing(roles=("model", "device", "dtype")) == [
        "optimizer",
        "other",
        "writer",
        "anything",
    ]
    assert missing(given={"process": ["other", "device", "dtype"], "hook": ["writer"]}) == [
        "anything"
    ]


@pytest.mark.parametrize(
    ("config", "fix"),
    [
        (
            '[data.train.collate]\ntype = "parts.collate"\n',
            "write `_partial_ = true` beside `type`: the function itself is meant",
        ),
        (
            '[x]\ntype = "parts.Step"\nmodel = 1\n',
            "annotate it, and it is filled: `backward: assay.engine.OptimizerStep`",
        ),
        ('[model]\ntype = "parts.collate"\n', "write `samples = ...` in [model]"),
    ],
)
def test_a_missing_argument_is_answered_by_its_place_and_name(
    config: str, fix: str, tree: Tree, write: Write
) -> None:
    project = write(
        parts="""
        def collate(samples): pass
        class Step:
            def __init__(self, model, backward): pass
        """
    )

    (problem,) = check(tree(config), project, roles=())

    assert problem.fix == fix


def test_a_type_that_will_be_there_fills_what_asks_for_it_or_its_base(
    tree: Tree, write: Write
) -> None:
    project = write(
        parts="import torch\ndef hook(net: torch.nn.Module, criterion: torch.nn.Module): pass\n"
    )
    root = tree('[hook]\ntype = "parts.hook"\n')

    problems = check(root, project, types=[torch.nn.Linear], roles=())

    assert [p.message for p in problems] == ["`parts.hook` needs `criterion`"]


def test_device_is_not_injected_by_name_into_foreign_code(
    write: Write, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = write("lib", foreign_lib="def make(device, model): pass\n")
    monkeypatch.syspath_prepend(installed)
    project = write(mine="def make(device, model): pass\n")
    root = tree('[a]\ntype = "foreign_lib.make"\n[b]\ntype = "mine.make"\n')

    problems = check(root, project, roles=("device", "model"), trusted=["foreign_lib"])

    assert [p.message for p in problems] == ["`foreign_lib.make` needs `device`"]


def test_keys_swallowed_by_kwargs_are_notes_with_the_nearest_name(write: Write, tree: Tree) -> None:
    project = write(model=MODEL)
    root = tree('[model]\ntype = "model.Open"\nwidth = 1\nwidht = 2\n')

    (note,) = check(root, project)

    assert (note.kind, note.severity, note.fix) == ("unchecked", "note", "did you mean `width`?")


def test_all_other_keys_that_kwargs_take_are_one_note(write: Write, tree: Tree) -> None:
    project = write(model=MODEL)
    keys = ["bold", "crisp", "drab", "eerie", "fuzzy"]
    root = tree(
        '[model]\ntype = "model.Open"\nwidth = 1\nwidht = 2\n'
        + "".join(f"{key} = 1\n" for key in keys)
    )

    mistyped, others = check(root, project)

    assert (mistyped.key, mistyped.fix) == ("model.widht", "did you mean `width`?")
    assert others.message.startswith(
        "`bold`, `crisp`, `drab` and 2 more go into `**kwargs` of `model.Open`"
    )
    assert (others.kind, others.severity, others.key) == ("unchecked", "note", "model.bold")


def test_positional_arguments_are_counted_typed_and_not_given_twice(
    write: Write, tree: Tree
) -> None:
    project = write(model=MODEL)
    root = tree(
        """
        [a]
        type = "model.Net"
        args = ["x", 2, 3]
        depth = 4
        [b]
        type = "model.variadic"
        args = [1, "two"]
        anything = 3
        [c]
        type = "model.position_only"
        args = [1]
        z = "z"
        [d]
        type = "model.Net"
        args = 3
        width = 1
        [e]
        type = "model.position_only"
        args = [1, 2]
        x = 3
        """
    )

    problems = check(root, project)

    assert summary(problems) == [
        ("wrong-type", "a.args.0"),
        ("unknown-argument", "a.args.2"),
        ("duplicate-argument", "a.depth"),
        ("wrong-type", "b.args.1"),
        ("unchecked", "b.anything"),
        ("wrong-type", "c.z"),
        ("missing-argument", "c"),
        ("wrong-type", "d.args"),
        ("duplicate-argument", "e.x"),
    ]
    assert problems[6].fix == "write `args = [...]` in [c]: it is taken by position only"


def test_a_module_that_fails_is_told_once_however_many_targets_lie_in_it(
    write: Write, tree: Tree
) -> None:
    project = write(broken="raise ValueError('no')\n", other="raise ValueError('no')\n")
    root = tree(
        """
        [a]
        type = "broken.A"
        [b]
        type = "broken.B"
        [c]
        type = "broken.A"
        [d]
        type = "other.D"
        """
    )

    problems = check(root, project)

    assert [(each.kind, each.key) for each in problems] == [
        ("import-failed", "a.type"),
        ("import-failed", "d.type"),
    ]
    assert [len(each.related) for each in problems] == [1, 1]


def test_what_cannot_be_judged_is_not_and_nothing_crashes(write: Write, tree: Tree) -> None:
    project = write(model=MODEL)
    root = tree(
        """
        [a]
        type = "model.Wild"
        width = "anything"
        [b]
        type = "torch.nn.functional.conv2d"
        whatever = 3
        [c]
        type = "model.angry"
        x = 1
        [d]
        type = 3
        """
    )

    assert summary(check(root, project)) == [("unchecked", "b.type"), ("wrong-type", "d.type")]


def test_a_type_in_variants_sweeps_and_standard_sections_is_no_call(tree: Tree) -> None:
    root = tree(
        """
        type = "at.the.top"
        [variants.big.model]
        type = "never.looked.at"
        [sweep]
        x = { type = "nor.this" }
        [train]
        type = "nor.that"
        [data.train]
        type = "nor.these"
        source = { type = "torch.utils.data.TensorDataset" }
        """
    )

    assert [dotted(path) for path, _ in calls(root)] == ["data.train.source"]


PUBLIC = sorted(
    f"{module}.{name}"
    for module, names in ALLOWED.items()
    for name in names
    if isinstance(getattr(importlib.import_module(module), name, None), type)
)
VALUES: list[Any] = [
    None,
    True,
    3,
    0.5,
    float("inf"),
    "text",
    "",
    [1, 2],
    [],
    {"a": [1, {"b": None}]},
    "@@x",
]


def test_no_public_class_of_torch_makes_the_check_crash() -> None:
    assert len(PUBLIC) > 180
    import inspect

    origin = Origin(source="torch.toml")
    items: dict[str, Node] = {}
    for i, target in enumerate(PUBLIC):
        module, _, name = target.rpartition(".")
        thing = vars(__import__("sys").modules[module])[name]
        try:
            known = [
                p.name for p in inspect.signature(thing).parameters.values() if p.kind in (1, 3)
            ]
        except ValueError:
            known = []
        for j, value in enumerate(VALUES):
            call = {"type": target} | {key: value for key in known if key not in ("type", "args")}
            items[f"c{i}_{j}"] = from_plain(call, origin)
        items[f"p{i}"] = from_plain({"type": target, "args": VALUES}, origin)
    root = Table(items, origin)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problems = check_signatures(root, user_dirs=[], strict=True)

    assert {"unknown-target", "target-not-allowed", "import-failed"}.isdisjoint(
        p.kind for p in problems
    )
    assert any(p.kind == "wrong-type" for p in problems)
    assert [p.message for p in problems if p.kind == "unchecked"] == []
    assert not any("pydantic" in p.message or "http" in p.message for p in problems)


def test_what_torch_accepts_in_a_config_is_accepted_by_the_check(tree: Tree) -> None:
    root = tree(
        """
        a = { type = "torch.nn.Conv2d", in_channels = 1, out_channels = 2, kernel_size = [3, 3], padding = "same" }
        b = { type = "torch.nn.Conv2d", in_channels = 1, out_channels = 2, kernel_size = 3, bias = false }
        c = { type = "torch.nn.CrossEntropyLoss", label_smoothing = 0.1 }
        d = { type = "torch.optim.SGD", lr = 1, momentum = 0.9, nesterov = true }
        e = { type = "torch.optim.lr_scheduler.MultiStepLR", milestones = [1, 2] }
        f = { type = "torch.nn.Dropout", p = 0.5 }
        g = { type = "torch.nn.Sequential", args = [{ type = "torch.nn.Linear", args = [1, 2] }] }
        h = { type = "torch.nn.Embedding", num_embeddings = 3, embedding_dim = 2, padding_idx = 0 }
        """
    )

    assert check(root) == []


def test_the_root_itself_may_be_anything() -> None:
    origin = Origin(source="x")
    assert check_signatures(Table({"a": Leaf(3, origin)}, origin), user_dirs=[]) == []
