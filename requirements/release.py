"""Release of the commit: `./dev release` builds it twice, in two folders and under two umasks.

`dist/` gets wheel and sdist, the bill of what is in them, and the digest of each file. Two builds
of other bytes are an error, and `dist/` stays as it is.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Build, compare, and put the release into `dist/`."""
    if output("git", "status", "--porcelain"):
        sys.exit("error: a release is built from a commit: commit what has changed, or put it away")
    with tempfile.TemporaryDirectory(prefix="assay-release-") as place:
        first, second = Path(place, "one"), Path(place, "another place")
        with ThreadPoolExecutor() as at_once:
            list(at_once.map(build, (first, second), (0o022, 0o077)))
        deliver(first / "dist", second / "dist", ROOT / "dist")


def build(folder: Path, umask: int) -> None:
    """Build wheel and sdist of this commit into `folder`/dist, from nothing but the commit."""
    folder.mkdir()
    source = folder / "source"
    output("git", "archive", "HEAD", "--output", str(folder / "source.tar"))
    shutil.unpack_archive(folder / "source.tar", source, filter="data")
    variables = {**os.environ, "SOURCE_DATE_EPOCH": output("git", "log", "-1", "--format=%ct")}
    (source / "frontend" / "node_modules").symlink_to(ROOT / "frontend" / "node_modules")
    page = [sys.executable, str(ROOT / "dev"), "npm", "run", "--silent", "build"]
    subprocess.run(page, cwd=source / "frontend", env=variables, umask=umask, check=True)
    kinds = ("--target", "sdist", "--target", "wheel", "--directory", str(folder / "dist"))
    hatchling = [sys.executable, "-m", "hatchling", "build", *kinds]
    subprocess.run(hatchling, cwd=source, env=variables, umask=umask, check=True)


def deliver(first: Path, second: Path, dist: Path) -> None:
    """Put the files of two equal builds into `dist`, with their bill and their digests."""
    names = sorted(os.listdir(first))
    same = filecmp.cmpfiles(first, second, names, shallow=False)[0]
    if same != names:
        differing = ", ".join(sorted({*names} - {*same}))
        sys.exit(f"error: built twice, {differing} came out as two different files")
    shutil.rmtree(dist, ignore_errors=True)
    shutil.copytree(first, dist)
    program = str(ROOT / "requirements" / "bom.py")
    bill = output(sys.executable, program, *(str(dist / name) for name in names))
    (dist / "assay.cdx.json").write_text(f"{bill}\n", encoding="utf-8")
    sums = ""
    for path in sorted(dist.iterdir()):
        sums += f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
    (dist / "SHA256SUMS").write_text(sums, encoding="utf-8")
    print(f"{sums}in {dist}: twice the same bytes")


def output(*command: str) -> str:
    """Return what a command prints, without the white space around it."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
