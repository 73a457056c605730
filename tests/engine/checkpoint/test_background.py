"""Saving in the background: it writes the state as it was, in order, and failures lose nothing."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from assay.core.facts import Saved, Warned
from assay.core.ports import MemoryRecorder
from assay.engine import Engine, Evaluate, Save, Saver
from assay.engine.callbacks.save import Background
from assay.engine.checkpoint.codec import digest_state
from assay.engine.checkpoint.folder import Where, load_parts
from assay.engine.checkpoint.tensor_file import Staging
from assay.engine.loop.engine_state import capture_state
from engine.toys import engine, loader, net, same_bits, supervised
from warm_python import Begin, Run

SRC = Path(__file__).resolve().parents[3] / "src"


class Held(Saver):
    """Writes when it may, as a slow disk would."""

    def __init__(self, folder: Path, **given: Any) -> None:
        super().__init__(folder, **given)
        self.gate = threading.Event()
        self.written: list[int] = []

    def prepare(self, parts: Any, where: Where, **given: Any) -> Any:
        write = super().prepare(parts, where, **given)

        def held() -> Any:
            assert self.gate.wait(60)
            manifest = write()
            self.written.append(manifest.step)
            return manifest

        return held


def saving(saver: Saver, **given: Any) -> tuple[Engine, MemoryRecorder]:
    recorder = MemoryRecorder()
    runs = engine(supervised(net()), recorder=recorder, **{"epochs": 2, **given})
    runs.bus.extend(Save(saver, every="3 steps").handlers())
    return runs, recorder


# ------------------------------------------------------------------------------------------------------ what is written


def test_the_training_goes_on_while_the_state_of_before_is_written(tmp_path: Path) -> None:
    saver = Held(tmp_path)
    runs, recorder = saving(saver, epochs=1, steps=None)
    runs = engine(supervised(net()), epochs=2, recorder=recorder)
    runs.bus.extend(Save(saver, every="2 steps").handlers())
    reached: list[int] = []
    states: dict[int, Any] = {}
    for event, every in {"step_end": 2, "run_end": 1}.items():
        runs.on(event, every=every, priority=-1)(
            lambda state: states.update({state.step: digest_state(capture_state(runs))})
        )

    def go_on(state: Any) -> None:
        reached.append(state.step)
        if state.step == 3:  # one step after that which is being written
            assert saver.written == []
            saver.gate.set()

    runs.on("step_end", priority=100)(go_on)

    runs.run()

    assert reached == [1, 2, 3, 4, 5, 6]
    assert saver.written == [2, 4, 6, 6]  # the last one again, with the end of its epoch
    assert {step: digest_state(saver.load(step)) for step in (2, 4, 6)} == states
    assert [fact.step for fact in recorder.facts if isinstance(fact, Saved)] == saver.written


def test_a_run_in_the_background_leaves_the_same_checkpoints(tmp_path: Path) -> None:
    for name, background in {"behind": True, "before": False}.items():
        runs = engine(supervised(net()), recorder=MemoryRecorder())
        runs.bus.extend(Evaluate({"valid": loader(4)}).handlers())
        save = Save(
            Saver(tmp_path / name, keep=2),
            every="1 step",
            best=("valid/loss", "min"),
            background=background,
        )
        runs.bus.extend(save.handlers())
        runs.run()

    one, other = Saver(tmp_path / "behind"), Saver(tmp_path / "before")
    assert [(m.step, m.kind, m.digest) for m in one.complete()[0]] == [
        (m.step, m.kind, m.digest) for m in other.complete()[0]
    ]
    assert (one.best(), one.find("final").step) == (other.best(), 6)


def test_the_next_save_waits_for_the_one_before(tmp_path: Path) -> None:
    saver = Held(tmp_path)
    runs, _ = saving(saver)
    threading.Timer(0.2, saver.gate.set).start()

    # both save from the same memory: without waiting the first would hold the state of the second
    runs.run()

    assert saver.written == [3, 6, 6]  # the last one again, with the end of its epoch
    assert saver.load(3)["state"]["step"] == 3
    assert not same_bits(saver.load(3)["model"], saver.load(6)["model"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_run_that_ends_by_an_error_ends_when_all_is_on_disk(
    error: type[BaseException], tmp_path: Path
) -> None:
    saver = Held(tmp_path)
    runs, _ = saving(saver)

    def fail() -> None:
        threading.Timer(0.2, saver.gate.set).start()
        raise error

    runs.on("step_begin", every=4)(lambda state: fail() if state.step == 4 else None)

    with pytest.raises(error):
        runs.run()

    assert saver.written == [3]  # and no other: a handler has failed
    assert Saver(tmp_path).find().step == 3


def test_an_error_that_nobody_thought_of_is_told_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, recorder = saving(Saver(tmp_path))

    def broken(*_: Any, **__: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("assay.engine.checkpoint.folder.write_files", broken)
    state = runs.run()

    assert state.step == 6
    warned = [fact for fact in recorder.facts if isinstance(fact, Warned)]
    assert [fact.step for fact in warned] == [3, 6]
    assert "MemoryError('no room')" in warned[0].message
    assert list(tmp_path.iterdir()) == []


def test_jobs_are_done_in_order_and_no_thread_stays() -> None:
    background, done = Background("work"), []
    before = threading.active_count()
    for number in range(200):
        background.submit(lambda number=number: done.append(number))  # type: ignore[misc]
        if number % 50 == 0:
            background.wait()
            assert done == list(range(number + 1))
    background.wait()

    assert done == list(range(200))
    assert threading.active_count() == before


def test_copies_are_what_was_and_their_memory_is_used_again() -> None:
    staging = Staging()
    tensors = {
        "a": torch.arange(6.0).reshape(2, 3).t(),
        "b": torch.tensor(3),
        "c": torch.empty(0, 4),
        "d": torch.ones(2, dtype=torch.bfloat16),
        "p": nn.Parameter(torch.ones(2)),
    }
    expected = {name: tensor.detach().clone() for name, tensor in tensors.items()}

    copies = staging.copy(tensors)
    for tensor in tensors.values():
        tensor.detach().zero_()

    assert all(
        copies[name].is_contiguous() and torch.equal(copies[name], expected[name])
        for name in tensors
    )
    places = {name: copy.data_ptr() for name, copy in copies.items() if copy.numel()}
    again = staging.copy({name: tensors[name] for name in ("a", "b", "d")})
    assert {name: copy.data_ptr() for name, copy in again.items()} == {
        name: places[name] for name in again
    }
    assert staging.copy({"a": torch.ones(5)})["a"].tolist() == [1.0] * 5


@pytest.mark.thorough
@pytest.mark.slow
def test_python_ends_when_the_last_checkpoint_is_on_disk(tmp_path: Path, warm: Run) -> None:
    program = """
