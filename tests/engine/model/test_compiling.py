"""A compiled model learns as the plain one, for any batch size; torch's graphs are reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import InputError
from assay.core.ports import MemoryRecorder
from assay.engine import Loader
from assay.engine.callbacks.debug_lines import CompileReport
from assay.engine.loop.device import channels_last
from assay.engine.model.compiling import _check_home, compile_model, recompute
from engine.model.test_recompute import Deep
from engine.toys import engine, net, points, supervised, weights_of

pytestmark = [  # of torch about itself
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # type: ignore[attr-defined]
    yield
    torch._dynamo.reset()


def losses(
    model: nn.Module, which: Any, backend: str
) -> tuple[list[float], MemoryRecorder, list[str]]:
    recorder, said = MemoryRecorder(), []
    names = list(model.state_dict())
    compile_model(model, which, backend=backend)
    runs = engine(supervised(model), Loader(points(20), batch_size=8), recorder=recorder)
    runs.bus.extend(CompileReport(said.append).handlers())
    runs.run()
    assert list(model.state_dict()) == names
    return [loss for _, loss in recorder.curve("train/loss")], recorder, said


@pytest.mark.thorough
@pytest.mark.row("E51")
@pytest.mark.parametrize("which", [True, "blocks", ["0"]])
def test_losses_are_those_of_the_plain_model(which: Any) -> None:
    plain, _, _ = losses(net(), False, "")

    fast, recorder, said = losses(net(), which, "aot_eager")

    assert fast == pytest.approx(plain, rel=1e-5)
    ((_, graphs),) = recorder.curve("compile/graphs")
    assert graphs >= 1
    assert recorder.curve("compile/graph_breaks") == [(6, 0.0)]
    assert said == [f"compiled graphs: {graphs:.0f}, graph breaks: 0"]


@pytest.mark.row("E51")
def test_a_model_that_cannot_be_compiled_learns_as_it_is_and_a_warning_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no kernel for this machine")

    torch._dynamo.register_backend(compiler_fn=refuse, name="refuses")  # type: ignore[no-untyped-call]
    plain, _, _ = losses(net(), False, "")

    eager, _, _ = losses(net(), True, "refuses")

    assert eager == plain
    assert "not compiled: RuntimeError: no kernel for this machine" in caplog.text


class Breaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        torch._dynamo.graph_break()
        return self.inner(x)  # type: ignore[no-any-return]


@pytest.mark.row("E51")
def test_graph_breaks_are_counted_and_told_with_their_reason() -> None:
    _, recorder, said = losses(Breaks(), True, "aot_eager")

    ((_, breaks),) = recorder.curve("compile/graph_breaks")
    assert breaks >= 1
    assert any(line.startswith("graph break (") and "graph_break" in line for line in said[1:])


def test_images_come_to_the_model_with_their_channels_last_and_train_alike() -> None:
    def trained(turn: bool) -> tuple[dict[str, Any], list[bool]]:
        torch.manual_seed(0)
        seen: list[bool] = []
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
        model(torch.zeros(1, 3, 6, 6))
        if turn:
            channels_last(model)
        model[0].register_forward_pre_hook(
            lambda _, args: seen.append(args[0].is_contiguous(memory_format=torch.channels_last))
        )
        draw = torch.Generator().manual_seed(0)
        data = torch.utils.data.TensorDataset(
            torch.randn(8, 3, 6, 6, generator=draw), torch.randn(8, 2, generator=draw)
        )
        engine(supervised(model, lr=0.01), Loader(data, batch_size=4)).run()
        return weights_of(model), seen

    (plain, _), (turned, seen) = trained(False), trained(True)

    assert all(seen) and turned["0.weight"].is_contiguous(memory_format=torch.channels_last)
    assert all(torch.allclose(turned[name], plain[name], atol=1e-5) for name in plain)


@pytest.mark.thorough
def test_blocks_that_are_recomputed_can_be_compiled() -> None:
    def trained(both: bool) -> list[float]:
        model = Deep()
        for block in model.blocks:
            block.drop.p = 0.0  # type: ignore[union-attr, assignment]
        if both:
            recompute(model, True)
        return losses(model, "blocks" if both else False, "aot_eager")[0]

    assert trained(True) == pytest.approx(trained(False), rel=1e-4)


def test_a_compiler_that_cannot_find_torch_is_told_before_the_first_step() -> None:
    model = nn.Linear(2, 2)

    with pytest.raises(InputError, match="the path to torch holds a space"):
        _check_home(model, "inductor", "/a folder/torch/__init__.py")
    _check_home(model, "inductor", "/folder/torch/__init__.py")
    _check_home(model, "aot_eager", "/a folder/torch/__init__.py")
