"""Trial of one training step and one evaluation step of a process."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from assay.core.errors import AssayError
from assay.engine.data.batches import size_of
from assay.engine.data.shapes import shape_of
from assay.engine.loop.engine_state import eval_modes
from assay.engine.metrics.metric import Metric
from assay.engine.metrics.outputs import Evaluation, Pipes
from assay.engine.numerics import private_torch
from assay.engine.numerics.dtensor import local_tensor
from assay.engine.numerics.structures import map_values, tensors_in, values_in
from assay.engine.parallel.pipeline import Pipeline
from assay.engine.parallel.pipeline_stages import Shapes, scale_shapes
from assay.engine.rehearse.fake import is_device_mismatch, is_unfakeable, watched_resizes
from assay.engine.rehearse.findings import (
    error_kind,
    finding_of,
    is_from_torch,
    unchecked_finding,
    why_not,
)
from assay.engine.rehearse.known_values import HOST, Bound
from assay.engine.rehearse.module_stack import ModuleCall, ModuleStack
from assay.engine.rehearse.observer import Observer
from assay.engine.rehearse.recorded_call import MOST_BYTES
from assay.engine.rehearse.traffic import Traffic
from assay.formats.rehearsal import Finding, PeakMemory

_ACCELERATOR = re.compile(
    r"\b(cuda|nvidia|nccl|gpu|hip|rocm|triton|flash[-_ ]?attn)\b", re.IGNORECASE
)


Certainty = Literal["sure", "likely", "none"]
"""Certainty that the code is wrong, not only the trial: as on real tensors, likely, unknown."""


class StepFailedError(Exception):
    """A step that failed, with what is known of it."""

    def __init__(self, finding: Finding, cause: BaseException, *, certainty: Certainty) -> None:
        super().__init__(finding.message)
        self.finding = finding
        self.cause = cause
        self.certainty = certainty


@dataclass(slots=True)
class Trial:
    """Steps of `process` under an observer, on tensors that are real or fake.

    What cannot be tried is added to `findings`; what fails raises StepFailedError.
    """

    process: Any
    observer: Observer
    device: torch.device
    """The device of the run."""
    findings: list[Finding] = field(default_factory=list)
    pipeline: Pipeline | None = None
    """Stages of this rank, where not the whole model is tried."""
    boundaries: Mapping[bool, Sequence[Shapes]] = field(default_factory=dict)
    """Shapes between the stages of the pipeline, in training (True) and in evaluation."""
    output: Any = None
    first_traffic: Traffic | None = None
    """Traffic of the first micro-batch, which is that of every one but the last."""
    left_out: int = 0
    """Parameters that got no gradient in the last step, though an optimizer has them."""
    told_output: str = ""
    """Shapes of the output of the first step."""
    stack: ModuleStack = field(init=False)
    _criterion: CriterionCheck = field(init=False)

    def __post_init__(self) -> None:
        roots = {"model": self.process.model}
        parts = vars(self.process).items()
        roots |= {
            f"process.{name}": part
            for name, part in parts
            if isinstance(part, nn.Module) and name != "model"
        }
        self.stack = ModuleStack(roots, lambda: self.observer.flops, self._at)
        if self.pipeline is not None and self.observer.values is not None:
            self.observer.values.keeps_unwritten = False
        self._criterion = CriterionCheck(getattr(self.process, "criterion", None), self.observer)
        self.observer.is_on_cpu = self.device.type == "cpu"
        self.process.forward_step = self._tell_output(self.process.forward_step)
        weights = [*self.process.model.parameters(), *self.process.model.buffers()]
        with self._open():
            self.observer.ledger.use(map(local_tensor, weights), "weights")

    def _tell_output(self, forward: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a forward step that notes the shapes of the first output: steps may drop it."""

        def forward_step(batch: Any) -> Any:
            given = forward(batch)
            if not self.told_output and isinstance(given, tuple) and given[1:]:
                self.told_output = shape_of(given[1])
            return given

        return forward_step

    def train(self, batches: Sequence[Any], sizes: Sequence[int] | None) -> PeakMemory:
        """Make one optimizer step from these micro-batches and return its memory."""
        process, ledger = self.process, self.observer.ledger
        process.train()
        with self._open(), self.stack.watch(), self._criterion.watch():
            ledger.begin()
            self._differentiate(batches, sizes)
            ledger.use(_gradients(process), "gradients")
            unused = self._without_gradient()
            ledger.where = "update"
            self._update()
            self._forget_gradients()
            self._update_unused(unused)
            ledger.use(_states(process), "optimizer")
            memory = ledger.memory()
            self._forget_gradients()
        self.observer.indices.is_keeping = False
        self._criterion.check()
        if self._criterion.finding is not None:
            self.findings.append(self._criterion.finding)
        return memory

    def differentiate(
        self, batches: Sequence[Any], *, scale: tuple[int, int] = (1, 1)
    ) -> PeakMemory:
        """Make forward and backward pass of these micro-batches, no update; return the memory.

        `scale` is the number of samples in the batches of before, and in these.
        """
        ledger = self.observer.ledger
        self.process.train()
        with self._open(), self.stack.watch():
            ledger.begin()
            sizes = [1] * len(batches) if batches[1:] else None
            self._differentiate(batches, sizes, scale=scale)
            ledger.use(_gradients(self.process), "gradients")
            memory = ledger.memory()
            self.output = None
            self._forget_gradients()
        return memory

    def evaluate(
        self, split: str, batch: Any, metrics: Mapping[str, Metric], pipes: Pipes
    ) -> PeakMemory:
        """Make one evaluation step, through `pipes` to `metrics`; return its memory."""
        process, ledger = self.process, self.observer.ledger
        with eval_modes(process), self._open(), self.stack.watch():
            self.output = None
            ledger.begin()
            ledger.where = "evaluation"
            forward = process.validation_step
            if self.pipeline is not None:
                self.pipeline.use_boundaries(self.boundaries[False])
                forward = self.pipeline.forward(forward)
            self.output = self._guard(forward, self._reduce_batch(batch))
            if self.output is None and self.pipeline is not None:
                return ledger.memory()
            evaluation = Evaluation(split=split, batch=batch, size=size_of(batch))
            if self._try("the pipes", partial(self._pipe, pipes, evaluation)):
                for name, metric in metrics.items():
                    self._try(f"the metric {name}", partial(self._measure, metric))
                self._try("the pipes", partial(pipes.end, evaluation))
            self.output = None
        return ledger.memory()

    def look_at_devices(self, batch: Any) -> None:
        """Find tensors that would stay on the CPU while the model is on an accelerator.

        The tensors of the model and the batch are on the CPU, which stands for the accelerator. So
        `meta` stands for the host: it is the default device here, and that of tensors which modules
        hold without having registered them.
        """
        self.process.train()
        try:
            with self._open(), self.stack.watch(), self._move_to_host(), torch.device(HOST):
                self._differentiate([batch], None)
        except StepFailedError as failure:
            if is_device_mismatch(_root(failure.cause)):
                message = (
                    f"a tensor on the CPU is used with those of the model, on {self.device.type}"
                )
                fix = "Make it with device=x.device; one that a module keeps is a register_buffer."
                found = replace(failure.finding, kind="device", message=message, fix=fix)
            else:
                said = f"mistakes about devices: {failure.finding.message}"
                found = replace(failure.finding, kind="unchecked", message=said, fix="")
            self.findings.append(found)
        finally:
            self._forget_gradients()

    @contextmanager
    def _move_to_host(self) -> Iterator[None]:
        """Move the tensors that modules hold as plain attributes to the host."""
        before: list[tuple[dict[str, Any], str, Any]] = []
        for owner in (self.process, *self.stack.names):
            own = vars(owner)
            before += [
                (own, name, value) for name, value in own.items() if isinstance(value, Tensor)
            ]
        for attributes, name, value in before:
            attributes[name] = value.to(HOST) if value.dim() else value
        try:
            yield
        finally:
            for attributes, name, value in before:
                attributes[name] = value

    def without_activations(self) -> PeakMemory:
        """Return the memory of weights, gradients and optimizer alone."""
        ledger = self.observer.ledger
        with self._open():
            for parameter in self.process.model.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.empty_like(parameter)
            ledger.begin()
            for optimizer in self.process.backward.optimizers.values():
                self._step_alone(optimizer)
            ledger.use(_gradients(self.process), "gradients")
            ledger.use(_states(self.process), "optimizer")
            memory = ledger.memory()
            self._forget_gradients()
        return replace(memory, where="without activations")

    def bounds_in(self, batch: Any) -> list[tuple[int, Bound]]:
        """Return what values of this batch were checked against, by the number of the tensor."""
        return self.observer.indices.bounds_of(tensors_in(batch))

    def _differentiate(
        self,
        batches: Sequence[Any],
        sizes: Sequence[int] | None,
        scale: tuple[int, int] = (1, 1),
    ) -> None:
        process = self.process
        process.backward.begin(sizes)
        if self.pipeline is not None:
            self.pipeline.use_boundaries(
                [scale_shapes(each, *scale) for each in self.boundaries[True]]
            )
            self.output = None
            self.output = self._guard(
                self._through_stages, [self._reduce_batch(each) for each in batches]
            )
            return
        for batch in batches:
            self.output = None
            self.output = self._guard(process.training_step, self._reduce_batch(batch))
            self.first_traffic = self.first_traffic or self.observer.traffic.copy()

    def _through_stages(self, batches: Sequence[Any]) -> Any:
        assert self.pipeline is not None
        return self.pipeline.train(batches, lambda i, stage: None)

    def _reduce_batch(self, batch: Any) -> Any:
        """Return the batch to compute with; a stage between the others has none of its own."""
        if self.pipeline is not None and not (self.pipeline.is_first or self.pipeline.is_last):
            return self.pipeline.drop_unused_data(batch)
        return map_values(batch, self.observer.tensor)

    def _guard(self, call: Callable[[Any], Any], batch: Any) -> Any:
        self._begin()
        try:
            return call(batch)
        except Exception as error:
            raise self._failure_of(error) from error

    def _begin(self) -> None:
        """Forget what was at work: something else begins."""
        self.stack.open.clear()
        self.stack.behind = ""
        if self.observer.values is not None:
            self.observer.values.guessed = 0

    def _failure_of(self, error: Exception) -> StepFailedError:
        """Say whether the code is wrong, or only cannot be tried like this.

        An operation that fails on fake tensors is tried on real ones, and what those say is told.
        """
        cause = _root(error)
        finding = finding_of(error, self.stack.open, self.stack.behind)
        if self.device.type != "cpu" and _needs_accelerator(cause):
            return StepFailedError(finding, error, certainty="none")
        if self.observer.values is None or isinstance(cause, IndexError):
            return StepFailedError(finding, error, certainty="sure")
        if any(map(is_unfakeable, _chain(error))):
            return StepFailedError(finding, error, certainty="none")
        failed = self.observer.failed
        if failed is None or failed.error is not cause:  # raised by Python code about shapes
            return StepFailedError(finding, error, certainty="likely")
        if failed.size_bytes > MOST_BYTES:
            return StepFailedError(finding, error, certainty="likely")
        # The trial is still open, and its tensors are fake.
        with self.observer.values.fakes.real():
            real = failed.error_on_real()
        if real is None:
            return StepFailedError(finding, error, certainty="none")
        if error is cause:
            finding = replace(finding, kind=error_kind(real), message=why_not(real))
        return StepFailedError(finding, error, certainty="sure")

    def _update(self) -> None:
        """Make the update. One that cannot be tried is left to the optimizers alone."""
        process, values = self.process, self.observer.values
        self._begin()
        try:
            process.update(0)
            return
        except Exception as error:
            if values is None or (not values.guessed and not is_unfakeable(_root(error))):
                raise self._failure_of(error) from error
            self.findings.append(unchecked_finding(f"the update: {why_not(_root(error))}", error))
        for optimizer in process.backward.optimizers.values():
            if not optimizer.state:
                self._step_alone(optimizer)

    def _without_gradient(self) -> list[nn.Parameter]:
        """Return the trained parameters that this step left out."""
        if self.pipeline is not None:
            return []
        return [
            parameter
            for optimizer in self.process.backward.optimizers.values()
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad and parameter.grad is None
        ]

    def _update_unused(self, unused: Sequence[nn.Parameter]) -> None:
        """Make the state of the optimizers for parameters that another step may use."""
        self.left_out = sum(parameter.numel() for parameter in unused)
        for parameter in unused:
            parameter.grad = torch.zeros_like(parameter)
        left_out = set(map(id, unused))
        for optimizer in self.process.backward.optimizers.values():
            groups = optimizer.param_groups
            if any(id(parameter) in left_out for group in groups for parameter in group["params"]):
                self._step_alone(optimizer)

    def _step_alone(self, optimizer: Optimizer) -> None:
        try:
            optimizer.step()
        except Exception as error:
            self.findings.append(
                unchecked_finding(f"the step of {type(optimizer).__name__}", error)
            )

    def _pipe(self, pipes: Pipes, evaluation: Evaluation) -> None:
        pipes.begin(evaluation)
        self.output = pipes(self.output)

    def _measure(self, metric: Metric) -> None:
        metric.reset()
        metric.update(self.output)
        metric.value()
        metric.reset()

    def _try(self, what: str, call: Callable[[], object]) -> bool:
        """Do what follows a step. What only fake tensors cannot do is unchecked: return False."""
        self._begin()
        values = self.observer.values
        try:
            call()
        except Exception as error:
            if values is None or (isinstance(error, AssayError) and not values.guessed):
                raise self._failure_of(error) from error
            self.findings.append(unchecked_finding(f"{what}: {why_not(_root(error))}", error))
            return False
        return True

    def _forget_gradients(self) -> None:
        self.output = None
        for parameter in self.process.model.parameters():
            parameter.grad = None

    @contextmanager
    def _open(self) -> Iterator[None]:
        resizes = watched_resizes(self.observer.ledger.see_resize)
        values = self.observer.values
        fakes = values.fakes.use() if values is not None else nullcontext()
        with _eager(), resizes, fakes, self.observer:
            yield

    def _at(self, where: str) -> None:
        self.observer.ledger.where = where


