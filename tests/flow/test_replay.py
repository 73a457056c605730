"""`assay replay`: a run is trained again from its recorded code and config, bits compared."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

import assay as face
from assay.core.errors import InputError
from assay.formats import run_file
from assay.proof import replay
from assay.query.find import find_run
from assay.query.run import RunView
from assay.store.series import read_contents

pytestmark = pytest.mark.slow

SHIFTED = """
from pathlib import Path
from points import Points

class Shifted(Points):
    \"\"\"Reads a file that is no code, beside its own and from where it was started.\"\"\"

    def __init__(self, **given):
        super().__init__(**given)
        beside = (Path(__file__).parent / "data" / "shift.bin").read_bytes()
        assert beside == Path("data/shift.bin").read_bytes()
        self.points = self.points + beside[0]
"""

DIGEST = "plugins=[{ type = 'assay.engine.BatchDigest' }]"
SOURCE = "data.train.source={ type = 'shifted.Shifted', split = 0, noisy = true }"


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def changed(view: RunView, **environment: object) -> None:
    """Let the record say that the environment was another one."""
    attempt = view.file.newest
    was = {**attempt.environment, **environment}
    run_file.write(view.path, replace(view.file, attempts=(replace(attempt, environment=was),)))


def flip_a_value(metrics: Path) -> None:
    """One bit of the last points of `train/loss`."""
    last = next(
        block
        for block in reversed(read_contents(metrics).blocks)
        if "train/loss" in block.keys.names
    )
    value = struct.pack("<d", last.values[-1, last.keys.names.index("train/loss")])
    file = next(file for file in metrics.glob("*.rows") if value in file.read_bytes())
    data = bytearray(file.read_bytes())
    data[data.index(value)] ^= 1
    file.write_bytes(data)


@pytest.mark.thorough
@pytest.mark.row("C49")
@pytest.mark.timeout(300)  # five trainings, each with a start of torch, and one that fails
def test_a_run_is_done_again_from_its_own_code_and_what_is_not_equal_is_named(
    assay, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy)
    (toy / "shifted.py").write_text(SHIFTED)
    (toy / "data").mkdir()
    shift = toy / "data" / "shift.bin"
    shift.write_bytes(b"\x01")
    done = assay("run", "toy.toml", "--quiet", DIGEST, SOURCE)
    assert done.returncode == 0, done.stderr
    (toy / "net.py").write_text(
        (toy / "net.py").read_text().replace("self.layers(x)", "2 * self.layers(x)")
    )
    before = sorted(path.name for path in toy.iterdir() if path.name != "__pycache__")

    again = assay("replay", "last")

    assert again.returncode == 0, again.stdout + again.stderr
    lines = dict(re.split(" {2,}", line, maxsplit=1) for line in again.stdout.splitlines()[:-1])
    assert lines["train/loss"] == lines["sample order"] == "equal, 32 points"
    assert lines["valid/acc"] == "equal, 4 points"
    assert {lines[name][-10:] for name in ("weights", "optimizer", "state")} == {"27, 30, 32"}
    assert not [name for name in lines if name.startswith(("speed/", "time/", "memory/"))]
    assert again.stdout.splitlines()[-1] == "equal: steps 1 to 32"
    assert sorted(path.name for path in toy.iterdir() if path.name != "__pycache__") == before
    assert not list(tmp_path.glob("assay-replay-*"))
    assert (tmp_path / "data" / "assay" / "projects.txt").read_text().split("\n") == [str(toy), ""]

    part = replay("last", steps="27:31")

    assert part.verdict.equal and part.kept is None
    assert (part.verdict.first_step, part.verdict.last_step) == (28, 31)
    told = {each.name: each.otherwise for each in part.compared}
    assert (told["train/loss"], told["weights"]) == ("equal, 4 points", "equal at step 30")

    metrics = find_run("last").folder.metrics
    whole = {file: file.read_bytes() for file in metrics.iterdir()}
    flip_a_value(metrics)
    damaged = assay("replay", "last", "--steps", "27:31")
    assert (damaged.returncode, damaged.stdout) == (2, "")
    assert "is damaged. metrics/" in damaged.stderr and "--force compares" in damaged.stderr
    rest = replay("last", steps="27:31", force=True)
    assert rest.verdict.equal and "row of" in rest.verdict.note
    for file, data in whole.items():
        file.write_bytes(data)

    shift.write_bytes(b"\x02")
    other = assay("replay", "last@27")

    assert other.returncode == 1, other.stderr
    assert re.search(r"^sample order +equal, 5 points$", other.stdout, re.MULTILINE)
    assert re.search(r"^batches +differs: from step 28 on$", other.stdout, re.MULTILINE)
    assert re.search(r"^weights +differs: at step 30 model: layers\.", other.stdout, re.MULTILINE)
    assert re.search(
        r"^not equal: first at step 28, data: data/digest \(\d+\.0 and \d+\.0\)$",
        other.stdout,
        re.MULTILINE,
    )
    assert re.search(
        r"^traces +differs: at step 30, optimizer, model\.layers\.0: (weight|bias)$",
        other.stdout,
        re.MULTILINE,
    )
    assert "first difference of the traces: step 30, optimizer, model.layers.0" in other.stdout
    kept = re.search(r"assay diff (\S+) (\S+)", other.stderr)
    assert kept is not None and find_run(kept[2]).file.parent == ""
    view = find_run("last")
    assert kept[1] == view.id
    assert [(each.equal, each.cause) for each in view.verdicts] == [
        *[(True, None)] * 3,
        (False, "data"),
    ]
    assert "replay: not equal, steps 28 to 32, first at step 28," in assay("show", "last").stdout

    shift.unlink()
    gone = assay("replay", "last")
    assert gone.returncode == 2
    assert "The replay failed, where the run did not, and said:" in gone.stderr
    assert "No such file or directory" in gone.stderr and "shift.bin" in gone.stderr

    # What is known beforehand starts no process.
    torch = view.environment["torch"]
    changed(view, torch={**torch, "version": "1.0"})
    with pytest.raises(
        InputError, match=rf"{view.id} cannot be replayed here: torch.version was 1.0 and is"
    ):
        replay("last")
    changed(view, torch={**torch, "threads": 4096})
    with pytest.raises(InputError, match="threads was 4096 and is at most"):
        replay("last")
    with pytest.raises(InputError, match="must be a range of steps"):
        replay("last", steps="27-31")
    with pytest.raises(InputError, match="has made 32 steps, not 40"):
        replay("last", steps=":40")
    with pytest.raises(InputError, match="has no checkpoint `5`"):
        replay("last@5")


@pytest.mark.thorough
def test_a_killed_and_resumed_run_is_done_again_as_one_and_another_config_is_a_seam(
    assay, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy)
    assert assay("run", "toy.toml", "--quiet", DIE_AT="140").returncode == -9
    assert assay("resume", "last", "--quiet", DIE_AT="75").returncode == -9
    view = find_run("last")
    assert (view.status, len(view.file.attempts)) == ("killed", 2)

    again = replay("last")

    assert again.verdict.equal, again.compared
    assert again.verdict.last_step == max(view.metric("train/loss").steps) > 20
    assert again.verdict.first_step == 1

    assert assay("resume", "last", "--quiet", "optimizer.lr=1e-3").returncode == 0
    seam = find_run("last").file.newest.from_step
    with pytest.raises(
        InputError, match=f"Attempt 3 of {view.id} resumed at step {seam} with another config"
    ) as told:
        replay("last")
    assert f"assay replay {view.id} --steps 0:{seam}" in told.value.fix

    before = replay("last", steps=f":{seam}")  # with the config of then

    assert before.verdict.equal, before.compared
    assert before.verdict.last_step == seam


@pytest.mark.thorough
@pytest.mark.parametrize("kept_bytes", [-1, 300])
def test_a_changed_byte_of_the_config_is_damage_and_force_leaves_damaged_checkpoints_out(
    assay, toy: Path, monkeypatch: pytest.MonkeyPatch, kept_bytes: int
) -> None:
    monkeypatch.chdir(toy)
    done = assay("run", "toy.toml", "--quiet", "--max-steps", "4", "checkpoint.every=2 steps")
    assert done.returncode == 0, done.stderr
    view = find_run("last")
    weights = view.checkpoints[0].path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept_bytes] + b"\0")

    strict = assay("replay", "last")
    forced = assay("replay", "last", "--force")

    assert (strict.returncode, forced.returncode) == (2, 0), forced.stderr
    assert "--force compares the others" in strict.stderr
    assert re.search(r"^weights +equal at step \d+$", forced.stdout, re.MULTILINE)

    config = view.folder.config_toml
    config.write_text(config.read_text().replace("seed = 3", "seed = 2"))
    for options in ([], ["--force"]):
        altered = assay("replay", "last", *options)
        assert altered.returncode == 2
        assert "config.toml is damaged: it is not what was written" in altered.stderr
        assert "not made here" not in altered.stderr and "--trust" not in altered.stderr


CLOCK = """
import time
from net import Net

