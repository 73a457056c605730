"""Trust in recorded runs: their code runs at once only if this user made them.

All that a record says is data. Where its user folders, its project and its config lead is followed
at once only if this user made it; else somebody has to say so, and then the modules come from the
working tree all the same.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.config.allow_list import target_parts
from assay.config.isolation import user_code
from assay.config.loading import PYTHON, Config, open_config, user_dirs_of
from assay.config.resolver import with_external_values
from assay.config.secret_keys import redacted_keys
from assay.config.settings import Settings
from assay.config.tree import Table, dotted, walk
from assay.core.diagnostics import Origin
from assay.core.errors import InputError, RecordError
from assay.core.formatting import count, name_some
from assay.formats.project import records_around
from assay.formats.run_file import FILE_NAME as RUN_FILE
from assay.formats.run_file import Attempt
from assay.query.diff import code_store
from assay.query.run import RunView
from assay.query.verification import describe_altered_config
from assay.store import authorship
from assay.store.code_trees import (
    CodeFile,
    holds_records_alone,
    read_tree,
    write_beside_records,
)
from assay.store.layout import Project, find_project

_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A record that was not made here, and what using it would run.

    `use` completes "to ... it": "resume", "test". `calls` are the targets of its config that are
    neither torch's nor assay's; `code` says where modules come from.
    """

    run: str
    use: str
    made: str
    calls: tuple[str, ...]
    code: str

    def lines(self) -> list[str]:
        """Return what a person should know before they say yes."""
        return [
            f"The run {self.run} was not made here. {self.made}",
            f"To {self.use} it runs on this machine, as you:",
            f"  calls  {name_some(self.calls, _SHOWN) or 'nothing but classes of torch and assay'}",
            f"  code   {self.code}",
        ]


Trust = bool | Callable[[Foreign], bool]
"""Permission for a foreign record to run: an answer, or a function that asks."""

Tell = Callable[[str], None]


def open_given(
    given: str | os.PathLike[str] | Mapping[str, Any] | object,
    overrides: Sequence[str] = (),
    *,
    user_dir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    use: str = "train it",
    trust: Trust = False,
    tell: Tell = lambda line: None,
) -> Config:
    """Read a config like `open_config`; one that lies in a record is used as that record is.

    It may run here if this user made the record, or if `trust` allows it; `use` completes
    "to ... it". Its modules are those of the user's project, never what lies beside it. InputError
    for a config among records that belongs to none.
    """
    if not isinstance(given, str | os.PathLike) or records_around(Path(given).parent) is None:
        return open_config(given, overrides, user_dir=user_dir)
    path = Path(given)
    view = _record_of(path)
    attempt = _attempt_of(path, view)
    is_ours = attempt is not None and authorship.is_own(view.folder, view.file, attempt)
    home = home_of(view)
    dirs = user_dir or [home.root if home is not None else Path.cwd()]
    if path.suffix.lower() == PYTHON and not is_ours:
        # A program: what it runs is asked for before it is read.
        code = f"{path}, a Python config, which is a program"
        _ask(view, Table({}, Origin(source=str(path))), use=use, code=code, trust=trust)
        is_ours = True
    config = open_config(path, overrides, user_dir=dirs, outside=view.kept_outside)
    if not is_ours:
        code = f"{path}, with the modules of your working tree"
        _ask(view, config.root, use=use, code=code, trust=trust)
    allowed = permit_saved(config, view, use=use, trust=True, tell=tell)
    return allowed if user_dir is None else replace(allowed, user_dirs=config.user_dirs)


@contextmanager
def modules_of(
    given: str | os.PathLike[str], user_dir: str | Sequence[str] | None = None
) -> Iterator[None]:
    """Import the modules of a config once for all that is done with it inside: read, check, run.

    Those of a config that lies in a record lie elsewhere, and are imported when that is known.
    """
    folder = Path(given).parent
    if not os.path.isfile(given) or records_around(folder) is not None:
        yield
        return
    with user_code(user_dirs_of(user_dir or None, folder)):
        yield


