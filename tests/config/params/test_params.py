"""Parameters: declared, read and set by attribute or dotted key, printed, varied and named."""

from __future__ import annotations

import copy
import os
import pickle
import pprint
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay import BaseParams, Params
from assay.config.params import arange, choice
from assay.config.params.files import LONGEST, experiment_name
from assay.config.tree import get_at, plain
from assay.core.errors import ConfigError, InputError

SRC = Path(__file__).resolve().parents[3] / "src"


class Tutorial(Params):
    def __init__(self) -> None:
        super().__init__()
        self.batch_size = 50
        self.topk = (1, 2, 3, 4)
        self.optim_option(lr=0.009, moment=0.9)


class Assigned(Params):
    def __init__(self) -> None:
        super().__init__()
        self.batch_size = 50
        self.topk = (1, 2, 3, 4)
        self.optim = self.optim_option(lr=0.009, moment=0.9)


@pytest.mark.row("C02", "C04")
def test_parameters_are_set_and_read_as_attributes_and_printed_one_pair_a_line() -> None:
    params = Params()
    params.device = "cpu"
    params.epoch = 400
    params.batch_size = 25

    assert (params.epoch, params.batch_size) == (400, 25)
    assert repr(params) == (
        "Params[('epoch', 400),\n ('eidx', 1),\n ('idx', 0),\n ('global_step', 0),\n ('device', 'cpu'),\n"
        " ('batch_size', 25)]"
    )


@pytest.mark.row("C03")
def test_params_have_what_a_trainer_counts_by_and_base_params_have_nothing() -> None:
    params = Params()
    params.device = "cpu"

    assert params.to_dict() == {"epoch": 10, "eidx": 1, "idx": 0, "global_step": 0, "device": "cpu"}
    assert repr(BaseParams()) == "BaseParams[]"
    assert len(BaseParams()) == 0


@pytest.mark.row("C05", "C06")
def test_a_class_declares_defaults_in_its_init_and_prints_under_its_name() -> None:
    texts = []
    for kind in (Tutorial, Assigned):
        params = kind()
        params.device = "cpu"
        texts.append(repr(params))

    assert texts[0] == (
        "Tutorial[('epoch', 10),\n ('eidx', 1),\n ('idx', 0),\n ('global_step', 0),\n ('device', 'cpu'),\n"
        " ('batch_size', 50),\n ('topk', (1, 2, 3, 4)),\n ('optim', {'lr': 0.009, 'moment': 0.9})]"
    )
    assert texts[1] == texts[0].replace("Tutorial", "Assigned")


def test_a_class_declares_defaults_in_its_body() -> None:
    class Mine(BaseParams):
        """Parameters."""

        lr: float = 0.1
        layers = [1, 2]  # noqa: RUF012 - every instance gets a copy
        note: ClassVar[str] = "not one"
        _hidden = 1

        def rate(self) -> Any:
            return self.lr * 2

        @property
        def half(self) -> Any:
            return self.lr / 2

    one, other = Mine(), Mine(lr=0.2)
    one.layers.append(3)

    assert one.to_dict() == {"lr": 0.1, "layers": [1, 2, 3]}
    assert other.to_dict() == {"lr": 0.2, "layers": [1, 2]}
    assert (other.rate(), other.half, other.note) == (0.4, 0.1, "not one")


def test_a_value_is_printed_as_pprint_does_it() -> None:
    params = BaseParams()
    params.long = ["a" * 30, "b" * 30, "c" * 30]
    params.short = 1

    assert repr(params) == "BaseParams" + pprint.pformat(list(params.to_dict().items()))
    assert "\n  " in repr(params)


def test_dotted_keys_reach_into_groups_and_lists() -> None:
    p = BaseParams()
    p["optim.lr"] = 0.1
    p.pipes = [{"n": 1}, {"n": 2}]
    p["pipes[1].n"] = 5
    p.optim.betas = (0.9, 0.99)
    p.optim["x"] = {"y": 1}

    assert p["optim.lr"] == p.optim.lr == p.optim["lr"] == 0.1
    assert p["pipes[1].n"] == p["pipes.1.n"] == 5
    assert p.optim.x.y == 1
    assert "optim.x.y" in p and "optim.x.z" not in p and "" not in p
    assert p.get("optim.nothing", 3) == 3
    del p["optim.x.y"]
    del p.optim.betas
    assert p.to_dict() == {"optim": {"lr": 0.1, "x": {}}, "pipes": [{"n": 1}, {"n": 5}]}
    assert {**p} == p.to_dict() and list(p) == ["optim", "pipes"]


