"""Messages sent by rules: real web servers, real commands, and each message once."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from assay.config.notify_rules import NotifyRule
from assay.config.settings import Settings
from assay.core.errors import ConfigError
from assay.jobs import notify_channels
from assay.jobs.notice import Notice, NotifyError, notices_of
from assay.jobs.notify import Notifier
from assay.jobs.notify_channels import send_notice
from assay.jobs.notify_webhook import public_address
from assay.query.inbox import Message

FAILED = Message(
    id="kq3f-failed-1000",
    kind="failed",
    at_ns=1000,
    run="kq3f",
    tag="gpt",
    text="ValueError: no such column",
    detail='Traceback (most recent call last):\n  File "train.py", line 3\nValueError: no such column\n',
)
SECOND_NS = 10**9


class Hook(BaseHTTPRequestHandler):
    """Web server that keeps what was posted, and answers what it was told to."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((self.path, dict(self.headers), json.loads(body)))  # type: ignore[attr-defined]
        self.send_response(self.server.answer)  # type: ignore[attr-defined]
        self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()
        words = self.path.replace("/", " "), self.headers["Authorization"]
        self.wfile.write(f"you said {words}".encode())

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]  # type: ignore[index]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def hook() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        server.posts = []  # type: ignore[attr-defined]
        server.answer = 200  # type: ignore[attr-defined]
        with serving(server):
            yield server


def notice(message: Message = FAILED) -> Notice:
    return notices_of([message], "/home/me/project")[0]


def rule(channel: Any, when: Sequence[str] = ("failed",), **options: Any) -> NotifyRule:
    return NotifyRule(channel=channel, when=tuple(when), options=options)


def test_a_webhook_gets_the_message_as_json_and_the_token_of_the_environment(
    hook: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_TOKEN", "s3cr3t-of-the-hook")
    url = f"http://127.0.0.1:{hook.server_port}/services/x?y=1"

    send_notice(rule("webhook", url=url, token="${env:HOOK_TOKEN}", private=True), notice())

    ((path, headers, data),) = hook.posts  # type: ignore[attr-defined]
    assert path == "/services/x?y=1"
    assert headers["Authorization"] == "Bearer s3cr3t-of-the-hook"
    assert data["kind"] == "failed" and data["runs"] == ["kq3f"]
    assert "no such column" in data["text"]


def test_a_webhook_on_this_machine_has_to_be_allowed(hook: HTTPServer) -> None:
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "169.254.169.254"):
        url = f"http://{host}:{hook.server_port}/"
        with pytest.raises(NotifyError, match="an address of this machine or of a local network"):
            send_notice(rule("webhook", url=url), notice())

    assert not hook.posts  # type: ignore[attr-defined]


INNER = (
    *(
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "0.0.0.0",
        "100.64.0.1",
        "224.0.0.1",
        "192.0.2.1",
    ),
    *(
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fec0::1",
        "ff02::1",
        "2001::1",
        "5f00::1",
    ),
    *("::ffff:127.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1"),
    *("64:ff9b:1::1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1"),
)


@pytest.mark.parametrize("address", INNER)
def test_no_way_to_write_an_inner_address_is_public(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[Any] = []
    answers = [[(0, 0, 0, "", (address, 80))], [(0, 0, 0, "", (public, 80)) for public in OUTER]]
    monkeypatch.setattr(socket, "create_connection", connected.append)
    for found in (answers[0], [*answers[1], *answers[0]]):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, found=found, **__: found)
        with pytest.raises(NotifyError, match="an address of this machine or of a local network"):
            send_notice(rule("webhook", url="https://hooks.example.org/x"), notice())

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers[1])
    assert public_address("hooks.example.org", 80, allows_private=False) == OUTER[0]
    assert not connected


