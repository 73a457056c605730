from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from assay.config import (
    Config,
    check_shape,
    config_hash,
    get_config,
    load,
    loads,
    open_config,
    plain,
)
from assay.config.tree import dotted, get_at, key_origin_at, parse_dotted, walk
from assay.core.diagnostics import Origin
from assay.core.errors import ConfigError, InputError


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")


def opened(folder: Path, text: str, **files: str) -> Config:
    write(folder, config=text, **files)
    return open_config(folder / "config.py", user_dir=folder)


MODEL = """
    import sys
    LOADED = sys.modules.setdefault("loaded_by_tests", type(sys)("loaded_by_tests"))

    class Net:
        def __init__(self, width, tok=None): ...

        @classmethod
        def small(cls): ...

    def make(): ...
"""


@pytest.mark.row("E02", "B03")
def test_a_config_is_a_program(tmp_path: Path) -> None:
    text = """
        import math
        from assay.config import L
        from model import Net

        base = 2 ** 4
        model = L(Net)(width=base * 2)
        optimizer = L("torch.optim.AdamW")(lr=1e-3 * math.sqrt(4))
        train = dict(epochs=[i for i in range(3)][-1])
        if base > 10:
            train["precision"] = "bf16"
        seed = 1
    """

    config = opened(tmp_path, text, model=MODEL)

    same = loads(
        """
        seed = 1
        model = { type = "model.Net", width = 32 }
        optimizer = { type = "torch.optim.AdamW", lr = 2e-3 }
        train = { epochs = 2, precision = "bf16" }
        """
    )
    assert config.problems == ()
    assert plain(config.root) == plain(same.root)
    assert config_hash(config.root) == config_hash(same.root)
    assert "model" not in sys.modules


@pytest.mark.row("E03")
def test_another_config_is_imported_and_edited_without_changing_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        configs__train="train = dict(epochs=1, clip=dict(enabled=False), steps=[1])\n",
        configs__deep__more="from ..train import train\nmore = train\nmore.epochs = 7\n",
        model=MODEL,
    )
    first = """
        from .train import train
        from .deep.more import more
        from configs.train import train as absolute

        train.update(dict(epochs=5))
        train.clip.enabled = True
        train.steps.append(2)
        evaluate = dict(a=train.epochs, b=more.epochs, c=absolute.epochs, d=absolute.steps)
    """
    write(tmp_path, configs__first=first, configs__second="from .train import train\n")

    one = load(tmp_path / "configs" / "first.py", user_dir=tmp_path)
    two = load(tmp_path / "configs" / "second.py", user_dir=tmp_path)

    assert plain(one.root)["train"] == {"epochs": 5, "clip": {"enabled": True}, "steps": [1, 2]}
    assert plain(one.root)["evaluate"] == {"a": 5, "b": 7, "c": 1, "d": [1]}
    assert plain(two.root) == {"train": {"epochs": 1, "clip": {"enabled": False}, "steps": [1]}}
    assert len(one.files) == 3
    assert not [
        name for name in sys.modules if name.partition(".")[0] in ("configs", "first", "train")
    ]


