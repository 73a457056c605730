"""`assay bench`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from assay.cli.launch import split_arguments
from assay.cli.one_config import config_to_open
from assay.cli.permission import permission, say, trust_option
from assay.cli.terminal import echo, echo_json
from assay.core.errors import InputError


@click.group(name="bench", help="Measure how fast the data of a config is loaded.")
def command() -> None:
    """Group of measurements."""


@command.command(
    name="data", help="Batches a second of data.train, with and without pinned memory."
)
@config_to_open
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    help="How long each is measured; 5.",
)
@click.option(
    "--workers",
    "counts",
    help="Numbers of workers to compare, as in 0,2,4. Left out: that of the config.",
)
@trust_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def data(
    arguments: tuple[str, ...], seconds: float, counts: str | None, as_json: bool, trust: bool
) -> int:
    files, overrides = split_arguments(arguments)
    if len(files) != 1:
        raise InputError(
            "`assay bench data` looks at one config.", fix="assay bench data digits.toml"
        )
    workers = _numbers(counts)
    from assay.compose import bench_data, open_given

    how: dict[str, Any] = {"use": "load its data", "trust": permission(trust), "tell": say}
    config = open_given(files[0], overrides, **how)
    found = bench_data(config, seconds=seconds, workers=workers)
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


def _numbers(text: str | None) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        counts = (-1,)
    if any(count < 0 for count in counts):
        raise InputError(
            f"--workers takes numbers of workers, not `{text}`.", fix="--workers 0,2,4"
        )
    return counts
