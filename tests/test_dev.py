"""`./dev`: what it makes, what it mends, and what it says when it cannot."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parent.parent
DEV = ROOT / "dev"


def load(path: Path) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("dev_under_test", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def copied_house(folder: Path) -> Path:
    """The files that an environment is made from, in a folder whose name holds a space."""
    house = folder / "a house"
    house.mkdir()
    for name in ("dev", "pyproject.toml", "requirements"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, house / name)
    return house


class Fakes:
    """Stands in for the steps that need a network; it remembers which were taken."""

    def __init__(self, dev: ModuleType, patch: pytest.MonkeyPatch) -> None:
        self.dev = dev
        self.steps: list[str] = []
        self.fail_at = ""
        patch.setattr(dev, "make_venv", self.make_venv)
        patch.setattr(dev, "install", self.install)
        patch.setattr(dev, "compile_packages", lambda: self.take("bytecode"))

    def make_venv(self) -> None:
        self.take("venv")
        self.dev.INTERPRETER.parent.mkdir()
        self.dev.INTERPRETER.symlink_to(sys.executable)
        self.dev.PACKAGES.mkdir(parents=True)

    def install(self, what: str, *arguments: str) -> None:
        what = re.split(r"\W", what)[0]
        self.take(what)
        (self.dev.PACKAGES / what).mkdir(exist_ok=True)

    def take(self, name: str) -> None:
        self.steps.append(name)
        if name == self.fail_at:
            raise self.dev.Trouble("no luck")

    def taken(self) -> list[str]:
        steps, self.steps = self.steps, []
        return steps


ALL_STEPS = ["venv", "torch", "tools", "assay", "bytecode"]


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delenv("DEV_TORCH", raising=False)
    return load(copied_house(tmp_path) / "dev")


@pytest.fixture
def fakes(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(dev, monkeypatch)


def test_an_environment_is_made_once(
    dev: ModuleType, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dev.make_environment() is True
    assert fakes.taken() == ALL_STEPS
    capsys.readouterr()

    assert dev.make_environment() is False

    assert fakes.taken() == []
    assert capsys.readouterr().out == ""


def test_the_demo_installs_no_more_than_it_needs_and_the_rest_comes_on_demand(
    dev: ModuleType, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev, "call", lambda command: fakes.take("demo"))
    monkeypatch.setattr(dev, "make_page", lambda: fakes.take("page"))

    dev.demo([])
    dev.demo([])
    assert fakes.taken() == ["venv", "torch", "libraries", "assay", "bytecode", "demo", "demo"]

    dev.test([])
    dev.demo([])
    assert fakes.taken() == ["tools", "assay", "bytecode", "page", "demo", "demo"]


@pytest.mark.parametrize("where", ALL_STEPS)
def test_a_half_made_environment_is_made_again_from_nothing(
    dev: ModuleType, fakes: Fakes, where: str
) -> None:
    fakes.fail_at = where
    with pytest.raises(dev.Trouble):
        dev.make_environment()
    (dev.VENV / "rubble").touch()
    fakes.fail_at, fakes.steps = "", []

    dev.make_environment()

    assert fakes.taken() == ALL_STEPS
    assert not (dev.VENV / "rubble").exists()
    assert dev.make_environment() is False


def test_a_failed_renewal_leaves_no_stamp(dev: ModuleType, fakes: Fakes) -> None:
    dev.make_environment()
    fakes.fail_at = "tools"

    with pytest.raises(dev.Trouble):
        dev.make_environment(again=True)

    assert not dev.is_ready(dev.recipe())


def test_a_new_lock_is_installed_into_the_environment_that_is_there(
    dev: ModuleType, fakes: Fakes
) -> None:
    dev.make_environment()
    fakes.taken()
    dev.LOCK.write_text(dev.LOCK.read_text(encoding="utf-8") + "# newer\n", encoding="utf-8")

    dev.make_environment()

    assert fakes.taken() == ["tools", "assay", "bytecode"]


@pytest.mark.parametrize("loss", ["a package", "the interpreter", "the stamp's text"])
def test_a_damaged_environment_is_made_again(dev: ModuleType, fakes: Fakes, loss: str) -> None:
    dev.make_environment()
    fakes.taken()
    if loss == "a package":
        (dev.PACKAGES / "torch").rmdir()
    elif loss == "the interpreter":
        dev.INTERPRETER.unlink()
        dev.INTERPRETER.symlink_to("/gone/python3")
    else:
        dev.STAMP.write_text("{", encoding="utf-8")

    dev.make_environment()

    assert fakes.taken() == ALL_STEPS


def test_another_choice_of_torch_makes_the_environment_again(
    dev: ModuleType, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev.make_environment()
    fakes.taken()
    monkeypatch.setenv("DEV_TORCH", "torch==2.9.0")

    dev.make_environment()

    assert fakes.taken() == ALL_STEPS


def test_an_environment_that_somebody_else_made_is_put_aside(
    dev: ModuleType, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    dev.VENV.mkdir()
    (dev.VENV / "precious").write_text("mine", encoding="utf-8")

    dev.make_environment()

    [aside] = dev.ROOT.glob(".venv-old-*")
    assert (aside / "precious").read_text(encoding="utf-8") == "mine"
    assert aside.name in capsys.readouterr().out


def test_a_python_without_venv_is_told_which_package_it_lacks(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev.importlib.util, "find_spec", lambda name: None)
    dev.clear_the_place()

    with pytest.raises(dev.Trouble, match=r"apt-get install python3\.\d+-venv"):
        dev.make_venv()


def test_torch_is_the_first_choice_that_is_to_be_had(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def install(what: str, requirement: str) -> None:
        tried.append(requirement)
        if requirement != "torch>=2.6":
            raise dev.Trouble("no such build")

    monkeypatch.setattr(dev, "install", install)

    dev.install_torch()
    monkeypatch.setenv("DEV_TORCH", "torch==2.9.0")
    with pytest.raises(dev.Trouble):
        dev.install_torch()

    assert tried == ["torch==2.13.0", "torch>=2.6", "torch==2.9.0"]


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("noise\nERROR: Cannot install a and b\nERROR: ResolutionImpossible\n", "ResolutionImp"),
        ("OSError: [Errno 28] No space left on device", "No space left"),
        ("", "no reason given"),
    ],
)
def test_a_failed_step_is_explained_in_one_line(
    dev: ModuleType, capsys: pytest.CaptureFixture[str], printed: str, said: str
) -> None:
    dev.VENV.mkdir()

    with pytest.raises(dev.Trouble, match=said) as caught:
        dev.step(
            "torch", [sys.executable, "-c", f"print({printed!r}, end=''); raise SystemExit(1)"]
        )

    assert "setup.log" in str(caught.value) and "\n" not in str(caught.value)
    assert printed in dev.LOG.read_text(encoding="utf-8")
    assert capsys.readouterr().out == "  torch ... failed\n"


@pytest.mark.thorough
@pytest.mark.slow
def test_an_unreachable_registry_is_one_line_and_the_next_call_begins_again(tmp_path: Path) -> None:
    house = copied_house(tmp_path)
    variables = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PIP_", "UV_"))
        },
        "PATH": "/nowhere",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
    }

    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(house / "dev"), "setup"],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )

        assert done.returncode == 1
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("error: torch>=2.6: ERROR: No matching distribution")
        assert "Traceback" not in done.stdout + done.stderr
        assert "WARNING" not in done.stdout
        assert "Making .venv" in done.stdout


def test_an_old_python_is_refused_in_one_line() -> None:
    script = (
        "import collections, runpy, sys\n"
        "sys.version_info, sys.version = (3, 9, 2, 'final', 0), '3.9.2 (old)'\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, str(DEV)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert (
        done.stderr
        == f"error: assay needs Python 3.11 or newer; this is 3.9.2 ({sys.executable})\n"
    )


def test_an_old_python_can_read_the_file_as_far_as_that_line() -> None:
    ast.parse(DEV.read_text(encoding="utf-8"), feature_version=(3, 6))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tset"], "no command 'tset'"),
        (["setup", "--agian"], "unknown argument '--agian'"),
        (["check", "fast"], "unknown argument 'fast'"),
        (["test", "tests/cor", "-k", "errors"], "there is no tests/cor"),
    ],
)
def test_a_mistyped_command_is_refused(dev: ModuleType, arguments: list[str], said: str) -> None:
    with pytest.raises(dev.Trouble, match=said):
        dev.main(arguments)


def test_the_commands_are_listed(dev: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.main([]) == 0

    text = capsys.readouterr().out
    for name in ("setup", "demo", "test", "fuzz", "quick", "check", "bench", "release"):
        assert re.search(rf"^  {name} ", text, re.MULTILINE)


def test_a_command_hands_on_the_exit_code_and_the_signal(dev: ModuleType) -> None:
    assert dev.call([sys.executable, "-c", "raise SystemExit(3)"]) == 3
    assert dev.call([sys.executable, "-c", "import os; os.kill(os.getpid(), 15)"]) == 143


def test_ctrl_c_reaches_the_command_and_dev_waits_for_its_ending(tmp_path: Path) -> None:
    house = copied_house(tmp_path)
    script = (
        "import importlib.machinery as m, importlib.util as u, sys\n"
        "l = m.SourceFileLoader('dev', sys.argv[1]); dev = u.module_from_spec(u.spec_from_loader('dev', l))\n"
        "l.exec_module(dev)\n"
        "child = 'import time\\ntry:\\n print(\"up\", flush=True)\\n time.sleep(60)\\n'\n"
        "child += 'except KeyboardInterrupt:\\n print(\"ended well\"); raise SystemExit(7)'\n"
        "sys.exit(dev.call([sys.executable, '-c', child]))\n"
    )

    with subprocess.Popen(
        [sys.executable, "-c", script, str(house / "dev")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.killpg(process.pid, 2)
        assert process.stdout.read() == "ended well\n"
        assert process.wait() == 7


@pytest.mark.row("C80")
@pytest.mark.parametrize(("uncovered", "code"), [("", 0), ("core", 2)])
def test_the_check_fails_where_a_room_is_covered_less_than_its_percentage(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, uncovered: str, code: int
) -> None:
    """Branches count: the room has every line run, and every other branch."""
    for room in ("", *dev.GATED):
        (dev.ROOT / "assay" / room).mkdir(parents=True)
        (dev.ROOT / "assay" / room / "__init__.py").touch()
        lines = "if __file__:\n    a = 1\n" * 4 if room and room == uncovered else "a = 1\n"
        (dev.ROOT / "assay" / room / "a.py").write_text(lines)
    run = "".join(f"import assay.{room}.a\n" for room in dev.GATED)
    coverage = [sys.executable, "-m", "coverage"]
    monkeypatch.setattr(dev, "python", lambda *arguments: [sys.executable, *arguments])
    monkeypatch.setattr(
        dev, "pytest", lambda *_: [*coverage, "run", "--branch", "--source=assay", "run.py"]
    )
    (dev.ROOT / "run.py").write_text(run)
    (dev.ROOT / "pyproject.toml").unlink()
    for name in ("make_environment", "make_page"):
        monkeypatch.setattr(dev, name, lambda: False)

    assert dev.check([]) == code


def test_the_check_fails_without_any_coverage_and_where_a_test_does(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("make_environment", "make_page"):
        monkeypatch.setattr(dev, name, lambda: False)
    ended: list[int] = []
    monkeypatch.setattr(dev, "call", lambda command: ended.pop())
    for codes in ([0, 0, 0, 0, 1], [1, 0, 0, 0, 0]):
        ended[:] = codes
        assert dev.check([]) == 1


def test_there_are_half_as_many_workers_again_as_cores_and_as_many_for_fast_tests(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dev.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)

    assert "-n3" in dev.pytest()
    assert "-n2" in dev.pytest(workers_a_core=1)


@pytest.mark.parametrize(
    ("arguments", "parallel"),
    [
        ([], True),
        (["tests/core", "-k", "x"], True),
        (["tests/a.py::test_b"], False),
        (["-s"], False),
    ],
)
def test_tests_run_in_parallel_unless_somebody_looks_at_one(
    dev: ModuleType, arguments: list[str], parallel: bool
) -> None:
    assert ("--dist=loadscope" in dev.pytest(*arguments)) is parallel


@pytest.mark.parametrize(
    ("codes", "code", "with_finds"), [([0, 1, 0, 2], 1, "8"), ([0, 2], 0, "none"), ([4], 4, "none")]
)
def test_fuzz_goes_from_seed_to_seed_until_it_is_stopped_and_names_those_with_finds(
    dev: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    codes: list[int],
    code: int,
    with_finds: str,
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(dev, "make_environment", lambda: False)
    monkeypatch.setattr(
        dev, "call", lambda command: commands.append(command) or codes[len(commands) - 1]
    )

    assert dev.fuzz(["--seed", "7", "tests/query"]) == code

    last = 6 + len(codes)
    assert [c[-2:] for c in commands] == [
        [f"--hypothesis-seed={i}", "tests/query"] for i in range(7, last + 1)
    ]
    assert f"seeds 7 to {last}; finds with: {with_finds}\n" in capsys.readouterr().out


def test_fuzz_ends_after_its_minutes(dev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 50))
    rounds: list[list[str]] = []
    monkeypatch.setattr(dev, "make_environment", lambda: False)
    monkeypatch.setattr(dev.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(dev, "call", lambda command: rounds.append(command) or 0)

    assert dev.fuzz(["--minutes", "2"]) == 0
    assert len(rounds) == 3


def test_the_locks_hold_every_dependency_with_hashes_and_no_host() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tools = (ROOT / "requirements" / "dev.in").read_text(encoding="utf-8")
    asked = {
        "core.txt": project["dependencies"],
        "dev.txt": [*project["dependencies"], *without_comments(tools)],
    }

    for name, requirements in asked.items():
        text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
        pinned = set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))
        named = {re.match(r"[\w-]+", requirement)[0].lower() for requirement in requirements}  # type: ignore[index]
        assert named <= pinned
        assert "://" not in text
        assert not {
            package
            for package in pinned - named
            if package.startswith(("torch", "nvidia", "triton"))
        }
        assert "torch" not in pinned
        assert text.count("==") <= text.count("--hash=sha256:")


def test_a_lock_is_installed_as_it_stands_though_a_newer_release_would_do(
    dev: ModuleType, tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    locked = [
        write_wheel(wheels, "tool", "1.0", "Requires-Dist: part[extra]>=1.0"),
        write_wheel(wheels, "part", "1.0", "Provides-Extra: extra"),
    ]
    write_wheel(wheels, "part", "1.1", "Provides-Extra: extra")
    lock = tmp_path / "lock.txt"
    lock.write_text(
        "".join(
            f"{path.name.split('-')[0]}==1.0 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"
            for path in locked
        )
    )
    where = ["--no-index", "--find-links", str(wheels), "--target", str(tmp_path / "site")]

    subprocess.run(
        [sys.executable, "-m", "pip", "install", *where, *dev.LOCKED, "-r", str(lock)], check=True
    )

    assert {path.name for path in (tmp_path / "site").glob("*.dist-info")} == {
        "part-1.0.dist-info",
        "tool-1.0.dist-info",
    }


def write_wheel(folder: Path, name: str, version: str, about: str) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    facts = f"{name}-{version}.dist-info"
    with ZipFile(path, "w") as file:
        file.writestr(
            f"{facts}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{about}\n",
        )
        file.writestr(
            f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{facts}/RECORD", "")
    return path


def test_the_lock_leaves_out_nothing_that_its_packages_require() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stdout


def without_comments(text: str) -> Iterator[str]:
    yield from (line for line in text.splitlines() if line.strip() and not line.startswith("#"))


def two_builds(folder: Path, *wheels: bytes) -> list[Path]:
    """Return two folders as a release builds them, with these bytes for a wheel."""
    builds = [folder / "one", folder / "two"]
    for build, wheel in zip(builds, wheels, strict=True):
        build.mkdir()
        (build / "assay-1.whl").write_bytes(wheel)
        (build / "assay-1.tar.gz").write_bytes(b"source")
    return builds


def test_a_release_has_the_digest_of_each_file_and_a_bill_of_all_that_is_in_it(
    tmp_path: Path,
) -> None:
    dist = tmp_path / "dist"
    release = load(ROOT / "requirements" / "release.py")

    release.deliver(*two_builds(tmp_path, b"wheel", b"wheel"), dist)

    sums = dict(
        reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines()
    )
    assert set(sums) == {"assay-1.whl", "assay-1.tar.gz", "assay.cdx.json"}
    assert all(
        hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest
        for name, digest in sums.items()
    )
    bill = json.loads((dist / "assay.cdx.json").read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert [each["name"] for each in bill["metadata"]["component"]["components"]] == [
        "assay-1.tar.gz",
        "assay-1.whl",
    ]
    by_name = {each["name"]: each for each in bill["components"]}
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "dependencies"
    ]
    assert {re.split(r"[>=<]", each)[0].strip() for each in asked} <= by_name.keys()
    assert {
        "pydantic-core",
        "react",
        "uplot",
        "gitleaks rules",
    } <= by_name.keys() and "hatchling" not in by_name
    assert all(each.get("hashes") or each["properties"] for each in bill["components"])
    references = {each["bom-ref"] for each in bill["components"]}
    assert all(set(each["dependsOn"]) <= references for each in bill["dependencies"])


def test_a_release_that_comes_out_as_two_is_none(tmp_path: Path) -> None:
    release = load(ROOT / "requirements" / "release.py")

    with pytest.raises(SystemExit, match=r"built twice, assay-1\.whl came out as two different"):
        release.deliver(*two_builds(tmp_path, b"wheel", b"another"), tmp_path / "dist")

    assert not (tmp_path / "dist").exists()


def test_a_release_is_built_from_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    release = load(ROOT / "requirements" / "release.py")
    monkeypatch.setattr(release, "output", lambda *command: " M dev")

    with pytest.raises(SystemExit, match="commit what has changed"):
        release.main()


@pytest.mark.row("D26")
def test_the_ci_script_is_sound_and_runs_the_test_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"

    assert os.access(script, os.X_OK)
    assert re.search(r"^\./dev test --all\b", script.read_text(encoding="utf-8"), re.MULTILINE)
    with contextlib.suppress(FileNotFoundError):
        subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.row("D26")
@pytest.mark.parametrize("how", ["mv", "cp -r"])
def test_a_folder_that_was_moved_or_copied_makes_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    house = copied_house(tmp_path)
    first = load(house / "dev")
    Fakes(first, monkeypatch)
    first.make_environment()
    subprocess.run([*how.split(), house, tmp_path / "other"], check=True)
    second = load(tmp_path / "other" / "dev")
    fakes = Fakes(second, monkeypatch)

    second.make_environment()

    assert fakes.taken() == ALL_STEPS
    assert how == "mv" or first.make_environment() is False


@pytest.mark.row("D26")
def test_a_clean_clone_holds_all_that_an_environment_is_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{ROOT}", clone], check=True)
    dev = load(clone / "dev")
    fakes = Fakes(dev, monkeypatch)

    assert dev.make_environment() is True
    assert fakes.taken() == ALL_STEPS
    assert not subprocess.check_output(["git", "-C", clone, "status", "--porcelain"])
