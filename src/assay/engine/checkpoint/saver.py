"""Checkpoints of one folder: written aside, synced, renamed last; never overwritten."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import string
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from assay.core import manifest as manifests
from assay.core.directory import make_directory
from assay.core.errors import AssayError, CheckpointError, InputError
from assay.core.manifest import Checkpoint, Kind, Manifest, folder_of_step
from assay.engine.checkpoint import folder as folders
from assay.engine.checkpoint import together
from assay.engine.checkpoint.codec import Encoded, encode
from assay.engine.checkpoint.folder import Contents, Where, load, separate, sync_folder
from assay.engine.checkpoint.tensor_file import Staging
from assay.engine.checkpoint.together import Writers
from assay.engine.checkpoint.weights import load_into

Existing = Literal["keep", "replace", "refuse"]
Name = str | int | Path | Checkpoint | Manifest
WHOLE = "whole"
"""The one part of a state that is no table of parts."""

_ROTATED = ("checkpoint", "best")
_SAFE_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MOST_PARTS = 64


@dataclass(frozen=True, slots=True)
class Skipped:
    """Folder that is no usable checkpoint, with the reason."""

    name: str
    why: str


class Saver:
    """Writer and reader of the checkpoints of one folder; keeps `keep` of kind "checkpoint".

    Usable alone: `Saver("ckpt").save_checkpoint(10, {"model": model, "epoch": 3}, {"loss": 0.5})`.
    `name` names the folders of `save_checkpoint`, as in "m-{time}-{loss:.4f}": of time, step, epoch
    and what is in the info. Where a state is divided among `writers`, all of them save, and what
    one raises all raise; the first alone does the rest.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        keep: int = 3,
        name: str = "",
        run: str = "",
        attempt: int = 1,
        writers: Writers | None = None,
    ) -> None:
        if keep < 1:
            raise InputError(f"keep is {keep}; it must be at least 1.")
        self.folder = Path(folder)
        self.keep = keep
        self.name = name
        self.run = run
        self.attempt = attempt
        self.writers = writers
        # One thread writes at a time: the unfinished folder of another would look abandoned.
        self._lock = threading.RLock()

    @property
    def is_first(self) -> bool:
        """Return True if this process publishes and rotates checkpoints."""
        return self.writers is None or self.writers.is_first

    # ------------------------------------------------------------------------------------ any state

    def save_checkpoint(
        self, step: int, state: Any, info: Mapping[str, Any] | None = None
    ) -> Manifest:
        """Keep a state, and no more than the newest `keep` of these. One of that name is replaced.

        `state` is anything made of plain data, tensors and arrays; modules, optimizers and whatever
        else has a `state_dict` may stand in a table for it. Raises CheckpointError naming what
        cannot be kept.
        """
        name = _filled(self.name, step, info or {}) if self.name else folder_of_step(step)
        return self._save_any(step, state, info, kind="checkpoint", name=name, existing="replace")

    def save_keypoint(
        self, step: int, state: Any, info: Mapping[str, Any] | None = None
    ) -> Manifest:
        """Keep a state for good. One of that step is replaced."""
        return self._save_any(
            step, state, info, kind="keypoint", name=f"keypoint-{step:09d}", existing="replace"
        )

    def save_model(
        self,
        step: int,
        state: Any,
        info: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        overwrite: bool = False,
    ) -> Manifest:
        """Save a finished model for good; CheckpointError if it exists, unless `overwrite`."""
        existing: Existing = "replace" if overwrite else "refuse"
        return self._save_any(
            step, state, info, kind="model", name=name or f"model-{step:09d}", existing=existing
        )

    def _save_any(
        self,
        step: int,
        state: Any,
        info: Mapping[str, Any] | None,
        *,
        kind: Kind,
        name: str,
        existing: Existing,
    ) -> Manifest:
        return self.save(
            _parts_of(state), Where(step=step), kind=kind, info=info, name=name, existing=existing
        )

    def find_checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints that rotation may delete, oldest first."""
        return [
            each
            for each in self._complete()
            if each.manifest is not None and each.manifest.kind in _ROTATED
        ]

    def find_keypoints(self) -> list[Checkpoint]:
        return [
            each
            for each in self._complete()
            if each.manifest is not None and each.manifest.kind == "keypoint"
        ]

    def find_models(self) -> list[Checkpoint]:
        return [
            each
            for each in self._complete()
            if each.manifest is not None and each.manifest.kind == "model"
        ]

    # -------------------------------------------------------------------------------------- writing

    def save(
        self,
        parts: Mapping[str, Any],
        where: Where,
        *,
        kind: Kind = "checkpoint",
        info: Mapping[str, Any] | None = None,
        name: str = "",
        existing: Existing = "keep",
        final: bool = False,
    ) -> Manifest:
        """Write one checkpoint; when this returns it survives power loss.

        A complete one of that name is kept as it is by default; only its kind changes when rotation
        is to leave it alone from now on. Anything else of that name is renamed. `final`: the name
        "final" means this one. Raises CheckpointError when a value cannot be kept or the disk
        refuses; nothing half-made stays.
        """
        return self.prepared(
            parts, where, kind=kind, info=info, name=name, existing=existing, final=final
        )()

    def prepared(
        self,
        parts: Mapping[str, Any],
        where: Where,
        *,
        kind: Kind = "checkpoint",
        info: Mapping[str, Any] | None = None,
        name: str = "",
        existing: Existing = "keep",
        final: bool = False,
        staging: Staging | None = None,
    ) -> Callable[[], Manifest]:
        """Check and encode the state now; return the function that writes it.

        Errors about the state are raised here, errors of the disk by the returned function.

        With `staging` the tensors are copied now, and may change before the call; they lie in
        `staging` until then.
        """
        name = name or folder_of_step(where.step)
        _check_names(name, parts)
        try:
            encoded = {part: encode(state, path=part) for part, state in parts.items()}
        except CheckpointError as error:
            if self.writers is None:
                raise
            return partial(_refused, self.writers, str(error))
        on_host = _copied(encoded, staging) if staging is not None else _on_host(encoded)
        contents = Contents(
            parts=on_host,
            where=where,
            kind=kind,
            name=name,
            run=self.run,
            attempt=self.attempt,
            info=_plain(info or {}),
        )
        if self.writers is not None:
            writers = self.writers
            return lambda: self._write_together(writers, contents, existing, final)
        return lambda: self._write(contents, existing, final)

    def promote(self, name: str, kind: Kind, *, final: bool = False) -> Manifest:
        """Exempt a complete checkpoint from rotation, or make it final."""
        there = manifests.checkpoint_in(self.folder / name)
        if there.manifest is None or there.why:
            raise CheckpointError(
                f"{name} was not made a {'final checkpoint' if final else kind}: it is not there."
            )
        with self._lock:
            return self._keep(there.manifest, kind, final)

    def set_best(
        self, name: str, *, metric: str, mode: Literal["min", "max"], value: float
    ) -> None:
        """Point "best" at a checkpoint; it stays until another one is better."""
        with self._lock:
            manifests.point(self.folder, "best", name, metric=metric, mode=mode, value=value)
            self._rotate()

    def set_aside(self, after_step: int) -> list[str]:
        """Rename checkpoints of later steps, so that a resumed run can write its own."""
        moved = []
        for each in manifests.checkpoints(self.folder):
            if each.step is not None and each.step > after_step and not each.is_left:
                place = manifests.aside(each.path)
                each.path.rename(place)
                moved.append(place.name)
        for pointer in manifests.POINTERS:
            name = manifests.pointed(self.folder, pointer)
            if name and not (self.folder / name).is_dir():
                (self.folder / f"{pointer}.json").unlink(missing_ok=True)
        return moved

    # -------------------------------------------------------------------------------------- reading

    def best(self) -> str | None:
        """Return the name of the best checkpoint, or None."""
        return manifests.pointed(self.folder, "best") or None

    def complete(self) -> tuple[list[Manifest], list[Skipped]]:
        """Return the complete checkpoints, oldest first, and the unusable folders."""
        found, skipped = [], []
        for each in manifests.checkpoints(self.folder):
            if each.manifest is not None and not each.why:
                found.append(each.manifest)
            elif not each.is_left and (
                each.manifest is not None or each.step is not None or _is_begun(each)
            ):
                skipped.append(Skipped(each.name, each.why.removesuffix(".")))
        return found, skipped

    def find(self, name: Name = "latest") -> Manifest:
        """Return a checkpoint by "latest", "best", "final", step, -1 (newest), folder name or path.

        CheckpointError lists what there is.
        """
        return self._found(name)[1]

    def load(
        self,
        name: Name = "latest",
        *,
        parts: tuple[str, ...] | None = None,
        verify: bool = True,
        into: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return a saved state: a table by part, unless it was no table. `name` as for `find`.

        `parts` are all that is read. `into` has the objects that are given their parts: by their
        `_load_state_dict` if they have one, else by `load_state_dict`. `verify` compares every file
        with its digest first. Raises CheckpointError naming the damaged file.
        """
        loaded = load(self._found(name)[0], parts=parts, verify=verify)
        for part, owner in (into or {}).items():
            if part not in loaded:
                fix = f"It has: {', '.join(loaded)}."
                raise CheckpointError(f"The checkpoint has no part {part!r}.", fix=fix)
            load_into(owner, loaded[part])
        return loaded[WHOLE] if set(loaded) == {WHOLE} else loaded

    def newest(self, *, verify: bool = True) -> tuple[Manifest, dict[str, Any], list[Skipped]]:
        """Return the newest readable checkpoint, its parts, and newer unreadable ones.

        A model alone is none from which a run can go on. CheckpointError when none can be read.
        """
        found, skipped = self.complete()
        for manifest in reversed([each for each in found if each.kind != "model"]):
            try:
                return manifest, load(self.folder / manifest.name, verify=verify), skipped
            except CheckpointError as error:
                skipped.append(Skipped(manifest.name, error.what.removesuffix(".")))
        lost = "".join(f" {each.name}: {each.why}." for each in skipped)
        raise CheckpointError(
            f"There is no checkpoint that can be read.{lost}", where=str(self.folder)
        )

    # --------------------------------------------------------------------------------------- inside

    def _complete(self) -> list[Checkpoint]:
        return [each for each in manifests.checkpoints(self.folder) if not each.why]

    def _found(self, name: Name) -> tuple[Path, Manifest]:
        if isinstance(name, Checkpoint | Manifest):
            name = name.name
        if isinstance(name, Path) or (
            isinstance(name, str) and len(Path(name).parts) > 1 and Path(name).exists()
        ):
            return Path(name), manifests.read(Path(name))
        complete, text = self._complete(), str(name)
        found = manifests.named(complete, text, self.folder)
        if found is not None and found.manifest is not None:
            return found.path, found.manifest
        lost = "".join(f" {each.name} is no checkpoint: {each.why}." for each in self.complete()[1])
        steps = ", ".join(str(each.step) for each in complete)
        names = ", ".join(
            each.name for each in complete if each.name != folder_of_step(each.step or 0)
        )
        fix = f"There are steps {steps}" if complete else "There is none yet"
        fix += f", and {names}." if names else "."
        raise CheckpointError(
            f"There is no checkpoint {text!r}.{lost}", where=str(self.folder), fix=fix
        )

    def _write(self, contents: Contents, existing: Existing, final: bool) -> Manifest:
        with self._lock:
            there = manifests.checkpoint_in(self.folder / contents.name)
            if there.manifest is not None and not there.why:
                if existing == "refuse":
                    fix = "Save it under another name, or with overwrite=True."
                    raise CheckpointError(
                        f"There is a {there.manifest.kind} {contents.name!r} already.", fix=fix
                    )
                if existing == "keep":
                    return self._keep(there.manifest, contents.kind, final)
            temporary = self.folder / f"{contents.name}{manifests.TEMPORARY}"
            try:
                # Left by a process that was killed.
                for stale in self.folder.glob(f"*{manifests.TEMPORARY}"):
                    shutil.rmtree(stale, ignore_errors=True)
                make_directory(temporary)
                manifest = folders.write(
                    temporary, contents, like=[each.path for each in self._complete()[-1:]]
                )
                self._move(temporary, there, replaced=existing == "replace")
                if final:
                    manifests.point(self.folder, "final", manifest.name)
            except OSError as error:
                raise CheckpointError(
                    f"The checkpoint of step {contents.where.step} was not written: {error}."
                ) from error
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            self._rotate(spare=manifest.name)
            return manifest

    def _write_together(
        self, writers: Writers, contents: Contents, existing: Existing, final: bool
    ) -> Manifest:
        """Write with all processes, each what it holds; an error of one is raised in all."""
        temporary = self.folder / f"{contents.name}{manifests.TEMPORARY}"
        with self._lock:
            try:
                manifest, is_kept = self._gather_parts(
                    writers, contents, existing, final, temporary
                )
            except CheckpointError as error:
                raise CheckpointError(
                    f"The checkpoint of step {contents.where.step} was not written: {error}"
                ) from error
            finally:
                if self.is_first:
                    shutil.rmtree(temporary, ignore_errors=True)
            if self.is_first and not is_kept:
                self._rotate(spare=manifest.name)
            return manifest

    def _gather_parts(
        self,
        writers: Writers,
        contents: Contents,
        existing: Existing,
        final: bool,
        temporary: Path,
    ) -> tuple[Manifest, bool]:
        """Have each process write its parts; return the manifest, and whether it was there already.

        Three rounds, after each of which all know of an error: offers, parts, publication.
        """
        head: dict[str, Any] = {}
        if self.is_first:
            head = _tried(lambda: self._begin_together(temporary, contents, existing, final))
        told = writers.gather({**head, "offer": together.offer(contents)})
        _agreed(told)
        manifest = contents.manifest([], [], layout=writers.axes)
        if told[0].get("kept"):
            return manifest, True
        folder, offers = Path(told[0]["folder"]), [each["offer"] for each in told]
        own = _tried(
            lambda: {"written": together.write_own(folder, contents, offers, writers.rank)}
        )
        told = writers.gather(own)
        _agreed(told)
        ended: dict[str, Any] = {}
        if self.is_first:
            written = [each["written"] for each in told]

            def publish() -> dict[str, Any]:
                nonlocal manifest
                like = [each.path for each in self._complete()[-1:]]
                manifest = together.publish_together(
                    temporary, contents, offers, written, axes=writers.axes, like=like
                )
                there = manifests.checkpoint_in(self.folder / contents.name)
                self._move(temporary, there, replaced=existing == "replace")
                if final:
                    manifests.point(self.folder, "final", manifest.name)
                return {}

            ended = _tried(publish)
        _agreed(writers.gather(ended))
        return manifest, False

    def _begin_together(
        self, temporary: Path, contents: Contents, existing: Existing, final: bool
    ) -> dict[str, Any]:
        there = manifests.checkpoint_in(self.folder / contents.name)
        if there.manifest is not None and not there.why:
            if existing == "refuse":
                fix = "Save it under another name, or with overwrite=True."
                raise CheckpointError(
                    f"There is a {there.manifest.kind} {contents.name!r} already.", fix=fix
                )
            if existing == "keep":
                self._keep(there.manifest, contents.kind, final)
                return {"kept": True}
        for stale in self.folder.glob(f"*{manifests.TEMPORARY}"):  # of a process that was killed
            shutil.rmtree(stale, ignore_errors=True)
        make_directory(temporary)
        return {"folder": str(temporary.resolve())}

    def _move(self, temporary: Path, there: Checkpoint, *, replaced: bool) -> None:
        """Rename a written checkpoint to its name; an older one is put aside or replaced."""
        left = None
        if there.path.exists():
            left = manifests.aside(there.path)
            there.path.rename(left)
        os.replace(temporary, there.path)
        sync_folder(self.folder)
        if left is not None and replaced and not there.why:
            shutil.rmtree(left, ignore_errors=True)

    def _keep(self, manifest: Manifest, kind: Kind, final: bool) -> Manifest:
        """Return the existing checkpoint, exempted from rotation if asked."""
        try:
            if kind not in _ROTATED and manifest.kind in _ROTATED:
                manifest = replace(manifest, kind=kind)
                manifests.write(self.folder / manifest.name, manifest)
            if final:
                manifests.point(self.folder, "final", manifest.name)
        except OSError as error:
            raise CheckpointError(f"{manifest.name} was not made a {kind}: {error}.") from error
        return manifest

    def _rotate(self, spare: str = "") -> None:
        """Delete checkpoints beyond `keep`; `spare` was just written, and may become the best."""
        final = manifests.pointed(self.folder, "final")
        found = [each.manifest for each in self._complete() if each.manifest is not None]
        counted = [each.name for each in found if each.kind == "checkpoint" and each.name != final]
        kept = {*counted[-self.keep :], spare, self.best() or "", final}
        for manifest in found:
            if manifest.kind in _ROTATED and manifest.name not in kept:
                _delete(self.folder / manifest.name)