def _eager() -> AbstractContextManager[Any]:
    """Run compiled code as it was written: nobody sees inside.

    Where nothing is compiled torch has not loaded its compiler, which takes a second.
    """
    if private_torch.COMPILER_MODULE not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]


def _gradients(process: Any) -> Iterator[Tensor]:
    for parameter in process.model.parameters():
        if parameter.grad is not None:
            yield local_tensor(parameter.grad)


def _states(process: Any) -> Iterator[Tensor]:
    optimizers: Mapping[str, Optimizer] = process.backward.optimizers
    for optimizer in optimizers.values():
        yield from map(local_tensor, tensors_in(dict(optimizer.state)))


def _root(error: BaseException) -> BaseException:
    """Return the first of the errors that led to `error`."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it was raised from, or while handling."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _needs_accelerator(error: BaseException) -> bool:
    """Return True if code wants another device than the CPU that the trial runs on."""
    return bool(not isinstance(error, IndexError) and _ACCELERATOR.search(str(error)))


_MOST_BYTES = 2**28


class CriterionCheck:
    """Calls a criterion for real on what it was given: zeros for the prediction, the true labels.

    Kernels check more than shapes: classes of another dtype, labels outside of 0 to 1.
    """

    def __init__(self, criterion: Any, observer: Observer) -> None:
        is_used = isinstance(criterion, nn.Module) and observer.values is not None
        self._criterion: nn.Module | None = criterion if is_used else None
        self._observer = observer
        self._given: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.finding: Finding | None = None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Remember the first call within."""
        if self._criterion is None:
            yield
            return
        handle = self._criterion.register_forward_pre_hook(self._remember, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def _remember(self, _: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if self._given is None:
            self._given = map_values((args, named), self._real)

    def _real(self, tensor: Tensor) -> Any:
        """Return the values of a tensor, or its shape where they are unknown."""
        value = self._observer.value_of(tensor)
        return value if value is not None else _Zeros(tensor)

    def check(self) -> None:
        """Make the call, and keep what torch says against it."""
        criterion, given = self._criterion, self._given
        if criterion is None or given is None:
            return
        weights = dict(criterion.state_dict(keep_vars=True))
        real = {name: self._observer.value_of(tensor) for name, tensor in weights.items()}
        size = sum(each.size_bytes for each in values_in(given, _Zeros))
        if any(value is None for value in real.values()) or size > _MOST_BYTES:
            return
        args, named = map_values(given, _Zeros.make, _Zeros)
        try:
            with torch.enable_grad():
                functional_call(criterion, real, args, named)  # type: ignore[arg-type]
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if not is_from_torch(error):  # it may be about the zeros
                return
            name = f"process.criterion ({type(criterion).__name__})"
            shapes = [*map(shape_of, args), *(f"{key}={shape_of(named[key])}" for key in named)]
            call = ModuleCall(name, ", ".join(shapes), 0)
            self.finding = finding_of(error, [call])


class _Zeros:
    """Prediction whose values are unknown."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.requires_grad = tensor.requires_grad

    @property
    def size_bytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    def make(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, requires_grad=self.requires_grad)
