from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bypass
from assay.build.target_owners import owner_of
from assay.build.targets import TargetError, find_target, resolve
from assay.config import own_targets, torch_targets
from assay.config.allow_list import can_trust, refuse_by_name
from assay.config.isolation import user_code
from assay.core.diagnostics import Origin, render

Write = Callable[..., Path]

ALLOWED = [
    "model.Net",
    "model:Net",
    "model:Net.small",
    "model.Net.small",
    "model.Net.build",
    "model:Net.Inner",
    "model.Child",
    "model.Point",
    "model.make",
    "model.cached",
    "model.no_grad",
    "model.wrapping",
    "model.small_net",
    "model.linear",
    "model.caller",
    "model.instance",
    "pkg.nets.Net",
    "pkg.nets:Net",
    "pkg.nets",
    "torch.nn.Linear",
    "torch.nn:Linear",
    "torch.nn.modules.linear.Linear",
    "torch.nn.Parameter",
    "torch.nn.functional.relu",
    "torch.nn.functional.conv2d",
    "torch.nn.functional.logsigmoid",
    "torch.nn.functional.max_pool2d",
    "torch.nn.init.xavier_uniform_",
    "torch.optim.AdamW",
    "torch.optim.lr_scheduler.CosineAnnealingLR",
    "torch.optim.swa_utils.AveragedModel",
    "torch.utils.data.DataLoader",
    "torch.utils.data.TensorDataset",
]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder of user code that tries to pass other people's objects off as its own."""
    folder = tmp_path_factory.mktemp("bypass")
    bypass.write(folder)
    yield folder


@pytest.fixture
def opened(project: Path) -> Iterator[Path]:
    with user_code([project]):
        yield project


@pytest.mark.parametrize("target", ALLOWED)
def test_what_the_user_or_torch_defines_is_found(target: str, opened: Path) -> None:
    assert callable(find_target(target, user_dirs=[opened]))


def test_every_way_around_the_allow_list_is_refused(opened: Path) -> None:
    assert len(set(bypass.REFUSED)) >= 200
    passed = []
    for target in bypass.REFUSED:
        try:
            passed.append((target, find_target(target, user_dirs=[opened])))
        except TargetError as error:
            assert error.what and error.kind in ("unknown-target", "target-not-allowed"), target
    assert passed == []


def test_trusting_torch_or_python_changes_nothing(opened: Path) -> None:
    everything = {
        "torch",
        "os",
        "builtins",
        "functools",
        "assay",
        "posix",
        "subprocess",
        "pickle",
        "__main__",
    }
    for target in bypass.REFUSED:
        with pytest.raises(TargetError):
            find_target(target, user_dirs=[opened], trusted=everything)


def test_the_command_that_would_allow_a_target_is_shown_only_where_it_helps(project: Path) -> None:
    def fix(target: str) -> str:
        with pytest.raises(TargetError) as caught:
            resolve(target, user_dirs=[project])
        return caught.value.fix

    assert fix("hypothesis.given") == "assay config trust hypothesis"
    for target in (
        "os.system",
        "torch.hub.load",
        "torch.load",
        "model.sh",
        "model.Popen",
        "functools.partial",
    ):
        assert "trust" not in fix(target)
    assert (
        can_trust("timm") and not can_trust("torch") and not can_trust("os") and not can_trust("")
    )


def test_a_module_that_is_not_allowed_is_not_even_imported(project: Path) -> None:
    sys.modules.pop("antigravity", None)

    with pytest.raises(TargetError):
        resolve("antigravity.geohash", user_dirs=[project])

    assert "antigravity" not in sys.modules


