"""Tables of five older systems: the target of each name, and how the same is said here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.config.translator import OlderName

# --- alchemy --------------------------------------------------------------------------------------

_OF_ALCHEMY = "assay.compat.alchemy"
_LST = "assay.engine.data.map_style"
_ITR = "assay.engine.data.streams"


def _alike(package: str, place: str, names: Mapping[str, str]) -> dict[str, OlderName]:
    """Return entries for classes of `place` that do what alchemy's do."""
    return {
        f"{package}.{name}": OlderName(target=f"{place}.{here}", instead=f"`{place}.{here}`")
        for name, here in names.items()
    }


_PLUGINS = {
    "BasicSetup": "nothing is needed: every run logs, and `--debug` sets the rest",
    "FileLogger": "nothing is needed: every run has a record; `--no-file` leaves it out",
    "Backup": "nothing is needed: every record has a snapshot of the code",
    "RunnerPlugin": "any class with `__enter__` and `__exit__`",
    "TensorboardLogger": '{ type = "assay.plugins.TensorBoard" }',
    "DisplayRunningInfo": "nothing is needed: every log begins with versions and devices",
}
_OWN_PLUGINS = {
    **dict.fromkeys(("BasicSetup", "FileLogger", "Backup", "DisplayRunningInfo")),
    "TensorboardLogger": "assay.plugins.TensorBoard",
}
"""Name of a plugin -> the plugin of a converted config, None where it needs none."""

_RUNNERS = {
    "AlchemyRunner": ("AlchemyRunner", "train"),
    "Trainer": ("AlchemyRunner", "train"),
    "Tester": ("AlchemyTester", "test"),
    "AlchemyTester": ("AlchemyTester", "test"),
    "ALchemyTester": ("AlchemyTester", "test"),  # as the README of alchemy writes it
}
"""Name of a runner -> its class, and the value of `runner` in a config."""

_PIPELINES = "`assay.engine.Pipelines`"
_MOMENTS = ("pipeline", "pipeline.sched", "sched")
_CODE: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "Registrable": ("registrable", "`assay.build.register`", ()),
    "AlchemyTask": ("task", "`assay.engine.Task` with `dataset(split)`", ("task",)),
    "AlchemyModel": ("model", "`assay.engine.ModelWrapper`, or a process", ("model",)),
    "BackwardHandler": ("model", "`assay.engine.OptimizerStep`", ("model", "backward")),
    "DefaultBackwardHandler": ("model", "`[backward]`, `[train]`", ("model", "backward")),
    "AlchemyOptimizer": ("optim", "[optimizer] with a class of torch", ("optim",)),
    "AlchemyTrainScheduler": ("optim", "[schedule], and `state` for counters", ("sched",)),
    "DataPipeline": ("pipelines", "a function of an iterator", ("pipeline", "pipeline.data")),
    "OutputPipeline": ("pipelines", "`evaluate.pipes`", ("pipeline", "pipeline.output")),
    "EvalPipeline": ("pipelines", "`evaluate.pipes`", ("pipeline", "pipeline.eval")),
    "SchedPipeline": ("pipelines", f"{_PIPELINES}, or `@on(...)`", _MOMENTS),
    "BeginEpochPipeline": ("pipelines", _PIPELINES, _MOMENTS),
    "EndEpochPipeline": ("pipelines", _PIPELINES, _MOMENTS),
    "BeginStepPipeline": ("pipelines", _PIPELINES, _MOMENTS),
    "EndStepPipeline": ("pipelines", _PIPELINES, _MOMENTS),
    "evaluate": ("pipelines", "[evaluate] every and splits", ()),
    "sym_tbl": ("symbols", "`current` of assay.build, or a parameter named `model`", ("symbols",)),
    "logger": ("brace_logger", '`logging.getLogger("assay")`', ("util",)),
    "run": ("runner", "`assay.run`", ()),
    "prepare_cfg": ("runner", "`assay.config.load`", ()),
    "filter_optional_cfg": ("optional_config", "`assay run --explain-defaults`", ("util",)),
}
"""Name -> its module here, how it is said here, and modules of alchemy that have it too."""

