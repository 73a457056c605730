"""The standard sections of a config as data: what may stand where, of what type and unit, and what
it is for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "text",  # a string
    "int",
    "float",  # an int will do
    "bool",
    "choice",  # one of `choices`
    "period",  # "1 epoch", "100 steps", "never"
    "steps",  # the same without epochs
    "duration",  # "90 s", "5 min", "2 h"
    "names",  # a list of strings
    "switch",  # true, false, one of `choices`, or a list of patterns of names
    "numbers",  # a table of free names, each a number, or again such a table
    "texts",  # a table of free names, each a string
    "call",  # type = target plus its arguments, or "@path" of one; see `keys` and `named`
    "calls",  # a list of calls
    "table",  # exactly `keys`
    "tables",  # tables of free names, each with exactly `keys`
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a config. `weights`: it belongs to what determines the weights, so the hash of a
    config covers it."""

    name: str
    kind: Kind
    doc: str
    default: str | int | float | bool | None = None
    required: bool = False
    weights: bool = True
    minimum: float | None = None
    maximum: int | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()  # of an int: words it takes besides numbers
    keys: tuple[Key, ...] = ()  # of a call: what stands there where there is no `type`
    named: bool = False  # of a call: there may be several in its place, each under a name
    one_of: tuple[str, ...] = ()  # of a table: at least one of these is given
    short: str = ""  # of a table: the key that a string alone stands for

    def key(self, name: str) -> Key | None:
        """The key `name` of a table."""
        return next((key for key in self.keys if key.name == name), None)


MAX_INT = 2**63 - 1
"""Largest signed 64-bit integer, and so the largest whole number that a standard key takes."""

MAX_WORKERS = MAX_THREADS = 4096
"""Processes of a loader, threads of a process: a machine has a few hundred cores, and many more threads end it."""

PARALLEL_TIMEOUT = "10 min"
"""As long as NCCL waits for a process that does not answer; gloo waits 30 minutes."""

ENABLED = Key(
    name="enabled",
    kind="bool",
    doc="false switches the section off and leaves it in place.",
    default=True,
)
"""The one switch of every section that can be done without."""

