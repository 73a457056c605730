"""`assay ui`."""

from __future__ import annotations

import click

from assay.cli.terminal import echo
from assay.core.errors import InputError, MissingExtraError
from assay.store.known_projects import project_here
from assay.web.access import TOKEN_VARIABLE, read_token


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
        token=read_token(token_file, TOKEN_VARIABLE),
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


def _prefix(text: str) -> str:
    if text and not text.startswith("/"):
        raise InputError(
            f"A prefix begins with a slash, `{text}` does not.", fix=f"--prefix /{text}"
        )
    return text.rstrip("/")
