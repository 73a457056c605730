"""Lookup of runs by id, prefix, tag, `last`, `best:METRIC`, path or expression; of a checkpoint."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from assay.core.errors import (
    AssayError,
    CheckpointError,
    InputError,
    MissingCheckpointError,
    choose,
    nearest,
)
from assay.core.formatting import age
from assay.core.ids import id_of_folder
from assay.core.terminal import elide
from assay.formats.manifest import Checkpoint, describe_damage, find_named
from assay.formats.run_file import FILE_NAME
from assay.query.catalog import Asked, Catalog, open_catalog
from assay.query.columns import COLUMNS
from assay.query.naming import count_values, fit_names, name_together
from assay.query.run import RunView
from assay.query.run_row import RunRow
from assay.query.selection import Selection
from assay.store.index import Index
from assay.store.known_projects import project_here
from assay.store.layout import Project, RunFolder, find_project, run_folders, scan_runs
from assay.store.trash import list_removed

MIN_PREFIX = 3
_LAST = re.compile(r"last(?:-(\d{1,9}))?")
_OPERATOR = re.compile(r"[=<>~]|\s(?:in|and|or)\b|^not\s")
_LISTED = 8
_SHOWN_CELLS = 80
_MOST_LABEL = 32
_NEWEST = 3


def is_expression(text: str) -> bool:
    """Return True if `text` has an operator of expressions in it; a tag may have one too.

    >>> is_expression("tag = sweep"), is_expression("valid/acc>0.9"), is_expression("best:loss")
    (True, True, False)
    """
    return _OPERATOR.search(text) is not None


def find_run(address: str, project: Project | None = None) -> RunView:
    """Return the run at `address`, in `project` (default: that of the working directory).

    An address is an id, a tag, `last`, `best:METRIC`, a path, or an expression of `assay ls` that
    one run fulfils. Raises InputError when no run matches, or several do, with the candidates.
    """
    found = _find_runs(address, project)
    if len(found) == 1:
        return found[0]
    listed = "; ".join(f"{run.id} {run.tag}".rstrip() for run in found[: -_NEWEST - 1 : -1])
    raise InputError(
        f"{len(found)} runs fulfil `{address}`, and one is meant; the newest: {listed}.",
        fix=f"narrow it with `and ...`, or name the run: `assay ls '{address}'` lists all",
    )


def select_runs(addresses: Iterable[str], project: Project | None = None) -> list[RunView]:
    """Return the runs at all addresses, each once, in the order given.

    Of an expression all runs that fulfil it, the oldest first. InputError for an address without a
    run and for an expression that no run fulfils.
    """
    found: dict[str, RunView] = {}
    for address in addresses:
        for run in _find_runs(address, project):
            found.setdefault(run.id, run)
    return list(found.values())


def select_group(catalog: Catalog, where: str) -> Selection:
    """Return the runs that an expression of `assay ls` lists; InputError where it lists none."""
    if not is_expression(where):
        raise InputError(
            f"`{where}` is no expression of `assay ls`.", fix=f"'tag = {where}' has that tag"
        )
    found = catalog.select(Asked(where=where, sort=("created",)))
    if not len(found):
        raise InputError(f"No run fulfils `{where}`.", fix="`assay ls EXPR` lists those that do")
    return found


def label_rows(expressions: Sequence[str], selections: Sequence[Selection]) -> list[str]:
    """Return the names of rows of a table, which stay though other rows come beside them.

    That is the tag that all runs of an expression share, if no other has it; else its text.
    """
    tags = [set(selection.values([COLUMNS["tag"]])[0]) for selection in selections]
    names = [next(iter(found)) if len(found) == 1 else None for found in tags]
    return [
        name if name and names.count(name) == 1 else where
        for name, where in zip(names, expressions, strict=True)
    ]


def label_groups(expressions: Sequence[str], selections: Sequence[Selection]) -> list[str]:
    """Return the names of the runs of each expression: what all of them share and others do not.

    An expression whose runs share nothing of that kind is its own name.
    """
    shared: list[dict[str, Any]] = []
    defaults: list[dict[str, Any]] = []
    without = {"seed"}
    for selection in selections:
        configs, taken = selection.configs()
        mixed = count_values(configs, taken).keys()
        without |= mixed
        shared.append({key: value for each in configs for key, value in each.items()})
        defaults.append({key: value for each in taken for key, value in each.items()})
    tags = [set(selection.values([COLUMNS["tag"]])[0]) for selection in selections]
    known = [next(iter(each)) or "" if len(each) == 1 else "" for each in tags]
    names = name_together(shared, defaults, known, [""] * len(selections), without=without)
    texts = fit_names(names, _MOST_LABEL)
    return [
        text if text and texts.count(text) == 1 else where
        for text, where in zip(texts, expressions, strict=True)
    ]


def run_of_job(start: Path, job: str, *, newest: int = 0) -> RunView | None:
    """Return the run of a job in the project of a folder, whatever it came to; None without one.

    `newest`: it is one of that many newest records; 0: any.
    """
    project = find_project(start)
    for folder in reversed(run_folders(project)[-newest:]) if project is not None else ():
        with contextlib.suppress(AssayError):
            view = RunView(folder)
            if view.file.job == job:
                return view
    return None


def _find_runs(address: str, project: Project | None) -> list[RunView]:
    """Return the one run at an address, or at least one that fulfils an expression."""
    folder = _by_path(address)
    if folder is not None:
        return [RunView(folder)]
    home = project or project_here()
    alone = _without_rows(address, home)
    if alone is not None:
        return [RunView(alone)]
    catalog = open_catalog(home)
    try:
        return [RunView(_row(address, catalog.all_rows(), home).path)]
    except InputError:
        if not is_expression(address):  # a tag may read like one
            raise
    rows = select_group(catalog, address).rows()
    return [RunView(row.path) for row in rows if row is not None]


def _without_rows(address: str, project: Project) -> RunFolder | None:
    """Return the folder of `last` or of a whole id, which takes no look at all runs."""
    if found := _LAST.fullmatch(address):
        back = int(found[1] or 0)
        newest = Index(project).newest(back + 1)
        return RunFolder(project.runs_dir / newest[back]) if back < len(newest) else None
    wanted = id_of_folder(Path(address).name) or address
    names = [entry.name for entry in scan_runs(project.runs_dir) if wanted in entry.name]
    named = [name for name in names if id_of_folder(name) == wanted]
    return RunFolder(project.runs_dir / named[0]) if len(named) == 1 else None


def find_checkpoint(
    address: str, project: Project | None = None, *, default: str = "latest"
) -> tuple[RunView, Path]:
    """Return run and checkpoint folder of RUN@CHECKPOINT; `default` stands in for a missing one.

    InputError when there is no such run, CheckpointError when the run has no such checkpoint, with
    what it has.
    """
    run, name = find(address, project)
    return run, checkpoint_of(run, name or default).path


def find(address: str, project: Project | None = None) -> tuple[RunView, str]:
    """Return the run, and the text behind the `@` or ""; the checkpoint is not looked for."""
    name, at, checkpoint = address.rpartition("@")
    if not at or not name:
        return find_run(address, project), ""
    try:
        return find_run(name, project), checkpoint
    except InputError as error:
        try:
            return find_run(address, project), ""  # a tag or a path with an @ in it
        except InputError:
            raise error from None


def best_or_latest(run: RunView) -> str:
    """Return the name of the checkpoint that is meant where none is asked for."""
    return "best" if run.best_checkpoint is not None or run.best_damage else "latest"


def checkpoint_of(run: RunView, name: str) -> Checkpoint:
    """Return a complete checkpoint: `latest`, `best`, `final`, a step, -1, or a folder's name."""
    complete = run.checkpoints
    if name == "best":
        best = run.best_checkpoint
        if best is not None:
            return best
        if run.best_damage:
            what = f"The best checkpoint of the run {run.id} is damaged: {run.best_damage}"
            raise CheckpointError(what, where=str(run.path), fix=_has(run))
        fix = (
            "ask for `latest` or a step; `[checkpoint] best` in the config keeps the best"
            if complete
            else ""
        )
        raise MissingCheckpointError(
            f"The run {run.id} has no best checkpoint.", where=str(run.path), fix=fix or _has(run)
        )
    found = find_named(complete, name, run.folder.checkpoints)
    if found is not None:
        return found
    for each in run.incomplete_checkpoints:
        if each.name.removesuffix(".tmp") == name or (name.isdecimal() and each.step == int(name)):
            how = "is damaged" if each.is_damaged else "cannot be used"
            what = f"The checkpoint {each.name} of the run {run.id} {how}: {each.why}"
            raise CheckpointError(f"{what.removesuffix('.')}.", where=str(each.path), fix=_has(run))
    what = f"The run {run.id} has no checkpoint `{name}`. {describe_damage(run.all_checkpoints)}"
    raise MissingCheckpointError(what.rstrip(), where=str(run.path), fix=_has(run))


