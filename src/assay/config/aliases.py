"""Aliases of keys in other systems: accepted, with a note that gives the name here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

from assay.config.older_systems.entries import Alias
from assay.config.older_systems.importing import install
from assay.config.older_systems.lookup import older_calls, older_name
from assay.config.older_systems.tables import system_of
from assay.config.overrides import Setting
from assay.config.references import IN_TEXT, each_text_below
from assay.config.sources.literals import value_of
from assay.config.tree import (
    KeyPath,
    Leaf,
    List,
    Node,
    Table,
    delete_at,
    dotted,
    from_plain,
    get_at,
    key_origin_at,
    parse_dotted,
    set_at,
)
from assay.core import schema
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import nearest

Value = TypeVar("Value")

OF_TORCH: Sequence[Alias] = tuple(
    Alias(
        old=f"data.{split}.{old}",
        new=f"data.{split}.{new}",
        note="the name in torch",
    )
    for split in ("train", "valid", "test")
    for old, new in (
        ("dataset", "source"),
        ("num_workers", "workers"),
        ("prefetch_factor", "prefetch"),
        ("collate_fn", "collate"),
        ("worker_init_fn", "worker_init"),
        ("multiprocessing_context", "start_method"),
    )
)
"""Arguments of torch's DataLoader, by their name in the section of a split."""


_WITH_OLDER_KEYS = ("backward", "train")
"""Sections of assay in which older systems have keys of their own."""

_OLDER_SECTIONS = ("zero",)
"""Sections that only older systems have."""


@cache
def _aliases() -> Sequence[Alias]:
    """Return the aliases that hold in every config: those of torch, and of the older systems."""
    from assay.config.older_systems import alchemy_keys, libai_keys

    return (*OF_TORCH, *alchemy_keys.EVERYWHERE, *libai_keys.EVERYWHERE)


def _may_be_older(path: KeyPath) -> bool:
    """Return whether a key may be of an older system; the tables are loaded for those alone."""
    if path[0] not in _WITH_OLDER_KEYS or len(path) < 2:
        return path[0] in _OLDER_SECTIONS
    section = next(key for key in schema.SECTIONS if key.name == path[0])
    return all(key.name != path[1] for key in section.keys)


def _aliases_for(root: Table) -> Sequence[Alias]:
    """Return the aliases that a config may need: those of torch alone if it has no older key."""
    paths: list[KeyPath] = [(name,) for name in root.items]
    for name in _WITH_OLDER_KEYS:
        section = root.items.get(name)
        paths += [(name, key) for key in section.items] if isinstance(section, Table) else []
    return _aliases() if any(map(_may_be_older, paths)) else OF_TORCH


_OTHER_CALLS = {"_target_": "type", "_args_": "args"}
"""Keys of a call in Hydra, detectron2 and LiBai, by their name here."""


def with_own_calls(node: Node) -> tuple[Node, list[Problem]]:
    """Rewrite calls of Hydra and LazyConfig (`_target_`) as calls here, with one note."""
    found: list[Origin] = []

    def changed(node: Node) -> Node:
        match node:
            case Table():
                items = {key: changed(item) for key, item in node.items.items()}
                if "_target_" in items and "type" not in items:
                    found.append(node.key_origin("_target_"))
                    items = _with_own_keys(items)
                    return replace(node, items=items, key_origins=_with_own_keys(node.key_origins))
                same = all(node.items[key] is item for key, item in items.items())
                return node if same else replace(node, items=items)
            case List():
                row = tuple(map(changed, node.items))
                same = all(one is other for one, other in zip(row, node.items, strict=True))
                return node if same else replace(node, items=row)
            case _:
                return node

    node = changed(node)
    if not found:
        return node, []
    first = min(found, key=lambda origin: (origin.line, origin.column))
    times = f", {len(found)} times in this config" if len(found) > 1 else ""
    message = f"`_target_` is `type` here{times}"
    return node, [
        Problem(kind="alias", severity="note", message=message, origin=first, key="_target_")
    ]


_HYDRAS_VARIABLE = "oc.env:"