SECTIONS: tuple[Key, ...] = (
    Key(name="tag", kind="text", doc="The one title of a run.", default="", weights=False),
    Key(
        name="desc",
        kind="text",
        doc="What the run is for; the body of its README.",
        default="",
        weights=False,
    ),
    Key(
        name="seed",
        kind="int",
        doc="Every random number of the run comes from it.",
        default=0,
        minimum=0,
    ),
    Key(
        name="threads",
        kind="int",
        doc="CPU threads of one process; auto, its share of the cores, is chosen once and kept on resume.",
        default="auto",
        minimum=1,
        maximum=MAX_THREADS,
        choices=("auto",),
        weights=False,
    ),
    Key(
        name="plugins",
        kind="calls",
        doc="Context managers around the run, entered in this order and left in reverse.",
    ),
    Key(
        name="task",
        kind="call",
        doc="Data sets by split, what is known about them, and how they are evaluated.",
    ),
    Key(name="model", kind="call", doc="What is trained."),
    Key(
        name="load_weights",
        kind="table",
        doc="Where the weights come from that the training begins with. A text alone is its path.",
        short="path",
        keys=(
            Key(
                name="path",
                kind="text",
                doc="A file of weights or a checkpoint's folder, as seen from the working directory; or run:RUN@CKPT.",
                required=True,
            ),
            Key(
                name="rename",
                kind="texts",
                doc="Regular expressions, and what they become in every name.",
            ),
            Key(
                name="strict",
                kind="bool",
                doc="false: what does not fit is left out, and told. Left out: true.",
            ),
            Key(
                name="pickled",
                kind="bool",
                doc="true: read torch's own files too, as plain data. Left out: false.",
            ),
        ),
    ),
    Key(
        name="data",
        kind="tables",
        doc="The splits by name: data.train is trained on, the others are evaluated on.",
        keys=(
            Key(
                name="source",
                kind="call",
                doc="The dataset; or, without the keys below, an iterable of batches. Left out: that of the task.",
            ),
            Key(
                name="batch_size",
                kind="int",
                doc="train: samples of one optimizer step over all ranks and micro-steps; others: per rank.",
                minimum=1,
            ),
            Key(
                name="shuffle",
                kind="bool",
                doc="A new order every epoch. Left out: true for train only.",
            ),
            Key(
                name="randomness",
                kind="choice",
                doc="What random augmentation is keyed by. Left out: by the kind of source.",
                choices=("sample", "batch", "none"),
            ),
            Key(
                name="drop_last",
                kind="bool",
                doc="Leave out a last batch that is not full.",
                default=False,
            ),
            Key(
                name="micro_batch_size",
                kind="int",
                doc="Samples of one forward pass on one rank.",
                minimum=1,
            ),
            Key(name="sampler", kind="call", doc="The order of the samples, in place of shuffle."),
            Key(
                name="batch_sampler",
                kind="call",
                doc="Gives the indices of each batch, in place of batch_size.",
            ),
            Key(
                name="collate",
                kind="call",
                doc="Makes a batch of samples; a function with _partial_ = true.",
            ),
            Key(
                name="workers",
                kind="int",
                doc="Processes that load batches ahead; they change nothing but the speed.",
                default=0,
                minimum=0,
                maximum=MAX_WORKERS,
                weights=False,
            ),
            Key(
                name="prefetch",
                kind="int",
                doc="Batches that each worker has ready.",
                default=2,
                minimum=1,
                weights=False,
            ),
            Key(
                name="persistent_workers",
                kind="bool",
                doc="Keep the workers from one epoch to the next.",
                default=True,
                weights=False,
            ),
            Key(
                name="pin_memory",
                kind="bool",
                doc="Page-locked batches, which a GPU copies without waiting. Left out: true where there is CUDA.",
                weights=False,
            ),
            Key(
                name="timeout",
                kind="duration",
                doc="How long a worker may take for a batch, as in 60 s. Left out: learned from the batches before.",
                weights=False,
            ),
            Key(
                name="worker_init",
                kind="call",
                doc="Called in each worker with its number; a function with _partial_ = true.",
            ),
            Key(
                name="start_method",
                kind="choice",
                doc="How workers are started. Left out: as Python does it.",
                choices=("fork", "spawn", "forkserver"),
                weights=False,
            ),
        ),
    ),
    Key(name="process", kind="call", doc="How a batch becomes a loss and an update."),
    Key(
        name="criterion",
        kind="call",
        doc="The loss, where it is no part of the process; a test does without.",
    ),
    Key(
        name="optimizer",
        kind="call",
        doc="What changes the weights; its `params` come from the model. Several by name: [optimizer.critic].",
        named=True,
    ),
    Key(
        name="schedule",
        kind="call",
        doc="The learning rate over the run; its `optimizer` is the one above. Several by name: [schedule.critic].",
        named=True,
    ),
    Key(
        name="backward",
        kind="call",
        doc="How losses become an update; with a `type` a part of your own in the place of assay's.",
        keys=(
            Key(
                name="weights",
                kind="numbers",
                doc="Factors of the losses that a process gives by name.",
            ),
            Key(
                name="every",
                kind="numbers",
                doc="Of several optimizers: those that take each n-th step only.",
            ),
        ),
    ),
    Key(
        name="train",
        kind="table",
        doc="How long and how. The first of epochs, steps, samples and time that is reached ends the run.",
        one_of=("epochs", "steps", "samples", "time"),
        keys=(
            Key(name="epochs", kind="int", doc="Passes over data.train.", minimum=1),
            Key(name="steps", kind="int", doc="Optimizer steps.", minimum=1),
            Key(name="samples", kind="int", doc="Samples seen.", minimum=1),
            Key(name="time", kind="duration", doc="Wall time, as in 90 s, 5 min or 2 h."),
            Key(
                name="until",
                kind="choice",
                doc="Which of epochs and steps ends the run where both are given: the first reached, or the last.",
                default="first",
                choices=("first", "last"),
            ),
            Key(
                name="precision",
                kind="choice",
                doc="The number format of the forward pass; fp16 with a loss scale, tf32 of matrix products on a GPU.",
                default="fp32",
                choices=("fp32", "tf32", "bf16", "fp16"),
            ),
            Key(
                name="accumulate",
                kind="int",
                doc="Micro-steps of one optimizer step.",
                default=1,
                minimum=1,
            ),
            Key(
                name="clip_norm", kind="float", doc="The largest norm a gradient may have.", above=0
            ),
            Key(
                name="non_finite",
                kind="choice",
                doc="What to do when a loss or a gradient is infinite or NaN.",
                default="stop",
                choices=("stop", "skip", "ignore"),
            ),
            Key(
                name="compile",
                kind="switch",
                doc="torch.compile: of the whole model, of its blocks, or of the modules that patterns name.",
                default=False,
                choices=("blocks",),
            ),
            Key(
                name="activation_checkpoint",
                kind="switch",
                doc="Activations of blocks (or of the modules that patterns name) are computed again in backward.",
                default=False,
                choices=("blocks",),
            ),
            Key(
                name="channels_last",
                kind="bool",
                doc="Images lie in memory with their channels last.",
                default=False,
            ),
            Key(
                name="deterministic",
                kind="bool",
                doc="Only ops that give the same bits each time; one that cannot is an error that names it.",
                default=False,
            ),
        ),
    ),
    Key(
        name="evaluate",
        kind="table",
        doc="When the other splits are looked at.",
        weights=False,
        keys=(
            Key(name="every", kind="period", doc="How often.", default="1 epoch"),
            Key(
                name="precision",
                kind="choice",
                doc="The number format of the forward pass in evaluations.",
                default="fp32",
                choices=("fp32", "bf16", "fp16"),
            ),
            Key(
                name="splits",
                kind="names",
                doc="Which splits. Left out: all but train and those for tests.",
            ),
            Key(
                name="limit",
                kind="int",
                doc="Batches of each split at most; then marked partial.",
                minimum=1,
            ),
            Key(
                name="pipes",
                kind="calls",
                doc="What outputs go through before they are measured, in this order.",
            ),
            ENABLED,
        ),
    ),
    Key(
        name="checkpoint",
        kind="table",
        doc="When the run is saved so that it can go on.",
        weights=False,
        keys=(
            Key(name="every", kind="period", doc="How often.", default="1 epoch"),
            Key(name="keep", kind="int", doc="How many of the newest stay.", default=3, minimum=1),
            Key(
                name="background",
                kind="bool",
                doc="Write while the training goes on.",
                default=True,
            ),
            Key(
                name="best",
                kind="table",
                doc="Keep the best one too.",
                keys=(
                    Key(
                        name="metric",
                        kind="text",
                        doc="The metric that decides, as in valid/acc.",
                        required=True,
                    ),
                    Key(
                        name="mode",
                        kind="choice",
                        doc="What is better.",
                        choices=("min", "max"),
                        required=True,
                    ),
                ),
            ),
            ENABLED,
        ),
    ),
    Key(
        name="parallel",
        kind="table",
        doc="Over how many processes a run is divided, along which axes. It changes nothing that is trained.",
        weights=False,
        keys=(
            Key(
                name="data",
                kind="int",
                doc="Processes that each have the whole model, and share every batch.",
                default=1,
                minimum=1,
            ),
            Key(
                name="shard",
                kind="int",
                doc="Processes that share every batch, and of which each keeps a part of the weights (FSDP2).",
                default=1,
                minimum=1,
            ),
            Key(
                name="tensor",
                kind="int",
                doc="Processes that see the same samples, and of which each computes a part of every layer.",
                default=1,
                minimum=1,
            ),
            Key(
                name="pipeline",
                kind="int",
                doc="Processes that see the same samples, and of which each computes some of the layers.",
                default=1,
                minimum=1,
            ),
            Key(
                name="tensor_plan",
                kind="texts",
                doc="Which modules are divided along `tensor`, and how. Left out: as the model says, or by its layers.",
            ),
            Key(
                name="timeout",
                kind="duration",
                doc="How long a process may get no further, from its first step on, before all are ended.",
                default=PARALLEL_TIMEOUT,
            ),
            Key(
                name="schedule",
                kind="choice",
                choices=("1f1b", "gpipe", "interleaved"),
                doc="In which order a pipeline takes the micro-batches of a step forward and back.",
                default="1f1b",
            ),
            Key(
                name="stages",
                kind="int",
                doc="Of a pipeline, a multiple of `pipeline`. 0: one for each of its processes, two if interleaved.",
                default=0,
                minimum=0,
            ),
            Key(
                name="split",
                kind="names",
                doc="The parts of the model with which stages after the first begin. Left out: stages of like size.",
            ),
            Key(
                name="shard_blocks",
                kind="switch",
                doc="Blocks whose weights come together one by one. Left out: shard_blocks() of the model, or what it"
                " repeats; false: all at once.",
                choices=("blocks",),
            ),
            Key(
                name="zero",
                kind="table",
                doc="ZeRO: where there is no `shard`, the processes of `data` share out the weights.",
                keys=(
                    Key(
                        name="stage",
                        kind="int",
                        doc="3: as `shard`; 2: weights stay together between forward and backward; 1: gradients too.",
                        default=3,
                        minimum=1,
                        maximum=3,
                    ),
                    ENABLED,
                ),
            ),
            Key(
                name="bucket_mb",
                kind="int",
                doc="Gradients that are sent at once, in MiB, as bucket_cap_mb of torch's DDP; 0 is its default, 25.",
                default=0,
                minimum=0,
            ),
        ),
    ),
    Key(
        name="log",
        kind="table",
        doc="What is recorded of the steps.",
        weights=False,
        keys=(
            Key(
                name="every",
                kind="steps",
                doc="How often loss, learning rate, gradient norm and what the process logs are recorded.",
                default="1 step",
            ),
        ),
    ),
    Key(
        name="trace",
        kind="table",
        doc="Fingerprints of batches, gradients and weights: they tell where two runs part.",
        weights=False,
        keys=(
            Key(
                name="every", kind="period", doc="How often a step is traced.", default="100 steps"
            ),
            Key(
                name="level",
                kind="choice",
                doc="full: every operation of these steps too; such a step takes a few times as long.",
                default="default",
                choices=("default", "full"),
            ),
            ENABLED,
        ),
    ),
    Key(
        name="display",
        kind="table",
        doc="What a person sees while it runs.",
        weights=False,
        keys=(
            Key(
                name="every",
                kind="period",
                doc="How often a line is printed where there is no terminal; on one it is a bar and a line an epoch.",
                default="1 epoch",
            ),
            Key(
                name="quiet",
                kind="bool",
                doc="Print nothing but problems and the end.",
                default=False,
            ),
            Key(
                name="log_format",
                kind="text",
                doc="Of the lines of `log.txt`, as `logging.Formatter` takes it; `%(tag)s` is the run's tag.",
            ),
            Key(name="date_format", kind="text", doc='Of the times in it, as "%Y/%m/%d %H:%M:%S".'),
            ENABLED,
        ),
    ),
)

