"""Server as an OS process for tests, as `assay ui` starts it, with link, session and log."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

SOURCE = Path(__file__).resolve().parents[2] / "src"
PATIENCE_S = 100  # with a loaded machine


@dataclass(frozen=True)
class Answer:
    """What a request got."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Server:
    """One `assay ui`, and what a program can ask it."""

    process: subprocess.Popen[str]
    link: str
    said: list[str] = field(default_factory=list)
    used: set[str] = field(
        default_factory=set
    )  # tokens with which somebody has asked for a session
    cookie: str = ""
    write: dict[str, str] = field(default_factory=dict)

    @property
    def port(self) -> int:
        port = urlsplit(self.link).port
        assert port is not None
        return port

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        session: bool = True,
        **query: Any,
    ) -> Answer:
        """Send one request, with the session and what a change needs unless told otherwise."""
        given = {"Host": f"127.0.0.1:{self.port}"}
        if session:
            given |= {"Cookie": self.cookie} | (self.write if method not in ("GET", "HEAD") else {})
        data = None
        if path == "/login" and isinstance(body, dict):
            self.used.add(body["token"])
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            given["Content-Type"] = "application/json"
        given |= headers or {}
        where = f"{path}?{urlencode(query, doseq=True)}" if query else path
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        ) as connection:
            connection.putrequest(method, where, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                connection.putheader(name, value)
            if data is not None and "Content-Length" not in given:
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())

    def get(self, path: str, **query: Any) -> Any:
        answer = self.ask("GET", path, **query)
        assert answer.status == 200, (answer.status, answer.body[:500])
        return answer.json

    def log_in(self) -> None:
        """Make a session of the link, as its page does."""
        answer = self.ask("POST", "/login", {"token": urlsplit(self.link).fragment}, session=False)
        assert answer.status == 204, answer.body
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        site = self.get("/api/site")
        self.write = {site["writeHeader"]: site["write"]}


@contextlib.contextmanager
def serving(
    folder: Path, *arguments: str, variables: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start `assay ui` in a folder, and end it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "assay", "ui", "--port", "0", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1", **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said: list[str] = []
    link = ""
    try:
        for line in process.stdout:
            said.append(line)
            if "/login#" in line:
                link = line.strip()
                break
        assert link, "".join(said)
        reader = threading.Thread(target=lambda: said.extend(process.stdout or ()))
        reader.start()
        server = Server(process, link, said)
        try:
            server.log_in()
            yield server
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            reader.join()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
