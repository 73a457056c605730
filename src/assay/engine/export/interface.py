"""Interface of an exported model: its inputs and outputs, by name, found in a call of the model.

A process says what of a batch goes into its model by calling it: the calls are watched.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine.loop.process import Process, as_arguments
from assay.engine.numerics.structures import map_values, tensors_by_path
from assay.formats.export_folder import BATCH

PLAIN = (bool, int, float, str)

Axes = Mapping[str, Mapping[int, str]]
"""Dynamic axes of each tensor: its name, and the axis with the name of its length."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Methods `preprocess` and `postprocess` that a process has written and that are exported."""

    before: Callable[..., Any] | None = None
    after: Callable[[Any], Any] | None = None

    @classmethod
    def of(cls, process: Process) -> Hooks:
        def find_own(name: str) -> Any:
            is_own = getattr(type(process), name, None) is not getattr(Process, name)
            return getattr(process, name, None) if is_own else None

        return cls(find_own("preprocess"), find_own("postprocess"))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of those that are written."""
        named = {"preprocess": self.before, "postprocess": self.after}
        return tuple(name for name, hook in named.items() if hook is not None)

    def run(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the output of a model, with what comes before and after it."""
        if self.before is not None:
            args, kwargs = as_arguments(self.before(*args, **kwargs)), {}
        output = model(*args, **kwargs)
        return output if self.after is None else self.after(output)


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One call of a module, as arguments by name of parameter, and what it returned.

    With hooks these are the arguments of `preprocess`, and what `postprocess` returned; `returned`
    is what the module did. `keywords` names the parameter that takes all other keywords, "" for
    none.
    """

    arguments: Mapping[str, Any]
    output: Any
    returned: Any
    keywords: str = ""

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Tensors among the arguments."""
        named = _by_name(self.arguments, "input")
        return {name.removeprefix(f"{self.keywords}_"): each for name, each in named.items()}

    @property
    def outputs(self) -> dict[str, Tensor]:
        """Tensors in what was returned."""
        return _by_name(self.output, "output")

    @property
    def constants(self) -> dict[str, Any]:
        """Plain values among the arguments: an export keeps them as they are."""
        return {name: value for name, value in self.arguments.items() if type(value) in PLAIN}


