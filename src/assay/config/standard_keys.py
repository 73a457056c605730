"""Check of the standard sections: keys, types, units, bounds, and what belongs together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date, time

from assay.config.followers import plateaus, target_at
from assay.config.overrides import keys_named
from assay.config.references import holds_secret
from assay.config.translator import translator
from assay.config.tree import (
    KeyPath,
    Leaf,
    List,
    Node,
    Table,
    dotted,
    get_at,
    is_given,
    is_unresolved,
    plain,
    problem_at,
    reference_of,
    set_at,
)
from assay.core import schema
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import did_you_mean, nearest, suggestion
from assay.core.keys import Key, read_section
from assay.core.secrets.names import REDACTED
from assay.core.sections import StandardSections


def key_problems(
    key: Key, node: Node, key_origin: Origin, path: KeyPath, *, is_whole: bool
) -> Iterator[Problem]:
    """Yield the problems of `node` as the value of `key`."""
    if isinstance(node, Leaf) and (
        (node.value is None and not key.required) or is_unresolved(node)
    ):
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
            yield from _names(node, path)
        case "calls":
            yield from _calls(key, node, path, is_whole=is_whole)
        case "table":
            yield from _table(key, node, key_origin, path, is_whole=is_whole)
        case "tables":
            yield from _tables(key, node, path, is_whole=is_whole)
        case "names":
            yield from _names(node, path)
        case _:
            yield from _scalar(key, node, path)


def _calls(key: Key, node: Node, path: KeyPath, *, is_whole: bool) -> Iterator[Problem]:
    if not isinstance(node, List):
        example = f'{key.name} = [{{ type = "module.Name" }}]'
        yield wrong_type(node, path, f"a list of calls, as in {example}")
        return
    for i, item in enumerate(node.items):
        yield from _call(item, item.origin, (*path, i), is_whole=is_whole)


def _tables(key: Key, node: Node, path: KeyPath, *, is_whole: bool) -> Iterator[Problem]:
    if not isinstance(node, Table):
        yield wrong_type(node, path, f"a table of tables, as in [{dotted(path)}.train]")
        return
    for name, item in node.items.items():
        inner = Key(name=name, kind="table", doc=key.doc, keys=key.keys)
        origin = node.key_origin(name)
        yield from key_problems(inner, item, origin, (*path, name), is_whole=is_whole)


def _names(node: Node, path: KeyPath) -> Iterator[Problem]:
    if not isinstance(node, List):
        yield wrong_type(node, path, 'a list of names, as in ["valid"]')
        return
    for i, item in enumerate(node.items):
        if not (isinstance(item, Leaf) and isinstance(item.value, str)):
            yield wrong_type(item, (*path, i), "a string")


def _table(
    key: Key, node: Node, key_origin: Origin, path: KeyPath, *, is_whole: bool
) -> Iterator[Problem]:
    if not isinstance(node, Table):
        example = key.keys[0].name
        yield wrong_type(node, path, f"a table with keys such as `{example}`")
        return
    for name, item in node.items.items():
        inner = key.key(name)
        if inner is not None:
            yield from key_problems(
                inner, item, node.key_origin(name), (*path, name), is_whole=is_whole
            )
            continue
        known = [each.name for each in key.keys]
        yield translator().suggest_alias(
            problem_at(
                "unknown-key",
                f"unknown key `{dotted((*path, name))}`",
                node.key_origin(name),
                (*path, name),
                did_you_mean(name, known)
                or suggestion(keys_named(name))
                or f"it takes: {', '.join(known)}",
            )
        )
    if not is_whole:
        return  # what seems to be missing may stand in a line that could not be read
    for inner in key.keys:
        if inner.required and inner.name not in node.items:
            yield _missing(
                f"`{dotted(path)}` has no `{inner.name}`", key_origin, path, _example(inner)
            )
    if key.one_of and not any(is_given(node, name) for name in key.one_of):
        choices = f"{', '.join(key.one_of[:-1])} or {key.one_of[-1]}"
        yield _missing(f"`{dotted(path)}` has no end", key_origin, path, f"give one of {choices}")


def _missing(message: str, origin: Origin, path: KeyPath, fix: str) -> Problem:
    return problem_at("missing-key", message, origin, path, fix)


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
        yield wrong_type(node, path, 'a table with a `type`, or "@path" of one')
    elif "type" not in node.items and is_whole:
        near = nearest("type", node.items)
        fix = f"did you mean `type` by `{near[0]}`?" if near else 'add type = "module.Name"'
        yield _missing(f"`{dotted(path)}` has no `type`", key_origin, path, fix)


def source_problems(root: Table) -> Iterator[Problem]:
    """Yield splits without a source, where there is no task that has them."""
    data = root.items.get("data")
    if not isinstance(data, Table) or "task" in root.items:
        return
    for name, split in data.items.items():
        is_none = not is_given(data, name)
        if is_none or (isinstance(split, Table) and not is_given(split, "source")):
            path = ("data", name)
            example = 'add source = { type = "module.Name" }'
            yield _missing(
                f"`{dotted(path)}` has no `source`", data.key_origin(name), path, example
            )


def _are_named(node: Node) -> bool:
    """Return True for several calls by name in the place of one: a table of tables."""
    return (
        isinstance(node, Table)
        and bool(node.items)
        and all(isinstance(item, Table) for item in node.items.values())
    )


def _numbers(node: Node, path: KeyPath) -> Iterator[Problem]:
    if isinstance(node, Table) and node.target is None:
        for name, item in node.items.items():
            yield from _numbers(item, (*path, name))
    elif not (
        isinstance(node, Leaf)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    ):
        yield wrong_type(node, path, "a number, or a table of them")


def _texts(node: Node, path: KeyPath) -> Iterator[Problem]:
    if not isinstance(node, Table):
        yield wrong_type(node, path, "a table of strings")
        return
    for name, item in node.items.items():
        if not (isinstance(item, Leaf) and isinstance(item.value, str)):
            yield wrong_type(item, (*path, name), "a string")


def parallel_problems(root: Table) -> Iterator[Problem]:
    """Yield keys of a pipeline where there is none."""
    parallel = root.items.get("parallel")
    if not isinstance(parallel, Table) or "pipeline" in parallel.items:
        return
    for name in ("schedule", "stages", "split"):
        if name in parallel.items:
            path: KeyPath = ("parallel", name)
            what = f"`{name}` is of a pipeline, and there is none"
            fix = "leave it out, or write pipeline = 2 under [parallel]"
            yield problem_at("unused-key", what, parallel.items[name], path, fix)


def evaluation_problems(root: Table) -> Iterator[Problem]:
    """Yield splits that are named and not there, and a best metric that is never measured."""
    data, evaluate, checkpoint = (
        root.items.get(name) for name in ("data", "evaluate", "checkpoint")
    )
    if not isinstance(data, Table):
        return
    there = list(data.items)
    splits = _evaluated_splits(root, there)
    named = evaluate.items.get("splits") if isinstance(evaluate, Table) else None
    if isinstance(named, List):
        for i, leaf in enumerate(named.items):
            if isinstance(leaf, Leaf) and isinstance(leaf.value, str) and leaf.value not in there:
                fix = did_you_mean(leaf.value, there) or f"there is {', '.join(there)}"
                path: KeyPath = ("evaluate", "splits", i)
                yield problem_at(
                    "unknown-split", f"[data] has no split `{leaf.value}`", leaf, path, fix
                )
            elif isinstance(leaf, Leaf) and leaf.value == "train":
                yield problem_at(
                    "unknown-split",
                    "`train/loss` is the loss of the steps, so train cannot be evaluated by that"
                    " name",
                    leaf,
                    ("evaluate", "splits", i),
                    'name it twice, as in [data.train_again] with source = "@data.train.source"',
                )
    if _scalar_at(evaluate, "enabled") is False:
        return  # switched off for once: the rest of the section may stay as it is
    measured = _measured_splits(root, splits)
    names = _measured_names(root)
    if _scalar_at(checkpoint, "enabled") is not False:
        what = "nothing can be the best"
        yield from _never_measured(root, ("checkpoint", "best", "metric"), measured, names, what)
    for path in _plugins(root):
        if target_at(root, path) in _EARLY_STOP:
            yield from _never_measured(
                root, (*path, "metric"), measured, names, "it never stops the run"
            )
    for path in plateaus(root):
        what = "the learning rate never changes"
        yield from _never_measured(root, path, measured, names, what, unless_given="valid/loss")


def metric_problems(root: Table, metric: str, origin: Origin) -> list[Problem]:
    """Return why no run of a config has a metric that somebody ranks its runs by."""
    names = _measured_names(root)
    data = root.items.get("data")
    if names is None or metric.startswith("train/") or not isinstance(data, Table):
        return []  # a process of the user's own may log whatever it likes
    path: KeyPath = ("checkpoint", "best", "metric")
    asked = set_at(root, path, Leaf(metric, origin))
    if _scalar_at(root.items.get("evaluate"), "enabled") is False:
        splits: list[str] = []
    else:
        splits = _measured_splits(root, _evaluated_splits(root, list(data.items)))
    return list(_never_measured(asked, path, splits, names, "it can rank no run"))


def _evaluated_splits(root: Table, there: list[str]) -> list[str]:
    """Return the splits that `[evaluate]` names, else those that are evaluated by their names."""
    named = get_at(root, ("evaluate", "splits"))
    if not isinstance(named, List):
        return [name for name in there if schema.is_evaluated(name)]
    leaves = [leaf for leaf in named.items if isinstance(leaf, Leaf)]
    return [leaf.value for leaf in leaves if isinstance(leaf.value, str)]


def _measured_splits(root: Table, splits: list[str]) -> list[str]:
    """Return the splits of which a run has metrics, of those that it evaluates."""
    if _may_evaluate(root):
        data = root.items.get("data")
        return list(data.items) if isinstance(data, Table) else []
    return [] if _scalar_at(root.items.get("evaluate"), "every") == "never" else splits


def _never_measured(
    root: Table,
    path: KeyPath,
    splits: list[str],
    names: list[str] | None,
    what: str,
    *,
    unless_given: str = "",
) -> Iterator[Problem]:
    """Yield a metric that nothing measures.

    `names` are the metrics of each split, None where they are unknown. A metric that is not given
    is `unless_given`, told at the table that lacks it.
    """
    leaf, owner = get_at(root, path), get_at(root, path[:-1])
    if leaf is None and owner is not None and unless_given:
        leaf, path = Leaf(unless_given, origin=owner.origin), path[:-1]
    if not isinstance(leaf, Leaf) or not isinstance(leaf.value, str) or is_unresolved(leaf):
        return
    split, _, rest = leaf.value.partition("/")
    message = f"`{leaf.value}` is never measured, so {what}"
    if split not in splits:
        near = nearest(split, splits)
        fix = (
            f"splits that are evaluated: {', '.join(splits)}"
            if splits
            else "give [data.valid], or another split"
        )
        yield problem_at(
            "never-measured",
            message,
            leaf,
            path,
            f"did you mean `{near[0]}/{rest}`?" if near else fix,
        )
    elif names is not None and rest.partition("/")[0] not in names:
        near = nearest(rest, names)
        known = ", ".join(f"{split}/{name}" for name in names)
        fix = f"did you mean `{split}/{near[0]}`?" if near else f"measured are {known}"
        yield problem_at("never-measured", message, leaf, path, fix)


_SUPERVISED = ("assay.engine.Supervised", "assay.engine.loop.process.Supervised")
_PIPELINES = ("assay.engine.Pipelines", "assay.engine.callbacks.pipelines.Pipelines")
_EARLY_STOP = ("assay.engine.EarlyStop", "assay.engine.callbacks.early_stop.EarlyStop")


def _measured_names(root: Table) -> list[str] | None:
    """Return the metrics of each split, None where user code may measure more."""
    metrics = get_at(root, ("process", "metrics"))
    is_open = "task" in root.items or get_at(root, ("evaluate", "pipes")) is not None
    is_open = is_open or any(
        not target_at(root, path).startswith("assay.") for path in _plugins(root)
    )
    if is_open or target_at(root, ("process",)) not in _SUPERVISED:
        return None
    if metrics is None:
        return ["loss"]
    return (
        ["loss", *metrics.items] if isinstance(metrics, Table) and metrics.target is None else None
    )


def _may_evaluate(root: Table) -> bool:
    """Return whether a plugin may evaluate any split: a pipeline, or one of the user."""
    for path in _plugins(root):
        target = target_at(root, path)
        is_own = target.startswith("assay.") or translator().older_name(target) is not None
        if target in _PIPELINES or (target and not is_own):
            return True
    return False


def _plugins(root: Table) -> list[KeyPath]:
    """Return the places of the plugins."""
    node = root.items.get("plugins")
    names = (
        range(len(node.items))
        if isinstance(node, List)
        else node.items
        if isinstance(node, Table)
        else ()
    )
    return [("plugins", name) for name in names]


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
            yield problem_at(
                "wrong-value", f"`{dotted(path)}` cannot be {show(node)}", node, path, fix
            )
        case "int", str() if value in key.choices:
            return
        case "int", int() if not isinstance(value, bool):
            yield from _bounds(key, value, node, path)
        case "float", int() | float() if not isinstance(value, bool):
            yield from _bounds(key, value, node, path)
        case "period" | "steps" | "duration", str():
            try:
                _PARSERS[key.kind](value)
            except ValueError:
                yield _unit(key, node, path)
        case "period" | "steps" | "duration", int() | float() if not isinstance(value, bool):
            yield _unit(key, node, path)
        case _:
            yield wrong_type(node, path, _describe(key))


_PARSERS: dict[str, Callable[[str], object]] = {
    "period": schema.parse_period,
    "steps": schema.parse_steps,
    "duration": schema.parse_duration_s,
}
_FORMS = {
    "period": ("period", schema.PERIOD_FORMS),
    "steps": ("number of steps", schema.STEPS_FORMS),
    "duration": ("duration", schema.DURATION_FORMS),
}


def _is_object(value: str) -> bool:
    return value.startswith("@") and not value.startswith("@@")


def _unit(key: Key, node: Node, path: KeyPath) -> Problem:
    what, forms = _FORMS[key.kind]
    return problem_at(
        "wrong-unit",
        f"`{dotted(path)}` is no {what}: {show(node)}",
        node,
        path,
        f"write one {forms}",
    )


def _bounds(key: Key, value: int | float, node: Node, path: KeyPath) -> Iterator[Problem]:
    # `not (a >= b)` also refuses nan.
    if key.minimum is not None and not value >= key.minimum:
        limit = f"at least {key.minimum:g}"
    elif key.above is not None and not value > key.above:
        limit = f"more than {key.above:g}"
    elif key.maximum is not None and not value <= key.maximum:
        limit = f"at most {key.maximum}"
    elif isinstance(value, int) and not value <= schema.MAX_INT:
        limit = f"at most {schema.MAX_INT}"
    else:
        return
    yield problem_at(
        "wrong-value", f"`{dotted(path)}` must be {limit}, not {show(node)}", node, path
    )


def _describe(key: Key) -> str:
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
        case "period" | "steps":
            return "a {} {}".format(*_FORMS[key.kind])
        case "duration":
            return f"a duration {schema.DURATION_FORMS}"
        case _:
            return "a string"


def _or(choices: tuple[str, ...]) -> str:
    quoted = [f'"{choice}"' for choice in choices]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]


def wrong_type(node: Node, path: KeyPath, wanted: str) -> Problem:
    """Return the problem of a value of the wrong type; a quoted number has a hint of its own."""
    fix = ""
    if (
        isinstance(node, Leaf)
        and isinstance(node.value, str)
        and ("number" in wanted or wanted.startswith("true"))
    ):
        bare = node.value.strip()
        if re.fullmatch(r"[+-]?\d[\d_]*(\.\d+)?([eE][+-]?\d+)?|true|false", bare):
            # YAML reads a number with `_` in it as text, TOML one that begins with 0 not at all.
            number = re.sub(r"^([+-]?)0+(?=\d)", r"\1", bare.replace("_", ""))
            fix = f"write it without quotes: {number}"
    return problem_at(
        "wrong-type", f"`{dotted(path)}` must be {wanted}, not {show(node)}", node, path, fix
    )


def show(node: Node) -> str:
    """Return a value as its owner would write it, in few characters; a secret stays one."""
    if holds_secret(node):
        return REDACTED
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
            return (
                f"the date {value.isoformat()}"
                if isinstance(value, date)
                else f"the time {value.isoformat()}"
            )
        case Leaf(None):
            return "none"
        case Leaf(value):
            text = str(value)
            return text if len(text) <= 40 else f"{text[:37]}..."


def sections_of(root: Table) -> StandardSections:
    """Return the standard sections of a config that has passed the check as one typed object."""
    return read_section(StandardSections, plain(root))
