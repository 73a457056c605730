"""Difference of two runs (config, metrics, environment, code), and since the previous one."""

from __future__ import annotations

import contextlib
import difflib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from assay.config.diff import KeyChange, changed_keys
from assay.config.tree import Leaf, List, Node, Table, from_plain, get_at, parse_dotted
from assay.core.diagnostics import Origin
from assay.core.errors import AssayError, InputError
from assay.core.facts import COSTS, Changed
from assay.core.ids import slug
from assay.core.ports import Blobs
from assay.formats.json_codec import to_plain
from assay.formats.run_file import Summary
from assay.query.run import RunView
from assay.store import authorship
from assay.store.blobs import FileBlobs
from assay.store.cells import is_equal
from assay.store.code_trees import CodeFile, code_blobs, read_tree
from assay.store.layout import Project, find_project, run_folders

Part = Literal["config", "metrics", "environment", "code"]
PARTS: tuple[Part, ...] = ("config", "metrics", "environment", "code")


_DEFAULT = " (default)"


@dataclass(frozen=True, slots=True)
class ChangedKey:
    """One key with another value, as text; None where it is not there."""

    key: str
    left: str | None
    right: str | None


@dataclass(frozen=True, slots=True)
class MetricChanged:
    """One metric whose numbers differ; None where it was not logged."""

    name: str
    left: Summary | None
    right: Summary | None


@dataclass(frozen=True, slots=True)
class FileChanged:
    """One file of the code; `diff` is a unified diff, "" for binary files and changed modes."""

    path: str
    how: Literal["added", "removed", "changed", "mode"]
    diff: str = ""


@dataclass(frozen=True, slots=True)
class RunDiff:
    """Differences in the requested parts. `code_missing` says why code was not compared."""

    left: RunView
    right: RunView
    parts: tuple[Part, ...]
    config: tuple[ChangedKey, ...] = ()
    metrics: tuple[MetricChanged, ...] = ()
    environment: tuple[ChangedKey, ...] = ()
    code: tuple[FileChanged, ...] = ()
    code_missing: str = ""

    @property
    def is_equal(self) -> bool:
        """True when nothing differs in the compared parts."""
        return not (self.config or self.metrics or self.environment or self.code)

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        found: dict[str, Any] = {
            "left": self.left.id,
            "right": self.right.id,
            "equal": self.is_equal,
        }
        for part in self.parts:
            found[part] = [_plain(each) for each in getattr(self, part)]
        if self.code_missing:
            found["code_missing"] = self.code_missing
        return found


def diff(left: RunView, right: RunView, parts: tuple[Part, ...] = PARTS) -> RunDiff:
    """Compare two runs in the given parts."""
    code: tuple[FileChanged, ...] = ()
    missing = ""
    if "code" in parts:
        code, missing = _code(left, right)
    return RunDiff(
        left,
        right,
        tuple(part for part in PARTS if part in parts),
        config=_config(left, right) if "config" in parts else (),
        metrics=_metrics(left, right, costs=parts != PARTS) if "metrics" in parts else (),
        environment=_environment(left, right) if "environment" in parts else (),
        code=code,
        code_missing=missing,
    )


def change_facts(changes: Iterable[KeyChange], step: int) -> tuple[Changed, ...]:
    """Return the facts that settings were changed, at the step from which a run is resumed."""
    return tuple(
        Changed(
            what=change.key,
            step=step,
            before=write_value(change.before) or "not given",
            after=write_value(change.after) or "not given",
        )
        for change in changes
    )


