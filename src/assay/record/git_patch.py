"""Patch against the last commit, for `git apply`. The user's repository is only read."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from assay.core.secrets.replacement import Secrets
from assay.record.redaction import content_kind

MAX_PATCH_BYTES = 5 << 20
_MAX_ARGUMENTS = 500
"""Files a call of git, since a command line has an end."""

_FILE = re.compile(r"^(?=diff --git )", re.MULTILINE)
_PLAIN = (
    "-c",
    "diff.noprefix=false",
    "-c",
    "diff.mnemonicPrefix=false",
    "-c",
    "diff.autoRefreshIndex=false",
)
_OPTIONS = (
    "--binary",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-renames",
    "--ignore-submodules=all",
    "--src-prefix=a/",
    "--dst-prefix=b/",
)

Git = Callable[..., bytes | None]


def dirty_patch(
    root: Path,
    git: Git,
    *,
    keeps: Callable[[str, bool], bool],
    secrets: Secrets,
    left_out: list[str],
) -> bytes:
    """Return the changes under `root` since the last commit, with new files.

    `keeps` says of a path below `root`, and whether it is a new one, if it may be in it. Empty
    where there are none, or no commit.
    """
    paths = git(root, "rev-parse", "--show-prefix", "--git-path", "index", "--git-path", "objects")
    if paths is None or git(root, "rev-parse", "--verify", "--quiet", "HEAD") is None:
        return b""
    prefix, index, objects = os.fsdecode(paths).split("\n")[:3]
    changed = [name for name in _changed_names(root, git) if keeps(name, False)]
    fresh = [name for name in _new_names(root, git) if keeps(name, True)]
    if not (changed or fresh):
        return b""
    with tempfile.TemporaryDirectory(prefix="assay-") as scratch:
        variables = {
            "GIT_INDEX_FILE": f"{scratch}/index",
            "GIT_OBJECT_DIRECTORY": f"{scratch}/objects",
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.path.join(os.path.abspath(root), objects),
        }
        os.mkdir(variables["GIT_OBJECT_DIRECTORY"])
        # With its time: by that git knows which entries it cannot trust.
        shutil.copy2(root / index, variables["GIT_INDEX_FILE"])
        if (
            fresh
            and git(root, "add", "-N", *_pathspec(scratch, fresh), variables=variables) is None
        ):
            left_out.append("new files in dirty.patch (git did not take them)")
        patch = _diff(root, git, prefix, changed + fresh, variables)
    if len(patch) > MAX_PATCH_BYTES:
        left_out.append(f"dirty.patch ({len(patch) / 1e6:.1f} MB)")
        return b""
    return _without_secrets(patch, secrets, left_out)


def _changed_names(root: Path, git: Git) -> list[str]:
    options = ("--name-only", "--no-renames", "-z", "--relative")
    return _names(git(root, *_PLAIN, "diff", "HEAD", *options, "--", "."))


def _new_names(root: Path, git: Git) -> list[str]:
    names = _names(git(root, "ls-files", "-o", "--exclude-standard", "-z", "--", "."))
    return [name for name in names if not name.endswith("/")]


def _diff(
    root: Path, git: Git, prefix: str, names: Sequence[str], variables: Mapping[str, str]
) -> bytes:
    patch = b""
    for i in range(0, len(names), _MAX_ARGUMENTS):
        literal = [f":(top,literal){prefix}{name}" for name in names[i : i + _MAX_ARGUMENTS]]
        arguments = ("diff", "HEAD", *_OPTIONS, "--", *literal)
        patch += git(root, *_PLAIN, *arguments, variables=variables) or b""
    return patch


def _pathspec(scratch: str, names: Sequence[str]) -> tuple[str, ...]:
    listed = f"{scratch}/names"
    Path(listed).write_bytes(b"\0".join(map(os.fsencode, names)))
    return f"--pathspec-from-file={listed}", "--pathspec-file-nul"


def _names(listed: bytes | None) -> list[str]:
    return [name for name in os.fsdecode(listed or b"").split("\0") if name]


def _without_secrets(patch: bytes, secrets: Secrets, left_out: list[str]) -> bytes:
    """Replace secrets in added lines; leave a file out that has one in context lines."""
    kept = []
    for part in _FILE.split(patch.decode("utf-8", "surrogateescape")):
        name = part.partition("\n")[0].split(" b/", 1)[-1]
        clean, count = secrets.clean_and_count(part, content_kind(name))
        if count and not _still_applies(part, clean):
            left_out.append(f"{name} in dirty.patch (may hold secrets)")
            continue
        kept.append(clean)
    return "".join(kept).encode("utf-8", "surrogateescape")


def _still_applies(before: str, after: str) -> bool:
    """Return whether two patches differ in added lines only, line by line."""
    old = before.split("\n")
    new = after.split("\n")
    pairs = zip(old, new, strict=False)
    return len(old) == len(new) and all(a == b or (a[:1], b[:1]) == ("+", "+") for a, b in pairs)
