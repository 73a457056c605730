"""Several runs from one file, and what is kept of where they came from."""

from __future__ import annotations

from pathlib import Path

import pytest

import assay as house
from assay.cli.main import main
from assay.config import changed_keys, load, plain
from assay.core import run_file

pytestmark = pytest.mark.slow

VARIANTS = """
[variants.wide]
"model.width" = 16
[variants.short.train]
epochs = 1
[variants.slow]
optimizer.lr = 1e-4
seed = 5
"""


def runs(folder: Path) -> list[Path]:
    return sorted((folder / "runs").iterdir(), key=lambda run: run_file.read(run).created_ns)


def short(toy: Path, text: str) -> None:
    whole = (toy / "toy.toml").read_text().replace("epochs = 4", "steps = 2")
    (toy / "many.toml").write_text(whole + text)


@pytest.mark.row("A05")
def test_three_variants_are_listed_and_make_three_runs_that_differ_in_the_listed_keys_only(assay, toy: Path) -> None:
    (toy / "many.toml").write_text((toy / "toy.toml").read_text() + VARIANTS)
    listed = assay("check", "many.toml", "--list")
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()[:4]] == ["base", "wide", "short", "slow"]
    assert "3 variants" in listed.stdout

    ran = assay("run", "many.toml", "--variant", "all", "--max-steps", "2")

    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.startswith("3 runs, one after another\n")
    assert "[2/3] many.toml  short" in ran.stderr
    base = load(toy / "many.toml").root
    saved = [load(run / "config.toml").root for run in runs(toy)]
    assert [{one.key for one in changed_keys(base, root)} for root in saved] == [
        {"model.width"},
        {"train.epochs"},
        {"seed", "optimizer.lr"},
    ]
    assert [run_file.read(run).newest.launch["variant"] for run in runs(toy)] == ["wide", "short", "slow"]
    hashes = [run_file.read(run).newest.config_hash[:16] for run in runs(toy)]
    assert hashes == [line.split()[1] for line in listed.stdout.splitlines()[1:4]]


def test_the_points_of_a_sweep_run_one_after_another_and_the_rest_runs_though_one_fails(assay, toy: Path) -> None:
    short(toy, '[sweep]\n"optimizer.lr" = [1e-2, 1e30, 1e-3]\n')
    (toy / "net.py").write_text(
        (toy / "net.py").read_text() + "\n    def train(self, mode=True):\n        return super().train(mode)\n"
    )

    ran = assay("run", "many.toml")

    assert "3 runs, one after another" in ran.stderr and "[3/3] many.toml  optimizer.lr=0.001" in ran.stderr
    assert [run_file.read(run).newest.launch["point"] for run in runs(toy)] == ["1/3", "2/3", "3/3"]
    statuses = [run_file.read(run).status for run in runs(toy)]
    assert statuses[0] == statuses[2] == "finished"
    assert ran.returncode == (0 if statuses[1] == "finished" else 1)

    assert assay("run", "many.toml", "--no-sweep").returncode == 0
    assert len(runs(toy)) == 4
    assert "point" not in run_file.read(runs(toy)[-1]).newest.launch


def test_a_mistake_in_the_last_point_is_told_before_the_first_is_trained(assay, toy: Path) -> None:
    short(toy, '[sweep]\n"model.width" = [8, 16, "wide"]\n"optimizer.lr" = [1e-3, "fast"]\n')

    ran = assay("run", "many.toml")

    assert ran.returncode == 2
    assert "`lr` of `torch.optim.AdamW`" in ran.stderr and 'not "fast"' in ran.stderr
    assert not (toy / "runs").exists()


@pytest.mark.row("B05")
def test_a_number_drawn_at_the_start_is_kept_and_never_drawn_again(assay, toy: Path) -> None:
    short(toy, "")
    text = (toy / "many.toml").read_text().replace("seed = 3", 'seed = "${random:int:0:1000000000}"')
    (toy / "many.toml").write_text(text)

    for _ in range(2):
        assert assay("run", "many.toml").returncode == 0

    first, second = (plain(load(run / "config.toml").root)["seed"] for run in runs(toy))
    assert first != second
    assert [run_file.read(run).newest.seeds["seed"] for run in runs(toy)] == [first, second]
    again = assay("run", str(runs(toy)[0] / "config.toml"), "--user-dir", ".")
    assert again.returncode == 0, again.stderr
    assert plain(load(runs(toy)[2] / "config.toml").root)["seed"] == first
    assert assay("resume", runs(toy)[1].name.split("-")[2], "train.steps=4").returncode == 0
    assert plain(load(runs(toy)[1] / "config.toml").root)["seed"] == second


@pytest.mark.row("B05")
def test_the_devices_of_a_machine_are_counted_at_the_start_and_kept(
    assay, toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short(toy, "")
    text = (toy / "many.toml").read_text()
    (toy / "many.toml").write_text(text.replace("width = 8", 'width = "${device:count}"'))
    monkeypatch.chdir(toy)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)

    (result,) = house.run("many.toml", device="cpu")
    main(["check", "many.toml"])

    assert result.exception is None
    (run,) = runs(toy)
    newest = run_file.read(run).newest
    assert plain(load(run / "config.toml").root)["model"]["width"] == 4
    assert newest.config_hash[:16] == capsys.readouterr().out.split()[-1]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    again = house.run(run / "config.toml", device="cpu", user_dir=".")[0]
    assert again.config is not None and again.record_dir is not None
    assert plain(again.config.root)["model"]["width"] == 4
    assert run_file.read(again.record_dir).newest.config_hash == newest.config_hash
    explained = assay("config", "explain", "model.width", "many.toml").stdout
    assert "a run keeps the number it found" in explained