@contextmanager
def watch_calls(
    process: Process, module: nn.Module, hooks: Hooks, at: Callable[[ModelCall], None]
) -> Iterator[None]:
    """Inside, `at` gets every call of the module by the process, after it returned."""
    given: list[tuple[tuple[Any, ...], Mapping[str, Any]]] = []
    signature = inspect.signature(hooks.before or module.forward)
    rest = (p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD)
    keywords = next(rest, "")

    def before(*args: Any, **kwargs: Any) -> Any:
        given.append((args, kwargs))
        assert hooks.before is not None
        return hooks.before(*args, **kwargs)

    def after(called: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if hooks.before is not None:
            if not given:
                what = f"{type(process).__name__} has a preprocess, and calls its model without it."
                fix = "Call self.preprocess in each step; or rename it: it leaves with the model."
                raise InputError(what, fix=fix)
            args, kwargs = given.pop()  # type: ignore[assignment]
        output = out if hooks.after is None else hooks.after(out)
        at(ModelCall(signature.bind(*args, **kwargs).arguments, output, out, keywords))

    handle = module.register_forward_hook(after, with_kwargs=True)
    if hooks.before is not None:
        process.preprocess = before  # type: ignore[method-assign]
    try:
        yield
    finally:
        handle.remove()
        if hooks.before is not None:
            del process.preprocess


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """Inputs and outputs of an exported model.

    `call` is that of the first batch, on which the model is traced. `example` and `expected` are
    its tensors: one real batch, and what the record's model gives for it. `axes` and `output_axes`
    are those whose length may change. `hooks` leave with the model.
    """

    hooks: Hooks = Hooks()
    call: tuple[tuple[Any, ...], Mapping[str, Any]]
    example: Mapping[str, Tensor]
    expected: Mapping[str, Tensor]
    constants: Mapping[str, Any] = field(default_factory=dict)
    axes: Axes = field(default_factory=dict)
    output_axes: Axes = field(default_factory=dict)


class FlatModel(nn.Module):
    """Model that takes its tensors one after another, and returns them by name."""

    def __init__(self, model: nn.Module, interface: Interface) -> None:
        super().__init__()
        self.model = model
        self._call, self._hooks = interface.call, interface.hooks
        self._names = tuple(interface.expected)

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        args, kwargs = map_values(self._call, lambda slot: tensors[slot.place], InputSlot)
        found = _by_name(self._hooks.run(self.model, args, kwargs), "output")
        return {name: found[name] for name in self._names}


@dataclass(frozen=True, slots=True)
class InputSlot:
    """Place of a tensor among the inputs, in the arguments of a call."""

    place: int


def find_interface(
    process: Process, module: nn.Module, batch: Any, hooks: Hooks = Hooks()
) -> Interface:
    """Return the interface that the process uses for a batch, without dynamic axes.

    Inference comes first: it leaves out what only a loss needs. InputError when the module is not
    called, or is given no tensor.
    """
    kind = type(module).__name__
    seen: list[ModelCall] = []

    def see(call: ModelCall) -> None:
        if not seen:  # as it is now: a step may change tensors in place
            kept = {"arguments": dict(call.arguments), "output": call.output}
            seen.append(replace(call, **map_values(kept, lambda each: each.detach().clone())))

    with watch_calls(process, module, hooks, see):
        try:
            if hasattr(process, "inference_step"):
                process.inference_step(batch)
        except Exception:  # of any kind: the model may need a target, which validation gives
            seen.clear()
        if not seen:
            process.validation_step(batch)
    if not seen:
        fix = "Name the part that it calls with --module; or let inference_step call self.model."
        raise InputError(f"The process does not call {kind} as a whole.", fix=fix)
    call = seen[0]
    if not call.inputs or not call.outputs:
        what = "is given" if not call.inputs else "returns"
        kinds = "An export takes tensors in mappings, lists, tuples and dataclasses"
        fix = f"{kinds}; --module names a part of the model that is given some."
        raise InputError(f"{kind} {what} no tensor that could be found.", fix=fix)
    return Interface(
        hooks=hooks,
        call=_with_slots(hooks.before or module.forward, call),
        example=call.inputs,
        expected=call.outputs,
        constants=call.constants,
    )


class ShapeSurvey:
    """Shapes of inputs and outputs in many calls: the axes that change, and those of the batch."""

    def __init__(self) -> None:
        self._samples: list[int] = []
        self._shapes: list[tuple[dict[str, torch.Size], ...]] = []

    def see(self, call: ModelCall, samples: int) -> None:
        """Note the shapes of a call for a batch of that many samples."""
        self._samples.append(samples)
        shapes = (map_values(side, lambda each: each.shape) for side in (call.inputs, call.outputs))
        self._shapes.append(tuple(shapes))

    def complete(self, interface: Interface) -> Interface:
        """Return the interface with its dynamic axes; those that change alike have one name."""
        names: dict[tuple[int, ...], str] = {}
        axes, output_axes = (
            {name: self._axes(name, side, names) for name in tensors}
            for side, tensors in enumerate((interface.example, interface.expected))
        )
        return replace(interface, axes=axes, output_axes=output_axes)

    def _axes(self, name: str, side: int, names: dict[tuple[int, ...], str]) -> dict[int, str]:
        shapes = [seen[side].get(name, ()) for seen in self._shapes]
        if len({len(shape) for shape in shapes}) != 1:
            return {}
        samples = tuple(self._samples)
        found: dict[int, str] = {}
        for axis, lengths in enumerate(zip(*shapes, strict=True)):
            does_change = len(set(lengths)) > 1
            if lengths == samples and (does_change or BATCH not in found.values()):
                found[axis] = BATCH
            elif does_change:
                found[axis] = names.setdefault(lengths, f"{name}_{axis}")
        return found


def _by_name(found: Any, alone: str) -> dict[str, Tensor]:
    """Return the tensors in a structure by the path to them; `alone` is the name of a lone one."""
    named: dict[str, Tensor] = {}
    for path, tensor in tensors_by_path(found):
        parts = [alone] if not path or isinstance(path[0], int) else []
        name = "_".join([*parts, *(str(part) for part in path)]).replace(".", "_")
        while name in named:
            name += "_"
        named[name] = tensor
    return named


def _with_slots(
    called: Callable[..., Any], call: ModelCall
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the arguments of a call with a slot in the place of each tensor."""
    places = count()
    bound = inspect.signature(called).bind_partial()
    bound.arguments.update(map_values(dict(call.arguments), lambda _: InputSlot(next(places))))
    return bound.args, bound.kwargs
