"""Meters of a step and of means over many, printed in one line. They work without torch.

Tensors are known by what they can do. Nothing here makes a device wait until a meter is printed or
a mean is asked for.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterator, Mapping
from typing import Any

from assay.core.errors import InputError, did_you_mean

DECIMALS = 4
PERCENT_DECIMALS = 2


class _Formed:
    """Base of both meters: a format for each name, set before or after it has a value."""

    _forms: dict[str, str]

    def percent(self, name: str, precision: builtins.int = PERCENT_DECIMALS) -> None:
        """Print `name` as a percentage: 0.236 as 23.60%."""
        self._forms[name] = f".{_check_precision(precision)}%"

    def float(self, name: str, precision: builtins.int = DECIMALS) -> None:
        """Print `name` with so many decimals."""
        self._forms[name] = f".{_check_precision(precision)}f"

    def int(self, name: str) -> None:
        """Print `name` rounded to a whole number."""
        self._forms[name] = ".0f"


class Meter(_Formed, Mapping[str, Any]):
    """Values by name in the order in which they were first set, returned exactly as given.

    >>> m = Meter()
    >>> m.percent(m.acc_)
    >>> m.step, m.loss, m.acc = 3, 0.25, 0.236
    >>> print(m)
    @step=3  @loss=0.2500  @acc=23.60%
    >>> m.acc
    0.236

    `m.acc_` is the name "acc" itself, for editors that complete names. Any other name goes as
    `m["valid/acc"]`.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._forms: dict[str, str] = {}

    def update(self, other: Mapping[str, Any]) -> None:
        """Take over all values of `other`, and its forms when it is a meter."""
        if isinstance(other, Meter):
            self._forms.update(other._forms)
        for name in other:
            self[name] = other[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        if name.endswith("_"):
            raise InputError(
                f"A meter keeps no {name!r}: m.{name} is the name {name[:-1]!r} itself."
            )
        if hasattr(type(self), name):
            raise InputError(f"{name!r} is a method of a meter.", fix=f'Write m["{name}"] = ...')
        self[name] = value

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            if name in self._values:
                return self._values[name]
            if name.endswith("_"):
                return name[:-1]
        raise AttributeError(_no_value(name, self.__dict__.get("_values", {})), name=name, obj=self)

    def __delattr__(self, name: str) -> None:
        try:
            del self._values[name]
        except KeyError:
            raise AttributeError(_no_value(name, self._values), name=name, obj=self) from None

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise InputError(f"The name of a measured value must be a string, not {name!r}.")
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> builtins.int:
        return len(self._values)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    def __repr__(self) -> str:
        return _line(
            {name: _text(value, self._forms.get(name)) for name, value in self._values.items()}
        )


class AvgMeter(_Formed):
    """Last value of every name and, for numbers and one-element tensors, the mean since `reset`.

    >>> am = AvgMeter()
    >>> for acc in 0.25, 0.75:
    ...     m = Meter()
    ...     m.percent(m.acc_)
    ...     m.acc, m.step = acc, 1
    ...     am.update(m)
    >>> print(am)
    @acc=75.00%(50.00%)  @step=1

    Whole numbers, strings, lists and larger tensors have no mean: their last value stands alone.
    """

    def __init__(self) -> None:
        self._forms: dict[str, str] = {}
        self._last: dict[str, Any] = {}
        self._sums: dict[str, _Sum] = {}

    def update(self, values: Mapping[str, Any], weight: builtins.float = 1) -> None:
        """Add one step; with `weight` its number of samples, the means are means over samples.

        A tensor is detached from its graph and added on its own device, without waiting for the
        device. InputError for a weight that is negative or not finite.
        """
        if not 0 <= weight < math.inf:
            raise InputError(f"A weight must be a number from 0 up, not {weight!r}.")
        if isinstance(values, Meter):
            self._forms.update(values._forms)
        for name in values:
            value = values[name]
            value = value.detach() if hasattr(value, "detach") else value
            self._last[name] = value
            if _has_mean(value):
                self._sums.setdefault(name, _Sum()).add(value, weight)

    def reset(self) -> None:
        """Forget all values, as at the begin of an epoch; the forms stay."""
        self._last.clear()
        self._sums.clear()

    def last(self, name: str) -> Any:
        """The last value of `name`."""
        if name not in self._last:
            raise KeyError(_no_value(name, self._last))
        return self._last[name]

    def mean(self, name: str) -> builtins.float:
        """Return the weighted mean of `name` since `reset`, nan without weight; it syncs."""
        if name not in self._sums:
            raise KeyError(
                f"{name!r} has no mean" if name in self._last else _no_value(name, self._last)
            )
        return self._sums[name].mean()

    def means(self) -> dict[str, builtins.float]:
        """All means by name, ready for `run.log`. Waits for the device."""
        return {name: self.mean(name) for name in self._last if name in self._sums}

    def __getattr__(self, name: str) -> str:
        if name.endswith("_") and not name.startswith("_"):
            return name[:-1]
        raise AttributeError(
            f"An AvgMeter has no {name!r}: ask for last({name!r}) or mean({name!r})."
        )

    def __repr__(self) -> str:
        texts = {}
        for name, value in self._last.items():
            form = self._forms.get(name)
            texts[name] = _text(value, form)
            if _has_mean(value):
                texts[name] += f"({_text(self._sums[name].mean(), form)})"
        return _line(texts)


class _Sum:
    """Weighted sum whose tensor part stays on its device, in float64, until it is read."""

    __slots__ = ("number", "tensor", "weight")

    def __init__(self) -> None:
        self.number = 0.0
        self.tensor: Any = None
        self.weight = 0.0

    def add(self, value: Any, weight: builtins.float) -> None:
        self.weight += weight
        if not weight:
            return
        if not hasattr(value, "detach"):
            self.number += float(value if isinstance(value, float) else value.item()) * weight
            return
        value = value.reshape(())
        if self.tensor is not None and self.tensor.device != value.device:
            self.number += float(self.tensor.item())
            self.tensor = None
        # Not in place: a sum begun under inference_mode could not be changed outside of it.
        self.tensor = (
            _to_double(value) * weight
            if self.tensor is None
            else self.tensor.add(value, alpha=weight)
        )

    def mean(self) -> builtins.float:
        total = self.number if self.tensor is None else self.number + float(self.tensor.item())
        return total / self.weight if self.weight else math.nan


def _to_double(value: Any) -> Any:
    try:
        return value.double()
    except TypeError:  # a device without double precision
        return value.float()


def _has_mean(value: Any) -> bool:
    """Floats and tensors of one real number; of numpy's arrays and scalars only those of floats."""
    if isinstance(value, float):
        return True
    dtype = getattr(value, "dtype", None)
    return (
        _is_one(value)
        and getattr(dtype, "kind", "f") == "f"
        and not getattr(dtype, "is_complex", False)
    )


def _is_one(value: Any) -> bool:
    """Return whether `value` is a tensor or array of one element, by its shape alone."""
    shape = getattr(value, "shape", None)
    return isinstance(shape, tuple) and all(size == 1 for size in shape) and hasattr(value, "item")


def _text(value: Any, form: str | None) -> str:
    plain = value.item() if _is_one(value) else value
    if (
        form is not None
        and isinstance(plain, builtins.int | builtins.float)
        and not isinstance(plain, bool)
    ):
        return format(plain, form)
    match plain:
        case float():
            return f"{plain:.{DECIMALS}f}"
        case str():
            return plain.replace("\r", "\\r").replace("\n", "\\n")
        case _:
            first, *more = repr(plain).split("\n", 1)
            return f"{first}..." if more else first


def _line(texts: Mapping[str, str]) -> str:
    return "  ".join(f"@{name}={text}" for name, text in texts.items())


def _check_precision(precision: builtins.int) -> builtins.int:
    if type(precision) is not builtins.int or not 0 <= precision <= 20:
        raise InputError(f"A precision must be a whole number from 0 to 20, not {precision!r}.")
    return precision


def _no_value(name: str, known: Mapping[str, Any]) -> str:
    near = did_you_mean(name, known)
    return f"nothing was measured as {name!r}" + (f", {near}" if near else "")
