"""Protocols by which rooms meet without importing each other, each with an in-memory twin."""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from assay.core.errors import RecordError
from assay.core.facts import Evaluated, RunFact, Warned, check_metric_name


class MediaKeeper(Protocol):
    """Keeper of pictures, tables, sounds and texts: each is a file, and its digest is returned.

    Each takes numpy, torch on any device, and lists; `step` is that of the curves. The digest is ""
    where nothing is kept, as on the ranks that do not record.
    """

    @abstractmethod
    def keep(self, kind: str, name: str, value: Any, step: int | None, **options: Any) -> str:
        """Keep a value of one of the kinds below."""
        ...

    def text(self, name: str, text: str, step: int | None = None) -> str:
        """Keep a text."""
        return self.keep("text", name, text, step)

    def table(
        self, name: str, rows: Any, step: int | None = None, *, columns: Sequence[str] | None = None
    ) -> str:
        """Keep rows as CSV: mappings, dataclasses, named tuples or sequences.

        A sequence follows the order of `columns`. A data frame, a mapping of columns and an array
        are tables too.
        """
        return self.keep("table", name, rows, step, columns=columns)

    def histogram(self, name: str, values: Any, step: int | None = None, *, bins: int = 64) -> str:
        """Keep how the numbers of an array are distributed."""
        return self.keep("histogram", name, values, step, bins=bins)

    def image(
        self, name: str, image: Any, step: int | None = None, *, stretch: bool = False
    ) -> str:
        """Keep an array as a PNG: height x width, with 1, 3 or 4 channels in front or behind.

        Floats are from 0 to 1, integers from 0 to 255; with `stretch` numbers of any range, as
        those of a weight. An image of PIL is one too, a batch of images a grid of them.
        """
        return self.keep("image", name, image, step, stretch=stretch)

    def images(self, name: str, images: Any, step: int | None = None, *, per_row: int = 8) -> str:
        """Keep images of one size as one, side by side."""
        return self.keep("images", name, images, step, per_row=per_row)

    def figure(self, name: str, figure: Any, step: int | None = None) -> str:
        """Keep what a figure of matplotlib, or the one around its axes, looks like."""
        return self.keep("figure", name, figure, step)

    def audio(self, name: str, samples: Any, rate: int, step: int | None = None) -> str:
        """Keep samples (time, or time x channels; floats in -1..1 or ints) as a WAV file."""
        return self.keep("audio", name, samples, step, rate=rate)

    def video(
        self, name: str, source: str | os.PathLike[str] | bytes, step: int | None = None
    ) -> str:
        """Keep a file of video (or its bytes) as it is."""
        return self.keep("video", name, source, step)


class Recorder(MediaKeeper, Protocol):
    """Whoever wants to know what happened. Neither call blocks on anything but the local disk."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record several metrics at one step; on return they survive the death of this process.

        A value that is not a number is left out, and a warning names its metric.
        """
        ...

    def tell(self, fact: RunFact) -> None:
        """Something happened."""
        ...

    def rewind(self, step: int) -> None:
        """Continue from `step`: points logged at greater steps leave the curve."""
        ...

    def artifact(self, source: bytes, name: str) -> str:
        """Keep bytes by content under a name and return their digest; "" if nothing is kept."""
        ...


class NullRecorder(MediaKeeper):
    """Forgets everything: for ranks that do not record, and for `--no-file`."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        pass

    def tell(self, fact: RunFact) -> None:
        pass

    def rewind(self, step: int) -> None:
        pass

    def artifact(self, source: bytes, name: str) -> str:
        return ""

    def keep(self, kind: str, name: str, value: Any, step: int | None, **options: Any) -> str:
        return ""


class MemoryRecorder(MediaKeeper):
    """Keeps points, facts, artifacts and media in memory: for tests, notebooks and docs."""

    def __init__(self) -> None:
        self.points: list[tuple[str, int, float]] = []
        self._rewound_to: int | None = None
        self.facts: list[RunFact] = []
        self.artifacts: dict[str, bytes] = {}
        self.media: dict[str, Any] = {}

    def log(self, values: Mapping[str, float], step: int) -> None:
        numbers = []
        for name, value in values.items():
            try:
                check_metric_name(name)
                numbers.append((name, step, _number(value)))
            except RecordError as error:
                self.tell(Warned(message=error.what))
            except (TypeError, ValueError):
                self.tell(Warned(message=f"The value of {name!r} is no number: {value!r}."))
        if step == self._rewound_to:  # what was logged there before is logged again
            self.points = [
                point for point in self.points if point[1] != step or point[0] not in values
            ]
        self.points += numbers

    def tell(self, fact: RunFact) -> None:
        self.facts.append(fact)

    def rewind(self, step: int) -> None:
        self._rewound_to = step
        stopped = {
            name
            for fact in self.facts
            if isinstance(fact, Evaluated) and fact.at_stop and fact.step == step
            for name in fact.metrics
        }
        self.points = [
            point
            for point in self.points
            if point[1] < step or (point[1] == step and point[0] not in stopped)
        ]

    def artifact(self, source: bytes, name: str) -> str:
        self.artifacts[name] = bytes(source)
        return hashlib.sha256(source).hexdigest()

    def keep(self, kind: str, name: str, value: Any, step: int | None, **options: Any) -> str:
        self.media[name] = value
        return name

    def curve(self, name: str) -> list[tuple[int, float]]:
        """Return the (step, value) pairs of one metric in the order in which they were logged."""
        return [(step, value) for each, step, value in self.points if each == name]


class Blobs(Protocol):
    """Bytes kept by content. The digest is the sha256 in hex."""

    def put(self, data: bytes) -> str:
        """Keep `data` (once, however often it is put) and return its digest."""
        ...

    def get(self, digest: str) -> bytes:
        """Return the verified bytes of a digest. KeyError if missing, RecordError if damaged."""
        ...

    def __contains__(self, digest: str) -> bool: ...

    def digests(self) -> Iterable[str]:
        """Return all digests, in no order."""
        ...


class MemoryBlobs:
    """Blobs in a dictionary."""

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self._data[digest] = bytes(data)
        return digest

    def get(self, digest: str) -> bytes:
        return self._data[digest]

    def __contains__(self, digest: str) -> bool:
        return digest in self._data

    def digests(self) -> Iterable[str]:
        return list(self._data)


class Bind(Protocol):
    """Binder that fills a function's parameters from the run; the result takes no arguments."""

    def __call__(self, fn: Callable[..., Any]) -> Callable[[], Any]: ...


def _number(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError("text is no number")
    return float(value)
