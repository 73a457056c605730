"""Pictures, sounds, histograms and tables as files, from numpy, torch on any device, or lists."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import struct
import wave
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import InputError
from assay.record.recordable import encode_text, name_value, text_of, to_list

BINS = 64
MAX_PIXELS = 100_000_000
"""Pixels of a picture that is kept: four copies of it are in memory while it is written."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of values between edges; NaN and infinite values are only counted."""

    edges: list[float]
    counts: list[int]
    total: float
    squares: float
    non_finite: int = 0

    def to_json(self) -> bytes:
        fields = {
            "edges": self.edges,
            "counts": self.counts,
            "sum": self.total,
            "sum_of_squares": self.squares,
        }
        return json.dumps({**fields, "non_finite": self.non_finite}).encode()


def encode(kind: str, value: Any, **options: Any) -> bytes:
    """Return the bytes of a file that shows a value of one of the kinds of `MediaKeeper`."""
    match kind:
        case "text":
            return encode_text(text_of(value))
        case "table":
            return table_csv(value, **options)
        case "histogram":
            return histogram_of(value, **options).to_json()
        case "image":
            return png(rgb_of(value, **options))
        case "images":
            return png(grid(value, **options))
        case "figure":
            return figure_png(value)
        case "audio":
            return wav(value, **options)
    raise InputError(f"There is no kind of media {kind!r}.")


def array_of(value: Any) -> NDArray[Any]:
    """Return numbers as a numpy array on the host, without graph; bfloat16 becomes float32."""
    try:
        if hasattr(value, "detach"):
            value = value.detach()
            if getattr(value, "is_floating_point", lambda: False)():
                value = value.float()
            value = (value if "strided" in str(value.layout) else value.to_dense()).cpu().numpy()
        array = np.asarray(value)
    except (
        Exception
    ) as error:  # a ragged list, a tensor without numbers (meta), a stranger's __array__
        raise InputError(f"A {type(value).__name__} is no array of numbers.") from error
    if array.dtype.kind not in "biuf":
        raise InputError(f"A {type(value).__name__} of {array.dtype} is no array of numbers.")
    return array


def histogram_of(values: Any, *, bins: int = BINS) -> Histogram:
    """Count all numbers of an array, or of several: the gradients of a model."""
    if isinstance(values, Iterable) and not hasattr(values, "shape"):
        parts = [array_of(part).ravel() for part in values]
        flat = np.concatenate(
            [part.astype(np.float64, copy=False) for part in parts] or [np.zeros(0)]
        )
    else:
        flat = array_of(values).astype(np.float64, copy=False).ravel()
    finite = flat[np.isfinite(flat)]
    if not finite.size:
        return Histogram([0.0, 0.0], [0], 0.0, 0.0, int(flat.size))
    with np.errstate(over="ignore", invalid="ignore"):  # beyond the largest float sums are inf
        try:
            counts, edges = np.histogram(finite, bins=bins)
        except ValueError:
            if bins < 1:
                raise InputError(f"A histogram has at least one bin, not {bins}.") from None
            # All between two neighbouring floats, or wider apart than the largest float.
            low, high = finite.min(), finite.max()
            if low == high:
                low, high = np.nextafter([low, high], [-np.inf, np.inf])
            counts, edges = np.array([finite.size]), np.array([low, high])
        return Histogram(
            edges.tolist(),
            counts.tolist(),
            float(finite.sum()),
            float((finite**2).sum()),
            int(flat.size - finite.size),
        )


def rgb_of(image: Any, *, stretch: bool = False) -> NDArray[np.uint8]:
    """Return an image as height x width x 3 bytes, from an array, PIL, or a batch as a grid."""
    if hasattr(image, "savefig"):
        raise InputError("This is a figure.", fix="run.figure(name, figure)")
    if isinstance(image, str | bytes):
        raise InputError(
            "An image is an array or an image of PIL.",
            fix="run.artifact(path) keeps a file as it is",
        )
    if getattr(image, "ndim", 0) == 4:
        return grid([stretch_range(each) if stretch else each for each in image])
    return pixels(stretch_range(image) if stretch else image)


