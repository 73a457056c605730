"""Check of the targets of a config by their names alone: nothing is imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection, Iterator, Sequence

from assay.config.allow_list import (
    FORM,
    WRAP,
    is_target,
    nameless,
    refuse_by_name,
    target_parts,
    trust_command,
)
from assay.config.references import holds_secret
from assay.config.standard_keys import show, wrong_type
from assay.config.translator import translator
from assay.config.tree import (
    KeyPath,
    Leaf,
    List,
    Table,
    dotted,
    is_unresolved,
    problem_at,
    walk,
)
from assay.config.user_modules import (
    RegisteredName,
    TargetLocation,
    UserModule,
    UserModules,
    modules_in,
)
from assay.core import schema
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import did_you_mean, suggestion
from assay.core.formatting import name_some


def target_problems(
    root: Table, modules: UserModules, trusted: Collection[str]
) -> Iterator[Problem]:
    """Yield the problems of every `type` of a config, in the order of the file."""
    for path, node in walk(root):
        if (
            not isinstance(node, Table)
            or "type" not in node.items
            or schema.is_standard_table(path)
        ):
            continue
        leaf = node.items["type"]
        here = (*path, "type")
        target = leaf.value if isinstance(leaf, Leaf) else None
        problems: list[Problem] = []
        if isinstance(leaf, Leaf) and isinstance(target, str) and not is_unresolved(leaf):
            problems += _target(leaf, target, here, modules, trusted)
        if not isinstance(target, str) or (problems and holds_secret(leaf)):
            message = f"`{dotted(here)}` must be a target, not {show(leaf)}"
            problems = [problem_at("wrong-type", message, leaf, here, FORM)]
        yield from problems
        args = node.items.get("args")
        if args is not None and not isinstance(args, List):
            yield wrong_type(args, (*path, "args"), "a list of positional arguments")


def _target(
    leaf: Leaf, target: str, path: KeyPath, modules: UserModules, trusted: Collection[str]
) -> Iterator[Problem]:
    """Yield the problem of one target, if there is one."""
    if (unnamed := nameless(target)) is not None:
        yield problem_at("unknown-target", unnamed.message, leaf, path, unnamed.fix)
        return
    if not is_target(target):
        yield problem_at("unknown-target", f"`{target}` is no target", leaf, path, FORM)
        return
    package = target_parts(target)[0]
    if package == target:
        yield from _short_name(leaf, target, path, modules)
        return
    if translator().system_of(target) and package not in trusted and modules.find(target) is None:
        if translator().older_name(target) is None:
            wrong = translator().explain_unmapped(target)
            yield problem_at("unknown-target", wrong.message, leaf, path, wrong.fix)
        return
    refusal = refuse_by_name(target, trusted)
    if refusal is not None:
        yield problem_at(refusal.kind, refusal.message, leaf, path, refusal.fix)
        return
    if package in ("assay", "torch") or package in trusted:
        return
    if package in sys.stdlib_module_names:
        yield _of_python(leaf, target, package, path, modules)
        return
    found = modules.find(target)
    if found is not None:
        yield from _inside(found, leaf, target, path)
    else:
        yield _of_unknown_package(leaf, package, path, modules, trusted)


def _of_unknown_package(
    leaf: Leaf, package: str, path: KeyPath, modules: UserModules, trusted: Collection[str]
) -> Problem:
    """Return the problem of a package that is neither the user's nor trusted."""
    # torchvision is not torch misspelt: an installed package, or a name that is not very much
    # alike, is meant as it is written.
    near = did_you_mean(package, [*modules.names(), "torch", "assay", *trusted], cutoff=0.75)
    existing = [str(folder) for folder in modules.folders if folder.is_dir()]
    folders = " and ".join(dict.fromkeys(existing))
    if near and not _is_installed(package):
        message = f"there is no module `{package}`{f' in {folders}' if folders else ''}"
        return problem_at("unknown-target", message, leaf, path, near)
    place = folders or "the user folder"
    message = f"`{package}` is neither a module in {place} nor a trusted package"
    return problem_at("target-not-allowed", message, leaf, path, trust_command(package))


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _of_python(
    leaf: Leaf, target: str, package: str, path: KeyPath, modules: UserModules
) -> Problem:
    if package in modules.names():
        message = f"`{target}`: Python's own module `{package}` hides your `{package}.py`"
        fix = "give it another name"
    else:
        message = f"`{target}` is Python's own, which a config may not call"
        fix = WRAP
    return problem_at("target-not-allowed", message, leaf, path, fix)


