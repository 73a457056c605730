"""Generator of damaged and hostile records, each from a number, with all readers of records.

    python tests/security/records.py [FIRST] [HOW MANY]

tells what any of them raises that is no answer; `tests/security/test_records.py` does the first few
hundred.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import stat
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from assay.cli.main import main
from assay.core.errors import AssayError
from assay.core.facts import Evaluated, Saved, Warned
from assay.formats.event_log import Edit
from assay.query.catalog import Catalog
from assay.query.find import find_run
from assay.query.run import RunView
from assay.query.table import list_runs
from assay.record import edits
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.store.layout import Project, RunFolder
from assay.store.metrics_tail import Tail
from assay.store.packing import pack_run
from assay.store.trash import bring_back, clean, remove_run
from run_folders import id_of, make_checkpoint, make_project, make_run

SLOW_S = 10.0
OUTSIDE = "/etc/hostname"
NUMBERS = [
    0,
    -1,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    2**200,
    10**400,
    1e400,
    -0.0,
    1e-320,
    float("nan"),
]
TEXTS = [
    "",
    "x" * 300_000,
    "\x1b]0;painted\x07",
    "\u202e",
    "\ud800",
    "../../..",
    "a\0b",
    "=1+1",
    "9" * 5000,
    "\n" * 50,
]
VALUES: list[Any] = [
    *NUMBERS,
    *TEXTS,
    None,
    True,
    [],
    {},
    [[]] * 100,
    {"a": {"b": [1, 2, {"c": None}]}},
]


def recorded(project: Project) -> Path:
    """A run that has everything that a record can have."""
    with start_run(
        project,
        AttemptSpec(config_toml="lr = 0.1\n[model]\nwidth = 4\n"),
        tag="attacked",
        desc="what it is",
    ) as run:
        for step in range(40):
            run.log({"train/loss": 1 / (step + 1), "lr": 0.1}, step)
        run.log({"valid/acc": 0.5, "epoch": 0.0}, 40)
        run.tell(
            Evaluated(split="valid", step=40, metrics={"valid/acc": 0.5}, samples=8, seconds=0.1)
        )
        run.tell(
            Saved(name="step-000000040", kind="checkpoint", step=40, size_bytes=2, seconds=0.1)
        )
        run.tell(Warned(message="careful", step=3))
        run.set_value("table", [[1, 2], [3, 4]])
        run.artifact(b"\x89PNG", "picture.png", kind="image", step=1)
        run.watch("save")
        (run.folder.path / "files" / "save" / "1.txt").write_text("text")
    folder = run.folder
    make_checkpoint(folder.path, 40)
    for edit in ("good", "better"):
        edits.append(folder, Edit(what="label", key=edit, new=True))
    edits.note(folder, "a note")
    edits.append(
        folder,
        Edit(
            what="verdict", key="replay", new={"question": "replay", "runs": ["a"], "equal": True}
        ),
    )
    return folder.path


def attack(folder: Path, number: int) -> list[str]:
    """Damage a record, the same way for the same number; what was done, in words."""
    chance = Random(number)
    done = []
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        files = sorted(
            path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
        )
        path = chance.choice(files or [folder / "run.json"])
        harm = chance.choice(HARMS)
        with contextlib.suppress(OSError, ValueError, IndexError, RecursionError):
            harm(path, chance)
            done.append(f"{harm.__name__} {path.relative_to(folder)}")
    return done


def flip(path: Path, chance: Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 1, 3, 100])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    rewrite(path, bytes(data))


def cut(path: Path, chance: Random) -> None:
    rewrite(path, path.read_bytes()[: chance.randrange(path.stat().st_size + 1)])


def blank(path: Path, chance: Random) -> None:
    """As a disk does that has lost some of its sectors."""
    data = bytearray(path.read_bytes())
    begin = chance.randrange(len(data)) // 512 * 512
    data[begin : begin + 512] = bytes(len(data[begin : begin + 512]))
    rewrite(path, bytes(data))


def splice(path: Path, chance: Random) -> None:
    data = path.read_bytes()
    place = chance.randrange(len(data) + 1)
    rewrite(path, data[:place] + chance.randbytes(chance.randrange(2000)) + data[place:])


def repeat(path: Path, chance: Random) -> None:
    rewrite(path, path.read_bytes() * chance.randrange(2, 30))


def grow(path: Path, chance: Random) -> None:
    os.truncate(path, chance.choice([10**6, 10**8, 3 * 10**12]))


def lose(path: Path, chance: Random) -> None:
    path.unlink()


def pipe(path: Path, chance: Random) -> None:
    path.unlink()
    os.mkfifo(path)


def become_folder(path: Path, chance: Random) -> None:
    path.unlink()
    path.mkdir()


def link(path: Path, chance: Random) -> None:
    path.unlink()
    path.symlink_to(
        chance.choice([OUTSIDE, path.name, "/nowhere/at/all", "/dev/zero", "..", "run.json"])
    )


def nest(path: Path, chance: Random) -> None:
    depth = chance.choice([150, 900, 20_000])
    rewrite(path, b"[" * depth + b"]" * depth + b"\n")


def swap(path: Path, chance: Random) -> None:
    """The content of another of its files."""
    others = sorted(each for each in path.parent.iterdir() if each.is_file())
    rewrite(path, chance.choice(others).read_bytes())


def change_json(path: Path, chance: Random) -> None:
    """Other values in the place of some, in a JSON file or in lines of one."""
    text = path.read_text(encoding="utf-8")
    lines = [text] if path.suffix == ".json" else text.splitlines()
    changed = []
    for line in lines:
        data = json.loads(line)
        for _ in range(chance.randrange(1, 4)):
            places = list(places_in(data))
            holder, key = chance.choice(places)
            holder[key] = chance.choice(VALUES)
        changed.append(json.dumps(data))
    rewrite(path, ("\n".join(changed) + "\n").encode("utf-8", "surrogatepass"))


def places_in(data: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    ):
        yield data, key
        yield from places_in(value)


def rewrite(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


HARMS = [flip, cut, blank, splice, repeat, grow, lose, pipe, become_folder, link, nest, swap]
HARMS += [change_json] * 8  # of which there are so many kinds


COMMANDS = [
    ["ls"],
    ["ls", "--json"],
    [
        "ls",
        "--csv",
        "--columns",
        "status,tag,id,train/loss,valid/acc.max,model.width,note,labels,reason,parent",
    ],
    ["ls", "train/loss < 0.5 and age < 7d"],
    ["ls", "--grep", "careful"],
    ["ls", "--group"],
    ["ls", "--diff"],
    *([name, "{id}"] for name in ("show", "log", "edit")),
    ["show", "{id}", "--json"],
    ["show", "{id}", "--config"],
    ["show", "{id}", "--check"],
    ["diverge", "{id}", "{other}", "--no-rerun"],
    ["log", "{id}", "--events"],
    ["log", "{id}", "--events", "--json"],
    ["metrics", "{id}", "--json"],
    ["metrics", "{id}", "--csv"],
    ["live", "{id}", "--once"],
    ["live", "{id}", "--once", "-i", "picture.png"],
    ["diff", "{id}", "{other}"],
    ["find", "--name", "picture"],
    ["edit", "{id}", "--tag", "other"],
    ["restore", "{id}", "--to", "restored"],
]


def readers(
    project: Project, folder: Path, other: Path
) -> Iterator[tuple[str, Callable[[], object]]]:
    """All that reads a record, by name."""
    run_id, its = id_of(folder), id_of(other)
    for command in COMMANDS:
        words = [word.format(id=run_id, other=its) for word in command]
        yield " ".join(words), lambda words=words: said(words)
    yield "runs()", lambda: [(view.id, view.status, view.damages) for view in list_runs(project)]
    yield "a view", lambda: looked_at(RunView(folder))
    yield "a tail", lambda: Tail(folder / "metrics").update()
    yield "a catalog", lambda: Catalog(project).synchronize()
    yield "pack", lambda: pack_run(RunFolder(folder), NoBlobs(), project.root / "packed.tar.gz")


class NoBlobs:
    """A store of code that holds nothing."""

    def put(self, data: bytes) -> str:
        raise AssertionError("nothing is kept")

    def get(self, digest: str) -> bytes:
        raise KeyError(digest)

    def __contains__(self, digest: str) -> bool:
        return False

    def digests(self) -> list[str]:
        return []


def said(words: list[str]) -> str:
    """What a command prints; an AssertionError when it breaks, or shows a secret of the machine."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    text = out.getvalue() + err.getvalue()
    assert code in (0, 1, 2), f"exit code {code}"
    assert "fault in assay" not in text and "Traceback" not in text, text[-3000:]
    assert "\x1b]0;" not in text, "the terminal is painted"
    assert len(text) < 20_000_000, "more is printed than anybody can read"
    return text


