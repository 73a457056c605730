"""Several optimizers in one step, for a GAN, or an actor and a critic.

Each has losses, a schedule and a limit of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from assay.core.errors import InputError, did_you_mean
from assay.core.events import Handler
from assay.engine.numerics.deferred import DeferredUpdate
from assay.engine.numerics.nan_debug import NonFiniteError
from assay.engine.optim.optimizer_step import OptimizerStep
from assay.engine.optim.optimizer_step_base import OptimizerStepBase, Stateful
from assay.engine.optim.plateau import Progress


class MultiOptimizerStep(OptimizerStepBase):
    """One `OptimizerStep` for each name, all updated together from losses by these names.

    The loss of a part changes the parameters of its own optimizer and leaves all others as they
    are, so that the loss of a generator may run through its critic. `every` says of a part that it
    is updated in each n-th step only; in the others its loss may be missing, and is not used. An
    update that one part leaves out is left out by all. An optimizer of torch stands for an
    `OptimizerStep` with it.
    """

    def __init__(
        self,
        by_name: Mapping[str, OptimizerStep | Optimizer],
        *,
        every: Mapping[str, int] | None = None,
    ) -> None:
        if not by_name:
            raise InputError("MultiOptimizerStep was given no OptimizerStep.")
        self.by_name = {name: _as_part(name, part) for name, part in by_name.items()}
        self.every = dict(every or {})
        self.optimizers = {name: part.optimizer for name, part in self.by_name.items()}
        _refuse_shared(self.by_name)
        for name, count in self.every.items():
            if name not in self.by_name:
                fix = did_you_mean(name, self.by_name) or f"there are: {', '.join(self.by_name)}"
                raise InputError(f"`every` names {name!r}, which is no optimizer.", fix=fix)
            if count < 1:
                raise InputError(f"`every` of {name} is {count}; it counts steps, from 1 on.")
        policies = {part.non_finite for part in self.by_name.values()}
        self.non_finite = (
            "ignore" if policies == {"ignore"} else "stop" if "stop" in policies else "skip"
        )
        self._due = self._due_at(0)
        self._updated: tuple[str, ...] = ()
        self._flag: Tensor | None = None

    def __getitem__(self, name: str) -> OptimizerStep:
        return self.by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    @property
    def skipped(self) -> int:
        return sum(part.skipped for part in self.by_name.values())

    @property
    def num_empty(self) -> int:
        return sum(part.num_empty for part in self.by_name.values())

    @property
    def needs_weights(self) -> bool:
        return any(part.needs_weights for part in self._due.values())

    def is_due(self, name: str) -> bool:
        """Return whether this step updates the part, and so needs its loss."""
        return name in self._due

    def begin(self, sizes: Sequence[int] | None) -> None:
        for part in self._due.values():
            part.begin(sizes)

    def __call__(self, loss: Any) -> None:
        names = ", ".join(self.by_name)
        if not isinstance(loss, Mapping):
            raise InputError(
                f"The loss is a {type(loss).__name__}; {names} want one each.",
                where="forward_step",
                fix=f"Return a mapping of losses:"
                f" {{{', '.join(f'{name!r}: ...' for name in self.by_name)}}}.",
            )
        for name in loss:
            if name not in self.by_name:
                fix = did_you_mean(name, self.by_name) or f"there are: {names}"
                raise InputError(
                    f"There is a loss for {name!r}, which is no optimizer.",
                    where="forward_step",
                    fix=fix,
                )
        for i, (name, part) in enumerate(self._due.items()):
            if name not in loss:
                raise InputError(
                    f"There is no loss for {name!r}, which this step updates.", where="forward_step"
                )
            part.gradients.share_graph(keep=i + 1 < len(self._due))
            try:
                part(loss[name])
            except InputError as error:
                raise InputError(
                    f"{name}: {error.what}", where=error.where, fix=error.fix
                ) from error
            except Exception as error:  # whatever it is goes up as it came, with a note
                error.add_note(f"in the backward pass of {name}")
                raise
        self.seconds = sum(part.seconds for part in self.by_name.values())

    def update(self, step: int) -> bool:
        taken = True
        due = self._due.values()
        defers = bool(due) and all(part.can_defer_update for part in due)  # or none of them
        for name, part in self._due.items():
            with _blame(name):
                taken = part.prepare(step, defers=defers) and taken
        self.deferred = self._merge(self._flag) if defers and self._flag is not None else None
        for part in self._due.values():
            part.finish(step, take=taken)
        self._set_results(self._due)
        for name, part in self.by_name.items():
            if name not in self._due:
                part.rate.set(step + 1)
        self.go_to(step + 1)
        return taken

    def go_to(self, step: int) -> None:
        """Choose the parts that are due after `step` completed ones."""
        self._due = self._due_at(step)

    def walk_schedule(self, steps: int) -> None:
        for part in self.by_name.values():
            part.walk_schedule(steps)

    def handlers(self, progress: Progress) -> list[Handler]:
        return [each for part in self.by_name.values() for each in part.handlers(progress)]

    def skip_steps(self, count: int) -> None:
        for part in self.by_name.values():
            part.skip_steps(count)

    def start(self, step: int, *, total: int | None, epoch_length: int | None) -> None:
        for part in self.by_name.values():
            part.start(step, total=total, epoch_length=epoch_length)
        self.go_to(step)

    def refit(self, step: int, *, total: int | None, epoch_length: int | None) -> bool:
        changed = [
            part.refit(step, total=total, epoch_length=epoch_length)
            for part in self.by_name.values()
        ]
        self.go_to(step)
        return any(changed)

    def defer(self, flag: Tensor | None) -> bool:
        """Each part has a flag of its own, and `flag` is set when one of them is."""
        self._flag = self.deferred = None
        parts = self.by_name.values()
        can = flag is not None and len({part.non_finite for part in parts}) == 1
        own = [part.defer(flag.clone() if can and flag is not None else None) for part in parts]
        if not all(own):
            for part in parts:
                part.defer(None)
            return False
        for optimizer in self.optimizers.values() if self.non_finite != "ignore" else ():
            optimizer.found_inf = flag  # type: ignore[attr-defined]
        self._flag = flag
        return True

    def _merge(self, flag: Tensor) -> DeferredUpdate:
        """Merge the deferred updates of all parts that are due."""
        due = dict(self._due)
        if self.non_finite != "ignore":
            flags = [part.flag for part in due.values() if part.flag is not None]
            flags += [part.lasting for part in self.by_name.values() if part.lasting is not None]
            flag.copy_(torch.stack(flags).amax())
        rows = {name: part.deferred for name, part in due.items() if part.deferred is not None}
        places: dict[str, slice] = {}
        begin = 0
        for name, row in rows.items():
            end = begin + len(row.numbers)
            places[name] = slice(begin, end)
            begin = end

        def recall(values: Sequence[float]) -> None:
            for name, row in rows.items():
                row.recall(values[places[name]])
            self._set_results(due)

        def judge(values: Sequence[float], step: int) -> bool:
            made = True
            for name, row in rows.items():
                with _blame(name):
                    made = row.judge(values[places[name]], step) and made
            return made

        numbers = torch.cat([row.numbers for row in rows.values()])
        return DeferredUpdate(numbers, recall, judge)

    def _set_results(self, due: Mapping[str, OptimizerStep]) -> None:
        """Set the loss to the sum of those of the parts that were updated."""
        self.has_loss = bool(due) and all(part.has_loss for part in due.values())
        self.loss = sum(part.loss for part in due.values()) if due else math.nan
        self._updated = tuple(due)

    def points(self) -> dict[str, float]:
        points = super().points()
        for name in self._updated:
            for key, value in self.by_name[name].points().items():
                split, what, *rest = key.split("/")
                points["/".join((split, what, name, *rest))] = value
        return points

    def parts(self, model: nn.Module) -> dict[str, Stateful]:
        found: dict[str, Stateful] = {}
        for name, part in self.by_name.items():
            found |= {f"{key}.{name}": holder for key, holder in part.parts(model).items()}
        return found

    def _due_at(self, step: int) -> dict[str, OptimizerStep]:
        """Return the optimizers that step now: each in the last of every n steps.

        A critic is thus ahead of its generator, as in Arjovsky et al., arXiv 1701.07875.
        """
        return {
            name: part
            for name, part in self.by_name.items()
            if (step + 1) % self.every.get(name, 1) == 0
        }


@contextmanager
def _blame(name: str) -> Iterator[None]:
    """Name the optimizer in an error about what is not finite."""
    try:
        yield
    except NonFiniteError as error:
        raise NonFiniteError(f"{name}: {error.what}", where=error.where, fix=error.fix) from error


def as_optimizer_step(optimizer: Any) -> OptimizerStepBase:
    """Return the optimizer step of an optimizer, or of several by name.

    InputError for anything else.
    """
    if isinstance(optimizer, OptimizerStepBase):
        return optimizer
    if isinstance(optimizer, Mapping):
        return MultiOptimizerStep(optimizer)
    return _as_part("", optimizer)


def _as_part(name: str, part: Any) -> OptimizerStep:
    if isinstance(part, OptimizerStep):
        return part
    if hasattr(part, "param_groups") and not isinstance(part, type):
        return OptimizerStep(part)
    what = f"the class {part.__name__}" if isinstance(part, type) else f"{part!r:.80}"
    raise InputError(
        f"{f'The optimizer {name!r}' if name else 'The optimizer'} is none of torch: it is {what}.",
        fix="Give an optimizer, such as torch.optim.Adam(model.parameters()), an OptimizerStep with"
        ' it, or several by name: {"generator": ..., "critic": ...}.',
    )


def _refuse_shared(by_name: Mapping[str, OptimizerStep]) -> None:
    """InputError when two optimizers train one parameter: each would undo what the other does."""
    owner: dict[int, str] = {}
    for name, part in by_name.items():
        for parameter in part.parameters:
            first = owner.setdefault(id(parameter), name)
            if first != name:
                raise InputError(
                    f"{first} and {name} both train a parameter of the shape"
                    f" {tuple(parameter.shape)}.",
                    fix="Give each the parameters of its own part of the model.",
                )
