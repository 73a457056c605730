"""Protocols by which rooms meet without importing each other, each with an in-memory twin."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from assay.core.errors import RecordError
from assay.core.event_log import RunFact
from assay.core.metrics_file import check_name


class Recorder(Protocol):
    """Whoever wants to know what happened. Neither call blocks on anything but the local disk."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record several metrics at one step; on return they survive the death of this process.

        Raises RecordError naming the metric whose value is not a number.
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


class NullRecorder:
    """Forgets everything: for ranks that do not record, and for `--no-file`."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        pass

    def tell(self, fact: RunFact) -> None:
        pass

    def rewind(self, step: int) -> None:
        pass

    def artifact(self, source: bytes, name: str) -> str:
        return ""


class MemoryRecorder:
    """Keeps points, facts and artifacts in memory: for tests, notebooks and docs."""

    def __init__(self) -> None:
        self.points: list[tuple[str, int, float]] = []
        self.facts: list[RunFact] = []
        self.artifacts: dict[str, bytes] = {}

    def log(self, values: Mapping[str, float], step: int) -> None:
        numbers = []
        for name, value in values.items():
            check_name(name)
            try:
                numbers.append((name, step, _number(value)))
            except (TypeError, ValueError) as error:
                raise RecordError(f"The value of {name!r} is no number: {value!r}.") from error
        self.points += numbers

    def tell(self, fact: RunFact) -> None:
        self.facts.append(fact)

    def rewind(self, step: int) -> None:
        self.points = [point for point in self.points if point[1] <= step]

    def artifact(self, source: bytes, name: str) -> str:
        self.artifacts[name] = bytes(source)
        return hashlib.sha256(source).hexdigest()

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
