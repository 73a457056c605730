"""Rehearsals on the command line: their options, and their report on a terminal."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from assay.cli.terminal import echo, paint, use_color, width
from assay.core.errors import InputError, did_you_mean
from assay.core.formatting import count, duration, size
from assay.core.schema import parse_size_bytes
from assay.core.sections import PARALLEL_AXES
from assay.core.terminal import visible
from assay.formats.rehearsal import AxisTraffic, Finding, PeakMemory, PipelineRank, Rehearsal

if TYPE_CHECKING:
    from assay.compose import Launch
    from assay.compose.rehearsal import RehearsalRequest
    from assay.config import Config

_NAME = 13
_RUNGS = {
    "fake": "on fake tensors",
    "converted": "on fake tensors, after the model was built for real",
    "real": "for real on the CPU",
    "unchecked": "not possible",
}


def rehearsal_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say under which conditions a step is rehearsed."""
    for option in reversed(
        (
            click.option(
                "--rehearse",
                is_flag=True,
                help="Try one step without its memory: shapes, dtypes, labels, memory, FLOPs.",
            ),
            click.option(
                "--layout",
                metavar="data=8,tensor=4",
                help="Rehearse one rank of this layout, in place of [parallel].",
            ),
            click.option(
                "--memory",
                metavar="80GB",
                help="Memory of one device. A step has to fit, and the largest batch is told.",
            ),
            click.option(
                "--bandwidth",
                metavar="data=25GB,disk=2GB",
                help="Bytes a second along an axis of the layout, and to the disk: times are told.",
            ),
            click.option(
                "--device",
                help="The device of the run, which has to be here; of a rehearsal it need not.",
            ),
            click.option(
                "--batch",
                metavar="SHAPES",
                default="",
                help="Declare a batch in place of the data: '(float32 [64, 3, 32, 32], int64 [64]"
                " < 10)'.",
            ),
        )
    ):
        command = option(command)
    return command


def request_of(
    memory: str | None, device: str | None, batch: str, bandwidth: str | None
) -> RehearsalRequest:
    """Return the conditions that the options describe. InputError for what cannot be read."""
    from assay.compose.rehearsal import RehearsalRequest

    try:
        memory_bytes = parse_size_bytes(memory) if memory is not None else None
    except ValueError as error:
        raise InputError(f"--memory: {error}.", fix="--memory 80GB") from error
    bandwidths = {}
    for name, text in _pairs("--bandwidth", bandwidth, (*PARALLEL_AXES, "disk")):
        try:
            bandwidths[name] = parse_size_bytes(text)
        except ValueError as error:
            raise InputError(f"--bandwidth: {error}.", fix="--bandwidth data=25GB") from error
    return RehearsalRequest(
        device=device, memory_bytes=memory_bytes, batch=batch, bandwidths=bandwidths
    )


def layout_overrides(layout: str | None) -> list[str]:
    """Return the overrides that replace the axes of [parallel] by `data=8,tensor=4`."""
    if layout is None:
        return []
    sizes = dict.fromkeys(PARALLEL_AXES, "1")
    for axis, ranks in _pairs("--layout", layout, PARALLEL_AXES):
        if not ranks.isdecimal() or not int(ranks):
            raise InputError(f"--layout: {axis!r} has no size.", fix="--layout data=8,tensor=4")
        sizes[axis] = ranks
    return [f"parallel.{axis}={ranks}" for axis, ranks in sizes.items()]


