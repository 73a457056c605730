"""Grammar of hostile packs, and what each command does with one: run in a process of its own.

`python packs.py FOLDER FIRST COUNT` prints a JSON list of troubles. Each pack has right digests. It
is unpacked, which may refuse it, and it is also put among the records by hand; then every command
that takes a run or a config is called. An audit hook watches all of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assay.cli.check_views import VIEWS
from assay.cli.main import main as assay
from assay.formats.json_codec import dumps
from assay.store.packing import Pack, PackedFile

WATCHED = {
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pty.spawn"),
    *("socket.connect", "socket.bind", "socket.getaddrinfo"),
}
MARK = "open({place!r}, 'w').close()\n"
SETTINGS = """\
trusted = ["model", "evil"]
runs_dir = "{place}-runs"
[[notify]]
when = ["finished", "failed", "stopped"]
channel = "command"
command = "touch {place}"
"""
CONFIG = """\
seed = 0
[model]
type = "model.Net"
[data.train]
source = {{ type = "evil.Data" }}
batch_size = 4
[process]
type = "assay.engine.Supervised"
criterion = {{ type = "torch.nn.MSELoss" }}
[optimizer]
type = "torch.optim.SGD"
lr = 0.1
[train]
steps = 1
"""
NAMES = (
    *(".assay/settings.toml", ".assay/.gitignore", ".assay/tables/a.jsonl", ".git/config"),
    *("model.py", "evil.py", "src/model.py", "sitecustomize.py", "usercustomize.py", "conftest.py"),
    *(
        "config/model.py",
        "config/evil.py",
        "config/base.py",
        "config/__init__.py",
        "files/a/evil.py",
    ),
    *("backup/model.py", "board/evil.py", "artifacts/evil.py", "checkpoints/evil/model.py"),
    *("a.ipynb", "files/a.ipynb", ".env", ".envrc", ".pth", "evil.pth", "config/evil.pth"),
    *("Makefile", "setup.py", "pyproject.toml", "config/.assay/settings.toml", "files/.bashrc"),
    *(
        "../evil.py",
        "../../.assay/settings.toml",
        "/tmp/evil.py",
        "a/../../evil.py",
        "C:\\\\evil.py",
    ),
    *("config.TOML", "Run.json", "RUN.JSON", "config/a.py", "config/A.py", "con", "nul.txt"),
    *(
        "config/e\u0301.py",
        "config/\u00e9.py",
        "config/\x1b[2Jx",
        "config/a\nb",
        "con\u202efig/a.py",
    ),
    *("checkpoints", "config", "config.toml/a", "run.json/evil.py", "trace/" + "a/" * 50 + "b"),
)
COMMANDS = (
    *(["check", "RUN"], *(["check", "RUN", "--show", it] for it in VIEWS), ["show", "RUN"]),
    *(["log", "RUN"], ["metrics", "RUN"], ["ls"], ["diff", "RUN", "RUN"], ["find", "FILE"]),
    *(["test", "RUN"], ["rerun", "RUN"], ["resume", "RUN"], ["replay", "RUN"], ["restore", "RUN"]),
    *(
        ["diverge", "RUN", "RUN", "--no-rerun"],
        ["edit", "RUN", "--note", "x"],
        ["live", "RUN", "--once"],
    ),
)
OF_CONFIGS = (
    *(
        ["run", "FILE", "--max-steps", "1"],
        ["check", "FILE"],
        ["check", "FILE", "--show", "layers"],
    ),
    *(*(["check", "FILE", "--show", it] for it in VIEWS), ["sweep", "FILE"]),
    *(["config", "explain", "seed", "FILE"], ["run", "FILE", "--queue"], ["test", "FILE"]),
    *(["verify-resume", "FILE"], ["prove", "FILE", "--write", "g.json"]),
)


class Watch:
    """Audit hook that keeps what nothing but the user's own code may do."""

    def __init__(self) -> None:
        self.root = Path()
        self.seen: list[str] = []
        self.is_on = False
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event in WATCHED:
            self.seen.append(f"{event} {arguments[:2]!r:.120}")
        elif event == "exec":
            file = getattr(arguments[0], "co_filename", "")
            if file.startswith(str(self.root)):
                self.seen.append(f"runs {file}")
        elif event == "open" and isinstance(arguments[0], str) and is_writing(arguments):
            path = os.path.abspath(arguments[0])
            if not path.startswith((str(self.root), "/dev/")):
                self.seen.append(f"writes {path}")

    @contextlib.contextmanager
    def on(self, root: Path) -> Iterator[list[str]]:
        self.root, self.seen, self.is_on = root, [], True
        try:
            yield self.seen
        finally:
            self.is_on = False


