"""Checkpoints of one folder: written aside, synced, renamed last; never overwritten."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from assay.core.directory import make_directory
from assay.core.errors import CheckpointError, InputError, MissingCheckpointError
from assay.engine.checkpoint import folder as folders
from assay.engine.checkpoint import together
from assay.engine.checkpoint.codec import encode
from assay.engine.checkpoint.folder import Contents, Where, load_parts, sync_folder
from assay.engine.checkpoint.given_state import (
    WHOLE,
    check_part_names,
    copy_into,
    name_from,
    on_host,
    plain_info,
    state_parts,
)
from assay.engine.checkpoint.own_share import Readers, Share, load_share
from assay.engine.checkpoint.tensor_file import Staging
from assay.engine.checkpoint.together import Writers, outcome_of, raise_first_error, refuse_together
from assay.engine.checkpoint.weights import load_into
from assay.formats import manifest as manifests
from assay.formats.manifest import Checkpoint, Kind, Manifest, folder_of_step

Existing = Literal["keep", "replace", "refuse"]
Name = str | int | Path | Checkpoint | Manifest
_ROTATED = ("checkpoint", "best")


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
    one raises all raise; the first alone does the rest. With a `share` they read together too, as
    do `readers`, which are the writers if there are any.
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
        readers: Readers | None = None,
    ) -> None:
        if keep < 1:
            raise InputError(f"keep is {keep}; it must be at least 1.")
        self.folder = Path(folder)
        self.keep = keep
        self.name = name
        self.run = run
        self.attempt = attempt
        self.writers = writers
        self.readers = writers or readers
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
        name = name_from(self.name, step, info or {}) if self.name else folder_of_step(step)
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
            state_parts(state), Where(step=step), kind=kind, info=info, name=name, existing=existing
        )

    def find_checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints that rotation may delete, oldest first."""
        return self._of_kind(*_ROTATED)

    def find_keypoints(self) -> list[Checkpoint]:
        return self._of_kind("keypoint")

    def find_models(self) -> list[Checkpoint]:
        return self._of_kind("model")

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
        return self.prepare(
            parts, where, kind=kind, info=info, name=name, existing=existing, final=final
        )()

    def prepare(
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
        check_part_names(name, parts)
        try:
            encoded = {part: encode(state, path=part) for part, state in parts.items()}
        except CheckpointError as error:
            if self.writers is None:
                raise
            return partial(refuse_together, self.writers, str(error))
        contents = Contents(
            parts=copy_into(encoded, staging) if staging is not None else on_host(encoded),
            where=where,
            kind=kind,
            name=name,
            run=self.run,
            attempt=self.attempt,
            info=plain_info(info or {}),
        )
        if self.writers is not None:
            return partial(self._write_together, self.writers, contents, existing, final)
        return partial(self._write, contents, existing, final)

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
            found = manifests.checkpoint_in(self.folder / name).manifest
            digest = found.digest if found is not None else ""
            manifests.point(
                self.folder, "best", name, metric=metric, mode=mode, value=value, digest=digest
            )
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
            name = manifests.pointed_name(self.folder, pointer)
            if name and not (self.folder / name).is_dir():
                (self.folder / f"{pointer}.json").unlink(missing_ok=True)
        return moved

    # -------------------------------------------------------------------------------------- reading

    def best(self) -> str | None:
        """Return the name of the best checkpoint, or None."""
        return manifests.pointed_name(self.folder, "best") or None

    def complete(self) -> tuple[list[Manifest], list[Skipped]]:
        """Return the complete checkpoints, oldest first, and the unusable folders."""
        found, skipped = [], []
        for each in manifests.checkpoints(self.folder):
            if each.manifest is not None and not each.why:
                found.append(each.manifest)
                continue
            is_begun = each.name.endswith(manifests.TEMPORARY) and not each.is_left
            if each.is_damaged or is_begun:
                skipped.append(Skipped(each.name, each.why.removesuffix(".")))
        return found, skipped

    def find(self, name: Name = "latest") -> Manifest:
        """Return a checkpoint by "latest", "best", "final", step, -1 (newest), folder name or path.

        CheckpointError lists what there is.
        """
        return self._find(name)[1]

    def load(
        self,
        name: Name = "latest",
        *,
        parts: tuple[str, ...] | None = None,
        verify: bool = True,
        into: Mapping[str, Any] | None = None,
        share: Share | None = None,
    ) -> Any:
        """Return a saved state: a table by part, unless it was no table. `name` as for `find`.

        `parts` are all that is read. `into` has the objects that are given their parts: by their
        `_load_state_dict` if they have one, else by `load_state_dict`. `verify` compares every file
        with its digest first. With `share` it is a state as `load_share` returns it, collectively
        for the readers. Raises CheckpointError naming the damaged file.
        """
        loaded = self._load(self._find(name)[0], parts=parts, verify=verify, share=share)
        for part, owner in (into or {}).items():
            if part not in loaded:
                fix = f"It has: {', '.join(loaded)}."
                raise CheckpointError(f"The checkpoint has no part {part!r}.", fix=fix)
            load_into(owner, loaded[part])
        return loaded[WHOLE] if set(loaded) == {WHOLE} else loaded

    def newest(
        self, *, verify: bool = True, share: Share | None = None
    ) -> tuple[Manifest, dict[str, Any], list[Skipped]]:
        """Return the newest readable checkpoint, its parts, and newer unreadable ones.

        A model alone is none from which a run can go on. `share` as for `load`. CheckpointError
        when none can be read.
        """
        found, skipped = self.complete()
        for manifest in reversed([each for each in found if each.kind != "model"]):
            try:
                parts = self._load(self.folder / manifest.name, verify=verify, share=share)
                return manifest, parts, skipped
            except CheckpointError as error:
                skipped.append(Skipped(manifest.name, error.what.removesuffix(".")))
        lost = "".join(f" {each.name}: {each.why}." for each in skipped)
        raise CheckpointError(
            f"There is no checkpoint that can be read.{lost}", where=str(self.folder)
        )

    # --------------------------------------------------------------------------------------- inside

    def _load(
        self,
        folder: Path,
        *,
        parts: tuple[str, ...] | None = None,
        verify: bool,
        share: Share | None,
    ) -> dict[str, Any]:
        if share is None:
            return load_parts(folder, parts=parts, verify=verify)
        return load_share(folder, share, parts=parts, verify=verify, readers=self.readers)

    def _complete(self) -> list[Checkpoint]:
        return [each for each in manifests.checkpoints(self.folder) if not each.why]

    def _of_kind(self, *kinds: str) -> list[Checkpoint]:
        return [
            each
            for each in self._complete()
            if each.manifest is not None and each.manifest.kind in kinds
        ]

    def _find(self, name: Name) -> tuple[Path, Manifest]:
        if isinstance(name, Checkpoint | Manifest):
            name = name.name
        path = _path_of(name)
        if path is not None:
            return path, manifests.read(path)
        text = str(name)
        found = manifests.find_named(self._complete(), text, self.folder)
        if found is None or found.manifest is None:
            raise self._not_found(text)
        return found.path, found.manifest

    def _not_found(self, name: str) -> CheckpointError:
        """Return the error for an unknown name, which lists what there is."""
        complete = self._complete()
        _, skipped = self.complete()
        lost = "".join(f" {each.name} is no checkpoint: {each.why}." for each in skipped)
        steps = ", ".join(str(each.step) for each in complete)
        named = [each.name for each in complete if each.name != folder_of_step(each.step or 0)]
        none = "None is left" if skipped else "There is none yet"
        fix = f"There are steps {steps}" if complete else none
        fix += f", and {', '.join(named)}." if named else "."
        return MissingCheckpointError(
            f"There is no checkpoint {name!r}.{lost}", where=str(self.folder), fix=fix
        )

    def _write(self, contents: Contents, existing: Existing, final: bool) -> Manifest:
        temporary = self._temporary(contents)
        with self._lock:
            kept = self._existing(contents, existing, final)
            if kept is not None:
                return kept
            try:
                self._make_temporary(temporary)
                manifest = folders.write(temporary, contents, like=self._newest())
                self._publish(temporary, manifest, existing, final)
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
        temporary = self._temporary(contents)
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
            head = outcome_of(lambda: self._begin_together(temporary, contents, existing, final))
        told = writers.gather({**head, "offer": together.offer(contents)})
        raise_first_error(told)
        manifest = contents.manifest([], [], layout=writers.axes)
        if told[0].get("kept"):
            return manifest, True
        offers = [each["offer"] for each in told]
        written = together.write_parts(Path(told[0]["folder"]), contents, offers, writers)

        def publish() -> dict[str, Any]:
            nonlocal manifest
            manifest = together.publish_together(
                temporary, contents, offers, written, axes=writers.axes, like=self._newest()
            )
            self._publish(temporary, manifest, existing, final)
            return {}

        ended = outcome_of(publish) if self.is_first else {}
        raise_first_error(writers.gather(ended))
        return manifest, False

    def _begin_together(
        self, temporary: Path, contents: Contents, existing: Existing, final: bool
    ) -> dict[str, Any]:
        """Make the folder that all processes write into, unless the checkpoint is there already."""
        if self._existing(contents, existing, final) is not None:
            return {"kept": True}
        self._make_temporary(temporary)
        return {"folder": str(temporary.resolve())}

    def _existing(self, contents: Contents, existing: Existing, final: bool) -> Manifest | None:
        """Return the complete checkpoint of that name if it stays; CheckpointError to refuse it."""
        there = manifests.checkpoint_in(self.folder / contents.name)
        if there.manifest is None or there.why:
            return None
        if existing == "refuse":
            fix = "Save it under another name, or with overwrite=True."
            raise CheckpointError(
                f"There is a {there.manifest.kind} {contents.name!r} already.", fix=fix
            )
        if existing == "keep":
            return self._keep(there.manifest, contents.kind, final)
        return None

    def _temporary(self, contents: Contents) -> Path:
        return self.folder / f"{contents.name}{manifests.TEMPORARY}"

    def _make_temporary(self, temporary: Path) -> None:
        """Make the folder of an unfinished checkpoint; delete those that killed processes left."""
        for stale in self.folder.glob(f"*{manifests.TEMPORARY}"):
            shutil.rmtree(stale, ignore_errors=True)
        make_directory(temporary)

    def _newest(self) -> list[Path]:
        """Return the folder of the newest complete checkpoint, whose equal files are linked."""
        return [each.path for each in self._complete()[-1:]]

    def _publish(
        self, temporary: Path, manifest: Manifest, existing: Existing, final: bool
    ) -> None:
        """Rename a written checkpoint to its name; an older one is put aside or replaced."""
        there = manifests.checkpoint_in(self.folder / manifest.name)
        left = None
        if there.path.exists():
            left = manifests.aside(there.path)
            there.path.rename(left)
        os.replace(temporary, there.path)
        sync_folder(self.folder)
        if left is not None and existing == "replace" and not there.why:
            shutil.rmtree(left, ignore_errors=True)
        if final:
            manifests.point(self.folder, "final", manifest.name)

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
        final = manifests.pointed_name(self.folder, "final")
        best = self.best() or ""
        found = [each.manifest for each in self._complete() if each.manifest is not None]
        counted = [each.name for each in found if each.kind == "checkpoint" and each.name != final]
        kept = {*counted[-self.keep :], spare, best, final}
        for manifest in found:
            if manifest.kind in _ROTATED and manifest.name not in kept:
                folders.delete(self.folder / manifest.name)


def _path_of(name: str | int | Path) -> Path | None:
    """Return a path that was given, or text of several parts that leads somewhere, else None."""
    if isinstance(name, Path):
        return name
    if isinstance(name, str) and len(Path(name).parts) > 1 and Path(name).exists():
        return Path(name)
    return None