def write_value(node: Node | None) -> str | None:
    """A value of a config on one line, about as TOML writes it; None for one that is not there.

    >>> from assay.config.tree import from_plain
    >>> from assay.core.diagnostics import Origin
    >>> write_value(from_plain({"lr": 0.1, "betas": [0.9, 0.99], "name": None}, Origin(source="")))
    '{ lr = 0.1, betas = [0.9, 0.99], name = none }'
    """
    match node:
        case None:
            return None
        case Leaf(value=None):
            return "none"
        case Leaf(value=bool() as value):
            return "true" if value else "false"
        case Leaf(value=str() as value):
            return json.dumps(value, ensure_ascii=False)
        case Leaf(value=value):
            return str(value)
        case List(items=items):
            return f"[{', '.join(str(write_value(item)) for item in items)}]"
        case Table(items=by_key):
            return (
                f"{{ {', '.join(f'{key} = {write_value(item)}' for key, item in by_key.items())} }}"
                if by_key
                else "{}"
            )


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested tables as dotted keys with their values as text."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield (
                f"{prefix}{key}",
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
            )


def code_store(run: RunView) -> Blobs:
    """Return the code store of a run: of the project around its folder, around here, of its origin.

    The path of the last is in the record: it is followed only in one that this user made.
    """
    homes = [find_project(run.path), find_project(Path.cwd())]
    if run.file.project and authorship.is_own(run.folder, run.file):
        homes.append(Project(Path(run.file.project)))
    stores = [code_blobs(home) for home in homes if home is not None]
    holding = (store for store in stores if run.code.snapshot in store)
    return next(holding, stores[0] if stores else FileBlobs(run.path))


def _config(left: RunView, right: RunView) -> tuple[ChangedKey, ...]:
    written: dict[str, tuple[str | None, ...]] = {
        change.key: (write_value(change.before), write_value(change.after))
        for change in changed_keys(left.config_tree, right.config_tree)
    }
    for key in unwritten_settings((left, right)):
        path = parse_dotted(key)
        nodes = (get_at(run.config_tree, path) for run in (left, right))
        written.setdefault(key, tuple(map(write_value, nodes)))
    found = []
    for key, texts in written.items():
        sides = map(describe_setting, (left, right), (key, key), texts)
        found.append(ChangedKey(key, *sides))
    return (
        *(each for each in found if not is_one_setting((each.left, each.right))),
        *_changed_texts(left.outside, right.outside),
    )


def unwritten_settings(runs: Sequence[RunView]) -> list[str]:
    """Return keys in which runs differ though none wrote another value: by default, or resumed."""
    changed = [key for run in runs for key in run.changed_settings]
    shared = set.intersection(*(set(run.defaults) for run in runs))
    first = runs[0].defaults
    differing = (
        key
        for key in first
        if key in shared and any(not is_equal(run.defaults[key], first[key]) for run in runs)
    )
    return list(dict.fromkeys([*changed, *differing]))


def describe_setting(run: RunView, key: str, text: str | None) -> str | None:
    """Return what a run had for a key of which its config says `text`, None for nothing."""
    if key in run.changed_settings:
        return str(run.changed_settings[key])
    if text is None and key in run.defaults:
        node = from_plain(run.defaults[key], Origin(source="<default>"))
        return f"{write_value(node)}{_DEFAULT}"
    return text


def is_one_setting(texts: Iterable[str | None]) -> bool:
    """Return whether all are the same; a default is what a run that wrote it has."""
    return len({text.removesuffix(_DEFAULT) if text else text for text in texts}) < 2


def _metrics(left: RunView, right: RunView, *, costs: bool) -> tuple[MetricChanged, ...]:
    a, b = left.summaries, right.summaries
    names = [name for name in dict.fromkeys([*a, *b]) if costs or not name.startswith(COSTS)]
    found = [MetricChanged(name, a.get(name), b.get(name)) for name in names]
    # Compared as text, so that nan equals nan.
    return tuple(each for each in found if repr(each.left) != repr(each.right))


def _environment(left: RunView, right: RunView) -> tuple[ChangedKey, ...]:
    return _changed_texts(*comparable_environments((left, right)))


