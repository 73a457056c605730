"""Values given to a run as plain data: numbers, text, lists and tables."""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, time
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NoReturn

from assay.core.errors import AssayError, InputError, RecordError
from assay.core.facts import check_metric_name

MAX_DEPTH = 50
MAX_ITEMS = 10_000
MAX_TEXT = 1_000_000

MAX_I64 = (1 << 63) - 1

_PLAIN_FIX = "give a number, text, a list or a table of them"


Report = Callable[[AssayError], object]
"""Function that is given the error of a value that is left out."""


def recordable(value: Any, name: str, *, dates: bool = False, report: Report | None = None) -> Any:
    """Return `value` as plain data; raise InputError with `name` for what is none.

    With `report` such an item of a table is left out, and its error reported.

    Scalars of numpy and torch are numbers, small arrays lists, sets sorted lists. Dataclasses,
    named tuples, namespaces and whatever has keys are tables. Paths, enums, dtypes, devices,
    classes and functions are text; so are dates, unless `dates` says that there is a word for them.

    >>> recordable({"day": date(2024, 1, 31), "sizes": {3, 1}, 2: 1j}, "config")
    {'day': '2024-01-31', 'sizes': [1, 3], '2': '1j'}
    """
    return _ValueReader(name, dates, report).read(value, "", 0)


def numbers_of(values: Any, report: Report | None = None) -> dict[str, float]:
    """Return the numbers of a log call without graphs; RecordError names what is no number.

    With `report` that is left out instead, and its error reported.
    """
    if not isinstance(values, Mapping):
        fix = 'log({"loss": 0.3}, step=1)'
        raise RecordError(f"`log` takes numbers by name, not {type(values).__name__}.", fix=fix)
    numbers = {}
    for name, value in values.items():
        try:
            if not isinstance(name, str):
                raise RecordError(f"A metric's name must be text, not {name_value(name)}.")
            check_metric_name(name)
            if isinstance(value, str | bytes | bytearray):
                raise TypeError("text is no number")
            # Arrays and tensors of one element: `item` does not warn about gradients.
            item = getattr(value, "item", None)
            numbers[name] = float(item() if callable(item) else value)
        except Exception as error:  # a foreign `__float__` may raise anything
            refused = error if isinstance(error, RecordError) else _no_number(name, value)
            if report is None:
                raise refused from error
            report(refused)
    return numbers


def _no_number(name: str, value: Any) -> RecordError:
    fix = "log a number; run.value(name, value) keeps a result, run.text(name, text) a text"
    return RecordError(f"The value of {name!r} is no number: {name_value(value)}.", fix=fix)


NO_STEP: Any = None
"""Default of a step, which `whole_step` refuses in words: Python would name an inner method."""


def whole_step(step: Any) -> int:
    """Return a step as an integer of 64 bits; raise RecordError for anything else."""
    try:
        whole = operator.index(step)
    except (TypeError, ValueError):
        fix = "the second argument of `log` counts the steps: run.log(values, 1)"
        if step is NO_STEP:
            raise RecordError("`log` needs the step of the values.", fix=fix) from None
        raise RecordError(
            f"The step must be a whole number, not {name_value(step)}.", fix=fix
        ) from None
    if not -MAX_I64 - 1 <= whole <= MAX_I64:
        raise RecordError(f"The step {name_value(whole)} does not fit 64 bits.")
    return whole


def check_text(text: object, what: str) -> None:
    """Raise InputError for `what` that is no text."""
    if not isinstance(text, str):
        raise InputError(f"{what.capitalize()} is text, not {name_value(text)}.")


def name_value(value: object) -> str:
    """Return a few words that tell which value is meant."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"a {type(value).__name__} of shape {tuple(shape)}"
    try:
        text = repr(value)
    except Exception:  # a foreign `__repr__` may raise anything: its type is told instead
        return f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def to_list(array: Any) -> Any:
    """Return an array or tensor as a list, one of no axis as a number; else InputError."""
    try:
        array = array.detach() if hasattr(array, "detach") else array
        if getattr(getattr(array, "dtype", None), "kind", "") in ("M", "m"):
            array = array.astype(str)  # moments of numpy; as a list they may be bare nanoseconds
        if "strided" not in str(getattr(array, "layout", "strided")):
            array = array.to_dense()
        return array.tolist()
    except (
        Exception
    ) as error:  # a tensor without numbers (meta), or a stranger with a `tolist` of another kind
        raise InputError(
            f"The values of {name_value(array)} cannot be had: {_first_line(error)}."
        ) from error


def text_of(value: Any) -> str:
    """Return `str(value)`; raise InputError when that cannot be had."""
    try:
        return str(value)
    except Exception as error:  # a foreign `__str__` may raise anything
        raise InputError(
            f"{name_value(value).capitalize()} cannot be written as text: {_first_line(error)}."
        ) from error


def encode_text(text: str) -> bytes:
    """Return text as UTF-8, with lone surrogates of bytes as bytes and others spelled out."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".")


class _TooMuchError(InputError):
    """A value has too many items, or too many levels."""


