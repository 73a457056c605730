"""The by-name half of the allow-list: what the text of a target says before anything is imported.

A name is easy to disguise, so this half only refuses. The other half looks at the object (assay.build.targets).
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

TORCH = ("torch.nn", "torch.optim", "torch.utils.data")
"""Below these lie torch's allowed classes."""

# Not assay.build and not the root: a config that could reach `instantiate` could choose its own allow-list.
OWN = ("assay.engine", "assay.plugins")
"""Where assay's own targets lie."""

FORM = 'write "package.module.Name"'
WRAP = "call it in a function of your own code and name that function here"

_NAME = r"[^\W\d]\w*"
_TARGET = re.compile(rf"{_NAME}(?:\.{_NAME})*(?::{_NAME}(?:\.{_NAME})*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why no config may name a target, and what to do instead."""

    message: str
    fix: str


def is_target(text: str) -> bool:
    """Whether `text` is written like a target, or like a registered name.

    >>> is_target("pkg.nets:Net"), is_target("resnet"), is_target("os.system('ls')")
    (True, True, False)
    """
    return _TARGET.fullmatch(text) is not None


def nameless(target: str) -> Refusal | None:
    """Return why a class or function of Python cannot be a target: it has no name to be found by.

    >>> nameless("config.<lambda>").message, nameless("model.Net")
    ('a lambda has no name that a config could keep', None)
    """
    if "<" not in target:  # Python's mark: <lambda>, <locals>
        return None
    what = "a lambda" if target.endswith("<lambda>") else f"`{target}`"
    fix = "define a function in a module of its own and name that"
    return Refusal(message=f"{what} has no name that a config could keep", fix=fix)


def parts_of(target: str) -> list[str]:
    """The names in a target.

    >>> parts_of("pkg.nets:Net.small")
    ['pkg', 'nets', 'Net', 'small']
    """
    return re.split("[.:]", target)


def can_trust(package: str) -> bool:
    """Whether `assay config trust` helps: never for Python itself, torch as a whole, or assay.

    >>> can_trust("timm"), can_trust("os"), can_trust("torch")
    (True, False, False)
    """
    return bool(package) and package not in sys.stdlib_module_names and package not in ("assay", "torch", "__main__")


def trust_command(package: str) -> str:
    """What to type so that the targets of a package are allowed; "" where nothing helps."""
    return f"assay config trust {package}" if can_trust(package) else ""


def refused_by_name(target: str) -> Refusal | None:
    """Why the well-formed `target` can never be allowed, whatever this project trusts and whatever it defines.

    >>> refused_by_name("torch.os.system").message
    '`torch.os.system` is a part of torch that a config may not call'
    >>> refused_by_name("torch.nn.Linear") is refused_by_name("timm.create_model") is None
    True
    """
    names = parts_of(target)
    special = next((name for name in names if name.startswith("__")), None)
    if names[0] == "__main__":
        fix = "write it into a file beside the config, as model.py: other processes, and later runs, have to find it"
        return Refusal(message=f"`{target}` is only where this script or notebook runs", fix=fix)
    if special is not None:
        return Refusal(message=f"`{special}` in `{target}` is not for configs", fix=WRAP)
    if names[0] == "assay" and ".".join(names[:2]) not in OWN:
        return Refusal(
            message=f"`{target}` is not for configs", fix="what assay offers is in assay.engine and assay.plugins"
        )
    if names[0] == "torch":
        is_private = any(name.startswith("_") for name in names)
        if is_private or not f"{'.'.join(names)}.".startswith(tuple(f"{place}." for place in TORCH)):
            message = f"`{target}` is a part of torch that a config may not call"
            return Refusal(
                message=message, fix=f"of torch, configs call what lies under {', '.join(TORCH)}; else {WRAP}"
            )
    return None
