"""Pipeline parallelism: a model split into stages, through which micro-batches pass in turn.

The schedules of `torch.distributed.pipelining` decide which stage takes which micro-batch when.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from assay.core.errors import CheckpointError, InputError, PeerError
from assay.engine.checkpoint.codec import encode_entries
from assay.engine.checkpoint.own_share import PROCESS_PARTS
from assay.engine.data.instance import Instance
from assay.engine.numerics.buffers import Buffers
from assay.engine.numerics.seed import restore_generators
from assay.engine.numerics.structures import map_values
from assay.engine.optim.optimizer_step import OptimizerStep
from assay.engine.parallel.data import JoinedEngine
from assay.engine.parallel.distributed_group import StagedGroup
from assay.engine.parallel.pipeline_stages import (
    PipelinePart,
    Shapes,
    bytes_of,
    drop_weights,
    keep_weights,
    merge_states,
    only_weights,
    sendable,
    shape_only,
    shapes_of,
    split_model,
    to_host,
    zeros_like_shape,
)

if TYPE_CHECKING:
    from torch.distributed.pipelining import PipelineStage

    from assay.engine.data.source import Window
    from assay.engine.parallel.layout import Layout

_PLANS = 8
"""Kinds of windows for which schedules, with the memory of what they receive, are kept."""


class _Asked(BaseException):
    """Signal that the process has called its model, with these arguments.

    A BaseException, so that no `except Exception` of the user's catches it.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.given = args, kwargs


@dataclass(slots=True)
class _Turn:
    """Micro-batches in flight: `step` computes one; `begin` is called before each stage."""

    batches: Sequence[Any]
    step: Callable[[Any], Any]
    begin: Callable[[int, int], None]
    answers: dict[int, Any] = field(default_factory=dict)
    output: Any = None
    failed: Exception | None = None