class Clock(Net):
    \"\"\"Is never twice the same, from its second call in training on.\"\"\"

    calls = 0

    def forward(self, x):
        self.calls += self.training
        return super().forward(x) * (1 + (self.calls > 1) * (time.time_ns() % 1000003) * 1e-6)
"""
SPARSE = ("log.every=100 steps", "checkpoint.enabled=false", "evaluate.enabled=false")


def test_steps_that_left_nothing_of_their_weights_are_not_called_equal(
    assay, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy)
    (toy / "clock.py").write_text(CLOCK)
    begin = ("run", "toy.toml", "--quiet", "--max-steps", "12", "model.type=clock.Clock", *SPARSE)
    assert assay(*begin, "trace.every=100 steps").returncode == 0

    sparse = assay("replay", "last")

    assert sparse.returncode == 0, sparse.stdout + sparse.stderr
    said = sparse.stdout.splitlines()[-2:]
    left = "of steps 2 to 12 nothing that depends on the weights is recorded"
    assert said == ["equal: steps 1 to 1", left]
    assert [verdict.said for verdict in find_run("last").verdicts] == [
        "replay: equal, steps 1 to 1"
    ]

    assert assay(*begin, "trace.enabled=false").returncode == 0

    empty = assay("replay", "last")

    assert empty.returncode == 2
    assert "has recorded nothing of steps 1 to 12 that depends on the weights" in empty.stderr
    assert not find_run("last").verdicts


def test_what_no_config_has_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with face.start(tag="script", config={"lr": 1e-3}, project=tmp_path, keep_output=False) as run:
        run.log({"loss": 1.0}, step=1)

    with pytest.raises(InputError, match="was recorded by a script: there is no config to train"):
        replay("last")
