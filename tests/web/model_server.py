"""Server of a model as an OS process for tests, as `assay serve` starts it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from web.serving import SOURCE


@dataclass
class Server:
    """One `assay serve`, and what a client asks it."""

    process: subprocess.Popen[str]
    port: int
    said: list[str]
    token: str = ""

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        with contextlib.closing(link):
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            link.request(method, path, data, {n.replace("_", "-"): v for n, v in headers.items()})
            answer = link.getresponse()
            text = answer.read()
            found = {name.lower(): value for name, value in answer.getheaders()}
        is_json = found.get("content-type") == "application/json"
        return answer.status, json.loads(text) if is_json else text, found

    def predict(self, points: NDArray[Any]) -> tuple[int, Any]:
        status, answer, _ = self.ask("POST", "/predict", {"x": points.tolist()})
        return status, answer

    @contextlib.contextmanager
    def waiting(self, points: NDArray[Any]) -> Iterator[http.client.HTTPConnection]:
        """Send a request to a server that takes one at once, and wait until it is taken."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        with contextlib.closing(link):
            link.request("POST", "/predict", json.dumps({"x": points.tolist()}))
            while self.ask("POST", "/predict", {})[0] != 429:
                pass
            yield link


@contextlib.contextmanager
def serving(
    address: Path | str,
    *options: str,
    folder: Path | None = None,
    before: str = "",
    **variables: str,
) -> Iterator[Server]:
    """Start `assay serve` after the statements `before`, wait for its address, and end it."""
    start = f"import sys; {before}from assay.__main__ import program; sys.exit(program())"
    process = subprocess.Popen(
        [sys.executable, "-c", start, "serve", str(address), "--port", "0", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.rstrip())
            if line.startswith("POST "):
                break
        else:
            raise AssertionError("\n".join(said))
        port = int(said[-1].partition("/predict")[0].rpartition(":")[2])
        yield Server(process, port, said)
    finally:
        process.kill()
        process.communicate()
