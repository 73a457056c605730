"""What a benchmark prints: figures with their targets, as a table or as JSON."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from assay.core.version import version


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number; `at_most` is its limit, None for a number that is only information."""

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.at_most is None:
            return ""
        return "ok" if self.value <= self.at_most else "MISSED"


def middle(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Of each figure that several runs have measured the median, with the range."""
    return [_middle(samples) for samples in zip(*runs, strict=True)]


def _middle(samples: Sequence[Figure]) -> Figure:
    values = sorted(sample.value for sample in samples)
    spread = f"{values[0]:.3f} to {values[-1]:.3f}" if len(values) > 1 else ""
    return replace(samples[0], value=median(values), note=spread)


def options(
    about: str,
    argv: Sequence[str] | None = None,
    *,
    parts: Sequence[str] = (),
    has_device: bool = False,
) -> argparse.Namespace:
    """`quick` and `as_json`, from the command line; `only`, a list, where there are `parts`.

    `device` where a benchmark can be of another one than the CPU.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if parts:
        parser.add_argument(
            "--only", action="append", choices=parts, help="this part; may be repeated"
        )
    if has_device:
        parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1; cpu if left out")
    parser.add_argument(
        "--quick", action="store_true", help="a few seconds: whether it works, not how fast it is"
    )
    parser.add_argument(
        "--json", dest="as_json", action="store_true", help="print the figures as JSON"
    )
    return parser.parse_args(argv)


def machine() -> dict[str, str | int]:
    """Where the figures come from; torch's version without importing it."""
    return {
        "assay": version(),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
    }


def show(
    title: str, figures: Iterable[Figure], where: dict[str, str | int], *, as_json: bool
) -> None:
    """Print everything that was measured."""
    figures = list(figures)
    if as_json:
        measured = {figure.name: figure.value for figure in figures}
        targets = {figure.name: figure.at_most for figure in figures if figure.at_most is not None}
        notes = {figure.name: figure.note for figure in figures if figure.note}
        print(
            json.dumps(
                {"machine": where, "measured": measured, "targets": targets, "notes": notes},
                indent=1,
            )
        )
        return
    width = max(len(figure.name) for figure in figures)
    print(f"{title}\n{', '.join(f'{name} {value}' for name, value in where.items())}\n")
    print(f"  {'':{width}}  {'measured':>10} {'':4}  target")
    for figure in figures:
        target = "" if figure.at_most is None else f"<= {figure.at_most:g}"
        told = f"{_number(figure.value):>10} {figure.unit:4}  {target:10} {figure.verdict:6} {figure.note}"
        print(f"  {figure.name:{width}}  {told}".rstrip())
    print()


def _number(value: float) -> str:
    if value == int(value):
        return f"{int(value)}"
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
