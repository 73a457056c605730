"""Views of `assay check --show`: layers, one batch, callbacks, and how fast the data are."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from assay.cli.rehearsal import rehearse_one
from assay.cli.terminal import echo, echo_json
from assay.core.events import When
from assay.core.text_table import align_rows

if TYPE_CHECKING:
    from assay.config import Config


def show_layers(config: Config, as_json: bool) -> int:
    """Print the layers of the model: shapes, parameters, and the FLOPs of one forward pass."""
    report, code = rehearse_one(config)
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


def show_batch(config: Config, as_json: bool) -> int:
    """Print dtypes and shapes of one batch at each stage of a training step."""
    report, code = rehearse_one(config)
    if as_json:
        echo_json([asdict(stage) for stage in report.stages])
    elif report.stages:
        echo("\n".join(align_rows([(it.name, it.kind, it.gives) for it in report.stages])))
    return code


def show_callbacks(config: Config, as_json: bool) -> int:
    """Print the callbacks of a config's run in the order of their calls."""
    from assay.compose import listeners

    found = [(it.event, _period(it.when), it.priority, it.name) for it in listeners(config)]
    heads = ("event", "when", "priority", "handler")
    if as_json:
        echo_json([dict(zip(heads, row, strict=True)) for row in found])
        return 0
    echo(f"{heads[0]:<16}  {heads[1]:<12}  {heads[2]:>8}  {heads[3]}")
    for event, when, priority, name in found:
        echo(f"{event:<16}  {when:<12}  {priority:>8}  {name}")
    return 0


def show_loading(config: Config, as_json: bool) -> int:
    """Print batches a second of `data.train`, on a CUDA machine with and without pinned memory."""
    from assay.compose import bench_data

    found = bench_data(config)
    if as_json:
        echo_json([asdict(each) for each in found])
        return 0
    for each in found:
        pinned = {None: "pinned: no CUDA", True: "pinned", False: "not pinned"}[each.pinned]
        locked = f", {each.batch_bytes / 2**20:.1f} MiB a batch" if each.pinned is not False else ""
        by = "its own loader" if each.workers is None else f"workers {each.workers}"
        rate = f"{each.batches_per_s:,.1f} batches/s" if each.batches_per_s else "one batch"
        echo(f"{by:<14}  {pinned:<15}  {rate}, first in {each.first_batch_s:.2f} s{locked}")
    return 0


VIEWS = {
    "layers": show_layers,
    "batch": show_batch,
    "callbacks": show_callbacks,
    "loading": show_loading,
}


def _period(when: When) -> str:
    """Describe the period of a handler, or name the condition that decides each time anew."""
    return str(when) if type(when).__str__ is not object.__str__ else f"as {type(when).__name__}"