def test_what_is_not_there_is_told_with_the_nearest_name() -> None:
    p = Tutorial()

    with pytest.raises(AttributeError, match="did you mean `batch_size`"):
        _ = p.batchsize
    with pytest.raises(AttributeError, match="did you mean `moment`"):
        _ = p.optim.momentum
    with pytest.raises(KeyError, match="did you mean `moment`"):
        p["optim.momentum"]
    with pytest.raises(AttributeError, match="did you mean `topk`"):
        del p.tpk
    with pytest.raises(InputError, match="is no key"):
        p["optim..lr"]
    assert {"batch_size", "copy"} <= set(dir(p))


@pytest.mark.parametrize("name", ["load", "hash", "from_args", "exp_name"])
def test_a_name_that_hides_a_method_is_refused(name: str) -> None:
    with pytest.raises((InputError, AttributeError), match=name):
        setattr(BaseParams(), name, 1)
    with pytest.raises(InputError, match=name):
        type("Mine", (BaseParams,), {name: 1})


def test_one_value_has_nothing_inside() -> None:
    p = BaseParams()
    p.lr = 0.1
    p.betas = (0.9, 0.99)

    with pytest.raises(InputError, match="`lr` is one value"):
        p["lr.x"] = 1
    with pytest.raises(InputError, match="as a whole"):
        p["betas[0]"] = 1


def test_after_lock_no_new_name_is_set_by_mistake() -> None:
    p = Tutorial().lock()
    p.batch_size = 3

    with pytest.raises(InputError, match="did you mean `batch_size`"):
        p.bach_size = 4


def test_a_class_of_its_own_takes_no_other_names_when_it_is_made() -> None:
    class Mine(BaseParams):
        lr: float = 0.1

    assert BaseParams(x=1).x == 1
    with pytest.raises(ConfigError, match="unknown parameter `lrr`"):
        Mine(lrr=1)


@pytest.mark.row("C10")
def test_choices_and_ranges_hold_when_a_value_is_set_and_on_the_command_line() -> None:
    p = BaseParams()
    p.optim = p.choice("adam", "sgd")
    p.lr = p.arange(0.1, 0, 1)
    p["model.width"] = arange(32, left=1)
    assert p.to_dict() == {"optim": "adam", "lr": 0.1, "model": {"width": 32}}

    p.optim, p.lr, p.model.width = "sgd", 1, 64
    for name, wrong in [
        ("optim", "sdg"),
        ("lr", 1.1),
        ("lr", float("nan")),
        ("lr", "x"),
        ("model.width", 0),
    ]:
        with pytest.raises(InputError, match=f"`{name.split('.')[-1]}` must be"):
            p[name] = wrong
        with pytest.raises(ConfigError, match=f"`{name}` must be"):
            p.from_args([f"--{name}={wrong}"])
    with pytest.raises(ConfigError, match="did you mean `sgd`"):
        p.from_args(["--optim=sdg"])
    p.from_args(["--optim=adam", "--lr=0", "model.width=1"])

    assert p.to_dict() == {"optim": "adam", "lr": 0.0, "model": {"width": 1}}
    assert p.copy().from_args(["--optim=sgd"]).optim == "sgd"
    with pytest.raises(InputError, match="must be"):
        p.copy().lr = 2


def test_limits_stand_in_a_class_too_and_survive_a_pickle() -> None:
    class Mine(BaseParams):
        kind: str = choice("a", "b")
        depth: int | str = choice(1, "auto")

    assert Mine().to_dict() == {"kind": "a", "depth": 1}
    assert Mine().from_args(["--depth=auto"]).depth == "auto"
    with pytest.raises(InputError, match="one of 'a', 'b'"):
        Mine().kind = "c"
    group = BaseParams(g={"lr": arange(0.1, 0, 1)})
    back = pickle.loads(pickle.dumps(group))
    assert back == group
    with pytest.raises(InputError):
        back.g.lr = 2


def test_a_limit_that_excludes_its_own_default_is_refused() -> None:
    with pytest.raises(InputError, match="default"):
        arange(2, 0, 1)
    with pytest.raises(InputError, match="at least one"):
        choice()