@pytest.mark.row("E03")
@pytest.mark.parametrize(
    "imports",
    [
        "from .common.optim import optim",
        "from configs.common.optim import optim",
        "from .common.optim import *",
        "from .common import optim as made; optim = made.optim",
        "import configs.common.optim as made; optim = made.optim",
        "import configs.common.optim; optim = configs.common.optim.optim",
        "from assay.config import get_config; optim = get_config('common/optim.py').optim",
        "from .second import optim",
        "from .star import *",
    ],
)
def test_a_section_of_an_older_system_counts_however_it_was_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imports: str
) -> None:
    write(
        tmp_path / "configs",
        common__first="optim = dict(_target_='torch.optim.SGD', lr=1.0, momentum=0.9)\n",
        common__optim="from .first import optim\noptim.lr = 0.5\n",
        second="from configs.common.optim import optim\n",
        star="from .second import *\n",
        graph="graph = dict(enabled=True)\n",
        loaders="""\
            from omegaconf import OmegaConf
            from libai.config import LazyCall
            from libai.data.build import build_image_train_loader
            dataloader = OmegaConf.create()
            dataloader.train = LazyCall(build_image_train_loader)(dataset=[])
            """,
        config=f"""\
            {imports}
            from configs.loaders import dataloader
            from .graph import graph
            optim.weight_decay = 0.25
            del optim.momentum
            model = dict(type="model.Net")
            train = dict(train_micro_batch_size=32, train_iter=5)
            """,
    )

    config = open_config(tmp_path / "configs" / "config.py", user_dir=tmp_path)

    assert config.problems == ()
    root = plain(config.root)
    assert root["optimizer"] == {"type": "torch.optim.SGD", "lr": 0.5, "weight_decay": 0.25}
    assert root["train"]["compile"] is True
    assert root["data"]["train"]["batch_size"] == 32
    places = {
        key: place(key_origin_at(config.written, parse_dotted(key)))
        for key in ("optimizer.lr", "optimizer.weight_decay", "data.train.source")
    }
    assert places == {
        "optimizer.lr": "optim.py:2",
        "optimizer.weight_decay": "config.py:4",
        "data.train.source": "loaders.py:5",
    }
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert plain(open_config("configs/config.py").root) == root


@pytest.mark.row("E04")
def test_a_config_is_taken_by_its_path_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path,
        parts__train="from .lr import lr\ntrain = dict(epochs=3, lr=lr)\n",
        parts__lr="lr = 0.5\n",
    )
    text = """
        from assay.config import get_config
        train = get_config("parts/train.py").train
        optimizer = get_config("defaults/optim.py").SGD
        optimizer.lr = 0.25
    """
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    config = opened(tmp_path, text)

    assert config.problems == ()
    assert plain(config.root)["train"] == {"epochs": 3, "lr": 0.5}
    assert plain(config.root)["optimizer"]["lr"] == 0.25
    assert get_config(str(tmp_path / "parts" / "train.py")).train == {"epochs": 3, "lr": 0.5}
    assert get_config("defaults/optim.py").SGD.lr == 0.1
    with pytest.raises(InputError, match=r"did you mean `defaults/optim.py`"):
        get_config("defaults/optm.py")


@pytest.mark.row("E09")
def test_a_section_is_bound_to_its_name_whatever_it_was_imported_as(tmp_path: Path) -> None:
    parts = """
        from assay.config import L
        bert_model = L("model.Net")(width=1)
        other = L("model.Net")(width=2)
    """
    write(tmp_path, parts=parts, model=MODEL)

    bound = opened(tmp_path, "from parts import bert_model, other\nmodel = bert_model\n")
    unbound = opened(tmp_path, "from parts import bert_model\n")

    assert plain(bound.root) == {"model": {"type": "model.Net", "width": 1}}
    assert bound.problems == ()
    (problem,) = unbound.problems
    assert problem.message == "`bert_model` is no section, and the config has no `model`"
    assert problem.fix == "write model = bert_model"
    assert (Path(problem.origin.source).name, problem.origin.line) == ("parts.py", 3)


@pytest.mark.row("E10")
def test_omegaconf_is_read_like_any_mapping(tmp_path: Path) -> None:
    text = """
        from omegaconf import OmegaConf
        from assay.config import LazyCall
        from model import Net

        data = OmegaConf.create()
        data.train = dict(source=LazyCall(Net)(width=1), batch_size=4)
        data.test = dict(source=[LazyCall(Net)(width=2)], batch_size="${.n}", n=8)
        train = OmegaConf.create({"epochs": "${seed}"})
    """

    config = opened(tmp_path, text, model=MODEL)

    (problem,) = config.problems
    assert (problem.key, problem.origin.line) == ("train.epochs", 9)
    assert problem.message == "`${seed}` refers to nothing: there is no `seed`"
    assert plain(config.root)["data"]["train"] == {
        "source": {"type": "model.Net", "width": 1},
        "batch_size": 4,
    }
    assert plain(config.root)["data"]["test"]["batch_size"] == 8


