"""`assay prove`: the first steps of a config are compared with a committed file or a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.query.find import find_run

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_a_golden_file_of_a_few_kilobytes_holds_until_something_changes(assay, toy: Path) -> None:
    before = sorted(path.name for path in toy.iterdir())
    written = assay("prove", "toy.toml", "--write", "golden.json")
    assert written.returncode == 0, written.stderr
    assert written.stdout.startswith("written: golden.json, 20 steps, ")
    assert (toy / "golden.json").stat().st_size < 8192

    equal = assay("prove", "toy.toml", "--against", "golden.json")
    assert equal.returncode == 0, equal.stdout + equal.stderr
    assert equal.stdout.startswith("equal: steps 0 to 20, ")

    rate = assay("prove", "toy.toml", "optimizer.lr=0.02", "--against", "golden.json")
    assert rate.returncode == 1, rate.stderr
    lines = rate.stdout.splitlines()
    assert lines[0] == "different: first at step 1, optimizer, model.layers.0: parameters"
    assert lines[3] == "cause: optimizer" and lines[4].startswith("differs: config  ")

    (toy / "points.py").write_text(
        (toy / "points.py").read_text().replace("self.loaded += 1", "self.loaded += 1; x = x + 1")
    )
    data = assay("prove", "toy.toml", "--against", "golden.json", "--json")
    verdict = json.loads(data.stdout)
    assert (data.returncode, verdict["cause"], verdict["changed_inputs"]) == (1, "data", {})
    assert (verdict["difference"]["step"], verdict["difference"]["phase"]) == (1, "data")
    left = sorted(path.name for path in toy.iterdir() if path.name != "__pycache__")
    assert left == sorted([*before, "golden.json"])


def test_a_config_is_proved_against_a_recorded_run(
    assay, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(toy)
    assert assay("run", "toy.toml", "--quiet").returncode == 0

    equal = assay("prove", "toy.toml", "--against", "last", "--steps", "4")
    (toy / "net.py").write_text((toy / "net.py").read_text().replace("0.3", "0.31"))
    different = assay("prove", "toy.toml", "--against", "last", "--steps", "4")

    assert equal.returncode == 0, equal.stdout + equal.stderr
    assert "differs" not in equal.stdout
    assert different.returncode == 1, different.stderr
    assert "different: first at step 1, " in different.stdout
    differs = [line for line in different.stdout.splitlines() if line.startswith("differs")]
    assert differs == ["differs: code net.py  changed"]
    assert [(each.question, each.equal) for each in find_run("last").verdicts] == [
        ("prove", True),
        ("prove", False),
    ]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("toy.toml", ("train.epochs=@delete", "+train.steps=3"), "6 steps, and this run made 3"),
        ("net.py", ("self.layers", "self.blocks"), "it no longer has model.layers"),
        (
            "net.py",
            ("def forward(self, x):", "def forward(self, x):\n        1 / 0"),
            "ZeroDivision",
        ),
    ],
    ids=["a shorter run", "a renamed module", "a model that raises"],
)
def test_what_does_not_compare_is_no_difference(
    assay, toy: Path, name: str, change: tuple[str, str], message: str
) -> None:
    written = assay("prove", "toy.toml", "--write", "golden.json", "--steps", "6")
    assert written.returncode == 0, written.stderr
    overrides: tuple[str, ...] = ()
    if name == "toy.toml":
        overrides = change
    else:
        (toy / name).write_text((toy / name).read_text().replace(*change))

    done = assay("prove", "toy.toml", *overrides, "--against", "golden.json")

    assert done.returncode == 2, done.stdout
    assert "cannot compare: " in done.stderr and message in done.stderr
    assert "different" not in done.stdout


def test_other_samples_and_other_content_are_told_apart(assay, toy: Path) -> None:
    assert assay("prove", "toy.toml", "--write", "golden.json", "--steps", "2").returncode == 0

    unshuffled = assay("prove", "toy.toml", "data.train.shuffle=false", "--against", "golden.json")

    assert "first at step 1, data: sample indices" in unshuffled.stdout
    assert "cause: data order" in unshuffled.stdout


OUTSIDE = """
import os

class Scaled(Net):
    def __init__(self, width, token=""):
        super().__init__(width)

    def forward(self, x):
        return super().forward(x) * float(os.environ.get("GAIN", "1"))
