"""Writes and finds checkpoints of one folder: written aside, synced, named last; never overwritten."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from assay.core import manifest as manifests
from assay.core.errors import CheckpointError
from assay.core.manifest import File, Kind, Manifest, Part, folder_of_step, step_of_folder
from assay.core.plain import write_atomic
from assay.engine.checkpoint.codec import Encoded, decode, digest_encoded, encode

_BEST = "best.json"
_ROTATED = ("checkpoint", "best")
_SAFE_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where in a run a checkpoint is taken."""

    step: int
    epoch: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class Skipped:
    """A folder that is no usable checkpoint, and why."""

    name: str
    why: str


class Saver:
    """Checkpoints of one run. `keep`: how many of kind "checkpoint" stay; others stay until told otherwise.

    Usable alone: `Saver("ckpt").save({"model": model.state_dict()}, Where(step=10))`.
    """

    def __init__(self, folder: Path | str, *, keep: int = 3, run: str = "", attempt: int = 1) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; it must be at least 1")
        self.folder = Path(folder)
        self.keep = keep
        self.run = run
        self.attempt = attempt

    def save(
        self,
        parts: Mapping[str, Any],
        where: Where,
        *,
        kind: Kind = "checkpoint",
        info: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Write one checkpoint; when this returns it survives power loss.

        A complete one of that step is kept as it is; only its kind changes when rotation is to leave it alone from now
        on. Anything else of that name is renamed. Raises CheckpointError when a value cannot be kept or the disk
        refuses; nothing half-made stays.
        """
        final = self.folder / folder_of_step(where.step)
        there = _complete(final)
        if there is not None:
            return self._keep(there, kind)
        for name in parts:
            if not _SAFE_PART.fullmatch(name) or name == "manifest":
                raise CheckpointError(f"A part cannot be called {name!r}.", fix="Use letters, digits and _.")
        encoded = {name: encode(state) for name, state in parts.items()}
        temporary = final.with_name(final.name + ".tmp")
        try:
            for stale in self.folder.glob("step-*.tmp"):  # of a process that was killed
                shutil.rmtree(stale, ignore_errors=True)
            if final.exists():
                _rename_aside(final)
            temporary.mkdir(parents=True)
            manifest = self._write(temporary, encoded, where, kind, info or {})
            os.replace(temporary, final)
            _sync_folder(self.folder)
        except OSError as error:
            raise CheckpointError(f"The checkpoint of step {where.step} was not written: {error}.") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._rotate(spare=manifest.name)
        return manifest

    def set_best(self, name: str, *, metric: str, mode: Literal["min", "max"], value: float) -> None:
        """Point "best" at a checkpoint; it stays until another one is better."""
        data = {"format": 1, "name": name, "metric": metric, "mode": mode, "value": value}
        write_atomic(self.folder / _BEST, (json.dumps(data) + "\n").encode())
        self._rotate()

    def best(self) -> str | None:
        """The name of the best checkpoint, None when there is none."""
        try:
            name = json.loads((self.folder / _BEST).read_text(encoding="utf-8"))["name"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return name if isinstance(name, str) and step_of_folder(name) is not None else None

    def complete(self) -> tuple[list[Manifest], list[Skipped]]:
        """Every complete checkpoint, oldest first, and what lies there that is none, with the reason."""
        found, skipped = [], []
        for path in sorted(self.folder.glob("step-*")):
            if step_of_folder(path.name) is None:
                if path.name.endswith(".tmp"):
                    skipped.append(Skipped(path.name, "it was still being written"))
                continue
            try:
                manifest = manifests.read(path)
            except CheckpointError as error:
                skipped.append(Skipped(path.name, error.what.removesuffix(".")))
                continue
            why = _flaw(manifest, path)
            if why:
                skipped.append(Skipped(path.name, why))
            else:
                found.append(manifest)
        found.sort(key=lambda manifest: manifest.step)
        return found, skipped

    def find(self, name: str = "latest") -> Manifest:
        """By "latest", "best", a step, or a folder's name; CheckpointError lists what there is."""
        found, skipped = self.complete()
        wanted = self.best() if name == "best" else name
        if name == "latest" and found:
            return found[-1]
        for manifest in found:
            if wanted is not None and wanted in (manifest.name, str(manifest.step)):
                return manifest
        there = ", ".join(str(manifest.step) for manifest in found) or "none"
        lost = "".join(f" {each.name} is no checkpoint: {each.why}." for each in skipped)
        raise CheckpointError(f"There is no checkpoint {name!r}.{lost}", where=str(self.folder), fix=f"Steps: {there}.")

    def load(
        self, name: str = "latest", *, parts: tuple[str, ...] | None = None, verify: bool = True
    ) -> dict[str, Any]:
        """The parts of a checkpoint by name. `verify` compares every file with its digest first.

        Raises CheckpointError naming the damaged file.
        """
        return load(self.folder / self.find(name).name, parts=parts, verify=verify)

    def set_aside(self, after_step: int) -> list[str]:
        """Rename checkpoints of later steps, so that a run that goes on from `after_step` can write its own."""
        moved = []
        for path in sorted(self.folder.glob("step-*")):
            step = step_of_folder(path.name)
            if step is not None and step > after_step:
                moved.append(_rename_aside(path).name)
        best = self.best()
        if best is not None and not (self.folder / best).is_dir():
            (self.folder / _BEST).unlink(missing_ok=True)
        return moved

    def _write(
        self, folder: Path, encoded: Mapping[str, Encoded], where: Where, kind: Kind, info: Mapping[str, Any]
    ) -> Manifest:
        files: list[File] = []
        listed: list[Part] = []
        for name, part in encoded.items():
            tensors = _on_host(part.tensors)
            files.append(_write_file(folder, f"{name}.json", _json(part.tree)))
            if tensors:
                files.append(_write_file(folder, f"{name}.safetensors", save(tensors)))
            listed.append(Part(name=name, tree=f"{name}.json", files=(f"{name}.safetensors",) if tensors else ()))
        manifest = Manifest(
            kind=kind,
            name=folder.name.removesuffix(".tmp"),
            step=where.step,
            epoch=where.epoch,
            samples=where.samples,
            run=self.run,
            attempt=self.attempt,
            created_ns=time.time_ns(),
            files=tuple(files),
            parts=tuple(listed),
            digest=_digest(encoded),
            versions={"torch": torch.__version__},
            info=dict(info),
        )
        manifests.write(folder, manifest)
        _sync_folder(folder)
        return manifest

    def _keep(self, manifest: Manifest, kind: Kind) -> Manifest:
        """What is there already; from now on not rotated if that is asked for."""
        if kind in _ROTATED or manifest.kind not in _ROTATED:
            return manifest
        manifest = replace(manifest, kind=kind)
        try:
            manifests.write(self.folder / manifest.name, manifest)
        except OSError as error:
            raise CheckpointError(f"{manifest.name} was not made a {kind}: {error}.") from error
        return manifest

    def _rotate(self, spare: str = "") -> None:
        """Delete what is too many; `spare` was just written, and may be about to become the best."""
        found, _ = self.complete()
        kept = {manifest.name for manifest in [m for m in found if m.kind == "checkpoint"][-self.keep :]}
        kept |= {spare, self.best() or ""}
        for manifest in found:
            if manifest.kind in _ROTATED and manifest.name not in kept:
                _delete(self.folder / manifest.name)


def load(folder: Path, *, parts: tuple[str, ...] | None = None, verify: bool = True) -> dict[str, Any]:
    """The parts of the checkpoint in a folder; see `Saver.load`."""
    manifest = manifests.read(folder)
    why = manifests.missing_files(folder, manifest.files)
    if why:
        raise _damage(why, folder)
    wanted = [part for part in manifest.parts if parts is None or part.name in parts]
    for name in parts or ():
        manifest.part(name)
    used = {name for part in wanted for name in (part.tree, *part.files)}
    if verify:
        for file in manifest.files:
            if file.name in used and _sha256_of(folder / file.name) != file.sha256:
                raise _damage(f"{file.name} is not what was written", folder)
    loaded = {part.name: _load_part(folder, part) for part in wanted}
    if verify and parts is None and manifest.digest not in ("", _digest({k: encode(v) for k, v in loaded.items()})):
        raise _damage("its parts are not those that were written", folder)
    return loaded


def _complete(folder: Path) -> Manifest | None:
    try:
        manifest = manifests.read(folder)
    except CheckpointError:
        return None
    return None if _flaw(manifest, folder) else manifest


def _flaw(manifest: Manifest, folder: Path) -> str:
    """Why the manifest is not that of its folder, or "" when it is and every file is there."""
    if not folder.name == manifest.name == folder_of_step(manifest.step):
        return f"its manifest is that of {manifest.name!r}, step {manifest.step}"
    return manifests.missing_files(folder, manifest.files)


def _damage(what: str, folder: Path) -> CheckpointError:
    fix = "Take an older one, or load it without verification."
    return CheckpointError(f"The checkpoint is damaged: {what}.", where=str(folder), fix=fix)


def _load_part(folder: Path, part: Part) -> Any:
    try:
        tree = json.loads((folder / part.tree).read_text(encoding="utf-8"))
        tensors: dict[str, torch.Tensor] = {}
        for name in part.files:
            # Copied out of the mapped file: sums over memory that is not aligned differ in their last bits.
            tensors |= {key: tensor.clone() for key, tensor in load_file(folder / name).items()}
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"Part {part.name} cannot be read: {error}.", where=str(folder)) from error
    return decode(tree, tensors)


