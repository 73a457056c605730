"""Record of a run: begun with everything known at the start, ended with its result."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.compose.launch import Launch, RunResult
from assay.config import config_hash, dump, seedless_hash
from assay.config.check import standard_defaults
from assay.config.loading import Config
from assay.config.references import outside_used
from assay.config.secret_keys import without_secrets
from assay.config.standard_keys import sections_of
from assay.config.tree import Leaf, dotted, plain, walk
from assay.core.errors import AssayError
from assay.core.facts import EndStatus
from assay.core.job import ATTEMPT_VARIABLE, queue_job
from assay.core.ports import NullRecorder
from assay.core.secrets.replacement import Secrets, secrets_under
from assay.core.signals import Terminated, number_of
from assay.formats import defaults_file
from assay.formats.defaults_file import Taken
from assay.formats.lease import process_start
from assay.query.diff import since_previous
from assay.query.run import RunView
from assay.record.attempt import AttemptSpec
from assay.record.ending import ending
from assay.record.info import info_lines
from assay.record.logfile import file_logger_of
from assay.record.opening import start_run
from assay.record.recorder import RunRecorder
from assay.store.authorship import digest_of_secret
from assay.store.layout import Project, find_project, open_project

if TYPE_CHECKING:
    from assay.build import Examined
    from assay.compose.prepared_run import PreparedRun
    from assay.compose.run_scope import RunScope
    from assay.engine import Engine


def new_record(
    config: Config,
    launch: Launch,
    prepared: PreparedRun | None,
    *,
    kind: Any = "train",
    parent: str = "",
    device: Any = None,
) -> RunRecorder | NullRecorder:
    if launch.no_file or (prepared is not None and not prepared.scope.is_first):
        return NullRecorder()
    project = project_around(config.path)
    sections = sections_of(config.root)
    secrets = secrets_of(config)
    config_toml = dump(without_secrets(config.root, secrets), with_origins=True)
    engine = None if prepared is None else prepared.engine
    spec = attempt_spec(config, launch, project, secrets, engine)
    used = engine.device if engine is not None else device
    spec = replace(
        spec, config_toml=config_toml, seeds={"seed": sections.seed}, devices=[str(used)]
    )
    recorder = start_run(
        project,
        spec,
        kind=kind,
        tag=sections.tag,
        desc=launch.desc or sections.desc,
        config_path=str(config.path.resolve()) if config.path else "",
        parent=parent,
    )
    tell_info(recorder, config_toml)
    if prepared is not None:
        prepared.saver_folder = recorder.folder.checkpoints
        tell_changes(recorder)
    return recorder


def attempt_spec(
    config: Config,
    launch: Launch,
    project: Project,
    secrets: Secrets,
    engine: Engine | None,
) -> AttemptSpec:
    """Return what the record of an attempt begins with, but for its config, seeds and devices."""
    named = config.named or config.root
    launched = {**launch.to_record(), **launch_metadata(config, secrets)}
    if engine is not None:
        launched["fused"] = is_fused(engine)
    return AttemptSpec(
        config_files=config.files,
        config_hash=config_hash(named),
        seedless_hash=seedless_hash(config.filled or named),
        launch=launched,
        command=launch.command or None,
        code_dirs=code_outside(config.user_dirs, project),
        code=launch.frozen_code(),
        keep_output=True,
        secrets=secrets,
        **log_formats(config),
    )


def secrets_of(config: Config) -> Secrets:
    """Return the secrets in variables, command, settings and config of a run."""
    secrets = Secrets.among({**config.settings.variables, **os.environ}, sys.orig_argv)
    secrets.add(secrets_under(plain(config.root)))
    return secrets


def tell_info(recorder: RunRecorder, config_toml: str) -> None:
    for line in info_lines(recorder.run, config_toml):
        recorder.logger.info("%s", line)


def log_formats(config: Config) -> dict[str, Any]:
    display = sections_of(config.root).display
    formats = {"log_format": display.log_format, "date_format": display.date_format}
    return {name: text for name, text in formats.items() if text is not None}


def tell_changes(recorder: RunRecorder) -> None:
    """Log one line on the differences from the run of this tag before."""
    # An old record that cannot be read keeps no new one from starting.
    with contextlib.suppress(OSError, AssayError):
        if line := since_previous(RunView(recorder.folder)):
            recorder.logger.info("%s", line)


def set_recorder(scope: RunScope, recorder: RunRecorder | NullRecorder) -> None:
    scope.context.set("recorder", recorder)
    scope.context.set(
        "record_dir", recorder.folder.path if isinstance(recorder, RunRecorder) else None
    )


def launch_metadata(config: Config, secrets: Secrets) -> dict[str, Any]:
    """Return launch metadata: variant, sweep point, values from outside, job id."""
    which = {
        "user_dirs": [str(path.resolve()) for path in config.user_dirs],
        "variant": config.variant,
        "point": config.point,
        "outside": _outside_values(config, secrets),
        "job": job_of_process()[0],
    }
    return {key: value for key, value in which.items() if value}


def _outside_values(config: Config, secrets: Secrets) -> dict[str, Any]:
    """Return the values from outside that the saved config does not hold, by name.

    They are the secrets: of variables by `env:X`, else by key. A digest stands in the place of a
    secret, which tells two of them apart.
    """
    outside: dict[str, Any] = {}
    sources: dict[str, Mapping[str, Any]] = {"env": os.environ, "global": config.settings.variables}
    for name in outside_used(config.root):
        kind, _, variable = name.partition(":")
        value = sources[kind].get(variable)
        outside[name] = None if value is None else digest_of_secret(str(value))
    kept = without_secrets(config.root, secrets)
    for (_, given), (path, left) in zip(walk(config.root), walk(kept), strict=True):
        if isinstance(given, Leaf) and given is not left:
            outside[dotted(path)] = digest_of_secret(str(given.value))
    return outside


def is_fused(engine: Engine) -> bool:
    backward = getattr(engine.process, "backward", None)
    optimizers = [] if backward is None else backward.optimizers.values()
    return any(
        group.get("fused") is True for optimizer in optimizers for group in optimizer.param_groups
    )


def tell_defaults(
    recorder: RunRecorder | NullRecorder, config: Config, findings: Examined, prepared: PreparedRun
) -> None:
    """Log every default and everything injected, and keep them beside the config."""
    if not isinstance(recorder, RunRecorder):
        return
    taken = []
    log = file_logger_of(recorder.run.id)
    for each in [*standard_defaults(config.root), *findings.defaults]:
        if each.key == "optimizer.fused":
            each = replace(each, value=str(is_fused(prepared.engine)))
        value = recorder.secrets.tree(each.value, each.key)
        log.info("default %s = %s (%s, %s)", each.key, value, each.owner, each.origin)
        taken.append(Taken(key=each.key, value=value, owner=each.owner))
    for one in findings.injected:
        log.info("injected %s by %s (%s, %s)", one.key, one.by, one.owner, one.origin)
        taken.append(Taken(key=one.key, value=one.by, owner=one.owner, injected=True))
    try:
        defaults_file.write(recorder.folder.path, tuple(taken))
    except OSError as error:  # a full disk: the run has them in its log
        recorder.logger.warning("the defaults are not kept beside the config: %s", error)


def project_around(path: Path | None) -> Project:
    """Return the project around a config, else around the working directory.

    Without one the working directory becomes a project.
    """
    home = find_project(path.resolve().parent) if path is not None else None
    return home or find_project(Path.cwd()) or open_project(Path.cwd(), create=True)


def job_of_process(variables: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Return the Slurm, torchrun or queue job of this process, "" for none, and its restarts."""
    from assay.engine.parallel.rank_folder import JOB_PREFIX

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