def looked_at(view: RunView) -> None:
    """Everything that a view has."""
    for name in sorted(name for name in dir(type(view)) if not name.startswith("_")):
        with contextlib.suppress(AssayError):
            got = getattr(view, name)
            if name in ("metric", "history"):
                for each in ("train/loss", "valid/acc", "absent") if name == "metric" else ():
                    with contextlib.suppress(AssayError):
                        got(each).reduce(10)
            elif not callable(got):
                repr(got)


Harm = Callable[[Path], list[str]]
"""Damages a record; returns what was done, in words."""


@contextlib.contextmanager
def home_in_memory() -> Iterator[Path]:
    """A folder on a disk of memory where there is one: syncing and removing take most of a test."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory(dir=place, prefix="assay-records-") as name:
        home = Path(name).resolve()
        os.environ["XDG_CACHE_HOME"] = str(home / "cache")
        try:
            yield home
        finally:
            del os.environ["XDG_CACHE_HOME"]
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before


def fresh_record(home: Path) -> tuple[Project, Path, Path]:
    """A project, its sound run, and one that has everything; always the same two of a `home`.

    They are recorded once and copied to where they were made: there their paths are followed.
    """
    kept = home / "kept"
    project = Project(home / "project")
    if not kept.exists():
        make_project(project.root)
        make_run(project, tag="sound", points={"train/loss": [0.5]})
        recorded(project)
        project.root.rename(kept)
    shutil.copytree(kept, project.root)
    folder, other = sorted(project.runs_dir.glob("*-*"), key=lambda path: "sound" in path.name)
    return project, folder, other


_forbids_waiting = False


def refuse_to_wait(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail where a named pipe is opened without O_NONBLOCK: nobody is there who writes to it."""
    if not _forbids_waiting or event != "open" or not isinstance(arguments[0], str | os.PathLike):
        return
    with contextlib.suppress(OSError, ValueError):
        is_pipe = stat.S_ISFIFO(os.stat(arguments[0]).st_mode)
        if is_pipe and not arguments[2] & os.O_NONBLOCK:
            raise AssertionError(f"{arguments[0]} is a named pipe, which is waited for")


