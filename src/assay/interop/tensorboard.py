"""Runs out of TensorBoard's event files: each folder that holds some is one run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from assay.core.errors import InputError
from assay.core.facts import EndStatus
from assay.core.regular_file import read_start
from assay.interop import protobuf
from assay.interop.checksummed_records import Trouble, tf_records
from assay.interop.foreign_run import (
    ForeignFile,
    ForeignRun,
    ForeignSource,
    block_of,
    is_inside,
    ns_of,
    paths_below,
    read_file,
)
from assay.interop.protobuf import Field, ProtobufError, by_number, part, text, whole
from assay.store.series import Block

_MARK = "tfevents"
_FIRST_BYTES = 64
_TEXT_SUFFIX = "/text_summary"
_HPARAMS = "_hparams_/"
_SESSION_START, _STATUS_FAILED = 1, 2
_STRING = 7
_VARINT = rb"[\x80-\xff]*[\x00-\x7f]"
# An event that holds one plain scalar, as most do: time, step, summary, value, tag and its length,
# number.
_SCALAR = re.compile(
    rb"\x09(.{8})(?:\x10("
    + _VARINT
    + rb"))?\x2a"
    + _VARINT
    + rb"\x0a"
    + _VARINT
    + rb"\x0a([\x00-\x7f])(.*)\x15(.{4})",
    re.DOTALL,
)
_TIME_AND_VALUE = struct.Struct("<df")
# By the number that TensorBoard has for a type: how `struct` reads one of it, and the field that
# has it otherwise.
_TYPES = {
    1: ("f", 5),
    2: ("d", 6),
    3: ("i", 7),
    4: ("B", 7),
    5: ("h", 7),
    6: ("b", 7),
    9: ("q", 10),
    10: ("?", 11),
    17: ("H", 7),
    22: ("I", 16),
    23: ("Q", 17),
}
_BFLOAT16, _HALF = 14, 19


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
    warnings = []
    for path in paths:
        trouble = Trouble(path)
        for offset, record in tf_records(read_file(path), trouble):
            try:
                log.add(record)
            except (ProtobufError, struct.error):
                trouble.add(offset, "a record is no event")
        if trouble.lost:
            warnings.append(str(trouble))
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
    by_tag: dict[bytes, _Curve] = field(default_factory=dict)
    plugins: dict[str, str] = field(default_factory=dict)
    files: list[ForeignFile] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    first_ns: int = 0
    last_ns: int = 0
    starts: int = 1
    status: EndStatus = "finished"
    reason: str = ""

    def add(self, record: bytes) -> None:
        plain = _SCALAR.fullmatch(record)
        if plain is not None and len(plain[4]) == plain[3][0]:
            self._scalar(*plain.groups())
            return
        time_ns = step = 0
        for number, value in protobuf.fields(record):
            if number == 1:
                time_ns = ns_of(protobuf.double(value))
            elif number == 2 and isinstance(value, int):
                step = protobuf.to_int64(value)
            elif number == 5:
                for inner, each in protobuf.fields(protobuf.part_bytes(value)):
                    if inner == 1:
                        self._value(protobuf.part_bytes(each), step, time_ns)
            elif number == 7 and whole(part([value])[1]) == _SESSION_START:
                self._start(step)
            elif number in (4, 9):
                self.left_out["graphs"] += 1
        self._note_time(time_ns)

    def _scalar(self, time: bytes, step: bytes | None, _: bytes, tag: bytes, value: bytes) -> None:
        """The same for one plain scalar, in half the time."""
        seconds, number = _TIME_AND_VALUE.unpack(time + value)
        time_ns = ns_of(seconds)
        self._note_time(time_ns)
        one = self.by_tag.get(tag)
        if one is None:
            one = self.by_tag[tag] = self._curve(tag.decode("utf-8", "replace"))
        one.steps.append(protobuf.to_int64(protobuf.varint(step, 0)[0]) if step is not None else 0)
        one.times_ns.append(time_ns)
        one.values.append(number)
        one.branches.append(0)

    def _note_time(self, time_ns: int) -> None:
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

    def _value(self, message: bytes, step: int, time_ns: int) -> None:
        tag, simple, value = "", None, None
        for number, each in protobuf.fields(message):
            if number == 1:
                tag = protobuf.as_text(each)
            elif number == 2:
                simple = protobuf.single(each)
            else:
                value = value or {}
                value[number] = each
        if simple is not None:
            self._point(tag, simple, step, time_ns)
        elif value is not None:
            self._other(tag, value, step, time_ns)

    def _point(self, tag: str, value: float, step: int, time_ns: int) -> None:
        one = self._curve(tag)
        one.steps.append(step)
        one.times_ns.append(time_ns)
        one.values.append(value)
        one.branches.append(0)

    def _curve(self, tag: str) -> _Curve:
        return self.curves.get(tag) or self.curves.setdefault(tag, _Curve())

    def _other(self, tag: str, value: dict[int, Field], step: int, time_ns: int) -> None:
        plugin, content = self._plugin(tag, value.get(9))
        if 4 in value:
            self._keep(
                tag,
                protobuf.part_bytes(by_number(protobuf.part_bytes(value[4]))[4][-1]),
                "image",
                step,
                time_ns,
            )
        elif 5 in value:
            self._histogram(tag, *_buckets(part([value[5]])), step, time_ns)
        elif 6 in value:
            self._keep(
                tag,
                protobuf.part_bytes(by_number(protobuf.part_bytes(value[6]))[4][-1]),
                "audio",
                step,
                time_ns,
            )
        elif plugin == "hparams":
            self._hparams(content)
        elif 8 in value:
            self._tensor(tag, plugin, part([value[8]]), step, time_ns)

    def _plugin(self, tag: str, metadata: Field | None) -> tuple[str, bytes]:
        """Return the plugin that shows a tag; often only its first value names it."""
        if metadata is not None:
            about = part(part([metadata])[1])
            self.plugins[tag] = text(about[1]) or self.plugins.get(tag, "")
            return self.plugins[tag], protobuf.part_bytes(about[2][-1]) if about[2] else b""
        return self.plugins.get(tag, ""), b""

    def _tensor(
        self, tag: str, plugin: str, tensor: dict[int, list[Field]], step: int, time_ns: int
    ) -> None:
        texts = (
            [protobuf.part_bytes(each) for each in tensor[8]] if whole(tensor[1]) == _STRING else []
        )
        if plugin == "text":
            self._keep(tag.removesuffix(_TEXT_SUFFIX), b"\n\n".join(texts), "text", step, time_ns)
        elif plugin == "images" and len(texts) > 2:
            for data in texts[2:]:  # the first two are width and height
                self._keep(tag, data, "image", step, time_ns)
        elif plugin == "audio" and texts:
            for data in texts[::2]:  # each with a label
                self._keep(tag, data, "audio", step, time_ns)
        elif (
            plugin == "histograms"
            and (numbers := _numbers(tensor)) is not None
            and len(numbers) % 3 == 0
        ):
            lefts = numbers[::3]
            rights = numbers[1::3]
            counts = numbers[2::3]
            self._histogram(tag, [*lefts, *rights[-1:]], counts, 0.0, 0.0, step, time_ns)
        elif (
            plugin in ("scalars", "")
            and (numbers := _numbers(tensor)) is not None
            and len(numbers) == 1
        ):
            self._point(tag, numbers[0], step, time_ns)
        else:
            self.left_out[plugin or "tensors"] += 1

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
        about = by_number(content)
        for entry in part(about[3])[1]:
            pair = by_number(protobuf.part_bytes(entry))
            self.config[text(pair[1])] = _plain(pair[2])
        if about[4] and whole(part(about[4])[1]) == _STATUS_FAILED:
            self.status = "failed"
            self.reason = "so its hyperparameters say"

    def _keep(self, name: str, data: bytes, kind: str, step: int, time_ns: int) -> None:
        self.files.append(
            ForeignFile(name=name or kind, source=data, at_ns=time_ns, kind=kind, step=step)
        )


def _buckets(histogram: dict[int, list[Field]]) -> tuple[list[float], list[float], float, float]:
    """Return edges, counts, sum, and sum of squares, from the first filled bucket to the last."""
    limits = protobuf.numbers_in(histogram[6], "d")
    counts = protobuf.numbers_in(histogram[7], "d")
    low = _last_double(histogram.get(1))
    high = _last_double(histogram.get(2))
    total = _last_double(histogram.get(4))
    squares = _last_double(histogram.get(5))
    used = [i for i, count in enumerate(counts) if count]
    if not used or len(limits) != len(counts):
        return [low, high], [float(sum(counts))], total, squares
    first = used[0]
    last = used[-1]
    begin = max(low, limits[first - 1]) if first else low
    edges = [begin, *limits[first : last + 1]]
    if high >= edges[-2]:
        edges[-1] = min(edges[-1], high)
    return edges, counts[first : last + 1], total, squares


def _last_double(values: list[Field] | None) -> float:
    return protobuf.double(values[-1]) if values else 0.0


def _numbers(tensor: dict[int, list[Field]]) -> list[float] | None:
    """All numbers of a tensor; None when it holds something else."""
    kind = whole(tensor[1])
    if kind in (_BFLOAT16, _HALF):
        return _half_numbers(tensor, kind)
    if kind not in _TYPES:
        return None
    form, field_number = _TYPES[kind]
    if tensor[4]:
        numbers = protobuf.numbers_in(tensor[4], form)
    else:
        numbers = protobuf.numbers_in(tensor[field_number], form if form in "fd" else "v")
    return [float(each) for each in numbers]


def _half_numbers(tensor: dict[int, list[Field]], kind: int) -> list[float]:
    """Return the numbers of a tensor of float16 or bfloat16."""
    bits = [int(each) for each in protobuf.numbers_in(tensor[13], "v")]
    if bits:
        halves = struct.pack(f"<{len(bits)}H", *bits)
    else:
        halves = b"".join(map(protobuf.part_bytes, tensor[4]))
    if kind == _HALF:
        return list(struct.unpack(f"<{len(halves) // 2}e", halves))
    # A bfloat16 is the upper half of a float32.
    wide = b"".join(b"\0\0" + halves[i : i + 2] for i in range(0, len(halves), 2))
    return list(struct.unpack(f"<{len(wide) // 4}f", wide))


def _plain(values: list[Field]) -> Any:
    """google.protobuf.Value."""
    for number, value in protobuf.fields(protobuf.part_bytes(values[-1])) if values else ():
        match number:
            case 2:
                found = protobuf.double(value)
                return int(found) if found.is_integer() and abs(found) < 1 << 53 else found
            case 3:
                return protobuf.as_text(value)
            case 4:
                return bool(value)
            case 6:
                return [_plain([each]) for each in by_number(protobuf.part_bytes(value))[1]]
    return None