import sys, time, torch
from assay.engine import Saver
from assay.engine.callbacks.save import Background
from assay.engine.checkpoint.folder import Where
background = Background("save")
write = Saver(sys.argv[1]).prepare({"model": torch.ones(1000)}, Where(step=1))
background.submit(lambda: (time.sleep(0.5), write()))
"""
    run_program(warm, program, tmp_path)

    assert torch.equal(Saver(tmp_path).load()["model"], torch.ones(1000))


# ---------------------------------------------------------------------------------------------------------- full disk


@pytest.mark.thorough
@pytest.mark.slow
def test_a_full_disk_keeps_the_last_good_one_and_the_training_goes_on(
    tmp_path: Path, warm: Run
) -> None:
    program = """
import resource, sys, torch
from assay.core.facts import Saved, Warned
from assay.core.ports import MemoryRecorder
from assay.engine import Engine, Save, Saver, Supervised
torch.set_num_threads(1)
model = torch.nn.Linear(200, 200)
recorder = MemoryRecorder()
batches = [(torch.randn(4, 200), torch.randn(4, 200))] * 6
runs = Engine(Supervised(model, torch.nn.MSELoss(), torch.optim.Adam(model.parameters())), batches, recorder=recorder)
runs.bus.extend(Save(Saver(sys.argv[1], keep=1), every="1 step").handlers())
def limit(state):
    size = 100_000 if state.step in (3, 4) else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    if state.step == 5:
        print(sorted(manifest.step for manifest in Saver(sys.argv[1]).complete()[0]))
