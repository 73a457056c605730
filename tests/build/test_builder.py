from __future__ import annotations

import enum
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from omegaconf import OmegaConf

from assay.build import Context, ContextError, build, instantiate, user_code
from assay.config import L
from assay.config.tree import Table, get_at, parse_dotted
from assay.core.errors import ConfigError

Write = Callable[..., Path]
Tree = Callable[[str], Table]

PARTS = """
    import enum
    from collections.abc import Iterable
    from dataclasses import dataclass
    from pathlib import Path
    from assay.build import Context, inject

    class Color(enum.Enum):
        red = "red"

    @dataclass
    class Head:
        size: int

    class Dataset:
        made = 0
        def __init__(self, size: int = 3):
            Dataset.made += 1
            self.size = size

    class Loader:
        def __init__(self, dataset, *rest, batch_size=1, **more):
            self.dataset, self.rest, self.batch_size, self.more = dataset, rest, batch_size, more

    class Typed:
        def __init__(self, color: Color = Color.red, where: Path = Path(), pair: tuple[int, float] = (0, 0.0),
                     head: Head | None = None, many: Iterable[int] = (), text: str = "", free=None):
            self.all = (color, where, pair, head, many, text, free)

    class Process:
        def __init__(self, model, optimizer, dataset: Dataset, context: Context | None = None, seed: int = 0):
            self.all = (model, optimizer, dataset, context, seed)

    class Marked:
        @inject
        def __init__(self, seed: int = 0): self.seed = seed

    def device_of(device): return device
    def boom(why): raise KeyError(why)
    def wants(nothing, at_all): pass
    def wants_by_position(x, /): return x
"""


@pytest.fixture
def project(write: Write) -> Iterator[Path]:
    place = write(parts=PARTS)
    with user_code([place]):
        yield place


def make(
    root: Table, path: str, context: Context | None = None, *user_dirs: Path, **how: Any
) -> Any:
    where = parse_dotted(path)
    node = get_at(root, where)
    assert node is not None
    return build(node, context or Context(), root=root, path=where, user_dirs=user_dirs, **how)


def test_a_call_is_made_with_what_is_written_and_what_is_inside_is_made_first(tree: Tree) -> None:
    root = tree(
        """
        [model]
        type = "torch.nn.Sequential"
        args = [{ type = "torch.nn.Linear", args = [2, 3], bias = false }, { type = "torch.nn.ReLU" }]
        """
    )

    model = make(root, "model")

    assert repr(model[0]) == "Linear(in_features=2, out_features=3, bias=False)"
    assert isinstance(model[1], torch.nn.ReLU)


@pytest.mark.row("D28")
def test_two_loaders_share_the_dataset_they_both_refer_to(project: Path, tree: Tree) -> None:
    root = tree(
        """
        [dataset]
        type = "parts.Dataset"
        [loaders]
        train = { type = "parts.Loader", dataset = "@dataset", batch_size = 2 }
        valid = { type = "parts.Loader", args = ["@dataset", "@loaders.train"] }
        """
    )
    context = Context()

    loaders = make(root, "loaders", context, project)
    dataset = make(root, "dataset", context, project)

    assert loaders["train"].dataset is loaders["valid"].dataset is dataset
    assert loaders["valid"].rest == (loaders["train"],)
    assert make(root, "loaders.train", context, project) is loaders["train"]
    assert type(dataset).made == 1
    assert make(root, "dataset", Context(), project) is not dataset


@pytest.mark.row("D28")
def test_objects_that_need_each_other_are_a_clear_error(project: Path, tree: Tree) -> None:
    root = tree(
        """
        chase = "@caught"
        caught = "@chase"
        [a]
        type = "parts.Loader"
        dataset = { type = "parts.Loader", dataset = "@b" }
        [b]
        type = "parts.Loader"
        dataset = "@a"
        """
    )

    for path, chain in (
        ("a", "`a` -> `a.dataset` -> `b` -> `a`"),
        ("chase", "`caught` -> `chase` -> `caught`"),
    ):
        with pytest.raises(ConfigError) as caught:
            make(root, path, None, project)
        (problem,) = caught.value.problems
        assert problem.kind == "reference-cycle"
        assert chain in problem.message


def test_lists_tables_and_references_to_data_become_plain_values(project: Path, tree: Tree) -> None:
    root = tree(
        """
        number = 3
        free = { a = ["@number", "@none", "@@at", "$${x}"], b = { c = "@sizes" } }
        sizes = [1, 2]
        [typed]
        type = "parts.Typed"
        free = "@free.b"
        """
    )

    assert make(root, "free") == {"a": [3, None, "@at", "${x}"], "b": {"c": [1, 2]}}
    assert make(root, "typed", None, project).all[-1] == {"c": [1, 2]}


