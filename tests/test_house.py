"""Rules of the house: imports allowed to each room, effects of imports, floors and walls."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
HEAVY = {"torch", "numpy", "fastapi", "starlette", "uvicorn", "pydantic", "rich"}

# What a room must not load when one of its modules is imported: the longest prefix that fits rules.
FORBIDDEN = {
    "assay": {"torch", "fastapi", "starlette", "uvicorn"},
    "assay.core": HEAVY | {"sqlite3", "click", "tomlkit", "psutil"},
    "assay.formats": HEAVY | {"sqlite3", "click", "tomlkit", "psutil"},
    "assay.cli": HEAVY,
    "assay.compat": {
        "fastapi",
        "starlette",
        "uvicorn",
    },  # adapters derive from the engine's classes
    "assay.compose": HEAVY,
    "assay.proof": HEAVY - {"numpy"},
    "assay.config": {"torch", "numpy", "fastapi", "rich"},
    "assay.build": {"torch", "numpy", "fastapi", "rich"},
    "assay.interop": {"torch", "numpy", "fastapi", "pydantic", "rich"},
    "assay.record": {"torch", "numpy", "fastapi", "pydantic"},
    "assay.store": {"torch", "numpy", "fastapi", "pydantic", "rich"},
    "assay.query": {"torch", "numpy", "fastapi", "pydantic", "rich"},
    "assay.report": {"torch", "matplotlib", "fastapi", "pydantic", "rich"},
    "assay.engine": {"fastapi", "starlette", "uvicorn", "sqlite3", "assay.config", "assay.store"},
    "assay.web": {"torch"},
}
# Modules that compute with arrays, in rooms of which the others leave numpy to the call that needs it.
OF_ARRAYS = {
    "assay.plugins.tensorboard": "assay",
    "assay.query.compare": "assay.query",
    "assay.query.curves": "assay.query",
    "assay.query.importance": "assay.query",
    "assay.query.picture": "assay.query",
    "assay.record.media": "assay.record",
    "assay.store.metrics_tail": "assay.store",
}
FORBIDDEN |= {module: FORBIDDEN[room] - {"numpy"} for module, room in OF_ARRAYS.items()}
# The faces: they load nothing heavy, whatever lies behind them.
FACE = {"assay", "assay.__main__", "assay.compat"}
FACE |= {f"assay.compat.{system}" for system in ("alchemy", "framework", "libai", "thexp")}
ENTRIES_OF_THE_ROOT = {
    *(".ci", ".gitattributes", ".gitignore", "dev", "pyproject.toml", "requirements"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"),
    *("benchmarks", "docs", "examples", "frontend", "src", "tests"),
}
ROOMS = (
    "build cli compat compose config core engine formats interop jobs plugins proof query record"
    " report store web"
)
FOLDERS = {
    "src/assay": ROOMS,
    "src/assay/compat": "alchemy framework libai parts thexp",
    "src/assay/config": "defaults params sources",
    "src/assay/core": "secrets",
    "src/assay/engine": (
        "callbacks checkpoint data export loop metrics model numerics optim parallel rehearse trace"
    ),
    "src/assay/jobs": "backends",
    "src/assay/web": "inference login routes",
    "tests": (
        "build cli compat config contract core engine flow formats gpu interop jobs mistakes proof"
        " query record security store web"
    ),
    "docs": "_static _templates api compat decisions guide reference tour zh",
    "docs/zh": "compat guide tour",
    "frontend": "public src",
}
"""Every folder of a place: what a test run or a tool leaves behind is none."""
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "managers", "misc"}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted((SRC / "assay").rglob("*.py")):
        parts = list(path.relative_to(SRC).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        yield ".".join(parts), path


MODULES = dict(modules())


def is_under(module: str, room: str) -> bool:
    return module == room or module.startswith(room + ".")


def forbidden_to(module: str) -> set[str]:
    if module in FACE:
        return HEAVY
    room = max((room for room in FORBIDDEN if is_under(module, room)), key=len)
    return FORBIDDEN[room]


def imported_fresh(names: list[str], before: list[str]) -> dict[str, dict[str, list[str]]]:
    """Return the effects of importing each module in an interpreter with only `before` loaded."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COV_", "COVERAGE"))
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "fresh.py")],
        input=json.dumps({"modules": names, "before": before}),
        capture_output=True,
        text=True,
        env={**variables, "PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {found["module"]: found for found in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def fresh() -> dict[str, dict[str, list[str]]]:
    """Import every module alone, those that need torch or fastapi with these loaded.

    Torch is for the engine and adapters of older systems, fastapi for the page, numpy for arrays.
    """
    rooms = {
        "assay.engine": ["torch", "numpy"],
        "assay.compat": ["torch", "numpy"],
        "assay.web": ["fastapi", "uvicorn", "numpy"],
        **{
            room: ["numpy"] for room in ("assay.plugins", "assay.proof", "assay.report", *OF_ARRAYS)
        },
    }
    found = {}
    heavy: set[str] = set()
    for room, before in rooms.items():
        names = [name for name in MODULES if is_under(name, room) and name not in FACE]
        heavy.update(names)
        found |= imported_fresh(names, before)
    return found | imported_fresh([name for name in MODULES if name not in heavy], [])


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="fresh interpreters are forked")
# Several hundred interpreters are forked for the first three tests: 35 s of CPU, minutes on a busy
# machine.
patient = pytest.mark.timeout(600)


