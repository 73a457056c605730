"""`assay serve`."""

from __future__ import annotations

from typing import Any

import click

from assay.cli.completion import complete_runs
from assay.cli.one_run import LAST
from assay.cli.permission import say, trust_option
from assay.cli.terminal import echo
from assay.core.errors import MissingExtraError
from assay.core.signals import obeying
from assay.web.inference import TOKEN_VARIABLE

_NEEDED = ("onnxruntime", "starlette", "uvicorn")
_PORT = click.IntRange(0, 65_535)
_COUNT = click.IntRange(min=1)
_WAIT = click.FloatRange(0, 60_000)
_SECONDS = click.FloatRange(0.001, 86_400)


@click.command(
    name="serve",
    context_settings={"show_default": True},
    help="Answer requests over HTTP with the model of a run, or of a folder that `assay export`"
    " made: POST /predict with plain JSON, and the JSON of the Open Inference Protocol v2. A run is"
    " exported first. What is not within the tolerance of its certificate is not served.",
)
@click.argument("address", metavar="[RUN[@CKPT]|DIR]", default=LAST, shell_complete=complete_runs)
@click.option(
    "--name",
    default="",
    show_default=False,
    help="Of the model. Left out: that of DIR, or the run's id.",
)
@click.option("--port", metavar="P", type=_PORT, default=8000, help="0: any that is free.")
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", help="A token is needed beyond it.")
@click.option("--token-file", metavar="FILE", help=f"Holds a token, as does {TOKEN_VARIABLE}.")
@click.option(
    "--max-batch",
    metavar="N",
    type=_COUNT,
    default=32,
    help="Samples that run at once, where the export has shown that they may.",
)
@click.option(
    "--wait-ms", metavar="MS", type=_WAIT, default=0, help="Longest wait for others to join."
)
@click.option("--max-requests", metavar="N", type=_COUNT, default=256, help="More at once get 429.")
@click.option("--max-mb", metavar="MB", type=_COUNT, default=4, help="Size of a request.")
@click.option(
    "--timeout", metavar="S", type=_SECONDS, default=30, help="Longest wait for an answer."
)
@trust_option
def command(
    address: str,
    name: str,
    token_file: str | None,
    wait_ms: float,
    max_mb: int,
    timeout: float,
    trust: bool,
    **options: Any,
) -> int:
    try:
        from assay.formats.onnx_model import load_onnxruntime
        from assay.web.access import read_token
        from assay.web.inference.served_model import ServedModel, open_folder
        from assay.web.inference.server import ModelServerOptions, serve_model

        load_onnxruntime()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        raise MissingExtraError("A server of models", extra="serve") from None
    token = read_token(token_file, TOKEN_VARIABLE)
    with obeying(), open_folder(address, trust=trust, tell=say) as folder:
        model = ServedModel(folder)
        wanted = ModelServerOptions(
            name=name or folder.resolve().name,
            token=token,
            max_wait_s=wait_ms / 1000,
            max_body_bytes=max_mb << 20,
            timeout_s=timeout,
            **options,
        )
        certificate = model.certificate

        def show(root: str) -> None:
            about = f"{certificate.run}@{certificate.checkpoint}, version {model.version}"
            echo(f"{wanted.name}: {about}")
            echo(f"{certificate.difference}; {certificate.extent}")
            echo(certificate.batching)
            echo(f"POST {root}/predict, or {root}/v2/models/{wanted.name}/infer")

        serve_model(model, wanted, show)
    return 0