def pixels(image: Any) -> NDArray[np.uint8]:
    """Return an image as height x width x 3 of bytes.

    Takes H x W, H x W x 1/3/4 or 1/3/4 x H x W; where it could be either, channels come first in
    tensors of torch and last elsewhere. Floats are from 0 to 1, integers from 0 to 255. An image of
    PIL is taken by its colours.
    """
    if hasattr(image, "getbands") and hasattr(image, "convert"):
        _check_pixels(*image.size)
        image = image.convert("RGB")
    array = array_of(image)
    is_tensor = hasattr(image, "detach")
    shape = array.shape
    if array.ndim == 2:
        array = array[:, :, None]
    elif (
        array.ndim == 3
        and array.shape[0] in (1, 3, 4)
        and (is_tensor or array.shape[2] not in (1, 3, 4))
    ):
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size:
        raise InputError(
            f"An array of shape {shape} is no image.",
            fix=(
                "Give height x width, with 1, 3 or 4 channels in front or behind; a batch goes to "
                "run.images."
            ),
        )
    _check_pixels(array.shape[1], array.shape[0])
    if array.dtype == bool:
        array = array.astype(np.uint8) * 255
    elif not np.issubdtype(array.dtype, np.integer):
        shares = np.nan_to_num(array, nan=0.0, posinf=1.0, neginf=0.0)
        array = shares.clip(0.0, 1.0) * 255.0 + 0.5
    array = array.clip(0, 255).astype(np.uint8)
    is_grey = array.shape[2] < 3
    colours = array.repeat(3, axis=2) if is_grey else array[:, :, :3]
    return np.ascontiguousarray(colours)


def _check_pixels(width: int, height: int) -> None:
    """Raise InputError for a picture that would take the memory of the training."""
    if width * height > MAX_PIXELS:
        raise InputError(
            f"A picture of {width} x {height} pixels is too large; {MAX_PIXELS} are kept.",
            fix="run.artifact(path) keeps a file of any size; image[::4, ::4] is a smaller one",
        )


def stretch_range(image: Any) -> NDArray[np.float64]:
    """Numbers of any range as an image: the lowest is 0, the highest 1; what is no number is 0."""
    array = array_of(image).astype(np.float64)
    finite = array[np.isfinite(array)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    known = np.nan_to_num(array, nan=low, posinf=high, neginf=low)
    stretch: NDArray[np.float64] = (known - low) / (high - low or 1.0)
    return stretch


def grid(images: Any, *, per_row: int = 8, gap: int = 2) -> NDArray[np.uint8]:
    """Put images of one size side by side, `per_row` in each row. One image is a grid of one."""
    if per_row < 1:
        raise InputError(f"A grid has at least one image in a row, not {per_row}.")
    shape = tuple(getattr(images, "shape", (0,)))
    is_tensor = hasattr(images, "detach")
    is_one = len(shape) == 2 or (len(shape) == 3 and shape[0 if is_tensor else 2] in (3, 4))
    if is_one or hasattr(images, "getbands"):
        images = [images]
    elif isinstance(images, Mapping):
        images = images.values()
    elif not shape or not isinstance(images, Iterable) or isinstance(images, str | bytes):
        raise InputError(f"A {type(images).__name__} is no batch of images.")
    ready = [pixels(image) for image in images]
    sizes = {f"{image.shape[0]} x {image.shape[1]}" for image in ready}
    if len(sizes) != 1:
        raise InputError(
            f"A grid needs images of one size, and has {' and '.join(sorted(sizes)) or 'none'}."
        )
    height, width = ready[0].shape[:2]
    columns = min(per_row, len(ready))
    rows = math.ceil(len(ready) / columns)
    full_height = rows * (height + gap) + gap
    full_width = columns * (width + gap) + gap
    _check_pixels(full_width, full_height)
    whole = np.zeros((full_height, full_width, 3), np.uint8)
    for i, image in enumerate(ready):
        row, column = divmod(i, columns)
        top = row * (height + gap) + gap
        left = column * (width + gap) + gap
        whole[top : top + height, left : left + width] = image
    return whole


def png(image: NDArray[np.uint8]) -> bytes:
    """A height x width x 3 array of bytes as a PNG file."""
    height, width, _ = image.shape
    lines = b"".join(b"\0" + image[i].tobytes() for i in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        length = struct.pack(">I", len(data))
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return length + kind + data + checksum

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(lines, 6))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body + chunk(b"IEND", b"")


def figure_png(figure: Any) -> bytes:
    """Return a figure of matplotlib, or anything with `savefig`, as a PNG file."""
    if not hasattr(figure, "savefig"):
        figure = getattr(figure, "figure", figure)
    if not hasattr(figure, "savefig"):
        fix = "run.artifact(path) keeps a file that it was saved to"
        raise InputError(f"A {type(figure).__name__} is no figure: it has no `savefig`.", fix=fix)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def wav(samples: Any, rate: int) -> bytes:
    """Return samples (time, or time x channels; floats in -1..1 or ints) as a 16 bit WAV file."""
    array = array_of(samples)
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        middle = (limits.max + limits.min + 1) // 2  # of unsigned ones 0 is the lowest
        array = (array.astype(np.float64) - middle) / (limits.max - middle)
    try:
        hertz = float(rate)
    except Exception:  # a foreign `__float__` may raise anything; refused below
        hertz = 0.0
    if not 0 < hertz < 2**31 or hertz != int(hertz):
        raise InputError(
            f"The rate of a sound is a whole number of samples a second, not {name_value(rate)}."
        )
    if array.ndim not in (1, 2) or not array.size:
        raise InputError(
            f"An array of shape {array.shape} is no sound.", fix="Give time, or time x channels."
        )
    if array.ndim == 2 and array.shape[0] < array.shape[1] and array.shape[0] <= 2:
        array = array.T
    data = (np.nan_to_num(array.astype(np.float64)).clip(-1, 1) * 32767).round().astype("<i2")
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1 if array.ndim == 1 else array.shape[1])
        file.setsampwidth(2)
        file.setframerate(int(hertz))
        file.writeframes(data.tobytes())
    return out.getvalue()


