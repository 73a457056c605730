"""Proof that a record was made here: a digest, keyed by this user, over what chooses code.

Whoever resumes, replays or tests a run executes what its record says: the config, the folders of
modules, the code that was kept. Nothing that a record says about itself can tell that it was made
here; only a key that it does not hold can.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets

# hashlib brings OpenSSL along, which takes longer to load than what records does to start.
from _blake2 import blake2b
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from platformdirs import user_data_path

from assay.core.directory import PRIVATE, make_directory
from assay.core.regular_file import read_bytes
from assay.core.secrets.names import REDACTED
from assay.formats.json_codec import dumps
from assay.formats.run_file import MAX_BYTES, Attempt, RunFile
from assay.store.layout import RunFolder

KEY_NAME = "authorship.key"
KEY_BYTES = 32


def key_file() -> Path:
    """Return the file of this user's key, in their data folder."""
    return user_data_path("assay", appauthor=False) / KEY_NAME


def sign(folder: RunFolder, run: RunFile, attempts: Iterable[int] = ()) -> RunFile:
    """Return the run as one that this user makes in this folder, its configs being there already.

    Signed are the newest attempt and those of the numbers `attempts`; all others stay whose they
    are. Where no key can be kept nobody will know later that it was made here, and whoever resumes
    it is asked.
    """
    run = replace(run, made_at=os.path.realpath(folder.path))
    numbers = {*attempts, run.newest.number}
    try:
        key = _key(make=True)
        signed = tuple(
            replace(each, made_by=_digest(key, _attempt_facts(folder, run, each)))
            if each.number in numbers
            else each
            for each in run.attempts
        )
        run = replace(run, attempts=signed)
        return replace(run, made_by=_digest(key, _run_facts(folder, run)))
    except OSError:
        return replace(run, made_by="")


def own_attempts(folder: RunFolder, run: RunFile) -> list[int]:
    """Return the numbers of the attempts that this user made."""
    return [each.number for each in run.attempts if is_own(folder, run, each)]


def is_own(folder: RunFolder, run: RunFile, attempt: Attempt | None = None) -> bool:
    """Return whether this user made the record, and what chooses code in it is unchanged.

    With `attempt` this is about the code and config of that attempt alone: a record from elsewhere
    that was resumed here has attempts of both.
    """
    if not run.made_by:
        return False
    try:
        key = _key(make=False)
        is_ours = hmac.compare_digest(_digest(key, _run_facts(folder, run)), run.made_by)
        if attempt is None or not is_ours or _is_signed_as_one(run):
            return is_ours
        facts = _attempt_facts(folder, run, attempt)
        return hmac.compare_digest(_digest(key, facts), attempt.made_by)
    except OSError:
        return False


def _is_signed_as_one(run: RunFile) -> bool:
    """Return whether an earlier version of assay wrote the record: it signed no single attempt."""
    return not any(attempt.made_by for attempt in run.attempts)


def is_at_home(folder: RunFolder, run: RunFile) -> bool:
    """Return whether this user made the record, where it lies now: its paths may be followed."""
    return not is_moved(folder, run) and is_own(folder, run)


def is_moved(folder: RunFolder, run: RunFile) -> bool:
    """Return whether the record lies elsewhere than where it was made."""
    return os.path.realpath(folder.path) != run.made_at


def digest_of_secret(text: str) -> str:
    """Return what stands for a secret in a record: equal for equal secrets of this user.

    Nobody can try passwords against it without this user's key. Where no key can be kept all
    secrets are alike.
    """
    try:
        key = _key(make=True)
    except OSError:
        return REDACTED
    data = text.encode("utf-8", "surrogateescape")
    return f"{REDACTED} {blake2b(data, key=key, person=b'secret', digest_size=8).hexdigest()}"


def _run_facts(folder: RunFolder, run: RunFile) -> dict[str, Any]:
    configs = {name: read_bytes(path, MAX_BYTES).hex() for name, path in _configs(folder, run)}
    signatures = [attempt.made_by for attempt in run.attempts]
    # Whoever takes them out must not get a record of before, in which all attempts are signed.
    signed = {"signatures": signatures} if any(signatures) else {}
    return {
        **signed,
        **_identity(run),
        "project": run.project,
        "made_at": run.made_at,
        "attempts": [_chosen_by(attempt) for attempt in run.attempts],
        "configs": configs,
    }


def _attempt_facts(folder: RunFolder, run: RunFile, attempt: Attempt) -> dict[str, Any]:
    config = folder.config_of_attempt(attempt.number, run.newest.number)
    text = read_bytes(config, MAX_BYTES).hex() if config.is_file() else ""
    return {**_identity(run), **_chosen_by(attempt), "config": text}


def _identity(run: RunFile) -> dict[str, Any]:
    return {"id": run.id, "kind": run.kind, "parent": run.parent}


def _digest(key: bytes, facts: dict[str, Any]) -> str:
    data = dumps(facts).encode("utf-8", "surrogatepass")
    return str(blake2b(data, key=key, digest_size=32).hexdigest())


def _chosen_by(attempt: Attempt) -> dict[str, Any]:
    """Return what an attempt says about the process that would go on with it."""
    return {
        "number": attempt.number,
        "cwd": attempt.cwd,
        "launch": attempt.launch,
        "snapshot": attempt.code.snapshot,
        "patch": attempt.code.patch,
        "variables": attempt.environment.get("variables", {}),
        "devices": attempt.devices,
    }


def _configs(folder: RunFolder, run: RunFile) -> Iterator[tuple[str, Path]]:
    """Yield the config of the newest attempt, and those that earlier ones had."""
    paths = [folder.config_toml]
    paths += [
        folder.config_dir / f"before-attempt-{attempt.number}" / "config.toml"
        for attempt in run.attempts
    ]
    for path in paths:
        if path.is_file():
            yield path.relative_to(folder.path).as_posix(), path


def _key(*, make: bool) -> bytes:
    """Return this user's key, made when there is none; OSError where neither is possible."""
    path = key_file()
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    if not make:
        raise FileNotFoundError(path)
    make_directory(path.parent, PRIVATE)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(os.urandom(KEY_BYTES))
        with contextlib.suppress(FileExistsError):  # another process was first, and its key counts
            os.link(temporary, path)
    finally:
        temporary.unlink()
    return _read(path)


def _read(path: Path) -> bytes:
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise OSError(f"{path} holds no key")
    return key