ORIGINS = """from assay.config import L
from common import train, steps as many
model = L("a.B")(é="ö",
    width=[1, (2, 3)], head={"x": 1})
model.width[1] = 4
model.drop = 0.5
model["keep"] = \\
    True
train.update(dict(epochs=2), steps=3)
train.clip.enabled = True
def grow(model):
    model.depth = 7
grow(model)
seed = 5
process = dict(type="a.C", a=1)
process["b"] = seed
data = many
locals().update(tag="x")
"""


def test_every_value_knows_the_line_of_the_call_or_of_the_name_that_it_came_with(
    tmp_path: Path,
) -> None:
    common = "\ntrain = {\n  'clip': dict(enabled=False),\n  'non_finite': 'stop'}\nsteps = [1]\n"

    config = opened(tmp_path, ORIGINS, common=common)

    assert config.problems == ()
    places = {dotted(path): node.origin for path, node in walk(config.root) if path}
    expected = {
        'model."é"': "config.py:3",
        "model.width.0": "config.py:3",
        "model.head.x": "config.py:3",
        "model.drop": "config.py:6",
        "model.keep": "config.py:7",
        "model.depth": "config.py:12",
        "train.epochs": "config.py:9",
        "train.steps": "config.py:9",
        "train.clip.enabled": "config.py:10",
        "train.non_finite": "common.py:2",
        "seed": "config.py:14",
        "process.a": "config.py:15",
        "process.b": "config.py:15",
        "data.0": "config.py:17",
        "tag": "config.py:18",
    }
    assert {key: place(places[key]) for key in expected} == expected


def place(origin: Origin) -> str:
    return f"{Path(origin.source).name}:{origin.line}"


def test_a_call_used_twice_is_one_object(tmp_path: Path) -> None:
    text = """
        from assay.config import L
        tok = L("model.Tok")()
        once = L("model.Once")()
        inner = L("model.Inner")()
        model = L("model.Net")(tok=tok, once=once, a=inner, b=[inner])
        process = L("model.P")(tok=tok)
    """

    root = plain(opened(tmp_path, text).root)

    assert root["tok"] == {"type": "model.Tok"}
    assert root["model"] == {
        "type": "model.Net",
        "tok": "@tok",
        "once": {"type": "model.Once"},
        "a": "@inner",
        "b": ["@inner"],
    }
    assert root["process"] == {"type": "model.P", "tok": "@tok"}
    assert "once" not in root


def test_objects_become_what_a_config_can_hold(tmp_path: Path) -> None:
    text = """
        import enum, functools, pathlib, dataclasses, typing
        import numpy
        from model import Net, make
        from assay.config import L

        class Mode(enum.Enum):
            FAST = "fast"

        @dataclasses.dataclass
        class Head:
            size: int = 3

        class Spec(typing.NamedTuple):
            channels: int
            stride: int = 2

        model = L(Net.small)(mode=Mode.FAST, path=pathlib.PurePosixPath("/x/y"), number=numpy.float32(0.5),
            count=numpy.int64(3), pair=(1, 2), cls=Net, function=make, head=Head(), heads=[Head(4)], spec=Spec(1),
            late=functools.partial(make, 1, head=Head(5)), norm=lambda x: x)
        train = {"head": Head(), "spec": Spec(1)}
    """

    config = opened(tmp_path, text, model=MODEL)

    assert config.problems == ()
    assert plain(config.root)["model"] == {
        "type": "model.Net.small",
        "mode": "fast",
        "path": "/x/y",
        "number": 0.5,
        "count": 3,
        "pair": [1, 2],
        "cls": {"type": "model.Net", "_partial_": True},
        "function": {"type": "model.make", "_partial_": True},
        "head": {"type": "config.Head"},
        "heads": [{"type": "config.Head", "size": 4}],
        "spec": {"type": "config.Spec", "channels": 1},
        "late": {
            "type": "model.make",
            "_partial_": True,
            "args": [1],
            "head": {"type": "config.Head", "size": 5},
        },
        "norm": {"type": "config.<lambda>", "_partial_": True},
    }
    assert plain(config.root)["train"] == {"head": {"size": 3}, "spec": [1, 2]}