@pytest.mark.row("C11")
def test_a_grid_gives_independent_copies() -> None:
    p = Tutorial()

    one, other = list(p.grid("batch_size", [1, 2]))
    one.optim.lr = 5.0
    one.topk = (9,)

    assert (one.batch_size, other.batch_size, p.batch_size) == (1, 2, 50)
    assert (other.optim.lr, p.optim.lr) == (0.009, 0.009)
    points = [
        (q.optim.lr, q.batch_size)
        for q in p.grid({"optim.lr": [0.1, 0.2], "batch_size": iter([1, 2])})
    ]
    assert points == [(0.1, 1), (0.1, 2), (0.2, 1), (0.2, 2)]
    with pytest.raises(KeyError, match="did you mean `batch_size`"):
        list(p.grid("batchsize", [1]))


@pytest.mark.row("C12")
def test_a_name_is_made_of_values() -> None:
    p = Params()
    p.lr = 0.01
    assert p.build_exp_name("mytrainer", "lr") == p.exp_name == "mytrainer_lr=0.01"

    p.root, p.note = "../data set", "x" * 300
    name = p.build_exp_name("a/b", "root", "note", sep="-")
    assert re.fullmatch(r"a%2Fb-root=\.\.%2Fdata%20set-note=x{24}~[0-9a-f]{8}", name)
    p["optim.lr"] = 1
    assert p.build_exp_name("", "optim.lr") == "optim.lr=1"
    with pytest.raises(KeyError, match="did you mean `lr`"):
        p.build_exp_name("mytrainer", "lrr")


@given(st.text(), st.text())
def test_names_are_safe_file_names_and_tell_values_apart(a: str, b: str) -> None:
    one, other = (experiment_name("run", {"x": value}, "_") for value in (a, b))

    assert (one == other) == (a == b)
    for name in (one, experiment_name(a, {}, "_")):
        assert not set(name) & set('/\\:*?"<>| \n\0') and not name.startswith(".")
    assert len(one) <= len("run_x=") + LONGEST


def test_mixins_are_joined() -> None:
    class Optim(BaseParams):
        lr: float = 0.1
        seed: int = 0

    class Data(BaseParams):
        batch_size: int = 32
        seed: int = 0

    class Both(Optim, Data):
        momentum: float = 0.9

    assert Both().to_dict() == {"batch_size": 32, "seed": 0, "lr": 0.1, "momentum": 0.9}


@pytest.mark.row("C14")
def test_mixins_that_differ_about_a_default_are_refused_unless_one_has_a_namespace() -> None:
    class Optim(BaseParams):
        lr: float = 0.1

    class Data(BaseParams):
        lr: float = 0.2

    with pytest.raises(InputError) as caught:
        type("Both", (Optim, Data), {})
    assert "Both inherits two defaults of `lr`: 0.2 from Data and 0.1 from Optim." in str(
        caught.value
    )

    class Apart(BaseParams, namespace="data"):
        lr: float = 0.2

    class Fine(Optim, Apart):
        pass

    class Settled(Optim, Data):
        lr: float = 0.3

    assert Fine().to_dict() == {"data": {"lr": 0.2}, "lr": 0.1}
    assert Settled().lr == 0.3


def test_mixins_that_differ_in_what_their_init_sets_are_refused_too() -> None:
    class Optim(BaseParams):
        def __init__(self) -> None:
            super().__init__()
            self.lr = 0.1

    class Data(BaseParams):
        def __init__(self) -> None:
            super().__init__()
            self.lr = 0.2

    class Both(Optim, Data):
        pass

    class Settled(Optim, Data):
        def __init__(self) -> None:
            super().__init__()
            self.lr = 0.3

    with pytest.raises(InputError, match="two defaults of `lr`"):
        Both()
    assert Settled().lr == 0.3
    child = type("Child", (Optim,), {})
    assert child().lr == 0.1


def test_a_class_with_a_namespace_declares_in_its_body_alone() -> None:
    with pytest.raises(InputError, match="in its body"):

        class Data(BaseParams, namespace="data"):
            def __init__(self) -> None:
                super().__init__()


