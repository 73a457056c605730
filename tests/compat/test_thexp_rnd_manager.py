"""Generator states by name: a part of a program draws the same in every run and OS process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from assay.compat.thexp import RndManager
from assay.core.errors import CheckpointError, InputError
from assay.engine import get_state, seed_all, set_state

SRC = Path(__file__).resolve().parents[3] / "src"


def draw() -> tuple[Any, ...]:
    """Draw from each generator.

    numpy and `random` keep the second Gaussian of a pair for the next call.
    """
    return (
        *torch.randn(3).tolist(),
        *np.random.randn(3).tolist(),
        random.random(),
        random.gauss(0, 1),
    )


@pytest.mark.row("C29")
def test_all_generators_go_back_to_where_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    draw()
    before = get_state()
    first = [draw(), draw()]

    set_state(before)

    assert [draw(), draw()] == first
    devices: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: ["of device 0", "of device 1"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: devices.append((device, state))
    )
    set_state(get_state())
    assert devices == [(0, "of device 0")]


PROGRAM = """
import sys
import numpy as np, torch
from assay.compat.thexp import RndManager
from assay.engine import seed_all

seed_all(int(sys.argv[2]))
rnd = RndManager(sys.argv[1])
torch.rand(int(sys.argv[2]))
rnd.mark("split")
print(torch.randperm(20).tolist(), np.random.permutation(20).tolist())
rnd.shuffle()
print(torch.randperm(20).tolist(), np.random.permutation(20).tolist())
"""


@pytest.mark.thorough
@pytest.mark.row("C30")
@pytest.mark.usefixtures("forking")
def test_a_marked_split_is_the_same_in_another_process_with_another_seed_and_the_rest_is_free(
    tmp_path: Path,
) -> None:
    def run(seed: int) -> list[str]:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "rnd"), str(seed)]
        env = {**os.environ, "PYTHONPATH": str(SRC)}
        return subprocess.run(
            command, env=env, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    first, second = run(1), run(2)

    assert first[0] == second[0]
    assert first[1] != second[1]
    assert RndManager(tmp_path / "rnd").names() == ["split"]


@pytest.mark.row("C30")
def test_states_are_saved_read_and_loaded_by_name(tmp_path: Path) -> None:
    rnd = RndManager(tmp_path)
    assert rnd.mark("a") is False
    first = draw()
    rnd.save("b")
    second = draw()

    assert rnd.mark("a") is True
    assert draw() == first
    rnd.load("b")
    assert draw() == second
    assert rnd.names() == ["a", "b"]
    assert rnd.read("b").keys() == {"random", "numpy", "torch", "cuda"}
    rnd.shuffle(7)
    third = draw()
    assert third not in (first, second)
    assert rnd.mark("a", again=True) is False
    fourth = draw()
    rnd.mark("a")
    assert draw() == fourth != first
    assert rnd.shuffle(7) == {"torch": 7, "numpy": 7, "random": 7}
    assert draw() == third
    with pytest.raises(InputError, match="is kept under 'c'") as caught:
        rnd.load("c")
    assert caught.value.fix == "there are a, b"
    with pytest.raises(CheckpointError, match="cannot be called"):
        rnd.mark("../a")


def test_a_marked_block_leaves_the_rest_as_if_it_had_not_been(tmp_path: Path) -> None:
    rnd = RndManager(tmp_path)
    with rnd.marked("split"):
        first = draw()
    before = get_state()
    expected = draw()
    set_state(before)

    with rnd.marked("split"):
        assert draw() == first

    assert draw() == expected


class Drawn(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(
            [index, float(torch.rand(())), float(np.random.rand()), random.random()],
            dtype=torch.float64,
        )


@pytest.mark.row("C31")
def test_one_call_fixes_all_generators_also_those_of_workers_and_says_what_was_set() -> None:
    def epoch(seed: int) -> list[Any]:
        given = seed_all(seed)
        assert given == {"torch": seed, "numpy": seed & 0xFFFFFFFF, "random": seed}
        loader = DataLoader(Drawn(), batch_size=4, shuffle=True, num_workers=2)
        return [*torch.cat(list(loader)).tolist(), draw()]

    seed = (1 << 40) + 3
    first = epoch(seed)

    assert epoch(seed) == first
    assert epoch(seed + 1) != first
    for column in (1, 2, 3):
        assert (
            len({row[column] for row in first[:-1]}) == 8
        )  # no worker draws what another one does