def with_own_references(node: Node) -> tuple[Node, list[Problem]]:
    """Rewrite Hydra's `${oc.env:X}` as `${env:X}`, with one note."""
    found: list[Origin] = []

    def changed(leaf: Leaf, text: str, _: KeyPath) -> Node:
        renamed = _with_own_variables(text)
        if renamed == text:
            return leaf
        found.append(leaf.origin)
        return replace(leaf, value=renamed, typed=None if leaf.typed is None else renamed)

    node = each_text_below(node, (), changed)
    message = "`${oc.env:X}` is `${env:X}` here"
    return node, [
        Problem(kind="alias", severity="note", message=message, origin=origin)
        for origin in found[:1]
    ]


def _with_own_variables(text: str) -> str:
    def own(reference: re.Match[str]) -> str:
        inside = (reference["inside"] or "").strip()
        return f"${{{inside[3:]}}}" if inside.startswith(_HYDRAS_VARIABLE) else reference[0]

    return IN_TEXT.sub(own, text)


def _with_own_keys(by_key: Mapping[str, Value]) -> dict[str, Value]:
    """Return what belongs to the keys of another system's call by the keys here."""
    return {_OTHER_CALLS.get(key, key): value for key, value in by_key.items()}


def applied(root: Table) -> tuple[Table, list[Problem]]:
    """Return `root` with every alias under its name here, and a note for each.

    Given under both names, the one that this file writes itself wins over one that it imports; else
    the name here.
    """
    own, notes = with_own_calls(root)
    own, further = with_own_references(own)
    notes += further
    assert isinstance(own, Table)
    own, theirs = _translated(own)
    notes += theirs
    everywhere = _aliases_for(own)
    if everywhere is not OF_TORCH:
        from assay.config.older_systems.libai_keys import with_larger_length

        own = with_larger_length(own)
    root = _with_runner(own)
    older = _notes_of_older(root)
    for alias in (*everywhere, *_keys_of_older(own)):
        path = parse_dotted(alias.old)
        to = parse_dotted(alias.new)
        node = get_at(root, path)
        if node is None:
            continue
        origin = key_origin_at(root, path)
        value = alias.converted(node)
        root = delete_at(root, path) if alias in everywhere else _without(root, path)
        counts = value is not None and _counts(root, to, origin)
        notes.append(_note(alias, origin, "which is given too and counts" if counts else ""))
        if value is None or counts:
            continue
        root = _set(root, to, value, origin)
    return root, notes + older


def _counts(root: Table, path: KeyPath, alias: Origin) -> bool:
    """Return whether the value at `path` counts more than one under its alias."""
    if get_at(root, path) is None:
        return False
    is_own_alias = alias.source == root.origin.source
    is_imported = key_origin_at(root, path).source != root.origin.source
    return not (is_own_alias and is_imported)


def _set(root: Table, to: KeyPath, value: Node, origin: Origin) -> Table:
    """Return `root` with a key set, unless a value stands where a table is needed."""
    try:
        return set_at(root, to, value, origin)
    except KeyError:
        return root  # the check reports the value


def _translated(root: Table) -> tuple[Table, list[Problem]]:
    """Return a config whose sections are LiBai's with those of assay, and notes."""
    if not isinstance(root.items.get("dataloader"), Table):
        return root, []
    from assay.config.older_systems.libai_configs import translated

    install("libai")
    return translated(root)


def _without(root: Table, path: KeyPath) -> Table:
    """Return `root` without the key at `path`, nor the table that this leaves empty."""
    root = delete_at(root, path)
    above = get_at(root, path[:-1])
    is_empty = len(path) > 1 and isinstance(above, Table) and not above.items
    return delete_at(root, path[:-1]) if is_empty else root


def _keys_of_older(root: Table) -> list[Alias]:
    """Return the aliases of the older systems that a config names in a target or as its runner."""
    runner = root.items.get("runner")
    named = [target for _, _, target in older_calls(root)]
    if isinstance(runner, Leaf) and isinstance(runner.value, str):
        named.append(runner.value)
    if all(system_of(target) != "alchemy" for target in named):
        return []  # the keys of the other systems hold everywhere
    from assay.config.older_systems.alchemy_keys import KEYS

    return list(KEYS)


