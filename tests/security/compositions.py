"""Runner of what a config can compose, in an OS process of its own, which reports the effects.

It reads {"folder": ..., "number": ..., "seed": ...} from standard input. Each composition is made
by a grammar over the allow-list: any target, in any place of a config, its arguments other
compositions, factories of them, or values that an attacker would try. What is built is trained
with, and then used in every way that a training might: called, iterated, entered, listened to. One
line of JSON tells what was forbidden among it, and how much of it came to be. "trees" are given in
place of what the grammar makes, with "listed" added to the allow-list: so that a test sees the
watch at work.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import itertools
import json
import os
import random
import signal
import socket
import sys
import sysconfig
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path
from types import FrameType
from typing import Any

CANARY = "canary_of_the_attack"
"""In all that an attacker names: whatever touches something of this name, or runs it, was driven by the config."""

WORDS = (
    f"touch {CANARY}",
    f"/tmp/{CANARY}",
    f"../{CANARY}",
    f"{CANARY}",
    f"{CANARY}.run",
    f"{CANARY}:run",
    f"__import__('{CANARY}')",
    f"$(touch {CANARY})",
    f"file:///{CANARY}",
    "os.system",
    "builtins.exec",
    "__class__.__init__.__globals__",
    "forward.__globals__",
    "process.recorder.folder.path",
    "model.forward",
    "mean",
    "relu",
    "spawn",
    "1 steps",
    "*",
)
FLAGS_THAT_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
NEVER = (
    *(
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.startfile",
        "subprocess.",
        "pty.",
        "webbrowser.",
    ),
    *("socket.__new__", "socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"),
    *("urllib.", "http.", "ftplib.", "smtplib.", "sqlite3.", "code.__new__"),
    *("pickle.find_class", "builtins.input", "cpython.run"),
)
CHANGES = (
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.truncate",
)
NAMING = ("open", "os.scandir", "os.listdir", "os.walk", *CHANGES)
"""Events of a file, whose name in the project may be any text of the config."""
WITH_TWO_PATHS = ("os.rename", "os.link", "os.symlink")
ASKED_BY_LIBRARIES = (
    *("triton", "colorama", "torchdistx", "gmpy2", "gmpy", "flint", "linkify_it"),
)
"""What torch, its compiler, mpmath and markdown-it import where it is installed, whatever a config says."""
READERS = {"masked_text.py", "text.py"}
"""Files of data sets whose argument is the path of a text that they read, wherever it lies."""
WORKERS = {"workers.py", "resource_sharer.py", "reductions.py"}
"""Files of the processes of a loader, which talk through local sockets."""
LIMIT_S = 10


@dataclass
class Watch:
    """Listens to everything that Python does, and keeps what no config may cause."""

    inside: Path
    trusted_code: tuple[str, ...]
    installed: frozenset[str]
    log: int
    """A file descriptor, which processes of a loader have too."""
    is_on: bool = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        self.is_on = False
        try:
            if self._is_forbidden(event, arguments):
                os.write(
                    self.log, f"{event} {str(arguments[:2])[:300]!r} {self._where()}\n".encode()
                )
        finally:
            self.is_on = True

    def _is_forbidden(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if CANARY in str(arguments[:2]) and event.startswith(
            ("open", "import", "exec", "compile", "os.", "subprocess")
        ):
            is_inside = event in NAMING and self._are_inside(event, arguments)
            return not (is_inside or self._is_a_text_of_a_data_set(event, arguments))
        if event == "open":
            path, mode, flags = arguments
            writes = set(str(mode or "")) & set("wax+") or (
                mode is None and flags & FLAGS_THAT_WRITE
            )
            return bool(writes) and not self._is_inside(path)
        if event in CHANGES or event.startswith("shutil."):
            return not self._are_inside(event, arguments)
        if event == "import":
            top = str(arguments[0]).partition(".")[0]
            is_known = top in sys.modules or top in sys.stdlib_module_names or top in self.installed
            return not is_known and top not in ASKED_BY_LIBRARIES
        if event == "exec":
            file = getattr(arguments[0], "co_filename", "")
            return not file.startswith(self.trusted_code) and not self._is_made_by_trusted_code(
                file
            )
        return event.startswith(NEVER) and not self._is_of_assay_or_loader(event, arguments)

    def _is_a_text_of_a_data_set(self, event: str, arguments: tuple[Any, ...]) -> bool:
        """Whether a data set reads the file that its argument names."""
        names = {Path(frame.filename).name for frame in inspect.stack()[3:12]}
        return event == "open" and arguments[1] in ("r", "rb") and bool(names & READERS)

    def _is_of_assay_or_loader(self, event: str, arguments: tuple[Any, ...]) -> bool:
        """Return whether the config is not the cause: the record runs git, a loader its workers."""
        names = {Path(frame.filename).name for frame in inspect.stack()[3:12]}
        if event.startswith("socket."):
            is_local = arguments[1] == socket.AF_UNIX or isinstance(arguments[1], str | bytes)
            return is_local and bool(names & WORKERS)
        if event == "subprocess.Popen":
            return arguments[0] == "git" and "snapshot.py" in names
        return event == "pickle.find_class" and bool(names & {"dataloader.py", "workers.py"})

    def _are_inside(self, event: str, arguments: tuple[Any, ...]) -> bool:
        """Whether a change stays in the project, at both of its ends if it has two."""
        paths = arguments[: 2 if event in WITH_TWO_PATHS else 1]
        if event == "os.symlink":  # its target is relative to the folder of the link
            target, link = map(os.fsdecode, paths)
            paths = (os.path.join(os.path.dirname(link), target), link)
        return all(map(self._is_inside, paths))

    def _is_inside(self, path: Any) -> bool:
        if isinstance(path, int):
            return True  # opened before
        real = os.path.realpath(os.fspath(path))
        real = real.decode() if isinstance(real, bytes) else real
        return (
            real == "/dev/null"
            or real.startswith((f"{self.inside}{os.sep}", *_CACHES))
            or "__pycache__" in real
        )

    def _is_made_by_trusted_code(self, file: str) -> bool:
        """Return whether the standard library itself runs the text, as for a dataclass."""
        frame: FrameType | None = sys._getframe(3)
        return (
            file.startswith("<")
            and frame is not None
            and frame.f_code.co_filename.startswith(self.trusted_code)
        )

    def _where(self) -> str:
        frames = inspect.stack()[3:9]
        return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)


_CACHES = ("/proc/", "/sys/", "/dev/shm/", "/dev/pts/", "/dev/tty")


class Grammar:
    """Generator of calls of allowed targets, about half with arguments that fit."""

    def __init__(self, rng: random.Random) -> None:
        from assay.config.allow_list import LISTED

        self.rng = rng
        self.things = {
            f"{module}.{name}": getattr(importlib.import_module(module), name, None)
            for module, names in LISTED.items()
            for name in names
        }
        self.things = {name: thing for name, thing in self.things.items() if thing is not None}
        self.names = sorted(self.things)
        self.classes = [name for name in self.names if isinstance(self.things[name], type)]
        self.functions = [name for name in self.names if name not in self.classes]
        self.modules = [name for name in self.classes if _is_module(self.things[name])]
        self.datasets = [name for name in self.names if "data" in name.lower() or "pipes" in name]
        self.optimizers = [
            name
            for name in self.classes
            if name.startswith("torch.optim.") and name.count(".") == 2
        ]
        self.used: Counter[str] = Counter()
        self.nonsense = 0.2
        """How often an argument is anything at all."""

    def call(self, target: str, depth: int) -> dict[str, Any]:
        self.used[target] += 1
        made: dict[str, Any] = {"type": target}
        try:
            parameters = list(inspect.signature(self.things[target]).parameters.values())
        except (ValueError, TypeError):
            made["args"] = [self.value(None, depth) for _ in range(self.rng.randint(0, 3))]
            return made
        for parameter in parameters:
            if parameter.name in ("self", "type", "args"):
                continue
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                made["args"] = [self.value(parameter, depth) for _ in range(self.rng.randint(0, 3))]
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                if self.rng.random() < self.nonsense:
                    made |= {
                        self.rng.choice(("a", "forward", "__class__", "state_dict")): self.value(
                            None, depth
                        )
                    }
            elif parameter.default is inspect.Parameter.empty or self.rng.random() < 0.25:
                made[parameter.name] = self.value(parameter, depth)
        if self.rng.random() < self.nonsense / 10:
            made["args"] = [self.value(None, depth)]
        if target in ("torch.nn.RNN", "torch.nn.LSTM", "torch.nn.GRU"):
            made |= {"input_size": 2, "hidden_size": 2}
        return made

    def factory(self, depth: int, target: str = "") -> dict[str, Any]:
        target = target or self.rng.choice(
            self.functions if self.rng.random() < 0.6 else self.names
        )
        made = self.call(target, depth)
        kept = {key: value for key, value in made.items() if self.rng.random() < 0.5}
        return {**kept, "type": target, "_partial_": True}

    def value(self, parameter: inspect.Parameter | None, depth: int) -> Any:
        name, wanted = (
            (parameter.name, str(parameter.annotation)) if parameter is not None else ("", "")
        )
        if self.rng.random() < self.nonsense or (parameter is None and self.rng.random() < 0.5):
            return self.junk(depth)
        if depth > 0:
            if "Callable" in wanted or name.endswith(("fn", "function", "init", "lambda", "hook")):
                return self.factory(depth - 1)
            if "Module" in wanted or name in ("model", "module", "criterion", "base"):
                return self.call(self.rng.choice(self.modules), depth - 1)
            if "ataset" in wanted or name in (
                "dataset",
                "datasets",
                "data_source",
                "source",
                "stream",
            ):
                return self.call(self.rng.choice(self.datasets), depth - 1)
            if "ptimizer" in wanted or name == "optimizer":
                return self.call(self.rng.choice(self.optimizers), depth - 1)
        if "Tensor" in wanted:
            return {"type": "torch.nn.Parameter"}
        if wanted.startswith(
            ("Sequence", "list", "tuple", "collections.abc.Sequence", "typing.Sequence")
        ):
            return [self.rng.choice((1, 2, 3)) for _ in range(2)]
        if "bool" in wanted:
            return self.rng.random() < 0.5
        if "int" in wanted:
            return self.rng.choice((1, 2, 3))
        if "float" in wanted:
            return self.rng.choice((0.0, 0.1, 0.5, 1.0))
        if "str" in wanted:
            return self.rng.choice(WORDS)
        return self.junk(depth)

    def junk(self, depth: int) -> Any:
        kind = self.rng.randrange(9 if depth > 0 else 5)
        if kind == 0:
            return self.rng.choice((None, True, 0, 1, 2, 3, -1, 0.5))
        if kind in (1, 2):
            return self.rng.choice(WORDS)
        if kind == 3:
            return [self.rng.choice(WORDS) for _ in range(self.rng.randint(0, 3))]
        if kind == 4:
            return {self.rng.choice(("a", "__class__", "forward", "path")): self.rng.choice(WORDS)}
        if kind == 5:
            return self.factory(depth - 1)
        if kind == 6:
            return [
                self.call(self.rng.choice(self.names), depth - 1)
                for _ in range(self.rng.randint(1, 2))
            ]
        return self.call(self.rng.choice(self.names), depth - 1)

    def config(self, target: str) -> dict[str, Any]:
        """A config that trains, of which `target` and some others take a part."""
        made = base()
        self.nonsense = self.rng.choice((0.0, 0.0, 0.05, 0.3))
        places = [
            *(
                ("model",),
                ("process",),
                ("process", "criterion"),
                ("optimizer",),
                ("schedule",),
                ("task",),
            ),
            *(
                ("data", "train", "source"),
                ("data", "train", "sampler"),
                ("data", "train", "batch_sampler"),
            ),
            *(
                ("data", "train", "collate"),
                ("data", "train", "worker_init"),
                ("data", "valid", "source"),
            ),
            *(
                ("process", "metrics", "m"),
                ("process", "batch_hook"),
                ("backward",),
                ("evaluate", "pipes"),
            ),
            *(("plugins",), ("plugins",), ("plugins",), ("criterion",)),
        ]
        for place in {
            self._place_of(target),
            *self.rng.sample(places, self.rng.choice((0, 0, 1, 2))),
        }:
            chosen = target if place == self._place_of(target) else self.rng.choice(self.names)
            call = self.call(chosen, 2)
            if (
                place[-1] in ("collate", "worker_init", "batch_hook")
                or self.rng.random() < self.nonsense
            ):
                call = self.factory(1, chosen)
            _put(made, place, [call] if place[-1] in ("plugins", "pipes") else call)
        return made

    def _place_of(self, target: str) -> tuple[str, ...]:
        if target in self.optimizers:
            return ("optimizer",)
        if target.startswith("torch.optim.lr"):
            return ("schedule", "scheduler")
        if target in self.datasets:
            return ("data", "train", "source")
        if target in self.modules:
            return ("process", "criterion") if "Loss" in target else ("model",)
        if target.startswith("assay.") and target in self.classes:
            return ("plugins",)
        return ("process", "batch_hook")


def base() -> dict[str, Any]:
    """The smallest config that trains without any code of the user's."""
    rows = [[i, i % 3] for i in range(4)]
    source = {"type": "assay.engine.data.map_style.SequenceWrapper", "datapipe": rows}
    collate = {"type": "torch.utils.data.default_collate", "_partial_": True}
    return {
        "model": {"type": "torch.nn.Embedding", "num_embeddings": 4, "embedding_dim": 3},
        "process": {
            "type": "assay.engine.Supervised",
            "criterion": {"type": "torch.nn.CrossEntropyLoss"},
        },
        "optimizer": {"type": "torch.optim.SGD", "lr": 0.01},
        "data": {"train": {"source": source, "batch_size": 2, "collate": collate}},
        "train": {"steps": 2},
    }


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        inner = tree.setdefault(
            key, {"type": "assay.engine.TorchSchedule"} if key == "schedule" else {}
        )
        tree = inner if isinstance(inner, dict) else {}
    if path[-1] == "plugins" and path[-1] in tree:
        tree[path[-1]] += value
    else:
        tree[path[-1]] = value