def describe_newer_damage(run: RunView, taken: Checkpoint) -> str:
    """Return which damaged checkpoints are newer than the one that is taken; "" for none."""
    newer = run.all_checkpoints[run.all_checkpoints.index(taken) :]
    damage = describe_damage(newer)
    return f"{damage} {taken.name} is the newest that is left." if damage else ""


def _has(run: RunView) -> str:
    names = [str(each.step) if each.step is not None else each.name for each in run.checkpoints]
    if not names and any(each.is_damaged for each in run.all_checkpoints):
        return f"no other checkpoint is left: `assay rerun {run.id}` trains it again"
    if not names:
        if run.status in ("finished", "failed", "stopped", "killed"):
            if not run.has_config_to_train:
                return "it ended without one; assay.engine.Saver(run.folder.checkpoints) keeps some"
            return (
                f"it ended without one: `assay rerun {run.id} checkpoint.enabled=true` keeps some"
            )
        return "it has none yet: the first comes with [checkpoint] every, or at the end"
    listed = ", ".join(names if len(names) <= _LISTED else ["...", *names[-_LISTED:]])
    return f"it has {listed}{' and best' if run.best_checkpoint is not None else ''}"


def _row(address: str, rows: Sequence[RunRow], project: Project) -> RunRow:
    trained = [row for row in rows if row.written.kind == "train"]
    if found := _LAST.fullmatch(address):
        return _last(address, int(found[1] or 0), trained, project)
    if address.startswith("best:"):
        return _best(address, trained, project)
    wanted = id_of_folder(Path(address).name) or address
    exact = [row for row in rows if row.id == wanted] or [
        row for row in trained if row.tag == wanted
    ]
    exact = exact or [row for row in rows if row.tag == wanted]
    if exact:
        return exact[-1]
    begins = [
        row for row in rows if len(wanted) >= MIN_PREFIX and row.id.startswith(wanted.lower())
    ]
    if len(begins) == 1:
        return begins[0]
    if begins:
        listed = "; ".join(_describe(row) for row in begins[:_LISTED])
        raise InputError(
            f"`{address}` is the beginning of {len(begins)} ids.", fix=f"say more of it: {listed}"
        )
    raise InputError(
        f"There is no run `{elide(address, _SHOWN_CELLS)}`.",
        where=str(project.runs_dir),
        fix=_how_to_bring_back(wanted, project) or _suggestion(address, rows),
    )