runs.on("checkpoint_begin")(limit)  # the one before is on disk
state = runs.run()
told = [(type(fact).__name__, fact.step) for fact in recorder.facts]
print(state.step, told)
print([fact.message for fact in recorder.facts if isinstance(fact, Warned)][0])
"""
    out = run_program(warm, program, tmp_path).splitlines()

    told = [
        ("Saved", 1),
        ("Saved", 2),
        ("Warned", 3),
        ("Saved", 5),
        ("Saved", 6),
        ("Saved", 6),
    ]  # that of 4 is the same failure; that of 6 is written again with the end of its epoch
    assert out[0] == "[2]"
    assert out[1] == f"6 {told}"
    assert "step 3 was not written" in out[2] and "File too large" in out[2]
    assert [manifest.step for manifest in Saver(tmp_path).complete()[0]] == [5, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "final.json",
        "step-000000005",
        "step-000000006",
    ]


# ------------------------------------------------------------------------------------------------------------ kill -9

ENDLESS = """
import sys, torch
from assay.engine import Engine, Evaluate, Loader, Save, Saver, Supervised
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
batches = [(torch.randn(8, 64), torch.randn(8, 64)) for _ in range(4)]
process = Supervised(model, torch.nn.MSELoss(), torch.optim.AdamW(model.parameters(), lr=1e-2))
runs = Engine(process, batches, epochs=100_000)
runs.bus.extend(Evaluate({"valid": batches[:1]}, every="4 steps").handlers())
saver = Saver(sys.argv[1], keep=2)
if saver.complete()[0]:
    from assay.engine.loop.engine_state import restore
    restore(runs, saver.newest()[1])
save = Save(saver, every="2 steps", best=("valid/loss", "min"))
runs.bus.extend(save.handlers())
runs.on("step_end")(lambda state: print(state.step, flush=True))
runs.run()
"""


@pytest.mark.thorough
@pytest.mark.row("C39")
def test_a_training_killed_at_random_moments_of_its_saves_lists_only_what_loads(
    begin: Begin, tmp_path: Path
) -> None:
    chance, reached, torn = random.Random(5), 0, 0
    for _ in range(8):
        given = ("-c", ENDLESS, str(tmp_path))
        process = begin(*given, folder=tmp_path, variables=own_variables(), reads="stdout")
        assert process.stdout is not None
        try:
            for _ in range(chance.randrange(3, 12)):
                step = int(process.stdout.readline())
            signal.sigtimedwait([], chance.random() * 0.02)  # somewhere in a step, or in a write
        finally:
            process.kill()
            process.wait()
            process.stdout.close()

        saver = Saver(tmp_path, keep=2)
        found, skipped = saver.complete()
        torn += len(skipped)
        assert all(each.name.endswith(".tmp") for each in skipped)
        for manifest in found:
            parts = load_parts(tmp_path / manifest.name)  # digests of all files and of the whole
            assert parts["state"]["step"] == manifest.step
        assert found[-1].step >= step - 4  # one being written, one that waits for it
        assert found[-1].step >= reached
        best = saver.best()
        assert best is None or (tmp_path / best).is_dir()
        reached = found[-1].step
    assert reached > 20


def run_program(warm: Run, program: str, *arguments: object) -> str:
    given = ["-c", program, *map(str, arguments)]
    done = warm(given, folder=Path.cwd(), variables=own_variables())
    assert done.returncode == 0, done.stderr
    return done.stdout


def own_variables() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SRC)}


def test_a_job_is_done_even_if_its_thread_was_interrupted_as_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    background, done, waited = Background("test"), [], []
    wait = threading.Event.wait

    def interrupted(event: threading.Event, timeout: float | None = None) -> bool:
        waited.append(event)
        if len(waited) == 1:  # that of `Thread.start`
            raise KeyboardInterrupt
        return wait(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        background.submit(lambda: done.append(1))
    background.submit(lambda: done.append(2))
    background.wait()

    assert done == [1, 2] and len(waited) > 1


def test_without_a_thread_to_begin_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    background, done = Background("test"), []
    monkeypatch.setattr("assay.engine.callbacks.save._SECONDS_TO_BEGIN", 0.01)

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            background.submit(lambda: done.append(1))
    background.wait()
    assert not background.is_busy
    background.submit(lambda: done.append(2))
    background.wait()

    assert done == [2]
