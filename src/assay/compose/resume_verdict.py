"""Words on how exactly a run resumes: by design, as it was tried, or not tried.

What `assay check --resume` and `assay verify-resume` found is kept in `.assay/resume.json` by the
hash of code, config and installed packages, and said by the next start of the same.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from assay.compose.launch import Launch
from assay.compose.run_record import attempt_spec, secrets_of
from assay.config.loading import Config
from assay.core.errors import AssayError
from assay.core.regular_file import read_bytes
from assay.formats.json_codec import write_atomic
from assay.record.attempt import keep_snapshot
from assay.record.environment import environment
from assay.record.recorder import RunRecorder
from assay.store.layout import Project, find_project

if TYPE_CHECKING:
    from assay.engine import Engine

_FILE = "resume.json"
_MOST = 200
_MOST_BYTES = 1 << 20


def describe_resume(engine: Engine, recorder: RunRecorder | None, config: Config) -> str:
    """Return the one line that a start says about exact resume."""
    if recorder is not None and recorder.run.project:
        newest = recorder.run.newest
        key = _key(newest.config_hash, newest.code.snapshot, newest.environment)
        found = _read(Project(Path(recorder.run.project))).get(key)
        if isinstance(found, str):
            return found
    exactness = engine.source.exactness()
    if exactness.startswith("exact") and is_of_design(engine):
        return f"exact by design: {exactness.partition('(')[2].rstrip(')')}, all state kept"
    path = "CONFIG" if config.path is None else str(config.path)
    return f"not tried: assay check --resume {path}"


def is_of_design(engine: Engine) -> bool:
    """Return whether only assay's own process and callbacks run, and all of the model is kept.

    A plain attribute of the user's model or criterion may change: whether it does, nobody knows.
    """
    from assay.engine import OwnLoss, Supervised
    from assay.engine.loop.engine_state import unkept_attributes

    is_own = type(engine.process) in (Supervised, OwnLoss) and not engine.bus.has_others()
    return is_own and not unkept_attributes(engine)


def keep_resume_verdict(config: Config, launch: Launch, verdict: str) -> None:
    """Keep what a test of resume found for the next start, if there is a project."""
    words = f"tried on {datetime.datetime.now(datetime.UTC):%Y-%m-%d}: {verdict}"
    start = Path.cwd() if config.path is None else config.path.resolve().parent
    project = find_project(start) or find_project(Path.cwd())
    if project is None:
        return
    secrets = secrets_of(config)
    spec = attempt_spec(config, launch, project, secrets, None)
    with TemporaryDirectory() as folder:
        code, _ = keep_snapshot(project, spec, Path(folder) / "patch", secrets)
    kept = _read(project)
    kept.pop(key := _key(spec.config_hash or "", code.snapshot, environment()), None)
    newest = dict(list({**kept, key: words}.items())[-_MOST:])
    write_atomic(project.assay_dir / _FILE, json.dumps(newest, indent=1).encode(), durable=False)


def _key(config_hash: str, code: str, found: Mapping[str, Any]) -> str:
    lock = {name: found.get(name) for name in ("python", "packages")}
    told = json.dumps([config_hash, code, lock], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def _read(project: Project) -> dict[str, Any]:
    try:
        found = json.loads(read_bytes(project.assay_dir / _FILE, _MOST_BYTES))
    except (OSError, ValueError, AssayError):
        return {}
    return found if isinstance(found, dict) else {}
