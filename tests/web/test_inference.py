"""`assay serve`: the protocol, batches, limits, and requests of any kind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file

from assay.core.errors import InputError, MissingCheckpointError
from assay.formats.export_folder import (
    EXAMPLE,
    ExportCertificate,
    ExportSchema,
    TensorSchema,
    sha256_of,
)
from assay.formats.json_codec import write_json
from assay.web.inference.protocol import ModelInputError, parse_infer, parse_plain
from assay.web.inference.served_model import ServedModel, open_folder
from run_folders import make_project, make_run
from web.model_server import Server, serving

pytestmark = pytest.mark.slow

WEIGHTS = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
POINTS = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
X = TensorSchema(name="x", dtype="float32", shape=("batch", 4))
SCORES = TensorSchema(name="scores", dtype="float32", shape=("batch", 2))


def leave(
    folder: Path,
    nodes: list[Any],
    inputs: Mapping[str, NDArray[Any]],
    schema: ExportSchema,
    batch: int = 6,
    **constants: Any,
) -> Path:
    """Write an exported folder as `assay export` does, around a graph made by hand."""
    folder.mkdir()
    kinds = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
    values = [
        [helper.make_tensor_value_info(t.name, kinds[t.dtype], list(t.shape)) for t in tensors]
        for tensors in (schema.inputs, schema.outputs)
    ]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "made", *values, initializer=weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    certificate = ExportCertificate(
        run="made0001",
        checkpoint="step-000000003",
        weights="",
        target="onnx",
        files={"model.onnx": sha256_of(folder / "model.onnx")},
        split="valid",
        samples=len(POINTS),
        is_whole=True,
        tolerance=1e-4,
        is_within=True,
        outputs={},
        recorded={},
        exported={},
        batch=batch,
    )
    write_json(folder / "schema.json", schema)
    write_json(folder / "certificate.json", certificate)
    from assay.formats.onnx_model import open_onnx

    given = {name: array for name, array in inputs.items()}
    names = [each.name for each in schema.outputs]
    outputs = dict(zip(names, open_onnx(folder / "model.onnx").run(names, given), strict=True))
    example = {f"input.{name}": array for name, array in inputs.items()}
    save_file(
        example | {f"output.{name}": a for name, a in outputs.items()},
        folder / "example.safetensors",
    )
    return folder


def leave_linear(folder: Path, scale: float = 1.0) -> Path:
    """`scores = x @ w`."""
    schema = ExportSchema(model="model.onnx", inputs=(X,), outputs=(SCORES,))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["scores"])]
    return leave(folder, nodes, {"x": POINTS}, schema, w=WEIGHTS * np.float32(scale))


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return leave_linear(tmp_path_factory.mktemp("served") / "points")


@pytest.fixture(scope="module")
def server(linear: Path) -> Iterator[Server]:
    with serving(linear) as found:
        yield found


@pytest.mark.row("B38")
def test_a_plain_predict_on_loopback_answers_what_the_model_gives(server: Server) -> None:
    assert "points: made0001@step-000000003, version" in server.said[0]
    status, answer = server.predict(POINTS)

    assert status == 200
    np.testing.assert_allclose(answer["scores"], POINTS @ WEIGHTS, rtol=1e-5)
    assert server.ask("GET", "/v2/health/live")[0] == 200
    assert server.ask("GET", "/v2/health/ready")[0] == 200


@pytest.mark.row("B38")
@pytest.mark.parametrize(
    ("body", "field", "what"),
    [
        (b"{", "the body", "no JSON"),
        ([], "the body", "no JSON object"),
        ({}, "x", "missing: float32 (batch, 4)"),
        ({"y": [[1]], "x": [[1, 2, 3, 4]]}, "y", "no `y`"),
        ({"x": 3}, "x", "no list"),
        ({"x": [[1, 2], [3]]}, "x", "not of one length"),
        ({"x": [["a", "b", "c", "d"]]}, "x", "holds text"),
        ({"x": [[1, 2, 3, None]]}, "x", "something else than numbers"),
        ({"x": [[1, 2, 3, 1e300]]}, "x", "beyond float32"),
        ({"x": [[1, 2, 3]]}, "x", "shape is [1, 3]"),
        ({"x": [1, 2, 3, 4]}, "x", "shape is [4]"),
        ({"x": []}, "x", "shape is [0]"),
        ({"x": [[[1], [2], [3], [4]]]}, "x", "something else than numbers"),
        ({"x": [[1, 2, 3, 10**400]]}, "x", "beyond float32"),
        ({"x": [[1, 2, 3, "many"]]}, "x", "holds text"),
        ({"\udc80": 1}, "\udc80", "There is no"),
        (b'{"x": [[1, 2, 3, 1e999]]}', "x", "beyond float32"),
        (b'{"x": [[1, 2, 3, NaN]]}', "the body", "no number of JSON"),
        (b'{"x": [[1, 2, 3, ' + b"1" * 5000 + b"]]}", "the body", "no JSON"),
        (b'{"x": [[1, 2, 3, 4]], "x": [[1, 2, 3, 4]]}', "the body", "'x' is given twice"),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "the body", "no JSON"),
        (b"\xff\xfe\x00", "the body", "no JSON"),
    ],
)
def test_wrong_input_gets_422_with_the_name_of_the_field(
    server: Server, body: Any, field: str, what: str
) -> None:
    status, answer, _ = server.ask("POST", "/predict", body)

    assert status == 422
    assert answer["where"] == field and what in answer["what"]
    assert answer["error"].startswith(field)


def infer_body(**changed: Any) -> dict[str, Any]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    return {"inputs": [{k: v for k, v in (tensor | changed).items() if v is not None}]}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (infer_body(name="z"), "inputs"),
        (infer_body(datatype="INT8"), "inputs.x.datatype"),
        (infer_body(shape=[1, -4]), "inputs.x.shape"),
        (infer_body(shape=[2, 4]), "inputs.x.data"),
        (infer_body(data=None), "inputs.x.data"),
        (infer_body(shape=[4]), "inputs.x.shape"),
        (infer_body(parameters={"binary_data_size": 16}), "inputs.x.parameters"),
        (infer_body(parameters={"shared_memory_region": "a"}), "inputs.x.parameters"),
        (infer_body(shape=[10**18] * 300), "inputs.x.shape"),
        (infer_body(shape=[2**63 - 1] * 60_000), "inputs.x.shape"),
        (infer_body(shape=[10**18, 4]), "inputs.x.shape"),
        (infer_body(shape=[1, True]), "inputs.x.shape"),
        (infer_body(data=[[1, 2], [3, 4]]), "inputs.x.data"),
        (infer_body() | {"id": 7}, "id"),
        ({"inputs": infer_body()["inputs"] * 2}, "inputs.x"),
        (infer_body() | {"outputs": [{"name": "loss"}]}, "outputs"),
        ({}, "inputs.x"),
    ],
)
def test_a_wrong_request_of_the_protocol_names_its_field(
    server: Server, body: Any, field: str
) -> None:
    status, answer, _ = server.ask("POST", "/v2/models/points/infer", body)

    assert (status, answer["where"]) == (422, field)


WORDS = st.sampled_from(
    [
        "inputs",
        "outputs",
        "name",
        "x",
        "shape",
        "datatype",
        "FP32",
        "data",
        "parameters",
        "id",
        "nan",
    ]
)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=25,
)


@given(asked=JSONS)
def test_whatever_a_request_says_it_is_taken_or_named_wrong(asked: Any) -> None:
    schema = ExportSchema(model="model.onnx", inputs=(X,), outputs=(SCORES,))
    text = json.dumps(asked).encode()

    for parse in (parse_infer, parse_plain):
        with contextlib.suppress(ModelInputError):
            parse(text, schema)


def test_numbers_that_json_lacks_go_in_and_out_as_the_same_texts(server: Server) -> None:
    status, answer, _ = server.ask("POST", "/predict", {"x": [["nan", "inf", 0, "-inf"]]})
    tensor = infer_body(data=["nan", 1, 2, 3])
    _, found, _ = server.ask("POST", "/v2/models/points/infer", tensor)

    assert (status, answer) == (200, {"scores": [["nan", "nan"]]})
    assert found["outputs"][0]["data"] == ["nan", "nan"]


def test_the_official_client_finds_and_asks_the_model(server: Server) -> None:
    triton = pytest.importorskip("tritonclient.http")
    with contextlib.closing(triton.InferenceServerClient(f"localhost:{server.port}")) as client:
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("points") and not client.is_model_ready("other")
        assert client.get_server_metadata()["name"] == "assay"
        metadata = client.get_model_metadata("points")
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
        assert metadata["outputs"] == [{"name": "scores", "datatype": "FP32", "shape": [-1, 2]}]
        (version,) = metadata["versions"]

        asked = triton.InferInput("x", POINTS.shape, "FP32")
        asked.set_data_from_numpy(POINTS, binary_data=False)
        wanted = triton.InferRequestedOutput("scores", binary_data=False)
        for outputs in (None, [wanted]):
            found = client.infer("points", [asked], version, outputs, request_id="one")
            answer = found.get_response()
            assert (answer["id"], answer["model_version"]) == ("one", version)
            np.testing.assert_allclose(found.as_numpy("scores"), POINTS @ WEIGHTS, rtol=1e-5)

        with pytest.raises(triton.InferenceServerException, match=r"x.*shape is"):
            short = triton.InferInput("x", [1, 3], "FP32")
            short.set_data_from_numpy(POINTS[:1, :3], binary_data=False)
            client.infer("points", [short])
        with pytest.raises(triton.InferenceServerException, match="The version of points is"):
            client.infer("points", [asked], "7")
        with pytest.raises(triton.InferenceServerException, match="send them without binary data"):
            binary = triton.InferInput("x", POINTS.shape, "FP32").set_data_from_numpy(POINTS)
            client.infer("points", [binary])


def test_requests_that_run_together_get_what_each_would_alone(linear: Path) -> None:
    # It waits for minutes, unless four are there.
    with serving(linear, "--max-batch", "4", "--wait-ms", "60000") as server:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda i: server.predict(POINTS[i : i + 1]), range(4)))

        for i, (status, answer) in enumerate(found):
            assert status == 200
            np.testing.assert_allclose(answer["scores"], POINTS[i : i + 1] @ WEIGHTS, rtol=1e-5)


def test_more_requests_than_allowed_get_429_while_health_goes_on(linear: Path) -> None:
    with (
        serving(linear, "--max-requests", "1", "--wait-ms", "60000", "--timeout", "1") as server,
        server.waiting(POINTS[:3]) as link,
    ):
        assert server.ask("GET", "/v2/health/ready")[0] == 200
        assert link.getresponse().status == 503


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_told_to_end_answers_what_has_arrived(
    linear: Path, number: signal.Signals
) -> None:
    with (
        serving(linear, "--max-requests", "1", "--wait-ms", "500") as server,
        server.waiting(POINTS[:3]) as link,
    ):
        server.process.send_signal(number)

        assert link.getresponse().status == 200
        assert server.process.wait(60) == 128 + number


LARGE = [
    infer_body(shape=[2**63 - 1] * 60_000),
    infer_body(data=[1e-5] * 500_000),
    {"x": [[0.25] * 4] * 150_000},
    {"x": [["nan"] * 400_000]},
    {"x": [[[]] * 800_000]},
    {f"{i}": i for i in range(200_000)},
    {"inputs": [{}] * 800_000},
]


def test_health_is_answered_while_the_largest_requests_are_read(server: Server) -> None:
    bodies = [json.dumps(each).encode() for each in LARGE]
    assert max(len(each) for each in bodies) < 4 << 20
    paths = ("/predict", "/v2/models/points/infer")
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(server.ask, "POST", path, body) for path in paths for body in bodies]
        while not all(each.done() for each in asked):
            assert server.ask("GET", "/v2/health/live")[0] == 200

    assert {each.result()[0] for each in asked} == {200, 422}


def test_half_open_connections_do_not_stop_a_server_with_few_descriptors(linear: Path) -> None:
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); "
    with serving(linear, before=few) as server, contextlib.ExitStack() as stack:
        for head in [b"", b"GET /v2 HTTP/1.1\r\nhost: local", b"POST /predict HTTP/1.1\r\n"] * 100:
            link = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            with contextlib.suppress(ConnectionError):  # it made room already
                link.sendall(head)

        assert server.ask("GET", "/v2/health/live")[0] == 200
        assert server.predict(POINTS)[0] == 200


def test_a_request_that_takes_too_long_or_is_too_large_is_refused(linear: Path) -> None:
    with serving(linear, "--wait-ms", "60000", "--timeout", "0.2", "--max-mb", "1") as server:
        status, answer = server.predict(POINTS[:3])
        assert status == 503 and "no answer within 0.2 s" in answer["what"]

        status, answer, _ = server.ask("POST", "/predict", b"[" * (1 << 20) + b"]")
        assert status == 413 and "at most 1 MB" in answer["what"]
        status, answer, _ = server.ask("GET", "/v2", content_length="9" * 20)
        assert status == 413
        status, answer, _ = server.ask("POST", "/predict", b"", transfer_encoding="chunked")
        assert status == 411


def test_one_bad_sample_does_not_fail_the_others_of_its_batch(tmp_path: Path) -> None:
    schema = ExportSchema(
        model="model.onnx",
        inputs=(TensorSchema(name="x", dtype="int64", shape=("batch", "x_1")),),
        outputs=(TensorSchema(name="scores", dtype="float32", shape=("batch", "x_1", 2)),),
    )
    nodes = [helper.make_node("Gather", ["w", "x"], ["scores"])]
    folder = leave(tmp_path / "words", nodes, {"x": np.array([[0, 1], [2, 3]])}, schema, w=WEIGHTS)
    with serving(folder, "--max-batch", "4", "--wait-ms", "60000") as server:
        words = [[[0, 1]], [[1, 9]], [[2, 2]], [[3, 0]]]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda x: server.predict(np.array(x)), words))

        assert [status for status, _ in found] == [200, 422, 200, 200]
        assert found[1][1]["where"] == "inputs" and "out of data bounds" in found[1][1]["what"]
        np.testing.assert_allclose(found[3][1]["scores"], [WEIGHTS[[3, 0]]], rtol=1e-6)
        status, answer, _ = server.ask("POST", "/predict", {"x": [[0.5, 1]]})
        assert status == 422 and "holds floats, and int64 is taken" in answer["what"]


def test_samples_run_together_only_where_the_certificate_has_shown_that_they_may(
    tmp_path: Path,
) -> None:
    schema = ExportSchema(model="model.onnx", inputs=(X,), outputs=(replace(X, name="y"),))
    mean = helper.make_node("ReduceMean", ["x", "axis"], ["mean"])
    nodes = [mean, helper.make_node("Sub", ["x", "mean"], ["y"])]
    folder = leave(tmp_path / "mean", nodes, {"x": POINTS}, schema, 1, axis=np.array([0]))

    with serving(folder, "--wait-ms", "60000") as server:
        assert server.said[2].startswith("one request at a time: ")
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda i: server.predict(POINTS[: i % 5 + 2]), range(64)))

    for i, (status, answer) in enumerate(found):
        points = POINTS[: i % 5 + 2]
        assert status == 200
        np.testing.assert_allclose(answer["y"], points - points.mean(0), atol=1e-5)


def test_a_run_that_is_not_there_is_told_once_and_nothing_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path)
    make_run(project, id="aaaaaaaa")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    said: list[str] = []

    for address, what in [
        ("nope", "There is no run `nope`"),
        ("empty", r"it has no certificate\.json"),
        ("aaaaaaaa@7", "The run aaaaaaaa has no checkpoint `7`"),
    ]:
        with (
            pytest.raises((InputError, MissingCheckpointError), match=what),
            open_folder(address, trust=False, tell=said.append),
        ):
            pass

    assert said == []


def test_what_its_certificate_does_not_vouch_for_is_not_served(
    linear: Path, tmp_path: Path
) -> None:
    def changed(name: str, change: Callable[[Path], object]) -> Path:
        folder = Path(shutil.copytree(linear, tmp_path / name))
        change(folder)
        return folder

    def certify(**fields: Any) -> Callable[[Path], object]:
        def change(folder: Path) -> None:
            file = folder / "certificate.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | fields))

        return change

    def trained_on(folder: Path) -> None:
        example = load_file(folder / "example.safetensors")
        example["output.scores"] = example["output.scores"] + 0.1
        save_file(example, folder / "example.safetensors")

    other = leave_linear(tmp_path / "other", scale=2) / "model.onnx"
    for name, change, what in [
        ("beyond", certify(is_within=False), "not within its tolerance"),
        ("weights", certify(target="safetensors"), "exports to ONNX are served"),
        ("path", certify(files={"../model.onnx": ""}), "not the one that its certificate"),
        ("altered", lambda f: shutil.copy(other, f / "model.onnx"), "not the one that its certifi"),
        ("elsewhere", trained_on, "gives other outputs here"),
        ("empty", lambda f: (f / EXAMPLE).write_bytes(b""), "cannot be run"),
        ("cut", lambda f: os.truncate(f / EXAMPLE, 60), "cannot be run"),
        ("lacking", lambda f: save_file({"input.x": POINTS}, f / EXAMPLE), "cannot be run"),
        ("shape", lambda f: save_file({"input.x": WEIGHTS}, f / EXAMPLE), "cannot be run"),
        ("pipe", lambda f: (os.unlink(f / EXAMPLE), os.mkfifo(f / EXAMPLE)), "a named pipe"),
    ]:
        with pytest.raises(InputError, match=what):
            ServedModel(changed(name, change))


def test_other_sites_and_other_names_reach_no_model(server: Server) -> None:
    host = f"127.0.0.1:{server.port}"
    assert server.ask("GET", "/v2", host="evil.example")[0] == 421
    assert server.ask("POST", "/predict", {}, host=host, origin="http://evil.example")[0] == 403
    assert server.ask("POST", "/predict", {}, host=host, sec_fetch_site="cross-site")[0] == 403
    status, answer, _ = server.ask("GET", "/nowhere")
    assert status == 404 and answer["error"]


def test_beyond_this_machine_a_token_is_needed_by_everything_but_health(linear: Path) -> None:
    token = "a-token-of-some-length"
    with (
        pytest.raises(AssertionError, match=r"On 0\.0\.0\.0 anybody in the network"),
        serving(linear, "--host", "0.0.0.0"),
    ):
        pass

    with serving(linear, "--host", "0.0.0.0", ASSAY_SERVE_TOKEN=token) as server:
        assert server.ask("GET", "/v2/health/ready")[0] == 200
        for headers in ({}, {"authorization": "Bearer another-of-some-length"}):
            assert server.ask("GET", "/v2", **headers)[0] == 401
            assert server.ask("POST", "/predict", {"x": POINTS.tolist()}, **headers)[0] == 401
        assert server.ask("GET", "/v2", authorization=f"Bearer {token}", host="a.proxy")[0] == 200