def code_outside(folders: Sequence[Path], project: Project) -> list[Path]:
    root = project.root.resolve()
    return [path for path in folders if path.is_dir() and not path.resolve().is_relative_to(root)]


def end_record(
    recorder: RunRecorder | NullRecorder,
    config: Config,
    status: EndStatus,
    reason: str,
    value: Mapping[str, float],
    *,
    step: int,
) -> RunResult:
    folder, run_id, lacking = None, "", ""
    if isinstance(recorder, RunRecorder):
        recorder.finish(status, reason, step=step)
        folder = recorder.folder.path
        run_id = recorder.id
        lacking = recorder.lacking
    return RunResult(
        record_dir=folder,
        config=config,
        status=status,
        value=dict(value),
        id=run_id,
        step=step,
        exit_code=1 if lacking else 0,
        note=lacking,
        reason=reason,
    )


def fail_record(
    recorder: RunRecorder | NullRecorder, config: Config | None, error: BaseException, *, step: int
) -> RunResult:
    """End the record with what was raised; interrupts end as stopped."""
    status, reason, traceback = ending(error)
    # `sys.exit()` ends a script, but not a run that had more to do.
    if status == "finished":
        status = "failed"
        reason = "SystemExit: code of the run called sys.exit()"
    folder, run_id = None, ""
    if isinstance(recorder, RunRecorder):
        if traceback:
            recorder.logger.info("%s", traceback.rstrip())
        recorder.finish(status, reason, traceback, step=step)
        folder, run_id = recorder.folder.path, recorder.id
    return RunResult(
        record_dir=folder,
        config=config,
        status=status,
        exception=error,
        exit_code=exit_code_of(error),
        id=run_id,
        step=step,
        reason=reason,
    )


def result_of_error(config: Config | None, error: BaseException) -> RunResult:
    """Return the result of a run that could not be started."""
    return RunResult(
        record_dir=None,
        config=config,
        status="failed",
        exception=error,
        exit_code=exit_code_of(error),
    )


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a command whose run ended with `error`."""
    match error:
        case KeyboardInterrupt() | Terminated():
            return 128 + number_of(error)
        case AssayError():
            return error.exit_code
        case SystemExit(code=int() as code) if code:
            return code
        case _:
            return 1
