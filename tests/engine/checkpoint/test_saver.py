"""Checkpoints on disk: no partial one counts, no damaged one loads, no wanted one is deleted."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from assay.core.errors import CheckpointError, InputError
from assay.engine.checkpoint.codec import digest_state
from assay.engine.checkpoint.folder import Where, load_parts
from assay.engine.checkpoint.saver import Saver
from assay.formats import manifest as manifests

SRC = Path(__file__).resolve().parents[3] / "src"


@pytest.fixture
def saver(tmp_path: Path) -> Saver:
    return Saver(tmp_path / "checkpoints")


def state(step: int) -> dict[str, Any]:
    """Two parts that say which step they are of."""
    return {
        "model": {"w": torch.arange(4.0) + step, "b": torch.tensor(step)},
        "state": {"step": step, "seen": (1, 2)},
    }


def save(saver: Saver, *steps: int, **options: Any) -> None:
    for step in steps:
        saver.save(state(step), Where(step=step, epoch=step // 10, samples=8 * step), **options)


def steps(saver: Saver) -> list[int]:
    return [manifest.step for manifest in saver.complete()[0]]


def edit_manifest(folder: Path, **fields: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


# -------------------------------------------------------------------------------------------------- what is written


def test_what_was_saved_is_loaded(saver: Saver) -> None:
    saver.save(state(12), Where(step=12, epoch=1, samples=96), info={"valid/acc": 0.5})

    assert digest_state(saver.load()) == digest_state(state(12))
    (manifest,) = saver.complete()[0]
    assert (manifest.name, manifest.step, manifest.epoch, manifest.samples) == (
        "step-000000012",
        12,
        1,
        96,
    )
    assert manifest.info == {"valid/acc": 0.5}
    assert manifest.kind == "checkpoint"


def test_any_state_goes_in(saver: Saver) -> None:
    base = torch.arange(8.0)
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    parts: dict[str, Any] = {
        "number": 7,
        "nothing": None,
        "tensor": torch.eye(2, dtype=torch.bfloat16),
        "module": net.state_dict(),
        "odd": {
            "__metadata__": base,
            "a\udc80": torch.ones(1),
            "\n": torch.zeros(()),
            "": torch.empty(0, 3),
            5: base,
        },
        "overlapping": [base[:5], base[3:], base.reshape(2, 4), base.view(torch.int32), base],
        "complex": [torch.tensor([1 + 2j]), torch.tensor([1 + 2j], dtype=torch.complex128).conj()],
    }

    saver.save(parts, Where(step=1))
    back = saver.load()

    assert digest_state(back) == digest_state(parts)
    assert back["odd"][5] is back["odd"]["__metadata__"]
    back["overlapping"][0][4] = -1.0
    assert back["overlapping"][1].tolist() == [3.0, 4.0, 5.0, 6.0, 7.0]


def test_weights_can_be_read_by_others(saver: Saver) -> None:
    weight = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    saver.save({"model": {"layer.weight": weight}}, Where(step=1))

    read = load_file(saver.folder / "step-000000001" / "model.safetensors")

    assert torch.equal(read["layer.weight"], weight)


def test_a_part_can_be_loaded_alone_whatever_happened_to_the_others(saver: Saver) -> None:
    save(saver, 1)
    other = saver.folder / "step-000000001" / "state.json"
    other.write_bytes(other.read_bytes().replace(b"1", b"9"))

    assert digest_state(saver.load(parts=("model",))) == digest_state({"model": state(1)["model"]})
    with pytest.raises(CheckpointError, match=r"state\.json is not what was written"):
        saver.load()
    with pytest.raises(CheckpointError, match="has no part 'modle'") as caught:
        saver.load(parts=("modle",))
    assert caught.value.fix == "It has: model, state."


def test_training_on_from_a_checkpoint_leaves_its_files_alone(saver: Saver) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    saver.save(parts, Where(step=1))
    before = digest_state(parts)

    loaded = saver.load()
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    for _ in range(2):
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()

    assert digest_state(loaded["model"]) != digest_state(model.state_dict())
    assert digest_state(saver.load()) == before


def test_what_is_loaded_lies_in_memory_as_torch_lays_it_out(saver: Saver) -> None:
    odd = [torch.ones(n) for n in range(1, 20)]
    saver.save({"model": odd}, Where(step=1))

    loaded = saver.load()["model"]

    assert {tensor.data_ptr() % 64 for tensor in loaded} == {
        0
    }  # sums depend on it in their last bits


@pytest.mark.parametrize(
    "name", ["../model", "/model", "a/b", "", "ü", ".hidden", "manifest", "a b"]
)
def test_a_part_needs_a_name_that_a_file_can_have(saver: Saver, name: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be called"):
        saver.save({name: 1}, Where(step=1))

    assert not saver.folder.exists()


def test_what_cannot_be_kept_leaves_nothing_behind(saver: Saver) -> None:
    save(saver, 1)

    with pytest.raises(CheckpointError, match=r"cannot keep builtins\.object"):
        saver.save({"model": 1, "state": {"x": object()}}, Where(step=2))
    with pytest.raises(CheckpointError, match="not JSON serializable"):
        saver.save(state(2), Where(step=2), info={"acc": object()})

    assert [path.name for path in saver.folder.iterdir()] == ["step-000000001"]


@pytest.mark.parametrize("call", ["fsync", "replace", "mkdir"])
def test_a_disk_that_refuses_costs_this_checkpoint_and_no_other(
    saver: Saver, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    save(saver, 1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(CheckpointError, match=r"step 2 was not written: .*No space left on device"):
        save(saver, 2)
    monkeypatch.undo()

    assert [path.name for path in saver.folder.iterdir()] == ["step-000000001"]
    save(saver, 2)
    assert steps(saver) == [1, 2]


def test_a_complete_checkpoint_of_a_step_is_kept_as_it_is(saver: Saver) -> None:
    save(saver, 5)
    files = {path.name: path.read_bytes() for path in (saver.folder / "step-000000005").iterdir()}

    manifest = saver.save(state(99), Where(step=5))

    assert manifest.samples == 40
    assert {
        path.name: path.read_bytes() for path in (saver.folder / "step-000000005").iterdir()
    } == files


@pytest.mark.parametrize("damage", ["no manifest", "a file is gone", "newer format"])
def test_what_is_no_usable_checkpoint_of_a_step_makes_way_without_being_deleted(
    saver: Saver, damage: str
) -> None:
    save(saver, 5)
    folder = saver.folder / "step-000000005"
    match damage:
        case "no manifest":
            (folder / "manifest.json").unlink()
        case "a file is gone":
            (folder / "model.json").unlink()
        case _:
            edit_manifest(folder, format=3)
    weights = (folder / "model.safetensors").read_bytes()

    save(saver, 5)

    assert digest_state(saver.load("5")) == digest_state(state(5))
    assert (saver.folder / "step-000000005.left-1" / "model.safetensors").read_bytes() == weights


# ------------------------------------------------------------------------------------------------------- what stays


@pytest.mark.row("C32")
def test_the_newest_three_stay_by_step_and_not_by_time(saver: Saver) -> None:
    there = []
    for step in range(1, 11):
        save(saver, step)
        there.append(steps(saver))
        os.utime(saver.folder / f"step-{step:09d}", (1000 - step, 1000 - step))

    assert there == [[1], [1, 2], *([step - 2, step - 1, step] for step in range(3, 11))]


@pytest.mark.row("C33")
def test_keypoints_and_models_stay(saver: Saver) -> None:
    save(saver, *range(1, 11), kind="keypoint")
    save(saver, 11, kind="model")
    save(saver, 12, 13, 14, 15)

    assert steps(saver) == [*range(1, 12), 13, 14, 15]


def test_the_best_stays_until_another_one_is_better(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=1)
    save(saver, 1)
    saver.set_best("step-000000001", metric="acc", mode="max", value=0.5)
    save(saver, 2, 3)
    assert steps(saver) == [1, 3]

    saver.set_best("step-000000003", metric="acc", mode="max", value=0.6)

    assert steps(saver) == [3]
    assert saver.find("best").step == 3
    assert json.loads((tmp_path / "best.json").read_text())["value"] == 0.6


def test_a_checkpoint_saved_to_be_the_best_is_there_when_it_becomes_that(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=2)
    save(saver, 1, 2)
    for step in (3, 4):
        save(saver, step, kind="best")
        assert step in steps(saver)
        saver.set_best(f"step-{step:09d}", metric="acc", mode="max", value=step)

        assert steps(saver) == [
            1,
            2,
            step,
        ]  # the one it replaces is gone, and it takes no other's place

    assert digest_state(saver.load("best")) == digest_state(state(4))


def test_a_checkpoint_that_is_saved_again_as_a_keypoint_is_one(saver: Saver) -> None:
    save(saver, 1)
    save(saver, 1, kind="keypoint")
    save(saver, 1)
    save(saver, 2, 3, 4, 5)

    assert steps(saver) == [1, 3, 4, 5]
    assert digest_state(saver.load("1")) == digest_state(state(1))


def test_fewer_than_one_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="keep is 0"):
        Saver(tmp_path, keep=0)


def test_later_checkpoints_are_set_aside_and_never_found_again(saver: Saver) -> None:
    save(saver, 1, 2, 3)
    saver.set_best("step-000000003", metric="acc", mode="max", value=1.0)

    assert saver.set_aside(after_step=1) == ["step-000000002.left-1", "step-000000003.left-1"]
    assert (steps(saver), saver.best()) == ([1], None)
    assert saver.complete()[1] == []
    save(saver, 2)
    assert saver.set_aside(after_step=1) == ["step-000000002.left-2"]
    assert saver.set_aside(after_step=1) == []
    assert digest_state(load_parts(saver.folder / "step-000000003.left-1")) == digest_state(
        state(3)
    )


def test_a_best_before_the_others_stays_the_best(saver: Saver) -> None:
    save(saver, 1, 2)
    saver.set_best("step-000000001", metric="acc", mode="max", value=1.0)

    saver.set_aside(after_step=1)

    assert saver.find("best").step == 1


# ------------------------------------------------------------------------------------------------------- any state


class Counter:
    """No module, but with a state of plain data."""

    def __init__(self, seen: int) -> None:
        self.seen = seen

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


@pytest.mark.row("S-C7", "C34", "C35")
def test_the_three_kinds_grow_as_they_should_and_each_carries_its_info(tmp_path: Path) -> None:
    saver, there = Saver(tmp_path), []
    for i in range(10):
        saver.save_keypoint(i, {"a": i}, {"b": i})
        there.append(len(saver.find_keypoints()))
    for i in range(10):
        saver.save_checkpoint(i, {"a": i}, {"b": i})
        there.append(len(saver.find_checkpoints()))
    for i in range(10):
        saver.save_model(i, {"a": i}, {"b": i})
        there.append(len(saver.find_models()))

    assert there == [*range(1, 11), 1, 2, *[3] * 8, *range(1, 11)]
    every = [*saver.find_keypoints(), *saver.find_checkpoints(), *saver.find_models()]
    assert [(each.step, dict(each.info)) for each in every] == [
        (i, {"b": i}) for i in [*range(10), 7, 8, 9, *range(10)]
    ]
    assert all(
        json.loads((each.path / "manifest.json").read_text())["info"] == each.info for each in every
    )
    assert all(saver.load(each.name) == saver.load(each) == {"a": each.step} for each in every)
    assert saver.load(saver.save_keypoint(11, {"a": 11})) == {"a": 11}
    assert "{'b': 0}" in repr(every[0])


@pytest.mark.row("C35")
def test_the_info_appears_with_its_file_or_not_at_all(
    saver: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    replace = os.replace

    def watched(source: Any, target: Any, **folders: Any) -> None:
        seen.append([each.info for each in saver.find_checkpoints()])
        replace(source, target, **folders)
        seen.append([each.info for each in saver.find_checkpoints()])

    monkeypatch.setattr(os, "replace", watched)
    saver.save_checkpoint(1, {"a": torch.ones(3)}, {"loss": 0.5})

    assert seen[0] == []
    assert seen[-1] == [{"loss": 0.5}]
    assert all(each in ([], [{"loss": 0.5}]) for each in seen)


@pytest.mark.row("C34")
def test_a_model_is_overwritten_by_name_only_if_asked(saver: Saver) -> None:
    saver.save_model(3, {"a": 1}, name="net")
    with pytest.raises(CheckpointError, match="There is a model 'net' already") as caught:
        saver.save_model(4, {"a": 2}, name="net")
    assert "overwrite=True" in caught.value.fix
    assert saver.load("net") == {"a": 1}

    saver.save_model(4, {"a": 2}, name="net", overwrite=True)

    assert saver.load("net") == {"a": 2}
    assert [path.name for path in saver.folder.iterdir()] == ["net"]


@pytest.mark.row("C36")
@pytest.mark.parametrize("kind", ["save_checkpoint", "save_keypoint", "save_model"])
def test_any_state_goes_into_each_of_the_three(saver: Saver, kind: str) -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    states: list[Any] = [
        {"a": 1, "b": 2},
        {1: 2},
        [1, (2, {3})],
        torch.arange(3.0),
        net.state_dict(),
        {"w": torch.ones(2)},
        {"model": net.state_dict(), "epoch": 3},
        {},
        {"whole": 1},
        {"not a name": 1},
        {f"key{i}": i for i in range(100)},
        None,
    ]

    for step, state in enumerate(states):
        getattr(saver, kind)(step, state, {"n": step})
        assert digest_state(saver.load(-1)) == digest_state(state)
    getattr(saver, kind)(99, {"net": net, "optimizer": optimizer, "own": Counter(7)})

    back = saver.load(-1)
    assert digest_state(back["net"]) == digest_state(net.state_dict())
    assert back["own"] == {"seen": 7}
    with pytest.raises(CheckpointError, match=r"cannot keep builtins\.object") as caught:
        getattr(saver, kind)(100, {"optimizer": {"lr": object()}})
    assert caught.value.where == "optimizer.lr"


@pytest.mark.row("C37")
def test_one_loader_for_paths_names_steps_the_latest_and_the_best(
    saver: Saver, tmp_path: Path
) -> None:
    for step in (1, 2, 3):
        saver.save_checkpoint(step, {"at": step})
    saver.save_keypoint(2, {"at": "keypoint"})
    saver.save_model(9, {"at": "model"}, name="net")
    saver.set_best("step-000000002", metric="acc", mode="max", value=1.0)

    assert saver.load("best") == saver.load(2) == saver.load("2") == {"at": 2}
    assert saver.load() == saver.load("latest") == saver.load("step-000000003") == {"at": 3}
    assert saver.load(-1) == saver.load("net") == saver.load(9) == {"at": "model"}
    assert saver.load(-2) == {"at": 3}
    path = saver.folder / "keypoint-000000002"
    assert saver.load(path) == saver.load(str(path)) == {"at": "keypoint"}
    for missing in ("nett", 7, -9, "final"):
        with pytest.raises(CheckpointError, match=f"no checkpoint '{missing}'") as caught:
            saver.load(missing)
        assert caught.value.fix == "There are steps 1, 2, 2, 3, 9, and keypoint-000000002, net."
    with pytest.raises(CheckpointError, match="no manifest"):
        saver.load(tmp_path / "nowhere")


@pytest.mark.row("C38")
def test_a_part_is_read_alone_and_compared_without_being_read(saver: Saver) -> None:
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    saver.save_checkpoint(1, {"model": net, "optimizer": optimizer, "epoch": 1})
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    saver.save_checkpoint(2, {"model": net, "optimizer": optimizer, "epoch": 2})
    with torch.no_grad():
        net.weight[0, 0] += 1
    saver.save_checkpoint(3, {"model": net, "optimizer": optimizer, "epoch": 3})

    first, second, third = (saver.find(step) for step in (1, 2, 3))
    assert first.digest_of("model") == second.digest_of("model") != third.digest_of("model")
    assert (
        first.digest_of("optimizer")
        != second.digest_of("optimizer")
        == third.digest_of("optimizer")
    )
    (saver.folder / "step-000000003" / "optimizer.json").write_text("{}")
    shutil.copytree(saver.folder / "step-000000002", saver.folder.parent / "alone")
    for path in saver.folder.parent.glob("alone/optimizer*"):
        path.write_bytes(b"x" * path.stat().st_size)
    assert saver.load(saver.folder.parent / "alone", parts=("model",)).keys() == {"model"}
    with pytest.raises(CheckpointError, match="has no part 'data'"):
        first.digest_of("data")


@pytest.mark.row("C40")
def test_an_object_with_a_hook_of_its_own_is_loaded_by_it(saver: Saver) -> None:
    class Doubled(nn.Linear):
        def _load_state_dict(self, state: dict[str, Any]) -> None:
            self.load_state_dict({name: 2 * value for name, value in state.items()})

    net, counter = Doubled(3, 2), Counter(5)
    weight = net.weight.detach().clone()
    saver.save_checkpoint(1, {"net": net, "seen": counter})

    other, again = Doubled(3, 2), Counter(0)
    saver.load(into={"net": other, "seen": again})

    assert torch.equal(other.weight, 2 * weight)
    assert again.seen == 5
    with pytest.raises(CheckpointError, match="has no part 'model'") as caught:
        saver.load(into={"model": other})
    assert caught.value.fix == "It has: net, seen."


@pytest.mark.row("B27")
def test_a_checkpoint_named_by_time_and_loss_gives_back_epoch_and_best(tmp_path: Path) -> None:
    saver = Saver(tmp_path, name="m-{time}-{loss:.4f}")
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch, loss in enumerate([0.75, 0.123456, 1e-9], start=1):
        state = {
            "epoch": epoch,
            "state_dict": model.state_dict(),
            "best_loss": loss,
            "optimizer": optimizer.state_dict(),
        }
        saver.save_checkpoint(epoch, {**state, "alpha": 0.25, "gamma": 2.0}, {"loss": loss})

    names = [path.name for path in sorted(tmp_path.iterdir())]
    assert all(re.fullmatch(r"m-\d{8}-\d{6}-0\.\d{4}", name) for name in names)
    assert {name[-6:] for name in names} == {"0.7500", "0.1235", "0.0000"}
    back = saver.load()
    assert {key: back[key] for key in ("epoch", "best_loss", "alpha", "gamma")} == {
        "epoch": 3,
        "best_loss": 1e-9,
        "alpha": 0.25,
        "gamma": 2.0,
    }
    assert saver.load(2)["best_loss"] == 0.123456
    with pytest.raises(InputError, match="wants 'loss'") as caught:
        saver.save_checkpoint(4, {}, {"acc": 1.0})
    assert caught.value.fix == "There are: time, step, epoch, acc."


@pytest.mark.parametrize(
    "template", ["../{loss}", "{loss}/x", "a b{loss}", ".{loss}", "x.tmp", "a.left-1", ""]
)
def test_a_name_made_by_a_template_stays_in_its_folder(tmp_path: Path, template: str) -> None:
    saver = Saver(tmp_path / "here", name=template)
    try:
        saver.save_checkpoint(1, {"a": 1}, {"loss": "../../x"})
    except CheckpointError as error:
        assert "cannot be called" in error.what
    else:
        assert saver.load() == {"a": 1}
        assert len(list(saver.folder.iterdir())) == 1

    assert {path.name for path in tmp_path.iterdir()} <= {"here"}


def test_a_checkpoint_of_the_same_step_is_replaced_by_the_newer_state(saver: Saver) -> None:
    for value in (1, 2, 2):
        saver.save_checkpoint(5, {"a": value})

    assert saver.load(5) == {"a": 2}
    assert [path.name for path in saver.folder.iterdir()] == ["step-000000005"]


def test_a_large_file_that_did_not_change_is_kept_once(saver: Saver) -> None:
    frozen, trained = torch.randn(300_000), torch.zeros(300_000)
    for step in (1, 2):
        saver.save_checkpoint(step, {"frozen": {"w": frozen}, "trained": {"w": trained + step}})

    one, two = saver.folder / "step-000000001", saver.folder / "step-000000002"
    assert os.path.samefile(one / "frozen.safetensors", two / "frozen.safetensors")
    assert not os.path.samefile(one / "trained.safetensors", two / "trained.safetensors")
    shutil.rmtree(one)
    assert torch.equal(saver.load(2)["frozen"]["w"], frozen)


def test_a_file_that_is_damaged_is_not_shared_with_the_next_checkpoint(saver: Saver) -> None:
    frozen = torch.randn(300_000)
    saver.save_checkpoint(1, {"frozen": {"w": frozen}})
    path = saver.folder / "step-000000001" / "frozen.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    os.utime(path, ns=(time.time_ns(), time.time_ns()))  # the clock of files may tick slowly

    saver.save_checkpoint(2, {"frozen": {"w": frozen}})

    assert torch.equal(saver.load(2)["frozen"]["w"], frozen)


def test_a_large_part_lies_in_several_files_of_which_equal_ones_are_kept_once(
    saver: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.engine.checkpoint.tensor_file._FILE_BYTES", 1 << 20)
    model = {f"w{i}": torch.randn(300_000) for i in range(6)} | {"b": torch.tensor([1, 2])}
    saver.save_checkpoint(1, {"model": model, "other": {"b": torch.zeros(2)}})
    model["w5"] += 1
    saver.save_checkpoint(2, {"model": model, "other": {"b": torch.zeros(2)}})

    one, two = saver.find(1), saver.find(2)
    names = [f"model-{i}-of-6.safetensors" for i in range(1, 7)]
    assert list(one.part("model").files) == names
    assert one.part("other").files == ("other.safetensors",)
    changed = [n for n, a, b in zip(names, one.files[1:], two.files[1:], strict=False) if a != b]
    assert changed == names[-1:]
    for name in names:
        places = [saver.folder / each.name / name for each in (one, two)]
        assert os.path.samefile(*places) == (name not in changed)
    assert digest_state(saver.load(2)["model"]) == digest_state(model)
    assert sum(len(load_file(saver.folder / two.name / name)) for name in names) == 7


def test_a_checkpoint_of_the_first_format_is_read_and_its_damage_found(tmp_path: Path) -> None:
    folder = tmp_path / "step-000000007"
    folder.mkdir()
    for name, data in FORMAT_1.items():
        (folder / name).write_bytes(data)

    assert Saver(tmp_path).find().digest.startswith("9983154f")
    loaded = Saver(tmp_path).load()

    assert loaded["model"]["w"].tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
    assert loaded["model"]["b"].tolist() == [1, 2, 3]
    assert loaded["state"] == {"step": 7, "best": float("inf")}
    damaged = folder / "model-rank1.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"model-rank1\.safetensors is not what was written"):
        Saver(tmp_path).load()


FORMAT_1 = {
    "manifest.json": b"""{"format": 1, "kind": "checkpoint", "name": "step-000000007", "step": 7,
 "epoch": 1, "samples": 56, "run": "oldrun", "attempt": 1, "created_ns": 1795757147935905033,
 "files": [
  {"name": "model.json", "size_bytes": 65,
   "sha256": "3b42f35abcc67aefa2cc0f954519ba79c86a6a06c96696881eb0b75608ba6169"},
  {"name": "model.safetensors", "size_bytes": 160,
   "sha256": "24cf676bdf84a7ddeed0ef86034b8e189c4677ed6d47f8d7c69d8c220b5ca859"},
  {"name": "model-rank1.safetensors", "size_bytes": 88,
   "sha256": "0df65349b1c702a94279d03967904015807a06e845aa98049fbe053ab10aa305"},
  {"name": "state.json", "size_bytes": 40,
   "sha256": "b13b098d0fe6e7001d97aea80194e94a1b4562e1a52ae559b8b509790f8f56ea"}],
 "parts": [
  {"name": "model", "tree": "model.json",
   "files": ["model.safetensors", "model-rank1.safetensors"],
   "sharded": [{"name": "w", "dtype": "torch.float32", "shape": [4, 2], "shards": [
    {"file": "model.safetensors", "key": "w", "offsets": [0, 0], "shape": [2, 2]},
    {"file": "model-rank1.safetensors", "key": "w", "offsets": [2, 0], "shape": [2, 2]}]}]},
  {"name": "state", "tree": "state.json", "files": [], "sharded": []}],
 "layout": [{"name": "shard", "size": 2}],
 "digest": "9983154fb32efe98893033600334fc6e7b9737b35697cf6be6bf1ee7efbf93aa",
 "versions": {"torch": "2.13.0+cpu"}, "info": {"loss": 0.5}}