def test_a_group_shares_nothing_with_what_it_was_made_of() -> None:
    given = {"lr": 0.1}
    p = BaseParams()
    p.one = given
    p.two = p.one

    given["lr"] = 5
    p.two.lr = 7
    p.one |= {"x": 1}
    p.one.setdefault("y", 2)
    p.one.update(z=3)

    assert p.to_dict() == {"one": {"lr": 0.1, "x": 1, "y": 2, "z": 3}, "two": {"lr": 7}}
    with pytest.raises(InputError, match="attribute of a group"):
        p.one.items = 3


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{2,8}", fullmatch=True).filter(lambda n: not hasattr(BaseParams, n)),
        st.integers(),
    )
)
@example({"cls": 1, "self": 2})
def test_copies_are_equal_and_apart(values: dict[str, int]) -> None:
    p = BaseParams(**values)

    for twin in (p.copy(), copy.copy(p), copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert twin == p and list(twin) == list(p) and twin.hash() == p.hash()
        twin.new_one = 1
        assert twin != p or "new_one" in p


def test_the_hash_is_that_of_the_settings() -> None:
    a, b = Tutorial(), Tutorial()
    b.eidx, b.global_step, b.device = 7, 100, "cuda:1"
    assert a.hash() == b.hash()

    b.optim.lr = 0.01
    assert a.hash() != b.hash()
    assert BaseParams(x=1, y=2).hash() == BaseParams(y=2, x=1).hash() != BaseParams(x=1, y=3).hash()


def test_the_hash_is_the_same_in_every_process() -> None:
    script = "from assay import BaseParams; print(BaseParams(x=1, y={'z': (1, 2.5)}).hash())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(SRC), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == BaseParams(x=1, y={"z": (1, 2.5)}).hash()


def test_a_difference_is_told_key_by_key() -> None:
    a, b = Tutorial(), Tutorial()
    b.optim.lr, b.new = 0.1, 1

    told = [(c.key, c.before and plain(c.before), c.after and plain(c.after)) for c in a.diff(b)]

    assert told == [("optim.lr", 0.009, 0.1), ("new", None, 1)]
    assert a.diff(Tutorial()) == []


def test_every_value_knows_where_it_was_set() -> None:
    class Mine(BaseParams):
        lr: float = 0.1

        width = 3

    p = Mine()
    p.depth = 2
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    p.from_args(["--width=4"])

    for key, text in {"lr": "lr: float = 0.1", "depth": "p.depth = 2"}.items():
        origin = p.origin(key)
        assert os.path.samefile(origin.source, __file__)
        assert text in lines[origin.line - 1]
    assert str(p.origin("width")) == "<cli>:1:9"
    chain = p.origin("width").chain()
    assert len(chain) == 2 and "width = 3" in lines[chain[1].line - 1]
    assert Params().origin("epoch").source == "<default>"


def test_the_tree_holds_the_settings_with_their_places() -> None:
    class Experiment(Params):
        tag = "x"
        model: dict = {"type": "model.Net", "width": 32}  # noqa: RUF012
        betas = (0.9, 0.99)

    p = Experiment()
    p.model.width = 64
    p.epoch = 5
    root = p.tree()

    assert plain(root) == {
        "tag": "x",
        "model": {"type": "model.Net", "width": 64},
        "betas": [0.9, 0.99],
        "train": {"epochs": 5},
    }
    width = get_at(root, ("model", "width"))
    assert width is not None and width.origin.line == p.origin("model.width").line > 0
    p.train = {"steps": 7}
    assert plain(p.tree())["train"] == {"steps": 7}


def test_params_work_with_nothing_but_the_config() -> None:
    script = (
        "import sys\n"
        "from assay import Params\n"
        "p = Params()\n"
        "p.lr = 0.1\n"
        "p.from_args(['--lr=0.2'])\n"
        "rooms = {name.split('.')[1] for name in sys.modules if name.startswith('assay.')}\n"
        "assert rooms == {'core', 'config'}, rooms\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'psutil', 'rich', 'click', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "print(p.device)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "cpu\n"), done.stderr


def test_a_class_may_say_on_which_device() -> None:
    class OnTheSecond(Params):
        device: str = "cuda:1"

    assert OnTheSecond().device == "cuda:1"


def test_what_cannot_be_copied_can_be_printed_and_compared() -> None:
    lock = threading.Lock()
    one, other = BaseParams(), BaseParams()
    one.guard = other.guard = lock

    assert repr(lock) in repr(one)
    assert one == other


def test_a_deleted_parameter_stays_deleted_in_every_copy() -> None:
    p = Tutorial()
    del p.batch_size

    for twin in (p.copy(), copy.copy(p), pickle.loads(pickle.dumps(p))):
        assert "batch_size" not in twin


def test_a_dataclass_can_be_parameters_too() -> None:
    @dataclass
    class Mine(BaseParams):
        lr: float = 0.1
        layers: list[int] = field(default_factory=lambda: [1])

    p = Mine(lr=0.2).from_args(["--layers=1,2"])

    assert p.to_dict() == {"lr": 0.2, "layers": [1, 2]}
