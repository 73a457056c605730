"""Real arguments to a run's methods: kept, or refused by name, with the record intact."""

from __future__ import annotations

import argparse
import collections
import csv
import dataclasses
import datetime
import decimal
import enum
import functools
import gc
import io
import json
import math
import os
import types
import typing
import uuid
import wave
import weakref
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from omegaconf import OmegaConf
from PIL import Image

import assay
from assay.config import loads, plain
from assay.core.errors import AssayError, InputError
from assay.core.facts import Ended, Warned
from assay.formats import run_file
from assay.formats.event_log import read_events
from assay.record.recordable import MAX_ITEMS, recordable
from assay.record.start import Run
from assay.store.artifacts import artifacts
from assay.store.blobs import FileBlobs
from assay.store.series import read_series
from assay.store.summaries import summaries
from event_reader import pixels_of


class Color(enum.Enum):
    RED = "red"
    ODD = object()


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Options:
    lr: float = 0.1
    data: Path = Path("/data")


class Point(typing.NamedTuple):
    x: int
    y: float


class Bare: ...


class Rude:
    def __str__(self) -> str:
        raise ZeroDivisionError("rude")

    __repr__ = __str__
    __float__ = __str__  # type: ignore[assignment]


class Frame:
    """Stands for a DataFrame of pandas."""

    columns = ("word", "score")
    shape = (2, 2)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def itertuples(self, index: bool, name: None) -> list[tuple[Any, ...]]:
        return [("cat", np.float64(0.5)), ("dog", 2)]


def holding_itself() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


def figure() -> Figure:
    drawn = Figure(figsize=(1, 1))
    drawn.subplots().plot([1, 2])
    return drawn