def _tried(do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a step and return its outcome for the other processes; an error is sent to them first."""
    try:
        return do()
    except Exception as error:  # whatever it is: the others wait, and are told
        return {"error": str(error) if isinstance(error, AssayError | OSError) else repr(error)}


def _refused(writers: Writers, why: str) -> Manifest:
    """Tell the waiting processes that a value cannot be kept."""
    writers.gather({"error": why})
    raise CheckpointError(why)


def _agreed(told: Sequence[Mapping[str, Any]]) -> None:
    """CheckpointError with the first thing that one of several processes could not do."""
    for rank, each in enumerate(told):
        if "error" in each:
            raise CheckpointError(f"rank {rank}: {each['error']}" if rank else str(each["error"]))


def _parts_of(state: Any) -> dict[str, Any]:
    """Return a state as parts that can be read alone."""
    if type(state) is dict and 0 < len(state) <= _MOST_PARTS and WHOLE not in state:
        names = all(
            isinstance(key, str) and _SAFE_PART.fullmatch(key) and key != "manifest"
            for key in state
        )
        if names and not any(isinstance(value, torch.Tensor) for value in state.values()):
            return {key: _state_of(value) for key, value in state.items()}
    return {WHOLE: _state_of(state)}


def _state_of(value: Any) -> Any:
    own = getattr(value, "state_dict", None)
    return own() if callable(own) else value


def _filled(template: str, step: int, info: Mapping[str, Any]) -> str:
    """Return a name from its template; InputError for an unknown field lists the known ones."""
    values = {"time": time.strftime("%Y%m%d-%H%M%S"), "step": step, "epoch": step, **info}
    name = ""
    for text, field, form, _ in string.Formatter().parse(template):
        name += text
        if field is None:
            continue
        if field not in values:
            raise InputError(
                f"The name {template!r} wants {field!r}.", fix=f"There are: {', '.join(values)}."
            )
        try:
            name += format(values[field], form or "")
        except (TypeError, ValueError) as error:
            raise InputError(
                f"The name {template!r} cannot have {field}={values[field]!r}: {error}."
            ) from error
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", name)


def _plain(info: Mapping[str, Any]) -> dict[str, Any]:
    def number(value: Any) -> Any:
        if isinstance(value, torch.Tensor | np.generic):
            return value.item()
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")

    try:
        return dict(json.loads(json.dumps(dict(info), default=number)))
    except (TypeError, ValueError) as error:
        fix = "Give numbers and text; what is large belongs into the state."
        raise CheckpointError(
            f"The info of a checkpoint is plain data: {error}.", fix=fix
        ) from error


def _copied(parts: Mapping[str, Encoded], staging: Staging) -> dict[str, Encoded]:
    copies = staging.copy(
        {f"{part}/{name}": t for part, each in parts.items() for name, t in each.tensors.items()}
    )
    return {
        part: Encoded(
            each.tree, {name: copies[f"{part}/{name}"] for name in each.tensors}, each.boxes
        )
        for part, each in parts.items()
    }


def _on_host(parts: Mapping[str, Encoded]) -> dict[str, Encoded]:
    return {
        part: Encoded(each.tree, separate(each.tensors), each.boxes) for part, each in parts.items()
    }


def _is_begun(checkpoint: Checkpoint) -> bool:
    return checkpoint.name.endswith(manifests.TEMPORARY)


def _delete(folder: Path) -> None:
    """Delete a checkpoint, renamed first: a kill meanwhile leaves no half a checkpoint."""
    going = folder.with_name(folder.name + manifests.TEMPORARY)
    with contextlib.suppress(OSError):
        os.replace(folder, going)
        shutil.rmtree(going, ignore_errors=True)


def _check_names(name: str, parts: Iterable[str]) -> None:
    """Raise CheckpointError for a name of a checkpoint or a part that is unsafe as a file."""
    for part in parts:
        if not _SAFE_PART.fullmatch(part) or part == "manifest":
            raise CheckpointError(
                f"A part cannot be called {part!r}.", fix="Use letters, digits and _."
            )
    if not manifests.is_safe_name(name):
        raise CheckpointError(
            f"A checkpoint cannot be called {name!r}.", fix="Use letters, digits and _."
        )