_ACCELERATE = {
    "Accelerator": ("Accelerator", "`assay run --nproc 2`"),
    "BasicSetup": ("AccelerateSetup", "nothing is needed"),
    "AccelerateOptimizer": ("AccelerateOptimizer", "[optimizer], and `train.clip_norm`"),
    "AccelerateBackwardHandler": ("AccelerateBackwardHandler", "nothing is needed"),
}
"""Name in `alchemy.util.ddp.accelerate` -> its name here, and how it is said here."""

ALCHEMY: Mapping[str, OlderName] = {
    **{
        f"alchemy.plugins.{name}": OlderName(
            target=f"{_OF_ALCHEMY}.plugins.{name}",
            instead=instead,
            own=_OWN_PLUGINS.get(name, ""),
        )
        for name, instead in _PLUGINS.items()
    },
    **{
        f"alchemy.{name}": OlderName(target=f"{_OF_ALCHEMY}.{place}.{name}", instead=instead)
        for name, place, instead in (
            ("RunnerPlugin", "plugins", _PLUGINS["RunnerPlugin"]),
            ("AlchemyRunner", "runner", 'runner = "train"'),
            ("AlchemyTester", "runner", 'runner = "test"'),
        )
    },
    "alchemy.plugins.Seeding": OlderName(
        target=f"{_OF_ALCHEMY}.plugins.Seeding",
        instead="`seed` at the top of the config and `train.deterministic`",
        own=None,
        keys={"seed": "seed", "use_deterministic_algorithms": "train.deterministic"},
    ),
    **_alike(
        "alchemy.pipeline.lst",
        _LST,
        {
            "SequenceWrapper": "SequenceWrapper",
            "Map": "MapSequence",
            "Filter": "FilterSequence",
            "Concat": "ConcatSequences",
            "ItrToLst": "StreamToSequence",
            "Cache": "Cache",
        },
    ),
    **_alike(
        "alchemy.pipeline.itr",
        _ITR,
        {
            name: name
            for name in ("Batch", "Bucket", "Concat", "Filter", "FlatMap", "Map", "Mix", "Prefetch")
        }
        | {name: name for name in ("Shuffle", "SplitByWorker", "Take")},
    ),
    **_alike("alchemy.pipeline", _ITR, {"Batch": "Batch"}),
    **_alike("alchemy.pipeline.output", "assay.engine", {"Collect": "Collect"}),
    **_alike("alchemy.sched", "assay.engine", {"NoamScheduler": "Noam"}),
    **{
        f"alchemy.runner.{name}": OlderName(
            target=f"{_OF_ALCHEMY}.runner.{kind}", instead=f'runner = "{runner}"', runner=runner
        )
        for name, (kind, runner) in _RUNNERS.items()
    },
    **{
        f"alchemy.{place}{name}": OlderName(
            target=f"{_OF_ALCHEMY}.{home}.{name}",
            instead=instead,
            own="assay.engine.OptimizerStep" if name == "DefaultBackwardHandler" else "",
        )
        for name, (home, instead, modules) in _CODE.items()
        for place in ("", *(f"{module}." for module in modules))
    },
    **{
        f"alchemy.util.ddp.accelerate.{name}": OlderName(
            target=f"{_OF_ALCHEMY}.accelerate.{here}", instead=instead
        )
        for name, (here, instead) in _ACCELERATE.items()
    },
    "loguru.logger": OlderName(
        target=f"{_OF_ALCHEMY}.brace_logger.logger", instead='`logging.getLogger("assay")`'
    ),
}
"""Names of alchemy, and of the logger that it builds on."""


# --- flame, and the package `injector` that it builds on ------------------------------------------

