"""Table of the names of flame, and of the package `injector` that it builds on."""

from __future__ import annotations

from collections.abc import Mapping

from assay.config.older_systems.entries import OlderName

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