def _attempt_of(path: Path, view: RunView) -> Attempt | None:
    """Return the newest attempt that had this config; None for another file in the record."""
    place = path.resolve()
    for attempt in reversed(view.file.attempts):
        config = view.folder.config_of_attempt(attempt.number, view.file.newest.number)
        if config.resolve() == place:
            return attempt
    return None


def _record_of(path: Path) -> RunView:
    for folder in path.absolute().parents:
        if (folder / RUN_FILE).is_file():
            return RunView(folder)
    raise InputError(
        "This config lies among the records of runs, and belongs to none of them.",
        where=str(path),
        fix="copy it, and the modules that it needs, to a folder of your own",
    )


def open_saved(
    view: RunView,
    overrides: Sequence[str] = (),
    *,
    use: str,
    trust: Trust = False,
    tell: Tell = lambda line: None,
    part: str = "",
) -> Config:
    """Return the saved config of a run, with changed keys, as it may be used here.

    See `permit_saved`.
    """
    config = open_config(view.saved_config, overrides, outside=view.kept_outside)
    return permit_saved(config, view, use=use, trust=trust, tell=tell, part=part)


def permit_saved(
    config: Config,
    view: RunView,
    *,
    use: str,
    trust: Trust = False,
    tell: Tell = lambda line: None,
    part: str = "",
) -> Config:
    """Return the saved config of a run with the modules and settings that it may use here.

    InputError when the run was not made here and `trust` does not allow it, or when it lacks
    secrets that it was run with (of the section `part`, if that is given).
    """
    config = _permit_modules(config, view, use=use, trust=trust, tell=tell)
    refuse_redacted(config, view.id, part=part)
    return config


def _permit_modules(config: Config, view: RunView, *, use: str, trust: Trust, tell: Tell) -> Config:
    home = home_of(view)
    if is_at_home(view):
        root = Path(view.file.project)
        dirs = tuple(map(Path, kept_dirs(view))) or (root, root / "src")
        return replace(config, user_dirs=dirs, settings=Settings(root))
    root = home.root if home is not None else Path.cwd()
    dirs = _moved_dirs(view, root)
    if view.code.snapshot and holds_records_alone(root):  # an unpacked run, and nothing else
        code = f"the {count(view.code.files, 'file')} that was kept with it, put into {root}"
        permit(view, config.root, use=use, code=code, trust=trust)
        write_beside_records(read_code(view), code_store(view), root)
        tell(f"{view.id} was made elsewhere: its code was put into {root}")
    else:
        code = f"modules in {' and '.join(map(str, dirs))}, your working tree"
        permit(view, config.root, use=use, code=code, trust=trust)
        tell(f"{view.id} was made elsewhere: its modules are taken from {root}, the working tree")
    return replace(config, user_dirs=dirs, settings=Settings(root))


def read_code(view: RunView) -> Mapping[str, CodeFile]:
    """Return the files of the code that was kept with a run; RecordError for one without it."""
    try:
        return read_tree(code_store(view), view.code.snapshot)
    except KeyError:
        what = (
            f"The code of {view.id} is not here: its folder was copied without its project's code"
            " store."
        )
        fix = "`assay pack` takes the code along"
        raise RecordError(what, where=str(view.path), fix=fix) from None


def refuse_redacted(config: Config, run_id: str, *, part: str = "") -> None:
    """Raise InputError for a saved config that lacks secrets: none is ever written into a record.

    A secret that the config names as a variable is there if the variable is set. With `part` those
    in this section alone count.
    """
    missing = {dotted(path): "" for path in redacted_keys(config.root)}
    _, unset = with_external_values(config.root, os.environ, config.settings.variables)
    missing |= {problem.key: problem.fix for problem in unset}
    keys = [key for key in missing if not part or key.partition(".")[0] == part]
    if not keys:
        return
    way = next(filter(None, (missing[key] for key in keys)), "")
    raise InputError(
        f"The record of {run_id} keeps no secrets, and its config had some: {', '.join(keys[:5])}.",
        where=str(config.path or ""),
        fix=f"{way}; or resume and rerun take {keys[0]}=VALUE"
        if way
        else f'resume and rerun take {keys[0]}=VALUE; a config that says "${{env:NAME}}" finds it'
        " again",
    )


