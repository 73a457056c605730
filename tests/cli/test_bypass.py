"""A config is data: it calls only what it may call, and anything else is refused at its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bypass

ROOT = Path(__file__).resolve().parents[2]

# The hook listens from the moment on in which everything that assay itself imports is there.
SCRIPT = """
import sys, torch, torch.hub, pydantic, assay.build, assay.compose, assay.engine
from assay.cli.main import main
done = []
DOINGS = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.remove", "os.rename", "os.mkdir", "os.kill",
          "subprocess.Popen", "pty.spawn", "socket.", "shutil.", "urllib.", "webbrowser.", "ctypes.dlopen", "ftplib.",
          "smtplib.", "sqlite3.", "tempfile.", "pickle.find_class", "code.__new__", "builtins.input", "http.")
def listen(event, arguments):
    writes = event == "open" and set(str(arguments[1])) & set("wax+")
    if event.startswith(DOINGS) or (writes and "__pycache__" not in str(arguments[0])):
        done.append(f"{event}{arguments[:1]}")
sys.addaudithook(listen)
code = main(["check", "a.toml", "--json"])
print(*done, sep="\\n", file=sys.stderr)
sys.exit(code)
"""


def test_every_bypass_is_refused_at_its_place_and_nothing_is_executed(tmp_path: Path) -> None:
    """What the text alone tells comes first; names inside of modules are asked for without it."""
    bypass.write(tmp_path)
    marker = tmp_path / "executed"
    asked = list(bypass.REFUSED)
    assert len(asked) >= 100

    for _ in ("the text", "the modules"):
        calls = [f'  {{ type = {json.dumps(each)}, args = ["touch {marker}"] }},' for each in asked]
        text = "\n".join(['[process]\ntype = "model.make"\nargs = [{ many = [', *calls, "]}]\n"])
        (tmp_path / "a.toml").write_text(text)
        ended = subprocess.run(
            [sys.executable, "-B", "-c", SCRIPT],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            text=True,
            capture_output=True,
            check=False,
        )
        refused = {
            each["line"]: each
            for each in json.loads(ended.stdout)
            if each["kind"] in ("unknown-target", "target-not-allowed")
        }
        assert refused and {each["column"] for each in refused.values()} == {12}
        assert all(each["fix"] for each in refused.values() if each["kind"] == "target-not-allowed")
        assert ended.returncode == 2
        assert ended.stderr.strip() == ""
        assert not marker.exists()
        asked = [target for line, target in enumerate(asked, 4) if line not in refused]

    assert asked == []


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("timm.create_model", "assay config trust timm"),
        ("hypothesis.strategies.integers", "assay config trust hypothesis"),
        ("torchvision.models:resnet18", "assay config trust torchvision"),
    ],
)
def test_the_refusal_of_a_package_prints_the_command_that_would_allow_it(
    target: str, command: str, tmp_path: Path
) -> None:
    (tmp_path / "a.toml").write_text(f'[model]\ntype = "{target}"\n')

    ended = subprocess.run(
        [sys.executable, "-m", "assay", "check", "a.toml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        text=True,
        capture_output=True,
        check=False,
    )

    assert f"= {command}\n" in ended.stdout
    assert ended.returncode == 2