def test_a_list_that_is_referred_to_stays_one_object(tree: Tree) -> None:
    root = tree(
        'pair = ["@sizes", "@sizes"]\nsizes = [[1], { type = "torch.nn.ReLU" }]\nitem = "@sizes.1"\n'
    )
    context = Context()

    first, second = make(root, "pair", context)

    assert first is second
    assert make(root, "item", context) is first[1]


def test_values_become_what_the_parameter_asks_for(project: Path, tree: Tree) -> None:
    root = tree(
        """
        [typed]
        type = "parts.Typed"
        color = "red"
        where = "a/b"
        pair = [1, 2]
        head = { size = 4 }
        many = [1, 2]
        text = "@@x"
        [optimizer]
        type = "torch.optim.AdamW"
        betas = [0.5, 0.6]
        lr = 1
        """
    )

    color, where, pair, head, many, text, _ = make(root, "typed", None, project).all
    optimizer = make(root, "optimizer", extra={"params": [torch.nn.Parameter(torch.zeros(1))]})

    assert isinstance(color, enum.Enum) and color.value == "red"
    assert where == Path("a/b")
    assert pair == (1, 2.0) and isinstance(pair, tuple) and isinstance(pair[1], float)
    assert head.size == 4
    assert many == [1, 2]
    assert text == "@x"
    assert optimizer.defaults["betas"] == (0.5, 0.6)


def test_what_does_not_fit_is_a_problem_at_its_place(project: Path, tree: Tree) -> None:
    root = tree('[typed]\ntype = "parts.Typed"\npair = [1, "x"]\n')

    with pytest.raises(ConfigError) as caught:
        make(root, "typed", None, project)

    (problem,) = caught.value.problems
    assert (problem.kind, problem.key, str(problem.origin)) == (
        "wrong-type",
        "typed.pair",
        "digits.toml:3:12",
    )


def test_unknown_targets_and_references_are_problems_at_their_place(
    project: Path, tree: Tree
) -> None:
    root = tree(
        '[dataset]\ntype = "parts.Datset"\n[loader]\ntype = "parts.Loader"\ndataset = "@datset"\nx = "@[["\n'
    )

    with pytest.raises(ConfigError) as caught:
        make(root, "dataset", None, project)
    assert (caught.value.problems[0].kind, str(caught.value.problems[0].origin)) == (
        "unknown-target",
        "digits.toml:2:8",
    )

    with pytest.raises(ConfigError) as caught:
        make(root, "loader", None, project)
    (problem,) = caught.value.problems
    assert (problem.kind, problem.fix) == ("unknown-reference", "did you mean `dataset`?")
    assert str(problem.origin) == "digits.toml:5:11"

    with pytest.raises(ConfigError, match="refers to nothing"):
        make(root, "loader.x", None, project)


def test_required_parameters_come_from_the_context_and_defaults_stay(
    project: Path, tree: Tree
) -> None:
    root = tree(
        '[dataset]\ntype = "parts.Dataset"\n[process]\ntype = "parts.Process"\noptimizer = "@none"\n'
    )
    context, model = Context(), torch.nn.Linear(1, 1)
    context.set("model", model)
    context.set("seed", 7)
    context.set("source", make(root, "dataset", context, project))
    context.set("here", context)

    process = make(root, "process", context, project)

    assert process.all == (model, None, context.get("source"), context, 0)


def test_the_optimizer_gets_the_parameters_from_the_context(tree: Tree) -> None:
    root = tree(
        """
        optimizer = { type = "torch.optim.SGD", lr = 0.5 }
        schedule = { type = "torch.optim.lr_scheduler.StepLR", step_size = 2 }
        """
    )
    context, model = Context(), torch.nn.Linear(1, 1)
    context.set("model", model)
    context.set("params", list(model.parameters()))

    optimizer = make(root, "optimizer", context)
    context.set("optimizer", optimizer)
    schedule = make(root, "schedule", context)

    assert optimizer.param_groups[0]["params"][0] is model.weight
    assert schedule.optimizer is optimizer


def test_under_inject_a_default_is_filled_by_a_role(project: Path, tree: Tree) -> None:
    root = tree('[marked]\ntype = "parts.Marked"\n')
    context = Context()
    context.set("seed", 7)

    assert make(root, "marked", context, project, roles=("seed",)).seed == 7
    assert make(root, "marked", Context(), project, roles=("seed",)).seed == 0


