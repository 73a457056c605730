"""Requests a second and their latency: `assay serve`, a FastAPI loop by hand, and LitServe.

Each serves the same exported model, the CNN of `examples/01_digits`, by ONNX Runtime on the CPU, as
an OS process of its own, and answers the same requests: one digit as JSON. 64 connections ask
again as soon as they are answered. The servers take turns, and a figure is the median over the
rounds; a ratio is taken within a round.

    hand       A route that checks the body by pydantic, calls the session, and returns a list.
    litserve   Its own batching, with one worker; left out where it is not installed
               (requirements/peers.txt).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import numpy as np
from figures import Figure, machine, options, show

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "01_digits"
CLIENTS = 64

HAND = """
import sys
import numpy as np, onnxruntime, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

session = onnxruntime.InferenceSession(sys.argv[1])
app = FastAPI()

class Asked(BaseModel):
    images: list[list[list[list[float]]]]

@app.post("/predict")
def predict(asked: Asked) -> dict[str, list[list[float]]]:
    (output,) = session.run(None, {"images": np.asarray(asked.images, np.float32)})
    return {"output": output.tolist()}

uvicorn.run(app, port=int(sys.argv[2]), log_level="error", access_log=False)
"""
LITSERVE = """
import sys
import litserve
import numpy as np, onnxruntime

class Digits(litserve.LitAPI):
    def setup(self, device):
        self.session = onnxruntime.InferenceSession(sys.argv[1])
    def decode_request(self, request):
        return np.asarray(request["images"], np.float32)
    def batch(self, inputs):
        return np.concatenate(inputs)
    def predict(self, images):
        return self.session.run(None, {"images": images})[0]
    def encode_response(self, output):
        return {"output": [output.tolist()]}

if __name__ == "__main__":
    api = Digits(max_batch_size=32, batch_timeout=0.001)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(port=int(sys.argv[2]), host="127.0.0.1", log_level="error", generate_client_file=False)
"""


@dataclass(slots=True)
class Load:
    """What many clients saw: seconds of each answer, and requests that were not answered."""

    seconds: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    lost: int = 0

    @property
    def per_s(self) -> float:
        return len(self.seconds) / self.wall_s

    @property
    def p99_ms(self) -> float:
        return 1000 * float(np.percentile(self.seconds, 99))


class Connection(asyncio.Protocol):
    """One HTTP connection, as cheap as Python has it: the clients share the cores."""

    def __init__(self) -> None:
        self.data, self.answer, self.is_open = b"", asyncio.Future[int](), False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.is_open = transport, True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if not self.answer.done():
            self.answer.set_exception(exc or ConnectionResetError())

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        if not found:
            return
        head = head.lower()
        at = head.index(b"content-length:") + 15
        if len(body) >= int(head[at:].split(b"\r\n", 1)[0]):
            if b"connection: close" in head:
                self.is_open = False
            self.data = b""
            self.answer.set_result(int(head[9:12]))

    async def ask(self, request: bytes) -> int:
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self.answer


def spell(path: str, body: bytes, **headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    lines.append("content-type: application/json")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


READY = b"GET /v2/health/ready HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def drive(port: int, request: bytes, total: int) -> Load:
    """Ask by all connections until `total` requests were answered."""
    load, left = Load(), total

    async def client() -> None:
        nonlocal left
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(Connection, "127.0.0.1", port)
        while left > 0:
            left -= 1
            began = perf_counter()
            if await link.ask(request) == 200:
                load.seconds.append(perf_counter() - began)
            else:
                load.lost += 1
        link.transport.close()

    began = perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    load.wall_s = perf_counter() - began
    return load


@contextlib.contextmanager
def served(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server, and wait until it accepts connections."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not answers(port):
            assert process.poll() is None, "the server ended"
            sleep(0.1)
        yield process
    finally:
        process.terminate()
        process.wait(60)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def answers(port: int) -> bool:
    async def ask() -> None:
        _, link = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
        await link.ask(READY)
        link.transport.close()

    with contextlib.suppress(OSError):
        asyncio.run(ask())
        return True
    return False


def exported(folder: Path, steps: int) -> Path:
    """Train the digits for a moment, and export them."""
    project = Path(shutil.copytree(EXAMPLE, folder / "digits"))
    for words in (
        ["run", "digits.toml", "--device", "cpu", "--quiet", "--max-steps", str(steps)],
        ["export", "last", "one", "--batches", "1"],
    ):
        subprocess.run(
            [sys.executable, "-m", "assay", *words],
            cwd=project,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return project / "one"


def serve(folder: Path, port: int) -> list[str]:
    return [sys.executable, "-m", "assay", "serve", str(folder), "--port", str(port)]


def throughput(folder: Path, *, is_quick: bool) -> Iterator[Figure]:
    rounds, total = (1, 300) if is_quick else (3, 3000)
    digit = np.random.default_rng(0).random((1, 1, 28, 28), np.float32)
    plain = spell("/predict", json.dumps({"images": digit.round(4).tolist()}).encode())
    model = str(folder / "model.onnx")
    asked = {"assay": plain, "hand": plain, "litserve": plain}
    if is_quick or importlib.util.find_spec("litserve") is None:
        del asked["litserve"]
    seen: dict[str, list[Load]] = {name: [] for name in asked}
    with tempfile.TemporaryDirectory() as scripts:
        for name, text in {"hand": HAND, "litserve": LITSERVE}.items():
            (Path(scripts) / f"serve_{name}.py").write_text(text)
        for _ in range(rounds):
            for name, request in asked.items():
                port = free_port()
                script = [sys.executable, f"{scripts}/serve_{name}.py", model, str(port)]
                command = serve(folder, port) if name == "assay" else script
                with served(command, port):
                    asyncio.run(drive(port, request, total // 10))
                    seen[name].append(asyncio.run(drive(port, request, total)))
    for name, loads in seen.items():
        yield Figure(name=f"serving.{name}.per_s", value=median(load.per_s for load in loads))
        yield Figure(
            name=f"serving.{name}.p99_ms", value=median(load.p99_ms for load in loads), unit="ms"
        )
        assert not sum(load.lost for load in loads), name
    for name in ("hand", "litserve"):
        if name in seen:
            pairs = list(zip(seen["assay"], seen[name], strict=True))
            times = [theirs.per_s / ours.per_s for ours, theirs in pairs]
            ends = [ours.p99_ms / theirs.p99_ms for ours, theirs in pairs]
            limit = 1.0 if name == "hand" else None
            yield Figure(name=f"serving.time_to_{name}", value=median(times), at_most=limit)
            yield Figure(name=f"serving.p99_to_{name}", value=median(ends), at_most=limit)


def main() -> None:
    asked = options(__doc__ or "")
    where = machine()
    with tempfile.TemporaryDirectory() as folder:
        model = exported(Path(folder), steps=10)
        figures = list(throughput(model, is_quick=asked.quick))
    show("serving: requests a second", figures, where, as_json=asked.as_json)


if __name__ == "__main__":
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    main()
