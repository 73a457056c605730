"""The best is what the run's own numbers say; anything else is damage, wherever one asks for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import assay
from assay.compose import Launch, testing
from assay.core.errors import AssayError, CheckpointError, InputError
from assay.formats import manifest as manifests
from assay.formats import run_file
from assay.formats.run_file import Best
from assay.query.run import RunView
from assay.store.blobs import FileBlobs
from assay.store.code_trees import code_blobs, read_tree
from assay.store.layout import Project, RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.* was made elsewhere")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, toy_files: Callable[[Path], None]) -> Path:
    """Folder of a project with one run of four evaluations, all of whose checkpoints are kept."""
    root = tmp_path_factory.mktemp("best")
    toy_files(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        overrides = {"checkpoint.keep": 9, "checkpoint.every": "1 epoch", "train.epochs": 4}
        result = assay.run("toy.toml", overrides=overrides, device="cpu")
    assert result.status == "finished"
    return root


@pytest.fixture
def view(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], RunView]]:
    """Views of the run in a copy of the project."""
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    (folder,) = [path for path in Path("runs").resolve().iterdir() if path.name[0].isdigit()]
    yield lambda: RunView(folder)


def other_than_best(view: RunView) -> manifests.Manifest:
    """A kept checkpoint whose evaluation was worse."""
    assert view.best is not None and view.best_checkpoint is not None
    metric, value = view.best.metric, view.best.value
    kept = [each.manifest for each in view.checkpoints if each.manifest is not None]
    return next(each for each in kept if each.info.get(metric, value) < value)


def point(folder: RunFolder, **changes: object) -> None:
    path = folder.checkpoints / "best.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}), encoding="utf-8")


def claim(folder: RunFolder, other: manifests.Manifest, **changes: object) -> None:
    """Let `best.json` and `run.json` agree on another checkpoint, with its own value."""
    run = run_file.read(folder.path)
    assert run.best is not None
    value = other.info[run.best.metric]
    best = Best(
        metric=run.best.metric, mode="max", value=value, step=other.step, checkpoint=other.name
    )
    run_file.write(folder.path, run_file.RunFile(**{**vars_of(run), "best": best}))
    point(folder, name=other.name, value=value, digest=other.digest, **changes)


def vars_of(run: run_file.RunFile) -> dict[str, object]:
    return {name: getattr(run, name) for name in run.__dataclass_fields__}


def only_name(folder: RunFolder, name: str) -> None:
    (folder.checkpoints / "best.json").write_text(json.dumps({"name": name}), encoding="utf-8")


TAMPERED: dict[str, Callable[[RunView, manifests.Manifest], object]] = {
    "another step": lambda view, it: point(view.folder, name=it.name),
    "another step with its digest": lambda view, it: point(
        view.folder, name=it.name, digest=it.digest
    ),
    "another step with its value": lambda view, it: point(
        view.folder, name=it.name, digest=it.digest, value=it.info["valid/acc"]
    ),
    "a name alone": lambda view, it: only_name(view.folder, it.name),
    "a value that was never measured": lambda view, it: point(view.folder, value=1.5),
    "another state": lambda view, it: point(view.folder, digest="0" * 64),
    "a checkpoint that is gone": lambda view, it: point(view.folder, name="step-000099999"),
    "no JSON": lambda view, it: (view.folder.checkpoints / "best.json").write_text("{"),
    "a name that leads out": lambda view, it: point(view.folder, name="../../x"),
    "both files, another step": lambda view, it: claim(view.folder, it),
    "the checkpoint's folder in the place of another": lambda view, it: (
        shutil.rmtree(view.best_checkpoint.path),  # type: ignore[union-attr]
        shutil.copytree(view.folder.checkpoints / it.name, view.best_checkpoint.path),  # type: ignore[union-attr]
    ),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_best_that_the_runs_numbers_do_not_bear_out_is_damage_everywhere(
    how: str, view: Callable[[], RunView], capfd: pytest.CaptureFixture[str]
) -> None:
    from assay.cli.main import main
    from assay.query.find import checkpoint_of

    before = view()
    TAMPERED[how](before, other_than_best(before))

    now = view()
    assert now.best_damage in now.damages and now.best_damage
    assert now.best is None and now.best_checkpoint is None
    for use in (
        lambda: checkpoint_of(now, "best"),
        lambda: assay.load_model(now.id, trust=True),
        lambda: testing.test(now.id, Launch(device="cpu"), trust=True),
    ):
        with pytest.raises((CheckpointError, InputError), match="The best checkpoint of"):
            use()
    assert main(["show", now.id]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "Damaged" in shown and " ".join(now.best_damage.split()) in shown
    assert assay.load_model(now.id, "latest", trust=True) is not None, (
        "what the error advises works"
    )


def test_an_honest_best_is_the_best(view: Callable[[], RunView]) -> None:
    now = view()

    assert now.best_damage == "" and now.damages == ()
    assert now.best is not None and now.best_checkpoint is not None
    assert now.best.value == now.summaries["valid/acc"].max
    pointer = manifests.read_pointer(now.folder.checkpoints, "best")
    assert pointer is not None and pointer["digest"] == now.best_checkpoint.manifest.digest  # type: ignore[union-attr]


def test_a_best_of_which_the_pointer_is_newer_than_the_record_is_believed(
    view: Callable[[], RunView],
) -> None:
    """A kill between the two writes leaves this."""
    now = view()
    other = other_than_best(now)
    run = run_file.read(now.path)
    older = Best(
        metric="valid/acc",
        mode="max",
        value=other.info["valid/acc"],
        step=other.step,
        checkpoint=other.name,
    )
    run_file.write(now.path, run_file.RunFile(**{**vars_of(run), "best": older}))

    assert view().best_damage == ""


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


FLIPPED: dict[str, Callable[[RunView], Path]] = {
    "metrics/names.jsonl": lambda view: view.folder.metrics / "names.jsonl",
    "step-000000008": lambda view: view.folder.checkpoints / "step-000000008" / "model.safetensors",
    "code": lambda view: FileBlobs(Path(view.file.project) / ".assay" / "code").path(
        next(
            iter(
                read_tree(code_blobs(Project(Path(view.file.project))), view.code.snapshot).values()
            )
        ).digest
    ),
}


@pytest.mark.parametrize("part", FLIPPED)
def test_a_check_of_all_finds_a_flipped_bit_in_what_has_a_checksum(
    part: str, view: Callable[[], RunView], capfd: pytest.CaptureFixture[str]
) -> None:
    from assay.cli.main import main

    assert main(["show", view().id, "--check", "--json"]) == 0
    before = {it["name"]: it["verdict"] for it in json.loads(capfd.readouterr().out)}
    assert before[part] == "as written"
    assert {before[name] for name in ("log.txt", "events.jsonl", "README.md")} == {"unverified"}
    run = run_file.read(view().path)
    project = Path.cwd()
    run_file.write(view().path, run_file.RunFile(**{**vars_of(run), "project": str(project)}))
    flip(FLIPPED[part](view()))

    assert main(["show", view().id, "--check"]) == 1

    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert [line[0] for line in lines if line[1:2] == ["damaged"]] == [part]


def test_nothing_is_tested_in_the_place_of_a_damaged_best(view: Callable[[], RunView]) -> None:
    now = view()
    point(now.folder, name=other_than_best(now).name)

    with pytest.raises(AssayError) as caught:
        testing.test(now.id, Launch(device="cpu"), trust=True)

    assert "valid/acc" in str(caught.value) and "fix: it has 8, 16" in str(caught.value)
