"""Names of flame, and of the package `injector` that it builds on, over those of assay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.compat.importing import import_target
from assay.config.older_systems import OlderName

_INJECTOR = {
    "Injector": "`Context(module)` of assay.build; in a run it is there already",
    "Module": "any class with methods under `@provides`",
    "Binder": "`context.provide(...)`",
    "inject": "`inject` of assay.build",
    "provider": "`@provides(...)` of assay.build, which gives one object",
    "singleton": "`@provides` of assay.build",
}
_TYPES = (
    *("Model", "Criterion", "Optimizer", "Scheduler", "Device", "State"),
    *("TrainLoader", "ValLoader", "TestLoader"),
)
_ENGINE = {"State": "State", "Engine": "Engine", "BaseProcess": "Process"}

NAMES: Mapping[str, OlderName] = {
    **{
        f"injector.{name}": OlderName(target=f"assay.compat.injector.{name}", instead=instead)
        for name, instead in _INJECTOR.items()
    },
    **{
        f"flame.pytorch.typing_prelude.{name}": OlderName(
            target=f"assay.engine.loop.names.{name}", instead=f"`assay.engine.loop.names.{name}`"
        )
        for name in _TYPES
    },
    **{
        f"flame.{name}": OlderName(target=f"assay.engine.{here}", instead=f"`assay.engine.{here}`")
        for name, here in _ENGINE.items()
    },
}


def __getattr__(name: str) -> Any:
    """Return a name of flame or of `injector`; torch is loaded only for those that need it."""
    for package in ("flame", "injector"):
        if f"{package}.{name}" in NAMES:
            return import_target(NAMES[f"{package}.{name}"].target)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
