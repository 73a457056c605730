"""Notifier: sends messages of runs by the rules of their project, each of them once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from assay.config.notify_rules import NotifyRule
from assay.core.errors import RecordError
from assay.formats.json_codec import dumps, read_json, write_json
from assay.jobs.notice import Notice, NotifyError, notices_of, with_line
from assay.jobs.notify_channels import send_notice
from assay.query.inbox import Message

FILE_NAME = "notified.json"
FORMAT = 1
MAX_BYTES = 16 << 20
MOST_TRIES = 5
RETRY_S = 60.0
"""Seconds until a notice that could not be sent is tried again."""

_HOUR_NS = 3_600 * 10**9
_MOST = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleState:
    """Notices of one rule so far: ids of the messages sent, and when notices were sent (ns).

    `held_back` counts messages that the limit kept from being sent, since the newest notice.
    """

    done: tuple[str, ...] = ()
    sent_ns: tuple[int, ...] = ()
    held_back: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Notified:
    format: int = FORMAT
    rules: Mapping[str, RuleState] = field(default_factory=dict)


@dataclass(slots=True)
class _Tries:
    count: int = 0
    not_before_ns: int = 0


class Notifier:
    """Sender of messages by rules, for one project.

    What was sent is kept in `folder`, so that a restart sends nothing twice. Where nothing can be
    written there, it is remembered until this process ends.
    """

    def __init__(
        self,
        rules: Sequence[NotifyRule],
        *,
        project: str,
        folder: Path,
        send_by: Callable[[NotifyRule, Notice], None] = send_notice,
    ) -> None:
        self.rules = {_key(rule): rule for rule in rules}
        self.project = project
        self._file = folder / FILE_NAME
        self._send = send_by
        self._states = dict(_read(self._file).rules)
        self._tries: dict[tuple[str, str], _Tries] = {}

    @property
    def is_waiting(self) -> bool:
        """True while a notice that could not be sent is to be tried again."""
        return bool(self._tries)

    def deliver(self, messages: Iterable[Message], *, now_ns: int = 0) -> list[str]:
        """Send what is new and wanted; return a line for each notice that could not be sent."""
        now_ns = now_ns or time.time_ns()
        messages = list(messages)
        before = dict(self._states)
        problems = [
            problem
            for key, rule in self.rules.items()
            for problem in self._deliver_by(key, rule, messages, now_ns)
        ]
        if self._states != before:
            self._write()
        return problems

    def _deliver_by(
        self, key: str, rule: NotifyRule, messages: Iterable[Message], now_ns: int
    ) -> list[str]:
        state = self._states.get(key, RuleState())
        done = set(state.done)
        wanted = [
            each
            for each in messages
            if each.id not in done
            and each.kind in rule.when
            and fnmatchcase(each.tag, rule.tag)
            and self._is_due(key, each.id, now_ns)
        ]
        ids = {(each.kind, each.run): each.id for each in wanted}
        problems = []
        for notice in notices_of(wanted, self.project):
            of_it = [ids[notice.kind, run] for run in notice.runs]
            try:
                state = self._send_or_hold(rule, notice, state, now_ns)
            except NotifyError as error:
                problems.append(str(error))
                of_it = [each for each in of_it if self._has_failed(key, each, now_ns)]
            for each in of_it:
                self._tries.pop((key, each), None)
            state = replace(state, done=(*state.done, *of_it)[-_MOST:])
        self._states[key] = state
        return problems

    def _send_or_hold(
        self, rule: NotifyRule, notice: Notice, state: RuleState, now_ns: int
    ) -> RuleState:
        recent = tuple(at for at in state.sent_ns if 0 <= now_ns - at < _HOUR_NS)
        if len(recent) >= rule.at_most:
            return replace(state, held_back=state.held_back + len(notice.runs))
        more = f"{state.held_back} more were held back: assay inbox" if state.held_back else ""
        self._send(rule, replace(notice, body=with_line(notice, more)))
        return replace(state, sent_ns=(*recent, now_ns), held_back=0)

    def _is_due(self, key: str, message: str, now_ns: int) -> bool:
        tries = self._tries.get((key, message))
        return tries is None or now_ns >= tries.not_before_ns

    def _has_failed(self, key: str, message: str, now_ns: int) -> bool:
        """Count one try more; return whether it was the last."""
        tries = self._tries.setdefault((key, message), _Tries())
        tries.not_before_ns = now_ns + int(RETRY_S * 1e9)
        tries.count += 1
        return tries.count >= MOST_TRIES

    def _write(self) -> None:
        try:
            write_json(self._file, _Notified(rules=self._states), durable=False)
        except OSError:
            return  # a project that only others may write


def _key(rule: NotifyRule) -> str:
    """Return a digest of a rule's channel and address: other limits leave it the same rule."""
    address = dumps({"channel": rule.channel, "tag": rule.tag, **rule.options})
    return hashlib.sha256(address.encode()).hexdigest()[:16]


def _read(file: Path) -> _Notified:
    try:
        return read_json(file, _Notified, version=FORMAT, limit=MAX_BYTES)
    except (OSError, RecordError):
        return _Notified()
