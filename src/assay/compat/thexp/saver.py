"""Saver of thexp: one file in torch's format for each state, with its info in JSON beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.compat.parts.torch_file import write_torch_file
from assay.core.errors import CheckpointError, InputError


class TorchFileSaver:
    """Writes `.ckpt` and `.pth` files that `torch.load(weights_only=True)` reads.

    Checkpoints are rotated: the newest `max_to_keep` stay. Keypoints and models are never deleted.
    """

    def __init__(self, save_dir: str | os.PathLike[str], max_to_keep: int = 3) -> None:
        if max_to_keep < 1:
            raise InputError(f"max_to_keep is {max_to_keep}; it must be at least 1.")
        self.save_dir = Path(save_dir)
        self.max_to_keep = max_to_keep
        self._rotated = sorted(
            self.save_dir.glob(_CHECKPOINT), key=lambda file: file.stat().st_mtime
        )

    def save_checkpoint(self, epoch: int, state: Any, info: Mapping[str, Any] | None = None) -> str:
        """Write a checkpoint, and delete the oldest beyond `max_to_keep`; return its path."""
        path = self._write(f"{epoch:07d}.task.ckpt", state, info)
        self._rotated = [*(each for each in self._rotated if each != path), path]
        while len(self._rotated) > self.max_to_keep:
            oldest = self._rotated.pop(0)
            oldest.unlink(missing_ok=True)
            _info_of(oldest).unlink(missing_ok=True)
        return str(path)

    def save_keypoint(self, epoch: int, state: Any, info: Mapping[str, Any] | None = None) -> str:
        """Write a checkpoint that is never deleted; return its path."""
        return str(self._write(f"keep.{epoch:07d}.task.ckpt", state, info))

    def save_model(self, epoch: int, state: Any, info: Mapping[str, Any] | None = None) -> str:
        """Write a model, which is never deleted; return its path."""
        return str(self._write(f"model.{epoch:07d}.pth", state, info))

    def find_checkpoints(self) -> list[str]:
        """Return the checkpoints that rotation may delete, by name."""
        return self._find(_CHECKPOINT)

    def find_keypoints(self) -> list[str]:
        """Return the keypoints by name."""
        return self._find("keep.*.task.ckpt")

    def find_models(self) -> list[str]:
        """Return the models by name."""
        return self._find("model.*.pth")

    def load_info(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Return the info that was saved with a file."""
        found = json.loads(_info_of(Path(path)).read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise CheckpointError("The info of a checkpoint is no table.", where=str(path))
        return found

    def _find(self, pattern: str) -> list[str]:
        return sorted(str(path) for path in self.save_dir.glob(pattern))

    def _write(self, name: str, state: Any, info: Mapping[str, Any] | None) -> Path:
        self.save_dir.mkdir(parents=True, exist_ok=True)
        path = self.save_dir / name
        write_torch_file(path, state)
        _info_of(path).write_text(json.dumps(dict(info or {})), encoding="utf-8")
        return path


_CHECKPOINT = "[0-9]*.task.ckpt"


def _info_of(path: Path) -> Path:
    """Return the place of a file's info: `0000001.task.ckpt.json`."""
    return path.with_name(f"{path.name}.json")
