"""Search for the run that `--resume auto` resumes, and reasons against resuming one."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence

from assay.config import canonical, config_hash
from assay.config.diff import KeyChange
from assay.config.loading import Config
from assay.config.tree import Leaf, Table
from assay.config.typed_sections import sections_of
from assay.core.errors import AssayError, InputError
from assay.core.event_log import Saved
from assay.core.job import ATTEMPT_VARIABLE, queue_job
from assay.core.lease import process_start
from assay.core.manifest import describe_damage
from assay.core.run_file import Attempt
from assay.query.diff import flat, written
from assay.query.run import RunView
from assay.store.layout import find_project, run_folders

_DECISIVE = ("python", "machine", "packages.torch", "packages.numpy", "torch.", "variables.")
"""What of the environment may change a bit."""


def job_of(variables: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Return the Slurm, torchrun or queue job of this process, "" for none, and its restarts."""
    from assay.engine.parallel.rank_exit import JOB_PREFIX

    variables = os.environ if variables is None else variables
    restarts = int(variables.get("SLURM_RESTART_COUNT", 0))
    torchrun = variables.get("TORCHELASTIC_RUN_ID", "")
    if torchrun.startswith(JOB_PREFIX):
        torchrun = ""
    if torchrun == "none":  # the name of all that have none
        torchrun = f"{os.getppid()}-{process_start(os.getppid())}"
    if torchrun:
        restarts += int(variables.get("TORCHELASTIC_RESTART_COUNT", 0))
    if slurm := variables.get("SLURM_JOB_ID", ""):
        return f"slurm {slurm}", restarts
    if torchrun:
        return f"torchrun {torchrun}", restarts
    if job := queue_job(variables):
        return job, int(variables.get(ATTEMPT_VARIABLE, 1)) - 1
    return "", 0


def cut_off(config: Config) -> RunView | None:
    """Return the unfinished run of this config that this job began before it was restarted."""
    job, restarts = job_of()
    return unfinished(config, job=job) if job and restarts else None


def is_cut_off(view: RunView) -> bool:
    """Return True if this job wrote the run before its restart, so that nobody writes it now."""
    job, restarts = job_of()
    return bool(job and restarts and view.file.job == job)


def unfinished(config: Config, *, job: str = "") -> RunView | None:
    """Return the newest run with this config's hash and tag that neither finished nor runs.

    With `job` the newest that is of this job and not finished: it cannot be running. `config` has
    passed both stages of the check: the hash needs the names that these find.
    """
    start = config.path.resolve().parent if config.path is not None else None
    project = find_project(start) if start is not None else None
    if project is None:
        return None
    wanted = config_hash(config.named or config.root)
    tag = sections_of(config.root).tag
    found = []
    for folder in run_folders(project):
        with contextlib.suppress(AssayError):  # a record that cannot be read is none to go on with
            view = RunView(folder)
            file = view.file
            if (
                file.kind != "train"
                or file.tag != tag
                or not file.attempts
                or file.newest.config_hash != wanted
            ):
                continue
            if job and file.job != job:
                continue
            if view.status not in (("finished",) if job else ("finished", "running")):
                found.append(view)
    return max(found, key=lambda view: view.file.created_ns, default=None)


def refuse_without_config(view: RunView, *, fix: str = "") -> None:
    """Raise InputError for a run without a config to train: recorded by a script or imported."""
    file = view.file
    if file.attempts and "user_dirs" in file.attempts[0].launch and view.config_text:
        return
    if view.origin:
        what = f"The run {view.id} was imported from {view.origin.get('from', 'another tracker')}"
        raise InputError(f"{what}: there is no config to train.", where=str(view.path))
    started = f" It was started by: {' '.join(file.newest.command)}" if file.attempts else ""
    what = f"The run {view.id} was recorded by a script: there is no config to train.{started}"
    raise InputError(what, where=str(view.path), fix=fix)


def refuse_without_checkpoints(view: RunView) -> None:
    """Raise InputError for a run that would begin anew, because its checkpoints were deleted."""
    if any(
        each.manifest is not None and each.manifest.kind != "model" for each in view.checkpoints
    ):
        return
    if view.status != "finished" and not any(
        isinstance(timed.fact, Saved) for timed in view.events
    ):
        return  # it was ended before its first checkpoint
    what = (
        f"The run {view.id} ({view.status_text}, step {view.last_step}) has no checkpoint any more"
    )
    if damage := describe_damage(view.all_checkpoints):
        what = f"No checkpoint of the run {view.id} can be read. {damage.removesuffix('.')}"
    raise InputError(
        f"{what}: it would be trained anew from its beginning.",
        where=str(view.folder.checkpoints),
        fix=f"assay rerun {view.id} trains it as a new run; assay resume {view.id} --force trains"
        " it over this one",
    )


def refuse_other_data(run_id: str, old: Table, new: Table, changes: Sequence[KeyChange]) -> None:
    """Raise InputError when a run would be resumed with another seed or other data.

    Batches of another size are the same samples in the same order.
    """
    if _drawn_from(old) == _drawn_from(new):
        return
    kept = [each for each in changes if each.key == "seed" or each.key.startswith("data.")]
    keys = ", ".join(each.key for each in kept)
    words = [each for each in map(_as_override, kept) if each]
    raise InputError(
        f"The run {run_id} was trained with another {keys}: its steps would see the data of both.",
        where="; ".join(map(_described, kept)),
        fix=f"`{shlex.join(['assay', 'rerun', run_id, *words])}` trains a new run; --force resumes"
        " all the same",
    )


def _as_override(change: KeyChange) -> str:
    """Return the override that makes a change, "" for one that is no scalar."""
    return f"{change.key}={written(change.after)}" if isinstance(change.after, Leaf) else ""


def _described(change: KeyChange) -> str:
    before, after = (written(value) or "not given" for value in (change.before, change.after))
    return f"{change.key} {before} -> {after}"


def _drawn_from(root: Table) -> str:
    """Return the seed and the training data in canonical form."""
    kept = {name: node for name, node in root.items.items() if name in ("seed", "data")}
    data = kept.get("data")
    if isinstance(data, Table) and isinstance(train := data.items.get("train"), Table):
        sizes = ("batch_size", "micro_batch_size")
        inside = {name: node for name, node in train.items.items() if name not in sizes}
        kept["data"] = Table({**data.items, "train": Table(inside, train.origin)}, data.origin)
    return canonical(Table(kept, root.origin))


def told_differences(before: Attempt, now: Attempt) -> list[str]:
    """Return lines on code and environment that changed since the attempt before."""
    lines = []
    if now.changed_code:
        lines.append(f"code changed: {'  '.join(now.changed_code)}")
    a, b = (dict(flat(attempt.environment)) for attempt in (before, now))
    for key in dict.fromkeys([*a, *b]):
        if key.startswith(_DECISIVE) and a.get(key) != b.get(key):
            lines.append(
                f"environment changed: {key}  {a.get(key, 'not set')} -> {b.get(key, 'not set')}"
            )
    return lines
