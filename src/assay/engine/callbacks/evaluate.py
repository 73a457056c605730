"""Evaluation: every sample of a split once, in order, without disturbing the training around it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter
from typing import Any
from zlib import crc32

import torch

from assay.core.errors import InputError
from assay.core.events import Event, Handler
from assay.core.facts import Evaluated, Warned
from assay.core.ports import NullRecorder, Recorder
from assay.engine.data.adopt import refuse_samples
from assay.engine.data.ahead import ahead
from assay.engine.data.batches import blame_device, length_of, size_of, to_device
from assay.engine.data.loader import Loader
from assay.engine.data.source import Window, settle_seed
from assay.engine.loop.bus import every as each
from assay.engine.loop.engine import Engine
from assay.engine.loop.engine_state import eval_modes
from assay.engine.loop.process import Process
from assay.engine.metrics.means import LoggedMeans, Mean
from assay.engine.metrics.metric import Metric, as_metric
from assay.engine.metrics.outputs import Evaluation, Pipes, check_mergeable, gather_evaluation
from assay.engine.numerics.seed import EVALUATE, restore_generators, seed_all, stream_key
from assay.engine.optim.data_parallel_group import DataParallelGroup
from assay.engine.optim.losses import LOSS
from assay.engine.parallel.pipeline import Pipeline

_LOGGER = logging.getLogger("assay")


class Evaluate:
    """Callback that evaluates splits periodically, and at the end unless just done.

    Results go to `state.metrics` and to the record.

    `limit`: at most that many batches of each; what comes of a part is recorded as such. `pipes`
    get the outputs, and `metrics` measure them beside those of the process. Without a `seed` of its
    own it has that of the engine.
    """

    def __init__(
        self,
        splits: Mapping[str, Iterable[Any]],
        *,
        every: str = "1 epoch",
        limit: int | None = None,
        seed: int | None = None,
        pipes: Pipes | Sequence[Any] = (),
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        if limit is not None and limit < 1:
            raise InputError(
                f"The limit of an evaluation is {limit} batches; it must be at least 1."
            )
        for split, batches in splits.items():
            refuse_samples(batches, f"The split {split}")
        self.splits = dict(splits)
        self.every = every
        self.limit = limit
        self.seed = seed
        self.pipes = pipes if isinstance(pipes, Pipes) else Pipes(pipes)
        self.metrics = dict(metrics or {})
        self._told_empty: set[str] = set()

    def for_splits(self, splits: Mapping[str, Iterable[Any]]) -> Evaluate:
        """Return the evaluation of other splits with the same pipes, metrics, limit and seed."""
        return Evaluate(
            splits,
            every=self.every,
            limit=self.limit,
            seed=self.seed,
            pipes=self.pipes,
            metrics=self.metrics,
        )

    def handlers(self) -> list[Handler]:
        """Return the handlers; InputError for a split train, whose loss is that of the steps."""
        periodic = each(self.every, self.run, name="Evaluate")
        if periodic is None or not self.splits:
            return []
        if "train" in self.splits:
            raise InputError(
                "train/loss is the loss of the steps, so train cannot be evaluated by that name.",
                fix="Give the split another name, as Evaluate({'train_again': ...}).",
            )
        return [periodic, Handler(event=Event.RUN_END, fn=self.finish, name="Evaluate")]

    def rehearse(self, engine: Engine) -> None:
        """Evaluate one batch of every split and drop what comes of it.

        Called after the first step: a validation step that cannot run is told now, not after an
        epoch. An iterator is left out: the batch would be lost. Nothing is recorded, and no event
        is fired.
        """
        with eval_modes(engine.process):
            for split, batches in self.splits.items():
                if isinstance(batches, Iterator):
                    continue
                batches, _ = settle_seed(batches, engine.seed)
                self.splits[split] = batches
                evaluate(
                    engine.process,
                    share_of(batches, engine.ranks.size, engine.ranks),
                    split=split,
                    device=engine.device,
                    metrics=self.metrics,
                    ranks=engine.ranks,
                    pipeline=engine.pipeline,
                    rehearsal=True,
                )
            engine.process.train()

    def finish(self, engine: Engine) -> None:
        """The last evaluation, unless the run goes on later: then it is not the last."""
        if not engine.state.stop.interrupts:
            self.run(engine)

    def run(self, engine: Engine) -> None:
        """Evaluate every split, once for each step, even if the run resumes from this step."""
        state = engine.state
        due = {
            split: batches
            for split, batches in self.splits.items()
            if state.evaluated.get(split) != state.step
        }
        if not due:
            return
        begun = perf_counter()
        with eval_modes(engine.process):
            for split, batches in due.items():
                batches, _ = settle_seed(batches, engine.seed)
                self.splits[split] = batches
                self._split(engine, split, batches)
            engine.process.train()  # of a process of others: it may hold modules that nobody sees
        engine.add_seconds("evaluation", perf_counter() - begun)

    def _split(self, engine: Engine, split: str, batches: Iterable[Any]) -> None:
        state = engine.state
        begun = perf_counter()
        state.split = split
        trained_on = state.dataloader
        state.dataloader = batches
        engine.fire(Event.EVAL_BEGIN)
        results, samples = evaluate(
            engine.process,
            share_of(batches, self.limit, engine.ranks),
            split=split,
            step=state.step,
            seed=engine.seed if self.seed is None else self.seed,
            device=engine.device,
            pipes=self.pipes,
            metrics=self.metrics,
            recorder=engine.recorder,
            ranks=engine.ranks,
            pipeline=engine.pipeline,
            before=lambda: engine.fire(Event.EVAL_STEP_BEGIN),
            after=lambda: engine.fire(Event.EVAL_STEP_END),
        )
        results |= dict.fromkeys(self._find_unmeasured(engine, split, results), math.nan)
        state.metrics.update(results)
        state.evaluated[split] = state.step
        state.valid_samples += samples
        is_empty = not results and not self.pipes.pipes and engine.ranks.rank == 0
        if is_empty and split not in self._told_empty:
            self._told_empty.add(split)
            tell_unmeasured(engine.recorder, split, state.step)
        engine.recorder.log(results, state.step)
        seconds = perf_counter() - begun
        fact = Evaluated(
            split=split, step=state.step, metrics=results, samples=samples, seconds=seconds
        )
        at_stop = state.stop.is_settled and engine.is_cut_short
        fact = replace(fact, partial=part_of(batches, self.limit), at_stop=at_stop)
        engine.recorder.tell(fact)
        engine.fire(Event.EVAL_END)
        state.split, state.dataloader = "", trained_on

    def _find_unmeasured(
        self, engine: Engine, split: str, results: Mapping[str, float]
    ) -> Iterator[str]:
        """Yield parts of metrics that an earlier evaluation measured and this one did not.

        Without a new value the old one would stand as the newest.
        """
        names = (*getattr(engine.process, "metrics", {}), *self.metrics)
        within = tuple(f"{split}/{name}/" for name in names)
        for part in engine.state.metrics:
            if part.startswith(within) and part not in results:
                yield part


def tell_unmeasured(recorder: Recorder, split: str, step: int) -> None:
    """Record that an evaluation gave no number."""
    message = (
        f"The evaluation of {split} measures nothing: the process has no metrics, and its output no"
        " loss. Give it metrics, as metrics={'acc': Accuracy()}; or return {'pred': ..., 'target':"
        " ..., 'loss': ...} from the step or from `validate`."
    )
    _tell(recorder, message, step)


def _tell_unweighed(process: Process, evaluation: Evaluation, ranks: DataParallelGroup) -> None:
    """Record once that nobody knows what divided the loss of the process."""
    who: str | None = getattr(process, "unweighed", None)
    if ranks.is_staged:  # the loss is known to the last stage
        who = ranks.first_report(who or "", unless="")
    if not who:
        return
    process.unweighed = None
    if ranks.is_first:
        message = (
            f"{evaluation.split}/loss is the mean over the samples of what each batch gave: what"
            f" {who} divides it by is unknown. Let it return the pair (sum, weight); or say what it"
            ' returns: reduction = "mean" or "sum" under [process], or as an argument.'
        )
        _tell(evaluation.recorder, message, evaluation.step)


def _tell(recorder: Recorder, message: str, step: int) -> None:
    if isinstance(recorder, NullRecorder):
        _LOGGER.warning(message)
    recorder.tell(Warned(message=message, step=step))


def evaluated_splits(engine: Engine) -> set[str]:
    """Return the splits that the listeners of an engine evaluate."""
    return {split for owner in engine.bus.owners(Evaluate) for split in owner.splits}


def share_of(batches: Iterable[Any], limit: int | None, ranks: DataParallelGroup) -> Iterable[Any]:
    """The batches that this rank evaluates, of the first `limit`: every so many-th."""
    if not ranks.is_distributed:
        return batches if limit is None else islice(batches, limit)
    if not isinstance(batches, Loader) or batches.ranks == 1:
        return islice(batches, ranks.rank, limit, ranks.size)
    return batches if limit is None else islice(batches, len(range(ranks.rank, limit, ranks.size)))


def part_of(batches: Iterable[Any], limit: int | None) -> str:
    """Return the evaluated part of a split as `20 of 32 batches`; empty when it is all."""
    if limit is None:
        return ""
    length = length_of(batches)
    if length is None:
        return f"at most {limit} batches"
    return f"{limit} of {length} batches" if limit < length else ""


def evaluate(
    process: Process,
    batches: Iterable[Any],
    *,
    split: str,
    step: int = 0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    pipes: Pipes | Sequence[Any] = (),
    metrics: Mapping[str, Any] | None = None,
    recorder: Recorder | None = None,
    infer: bool = False,
    rehearsal: bool = False,
    ranks: DataParallelGroup | None = None,
    pipeline: Pipeline | None = None,
    before: Callable[[], None] | None = None,
    after: Callable[[], None] | None = None,
) -> tuple[dict[str, float], int]:
    """Return the metrics of one split by name (`valid/loss`), and its number of samples.

    Outputs go through `pipes`, then to the metrics of the process and to `metrics`. `infer`: there
    is no loss and nothing is measured; the pipes alone get the outputs of `inference_step`. `step`
    is that of the weights. In a `rehearsal` the metrics are updated, but not asked for their
    values: some need more than a batch.

    All modules are in eval mode meanwhile, and afterwards in the mode of before. The global random
    generators come back as they were; inside, each batch has its own key. On several `ranks`,
    `batches` are the share of this one; what comes back is of all. Through a `pipeline` outputs
    come to its last stage.
    """
    device = torch.device(device)
    ranks = DataParallelGroup() if ranks is None else ranks
    pipes = pipes if isinstance(pipes, Pipes) else Pipes(pipes)
    evaluation = Evaluation(
        split=split, step=step, recorder=recorder if recorder is not None else NullRecorder()
    )
    used = {} if infer else metrics_of(process, metrics or {})
    measures = _Measures(evaluation, pipes, used)
    logged = LoggedMeans(lambda: loop.batch)
    loop = _BatchLoop(
        process=process,
        infer=infer,
        measures=measures,
        logged=logged,
        seed=seed,
        device=device,
        ranks=ranks,
        pipeline=pipeline,
        before=before,
        after=after,
    )
    with eval_modes(process), restore_generators(), _logging_to(logged, process):
        pipes.begin(evaluation)
        if ranks.is_distributed:
            check_mergeable(pipes.pipes, used, is_staged=ranks.is_staged)
        loop.run(batches)
        if ranks.is_distributed:
            ranks.reshard()
            gather_evaluation(ranks, evaluation, pipes.pipes, {"": measures.loss, **used})
        if not evaluation.samples:
            raise empty_split(split)
        if not rehearsal:
            _tell_unweighed(process, evaluation, ranks)
        means = logged.take_means(split, ranks if ranks.is_distributed else None)
        measures.finish(means, with_metrics=not rehearsal)
    return evaluation.metrics, evaluation.samples


@dataclass(slots=True, kw_only=True)
class _BatchLoop:
    """Loop over the batches of a split, each computed under its own random key.

    `batch` is the one that is computed now.
    """

    process: Process
    infer: bool
    measures: _Measures
    logged: LoggedMeans
    seed: int
    device: torch.device
    ranks: DataParallelGroup
    pipeline: Pipeline | None
    before: Callable[[], None] | None
    after: Callable[[], None] | None
    batch: Any = None

    def run(self, batches: Iterable[Any]) -> None:
        """Compute and measure all batches; a batch that only pads is not measured."""
        forward = self._forward()
        for number, window in enumerate(self._windows(batches)):
            self.ranks.beats.beat()
            self.logged.is_idle = is_idle = not window.samples
            (self.batch,) = window.batches
            if self.before is not None and not is_idle:
                self.before()
            if self.device.type != "cpu":  # an object that moves itself is not copied ahead
                self.batch = to_device(self.batch, self.device)
            self._seed_batch(number)
            output = _output_of(forward, self.batch, self.device)
            if not is_idle:
                self._measure(output)
        self.measures.evaluation.batch = None

    def _windows(self, batches: Iterable[Any]) -> Iterator[Window]:
        """Yield windows of one batch, without samples if it pads; an accelerator gets one ahead.

        Of a pipeline a batch has only what its stages here need.
        """
        pipeline = self.pipeline
        windows = (
            Window(
                (batch if pipeline is None else pipeline.drop_unused_data(batch),),
                samples=int(not is_idle),
            )
            for batch, is_idle in _in_step(batches, self.ranks)
        )
        return windows if self.device.type == "cpu" else ahead(windows, self.device)

    def _forward(self) -> Callable[[Any], Any]:
        """Return the step of the process, through all stages of a pipeline."""
        process = self.process
        step: Callable[[Any], Any] = (
            process.inference_step if self.infer else process.validation_step
        )
        return step if self.pipeline is None else self.pipeline.forward(step)

    def _seed_batch(self, number: int) -> None:
        split = self.measures.evaluation.split
        place = number * self.ranks.size + self.ranks.rank
        seed_all(stream_key(self.seed, EVALUATE, crc32(split.encode()), place))

    def _measure(self, output: Any) -> None:
        self.measures.count(self.batch)
        if self.pipeline is None or self.pipeline.is_last:
            self.measures.add(output)
        if self.after is not None:
            self.after()


class _Measures:
    """Mean loss, metrics and pipes of one split, while its batches are evaluated."""

    def __init__(self, evaluation: Evaluation, pipes: Pipes, metrics: dict[str, Metric]) -> None:
        self.evaluation = evaluation
        self.pipes = pipes
        self.metrics = metrics
        self.loss = Mean()

    def count(self, batch: Any) -> None:
        """Count the samples of a batch."""
        evaluation = self.evaluation
        evaluation.batch, evaluation.size = batch, count_samples(batch, evaluation.split)
        evaluation.samples += evaluation.size

    def add(self, output: Any) -> None:
        """Add the output of the batch that was counted last."""
        if isinstance(output, Mapping) and output.get(LOSS) is not None:
            _add_loss(self.loss, output, self.evaluation.size)
        output = self.pipes(output)
        for metric in self.metrics.values():
            metric.update(output)

    def finish(self, logged: Mapping[str, float], *, with_metrics: bool) -> None:
        """Put loss, logged means and values of metrics into the results; end the pipes."""
        evaluation = self.evaluation
        if not self.loss.is_empty:
            evaluation.metrics[f"{evaluation.split}/loss"] = self.loss.value()
        evaluation.metrics |= logged
        if with_metrics:
            for name, metric in self.metrics.items():
                evaluation.add(name, metric.value())
        self.pipes.end(evaluation)


def _output_of(forward: Callable[[Any], Any], batch: Any, device: torch.device) -> Any:
    try:
        return forward(batch)
    except RuntimeError as error:
        blame_device(batch, device, error)
        raise


def empty_split(split: str) -> InputError:
    """Return the error for a split without a batch."""
    return InputError(
        f"The split {split} is empty: there is nothing to evaluate.",
        fix=f"Look at [data.{split}].",
    )


def _in_step(batches: Iterable[Any], ranks: DataParallelGroup) -> Iterator[tuple[Any, bool]]:
    """Yield (batch, whether it is padding), with as many batches on every rank.

    Only sharded weights need padding: no rank can compute without the others. A rank whose batches
    are used up repeats its last one; a rank that never had any repeats the first of rank 0.
    """
    iterator = iter(batches)
    has_begun = False
    if ranks.sharding is None:
        yield from ((batch, False) for batch in iterator)
        return
    batch: Any = None
    while True:
        found = list(islice(iterator, 1))
        batch = found[0] if found else batch
        count = int(ranks.all_reduce_values([len(found)])[0])
        if not count:
            return
        if not has_begun and count < ranks.size:
            first = ranks.all_gather(batch if ranks.rank == 0 else None)[0]
            batch = batch if found else first
        has_begun = True
        yield batch, not found


def metrics_of(process: Process, others: Mapping[str, Any]) -> dict[str, Metric]:
    """Return the metrics of a process and `others`, all begun anew.

    InputError when two have one name.
    """
    own = getattr(process, "metrics", {})
    if twice := sorted(own.keys() & others.keys()):
        raise InputError(
            f"Two metrics are called {twice[0]!r}: one of the process, and one of the task.",
            fix="Take it away from the process: the task measures it for every model.",
        )
    metrics = {name: as_metric(name, metric) for name, metric in {**own, **others}.items()}
    for metric in metrics.values():
        metric.reset()
    return metrics


def count_samples(batch: Any, split: str) -> int:
    """Return the samples of a batch; InputError where nobody knows."""
    count = size_of(batch)
    if not count:
        raise InputError(
            f"How many samples a batch of the split {split} holds is unknown; it is a"
            f" {type(batch).__name__}.",
            fix="Give batches of tensors, or of something with a length.",
        )
    return count


@contextmanager
def _logging_to(logged: LoggedMeans, process: Process) -> Iterator[None]:
    """Inside, what the process logs is of the split that is evaluated."""
    before = getattr(process, "logged", None)
    process.logged = logged
    try:
        yield
    finally:
        process.logged = before


def _add_loss(mean: Mean, output: Mapping[str, Any], count: int) -> None:
    if isinstance(output[LOSS], tuple):
        mean.add_sum(*output[LOSS])
    else:
        mean.add(output[LOSS], output.get(f"{LOSS}_weight", count))