def is_writing(arguments: tuple[Any, ...]) -> bool:
    mode, flags = arguments[1], arguments[2]
    return bool(set(mode or "") & set("wax+")) or bool(flags & (os.O_WRONLY | os.O_RDWR))


def entries(
    draw: random.Random, folder: str, run: dict[str, bytes], place: str
) -> dict[str, bytes]:
    """Return the files of one pack: those of a run, and one to four that are hostile."""
    files = dict(run)
    if draw.random() < 0.5:
        files["config.toml"] = CONFIG.format().encode()
    for name in draw.sample(NAMES, draw.randint(1, 4)):
        text = MARK.format(place=place)
        if name.endswith("settings.toml"):
            text = SETTINGS.format(place=place)
        if name.endswith(".toml") and "settings" not in name:
            text = CONFIG.format()
        if draw.random() < 0.2:
            name = "".join(each.upper() if draw.random() < 0.3 else each for each in name)
        files[name] = text.encode()
    return files


def write_pack(file: Path, folder: str, run_id: str, files: dict[str, bytes], kind: bytes) -> None:
    listed = {
        f"run/{name}": PackedFile(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        for name, data in files.items()
    }
    head = dumps(Pack(id=run_id, folder=folder, files=listed)).encode("utf-8", "surrogateescape")
    with tarfile.open(file, "w:gz") as tar:
        for name, data in [("pack.json", head), *((f"run/{n}", d) for n, d in files.items())]:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            if kind != tarfile.REGTYPE and name.startswith("run/") and "." in name:
                entry.type, entry.linkname, entry.size = kind, "/etc/passwd", 0
                data = b""
                kind = tarfile.REGTYPE
            tar.addfile(entry, io.BytesIO(data))


def place_by_hand(folder: Path, files: dict[str, bytes]) -> None:
    """Write what a file system takes of the files into a folder among the records."""
    for name, data in files.items():
        path = Path(os.path.normpath(folder / name))
        if not path.is_relative_to(folder):
            continue
        with contextlib.suppress(OSError, ValueError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def attack(watch: Watch, root: Path, run_folder: Path, number: int) -> list[str]:
    """Return what one pack did that it may not, and what broke."""
    draw = random.Random(number)
    project = root / "project"
    (project / ".assay").mkdir(parents=True)
    os.chdir(project)
    os.environ["XDG_CACHE_HOME"] = str(root / "cache")
    run = {
        str(path.relative_to(run_folder)): path.read_bytes()
        for path in run_folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
    run_id = json.loads(run["run.json"])["id"]
    place = str(root / "PWNED")
    files = entries(draw, run_folder.name, run, place)
    kind = draw.choice([tarfile.REGTYPE] * 6 + [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
    write_pack(root / "x.tar.gz", run_folder.name, run_id, files, kind)
    troubles: list[str] = []
    with watch.on(root) as seen:
        said = call(["unpack", str(root / "x.tar.gz")], troubles)
        kept = project / "runs" / run_folder.name
        if not kept.exists():
            left = [path for path in project.rglob("*") if path.is_file()]
            strange = [str(path) for path in left if path.parent != project / ".assay"]
            if strange:
                troubles.append(f"a refused pack left {strange}: {said}")
            place_by_hand(kept, files)
        for words in COMMANDS:
            call([named(word, run_id, kept / "config.toml") for word in words], troubles)
        configs = sorted(p for p in kept.rglob("*") if p.suffix in (".toml", ".py", ".TOML"))
        for config in configs:
            for words in OF_CONFIGS:
                call([named(word, run_id, config) for word in words], troubles)
    troubles += seen
    if os.path.exists(place):
        troubles.append("the mark was made")
    return [f"{number}: {each}" for each in dict.fromkeys(troubles)]


def named(word: str, run_id: str, config: Path) -> str:
    return {"RUN": run_id, "FILE": str(config)}.get(word, word)


def call(words: list[str], troubles: list[str]) -> str:
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            assay(words)
    except BaseException as error:
        troubles.append(f"{words} raised {type(error).__name__}: {error}")
    if "fault in assay" in out.getvalue():
        troubles.append(f"{words} is a fault: {out.getvalue()[-300:]}")
    return out.getvalue()


def main() -> int:
    folder, run_folder, first, count = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])
    watch = Watch()
    troubles = []
    for number in range(first, first + count):
        root = folder / str(number)
        troubles += attack(watch, root, run_folder, number)
        os.chdir(folder)
        shutil.rmtree(root)
    json.dump(troubles, sys.__stdout__)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
