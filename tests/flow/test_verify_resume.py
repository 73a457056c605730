"""`assay verify-resume`: an undisturbed training and a killed, resumed one are compared in bits."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from assay.query.find import find_run

pytestmark = pytest.mark.slow

PRIVATE = """
import numpy as np
from points import Points

class Stubborn(Points):
    \"\"\"Gives other samples each time, which depend on how many it gave before.\"\"\"

    def __init__(self, **given):
        super().__init__(**given)
        self.count = 0

    def __getitem__(self, i):
        self.count += 1
        x, y = self.points[i], self.labels[i]
        return x + self.draw(), y

    def draw(self):
        return 0.01 * self.count

class Random(Stubborn):
    \"\"\"Never draws the same twice.\"\"\"

    def draw(self):
        return float(np.random.default_rng().random())
"""


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.mark.thorough
def test_a_killed_run_is_told_to_be_equal_and_the_users_project_is_untouched(
    assay, toy: Path, tmp_path: Path
) -> None:
    before = sorted(path.name for path in toy.iterdir())

    done = assay(
        "verify-resume", "toy.toml", "--kills", "2", "--kill-seed", "4", TMPDIR=str(tmp_path)
    )

    assert done.returncode == 0, done.stderr
    names = ("weights", "optimizer", "state", "metrics", "sample order")
    lines = done.stdout.splitlines()
    assert lines[:5] == [f"{name:<12}  equal" for name in names]
    assert re.fullmatch(r"traces        equal, [\d,]{5,} fingerprints", lines[5])
    assert lines[6] == "your code     equal"
    tried = r"resumed from \d+(, \d+)?; from \d+ steps it was not tried"
    assert re.fullmatch(f"equal: 32 steps, killed (once|2 times), {tried}", lines[7])
    assert done.stderr.startswith("kills: 2, drawn with --kill-seed 4\nuninterrupted: 32 steps, ")
    assert "kill 1 of 2: at step " in done.stderr
    assert sorted(path.name for path in toy.iterdir() if path.name != "__pycache__") == before
    assert not list(tmp_path.glob("assay-verify-*"))
    assert not (tmp_path / "data" / "assay" / "projects.txt").read_text().strip()


ENDED = """
from assay.engine import on

class Ended:
    @on("step_end")
    def end(self, engine):
        if (engine.state.epoch, engine.state.epoch_step) in ((0, 3), (2, 1)):
            engine.end_epoch()
"""


@pytest.mark.thorough
@pytest.mark.row("D22")
def test_a_run_whose_epochs_are_ended_by_a_hook_is_killed_and_resumed_to_the_same_bits(
    assay, toy: Path, tmp_path: Path
) -> None:
    (toy / "ended.py").write_text(ENDED)
    (toy / "toy.toml").write_text(
        'plugins = [{ type = "ended.Ended" }]\n' + (toy / "toy.toml").read_text()
    )

    done = assay(
        "verify-resume", "toy.toml", "--kills", "1", "--kill-seed", "4", TMPDIR=str(tmp_path)
    )

    assert done.returncode == 0, done.stderr
    assert "equal: 20 steps, killed" in done.stdout  # 3 + 8 + 1 + 8


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("Stubborn", r"It was equal up to step (\d+); the run had been resumed from step \1\."),
        ("Random", r"It differs from step 1 on, before anything was resumed \(from step \d+\):"),
    ],
)
def test_data_that_cannot_be_resumed_is_told_with_what_differs_and_both_runs_are_kept(
    data: str, said: str, assay, toy: Path, tmp_path: Path
) -> None:
    (toy / "stubborn.py").write_text(PRIVATE)

    done = assay(
        *(
            "verify-resume",
            "toy.toml",
            f"data.train.source={{ type = 'stubborn.{data}', split = 0 }}",
        ),
        *("--kills", "1", "--kill-seed", "1"),
        TMPDIR=str(tmp_path),
    )

    assert done.returncode == 1, done.stderr
    assert re.search(
        r"^weights +differs: model: layers\.0\.weight, .* more$", done.stdout, re.MULTILINE
    )
    assert re.search(r"^sample order +differs: from step \d+ on$", done.stdout, re.MULTILINE)
    assert "\nnot equal: 32 steps" in done.stdout
    assert re.search(rf"^{said}$", done.stdout, re.MULTILINE), done.stdout
    kept = re.search(r"assay diff (\S+) (\S+)", done.stderr)
    assert kept is not None
    assert [len(find_run(path).file.attempts) for path in kept.groups()] == [1, 2]


@pytest.mark.thorough
def test_what_can_never_be_equal_and_what_fails_by_itself_are_one_clear_error(
    assay, toy: Path
) -> None:
    timed = assay("verify-resume", "toy.toml", "train.time=10 s")
    assert timed.returncode == 2
    assert "error: A run that a clock ends is never twice the same." in timed.stderr

    (toy / "net.py").write_text(
        (toy / "net.py").read_text().replace("self.layers(x)", "self.layrs(x)")
    )
    failing = assay("verify-resume", "toy.toml")
    assert failing.returncode == 1
    assert "The uninterrupted run failed, and said:" in failing.stderr and "layrs" in failing.stderr


LOADERS = """
import numpy as np
import torch
import webdataset
from torchdata.stateful_dataloader import StatefulDataLoader

