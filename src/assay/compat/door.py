"""The translator of the house: what is written for another system, before anything else sees it.

A file passes through `translate` when it has been read, a setting of the command line, a variant or
a sweep through `translate_setting`. Each change is told in a note. Targets keep the names that were
given, which the record shows; what stands for them is looked up where a target is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from assay.compat.keys import (
    EVERYWHERE,
    OF_ALCHEMY,
    Alias,
    count_of,
)
from assay.compat.names import (
    PACKAGES,
    explain_unmapped,
    install,
    names_left_out,
    offer_import,
    older_name,
    system_of,
)
from assay.config.diff import changed_keys
from assay.config.overrides import apply_setting
from assay.config.sources.literals import items_of
from assay.config.tree import (
    IN_TEXT,
    KeyPath,
    Leaf,
    List,
    Node,
    Setting,
    Table,
    delete_at,
    dotted,
    fit_path,
    from_plain,
    get_at,
    key_origin_at,
    parse_dotted,
    set_at,
    transform,
    walk,
    without_names,
)
from assay.config.user_modules import UserModules, read_class
from assay.core import schema
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import nearest

__all__ = [
    "PACKAGES",
    "explain_unmapped",
    "names_left_out",
    "offer_import",
    "older_config",
    "older_name",
    "suggest_alias",
    "system_of",
    "translate",
    "translate_forms",
    "translate_setting",
    "with_older_arguments",
]

Value = TypeVar("Value")

_OTHER_CALLS = {"_target_": "type", "_args_": "args"}
"""Keys of a call in Hydra, detectron2 and LiBai, by their name here."""

_HYDRAS_VARIABLE = "oc.env:"


def translate(root: Table) -> tuple[Table, list[Problem]]:
    """Return a config that has been read as one of assay, and a note for each change.

    Given under both names, the one that this file writes itself wins over one that it imports; else
    the name here.
    """
    own, notes = translate_forms(root)
    assert isinstance(own, Table)
    if isinstance(own.items.get("dataloader"), Table):
        from assay.compat.libai.translate import translate_libai

        install("libai")
        own, further = translate_libai(own)
        notes += further
    calls = _find_older_calls(own)
    aliases = list(EVERYWHERE)
    if _names_alchemy(own, calls):
        from assay.compat.alchemy.translate import translate_alchemy

        own, further = translate_alchemy(own, partial(_model_takes, own))
        notes += further
        aliases = [*OF_ALCHEMY, *aliases]  # what they make may have an alias of torch's
    root = _name_runner(_keep_larger_length(own))
    for alias in aliases:
        node = get_at(root, alias.path)
        if node is None:
            continue
        origin = key_origin_at(root, alias.path)
        value = alias.convert(node)
        root = delete_at(root, alias.path)
        if alias in OF_ALCHEMY:
            root = _drop_empty(root, alias.path[:-1])
        counts = value is not None and _counts(root, alias.to, origin)
        notes.append(_note(alias, origin, "which is given too and counts" if counts else ""))
        if value is not None and not counts:
            root = _set(root, alias.to, value, origin)
    return root, [*notes, *_notes_of(calls)]


def translate_setting(setting: Setting) -> tuple[Setting | None, list[Problem]]:
    """Return a setting of a key here, and notes; None if nothing is to be set."""
    if setting.parts[-1:] == ("_target_",):
        setting = replace(setting, parts=(*setting.parts[:-1], "type"))
    if setting.value is not None:
        text = None if setting.text is None else _name_variables(setting.text)
        setting = replace(setting, value=transform(setting.value, _rename_variables), text=text)
    alias = next((each for each in EVERYWHERE if _is_under(setting.parts, each.path)), None)
    if alias is None:
        return setting, []
    to = alias.to
    notes = [_note(alias, setting.key_origin())]
    if alias.value is None:
        to = (*to, *setting.parts[len(alias.path) :])
        origins = (setting.key_origin(),) * len(to)
        to_create = f"+{dotted(to)}={setting.text or '...'}"
        return replace(setting, parts=to, origins=origins, to_create=to_create), notes
    origins = (setting.key_origin(),) * len(to)
    if setting.value is None:
        return replace(setting, parts=to, origins=origins), notes
    given = setting.value
    if setting.text is not None and "," in setting.text:
        given = _row(setting) or given
    inside = set_at(Table({}, given.origin), setting.parts, given, setting.key_origin())
    value = alias.convert(get_at(inside, alias.path) or given)
    if value is None:
        return None, notes
    text = setting.text if setting.text is not None else "..."
    to_create = f"+{alias.new}={text}"
    new = replace(setting, parts=to, value=value, origins=origins, text=None, to_create=to_create)
    return new, notes


def sections_of(names: Collection[str]) -> Collection[str]:
    """Return the sections of LiBai for a config with a `dataloader`, else none.

    A config of LiBai imports them from others, where they count as if they were written in it.
    """
    from assay.compat.libai.translate import SECTIONS

    return SECTIONS if "dataloader" in names else ()


class GivenConfig:
    """Config of an older system as it was given.

    A setting of one of its keys is made in it before it is translated: one key there may be several
    here, and one here may follow from several there.
    """

    def __init__(self, root: Table, *, is_libai: bool) -> None:
        self.root = root
        self.is_libai = is_libai

    def has(self, setting: Setting, written: Table) -> bool:
        """Return whether a setting is of a key there, which `written` has under another name."""
        if get_at(written, fit_path(written, setting.parts)) is not None:
            return False
        if self.is_libai and _is_key_of_libai(setting.parts):
            return True
        section = str(setting.parts[0])
        is_older_section = section in self.root.items and schema.find((section,)) is None
        return is_older_section or get_at(self.root, fit_path(self.root, setting.parts)) is not None

    def apply(self, setting: Setting, written: Table) -> tuple[Table, list[Problem]]:
        """Return `written` with what a setting of a key there changes here, and notes."""
        before, _ = translate(self.root)
        if self.is_libai and get_at(self.root, ("optim",)) is None:
            from assay.compat.libai.translate import DEFAULT_OPTIMIZER

            # What the translation takes where there is none: a part of it may be set.
            optimizer = from_plain(DEFAULT_OPTIMIZER, self.root.origin)
            self.root = set_at(self.root, ("optim",), optimizer, self.root.origin)
        path = fit_path(self.root, setting.parts)
        old = get_at(self.root, path)
        if isinstance(old, List) or setting.parts[-1] == "topk":
            setting = replace(setting, value=_row(setting), text=None)
        items = [path[: i + 1] for i, part in enumerate(path) if isinstance(part, int)]
        if self.is_libai and old is None and (not items or get_at(self.root, items[-1])):
            setting = replace(setting, creates=True)
        self.root = apply_setting(self.root, setting)
        after, _ = translate(self.root)
        notes = []
        for change in reversed(changed_keys(before, after)):  # of a list the last item goes first
            path = fit_path(written, parse_dotted(change.key))
            if change.after is not None:
                written = _set(written, path, change.after, setting.key_origin())
            elif get_at(written, path) is not None:
                written = delete_at(written, path)
            old_key = dotted(setting.parts)
            notes.append(
                Problem(
                    kind="alias",
                    severity="note",
                    message=f"`{old_key}` is `{change.key}` here",
                    origin=setting.key_origin(),
                    key=old_key,
                )
            )
        return written, notes


def older_config(given: Table) -> GivenConfig | None:
    """Return the config for settings; None if it is of no older system."""
    root, _ = translate_forms(given)
    assert isinstance(root, Table)
    is_libai = isinstance(root.items.get("dataloader"), Table)
    is_older = is_libai or _names_alchemy(root, _find_older_calls(root))
    return GivenConfig(root, is_libai=is_libai) if is_older else None


def _is_key_of_libai(parts: KeyPath) -> bool:
    from assay.compat.libai.translate import SECTIONS, TRAIN_KEYS

    section, key = (*parts, "")[:2]
    return section in SECTIONS or (section == "train" and key in TRAIN_KEYS)


def _row(setting: Setting) -> Node | None:
    """Return the value of a setting, a list of what stands between its commas: `1,5`, `(1, 5)`."""
    given = setting.value
    if not isinstance(given, Leaf) or setting.text is None:
        return given
    items = items_of(f"{setting.text.strip().strip('()')},", given.origin)
    return List(tuple(items), given.origin) if items is not None else given


def translate_forms(root: Node) -> tuple[Node, list[Problem]]:
    """Rewrite calls and variables of Hydra and LazyConfig as they are written here, with notes."""
    calls: list[Origin] = []
    variables: list[Origin] = []

    def rewrite(node: Node, path: KeyPath) -> Node:
        if isinstance(node, Table) and "_target_" in node.items and "type" not in node.items:
            calls.append(node.key_origin("_target_"))
            keys = _rename_keys(node.key_origins)
            return replace(node, items=_rename_keys(node.items), key_origins=keys)
        renamed = _rename_variables(node, path)
        if renamed is not node:
            variables.append(node.origin)
        return renamed

    root = transform(root, rewrite)
    notes: list[Problem] = []
    if calls:
        first = min(calls, key=lambda origin: (origin.line, origin.column))
        times = f", {len(calls)} times in this config" if len(calls) > 1 else ""
        message = f"`_target_` is `type` here{times}"
        notes.append(
            Problem(kind="alias", severity="note", message=message, origin=first, key="_target_")
        )
    if variables:
        message = "`${oc.env:X}` is `${env:X}` here"
        notes.append(Problem(kind="alias", severity="note", message=message, origin=variables[0]))
    return root, notes


def with_older_arguments(root: Table) -> Table:
    """Set the keys that arguments of older targets stand for, where `root` has none."""
    for _, call, target in _find_older_calls(without_names(root, schema.MAKERS)):
        older = older_name(target)
        for argument, key in older.keys.items() if older is not None else ():
            value = call.items.get(argument)
            to = parse_dotted(key)
            if value is not None and get_at(root, to) is None:
                root = _set(root, to, value, call.key_origin(argument))
    return root


def suggest_alias(problem: Problem) -> Problem:
    """Suggest the alias that an unknown key resembles most."""
    above, _, word = problem.key.rpartition(".")
    if problem.kind != "unknown-key":
        return problem
    words = {
        alias.old.rpartition(".")[2]: alias
        for alias in EVERYWHERE
        if alias.old.rpartition(".")[0] == above
    }
    known = re.findall("did you mean `([^`]+)`", problem.fix)
    near = nearest(word, [*known, *words])
    if not near or near[0] in known:
        return problem
    alias = words[near[0]]
    return replace(problem, fix=f"did you mean `{near[0]}`, which is `{alias.new}` here?")


def _rename_keys(by_key: Mapping[str, Value]) -> dict[str, Value]:
    """Return what belongs to the keys of another system's call by the keys here."""
    return {_OTHER_CALLS.get(key, key): value for key, value in by_key.items()}


