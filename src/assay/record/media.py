"""Pictures, sounds, distributions and tables as files. Arrays may be of numpy, of torch on any device, or lists."""

from __future__ import annotations

import csv
import io
import json
import math
import struct
import wave
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BINS = 64


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values lie between two edges each; NaN and infinite ones are only counted."""

    edges: list[float]
    counts: list[int]
    total: float
    squares: float
    non_finite: int = 0

    def to_json(self) -> bytes:
        fields = {"edges": self.edges, "counts": self.counts, "sum": self.total, "sum_of_squares": self.squares}
        return json.dumps({**fields, "non_finite": self.non_finite}).encode()


def array_of(value: Any) -> NDArray[Any]:
    """As a numpy array on the host. Tensors are let go of their graph; bfloat16 comes as float32."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach()
        if getattr(value, "is_floating_point", lambda: False)():
            value = value.float()
        value = value.cpu()
        value = value.numpy()
    return np.asarray(value)


def histogram_of(values: Any, *, bins: int = BINS) -> Histogram:
    """Over all numbers of an array."""
    import numpy as np

    flat = array_of(values).astype(np.float64, copy=False).ravel()
    finite = flat[np.isfinite(flat)]
    if not finite.size:
        return Histogram([0.0, 0.0], [0], 0.0, 0.0, int(flat.size))
    counts, edges = np.histogram(finite, bins=bins)
    return Histogram(
        edges.tolist(), counts.tolist(), float(finite.sum()), float((finite**2).sum()), int(flat.size - finite.size)
    )


def pixels(image: Any) -> NDArray[np.uint8]:
    """As height x width x 3 of bytes.

    Takes H x W, H x W x 1/3/4 or 1/3/4 x H x W; where it could be either, channels come first in tensors of torch and
    last elsewhere. Floats are from 0 to 1, integers from 0 to 255.
    """
    import numpy as np

    array, is_tensor = array_of(image), hasattr(image, "detach")
    if array.ndim == 2:
        array = array[:, :, None]
    elif array.ndim == 3 and array.shape[0] in (1, 3, 4) and (is_tensor or array.shape[2] not in (1, 3, 4)):
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or not array.size:
        raise InputError(
            f"An array of shape {array_of(image).shape} is no image.",
            fix="Give height x width, with 1, 3 or 4 channels in front or behind.",
        )
    if array.dtype == bool:
        array = array.astype(np.uint8) * 255
    elif not np.issubdtype(array.dtype, np.integer):
        array = np.nan_to_num(array, nan=0.0, posinf=1.0, neginf=0.0).clip(0.0, 1.0) * 255.0 + 0.5
    array = array.clip(0, 255).astype(np.uint8)
    return np.ascontiguousarray(array[:, :, :3] if array.shape[2] >= 3 else array.repeat(3, axis=2))


def stretched(image: Any) -> NDArray[np.float64]:
    """Numbers of any range as an image: the lowest is 0, the highest 1; what is no number is 0."""
    import numpy as np

    array = array_of(image).astype(np.float64)
    finite = array[np.isfinite(array)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    known = np.nan_to_num(array, nan=low, posinf=high, neginf=low)
    stretch: NDArray[np.float64] = (known - low) / (high - low or 1.0)
    return stretch


def grid(images: Any, *, per_row: int = 8, gap: int = 2) -> NDArray[np.uint8]:
    """Images of one size side by side, `per_row` in each row, as one image."""
    import numpy as np

    ready = [pixels(image) for image in images]
    if not ready or len({image.shape for image in ready}) > 1:
        raise InputError("A grid needs images of one size, and at least one.")
    height, width = ready[0].shape[:2]
    columns = min(per_row, len(ready))
    rows = math.ceil(len(ready) / columns)
    whole = np.zeros((rows * (height + gap) + gap, columns * (width + gap) + gap, 3), np.uint8)
    for i, image in enumerate(ready):
        top, left = (each * (side + gap) + gap for each, side in zip(divmod(i, columns), (height, width), strict=True))
        whole[top : top + height, left : left + width] = image
    return whole


def png(image: NDArray[np.uint8]) -> bytes:
    """A height x width x 3 array of bytes as a PNG file."""
    height, width, _ = image.shape
    lines = b"".join(b"\0" + image[i].tobytes() for i in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(lines, 6))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body + chunk(b"IEND", b"")


def figure_png(figure: Any) -> bytes:
    """What a figure of matplotlib (or anything with `savefig`) looks like, as a PNG file."""
    if not hasattr(figure, "savefig"):
        raise InputError(f"A {type(figure).__name__} is no figure: it has no `savefig`.")
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def wav(samples: Any, rate: int) -> bytes:
    """Samples from -1 to 1 (time, or time x channels) as a WAV file of 16 bits."""
    import numpy as np

    array = array_of(samples)
    if array.ndim not in (1, 2) or not array.size:
        raise InputError(f"An array of shape {array.shape} is no sound.", fix="Give time, or time x channels.")
    if array.ndim == 2 and array.shape[0] < array.shape[1] and array.shape[0] <= 2:
        array = array.T
    data = (np.nan_to_num(array.astype(np.float64)).clip(-1, 1) * 32767).round().astype("<i2")
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1 if array.ndim == 1 else array.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(data.tobytes())
    return out.getvalue()


def table_csv(rows: Iterable[Mapping[str, Any] | Sequence[Any]], columns: Sequence[str] | None = None) -> bytes:
    """Rows as a CSV file with a head. Rows are mappings, or sequences in the order of `columns`."""
    listed = list(rows)
    if columns is None:
        if not all(isinstance(row, Mapping) for row in listed):
            raise InputError("Rows that are no mappings need `columns`.", fix='columns=["word", "score"]')
        columns = list(dict.fromkeys(name for row in listed if isinstance(row, Mapping) for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in listed:
        cells = [row.get(name, "") for name in columns] if isinstance(row, Mapping) else list(row)
        if len(cells) != len(columns):
            raise InputError(f"A row has {len(cells)} cells, and there are {len(columns)} columns.")
        writer.writerow(["" if cell is None else cell for cell in cells])
    return out.getvalue().encode("utf-8", "surrogateescape")