def test_all_that_cannot_be_kept_is_told_with_its_place(tmp_path: Path) -> None:
    text = """\
        from assay.config import L
        import threading
        model = L(lambda: 1)(a={1}, b=threading.Lock(), c=lambda x: x)
        def outer():
            class Local: ...
            return L(Local)()
        process = outer()
        train = {1: 2, "x": b"bytes"}
        sed = 3
        tgs = [1]
    """

    config = opened(tmp_path, text)

    places = {(each.origin.line, each.message) for each in check_shape(config)}
    assert sorted(place for place in places if "no end" not in place[1]) == [
        (3, "`model.a` is a set, which has no order"),
        (3, "`model.b` is a lock, which cannot be written down"),
        (3, "a lambda has no name that a config could keep"),
        (6, "`config.outer.<locals>.Local` has no name that a config could keep"),
        (8, "`train.x` is a bytes, which cannot be written down"),
        (8, "the key 1 of `train` is no string"),
        (9, "unknown key `sed`"),
    ]


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("plugin = [L('assay.engine.EMA')(decay=0.9)]", "plugins"),
        ("pluggins = [L('assay.engine.EMA')(decay=0.9)]", "plugins"),
        ("pluginz = ['assay.engine.EMA']", "plugins"),
        ("load_weigths = 'best'", "load_weights"),
        ("sead = 3", "seed"),
        ("Seed = 7", "seed"),
        ("desk = 'x'", "desc"),
        ("tags = 'x'", "tag"),
    ],
)
def test_a_misspelt_name_of_a_python_config_is_told(line: str, near: str, tmp_path: Path) -> None:
    name = line.partition(" ")[0]

    problems = check_shape(opened(tmp_path, f"from assay.config import L\n{line}\n"))

    assert [(each.origin.line, each.kind) for each in problems if name in each.message] == [
        (2, "unknown-key")
    ]
    assert any(f"did you mean `{near}`?" in each.fix for each in problems)