def test_a_trusted_package_gives_what_it_defines_and_nothing_it_imports(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = write(
        "lib",
        trustme__nets="""
        import os
        from os import system
        from functools import partial
        class Net: pass
        class _P: pass
        """,
    )
    monkeypatch.syspath_prepend(installed)
    project = write("project", own="X = 1")

    assert resolve("trustme.nets.Net", user_dirs=[project], trusted=["trustme"]).__name__ == "Net"
    assert (
        resolve("trustme.nets.Net", user_dirs=[project], trusted=["trustme.nets"]).__name__ == "Net"
    )
    for target in (
        "trustme.nets.system",
        "trustme.nets.os.system",
        "trustme.nets.partial",
        "trustme.nets._P",
    ):
        with pytest.raises(TargetError) as caught:
            resolve(target, user_dirs=[project], trusted=["trustme"])
        assert caught.value.kind == "target-not-allowed"
    with pytest.raises(TargetError):
        resolve("trustme.nets.Net", user_dirs=[project], trusted=["trust", "trustme.other"])
    for name in ("trustme", "trustme.nets"):
        sys.modules.pop(name)


def test_everything_that_assay_offers_is_either_listed_or_refused_with_a_reason(
    write: Write,
) -> None:
    project = write(own="X = 1")
    offered = {
        f"{package}.{name}": getattr(importlib.import_module(package), name)
        for package in own_targets.ALLOWED
        for name in getattr(importlib.import_module(package), "__all__", ())
    }
    listed = {
        f"{package}.{name}" for package, names in own_targets.ALLOWED.items() for name in names
    }

    with user_code([project]):
        for target in listed:
            assert owner_of(resolve(target, user_dirs=[project]), user_dirs=[]) == "assay"
        for target in own_targets.NEVER:
            with pytest.raises(TargetError, match=target):
                resolve(target, user_dirs=[project])

    assert offered.keys() - listed - own_targets.NEVER.keys() == set()
    assert own_targets.NEVER.keys() - offered.keys() == set()


@pytest.mark.parametrize(
    "target",
    [
        "assay.engine.Engine.run",
        "assay.engine.Saver.save",
        "assay.engine.checkpoint.saver.Saver",
        "assay.engine.checkpoint.folder.write_files",
        "assay.engine.Supervised.attach",
        "assay.engine.loop.styles.adapt.as_process",
        "assay.plugins.TensorBoard.attach",
        "assay.plugins.tensorboard.RunRecorder",
        "assay.engine.parallel.DataParallelGroup",
    ],
)
def test_what_assay_has_besides_is_no_target(target: str, project: Path) -> None:
    with pytest.raises(TargetError) as caught:
        resolve(target, user_dirs=[project])

    assert caught.value.kind == "target-not-allowed"


def test_a_misspelt_name_module_or_submodule_gets_its_neighbour(write: Write) -> None:
    project = write(model="class Net: pass", nets__resnet="class ResNet:\n    def small(): ...")

    def fix(target: str) -> str:
        with pytest.raises(TargetError) as caught:
            resolve(target, user_dirs=[project])
        assert caught.value.kind == "unknown-target"
        return caught.value.fix

    assert fix("modle.Net") == "did you mean `model`?"
    assert fix("model.Nte") == "did you mean `Net`?"
    assert fix("nets.resent.ResNet") == "did you mean `resnet`?"
    assert fix("nets.resent:ResNet") == "did you mean `resnet`?"
    assert fix("nets.resnet.ResNet.smal") == "did you mean `small`?"
    assert fix("Net") == "did you mean `model.Net`?"
    assert fix("Unheard") == 'write "package.module.Name"'
    assert fix("model") == 'write "package.module.Name"'
    assert fix("model.Zzzz") == "there are: Net"
    assert fix("nets.resnet") == "there are: ResNet"


def test_a_misspelt_name_of_torch_or_assay_gets_its_neighbour_without_an_import(
    project: Path,
) -> None:
    for target, meant in {
        "torch.optim.AdmaW": "AdamW",
        "torch.nn.CrossEntropy": "CrossEntropyLoss",
        "torch.nn.AdamW": "torch.optim.AdamW",
        "assay.engine.Acuracy": "Accuracy",
    }.items():
        module, _, name = target.rpartition(".")
        refusal = refuse_by_name(target)
        assert refusal is not None and refusal.fix == f"did you mean `{meant}`?"
        assert refusal.message == f"`{target}` is unknown: the module `{module}` has no `{name}`"
        with pytest.raises(TargetError) as caught:
            resolve(target, user_dirs=[project])
        assert caught.value.fix == refusal.fix


def test_a_torch_that_is_newer_than_the_list_may_have_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_targets, "REVIEWED", ())

    refusal = refuse_by_name("torch.optim.AdmaW")

    assert refusal is not None
    assert (
        refusal.message == "`torch.optim.AdmaW` is no class or function of torch that assay knows"
    )
    assert refusal.fix == "did you mean `AdamW`? Else: assay config trust torch.optim.AdmaW"


