"""Table of thexp's names: the target of each here, and how the same is said without thexp."""

from __future__ import annotations

from collections.abc import Mapping

from assay.config.older_systems.entries import OlderName

_HERE = "assay.compat.thexp"
_OWN = {
    "Params": (f"{_HERE}.params.PermissiveParams", "`assay.Params`"),
    "BaseParams": ("assay.config.params.BaseParams", "`assay.BaseParams`"),
    "Meter": ("assay.record.meter.Meter", "`assay.Meter`"),
    "AvgMeter": ("assay.record.meter.AvgMeter", "`assay.AvgMeter`"),
    "Logger": ("assay.record.logger.Logger", "`assay.Logger`"),
    "RndManager": (
        f"{_HERE}.rnd_manager.RndManager",
        "`get_state` and `set_state` of `assay.engine`",
    ),
    "Saver": (f"{_HERE}.saver.TorchFileSaver", "`assay.engine.Saver`"),
    "Experiment": (f"{_HERE}.experiment.Experiment", "`assay.start`"),
    "ExperimentViewer": (f"{_HERE}.experiment.ExperimentViewer", "`assay.runs`"),
    "globs": ("assay.config.globs", "`assay.config.globs`"),
    "Trainer": (
        f"{_HERE}.trainer.Trainer",
        "`assay run` with a config, or `assay.engine.Engine`",
    ),
    "Callback": (f"{_HERE}.trainer.Callback", "a method under `assay.engine.on`"),
    "EvalCallback": (f"{_HERE}.trainer.EvalCallback", "[evaluate] every"),
    "LoggerCallback": (f"{_HERE}.trainer.LoggerCallback", "[display]"),
    "AutoReport": (f"{_HERE}.report.AutoReport", "`assay summary`, `assay ui`"),
    "Reporter": (f"{_HERE}.report.Reporter", "`assay summary`, `assay ui`"),
}
_PLACES = {
    "thexp": "Params BaseParams Meter AvgMeter Logger Saver Trainer Experiment globs",
    "thexp.frame": (
        "Params BaseParams Meter AvgMeter Logger RndManager Saver Experiment ExperimentViewer"
        " Trainer Reporter globs"
    ),
    "thexp.frame.params": "Params BaseParams",
    "thexp.frame.meter": "Meter AvgMeter",
    "thexp.frame.logger": "Logger",
    "thexp.frame.rndmanager": "RndManager",
    "thexp.frame.saver": "Saver",
    "thexp.frame.experiment": "Experiment ExperimentViewer globs",
    "thexp.frame.trainer": "Trainer",
    "thexp.frame.reporter": "Reporter",
    "thexp.frame.callbacks": "Callback EvalCallback LoggerCallback AutoReport",
    "thexp.callbacks": "Callback EvalCallback LoggerCallback AutoReport",
}

NAMES: Mapping[str, OlderName] = {
    **{
        f"{place}.{name}": OlderName(target=_OWN[name][0], instead=_OWN[name][1])
        for place, names in _PLACES.items()
        for name in names.split()
    },
    "thexp.utils.random": OlderName(
        target=f"{_HERE}.random_state",
        instead="`assay.engine.get_state`, `set_state` and `seed_all`",
    ),
    "thexp.utils.date.dataloader.DataLoader": OlderName(
        target="assay.engine.data.device_loader.DataLoader",
        instead="`torch.utils.data.DataLoader`: the engine moves the batches",
    ),
}
"""Names of thexp by every place where its texts import them from."""
