"""The server of one model: its routes and its limits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.core.errors import AssayError
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
    ModelInputError,
    describe_tensors,
    parse_infer,
    parse_plain,
    spell_infer,
    spell_json,
    spell_plain,
)
from assay.web.inference.served_model import ServedModel
from assay.web.serving import QuietServer, listen, quiet_config

_BINARY = "inference-header-content-length"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServerOptions:
    """Options of a server of one model. `port` 0 is any that is free.

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
    model: ServedModel, wanted: ModelServerOptions, show: Callable[[str], object]
) -> None:
    """Serve a model until a signal ends it; what has arrived by then is answered.

    `show(root)` is called once connections are taken. InputError for an address that cannot be
    bound, and for one beyond this machine without a token.
    """
    require_token(wanted.host, wanted.token, TOKEN_VARIABLE)
    with listen(wanted.host, wanted.port) as listener:
        shown = f"[{wanted.host}]" if ":" in wanted.host else wanted.host
        config = quiet_config(ModelServer(model, wanted), grace_s=round(wanted.timeout_s) + 1)
        show(f"http://{shown}:{listener.getsockname()[1]}")
        QuietServer(config).run(sockets=[listener])


class ModelServer:
    """ASGI application of one model: it refuses a request before its body is read, or answers.

    JSON is read and written in one thread beside the event loop, so that health is answered while
    a large request is read.
    """

    def __init__(self, model: ServedModel, wanted: ModelServerOptions) -> None:
        self.model, self.wanted = model, wanted
        self._keys = Keys(b"", wanted.token)
        self._rules = Rules("", other_names="ask it as localhost or 127.0.0.1; or use a token")
        self._app = self._routes()
        self._json = ThreadPoolExecutor(1, thread_name_prefix="assay-json")
        self._batcher: Batcher  # from startup on
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or say why not before its body is read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_work = scope["method"] == "POST"
        if refusal := self._refusal(scope, is_work):
            status, what, fix = refusal
            await _problem(status, what, fix=fix)(scope, receive, send)
            return
        self._in_flight += is_work
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight -= is_work

    def _refusal(self, scope: Scope, is_work: bool) -> Refusal | None:
        path, headers = str(scope["path"]), headers_of(scope)
        is_health = path.startswith("/v2/health/")  # of a load balancer, which has no token
        if is_health:
            pass
        elif self.wanted.token:  # no other site has it
            if not self._keys.has_token(headers):
                return 401, "The token is missing.", "send `Authorization: Bearer TOKEN`"
        elif refusal := refuse_stranger(headers, str(scope["method"]), path, self._rules):
            return refusal
        if _BINARY in headers:
            return 415, "Tensors are JSON here.", "send them without binary data"
        if is_work and self._in_flight >= self.wanted.max_requests:
            return 429, f"{self._in_flight} requests are being answered.", "try it later"
        return refuse_length(headers, self.wanted.max_body_bytes)

    def _routes(self) -> ASGIApp:
        model = "/v2/models/{name}"
        routes = [
            Route("/predict", self._predict, methods=["POST"]),
            Route("/v2", self._server_metadata),
            Route("/v2/health/live", self._health),
            Route("/v2/health/ready", self._health),
        ]
        for each in (model, f"{model}/versions/{{version}}"):
            routes += [
                Route(each, self._model_metadata),
                Route(f"{each}/ready", self._health),
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
        wanted = self.wanted
        self._batcher = Batcher(
            self.model, max_samples=wanted.max_batch, max_wait_s=wanted.max_wait_s
        )
        yield
        await self._batcher.close()
        self._json.shutdown()

    async def _predict(self, request: Request) -> Response:
        async with asyncio.timeout(self.wanted.timeout_s):
            inputs = await self._beside(parse_plain, await request.body(), self.model.schema)
            outputs = await self._batcher.run(inputs)
            return _json_response(await self._beside(spell_plain, outputs))

    async def _infer(self, request: Request) -> Response:
        self._check_name(request)
        async with asyncio.timeout(self.wanted.timeout_s):
            asked = await self._beside(parse_infer, await request.body(), self.model.schema)
            outputs = await self._batcher.run(asked.inputs)
            named = {"model": self.wanted.name, "version": self.model.version}
            return _json_response(await self._beside(lambda: spell_infer(outputs, asked, **named)))

    async def _beside(self, work: Callable[..., Any], *args: Any) -> Any:
        """Return what work gives that holds Python's lock for long, one at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._json, work, *args)

    def _check_name(self, request: Request) -> None:
        """Raise HTTPException where a path names another model, or another version."""
        name, own = request.path_params.get("name", self.wanted.name), self.model.version
        if name != self.wanted.name:
            raise HTTPException(404, f"This server has the model {self.wanted.name} alone.")
        if request.path_params.get("version", own) != own:
            raise HTTPException(404, f"The version of {name} is {own}.")

    async def _server_metadata(self, _request: Request) -> Response:
        return _json_response({"name": "assay", "version": version(), "extensions": []})

    async def _model_metadata(self, request: Request) -> Response:
        self._check_name(request)
        return _json_response(
            {
                "name": self.wanted.name,
                "versions": [self.model.version],
                "platform": "onnxruntime_onnx",
                "inputs": describe_tensors(self.model.schema.inputs),
                "outputs": describe_tensors(self.model.schema.outputs),
            }
        )

    async def _health(self, request: Request) -> Response:
        """Say that requests are answered: the model is warm before there is a server."""
        self._check_name(request)
        return _json_response({"live": True, "ready": True})

    async def _too_late(self, _request: Request, _error: Exception) -> Response:
        what = f"There was no answer within {self.wanted.timeout_s:g} s."
        return _problem(503, what, fix="try it later")


def _json_response(answer: Any, status: int = 200) -> Response:
    body = answer if isinstance(answer, bytes) else spell_json(answer)
    headers = {"cache-control": "no-store"}
    return Response(body, status, headers, media_type="application/json")


def _problem(status: int, what: str, *, where: str = "", fix: str = "") -> Response:
    """Return an error as the page has them, and with it `error`, which the protocol asks for."""
    line = f"{where}: {what}" if where else what
    error = f"{line} {fix}" if fix else line
    return _json_response({"error": error, "what": what, "where": where, "fix": fix}, status)


async def _assay_error(_request: Request, error: Any) -> Response:
    status = 422 if isinstance(error, ModelInputError) else 400
    return _problem(status, error.what, where=error.where, fix=error.fix)


async def _http_error(_request: Request, error: Any) -> Response:
    return _problem(error.status_code, str(error.detail))


async def _nobody_there(_request: Request, _error: Exception) -> Response:
    return Response(status_code=400)
