"""Tensor parallelism: each rank computes a part of every layer in the plan (arXiv 1909.08053).

A layer divided by columns gives each rank some of the features; the next one, divided by rows,
takes those and sums the results over the ranks: one exchange for two layers. All ranks compute the
other layers alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor import parallel as styles

from assay.core.errors import InputError, did_you_mean
from assay.core.events import Event, Every, Handler
from assay.core.formatting import name_some
from assay.engine.numerics.dtensor import global_norm, is_along
from assay.engine.parallel.distributed_group import broadcast_from_first_

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


Plan = dict[str, Any]
"""Style of each divided module, by name or pattern: one of STYLES, or torch's ParallelStyle."""

STYLES = ("colwise", "rowwise", "colwise_gather_output", "rowwise_split_input")
"""colwise: each rank has part of the output; rowwise: of the input; others take or give all."""

_OLD = {"colwise_rep": "colwise_gather_output", "rowwise_rep": "rowwise_split_input"}
_ALONE: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Hardswish,
    nn.Tanh,
)
_ALONE += (nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Identity, nn.Dropout)
_HEADS = (
    "heads",
    "num_heads",
    "n_heads",
    "nhead",
    "n_head",
    "num_attention_heads",
    "num_key_value_heads",
)
_FIX = (
    "Give the model a method tensor_plan() that returns"
    ' {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"},'
    " or write such lines under [parallel.tensor_plan]."
)


def apply_tensor_plan(
    model: nn.Module, mesh: DeviceMesh, plan: Mapping[str, Any] | None = None
) -> list[str]:
    """Divide modules of `model` along a mesh of one axis, in place; return their names.

    `plan` comes before the model's own: see `tensor_plan_of`. InputError if there is none, or if features
    or heads cannot be divided evenly. Collective: all begin with the weights of the first rank.
    Those on the device `meta` get theirs later.
    """
    size = mesh.size()
    found = tensor_plan_of(model, plan)
    check_plan(model, found, size)
    group = mesh.get_group()
    for tensor in [*model.parameters(), *model.buffers()]:
        if not tensor.is_meta:
            broadcast_from_first_(tensor, group)
    made: Mapping[str, Callable[[], Any]] = {
        "colwise": styles.ColwiseParallel,
        "rowwise": styles.RowwiseParallel,
        "colwise_gather_output": lambda: styles.ColwiseParallel(output_layouts=Replicate()),
        "rowwise_split_input": lambda: styles.RowwiseParallel(input_layouts=Replicate()),
    }
    modules = dict(model.named_modules())
    for name, style in found.items():
        if isinstance(modules[name], nn.Linear) and isinstance(style, str):
            modules[name].register_forward_pre_hook(partial(_check_input, name, style, size))
    chosen = {
        name: made[style]() if isinstance(style, str) else style for name, style in found.items()
    }
    # All have the same weights by now: each cuts out its own part.
    styles.parallelize_module(model, mesh, chosen, src_data_rank=None)
    return list(chosen)


def describe_tensor_plan(model: nn.Module) -> str:
    """Return a line that names the layers divided along the axis `tensor`."""
    names = dict.fromkeys(
        name.rpartition(".")[0]
        for name, parameter in model.named_parameters()
        if is_along(parameter, "tensor")
    )
    shown = [name or "the model" for name in names]
    return f"tensor: each process has a part of {name_some(shown, 4)}"


def tensor_plan_of(model: nn.Module, given: Mapping[str, Any] | None = None) -> Plan:
    """Return the style of each divided module by name; InputError for unknown names or none.

    The plan is `given`, else that of `tensor_plan()` of the model or of modules in it, else the
    plan of a transformers model, else derived from layers of torch: the two linear layers of
    TransformerEncoderLayer and TransformerDecoderLayer, and pairs of linear layers in a Sequential
    with nothing but activations between them.
    """
    found = (
        _resolve_plan(model, given, "", "[parallel.tensor_plan]")
        if given
        else dict(_find_plan(model, ""))
    )
    if not found:
        raise InputError(
            f"[parallel] tensor: how a {type(model).__name__} is divided among processes"
            " is not known.",
            fix=_FIX,
        )
    return found


