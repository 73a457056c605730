"""Shape stage of a check: all mistakes that can be found without running user code."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from assay.config.loading import Config
from assay.config.overrides import suggest_other_section
from assay.config.resolver import with_external_values
from assay.config.standard_keys import (
    evaluation_problems,
    key_problems,
    parallel_problems,
    source_problems,
)
from assay.config.target_names import target_problems
from assay.config.tree import (
    CLI,
    MAX_DEPTH,
    KeyPath,
    Leaf,
    Node,
    Table,
    dotted,
    from_plain,
    get_at,
    parse_dotted,
    problem_at,
    set_at,
    walk,
)
from assay.config.user_modules import UserModules
from assay.core import schema
from assay.core.diagnostics import Origin, Problem, at_most
from assay.core.errors import did_you_mean, few_suggestions, nearest
from assay.core.keys import Key
from assay.formats.defaults_file import parse_value


def check_shape(
    config: Config,
    *,
    trusted: Collection[str] | None = None,
    environ: Mapping[str, str] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> list[Problem]:
    """Return the problems of syntax, references, keys, types and targets, in source order.

    No user module is imported, and no torch. `trusted` are the packages that are allowed as
    targets, `variables` the globals that `${global:...}` names; both are those of the config's
    project, unless given.
    """
    with few_suggestions():
        return _problems(config, trusted, environ, variables)


def _problems(
    config: Config,
    trusted: Collection[str] | None,
    environ: Mapping[str, str] | None,
    variables: Mapping[str, Any] | None,
) -> list[Problem]:
    settings = config.settings
    trusted = settings.trusted if trusted is None else trusted
    variables = settings.variables if variables is None else variables
    root, problems = with_external_values(
        config.root, os.environ if environ is None else environ, variables
    )
    problems = [*config.problems, *config.notes, *problems]
    is_whole = not any(
        problem.kind in ("syntax", "duplicate-key", "too-large", "too-deep") for problem in problems
    )
    used = config.uses.paths(config.written)
    also_used = config.uses.paths(config.given)  # in another variant of the file
    problems += _top_level(root, {str(path[0]) for path in used}, is_whole=is_whole)
    if is_whole:
        problems += _unused_keys(config, used | also_used)
    for key in schema.SECTIONS:
        if key.name in root.items:
            problems += key_problems(
                key, root.items[key.name], root.key_origin(key.name), (key.name,), is_whole=is_whole
            )
    if is_whole:
        problems += source_problems(root)
        problems += evaluation_problems(root)
        problems += parallel_problems(root)
    problems += at_most(target_problems(root, UserModules(config.user_dirs), trusted))
    problems += at_most(_half_characters(root))
    return _in_order(config, problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """Key that is not given: its default, and the owner.

    `origin` is the place where it would stand.
    """

    key: str
    value: str
    owner: str
    origin: Origin

    def __str__(self) -> str:
        return f"{self.key} = {self.value}"


def standard_defaults(root: Table) -> list[Default]:
    """Return the defaults of the standard sections, as they would be written."""
    found: list[Default] = []

    def look(key: Key, node: Node | None, path: KeyPath, origin: Origin) -> None:
        if node is None and key.default not in (None, ""):
            owner = f"[{dotted(path[:-1])}]" if path[1:] else "the config"
            value = json.dumps(key.default)
            found.append(Default(key=dotted(path), value=value, owner=owner, origin=origin))
        elif key.kind == "tables" and isinstance(node, Table):
            for name, item in node.items.items():
                table = Key(name=name, kind="table", doc="", keys=key.keys)
                look(table, item, (*path, name), node.key_origin(name))
        elif key.kind == "table" and (isinstance(node, Table) or (node is None and len(path) == 1)):
            # A table inside a section that is not there is off: nothing is taken from it.
            items = node.items if node is not None else {}
            for inner in key.keys:
                look(inner, items.get(inner.name), (*path, inner.name), origin)

    nowhere = Origin(source="<default>")
    for key in schema.SECTIONS:
        is_given = key.name in root.items
        origin = root.key_origin(key.name) if is_given else nowhere
        look(key, root.items.get(key.name), (key.name,), origin)
    return found


def with_defaults(root: Table, defaults: Iterable[Default]) -> Table:
    """Return `root` with the defaults that are taken, as if they had been written."""
    for each in defaults:
        path = parse_dotted(each.key)
        with contextlib.suppress(KeyError):  # inside of what is no table
            if get_at(root, path) is None:
                root = set_at(root, path, from_plain(parse_value(each.value), each.origin))
    return root


def _in_order(config: Config, problems: list[Problem]) -> list[Problem]:
    """Sort problems, without duplicates: files from top to bottom, then arguments as given."""
    order = {source: i for i, source in enumerate(config.files)}
    arguments = {argument: i for i, argument in enumerate(config.overrides)}

    def place(problem: Problem) -> tuple[int, int, int, int]:
        origin = problem.origin
        argument = arguments.get(origin.text or "", 0) if origin.source == CLI else 0
        return order.get(origin.source, len(order)), argument, origin.line, origin.column

    astray = {
        problem.origin
        for problem in problems
        if problem.kind in ("unknown-reference", "reference-cycle")
    }
    kept: dict[tuple[str, Origin], Problem] = {}
    for problem in problems:
        # A value that refers to nothing is also of no type: that is the same mistake.
        if problem.kind != "wrong-type" or problem.origin not in astray:
            kept.setdefault((problem.message, problem.origin), problem)
    return sorted(kept.values(), key=place)


def _top_level(root: Table, used: set[str], *, is_whole: bool) -> Iterator[Problem]:
    standard = [key.name for key in schema.SECTIONS]
    missing = used - set(root.items)
    for name, node in root.items.items():
        if name in standard:
            continue
        origin = root.key_origin(name)
        if name in schema.LAUNCH:
            yield problem_at(
                "launch-setting",
                f"`{name}` is a setting of one launch, not of the config",
                origin,
                name,
                f"give it on the command line: {schema.LAUNCH[name]}",
            )
        elif name not in used:
            near = suggest_other_section(name, root) if isinstance(node, Leaf) else ""
            near = near or _suggest_name(name, root, [*standard, *schema.MAKERS])
            if near or isinstance(node, Leaf):
                fix = near or f"top-level keys are {', '.join(standard)}"
                yield problem_at("unknown-key", f"unknown key `{name}`", origin, name, fix)
            elif is_whole:
                if nearest(name, missing):
                    continue  # the reference that was to lead here is wrong, which is told there
                fix = (
                    _FOREIGN.get(name)
                    or _suggest_renaming(name, root)
                    or f'refer to it as "@{name}", or remove it'
                )
                message = f"nothing uses the section `{name}`"
                yield problem_at("unused-section", message, origin, name, fix)


def _half_characters(root: Table) -> Iterator[Problem]:
    """Yield a problem for each key and value that no file can hold: Python and shells make them."""
    for path, node in walk(root):
        value = node.value if isinstance(node, Leaf) else ""
        named = path[-1] if path else ""
        for what, text in (("value", value), ("key", named)):
            if isinstance(text, str) and not text.isascii() and _SURROGATE.search(text):
                yield problem_at(
                    "wrong-value",
                    f"a {what} has half of a surrogate pair, which is no text: {text!r}",
                    node,
                    path,
                    "write it in UTF-8; of bytes that are no text, the hexadecimal form",
                )


_FOREIGN = {
    "defaults": "a config is one file: write what these files hold into it, choices under"
    " [variants], and remove `defaults`",
}
_SURROGATE = re.compile("[\ud800-\udfff]")


def _unused_keys(config: Config, used: set[KeyPath]) -> Iterator[Problem]:
    """Yield a problem for each key that no section copies, in any variant of the file."""
    # By table: the keys used in it, and those of them that are missing.
    beside: dict[KeyPath, tuple[list[str], list[str]]] = {}
    for path in used:
        word = str(path[-1])
        near, missing = beside.setdefault(path[:-1], ([], []))
        near.append(word)
        if get_at(config.written, path) is None:
            missing.append(word)
    # No table is deeper than MAX_DEPTH.
    above = {path[:length] for path in used for length in range(1, min(len(path), MAX_DEPTH))}
    standard = {key.name for key in schema.SECTIONS} | set(schema.LAUNCH) | set(schema.MAKERS)
    for name, node in config.written.items.items():
        if name in standard or (name,) not in above:
            continue
        origin = config.written.key_origin(name)
        for path, place in _leaves_beside(node, (name,), origin, used, above):
            key, word = dotted(path), str(path[-1])
            near, missing = beside.get(path[:-1], ([], []))
            if nearest(word, missing):
                continue  # the reference is misspelt, and that problem is reported by itself
            yield Problem(
                kind="unused-key",
                severity="warning",
                message=f"nothing uses `{key}`",
                origin=place,
                key=key,
                fix=did_you_mean(word, near) or "refer to it, or remove it",
            )


def _leaves_beside(
    node: Node, path: KeyPath, origin: Origin, used: Collection[KeyPath], above: Collection[KeyPath]
) -> Iterator[tuple[KeyPath, Origin]]:
    """Yield the keys below `path` that are neither in `used` nor `above` a used one."""
    todo = [(path, node, origin)]
    while todo:
        path, node, origin = todo.pop()
        if path in used:
            continue
        if isinstance(node, Table) and path in above:
            todo += [((*path, key), item, node.key_origin(key)) for key, item in node.items.items()]
        else:
            yield path, origin


def _suggest_name(name: str, root: Table, standard: list[str]) -> str:
    """Return the standard name that was meant; one that is there already only if very similar."""
    near = nearest(name, standard)
    if near and SequenceMatcher(None, name, near[0]).ratio() < 0.7:
        is_shortened = _is_shortened(name, near[0])
        if near[0] in root.items or (not is_shortened and isinstance(root.items.get(name), Table)):
            return ""
    return did_you_mean(name, standard)


def _suggest_renaming(name: str, root: Table) -> str:
    """Return the suggestion to rename `bert_model`, without a `model`, to its standard name."""
    calls = [
        key.name for key in schema.SECTIONS if key.kind == "call" and key.name not in root.items
    ]
    same = next((call for call in calls if call in name.split("_")), "")
    return f'a run looks for `{same}`: call it that, or write {same} = "@{name}"' if same else ""


def _is_shortened(short: str, name: str) -> bool:
    """Return whether `short` has letters of `name` in their order: `optm` for `optimizer`."""
    letters = iter(name)
    return all(letter in letters for letter in short)
