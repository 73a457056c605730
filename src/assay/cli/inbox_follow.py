"""Follower of a project: it prints and sends what happens to the runs."""

from __future__ import annotations

import sys
import time

from assay.cli.message_lines import message_lines
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

_TEST = Message(
    id="test-finished-0",
    kind="finished",
    at_ns=0,
    run="test",
    tag="",
    text="a test of the notifications",
)


def follow(until_idle: bool, pid: int, every_s: float = EVERY_S) -> int:
    """Print and send what happens to the runs of the project until nothing is left to happen.

    `pid` is an OS process that is to be watched too: a watcher at work takes the request, and if
    it is about to end, this one follows it.
    """
    project = project_here()
    since_ns = time.time_ns() - SLACK_NS
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


def send_test() -> int:
    """Send a test by each rule; the exit code is 1 when one of them does not work."""
    project = project_here()
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