from points import Points

def stateful(**how):
    return StatefulDataLoader(Points(split=0, noisy=True), batch_size=8, shuffle=True, **how)

def archive(stage, **how):
    points = Points(split=0)
    with webdataset.TarWriter("points.tar") as tar:
        for i, (x, y) in enumerate(zip(points.points.numpy(), points.labels.numpy())):
            tar.write({"__key__": f"{i:03}", "x.npy": x, "y.npy": np.array(y)})
    data = webdataset.WebDataset("points.tar", shardshuffle=False)
    if stage:
        data = data.compose(getattr(webdataset, stage)(60))
    data = data.decode().to_tuple("x.npy", "y.npy").map_tuple(torch.from_numpy, torch.from_numpy)
    return webdataset.WebLoader(data.batched(8), batch_size=None, **how)
"""


FORGETFUL = """
import torch
from torch import nn

class Forgetful(nn.Module):
    \"\"\"A gain that grows with each call, kept where no checkpoint looks for it.\"\"\"

    def __init__(self):
        super().__init__()
        self.gain = 1.0

    def forward(self, x):
        self.gain += 0.01 * self.training
        return x * self.gain
"""


@pytest.mark.thorough
def test_state_that_no_checkpoint_holds_is_named_with_its_module_and_operation(
    assay, toy: Path, tmp_path: Path
) -> None:
    (toy / "forgetful.py").write_text(FORGETFUL)
    net = (toy / "net.py").read_text().replace("nn.ReLU()", "Forgetful()")
    (toy / "net.py").write_text("from forgetful import Forgetful\n" + net)

    done = assay(
        "verify-resume", "toy.toml", "--kills", "1", "--kill-seed", "4", TMPDIR=str(tmp_path)
    )

    assert done.returncode == 1, done.stderr
    place = r"First difference: step (\d+), forward, model\.layers\.2: aten\.mul"
    found = re.search(
        rf"^{place}\ncause: forward\nIt was equal up to step \d+; the run had been resumed from step (\d+)\.$",
        done.stdout,
        re.MULTILINE,
    )
    assert found is not None, done.stdout
    assert int(found[1]) == int(found[2]) + 1


@pytest.mark.thorough
@pytest.mark.skipif(
    not (find_spec("torchdata") and find_spec("webdataset")),
    reason="torchdata or webdataset is missing",
)
@pytest.mark.parametrize(
    ("source", "is_equal"),
    [
        ("'loaders.stateful'", True),
        ("'loaders.stateful', num_workers = 2", False),  # its state lacks what workers draw
        ("'loaders.archive', stage = 'detshuffle', num_workers = 1", True),
        ("'loaders.archive', stage = 'shuffle'", False),
    ],
)
def test_a_loader_of_torchdata_or_webdataset_that_resumes_otherwise_is_found(
    source: str, is_equal: bool, assay, toy: Path, tmp_path: Path
) -> None:
    (toy / "loaders.py").write_text(LOADERS)
    text = (toy / "toy.toml").read_text().replace("epochs = 4", "steps = 16")
    points = r'source = \{ type = "points.Points", split = 0.*\nbatch_size = 8\n'
    named = re.sub(points, f"source = {{ type = {source} }}\n", text)
    assert "loaders." in named
    (toy / "toy.toml").write_text(named)

    # This seed kills after step 14 of a run that saves each step: in the middle of an epoch of 8.
    done = assay(
        "verify-resume", "toy.toml", "--kills", "1", "--kill-seed", "6", TMPDIR=str(tmp_path)
    )

    if is_equal:
        assert done.returncode == 0, done.stderr
        assert "\nequal: 16 steps, killed once" in done.stdout
        return
    assert done.returncode == 1, done.stderr
    assert "\nnot equal: 16 steps, killed once" in done.stdout
