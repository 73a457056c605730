"""Table of alchemy's names: the target of each here, and how the same is said without alchemy."""

from __future__ import annotations

from collections.abc import Mapping

from assay.config.older_systems.entries import OlderName

_HERE = "assay.compat.alchemy"
_LST = "assay.engine.data.map_style"
_ITR = "assay.engine.data.streams"


def _same(package: str, place: str, names: Mapping[str, str]) -> dict[str, OlderName]:
    """Return entries for classes of `place` that do what alchemy's do."""
    return {
        f"{package}.{name}": OlderName(target=f"{place}.{here}", instead=f"`{place}.{here}`")
        for name, here in names.items()
    }


_PLUGINS = {
    "BasicSetup": "nothing is needed: every run logs, and `--debug` sets the rest",
    "FileLogger": "nothing is needed: every run has a record; `--no-file` leaves it out",
    "Backup": "nothing is needed: every record has a snapshot of the code",
    "TensorboardLogger": '{ type = "assay.plugins.TensorBoard" }',
    "DisplayRunningInfo": "nothing is needed: every log begins with versions and devices",
}
_RUNNERS = {
    "alchemy.runner.AlchemyRunner": "train",
    "alchemy.runner.Trainer": "train",
    "alchemy.runner.Tester": "test",
    "alchemy.runner.AlchemyTester": "test",
    "alchemy.runner.ALchemyTester": "test",  # as the README of alchemy writes it
}
_CODE = {
    "AlchemyTask": ("task.AlchemyTask", "`assay.engine.Task` with `dataset(split)`"),
    "SchedPipeline": ("pipelines.SchedPipeline", "`assay.engine.Pipelines`, or `@on(...)`"),
    "BeginEpochPipeline": ("pipelines.BeginEpochPipeline", "`assay.engine.Pipelines`"),
    "EndEpochPipeline": ("pipelines.EndEpochPipeline", "`assay.engine.Pipelines`"),
    "BeginStepPipeline": ("pipelines.BeginStepPipeline", "`assay.engine.Pipelines`"),
    "EndStepPipeline": ("pipelines.EndStepPipeline", "`assay.engine.Pipelines`"),
    "evaluate": ("pipelines.evaluate", "[evaluate] every and splits"),
    "sym_tbl": ("symbols.sym_tbl", "`current` of assay.build, or a parameter named `model`"),
    "logger": ("pipelines.logger", '`logging.getLogger("assay")`'),
    "run": ("runner.run", "`assay.run`"),
    "prepare_cfg": ("runner.prepare_cfg", "`assay.config.load`"),
}

NAMES: Mapping[str, OlderName] = {
    **{
        f"alchemy.plugins.{name}": OlderName(target=f"{_HERE}.plugins.{name}", instead=instead)
        for name, instead in _PLUGINS.items()
    },
    "alchemy.plugins.Seeding": OlderName(
        target=f"{_HERE}.plugins.Seeding",
        instead="`seed` at the top of the config and `train.deterministic`",
        keys={"seed": "seed", "use_deterministic_algorithms": "train.deterministic"},
    ),
    **_same(
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
    **_same(
        "alchemy.pipeline.itr",
        _ITR,
        {
            name: name
            for name in ("Batch", "Bucket", "Concat", "Filter", "FlatMap", "Map", "Mix", "Prefetch")
        }
        | {name: name for name in ("Shuffle", "SplitByWorker", "Take")},
    ),
    **_same("alchemy.pipeline", _ITR, {"Batch": "Batch"}),
    **_same("alchemy.pipeline.output", "assay.engine", {"Collect": "Collect"}),
    **_same("alchemy.sched", "assay.engine", {"NoamScheduler": "Noam"}),
    **{
        name: OlderName(target=runner, instead=f'runner = "{runner}"')
        for name, runner in _RUNNERS.items()
    },
    **{
        f"alchemy.{name}": OlderName(target=f"{_HERE}.{target}", instead=instead)
        for name, (target, instead) in _CODE.items()
    },
}
"""Names of alchemy. Of a runner the target is the value of `runner` in a config."""