def _with_runner(root: Table) -> Table:
    """Return `root` with the runner of an older system as `train` or `test`."""
    runner = root.items.get("runner")
    older = older_name(str(runner.value)) if isinstance(runner, Leaf) else None
    if runner is None or older is None:
        return root
    origin = root.key_origin("runner")
    return set_at(root, ("runner",), Leaf(older.target, runner.origin), origin)


def _notes_of_older(root: Table) -> list[Problem]:
    """Return a note for each target of an older system in a config."""
    notes: dict[str, Problem] = {}
    for path, call, target in older_calls(root):
        older = older_name(target)
        if older is None:
            continue  # the check of targets reports it
        here = f"here: {older.instead}" if older.instead else f"`{older.target}` here"
        notes.setdefault(
            target,
            Problem(
                kind="alias",
                severity="note",
                message=f"`{target}` is understood; {here}",
                origin=call.key_origin("type"),
                key=dotted((*path, "type")),
            ),
        )
    return list(notes.values())


def with_older_arguments(root: Table, body: Table) -> Table:
    """Set the keys that arguments of older targets in `body` stand for, where `root` has none."""
    for _, call, target in older_calls(body):
        older = older_name(target)
        for argument, key in older.keys.items() if older is not None else ():
            value = call.items.get(argument)
            to = parse_dotted(key)
            if value is not None and get_at(root, to) is None:
                root = _set(root, to, value, call.key_origin(argument))
    return root


def renamed(setting: Setting) -> tuple[Setting | None, list[Problem]]:
    """Rename the key of a setting, with a note, if it is an alias; None if nothing is to be set."""
    if setting.parts[-1:] == ("_target_",):
        setting = replace(setting, parts=(*setting.parts[:-1], "type"))
    if setting.value is not None:
        text = None if setting.text is None else _with_own_variables(setting.text)
        setting = replace(setting, value=with_own_references(setting.value)[0], text=text)
    aliases = _aliases() if _may_be_older(setting.parts) else OF_TORCH
    matching = (each for each in aliases if _is_under(setting.parts, parse_dotted(each.old)))
    alias = next(matching, None)
    if alias is None:
        return setting, []
    old = parse_dotted(alias.old)
    to = parse_dotted(alias.new)
    notes = [_note(alias, setting.key_origin())]
    if alias.value is None:
        to = (*to, *setting.parts[len(old) :])
        origins = (setting.key_origin(),) * len(to)
        to_create = f"+{dotted(to)}={setting.text or '...'}"
        return replace(setting, parts=to, origins=origins, to_create=to_create), notes
    origins = (setting.key_origin(),) * len(to)
    if setting.value is None:
        return replace(setting, parts=to, origins=origins), notes
    given = setting.value
    if setting.text is not None and "," in setting.text and isinstance(given, Leaf):
        row = [value_of(part) for part in setting.text.split(",")]
        given = from_plain(row, given.origin)
    inside = set_at(Table({}, given.origin), setting.parts, given, setting.key_origin())
    value = alias.converted(get_at(inside, old) or given)
    if value is None:
        return None, notes
    text = setting.text if setting.text is not None else "..."
    to_create = f"+{alias.new}={text}"
    new = replace(setting, parts=to, value=value, origins=origins, text=None, to_create=to_create)
    return new, notes


def with_alias(problem: Problem) -> Problem:
    """Suggest the alias that an unknown key resembles most."""
    above, _, word = problem.key.rpartition(".")
    if problem.kind != "unknown-key":
        return problem
    words = {
        alias.old.rpartition(".")[2]: alias
        for alias in _aliases()
        if alias.old.rpartition(".")[0] == above
    }
    known = re.findall("did you mean `([^`]+)`", problem.fix)
    near = nearest(word, [*known, *words])
    if not near or near[0] in known:
        return problem
    alias = words[near[0]]
    return replace(problem, fix=f"did you mean `{near[0]}`, which is `{alias.new}` here?")


def _is_under(path: KeyPath, above: KeyPath) -> bool:
    return path[: len(above)] == above


def _note(alias: Alias, origin: Origin, why: str = "") -> Problem:
    message = f"`{alias.old}` is `{alias.new}` here{f', {why}' if why else f': {alias.note}'}"
    return Problem(kind="alias", severity="note", message=message, origin=origin, key=alias.old)