def _last(address: str, back: int, trained: Sequence[RunRow], project: Project) -> RunRow:
    if back < len(trained):
        return trained[-1 - back]
    count = (
        f"there {'is 1 run' if len(trained) == 1 else f'are {len(trained)} runs'}"
        if trained
        else _how_to_train()
    )
    what = f"There is no run `{address}`" if trained else "There is no run yet"
    raise InputError(f"{what}.", where=str(project.runs_dir), fix=count)


def _best(address: str, trained: Sequence[RunRow], project: Project) -> RunRow:
    metric, given = _metric_and_mode(address.removeprefix("best:"))
    having = [row for row in trained if metric in row.summaries]
    if not having:
        metrics = list(dict.fromkeys(name for row in trained for name in row.summaries))
        fix = choose(metric, metrics) or _how_to_train()
        raise InputError(f"No run has a metric `{metric}`.", where=str(project.runs_dir), fix=fix)
    mode = given or _recorded_mode(metric, having)

    def value(row: RunRow) -> float:
        return row.summaries[metric].min if mode == "min" else row.summaries[metric].max

    # nan: it was never a number. Equals: the newest.
    numbers = [row for row in reversed(having) if value(row) == value(row)]
    if not numbers:
        raise InputError(f"`{metric}` was never a number in any run.", where=str(project.runs_dir))
    return min(numbers, key=value) if mode == "min" else max(numbers, key=value)