OUTER = ("93.184.215.14", "2606:4700::1111")
SECRET = "s3cr3t-of-the-h00k"
BAD_ADDRESSES = (
    f"file:///{SECRET}",
    f"gopher://{SECRET}",
    f"//127.0.0.1/{SECRET}",
    f"http://[::1/{SECRET}",
    f"http://[v1.x]/{SECRET}",
    f"http://me:{SECRET}@127.0.0.1/",
    f"http://{SECRET}@127.0.0.1/",
    f"http://me:{SECRET}/",
    f"http://127.0.0.1:99999/{SECRET}",
    f"http://127.0.0.1:-1/{SECRET}",
    f"http://127.0.0.1:1/{SECRET} x",
    f"http://127.0.0.1:1/{SECRET}\x00",
    f"http://127.0.0.1:1/{SECRET}/ü",
    f"http://127.0.0.1:1/?{SECRET}=ü",
    f"http://127.0.0.1:1/{SECRET}",
    f"http://{'a' * 300}.example.org/{SECRET}",
    f"http://\udce4/{SECRET}",
)


@pytest.mark.parametrize("url", BAD_ADDRESSES)
def test_an_address_that_is_wrong_is_an_error_that_does_not_repeat_its_secret(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.jobs.notify_channels.from_environment", lambda value: value)

    with pytest.raises(NotifyError) as error:
        send_notice(rule("webhook", url=url, private=True), notice())

    assert SECRET not in str(error.value)


def test_neither_a_token_nor_an_answer_that_repeats_it_is_in_an_error(
    hook: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook.answer = 403  # type: ignore[attr-defined]
    for token in (SECRET, f"{SECRET}\nX: y", f"{SECRET}ü"):
        monkeypatch.setenv("HOOK_TOKEN", token)
        url = f"http://127.0.0.1:{hook.server_port}/services/{SECRET}?key={SECRET}"
        with pytest.raises(NotifyError) as error:
            send_notice(rule("webhook", url=url, token="${env:HOOK_TOKEN}", private=True), notice())
        assert SECRET not in str(error.value)


@pytest.mark.parametrize(("code", "said"), [(302, "redirects"), (500, "answered 500")])
def test_an_answer_that_is_no_success_is_an_error(hook: HTTPServer, code: int, said: str) -> None:
    hook.answer = code  # type: ignore[attr-defined]
    url = f"http://127.0.0.1:{hook.server_port}/"

    with pytest.raises(NotifyError, match=said):
        send_notice(rule("webhook", url=url, private=True), notice())

    assert len(hook.posts) == 1  # type: ignore[attr-defined]


class Dripping(socketserver.BaseRequestHandler):
    """Server that sends `begin`, and then `drip` again and again without an end."""

    begin, drip = b"", b"x"

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            self.request.sendall(self.begin)
            while not self.server.is_over.wait(0.02):  # type: ignore[attr-defined]
                self.request.sendall(self.drip)


class DrippingHead(Dripping):
    begin, drip = b"HTTP/1.1 200 OK\r\nX-Long: ", b"x"


class DrippingBody(Dripping):
    begin, drip = b"HTTP/1.1 404 No\r\nContent-Length: 300\r\n\r\n", b"x"


class DrippingHandshake(Dripping):
    begin, drip = b"\x16\x03\x03\x40\x00", b"x"  # the head of a record of 16 kB


LATE = "gave no whole answer in 0.5 s"


@pytest.mark.parametrize(
    ("channel", "handler", "said"),
    [
        ("webhook", DrippingHead, LATE),
        ("webhook", DrippingBody, "answered 404 No: x"),
        ("https", DrippingHandshake, LATE),
    ],
)
def test_a_server_that_answers_a_byte_at_a_time_is_hung_up_on(
    channel: str, handler: type[Dripping], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify_channels, "PATIENCE_S", 0.5)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.is_over = threading.Event()  # type: ignore[attr-defined]
        server.daemon_threads = True
        with serving(server) as port:
            web = {"url": f"http://127.0.0.1:{port}/", "private": True}
            to = {
                "webhook": rule("webhook", **web),
                "https": rule("webhook", **web | {"url": f"https://127.0.0.1:{port}/"}),
            }[channel]

            with pytest.raises(NotifyError, match=said):
                send_notice(to, notice())

            server.is_over.set()  # type: ignore[attr-defined]


def test_a_command_gets_the_message_on_its_input(tmp_path: Path) -> None:
    code = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"
    file = tmp_path / "$(touch never) it"

    send_notice(rule("command", command=[sys.executable, "-c", code, str(file)]), notice())

    assert json.loads(file.read_text())["runs"] == ["kq3f"]
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


def test_a_command_that_fails_is_told_with_its_last_line() -> None:
    code = "import sys; sys.exit('no route')"

    with pytest.raises(NotifyError, match="ended with 1: no route"):
        send_notice(rule("command", command=[sys.executable, "-c", code]), notice())


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(NotifyError, match="`NOT_SET_HERE` is not set"):
        send_notice(rule("webhook", url="${env:NOT_SET_HERE}"), notice())


def test_apprise_takes_every_other_service(hook: HTTPServer) -> None:
    if importlib.util.find_spec("apprise") is None:
        pytest.skip("apprise is not installed")
    lines = [
        "from assay.jobs.notify_channels import send_notice",
        "from jobs.test_notify import notice, rule",
        "send_notice(rule('apprise', url='${env:SERVICE}'), notice())",
    ]
    variables = {
        "SERVICE": f"json://127.0.0.1:{hook.server_port}/",
        "PYTHONPATH": ":".join(sys.path),
    }

    # In a process of its own: its threads outlive the call.
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, env=os.environ | variables)

    ((_, _, data),) = hook.posts  # type: ignore[attr-defined]
    assert data["title"] == "[assay] failed (exception): gpt (kq3f): ValueError: no such column"


def test_apprise_names_its_extra_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    monkeypatch.setenv("SERVICE", "json://127.0.0.1/")

    with pytest.raises(NotifyError) as caught:
        send_notice(rule("apprise", url="${env:SERVICE}"), notice())

    assert caught.value.fix == "pip install 'assay[notify]'"


@pytest.mark.parametrize(
    ("kind", "text", "detail", "failure"),
    [
        ("failed", "ConfigError: unknown key `trian`", "", "config"),
        ("failed", "LookupError: no sample", "  while loading the sample 3 of data.train", "data"),
        ("failed", "OutOfMemoryError: no memory left at step 3", "", "out-of-memory"),
        ("failed", "SystemExit: 3", "", "exception"),
        ("nan", "The loss is not finite (nan) at step 3.", "", "nan"),
        ("stalled", "no step for 12 s", "", "hang"),
        ("killed", "killed after 3 s", "", "killed"),
        ("stopped", "SIGTERM", "", "preempted"),
        ("stopped", "SIGINT", "", ""),
        ("finished", "finished after 3 s", "", ""),
    ],
)
def test_a_notice_names_the_class_of_the_failure(
    kind: Any, text: str, detail: str, failure: str
) -> None:
    found = notice(replace(FAILED, kind=kind, text=text, detail=detail))

    assert found.failure == failure
    named = failure in ("", kind) or f"{kind} ({failure})" in found.subject
    assert named and found.body.startswith(found.subject.split("] ")[1].split(":")[0])


class Sent:
    """Stand-in for all channels that remembers, and fails when told to."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.is_down = False

    def __call__(self, _: NotifyRule, notice: Notice) -> None:
        if self.is_down:
            raise NotifyError("The server is down.")
        self.notices.append(notice)


def notifier(folder: Path, sent: Sent, **options: Any) -> Notifier:
    one = replace(rule("desktop", when=("failed", "killed")), **options)
    return Notifier([one], project="p", folder=folder, send_by=sent)


def test_a_message_is_sent_once_even_by_the_next_process(tmp_path: Path) -> None:
    sent = Sent()
    first = notifier(tmp_path, sent)
    first.deliver([FAILED, replace(FAILED, kind="finished", id="a-finished-1")])
    first.deliver([FAILED])
    notifier(tmp_path, sent).deliver([FAILED])

    assert [each.kind for each in sent.notices] == ["failed"]


def test_runs_that_fail_alike_are_one_notice(tmp_path: Path) -> None:
    sent = Sent()
    many = [replace(FAILED, id=f"r{i}-failed-{i}", run=f"r{i}", at_ns=i) for i in range(30)]

    notifier(tmp_path, sent).deliver(many)

    (one,) = sent.notices
    assert len(one.runs) == 30 and "30 runs" in one.subject and "and 10 more" in one.body


def test_more_than_the_limit_of_an_hour_are_counted_in_the_next_notice(tmp_path: Path) -> None:
    sent = Sent()
    one = notifier(tmp_path, sent, at_most=2)
    for i in range(5):
        message = replace(FAILED, id=f"r-failed-{i}", text=f"error {i}")
        one.deliver([message], now_ns=(i + 1) * SECOND_NS)

    assert [each.text for each in sent.notices] == ["error 0", "error 1"]

    one.deliver([replace(FAILED, id="late")], now_ns=4000 * SECOND_NS)

    assert "3 more were held back" in sent.notices[2].body


def test_a_clock_that_was_ahead_does_not_hold_back_what_comes_after_it_was_set(
    tmp_path: Path,
) -> None:
    sent = Sent()
    one = notifier(tmp_path, sent, at_most=1)
    one.deliver([FAILED], now_ns=90_000 * SECOND_NS)

    one.deliver([replace(FAILED, id="after")], now_ns=1_000 * SECOND_NS)

    assert len(sent.notices) == 2


def test_a_server_that_is_down_is_tried_again_and_given_up_in_the_end(tmp_path: Path) -> None:
    sent = Sent()
    sent.is_down = True
    one = notifier(tmp_path, sent)

    assert one.deliver([FAILED], now_ns=SECOND_NS) == ["The server is down."]
    assert one.deliver([FAILED], now_ns=2 * SECOND_NS) == []  # not yet again

    sent.is_down = False
    one.deliver([FAILED], now_ns=70 * SECOND_NS)
    assert len(sent.notices) == 1

    sent.is_down = True
    other = replace(FAILED, id="other")
    problems = [one.deliver([other], now_ns=(i + 1) * 3600 * SECOND_NS) for i in range(8)]
    assert len([each for each in problems if each]) == 5


def settings_of(tmp_path: Path, text: str) -> Settings:
    (tmp_path / ".assay").mkdir()
    (tmp_path / ".assay" / "settings.toml").write_text(text)
    return Settings(tmp_path)


def test_the_rules_stand_in_the_settings_of_the_project(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path,
        '[[notify]]\nchannel = "webhook"\nurl = "https://hooks.example.org"\n'
        'token = "${env:HOOK_TOKEN}"\nwhen = ["failed", "finished"]\ntag = "gpt-*"\n'
        '[[notify]]\nchannel = "command"\ncommand = ["tell"]\n',
    )

    first, second = settings.notify_rules

    assert first.when == ("failed", "finished") and first.tag == "gpt-*"
    assert first.options["url"] == "https://hooks.example.org"
    assert second.channel == "command" and "killed" in second.when


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ('channel = "mail"', "2:11", "there is no channel `mail`"),
        ('when = ["failed"]', "1:3", "the rule has no `channel`"),
        ('channel = "email"\nto = "a@b.c"', "2:11", "there is no channel `email`"),
        ('channel = "webhook"', "1:3", "the channel `webhook` needs `url`"),
        (
            'channel = "command"\ncommand = "x"\nurl = "x"',
            "4:1",
            "the channel `command` has no `url`",
        ),
        (
            'channel = "command"\ncommand = "x"\nwhen = ["fialed"]',
            "4:8",
            "there are no messages `fialed`",
        ),
        (
            'channel = "command"\ncommand = "x"\nat_most = 0',
            "4:11",
            "`at_most` must be a whole number from 1 on",
        ),
        (
            'channel = "webhook"\nurl = "https://x.org"\ntoken = "hunter2"',
            "4:9",
            '`token` must be the name of an environment variable, as in "${env:NAME}"',
        ),
        (
            'channel = "webhook"\nurl = "https://me:hunter2secret9@hooks.org/x"',
            "3:7",
            "`url` holds a secret, and this file is committed",
        ),
    ],
)
def test_a_wrong_rule_is_told_with_line_and_column(
    tmp_path: Path, text: str, place: str, message: str
) -> None:
    settings = settings_of(tmp_path, f"[[notify]]\n{text}\n")

    with pytest.raises(ConfigError) as caught:
        settings.notify_rules  # noqa: B018 - reading is what fails

    (problem,) = caught.value.problems
    assert problem.message == message
    assert str(problem.origin) == f"{tmp_path}/.assay/settings.toml:{place}"