""",
    "model.json": b'{"w":{"$":["tensor","w"]},"b":{"$":["tensor","b"]},"again":null}\n',
    "state.json": b'{"step":7,"best":{"$":["float","inf"]}}\n',
    "model.safetensors": b"p" + bytes(7) + b'{"b":{"dtype":"I64","shape":[3],"data_offsets":[0,24]}'
    b',"w":{"dtype":"F32","shape":[2,2],"data_offsets":[24,40]}}'
    + struct.pack("<3q4f", 1, 2, 3, 0, 1, 2, 3),
    "model-rank1.safetensors": b"@"
    + bytes(7)
    + b'{"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}       '
    + struct.pack("<4f", 4, 5, 6, 7),
}
"""Written by two ranks, before manifests had format 2."""


def test_going_on_takes_the_newest_that_can_be_read_and_names_the_others(saver: Saver) -> None:
    save(saver, 1, 2, 3)
    saver.save_model(9, {"a": 1})
    for step in (2, 3):
        path = saver.folder / f"step-{step:09d}" / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"x")

    manifest, parts, skipped = saver.newest()

    assert (manifest.step, digest_state(parts)) == (1, digest_state(state(1)))
    assert [each.name for each in skipped] == ["step-000000003", "step-000000002"]
    assert all("model.safetensors is not what was written" in each.why for each in skipped)
    assert saver.newest(verify=False)[0].step == 3
    shutil.rmtree(saver.folder / "step-000000001")
    with pytest.raises(CheckpointError, match=r"no checkpoint that can be read.*step-000000002: "):
        saver.newest()


# ------------------------------------------------------------------------------------------------------ what is found


def test_a_checkpoint_is_found_by_what_people_call_it(saver: Saver) -> None:
    save(saver, 1, 20, 3)
    saver.set_best("step-000000003", metric="acc", mode="max", value=1.0)

    assert {name: saver.find(name).step for name in ("latest", "best", "1", "step-000000020")} == {
        "latest": 20,
        "best": 3,
        "1": 1,
        "step-000000020": 20,
    }


def test_what_is_not_found_is_answered_with_what_there_is(saver: Saver) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint 'latest'") as caught:
        saver.load()
    assert caught.value.fix == "There is none yet."

    save(saver, 1, 2)
    for name in ("3", "best", "step-000000003", "../step-000000001", ""):
        with pytest.raises(CheckpointError) as caught:
            saver.find(name)
        assert caught.value.fix == "There are steps 1, 2."


def test_what_is_no_checkpoint_is_skipped_with_the_reason(saver: Saver) -> None:
    save(saver, 1, 2, 3)
    (saver.folder / "step-000000002" / "manifest.json").unlink()
    weights = saver.folder / "step-000000003" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (saver.folder / "step-000000004.tmp").mkdir()
    (saver.folder / "step-000000005").write_text("a file")
    (saver.folder / "notes").mkdir()

    found, skipped = saver.complete()

    assert [manifest.step for manifest in found] == [1]
    reasons = {each.name: each.why for each in skipped}
    assert reasons.keys() == {
        "step-000000002",
        "step-000000003",
        "step-000000004.tmp",
        "step-000000005",
    }
    assert "no manifest" in reasons["step-000000002"]
    assert "model.safetensors has" in reasons["step-000000003"]
    assert "still being written" in reasons["step-000000004.tmp"]
    with pytest.raises(CheckpointError, match=r"step-000000002 is no checkpoint: .*no manifest\."):
        saver.find("2")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"name": 5}', '{"name": "../../elsewhere"}', "{", '"x"']
)
def test_a_damaged_note_of_the_best_is_none(saver: Saver, text: str) -> None:
    save(saver, 1)
    (saver.folder / "best.json").write_text(text)

    assert saver.best() is None
    save(saver, 2)
    assert saver.find().step == 2


# --------------------------------------------------------------------------------------------------------- damage


def test_a_bit_that_flipped_anywhere_is_found_and_the_checkpoint_before_can_be_taken(
    saver: Saver,
) -> None:
    save(saver, 1, 2)
    folder = saver.folder / "step-000000002"

    for path in (folder / "model.safetensors", folder / "model.json", folder / "state.json"):
        whole = path.read_bytes()
        for at in range(len(whole)):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
            with pytest.raises(
                CheckpointError, match=rf"{path.name} is not what was written"
            ) as caught:
                saver.load()
        path.write_bytes(whole)

    assert "older one" in caught.value.fix
    assert digest_state(saver.load("1")) == digest_state(state(1))
    assert digest_state(saver.load()) == digest_state(state(2))


def test_a_manifest_with_a_flipped_bit_is_refused_or_makes_no_difference(saver: Saver) -> None:
    save(saver, 7)
    path = saver.folder / "step-000000007" / "manifest.json"
    whole, expected, num_refused = path.read_bytes(), digest_state(state(7)), 0

    for at in range(0, len(whole), 2):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 7)]) + whole[at + 1 :])
        try:
            loaded = saver.load()
        except CheckpointError:
            num_refused += 1
        else:
            assert digest_state(loaded) == expected
            assert saver.find().step == 7

    assert num_refused > len(whole) / 4


def test_parts_that_changed_names_are_found(saver: Saver) -> None:
    save(saver, 1)
    path = saver.folder / "step-000000001" / "manifest.json"
    path.write_text(path.read_text().replace('"name": "model"', '"name": "modem"'))

    with pytest.raises(CheckpointError, match="its parts are not those that were written"):
        saver.load()


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


HOSTILE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "empty tensors": ("model.safetensors", lambda data: b""),
    "truncated tensors": ("model.safetensors", cut),
    "no header": ("model.safetensors", lambda data: data[:8]),
    "huge header": ("model.safetensors", lambda data: struct.pack("<Q", 1 << 62) + data[8:]),
    "header past the end": (
        "model.safetensors",
        lambda data: struct.pack("<Q", len(data)) + data[8:],
    ),
    "header that is no JSON": (
        "model.safetensors",
        lambda data: data[:8] + b"\xff" * (len(data) - 8),
    ),
    "tensor past the end": ("model.safetensors", lambda data: data.replace(b"[0,8]", b"[0,9]")),
    "a pickle": ("model.safetensors", lambda data: pickle.dumps(Bomb())),
    "a longer file": ("model.safetensors", lambda data: data + b"more"),
    "no tree": ("model.json", lambda data: b""),
    "half a tree": ("model.json", cut),
    "tree that is no text": ("model.json", lambda data: b"\xff\xfe\x00"),
    "tree without end": ("model.json", lambda data: b"[" * 1_000_000),
    "unknown tag": ("model.json", lambda data: b'{"$": ["call", "os.system", "true"]}'),
    "tensor that is not there": ("model.json", lambda data: b'{"$": ["tensor", "other"]}'),
    "a number without end": ("model.json", lambda data: b"1" * 100_000),
}


class Bomb:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_made_by_a_stranger_is_refused_in_one_sentence(
    saver: Saver, what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    save(saver, 1)
    name, forge = HOSTILE[what]
    folder = saver.folder / "step-000000001"
    forged = forge((folder / name).read_bytes())
    assert forged != (folder / name).read_bytes()
    (folder / name).write_bytes(forged)
    files = json.loads((folder / "manifest.json").read_text())["files"]

    with pytest.raises(CheckpointError):
        saver.load()
    # A stranger knows how to make a manifest fit.
    edit_manifest(
        folder,
        files=[
            {**file, "size_bytes": len(forged)} if file["name"] == name else file for file in files
        ],
    )
    with pytest.raises(CheckpointError) as caught:
        saver.load(verify=False)

    assert "\n" not in caught.value.what
    assert len(caught.value.what) < 300
    assert not (tmp_path / "exploded").exists()


def test_files_that_nobody_listed_do_no_harm(saver: Saver) -> None:
    save(saver, 1)
    (saver.folder / "step-000000001" / "model.pkl").write_bytes(pickle.dumps(Bomb()))

    assert digest_state(saver.load()) == digest_state(state(1))


def test_a_manifest_cannot_point_at_another_folder(saver: Saver, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    save(saver, 1, 2, 3, 4)
    shutil.copytree(saver.folder / "step-000000004", victim)
    for name in ("../victim", str(victim), "step-000000003"):
        edit_manifest(saver.folder / "step-000000002", name=name)
        save(saver, 5)

        assert victim.is_dir()
        assert 2 not in steps(saver)
        assert "manifest is that of" in next(each.why for each in saver.complete()[1])


def test_a_checkpoint_that_lies_about_its_step_is_skipped(saver: Saver) -> None:
    save(saver, 1, 2)
    edit_manifest(saver.folder / "step-000000001", step=9)

    assert steps(saver) == [2]


def test_a_checkpoint_that_was_copied_elsewhere_can_be_loaded(saver: Saver, tmp_path: Path) -> None:
    save(saver, 1)
    shutil.copytree(saver.folder / "step-000000001", tmp_path / "kept")

    assert digest_state(load_parts(tmp_path / "kept")) == digest_state(state(1))


@pytest.mark.parametrize("kind", ["no folder", "no manifest", "missing", "short"])
def test_loading_what_is_no_checkpoint_says_what_is_wrong(saver: Saver, kind: str) -> None:
    save(saver, 1)
    folder = saver.folder / "step-000000001"
    match kind:
        case "no folder":
            shutil.rmtree(folder)
        case "no manifest":
            (folder / manifests.FILE_NAME).unlink()
        case "missing":
            (folder / "state.json").unlink()
        case _:
            (folder / "state.json").write_text("{}")
    expected = {"missing": "state.json is missing", "short": "state.json has 2 of 38 bytes"}.get(
        kind, "no manifest"
    )

    with pytest.raises(CheckpointError, match=expected):
        load_parts(folder)


# --------------------------------------------------------------------------------------------------------- kill -9

KILLED_PROGRAM = """
import os, shutil, signal, sys
import torch
from assay.engine.checkpoint.folder import Where
from assay.engine.checkpoint.saver import Saver

