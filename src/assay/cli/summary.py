"""`assay summary`."""

from __future__ import annotations

from dataclasses import asdict

import click

from assay.cli.launch import given
from assay.cli.terminal import echo, echo_json
from assay.core.errors import InputError


@click.command(name="summary", help="The layers of a model: shapes, parameters, and operations of one forward pass.")
@click.argument("arguments", metavar="CONFIG [KEY=VALUE ...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(arguments: tuple[str, ...], as_json: bool) -> int:
    from assay.config import open_config

    files, overrides = given(arguments)
    if len(files) != 1:
        raise InputError("`assay summary` looks at one config.", fix="assay summary digits.toml")
    from assay.compose.flow import flow

    found = flow(open_config(files[0], overrides))
    totals = {"params": found.params, "trained": found.trained, "flops": found.flops, "samples": found.samples}
    if as_json:
        echo_json({"layers": [asdict(layer) for layer in found.layers], **totals})
        return 0
    names = ["  " * layer.depth + layer.name.rpartition(".")[2] for layer in found.layers]
    rows = [("layer", "kind", "gives", "params", "FLOPs")]
    rows += [
        (name, layer.kind, layer.gave or "not called", f"{layer.params:,}", f"{layer.flops:,}")
        for name, layer in zip(names, found.layers, strict=True)
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for row in rows:
        left = "  ".join(f"{cell:<{width}}" for cell, width in zip(row[:3], widths, strict=False))
        right = "  ".join(f"{cell:>{width}}" for cell, width in zip(row[3:], widths[3:], strict=True))
        echo(f"{left}  {right}")
    echo(f"{found.params:,} parameters, {found.trained:,} trained")
    echo(f"{found.flops:,} FLOPs forward, of {found.samples} samples")
    return 0