LOADER_CLASHES: tuple[tuple[str, str, str], ...] = (
    ("sampler", "shuffle", "a sampler says the order"),
    ("sampler", "batch_sampler", "both say the order"),
    ("batch_sampler", "shuffle", "a batch sampler says the order"),
    ("batch_sampler", "batch_size", "a batch sampler says what a batch is"),
    ("batch_sampler", "micro_batch_size", "a batch sampler says what a batch is"),
    ("batch_sampler", "drop_last", "a batch sampler says what a batch is"),
)
"""Keys of a split that say the same thing twice, with why."""

LOADER_OF_WORKERS = ("prefetch", "persistent_workers", "timeout", "worker_init", "start_method")
"""Keys of a split that mean nothing without worker processes."""

LAUNCH: Mapping[str, str] = {
    "device": "--device",
    "debug": "--debug",
    "no_file": "--no-file",
    "nproc": "--nproc",
    "user_dir": "--user-dir",
}
"""Settings of one launch, which are given on the command line and never stand in a file."""

MAKERS: Mapping[str, str] = {
    "variants": "Named overrides: [variants.big] and under it keys of the file with other values.",
    "sweep": "Keys with a list of values each: one run for every point.",
}
"""Sections that say which configs to make of a file. No single config has them."""

PARALLEL_AXES = ("pipeline", "data", "shard", "tensor")
"""Keys of [parallel] that say how many processes there are, from the outside in: the last exchange most."""


