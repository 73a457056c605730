"""`assay inbox`."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from assay.cli.message_lines import message_lines
from assay.cli.terminal import echo
from assay.core.errors import InputError
from assay.formats.json_codec import dumps, to_plain
from assay.query.catalog import Catalog
from assay.query.inbox import Inbox, Message
from assay.store.known_projects import all_projects, projects_here
from assay.store.layout import Project
from assay.store.read_marks import mark_read


@click.command(
    name="inbox",
    help="Show runs that finished, failed, resumed or stalled, with the cause. They are read"
    " then, unless --keep. With --follow it goes on, and the rules under [[notify]] of the settings"
    " of the project send them; `assay run` starts that beside itself where there are rules.",
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
@click.option("--follow", is_flag=True, help="Print and send what happens from now on.")
@click.option("--until-idle", is_flag=True, help="Follow until no run of this project lives.")
@click.option("--test", "is_test", is_flag=True, help="Send a test by each rule, and end.")
@click.option("--pid", type=click.IntRange(min=0), default=0, hidden=True)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(
    everything: bool,
    days: float,
    keep: bool,
    all_projects: bool,
    follow: bool,
    until_idle: bool,
    is_test: bool,
    pid: int,
    as_json: bool,
) -> int:
    if follow or until_idle or is_test:
        if everything or keep or all_projects or as_json:
            what = "Messages that are sent are those of this project from now on."
            raise InputError(what, fix="assay inbox --follow")
        from assay.cli import inbox_follow

        return inbox_follow.send_test() if is_test else inbox_follow.follow(until_idle, pid)
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


def _data(home: Project, message: Message) -> Any:
    return json.loads(dumps({**to_plain(message), "project": str(home.root)}))
