"""Check and conversion of config values against type hints, by pydantic, as strictly as JSON.

A list becomes the tuple, a string the Path or Enum that the hint asks for; `"3"` is no int and true
no number. Values of the command line have no quotes: there the type decides whether `123` is text
and `0.9,0.99` two numbers. A hint that pydantic cannot handle is not checked. pydantic is imported
by the first call, not by this module.
"""

from __future__ import annotations

import functools
import inspect
import json
import operator
import re
import sys
import types
import typing
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from assay.build.parameters import UNKNOWN, Parameter, injectable
from assay.config.isolation import while_open
from assay.config.references import holds_secret
from assay.config.sources.literals import MalformedError, items_of, value_of
from assay.config.tree import (
    NONE,
    KeyPath,
    Leaf,
    List,
    Node,
    Table,
    as_text_leaf,
    from_plain,
    get_at,
    literal,
    plain,
    set_at,
    transform,
)
from assay.core.diagnostics import Origin
from assay.core.errors import did_you_mean
from assay.core.schema import DURATION_FORMS, parse_duration_s
from assay.core.secrets.names import REDACTED

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

_adapters: weakref.WeakKeyDictionary[Any, dict[str, TypeAdapter[Any] | None]] = (
    weakref.WeakKeyDictionary()
)

_EXAMPLE = "a number is written as 0.01, 1e-2 or 10"
_EXAMPLE_OF_TENSOR = "a tensor is written as [0.05, 0.95], or with rows of one length"
_TENSOR = "be a list of numbers, or an object"
_OBJECT = "be an object (a call, or a reference to one)"
_PHRASES = {
    "int_type": "be a whole number",
    "int_parsing": "be a whole number",
    "int_from_float": "be a whole number",
    "float_type": "be a number",
    "float_parsing": "be a number",
    "string_type": "be a string",
    "bool_type": "be true or false",
    "list_type": "be a list",
    "tuple_type": "be a list",
    "set_type": "be a list",
    "frozen_set_type": "be a list",
    "iterable_type": "be a list",
    "dict_type": "be a table",
    "mapping_type": "be a table",
    "dataclass_type": "be a table",
    "model_type": "be a table",
    "none_required": "be none",
    "bytes_type": "be a string",
    "complex_type": "be a complex number",
    "complex_str_parsing": "be a complex number",
    "time_delta_type": f"be a duration {DURATION_FORMS}",
    "time_delta_parsing": f"be a duration {DURATION_FORMS}",
    "callable_type": _OBJECT,
    "needs_python_object": _OBJECT,
    "is_instance_of": _OBJECT,
    "is_subclass_of": _OBJECT,
}
"""What pydantic finds wrong, in the words of the shape stage."""


