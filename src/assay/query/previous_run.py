"""Changes since the previous run of the same tag."""

from __future__ import annotations

import contextlib

from assay.core.errors import AssayError
from assay.core.ids import slug
from assay.query.diff import diff
from assay.query.run import RunView
from assay.store.layout import find_project, run_folders

_LOOKED_AT = 50
_KEYS = 6
_FILES = 1


def previous_run(run: RunView) -> RunView | None:
    """Return the newest training run of this tag that began before `run`, or None."""
    project = find_project(run.path)
    if project is None:
        return None
    # No index: this is asked while a run begins, and training opens no database. Names sort by the
    # minute only.
    others = [
        folder for folder in run_folders(project) if folder.path.name[:11] <= run.path.name[:11]
    ]
    alike = [folder for folder in others if folder.path.name.endswith(slug(run.file.tag))]
    found = []
    for folder in alike[-_LOOKED_AT:]:
        with contextlib.suppress(AssayError):
            other = RunView(folder)
            is_before = other.file.created_ns < run.file.created_ns
            if is_before and other.kind == "train" and other.file.tag == run.file.tag:
                found.append(other)
    return max(found, key=lambda other: other.file.created_ns, default=None)


def since_previous(run: RunView) -> str:
    """Return one line such as `vs previous run kq3f7abc: lr 0.01->0.02`, "" without one."""
    before = previous_run(run)
    if before is None:
        return ""
    found = diff(before, run, ("config", "code"))
    names = [change.key for change in found.config]
    said = [
        f"{_short(c.key, names)} {_side(c.left)}->{_side(c.right)}" for c in found.config[:_KEYS]
    ]
    if len(found.config) > _KEYS:
        said.append(f"{len(found.config) - _KEYS} more keys")
    if found.code:
        only = f" ({found.code[0].path})" if len(found.code) <= _FILES else ""
        said.append(f"{len(found.code)} file{'s' * (len(found.code) > 1)} changed{only}")
    return f"vs previous run {before.id}: {', '.join(said) or 'config and code are the same'}"


def _short(key: str, keys: list[str]) -> str:
    """The last part of a key, where that says which one it is."""
    last = key.rpartition(".")[2]
    return last if sum(each.rpartition(".")[2] == last for each in keys) == 1 else key


def _side(text: str | None) -> str:
    return "(none)" if text is None else text
