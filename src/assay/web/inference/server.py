"""The server of one model: its routes, its limits, and how it swaps the model and ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvicorn
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from assay.core.errors import AssayError
from assay.core.signals import Signals, answering, obeying
from assay.core.version import version
from assay.web.access import (
    Keys,
    Refusal,
    Rules,
    headers_of,
    refuse_length,
    refuse_stranger,
    require_token,
)
from assay.web.inference import TOKEN_VARIABLE
from assay.web.inference.batching import Batcher
from assay.web.inference.protocol import (
    HEAD_LENGTH,
    describe_tensors,
    parse_infer,
    parse_plain,
    spell_infer,
    spell_plain,
)
from assay.web.inference.served_model import ModelInputError, ModelSource, ServedModel
from assay.web.serving import listen, quiet_config

_DRAIN_S, _QUIET_S, _POLL_S = 20.0, 1.0, 0.05
"""A server that was told to end answers who still asks: for so long, or until nobody has asked for
so long; it looks so often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServerOptions:
    """Options of a server of one model. `port` 0 is any that is free, `name` "" that of its source.

    A batch has at most `max_batch` samples, and its first request waits at most `max_wait_s` for
    others. `max_requests` are answered at once, each within `timeout_s`; a request has at most
    `max_body_bytes`.
    """

    name: str
    host: str
    port: int
    token: str
    max_batch: int
    max_wait_s: float
    max_requests: int
    max_body_bytes: int
    timeout_s: float


def serve_model(
    source: ModelSource, wanted: ModelServerOptions, show: Callable[[str, str, ServedModel], object]
) -> None:
    """Serve a model until a signal ends it; SIGTERM waits for who still asks.

    `show(root, name, model)` is called once the model is warm, and for each that takes its place.
    InputError for an address that cannot be bound, for one beyond this machine without a
    token, and for a model that is not to be served.
    """
    require_token(wanted.host, wanted.token, TOKEN_VARIABLE)
    with obeying(), listen(wanted.host, wanted.port) as listener, contextlib.closing(source):
        port = listener.getsockname()[1]
        shown = f"[{wanted.host}]" if ":" in wanted.host else wanted.host
        model = source.read(may_ask=True)
        root = f"http://{shown}:{port}"
        server = ModelServer(source, model, wanted, partial(show, root))
        config = quiet_config(server, grace_s=round(wanted.timeout_s) + 1, keep_alive_s=75)
        show(root, server.name, model)
        running = _DrainingServer(config, server)
        running.run(sockets=[listener])
        if signal.SIGINT in running.heard:
            raise KeyboardInterrupt


