"""`assay ui`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from assay.cli.terminal import echo
from assay.core.errors import InputError, MissingExtraError
from assay.store.known_projects import project_here
from assay.web.access import TOKEN_VARIABLE

_LEAST_TOKEN = 16


@click.command(
    name="ui",
    help="""Show the runs of this project in a browser, on this machine.

    On another machine: ssh -L 7341:127.0.0.1:7341 HOST, then open the link here.""",
)
@click.option("--port", metavar="P", type=click.IntRange(0, 65535), help="0: any that is free.")
@click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", help="Beyond this machine: needs a token."
)
@click.option(
    "--allow-host", "names", metavar="NAME", multiple=True, help="A name that a proxy calls it by."
)
@click.option(
    "--prefix", metavar="/PATH", default="", help="What a proxy leaves in front of each path."
)
@click.option(
    "--token-file", metavar="FILE", help=f"A file with a lasting token; so does {TOKEN_VARIABLE}."
)
@click.option(
    "--read-only", "is_read_only", is_flag=True, help="Nothing can be changed from the page."
)
def command(
    port: int | None,
    host: str,
    names: tuple[str, ...],
    prefix: str,
    token_file: str | None,
    is_read_only: bool,
) -> int:
    project = project_here()
    try:
        from assay.web.serving import ServeOptions, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("fastapi", "starlette", "uvicorn"):
            raise
        raise MissingExtraError("The page", extra="ui") from None
    wanted = ServeOptions(
        host=host,
        port=port,
        token=_token(token_file),
        names=names,
        prefix=_prefix(prefix),
        is_read_only=is_read_only,
    )
    serve(project, wanted, _say)
    return 0


def _say(event: str, text: str) -> None:
    match event:
        case "ready":
            echo(f"{text}\nThe link works once; Ctrl-C ends the server.")
        case "another":
            echo(f"opened; for another browser:\n{text}")
        case "unbuilt":
            echo(
                "The page is not built: `./dev setup` builds it. The API answers all the same.",
                err=True,
            )


def _token(file: str | None) -> str:
    """Return the user's token; it is never on the command line, which others can read."""
    token = os.environ.get(TOKEN_VARIABLE, "")
    if file is not None:
        try:
            token = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"The token cannot be read: {error}", where=file) from None
    if token and len(token) < _LEAST_TOKEN:
        fix = "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"
        raise InputError(f"The token is too short: it needs {_LEAST_TOKEN} characters.", fix=fix)
    return token


def _prefix(text: str) -> str:
    if text and not text.startswith("/"):
        raise InputError(
            f"A prefix begins with a slash, `{text}` does not.", fix=f"--prefix /{text}"
        )
    return text.rstrip("/")
