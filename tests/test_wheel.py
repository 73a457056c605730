"""The release: wheel and sdist, installed where nothing is but torch and what the wheel asks for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from sybil import Sybil
from sybil.example import Example
from trove_classifiers import classifiers

from test_docs import DOCS, PYTHON, ROOT, consoles_of, files_of
from warm_python import Run, forked, run

pytestmark = pytest.mark.thorough
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TOUR = ("train", "mistakes", "record", "adopt", "tutorial")
CODE = re.compile(r"^```python\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Release:
    """Files that `python -m hatchling build` makes of the working tree."""

    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    folder = tmp_path_factory.mktemp("dist")
    build = ["-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(folder)]
    subprocess.run([sys.executable, *build], cwd=ROOT, check=True, capture_output=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Release(wheel, sdist)


@dataclass(frozen=True)
class Bare:
    """An environment that holds torch, the requirements of a wheel, and nothing of this project."""

    python: Path

    def install(self, file: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python)]
        offline = ["--no-index", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "install", "--quiet", *offline, str(file)], check=True)
        subprocess.run([*pip, "check"], check=True)

    def __call__(
        self, arguments: Sequence[str], *, folder: Path, joined: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run its Python from nothing."""
        given = without_sources(os.environ)
        return run(
            arguments, folder=folder, variables=given, joined=joined, python=str(self.python)
        )


def without_sources(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables without the source tree on the path of Python."""
    return {name: value for name, value in variables.items() if name != "PYTHONPATH"}


def closure(names: Iterable[str]) -> Iterator[Distribution]:
    """Yield the installed distributions of these requirements and of all that they require."""
    todo, seen = [Requirement(name) for name in names], set[str]()
    while todo:
        requirement = todo.pop()
        wanted = not requirement.marker or requirement.marker.evaluate({"extra": ""})
        if not wanted or requirement.name in seen:
            continue
        seen.add(requirement.name)
        try:
            found = distribution(requirement.name)
        except PackageNotFoundError:
            continue  # of another platform; `pip check` says if it is missed
        yield found
        todo += [Requirement(text) for text in found.requires or ()]


def bare_environment(folder: Path, wheel: Path) -> Bare:
    """Make an environment of links to the packages installed here: it needs no network."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    wanted = metadata_of(wheel).get_all("Requires-Dist") or []
    for found in closure(["torch", *wanted]):
        assert found.files is not None
        for top in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
            source = Path(str(found.locate_file(top)))
            if source.exists() and not (packages / top).exists():
                (packages / top).symlink_to(source)
    return Bare(folder / "bin" / "python")


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return BytesParser().parsebytes(archive.read(name))


@pytest.fixture(scope="module")
def bare(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Bare:
    made = bare_environment(tmp_path_factory.mktemp("bare"), release.wheel)
    made.install(release.wheel)
    return made


def test_the_wheel_says_what_it_is(release: Release) -> None:
    said = metadata_of(release.wheel)

    assert (said["Name"], said["Version"]) == ("assay", PROJECT["version"])
    assert (said["License-Expression"], said["Requires-Python"]) == ("MIT", ">=3.11")
    assert said["Description-Content-Type"] == "text/markdown"
    assert "assay run config.toml" in str(said.get_payload())
    assert set(said.get_all("Provides-Extra") or ()) == set(PROJECT["optional-dependencies"])
    assert set(said.get_all("Classifier") or ()) == set(PROJECT["classifiers"])
    assert set(PROJECT["classifiers"]) <= set(classifiers)
    plain = [each for each in said.get_all("Requires-Dist") or () if "extra ==" not in each]
    assert not [each for each in plain if each.startswith("torch")]


def test_the_wheel_holds_the_package_its_types_and_the_page_and_nothing_else(
    release: Release,
) -> None:
    with zipfile.ZipFile(release.wheel) as archive:
        names = archive.namelist()

    assert {"assay/py.typed", "assay/web/static/index.html"} <= set(names)
    assert {name.partition("/")[0] for name in names} == {
        "assay",
        f"assay-{PROJECT['version']}.dist-info",
    }
    assert not [name for name in names if "__pycache__" in name or name.endswith(".map")]


def test_the_sdist_makes_the_same_wheel(release: Release, tmp_path: Path) -> None:
    with tarfile.open(release.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "docs/index.md", "pyproject.toml"} <= names
    assert not [name for name in names if "node_modules" in name]

    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(release.sdist)], check=True)

    (again,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(again) as left, zipfile.ZipFile(release.wheel) as right:
        assert {name: left.read(name) for name in left.namelist()} == {
            name: right.read(name) for name in right.namelist()
        }


def test_the_wheel_asks_for_all_that_it_imports(bare: Bare, tmp_path: Path) -> None:
    shown = bare(["-c", "import assay; print(assay.__file__, assay.__version__)"], folder=tmp_path)
    absent = bare(["-c", "import pytest"], folder=tmp_path)
    helped = bare(["-m", "assay", "--help"], folder=tmp_path)

    file, _, version = shown.stdout.strip().rpartition(" ")
    assert Path(file).is_relative_to(bare.python.parents[1]) and version == PROJECT["version"]
    assert absent.returncode != 0, "the environment is not bare"
    assert helped.returncode == 0, helped.stderr
    assert (bare.python.parent / "assay").exists()


def test_an_extra_that_is_missing_is_named_with_the_command_that_installs_it(
    bare: Bare, tmp_path: Path
) -> None:
    bare(["-m", "assay", "init"], folder=tmp_path)

    said = bare(["-m", "assay", "ui"], folder=tmp_path, joined=True)

    assert said.returncode != 0
    assert "pip install" in said.stdout and "assay[ui]" in said.stdout
    assert "Traceback" not in said.stdout


@pytest.fixture(scope="module")
def forked_bare(bare: Bare) -> Iterator[Run]:
    """Runs the bare environment's Python, with the modules of the wheel loaded."""
    with forked(without_sources(os.environ), str(bare.python)) as run:
        yield lambda *given, variables, **others: run(
            *given, variables=without_sources(variables), **others
        )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", TOUR)
def test_the_tour_works_with_the_wheel(
    forked_bare: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files and commands in their order, then the Python blocks as one script."""
    monkeypatch.chdir(tmp_path)
    page = DOCS / "tour" / f"{name}.md"
    document = Sybil(parsers=[files_of, consoles_of]).parse(page)
    document.namespace[PYTHON] = forked_bare
    code = "".join(found["text"] for found in CODE.finditer(document.text))

    shown: list[Example] = list(document.examples())
    for example in shown:
        example.evaluate()
    if code:
        (tmp_path / "blocks_of_the_page.py").write_text(code, encoding="utf-8")
        done = forked_bare(
            ["blocks_of_the_page.py"], folder=tmp_path, variables=os.environ, joined=True
        )
        assert done.returncode == 0, done.stdout

    assert shown or code
