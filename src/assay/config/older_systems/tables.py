"""Tables of the five older systems: which packages are theirs, and what stands for their names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from assay.config.older_systems.entries import OlderName, UnmappedName
from assay.core.errors import nearest

PACKAGES: Mapping[str, str] = {
    "alchemy": "alchemy",
    "tensorboardX": "framework",
    "hiddenlayer": "framework",
    "thexp": "thexp",
    "flame": "flame",
    "injector": "flame",
    "libai": "libai",
    "oneflow": "libai",
    "flowvision": "libai",
}
"""Package that texts of an older system import -> the system."""


@cache
def table_of(system: str) -> Mapping[str, OlderName]:
    """Return what stands for each name of a system, by its dotted path there."""
    # Here: only a config or a script that names an older system needs its table.
    from assay.config.older_systems import alchemy, flame, framework, libai, thexp

    tables = {
        "alchemy": alchemy.NAMES,
        "framework": framework.NAMES,
        "thexp": thexp.NAMES,
        "flame": flame.NAMES,
        "libai": libai.NAMES,
    }
    return tables[system]


def system_of(target: str) -> str:
    """Return the older system that a target begins with, "" for none."""
    top = target.partition(".")[0].partition(":")[0]
    return PACKAGES.get(top, "") if top != target else ""


def unmapped(target: str) -> UnmappedName:
    """Return the error of a name that its system may have had, and that is not in the table."""
    system = system_of(target)
    names = table_of(system)
    last = target.replace(":", ".").rpartition(".")[2]
    by_last = {name.rpartition(".")[2]: name for name in names}
    near = nearest(target, list(names), cutoff=0.75)
    if not near:
        near = [by_last[name] for name in nearest(last, list(by_last))]
    fix = f"docs/compat/{system}.md lists the names that are known"
    if near:
        instead = names[near[0]].instead
        here = f" Here: {instead}." if instead else ""
        fix = f"did you mean `{near[0]}`?{here} {fix}"
    return UnmappedName(
        message=f"`{target}` of {system} has nothing here that stands for it", fix=fix
    )
