"""A hostile record, config or file cannot paint the terminal, whatever looks at it."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import struct
import unicodedata
import zlib
from pathlib import Path

import pytest

from assay.core.facts import Ended, Saved, Started, Warned
from assay.formats.event_log import Edit
from assay.formats.run_file import Best
from assay.store.artifacts import keep_artifact
from assay.store.layout import Project, RunFolder
from cli.conftest import Assay
from run_folders import edit, make_run, tell

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b2K\u202egpj\u2066\r\x08\x7f\u2028=1+1"
OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
OURS = re.compile(r"\x1b\[(?:\d{1,3};?)*m")


def obeyed(text: str) -> list[str]:
    """What in a text a terminal would obey, but for line ends, tabs and our own styles."""
    return [c for c in OURS.sub("", text) if c not in "\n\t" and unicodedata.category(c) in OBEYED]


@pytest.fixture
def hostile(project: Project) -> Path:
    """A run all of whose texts are hostile."""
    folder = make_run(
        project,
        tag=f"tag {EVIL}",
        id="evilevil",
        points={f"loss{EVIL}": [1.0, 0.5], "acc": [0.5]},
        config=f"tag = {json.dumps(EVIL)}\n[{json.dumps('a' + EVIL)}]\nx = {json.dumps(EVIL)}\n",
        status="failed",
        parent=f"parent{EVIL}",
        best=Best(metric=f"loss{EVIL}", mode="min", value=0.5, step=2),
        values={f"value{EVIL}": EVIL, "list": [EVIL]},
        attempt={
            "reason": EVIL,
            "command": ("assay", "run", EVIL),
            "host": f"host{EVIL}",
            "devices": (EVIL,),
            "exactness": EVIL,
            "environment": {"python": EVIL, "torch": {"version": EVIL}},
            "launch": {"variant": EVIL},
        },
    )
    tell(
        folder,
        Started(attempt=1, checkpoint=EVIL),
        Saved(name=EVIL, kind=EVIL, step=1, size_bytes=1),
        Warned(message=EVIL),
        Ended(
            status="failed",
            step=2,
            reason=EVIL,
            traceback=f"Traceback\n  {EVIL}\nValueError: {EVIL}",
        ),
    )
    edit(
        folder,
        [
            Edit(what="note", new=EVIL, who=EVIL, at_ns=1),
            Edit(what="label", key=EVIL, new=True, at_ns=1),
        ],
    )
    (folder / "log.txt").write_text(f"{EVIL}\n", encoding="utf-8")
    (folder / "README.md").write_text(f"# {EVIL}\n\n{EVIL}\n", encoding="utf-8")
    keep_artifact(RunFolder(folder), PICTURE, f"image{EVIL}", at_ns=1, kind="image", step=1)
    return folder


def png() -> bytes:
    def part(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
    lines = zlib.compress(b"\x00" + bytes(6) + b"\x00" + bytes([255] * 6))
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", lines) + part(b"IEND", b"")


PICTURE = png()

LOOKS = [
    *(["ls"], ["ls", "--diff"], ["ls", "--group"], ["ls", "--columns", "tag,desc,note,reason,labels,parent,folder"]),
    *(["show", "last"], ["show", "last", "--config"], ["log", "last"], ["log", "last", "--events"]),
    *(["diff", "last", "otherone"], ["live", "last", "--once"], ["live", "last", "--once", "-i", f"image{EVIL}"]),
    *(["edit", "last", "--note", EVIL, "--label", f"other{EVIL}", "--tag", f"other{EVIL}"], ["edit", "last"]),
    *(["edit", "last", "--archive"], ["find", "PICTURE"], ["restore", "last", "--to", f"to{EVIL}"], ["resume", "last"]),
    *(["test", "last"], ["replay", "last"], ["show", EVIL], ["ls", EVIL], ["ls", "--sort", EVIL], [EVIL]),
    *(["ls", f"--{EVIL}"], ["run", f"{EVIL}.toml"], ["check", "hostile.toml"], ["unpack", EVIL]),
    *(["import", "wandb", EVIL],),
    *(["config", "explain", EVIL, "hostile.toml"], ["config", "get", EVIL], ["config", "set", "x", EVIL]),
    *(["config", "get", "x"], ["config", "get"], ["pack", "last", "--to", "out.tgz"], ["rm", "last"]),
    *(["rm", "--undo", "evilevil"], ["gc", "--dry-run"]),
]  # fmt: skip
DATA = [
    *(
        ["ls", "--json"],
        ["ls", "--group", "--json"],
        ["show", "last", "--json"],
        ["diff", "last", "otherone", "--json"],
    ),
    *(
        ["find", "PICTURE", "--json"],
        ["config", "get", "--json"],
        ["check", "hostile.toml", "--json"],
    ),
]


@pytest.fixture(params=[False, True], ids=["plain", "colours"])
def colours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command asks this one function, by the name that it has imported."""
    import importlib

    from assay.cli.main import COMMANDS

    for module in {
        "assay.cli.terminal",
        "assay.cli.main",
        "assay.cli.launch",
        *(module for module, _ in COMMANDS.values()),
    }:
        found = importlib.import_module(module)
        if hasattr(found, "use_color"):
            monkeypatch.setattr(found, "use_color", lambda stream: request.param)


