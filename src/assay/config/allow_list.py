"""Allow-list, first half: judges the name of a target before anything is imported.

A name is easy to disguise, so this half only refuses. The other half looks at the object
(assay.build.targets).
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from assay.config import own_targets, torch_targets
from assay.core.errors import nearest, suggestion
from assay.core.retired import instead_of

LISTED: Mapping[str, tuple[str, ...]] = {**torch_targets.ALLOWED, **own_targets.ALLOWED}
"""Names of torch and of assay that a config may use, by their public module."""

FORM = 'write "package.module.Name"'
WRAP = "call it in a function of your own code and name that function here"

_NAME = r"[^\W\d]\w*"
_TARGET = re.compile(rf"{_NAME}(?:\.{_NAME})*(?::{_NAME}(?:\.{_NAME})*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRefusal:
    """Reason why no config may name a target, and how to fix it.

    `kind` is `unknown-target` where another name was meant, else `target-not-allowed`.
    """

    message: str
    fix: str
    kind: str = "target-not-allowed"


def is_target(text: str) -> bool:
    """Return whether `text` has the form of a target, or of a registered name.

    >>> is_target("pkg.nets:Net"), is_target("resnet"), is_target("os.system('ls')")
    (True, True, False)
    """
    return _TARGET.fullmatch(text) is not None


def nameless(target: str) -> TargetRefusal | None:
    """Return why a class or function of Python cannot be a target: it has no name to be found by.

    >>> nameless("config.<lambda>").message, nameless("model.Net")
    ('a lambda has no name that a config could keep', None)
    """
    if "<" not in target:  # Python's mark: <lambda>, <locals>
        return None
    what = "a lambda" if target.endswith("<lambda>") else f"`{target}`"
    fix = "define a function in a module of its own and name that"
    return TargetRefusal(message=f"{what} has no name that a config could keep", fix=fix)


def target_parts(target: str) -> list[str]:
    """Return the names in a target.

    >>> target_parts("pkg.nets:Net.small")
    ['pkg', 'nets', 'Net', 'small']
    """
    return re.split("[.:]", target)


def is_listed(target: str) -> bool:
    """Return whether a name is in LISTED, or may be there by the module that defines it.

    >>> names = ("torch.nn.Linear", "torch.nn.modules.linear.Linear", "torch.nn.Module")
    >>> tuple(map(is_listed, names))
    (True, True, False)
    """
    module, _, name = target.rpartition(".")
    return any(
        name in names and f"{module}.".startswith(f"{place}.") for place, names in LISTED.items()
    )


def can_trust(name: str) -> bool:
    """Return whether `assay config trust` helps: never for Python, assay, or the whole of torch.

    >>> can_trust("timm"), can_trust("os"), can_trust("torch"), can_trust("torch.nn.DataParallel")
    (True, False, False, True)
    """
    top = name.partition(".")[0]
    if top == "torch":
        is_module = name in LISTED or f"{name}." in torch_targets.ON_TRUST
        return _is_public(name) and not (is_module or _never(name))
    return bool(top) and top not in sys.stdlib_module_names and top not in ("assay", "__main__")


def trust_command(name: str) -> str:
    """Return the command that allows a package, or one name of torch; "" if none does."""
    return f"assay config trust {name}" if can_trust(name) else ""


def refuse_by_name(target: str, trusted: Collection[str] = ()) -> TargetRefusal | None:
    """Return the refusal of the well-formed `target`; None if its name may be allowed.

    >>> refuse_by_name("torch.os.system").message
    '`torch.os.system` is a part of torch that a config may not call'
    >>> refuse_by_name("torch.nn.Linear") is refuse_by_name("timm.create_model") is None
    True
    """
    names = target_parts(target)
    if instead := instead_of(".".join(names)):
        return TargetRefusal(message=f"`{target}` has left assay", fix=instead)
    special = next((name for name in names if name.startswith("__")), None)
    if names[0] == "__main__":
        fix = (
            "write it into a file beside the config, as model.py:"
            " other processes, and later runs, have to find it"
        )
        return TargetRefusal(
            message=f"`{target}` is only where this script or notebook runs", fix=fix
        )
    if special is not None:
        return TargetRefusal(message=f"`{special}` in `{target}` is not for configs", fix=WRAP)
    if names[0] == "assay":
        return _refuse_of_assay(target, ".".join(names))
    if names[0] == "torch":
        return _refuse_of_torch(target, ".".join(names), trusted)
    return None


def is_reviewed(name: str) -> bool:
    """Return whether a table decides about a public name of torch.

    >>> is_reviewed("torch.nn.utils.clip_grad_norm_"), is_reviewed("torch.nn.NotYetInvented")
    (True, False)
    """
    module, _, last = name.rpartition(".")
    is_on_trust = any(_covers(one, name) for one in torch_targets.ON_TRUST)
    return last in LISTED.get(module, ()) or bool(_never(name)) or is_on_trust


def _refuse_of_assay(target: str, name: str) -> TargetRefusal | None:
    if is_listed(name):
        return None
    near = "" if name in own_targets.NEVER else _suggest(name)
    if near and name.rpartition(".")[0] in LISTED:
        return _refuse_unknown(target, name, near)
    why = own_targets.NEVER.get(name, "is not for configs")
    fix = near or "what assay offers to configs is in assay.engine and assay.plugins"
    return TargetRefusal(message=f"`{target}` {why}", fix=fix)


def _refuse_of_torch(target: str, name: str, trusted: Collection[str]) -> TargetRefusal | None:
    if not _is_public(name):
        places = ", ".join(torch_targets.PLACES)
        fix = f"of torch, a config names what computes in {places}; else {WRAP}"
        return TargetRefusal(
            message=f"`{target}` is a part of torch that a config may not call", fix=fix
        )
    if is_listed(name):
        return None
    why = _never(name)
    if why:
        return TargetRefusal(message=f"`{target}` {why}", fix=WRAP)
    if name in trusted:
        return None
    # A reviewed name is no misspelling.
    near = "" if is_reviewed(name) else _suggest(name)
    command = trust_command(name)
    module = name.rpartition(".")[0]
    if near and module in LISTED and _installed_torch() in torch_targets.REVIEWED:
        return _refuse_unknown(target, name, near)
    if near:  # a torch that nobody has reviewed may have it
        message = f"`{target}` is no class or function of torch that assay knows"
        fix = f"{near} Else: {command}" if command else near
        return TargetRefusal(message=message, fix=fix, kind="unknown-target")
    message = f"`{target}` is not among the classes and functions of torch that a config may name"
    return TargetRefusal(message=message, fix=command)


def _refuse_unknown(target: str, name: str, near: str) -> TargetRefusal:
    """Return the refusal of a mistyped name, worded as for a module of the user."""
    module, _, last = name.rpartition(".")
    message = f"`{target}` is unknown: the module `{module}` has no `{last}`"
    return TargetRefusal(message=message, fix=near, kind="unknown-target")


@functools.cache
def _installed_torch() -> str:
    """Return the version of the installed torch without its build, "" without torch.

    Nothing is imported.
    """
    try:
        return importlib.metadata.version("torch").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


def _suggest(name: str) -> str:
    """Return a did-you-mean: a near name of the same module, or the same name in another."""
    module, _, last = name.rpartition(".")
    known = LISTED.get(module, ())
    # Of two letters one is half a name: F2 is like F1 in all that a name so short can be.
    near = nearest(last, known, cutoff=0.7) or nearest(last, known, cutoff=0.5)[: len(last) <= 3]
    top = name.partition(".")[0]
    same = [
        f"{place}.{last}"
        for place, names in LISTED.items()
        if last in names and place.startswith(top)
    ]
    return suggestion(near or same[:1])


def _is_public(name: str) -> bool:
    """Return whether a name may be torch's own: not private, not merely imported there."""
    inner = name.split(".")[1:]
    is_reached = any(part in sys.stdlib_module_names or part == "torch" for part in inner[:-1])
    is_private = any(part.startswith("_") for part in inner)
    return name.startswith(tuple(f"{place}." for place in torch_targets.PLACES)) and not (
        is_reached or is_private
    )


def _never(name: str) -> str:
    """Return why no project can allow a name of torch; "" where one can."""
    return next((why for listed, why in torch_targets.NEVER.items() if _covers(listed, name)), "")


def _covers(listed: str, name: str) -> bool:
    """Return whether an entry means `name`; one that ends with a dot means all below it."""
    return name.startswith(listed) if listed.endswith(".") else name == listed
