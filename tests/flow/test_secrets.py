"""No secret comes into a record: 75 of 42 kinds, in every form that a run is given one in."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from assay.core.secrets.names import REDACTED
from assay.query.run import RunView
from assay.store.blobs import FileBlobs
from assay.store.code_trees import read_tree
from assay.store.layout import Project, find_project, open_project, run_folders
from planted import planted

pytestmark = pytest.mark.slow

PLANTED = planted()
SRC = Path(__file__).resolve().parents[2] / "src"

# It is given all secrets as arguments, variables, code and config, and says them in all the ways
# that there are.
SCRIPT = """\
import json
import logging
import os
import sys
from pathlib import Path

import assay
import client

texts = json.loads(Path("../given.json").read_text())
nested = {"lr": 0.1, "services": [{name: text} for name, text in texts]}
nested["urls"] = [text for _, text in texts if "://" in text]
said = ", ".join(f"{name}={text}" for name, text in texts)
run = assay.start(tag="planted", config=nested, desc=f"It logs in with {said}.")
print(os.environ["GIVEN_0_TOKEN"][:0] + "\\n".join(v for k, v in os.environ.items() if k.startswith("GIVEN_")))
print({name: text for name, text in texts})
for name, text in texts:
    logging.getLogger("assay").warning("%s: %s", name, text)
run.value("service", dict(texts))
run.value("said", said)
run.keycode(client)
os.environ["LATER_PASSWORD"] = "come.later-" + str(7788)
print(os.environ["LATER_PASSWORD"], flush=True)
try:
    raise ValueError(f"no access with {said}")
except ValueError as error:
    raise RuntimeError(f"Command {[w for n, t in texts for w in ('--' + n, t)]} failed") from error
"""


def files_of(project: Project) -> dict[str, bytes]:
    """Everything that assay keeps, by path."""
    found = [
        path for folder in (project.runs_dir, project.root / ".assay") for path in folder.rglob("*")
    ]
    return {
        str(path.relative_to(project.root)): path.read_bytes() for path in found if path.is_file()
    }


def left_in(project: Project) -> list[str]:
    files = files_of(project)
    texts = {it.kind: it.found for it in PLANTED} | {
        f"{it.kind} {i}": it.found for i, it in enumerate(PLANTED)
    }
    texts["later"] = "come.later-7788"
    return sorted(
        f"{kind} in {name}"
        for kind, text in texts.items()
        for name, data in files.items()
        if text.encode() in data
    )


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def inline(text: str) -> str:
    return text.replace("\n", "\\n")


@pytest.fixture
def planted_project(tmp_path: Path) -> Path:
    """Repository full of secrets: committed, changed, new, linked, and in files made for them."""
    root = tmp_path / "project"
    root.mkdir()
    open_project(root, create=True)
    code = [f"{it.name}_{i} = {json.dumps(it.text)}" for i, it in enumerate(PLANTED)]
    half = len(code) // 2
    (root / "client.py").write_text("\n".join(code[:half]) + "\n", encoding="utf-8")
    (root / "train.py").write_text(SCRIPT, encoding="utf-8")
    (root / "rate.py").write_text("LR = 0.1\n", encoding="utf-8")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "begin")
    (root / "client.py").write_text("\n".join(code) + "\n", encoding="utf-8")
    (root / "rate.py").write_text("LR = 0.2\n" + "\n".join(code), encoding="utf-8")
    yaml = "".join(f"  {it.name}: {json.dumps(it.text)}\n" for it in PLANTED)
    (root / "service.yaml").write_text(f"lr: 0.1\nservice:\n{yaml}", encoding="utf-8")
    (root / "setup.sh").write_text(
        "".join(f"export {it.name}={inline(it.text)}\n" for it in PLANTED), encoding="utf-8"
    )
    whole = "\n".join(it.text for it in PLANTED)
    for name in (
        ".env",
        "token.txt",
        "apikey.txt",
        "tokens.json",
        "credentials",
        "hf_token",
        "prod.tfvars",
    ):
        (root / name).write_text(whole, encoding="utf-8")
    (tmp_path / "outside.txt").write_text(whole, encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "notes.txt").write_text(whole, encoding="utf-8")
    (root / "notes.txt").symlink_to(root / ".env")
    (root / "more.txt").symlink_to("../outside.txt")
    (root / "lib").symlink_to("../elsewhere")
    (tmp_path / "given.json").write_text(
        json.dumps([[it.name, it.text] for it in PLANTED]), encoding="utf-8"
    )
    return root


def test_no_planted_secret_is_in_the_record_of_a_script(planted_project: Path) -> None:
    words = [word for it in PLANTED for word in (f"--{it.name.lower().replace('_', '-')}", it.text)]
    words += [f"--{it.name}={it.text}" for it in PLANTED]
    words += [f"service.{it.name}={it.text}" for it in PLANTED]
    given = {f"GIVEN_{i}_TOKEN": it.text for i, it in enumerate(PLANTED)}

    done = subprocess.run(
        [sys.executable, "train.py", *words],
        cwd=planted_project,
        env={**os.environ, **given, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1 and "RuntimeError" in done.stderr
    assert all(it.text in done.stdout for it in PLANTED), "what a program prints is shown as ever"
    project = find_project(planted_project)
    assert project is not None
    assert left_in(project) == []
    run = RunView(run_folders(project)[0])
    assert run.file.newest.command[:2] == (sys.executable, "train.py")
    assert run.file.newest.reason.startswith("RuntimeError: Command ['--OPENAI_API_KEY', ")
    assert "lr = 0.1" in run.config_text and run.config_text.count(REDACTED) >= 75
    kept = read_tree(FileBlobs(project.code_dir), run.code.snapshot)
    assert {"client.py", "train.py", "service.yaml", "setup.sh"} <= kept.keys()
    assert (
        not {".env", "token.txt", "tokens.json", "notes.txt", "more.txt", "lib/notes.txt"}
        & kept.keys()
    )
    left_out = "\n".join(run.code.left_out)
    assert all(f"{name} (" in left_out for name in ("token.txt", "notes.txt", "more.txt", "lib")), (
        left_out
    )
    patch = run.folder.patch().read_text(encoding="utf-8")
    assert "+LR = 0.2" in patch and REDACTED in patch
    assert "client.py in dirty.patch (may hold secrets)" in left_out, (
        "a patch with other lines would not apply"
    )


CONFIG = """
[data.train.source]
type = "stored.Stored"
split = 0
url = "postgresql://service:q8Zr3LmX0tYv@db.example.com/runs"
service = { api_key = "not-a-known-kind", user = "me", names = ["one"] }
"""
STORED = """\
import points