_KINDS_OF_DEFAULTS = (bool, int, float, str, list, tuple)
_SWITCHES = {"yes": True, "on": True, "no": False, "off": False}
"""Words for true and false in YAML 1.1, which are texts here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """Mistake inside a value: its place, the message ("must be ...") and the fix.

    `inside` is its path in the value.
    """

    origin: Origin
    said: str
    fix: str = ""
    inside: KeyPath = ()


def scalar(leaf: Leaf) -> Any:
    """Return the value of a scalar: None for "@none", the text "@x" for "@@x"."""
    return None if leaf.value == NONE else literal(leaf.value)


def data(root: Node) -> Any:
    """Return a value without calls and references as the user's code gets it."""
    return plain(
        transform(
            root,
            lambda node, _: replace(node, value=scalar(node)) if isinstance(node, Leaf) else node,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Value checked against the type of a parameter.

    `node` is the value in its best reading (another one than given only if it was typed on the
    command line), `value` the argument for the call. `why_not` says why it was not checked, "" if
    it was.
    """

    node: Node
    value: Any
    misfits: tuple[Misfit, ...] = ()
    why_not: str = ""


def judge(target: Callable[..., Any], parameter: Parameter, node: Node) -> Judged:
    """Check `node` as the value of `parameter`; return its conversion and every mistake."""
    parameter = _with_type_of_default(parameter, node)
    first = _judge(target, parameter, node)
    if not first.misfits:
        return _ambiguous(target, parameter, node) or first
    fitting = _fitting(target, parameter, node, first.misfits)
    if fitting is not None:
        return fitting
    if len(first.misfits) > 1 or first.misfits[0].fix:
        return first
    (misfit,) = first.misfits
    fix = _EXAMPLE if "a number" in misfit.said else ""
    fix = _EXAMPLE_OF_TENSOR if _TENSOR in misfit.said else fix
    if not parameter.written:
        fix = f"annotate `{parameter.name}` if it takes other types than its default's"
    for say, part in _mend(get_at(node, misfit.inside) or node):
        mended = _with_part(node, misfit.inside, part)
        if not _judge(target, parameter, mended).misfits:
            fix = say
            break
    return replace(first, misfits=(replace(misfit, fix=fix),))


def _ambiguous(target: Callable[..., Any], parameter: Parameter, node: Node) -> Judged | None:
    """Return the refusal of a typed `a,b` that fits both as a text and as a list; else None."""
    typed = node.typed if isinstance(node, Leaf) and isinstance(node.value, str) else None
    items = items_of(typed, node.origin) if typed is not None else None
    if typed is None or items is None or parameter.hint in (UNKNOWN, Any, object):
        return None
    texts = [as_text_leaf(item) if isinstance(item, Leaf) else item for item in items]
    readings = [List(tuple(row), node.origin) for row in (items, texts)]
    if all(_judge(target, parameter, reading).misfits for reading in readings):
        return None
    said = "must be a text or a list, and it may be either"
    fix = f"write [{typed}] for a list, or in quotes for a text: '{json.dumps(typed)}'"
    misfit = Misfit(origin=node.origin, said=said, fix=fix)
    return Judged(node=node, value=typed, misfits=(misfit,))


def _with_type_of_default(parameter: Parameter, node: Node) -> Parameter:
    """Return `parameter` with the type of its default as hint, if it has no annotation.

    A default says less than an annotation: it is a hint for scalars alone, None fits, and so does
    any number in the place of another.
    """
    kind = type(parameter.default)
    value = type(scalar(node)) if isinstance(node, Leaf) else None
    is_checked = value not in (None, type(None)) and kind in _KINDS_OF_DEFAULTS
    if parameter.written or not is_checked:
        return parameter
    if (kind is int and value is float) or (kind in (list, tuple) and value is not str):
        return parameter
    return replace(parameter, hint=kind)


def _with_part(node: Node, inside: KeyPath, part: Node) -> Node:
    whole = set_at(Table({"": node}, node.origin), ("", *inside), part)
    return whole.items[""]


def _mend(node: Node) -> Iterator[tuple[str, Node]]:
    """Yield likely corrections of a value that does not fit: the fix in words, the new value."""
    if holds_secret(node):  # which one words would repeat
        return
    match node:
        case Leaf(str() as text):
            try:
                other = value_of(text)
            except MalformedError:
                return
            if not isinstance(other, str):
                bare = text.replace("_", "") if isinstance(other, int | float) else text
                yield f"write it without quotes: {bare}", from_plain(other, node.origin)
            elif re.fullmatch(r"[+-]?0\d{1,18}", text, re.ASCII):
                yield f"write {int(text)}", Leaf(int(text), node.origin)
            elif text.lower() in _SWITCHES:
                is_on = _SWITCHES[text.lower()]
                yield f"write {str(is_on).lower()}", Leaf(is_on, node.origin)
        case Leaf(bool() as value):
            yield f'write it in quotes: "{str(value).lower()}"', Leaf(str(value), node.origin)
        case Leaf(0 | 1 as value):
            yield f"write {str(bool(value)).lower()}", Leaf(bool(value), node.origin)
            yield f'write it in quotes: "{value}"', Leaf(str(value), node.origin)
        case Leaf(float() as value) if value.is_integer():
            yield f"write {int(value)}", Leaf(int(value), node.origin)
        case Leaf(int() | float() as value):
            yield f'write it in quotes: "{value}"', Leaf(str(value), node.origin)
        case List((only,)) if data(only) is not None:
            yield f"write {_short(only)}, without brackets", only
    if not isinstance(node, List):
        yield f"write a list: [{_short(node)}]", List((node,), node.origin)


def _fitting(
    target: Callable[..., Any], parameter: Parameter, node: Node, misfits: Iterable[Misfit]
) -> Judged | None:
    """Return the first other reading of `node` that fits; None if none does."""
    for reading in _other_readings(node, misfits):
        judged = _judge(target, parameter, reading)
        if not judged.misfits:
            return judged
        if isinstance(reading, List) and isinstance(node, Leaf):
            return _fitting(target, parameter, reading, judged.misfits)
    return None


def _other_readings(node: Node, misfits: Iterable[Misfit]) -> Iterator[Node]:
    """Yield other readings of a value that was typed: its scalars as texts, then as a list.

    Of `[1, x]` the scalars that do not fit are texts, or all of them; `a,b` is a list as well.
    """
    texts = node
    for misfit in misfits:
        part = get_at(node, misfit.inside)
        if isinstance(part, Leaf):
            texts = _with_part(texts, misfit.inside, as_text_leaf(part))
    yield texts
    yield transform(node, lambda part, _: as_text_leaf(part) if isinstance(part, Leaf) else part)
    if isinstance(node, Leaf) and node.typed is not None:
        items = items_of(node.typed, node.origin)
        if items is not None:
            yield List(tuple(items), node.origin)


def _judge(target: Callable[..., Any], parameter: Parameter, node: Node) -> Judged:
    value = data(node)
    adapter = _adapter(target, parameter)
    if adapter is None:
        return Judged(node=node, value=value, why_not=_why_not(parameter))
    from pydantic import ValidationError

    try:
        text = json.dumps(value, default=_iso)
        better = adapter.validate_json(text, strict=True, **_no_extra(parameter.hint))
    except ValidationError as error:
        return Judged(node=node, value=value, misfits=tuple(_misfits_of(error, node)))
    # types may bring their own validators, which raise what they like: then no judgement
    except Exception as error:
        return Judged(node=node, value=value, why_not=f"its type raised {type(error).__name__}")
    # For an Iterable pydantic gives an iterator that is empty after one pass.
    return Judged(node=node, value=value if isinstance(better, Iterator) else better)


def _no_extra(hint: Any) -> dict[str, Any]:
    """Refuse keys that a dataclass has no field for, unless it allows any."""
    own = getattr(injectable(hint), "model_config", None) or {}
    return {"extra": "forbid"} if _knows_extra() and own.get("extra") != "allow" else {}


@functools.cache
def _knows_extra() -> bool:
    from pydantic import TypeAdapter

    return "extra" in inspect.signature(TypeAdapter.validate_json).parameters  # since 2.12


def _why_not(parameter: Parameter) -> str:
    if not parameter.written or parameter.hint is Any:
        return ""
    if parameter.hint is UNKNOWN:
        return f"its type `{parameter.written}` cannot be resolved"
    return f"its type `{parameter.written}` cannot be checked"


# What is known of the user's classes would keep them, and all they hold.
while_open(lambda _: _adapters.clear)


def _adapter(target: Callable[..., Any], parameter: Parameter) -> TypeAdapter[Any] | None:
    if parameter.hint is UNKNOWN or parameter.hint is Any:
        return None
    try:
        known = _adapters.setdefault(target, {})
    except TypeError:  # no weak reference to it, or no hash
        known = {}
    if parameter.name not in known:
        known[parameter.name] = _new_adapter(parameter.hint)
    return known[parameter.name]


def _new_adapter(hint: Any) -> TypeAdapter[Any] | None:
    from pydantic import ConfigDict, TypeAdapter

    hint = _with_house_forms(hint)
    with warnings.catch_warnings():
        # These warnings are about the user's models, and come each time they are used.
        warnings.simplefilter("ignore")
        # A model or dataclass has a config of its own and refuses another.
        for config in (ConfigDict(arbitrary_types_allowed=True), None):
            try:
                return TypeAdapter(hint, config=config)
            except Exception:  # a hint that pydantic does not know: any error, and no check
                continue
    return None


def _with_house_forms(hint: Any) -> Any:
    """Return a hint whose types take what they are written as in a config.

    That is "90 s" for a timedelta, as for the durations of standard sections; and for a
    `torch.Tensor` numbers and lists of them, as torch.tensor takes. A hint that names a tensor has
    imported torch; this does not.
    """
    torch = sys.modules.get("torch")
    if torch is not None and hint is torch.Tensor:
        return typing.Annotated[Any, _plain_validator()]
    if hint is timedelta:
        return typing.Annotated[timedelta, _duration_validator()]
    kind, members = typing.get_origin(hint), typing.get_args(hint)
    if kind is None or kind is typing.Literal or kind is Callable:
        return hint
    if kind is typing.Annotated:
        return typing.Annotated[(_with_house_forms(members[0]), *members[1:])]
    changed = tuple(map(_with_house_forms, members))
    if changed == members:
        return hint
    if kind in (typing.Union, types.UnionType):
        # Where a number is taken beside a tensor, as a learning rate, it stays a number.
        others = {*members}.intersection(changed) - {types.NoneType}
        return hint if others else functools.reduce(operator.or_, changed)
    return kind[changed]


@functools.cache
def _plain_validator() -> Any:
    from pydantic import PlainValidator

    return PlainValidator(_tensor)


@functools.cache
def _duration_validator() -> Any:
    from pydantic import BeforeValidator

    return BeforeValidator(_duration)


def _duration(value: Any) -> Any:
    """Return the timedelta that a text writes; another value as it is, for pydantic to refuse."""
    from pydantic import TypeAdapter

    if not isinstance(value, str):
        return value
    try:
        return timedelta(seconds=parse_duration_s(value))
    except ValueError:
        is_iso = "P" in value or ":" in value  # a number alone has no unit
    try:
        return TypeAdapter(timedelta).validate_python(value) if is_iso else value
    except ValueError:
        return value


def _tensor(value: Any) -> Any:
    try:
        return sys.modules["torch"].tensor(value)
    # TypeError: a text; ValueError: rows of two lengths; RuntimeError: a number too large
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(_TENSOR) from error


def _misfits_of(error: ValidationError, node: Node) -> list[Misfit]:
    """Return one mistake for each wrong part; alternatives of a union are joined by "or"."""
    wanted: dict[tuple[str | int, ...], list[str]] = {}
    choices: dict[tuple[str | int, ...], list[str]] = {}
    found: list[Misfit] = []
    for one in _whole_tuples(error.errors(include_url=False, include_input=False)):
        path = _inside(node, one["loc"])
        kind = one["type"]
        context = one.get("ctx", {})
        if kind in ("extra_forbidden", "unexpected_keyword_argument"):
            found.append(_extra(node, path))
            continue
        if kind in ("literal_error", "enum"):
            expected = re.findall(r"'([^']*)'", context.get("expected", ""))
            choices.setdefault(path, []).extend(expected)
        wanted.setdefault(path, []).append(_phrase(one))
    # A union refuses the whole and its parts: where a part is named, that says more only if every
    # member went so far.
    if () in wanted and len(wanted) > 1:
        wanted = {(): [phrase for phrases in wanted.values() for phrase in phrases]}
    for path, phrases in wanted.items():
        part = get_at(node, path) or node
        fix = ""
        if isinstance(part, Leaf) and isinstance(part.value, str):
            fix = did_you_mean(str(scalar(part)), choices.get(path, ()))
        said = f"must {_join(phrases)}, not {_short(part)}"
        found.append(Misfit(origin=part.origin, said=said, fix=fix, inside=path))
    return found


def _phrase(error: Mapping[str, Any]) -> str:
    """Return what a value must do, in words that follow "must"."""
    kind = error["type"]
    context = error.get("ctx", {})
    match kind:
        case "literal_error" | "enum":
            return f"be {context.get('expected', '')}".replace("'", '"')
        case "missing":
            key = error["loc"][-1]
            if isinstance(key, int):
                return f"have {key} item{'s' * (key != 1)}"
            return f"have a `{key}`"
        case "too_long" if context.get("max_length") is not None:
            return f"have at most {context['max_length']} items"
    if kind in _PHRASES:
        return _PHRASES[kind]
    message: str = error["msg"].removeprefix("Value error, ")
    return message.replace("Input should be", "be").replace("Input should", "")


def _whole_tuples(errors: Iterable[Any]) -> Iterator[Any]:
    """Keep only the last of the items that a tuple lacks, which tells the length it must have."""
    lacking: dict[Any, Any] = {}
    for one in errors:
        if one["type"] == "missing" and isinstance(one["loc"][-1], int):
            index = one["loc"][-1] + 1
            lacking[one["loc"][:-1]] = {**one, "loc": (*one["loc"][:-1], index)}
        else:
            yield one
    yield from lacking.values()


def _extra(node: Node, path: tuple[str | int, ...]) -> Misfit:
    parent = get_at(node, path[:-1])
    key = path[-1] if path else ""
    if not isinstance(parent, Table) or not isinstance(key, str) or key not in parent.items:
        return Misfit(origin=node.origin, said=f"must not have a key `{key}`")
    return Misfit(
        origin=parent.key_origin(key), said=f"must not have a key `{key}`", inside=path[:-1]
    )


def _inside(node: Node, loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return the part of `loc` that is a path in the value: pydantic mixes in union members."""
    path: tuple[str | int, ...] = ()
    for step in loc:
        if get_at(node, (*path, step)) is not None:
            path = (*path, step)
    return path


def _join(phrases: list[str]) -> str:
    """Join phrases: `be a number` and `be none` become `be a number or none`."""
    phrases = list(dict.fromkeys(phrases))
    if all(phrase.startswith("be ") for phrase in phrases):
        return f"be {' or '.join(phrase.removeprefix('be ') for phrase in phrases)}"
    return " or ".join(phrases)


def _short(node: Node) -> str:
    if holds_secret(node):
        return REDACTED
    text = json.dumps(data(node), default=_iso, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _iso(value: Any) -> str:
    return str(value.isoformat())
