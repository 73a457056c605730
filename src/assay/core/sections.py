"""Standard sections of a config as dataclasses: every key with its type, bounds and default.

`assay.core.schema` makes the keys that a config is checked by from them, and
`read_section(StandardSections, values)` makes the typed object that code is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from assay.core.keys import key, mapping, table

MAX_WORKERS = MAX_THREADS = 4096
"""Upper bound: a machine has a few hundred cores, and many more threads would end it."""

Randomness = Literal["sample", "batch", "none"]
StartMethod = Literal["fork", "spawn", "forkserver"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
EvaluationPrecision = Literal["fp32", "bf16", "fp16"]
GradientPrecision = Literal["fp32", "bf16"]
Until = Literal["first", "last"]
NonFinite = Literal["stop", "skip", "ignore"]
BestMode = Literal["min", "max"]
PipelineSchedule = Literal["1f1b", "gpipe", "interleaved"]
TraceLevel = Literal["default", "full"]
Runner = Literal["train", "test", "infer"]

Switch = bool | str | Sequence[str]
"""Value of a switch: on, off, "blocks", or patterns of module names."""

PARALLEL_AXES = ("pipeline", "data", "shard", "tensor")
"""Axes of [parallel] from the outside in: the ranks of the last exchange most."""


def enabled_key() -> Any:
    """Return the field of the one switch that every section which can be left out has."""
    return key("bool", "false switches the section off and leaves it in place.", default=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWeightsSection:
    """Section [load_weights]: weights that a new run begins with."""

    path: str = key(
        "text",
        "A file of weights or a checkpoint's folder, from the working directory; or run:RUN@CKPT.",
        required=True,
    )
    rename: Mapping[str, str] = mapping(
        "texts", "Regular expressions, and their replacements in every name."
    )
    mapping: str | None = key(
        "text", "A TOML file with the names and shapes of weights of another framework."
    )
    strict: bool | None = key(
        "bool", "false: leave out what does not fit, and report it. Left out: true."
    )
    pickled: bool | None = key(
        "bool", "true: read torch's own files too, as plain data. Left out: false."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSection:
    """Section [data.NAME]: one split and how its batches are made."""

    source: Any = key(
        "call",
        "The dataset; or, without the keys below, an iterable of batches. Left out: the task's.",
    )
    batch_size: int | None = key(
        "int",
        "train: samples of one optimizer step over all ranks and micro-steps; others: per rank.",
        minimum=1,
    )
    shuffle: bool | None = key("bool", "A new order every epoch. Left out: true for train only.")
    randomness: Randomness | None = key(
        "choice",
        "Key of random augmentation. Left out: by the kind of source.",
        choices=get_args(Randomness),
    )
    drop_last: bool = key("bool", "Leave out a last batch that is not full.", default=False)
    micro_batch_size: int | None = key("int", "Samples of one forward pass on one rank.", minimum=1)
    sampler: Any = key("call", "The order of the samples, in place of shuffle.")
    batch_sampler: Any = key("call", "Gives the indices of each batch, in place of batch_size.")
    collate: Any = key("call", "Makes a batch of samples; a function with _partial_ = true.")
    workers: int = key(
        "int",
        "Worker processes that load batches ahead; they change nothing but the speed.",
        default=0,
        minimum=0,
        maximum=MAX_WORKERS,
        weights=False,
    )
    prefetch: int = key(
        "int", "Batches that each worker has ready.", default=2, minimum=1, weights=False
    )
    persistent_workers: bool = key(
        "bool", "Keep the workers from one epoch to the next.", default=True, weights=False
    )
    pin_memory: bool | None = key(
        "bool",
        "Page-locked batches, which a GPU copies without waiting. Left out: true with CUDA.",
        weights=False,
    )
    timeout: str | None = key(
        "duration",
        "Longest time of a worker for one batch, as in 60 s. Left out: learned from the batches"
        " before.",
        weights=False,
    )
    worker_init: Any = key(
        "call", "Called in each worker with its number; a function with _partial_ = true."
    )
    start_method: StartMethod | None = key(
        "choice",
        "How workers are started. Left out: as Python does it.",
        choices=get_args(StartMethod),
        weights=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardSection:
    """Section [backward] without a `type`: weights of losses, and optimizers that skip steps."""

    weights: Mapping[str, Any] = mapping(
        "numbers", "Factors of the losses that a process gives by name."
    )
    every: Mapping[str, int] = mapping(
        "numbers", "Of several optimizers: those that take each n-th step only."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSection:
    """Section [train]: length of the run, precision, and how a step is made."""

    epochs: int | None = key("int", "Passes over data.train.", minimum=1)
    steps: int | None = key("int", "Optimizer steps.", minimum=1)
    samples: int | None = key("int", "Samples seen.", minimum=1)
    time: str | None = key("duration", "Wall time, as in 90 s, 5 min or 2 h.")
    until: Until = key(
        "choice",
        "Which of epochs and steps ends the run where both are given: the first reached, or the"
        " last.",
        default="first",
        choices=get_args(Until),
    )
    precision: Precision = key(
        "choice",
        "Number format of the forward pass; fp16 with a loss scale, tf32 of matrix products on a"
        " GPU.",
        default="fp32",
        choices=get_args(Precision),
    )
    accumulate: int | None = key("int", "Micro-steps of one optimizer step.", implied=1, minimum=1)
    clip_norm: float | None = key("float", "Largest norm of the gradient.", above=0)
    non_finite: NonFinite = key(
        "choice",
        "Reaction to a loss or a gradient that is infinite or NaN.",
        default="stop",
        choices=get_args(NonFinite),
    )
    compile: Switch = key(
        "switch",
        "torch.compile: of the whole model, of its blocks, or of the modules that patterns name.",
        default=False,
        choices=("blocks",),
    )
    activation_checkpoint: Switch = key(
        "switch",
        "Compute activations of blocks, or of the modules that patterns name, again in backward.",
        default=False,
        choices=("blocks",),
    )
    channels_last: bool = key(
        "bool", "Memory layout of images with the channels last.", default=False
    )
    deterministic: bool = key(
        "bool",
        "Only ops that give the same bits each time; one that cannot is an error that names it.",
        default=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateSection:
    """Section [evaluate]: evaluation of the other splits during training."""

    every: str = key("period", "Period of evaluations.", default="1 epoch")
    precision: EvaluationPrecision = key(
        "choice",
        "Number format of the forward pass in evaluations.",
        default="fp32",
        choices=get_args(EvaluationPrecision),
    )
    splits: Sequence[str] | None = key(
        "names", "Evaluated splits. Left out: all but train and those for tests."
    )
    limit: int | None = key("int", "Batches of each split at most; then marked partial.", minimum=1)
    pipes: Any = key("calls", "Stages that outputs go through before they are measured, in order.")
    enabled: bool = enabled_key()


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSection:
    """Section [checkpoint.best]: the metric that decides which checkpoint is kept as the best."""

    metric: str = key("text", "The metric that decides, as in valid/acc.", required=True)
    mode: BestMode = key("choice", "What is better.", choices=get_args(BestMode), required=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSection:
    """Section [checkpoint]: checkpoints from which a run is resumed."""

    every: str = key("period", "Period of checkpoints.", default="1 epoch")
    keep: int = key("int", "Number of the newest that stay.", default=3, minimum=1)
    background: bool = key("bool", "Write while training continues.", default=True)
    best: BestSection | None = table(BestSection, "Keep the best one too.", optional=True)
    enabled: bool = enabled_key()


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSection:
    """Section [parallel.zero]: ZeRO over the processes of `data`."""

    stage: int = key(
        "int",
        "3: as `shard`; 2: weights stay together between forward and backward; 1: gradients too.",
        default=3,
        minimum=1,
        maximum=3,
    )
    enabled: bool = enabled_key()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSection:
    """Section [parallel]: the processes of a run along each axis, and how they work together."""

    data: int | None = key(
        "int",
        "Processes that each have the whole model, and share every batch.",
        implied=1,
        minimum=1,
    )
    shard: int | None = key(
        "int",
        "Processes that share every batch, and of which each keeps a part of the weights (FSDP2).",
        implied=1,
        minimum=1,
    )
    tensor: int | None = key(
        "int",
        "Processes that see the same samples, and of which each computes a part of every layer.",
        implied=1,
        minimum=1,
    )
    pipeline: int | None = key(
        "int",
        "Processes that see the same samples, and of which each computes some of the layers.",
        implied=1,
        minimum=1,
    )
    tensor_plan: Mapping[str, str] | None = key(
        "texts",
        "Modules that are divided along `tensor`, and how. Left out: the model's plan, or by its"
        " layers.",
    )
    timeout: str = key(
        "duration",
        "Longest time without progress of a process before all are ended; before its first step, at"
        " least 30 min.",
        default="10 min",  # that of NCCL; gloo waits 30 minutes
    )
    schedule: PipelineSchedule = key(
        "choice",
        "Order in which a pipeline takes the micro-batches of a step forward and back.",
        default="1f1b",
        choices=get_args(PipelineSchedule),
    )
    stages: int = key(
        "int",
        "Of a pipeline, a multiple of `pipeline`. 0: one for each of its processes, two if"
        " interleaved.",
        default=0,
        minimum=0,
    )
    split: Sequence[str] | None = key(
        "names",
        "Parts of the model with which stages after the first begin. Left out: equal stages.",
    )
    shard_blocks: Switch | None = key(
        "switch",
        "Blocks whose weights are gathered one by one. Left out: shard_blocks() of the model, or"
        " what it repeats; false: all at once.",
        choices=("blocks",),
    )
    shard_precision: EvaluationPrecision = key(
        "choice",
        "Number format in which blocks gather their weights; one of half size has to be that of"
        " [train] and [evaluate] too.",
        default="fp32",
        choices=get_args(EvaluationPrecision),
    )
    gradient_precision: GradientPrecision = key(
        "choice",
        "Number format in which gradients are summed over `data` and `shard`; one of half size"
        " halves what is sent, and loses digits of sums over many processes.",
        default="fp32",
        choices=get_args(GradientPrecision),
    )
    zero: ZeroSection | None = table(
        ZeroSection,
        "ZeRO: where there is no `shard`, the processes of `data` share out the weights.",
        optional=True,
    )
    bucket_mb: int = key(
        "int",
        "Gradients that are sent at once, in MiB, as bucket_cap_mb of torch's DDP; 0 is its"
        " default, 25.",
        default=0,
        minimum=0,
    )

    @property
    def axes(self) -> dict[str, int]:
        """Return the sizes of the axes that are given, from the outside in."""
        sizes = {name: getattr(self, name) for name in PARALLEL_AXES}
        return {name: int(size) for name, size in sizes.items() if size is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSection:
    """Section [log]: what is recorded of the steps."""

    every: str = key(
        "steps",
        "Period of loss, learning rate, gradient norm and what the process logs.",
        default="1 step",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSection:
    """Section [trace]: fingerprints of steps, by which two runs are compared."""

    every: str = key("period", "Period of traced steps.", default="100 steps")
    level: TraceLevel = key(
        "choice",
        "full: every operation of these steps too; such a step takes a few times as long.",
        default="default",
        choices=get_args(TraceLevel),
    )
    enabled: bool = enabled_key()


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplaySection:
    """Section [display]: what is printed during a run, and the form of its log."""

    every: str = key(
        "period",
        "Period of lines where there is no terminal; a terminal has a bar and a line an epoch.",
        default="1 epoch",
    )
    quiet: bool = key("bool", "Print nothing but problems and the end.", default=False)
    log_format: str | None = key(
        "text",
        "Of the lines of `log.txt`, as `logging.Formatter` takes it; `%(tag)s` is the run's tag.",
    )
    date_format: str | None = key("text", 'Of the times in it, as "%Y/%m/%d %H:%M:%S".')
    enabled: bool = enabled_key()


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardSections:
    """The top of a config. Calls are plain here: the builder makes objects of them."""

    tag: str = key("text", "The one title of a run.", default="", weights=False)
    desc: str = key(
        "text", "Purpose of the run; the body of its README.", default="", weights=False
    )
    seed: int = key("int", "Seed of every random number of the run.", default=0, minimum=0)
    runner: Runner | None = key(
        "choice",
        "What `assay run` does with the config: train, which is meant where it is left out, or"
        " evaluate load_weights as `assay test` does; infer keeps the outputs of splits without"
        " targets.",
        choices=get_args(Runner),
        weights=False,
    )
    threads: int | str = key(
        "int",
        "CPU threads of one process; auto, its share of the cores, is chosen once and kept on"
        " resume.",
        default="auto",
        minimum=1,
        maximum=MAX_THREADS,
        choices=("auto",),
        weights=False,
    )
    plugins: Any = key(
        "calls", "Context managers around the run, entered in this order and left in reverse."
    )
    task: Any = key(
        "call", "Data sets by split, what is known about them, and how they are evaluated."
    )
    model: Any = key("call", "The trained model.")
    load_weights: LoadWeightsSection | None = table(
        LoadWeightsSection,
        "Weights that training begins with. A text alone is its path.",
        optional=True,
        short="path",
    )
    data: Mapping[str, SplitSection] = table(
        SplitSection,
        "The splits by name: data.train is trained on, the others are evaluated on.",
        kind="tables",
    )
    process: Any = key("call", "How a batch becomes a loss and an update.")
    criterion: Any = key(
        "call", "The loss, where it is no part of the process; a test does without."
    )
    optimizer: Any = key(
        "call",
        "The optimizer; its `params` come from the model. Several by name: [optimizer.critic].",
        named=True,
    )
    schedule: Any = key(
        "call",
        "The learning rate over the run; its `optimizer` is the one above. Several by name:"
        " [schedule.critic].",
        named=True,
    )
    backward: BackwardSection = table(
        BackwardSection,
        "How losses become an update; with a `type` a part of your own in the place of assay's.",
        kind="call",
    )
    train: TrainSection = table(
        TrainSection,
        "Length and manner of training. The first of epochs, steps, samples and time that is"
        " reached ends the run.",
        one_of=("epochs", "steps", "samples", "time"),
    )
    evaluate: EvaluateSection = table(
        EvaluateSection, "Evaluation of the other splits.", weights=False
    )
    checkpoint: CheckpointSection = table(
        CheckpointSection, "Checkpoints, from which a run is resumed.", weights=False
    )
    parallel: ParallelSection = table(
        ParallelSection,
        "Number of processes along each axis. It changes nothing that is trained.",
        weights=False,
    )
    log: LogSection = table(LogSection, "What is recorded of the steps.", weights=False)
    trace: TraceSection = table(
        TraceSection,
        "Fingerprints of batches, gradients and weights, by which two runs are compared.",
        weights=False,
    )
    display: DisplaySection = table(
        DisplaySection, "What a person sees during the run.", weights=False
    )