_INJECTOR = {
    "Injector": "`Context(module)` of assay.build; in a run it is there already",
    "Module": "any class with methods under `@provides`",
    "Binder": "`context.provide(...)`",
    "inject": "`inject` of assay.build",
    "provider": "`@provides(...)` of assay.build, which gives one object",
    "singleton": "`@provides` of assay.build",
}
_FLAMES_TYPES = (
    *("Model", "Criterion", "Optimizer", "Scheduler", "Device", "State"),
    *("TrainLoader", "ValLoader", "TestLoader"),
)
_FLAMES_ENGINE = {"State": "State", "BaseProcess": "Process"}

FLAME: Mapping[str, OlderName] = {
    **{
        f"injector.{name}": OlderName(target=f"assay.compat.injector.{name}", instead=instead)
        for name, instead in _INJECTOR.items()
    },
    **{
        f"flame.pytorch.typing_prelude.{name}": OlderName(
            target=f"assay.engine.loop.names.{name}", instead=f"`assay.engine.loop.names.{name}`"
        )
        for name in _FLAMES_TYPES
    },
    **{
        f"flame.{name}": OlderName(target=f"assay.engine.{here}", instead=f"`assay.engine.{here}`")
        for name, here in _FLAMES_ENGINE.items()
    },
    "flame.Engine": OlderName(
        target="assay.compat.recorded.RecordedEngine",
        instead="`assay.engine.Engine` with the recorder of `assay.start`",
    ),
}

# --- a text of 2021 -------------------------------------------------------------------------------

_OF_FRAMEWORK = "assay.compat.framework"

FRAMEWORK: Mapping[str, OlderName] = {
    "tensorboardX.SummaryWriter": OlderName(
        target=f"{_OF_FRAMEWORK}.writer.SummaryWriter",
        instead="`run = assay.start()`, `run.log`, and `assay.TensorBoard` for event files",
    ),
    "hiddenlayer.History": OlderName(
        target=f"{_OF_FRAMEWORK}.canvas.History", instead="`run.log({...}, step)`"
    ),
    "hiddenlayer.Canvas": OlderName(
        target=f"{_OF_FRAMEWORK}.canvas.Canvas",
        instead="`assay live last`, `run.plot()`, and `assay ui`",
    ),
}
"""Names of `tensorboardX` and `hiddenlayer`."""

UNIMPORTED: Mapping[str, OlderName] = {
    "convert_examples_to_features": OlderName(
        target=f"{_OF_FRAMEWORK}.features.convert_examples_to_features",
        instead="`pair_features` of assay.compat.parts.text, and `to_tensors` of its result",
    ),
    "get_lr": OlderName(
        target=f"{_OF_FRAMEWORK}.training.get_lr", instead="`optimizer/lr`, which each run records"
    ),
    "train_epoch": OlderName(
        target=f"{_OF_FRAMEWORK}.training.train_epoch", instead="`Engine(process, loader).run()`"
    ),
    "accuracy_score": OlderName(
        target=f"{_OF_FRAMEWORK}.training.accuracy_score", instead="`assay.engine.Accuracy`"
    ),
    "vutils": OlderName(
        target=f"{_OF_FRAMEWORK}.training.vutils", instead="`run.image` of a batch"
    ),
    "worker_init_fn": OlderName(
        target=f"{_OF_FRAMEWORK}.training.worker_init_fn", instead="nothing: workers are seeded"
    ),
}
"""Names that the text uses and does not say where from."""

# --- LiBai ----------------------------------------------------------------------------------------

SCHEDULES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "WarmupCosineLR": ("assay.engine.WarmupCosine", {"alpha": "final"}),
    "WarmupCosineAnnealingLR": ("assay.engine.WarmupCosine", {"eta_min": "final"}),
    "WarmupMultiStepLR": (
        "assay.engine.WarmupMultiStep",
        {"milestones": "milestones", "gamma": "gamma"},
    ),
    "WarmupStepLR": ("assay.engine.WarmupStep", {"step_size": "step_size", "gamma": "gamma"}),
    "WarmupExponentialLR": ("assay.engine.WarmupExponential", {"gamma": "gamma"}),
    "WarmupPolynomialLR": ("assay.engine.WarmupPoly", {"power": "power", "end_lr": "final"}),
}
"""Name in LiBai -> target here, and its arguments by their names there."""