def comparable_environments(runs: Sequence[RunView]) -> list[dict[str, Any]]:
    """Return the environments; what the code reads only where every run has looked for it."""
    environments = [dict(run.environment) for run in runs]
    has_inputs = all("inputs" in each for each in environments)
    for each in environments:
        inputs = dict(each.pop("inputs", {}))
        inputs.pop("edited_ns", None)
        if has_inputs:
            each["inputs"] = inputs
    return environments


def _changed_texts(left: Mapping[str, Any], right: Mapping[str, Any]) -> tuple[ChangedKey, ...]:
    a, b = dict(flat(left)), dict(flat(right))
    return tuple(
        ChangedKey(key, a.get(key), b.get(key))
        for key in dict.fromkeys([*a, *b])
        if a.get(key) != b.get(key)
    )


def _code(left: RunView, right: RunView) -> tuple[tuple[FileChanged, ...], str]:
    if left.code.snapshot == right.code.snapshot:
        return (), "" if left.code.snapshot else "No code was kept with either run."
    trees: list[dict[str, CodeFile]] = []
    stores = []
    for run in (left, right):
        if not run.code.snapshot:
            return (), f"No code was kept with {run.id}."
        store = code_store(run)
        try:
            trees.append(read_tree(store, run.code.snapshot))
        except KeyError:
            return (
                (),
                f"The code of {run.id} is not here: its folder was copied without its project's "
                "code store.",
            )
        stores.append(store)
    # What one project holds may be what another has from outside, as a run that is proved again.
    a, b = (
        {_within(name, other.file.project): file for name, file in tree.items()}
        for tree, other in zip(trees, (right, left), strict=True)
    )
    changed = sorted(path for path in a.keys() | b.keys() if a.get(path) != b.get(path))
    return tuple(
        _file(path, a.get(path), b.get(path), stores[0], stores[1]) for path in changed
    ), ""


def _within(name: str, project: str) -> str:
    """Return the name of a file of code relative to a project that it lies in."""
    return name.removeprefix(f"{project}/") if project else name


def _file(
    path: str, left: CodeFile | None, right: CodeFile | None, here: Blobs, there: Blobs
) -> FileChanged:
    how: Literal["added", "removed", "changed", "mode"] = "changed"
    if left is None or right is None:
        how = "added" if left is None else "removed"
    elif left.digest == right.digest:
        return FileChanged(path, "mode")
    old = _lines(here, left)
    new = _lines(there, right)
    if old is None or new is None:
        return FileChanged(path, how)
    names = (f"a/{path}" if left else "/dev/null", f"b/{path}" if right else "/dev/null")
    return FileChanged(path, how, "".join(_unify(old, new, *names)))


def _unify(old: list[str], new: list[str], old_name: str, new_name: str) -> Iterator[str]:
    for line in difflib.unified_diff(old, new, old_name, new_name):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(store: Blobs, file: CodeFile | None) -> list[str] | None:
    """Lines with their ends; None for what is no text, or not here."""
    if file is None:
        return []
    try:
        data = store.get(file.digest)
    except KeyError:
        return None
    if b"\0" in data:
        return None
    # Lines end at a line feed and nowhere else: a form feed belongs to its line.
    return io.StringIO(data.decode("utf-8", "replace"), newline="\n").readlines()


def _plain(each: ChangedKey | MetricChanged | FileChanged) -> dict[str, Any]:
    data: dict[str, Any] = to_plain(each)
    return {"left": None, "right": None, **data} if not isinstance(each, FileChanged) else data


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


def key_code(run: RunView) -> dict[str, str]:
    """Source by name, as it was in the newest attempt. InputError when it is not here."""
    blobs = code_store(run)
    try:
        return {
            name: blobs.get(digest).decode("utf-8", "replace")
            for name, digest in run.code.keys.items()
        }
    except KeyError:
        what = (
            f"The code of {run.id} is not here: its folder was copied without its project's code "
            "store."
        )
        raise InputError(what, where=str(run.path)) from None
