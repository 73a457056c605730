"""State as JSON and tensors: it round-trips unchanged, and a foreign file can do nothing."""

from __future__ import annotations

import enum
import json
import math
import sys
import tempfile
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from assay.core.errors import CheckpointError
from assay.engine.checkpoint import codec
from assay.engine.checkpoint.codec import (
    as_bytes,
    decode,
    digest_encoded,
    digest_state,
    encode,
)
from assay.engine.checkpoint.folder import separate
from assay.engine.checkpoint.saver import Saver
from assay.engine.checkpoint.tensor_file import read_tensors, write_tensors
from assay.engine.numerics.sparse import COMPRESSED, components

pytestmark = pytest.mark.filterwarnings("ignore:Sparse C?.* tensor support is in beta state")

DTYPES = [
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ),
    *(torch.complex64, torch.complex128),
]


def through_text(state: Any) -> Any:
    """Encoded, written as JSON, read, decoded."""
    encoded = encode(state)
    return decode(json.loads(json.dumps(encoded.tree, allow_nan=False)), encoded.tensors)


def same(a: Any, b: Any) -> bool:
    """Equal in type and value, nan to itself, 0.0 not to -0.0, tensors and arrays bit for bit."""
    if type(a) is not type(b):
        return False
    match a:
        case Tensor():
            ours, theirs = components(a), components(b)
            alike = (a.dtype, a.shape, a.layout, len(ours)) == (
                b.dtype,
                b.shape,
                b.layout,
                len(theirs),
            )
            if not alike or (a.is_sparse and a.is_coalesced() != b.is_coalesced()):
                return False
            return [*map(as_bytes, ours)] == [*map(as_bytes, theirs)]
        case np.ndarray():
            return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
        case float() | complex() | np.generic():
            return repr(a) == repr(b)
        case Counter() | dict():
            return (
                len(a) == len(b) and all(map(same, a, b)) and all(map(same, a.values(), b.values()))
            )
        case list() | tuple():
            return len(a) == len(b) and all(map(same, a, b))
        case deque():
            return a.maxlen == b.maxlen and same(list(a), list(b))
        case set() | frozenset():
            return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
        case _:
            return bool(a == b)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Of any dtype and of zero to three dims, some of them empty; half of them not contiguous."""
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    whole = torch.arange(math.prod(shape), dtype=torch.float64).sub(2).to(dtype).reshape(shape)
    return whole.transpose(0, -1) if whole.dim() > 1 and draw(st.booleans()) else whole


@st.composite
def sparse_tensors(draw: st.DrawFn) -> Tensor:
    """Tensors of every sparse layout with two or more dims; coordinates include duplicates."""
    layout = draw(st.sampled_from([torch.sparse_coo, *COMPRESSED]))
    dtype = draw(
        st.sampled_from(
            [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.bool]
        )
    )
    is_blocked = layout in (torch.sparse_bsr, torch.sparse_bsc)
    shape = [
        2 * draw(st.integers(1, 3)) if is_blocked else draw(st.integers(0, 4)) for _ in range(2)
    ]
    dense = (
        torch.tensor([draw(st.integers(0, 2)) for _ in range(math.prod(shape))])
        .to(dtype)
        .reshape(shape)
    )
    if layout is not torch.sparse_coo:
        return dense.to_sparse(layout=layout, blocksize=(2, 2) if is_blocked else None)
    once = dense.to_sparse()
    twice = (
        torch.cat([once._indices(), once._indices()], dim=1),
        torch.cat([once._values(), once._values()]),
    )
    return (
        torch.sparse_coo_tensor(*twice, shape, check_invariants=True)
        if draw(st.booleans())
        else once
    )


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(
        st.sampled_from(
            ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
        )
    )
    whole = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
    return whole[::-1].T if draw(st.booleans()) and shape else whole


numpy_scalars = st.one_of(
    st.booleans().map(np.bool_),
    st.integers(-128, 127).map(np.int8),
    st.integers(0, 2**64 - 1).map(np.uint64),
    st.floats(width=16).map(np.float16),
    st.floats(width=32).map(np.float32),
    st.floats().map(np.float64),
)
hashable = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(10**40), 10**40),
        st.floats(),
        st.text(),
        st.just("$"),
        st.binary(),
        st.complex_numbers(),
        st.text(st.characters(exclude_characters="\0", codec="utf-8")).map(Path),
        st.sampled_from(
            [
                *DTYPES,
                torch.device("cpu"),
                torch.device("cuda:1"),
                torch.Size([2, 3]),
                torch.Size([]),
            ]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=3)
    ),
    max_leaves=4,
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.just("$")), inner, max_size=4),
        st.dictionaries(hashable, inner, max_size=4),
        st.dictionaries(hashable, inner, max_size=3).map(OrderedDict),
        st.dictionaries(hashable, st.integers(), max_size=3).map(Counter),
        st.sets(hashable, max_size=4),
        st.builds(deque, st.lists(inner, max_size=3), maxlen=st.sampled_from([None, 2, 5])),
    )


states = st.recursive(
    st.one_of(hashable, tensors(), sparse_tensors(), arrays(), numpy_scalars),
    containers,
    max_leaves=12,
)


# --------------------------------------------------------------------------------------------------- what can be kept


@given(states)
def test_whatever_can_be_kept_comes_back_as_it_was(state: Any) -> None:
    assert same(through_text(state), state)


@given(states)
def test_what_came_back_has_the_fingerprint_of_what_went_in(state: Any) -> None:
    encoded = encode(state)

    assert digest_state(through_text(state)) == digest_encoded(encoded) == digest_state(state)


def test_integers_of_any_length_are_kept() -> None:
    numbers = [2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**5000, -(10**5000)]

    assert through_text(numbers) == numbers


@pytest.mark.parametrize("text", ["a\udc80", "\0", "\u2028", "𝄞"])
def test_text_that_no_encoding_holds_is_kept(text: str) -> None:
    state = through_text({text: torch.ones(1), "text": text})

    assert list(state) == [text, "text"]
    assert state["text"] == text
    for name in encode({text: torch.ones(1)}).tensors:
        name.encode("utf-8")


def test_a_parameter_comes_back_as_a_tensor() -> None:
    weight = nn.Parameter(torch.randn(2, 3))

    assert same(through_text({"w": weight})["w"], weight.detach())


def test_views_come_back_with_what_can_be_seen_through_them() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    square = torch.arange(9.0).reshape(3, 3)
    complex_ = torch.tensor([1 + 2j, 3 - 1j])
    state = {
        "square": square,
        "turned": square.t(),
        "first row": square[0],
        "second row": square[1],
        "slice": whole[1:, 2],
        "transposed": whole.t(),
        "channels last": torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last),
        "expanded": torch.ones(1).expand(3),
        "reversed": torch.from_numpy(np.arange(4.0)[::-1].copy()),
        "conjugate": complex_.conj(),
        "negated": complex_.conj().imag,
        "imaginary": complex_.imag,
        "plain": complex_,
    }

    assert same(
        through_text(state),
        {name: tensor.resolve_conj().resolve_neg().clone() for name, tensor in state.items()},
    )


def test_what_was_one_tensor_is_one_tensor_again() -> None:
    shared = torch.randn(3)
    state = through_text(
        {
            "encoder": shared,
            "decoder": nn.Parameter(shared),
            "half": shared[:2],
            "copy": shared.clone(),
        }
    )

    assert state["encoder"] is state["decoder"]
    assert state["copy"] is not state["encoder"]
    assert len(encode(state).tensors) == 3


def test_tensors_whose_paths_read_alike_are_kept_apart() -> None:
    state: dict[Any, Any] = {
        "a": {"b": torch.tensor(1)},
        "a.b": torch.tensor(2),
        "a.b'": torch.tensor(3),
        "__metadata__": torch.tensor(4),
    }
    mixed: dict[Any, Any] = {1: torch.tensor(5), "1": torch.tensor(6)}

    assert same(through_text(state), state)
    assert same(through_text(mixed), mixed)
    assert "__metadata__" not in encode(state).tensors


def test_big_endian_arrays_and_odd_layouts_keep_their_values() -> None:
    array = np.arange(6, dtype=">i4").reshape(2, 3)[:, ::-1]

    back = through_text(array)

    assert back.tolist() == array.tolist()
    assert back.dtype == np.dtype("i4")
    assert through_text(np.ulonglong(7)) == 7


def test_the_weights_of_a_module_keep_the_versions_of_their_layers() -> None:
    class Renamed(nn.Module):
        """Its second version stores the inverse of what the first one stored."""

        _version = 2

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([4.0]))

        def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
            if (metadata.get("version") or 1) < 2:
                state[prefix + "weight"] = 1 / state[prefix + "weight"]
            super()._load_from_state_dict(state, prefix, metadata, *rest)

    model = nn.Sequential(Renamed(), nn.BatchNorm1d(2))
    state = through_text(model.state_dict())
    model.load_state_dict(state)

    assert type(state) is OrderedDict
    assert model[0].weight.item() == 4.0


@pytest.mark.parametrize(
    "kind", ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"]
)
def test_numbers_that_a_file_has_no_name_for_are_kept_as_bytes(kind: str) -> None:
    dtype = getattr(torch, kind)
    scales = torch.arange(8, dtype=torch.uint8).view(dtype).reshape(2, 4)

    back = through_text({"scales": scales})["scales"]

    assert (back.dtype, back.shape) == (dtype, (2, 4))
    assert back.view(torch.uint8).tolist() == scales.view(torch.uint8).tolist()
    assert digest_state({"scales": scales}) != digest_state({"scales": scales.view(torch.uint8)})


@settings(max_examples=40)
@given(states)
def test_whatever_can_be_kept_comes_back_from_its_files(state: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        saver = Saver(folder)
        saver.save_checkpoint(1, {"odd": state})
        back = saver.load()

    assert same(back["odd"], state)


@given(st.lists(tensors(), max_size=5))
def test_a_file_of_tensors_is_one_that_others_read(items: list[Tensor]) -> None:
    kept = encode({f"t{i}": item for i, item in enumerate(items)}).tensors
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.safetensors"
        file = write_tensors(path, separate(kept))
        data = path.read_bytes()
        own, read = read_tensors(path), load_file(path)

    assert (file.size_bytes, file.sha256) == (len(data), sha256(data).hexdigest())
    assert own.keys() == read.keys() == kept.keys()
    for name, tensor in kept.items():
        assert same(read[name], tensor.contiguous()) and same(own[name], tensor.contiguous())


# ------------------------------------------------------------------------------------------------ what cannot be kept


class Color(enum.Enum):
    RED = 1


class Text(str):
    pass


class Special(Tensor):
    pass


Pair = namedtuple("Pair", "a b")
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (object(), "builtins.object"),
        (print, "builtin_function_or_method"),
        (Color.RED, "test_codec.Color"),
        (Text("a"), "test_codec.Text"),
        (Pair(1, 2), "test_codec.Pair"),
        (defaultdict(int), "collections.defaultdict"),
        (np.array(["a"]), "arrays of numbers, not of <U1"),
        (np.array([None]), "arrays of numbers, not of object"),
        (np.zeros(2, dtype=[("a", "i4")]), "arrays of numbers"),
        (np.zeros(2, dtype="M8[s]"), "arrays of numbers"),
        (np.complex64(1), "numpy complex64"),
        (np.str_("a"), "numpy <U1"),
        (torch.empty(2, device="meta"), "tensors that hold data"),
        (torch.ones(2).as_subclass(Special), "a Special yet"),
    ],
)
def test_what_cannot_be_kept_is_named_with_the_path_to_it(value: Any, what: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        encode({"optimizer": [1, {"ema": value}]})

    assert what in caught.value.what
    assert caught.value.where == "optimizer[1].ema"


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="here it is a double")
def test_numbers_of_more_than_64_bits_are_refused() -> None:
    with pytest.raises(CheckpointError, match="cannot keep a numpy"):
        encode(np.longdouble(1))
    with pytest.raises(CheckpointError, match="arrays of numbers"):
        encode(np.zeros(2, dtype=np.longdouble))


def test_a_value_that_cannot_be_kept_at_the_root_is_named_as_such() -> None:
    with pytest.raises(CheckpointError) as caught:
        encode(object())

    assert caught.value.where == "<root>"
    assert "state_dict" in caught.value.fix


def test_what_contains_itself_is_refused() -> None:
    with pytest.raises(CheckpointError, match="contains itself"):
        encode({"a": CYCLE})


# -------------------------------------------------------------------------------------------------------- fingerprints


def test_a_fingerprint_does_not_depend_on_order_or_memory() -> None:
    a, b = torch.arange(6.0).reshape(2, 3), torch.ones(2)

    assert digest_state({"a": a, "b": b}) == digest_state({"b": b, "a": a})
    assert digest_state({1: a, 2: b}) == digest_state({2: b, 1: a})
    assert digest_state(OrderedDict(x=1, y=(2,))) == digest_state(OrderedDict(y=(2,), x=1))
    assert digest_state(a) == digest_state(a.t().contiguous().t()) == digest_state(nn.Parameter(a))
    assert (
        digest_state({"a": b, "b": b})
        == digest_state({"b": b, "a": b})
        == digest_state({"a": b, "b": b.clone()})
    )
    assert digest_state({frozenset({"a", "b"}), frozenset({"c"})}) == digest_state(
        {frozenset({"c"}), frozenset({"b", "a"})}
    )


def test_everything_that_differs_has_a_fingerprint_of_its_own() -> None:
    one = torch.ones(2)
    all_different = [
        *(
            0,
            0.0,
            -0.0,
            False,
            None,
            "",
            b"",
            0j,
            (),
            [],
            {},
            set(),
            frozenset(),
            deque(),
            deque(maxlen=1),
        ),
        *(
            OrderedDict(),
            Counter(),
            math.nan,
            math.inf,
            Path(),
            "0",
            {"a": 1},
            {"a": 2},
            {"b": 1},
            {1: 1},
            {"1": 1},
        ),
        *(
            one,
            one * 2,
            one.double(),
            one[:1],
            one.reshape(1, 2),
            one.reshape(2, 1),
            one.numpy(),
            one.to(torch.int32),
        ),
        *(
            [one, one * 2],
            [one * 2, one],
            {"a": one, "b": one * 2},
            {"a": one * 2, "b": one},
            [1, [2]],
            [[1], 2],
        ),
        *(
            torch.float32,
            torch.float64,
            torch.device("cpu"),
            torch.Size([0]),
            np.float32(0),
            np.float64(0),
            np.int64(0),
        ),
    ]

    assert len({digest_state(state) for state in all_different}) == len(all_different)


@given(st.lists(sparse_tensors(), max_size=4))
def test_sparse_tensors_have_one_fingerprint_if_layout_shape_indices_and_values_are_equal(
    items: list[Tensor],
) -> None:
    for one in items:
        for other in items:
            assert (digest_state(one) == digest_state(other)) == same(one, other)
        assert digest_state(one) == digest_state(one.clone()) != digest_state(one.to_dense())


# ----------------------------------------------------------------------------------------------- a stranger's file

TAGS = sorted(codec._DECODERS)
json_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(TAGS),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["$", "a", "b"]), inner, max_size=2),
        st.builds(
            lambda tag, parts: {"$": [tag, *parts]},
            st.sampled_from(TAGS),
            st.lists(inner, max_size=3),
        ),
    ),
    max_leaves=10,
)


@given(json_values)
def test_any_json_is_either_state_or_a_checkpoint_error(tree: Any) -> None:
    try:
        decode(tree, {"a": torch.ones(2)})
    except CheckpointError as error:
        assert "\n" not in error.what


@pytest.mark.parametrize(
    "tree",
    [
        {"$": "tensor"},
        {"$": []},
        {"$": ["eval", "1+1"]},
        {"$": ["tensor", "a"], "more": 1},
        {"$": [["tensor"], "a"]},
        {"$": None},
        {"$": {"tuple": 1}},
    ],
)
def test_a_value_of_an_unknown_kind_is_refused(tree: Any) -> None:
    with pytest.raises(CheckpointError, match="unknown kind"):
        decode({"deep": [tree]}, {"a": torch.ones(1)})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (["tensor", "b"], "names a tensor that it does not hold: 'b'"),
        (["array", "b"], "names a tensor that it does not hold: 'b'"),
        (
            ["sparse", "sparse_coo", [2], False, {"$": ["tensor", "b"]}],
            "names a tensor that it does not hold: 'b'",
        ),
        (["sparse", "sparse_coo", [2], False, {"$": ["tensor", "a"]}], "bad sparse"),
        (
            ["sparse", "sparse_coo", [2], True, {"$": ["tensor", "at"]}, {"$": ["tensor", "a"]}],
            "bad sparse",
        ),
        (
            [
                "sparse",
                "sparse_csr",
                [3, 3],
                False,
                *[{"$": ["tensor", "at"]}] * 2,
                {"$": ["tensor", "a"]},
            ],
            "bad sparse",
        ),
        (["sparse", "eval", [2], False], "no sparse layout 'eval'"),
        (["sparse"], "bad sparse"),
        (["tensor"], "bad tensor"),
        (["tensor", ["a"]], "bad tensor"),
        (["tensor", "a", "complex"], "bad tensor"),
        (["set", [1]], "bad set"),
        (["dict", [1]], "bad dict"),
        (["dict", [[], 1]], "bad dict"),
        (["counter", 1], "bad counter"),
        (["modules"], "bad modules"),
        (["deque", "x"], "bad deque"),
        (["deque", -1], "bad deque"),
        (["bytes", "no base 64!"], "bad bytes"),
        (["int", "one"], "bad int"),
        (["int", 1], "bad int"),
        (["float", "x"], "bad float"),
        (["complex", "1"], "bad complex"),
        (["path", 1], "bad path"),
        (["dtype", "load"], "no dtype 'load'"),
        (["dtype", "no such"], "no dtype"),
        (["dtype", ["float32"]], "bad dtype"),
        (["device", "toaster"], "bad device"),
        (["size", "x"], "bad size"),
        (["scalar", "O", 1], "no numeric dtype 'O'"),
        (["scalar", "<i1", 1000], "bad scalar"),
        (["scalar", "nonsense", 1], "bad scalar"),
    ],
)
def test_a_malformed_value_is_named_with_the_path_to_it(parts: list[Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        decode(
            {"state": [0, {"$": parts}]}, {"a": torch.ones(3), "at": torch.tensor([[0, 1, 2**40]])}
        )

    assert message in caught.value.what


def test_where_a_malformed_value_lies_is_said() -> None:
    with pytest.raises(CheckpointError) as caught:
        decode({"state": [0, {"$": ["float", "x"]}]}, {})

    assert caught.value.where == "state[1]"


def test_a_file_nested_a_million_deep_is_refused() -> None:
    tree: Any = 1
    for _ in range(100_000):
        tree = [tree]

    with pytest.raises(CheckpointError, match="nested too deep"):
        decode(tree, {})

    while isinstance(tree, list):  # or freeing it would be as deep
        tree = tree.pop()


def test_reading_a_dtype_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.onnx", raising=False)
    monkeypatch.delitem(vars(torch), "onnx", raising=False)

    with pytest.raises(CheckpointError, match="no dtype 'onnx'"):
        decode({"$": ["dtype", "onnx"]}, {})

    assert "torch.onnx" not in sys.modules
