"""Notice: the text of one message to a person, free of control codes and line ends of others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from assay.core.errors import AssayError
from assay.core.terminal import elided, for_terminal, visible
from assay.query.inbox import Message, MessageKind

_SUBJECT = 120
_TAG = 40
_LISTED = 20
_DETAIL = 4_000


class NotifyError(AssayError):
    """A notice could not be sent; the run that it is about goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Message about one run, or about several of which the same is true.

    `subject` is one line; `body` has lines; neither holds a control code of the text it is made of.
    """

    kind: MessageKind
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


def with_line(notice: Notice, line: str) -> str:
    """Return the body of a notice with one line more at its end."""
    return f"{notice.body}\n{line}\n" if line else notice.body


def _notice(same: Sequence[Message], project: str) -> Notice:
    first = same[0]
    tag = elided(visible(first.tag), _TAG)
    who = f"{tag} ({first.run})" if tag else first.run
    if same[1:]:
        who = f"{len(same)} runs"
    text = visible(first.text)
    return Notice(
        kind=first.kind,
        project=visible(project),
        runs=tuple(each.run for each in same),
        tag=tag,
        text=text,
        subject=elided(f"[assay] {first.kind}: {who}: {text}", _SUBJECT),
        body=_body(same, text, visible(project)),
    )


def _body(same: Sequence[Message], text: str, project: str) -> str:
    first = same[0]
    lines = [f"{first.kind}: {text}", ""]
    lines += [f"run      {each.run}  {visible(each.tag)}".rstrip() for each in same[:_LISTED]]
    if same[_LISTED:]:
        lines.append(f"         and {len(same) - _LISTED} more")
    lines += [f"project  {project}", f"more     assay show {first.run}"]
    if first.detail.strip():
        detail = for_terminal(first.detail.strip()[-_DETAIL:], color=False)
        lines += ["", detail]
    return "\n".join(lines) + "\n"