def is_for_tests(split: str) -> bool:
    """`test`, and `test_clean` or `test_noisy` where there are several: looked at by `assay
    test`."""
    return split == "test" or split.startswith("test_")


def is_for_inference(split: str) -> bool:
    """`infer`, and `infer_...`: data without targets, looked at by `assay test --infer`."""
    return split == "infer" or split.startswith("infer_")


def is_evaluated(split: str) -> bool:
    """Whether training looks at a split now and then, unless the config names others."""
    return split != "train" and not is_for_tests(split) and not is_for_inference(split)


def section(name: str) -> Key | None:
    """The standard section `name`."""
    return next((key for key in SECTIONS if key.name == name), None)


def find(path: Iterable[str | int]) -> Key | None:
    """The standard key at `path`; None for the insides of calls and for what is not standard.

    >>> find(["data", "train", "batch_size"]).kind
    'int'
    >>> find(["model", "width"]) is None
    True
    """
    parts = list(path)
    if not parts or not isinstance(parts[0], str):
        return None
    found = section(parts[0])
    rest = parts[1:]
    while found is not None and rest:
        if found.kind == "tables":
            rest = rest[1:]
            if not rest:
                return None
        if found.kind not in ("table", "tables"):
            return None
        found = found.key(rest[0]) if isinstance(rest[0], str) else None
        rest = rest[1:]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Once in `count` epochs or steps; `count` 0 is never."""

    count: int
    unit: Literal["epoch", "step"]


PERIOD_FORMS = 'such as "1 epoch", "2 epochs", "100 steps" or "never"'
_PERIOD = re.compile(r"(?P<count>[1-9]\d{0,17}) *(?P<unit>epoch|step)s?", re.ASCII)


def parse_period(text: str) -> Period:
    """What "2 epochs" says; ValueError for anything that says nothing.

    >>> parse_period("100 steps")
    Period(count=100, unit='step')
    >>> parse_period("never").count
    0
    """
    if text == "never":
        return Period(count=0, unit="step")
    found = _PERIOD.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no period, {PERIOD_FORMS}")
    return Period(count=int(found["count"]), unit="epoch" if found["unit"] == "epoch" else "step")


STEPS_FORMS = 'such as "1 step", "100 steps" or "never"'


def parse_steps(text: str) -> int:
    """Return the number of steps in "100 steps", 0 for "never"; ValueError for anything else,
    epochs too.

    >>> parse_steps("100 steps")
    100
    """
    period = parse_period(text)
    if period.unit != "step":
        raise ValueError(f"{text!r} is no number of steps, {STEPS_FORMS}")
    return period.count


DURATION_FORMS = 'such as "90 s", "5 min", "2 h" or "1.5 d"'
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?P<amount>\d{1,12}(?:\.\d{1,9})?) *(?P<unit>s|min|h|d)", re.ASCII)


def parse_duration_s(text: str) -> float:
    """Seconds in "90 s", "5 min", "2 h" or "1.5 d"; ValueError for anything else and for nothing at
    all.

    >>> parse_duration_s("5 min")
    300.0
    """
    found = _DURATION.fullmatch(text)
    seconds = float(found["amount"]) * _SECONDS[found["unit"]] if found else 0.0
    if seconds == 0:
        raise ValueError(f"{text!r} is no duration, {DURATION_FORMS}")
    return seconds


_SIZES = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(rf"(?P<amount>\d{{1,12}}(?:\.\d{{1,9}})?) *(?P<unit>{'|'.join(_SIZES)})")


def parse_size_bytes(text: str) -> int:
    """Return the bytes in "80GB" or "16 GiB"; ValueError for anything else and for nothing at all.

    >>> parse_size_bytes("1.5 kB"), parse_size_bytes("1GiB")
    (1500, 1073741824)
    """
    found = _SIZE.fullmatch(text.strip())
    size = round(float(found["amount"]) * _SIZES[found["unit"]]) if found else 0
    if size == 0:
        raise ValueError(f"{text!r} is no size; it is a number and one of {', '.join(_SIZES)}")
    return size
