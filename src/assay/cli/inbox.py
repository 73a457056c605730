"""`assay inbox`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from assay.cli.terminal import echo, paint, use_color
from assay.core.formatting import age
from assay.core.terminal import visible
from assay.formats.json_codec import dumps, to_plain
from assay.query.catalog import Catalog
from assay.query.inbox import Inbox, Message
from assay.store.known_projects import all_projects, projects_here
from assay.store.layout import Project
from assay.store.read_marks import mark_read

_STYLES = {"finished": "green", "resumed": "blue", "stopped": "yellow"}
_DETAIL_LINES = 12


@click.command(
    name="inbox",
    help="Show runs that finished, failed, resumed or stalled, with the cause. They are read"
    " then, unless --keep.",
)
@click.option("--all", "everything", is_flag=True, help="Include messages that were read.")
@click.option(
    "--days",
    metavar="N",
    type=click.FloatRange(min=0.0),
    default=14.0,
    help="Messages of the last N days (14).",
)
@click.option("--keep", is_flag=True, help="Leave the messages unread.")
@click.option("--all-projects", is_flag=True, help="Messages of all your projects.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(everything: bool, days: float, keep: bool, all_projects: bool, as_json: bool) -> int:
    homes = _all() if all_projects else projects_here()
    now_ns = time.time_ns()
    found: list[tuple[Project, Message]] = []
    for home in homes:
        catalog = Catalog(home)
        catalog.synchronize()
        since_ns = now_ns - int(days * 86_400e9)
        messages = Inbox(catalog).messages(since_ns=since_ns, now_ns=now_ns)
        catalog.close()
        found += [(home, message) for message in messages if everything or not message.is_read]
    found.sort(key=lambda pair: pair[1].at_ns, reverse=True)
    if as_json:
        lines = ",\n".join(dumps(_data(home, message)) for home, message in found)
        echo(f"[\n{lines}\n]" if lines else "[]")
    elif found:
        echo("\n".join(message_lines([message for _, message in found], now_ns)))
    else:
        echo("Nothing new." if not everything else "No messages.")
    if not keep:
        for home in homes:
            fresh = [
                (each.id, each.at_ns)
                for project, each in found
                if project is home and not each.is_read
            ]
            if fresh:
                mark_read(home, fresh)
    return 0


def _all() -> list[Project]:
    return all_projects()


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


def _data(home: Project, message: Message) -> Any:
    return json.loads(dumps({**to_plain(message), "project": str(home.root)}))
