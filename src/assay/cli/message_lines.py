"""Messages of the inbox as lines of text."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from assay.cli.terminal import paint, use_color
from assay.core.formatting import age
from assay.core.terminal import visible
from assay.query.inbox import Message

_STYLES = {"finished": "green", "resumed": "blue", "stopped": "yellow"}
_DETAIL_LINES = 12


def message_lines(messages: Sequence[Message], now_ns: int = 0) -> list[str]:
    """Return messages as aligned lines, each with its traceback below it."""
    now_ns = now_ns or time.time_ns()
    color = use_color(sys.stdout)
    width = max(len(message.kind) for message in messages)
    tags = max(min(24, len(visible(message.tag))) for message in messages)
    out = []
    for message in messages:
        kind = paint(f"{message.kind:<{width}}", _STYLES.get(message.kind, "red"), on=color)
        tag = visible(message.tag)[:24]
        when = age(message.at_ns, now_ns)
        out.append(
            f"{kind}  {message.run}  {tag:<{tags}}  {when:>9}  {visible(message.text)}".rstrip()
        )
        detail = message.detail.strip().split("\n") if message.detail.strip() else []
        cut = len(detail) - _DETAIL_LINES
        out += [f"    ... {cut} lines: assay log {message.run} --events"] if cut > 0 else []
        out += [f"    {visible(line)}".rstrip() for line in detail[-_DETAIL_LINES:]]
    return out