def test_the_users_error_comes_with_the_users_lines_only(write: Write) -> None:
    project = write(
        model="from helper import width\nclass Net: pass\n",
        helper='def check(n):\n    grün = "ü"; raise ValueError(f"bad width {n}")\n\nwidth = check(3)\n',
    )

    with pytest.raises(TargetError) as caught:
        resolve("model.Net", user_dirs=[project])

    error = caught.value
    assert error.kind == "import-failed"
    assert "ValueError: bad width 3" in error.what
    assert f"{project / 'helper.py'}:2" in error.what
    assert [(Path(p.origin.source).name, p.origin.line) for p in error.raised_at] == [
        ("model.py", 1),
        ("helper.py", 4),
        ("helper.py", 2),
    ]
    shown = render([error.problem(Origin(source="digits.toml"))], color=False)
    assert 'raise ValueError(f"bad width {n}")' in shown
    assert error.raised_at[-1].origin.column == 17
    assert "importlib" not in shown
    assert isinstance(error.__cause__, ValueError)


def test_a_missing_import_inside_the_users_module_is_not_taken_for_a_missing_module(
    write: Write,
) -> None:
    project = write(model="import helpr", helper="", other="import surely_not_installed.deep")

    with pytest.raises(TargetError) as caught:
        resolve("model.Net", user_dirs=[project])
    assert caught.value.kind == "import-failed"
    assert caught.value.fix == "did you mean `helper`?"

    with pytest.raises(TargetError) as caught:
        resolve("other.Net", user_dirs=[project])
    assert "install `surely_not_installed`" in caught.value.fix


def test_a_syntax_error_and_an_exit_in_the_users_module_are_problems_not_crashes(
    write: Write,
) -> None:
    project = write(
        broken="x = 1\ndef f(:\n", leaves="import sys\nsys.exit(3)\n", empty="raise KeyError\n"
    )

    for target, said, line in (
        ("broken.f", "SyntaxError", 2),
        ("leaves.f", "SystemExit: 3", 2),
        ("empty.f", "KeyEr", 1),
    ):
        with pytest.raises(TargetError) as caught:
            resolve(target, user_dirs=[project])
        assert said in caught.value.what
        assert caught.value.raised_at[-1].origin.line == line


def test_a_module_whose_parts_fail_to_load_on_first_use_is_a_problem(write: Write) -> None:
    project = write(lazy="def __getattr__(name):\n    raise RuntimeError('no parts today')\n")

    with pytest.raises(TargetError, match="no parts today"):
        resolve("lazy.Net", user_dirs=[project])


def test_a_file_hidden_by_the_standard_library_is_said_to_be(write: Write) -> None:
    project = write(random="class Net: pass")

    with pytest.raises(TargetError) as caught:
        resolve("random.Net", user_dirs=[project])

    assert caught.value.fix == "give it another name"


def test_nothing_is_called_while_resolving(write: Write) -> None:
    project = write(
        model="""
        calls = []
        class Loud:
            def __get__(self, instance, owner):
                calls.append("descriptor")
                return lambda: None
        class Meta(type):
            def __call__(cls, *args): calls.append("class")
        class Net(metaclass=Meta):
            loud = Loud()
            def __init__(self): calls.append("init")
        def make(): calls.append("make")
        """
    )

    with user_code([project]):
        for target in ("model.Net", "model.make", "model.Net.loud"):
            try:
                find_target(target, user_dirs=[project])
            except TargetError:
                assert target == "model.Net.loud"
        assert sys.modules["model"].calls == []


def test_the_owner_is_who_defined_it(opened: Path) -> None:
    def owner(target: str) -> Any:
        return owner_of(find_target(target, user_dirs=[opened]), user_dirs=[opened])

    assert owner("model.Net") == "user"
    assert owner("torch.nn.Linear") == "torch"
    assert owner("model.linear") == "torch"
    assert owner_of(print, user_dirs=[opened]) is None


def test_a_problem_keeps_the_place_it_is_given() -> None:
    origin = Origin(source="digits.toml", line=3, column=8)

    problem = TargetError("unknown-target", "what", fix="fix").problem(origin, "model.type")

    assert (problem.kind, problem.message, problem.origin, problem.key, problem.fix) == (
        "unknown-target",
        "what",
        origin,
        "model.type",
        "fix",
    )