def _metric_and_mode(text: str) -> tuple[str, Literal["min", "max"] | None]:
    metric, _, mode = text.rpartition(":")
    if mode == "min":
        return metric, "min"
    if mode == "max":
        return metric, "max"
    return text, None


def _recorded_mode(metric: str, rows: Sequence[RunRow]) -> str:
    modes = {row.written.best_mode for row in rows if row.written.best_metric == metric}
    if len(modes) == 1:
        return modes.pop()
    why = (
        "Some runs want it small and some large"
        if modes
        else "No run says whether small or large is good"
    )
    raise InputError(
        f"Which `{metric}` is the best? {why}.",
        fix=f"write `best:{metric}:min` or `best:{metric}:max`",
    )


def _how_to_bring_back(wanted: str, project: Project) -> str:
    """Return how a removed run of this id, beginning of an id or tag comes back; "" without one."""
    gone: list[RunFolder] = []
    with contextlib.suppress(AssayError):  # a trash that is a link holds none of ours
        gone = list_removed(project)
    fits = [
        folder
        for folder in gone
        if len(wanted) >= MIN_PREFIX and folder.id.startswith(wanted.lower())
    ]
    fits = fits or [folder for folder in gone if RunView(folder.path).tag == wanted != ""]
    if not fits:
        return ""
    ids = " or ".join(f"`assay rm --undo {folder.id}`" for folder in fits[-_NEWEST:])
    return f"it was removed: {ids} brings it back"


def _suggestion(address: str, rows: Sequence[RunRow]) -> str:
    if not rows:
        return _how_to_train()
    if len(address) < MIN_PREFIX and any(row.id.startswith(address) for row in rows):
        return f"the beginning of an id needs {MIN_PREFIX} characters"
    names = dict.fromkeys(
        ["last", *(row.tag for row in reversed(rows) if row.tag), *(row.id for row in rows)]
    )
    near = nearest(address, names, n=3)
    if near:
        return f"did you mean {' or '.join(f'`{each}`' for each in near)}?"
    return f"the newest is {_describe(rows[-1])}; `assay ls` shows all"


def _describe(row: RunRow) -> str:
    return f"{row.id} {row.tag}".rstrip() + f", {age(row.written.created_ns, row.now_ns)}"


def _how_to_train() -> str:
    return "train one: `assay run CONFIG`"


def _by_path(address: str) -> Path | None:
    """Return the run folder at or above the path `address`; None when it is no such path."""
    written_like_one = "/" in address or os.sep in address or address.startswith(("~", "."))
    path = Path(address).expanduser() if address.startswith("~") else Path(address)
    try:
        if (path / FILE_NAME).is_file() or (
            written_like_one and id_of_folder(path.name) and path.is_dir()
        ):
            # A link that the user names is meant to be followed.
            return path.resolve() if path.is_symlink() else path
        if written_like_one and path.exists():
            return next(
                (folder for folder in path.absolute().parents if (folder / FILE_NAME).is_file()),
                None,
            )
    except (OSError, ValueError):  # longer than a path may be, or with a zero byte in it
        return None
    return None
