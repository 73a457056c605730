"""Config that a script reads and files that it saves, for the record of its writer.

Only under `python -m assay.compat`: the arguments of argparse, sections of configparser, JSON files
that are named as configs, and the files of `torch.save`. A script that trains without any writer
gets a record, too.
"""

from __future__ import annotations

import argparse
import configparser
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from assay.record.recorder import RunRecorder
from assay.record.start import Run
from assay.script import is_recording, start

_CONFIG_NAME = re.compile(r"(?i)conf|cfg|param|setting|option|hyper|args")
_watched: dict[str, Any] | None = None
"""Config of the script that runs here by what was read so far; None where none is run."""


@contextmanager
def watch_script() -> Iterator[None]:
    """Note what the script of this block reads as its config."""
    global _watched
    _watched = {}
    with (
        _replace(argparse.ArgumentParser, "parse_known_args", _note_arguments),
        _replace(configparser.RawConfigParser, "read", _note_sections),
        _replace(json, "load", _note_json),
    ):
        try:
            yield
        finally:
            _watched = None


def config_of_script() -> dict[str, Any]:
    """Return what the script has read as its config until now."""
    return dict(_watched or {})


@contextmanager
def record_training(tag: str) -> Iterator[None]:
    """Begin a record with the first step of an optimizer, or the first weights that are saved.

    Nothing begins where the script records its run itself, and on ranks but the first.
    """
    torch: Any = import_module("torch")
    optimizer: Any = import_module("torch.optim.optimizer")
    save = torch.save

    def begin(*_: Any) -> None:
        handle.remove()
        if not is_recording() and _is_first_rank():
            run = start(tag=tag, config=config_of_script())
            run.attach(SavedFiles(run))

    @wraps(save)
    def save_and_begin(obj: Any, *given: Any, **named: Any) -> Any:
        if is_recording() or not _has_weights(obj, torch):
            return save(obj, *given, **named)
        begin()
        again = torch.save if is_recording() else save  # which keeps the file, too
        return again(obj, *given, **named)

    handle = optimizer.register_optimizer_step_pre_hook(begin)
    torch.save = save_and_begin
    try:
        yield
    finally:
        handle.remove()
        if torch.save is save_and_begin:
            torch.save = save


def _is_first_rank() -> bool:
    """Return whether this process is the only one that trains, or the first of them."""
    distributed: Any = import_module("torch.distributed")
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()) == 0
    return os.environ.get("RANK", "0") == "0"


def _has_weights(obj: Any, torch: Any) -> bool:
    """Return whether a model, its state, or a dictionary with one is saved: not just features."""
    if isinstance(obj, Mapping):
        return any(torch.is_tensor(each) or _has_weights(each, torch) for each in obj.values())
    return isinstance(obj, torch.nn.Module)


class SavedFiles:
    """Part of a record that keeps what the script saves by `torch.save` while it is written."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def attach(self, recorder: RunRecorder) -> None:
        if _watched is None:
            return
        torch: Any = import_module("torch")
        save = torch.save

        @wraps(save)
        def save_and_keep(obj: Any, f: Any, *given: Any, **named: Any) -> Any:
            returned = save(obj, f, *given, **named)
            if isinstance(f, str | os.PathLike):
                self.run.artifact(os.fspath(f), f"saved/{Path(f).name}")
            return returned

        torch.save = save_and_keep

        def put_back() -> None:
            torch.save = save

        recorder.each_second(_nothing, at_end=put_back)


@contextmanager
def _replace(owner: Any, name: str, note: Any) -> Iterator[None]:
    """Let `note` see the arguments and the result of a function while the block runs."""
    original = getattr(owner, name)

    @wraps(original)
    def call(*given: Any, **named: Any) -> Any:
        returned = original(*given, **named)
        if _watched is not None:
            note(_watched, given, returned)
        return returned

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _note_arguments(config: dict[str, Any], given: Any, returned: Any) -> None:
    config.update(vars(returned[0]))


def _note_sections(config: dict[str, Any], given: Any, returned: Any) -> None:
    parser = given[0]
    config.update({name: dict(parser.items(name, raw=True)) for name in parser.sections()})


def _note_json(config: dict[str, Any], given: Any, returned: Any) -> None:
    name = getattr(given[0], "name", "") if given else ""
    is_config = isinstance(name, str) and _CONFIG_NAME.search(Path(name).name)
    if is_config and isinstance(returned, Mapping):
        config.update(returned)


def _nothing() -> None:
    """Do nothing each second: only the end of the record matters."""