def table_csv(rows: Any, columns: Sequence[str] | None = None) -> bytes:
    """Return a table as a CSV file with a head.

    Rows are mappings, dataclasses, named tuples, or sequences in the order of `columns`. A data
    frame (whatever has `itertuples`, `iter_rows` or `to_pylist`), a mapping of columns and an array
    are tables as well.
    """
    own, listed = _rows_of(rows)
    if columns is None:
        columns = own
    if columns is None:
        if not all(isinstance(row, Mapping) for row in listed):
            raise InputError(
                "Rows that are no mappings need `columns`.", fix='columns=["word", "score"]'
            )
        columns = list(dict.fromkeys(name for row in listed for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in listed:
        if not isinstance(row, Mapping | Sequence) or isinstance(row, str | bytes):
            raise InputError(f"A row is a mapping or a sequence of cells, not {name_value(row)}.")
        cells = [row.get(name, "") for name in columns] if isinstance(row, Mapping) else list(row)
        if len(cells) != len(columns):
            raise InputError(f"A row has {len(cells)} cells, and there are {len(columns)} columns.")
        writer.writerow([_cell(cell) for cell in cells])
    return encode_text(out.getvalue())


def _rows_of(table: Any) -> tuple[list[str] | None, list[Any]]:
    """Return the columns of a table, None where only its rows know them, and its rows."""
    if isinstance(table, str | bytes) or not (
        isinstance(table, Iterable) or hasattr(table, "to_pylist")
    ):
        raise InputError(
            f"A {type(table).__name__} is no table.",
            fix='run.table(name, [{"word": "cat", "score": 1}])',
        )
    if hasattr(table, "itertuples"):
        return [str(name) for name in table.columns], [
            list(row) for row in table.itertuples(index=False, name=None)
        ]
    if hasattr(table, "iter_rows"):
        return [str(name) for name in table.columns], [list(row) for row in table.iter_rows()]
    if hasattr(table, "to_pylist"):
        return None, table.to_pylist()
    if hasattr(table, "shape") and hasattr(table, "tolist"):
        rows = to_list(table)
        return None, rows if isinstance(rows, list) else [rows]
    if isinstance(table, Mapping):
        if not all(
            isinstance(column, Iterable) and not isinstance(column, str | bytes)
            for column in table.values()
        ):
            raise InputError(
                "A mapping is a table when it holds columns: lists.",
                fix="give a list of it for one row",
            )
        lists = [list(column) for column in table.values()]
        if len({len(column) for column in lists}) > 1:
            raise InputError("The columns of a table are equally long.")
        return [str(name) for name in table], [list(row) for row in zip(*lists, strict=True)]
    return None, [_row_of(row) for row in table]


def _row_of(row: Any) -> Any:
    if dataclasses.is_dataclass(row):
        return {each.name: getattr(row, each.name) for each in dataclasses.fields(row)}
    if hasattr(row, "_fields"):
        return dict(zip(row._fields, row, strict=True))
    return to_list(row) if hasattr(row, "tolist") else row


def _cell(cell: Any) -> Any:
    """Return a cell as it is written: a number, or text."""
    plain = to_list(cell) if hasattr(cell, "tolist") else cell
    if plain is None:
        return ""
    return plain if isinstance(plain, int | float | str) else text_of(plain)
