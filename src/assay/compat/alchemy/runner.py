"""Runs of alchemy: `run(cfgs)` with one mapping or many, and `prepare_cfg`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import tomlkit

from assay.compose import run as run_configs
from assay.compose.launch import RunResult


def prepare_cfg(cfg: str | os.PathLike[str] | Mapping[str, Any]) -> Any:
    """Return a config to edit: a document read from a TOML file, or a copy of a mapping."""
    if isinstance(cfg, str | os.PathLike):
        return tomlkit.parse(Path(cfg).read_text(encoding="utf-8"))
    return deepcopy(cfg)


def run(
    cfgs: Mapping[str, Any] | Sequence[Any] | str | os.PathLike[str],
    device: Sequence[int] | int | None = None,
    user_dir: str = "src",
    desc: str = "",
    debug: bool = False,
    no_file: bool = False,
) -> list[RunResult | BaseException]:
    """Run configs in order; return a result for each, or the exception that ended it.

    The folder that holds `user_dir` is searched too, as in `type = "src.task.Task"`.
    """
    folders = [path for path in (Path(user_dir).resolve().parent, Path(user_dir)) if path.is_dir()]
    configs: list[Any] = list(cfgs) if isinstance(cfgs, list | tuple) else [cfgs]
    results: list[RunResult] = run_configs(
        configs,
        device=device,
        user_dir=folders,
        desc=desc,
        debug=debug,
        no_file=no_file,
        check=False,
    )
    return [result if result.exception is None else result.exception for result in results]