def permit(
    view: RunView,
    root: Table,
    *,
    use: str,
    code: str,
    trust: Trust,
    attempt: Attempt | None = None,
) -> None:
    """Raise InputError unless this user made the attempt, or `trust` allows what it would run.

    Without an attempt that is the newest one, whose config the record has.
    """
    attempts = view.file.attempts
    if authorship.is_own(view.folder, view.file, attempt or (attempts[-1] if attempts else None)):
        return
    _ask(view, root, use=use, code=code, trust=trust)


def _ask(view: RunView, root: Table, *, use: str, code: str, trust: Trust) -> None:
    foreign = Foreign(
        run=view.id,
        use=use,
        made=_describe_origin(view),
        calls=tuple(_foreign_calls(root)),
        code=code,
    )
    if trust(foreign) if callable(trust) else trust:
        return
    if altered := describe_altered_config(view.folder, view.file):
        raise InputError(
            f"{altered}: nobody knows what {view.id} was trained with.",
            where=str(view.folder.config_toml),
            fix="put it back from a copy or a pack of the run",
        )
    raise InputError(
        f"The run {view.id} was not made here: to {use} it would run what its config says.",
        where=str(view.path),
        fix=f"look at it (assay show {view.id} --config), then say --trust; in Python: trust=True",
    )


def permit_code(view: RunView, *, trust: Trust) -> None:
    """Raise InputError unless this user made the newest attempt, or `trust` allows its code here.

    For who restores it: in a folder of the user it is run like the user's own.
    """
    code = f"the {view.code.files} files that were kept with it, in a folder of yours"
    empty = Table({}, Origin(source=str(view.path)))
    permit(view, empty, use="restore its code", code=code, trust=trust)


def is_at_home(view: RunView) -> bool:
    """Return whether this user made the run, where it is now."""
    return os.path.isdir(view.file.project) and authorship.is_at_home(view.folder, view.file)


def home_of(view: RunView) -> Project | None:
    """Return the project that a run was made in, or the one around a copied record."""
    if is_at_home(view):
        return Project(Path(view.file.project))
    return find_project(view.path) or find_project(Path.cwd())


def kept_dirs(view: RunView) -> Sequence[str]:
    """Return the folders of modules that the newest attempt names, as it names them."""
    for attempt in reversed(view.file.attempts):
        kept = attempt.launch.get("user_dirs")
        if kept:
            return [str(path) for path in kept]
    return []


def _moved_dirs(view: RunView, root: Path) -> tuple[Path, ...]:
    """Return the module folders of a run, moved from its old project into the one at `root`."""
    was = os.path.normpath(view.file.project or os.sep)
    inside = [os.path.relpath(path, was) for path in kept_dirs(view) if _is_below(path, was)]
    return tuple(dict.fromkeys(root / path for path in inside)) or (root, root / "src")


def _is_below(path: str, folder: str) -> bool:
    path = os.path.normpath(path)  # `..` would lead out of it
    return folder != os.sep and (path == folder or path.startswith(f"{folder}{os.sep}"))


def _describe_origin(view: RunView) -> str:
    host = view.file.attempts[-1].host if view.file.attempts else ""
    place = " on this machine" if host == platform.node() else f" on {host}" if host else ""
    return f"It says: in {view.file.project or 'no project'}{place}."


def _foreign_calls(root: Table) -> list[str]:
    """Return the targets of a config that are neither torch's nor assay's, each once."""
    targets = dict.fromkeys(
        node.target for _, node in walk(root) if isinstance(node, Table) and node.target
    )
    return [target for target in targets if target_parts(target)[0] not in ("torch", "assay")]
