"""Runs out of TensorBoard's event files, read by its library: each folder with some is one run."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from assay.core.errors import InputError
from assay.core.facts import EndStatus
from assay.core.regular_file import read_start
from assay.interop.foreign_run import (
    ForeignFile,
    ForeignRun,
    ForeignSource,
    block_of,
    check_foreign_file,
    is_inside,
    ns_of,
    paths_below,
    quiet_library,
)
from assay.store.series import Block

_MARK = "tfevents"
_FIRST_BYTES = 64
_TEXT_SUFFIX = "/text_summary"


def find(root: Path) -> list[ForeignSource]:
    """Return the runs at and below `root`, named by their folders; InputError for none."""
    runs = []
    real_root = os.path.realpath(root)
    events = (
        path
        for path in paths_below(root, [])
        if _MARK in path.name and not path.name.endswith(".profile-empty")
    )
    ours = (
        path
        for path in events
        if path.is_file() and (not path.is_symlink() or is_inside(real_root, path))
    )
    for folder, paths in groupby(ours, key=lambda path: path.parent):
        name = root.resolve().name if folder == root else folder.relative_to(root).as_posix()
        runs.append(_source_of(name, folder, list(paths)))
    if not runs:
        what = "There are no event files of TensorBoard in this folder or below it."
        raise InputError(what, where=str(root), fix="They are called events.out.tfevents.*")
    return runs


def _source_of(name: str, folder: Path, paths: list[Path]) -> ForeignSource:
    # TensorBoard gives no ids. The first file's name and its first event have the time, the host
    # and the process.
    first = read_start(paths[0], _FIRST_BYTES, follow=True)
    key = hashlib.sha256(os.fsencode(paths[0].name) + b"\0" + first).hexdigest()
    return ForeignSource(
        tool="tensorboard", key=key, name=name, path=folder, read=lambda: _read(name, paths)
    )


def _read(name: str, paths: list[Path]) -> ForeignRun:
    log = _EventLog()
    warnings: list[str] = []
    for path in paths:
        warnings += _add_file(log, path)
    if log.left_out:
        counted = ", ".join(f"{count} of {what}" for what, count in sorted(log.left_out.items()))
        warnings.append(f"What a record has no place for was left out: {counted}")
    created = log.first_ns or min(path.stat().st_mtime_ns for path in paths)
    return ForeignRun(
        tag=name,
        config=log.config,
        status=log.status,
        reason=log.reason,
        created_ns=created,
        ended_ns=max(created, log.last_ns),
        blocks=list(log.blocks()),
        files=log.files,
        warnings=warnings,
    )


def _add_file(log: _EventLog, path: Path) -> list[str]:
    """Add the events of a file up to the first that cannot be read; return a warning of it."""
    check_foreign_file(path)
    with quiet_library():
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event

        # The reader below EventFileLoader, which keeps its errors to itself.
        from tensorboard.compat.tensorflow_stub.errors import DataLossError, OutOfRangeError
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New
    reader = PyRecordReader_New(str(path.absolute()))
    count = 0
    try:
        while True:
            reader.GetNext()
            log.add(Event.FromString(reader.record()))
            count += 1
    except OutOfRangeError:
        return []
    except (DataLossError, DecodeError) as error:
        why = getattr(error, "message", str(error)).removeprefix(f"{path.absolute()} ")
        return [f"{path} {why}; what follows its first {count} events was left out"]
    finally:
        reader.file_handle.close()


@dataclass(slots=True)
class _Curve:
    steps: list[int] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _EventLog:
    """State of a run, as the events so far said."""

    curves: dict[str, _Curve] = field(default_factory=dict)
    plugins: dict[str, str] = field(default_factory=dict)
    files: list[ForeignFile] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    first_ns: int = 0
    last_ns: int = 0
    starts: int = 1
    status: EndStatus = "finished"
    reason: str = ""

    def add(self, event: Any) -> None:
        time_ns = ns_of(event.wall_time)
        match event.WhichOneof("what"):
            case "summary":
                for value in event.summary.value:
                    self._value(value, event.step, time_ns)
            case "session_log" if event.session_log.status == event.session_log.START:
                self._start(event.step)
            case "graph_def" | "meta_graph_def":
                self.left_out["graphs"] += 1
        if time_ns:
            self.first_ns = self.first_ns or time_ns
            self.last_ns = max(self.last_ns, time_ns)

    def blocks(self) -> Iterator[Block]:
        for name, one in self.curves.items():
            yield block_of([name], one.steps, one.times_ns, [one.values], branches=one.branches)

    def _start(self, step: int) -> None:
        """Leave all points from `step` on: the run was started again there."""
        self.starts += 1
        for one in self.curves.values():
            for i, each in enumerate(one.steps):
                if each >= step and not one.branches[i]:
                    one.branches[i] = self.starts

    def _value(self, value: Any, step: int, time_ns: int) -> None:
        kind = value.WhichOneof("value")
        # Often only the first value of a tag names the plugin that shows it.
        plugin = value.metadata.plugin_data.plugin_name or self.plugins.get(value.tag, "")
        self.plugins[value.tag] = plugin
        if kind == "simple_value":
            self._point(value.tag, value.simple_value, step, time_ns)
        elif plugin == "hparams":
            self._hparams(value.metadata.plugin_data.content)
        elif kind == "histo":
            self._histogram(value.tag, *_buckets(value.histo), step, time_ns)
        elif kind in ("image", "audio"):
            media = getattr(value, kind)
            data = media.encoded_image_string if kind == "image" else media.encoded_audio_string
            self._keep(value.tag, data, kind, step, time_ns)
        elif kind == "tensor":
            self._tensor(value.tag, plugin, value.tensor, step, time_ns)

    def _tensor(self, tag: str, plugin: str, tensor: Any, step: int, time_ns: int) -> None:
        from tensorboard.util.tensor_util import make_ndarray

        try:
            values = make_ndarray(tensor).ravel().tolist()
        except (ValueError, TypeError, MemoryError):  # a type or a shape that is none
            self.left_out[plugin or "tensors"] += 1
            return
        match plugin:
            case "text":
                text = b"\n\n".join(values)
                self._keep(tag.removesuffix(_TEXT_SUFFIX), text, "text", step, time_ns)
            case "images" if len(values) > 2:
                for data in values[2:]:  # the first two are width and height
                    self._keep(tag, data, "image", step, time_ns)
            case "audio" if values:
                for data in values[::2]:  # each with a label
                    self._keep(tag, data, "audio", step, time_ns)
            case "histograms" if len(values) % 3 == 0:
                edges = [*values[::3], *values[1::3][-1:]]
                self._histogram(tag, edges, values[2::3], 0.0, 0.0, step, time_ns)
            case "scalars" | "" if len(values) == 1 and isinstance(values[0], int | float):
                self._point(tag, values[0], step, time_ns)
            case _:
                self.left_out[plugin or "tensors"] += 1

    def _point(self, tag: str, value: float, step: int, time_ns: int) -> None:
        one = self.curves.get(tag) or self.curves.setdefault(tag, _Curve())
        one.steps.append(step)
        one.times_ns.append(time_ns)
        one.values.append(value)
        one.branches.append(0)

    def _histogram(
        self,
        tag: str,
        edges: list[float],
        counts: list[float],
        total: float,
        squares: float,
        step: int,
        time_ns: int,
    ) -> None:
        about = {
            "edges": edges,
            "counts": counts,
            "sum": total,
            "sum_of_squares": squares,
            "non_finite": 0,
        }
        self._keep(tag, json.dumps(about).encode(), "histogram", step, time_ns)

    def _hparams(self, content: bytes) -> None:
        from tensorboard.plugins.hparams.api_pb2 import Status
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        about = HParamsPluginData.FromString(content)
        for name, value in about.session_start_info.hparams.items():
            self.config[name] = _plain(value)
        if about.session_end_info.status == Status.Value("STATUS_FAILURE"):
            self.status = "failed"
            self.reason = "so its hyperparameters say"

    def _keep(self, name: str, data: bytes, kind: str, step: int, time_ns: int) -> None:
        self.files.append(
            ForeignFile(name=name or kind, source=data, at_ns=time_ns, kind=kind, step=step)
        )


def _buckets(histogram: Any) -> tuple[list[float], list[float], float, float]:
    """Return edges, counts, sum, and sum of squares, from the first filled bucket to the last."""
    limits = list(histogram.bucket_limit)
    counts = list(histogram.bucket)
    used = [i for i, count in enumerate(counts) if count]
    if not used or len(limits) != len(counts):
        edges = [histogram.min, histogram.max]
        return edges, [float(sum(counts))], histogram.sum, histogram.sum_squares
    first = used[0]
    last = used[-1]
    # The outermost limits of torch and TensorBoard are as wide as a float.
    begin = max(histogram.min, limits[first - 1]) if first else histogram.min
    edges = [begin, *limits[first : last + 1]]
    if histogram.max >= edges[-2]:
        edges[-1] = min(edges[-1], histogram.max)
    return edges, counts[first : last + 1], histogram.sum, histogram.sum_squares


def _plain(value: Any) -> Any:
    """Return a google.protobuf.Value as a value of Python, whole numbers as such."""
    from google.protobuf.json_format import MessageToDict, ParseError

    try:
        plain = MessageToDict(value)
    except (ParseError, ValueError):  # JSON has no NaN
        return value.number_value
    if isinstance(plain, float) and plain.is_integer() and abs(plain) < 1 << 53:
        return int(plain)
    return plain
