"""Overrides on the command line, `optimizer.lr=1e-2`: recognised, applied, and checked."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from assay.config.sources.literals import MalformedError, read_value, value_for
from assay.config.tree import (
    CLI,
    KeyPath,
    Leaf,
    List,
    Setting,
    Table,
    delete_at,
    dotted,
    fit_path,
    get_at,
    problem_at,
    set_at,
    walk,
    without_names,
)
from assay.core import schema
from assay.core.diagnostics import Origin
from assay.core.errors import can_suggest, did_you_mean, suggestion

DELETE = "@delete"
_MOST = 3
_USUAL = {
    "lr": "optimizer.lr",
    "learning_rate": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "momentum": "optimizer.momentum",
}
"""Parameters of calls that people look for, where the config does not write them."""
_OVERRIDE = re.compile(r"(?P<plus>\+?)(?P<key>[A-Za-z_][\w-]*(?:\.[\w-]*|\[\d+\])*)=", re.ASCII)
_KEY_PART = re.compile(r"[^.\[\]]+")


def is_override(argument: str) -> bool:
    """Return whether an argument is an override: it reads `key=value`, and no file has that name.

    >>> is_override("optimizer.lr=1e-2"), is_override("digits.toml"), is_override("--lr=1")
    (True, False, False)
    """
    if not _OVERRIDE.match(argument):
        return False
    try:
        return not Path(argument).exists()
    except (OSError, ValueError):
        return True


class RefusedError(Exception):
    """A setting that cannot be done."""

    def __init__(
        self, kind: str, message: str, origin: Origin, *, key: str = "", fix: str = ""
    ) -> None:
        super().__init__(message)
        self.problem = problem_at(kind, message, origin, key, fix)


def setting_of(argument: str) -> Setting:
    """Parse an override. Raises RefusedError when it is none."""
    found = _OVERRIDE.match(argument)
    if found is None:
        whole = origin_in(argument, 0, len(argument))
        message, fix = _not_an_override(argument)
        raise RefusedError("syntax", message, whole, fix=fix)
    places = list(_KEY_PART.finditer(argument, found.start("key"), found.end("key")))
    if ".." in found["key"] or found["key"].endswith("."):
        key = origin_in(argument, found.start("key"), found.end("key"))
        message = f"`{found['key']}` has an empty part"
        raise RefusedError("syntax", message, key, fix="write a.b=value")
    text = argument[found.end() :]
    value = None
    if text.strip() != DELETE:
        place = origin_in(argument, found.end(), len(argument))
        try:
            value = read_value(text, place)
        except MalformedError:  # an older system may have this form; it is refused when it is set
            value = Leaf(text, place, typed=text)
    return Setting(
        parts=tuple(each[0] for each in places),
        value=value,
        origins=tuple(origin_in(argument, *each.span()) for each in places),
        creates=bool(found["plus"]),
        to_create=f"+{argument.removeprefix('+')}",
        text=text,
    )


def _not_an_override(argument: str) -> tuple[str, str]:
    """Return what is wrong with an argument that has no `=`, or begins with dashes, and its fix."""
    bare = argument.lstrip("-")
    if argument.startswith("-") and _OVERRIDE.match(bare):
        return f"`{argument}` is no option of assay", f"write {bare}"
    if re.fullmatch(r"~[A-Za-z_][\w.-]*", argument):
        return f"`{argument}` is no override", f"write {argument[1:]}={DELETE}"
    return f"`{argument}` is no override", "write key=value, as in optimizer.lr=0.01"


def apply_setting(root: Table, setting: Setting) -> Table:
    """Apply one setting to `root`.

    Raises RefusedError for a key that is not there and cannot be.
    """
    path = _axis(setting) or fit_path(root, setting.parts)
    old = get_at(root, path)
    if setting.value is None:
        if old is None:
            raise _not_there(root, setting, path)
        return delete_at(root, path)
    if setting.creates:
        if isinstance(old, List):
            path = (*path, len(old.items))
        elif old is not None:
            message = f"`{dotted(path)}` is there already"
            fix = f"write {setting.to_create.removeprefix('+')}"
            raise RefusedError(
                "duplicate-key", message, setting.key_origin(), key=dotted(path), fix=fix
            )
        elif len(path) == 1 and not isinstance(setting.value, Table) and schema.find(path) is None:
            raise _not_there(root, setting, path)
    elif old is None:
        _check_new(root, setting, path)
    node = setting.value
    if setting.text is not None:
        try:
            node = value_for(path, setting.text, node.origin)
        except MalformedError as error:
            raise RefusedError(
                "syntax", error.what, node.origin, key=dotted(path), fix=error.fix
            ) from None
    if old is not None and not setting.creates:
        node = replace(node, origin=replace(node.origin, replaced=old.origin))
    try:
        return set_at(root, path, node, setting.key_origin())
    except KeyError:
        raise _not_there(root, setting, path) from None


def origin_in(argument: str, start: int, end: int) -> Origin:
    """Return the place of the characters from `start` up to `end` of an argument."""
    return Origin(
        source=CLI, line=1, column=start + 1, end_line=1, end_column=end + 1, text=argument
    )


def _axis(setting: Setting) -> KeyPath | None:
    """Return the axis that `sweep.optimizer.lr=[1, 2]` sets: "optimizer.lr" is one key."""
    if setting.parts[0] != "sweep" or len(setting.parts) < 3:
        return None
    return "sweep", ".".join(map(str, setting.parts[1:]))


def _check_new(root: Table, setting: Setting, path: KeyPath) -> None:
    """Raise RefusedError for a key that is neither in the file nor possible in its table."""
    if path[0] == "sweep" and len(path) == 2:
        return
    parent = get_at(root, path[:-1])
    is_new_split = path[0] == "data" and get_at(root, path[:2]) is None
    if schema.find(path) is not None and not is_new_split:
        return
    standard = schema.find(path[:-1])
    is_closed = _is_split(path[:-1]) or (
        standard is not None and standard.kind in ("table", "tables")
    )
    if len(path) == 1 or not isinstance(parent, Table) or is_closed:
        raise _not_there(root, setting, path)


def _is_split(path: KeyPath) -> bool:
    return len(path) == 2 and path[0] == "data"


def _not_there(root: Table, setting: Setting, path: KeyPath) -> RefusedError:
    """Return the error for the first part of a key that leads nowhere, with a suggestion."""
    length = 0
    while length < len(setting.parts) - 1 and _exists(root, path[: length + 1]):
        length += 1
    word = str(setting.parts[length])
    above = path[:length]
    key = dotted(path[: length + 1])
    kind = "unknown-key"
    message = f"unknown key `{key}`"
    fix = ""
    parent = get_at(root, above)
    if not above and word in schema.LAUNCH:
        kind = "launch-setting"
        message = f"`{word}` is a setting of one launch, not of the config"
        fix = f"give it on the command line: {schema.LAUNCH[word]}"
    elif isinstance(parent, List):
        message = f"`{dotted(above)}` has no item `{word}`"
        count = len(parent.items)
        fix = f"its items are 0 to {count - 1}; " if count else ""
        fix += f"+{dotted(above)}=... adds one"
    elif parent is not None and not isinstance(parent, Table):
        message = f"`{dotted(above)}` is one value, so it has no `{word}`"
    elif word in _choices(root, above):  # known, and left out of this config
        message = f"there is no `{key}` in the config"
        if not setting.creates and setting.value is not None:
            fix = f"write {setting.to_create} to make it"
    else:
        fix = _fix_of_unknown(root, setting, above, word)
    return RefusedError(kind, message, setting.key_origin(length, length + 1), key=key, fix=fix)


def _fix_of_unknown(root: Table, setting: Setting, above: KeyPath, word: str) -> str:
    """Return the fix for a key that the table `above` does not know."""
    if not setting.creates:
        elsewhere = suggest_other_section(word, root, above=above)
        if elsewhere:
            return elsewhere
    choices = _choices(root, above)
    near = did_you_mean(word, choices)
    standard = schema.find(above)
    is_section = bool(above) and not _is_split(above)
    is_open = is_section and (standard is None or standard.kind in ("call", "tables"))
    if is_open and not setting.creates and setting.value is not None:
        to_create = f"{setting.to_create} to make it"
        return f"{near[:-1]}, or {to_create}?" if near else f"write {to_create}"
    if not near and above:
        return f"it takes: {', '.join(dict.fromkeys(choices))}"
    return near


def _exists(root: Table, path: KeyPath) -> bool:
    standard = schema.find(path)
    return get_at(root, path) is not None or (standard is not None and standard.kind == "table")


def _choices(root: Table, above: KeyPath) -> list[str]:
    """Return the names that may stand in the table at `above`."""
    parent = get_at(root, above)
    names = list(parent.items) if isinstance(parent, Table) else []
    if not above:
        return [*names, *(key.name for key in schema.SECTIONS)]
    if _is_split(above):
        data = schema.section("data")
        return [*names, *(key.name for key in data.keys)] if data else names
    standard = schema.find(above)
    return (
        [*names, *(key.name for key in standard.keys)]
        if standard and standard.kind == "table"
        else names
    )


def keys_named(word: str, root: Table | None = None) -> list[str]:
    """Return the keys of the standard sections, and of `root`, whose last part is `word`.

    >>> keys_named("epochs"), keys_named("batch_size"), keys_named("lr")
    (['train.epochs'], ['data.train.batch_size'], ['optimizer.lr'])
    """
    sections = [section for section in schema.SECTIONS if section.kind == "table"]
    found = [
        f"{section.name}.{key.name}"
        for section in sections
        for key in section.keys
        if key.name == word
    ]
    splits = next(section for section in schema.SECTIONS if section.name == "data")
    found += [f"data.train.{word}" for key in splits.keys if key.name == word]
    paths = _paths_of_keys(root) if root is not None and can_suggest() else []
    can_suggest(len(paths))  # of ten thousand unknown keys each would walk through all of them
    written = [path for path in paths if path[-1] == word and len(path) > 1]
    usual = [_USUAL[word]] if word in _USUAL else []
    return list(dict.fromkeys([*found, *map(dotted, written), *usual]))


def suggest_other_section(word: str, root: Table, *, above: KeyPath = ()) -> str:
    """Return `did you mean `optimizer.lr`?` for a key of the table `above` that is misplaced."""
    here = dotted((*above, word))
    return suggestion([home for home in keys_named(word, root) if home != here][:_MOST])


def _paths_of_keys(root: Table) -> list[KeyPath]:
    return [
        path
        for path, _ in walk(without_names(root, schema.MAKERS))
        if path and isinstance(path[-1], str)
    ]
