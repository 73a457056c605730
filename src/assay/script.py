"""`assay.start`: a record from any script, in one line and without torch; begun anew or resumed."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import AssayError, InputError
from assay.core.job import queue_job
from assay.core.ports import Recorder
from assay.core.secrets.replacement import Secrets, secrets_under
from assay.core.signals import obey_sigterm
from assay.core.terminal import in_notebook, visible
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_attempt, start_run
from assay.record.recordable import recordable
from assay.record.recorder import RunRecorder
from assay.record.start import (
    Run,
    finish_before,
    finish_with_cells,
    finish_with_python,
    has_open_run,
    is_off,
)
from assay.store import authorship
from assay.store.layout import Project, open_project, run_folders

if TYPE_CHECKING:
    from assay.config.tree import Table
    from assay.query.drawing import CurveDrawing
    from assay.query.run import RunView

AUTO = "auto"
SCRIPT = "script"
"""Key of an attempt's `launch`: the command of a resumable script, as far as it is no secret."""

_under_way: list[Run] = []
"""Runs of configs that this process trains, the innermost last."""

RESUME_VARIABLE = "ASSAY_RESUME"
"""Environment variable with the id of the run that a resumable script resumes, or "auto"."""


def start(
    tag: str = "",
    config: Any = None,
    desc: str = "",
    *,
    project: Project | str | os.PathLike[str] | None = None,
    code_dirs: Sequence[str | os.PathLike[str]] = (),
    keep_output: bool = True,
    resume: str | None = None,
    resumable: bool = False,
) -> Run:
    """Start recording a run from any script.

    Use it as `with assay.start(tag="mnist", config={"lr": 1e-3}) as run: ...`.

    It belongs to the project around `project` (a folder; else the working directory), which becomes
    one when it is none. What the process prints meanwhile is kept in `output.txt`, children and C
    code included, but not in notebooks. The environment variable ASSAY=off switches recording off.

    `config` is a mapping, or what can be one: an argparse.Namespace, a dataclass, a Params. What in
    it is no plain data is recorded as `Run.value` does, or left out with a warning. InputError is
    raised for a config that is none of these, and a `tag` or `desc` that is no text.

    `resume` continues the record of a script as a further attempt. "auto" takes the newest one with
    this tag and config that neither finished nor is being written, or begins a new one; else it is
    the id, tag or path of a run. `run.step` is where the attempt begins: at the newest checkpoint
    in the folder of the run, else after the last recorded step. InputError for a run that no script
    has recorded, LeaseError for one that another process writes.

    `resumable` says that the script loads the newest checkpoint of the run when `run.step` is not
    0. `assay resume RUN` then runs its command again, with the id of the run in ASSAY_RESUME, which
    stands for a missing `resume`.

    Below `assay run` it returns the run that is under way, which takes no tag or config of its own
    and ends by itself.
    """
    if is_off():
        return Run(None)
    tag, desc = _text("tag", tag), _text("desc", desc)
    if _under_way:
        return _under_way[-1]
    spec, written, left_out = _describe(config, code_dirs)
    spec = replace(spec, keep_output=keep_output)
    job = queue_job(os.environ)
    launch: dict[str, Any] = {"job": job} if job else {}
    if resumable:
        launch[SCRIPT] = list(spec.known_secrets().command(sys.orig_argv))
        resume = resume or os.environ.pop(RESUME_VARIABLE, None)  # for the first run alone
    if launch:
        spec = replace(spec, launch=launch)
    home = _open_home(project)
    if in_notebook():
        finish_with_cells()
        finish_before()
    view = _run_to_resume(resume, home, tag, spec.config_hash or "")
    if view is not None:
        recorder = _resume(view, home, written, spec)
    else:
        recorder = start_run(home, spec, tag=tag, desc=desc)
    for error in left_out:
        recorder.report(error)
    obey_sigterm()
    return finish_with_python(ScriptRun(recorder))


@contextlib.contextmanager
def under_way(recorder: Recorder) -> Iterator[None]:
    """Let `assay.start` return the run of `recorder` instead of beginning another.

    On a rank that does not record, nothing is recorded by what it returns.
    """
    run_recorder = recorder if isinstance(recorder, RunRecorder) else None
    _under_way.append(ScriptRun(run_recorder, is_part=True))
    try:
        yield
    finally:
        _under_way.pop()


def is_recording() -> bool:
    """Return whether a run is being recorded in this process, of a script or of a config."""
    return bool(_under_way) or has_open_run()


def _text(name: str, value: Any) -> str:
    """Return a tag or description; InputError for settings, which are easily given in its place."""
    if value is not None and not isinstance(value, str | int | float | os.PathLike):
        raise InputError(
            f"The {name} of a run is text, not {type(value).__name__}.",
            fix="assay.start(config=...) takes the settings of the run",
        )
    return "" if value is None else str(value)


def _run_to_resume(
    resume: str | None, project: Project, tag: str, config_hash: str
) -> RunView | None:
    """Return the run that `resume` asks for; None for a new one."""
    if resume is None:
        return None
    if resume != AUTO:
        return _find_recorded(resume, project)
    view = find_unfinished(project, tag, config_hash)
    if view is None:
        print("assay: nothing to resume: a new run", file=sys.stderr)
    return view