def _is_module(thing: Any) -> bool:
    import torch

    return isinstance(thing, type) and issubclass(thing, torch.nn.Module)


class TooLong(BaseException):
    """A composition took longer than it may; nothing that it holds catches this."""


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def use(thing: Any, depth: int = 2) -> None:
    """Do with an object what a training might do with it."""
    import torch

    x = torch.ones(2, 2)
    attempts = [
        lambda: thing(x),
        lambda: thing(x, x),
        lambda: thing(),
        lambda: list(itertools.islice(iter(thing), 2)),
        lambda: thing[0],
        lambda: len(thing),
        lambda: thing.handlers(),
        lambda: thing.state_dict(),
        lambda: thing.step(),
        lambda: thing.over([x, x]),
        lambda: thing.set_epoch(1),
        lambda: repr(thing),
    ]
    for attempt in attempts:
        with contextlib.suppress(Exception):
            found = attempt()
            if (
                depth
                and (callable(found) or hasattr(found, "__iter__"))
                and not isinstance(found, torch.Tensor | str)
            ):
                use(found, depth - 1)
    with contextlib.suppress(Exception), thing:
        pass


def parts(tree: Any) -> Iterator[Any]:
    """Every call inside a config."""
    if isinstance(tree, dict):
        if "type" in tree:
            yield tree
        for value in tree.values():
            yield from parts(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from parts(value)


def attack(tree: dict[str, Any], counts: Counter[str]) -> None:
    """Check and train what the config says, then build and use each of its calls for itself."""
    from assay.build import instantiate
    from assay.compose import Launch, train
    from assay.config import open_config
    from assay.core.errors import AssayError

    steps: list[tuple[str, Callable[[], Any]]] = [
        ("trained", lambda: train(open_config(tree), Launch(device="cpu", quiet=True))),
        *(
            ("built", functools.partial(lambda part: use(instantiate(part)), part))
            for part in list(parts(tree))[:12]
        ),
    ]
    for name, step in steps:
        try:
            with limited(LIMIT_S):
                result = step()
        except (AssayError, TooLong) as error:
            counts[f"{name}: {type(error).__name__}"] += 1
        except Exception:
            counts[f"{name}: raised"] += 1
        else:
            counts[name] += 1
            counts["finished"] += name == "trained" and result.status == "finished"


def run(
    folder: Path,
    number: int = 0,
    seed: int = 0,
    trees: Sequence[Any] = (),
    listed: Sequence[str] = (),
) -> Any:
    """What was forbidden, and how much came to be."""
    import torch

    import assay.compose
    import assay.engine
    import assay.plugins
    from assay.config import allow_list

    for name in listed:
        module, _, last = name.rpartition(".")
        allow_list.LISTED[module] = (*allow_list.LISTED.get(module, ()), last)  # type: ignore[index]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    (folder / f"{CANARY}.py").write_text("run = fly = print\n")
    grammar = Grammar(random.Random(seed))
    times, rest = divmod(number, len(grammar.names))
    targets = grammar.names * times + grammar.rng.sample(grammar.names, rest)
    trees = trees or [grammar.config(target) for target in targets]
    roots = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    code = (*(f"{root}{os.sep}" for root in roots), str(Path(assay.__file__).parent), "<frozen ")
    log = folder / "events"
    watch = Watch(
        folder,
        code,
        frozenset(packages_distributions()),
        os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    )
    sys.addaudithook(watch)
    counts: Counter[str] = Counter()
    attack(base(), Counter())  # what is imported late is imported now
    for tree in trees:
        before = log.stat().st_size
        watch.is_on = True
        attack(tree, counts)
        watch.is_on = False
        if log.stat().st_size > before:
            os.write(watch.log, f"    in {json.dumps(tree, default=str)}\n".encode())
    events = log.read_text().splitlines()
    sizes = {"compositions": len(trees), "targets": len(grammar.used), "of": len(grammar.names)}
    return {"events": events, "counts": counts, **sizes}


def main() -> int:
    asked = json.load(sys.stdin)
    folder = Path(os.path.realpath(asked.pop("folder")))
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ |= {
        name: str(folder / name) for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
    }
    tempfile.tempdir = str(folder)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        found = run(folder, **asked)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