def _rename_variables(node: Node, _: KeyPath) -> Node:
    if not isinstance(node, Leaf) or not isinstance(node.value, str):
        return node
    renamed = _name_variables(node.value)
    if renamed == node.value:
        return node
    return replace(node, value=renamed, typed=None if node.typed is None else renamed)


def _name_variables(text: str) -> str:
    def own(reference: re.Match[str]) -> str:
        inside = (reference["inside"] or "").strip()
        return f"${{{inside[3:]}}}" if inside.startswith(_HYDRAS_VARIABLE) else reference[0]

    return IN_TEXT.sub(own, text) if _HYDRAS_VARIABLE in text else text


def _names_alchemy(root: Table, calls: list[tuple[KeyPath, Table, str]]) -> bool:
    """Return whether a config names alchemy, whose keys hold in its configs alone."""
    runner = root.items.get("runner")
    named = [target for _, _, target in calls]
    if isinstance(runner, Leaf) and isinstance(runner.value, str):
        named.append(runner.value)
    return any(system_of(target) == "alchemy" for target in named)


def _name_runner(root: Table) -> Table:
    """Return `root` with the runner of an older system as `train` or `test`."""
    runner = root.items.get("runner")
    older = older_name(str(runner.value)) if isinstance(runner, Leaf) else None
    if runner is None or older is None or not older.runner:
        return root
    origin = root.key_origin("runner")
    return set_at(root, ("runner",), Leaf(older.runner, runner.origin), origin)


