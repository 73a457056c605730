"""Notice: the text of one message to a person, free of control codes and line ends of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from assay.core.errors import AssayError
from assay.core.job import FailureClass, classify
from assay.core.terminal import elide, for_terminal, visible
from assay.query.inbox import Message, MessageKind

_SUBJECT = 120
_TAG = 40
_LISTED = 20
_DETAIL = 4_000
_INPUT_ERRORS = (
    "InputError",
    "ConfigError",
    "ArgumentError",
    "MissingExtraError",
    "CriterionError",
)


class NotifyError(AssayError):
    """A notice could not be sent; the run that it is about goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Message about one run, or about several of which the same is true.

    `subject` is one line; `body` has lines; neither holds a control code of the text it is made of.
    """

    kind: MessageKind
    failure: FailureClass | Literal[""]
    project: str
    runs: tuple[str, ...]
    tag: str
    text: str
    subject: str
    body: str


def notices_of(messages: Iterable[Message], project: str) -> list[Notice]:
    """Return a notice for each kind and text: thirty runs that fail alike are one."""
    ordered = sorted(messages, key=lambda each: (each.kind, each.text, each.at_ns))
    grouped = groupby(ordered, key=lambda each: (each.kind, each.text))
    return [_notice(list(same), project) for _, same in grouped]


def failure_class(message: Message) -> FailureClass | Literal[""]:
    """Return the class of the failure that a message tells of, "" for a message of none."""
    match message.kind:
        case "killed":
            return "killed"
        case "stalled":
            return "hang"
        case "nan":
            return "nan"
        case "stopped" if "SIGTERM" in message.text:
            return "preempted"
        case "failed" if message.text.startswith(_INPUT_ERRORS):
            return "config"
        case "failed":
            return classify(None, 0, f"{message.text}\n{message.detail}")
    return ""


def with_line(notice: Notice, line: str) -> str:
    """Return the body of a notice with one line more at its end."""
    return f"{notice.body}\n{line}\n" if line else notice.body


def _notice(same: Sequence[Message], project: str) -> Notice:
    first = same[0]
    tag = elide(visible(first.tag), _TAG)
    who = f"{tag} ({first.run})" if tag else first.run
    if same[1:]:
        who = f"{len(same)} runs"
    text = visible(first.text)
    failure = failure_class(first)
    what = f"{first.kind} ({failure})" if failure not in ("", first.kind) else first.kind
    return Notice(
        kind=first.kind,
        failure=failure,
        project=visible(project),
        runs=tuple(each.run for each in same),
        tag=tag,
        text=text,
        subject=elide(f"[assay] {what}: {who}: {text}", _SUBJECT),
        body=_body(same, f"{what}: {text}", visible(project)),
    )


def _body(same: Sequence[Message], headline: str, project: str) -> str:
    first = same[0]
    lines = [headline, ""]
    lines += [f"run      {each.run}  {visible(each.tag)}".rstrip() for each in same[:_LISTED]]
    if same[_LISTED:]:
        lines.append(f"         and {len(same) - _LISTED} more")
    lines += [f"project  {project}", f"more     assay show {first.run}"]
    if first.detail.strip():
        detail = for_terminal(first.detail.strip()[-_DETAIL:], color=False)
        lines += ["", detail]
    return "\n".join(lines) + "\n"
