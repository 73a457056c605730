"""Records are private to their owner, unless the project shares them with its group."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from flow.conftest import SRC
from run_folders import make_project

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys
os.umask(int(sys.argv[1], 8))
import assay
with assay.start(tag="private", config={"lr": 0.1}) as run:
    run.log({"loss": 0.5}, 1)
    run.value("best", 0.5)
    run.text("sample", "text", step=1)
    (run.watch("save") / "1.txt").write_text("the program's own")
    run.attach(assay.TensorBoard())
    run.log({"loss": 0.25}, 2)
    print("printed")
"""

TRAINED = """
import os, sys
os.umask(int(sys.argv[1], 8))
from assay.cli.main import main
sys.exit(main(["run", "toy.toml", "--quiet", "--max-steps", "4"]))
"""


def modes(folder: Path) -> tuple[set[str], set[str]]:
    """Return the modes of all folders and files below, but for a program's own output."""
    found = [path for path in (folder, *folder.rglob("*")) if path.name != "1.txt"]
    folders = {oct(stat.S_IMODE(path.lstat().st_mode)) for path in found if path.is_dir()}
    return folders, {oct(stat.S_IMODE(path.lstat().st_mode)) for path in found if not path.is_dir()}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("permissions", "umask", "folder", "file", "blob"),
    [
        ("", "022", "0o700", "0o600", "0o400"),
        ("", "000", "0o700", "0o600", "0o400"),
        ("group", "002", "0o770", "0o660", "0o440"),
        ("group", "022", "0o750", "0o640", "0o440"),
        ("group", "077", "0o700", "0o600", "0o400"),
    ],
)
def test_a_record_is_as_open_as_the_project_says_and_the_umask_lets_it_be(
    warm, toy: Path, permissions: str, umask: str, folder: str, file: str, blob: str
) -> None:
    make_project(toy)
    if permissions:
        with open(toy / ".assay" / "settings.toml", "a") as settings:
            settings.write(f'permissions = "{permissions}"\n')
    variables = {**os.environ, "PYTHONPATH": str(SRC)}
    for program in (SCRIPT, TRAINED):
        done = warm(["-c", program, umask], folder=toy, variables=variables)
        assert done.returncode == 0, done.stderr

    for run in (toy / "runs").iterdir():
        folders, files = modes(run)
        assert folders == {folder}, run
        assert files == {file, blob} if (run / "artifacts").exists() else files == {file}, run
    assert modes(toy / "runs")[0] == {folder}
    assert modes(toy / ".assay" / "code") == (
        {folder},
        {blob, file},
    )  # `stat.json` is written again

    packed = warm(
        ["-m", "assay", "pack", "last", "--to", "packed.tar.gz"], folder=toy, variables=variables
    )
    assert packed.returncode == 0, packed.stderr
    assert oct(stat.S_IMODE((toy / "packed.tar.gz").stat().st_mode)) == oct(int(file, 8) & ~0o022)


def test_a_wrong_word_for_the_permissions_is_told_before_anything_is_made(assay, toy: Path) -> None:
    make_project(toy)
    (toy / ".assay" / "settings.toml").write_text('permissions = "grup"\n')

    done = assay("run", "toy.toml", cwd=toy)

    assert done.returncode == 2
    assert "`permissions` must be" in done.stderr
    assert not (toy / "runs").exists()