"""

FROM_OUTSIDE = '''width = "${env:WIDTH}"
token = "${env:TOKEN}"'''


def test_a_golden_file_written_since_a_run_is_no_change_of_its_code(assay, toy: Path) -> None:
    config = (toy / "toy.toml").read_text().replace('"net.Net"', '"net.Scaled"')
    (toy / "toy.toml").write_text(config)
    (toy / "net.py").write_text((toy / "net.py").read_text() + OUTSIDE)
    assert assay("run", "toy.toml", "--quiet").returncode == 0
    assert assay("prove", "toy.toml", "--write", "golden.json", "--steps", "2").returncode == 0

    done = assay("prove", "toy.toml", "--against", "last", "--steps", "2", "--json", GAIN="2")

    verdict = json.loads(done.stdout)
    assert set(verdict["changed_inputs"]) == {"environment variables.GAIN"}
    assert verdict["cause"] == "environment"


def test_an_input_from_outside_is_named_against_a_golden_file(assay, toy: Path) -> None:
    config = (toy / "toy.toml").read_text().replace('"net.Net"', '"net.Scaled"')
    (toy / "toy.toml").write_text(config.replace("width = 8", FROM_OUTSIDE))
    (toy / "net.py").write_text((toy / "net.py").read_text() + OUTSIDE)
    arguments = ("prove", "toy.toml", "--steps", "2")
    assert assay(*arguments, "--write", "golden.json", WIDTH="8", TOKEN="one").returncode == 0
    written = json.loads((toy / "golden.json").read_text())
    older = {name: value for name, value in written.items() if name != "inputs"}
    (toy / "older.json").write_text(json.dumps(older))

    def prove(golden: str, **variables: str) -> dict[str, Any]:
        done = assay("prove", "toy.toml", "--against", golden, "--json", TOKEN="other", **variables)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    wide = prove("golden.json", WIDTH="9")
    gained = prove("golden.json", WIDTH="8", GAIN="2")
    by_older = prove("older.json", WIDTH="8", GAIN="2")

    assert set(wide["changed_inputs"]) == {"config", "config model.width (from env:WIDTH)"}
    assert (gained["cause"], set(gained["changed_inputs"])) == (
        "environment",
        {"environment variables.GAIN"},
    )
    assert by_older["changed_inputs"] == {} and prove("older.json", WIDTH="8")["equal"]
    assert "8" not in written["inputs"]["config"].values()


PRIVATE = """
import torch

class Private(Net):
    def __init__(self, width, seed=0, rate=0.5):
        super().__init__(width)
        self.rate = rate
        self.draw = torch.Generator().manual_seed(seed)

    def forward(self, x):
        kept = torch.empty(x.shape).bernoulli_(self.rate, generator=self.draw)
        return super().forward(x * kept)
"""


def test_a_private_seed_is_another_randomness_and_a_private_rate_another_forward(
    assay, toy: Path
) -> None:
    config = (toy / "toy.toml").read_text().replace('"net.Net"', '"net.Private"')
    (toy / "toy.toml").write_text(config)
    (toy / "net.py").write_text((toy / "net.py").read_text() + PRIVATE)
    assert assay("prove", "toy.toml", "--write", "golden.json", "--steps", "2").returncode == 0
    written = json.loads((toy / "golden.json").read_text())
    kept = [line for line in written["digests"] if " forward " not in line]
    assert len(kept) < len(written["digests"])
    (toy / "older.json").write_text(json.dumps({**written, "digests": kept}))

    verdicts = {
        change: json.loads(
            assay("prove", "toy.toml", change, "--against", "golden.json", "--json").stdout
        )
        for change in ("+model.seed=1", "+model.rate=0.6")
    }
    older = assay("prove", "toy.toml", "--against", "older.json")

    assert [each["cause"] for each in verdicts.values()] == ["randomness", "forward"]
    assert verdicts["+model.seed=1"]["difference"]["name"] == "random numbers"
    assert older.returncode == 0, older.stdout


def test_what_is_no_golden_file_is_one_clear_error(assay, toy: Path) -> None:
    (toy / "golden.json").write_text('{"format": 1, "steps": 1, "algorithm": "crc32"')

    neither = assay("prove", "toy.toml")
    missing = assay("prove", "toy.toml", "--against", "other.json")
    torn = assay("prove", "toy.toml", "--against", "golden.json")

    assert [each.returncode for each in (neither, missing, torn)] == [2, 2, 2]
    assert "--against golden.json, or --write golden.json" in neither.stderr
    assert "There is no such run or file." in missing.stderr
    assert "It is no golden file" in torn.stderr