def test_no_look_at_a_hostile_record_paints_the_terminal(
    hostile: Path, project: Project, assay: Assay, colours: None
) -> None:
    make_run(project, tag="other", id="otherone", config="[a]\nx = 1\n", age_s=7200)
    Path("PICTURE").write_bytes(PICTURE)
    text = json.dumps(EVIL)
    Path("hostile.toml").write_text(
        f'[{text}]\n[model]\ntype = {text}\n"\\u001b[2J" = "${{{EVIL[1:4]}}}"\n', encoding="utf-8"
    )

    painted, shown = [], ""
    for words in LOOKS:
        said = assay(*words)
        shown += said.out + said.err
        if found := obeyed(said.out + said.err):
            painted.append((words[0], found))
        assert "Traceback (most recent" not in said.err, said.err

    assert painted == []
    assert r"\x1b[2J" in shown and r"\u202e" in shown and r"\x9b2K" in shown


def test_the_same_as_json_says_it_all_and_escapes_it(
    hostile: Path, project: Project, assay: Assay
) -> None:
    make_run(project, tag="other", id="otherone", age_s=7200)
    Path("PICTURE").write_bytes(PICTURE)
    Path("hostile.toml").write_text(f"{json.dumps(EVIL)} = 1\n", encoding="utf-8")

    for words in DATA:
        said = assay(*words)
        assert obeyed(said.out) == [], words
        json.loads(said.out)
    assert json.loads(assay("show", "last", "--json").out)["tag"] == f"tag {EVIL}"
    for line in (
        assay("metrics", "last", "--json").lines + assay("log", "last", "--json", "--events").lines
    ):
        assert obeyed(line) == [] and json.loads(line)


def test_a_table_is_neutral_for_spreadsheets_and_terminals(
    hostile: Path, project: Project, assay: Assay
) -> None:
    formulas = [
        "=1+1",
        "+1+1",
        "-1+1",
        "@SUM(1)",
        "\t=1",
        "\r=1",
        "\n=1",
        " =1+1",
        "＝1+1",
        "=cmd|' /C calc'!A0",
    ]
    for i, formula in enumerate(formulas):
        make_run(
            project,
            tag=formula,
            id=f"formula{'abcdefghij'[i]}",
            age_s=7200,
            points={formula: [1.0]},
        )

    tables = [
        assay("ls", "--csv", "--columns", "tag,best").out,
        assay("metrics", "last", "--csv").out,
    ]
    tables += [assay("metrics", f"formula{letter}", "--csv").out for letter in "abcdefghij"]

    for text in tables:
        assert obeyed(text) == []
        cells = [cell for line in csv.reader(io.StringIO(text, newline="")) for cell in line]
        assert cells and not [
            c
            for c in cells
            if c.lstrip().startswith(("=", "+", "@", "＝")) or is_words_behind_minus(c)
        ]


def is_words_behind_minus(cell: str) -> bool:
    return cell.startswith("-") and not re.fullmatch(r"-[\d.e+-]+", cell)


def test_every_command_writes_through_the_one_function() -> None:
    sources = Path(__file__).resolve().parents[2] / "src" / "assay" / "cli"
    found = [
        f"{path.name}:{node.lineno}: {ast.unparse(node.func)}"
        for path in sorted(sources.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if path.name != "terminal.py"
        and isinstance(node, ast.Call)
        and ast.unparse(node.func) in OTHER_WAYS
    ]
    assert found == []


OTHER_WAYS = {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"}
