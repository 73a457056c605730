"""Changes of a training at a step: freeze or free modules, set values, reset the optimizer.

A change takes effect when `step` steps are completed. A run resumed from a later step has it from
its beginning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from torch import nn

from assay.core.errors import InputError, did_you_mean
from assay.core.events import At, Event, Handler
from assay.core.facts import Changed
from assay.engine.loop.engine import Engine
from assay.engine.optim.multi_optimizer_step import MultiOptimizerStep
from assay.engine.optim.optimizer_step import OptimizerStep
from assay.engine.optim.schedules import TorchSchedule

_EARLIEST = -(10**12)


class _Change(ABC):
    """Something that is done once at a step, and told."""

    step: int

    def handlers(self) -> list[Handler]:
        name = type(self).__name__
        return [
            # The earlier one first, whatever their order in the config: of two that set the same,
            # the later one holds.
            Handler(
                event=Event.RUN_BEGIN,
                fn=self.begin,
                priority=_EARLIEST + self.step,
                name=f"{name}.begin",
            ),
            Handler(
                event=Event.STEP_BEGIN, fn=self.apply, when=At(frozenset({self.step})), name=name
            ),
        ]

    def begin(self, engine: Engine) -> None:
        """Make sure that it can be done, and do again what no checkpoint keeps."""
        self.check(engine)
        if engine.state.step > self.step:
            self.redo(engine)

    def apply(self, engine: Engine) -> None:
        """Do it, and tell."""
        for what, before, after in self.do(engine):
            engine.recorder.tell(
                Changed(what=what, step=engine.state.step, before=before, after=after)
            )

    @abstractmethod
    def check(self, engine: Engine) -> None:
        """InputError for what cannot be done."""

    @abstractmethod
    def do(self, engine: Engine) -> list[tuple[str, str, str]]:
        """Do it; what was changed, from what, to what."""

    @abstractmethod
    def redo(self, engine: Engine) -> None:
        """Apply a change of before the checkpoint again, where the checkpoint does not hold it."""


class SetRequiresGrad(_Change):
    """Callback that freezes or unfreezes parameters after `step` steps, by patterns of names.

    A frozen parameter gets no gradient and is left out by the optimizer, weight decay and momentum
    included.
    """

    changes: ClassVar[str] = "which parameters are trained"

    def __init__(self, step: int, match: str | Sequence[str], *, value: bool = False) -> None:
        self.step = _check_step(step)
        self.match = (match,) if isinstance(match, str) else tuple(match)
        self.value = value

    def check(self, engine: Engine) -> None:
        names = [name for name, _ in engine.process.model.named_parameters()]
        for pattern in self.match:
            if not any(fnmatchcase(name, pattern) for name in names):
                fix = did_you_mean(pattern, names) or f"There are: {', '.join(names[:8])}."
                raise InputError(
                    f"SetRequiresGrad: no parameter of the model is called {pattern!r}.", fix=fix
                )
        if self.value:
            groups = [
                group for part in _parts(engine).values() for group in part.optimizer.param_groups
            ]
            trained = {id(weight) for group in groups for weight in group["params"]}
            lost = [
                name
                for name, weight in self._match_parameters(engine.process.model)
                if id(weight) not in trained
            ]
            if lost:
                raise InputError(
                    f"SetRequiresGrad is to free {lost[0]}, which the optimizer does not know.",
                    fix="Make the optimizer from all parameters, the frozen ones too.",
                )

    def do(self, engine: Engine) -> list[tuple[str, str, str]]:
        changed = 0
        for _, weight in self._match_parameters(engine.process.model):
            changed += weight.requires_grad != self.value
            weight.requires_grad_(self.value)
            if not self.value:
                weight.grad = None  # an optimizer would go on with one that is there
        word = "parameter" if changed == 1 else "parameters"
        what = f"requires_grad of {', '.join(self.match)} ({changed} {word})"
        return [(what, str(not self.value).lower(), str(self.value).lower())]

    def redo(self, engine: Engine) -> None:
        self.do(engine)

    def _match_parameters(self, model: nn.Module) -> list[tuple[str, nn.Parameter]]:
        named = model.named_parameters()
        return [
            (name, weight)
            for name, weight in named
            if any(fnmatchcase(name, each) for each in self.match)
        ]


class SetValue(_Change):
    """Callback that sets a value after `step` steps.

    `key` begins with `optimizer` (a setting of all its groups, as in optimizer.lr; of one of
    several optimizers, as in optimizer.critic.lr), `model`, `process` or `backward` (an attribute,
    as in model.drop.p or backward.clip_norm). Where there is a schedule, optimizer.lr is the rate
    that it multiplies; what a scheduler of torch sets itself is refused, and all settings of the
    optimizer where the scheduler is of the user's class.
    """

    changes: ClassVar[str] = "a value that training depends on"

    def __init__(self, step: int, key: str, value: Any) -> None:
        if not _is_plain(value):
            raise InputError(
                f"SetValue cannot set {key!r} to a {type(value).__name__}.",
                fix="Give a number, a text, true or false, or a list of these.",
            )
        self.step = _check_step(step)
        self.key = key
        self.value = value

    def check(self, engine: Engine) -> None:
        self._now(engine)
        root, *path, last = self.key.split(".")
        for part in _steps_named(engine, path) if root == "optimizer" else ():
            schedule = part.rate.schedule
            if isinstance(schedule, TorchSchedule) and schedule.sets(last):
                raise InputError(
                    f"SetValue cannot set {self.key!r}: {type(schedule.scheduler).__name__} sets"
                    " it at every step.",
                    fix="Take a schedule of assay, which multiplies the rate that is set, or none.",
                )

    def do(self, engine: Engine) -> list[tuple[str, str, str]]:
        before = self._now(engine)
        self._set(engine)
        return [(self.key, repr(before), repr(self.value))]

    def redo(self, engine: Engine) -> None:
        self._set(engine)

    def _set(self, engine: Engine) -> None:
        root, *path, last = self.key.split(".")
        if root != "optimizer":
            setattr(self._owner(engine, root, path), last, self.value)
            return
        for part in _steps_named(engine, path):
            for group in part.optimizer.param_groups:
                group[last] = self.value
            if last == "lr":
                part.rate.bases = [float(self.value) for _ in part.rate.bases]
                for group in part.optimizer.param_groups:
                    group["initial_lr"] = self.value
                part.rate.set(engine.state.step)

    def _now(self, engine: Engine) -> Any:
        """Return the current value; InputError when there is none."""
        root, *path = self.key.split(".")
        roots = ("optimizer", "model", "process", "backward")
        if root not in roots or not path:
            fix = did_you_mean(root, roots) if root not in roots else ""
            raise InputError(
                f"SetValue cannot set {self.key!r}.",
                fix=fix or "Write optimizer.lr or model.drop.p, for example.",
            )
        if root == "optimizer":
            parts = _steps_named(engine, path[:-1])
            there = (
                [name for name in _first(parts) if name not in ("params", "initial_lr")]
                if parts
                else []
            )
            if path[-1] not in there:
                known = [*there, *(f"{name}.lr" for name in _parts(engine) if name)]
                fix = did_you_mean(".".join(path), known) or f"It has: {', '.join(known)}."
                raise InputError(
                    f"SetValue: the optimizer has no setting {'.'.join(path)!r}.", fix=fix
                )
            return _first(parts)[path[-1]]
        owner = self._owner(engine, root, path[:-1])
        before = _member(owner, path[-1], self.key)
        # Settings only: whoever could put functions in the place of methods would run code by a
        # config alone.
        if not _is_plain(before):
            what = f"SetValue cannot set {self.key!r}, which is a {type(before).__name__}."
            mine = getattr(owner, "__dict__", {}).items()
            there = [name for name, value in mine if name[0] != "_" and _is_plain(value)]
            raise InputError(what, fix=f"It has: {', '.join(there[:8])}." if there else "")
        return before

    def _owner(self, engine: Engine, root: str, path: Sequence[str]) -> Any:
        owner: Any = {
            "model": engine.process.model,
            "process": engine.process,
            "backward": engine.process.backward,
        }[root]
        for name in path:
            owner = _member(owner, name, self.key)
        return owner


class ResetOptimizer(_Change):
    """Callback that clears the state of the optimizer (moments, step counts) after `step` steps."""

    changes: ClassVar[str] = "the state of the optimizer"

    def __init__(self, step: int) -> None:
        self.step = _check_step(step)

    def check(self, engine: Engine) -> None:
        pass

    def do(self, engine: Engine) -> list[tuple[str, str, str]]:
        for part in _parts(engine).values():
            part.optimizer.state.clear()
        return [("the state of the optimizer was reset", "", "")]

    def redo(self, engine: Engine) -> None:
        """The checkpoint holds what the optimizer has gathered since."""


def _check_step(step: int) -> int:
    if step < 0:
        raise InputError(f"step is {step}; it counts completed steps, from 0 on.")
    return step


def _parts(engine: Engine) -> dict[str, OptimizerStep]:
    """Return the optimizer steps by name; the only one is called ""."""
    backward = engine.process.backward
    if isinstance(backward, MultiOptimizerStep):
        return backward.by_name
    if isinstance(backward, OptimizerStep):
        return {"": backward}
    raise InputError(
        f"What a {type(backward).__name__} does cannot be changed: it is no OptimizerStep of"
        " assay's."
    )


def _steps_named(engine: Engine, path: Sequence[str]) -> list[OptimizerStep]:
    """All of them, or the one that `path` names; none when there is no such."""
    parts = _parts(engine)
    if not path:
        return list(parts.values())
    return [part for name, part in parts.items() if [name] == list(path)]


def _first(parts: Sequence[OptimizerStep]) -> Mapping[str, Any]:
    return parts[0].optimizer.param_groups[0]


def _is_plain(value: Any) -> bool:
    """Return whether `value` is a number, a text, None, or a list of these."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _member(owner: Any, name: str, key: str) -> Any:
    if name.startswith("_"):
        raise InputError(
            f"SetValue {key!r}: {name!r} is private.",
            fix="Set an attribute that has a public name.",
        )
    try:
        return getattr(owner, name)
    except AttributeError:
        there = [each for each in dir(owner) if not each.startswith("_")]
        fix = did_you_mean(name, there)
        raise InputError(
            f"SetValue {key!r}: a {type(owner).__name__} has no {name!r}.", fix=fix
        ) from None
