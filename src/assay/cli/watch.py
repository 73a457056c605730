"""Command `assay watch`: print and send what happens to the runs of a project."""

from __future__ import annotations

import sys
import time

import click

from assay.cli.inbox import message_lines
from assay.cli.terminal import echo
from assay.core.errors import InputError
from assay.jobs.notice import NotifyError, notices_of
from assay.jobs.notify_channels import send_notice
from assay.jobs.watch import (
    EVERY_S,
    SLACK_NS,
    WatchRequests,
    notifier_of,
    only_watcher,
    watch,
)
from assay.query.inbox import Message
from assay.store.known_projects import project_here
from assay.store.layout import Project

_TEST = Message(
    id="test-finished-0",
    kind="finished",
    at_ns=0,
    run="test",
    tag="",
    text="a test of the notifications",
)


@click.command(
    name="watch",
    help="Print what happens to the runs of this project: finished, failed, killed, stalled, nan."
    " The rules under [[notify]] of its settings send it as well. `assay run` starts this beside"
    " itself where there are rules.",
)
@click.option(
    "--every",
    "every_s",
    metavar="S",
    type=click.FloatRange(min=0.1),
    default=EVERY_S,
    help="Seconds between two looks (2).",
)
@click.option("--until-idle", is_flag=True, help="End when no run of this project lives.")
@click.option("--test", "is_test", is_flag=True, help="Send a test by each rule, and end.")
@click.option("--pid", type=click.IntRange(min=0), default=0, hidden=True)
def command(every_s: float, until_idle: bool, is_test: bool, pid: int) -> int:
    project = project_here()
    if is_test:
        return _send_test(project)
    since_ns = time.time_ns() - SLACK_NS
    # A watcher at work takes the request; if it is about to end, this one follows it.
    request = WatchRequests(project).add(pid) if pid else None
    with only_watcher(project, request=request) as is_free:
        if not is_free and pid:
            return 0
        if not is_free:
            raise InputError("This project is being watched already.", where=str(project.root))
        looks = watch(project, every_s=every_s, until_idle=until_idle, since_ns=since_ns)
        for look in looks:
            if look.messages:
                echo("\n".join(message_lines(look.messages)))
            for problem in look.problems:
                echo(f"warning: {problem}", err=True)
            sys.stdout.flush()
    return 0


def _send_test(project: Project) -> int:
    """Send a test by each rule; the exit code is 1 when one of them does not work."""
    rules = notifier_of(project).rules.values()
    if not rules:
        fix = f"add a [[notify]] table to {project.settings}"
        raise InputError("This project has no rules for notifications.", fix=fix)
    code = 0
    for rule in rules:
        try:
            send_notice(rule, notices_of([_TEST], str(project.root))[0])
            echo(f"sent  {rule.channel}  {rule.origin}")
        except NotifyError as error:
            echo(f"error: {error}", err=True)
            code = 1
    return code
