"""`assay summary`."""

from __future__ import annotations

from dataclasses import asdict

import click

from assay.cli.one_config import one_config, read_config
from assay.cli.rehearsal import rehearse_one
from assay.cli.terminal import echo, echo_json
from assay.core.text_table import align_rows


@click.command(
    name="summary",
    help="Show the layers of a model: shapes, parameters, and the FLOPs of one forward pass.",
)
@one_config
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(arguments: tuple[str, ...], variant: str | None, trust: bool, as_json: bool) -> int:
    report, code = rehearse_one(read_config("summary", arguments, variant, trust=trust))
    flops = report.layers[0].flops if report.layers else 0
    totals = {
        "params": report.parameters,
        "trained": report.trained,
        "flops": flops,
        "samples": report.samples,
    }
    if as_json:
        echo_json({"layers": [asdict(layer) for layer in report.layers], **totals})
        return code
    names = ["  " * layer.depth + layer.name.rpartition(".")[2] for layer in report.layers]
    rows = [("layer", "kind", "gives", "params", "FLOPs")]
    for name, layer in zip(names, report.layers, strict=True):
        gave = layer.gave or "not called"
        rows.append((name, layer.kind, gave, f"{layer.params:,}", f"{layer.flops:,}"))
    echo("\n".join(align_rows(rows, to_right=(3, 4))))
    echo(f"{report.parameters:,} parameters, {report.trained:,} trained")
    echo(f"{flops:,} FLOPs forward, of {report.samples} samples")
    return code