class Pipeline:
    """Stages of a model on this rank, and the passage of batches through all stages.

    `forward_step` runs on the first stage up to the call of the model, and again on the last stage,
    where the model's output is that of the pipeline: losses, logs and outputs are made there. It
    calls its model once.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, ranks: StagedGroup, group: dist.ProcessGroup
    ) -> None:
        self.model = model
        self.layout = layout
        self.ranks = ranks
        self.count = self.layout.stage_count
        self.cut = split_model(model, self.count, self.layout.split)
        self.stages = range(self.ranks.place, self.count, self.ranks.places)
        self.is_first = 0 in self.stages
        self.is_last = self.count - 1 in self.stages
        self.order = tuple(model.state_dict())
        self.elsewhere = keep_weights(model, self.cut.weights(*self.stages))
        self.held = _HeldStages(model, self.cut.stages)
        self._group = group
        self._plans: OrderedDict[Any, Any] = OrderedDict()
        self._turn: _Turn | None = None
        self._answer: list[Any] | None = None
        self._handed: Tensor | None = None
        self._process: Any = None
        self._micro_batches: int | None = None
        self._compute: Callable[[int, Any, dict[str, Any]], Any] = self.held
        self.is_measuring = False
        """Whether what stages compute now is of zeros, to learn its shapes."""
        self._known_boundaries: Sequence[Shapes] = ()
        model.forward = self._hand_over

    def _shared_parameters(self) -> list[tuple[tuple[int, ...], nn.Parameter]]:
        """Return each trained parameter that this place shares with others, and all its places."""
        places: dict[str, set[int]] = {}
        for stage in range(self.count):
            for name in self.cut.weights(stage):
                places.setdefault(name, set()).add(stage % self.ranks.places)
        shared = []
        for name, parameter in self.model.named_parameters():
            own = places[name]
            if len(own) > 1 and parameter.requires_grad:
                shared.append((tuple(sorted(own)), parameter))
        return shared

    @property
    def is_first_rank(self) -> bool:
        """True for the rank of its pipeline that receives the findings of all."""
        return self.ranks.place == 0

    @property
    def lines(self) -> list[str]:
        """Lines that describe each stage: its rank, its parts, its size."""
        waits = ""
        count = self._micro_batches
        if count is not None:
            waits = (
                f", {count} micro-batches in a step: each process waits for"
                f" {self.layout.waiting(count):.0%} of it"
            )
        head = f"pipeline: {self.count} stages ({self.layout.schedule}){waits}"
        return [head, *self.cut.table(self.ranks.places)]

    def most_in_flight(self, count: int) -> int:
        """Return how many of `count` micro-batches reach the memory that all of them need."""
        if self.layout.schedule == "gpipe":
            return count
        whole_rounds = 2 * self.ranks.places
        return min(count, self.count + 1 if self.layout.schedule == "1f1b" else whole_rounds)

    def kept_bytes(self, boundaries: Sequence[Shapes]) -> int:
        """Return the bytes that this rank keeps for a micro-batch until the end of a training step.

        A schedule allocates what its stages receive for all its micro-batches at once. Torch's
        schedule of interleaved stages also waits for no send before the end of the step, and a send
        keeps its tensor until then.
        """
        found = 0
        for number in self.stages:
            if number:
                found += self._passed_bytes(boundaries[number - 1])
            if number + 1 < self.count:
                found += self._passed_bytes(boundaries[number], is_sent=True)
        return found

    def _passed_bytes(self, shapes: Shapes, *, is_sent: bool = False) -> int:
        """Return the bytes kept of the activations at one side of a stage, and their gradients."""
        gradients = [each for each in shapes if each[1].is_floating_point]
        if self.layout.schedule == "interleaved":
            return bytes_of(shapes) + bytes_of(gradients)
        return bytes_of(gradients if is_sent else shapes)

    def own_blocks(self, blocks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
        """Return the blocks that the stages of this rank call; of one that is split, its parts.

        A part that is a function may use weights by their names, and a weight of two parts has to
        be there for both: neither is called as a block.
        """
        own = [part for number in self.stages for part in self.cut.stages[number]]
        uses = Counter(weight for part in own for weight in part.weights)
        found: dict[str, nn.Module] = {}
        for part in own:
            if not isinstance(part.run, nn.Module) or any(uses[name] > 1 for name in part.weights):
                continue
            inside = set(part.run.modules())
            own_of_part = {name: block for name, block in blocks.items() if block in inside}
            is_split = any(part.run in set(block.modules()) for block in blocks.values())
            found |= own_of_part or ({part.name: part.run} if is_split else {})
        return {
            name: block
            for name, block in found.items()
            if next(block.parameters(), None) is not None
        }

    def use_boundaries(self, boundaries: Sequence[Shapes]) -> None:
        """Take these shapes between the stages, which a rehearsal has measured, in new schedules."""
        self._known_boundaries = boundaries
        self._plans.clear()

    def join(self, engine: JoinedEngine, precision: Callable[..., Any] | None = None) -> None:
        """Make an engine train through this pipeline; `precision` wraps its computation.

        InputError for a process that differentiates its losses itself, or too few micro-batches.
        """
        process: Any = engine.process
        if type(process.backward).__call__ is not OptimizerStep.__call__:
            raise InputError(
                f"{type(process.backward).__name__} differentiates losses itself; in a"
                " pipeline the stages do it.",
                fix="Train with one optimizer, or without [parallel] pipeline.",
            )
        source: Any = engine.source
        sizes = getattr(source, "sizes", None)  # of a Loader; a declared batch has none
        self._micro_batches = count = source.accumulate if sizes is None else sizes.accumulate
        self.layout.check_micro_batches(count, arithmetic=str(sizes or ""))
        self._process = process
        if precision is not None:
            self._compute = precision(self.held)
        process.backward.gradients.hand_on = self._take
        self.ranks.share(self._shared_parameters())
        engine.pipeline = self

    def train(self, batches: Sequence[Any], begin: Callable[[int, int], None]) -> Any:
        """Run forward and backward of a window; return the last output, on the last stage.

        `begin(i, stage)` is called before a stage takes micro-batch `i`. Gradients add up as they
        do in one process.
        """
        turn = self._turn = _Turn(batches, self._process.training_step, begin)
        try:
            for first, count in self._rows(batches):
                self._run(turn, first, count)
        finally:
            self._turn = None
        return turn.output

    def forward(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a step without gradients through all stages, whose output is on the last."""

        def through(batch: Any) -> Any:
            turn = self._turn = _Turn([batch], step, lambda i, stage: None)
            try:
                with torch.no_grad():
                    self._run(turn, 0, 1)
                return self._answer_step(turn, 0) if self.is_last else None
            finally:
                self._turn = None

        return through

    def drop_unused_data(self, batch: Any) -> Any:
        """Return a batch with only the shapes of the tensors that no stage of this rank needs."""
        if isinstance(batch, Instance):
            return batch.place_on(self.stages, self.count)
        return batch if self.is_first or self.is_last else map_values(batch, shape_only)

    def drop_unused_windows(self, windows: Iterator[Window]) -> Iterator[Window]:
        """Yield windows with batches reduced by `drop_unused_data`."""
        for window in windows:
            yield window._replace(
                batches=[self.drop_unused_data(batch) for batch in window.batches]
            )

    def all_gather_stages(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return the findings of all stages on the first rank, {} elsewhere. Collective."""
        tables = self.ranks.gather_pipeline(found)
        return {name: value for table in tables for name, value in table.items()}

    def merge_checkpoint(self, parts: dict[str, Any]) -> dict[str, Any]:
        """Return what this rank writes of a checkpoint of the whole model. Collective.

        Each writes what it has of weights, and of what goes with them by their names; the last one
        also what belongs to the process, as losses arise there. The first rank writes the rest, and
        knows of all that others write.
        """
        names = {name: i for i, name in enumerate(self.order)}
        of_process = {name: part for name, part in parts.items() if name in PROCESS_PARTS}
        held = to_host(of_process) if self.is_last else {}
        others = {name: part for name, part in parts.items() if name not in PROCESS_PARTS}
        others = to_host(others, besides=names)
        states = []
        if self.ranks.line[0] == 0:
            states = self.ranks.gather_pipeline(_encode_written(others | held, names))
        found: dict[str, Any] = (
            merge_states([others, *states[1:]], names) if states else only_weights(others, names)
        )
        return found | held

    def local_checkpoint(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of a whole model's checkpoint that belong to this rank."""
        return {
            name: part if name in PROCESS_PARTS else drop_weights(part, self.elsewhere)
            for name, part in parts.items()
        }

    def _rows(self, batches: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """Yield start and length of each row of micro-batches of equal shapes."""
        shapes = [shapes_of(batch) for batch in batches]
        begins = self._any_of_shards(
            [not i or shapes[i] != shapes[i - 1] for i in range(len(shapes))]
        )
        starts = [i for i, is_begin in enumerate(begins) if is_begin]
        for first, end in pairwise([*starts, len(batches)]):
            length = end - first
            spare = length % self.ranks.places if self.layout.schedule == "interleaved" else 0
            for count in (length - spare, spare):
                if count:
                    yield first, count
                    first += count

    def _any_of_shards(self, flags: Sequence[bool]) -> Sequence[bool]:
        """Return which flags are set on any rank that has shards of the same weights.

        These ranks gather weights in each pass, and so make their passes in one order.
        """
        if self.ranks.sharding is None:
            return flags
        return [bool(count) for count in self.ranks.all_reduce_stage_values(flags)]

    def _run(self, turn: _Turn, first: int, count: int) -> None:
        """Run micro-batches from number `first` on through all stages and, in training, back."""
        schedule = self._plan(turn, first, count)
        numbers = torch.arange(first, first + count)
        given = (numbers,) if self.is_first else ()
        target = numbers if self.is_last and torch.is_grad_enabled() else None
        try:
            schedule.step(*given, target=target, micro=numbers)
        except RuntimeError as error:
            if turn.failed is not None:
                raise turn.failed from None  # torch has put the values of its arguments around it
            if _is_of_peer(error):
                message = "Another stage of the pipeline ended, or does not answer."
                raise PeerError(message) from error
            raise

    def _plan(self, turn: _Turn, first: int, count: int) -> Any:
        """Return the schedule for `count` micro-batches of these shapes, equal on all stages."""
        is_training = torch.is_grad_enabled()
        kind = shapes_of(turn.batches[first]), count, is_training
        (is_new,) = self._any_of_shards([kind not in self._plans])
        boundaries = self._known_boundaries
        if is_new and not boundaries:
            boundaries = self._boundaries(turn, first)
        if kind not in self._plans:
            self._plans[kind] = self._new_plan(boundaries, count, is_training=is_training)
            if len(self._plans) > _PLANS:
                self._plans.popitem(last=False)
        self._plans.move_to_end(kind)
        return self._plans[kind]

    def _new_plan(self, boundaries: Sequence[Shapes], count: int, *, is_training: bool) -> Any:
        from torch.distributed.pipelining import (
            Schedule1F1B,
            ScheduleGPipe,
            ScheduleInterleaved1F1B,
        )

        stages: Any = [
            self._stage(number, boundaries, is_training=is_training) for number in self.stages
        ]
        how: dict[str, Any] = {"loss_fn": self._loss if is_training else None, "scale_grads": False}
        if self.layout.schedule == "interleaved":
            return ScheduleInterleaved1F1B(stages, count, **how)
        fits = self.layout.schedule == "1f1b" and is_training and count >= self.count
        return (Schedule1F1B if fits else ScheduleGPipe)(stages[0], count, **how)

    def _stage(
        self, number: int, boundaries: Sequence[Shapes], *, is_training: bool
    ) -> PipelineStage:
        from torch.distributed.pipelining import PipelineStage

        one: Shapes = (((1,), torch.int64),)
        ends = [one, *boundaries, (((1,), torch.float32),)]
        given, gives = (
            tuple(zeros_like_shape(each, is_training, "meta") for each in ends[i])
            for i in (number, number + 1)
        )
        device = next(iter(self.model.parameters())).device
        return PipelineStage(
            _StageModule(self, number),
            number,
            self.count,
            device,
            input_args=given,
            output_args=gives,
            group=self._group,
        )

    def _boundaries(self, turn: _Turn, first: int) -> list[Shapes]:
        """Return the output shapes of each stage, found by running it once on zeros. Collective."""
        is_training = torch.is_grad_enabled()
        device = next(iter(self.model.parameters())).device
        found: list[Shapes] = []
        buffers = Buffers(self.model)
        buffers.keep()
        self.is_measuring = True
        try:
            with restore_generators():
                for number in range(self.count - 1):
                    shapes: Shapes = ()
                    if number in self.stages:
                        before = found[-1] if found else ()
                        zeros = tuple(
                            zeros_like_shape(each, is_training, device) for each in before
                        )
                        shapes = shapes_of(self.compute(number, first, zeros))
                    found.append(self.ranks.broadcast_stage(number % self.ranks.places, shapes))
        finally:
            self.is_measuring = False
            buffers.put_back()
        return found

    def compute(self, number: int, i: int, given: tuple[Any, ...]) -> Any:
        """Run one stage on one micro-batch; return the input of the next stage."""
        turn = self._turn
        assert turn is not None
        try:
            turn.begin(i, number)
            if number:
                received = given if given[1:] else given[0]
                found = self._compute(number, (received,), {})
            else:
                found = self._compute(number, *self._question(turn, i))
            if number + 1 < self.count:
                return sendable(found, self.cut.stages[number][-1].name)
            turn.answers[i] = found
            return torch.zeros(1)
        except Exception as error:  # torch makes another one of it; `train` raises this
            turn.failed = error
            raise

    def _loss(self, _: Any, micro: Tensor) -> Tensor:
        """Return the loss of one micro-batch, weighted for its window."""
        turn = self._turn
        assert turn is not None
        i = int(micro)
        try:
            turn.begin(i, 0)
            self._handed = None
            turn.output = self._answer_step(turn, i)
            handed: Tensor | None = self._handed
            if handed is None:
                raise InputError(f"{type(self._process).__name__} gave no loss for a micro-batch.")
            return handed
        except Exception as error:  # torch makes another one of it; `train` raises this
            turn.failed = error
            raise

    def _take(self, loss: Tensor) -> None:
        if not self.is_last:
            raise self._uncalled_error()
        if not loss.requires_grad:
            raise RuntimeError("the loss depends on no parameter that is trained")
        self._handed = loss

    def _question(self, turn: _Turn, i: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with which the process calls its model for a micro-batch."""
        self._answer = None
        try:
            turn.step(turn.batches[i])
        except _Asked as asked:
            return asked.given
        raise self._uncalled_error()

    def _uncalled_error(self) -> InputError:
        return InputError(
            f"{type(self._process).__name__} does not call its model, with which a"
            " pipeline begins.",
            fix="Call self.model(...) once in forward_step.",
        )

    def _answer_step(self, turn: _Turn, i: int) -> Any:
        """Return the process's result for a micro-batch, given the model's output."""
        self._answer = [turn.answers.pop(i)]
        try:
            return turn.step(turn.batches[i])
        finally:
            self._answer = None

    def _hand_over(self, *args: Any, **kwargs: Any) -> Any:
        """Replacement of the model's `forward`: only some of its stages are here."""
        if self._turn is None:
            raise InputError(
                f"{type(self.model).__name__} is split into stages: it can be called in"
                " forward_step only.",
                fix="Take the whole model from a checkpoint: assay.load_model(run).",
            )
        if self._answer is None:
            raise _Asked(args, kwargs)
        if not self._answer:
            raise InputError(
                f"{type(self._process).__name__} calls its model a second time for one"
                " batch; a pipeline runs it once.",
                fix=(
                    "Call self.model(...) once in forward_step, or train without"
                    " [parallel] pipeline."
                ),
            )
        return self._answer.pop()


def _is_of_peer(error: RuntimeError) -> bool:
    """Return True for an error of a connection to another process."""
    said = str(error)
    return isinstance(error, dist.DistError) or "gloo" in said or "onnection" in said


def _encode_written(parts: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return parts with all that this rank writes encoded; {} where that fails.

    That is what they have under the names of weights, and what belongs to the process.
    """
    try:
        return {
            part: encode_entries(state, state if part in PROCESS_PARTS else names)
            for part, state in parts.items()
        }
    except CheckpointError:
        return {}  # the saver finds the same, and tells the other ranks


class _HeldStages(nn.Module):
    """All stages of this rank as one module, around which sharded weights are gathered."""

    def __init__(self, model: nn.Module, stages: Sequence[Sequence[PipelinePart]]) -> None:
        super().__init__()
        self.model = model
        self.stages = stages

    def forward(self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for part in self.stages[number]:
            args, kwargs = (part.run(*args, **kwargs),), {}
        return args[0]


class _StageModule(nn.Module):
    """Stage as torch wants it; it holds no weights itself."""

    def __init__(self, pipeline: Pipeline, number: int) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.number = number

    def forward(self, *given: Any, micro: Tensor) -> Any:
        return self.pipeline.compute(self.number, int(micro), given)