@pytest.mark.thorough
@needs_fork
@patient
def test_no_module_loads_what_its_room_must_not(fresh: dict[str, dict[str, list[str]]]) -> None:
    broken = {
        name: sorted(forbidden_to(name) & set(found["loaded"]))
        for name, found in fresh.items()
        if forbidden_to(name) & set(found["loaded"])
    }
    assert broken == {}


@pytest.mark.thorough
@needs_fork
@patient
def test_every_module_can_be_imported_alone(fresh: dict[str, dict[str, list[str]]]) -> None:
    assert {name: found["error"] for name, found in fresh.items() if found["error"]} == {}
    assert fresh.keys() == MODULES.keys()


@pytest.mark.thorough
@needs_fork
@patient
def test_importing_a_module_does_nothing(fresh: dict[str, dict[str, list[str]]]) -> None:
    """No thread, socket, process, variable, file or log handler."""
    assert {name: found["done"] for name, found in fresh.items() if found["done"]} == {}


@needs_fork
def test_the_fresh_interpreter_notices_what_an_import_does(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        "import logging, os, socket, sys, threading, decimal\n"
        "threading.Thread(target=print).start()\n"
        "socket.socket().close()\n"
        "logging.basicConfig()\n"
        "os.environ['X'] = '1'\n"
        "open(os.path.join(os.path.dirname(__file__), 'left'), 'w').close()\n",
        encoding="utf-8",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "SRC", tmp_path)
        found = imported_fresh(["noisy", "absent"], [])

    done = "\n".join(found["noisy"]["done"])
    for trace in ("thread", "socket", "log handlers", "putenv", "left"):
        assert trace in done
    assert "decimal" in found["noisy"]["loaded"]
    assert "ModuleNotFoundError" in found["absent"]["error"]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["ls"], ["ls", "--help"], ["show", "--help"]]
)
def test_a_light_command_loads_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from assay.__main__ import main\n"
        "try:\n"
        "    code = main()\n"
        "except SystemExit as end:\n"
        "    code = end.code\n"
        f"heavy = sorted({HEAVY!r} & set(sys.modules))\n"
        "sys.exit(f'loaded {heavy}' if heavy else code)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("room", ["assay.core", "assay.formats"])
def test_the_lowest_rooms_import_the_standard_library_alone(room: str) -> None:
    foreign = [
        f"{name}: {imported}"
        for name, path in MODULES.items()
        if is_under(name, room)
        for imported in imports_of(path)
        if not is_under(imported, "assay.core")
        and not is_under(imported, room)
        and imported.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert foreign == []


@pytest.mark.thorough
def test_one_module_alone_sets_what_a_signal_does() -> None:
    setting = {"signal", "sigwait", "set_wakeup_fd", "pthread_sigmask", "setitimer", "alarm"}
    places = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in setting
        and isinstance(node.value, ast.Name)
        and node.value.id == "signal"
    }

    assert places == {"assay.core.signals"}


@pytest.mark.thorough
def test_what_records_maps_no_memory_and_reads_no_bytecode() -> None:
    unsafe = {"ctypes", "_ctypes", "dis", "mmap"}
    found = set()
    for path in (SRC / "assay" / "record").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Constant):  # of `sys.modules` and `import_module`
                names = [str(node.value)]
            found |= {(path.name, name) for name in names if name.split(".")[0] in unsafe}

    assert not found