def _model_takes(root: Table, argument: str) -> bool:
    """Return whether the class of the model, as its file is written, names this argument."""
    model = root.items["model"]
    assert isinstance(model, Table)
    here = [Path.cwd(), Path(root.origin.source).parent]
    definition = read_class(str(model.target), UserModules([*here, *(f / "src" for f in here)]))
    for method in definition.body if definition is not None else ():
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            given = method.args
            return argument in [each.arg for each in (*given.args, *given.kwonlyargs)]
    return False


def _find_older_calls(root: Table) -> list[tuple[KeyPath, Table, str]]:
    """Return the calls of older systems in a config: path, table, target."""
    found: list[tuple[KeyPath, Table, str]] = []
    for path, node in walk(root):
        leaf = node.items.get("type") if isinstance(node, Table) else None
        target = leaf.value if isinstance(leaf, Leaf) else None
        if isinstance(node, Table) and isinstance(target, str) and system_of(target):
            found.append((path, node, target))
    return found


def _keep_larger_length(root: Table) -> Table:
    """Return `root` with `train.until = "last"` where both `train_iter` and `train_epoch` count.

    LiBai trains for the larger of both.
    """
    both = [get_at(root, ("train", name)) for name in ("train_iter", "train_epoch")]
    given = [node for node in both if node is not None and count_of(node) is not None]
    if len(given) < 2 or get_at(root, ("train", "until")) is not None:
        return root
    origin = given[0].origin
    return set_at(root, ("train", "until"), Leaf("last", origin), origin)


def _notes_of(calls: list[tuple[KeyPath, Table, str]]) -> list[Problem]:
    """Return a note for each target of an older system."""
    notes: dict[str, Problem] = {}
    for path, call, target in calls:
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


def _drop_empty(root: Table, path: KeyPath) -> Table:
    """Return `root` without the table at `path` if it is empty."""
    above = get_at(root, path)
    is_empty = bool(path) and isinstance(above, Table) and not above.items
    return delete_at(root, path) if is_empty else root


def _is_under(path: KeyPath, above: KeyPath) -> bool:
    return path[: len(above)] == above


def _note(alias: Alias, origin: Origin, why: str = "") -> Problem:
    message = f"`{alias.old}` is `{alias.new}` here{f', {why}' if why else f': {alias.note}'}"
    return Problem(kind="alias", severity="note", message=message, origin=origin, key=alias.old)
