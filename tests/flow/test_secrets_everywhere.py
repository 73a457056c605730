"""What is said to be secret once is nowhere: not in record, code store, pack or page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from assay.core.secrets.names import REDACTED
from assay.query.run import RunView
from assay.record import edits
from assay.store.blobs import FileBlobs
from assay.store.code_trees import code_blobs, read_tree
from assay.store.job_journal import QUEUE_DIR_VARIABLE
from assay.store.layout import Project, find_project, open_project, run_folders
from assay.store.packing import pack_run
from assay.web.access import Keys, Rules
from assay.web.app import make_api
from assay.web.pages import Files
from planted import WAYS

pytestmark = pytest.mark.slow

SRC = Path(__file__).resolve().parents[2] / "src"
SCRIPT = """\
import json
import logging
import os
from pathlib import Path

import assay

secrets = json.loads(Path("../secrets.json").read_text())
ways = json.loads(Path("../ways.json").read_text())
said = [text.format(secret) for (_, text), secret in zip(ways, secrets)]
half = len(said) // 2
config = {"lr": 0.1, "note": secrets[0], secrets[1]: 1, "urls": secrets[2:4]}
with assay.start(tag="planted", config=config, desc=f"of {secrets[4]}") as run:
    print("before it is known:", *secrets[half:], flush=True)
    run.log({f"loss/{secrets[half + 1]}": 1.0, f"loss/{secrets[5]}": 2.0, "loss": 0.5}, 1)
    run.value("before", {secrets[half + 2]: secrets[half + 3]})
    run.value(secrets[6], 1)
    run.table("rows", [{"name": "x", "secret": secrets[7]}])
    run.text(secrets[8], secrets[9])
    log = logging.getLogger("assay")
    for secret in secrets:
        log.warning("before: %s", secret)
    kept = [text for (name, _), text in zip(ways, said) if not name.endswith(".tf")]
    print("\\n".join(said[half:] + [text for text in said if text not in kept]), flush=True)
    print("afterwards:", *secrets, flush=True)
    raise SystemExit(f"ended by {secrets[-1]}")
"""


def secret_of(number: int) -> str:
    return f"Zx{number:02d}q8!Lm-{number * 7919:06d}"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Project of a script that ended: half of the ways are in its files, all are printed."""
    root = tmp_path_factory.mktemp("planted") / "project"
    root.mkdir()
    open_project(root, create=True)
    ways = [[name, text] for _, name, text in WAYS]
    secrets = [secret_of(number) for number in range(len(ways))]
    (root.parent / "ways.json").write_text(json.dumps(ways), encoding="utf-8")
    (root.parent / "secrets.json").write_text(json.dumps(secrets), encoding="utf-8")
    for number, (name, text) in enumerate(ways[: len(ways) // 2]):
        (root / f"way{number}").mkdir()
        (root / f"way{number}" / name).write_text(text.format(secrets[number]), encoding="utf-8")
    # Nothing in these says that they hold secrets.
    (root / "plain.py").write_text(f"NAMES = {secrets!r}\n", encoding="utf-8")
    (root / "train.py").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and secrets[-1] in done.stderr, done.stderr
    assert all(secret in done.stdout for secret in secrets), "a program prints what it prints"
    found = find_project(root)
    assert found is not None
    return found


def secrets_in(texts: dict[str, bytes]) -> list[str]:
    return sorted(
        f"{WAYS[number][0]} in {name}"
        for number in range(len(WAYS))
        for name, data in texts.items()
        if secret_of(number).encode() in data
    )


def test_no_way_to_say_a_secret_leaves_one_in_the_record_or_the_code_store(
    project: Project,
) -> None:
    kept = {
        str(path.relative_to(project.root)): path.read_bytes()
        for folder in (project.runs_dir, project.root / ".assay")
        for path in folder.rglob("*")
        if path.is_file()
    }

    assert len(WAYS) >= 60
    assert secrets_in(kept) == []


def test_what_is_left_of_the_record_says_what_it_said(project: Project) -> None:
    view = RunView(run_folders(project)[0])
    blobs = FileBlobs(project.code_dir)
    tree = read_tree(blobs, view.code.snapshot)

    assert view.status == "failed" and view.damages == ()
    assert set(view.summaries) == {"loss", f"loss/{REDACTED}", f"loss/{REDACTED}-2"}
    assert "lr = 0.1" in view.config_text
    assert blobs.get(tree["plain.py"].digest).decode().count(REDACTED) == len(WAYS)
    files = {f"way{number}/{WAYS[number][1]}" for number in range(len(WAYS) // 2)}
    assert {name for name in files if not name.endswith((".tf", ".go"))} <= tree.keys()
    assert "afterwards:" in view.folder.output.read_text(encoding="utf-8")


def test_a_pack_and_the_answers_of_the_page_hold_none(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folders(project)[0]
    view = RunView(folder)
    edits.note(folder, f"the password is {secret_of(3)}, as before")
    pack_run(folder, code_blobs(project), tmp_path / "x.tar.gz")
    with tarfile.open(tmp_path / "x.tar.gz") as packed:
        texts = {it.name: packed.extractfile(it).read() for it in packed if it.isfile()}  # type: ignore[union-attr]
    monkeypatch.setenv(QUEUE_DIR_VARIABLE, str(tmp_path / "queue"))
    with TestClient(
        make_api(project, Keys(b"secret", ""), Rules("assay"), Files("", is_built=False))
    ) as client:
        routes = [f"/api/runs/{view.id}{rest}" for rest in ("", "/config", "/code")]
        routes += [f"/api/runs/{view.id}/text?name={name}" for name in ("log", "output", "patch")]
        tree = read_tree(code_blobs(project), view.code.snapshot)
        routes += [f"/api/runs/{view.id}/code/file?path={name}" for name in tree]
        routes += [f"/api/runs/{view.id}/blobs/{it.digest}" for it in view.artifacts]
        routes += ["/api/runs", "/api/columns", f"/api/shown?runs={view.id}", "/api/inbox"]
        routes += [f"/api/runs?where={secret_of(1)}", f"/api/compare?runs={view.id},{view.id}"]
        answers = {route: client.get(route) for route in routes}
    texts |= {route: it.content for route, it in answers.items() if "where" not in route}

    assert sum(it.status_code == 200 for it in answers.values()) > len(WAYS) // 2
    assert secrets_in(texts) == []
