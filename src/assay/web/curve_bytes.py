"""Curves as bytes: a head of JSON, then float64 columns, little-endian, one curve after the other.

u32 length of the head, the head (UTF-8, padded with blanks to whole words of eight bytes), then for
each curve of `curves` in the head its columns: x, unless `sameX` names the curve before it that has
the same; value; lowest and highest unless it is raw; the mean when it has means; the moving average
when it is smooth.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.query.curves import Curve


def pack_curves(curves: Sequence[Curve], facts: Mapping[str, Any]) -> bytes:
    """Return the bytes of these curves; `facts` stand beside them in the head."""
    # Metrics that are logged together have one array of x between them.
    first_with: dict[int, int] = {}
    heads: list[dict[str, Any]] = []
    columns: list[NDArray[np.float64]] = []
    for at, curve in enumerate(curves):
        first = first_with.setdefault(id(curve.xs), at)
        heads.append(_head(curve, None if first == at else first))
        if first == at:
            columns.append(curve.xs)
        columns.append(curve.values)
        if not curve.is_raw:
            columns += [curve.lows, curve.highs]
        columns += [each for each in (curve.means, curve.smooths) if each is not None]
    text = json.dumps({**facts, "curves": heads}, separators=(",", ":"))
    head = text.encode()
    head += b" " * (-(len(head) + 4) % 8)
    parts = [np.ascontiguousarray(column, dtype="<f8").data for column in columns]
    return b"".join([len(head).to_bytes(4, "little"), head, *parts])


def _head(curve: Curve, same_x: int | None) -> dict[str, Any]:
    return {
        "run": curve.run,
        "metric": curve.metric,
        "branch": curve.branch,
        "n": len(curve),
        "sameX": same_x,
        "raw": curve.is_raw,
        "ordered": curve.is_ordered,
        "mean": curve.means is not None,
        "smooth": curve.smooths is not None,
        "total": curve.total,
        "points": curve.points,
        "lastValue": _spell(curve.last),
        "least": _spell(curve.least),
        "most": _spell(curve.most),
        "first": _finite(curve.first_x),
        "last": _finite(curve.last_x),
        "width": curve.width,
        "bad": curve.non_finite,
        "badAt": _finite(curve.non_finite_x),
    }


def _spell(value: float) -> float | str:
    """Return a number, or the text of one that JSON has not: "nan", "inf", "-inf"."""
    return value if math.isfinite(value) else repr(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
