"""The shape stage: everything about a config that can be told without running anything of the user's, at once."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time
from difflib import SequenceMatcher
from typing import Any

from assay.config.aliases import with_alias
from assay.config.allowed import FORM, WRAP, is_target, parts_of, refused_by_name, trust_command
from assay.config.load import Config
from assay.config.overrides import CLI
from assay.config.references import is_unresolved, names_used, objects_used, reference_of, values_used, with_outside
from assay.config.tree import KeyPath, Leaf, List, Node, Table, dotted, get_at, walk
from assay.config.user_modules import Found, UserModules, modules_in
from assay.core import schema
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import did_you_mean, nearest, suggested
from assay.core.schema import Key


def check_shape(
    config: Config,
    *,
    trusted: Collection[str] | None = None,
    environ: Mapping[str, str] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> list[Problem]:
    """Every problem of the shape stage, in source order: what could not be read, references, keys, types, targets.

    No user module is imported, and no torch. `trusted` are the packages that are allowed as targets, `variables` the
    globals that `${global:...}` names; both are those of the config's project, unless given.
    """
    settings = config.settings
    trusted = settings.trusted if trusted is None else trusted
    variables = settings.variables if variables is None else variables
    root, problems = with_outside(config.root, os.environ if environ is None else environ, variables)
    problems = [*config.problems, *config.notes, *problems]
    is_whole = not any(problem.kind in ("syntax", "duplicate-key", "too-large", "too-deep") for problem in problems)
    problems += _top_level(config, root, is_whole=is_whole)
    if is_whole:
        problems += _unused_keys(config)
    for key in schema.SECTIONS:
        if key.name in root.items:
            problems += _value(key, root.items[key.name], root.key_origin(key.name), (key.name,), is_whole=is_whole)
    if is_whole:
        problems += _sources(root)
        problems += _evaluation(root)
    problems += _targets(root, UserModules(config.user_dirs), trusted)
    return _in_order(config, problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """A key that is not given: what is taken instead, and for whom. `origin` is the place it would belong to."""

    key: str
    value: str
    owner: str
    origin: Origin

    def __str__(self) -> str:
        return f"{self.key} = {self.value}"


def standard_defaults(root: Table) -> list[Default]:
    """What the standard sections take where nothing is given, as it would be written."""
    found: list[Default] = []

    def look(key: Key, node: Node | None, path: KeyPath, origin: Origin) -> None:
        if node is None and key.default not in (None, ""):
            owner = f"[{dotted(path[:-1])}]" if path[1:] else "the config"
            value = json.dumps(key.default)
            found.append(Default(key=dotted(path), value=value, owner=owner, origin=origin))
        elif key.kind == "tables" and isinstance(node, Table):
            for name, item in node.items.items():
                look(Key(name=name, kind="table", doc="", keys=key.keys), item, (*path, name), node.key_origin(name))
        elif key.kind == "table" and (node is None or isinstance(node, Table)):
            for inner in key.keys:
                look(inner, node.items.get(inner.name) if node is not None else None, (*path, inner.name), origin)

    nowhere = Origin(source="<default>")
    for key in schema.SECTIONS:
        is_given = key.name in root.items
        look(key, root.items.get(key.name), (key.name,), root.key_origin(key.name) if is_given else nowhere)
    return found


def _in_order(config: Config, problems: list[Problem]) -> list[Problem]:
    """Files first, from top to bottom, then the arguments as they were given; nothing is told twice."""
    order = {source: i for i, source in enumerate(config.files)}
    arguments = {argument: i for i, argument in enumerate(config.overrides)}

    def place(problem: Problem) -> tuple[int, int, int, int]:
        origin = problem.origin
        argument = arguments.get(origin.text or "", 0) if origin.source == CLI else 0
        return order.get(origin.source, len(order)), argument, origin.line, origin.column

    astray = {problem.origin for problem in problems if problem.kind in ("unknown-reference", "reference-cycle")}
    kept: dict[tuple[str, Origin], Problem] = {}
    for problem in problems:
        # A value that refers to nothing is also of no type: that is the same mistake.
        if problem.kind != "wrong-type" or problem.origin not in astray:
            kept.setdefault((problem.message, problem.origin), problem)
    return sorted(kept.values(), key=place)


# --- names at the top ------------------------------------------------------------------------------------------------


def _top_level(config: Config, root: Table, *, is_whole: bool) -> Iterator[Problem]:
    standard = [key.name for key in schema.SECTIONS]
    used = names_used(config.written)
    for _, target, _ in objects_used(config.written):
        used |= {str(target[0])}
    for name, node in root.items.items():
        if name in standard:
            continue
        origin = root.key_origin(name)
        if name in schema.LAUNCH:
            yield Problem(
                kind="launch-setting",
                message=f"`{name}` is a setting of one launch, not of the config",
                origin=origin,
                key=name,
                fix=f"give it on the command line: {schema.LAUNCH[name]}",
            )
        elif name in schema.RESERVED:
            yield Problem(
                kind="not-supported",
                message=f"`{name}` is a standard section that does nothing yet",
                origin=origin,
                key=name,
                fix="remove it",
            )
        elif name not in used:
            near = _meant(name, root, [*standard, *schema.MAKERS])
            if near or isinstance(node, Leaf):
                fix = near or f"top-level keys are {', '.join(standard)}"
                yield Problem(kind="unknown-key", message=f"unknown key `{name}`", origin=origin, key=name, fix=fix)
            elif is_whole:
                if nearest(name, used - set(root.items)):
                    continue  # the reference that was to lead here is wrong, which is told there
                fix = _renamed(name, root) or f'refer to it as "@{name}", or remove it'
                message = f"nothing uses the section `{name}`"
                yield Problem(kind="unused-section", message=message, origin=origin, key=name, fix=fix)


def _unused_keys(config: Config) -> Iterator[Problem]:
    """Keys of a section to copy from that nobody copies. In a file with variants, some variant may be who does."""
    used = values_used(config.written) | values_used(config.given)
    used |= {target for tree in (config.written, config.given) for _, target, _ in objects_used(tree)}
    above = {path[:length] for path in used for length in range(1, len(path))}
    standard = {key.name for key in schema.SECTIONS} | schema.RESERVED | set(schema.LAUNCH) | set(schema.MAKERS)
    for name, node in config.written.items.items():
        if name in standard or (name,) not in above:
            continue
        todo: list[tuple[KeyPath, Node, Origin]] = [((name,), node, config.written.key_origin(name))]
        while todo:
            path, node, origin = todo.pop()
            if path in used:
                continue
            if isinstance(node, Table) and path in above:
                todo += [((*path, key), item, node.key_origin(key)) for key, item in node.items.items()]
            else:
                missing = [each for each in used if each[:-1] == path[:-1] and get_at(config.written, each) is None]
                if nearest(str(path[-1]), [str(each[-1]) for each in missing]):
                    continue  # as above
                near = [str(other[-1]) for other in used if other[:-1] == path[:-1]]
                yield Problem(
                    kind="unused-key",
                    severity="warning",
                    message=f"nothing uses `{dotted(path)}`",
                    origin=origin,
                    key=dotted(path),
                    fix=did_you_mean(str(path[-1]), near) or "refer to it, or remove it",
                )


def _meant(name: str, root: Table, standard: list[str]) -> str:
    """Which standard name was meant. One that is there already was meant again only if it looks very much alike."""
    near = nearest(name, standard)
    if near and SequenceMatcher(None, name, near[0]).ratio() < 0.7:
        is_shortened = _is_shortened(name, near[0])
        if near[0] in root.items or (not is_shortened and isinstance(root.items.get(name), Table)):
            return ""
    return did_you_mean(name, standard)


def _renamed(name: str, root: Table) -> str:
    """`bert_model` where no `model` is: the sections of a run have fixed names."""
    calls = [key.name for key in schema.SECTIONS if key.kind == "call" and key.name not in root.items]
    same = next((call for call in calls if call in name.split("_")), "")
    return f'a run looks for `{same}`: call it that, or write {same} = "@{name}"' if same else ""


def _is_shortened(short: str, name: str) -> bool:
    """`optm` for `optimizer`: its letters, in their order."""
    letters = iter(name)
    return all(letter in letters for letter in short)


# --- standard keys ---------------------------------------------------------------------------------------------------


def _value(key: Key, node: Node, key_origin: Origin, path: KeyPath, *, is_whole: bool) -> Iterator[Problem]:
    """What is wrong with `node` as the value of `key`."""
    if isinstance(node, Leaf) and ((node.value is None and not key.required) or is_unresolved(node)):
        return
    match key.kind:
        case "call" if key.keys and isinstance(node, Table) and "type" not in node.items:
            yield from _table(key, node, key_origin, path, is_whole=is_whole)
        case "call" if key.named and _are_named(node):
            for name, item in node.items.items():  # type: ignore[union-attr]
                yield from _call(item, item.origin, (*path, name), is_whole=is_whole)
        case "call":
            yield from _call(node, key_origin, path, is_whole=is_whole)
        case "numbers":
            yield from _numbers(node, path)
        case "texts":
            yield from _texts(node, path)
        case "table" if key.short and isinstance(node, Leaf) and isinstance(node.value, str):
            pass
        case "switch" if isinstance(node, List):
            yield from _value(Key(name=key.name, kind="names", doc=key.doc), node, key_origin, path, is_whole=is_whole)
        case "calls":
            if not isinstance(node, List):
                yield _wrong(node, path, f'a list of calls, as in {key.name} = [{{ type = "module.Name" }}]')
                return
            for i, item in enumerate(node.items):
                yield from _call(item, item.origin, (*path, i), is_whole=is_whole)
        case "table":
            yield from _table(key, node, key_origin, path, is_whole=is_whole)
        case "tables":
            if not isinstance(node, Table):
                yield _wrong(node, path, f"a table of tables, as in [{dotted(path)}.train]")
                return
            for name, item in node.items.items():
                inner = Key(name=name, kind="table", doc=key.doc, keys=key.keys)
                yield from _value(inner, item, node.key_origin(name), (*path, name), is_whole=is_whole)
        case "names":
            if not isinstance(node, List):
                yield _wrong(node, path, 'a list of names, as in ["valid"]')
                return
            for i, item in enumerate(node.items):
                if not (isinstance(item, Leaf) and isinstance(item.value, str)):
                    yield _wrong(item, (*path, i), "a string")
        case _:
            yield from _scalar(key, node, path)


def _table(key: Key, node: Node, key_origin: Origin, path: KeyPath, *, is_whole: bool) -> Iterator[Problem]:
    if not isinstance(node, Table):
        example = key.keys[0].name
        yield _wrong(node, path, f"a table with keys such as `{example}`")
        return
    for name, item in node.items.items():
        inner = key.key(name)
        if inner is not None:
            yield from _value(inner, item, node.key_origin(name), (*path, name), is_whole=is_whole)
            continue
        known = [each.name for each in key.keys]
        yield with_alias(
            Problem(
                kind="unknown-key",
                message=f"unknown key `{dotted((*path, name))}`",
                origin=node.key_origin(name),
                key=dotted((*path, name)),
                fix=did_you_mean(name, known) or f"it takes: {', '.join(known)}",
            )
        )
    if not is_whole:
        return  # what seems to be missing may stand in a line that could not be read
    for inner in key.keys:
        if inner.required and inner.name not in node.items:
            yield _missing(f"`{dotted(path)}` has no `{inner.name}`", key_origin, path, _example(inner))
    if key.one_of and not any(_is_given(node, name) for name in key.one_of):
        choices = f"{', '.join(key.one_of[:-1])} or {key.one_of[-1]}"
        yield _missing(f"`{dotted(path)}` has no end", key_origin, path, f"give one of {choices}")


def _is_given(table: Table, name: str) -> bool:
    node = table.items.get(name)
    return node is not None and not (isinstance(node, Leaf) and node.value is None)


def _missing(message: str, origin: Origin, path: KeyPath, fix: str) -> Problem:
    return Problem(kind="missing-key", message=message, origin=origin, key=dotted(path), fix=fix)


def _example(key: Key) -> str:
    if key.kind == "call":
        return f'add {key.name} = {{ type = "module.Name" }}'
    if key.choices:
        return f"add {key.name} = {_or(key.choices)}"
    return f"add {key.name} = ..."


def _call(node: Node, key_origin: Origin, path: KeyPath, *, is_whole: bool) -> Iterator[Problem]:
    try:
        if reference_of(node) is not None:
            return
    except ValueError:
        return  # told where references are looked at
    if not isinstance(node, Table):
        yield _wrong(node, path, 'a table with a `type`, or "@path" of one')
    elif "type" not in node.items and is_whole:
        near = nearest("type", node.items)
        fix = f"did you mean `type` by `{near[0]}`?" if near else 'add type = "module.Name"'
        yield _missing(f"`{dotted(path)}` has no `type`", key_origin, path, fix)


def _sources(root: Table) -> Iterator[Problem]:
    """Splits without data, where there is no task to have them."""
    data = root.items.get("data")
    if not isinstance(data, Table) or "task" in root.items:
        return
    for name, split in data.items.items():
        if isinstance(split, Table) and not _is_given(split, "source"):
            path = ("data", name)
            example = 'add source = { type = "module.Name" }'
            yield _missing(f"`{dotted(path)}` has no `source`", data.key_origin(name), path, example)


def _are_named(node: Node) -> bool:
    """Whether these are several calls by name, in the place of one: nothing in there but tables."""
    return isinstance(node, Table) and bool(node.items) and all(isinstance(item, Table) for item in node.items.values())


def _numbers(node: Node, path: KeyPath) -> Iterator[Problem]:
    if isinstance(node, Table) and node.target is None:
        for name, item in node.items.items():
            yield from _numbers(item, (*path, name))
    elif not (isinstance(node, Leaf) and isinstance(node.value, int | float) and not isinstance(node.value, bool)):
        yield _wrong(node, path, "a number, or a table of them")


def _texts(node: Node, path: KeyPath) -> Iterator[Problem]:
    if not isinstance(node, Table):
        yield _wrong(node, path, "a table of strings")
        return
    for name, item in node.items.items():
        if not (isinstance(item, Leaf) and isinstance(item.value, str)):
            yield _wrong(item, (*path, name), "a string")


def _evaluation(root: Table) -> Iterator[Problem]:
    """Splits that are named and not there, and a best that is never measured."""
    data, evaluate, checkpoint = (root.items.get(name) for name in ("data", "evaluate", "checkpoint"))
    if not isinstance(data, Table):
        return
    there = list(data.items)
    splits = [name for name in there if schema.is_evaluated(name)]
    named = evaluate.items.get("splits") if isinstance(evaluate, Table) else None
    if isinstance(named, List):
        splits = [leaf.value for leaf in named.items if isinstance(leaf, Leaf) and isinstance(leaf.value, str)]
        for i, leaf in enumerate(named.items):
            if isinstance(leaf, Leaf) and isinstance(leaf.value, str) and leaf.value not in there:
                fix = did_you_mean(leaf.value, there) or f"there is {', '.join(there)}"
                path: KeyPath = ("evaluate", "splits", i)
                yield _problem("unknown-split", f"[data] has no split `{leaf.value}`", leaf, path, fix)
    metric = get_at(root, ("checkpoint", "best", "metric"))
    if not isinstance(metric, Leaf) or not isinstance(metric.value, str) or is_unresolved(metric):
        return
    if _scalar_at(evaluate, "enabled") is False or _scalar_at(checkpoint, "enabled") is False:
        return  # switched off for once: the rest of the section may stay as it is
    measured = [] if _scalar_at(evaluate, "every") == "never" else splits
    split, _, rest = metric.value.partition("/")
    if split not in measured:
        near = nearest(split, measured)
        fix = f"splits that are evaluated: {', '.join(measured) or 'none'}"
        fix = f"did you mean `{near[0]}/{rest}`?" if near else fix
        message = f"`{metric.value}` is never measured, so nothing can be the best"
        yield _problem("never-measured", message, metric, ("checkpoint", "best", "metric"), fix)


def _scalar_at(table: Node | None, name: str) -> object:
    leaf = table.items.get(name) if isinstance(table, Table) else None
    return leaf.value if isinstance(leaf, Leaf) else None


def _scalar(key: Key, node: Node, path: KeyPath) -> Iterator[Problem]:
    """Strict: true is no number, "3" is no number, 3 is a float where one is asked for."""
    value = node.value if isinstance(node, Leaf) else node
    match key.kind, value:
        case "text", str() if not _is_object(value):
            return
        case "bool" | "switch", bool():
            return
        case "switch", str() if value in key.choices:
            return
        case "choice", str() if value in key.choices:
            return
        case "choice", str():
            fix = did_you_mean(value, key.choices) or f"it takes {_or(key.choices)}"
            yield _problem("wrong-value", f"`{dotted(path)}` cannot be {_shown(node)}", node, path, fix)
        case "int", str() if value in key.choices:
            return
        case "int", int() if not isinstance(value, bool):
            yield from _bounds(key, value, node, path)
        case "float", int() | float() if not isinstance(value, bool):
            yield from _bounds(key, value, node, path)
        case "period" | "duration", str():
            parse = schema.parse_period if key.kind == "period" else schema.parse_duration_s
            try:
                parse(value)
            except ValueError:
                yield _unit(key, node, path)
        case "period" | "duration", int() | float() if not isinstance(value, bool):
            yield _unit(key, node, path)
        case _:
            yield _wrong(node, path, _wanted(key))


def _is_object(value: str) -> bool:
    return value.startswith("@") and not value.startswith("@@")


def _unit(key: Key, node: Node, path: KeyPath) -> Problem:
    what, forms = ("period", schema.PERIOD_FORMS) if key.kind == "period" else ("duration", schema.DURATION_FORMS)
    return _problem("wrong-unit", f"`{dotted(path)}` is no {what}: {_shown(node)}", node, path, f"write one {forms}")


def _bounds(key: Key, value: int | float, node: Node, path: KeyPath) -> Iterator[Problem]:
    # `not (a >= b)` also refuses nan.
    if key.minimum is not None and not value >= key.minimum:
        limit = f"at least {key.minimum:g}"
    elif key.above is not None and not value > key.above:
        limit = f"more than {key.above:g}"
    elif key.maximum is not None and not value <= key.maximum:
        limit = f"at most {key.maximum}"
    else:
        return
    yield _problem("wrong-value", f"`{dotted(path)}` must be {limit}, not {_shown(node)}", node, path)


def _wanted(key: Key) -> str:
    number = {"int": "a whole number", "float": "a number"}.get(key.kind, "")
    if number:
        return f"{number} or {_or(key.choices)}" if key.choices else number
    match key.kind:
        case "bool":
            return "true or false"
        case "switch":
            return f"true, false, {_or(key.choices)}, or a list of names of modules"
        case "choice":
            return _or(key.choices)
        case "period":
            return f"a period {schema.PERIOD_FORMS}"
        case "duration":
            return f"a duration {schema.DURATION_FORMS}"
        case _:
            return "a string"


def _or(choices: tuple[str, ...]) -> str:
    quoted = [f'"{choice}"' for choice in choices]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]


def _wrong(node: Node, path: KeyPath, wanted: str) -> Problem:
    fix = ""
    if isinstance(node, Leaf) and isinstance(node.value, str) and ("number" in wanted or wanted.startswith("true")):
        bare = node.value.strip()
        if re.fullmatch(r"[+-]?\d[\d_]*(\.\d+)?([eE][+-]?\d+)?|true|false", bare):
            fix = f"write it without quotes: {bare}"
    return _problem("wrong-type", f"`{dotted(path)}` must be {wanted}, not {_shown(node)}", node, path, fix)


def _problem(kind: str, message: str, node: Node, path: KeyPath, fix: str = "") -> Problem:
    return Problem(kind=kind, message=message, origin=node.origin, key=dotted(path), fix=fix)


def _shown(node: Node) -> str:
    """A value as its owner would write it, in few characters."""
    match node:
        case Table():
            return "a table"
        case List():
            return "a list"
        case Leaf(bool() as value):
            return "true" if value else "false"
        case Leaf(str() as value):
            return f'"{value}"' if len(value) <= 40 else f'"{value[:37]}..."'
        case Leaf(date() | time() as value):
            return f"the date {value.isoformat()}" if isinstance(value, date) else f"the time {value.isoformat()}"
        case Leaf(None):
            return "none"
        case Leaf(value):
            text = str(value)
            return text if len(text) <= 40 else f"{text[:37]}..."


# --- targets ---------------------------------------------------------------------------------------------------------


def _targets(root: Table, modules: UserModules, trusted: Collection[str]) -> Iterator[Problem]:
    for path, node in walk(root):
        if not isinstance(node, Table) or "type" not in node.items or _is_data(path):
            continue
        leaf, here = node.items["type"], (*path, "type")
        if not isinstance(leaf, Leaf) or not isinstance(leaf.value, str):
            yield _problem("wrong-type", f"`{dotted(here)}` must be a target, not {_shown(leaf)}", leaf, here, FORM)
        elif not is_unresolved(leaf):
            yield from _target(leaf, leaf.value, here, modules, trusted)
        args = node.items.get("args")
        if args is not None and not isinstance(args, List):
            yield _wrong(args, (*path, "args"), "a list of positional arguments")


def _is_data(path: KeyPath) -> bool:
    """Whether the table at `path` is a standard one, in which `type` is an unknown key and told as such."""
    key = schema.find(path)
    is_split = len(path) == 2 and path[0] == "data"
    return not path or is_split or (key is not None and key.kind in ("table", "tables"))


def _target(
    leaf: Leaf, target: str, path: KeyPath, modules: UserModules, trusted: Collection[str]
) -> Iterator[Problem]:
    if not is_target(target):
        yield _problem("unknown-target", f"`{target}` is no target", leaf, path, FORM)
        return
    package = parts_of(target)[0]
    if package == target:
        yield from _short_name(leaf, target, path, modules)
        return
    refusal = refused_by_name(target)
    if refusal is not None:
        yield _problem("target-not-allowed", refusal.message, leaf, path, refusal.fix)
        return
    if package in ("assay", "torch") or package in trusted:
        return
    if package in sys.stdlib_module_names:
        yield _of_python(leaf, target, package, path, modules)
        return
    found = modules.find(target)
    if found is not None:
        yield from _inside(found, leaf, target, path)
        return
    # torchvision is not torch misspelt: what is installed, or not very much alike, is meant as it is written.
    near = did_you_mean(package, [*modules.names(), "torch", "assay", *trusted], cutoff=0.75)
    folders = " and ".join(dict.fromkeys(str(folder) for folder in modules.folders if folder.is_dir()))
    if near and not _is_installed(package):
        message = f"there is no module `{package}` in {folders}" if folders else f"there is no module `{package}`"
        yield _problem("unknown-target", message, leaf, path, near)
        return
    message = f"`{package}` is neither a module in {folders or 'the user folder'} nor a trusted package"
    yield _problem("target-not-allowed", message, leaf, path, trust_command(package))


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _of_python(leaf: Leaf, target: str, package: str, path: KeyPath, modules: UserModules) -> Problem:
    if package in modules.names():
        message, fix = f"`{target}`: Python's own module `{package}` hides your `{package}.py`", "give it another name"
    else:
        message, fix = f"`{target}` is Python's own, which a config may not call", WRAP
    return _problem("target-not-allowed", message, leaf, path, fix)


def _short_name(leaf: Leaf, name: str, path: KeyPath, modules: UserModules) -> Iterator[Problem]:
    """A target without a module: a registered name, or a mistake."""
    found = modules.registered.get(name, [])
    if len(found) == 1:
        return
    if found:
        both = " and ".join(str(one.origin) for one in found)
        notes = tuple(
            Problem(kind="duplicate-name", severity="note", message=f"`{name}` is registered here", origin=one.origin)
            for one in found
        )
        times = "twice" if len(found) == 2 else f"{len(found)} times"
        if len({one.kind for one in found}) == len(found):
            kinds = " and ".join(one.kind or "no kind" for one in found)
            times += f", as {kinds}, and a config cannot tell which is meant"
        yield Problem(
            kind="duplicate-name",
            message=f"`{name}` is registered {times}: {both}",
            origin=leaf.origin,
            key=dotted(path),
            fix=f'write "{found[0].target}" or "{found[1].target}"',
            related=notes,
        )
        return
    classes = [f"{module}.{inner}" for module in modules.names() for inner in _names(modules.find(module))]
    same = [target for target in classes if target.rpartition(".")[2] == name]
    fix = suggested(same[:3]) or did_you_mean(name, modules.registered, 3) or FORM
    message = f"nothing is registered as `{name}`, and it names no module"
    yield _problem("unknown-target", message, leaf, path, fix)


def _names(found: Found | None) -> frozenset[str]:
    return (found.module.names if found and found.module else None) or frozenset()


def _inside(found: Found, leaf: Leaf, target: str, path: KeyPath) -> Iterator[Problem]:
    """What is wrong with a target whose first part is a user module."""
    module, rest = found.module, found.rest
    if module is not None and module.syntax_error:
        origin = Origin(source=str(module.path), line=module.line, column=module.column, end_column=module.column + 1)
        note = Problem(kind="import-failed", severity="note", message=module.syntax_error, origin=origin)
        message = f"{module.path} cannot be parsed, so `{target}` cannot be found"
        yield Problem(kind="import-failed", message=message, origin=leaf.origin, key=dotted(path), related=(note,))
        return
    if module is not None and module.names is None:
        return
    names = set(module.names or ()) if module is not None else set()
    if found.folder is not None:
        names.update(modules_in(found.folder))
    if not rest:
        fix = did_you_mean(target, [f"{target}.{name}" for name in names if name[:1].isupper()])
        yield _problem("unknown-target", f"`{target}` is a module, not a class or function", leaf, path, fix or FORM)
    elif rest[0] not in names:
        where = module.path if module is not None else found.folder
        fix = did_you_mean(rest[0], names)
        if not fix:
            public = sorted(name for name in names if not name.startswith("_"))
            fix = f"it has: {', '.join(public[:8])}{', ...' if len(public) > 8 else ''}" if public else ""
        yield _problem("unknown-target", f"{where} has no `{rest[0]}`", leaf, path, fix)