def _digest(encoded: Mapping[str, Encoded]) -> str:
    hasher = sha256()
    for name, part in sorted(encoded.items()):
        hasher.update(f"{name} {digest_encoded(part)}\n".encode())
    return hasher.hexdigest()


def _on_host(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Contiguous and in host memory, each in a storage of its own: safetensors refuses what overlaps."""
    on_host: dict[str, torch.Tensor] = {}
    storages = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        if tensor.untyped_storage().data_ptr() in storages:
            tensor = tensor.clone()
        storages.add(tensor.untyped_storage().data_ptr())
        on_host[name] = tensor
    return on_host


def _json(tree: Any) -> bytes:
    return (json.dumps(tree, separators=(",", ":"), allow_nan=False) + "\n").encode("ascii")


def _sha256_of(path: Path) -> str:
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}.", where=str(path.parent)) from error


def _delete(folder: Path) -> None:
    """Half a checkpoint is none: renamed first, it is not taken for one by whoever is killed, or looks, meanwhile."""
    going = folder.with_name(folder.name + ".tmp")
    with contextlib.suppress(OSError):
        os.replace(folder, going)
        shutil.rmtree(going, ignore_errors=True)


def _rename_aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.left-{number}")).exists():
        number += 1
    return path.rename(aside)


def _write_file(folder: Path, name: str, data: bytes) -> File:
    with open(folder / name, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return File(name=name, size_bytes=len(data), sha256=sha256(data).hexdigest())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
