"""From losses to an update: gradients over the real window, clip, step, schedule, zero after the
step."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from assay.core.errors import InputError, did_you_mean
from assay.core.optimizer_closure import needs_closure
from assay.engine.numerics import private_torch
from assay.engine.numerics.deferred import DeferredNumbers, DeferredUpdate
from assay.engine.numerics.dtensor import (
    clip_dtensor_norm_,
    is_dtensor,
    local_parameters,
    local_tensor,
)
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.numerics.seed import undisturbed
from assay.engine.numerics.sparse import entries
from assay.engine.optim import unprofiled
from assay.engine.optim.clip import clip_norm_, clip_norm_on_device_
from assay.engine.optim.data_parallel_group import DataParallelGroup
from assay.engine.optim.losses import (
    Loss,
    Losses,
    Read,
    Term,
    WeighedMean,
    added,
    blame_loss,
    check_loss,
    put_all,
    read_at,
    read_now,
    two_kinds,
    worth_nothing,
)
from assay.engine.optim.optimizer_step_base import NonFinite, OptimizerStepBase
from assay.engine.optim.schedules import LearningRate, Schedule


@contextmanager
def debugged(*, enabled: bool = True) -> Iterator[None]:
    """Within it an error in the backward pass shows the line of the forward pass, and names the
    loss that it is of.

    An op that gives nan in the backward pass is such an error.
    """
    with torch.autograd.set_detect_anomaly(enabled or torch.is_anomaly_enabled()):
        yield


class OptimizerStep(OptimizerStepBase):
    """Update of the weights from the losses of one window: backward, clip, step, schedule.

    A window of several micro-batches gives the gradient of the whole window: means are weighted by
    their real number of samples, (sum, weight) pairs by their weights. A mapping of losses by name
    counts as their sum, each times its factor in `weights` (1 where there is none); each is
    recorded as `train/loss/NAME`. `non_finite` says what happens when loss or gradient norm is not
    finite: stop with the weights as they were, skip the update and count it, or ignore it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        schedule: Schedule | None = None,
        clip_norm: float | None = None,
        non_finite: NonFinite = "stop",
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.optimizer = optimizer
        self.optimizers = {"": optimizer}
        self.rate = LearningRate(optimizer, schedule)
        self.clip_norm = clip_norm
        self.non_finite = non_finite
        self.weights = dict(weights or {})
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.loss = math.nan
        self.losses: dict[str, float] = {}
        self.lr = self.rate.current
        self.grad_norm: float | None = None
        self.skipped = 0
        own = getattr(optimizer, "zero_grad", None)
        if own is None or getattr(own, "__func__", None) is Optimizer.zero_grad:
            own = partial(unprofiled.forget_gradients, optimizer)
        self._zero_grad: Callable[[], None] = own
        self._shares: Sequence[float] | None = None
        self._micro = 0
        self._weight: Tensor | float | None = None
        self._kind = ""  # of the losses without a name, where there are several micro-batches
        self._sizes: Sequence[int] = ()
        self._samples = 0
        self._scalars: list[tuple[Tensor, float]] = []
        self._terms: dict[str, Term] = {}
        self._one: Tensor | None = None
        self._is_clean = False  # gradients may be there from before, or from a window that failed
        self._is_known_to_reach = False
        self._finder: tuple[Tensor, Tensor] | None = (
            None  # what torch's own check of gradients needs, where it works
        )
        self._is_alone = True
        self._keeps_graph = False
        self.hand_on: Callable[[Tensor], None] | None = None
        """Who differentiates a loss instead: other processes have the rest of what it came from."""
        self._is_divided = any(map(is_dtensor, self.parameters))
        self._passes = 0
        self.flag: Tensor | None = None
        """Where an update that must not be made is marked, if that is read later."""
        self.ranks = DataParallelGroup()

    def begin(self, sizes: Sequence[int] | None) -> None:
        if not self._is_clean:
            self._zero_grad()
        self._is_clean = False
        if self.ranks.is_distributed:
            self._samples = self.ranks.samples
            self._sizes = sizes or (self._samples,)
            self._shares = [size / self._samples for size in self._sizes]
        elif sizes is None or len(sizes) == 1:
            self._shares = None
        else:
            total = sum(sizes)
            if not total:
                raise InputError(
                    "Micro-batches are weighted by their samples, but how many these hold is"
                    " unknown.",
                    fix="Give batches of tensors, or accumulate 1.",
                )
            self._sizes, self._samples = sizes, total
            self._shares = [size / total for size in sizes]
        self._micro = self._passes = 0
        self._weight, self._kind = None, ""
        self._scalars.clear()
        if self._terms:
            self._terms, self.losses = {}, {}
        if self.flag is not None and self.non_finite == "skip":
            self.flag.zero_()

    def __call__(self, loss: Losses) -> None:
        begun = perf_counter()
        if self.ranks.is_distributed:
            loss = self._begin_pass(self.ranks, loss)
        try:
            if self._shares is None and isinstance(loss, Tensor):
                self._differentiate(loss)
                self._scalars.append((loss, 1.0))
            elif isinstance(loss, tuple):
                self._backward_sum(*loss)
            elif not isinstance(loss, Tensor) and isinstance(loss, Mapping):
                self._backward_named(loss)
            elif isinstance(loss, WeighedMean):
                self._backward_weighed(loss)
            else:
                self._backward_mean(loss)
        except (AttributeError, RuntimeError, TypeError) as error:
            blame_loss(loss, error)
            raise
        self.seconds += perf_counter() - begun

    def _begin_pass(self, ranks: DataParallelGroup, loss: Losses) -> Losses:
        """Begin a backward pass; return the loss, times 0 on a rank that has no batch left."""
        self._passes += 1
        # Sums of several losses are divided by their weights one by one: none may wait for the next
        # pass.
        is_apart = isinstance(loss, Mapping) and any(
            isinstance(each, tuple | WeighedMean) for each in loss.values()
        )
        ranks.begin_backward(is_last=is_apart or self._passes == len(self._shares or ()))
        return worth_nothing(loss) if ranks.is_idle else loss

    def update(self, step: int) -> bool:
        taken = self.prepare(step)
        self.finish(step, take=taken)
        return taken

    def prepare(self, step: int) -> bool:
        """Have the gradients ready for the optimizer: clipped, and looked at. False when they are
        not to be used."""
        if self.ranks.is_distributed:
            self._add_up(self.ranks)
        elif self._terms:
            self._join()
        elif self._kind == "weighed" and self._weight is not None:
            self._weight = self._weight / self._samples
        if not self._is_known_to_reach:
            # in the first step, which is read at once: afterwards the optimizer has its state
            self._check_reach()
        elif self.flag is not None and self._finder is not None:
            self.deferred = self._deferred_update(self.flag)
            return True
        self.deferred = None
        self.loss = self._read_loss()
        if self._weight is not None:
            self._divide(self._weight)
        if not self._unscale(step):
            return False
        self.grad_norm = None if self.clip_norm is None else self._clip(self.clip_norm)
        if not self._is_finite():
            if self.non_finite == "stop" or (
                self.non_finite == "skip" and not self._are_weights_finite()
            ):
                raise self._non_finite(step)
            if self.non_finite == "skip":
                self.skipped += 1
                return False
        return True

    def finish(self, step: int, *, take: bool) -> None:
        """Take the step of the optimizer, or leave it out; then set the rate of the next one, and
        zero."""
        if take and self._is_divided:
            with local_parameters(self.optimizer):
                unprofiled.step(self.optimizer)
        elif take:
            unprofiled.step(self.optimizer)
        if self.rate.schedule is not None:
            self.lr = self.rate.current
            self.rate.set(step + 1)
        self._zero_grad()
        self._is_clean = True

    def defer(self, flag: Tensor | None) -> bool:
        self.flag = self.deferred = None
        kind, optimizer = type(self), self.optimizer
        vars(optimizer).pop("found_inf", None)
        if flag is None or self.ranks.is_distributed or flag.device.type not in ("cpu", "cuda"):
            return False
        if kind.update is not OptimizerStep.update or kind.finish is not OptimizerStep.finish:
            return False
        if kind.prepare is not OptimizerStep.prepare or kind._unscale is not OptimizerStep._unscale:
            return False
        if any(parameter.device.type != flag.device.type for parameter in self.parameters):
            return False
        if self.non_finite != "ignore":
            if not can_leave_out(optimizer):
                return False
            optimizer.found_inf = flag  # type: ignore[attr-defined]
        self.flag = flag
        return True

    def start(self, step: int, *, total: int | None, epoch_length: int | None) -> None:
        self.rate.total = total
        self.rate.epoch_length = epoch_length
        self.rate.set(step)

    def points(self) -> dict[str, float]:
        if self.rate.schedule is None and self.deferred is None:
            self.lr = self.rate.current
        points = {"train/loss": self.loss, "train/lr": self.lr}
        if self.grad_norm is not None:
            points["train/grad_norm"] = self.grad_norm
        if self.losses:
            points |= {f"train/loss/{name}": value for name, value in self.losses.items()}
        return points

    @property
    def needs_weights(self) -> bool:
        return self._shares is not None

    @property
    def told(self) -> tuple[float, dict[str, float], float | None, float]:
        """Recorded results of an update: loss, losses by name, norm and learning rate."""
        return self.loss, self.losses, self.grad_norm, self.lr

    @told.setter
    def told(self, told: tuple[float, dict[str, float], float | None, float]) -> None:
        self.loss, self.losses, self.grad_norm, self.lr = told

    def share_graph(self, *, keep: bool) -> None:
        """The gradients of its own parameters are all it makes; the graph is kept if others need it
        afterwards."""
        self._is_alone = False
        self._keeps_graph = keep

    def _unscale(self, step: int) -> bool:
        """Divide gradients by the loss scale; return whether they can be used. No scale here."""
        return True

    def _clip(self, max_norm: float) -> float:
        if self.ranks.is_distributed:
            return self.ranks.clip_grad_norm_(self.parameters, max_norm)
        return (clip_dtensor_norm_ if self._is_divided else clip_norm_)(self.parameters, max_norm)

    def _do_all(self, flag: bool) -> bool:
        """Return whether `flag` holds in all processes that have parts of the model."""
        if not (self._is_divided or self.ranks.is_staged):
            return flag
        return self.ranks.all_true(flag)

    def _is_finite(self) -> bool:
        if self.grad_norm is not None:
            return math.isfinite(self.loss + self.grad_norm)
        return math.isfinite(self.loss) and (
            self.non_finite == "ignore" or self._are_gradients_finite()
        )

    def _are_gradients_finite(self) -> bool:
        if self._is_divided and self.ranks.is_distributed:
            grads = [
                local_tensor(parameter.grad)
                for parameter in self.parameters
                if parameter.grad is not None
            ]
            return self._do_all(all(bool(grad.isfinite().all()) for grad in grads))
        grads = [grad for parameter in self.parameters if (grad := parameter.grad) is not None]
        if self._finder is None:
            return self._do_all(all(bool(entries(grad).isfinite().all()) for grad in grads))
        found, one = self._finder
        private_torch.check_and_unscale_(grads, found, one)  # a fifth of what a norm costs
        are_finite = not found.item()
        if not are_finite:
            found.zero_()
        return self._do_all(are_finite) if self.ranks.is_distributed else are_finite

    def _check_reach(self) -> None:
        grads = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self._is_known_to_reach = bool(grads)
        if grads and all(_is_plain(grad) and grad.device == grads[0].device for grad in grads):
            self._finder = (
                torch.zeros(1, device=grads[0].device),
                torch.ones(1, device=grads[0].device),
            )
        if not grads:
            raise InputError(
                "The loss gives no gradient to any parameter of the optimizer: nothing would be"
                " trained.",
                fix="Make the optimizer from the parameters of the model that is trained; not"
                " all can be frozen.",
            )
        if needs_closure(type(self.optimizer)):
            raise InputError(
                f"{type(self.optimizer).__name__} computes the loss again within its step: the"
                " step needs a closure.",
                fix="Write the step yourself, as a StepFunction: it may call"
                " optimizer.step(closure).",
            )

    def _are_weights_finite(self) -> bool:
        return self._do_all(
            all(bool(local_tensor(parameter).isfinite().all()) for parameter in self.parameters)
        )

    def _non_finite(self, step: int) -> NonFiniteError:
        what = (
            "The gradient is not finite"
            if self.grad_norm is None
            else f"The gradient norm is {self.grad_norm}"
        )
        if not math.isfinite(self.loss):
            what = f"The loss is {self.loss}"
        if not self._are_weights_finite():
            return NonFiniteError(
                f"{what} at step {step + 1}: weights became infinite or NaN in a step before.",
                fix="Lower the learning rate, or set [train] clip_norm.",
            )
        return NonFiniteError(
            f"{what} at step {step + 1}.",
            fix="The weights are still those of before. Lower the learning rate, or [train]"
            ' non_finite="skip".',
        )

    def _backward_mean(self, loss: Tensor) -> None:
        if self._shares is None:  # no tensor: differentiating it raises what is blamed
            self._differentiate(loss)
            return
        self._be_alike("mean")
        share = self._shares[self._micro]
        self._micro += 1
        self._differentiate(loss * share)
        self._scalars.append((loss, share))

    def _backward_sum(self, total: Tensor, weight: Tensor | float | None) -> None:
        if self._shares is None:
            loss = total if weight is None else total / weight
            self._differentiate(loss)
            self._scalars.append((loss, 1.0))
            return
        self._be_alike("sum" if weight is None else "pair")
        self._differentiate(total)
        if weight is not None:
            self._weight = weight if self._weight is None else self._weight + weight
        self._scalars.append((total, 1.0))

    def _backward_weighed(self, loss: WeighedMean) -> None:
        if self._shares is None:
            self._differentiate(loss.value)
            self._scalars.append((loss.value, 1.0))
            return
        self._be_alike("weighed")
        share, mean = self._shares[self._micro], loss.share(self._sizes[self._micro])
        self._micro += 1
        self._differentiate(mean * share)
        self._scalars.append((mean, share))
        self._weight = loss.weight if self._weight is None else self._weight + loss.weight

    def _be_alike(self, kind: str) -> None:
        """Raise InputError when the loss of this micro-batch is of another kind than those
        before."""
        if self._kind not in ("", kind):
            raise two_kinds()
        self._kind = kind

    def _backward_named(self, losses: Mapping[str, Loss]) -> None:
        """All in one pass. Only sums of a window of several need passes of their own: what divides
        them comes later."""
        micro, self._micro = self._micro, self._micro + 1
        self._check_names(losses)
        if torch.is_anomaly_enabled():
            self._look_at_each(losses)
        divided = {name: self._divided(loss, micro) for name, loss in losses.items()}
        if self.hand_on is not None and any(
            weight is not None for _, _, weight in divided.values()
        ):
            what = (
                "Losses by name are (sum, weight) pairs, which a pipeline cannot differentiate"
                " one after another."
            )
            raise InputError(
                what, where="forward_step", fix="Return means by name, or one (sum, weight) pair."
            )
        means: Tensor | None = None
        sums: list[tuple[Term, Tensor]] = []
        for name, (loss, share, weight) in divided.items():
            factor, term = self.weights.get(name, 1.0), self._terms.setdefault(name, Term())
            if term.scalars and (term.weight is None) != (weight is None):
                raise two_kinds()
            term.scalars.append((loss.detach(), share))
            part = loss * (factor * share) if factor else None
            if weight is not None:
                term.weight = weight if term.weight is None else term.weight + weight
                term.over = self._samples if isinstance(losses[name], WeighedMean) else 1
                sums += [] if part is None else [(term, part)]
            elif part is not None:
                means = part if means is None else means + part
        try:
            for i, (term, total) in enumerate(sums):
                grads = self._gradients(
                    total, keep=means is not None or i + 1 < len(sums) or self._keeps_graph
                )
                term.grads = [
                    added(*two)
                    for two in zip(term.grads or [None] * len(grads), grads, strict=True)
                ]
            if means is not None:
                self._differentiate(means)
        except Exception as error:  # whatever it is goes up as it came, with a note
            error.add_note(
                f"in the backward pass of the losses {', '.join(losses)}; --debug says of which"
            )
            raise

    def _divided(self, loss: Loss, micro: int) -> tuple[Tensor, float, Tensor | float | None]:
        """Return (loss, its share, its weight): what of a loss to differentiate now, and what
        divides it at the end."""
        if isinstance(loss, tuple):
            total, weight = loss
            return (
                (total / weight, 1.0, None)
                if weight is not None and self._shares is None
                else (total, 1.0, weight)
            )
        share = 1.0 if self._shares is None else self._shares[micro]
        if not isinstance(loss, WeighedMean):
            return loss, share, None
        return (
            (loss.value, 1.0, None)
            if self._shares is None
            else (loss.share(self._sizes[micro]), share, loss.weight)
        )

    def _check_names(self, losses: Mapping[str, Loss]) -> None:
        """InputError for weights of losses that are not there, and for a loss that no gradient
        comes from."""
        for name in self.weights:
            if name not in losses:
                fix = did_you_mean(name, losses) or f"there are: {', '.join(losses)}"
                raise InputError(
                    f"There is a weight for the loss {name!r}, which the step does not give.",
                    fix=fix,
                )
        for name, loss in losses.items():
            if self.weights.get(name, 1.0):
                check_loss(loss, f"the loss {name!r}")
        if not any(self.weights.get(name, 1.0) for name in losses):
            raise InputError(
                "There is no loss to train with: all of them have the weight 0, or there is none."
            )

    def _look_at_each(self, losses: Mapping[str, Loss]) -> None:
        """Differentiate each loss alone and forget what comes out, so that the one which cannot be
        is named."""
        with undisturbed():
            for name, loss in losses.items():
                if self.weights.get(name, 1.0):
                    try:
                        self._gradients(self._divided(loss, 0)[0], keep=True)
                    except Exception as error:  # whatever it is goes up as it came, with a note
                        error.add_note(f"in the backward pass of the loss {name!r}")
                        raise

    def _gradients(self, loss: Tensor, *, keep: bool) -> list[Tensor | None]:
        """Of each parameter, None where the loss does not reach it."""
        if self.ranks.sharding is not None:
            return self._passed(loss, keep=keep)
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        grads = iter(torch.autograd.grad(loss, trained, retain_graph=keep, allow_unused=True))
        return [next(grads) if parameter.requires_grad else None for parameter in self.parameters]

    def _passed(self, loss: Tensor, *, keep: bool) -> list[Tensor | None]:
        """The same where the weights that were computed with are not the parameters, which are
        parts of them."""
        before = [parameter.grad for parameter in self.parameters]
        unprofiled.forget_gradients(self.optimizer)
        torch.autograd.backward(loss, retain_graph=keep)
        found = [parameter.grad for parameter in self.parameters]
        for parameter, grad in zip(self.parameters, before, strict=True):
            parameter.grad = grad
        return found

    def _join(self) -> None:
        """Put the gradients of sums, divided by their weights, with those of means."""
        for term in self._terms.values():
            term.settle()
            for parameter, grad in zip(self.parameters, term.grads or (), strict=False):
                if grad is not None:
                    own = grad / (1.0 if term.weight is None else term.weight)
                    parameter.grad = own if parameter.grad is None else parameter.grad + own
            term.grads = None

    def _add_up(self, ranks: DataParallelGroup) -> None:
        """Add up losses, weights and gradients over all ranks, to the same bits on each.

        A share of the window may be empty. Losses and weights come first: they divide gradients.
        """
        over = self._samples if self._kind == "weighed" else 1
        terms = self._terms or (
            {"": Term(self._scalars, self._weight, over=over)} if self._scalars else {}
        )
        own = [[name, term.kind] for name, term in terms.items()]
        flat = [
            number
            for term in terms.values()
            for number in (term.sum(read_now), float(term.weight or 0.0))
        ]
        kind, sums = ranks.all_reduce_losses(
            json.dumps([bool(self._terms), own, self._kind]), flat, has_none=not terms
        )
        is_named, names, _ = json.loads(kind)
        for (name, how), value, weight in zip(names, sums[::2], sums[1::2], strict=True):
            whole = torch.tensor(value, dtype=torch.float64)
            divisor = {"": None, "pair": weight, "weighed": weight / ranks.samples}[how]
            if is_named:
                term = self._terms.setdefault(name, Term())
                term.scalars, term.weight, term.over = [(whole, 1.0)], divisor, 1
            else:
                self._scalars, self._weight = (
                    [(whole if divisor is None else whole / divisor, 1.0)],
                    divisor,
                )
        if self._terms:
            self._join()
        if ranks.sharding is not None:
            return
        reached = ranks.all_reduce_stage_values(
            [parameter.grad is not None for parameter in self.parameters]
        )
        grads = []
        for parameter, count in zip(self.parameters, reached, strict=True):
            if count and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                grads.append(parameter.grad)
        if any(grad.is_sparse for grad in grads):
            raise InputError(
                "Sparse gradients are not shared between processes.", fix="Use dense embeddings."
            )
        ranks.all_reduce_(grads)
        ranks.all_reduce_tied_(self.parameters)

    def _divide(self, weight: Tensor | float) -> None:
        private_torch.foreach_div_(
            [local_tensor(p.grad) for p in self.parameters if p.grad is not None], weight
        )

    def _differentiate(self, loss: Tensor) -> None:
        """`loss.backward()`, from a 1 that is kept: torch would make a new one each time."""
        if self.hand_on is not None:
            self.hand_on(loss)
            return
        if loss.dim():
            loss.backward()  # type: ignore[no-untyped-call]
            return
        if (
            self._one is None
            or self._one.get_device() != loss.get_device()
            or self._one.dtype != loss.dtype
        ):
            self._one = torch.ones_like(loss)
        if self._is_alone:
            torch.autograd.backward(loss, self._one)
            return
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        torch.autograd.backward(loss, self._one, retain_graph=self._keeps_graph, inputs=trained)

    def _read_loss(self) -> float:
        if len(self._scalars) == 1:
            return self._scalars[0][0].item()
        return self._told(Term(self._scalars, self._weight), self._terms, read_now)

    def _told(self, own: Term, terms: Mapping[str, Term], read: Read) -> float:
        """The loss of a window: that without a name, or the sum of those that have one."""
        if not terms:
            return read(own.scalars[0][0]) if len(own.scalars) == 1 else own.value(read)
        if own.scalars:
            raise InputError("Of the losses of one window some have names, and some have none.")
        self.losses = {name: term.value(read) for name, term in terms.items()}
        counted = {name: self.weights.get(name, 1.0) for name in self.losses}
        return sum(factor * self.losses[name] for name, factor in counted.items() if factor)

    def _deferred_update(self, flag: Tensor) -> DeferredUpdate:
        """Gradients clipped, and `flag` set if something is not finite; all that is to be read of
        it is put together.

        What counts stands before the flag, and losses that are only recorded after it.
        """
        if self._weight is not None:
            self._divide(self._weight)
        self._fill_momentum()
        numbers = DeferredNumbers(flag.device)
        own = Term(*put_all(numbers, self._scalars, self._weight))
        terms = {
            name: term.put(numbers)
            for name, term in self._terms.items()
            if self.weights.get(name, 1.0)
        }
        norm = None
        if self.clip_norm is not None:
            norm = numbers.add(clip_norm_on_device_(self.parameters, self.clip_norm))
        elif self.non_finite != "ignore":
            self._look(
                flag,
                [parameter.grad for parameter in self.parameters if parameter.grad is not None],
            )
        num_counted = numbers.add(flag)
        terms |= {
            name: term.put(numbers) for name, term in self._terms.items() if name not in terms
        }
        terms = {name: terms[name] for name in self._terms}
        together = torch.stack(numbers.tensors)
        if self.non_finite != "ignore":
            self._look(flag, [together[:num_counted]])
        rate = self.rate.current

        def recall(values: Sequence[float]) -> None:
            self.losses = {}
            self.loss, self.lr = self._told(own, terms, partial(read_at, values)), rate
            self.grad_norm = None if norm is None else values[norm]

        def judge(values: Sequence[float], step: int) -> NonFiniteError | None:
            is_finite = not values[num_counted] and all(map(math.isfinite, values[:num_counted]))
            if self.non_finite == "ignore" or is_finite:
                return None
            if self.non_finite == "stop" or not self._are_weights_finite():
                return self._non_finite(step - 1)
            self.skipped += 1
            return None

        return DeferredUpdate(together, recall, judge)

    def deferred_loss(self, loss: Loss, blame: Callable[[int], NonFiniteError]) -> DeferredUpdate:
        """Return the deferred update of other code, of which only the loss is known."""
        total, weight = loss if isinstance(loss, tuple) else (loss, None)
        numbers, rate = DeferredNumbers(self.parameters[0].device), self.rate.current
        own = Term(*put_all(numbers, [(total, 1.0)], weight))

        def recall(values: Sequence[float]) -> None:
            self.loss, self.lr = own.value(partial(read_at, values)), rate

        def judge(values: Sequence[float], step: int) -> NonFiniteError | None:
            return None if self.non_finite != "stop" or math.isfinite(self.loss) else blame(step)

        return DeferredUpdate(torch.stack(numbers.tensors), recall, judge)

    def _look(self, flag: Tensor, tensors: list[Tensor]) -> None:
        """Set `flag` if one of them is not finite; nothing waits."""
        assert self._finder is not None
        private_torch.check_and_unscale_(tensors, flag, self._finder[1])

    def _fill_momentum(self) -> None:
        """Of a parameter that is new to SGD: torch would leave what an update that is left out does
        not write."""
        for group in self.optimizer.param_groups if isinstance(self.optimizer, SGD) else ():
            if group["momentum"]:
                for parameter in group["params"]:
                    state = self.optimizer.state[parameter]
                    if parameter.grad is not None and state.get("momentum_buffer") is None:
                        state["momentum_buffer"] = torch.zeros_like(parameter)


def can_leave_out(optimizer: Optimizer) -> bool:
    """Return whether `found_inf` makes its step a no-op, as in torch's fused optimizers."""
    if any(group.get("dampening") for group in optimizer.param_groups):
        return False  # what the first momentum is depends on whether there was one
    return private_torch.supports_found_inf(optimizer)


def _is_plain(grad: Tensor) -> bool:
    return (
        grad.layout == torch.strided
        and grad.is_floating_point()
        and grad.device.type in ("cpu", "cuda")
    )