GIVEN: Mapping[str, Any] = {
    "int": 3,
    "float": 0.5,
    "bool": True,
    "none": None,
    "nan": math.nan,
    "huge": 10**40,
    "too large for a float": 10**400,
    "complex": 1 + 2j,
    "decimal": decimal.Decimal("1.5"),
    "fraction": Fraction(1, 3),
    **{
        f"numpy {kind.__name__}": kind(1)
        for kind in (np.float16, np.float64, np.int8, np.uint64, np.bool_)
    },
    "numpy text": np.str_("a"),
    "numpy moment": np.datetime64("2024-01-31T07:32:00.000000001"),
    "numpy complex": np.complex64(1j),
    "array of no axis": np.array(2.5),
    "array of one": np.array([2.5]),
    "array": np.arange(6).reshape(2, 3),
    "array of objects": np.array([Bare(), None]),
    "large array": np.zeros((200, 200)),
    **{
        f"torch {kind}": torch.tensor(1, dtype=kind)
        for kind in (torch.float32, torch.bfloat16, torch.bool)
    },
    "live loss": torch.ones(3, requires_grad=True).sum(),
    "tensor": torch.rand(2, 3),
    "large tensor": torch.zeros(200, 200),
    "batch of images": torch.rand(5, 3, 8, 8),
    "image": torch.rand(3, 8, 8),
    "sparse tensor": torch.eye(3).to_sparse(),
    "tensor without numbers": torch.empty(3, device="meta"),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "text": "größe\n\x00",
    "half a character": "\ud800",
    "bytes": b"\x00\xff",
    "path": Path("/data/x"),
    "pure path": PurePosixPath("a/b"),
    "datetime": datetime.datetime(2024, 1, 31, tzinfo=datetime.UTC),
    "date": datetime.date(2024, 1, 31),
    "timedelta": datetime.timedelta(seconds=90),
    "uuid": uuid.UUID(int=1),
    "enum": Color.RED,
    "enum of an object": Color.ODD,
    "int enum": Level.LOW,
    "list": [1, "a", None],
    "tuple": (1, (2.5,)),
    "named tuple": Point(1, 2.0),
    "set": {3, 1, 2},
    "mixed set": frozenset({"a", 1, None, (2, 3)}),
    "range": range(3),
    "deque": collections.deque([1, 2]),
    "mapping": {"a": {1: np.float32(2)}, (1, 2): {"b"}},
    "counter": collections.Counter("aab"),
    "namespace": argparse.Namespace(lr=0.1, out=Path("x"), device=torch.device("cpu")),
    "simple namespace": types.SimpleNamespace(a=1),
    "dataclass": Options(),
    "class of options": Options,
    "omegaconf": OmegaConf.create({"a": [1, {"b": 2}]}),
    "device": torch.device("cpu"),
    "dtype": torch.float16,
    "numpy dtype": np.dtype("float32"),
    "size": torch.Size([2, 3]),
    "class": torch.nn.Linear,
    "function": math.sqrt,
    "own function": holding_itself,
    "lambda": lambda x: x,
    "partial": functools.partial(holding_itself),
    "module of python": math,
    "model": torch.nn.Linear(2, 2),
    "generator of numbers": torch.Generator(),
    "figure": figure(),
    "axes": figure().axes[0],
    "picture": Image.new("RGB", (4, 3), (255, 0, 0)),
    "picture with a palette": Image.new("RGB", (4, 3), (255, 0, 0)).convert("P"),
    "grey picture": Image.new("L", (4, 3)),
    "frame": Frame(),
    "rows": [{"a": 1}, {"b": torch.tensor(2.0)}],
    "columns": {"a": [1, 2], "b": np.array([3.0, 4.0])},
    "bare object": Bare(),
    "rude object": Rude(),
    "holding itself": holding_itself(),
    "folder": Path(__file__).parent / "no such folder",
}
METHODS: Mapping[str, Callable[[Run, Any], object]] = {
    "value": lambda run, given: run.value("x", given),
    "value name": lambda run, given: run.value(given, 1),
    "log": lambda run, given: run.log({"x": given}, 1),
    "log row": lambda run, given: run.log(given, 1),
    "log name": lambda run, given: run.log(
        {given: 1.0} if isinstance(given, collections.abc.Hashable) else {}, 1
    ),
    "log step": lambda run, given: run.log({"x": 1.0}, given),
    "log_later": lambda run, given: run.log_later({"x": given}, 1),
    "axis": lambda run, given: run.axis(given),
    "text": lambda run, given: run.text("x", given),
    "table": lambda run, given: run.table("x", given),
    "table of rows": lambda run, given: run.table("x", [given, given], columns=["a", "b"]),
    "table of cells": lambda run, given: run.table("x", [{"a": given}]),
    "histogram": lambda run, given: run.histogram("x", given),
    "image": lambda run, given: run.image("x", given),
    "stretched image": lambda run, given: run.image("x", given, stretch=True),
    "images": lambda run, given: run.images("x", given),
    "list of images": lambda run, given: run.images("x", [given]),
    "image step": lambda run, given: run.image("x", np.eye(2), given),
    "figure": lambda run, given: run.figure("x", given),
    "audio": lambda run, given: run.audio("x", given, 8000),
    "audio rate": lambda run, given: run.audio("x", [0.0, 0.5], given),
    "video": lambda run, given: run.video("x", given),
    "artifact": lambda run, given: run.artifact(given, "x"),
    "artifact name": lambda run, given: run.artifact(b"x", given),
    "watch": lambda run, given: run.watch(given),
    "keycode": lambda run, given: run.keycode(given),
}


NOT_RAISED = {
    *("value", "log", "log_later", "text", "table", "table of rows", "table of cells"),
    *("histogram", "image", "stretched image", "images", "list of images", "figure", "audio"),
}