def check_plan(model: nn.Module, plan: Mapping[str, Any], size: int) -> None:
    """Raise InputError, with the arithmetic, for modules that `size` ranks cannot divide."""
    modules = dict(model.named_modules())
    counts: list[tuple[str, int]] = []
    homes: dict[int, set[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        homes.setdefault(id(parameter), set()).add(name)
    for name, style in plan.items():
        module = modules[name]
        if not isinstance(style, str):
            continue  # one of torch's own, which knows what it takes
        if not isinstance(module, nn.Linear | nn.Embedding):
            raise InputError(
                f"[parallel] tensor: {name} is a {type(module).__name__}; linear layers"
                " and embeddings are divided.",
                fix=(
                    "Leave it out of the plan, or give a ParallelStyle of torch in the"
                    " place of its word."
                ),
            )
        tied = sorted(homes[id(module.weight)] - {f"{name}.weight"})
        if tied:
            raise InputError(
                f"[parallel] tensor: {name}.weight is {tied[0]} too; what is used at two"
                " places is not divided.",
                fix=f"Leave {name} out of the plan.",
            )
        what = _divided_dim(module, style)
        counts.append((f"{name}.{what}", int(getattr(module, what))))
        counts += _heads(modules, name)
    _check_counts(counts, size)


def _check_counts(counts: Sequence[tuple[str, int]], size: int) -> None:
    """Raise InputError for the first count that `size` does not divide, with sizes that do."""
    for what, count in dict.fromkeys(counts):
        if count % size:
            good = [n for n in range(2, size + count) if not any(each % n for _, each in counts)][
                :4
            ]
            raise InputError(
                f"[parallel] tensor = {size} does not divide {what} = {count}: {count} /"
                f" {size} = {count / size:.4g}.",
                fix=f"tensor can be {_or(good)}."
                if good
                else "Change the model, or leave the layer out of the plan.",
            )


def _check_input(
    name: str, style: str, size: int, module: nn.Module, given: tuple[Any, ...]
) -> None:
    """Raise InputError for a divided layer that gets more or fewer features than its part has."""
    takes: int = module.in_features  # type: ignore[assignment]
    expected = takes // size if style == "rowwise" else takes
    found = given[0].shape[-1] if given else expected
    if found == expected:
        return
    raise InputError(
        f"[parallel] tensor: {name} is divided as {style!r} and takes {expected} of"
        f" {takes} features; it got {found}.",
        fix="What comes before it has to be divided by its columns (colwise) if it is rowwise, and"
        " only then. rowwise_split_input takes all features, colwise_gather_output gives all.",
    )


def _divided_dim(module: nn.Module, style: str) -> str:
    """Return the name of the divided dimension of a module."""
    is_by_columns = style.startswith("colwise")
    if isinstance(module, nn.Embedding):
        return "embedding_dim" if is_by_columns else "num_embeddings"
    return "out_features" if is_by_columns else "in_features"


def _heads(modules: Mapping[str, nn.Module], name: str) -> list[tuple[str, int]]:
    """Return the head counts of the module around `name`: no head is divided."""
    around = name.rpartition(".")[0]
    owner: Any = modules[around]
    found = []
    for holder, where in ((owner, around), (getattr(owner, "config", None), f"{around}.config")):
        for word in _HEADS:
            count = getattr(holder, word, None)
            if isinstance(count, int) and not isinstance(count, bool):
                found.append((f"{where}.{word}".removeprefix("."), count))
    return found


def _find_plan(module: nn.Module, prefix: str) -> Iterable[tuple[str, Any]]:
    own = getattr(module, "tensor_plan", None)
    if callable(own):
        where = f"{type(module).__name__}.tensor_plan()"
        yield from _resolve_plan(module, own(), prefix, where).items()
        return
    carried = _plan_of_transformers(module)
    if carried:
        yield from _resolve_plan(
            module, carried, prefix, f"the plan of {type(module).__name__}"
        ).items()
        return
    if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        yield f"{prefix}linear1", "colwise"
        yield f"{prefix}linear2", "rowwise"
        return
    if isinstance(module, nn.Sequential):
        yield from _pairs(module, prefix)
    for name, child in module.named_children():
        yield from _find_plan(child, f"{prefix}{name}.")


def _plan_of_transformers(module: Any) -> Plan:
    """Return the plan of a transformers model, without experts and tied weights."""
    config = getattr(module, "config", None)
    inner = getattr(module, "base_model", None)
    if not isinstance(inner, nn.Module):
        return {}
    base = getattr(module, "base_model_prefix", "")
    prefix = f"{base}." if inner is not module and base else ""
    plans: Plan = {
        f"{prefix}{name}": style
        for name, style in (getattr(config, "base_model_tp_plan", None) or {}).items()
    }
    if inner is not module:
        plans |= getattr(type(module), "_tp_plan", None) or {}
    if not plans:
        return {}
    uses: dict[int, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    found: Plan = {}
    for name, part in module.named_modules():
        style = next((plans[pattern] for pattern in plans if fnmatchcase(name, pattern)), None)
        style = _OLD.get(str(style), style)
        if style not in (None, *STYLES):
            raise InputError(
                f"[parallel] tensor: the plan of {type(module).__name__} divides {name} as"
                f" {style!r}, which assay does not do.",
                fix="Write a plan of the other layers under [parallel.tensor_plan].",
            )
        if style is not None and all(uses[id(each)] == 1 for each in part.parameters()):
            found[name] = style
    return found


def _pairs(row: nn.Sequential, prefix: str) -> Iterable[tuple[str, str]]:
    """Yield linear layers in pairs: the first by columns, the second by rows."""
    first = ""
    for name, child in row.named_children():
        if isinstance(child, nn.Linear):
            if first:
                yield f"{prefix}{first}", "colwise"
                yield f"{prefix}{name}", "rowwise"
            first = "" if first else name
        elif not isinstance(child, _ALONE):
            first = ""


def _resolve_plan(model: nn.Module, plan: object, prefix: str, where: str) -> Plan:
    """Return a plan with module names in place of patterns, and known styles."""
    if not isinstance(plan, Mapping):
        raise InputError(
            f"{where} is a {type(plan).__name__}; it must be a mapping of names to words.", fix=_FIX
        )
    names = [name for name, _ in model.named_modules() if name]
    found: Plan = {}
    for pattern, style in plan.items():
        fitting = [name for name in names if fnmatchcase(name, pattern)]
        if not fitting:
            fix = did_you_mean(pattern, names) or f"there are: {', '.join(names[:8])}"
            raise InputError(f"{where}: no module of the model is called {pattern!r}.", fix=fix)
        word = _OLD.get(style, style) if isinstance(style, str) else style
        if isinstance(word, str) and word not in STYLES:
            fix = did_you_mean(word, STYLES) or f"there are: {', '.join(STYLES)}"
            raise InputError(
                f"{where}: {pattern!r} is to be {word!r}, which is no way to divide a layer.",
                fix=fix,
            )
        if not isinstance(word, str) and not isinstance(word, styles.ParallelStyle):
            raise InputError(
                f"{where}: {pattern!r} is a {type(word).__name__}, and no word.",
                fix=f"{', '.join(STYLES)}",
            )
        found |= {f"{prefix}{name}": word for name in fitting}
    return found


def _or(numbers: Iterable[int]) -> str:
    *most, last = [str(number) for number in numbers]
    return f"{', '.join(most)} or {last}" if most else last


TOLERANCE = 1e-2
"""Relative difference of norms that rounding may cause; a partial gradient differs far more."""


class GradientAgreement:
    """Handler that refuses a tensor plan which leaves out a parameter working on divided features.

    Each rank holds a full copy of that parameter, but sees only its own features, so that its
    gradient is partial. `mesh` is the tensor axis. The check runs once, in the first step.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self.group = mesh.get_group()
        (self.axis,) = mesh.mesh_dim_names or ("",)
        self._is_known = False

    def handlers(self) -> list[Handler]:
        return [
            Handler(
                event=Event.BACKWARD_END,
                fn=self.check,
                when=Every(1),
                priority=1000,
                name="GradientAgreement",
            )
        ]

    def check(self, model: nn.Module) -> None:
        """Raise InputError for a parameter whose gradients differ. Collective, the first time."""
        if self._is_known:
            return
        self._is_known = True
        named = [
            (name, parameter.grad)
            for name, parameter in model.named_parameters()
            if parameter.grad is not None and not is_along(parameter, self.axis)
        ]
        if not named:
            return
        norms = torch.stack([global_norm([grad]).double() for _, grad in named])
        extremes = torch.cat([norms, -norms])
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=self.group)
        largest = extremes[: len(named)]
        smallest = -extremes[len(named) :]
        for (name, _), differs in zip(
            named, (largest - smallest > TOLERANCE * largest).tolist(), strict=True
        ):
            if differs:
                raise InputError(
                    f"[parallel] tensor: each process finds another gradient of {name}, of which"
                    " all have the whole: it works on features that are divided.",
                    fix="Leave the layers around it out of the plan, or let them end and begin"
                    " with all features (colwise_gather_output, rowwise_split_input).",
                )
