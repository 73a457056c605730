"""Channels of notices: a command of the user's, a webhook, and all services of apprise."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from assay.config.notify_rules import Channel, NotifyRule, variable_of
from assay.core.errors import AssayError, MissingExtraError
from assay.jobs.notice import Notice, NotifyError
from assay.jobs.notify_webhook import post

PATIENCE_S = 20.0


def send_notice(rule: NotifyRule, notice: Notice) -> None:
    """Send a notice by the channel of a rule. NotifyError says why it could not be sent."""
    try:
        _SENDERS[rule.channel](rule.options, notice)
    except AssayError as error:
        raise _unsent_error(rule, error.what, fix=error.fix) from error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise _unsent_error(rule, str(error)) from error


def from_environment(value: str) -> str:
    """Return a plain text, or the value of the environment variable that it names.

    NotifyError when the variable is not set.
    """
    name = variable_of(value)
    if name is None:
        return value
    found = os.environ.get(name)
    if not found:
        fix = f"export {name}=... where the run or `assay inbox --follow` is started"
        raise NotifyError(f"The environment variable `{name}` is not set.", fix=fix)
    return found


def facts_of(notice: Notice) -> dict[str, Any]:
    """Return a notice as plain data, for programs. `text` is what chat services show."""
    return {
        "text": f"{notice.subject}\n{notice.body}",
        "kind": notice.kind,
        "failure": notice.failure,
        "runs": list(notice.runs),
        "tag": notice.tag,
        "reason": notice.text,
        "project": notice.project,
    }


def _send_webhook(options: Mapping[str, Any], notice: Notice) -> None:
    token = from_environment(options["token"]) if "token" in options else ""
    post(
        from_environment(options["url"]),
        json.dumps(facts_of(notice)).encode(),
        token=token,
        allows_private=options.get("private", False),
        patience_s=PATIENCE_S,
    )


def _run_command(options: Mapping[str, Any], notice: Notice) -> None:
    """Run the user's command, without a shell; the notice comes on its standard input, as JSON."""
    command = options["command"]
    words = [command] if isinstance(command, str) else command
    _run(words, data=json.dumps(facts_of(notice)))


def _send_by_apprise(options: Mapping[str, Any], notice: Notice) -> None:
    try:
        apprise = import_module("apprise")
    except ImportError:
        raise MissingExtraError("The channel `apprise`", extra="notify") from None
    service = apprise.Apprise()
    if not service.add(from_environment(options["url"])):
        raise NotifyError("apprise does not know that address.")
    if not service.notify(title=notice.subject, body=notice.body):
        raise NotifyError("apprise could not send the notice.")


def _unsent_error(rule: NotifyRule, why: str, *, fix: str = "") -> NotifyError:
    return NotifyError(
        f"The {rule.channel} notice was not sent: {why}", where=str(rule.origin), fix=fix
    )


def _run(words: list[str], *, data: str = "") -> None:
    """Run a program to its end; NotifyError when it fails or takes too long."""
    try:
        done = subprocess.run(
            words, input=data, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    except FileNotFoundError:
        raise NotifyError(f"There is no program `{words[0]}`.") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        said = f": {lines[-1]}" if lines else "."
        raise NotifyError(f"`{words[0]}` ended with {done.returncode}{said}")


_SENDERS: Mapping[Channel, Callable[[Mapping[str, Any], Notice], None]] = {
    "webhook": _send_webhook,
    "command": _run_command,
    "apprise": _send_by_apprise,
}