def test_numbers_and_lists_on_the_way_to_a_config_are_no_keys(tmp_path: Path) -> None:
    text = """\
        from assay.config import L
        widths = [8, 16]
        blocks = [dict(width=width) for width in widths]
        rate, steps = 0.1, 100
        model = L("net.Net")(width=widths[0], blocks=blocks, rate=rate, steps=steps)
    """

    problems = check_shape(opened(tmp_path, text))

    assert not [each for each in problems if each.kind == "unknown-key"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("seed = 1\ntrain = dict(\n", 2, "'(' was never closed"),
        ("seed = 1\nx = {}['no']\n", 2, "KeyError: 'no'"),
        ("import modle\n", 1, "ModuleNotFoundError: No module named 'modle'"),
        ("from .nowhere import x\n", 1, "ModuleNotFoundError: there is no config"),
        ("from model import Nte\n", 1, "ImportError: cannot import name 'Nte'"),
        ("from config import x\n", 1, "ImportError: configs import each other"),
        ("def f():\n    raise ValueError('é')\nf()\n", 2, "ValueError: é"),
        ("import sys; sys.exit(3)\n", 1, "SystemExit: 3"),
        ("seed = 1\x00\n", 1, "source code string cannot contain null bytes"),
        ("from broken import x\n", 1, "SyntaxError: invalid syntax"),
    ],
)
def test_what_a_program_raises_is_told_where_it_was_raised(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    (problem,) = opened(tmp_path, text, model=MODEL, broken="class A: ...\nx = = 1\n").problems

    assert problem.message.startswith(message)
    assert problem.origin.line in (line, 0)
    with pytest.raises(ConfigError):
        load(tmp_path / "config.py", user_dir=tmp_path)


def test_a_near_module_or_the_folder_of_modules_is_offered(tmp_path: Path) -> None:
    assert (
        opened(tmp_path, "import modle\n", model=MODEL).problems[0].fix == "did you mean `model`?"
    )
    assert "--user-dir" in opened(tmp_path, "import quite_another_thing\n").problems[0].fix


def test_two_configs_with_modules_of_one_name_do_not_mix(tmp_path: Path) -> None:
    text = "from model import Net\nfrom assay.config import L\nmodel = L(Net)(width=Net.width)\n"
    for width in (1, 2):
        write(tmp_path / str(width), config=text, model=f"class Net:\n    width = {width}\n")

    widths = [
        plain(load(tmp_path / str(width) / "config.py").root)["model"]["width"] for width in (1, 2)
    ]

    assert widths == [1, 2]


def test_a_name_called_config_is_the_whole_config(tmp_path: Path) -> None:
    config = opened(tmp_path, "config = {'seed': 3, 'train': {'epochs': 1}}\nother = {'a': 1}\n")

    assert plain(config.root) == {"seed": 3, "train": {"epochs": 1}}


def test_a_section_that_nothing_uses_is_told_by_the_check(tmp_path: Path) -> None:
    config = opened(tmp_path, "trian = dict(epochs=1)\n_mine = dict(a=1)\n")

    (problem,) = check_shape(config)
    assert problem.message == "unknown key `trian`"
    assert str(problem.origin).endswith("config.py:1")
    assert get_at(config.root, parse_dotted("trian.epochs")) is not None


@pytest.mark.row("E16")
def test_a_key_that_a_dictionary_has_twice_is_refused_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text('train = {"epochs": 1,\n         "epochs": 2}\n')

    (problem,) = open_config(tmp_path / "config.py").problems

    assert problem.message == "`epochs` is given twice"
    assert problem.origin.line == 2
    assert problem.related[0].origin.line == 1


def test_explain_says_where_a_value_of_a_program_comes_from(tmp_path: Path) -> None:
    write(
        tmp_path,
        train="train = dict(epochs=1, steps=5)\n",
        config="from .train import train\ntrain.epochs = 2\n",
    )

    def explained(*arguments: str) -> str:
        command = [sys.executable, "-m", "assay", "config", "explain", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=tmp_path
        ).stdout

    assert "config.py:2 " in explained("train.epochs", "config.py")
    assert "train.py:1 " in explained("train.steps", "config.py")
    assert (
        "<cli>" in (chain := explained("train.epochs", "config.py", "train.epochs=3"))
        and "config.py:2 " in chain
    )
    assert "default" in explained("train.accumulate", "config.py")


REBOUND = {
    "a call": "model = dict(model, width=4)",
    "a display": "model = {**model, 'width': 4}",
    "a copy": "model = copy.deepcopy(model); model['width'] = 4",
    "a container": "model = DictConfig(model); model.width = 4",
    "a merge": "model = model | dict(width=4)",
    "a loop": "for width in (2, 3, 4): model = dict(model, width=width)",
    "a branch": "if True: model = dict(model, width=4)",
    "two steps": "other = dict(model, width=3); model = dict(other, width=4)",
    "a function": "def wider(given): return dict(given, width=4)\nmodel = wider(model)",
    "an import": "train = dict(train, steps=7)\nmodel.width = 4",
    "a chain": "model = dict(model, width=3); model = dict(model, width=4); model = dict(model)",
}


@pytest.mark.parametrize("way", REBOUND)
def test_a_name_may_be_bound_again_through_itself(tmp_path: Path, way: str) -> None:
    text = f"""import copy
from assay.config import L
from omegaconf import DictConfig
from .common import train
model = L("model.Net")(width=2, tok=L("model.Tok")(size=1))
{REBOUND[way]}
"""
    config = opened(tmp_path, text, common="train = dict(epochs=1, steps=5)\n", model=MODEL)

    assert config.problems == ()
    assert plain(config.root)["model"] == {
        "type": "model.Net",
        "width": 4,
        "tok": {"type": "model.Tok", "size": 1},
    }
    origins = [
        key_origin_at(config.root, parse_dotted(key))
        for key in ("model.width", "model.tok", "train.epochs")
    ]
    assert all(origin.line for origin in origins)
    assert origins[2].source.endswith("config.py" if way == "an import" else "common.py")
    tok = get_at(config.root, parse_dotted("model.tok"))
    assert tok is not None and (tok.origin.line == 5 or way == "a container")


def test_values_of_a_lazy_config_refer_to_what_stands_beside_and_above_them(tmp_path: Path) -> None:
    text = """
        from assay.config import L
        from omegaconf import OmegaConf

        model = L("model.Net")(
            neck=L("model.Neck")(features="${.body.outputs}", body=L("model.Body")(outputs=["a", "b"])),
            classes=80,
            heads=[L("model.Head")(classes="${...classes}"), L("model.Head")(classes="${..0.classes}")],
            text="${.classes} of ${model.neck.body.outputs[1]}",
        )
        data = OmegaConf.create()
        data.train = dict(source=L("model.Data")(image="BGR"), batch_size=4)
        data.valid = dict(source=L("model.Data")(image="${...train.source.image}"), batch_size="${..train.batch_size}")
        optimizer = L("torch.optim.AdamW")(lr=1e-4, params=L("model.groups")(base="${..lr}"))
    """

    config = opened(tmp_path, text)
    root = plain(config.root)
    changed = plain(
        open_config(tmp_path / "config.py", ["optimizer.lr=0.5", "model.classes=3"]).root
    )

    assert config.problems == ()
    assert root["model"]["neck"]["features"] == ["a", "b"]
    assert [head["classes"] for head in root["model"]["heads"]] == [80, 80]
    assert root["model"]["text"] == "80 of b"
    assert root["data"]["valid"] == {
        "source": {"type": "model.Data", "image": "BGR"},
        "batch_size": 4,
    }
    assert root["optimizer"]["params"]["base"] == 1e-4
    assert changed["optimizer"]["params"]["base"] == 0.5
    assert changed["model"]["heads"][1]["classes"] == 3


def test_a_call_that_another_lazy_config_made_is_taken_by_its_class(tmp_path: Path) -> None:
    text = """
        from omegaconf import DictConfig
        from model import Net

        def lazy(target, **arguments):
            return DictConfig({"_target_": target, **arguments}, flags={"allow_objects": True})

        model = lazy(Net, width=3, tok=lazy(Net.small))
        process = dict(_target_="model.make")
    """

    config = opened(tmp_path, text, model=MODEL)

    assert config.problems == ()
    assert plain(config.root)["model"] == {
        "type": "model.Net",
        "width": 3,
        "tok": {"type": "model.Net.small"},
    }
    assert plain(config.root)["process"] == {"type": "model.make"}
    assert [(note.origin.line, note.message) for note in config.notes] == [
        (8, "`_target_` is `type` here, 3 times in this config")
    ]


def test_only_what_can_be_called_is_written_down_as_a_call(tmp_path: Path) -> None:
    (problem,) = opened(tmp_path, "from assay.config import L\nmodel = L(3)(width=2)\n").problems

    assert (
        problem.message == "TypeError: a call needs a class, a function or the text of one, not 3"
    )
    assert problem.related == ()