@pytest.mark.thorough
def test_no_fix_says_only_that_there_is_none() -> None:
    empty = re.compile(r"(nothing|none)\b", re.IGNORECASE)
    places = [
        f"{path.relative_to(SRC)}:{word.lineno}: {word.value}"
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword | ast.Assign)
        and (node.arg if isinstance(node, ast.keyword) else ast.unparse(node.targets[0])) == "fix"
        for word in ast.walk(node.value)
        if isinstance(word, ast.Constant)
        and isinstance(word.value, str)
        and empty.match(word.value)
    ]

    assert places == []


@pytest.mark.parametrize("face", ["assay", "assay.config"])
def test_a_face_shows_its_public_names_alone(face: str) -> None:
    module = importlib.import_module(face)

    assert dir(module) == sorted(module.__all__)


def test_every_module_has_a_docstring() -> None:
    silent = [
        name
        for name, path in MODULES.items()
        if not ast.get_docstring(ast.parse(path.read_bytes()))
    ]
    assert silent == []


def test_every_module_is_named_after_a_thing_of_the_domain() -> None:
    assert [name for name in MODULES if set(name.split(".")) & BANNED_NAMES] == []


def test_nothing_lies_in_the_root_or_in_the_source_but_what_belongs_there() -> None:
    """What a test or a run writes into its working directory is easily committed by accident."""
    git = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(git, capture_output=True, check=True, text=True).stdout
    files = [Path(name) for name in listed.split("\0") if name]

    assert {file.parts[0] for file in files} == ENTRIES_OF_THE_ROOT
    folders: dict[str, set[str]] = {place: set() for place in FOLDERS}
    folders |= {f"src/assay/{room}": set() for room in ROOMS.split()}
    for file in files:
        for parent in file.parents[:-1]:
            if (place := parent.parent.as_posix()) in folders:
                folders[place].add(parent.name)
    assert folders == {place: {*FOLDERS.get(place, "").split()} for place in folders}
    of_source = {file.suffix for file in files if file.parts[0] == "src"}
    assert of_source == {".py", ".typed", ".css", ".html", ".js"}


@pytest.mark.thorough
def test_nothing_is_imported_from_the_face_inside_the_house() -> None:
    """`import assay` inside the house would go round every floor."""
    inside = [
        name
        for name, path in MODULES.items()
        if name not in FACE and "assay" in set(imports_of(path, names=False))
    ]
    assert inside == []


@pytest.mark.slow
def test_the_layer_contract_is_kept() -> None:
    done = lint_imports(ROOT)

    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("core/errors.py", "import assay.cli", "floors"),
        ("core/errors.py", "import assay.formats", "floors"),
        ("config/tree.py", "import assay.store", "floors"),
        ("query/__init__.py", "import torch", "torch"),
        ("compose/__init__.py", "import torch.nn", "torch"),
        ("cli/__init__.py", "import fastapi", "server"),
        ("query/__init__.py", "import sqlite3", "sqlite"),
        ("engine/__init__.py", "import assay.config", "engine"),
        ("attic/__init__.py", "", "floors"),
    ],
)
def test_a_planted_violation_breaks_the_layer_contract(
    tmp_path: Path, file: str, line: str, broken: str
) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(SRC, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    planted = tmp_path / "src" / "assay" / file
    planted.parent.mkdir(exist_ok=True)
    with planted.open("a", encoding="utf-8") as out:
        out.write(f"\n{line}\n")

    done = lint_imports(tmp_path)

    assert done.returncode != 0
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
    (name,) = [contract["name"] for contract in contracts if contract["id"] == broken]
    assert re.search(re.escape(name).replace(r"\ ", r"\s+") + r"\s+BROKEN", done.stdout), (
        done.stdout
    )


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command as main; main()",
            "--no-cache",
            "--no-logo",
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def imports_of(path: Path, *, names: bool = True) -> Iterator[str]:
    """Yield every module imported by a file at any depth, and with `names` the imported names."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports inside the house are written out in full"
            yield node.module or ""


def test_no_folder_of_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    passed_over = pytestconfig.getini("norecursedirs")
    folders = {file.parent.relative_to(ROOT) for file in (ROOT / "tests").rglob("test_*.py")}

    assert folders
    left_out = [
        folder
        for folder in folders
        if any(fnmatch(part, p) for part in folder.parts for p in passed_over)
    ]
    assert left_out == []


@pytest.mark.parametrize("name", ["assay", "assay.config", "assay.build", "assay.engine"])
def test_completion_offers_what_is_public_and_nothing_else(name: str) -> None:
    module = importlib.import_module(name)

    assert dir(module) == sorted(module.__all__)
    assert all(getattr(module, each) is not None for each in dir(module))
