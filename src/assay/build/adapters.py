"""Does a value of the config fit a parameter's type, and what does it become: pydantic, asked as strictly as JSON is.

A list becomes the tuple, a string the Path or Enum that the hint asks for; `"3"` is no int and true no number. A hint
that pydantic cannot handle is not checked. pydantic is imported by the first call, not by this module.
"""

from __future__ import annotations

import json
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.build.parameters import UNKNOWN, Parameter
from assay.config.references import is_unresolved, literal
from assay.config.tree import NONE, Leaf, List, Node, Table, get_at
from assay.core.diagnostics import Origin

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

_adapters: weakref.WeakKeyDictionary[Any, dict[str, TypeAdapter[Any] | None]] = weakref.WeakKeyDictionary()


_OBJECT = "Input should be an object (a call, or a reference to one)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """One part of a value that does not fit: where it is written, what it is, what was wanted."""

    origin: Origin
    written: str
    wanted: str


def is_data(node: Node) -> bool:
    """Whether a value is complete as it stands: no call and no reference of any kind in it."""
    match node:
        case Leaf():
            return not is_reference(node) and not is_unresolved(node)
        case List():
            return all(map(is_data, node.items))
        case Table():
            return node.target is None and all(map(is_data, node.items.values()))


def is_reference(node: Node) -> bool:
    """Whether a scalar stands for an object: "@model", but neither "@none" nor "@@x", which is the text "@x"."""
    text = node.value if isinstance(node, Leaf) else None
    return isinstance(text, str) and text.startswith("@") and not text.startswith("@@") and text != NONE


def scalar(leaf: Leaf) -> Any:
    """What a scalar that stands for nothing else means: "@none" is None, and "@@x" the text "@x"."""
    return None if leaf.value == NONE else literal(leaf.value)


def data(node: Node) -> Any:
    """A value without calls and references as the user's code gets it."""
    match node:
        case Leaf():
            return scalar(node)
        case List():
            return [data(item) for item in node.items]
        case Table():
            return {key: data(item) for key, item in node.items.items()}


def misfits(target: Callable[..., Any], parameter: Parameter, node: Node) -> list[Misfit]:
    """What is wrong with a value given to `parameter`; nothing when it fits or cannot be judged."""
    return converted(target, parameter, node)[1]


def converted(target: Callable[..., Any], parameter: Parameter, node: Node) -> tuple[Any, list[Misfit]]:
    """The value as the parameter's type wants it, and what does not fit."""
    value = data(node)
    adapter = _adapter(target, parameter)
    if adapter is None:
        return value, []
    from pydantic import ValidationError

    try:
        better = adapter.validate_json(json.dumps(value, default=_iso), strict=True)
    except ValidationError as error:
        return value, _read(error, node)
    except Exception:  # types may bring their own validators, which raise what they like: then there is no judgement
        return value, []
    # For an Iterable pydantic gives an iterator that is empty after one pass.
    return (value if isinstance(better, Iterator) else better), []


def forget() -> None:
    """Let go of every adapter, and so of the classes it knows."""
    _adapters.clear()


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

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the user's models, said again each time they are used
        # A model or dataclass has a config of its own and refuses another.
        for config in (ConfigDict(arbitrary_types_allowed=True), None):
            try:
                return TypeAdapter(hint, config=config)
            except Exception:  # a hint pydantic knows nothing of is not checked; it may fail in any way
                continue
    return None


def _read(error: ValidationError, node: Node) -> list[Misfit]:
    """One misfit for each wrong part; the members of a union that all refuse it are joined by "or"."""
    wanted: dict[tuple[str | int, ...], list[str]] = {}
    for one in error.errors(include_url=False, include_context=False, include_input=False):
        needs_object = one["type"] == "needs_python_object"
        wanted.setdefault(_inside(node, one["loc"]), []).append(_OBJECT if needs_object else one["msg"])
    # A union refuses the whole and its parts: where a part is named, that says more only if every member went so far.
    if () in wanted and len(wanted) > 1:
        wanted = {(): [message for messages in wanted.values() for message in messages]}
    found = []
    for path, messages in wanted.items():
        part = get_at(node, path) or node
        found.append(Misfit(origin=part.origin, written=_short(part), wanted=_joined(messages)))
    return found


def _inside(node: Node, loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The part of `loc` that is a path in the value: pydantic mixes in the names of union members."""
    path: tuple[str | int, ...] = ()
    for step in loc:
        if get_at(node, (*path, step)) is not None:
            path = (*path, step)
    return path


def _joined(messages: list[str]) -> str:
    texts = list(dict.fromkeys(messages))
    shorter = [text.removeprefix("Input should be ") for text in texts]
    if len(texts) > 1 and all(text.startswith("Input should be ") for text in texts):
        return f"should be {' or '.join(shorter)}"
    first = texts[0].removeprefix("Input ")
    return "; ".join([first[:1].lower() + first[1:], *texts[1:]])


def _short(node: Node) -> str:
    text = json.dumps(data(node), default=_iso, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _iso(value: Any) -> str:
    return str(value.isoformat())