def test_device_goes_by_name_into_the_users_code_only(
    project: Path, write: Write, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(
        write("lib", foreign_devices="def device_of(device): return device\n")
    )
    root = tree('[mine]\ntype = "parts.device_of"\n[foreign]\ntype = "foreign_devices.device_of"\n')
    context = Context()
    context.set("device", "cpu")

    assert make(root, "mine", context, project, roles=("device",)) == "cpu"
    with pytest.raises(ConfigError, match=r"`foreign_devices\.device_of` needs `device`"):
        make(root, "foreign", context, project, roles=("device",), trusted=["foreign_devices"])


def test_everything_missing_is_told_at_once(project: Path, tree: Tree) -> None:
    root = tree('[x]\ntype = "parts.wants"\n')

    with pytest.raises(ConfigError) as caught:
        make(root, "x", None, project)

    assert [problem.key for problem in caught.value.problems] == ["x.nothing", "x.at_all"]


def test_two_candidates_say_for_what_they_were_asked(project: Path, tree: Tree) -> None:
    root = tree(
        'a = { type = "parts.Dataset" }\nb = { type = "parts.Dataset" }\n[process]\ntype = "parts.Process"\n'
    )
    context = Context()
    for name in "ab":
        context.set(name, make(root, name, context, project))

    with pytest.raises(ContextError, match=r"`a` \(Dataset\) and `b` \(Dataset\)") as caught:
        make(root, "process", context, project)

    assert caught.value.__notes__ == ["while building process = parts.Process (digits.toml:3:2)"]


def test_an_error_of_the_called_code_keeps_its_type_and_place_and_says_where_it_was_asked_for(
    project: Path, tree: Tree
) -> None:
    root = tree(
        'x = 1\n\n[outer]\ntype = "parts.Loader"\n[outer.dataset]\ntype = "parts.boom"\nwhy = "because"\n'
    )

    with pytest.raises(KeyError, match="because") as caught:
        make(root, "outer", None, project)

    assert caught.value.__notes__ == ["while building outer.dataset = parts.boom (digits.toml:5:2)"]
    assert "def boom(why): raise KeyError(why)" in "".join(traceback.format_exception(caught.value))


def test_what_is_written_wins_over_extra(project: Path, tree: Tree) -> None:
    root = tree('[loader]\ntype = "parts.Loader"\nbatch_size = 4\n')

    loader = make(root, "loader", None, project, extra={"dataset": "d", "batch_size": 9, "seed": 1})

    assert (loader.dataset, loader.batch_size, loader.more) == ("d", 4, {"seed": 1})


def test_a_node_that_was_replaced_is_built_anew(project: Path, tree: Tree) -> None:
    context = Context()
    small, large = (tree(f'[dataset]\ntype = "parts.Dataset"\nsize = {size}\n') for size in (1, 2))

    assert make(small, "dataset", context, project).size == 1
    assert make(large, "dataset", context, project).size == 2


def test_instantiate_builds_from_python(
    project: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    node = tree('[m]\ntype = "torch.nn.Linear"\nargs = [2, 3]\n').items["m"]

    assert instantiate("torch.nn.Linear", 2, out_features=3).out_features == 3
    assert (
        instantiate({"type": "torch.nn.Linear", "in_features": 2}, out_features=3).in_features == 2
    )
    assert instantiate(node, bias=False).bias is None
    assert instantiate("parts.Dataset", size=5).size == 5
    assert instantiate(lambda x: x + 1, 2) == 3
    with pytest.raises(TypeError, match="args"):
        instantiate(node, 3)
    with pytest.raises(ConfigError, match="may not call"):
        instantiate({"type": "torch.hub.load"})


def test_instantiate_builds_lists_and_what_looks_like_one() -> None:
    linear = L("torch.nn.Linear")(in_features=2, out_features=3)
    plain = [linear, {"type": "torch.nn.ReLU"}]
    config = OmegaConf.create(flags={"allow_objects": True})
    config.test = plain
    config.both = {
        "parts": [{"type": "torch.nn.Sequential", "args": plain}],
        "name": "torch.nn.ReLU",
    }

    for given in (plain, tuple(plain), config.test):
        first, second = instantiate(given)
        assert (first.in_features, type(second).__name__) == (2, "ReLU")
    both = instantiate(config.both)
    assert len(both["parts"][0]) == 2 and both["name"] == "torch.nn.ReLU"
    shared = instantiate([linear, {"type": "torch.nn.Sequential", "args": [linear]}])
    assert shared[1][0] is shared[0]
    with pytest.raises(TypeError, match="only a call takes arguments"):
        instantiate(plain, bias=False)


def test_instantiate_tells_what_cannot_be_written_down() -> None:
    with pytest.raises(ConfigError, match="cannot be written down"):
        instantiate({"type": "torch.nn.Linear", "in_features": object()})


def test_instantiate_takes_what_is_missing_from_the_context_in_use() -> None:
    context = Context()
    context.set("model", "the model")

    def hook(model: Any, other: int = 3) -> tuple[Any, int]:
        return model, other

    with context.use():
        assert instantiate(hook) == ("the model", 3)
    with pytest.raises(ConfigError, match="needs `model`"):
        instantiate(hook)


class Spec(NamedTuple):
    channels: int
    stride: int = 1


@dataclass
class Shape:
    height: int
    width: int = 4


class Holder:
    def __init__(self, *items: Any, **named: Any) -> None:
        self.items, self.named = items, named

    def __call__(self) -> None: ...


@pytest.fixture
def from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.setitem(sys.modules, "test_builder", sys.modules[__name__])
    for kind in (Spec, Shape, Holder):
        monkeypatch.setattr(kind, "__module__", "test_builder")


@pytest.mark.usefixtures("from_here")
def test_instantiate_follows_value_references_in_what_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WIDTH", "7")
    inner = {
        "type": "test_builder.Holder",
        "a": "${..width}",
        "b": "${.c}",
        "c": 2,
        "d": "${width}",
    }
    tree = {
        "type": "test_builder.Holder",
        "width": 5,
        "inner": inner,
        "env": "${env:WIDTH}",
        "text": "$${x}",
    }

    built = instantiate(tree)

    assert built.named["inner"].named == {"a": 5, "b": 2, "c": 2, "d": 5}
    assert (built.named["env"], built.named["text"]) == (7, "${x}")
    assert instantiate(tree, width=6).named["inner"].named["a"] == 6
    assert instantiate(L("test_builder.Holder")(y=4, x="${y}")).named["x"] == 4
    assert instantiate({"x": "${y}", "y": [1]}) == {"x": [1], "y": [1]}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"x": "${y}"}, "`${y}` refers to nothing"),
        ({"x": {"y": "${....z}"}}, "`${....z}` leads out of the config"),
        ({"x": "${env:ASSAY_NO_SUCH}"}, "`ASSAY_NO_SUCH` is not set"),
        ({"x": "${device:count}"}, "`${device:count}` is known when a run starts"),
        ([{"type": "torch.nn.ReLU"}, "${0.5}"], "`${0.5}` refers to nothing"),
    ],
)
def test_instantiate_tells_a_reference_that_it_cannot_follow(tree: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        instantiate(tree)


@pytest.mark.usefixtures("from_here")
def test_a_dataclass_and_a_named_tuple_reach_the_call_as_what_they_are() -> None:
    built = instantiate(
        L("test_builder.Holder")(spec=Spec(3), shapes=[Shape(1, width=2), Shape(2)])
    )

    assert built.named == {"spec": Spec(3), "shapes": [Shape(1, 2), Shape(2)]}
    assert isinstance(built.named["spec"], Spec)


@pytest.mark.usefixtures("from_here")
def test_calls_of_hydra_and_lazy_config_are_taken_with_a_note() -> None:
    tree = {
        "_target_": "test_builder.Holder",
        "_args_": [1, {"_target_": Spec, "channels": 2}],
        "_partial_": False,
    }

    with pytest.warns(UserWarning, match=r"`_target_` is `type` here, 2 times in this config"):
        built = instantiate(tree)

    assert built.items == (1, Spec(2))


@pytest.mark.usefixtures("from_here")
def test_what_is_made_already_comes_back_as_it_is() -> None:
    plain = {"a": [1, {"b": None}]}
    thing = Holder()

    assert instantiate(plain) is plain
    assert instantiate(thing) is thing
    assert instantiate(3) == 3
    assert instantiate([thing.items, 3]) == [(), 3]
    with pytest.raises(TypeError, match="a Holder is made already"):
        instantiate(thing, 3)


@pytest.mark.parametrize(
    ("arguments", "at", "fix"),
    [
        ("p = -0.5", "model.p", "write 0.5"),
        ("p = 1.5", "model.p", "leave `p` out: its default is 0.5"),
    ],
)
def test_a_number_that_a_library_refuses_is_told_at_its_place(
    arguments: str, at: str, fix: str, tree: Tree
) -> None:
    root = tree(f'[model]\ntype = "torch.nn.Dropout"\n{arguments}\n')

    with pytest.raises(ConfigError) as caught:
        make(root, "model")

    (problem,) = caught.value.problems
    assert (problem.key, problem.fix, problem.origin.line) == (at, fix, 3)
