"""Modules that a setting applies to: the whole model, its repeated blocks, or those named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from torch import nn

from assay.core.errors import InputError, did_you_mean


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost modules repeated in a row, by name: the layers of a transformer.

    If nothing is repeated: the parts of the model that have parameters, or the model itself.
    """
    found = dict(_repeated(model, ""))
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


def _repeated(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
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
            yield from _repeated(child, f"{where}.")


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