def state(step):
    return {"model": {"w": torch.full((3000,), float(step))}, "state": {"step": step}}

def save_until(cut, folder):
    seen = 0
    def count(*_):
        nonlocal seen
        seen += 1
        if seen == cut:
            os.kill(os.getpid(), signal.SIGKILL)
    sync = os.fsync
    os.fsync = lambda file: (count(), sync(file), count())
    sys.addaudithook(lambda event, _: event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir") and count())
    Saver(folder).save(state(4), Where(step=4))
    os._exit(0)

base = sys.argv[1]
torch.set_num_threads(1)
for step in (1, 2, 3):
    Saver(base).save(state(step), Where(step=step))
for cut in range(1, 1000):
    folder = f"{base}-{cut}"
    shutil.copytree(base, folder)
    pid = os.fork()
    if pid == 0:
        save_until(cut, folder)
    if os.waitpid(pid, 0)[1] == 0:
        print(cut - 1)
        break
"""


@pytest.mark.slow
@pytest.mark.row("C39")
@pytest.mark.usefixtures("forking")
def test_a_process_killed_at_any_moment_of_a_save_leaves_whole_checkpoints_and_nothing_that_looks_like_one(
    tmp_path: Path,
) -> None:
    base = tmp_path / "checkpoints"
    done = subprocess.run(
        [sys.executable, "-c", KILLED_PROGRAM, str(base)],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=True,
    )
    num_cuts = int(done.stdout)
    newest = []

    for number in range(1, num_cuts + 1):
        saver = Saver(f"{base}-{number}")
        for manifest in saver.complete()[0]:
            loaded = saver.load(manifest.name)
            assert loaded["state"] == {"step": manifest.step}
            assert torch.equal(loaded["model"]["w"], torch.full((3000,), float(manifest.step)))
        newest.append(saver.find().step)
        assert all(each.name.endswith(".tmp") for each in saver.complete()[1])
        save(saver, 4, 5)
        assert sorted(path.name for path in saver.folder.iterdir()) == [
            f"step-00000000{step}" for step in (3, 4, 5)
        ]

    assert num_cuts > 15
    assert newest == sorted(newest)
    assert set(newest) == {3, 4}