def _pairs(option: str, text: str | None, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the parts of `data=8,tensor=4`; InputError for a name that is none of `names`."""
    for part in text.split(",") if text else ():
        name, _, value = part.strip().partition("=")
        if name not in names:
            fix = did_you_mean(name, names) or f"axes are {', '.join(names)}"
            raise InputError(f"{option}: {name!r} is no axis.", fix=fix)
        yield name, value


def rehearse_first(configs: Sequence[Config], launch: Launch) -> int:
    """Rehearse each config in an OS process of its own, print the reports; the exit code."""
    from assay.compose.examination import rehearse_apart
    from assay.compose.rehearsal import is_first_rank

    if not is_first_rank():
        return 0
    for config in configs:
        report = rehearse_apart(config, launch)
        echo("\n".join(rehearsal_lines(report, color=use_color(sys.stderr))), err=True)
        if report.failures:
            return InputError.exit_code
    return 0


def rehearse_one(config: Config) -> tuple[Rehearsal, int]:
    """Rehearse the config that a command was given; the report and the exit code.

    What ends a step is printed: the report then is about the part before it.
    """
    from assay.compose.rehearsal import RehearsalRequest, rehearse

    report = rehearse(config, RehearsalRequest(device="cpu"))
    columns = min(width(sys.stderr) or 80, 100)
    color = use_color(sys.stderr)
    for finding in report.findings:
        if finding.is_failure or not report.memory:
            echo("\n".join(_finding(finding, columns, color)), err=True)
    return report, InputError.exit_code if report.failures else 0


def rehearsal_lines(report: Rehearsal, *, color: bool) -> Iterator[str]:
    """Yield the report as text: what was found, what it needs, what could not be tried."""
    columns = min(width(sys.stdout) or 80, 100)
    for finding in report.failures:
        yield from _finding(finding, columns, color)
        yield ""
    style = "red bold" if report.failures else "green bold"
    device = f" for {report.device}" if report.rung in ("fake", "converted") else ""
    head = f"{_RUNGS[report.rung]}{device}, {duration(report.seconds)}"
    yield f"{paint('rehearsed', style, on=color)}  {head}"
    for name, text in _facts(report):
        yield from _fact(name, text, columns)
    for finding in report.unchecked:
        yield ""
        yield from _finding(finding, columns, color)


def _facts(report: Rehearsal) -> Iterator[tuple[str, str]]:
    if report.layout:
        ranks = " x ".join(f"{axis} {count}" for axis, count in report.layout.items())
        is_one = "one pipeline" if report.ranks else "one rank"
        yield "layout", f"{ranks}; what follows is for {is_one}, the first"
    if report.batch:
        yield "batch", report.batch
        whole = f", {report.micro_batches} of them in a step" if report.micro_batches > 1 else ""
        yield "", f"{count(report.samples, 'sample')}{whole}"
    if report.parameters:
        share = "all" if report.trained == report.parameters else f"{report.trained:,}"
        yield "parameters", f"{report.parameters:,}, {share} trained"
        if report.left_out:
            yield "", f"{report.left_out:,} got no gradient in this step; with them it needs more"
    if report.flops_per_step:
        yield "FLOPs", f"{_scale(report.flops_per_step)} in a step: forward and backward"
    for rank in report.ranks:
        yield from _rank(rank)
    if report.bubble:
        yield "bubble", f"{report.bubble:.0%} of a step: a rank waits for the other stages"
    for traffic in report.traffic:
        yield "sends", _traffic(traffic)
    if report.memory is not None and not report.ranks:
        yield from _memory("memory", report.memory)
    if report.evaluation is not None and report.evaluation.most_bytes > _peak(report.memory):
        yield from _memory("evaluation", report.evaluation)
    if report.largest is not None:
        yield "largest", _largest(report)
    if report.disk is not None:
        disk = report.disk
        each = size(disk.checkpoint_bytes)
        needed = size(disk.needed_bytes)
        short = "" if disk.needed_bytes <= disk.free_bytes else ": too little"
        free = f"{size(disk.free_bytes)} free{short}"
        took = "" if disk.seconds is None else f", {duration(disk.seconds)} to write"
        yield "checkpoints", f"{each} each{took}, {disk.checkpoints} at once: {needed}; {free}"


def _rank(rank: PipelineRank) -> Iterator[tuple[str, str]]:
    stages = f"stage{'s' if rank.stages[1:] else ''} {', '.join(map(str, rank.stages))}"
    yield f"rank {rank.rank}", f"{stages}: {', '.join(rank.parts)}; {rank.parameters:,} parameters"
    if rank.memory is not None:
        yield from _memory("", rank.memory)
    for traffic in rank.traffic:
        yield "", f"sends {_traffic(traffic)}"


def _traffic(traffic: AxisTraffic) -> str:
    calls = count(traffic.collectives, "collective")
    seconds = traffic.seconds
    took = "" if seconds is None else f": {_transfer_time(seconds)}"
    return f"{size(traffic.sent_bytes)} in a step along {traffic.axis}, {calls}{took}"


def _transfer_time(seconds: float) -> str:
    """Return a time as text, in milliseconds where it is short."""
    if seconds >= 1:
        return duration(seconds)
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else "below 1 ms"


def _peak(memory: PeakMemory | None) -> int:
    return memory.most_bytes if memory is not None else 0


def _memory(name: str, memory: PeakMemory) -> Iterator[tuple[str, str]]:
    yield name, f"{size(memory.most_bytes)} at most for this batch: {memory.where}"
    shares = {
        "weights": memory.weights_bytes,
        "gathered weights": memory.gathered_bytes,
        "gradients": memory.gradients_bytes,
        "optimizer": memory.optimizer_bytes,
        "activations": memory.activations_bytes,
        "batch": memory.batch_bytes,
        "workspaces": memory.workspace_bytes,
    }
    yield "", ", ".join(f"{use} {size(count)}" for use, count in shares.items() if count)


def _largest(report: Rehearsal) -> str:
    largest = report.largest
    assert largest is not None
    room = f"{size(largest.usable_bytes)}, 90 % of the memory"
    if not largest.samples:
        return f"no batch fits into {room}"
    return f"{count(largest.samples, 'sample')} fit into {room}: {size(largest.peak_bytes)}"


def _finding(finding: Finding, columns: int, color: bool) -> Iterator[str]:
    style = "red bold" if finding.is_failure else "yellow bold"
    text = [
        part
        for line in finding.message.splitlines()  # as two signatures, one below the other
        for part in textwrap.wrap(visible(line.strip()), columns - 2, break_long_words=False)
    ] or [""]
    first = f"{paint(finding.kind, style, on=color)}  {text[0]}"
    yield first
    yield from (f"  {line}" for line in text[1:])
    place = f"{_short(finding.source)}:{finding.line}  {finding.code}" if finding.line else ""
    for name, value in (
        ("in", finding.module + _stage(finding)),
        ("given", finding.given),
        ("at", place),
        ("fix", finding.fix),
    ):
        if value:
            yield from _fact(f"{name}:", value, columns, column=7)


def _stage(finding: Finding) -> str:
    return "" if finding.stage is None else f", stage {finding.stage} of the pipeline"


def _fact(name: str, text: str, columns: int, *, column: int = _NAME) -> Iterator[str]:
    yield from textwrap.wrap(
        visible(text),
        columns,
        initial_indent=f"  {name:<{column}}",
        subsequent_indent=" " * (column + 2),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _scale(count: float) -> str:
    """Return a count with three digits and the prefix of its magnitude.

    >>> _scale(1.5e12), _scale(960)
    ('1.5 T', '960')
    """
    units = ["", "K", "M", "G", "T", "P"]
    while count >= 999.5 and units[1:]:
        count /= 1000
        units.pop(0)
    return f"{count:.3g} {units[0]}".rstrip()


def _short(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
