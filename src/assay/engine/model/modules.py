"""Modules of a model: those a setting applies to, the one behind wrappers, shapes of weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Sized
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from assay.core.errors import ArgumentError, InputError, did_you_mean


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost modules repeated in a row, by name: the layers of a transformer.

    If nothing is repeated: the parts of the model that have parameters, or the model itself.
    """
    found = dict(_find_repeated(model, ""))
    if not found:
        found = {name: part for name, part in model.named_children() if _has_parameters(part)}
    return found or {"": model}


def modules_named(
    model: nn.Module, which: str | Sequence[str], *, setting: str
) -> dict[str, nn.Module]:
    """Return the modules selected by `which`: "blocks", or patterns of names.

    A selected module inside another selected one is left out. InputError for a pattern that matches
    nothing.
    """
    if which == "blocks":
        return blocks_of(model)
    patterns = [which] if isinstance(which, str) else list(which)
    named = {name: module for name, module in model.named_modules() if name}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in named):
            fix = did_you_mean(pattern, named) or f"there are: {', '.join(list(named)[:8])}"
            raise InputError(f"{setting}: no module of the model is called {pattern!r}.", fix=fix)
    found: dict[str, nn.Module] = {}
    for name, module in named.items():
        is_inside = any(name.startswith(f"{outer}.") for outer in found)
        if not is_inside and any(fnmatchcase(name, pattern) for pattern in patterns):
            found[name] = module
    return found


def _find_repeated(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    children = list(module.named_children())
    is_row = isinstance(module, nn.ModuleList | nn.Sequential | nn.ModuleDict)
    kinds = Counter(
        type(child)
        for _, child in children
        if _has_parameters(child) and next(child.children(), None)
    )
    for name, child in children:
        where = f"{prefix}{name}"
        if is_row and kinds[type(child)] > 1:
            yield where, child
        else:
            yield from _find_repeated(child, f"{where}.")


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside `torch.compile`, DistributedDataParallel and DataParallel.

    >>> model = nn.Linear(2, 2)
    >>> unwrap(DataParallel(model)) is model
    True
    """
    while True:
        inner = model.module if isinstance(model, DistributedDataParallel | DataParallel) else None
        # torch.compile keeps the model under this name.
        inner = inner or model.__dict__.get("_modules", {}).get("_orig_mod")
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def refuse_lazy(model: nn.Module) -> None:
    """Raise InputError for weights without a shape, such as those of a lazy module.

    The optimizer and checkpoints need the shape before the first batch.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            owner = model.get_submodule(name.rpartition(".")[0])
            raise InputError(
                f"{name} of the model has no shape before the first batch:"
                f" {type(owner).__name__} is a lazy module.",
                where="[model]",
                fix="Give the sizes, as in nn.Linear(128, 64); or call the model once in its"
                " __init__.",
            )


def padded_vocabulary(size: int | Sized, *, multiple: int = 128, tensor: int = 1) -> int:
    """Return the least multiple of `multiple` x `tensor` that is at least `size`.

    `size` is a number of tokens, or a tokenizer.

    Rows by the multiple suit the tiles that GPUs compute in, and come out among `tensor` processes,
    each with as many (Megatron-LM's make_vocab_size_divisible_by).

    >>> padded_vocabulary(50257), padded_vocabulary(50257, tensor=2)
    (50304, 50432)
    """
    count = size if isinstance(size, int) else len(size)
    for name, value in {"size": count, "multiple": multiple, "tensor": tensor}.items():
        if value < 1:
            raise ArgumentError(f"{name} is {value}; it must be at least 1", inside=(name,))
    unit = multiple * tensor
    return -(-count // unit) * unit