@pytest.mark.parametrize("variable", ["123", "0x10", "true", "plain"])
def test_a_variable_that_looks_like_a_number_is_text_for_a_parameter_that_wants_text(
    toy: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    net = (toy / "net.py").read_text().replace("width):", "width, name: str = ''):\n        self.name = name")
    (toy / "net.py").write_text(net)
    short(toy, "")
    text = (toy / "many.toml").read_text().replace("width = 8", 'width = 8\nname = "${env:A_NAME}"')
    (toy / "many.toml").write_text(text)
    monkeypatch.chdir(toy)
    monkeypatch.setenv("A_NAME", variable)

    (result,) = house.run("many.toml")

    assert result.exception is None
    assert house.load_model(f"{result.id}@latest").name == variable


@pytest.mark.row("C53")
def test_a_variable_of_the_machine_is_recorded_beside_a_config_whose_hash_does_not_know_it(assay, toy: Path) -> None:
    (toy / "points.py").write_text(
        (toy / "points.py").read_text().replace("noisy=False,", "noisy=False, root='', token='',")
    )
    short(toy, "")
    text = (
        (toy / "many.toml").read_text().replace("noisy = true", 'root = "${global:sets}/a", token = "${env:A_TOKEN}"')
    )
    (toy / "many.toml").write_text(text)
    unset = assay("run", "many.toml", A_TOKEN="sesame")
    assert unset.returncode == 2 and "assay config set --global sets VALUE" in unset.stderr

    for root in ("/here", "/there"):
        assert assay("config", "set", "--global", "sets", root).returncode == 0
        ran = assay("run", "many.toml", A_TOKEN="sesame")
        assert ran.returncode == 0, ran.stderr

    one, other = (run_file.read(run).newest for run in runs(toy))
    assert one.config_hash == other.config_hash
    assert one.launch["outside"] == {"global:sets": "/here", "env:A_TOKEN": "<redacted>"}
    assert other.launch["outside"]["global:sets"] == "/there"
    for run in runs(toy):
        kept = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
        assert b"sesame" not in kept
        assert "${global:sets}/a" in (run / "config.toml").read_text()


@pytest.mark.row("A13")
def test_settings_of_a_launch_are_recorded_and_change_neither_the_config_nor_its_hash(assay, toy: Path) -> None:
    short(toy, "")
    assert assay("run", "many.toml").returncode == 0
    assert assay("run", "many.toml", "--desc", "why", "--debug", "--device", "cpu").returncode == 0
    assert assay("run", "many.toml", "--no-file", "--desc", "x").returncode == 0

    plain_run, told = (run_file.read(run).newest for run in runs(toy))
    assert plain_run.config_hash == told.config_hash
    assert (told.launch["debug"], told.launch["device"]) == (True, "cpu")
    assert "why" in (runs(toy)[1] / "README.md").read_text()
    assert (runs(toy)[0] / "config.toml").read_bytes() == (runs(toy)[1] / "config.toml").read_bytes()
    assert assay("run", "many.toml", "device=cpu").returncode == 2


@pytest.mark.row("A01", "A02")
def test_a_config_and_a_folder_of_modules_are_all_an_experiment_needs(assay, toy: Path, tmp_path: Path) -> None:
    short(toy, "")
    assert assay("run", "many.toml", "model.width=64").returncode == 0
    assert plain(load(runs(toy)[0] / "config.toml").root)["model"]["width"] == 64

    (toy / "src" / "deep").mkdir(parents=True)
    (toy / "src" / "deep" / "nets.py").write_text((toy / "net.py").read_text())
    assert assay("run", "many.toml", "model.type=deep.nets.Net").returncode == 0

    elsewhere = tmp_path / "mylib"
    elsewhere.mkdir()
    (elsewhere / "task.py").write_text((toy / "net.py").read_text().replace("Net", "T"))
    (elsewhere / "points.py").write_text((toy / "points.py").read_text())
    ran = assay("run", str(toy / "many.toml"), "model.type=task.T", "--user-dir", "mylib", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert plain(load(runs(toy)[2] / "config.toml").root)["model"]["type"] == "task.T"


@pytest.mark.row("E12")
def test_every_section_that_can_be_done_without_has_the_same_switch(assay, toy: Path) -> None:
    short(toy, "")
    off = [f"{section}.enabled=false" for section in ("evaluate", "checkpoint", "display")]

    on = assay("run", "many.toml", "checkpoint.enabled=true")
    ran = assay("run", "many.toml", *off)

    assert (on.returncode, ran.returncode) == (0, 0), ran.stderr
    first, second = runs(toy)
    assert "valid/acc" in run_file.read(first).summaries and any((first / "checkpoints").iterdir())
    assert "valid/acc" not in run_file.read(second).summaries and not (second / "checkpoints").exists()
    assert run_file.read(first).newest.config_hash == run_file.read(second).newest.config_hash
    wrong = assay("run", "many.toml", "evaluate.enabled=1")
    assert wrong.returncode == 2 and "`evaluate.enabled` must be true or false" in wrong.stderr


def test_python_runs_the_same_variants_and_points_in_order(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short(toy, "[variants.wide]\nmodel.width = 16\n[sweep]\nseed = [1, 2]\n")
    monkeypatch.chdir(toy)

    results = house.run("many.toml", variant="all", no_file=True)

    assert [(one.config.variant, one.config.point, one.status) for one in results if one.config] == [
        ("wide", "1/2", "finished"),
        ("wide", "2/2", "finished"),
    ]
    assert [one.step for one in house.run("many.toml", sweep=False, no_file=True)] == [2]
    assert house.run("many.toml", variant="wdie", no_file=True)[0].exit_code == 2