DROPPED = ("max_iter", "warmup_iter", "warmup_method", "last_epoch", "verbose", "optimizer")
"""Arguments that the config gives, or that have one value here: the warm-up is linear."""


def rename_arguments(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return LiBai's arguments of a schedule under their names here; unknown ones stay."""
    names = {"warmup_factor": "start", **SCHEDULES[name][1]}
    return {names.get(key, key): value for key, value in given.items() if key not in DROPPED}


_OF_LIBAI = "assay.compat.libai"
_LIBAIS_LOADERS = ("image_train", "image_test", "nlp_train", "nlp_test", "nlp_train_val_test")


def _one(target: str) -> OlderName:
    return OlderName(target=target, instead=f"`{target}`")


LIBAI: Mapping[str, OlderName] = {
    "libai.config.LazyCall": _one("assay.config.LazyCall"),
    "libai.config.get_config": OlderName(
        target=f"{_OF_LIBAI}.loaders.get_config", instead="`get_config` of assay.config"
    ),
    "libai.config.configurable": _one("assay.build.configurable"),
    "libai.config.instantiate": _one("assay.build.instantiate"),
    "libai.data.structures.Instance": _one("assay.engine.Instance"),
    "libai.data.structures.DistTensorData": _one("assay.engine.DistTensorData"),
    "libai.evaluation.ClsEvaluator": OlderName(
        target=f"{_OF_LIBAI}.loaders.ClsEvaluator",
        instead="`process.metrics`, with one `assay.engine.Accuracy` for each k",
    ),
    "libai.optim.get_default_optimizer_params": OlderName(
        target=f"{_OF_LIBAI}.loaders.get_default_optimizer_params",
        instead="`assay.engine.Groups` as the optimizer's `params`, and `train.clip_norm`",
    ),
    **{
        f"{place}.build_{kind}_loader": OlderName(
            target=f"{_OF_LIBAI}.loaders.build_{kind}_loader", instead="a section [data.NAME]"
        )
        for place in ("libai.data.build", "libai.data")
        for kind in _LIBAIS_LOADERS
    },
    "libai.data.datasets.BertDataset": OlderName(
        target=f"{_OF_LIBAI}.datasets.BertDataset",
        instead="`assay.compat.parts.masked_text.MaskedSentencePairs`",
    ),
    "libai.data.datasets.CIFAR100Dataset": OlderName(
        target=f"{_OF_LIBAI}.datasets.CIFAR100Dataset",
        instead="`assay.compat.parts.images.CIFAR100`",
    ),
    "libai.tokenizer.BertTokenizer": OlderName(
        target=f"{_OF_LIBAI}.datasets.BertTokenizer", instead="`assay.compat.parts.text.WordPieces`"
    ),
    **{
        f"libai.models.{name}": OlderName(
            target=f"{_OF_LIBAI}.models.{name}", instead=f"`assay.compat.parts.bert.{here}`"
        )
        for name, here in {"BertModel": "Bert", "BertForPreTraining": "BertPretraining"}.items()
    },
    **{
        f"flowvision.transforms.{name}": _one(f"assay.compat.parts.images.{name}")
        for name in ("Compose", "Normalize", "RandomAffine", "RandomHorizontalFlip", "ToTensor")
    },
    **{
        f"libai.layers.{name}": _one(f"torch.nn.{name}")
        for name in ("Embedding", "LayerNorm", "Linear")
    },
    **{
        f"libai.scheduler.{name}": OlderName(
            target=f"{_OF_LIBAI}.schedules.{name}", instead=f"`{here}`"
        )
        for name, (here, _) in SCHEDULES.items()
    },
    "oneflow": OlderName(target="torch", instead="`torch`", is_module=True),
    # The losses of torch take class numbers of 64 bits alone.
    "oneflow.int": _one("torch.int64"),
    **{
        f"flowvision.{name}": OlderName(
            target="assay.compat.parts.images",
            instead="`assay.compat.parts.images`",
            is_module=True,
        )
        for name in ("transforms", "datasets")
    },
}

# --- thexp ----------------------------------------------------------------------------------------

_OF_THEXP = "assay.compat.thexp"
_THEXPS = {
    "Params": (f"{_OF_THEXP}.params.PermissiveParams", "`assay.Params`"),
    "BaseParams": ("assay.config.params.BaseParams", "`assay.BaseParams`"),
    "Meter": ("assay.record.meter.Meter", "`assay.Meter`"),
    "AvgMeter": ("assay.record.meter.AvgMeter", "`assay.AvgMeter`"),
    "Logger": ("assay.record.logger.Logger", "`assay.Logger`"),
    "RndManager": (
        f"{_OF_THEXP}.rnd_manager.RndManager",
        "`get_state` and `set_state` of `assay.engine`",
    ),
    "Saver": (f"{_OF_THEXP}.saver.TorchFileSaver", "`assay.engine.Saver`"),
    "Experiment": (f"{_OF_THEXP}.experiment.Experiment", "`assay.start`"),
    "ExperimentViewer": (f"{_OF_THEXP}.experiment.ExperimentViewer", "`assay.runs`"),
    "globs": ("assay.config.globs", "`assay.config.globs`"),
    "Trainer": (
        f"{_OF_THEXP}.trainer.Trainer",
        "`assay run` with a config, or `assay.engine.Engine`",
    ),
    "Callback": (f"{_OF_THEXP}.trainer.Callback", "a method under `assay.engine.on`"),
    "EvalCallback": (f"{_OF_THEXP}.trainer.EvalCallback", "[evaluate] every"),
    "LoggerCallback": (f"{_OF_THEXP}.trainer.LoggerCallback", "[display]"),
    "AutoReport": (
        f"{_OF_THEXP}.report.ReportCallback",
        "`assay.plugins.AutoReport`, `assay report`",
    ),
    "Reporter": (f"{_OF_THEXP}.report.Reporter", "`assay.plugins.AutoReport`, `assay report`"),
}
_THEXPS_PLACES = {
    "thexp": (
        "Params BaseParams Meter AvgMeter Logger RndManager Saver Experiment ExperimentViewer"
        " Trainer Reporter globs Callback EvalCallback LoggerCallback AutoReport"
    ),
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
_CALCULATE = {
    "accuracy": {"classify": "`assay.engine.Accuracy`"},
    "schedule": dict.fromkeys(
        ("rampup", "sigmoid_rampup", "linear_rampup", "cosine_rampdown"), "`assay.engine.Ramp`"
    ),
}

THEXP: Mapping[str, OlderName] = {
    **{
        f"{place}.{name}": OlderName(target=_THEXPS[name][0], instead=_THEXPS[name][1])
        for place, names in _THEXPS_PLACES.items()
        for name in names.split()
    },
    **{
        f"thexp.calculate.{place}{name}": OlderName(
            target=f"{_OF_THEXP}.calculate.{name}", instead=instead
        )
        for module, names in _CALCULATE.items()
        for name, instead in names.items()
        for place in ("", f"{module}.")
    },
    "thexp.utils.random": OlderName(
        target=f"{_OF_THEXP}.random_state",
        instead="`assay.engine.get_state`, `set_state` and `seed_all`",
        is_module=True,
    ),
    "thexp.utils.date.dataloader.DataLoader": OlderName(
        target="assay.compat.parts.devices.DataLoader",
        instead="`torch.utils.data.DataLoader`: the engine moves the batches",
    ),
}
"""Names of thexp by every place where its texts import them from."""

NAMES: Mapping[str, Mapping[str, OlderName]] = {
    "alchemy": ALCHEMY,
    "framework": FRAMEWORK,
    "thexp": THEXP,
    "flame": FLAME,
    "libai": LIBAI,
}
"""System -> what stands for each of its names, by its dotted path there."""