class ScriptRun(Run):
    """Run of `assay.start`, which can be looked at while it is written."""

    @property
    def view(self) -> RunView:
        """The record as it is now. InputError under ASSAY=off, where there is none."""
        from assay.query.run import RunView

        if self.folder is None:
            raise InputError("Nothing is recorded: ASSAY=off.", fix="unset ASSAY")
        return RunView(self.folder)

    def plot(self, *names: str) -> CurveDrawing:
        """Return a drawing of metrics, which a notebook shows; without names of all losses."""
        return self.view.plot(*names)

    def _repr_html_(self) -> str:
        return self.view._repr_html_() if self.folder is not None else repr(self)


def _describe(
    config: Any, code_dirs: Sequence[str | os.PathLike[str]]
) -> tuple[AttemptSpec, Table, list[AssayError]]:
    """Return what a recorder is told of a script's config, its tree without secrets, and errors.

    The errors are of settings that cannot be written down, and are left out. InputError for a
    config that is no mapping, before anything is made.
    """
    # Here: an import of what records does not pay for what reads configs.
    from assay.config.freeze import dump, hash_of_all_keys
    from assay.config.secret_keys import without_secrets
    from assay.config.tree import Table, from_plain
    from assay.core.diagnostics import Origin

    left_out: list[AssayError] = []
    settings = recordable(
        {} if config is None else config, "config", dates=True, report=left_out.append
    )
    if not isinstance(settings, dict):
        fix = "config={...}, vars(args), or plain(load(PATH).root) of assay.config for a file"
        raise InputError(f"A config is a mapping, not {type(config).__name__}.", fix=fix)
    tree = from_plain(settings, Origin(source="<python>"))
    assert isinstance(tree, Table)
    secrets = Secrets.among(os.environ, sys.orig_argv)
    secrets.add(secrets_under(settings))
    written = without_secrets(tree, secrets, has_references=False)
    spec = AttemptSpec(
        config_toml=dump(written),
        config_hash=hash_of_all_keys(tree),
        seedless_hash=hash_of_all_keys(tree, seed=False),
        code_dirs=[Path(folder) for folder in code_dirs],
        secrets=secrets,
    )
    return spec, written, left_out


def _open_home(project: Project | str | os.PathLike[str] | None) -> Project:
    """Return the project around a folder, which becomes one, with a note, when it is none."""
    if isinstance(project, Project):
        home = project
    else:
        home = open_project(Path(project or Path.cwd()), create=True)
    if home.is_new:
        place = visible(str(home.root))
        # A notebook shows stderr in red, as an error.
        stream = sys.stdout if in_notebook() else sys.stderr
        print(f"assay: {place} is a project now (it has a folder .assay/).", file=stream)
    return home


def is_of_script(view: RunView) -> bool:
    """Return whether a script recorded a run: then there is no config that could be trained."""
    attempts = view.file.attempts
    return not attempts or "user_dirs" not in attempts[0].launch


def resumable_command(view: RunView) -> tuple[str, ...]:
    """Return the command of a script that resumes its own run; () for any other run."""
    attempts = view.file.attempts
    return tuple(map(str, attempts[-1].launch.get(SCRIPT, ()))) if attempts else ()


def find_unfinished(project: Project, tag: str, config_hash: str) -> RunView | None:
    """Return the newest unfinished run of a script with this tag and config."""
    from assay.query.run import RunView

    found = []
    for folder in run_folders(project):
        try:
            view = RunView(folder)
            file = view.file
        except AssayError:  # a record that cannot be read is none to resume
            continue
        is_meant = file.kind == "train" and file.tag == tag and file.attempts
        if (
            is_meant
            and file.newest.config_hash == config_hash
            and is_of_script(view)
            and not view.origin
        ):
            found.append(view)
    found = [view for view in found if view.status not in ("finished", "running")]
    return max(found, key=lambda view: view.file.created_ns, default=None)


def _find_recorded(address: str, project: Project) -> RunView:
    """Find the run of an address, which a script has to have recorded."""
    from assay.query.find import find_run

    view = find_run(address, project)
    if view.kind == "train" and is_of_script(view):
        return view
    fix = f"assay resume {view.id}" if view.kind == "train" else ""
    raise InputError(
        f"The run {view.id} was not recorded by a script.", where=str(view.path), fix=fix
    )


def _resume(view: RunView, project: Project, tree: Table, spec: AttemptSpec) -> RunRecorder:
    """Begin a further attempt of a run that a script has recorded."""
    from assay.config import changed_keys, load
    from assay.query.diff import change_facts

    old = load(view.folder.config_toml).root
    changes = changed_keys(old, tree)
    steps = [each.step for each in view.checkpoints if each.step is not None]
    step = max(steps, default=max((each.step for each in view.summaries.values()), default=0))
    print(
        f"assay: resuming {view.id} ({visible(view.status_text)}) from step {step}", file=sys.stderr
    )
    is_here = authorship.is_at_home(view.folder, view.file)  # else its paths are not followed
    return start_attempt(
        view.folder,
        spec if changes else replace(spec, config_toml=None),
        from_step=step,
        project=Project(Path(view.file.project)) if is_here and view.file.project else project,
        changed=change_facts(changes, step),
    )
