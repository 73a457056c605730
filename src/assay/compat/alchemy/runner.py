"""Runs of alchemy: `run(cfgs)` with one mapping or many, its runners, and `prepare_cfg`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import tomlkit

from assay.build import resolve
from assay.compat.alchemy.registrable import Registrable
from assay.compat.names import older_name
from assay.compose import run as run_configs
from assay.compose.launch import RunResult
from assay.core.errors import InputError

Devices = Sequence[int] | int | None
"""Numbers of GPUs; -1 is the CPU."""


class AlchemyRunner(Registrable):
    """Logic of one run: a class of the user writes `run()`, which may call `super().run()`.

    `data` has the switches of the launch, and after the run `record_dir` and `checkpt_dir`.
    """

    runner: ClassVar[str] = "train"

    def __init__(self, cfg: Mapping[str, Any], **launch: Any) -> None:
        self.cfg = cfg
        self.launch = launch
        self.data: dict[str, Any] = {name: launch.get(name) for name in ("debug", "no_file")}

    def run(self) -> RunResult:
        """Train the config; return the result, or raise what ended it."""
        result: RunResult = run_configs({**self.cfg, "runner": self.runner}, **self.launch)
        if result.record_dir is not None:
            self.data["record_dir"] = result.record_dir
            self.data["checkpt_dir"] = result.record_dir / "checkpt"
        return result


class AlchemyTester(AlchemyRunner):
    """Logic of a test: it evaluates, and builds neither optimizer nor schedule."""

    runner = "test"


def prepare_cfg(cfg: str | os.PathLike[str] | Mapping[str, Any]) -> Any:
    """Return a config to edit: a document read from a TOML file, or a copy of a mapping."""
    if isinstance(cfg, str | os.PathLike):
        return tomlkit.parse(Path(cfg).read_text(encoding="utf-8"))
    return deepcopy(cfg)


def run(
    cfgs: Mapping[str, Any] | Sequence[Any] | str | os.PathLike[str],
    device: Devices = None,
    user_dir: str = "src",
    desc: str = "",
    debug: bool = False,
    no_file: bool = False,
) -> list[Any]:
    """Run configs in order; return a result for each, or the exception that ended it.

    The folder that holds `user_dir` is searched too, as in `type = "src.task.Task"`. A config whose
    `runner` is a class of the user is run by it, in this process; its result is what `run` returns.
    """
    folders = [path for path in (Path(user_dir).resolve().parent, Path(user_dir)) if path.is_dir()]
    configs: list[Any] = list(cfgs) if isinstance(cfgs, list | tuple) else [cfgs]
    launch: dict[str, Any] = {
        "device": _name_devices(device),
        "user_dir": folders,
        "desc": desc,
        "debug": debug,
        "no_file": no_file,
    }
    own = [_own_runner(config, folders) for config in configs]
    if not any(own):
        results: list[RunResult] = run_configs(configs, check=False, **launch)
        return [result if result.exception is None else result.exception for result in results]
    return [
        _run_own(kind, prepare_cfg(config), launch) if kind else run([config], **launch)[0]
        for kind, config in zip(own, configs, strict=True)
    ]


def _run_own(kind: type[AlchemyRunner], config: Any, launch: Mapping[str, Any]) -> Any:
    """Return what a runner of the user returns, or the exception that it raised."""
    try:
        return kind(config, **launch).run()
    except Exception as error:  # a failure must not disturb the other runs
        return error


def _own_runner(config: Any, folders: Sequence[Path]) -> type[AlchemyRunner] | None:
    """Return the class of the user that a config names as its runner, else None."""
    is_file = isinstance(config, str | os.PathLike)
    if is_file and not (Path(config).suffix == ".toml" and Path(config).is_file()):
        return None
    name = str(prepare_cfg(config).get("runner", ""))
    if "." not in name or older_name(name) is not None:
        return None
    kind = resolve(name, user_dirs=folders)
    if not (isinstance(kind, type) and issubclass(kind, AlchemyRunner)):
        raise InputError(f"The runner {name} is no AlchemyRunner.", fix="Derive it from that.")
    return kind


def _name_devices(device: Devices) -> Any:
    """Return the devices by their names here: -1 is the CPU."""
    numbers = [device] if isinstance(device, int) else device
    return "cpu" if numbers is not None and list(numbers) == [-1] else device