def warnings_of(run: Run) -> list[str]:
    assert run.folder is not None
    facts = [each.fact for each in read_events(run.folder.events)]
    return [fact.message for fact in facts if isinstance(fact, Warned)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("method", METHODS)
def test_whatever_is_given_the_record_stays_whole(tmp_path: Path, method: str) -> None:
    run = assay.start(project=tmp_path, keep_output=False)
    run.log({"loss": 0.5}, step=0)
    told: dict[str, str] = {}

    for kind, given_value in GIVEN.items():
        before = len(warnings_of(run))
        run._recorder._reported.clear()  # type: ignore[union-attr]
        try:
            METHODS[method](run, given_value)
        except AssayError as error:
            assert method not in NOT_RAISED
            told[kind] = str(error)
        if len(warnings_of(run)) > before:
            told[kind] = warnings_of(run)[-1]
    run.value("last", 1)
    run.log({"loss": 0.25}, step=7)
    run.finish()

    assert run.folder is not None
    record = run_file.read(run.folder.path)
    assert (record.status, record.values["last"]) == ("finished", 1)
    assert summaries(run.folder.metrics)["loss"].last == 0.25
    for kept in artifacts(run.folder):
        assert FileBlobs(run.folder.artifacts).get(kept.digest) is not None
    assert max(map(len, told.values()), default=0) < 400
    if method == "value":
        assert set(told) == {
            *(
                "array of objects",
                "large array",
                "large tensor",
                "tensor without numbers",
                "bytes",
                "partial",
            ),
            *(
                "module of python",
                "model",
                "generator of numbers",
                "figure",
                "picture",
                "picture with a palette",
            ),
            *("grey picture", "frame", "bare object", "rude object", "holding itself", "axes"),
        }
        assert all("`x" in text for text in told.values())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", GIVEN)
def test_whatever_a_config_is_a_run_starts_or_says_what_is_wrong_with_it(
    tmp_path: Path, kind: str
) -> None:
    for config in (GIVEN[kind], {"x": GIVEN[kind]}):
        try:
            run = assay.start(config=config, project=tmp_path, keep_output=False)
        except AssayError as error:
            assert "config" in str(error)
            continue
        run.finish()
        assert run.folder is not None
        assert loads(run.folder.config_toml.read_text()).problems == ()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", GIVEN)
def test_whatever_an_end_is_given_it_is_recorded_or_refused_and_the_run_stays_open(
    tmp_path: Path, kind: str
) -> None:
    ends: tuple[tuple[Any, ...], ...] = (
        (GIVEN[kind],),
        ("failed", GIVEN[kind]),
        ("failed", "", GIVEN[kind]),
    )
    for end in ends:
        run = assay.start(project=tmp_path, keep_output=False)
        try:
            run.finish(*end)
        except InputError as error:
            assert "A run ends as finished, failed or stopped" in str(error) or "text" in str(error)
            run.finish("failed")

        assert run.folder is not None
        assert run_file.read(run.folder.path).status == "failed"


def test_a_value_that_is_no_number_is_reported_once_and_the_others_are_logged(
    tmp_path: Path,
) -> None:
    run = assay.start(project=tmp_path, config={"lr": 0.1, "net": torch.nn.Linear(2, 2)})
    for step in range(3):
        run.log({"loss": 0.5, "none": None}, step)  # type: ignore[dict-item]
    run.table("rows", [[1, 2]], 7, columns=["a", "b"])
    run.finish()

    assert run.folder is not None
    assert read_series(run.folder.metrics)["loss"].steps.tolist() == [0, 1, 2]
    assert run.folder.config_toml.read_text() == "lr = 0.1\n"
    net, none = warnings_of(run)
    assert net.startswith("`config.net` is of type torch.nn.modules.linear.Linear")
    assert none.startswith("The value of 'none' is no number: None.")
    assert [each.step for each in artifacts(run.folder)] == [7]


class Failing(dict[str, Any]):
    """A mapping, a number and a text that raise when they are read."""

    def items(self) -> Any:
        raise RuntimeError("no items")

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __float__(self) -> float:
        raise RuntimeError("no number")


@pytest.mark.parametrize(
    ("config", "kept", "reported"),
    [
        ({"a": 1, "b": Failing()}, "a = 1\n", "`config.b` cannot be read: no items."),
        ({"a": 1, b"b": 2}, "a = 1\n", "`config (a key)` is of type bytes"),
        ({"a": os.fsdecode(b"\xff.txt")}, 'a = "\\\\udcff.txt"\n', ""),
    ],
)
def test_what_of_a_config_cannot_be_written_down_is_reported_and_the_rest_is_kept(
    tmp_path: Path, config: dict[Any, Any], kept: str, reported: str
) -> None:
    run = assay.start(project=tmp_path, config=config, keep_output=False)
    run.finish()

    assert run.folder is not None
    assert run.folder.config_toml.read_text() == kept
    assert [each.startswith(reported) for each in warnings_of(run)] == [True] * bool(reported)


def test_no_value_ends_a_training_whatever_it_does_when_it_is_read(tmp_path: Path) -> None:
    run = assay.start(project=tmp_path, keep_output=False)
    closed = (tmp_path / "closed").open("w")
    closed.close()
    for step in range(2):
        run.log({"loss": 0.5, "bad": Failing(), 3: 1.0, "": 1.0}, step)  # type: ignore[dict-item]
        run.log_later({"later": 0.5, "bad": Failing()}, step)
        run.value("bad", Failing())
        run.table("bad", closed)
        run.histogram("bad", Failing())
        run.text("bad", Failing())
        run.video("bad", tmp_path / "missing.mp4")
    run.finish()

    assert run.folder is not None
    series = read_series(run.folder.metrics)
    assert {name: len(curve.steps) for name, curve in series.items()} == {"loss": 2, "later": 2}
    assert len(warnings_of(run)) == len(set(warnings_of(run))) == 7


def test_an_exception_is_the_reason_of_an_end_and_brings_its_traceback(tmp_path: Path) -> None:
    run = assay.start(project=tmp_path, keep_output=False)
    try:
        math.sqrt(-1)
    except ValueError as error:
        run.finish("failed", error)

    assert run.folder is not None
    record = run_file.read(run.folder.path)
    assert (record.status, record.newest.reason) == ("failed", "ValueError: math domain error")
    *_, end = (each.fact for each in read_events(run.folder.events))
    assert isinstance(end, Ended) and "math.sqrt(-1)" in end.traceback


@pytest.mark.parametrize("name", ["tag", "desc"])
def test_settings_in_place_of_a_tag_are_told_apart_from_it(tmp_path: Path, name: str) -> None:
    given: dict[str, Any] = {name: {"lr": 0.1}}

    with pytest.raises(InputError, match=f"The {name} of a run is text, not dict.") as caught:
        assay.start(**given, project=tmp_path)

    assert "assay.start(config=...)" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_numbers_are_numbers_and_the_others_text(tmp_path: Path) -> None:
    with assay.start(project=tmp_path, keep_output=False) as run:
        for kind, given_value in GIVEN.items():
            try:
                run.value(kind, given_value)
            except InputError:
                continue

    assert run.folder is not None
    values = run_file.read(run.folder.path).values
    numbers = [
        values[kind]
        for kind in ("numpy float16", "numpy uint64", "numpy bool", "torch torch.bfloat16")
    ]
    assert repr(numbers) == "[1.0, 1, True, 1.0]"
    assert values["live loss"] == 3.0
    assert values["path"] == "/data/x"
    assert values["datetime"] == "2024-01-31T00:00:00+00:00"
    assert values["numpy moment"] == "2024-01-31T07:32:00.000000001"
    assert (values["enum"], values["enum of an object"], values["int enum"]) == ("red", "ODD", 1)
    assert values["set"] == [1, 2, 3]
    assert values["mapping"] == {"a": {"1": 2.0}, "[1, 2]": ["b"]}
    assert values["namespace"] == {"lr": 0.1, "out": "x", "device": "cpu"}
    assert values["dataclass"] == {"lr": 0.1, "data": "/data"}
    assert values["named tuple"] == {"x": 1, "y": 2.0}
    assert (values["dtype"], values["device"], values["size"]) == ("torch.float16", "cpu", [2, 3])
    assert values["class"] == "torch.nn.modules.linear.Linear"
    assert values["array"] == [[0, 1, 2], [3, 4, 5]]
    assert values["omegaconf"] == {"a": [1, {"b": 2}]}


def test_a_config_of_a_script_may_be_what_its_arguments_were_parsed_into(tmp_path: Path) -> None:
    day = datetime.date(2024, 1, 31)
    parsed = argparse.Namespace(lr=np.float32(0.5), out=Path("x"), day=day, sizes={2, 1}, none=None)

    with assay.start(config=parsed, tag=None, project=tmp_path, keep_output=False) as run:  # type: ignore[arg-type]
        pass

    assert run.folder is not None
    assert plain(loads(run.folder.config_toml.read_text()).root) == {
        "lr": 0.5,
        "out": "x",
        "day": day,
        "sizes": [1, 2],
        "none": None,
    }
    with pytest.raises(InputError, match="A config is a mapping, not str"):
        assay.start(config="a.toml", project=tmp_path)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.dates()
    | st.datetimes()
    | st.sets(st.integers()),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.booleans(), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_what_is_plain_for_a_record_is_plain_for_json_and_stays_what_it_is(value: Any) -> None:
    once = recordable(value, "x")

    assert repr(json.loads(json.dumps(once))) == repr(once)
    assert repr(recordable(once, "x")) == repr(once)


def test_a_value_says_where_inside_of_it_the_trouble_is() -> None:
    with pytest.raises(InputError, match=r"`best\[1\]\.net` is of type .*Bare, which"):
        recordable([1, {"net": Bare()}], "best")
    with pytest.raises(InputError, match=f"holds more than {MAX_ITEMS:,} values"):
        recordable(list(range(MAX_ITEMS)), "best")


@pytest.mark.filterwarnings("error")
def test_a_live_loss_is_let_go_of_its_graph(tmp_path: Path) -> None:
    heard: list[Mapping[str, Any]] = []
    weight = torch.ones(3, requires_grad=True)
    watched = []

    with assay.start(project=tmp_path, keep_output=False) as run:

        class Listening:
            def attach(self, recorder: Any) -> None:
                recorder.listen(lambda values, step: heard.append(values))

        run.log({"loss": 1.0}, 0)
        for step in range(1, 4):
            if step == 2:
                run.attach(Listening())
            loss = (weight * step).sum()
            run.log({"loss": loss, "lr": 0.1}, step)
            run.log_later({"later": loss}, step)
            watched.append(weakref.ref(loss))
            del loss
        gc.collect()
        assert [each() for each in watched] == [None] * 3

    assert heard[0] == {"loss": 6.0, "lr": 0.1}
    assert run.folder is not None
    assert list(read_series(run.folder.metrics)["loss"].values) == [1.0, 3.0, 6.0, 9.0]
    assert list(read_series(run.folder.metrics)["later"].values) == [3.0, 6.0, 9.0]


def test_what_cannot_be_fetched_later_is_reported_at_once(tmp_path: Path) -> None:
    with assay.start(project=tmp_path, keep_output=False) as run:
        for wrong in (torch.ones(2), "text", None, torch.tensor(1j)):
            run.log_later({"loss": torch.tensor(0.5), "x": wrong}, 1)
            assert warnings_of(run)[-1].startswith("The value of 'x' is no number")
        run.log_later({"loss": torch.tensor(0.5), "lr": np.float32(0.5)}, 2)

    assert run.folder is not None
    assert list(read_series(run.folder.metrics)["loss"].values) == [0.5] * 5
    assert list(read_series(run.folder.metrics)["lr"].values) == [0.5]


def kept(run: Run) -> dict[str, bytes]:
    assert run.folder is not None
    store = FileBlobs(run.folder.artifacts)
    return {each.name: store.get(each.digest) for each in artifacts(run.folder)}


def test_tables_are_what_holds_rows_or_columns(tmp_path: Path) -> None:
    tables: dict[str, Any] = {
        "frame": Frame(),
        "columns": {"word": ["cat", "dog"], "score": np.array([0.5, 2.0])},
        "mappings": [{"word": "cat", "score": torch.tensor(0.5)}, {"word": "dog", "score": 2}],
        "named tuples": [Point(1, 2.0)],
        "dataclasses": [Options()],
    }
    with assay.start(project=tmp_path, keep_output=False) as run:
        for name, rows in tables.items():
            run.table(name, rows)
        run.table("array", torch.tensor([[1.0, 2.0]]), columns=["a", "b"])
        for wrong in ("text", 3, [3], ["ab"], {"a": [1], "b": [1, 2]}):
            assert run.table("wrong", wrong, columns=["a", "b"]) == ""
        assert len(warnings_of(run)) == 5

    found = {name: list(csv.reader(io.StringIO(text.decode()))) for name, text in kept(run).items()}
    assert found["frame"] == [["word", "score"], ["cat", "0.5"], ["dog", "2"]]
    assert found["columns"] == [["word", "score"], ["cat", "0.5"], ["dog", "2.0"]]
    assert found["mappings"] == [["word", "score"], ["cat", "0.5"], ["dog", "2"]]
    assert found["named tuples"] == [["x", "y"], ["1", "2.0"]]
    assert found["dataclasses"] == [["lr", "data"], ["0.1", "/data"]]
    assert found["array"] == [["a", "b"], ["1.0", "2.0"]]


def test_images_of_pil_figures_and_batches_are_pictures(tmp_path: Path) -> None:
    red = Image.new("RGB", (4, 3), (255, 0, 0))
    batch = torch.zeros(5, 3, 2, 2)
    with assay.start(project=tmp_path, keep_output=False) as run:
        run.image("red", red)
        run.image("palette", red.convert("P"))
        run.image("batch", batch)
        run.images("one", torch.zeros(3, 2, 2))
        run.images("pictures", [red, red.convert("L")], per_row=1)
        run.figure("axes", figure().axes[0])
        assert run.image("x", figure()) == ""
        assert run.image("x", "plot.png") == ""
        assert run.images("x", [red, np.zeros((2, 2))]) == ""
        said = zip(
            ("run.figure", "run.artifact", "has 2 x 2 and 3 x 4"), warnings_of(run), strict=True
        )
        assert all(part in text for part, text in said)

    found = kept(run)
    for name in ("red", "palette"):
        assert pixels_of(found[name]) == (4, 3, b"\xff\x00\x00" * 12)
    sizes = {name: pixels_of(found[name])[:2] for name in ("batch", "one", "pictures")}
    assert sizes == {"batch": (22, 6), "one": (6, 6), "pictures": (8, 12)}
    assert found["axes"].startswith(b"\x89PNG")


def test_sounds_of_integers_keep_their_loudness(tmp_path: Path) -> None:
    samples = np.array([0, 16383, -32768], np.int16)
    with assay.start(project=tmp_path, keep_output=False) as run:
        run.audio("whole", samples, np.int64(8000))
        run.audio("bytes", np.array([128, 255, 0], np.uint8), 8000.0)  # type: ignore[arg-type]
        assert run.audio("x", samples, 0) == ""
        assert "The rate of a sound" in warnings_of(run)[0]

    with wave.open(io.BytesIO(kept(run)["whole"])) as file:
        assert np.abs(np.frombuffer(file.readframes(3), "<i2") - samples).max() <= 2
    with wave.open(io.BytesIO(kept(run)["bytes"])) as file:
        assert list(np.frombuffer(file.readframes(3), "<i2")) == [0, 32767, -32767]


def test_the_files_of_a_folder_are_kept_each(tmp_path: Path) -> None:
    folder = tmp_path / "plots"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("a")
    (folder / "deep" / "b.txt").write_text("b")
    with assay.start(project=tmp_path, keep_output=False) as run:
        first = run.artifact(folder)
        again = run.artifact(str(folder), "other")
        (folder / "a.txt").write_text("c")
        changed = run.artifact(folder)
        run.artifact(bytearray(b"x"), "bytes")

    assert first == again != changed
    assert set(kept(run)) == {
        "plots/a.txt",
        "plots/deep/b.txt",
        "other/a.txt",
        "other/deep/b.txt",
        "bytes",
    }


def test_gradients_of_a_model_have_one_distribution(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    with assay.start(project=tmp_path, keep_output=False) as run:
        run.histogram("weights", model.parameters())

    assert sum(json.loads(kept(run)["weights"])["counts"]) == 8