class _ValueReader:
    """Counts items and levels on the way down, so that a value that holds itself ends."""

    def __init__(self, name: str, dates: bool, report: Report | None) -> None:
        self.name = name
        self.report = report
        self.dates = dates
        self.items = 0

    def read(self, value: Any, inside: str, depth: int) -> Any:
        """Return a value as plain data; InputError for one that has none, or fails when asked."""
        self.count(depth)
        try:
            return self._read(value, inside, depth)
        except InputError:
            raise
        except Exception as error:  # the methods of a foreign value may raise anything
            what = f"`{self.name}{inside}` cannot be read: {_first_line(error)}."
            raise InputError(what, fix=_PLAIN_FIX) from error

    def _read(self, value: Any, inside: str, depth: int) -> Any:
        match value:
            case Enum():
                plain = value.value if _is_scalar(value.value) else value.name
                return self.read(plain, inside, depth)
            case None | bool():
                return value
            case str():
                return self.text(str.__str__(value), inside)
            case int():
                return int(value)
            case float():
                return float(value)
            case date() | time():
                return value if self.dates else value.isoformat()
            case os.PathLike():
                return self.text(os.fsdecode(value), inside)
            case type() | FunctionType() | BuiltinFunctionType() | MethodType():
                return f"{value.__module__}.{value.__qualname__}"
            case set() | frozenset():
                return sorted((self.read(item, inside, depth + 1) for item in value), key=_order)
            case Mapping():
                return self.table(value.items(), inside, depth)
            case SimpleNamespace():
                return self.table(vars(value).items(), inside, depth)
            case tuple() if hasattr(value, "_fields"):
                return self.table(zip(value._fields, value, strict=True), inside, depth)
            case list() | tuple() | range():
                read = self.read
                return [read(item, f"{inside}[{i}]", depth + 1) for i, item in enumerate(value)]
        return self.object(value, inside, depth)

    def count(self, depth: int) -> None:
        """Count a value; InputError when there are too many, or too many within each other."""
        self.items += 1
        if depth <= MAX_DEPTH and self.items <= MAX_ITEMS:
            return
        what = f"holds more than {MAX_ITEMS:,} values"
        if depth > MAX_DEPTH:
            what = "holds itself, or nests too deep"
        raise _TooMuchError(f"`{self.name}` {what}.", fix="keep it as a file: run.artifact(...)")

    def table(self, items: Iterable[tuple[Any, Any]], inside: str, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, item in items:
            try:
                name = str(self.read(key, f"{inside} (a key)", depth + 1))
                made[name] = self.read(item, f"{inside}.{name}", depth + 1)
            except InputError as error:
                if self.report is None or (depth and isinstance(error, _TooMuchError)):
                    raise
                self.report(error)
        return made

    def object(self, value: Any, inside: str, depth: int) -> Any:
        """Anything else, known by what it can do."""
        if dataclasses.is_dataclass(value):
            fields = [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value)]
            return self.table(fields, inside, depth)
        # Found by name: argparse is not imported for its Namespace.
        if any(kind.__module__ == "argparse" for kind in type(value).__mro__[:-1]):
            return self.table(vars(value).items(), inside, depth)
        fix = _better_place(value)
        if fix:
            self.refuse(value, inside, fix)
        if hasattr(value, "tolist") and hasattr(value, "shape"):
            return self.array(value, inside, depth)
        if hasattr(value, "model_dump"):  # of pydantic
            return self.table(value.model_dump().items(), inside, depth)
        if hasattr(value, "keys") and hasattr(value, "__getitem__"):
            return self.table(((key, value[key]) for key in value.keys()), inside, depth)  # noqa: SIM118
        if isinstance(value, bytes | bytearray | memoryview | ModuleType):
            self.refuse(value, inside, _PLAIN_FIX)
        if isinstance(value, Collection):
            return [self.read(item, f"{inside}[{i}]", depth + 1) for i, item in enumerate(value)]
        try:
            text = text_of(value)
        except InputError as error:
            raise InputError(f"`{self.name}{inside}`: {error.what}", fix=_PLAIN_FIX) from error
        if " at 0x" in text:  # it says where it lies in memory, and nothing else that counts
            self.refuse(value, inside, _PLAIN_FIX)
        return self.text(text, inside)

    def array(self, value: Any, inside: str, depth: int) -> Any:
        size = 1
        for length in value.shape:
            size *= length
        if self.items + size > MAX_ITEMS:
            shape = tuple(value.shape)
            self.refuse(
                value,
                inside,
                f"keep {size:,} values as run.histogram(...) or run.artifact(...)",
                f" {shape}",
            )
        try:
            return self.read(to_list(value), inside, depth + 1)
        except InputError as error:
            raise (
                error
                if error.what.startswith("`")
                else InputError(f"`{self.name}{inside}`: {error.what}", fix=_PLAIN_FIX)
            ) from error

    def text(self, text: str, inside: str) -> str:
        if len(text) > MAX_TEXT:
            raise InputError(
                f"The text of `{self.name}{inside}` is too long.", fix="keep it as run.text(...)"
            )
        # A name of a file that is no UTF-8 has lone surrogates, which TOML cannot hold.
        return text.encode("utf-8", "backslashreplace").decode("utf-8")

    def refuse(self, value: Any, inside: str, fix: str, shape: str = "") -> NoReturn:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise InputError(
            f"`{self.name}{inside}` is of type {kind}{shape}, which no record can hold.", fix=fix
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | None)


def _better_place(value: Any) -> str:
    """Return what to call instead for a thing that a record keeps in another way."""
    if hasattr(value, "itertuples") or hasattr(value, "iter_rows") or hasattr(value, "to_pylist"):
        return "run.table(name, value)"
    if hasattr(value, "savefig") or hasattr(value, "get_figure"):
        return "run.figure(name, value)"
    if hasattr(value, "getbands"):
        return "run.image(name, value)"
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return "keep its state with assay.engine.Saver, or give what counts of it"
    return ""


def _order(item: Any) -> tuple[int, Any, str]:
    """Return the place of an item of a set: numbers first."""
    return (0, item, "") if _is_number(item) else (1, 0, repr(item))
