"""Stand-in for omegaconf in a config: its containers take calls, too."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any


def relax(module: types.ModuleType) -> types.ModuleType:
    """omegaconf for a config: what is made of it takes calls too, as it takes numbers."""

    def with_objects(flags: Mapping[str, bool] | None) -> dict[str, bool]:
        return {"allow_objects": True, **(flags or {})}

    class OmegaConf(module.OmegaConf):  # type: ignore[misc, name-defined]
        @staticmethod
        def create(
            obj: Any = None, parent: Any = None, flags: Mapping[str, bool] | None = None
        ) -> Any:
            content = {} if obj is None else obj
            return module.OmegaConf.create(content, parent, flags=with_objects(flags))

    class DictConfig(module.DictConfig):  # type: ignore[misc, name-defined]
        def __init__(
            self, content: Any, *args: Any, flags: Mapping[str, bool] | None = None, **more: Any
        ) -> None:
            super().__init__(content, *args, flags=with_objects(flags), **more)

    class ListConfig(module.ListConfig):  # type: ignore[misc, name-defined]
        def __init__(
            self, content: Any, *args: Any, flags: Mapping[str, bool] | None = None, **more: Any
        ) -> None:
            super().__init__(content, *args, flags=with_objects(flags), **more)

    made = types.ModuleType(module.__name__)
    made.__dict__.update(
        vars(module), OmegaConf=OmegaConf, DictConfig=DictConfig, ListConfig=ListConfig
    )
    return made