def _short_name(leaf: Leaf, name: str, path: KeyPath, modules: UserModules) -> Iterator[Problem]:
    """Yield the problem of a target without a module, unless it is a registered name."""
    found = modules.registered.get(name, [])
    if len(found) == 1:
        return
    if found:
        yield _ambiguous(leaf, name, path, found)
        return
    classes = [
        f"{module}.{inner}" for module in modules.names() for inner in _names(modules.find(module))
    ]
    same = [target for target in classes if target.rpartition(".")[2] == name]
    fix = suggestion(same[:3]) or did_you_mean(name, modules.registered, 3) or FORM
    message = f"nothing is registered as `{name}`, and it names no module"
    yield problem_at("unknown-target", message, leaf, path, fix)


def _ambiguous(leaf: Leaf, name: str, path: KeyPath, found: Sequence[RegisteredName]) -> Problem:
    """Return the problem of a name that several objects are registered under."""
    both = " and ".join(str(one.origin) for one in found)
    message = f"`{name}` is registered here"
    notes = [
        Problem(kind="duplicate-name", severity="note", message=message, origin=one.origin)
        for one in found
    ]
    times = "twice" if len(found) == 2 else f"{len(found)} times"
    if len({one.kind for one in found}) == len(found):
        kinds = " and ".join(one.kind or "no kind" for one in found)
        times += f", as {kinds}, and a config cannot tell which is meant"
    return Problem(
        kind="duplicate-name",
        message=f"`{name}` is registered {times}: {both}",
        origin=leaf.origin,
        key=dotted(path),
        fix=f'write "{found[0].target}" or "{found[1].target}"',
        related=tuple(notes),
    )


def _names(found: TargetLocation | None) -> frozenset[str]:
    return (found.module.names if found and found.module else None) or frozenset()


def _inside(found: TargetLocation, leaf: Leaf, target: str, path: KeyPath) -> Iterator[Problem]:
    """Yield the problem of a target whose first part is a user module."""
    module, rest = found.module, found.rest
    if module is not None and module.syntax_error:
        yield _syntax_problem(module, leaf, target, path)
        return
    if module is not None and module.names is None:
        return
    names = set(module.names or ()) if module is not None else set()
    if found.folder is not None:
        names.update(modules_in(found.folder))
    if not rest:
        classes = [f"{target}.{name}" for name in names if name[:1].isupper()]
        message = f"`{target}` is a module, not a class or function"
        fix = did_you_mean(target, classes) or FORM
        yield problem_at("unknown-target", message, leaf, path, fix)
    elif rest[0] not in names:
        where = module.path if module is not None else found.folder
        public = sorted(name for name in names if not name.startswith("_"))
        listed = f"it has: {name_some(public, 8)}" if public else ""
        fix = did_you_mean(rest[0], names) or listed
        yield problem_at("unknown-target", f"{where} has no `{rest[0]}`", leaf, path, fix)


def _syntax_problem(module: UserModule, leaf: Leaf, target: str, path: KeyPath) -> Problem:
    """Return the problem of a target in a file with a syntax error."""
    origin = Origin(
        source=str(module.path),
        line=module.line,
        column=module.column,
        end_column=module.column + 1,
    )
    kind = "import-failed"
    note = Problem(kind=kind, severity="note", message=module.syntax_error, origin=origin)
    return Problem(
        kind=kind,
        message=f"{module.path} cannot be parsed, so `{target}` cannot be found",
        origin=leaf.origin,
        key=dotted(path),
        related=(note,),
    )