class Stored(points.Points):
    def __init__(self, split, url, service):
        super().__init__(split)
        if "q8Zr3LmX0tYv" not in url or service["api_key"] != "not-" + "a-known-kind":
            raise ValueError(f"cannot log in with api_key={service['api_key']}")
"""


@pytest.fixture
def stored(toy: Path) -> Path:
    """The toy project, whose data needs a password that stands in the config."""
    (toy / "stored.py").write_text(STORED.replace("q8Zr3LmX0tYv", "q8Zr3L"), encoding="utf-8")
    text = (toy / "toy.toml").read_text(encoding="utf-8")
    text = text.replace('source = { type = "points.Points", split = 0, noisy = true }\n', "")
    (toy / "toy.toml").write_text(text + CONFIG, encoding="utf-8")
    return toy


def test_a_config_with_secrets_runs_and_its_record_has_none(assay, stored: Path) -> None:
    secrets = (b"q8Zr3LmX0tYv", b"not-a-known-kind")

    done = assay("run", "toy.toml", "--max-steps", "4")

    assert done.returncode == 0, done.stderr
    project = find_project(stored)
    assert project is not None
    assert [
        name for name, data in files_of(project).items() if any(each in data for each in secrets)
    ] == []
    run = RunView(run_folders(project)[0])
    assert f'url = "postgresql://service:{REDACTED}@db.example.com/runs"' in run.config_text
    assert f'api_key = "{REDACTED}"' in run.config_text and 'user = "me"' in run.config_text


@pytest.mark.thorough
def test_what_a_record_does_not_hold_is_asked_for_and_taken(assay, stored: Path) -> None:
    assert assay("run", "toy.toml", "--max-steps", "4").returncode == 0
    again = [
        "data.train.source.url=postgresql://service:q8Zr3LmX0tYv@db.example.com/runs",
        "data.train.source.service.api_key=not-a-known-kind",
    ]

    for command in ("resume", "rerun", "test", "replay"):
        refused = assay(command, "last")
        assert refused.returncode == 2, command
        assert "keeps no secrets, and its config had some: data.train.source.url" in refused.stderr
        assert "Traceback" not in refused.stderr
    resumed = assay("resume", "last", *again)
    assert resumed.returncode == 0, resumed.stderr
    assert "changed" not in resumed.stderr + resumed.stdout
    assert assay("rerun", "last", *again, "train.epochs=1").returncode == 0
    project = find_project(stored)
    assert project is not None
    files = files_of(project)
    assert [
        name
        for name, data in files.items()
        if b"q8Zr3LmX0tYv" in data or b"not-a-known-kind" in data
    ] == []


def test_another_password_makes_no_other_experiment(assay, stored: Path) -> None:
    assert assay("run", "toy.toml", "--max-steps", "4").returncode == 0
    (stored / "toy.toml").write_text(
        (stored / "toy.toml")
        .read_text(encoding="utf-8")
        .replace("q8Zr3LmX0tYv", "q8Zr3Lm-anew-9x"),
        encoding="utf-8",
    )

    assert assay("run", "toy.toml", "--max-steps", "2").returncode == 0

    project = find_project(stored)
    assert project is not None
    first, second = (RunView(folder).file.newest for folder in run_folders(project))
    assert first.config_hash == second.config_hash and first.seedless_hash == second.seedless_hash
    assert first.config_hash != hashlib.sha256(b"").hexdigest()
