"""`assay export`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from assay.cli.one_run import run_argument
from assay.cli.permission import permission, say, trust_option
from assay.cli.terminal import echo, echo_json, paint, use_color
from assay.core.formatting import size
from assay.core.text_table import align_rows
from assay.formats.export_folder import METRIC_HEAD, TOLERANCE
from assay.formats.json_codec import to_plain


@click.command(
    name="export",
    help="Export the model of a run to ONNX, torch.export or plain weights: a folder with the"
    " model, its inputs and outputs, a real batch, and a script that runs it without assay. Both"
    " models run over the evaluated split first; a model that differs by more than the tolerance"
    " is refused. Ends with 1 then.",
)
@run_argument("[RUN[@CKPT]]")
@click.argument("folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--format",
    "target",
    default="onnx",
    show_default=True,
    metavar="FORMAT",
    help="onnx, torch-export or safetensors, which are weights alone.",
)
@click.option(
    "--split", default="", help="Compared on this split. Left out: the first evaluated one."
)
@click.option(
    "--batches",
    type=click.IntRange(min=1),
    metavar="N",
    help="Compared on the first N batches. Left out: on all.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=TOLERANCE,
    show_default=True,
    help="Largest difference: T of the value and T/10 more, as in torch.testing.",
)
@click.option("--module", default="", metavar="NAME", help="Export this module of the model only.")
@click.option("--static", is_flag=True, help="For batches of one size, that of the first.")
@click.option(
    "--force",
    is_flag=True,
    help="Move away what is in DIR, and keep a model that is beyond the tolerance.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@trust_option
def command(
    run: str, folder: Path | None, module: str, batches: int | None, as_json: bool, **options: Any
) -> int:
    from assay.compose import ExportRequest, export

    trust = permission(options.pop("trust"))
    wanted = ExportRequest(part=module, batches=batches or 0, **options)
    done = export(run, folder, wanted, trust=trust, tell=say)
    certificate = done.certificate
    if as_json:
        echo_json({**to_plain(certificate), "folder": str(done.folder or "")})
        return 0 if certificate.is_within or wanted.force else 1
    color = use_color(sys.stdout)
    if done.moved is not None:
        echo(f"moved away: {os.path.relpath(done.moved)}", err=True)
    if done.folder is not None:
        room = sum(path.stat().st_size for path in done.folder.rglob("*") if path.is_file())
        echo(f"exported: {os.path.relpath(done.folder)}  {size(room)}")
    why = f": {done.why}" if done.why else ""
    echo(f"weights: {certificate.run}@{certificate.checkpoint}{why}")
    echo("\n".join(align_rows(done.schema.rows)))
    if certificate.recorded:
        rows = [("", *METRIC_HEAD[1:]), *certificate.metric_rows]
        echo("\n".join(align_rows(rows, to_right=(1, 2))))
    within = (
        paint("same outputs", "green bold", on=color)
        if certificate.is_within
        else paint("other outputs", "red bold", on=color)
    )
    echo(f"{within}: {certificate.difference}")
    echo(certificate.extent)
    echo(certificate.batching)
    if done.folder is None:
        say("refused: nothing was left. --tolerance allows more, --force keeps it all the same")
        return 1
    script = os.path.relpath(done.folder / "run_model.py")
    echo(f"run it: {shlex.join(['python', script])}")
    return 0