sys.addaudithook(refuse_to_wait)


@contextlib.contextmanager
def without_waiting() -> Iterator[None]:
    global _forbids_waiting
    _forbids_waiting = True
    try:
        yield
    finally:
        _forbids_waiting = False


def attacked(number: int, home: Path) -> Iterator[str]:
    """What goes wrong with the record of that number: nothing, as a rule."""
    for wrong in harmed(home, lambda folder: attack(folder, number)):
        yield f"{number} {wrong}"


def harmed(home: Path, harm: Harm) -> Iterator[str]:
    """What goes wrong with a record after `harm`."""
    with without_waiting():
        yield from _harmed(home, harm)


def _harmed(home: Path, harm: Harm) -> Iterator[str]:
    project, folder, other = fresh_record(home)
    before = Path(OUTSIDE).read_bytes()
    done = harm(folder)
    here = os.getcwd()
    os.chdir(project.root)
    try:
        for what, read in readers(project, folder, other):
            try:
                read()
            except AssayError:
                continue
            except Exception:
                yield f"({', '.join(done)}): {what}\n{traceback.format_exc(limit=-6)}"
        rows = list_runs(project, columns=["id", "status"]).cells
        if len(rows) != 2 or {each["status"] for each in rows} < {"finished"}:
            yield f"({', '.join(done)}): listed are {rows}"
        if RunView(other).damages:
            yield f"({', '.join(done)}): the other run is damaged"
        removed = remove_run(find_run(id_of(folder)).folder)
        bring_back(RunFolder(removed))
        remove_run(RunFolder(folder))
        clean(project, code=True)
        if folder.exists() or removed.exists():
            yield f"({', '.join(done)}): it is still there"
    except Exception:
        yield f"({', '.join(done)}): removing\n{traceback.format_exc(limit=-6)}"
    finally:
        os.chdir(here)
        shutil.rmtree(project.root, ignore_errors=True)
    if Path(OUTSIDE).read_bytes() != before:
        yield f"({', '.join(done)}): {OUTSIDE} was changed"


if __name__ == "__main__":
    first, count = (
        int(sys.argv[1] if sys.argv[1:] else 0),
        int(sys.argv[2] if sys.argv[2:] else 300),
    )
    with home_in_memory() as folder:
        for number in range(first, first + count):
            begun = time.monotonic()
            for wrong in attacked(number, folder):
                print(wrong, flush=True)
            if time.monotonic() - begun > SLOW_S:
                print(f"{number} took {time.monotonic() - begun:.0f} s", flush=True)