class ServerMetrics:
    """Requests for inference, the batches that they ran in, and the model that is served now."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "assay_serve_requests", "Answered requests.", ["status"], registry=registry
        )
        self.seconds = Histogram(
            "assay_serve_request_seconds", "Seconds to an answer.", registry=registry
        )
        self.samples = Histogram(
            "assay_serve_batch_samples",
            "Samples that ran together.",
            registry=registry,
            buckets=[1 << power for power in range(11)],
        )
        self.in_flight = Gauge("assay_serve_in_flight", "Unanswered requests.", registry=registry)
        self.model = Info("assay_serve_model", "Model that is served now.", registry=registry)


class ModelServer:
    """ASGI application for one model, which may be replaced by another while it answers."""

    def __init__(
        self,
        source: ModelSource,
        model: ServedModel,
        wanted: ModelServerOptions,
        show: Callable[[str, ServedModel], object],
    ) -> None:
        self.wanted = wanted
        self.name = wanted.name or source.name_of(model)
        self.metrics = ServerMetrics()
        self.metrics.in_flight.set_function(lambda: self._in_flight)
        self.is_draining = False
        self._source, self._first, self._show = source, model, show
        self._keys = Keys(b"", wanted.token)
        self._rules = Rules("")
        self._app = self._routes()
        self._swap = asyncio.Lock()
        self.current: Batcher  # from startup on
        self._in_flight, self._last_request_s = 0, 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or say why not before its body is read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.monotonic()
        path = str(scope["path"])
        is_work = scope["method"] == "POST" and path.endswith(("/infer", "/predict"))
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], (b"cache-control", b"no-store")]
                if self.is_draining:  # the client knows that the connection ends with this answer
                    headers.append((b"connection", b"close"))
                message["headers"] = headers
            await send(message)

        refusal = self._refusal(scope, is_work)
        self._in_flight += is_work
        try:
            if refusal is None:
                await self._app(scope, receive, sending)
            else:
                status, what, fix = refusal
                await JSONResponse(_problem(what, fix=fix), status)(scope, receive, sending)
        finally:
            self._in_flight -= is_work
        if is_work:
            self._last_request_s = began_s
            self.metrics.requests.labels(status).inc()
            self.metrics.seconds.observe(time.monotonic() - began_s)

    @property
    def is_quiet(self) -> bool:
        """True once nobody waits for an answer, and nobody has asked for a moment."""
        return not self._in_flight and time.monotonic() - self._last_request_s > _QUIET_S

    def _refusal(self, scope: Scope, is_work: bool) -> Refusal | None:
        path = str(scope["path"])
        if path.startswith("/v2/health/"):
            return None  # of a load balancer, which has no token
        headers = headers_of(scope)
        if self.wanted.token:  # no other site has it, under whatever name it reaches the server
            if not self._keys.has_token(headers):
                return 401, "The token is missing.", "send `Authorization: Bearer TOKEN`"
        elif refusal := refuse_stranger(headers, str(scope["method"]), path, self._rules):
            return refusal
        if is_work and self._in_flight >= self.wanted.max_requests:
            return 429, f"{self._in_flight} requests are being answered.", "try it later"
        return refuse_length(headers, self.wanted.max_body_bytes)

    def _routes(self) -> ASGIApp:
        model = "/v2/models/{name}"
        routes = [
            Route("/predict", self._predict, methods=["POST"]),
            Route("/metrics", self._metrics),
            Route("/v2", self._server_metadata),
            Route("/v2/health/live", self._live),
            Route("/v2/health/ready", self._ready),
            Route("/v2/repository/index", self._index, methods=["POST"]),
            Route("/v2/repository/models/{name}/load", self._load, methods=["POST"]),
        ]
        for each in (model, f"{model}/versions/{{version}}"):
            routes += [
                Route(each, self._model_metadata),
                Route(f"{each}/ready", self._ready),
                Route(f"{each}/infer", self._infer, methods=["POST"]),
            ]
        handlers: dict[Any, Any] = {
            AssayError: _assay_error,
            HTTPException: _http_error,
            TimeoutError: self._too_late,
            ClientDisconnect: _nobody_there,
        }
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=self._life)

    @contextlib.asynccontextmanager
    async def _life(self, _app: object) -> AsyncIterator[None]:
        self.current = self._batcher(self._first)
        yield
        await self.current.close()

    def _batcher(self, model: ServedModel) -> Batcher:
        wanted, observe = self.wanted, self.metrics.samples.observe
        return Batcher(
            model, max_samples=wanted.max_batch, max_wait_s=wanted.max_wait_s, observe=observe
        )

    async def _predict(self, request: Request) -> Response:
        async with asyncio.timeout(self.wanted.timeout_s):
            body = await request.body()
            current = self.current  # from here to the queue nothing waits: no swap comes between
            outputs = await current.run(parse_plain(body, current.model.schema))
        return Response(spell_plain(outputs), media_type="application/json")

    async def _infer(self, request: Request) -> Response:
        async with asyncio.timeout(self.wanted.timeout_s):
            body = await request.body()
            current = self._queue_of(request)
            asked = parse_infer(body, request.headers.get(HEAD_LENGTH), current.model.schema)
            outputs = await current.run(asked.inputs)
        answer, head = spell_infer(outputs, asked, model=self.name, version=current.model.version)
        kind = "json" if head is None else "octet-stream"
        headers = {} if head is None else {HEAD_LENGTH: str(head)}
        return Response(answer, media_type=f"application/{kind}", headers=headers)

    def _queue_of(self, request: Request) -> Batcher:
        """Return the queue of the model in a path; HTTPException where it is another."""
        current = self.current
        name = request.path_params["name"]
        wanted = request.path_params.get("version", current.model.version)
        if name != self.name:
            raise HTTPException(404, f"There is no model {name}; this server has {self.name}.")
        if wanted != current.model.version:
            what = f"{name} has no version {wanted}; it is {current.model.version} now."
            raise HTTPException(404, what)
        return current

    async def _server_metadata(self, _request: Request) -> Response:
        extensions = ["binary_tensor_data", "model_repository"]
        return JSONResponse({"name": "assay", "version": version(), "extensions": extensions})

    async def _model_metadata(self, request: Request) -> Response:
        model = self._queue_of(request).model
        return JSONResponse(
            {
                "name": self.name,
                "versions": [model.version],
                "platform": "onnxruntime_onnx",
                "inputs": describe_tensors(model.schema.inputs),
                "outputs": describe_tensors(model.schema.outputs),
            }
        )

    async def _live(self, _request: Request) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, request: Request) -> Response:
        """Say whether new requests are wanted; the model is warm before there is a server."""
        if "name" in request.path_params:
            self._queue_of(request)
        return JSONResponse({"ready": not self.is_draining}, 503 if self.is_draining else 200)

    async def _metrics(self, _request: Request) -> Response:
        self.metrics.model.info({"name": self.name, "version": self.current.model.version})
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def _index(self, _request: Request) -> Response:
        version = self.current.model.version
        return JSONResponse([{"name": self.name, "version": version, "state": "READY"}])

    async def _load(self, request: Request) -> Response:
        """Read the model again; the one before answers until the new one is warm."""
        self._queue_of(request)
        if (await request.body()).strip() not in (b"", b"{}"):
            what = "It is empty: what is loaded was said when the server was started."
            raise ModelInputError(what, where="the body")
        async with self._swap:
            model = await asyncio.to_thread(self._source.read)
            before, self.current = self.current, self._batcher(model)
            await before.close()
            self._show(self.name, model)
        return JSONResponse({"name": self.name, "version": model.version})

    async def _too_late(self, _request: Request, _error: Exception) -> Response:
        what = f"There was no answer within {self.wanted.timeout_s:g} s."
        return JSONResponse(_problem(what, fix="try it later"), 503)


class _DrainingServer(uvicorn.Server):
    """Server that first answers everybody who still asks, and then ends."""

    def __init__(self, config: uvicorn.Config, app: ModelServer) -> None:
        super().__init__(config)
        self._app = app
        self.heard: list[int] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        def end(signals: Signals, number: int) -> None:
            self.heard = signals.heard
            self.force_exit = len(signals.heard) > 1
            self.should_exit = True

        with answering(end):
            yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.is_draining = True
        end_s = time.monotonic() + _DRAIN_S
        while signal.SIGTERM in self.heard and not self._app.is_quiet and not self.force_exit:
            if time.monotonic() > end_s:
                break
            await asyncio.sleep(_POLL_S)
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)


def _problem(what: str, *, where: str = "", fix: str = "") -> dict[str, str]:
    """Return an error as the page has them, and with it `error`, which the protocol asks for."""
    line = f"{where}: {what}" if where else what
    error = f"{line} {fix}" if fix else line
    return {"error": error, "what": what, "where": where, "fix": fix}


async def _assay_error(_request: Request, error: Any) -> Response:
    status = 422 if isinstance(error, ModelInputError) else 400
    return JSONResponse(_problem(error.what, where=error.where, fix=error.fix), status)


async def _http_error(_request: Request, error: Any) -> Response:
    return JSONResponse(_problem(str(error.detail)), error.status_code)


async def _nobody_there(_request: Request, _error: Exception) -> Response:
    return Response(status_code=400)
