"""Stages of a pipeline: the split of a model, what passes between them, and their states."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.errors import InputError, did_you_mean
from assay.engine.numerics import private_torch
from assay.engine.numerics.dtensor import full_tensor
from assay.engine.numerics.structures import table_like, tensors_in

_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePart:
    """Piece of the forward pass: `run` takes the output of the part before it.

    `weights` are the names of the weights it uses.
    """

    name: str
    run: Callable[..., Any]
    weights: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSplit:
    """Model as stages of successive parts. `sizes` has the element count of each weight."""

    stages: tuple[tuple[PipelinePart, ...], ...]
    sizes: Mapping[str, int]

    def weights(self, *stages: int) -> frozenset[str]:
        """Return the names of the weights that these stages use."""
        return frozenset(
            name for stage in stages for part in self.stages[stage] for name in part.weights
        )

    def table(self, processes: int) -> list[str]:
        """Return a line for each stage: its rank, its parts, its number of parameters."""
        made = [_list_names([part.name for part in stage]) for stage in self.stages]
        counts = [
            f"{sum(self.sizes[name] for name in self.weights(i)):,}"
            for i in range(len(self.stages))
        ]
        wide = max(map(len, made))
        far = max(map(len, counts))
        return [
            f"  stage {i} (pipeline rank {i % processes})  {names:<{wide}} "
            f" {count:>{far}} parameters"
            for i, (names, count) in enumerate(zip(made, counts, strict=True))
        ]


def pipeline_parts(model: nn.Module) -> list[PipelinePart]:
    """Return the parts of a model in the order of its forward pass.

    A model lists them in a method `pipeline_split()`: modules, and for other code a tuple of a
    function and the names of the modules and weights that it uses. Parts of `nn.Sequential`, nested
    too, and of `nn.TransformerEncoder` are known. InputError for a model without such a method, or
    if a weight is left out.
    """
    declared = getattr(model, "pipeline_split", None)
    names = {id(module): name for name, module in model.named_modules()}
    if callable(declared):
        items = list(declared())
    elif _is_row(model):
        items = [model]
    else:
        raise InputError(
            f"{type(model).__name__} does not say where a pipeline may split it.",
            fix="Give it a method pipeline_split that returns what it runs in order, as"
            ' [(self.embed, "letter",'
            ' "place"), *self.blocks, (self.scores, "norm")]: modules, or functions with'
            " the names of what they use.",
        )
    parts = [part for item in items for part in _parts(model, item, names)]
    left = _weights(model).keys() - {name for part in parts for name in part.weights}
    if left:
        what = f"pipeline_split of {type(model).__name__} leaves out {_list_names(sorted(left))}."
        raise InputError(
            what, fix="Name each weight, or a module that it is in, with what uses it."
        )
    return parts


def split_model(model: nn.Module, stages: int, split: Sequence[str] = ()) -> PipelineSplit:
    """Split a model into `stages`: at the parts named in `split`, else about equal in size.

    InputError if that is impossible, or a stage had no weights.
    """
    parts = pipeline_parts(model)
    weights = _weights(model)
    sizes = {
        name: weight.numel() for name, weight in weights.items() if isinstance(weight, nn.Parameter)
    }
    starts = _find_starts(parts, stages, split) if split else _balance_starts(parts, stages, sizes)
    found = tuple(tuple(parts[i:j]) for i, j in pairwise([0, *starts, len(parts)]))
    trained = {name for name in sizes if weights[name].requires_grad}
    for number, stage in enumerate(found):
        if not any(part.weights & trained for part in stage):
            made = _list_names([part.name for part in stage])
            raise InputError(
                f"Stage {number} of the pipeline ({made}) has no weights that are trained."
            )
    return PipelineSplit(stages=found, sizes={name: sizes.get(name, 0) for name in weights})


def keep_weights(model: nn.Module, names: frozenset[str]) -> frozenset[str]:
    """Keep in `model` only the weights and buffers of these names; return the other names.

    Modules that lose theirs stay as empty shells, so that all names stay the same. A loaded state
    may be that of the whole model: weights of other stages are skipped.
    """
    whole = model.state_dict().keys()
    kept = {id(tensor) for name, tensor in _all_weights(model) if name in names}
    for module in model.modules():
        for own in (private_torch.parameters_of(module), private_torch.buffers_of(module)):
            for name, tensor in own.items():
                if tensor is not None and id(tensor) not in kept:
                    own[name] = None
    elsewhere = frozenset(whole - model.state_dict().keys())

    def pass_over(_: nn.Module, state: dict[str, Any], *__: Any) -> None:
        for name in elsewhere:
            state.pop(name, None)

    model.register_load_state_dict_pre_hook(pass_over)  # type: ignore[no-untyped-call]
    return elsewhere


def _parts(model: nn.Module, item: Any, names: Mapping[int, str]) -> Iterator[PipelinePart]:
    if isinstance(item, nn.Module):
        if id(item) not in names:
            raise InputError(
                f"pipeline_split gives a {type(item).__name__} that is no module of the model."
            )
        if _is_row(item):
            for each in _row(item):
                yield from _parts(model, each, names)
        else:
            name = names[id(item)]
            yield PipelinePart(
                name=name or type(item).__name__, run=item, weights=_within(model, name)
            )
        return
    function, *uses = item if isinstance(item, tuple) else (item,)
    if not callable(function) or not all(isinstance(use, str) for use in uses):
        fix = 'A part is a module, or a tuple such as (self.embed, "letter", "place").'
        raise InputError(
            f"pipeline_split gives {item!r:.80}, which is no part of a model.", fix=fix
        )
    known = [*names.values(), *(name for name, _ in _all_weights(model))]
    for use in uses:
        if use not in known:
            fix = did_you_mean(use, known)
            raise InputError(
                f"pipeline_split: there is no {use!r} in {type(model).__name__}.", fix=fix
            )
    found = frozenset[str]().union(*(_within(model, use) for use in uses))
    yield PipelinePart(
        name=getattr(function, "__name__", type(function).__name__), run=function, weights=found
    )


def _is_row(module: nn.Module) -> bool:
    """Return True if the forward pass is known to run the modules of `_row` one after another."""
    if isinstance(module, nn.Sequential):
        return type(module).forward is nn.Sequential.forward
    return type(module) is nn.TransformerEncoder


def _row(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, nn.TransformerEncoder):
        return [*module.layers, *([] if module.norm is None else [module.norm])]
    return list(module.children())


def _all_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and buffers under all their names: tied ones have several."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by the first of their names."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in _all_weights(model):
        found.setdefault(id(tensor), (name, tensor))
    return dict(found.values())


def _within(model: nn.Module, name: str) -> frozenset[str]:
    """Return the first names of all weights in a module, or of the weight of that name."""
    first = {id(tensor): own for own, tensor in _weights(model).items()}
    inside = f"{name}." if name else ""
    return frozenset(
        first[id(tensor)]
        for own, tensor in _all_weights(model)
        if own == name or own.startswith(inside)
    )


def _find_starts(parts: Sequence[PipelinePart], stages: int, split: Sequence[str]) -> list[int]:
    names = [part.name for part in parts]
    for name in split:
        if name not in names[1:]:
            fix = did_you_mean(name, names) or f"there are: {_list_names(names)}"
            raise InputError(f"[parallel] split: no stage can begin with {name!r}.", fix=fix)
    starts = [names.index(name) for name in split]
    if len(starts) != stages - 1:
        what = (
            f"[parallel] split names {len(starts)} parts; {stages} stages begin with {stages - 1}"
            " after the first."
        )
        raise InputError(what)
    if starts != sorted(set(starts)):
        raise InputError("[parallel] split names parts in another order than the model runs them.")
    return starts


def _balance_starts(
    parts: Sequence[PipelinePart], stages: int, sizes: Mapping[str, int]
) -> list[int]:
    """Return where stages begin, such that the largest is as small as possible."""
    own = [sum(sizes.get(name, 0) for name in part.weights) for part in parts]
    places = [i for i, size in enumerate(own) if size]
    if len(places) < stages:
        raise InputError(
            f"The model has {len(places)} parts with weights, too few for {stages} stages"
            " of a pipeline.",
            fix=f"They are: {_list_names([parts[i].name for i in places])}.",
        )
    ends = [*places[1:], len(parts)]
    until = [sum(own[:end]) for end in ends]  # of all parts before an end
    best = [
        (size, [0]) for size in until
    ]  # of so many places in one stage: the largest stage, where stages begin
    for count in range(2, stages + 1):
        best = [
            min(
                (max(best[j - 1][0], until[i] - until[j - 1]), [*best[j - 1][1], places[j]])
                for j in range(count - 1, i + 1)
            )
            if i >= count - 1
            else best[i]
            for i in range(len(places))
        ]
    return best[-1][1][1:]


def _list_names(names: Sequence[str]) -> str:
    if len(names) <= _SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[: _SHOWN - 3])}, ... {', '.join(names[-2:])} ({len(names)} parts)"


Shapes = tuple[tuple[tuple[int, ...], torch.dtype], ...]
"""Of the tensors of a batch, or of what one stage gives to the next."""


def shapes_of(found: Any) -> Shapes:
    """Return shape and dtype of each tensor in a batch, or in what one stage gives to the next."""
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors_in(found))


def bytes_of(shapes: Iterable[tuple[tuple[int, ...], torch.dtype]]) -> int:
    """Return the size of tensors of these shapes."""
    return sum(math.prod(size) * dtype.itemsize for size, dtype in shapes)


def scale_shapes(shapes: Shapes, samples: int, wanted: int) -> Shapes:
    """Return shapes for `wanted` in place of `samples`, which are the first dim where it is equal."""
    return tuple(
        ((wanted, *size[1:]) if size[:1] == (samples,) else size, dtype) for size, dtype in shapes
    )


def zeros_like_shape(
    shape: tuple[tuple[int, ...], torch.dtype], is_training: bool, device: Any
) -> Tensor:
    size, dtype = shape
    return torch.zeros(
        size, dtype=dtype, device=device, requires_grad=is_training and dtype.is_floating_point
    )


def shape_only(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta")


def sendable(found: Any, name: str) -> Any:
    """Return contiguous tensors, one or a tuple; InputError for values that no stage can send."""
    several = found if isinstance(found, tuple) else (found,)
    if not several or not all(isinstance(each, Tensor) for each in several):
        kinds = ", ".join(type(each).__name__ for each in several)
        raise InputError(
            f"{name} gives {kinds or 'nothing'}; from stage to stage of a pipeline go"
            " tensors only.",
            fix=(
                "Split the model elsewhere ([parallel] split), or let this part return one tensor"
                " or a tuple of them."
            ),
        )
    sent = tuple(each.contiguous() for each in several)
    return sent if isinstance(found, tuple) else sent[0]


def merge_states(states: Sequence[Any], order: Mapping[str, int]) -> Any:
    """Merge the states of several stages: tables are joined, other values are those of the first.

    Tables and lists of weights follow the `order` of names. Groups of an optimizer with the same
    settings become one.
    """
    first = states[0]
    if isinstance(first, dict):
        tables = [state for state in states if isinstance(state, dict)]
        keys = list(dict.fromkeys(key for table in tables for key in table))
        if any(key in order for key in keys):
            keys.sort(key=lambda key: order.get(key, len(order)))
        items = (
            (key, merge_states([table[key] for table in tables if key in table], order))
            for key in keys
        )
        return table_like(first, items)
    if _are_groups(first):
        return _groups_together([group for state in states for group in state], order)
    return first


def drop_weights(state: Any, elsewhere: Collection[str]) -> Any:
    """Return a state without the entries of weights that are `elsewhere`."""
    if isinstance(state, dict):
        return table_like(
            state,
            (
                (key, drop_weights(value, elsewhere))
                for key, value in state.items()
                if key not in elsewhere
            ),
        )
    if _are_groups(state):
        own = [
            {**group, "params": [name for name in group["params"] if name not in elsewhere]}
            for group in state
        ]
        return [group for group in own if group["params"]]
    return state


def only_weights(state: Mapping[str, Any], names: Collection[str]) -> Any:
    """Return the tables of a state with nothing but what they hold under these names."""
    return table_like(
        state,
        (
            (key, value if key in names else only_weights(value, names))
            for key, value in state.items()
            if key in names or isinstance(value, dict)
        ),
    )


def to_host(state: Any, besides: Collection[str] = ()) -> Any:
    """Return a state with full tensors in host memory; collective if any is a DTensor.

    What its tables hold under the names `besides` stays as it is.
    """
    if isinstance(state, Tensor):
        return full_tensor(state.detach()).cpu()
    if isinstance(state, dict):
        items = (
            (key, value if key in besides else to_host(value, besides))
            for key, value in state.items()
        )
        return table_like(state, items)
    if type(state) not in (list, tuple):
        return state
    return type(state)(to_host(each, besides) for each in state)


def _are_groups(state: Any) -> bool:
    """Return True for a list of optimizer groups."""
    return (
        isinstance(state, list)
        and bool(state)
        and all(isinstance(one, dict) and "params" in one for one in state)
    )


def _groups_together(
    groups: Sequence[Mapping[str, Any]], order: Mapping[str, int]
) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for group in groups:
        settings = [(key, value) for key, value in group.items() if key != "params"]
        whole = found.setdefault(repr(sorted(settings)), {**group, "params": []})
        names = [*whole["params"], *group["params"]]
        whole["params"] = list(dict.fromkeys(names))
    for whole in found.values():
        whole["params"].sort(key=lambda name: order.get(name, len(order)))
    return list(found.values())
