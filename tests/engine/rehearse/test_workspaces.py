"""Memory of libraries within an operation: copies of convolutions, and what an LSTM keeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from assay.formats.rehearsal import PeakMemory
from engine.rehearse.rehearsing import rehearsed
from engine.rehearse.test_ladder import allocated

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
    reason="this torch has no oneDNN",
)
SIDE, SAMPLES, CHANNELS = 16, 4, 32
IMAGE = CHANNELS * SIDE * SIDE * SAMPLES * 4  # bytes of a batch between two convolutions


class Two(nn.Module):
    """Two convolutions of as many channels, one after the other, and a score for each class."""

    def __init__(self, channels: int = CHANNELS, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels, channels, 1, bias=False, dtype=dtype)
        self.two = nn.Conv2d(channels, channels, 1, bias=False, dtype=dtype)
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.two(self.one(x.to(self.dtype))).mean((2, 3)).float()
        return scores


def memory_of(model: Callable[[], nn.Module], inputs: Tensor, *, device: str = "cpu") -> PeakMemory:
    report = rehearsed(
        model,
        (inputs, torch.arange(len(inputs)) % 3),
        criterion=nn.CrossEntropyLoss,
        optimizer=lambda weights, lr: torch.optim.AdamW(weights, fused=True),
        device=device,
    )
    assert report.memory is not None, report.findings
    return report.memory


def images(channels: int = CHANNELS) -> Tensor:
    return torch.randn(SAMPLES, channels, SIDE, SIDE)


def test_a_convolution_on_a_cpu_copies_what_it_reads_and_gives() -> None:
    memory = memory_of(Two, images())

    # In the backward pass: a gradient and an input, each as large as the batch, and the weight.
    assert memory.workspace_bytes == pytest.approx(2 * IMAGE, rel=0.05)
    assert memory.most_bytes == memory.peak_bytes + memory.workspace_bytes


def test_channels_last_is_computed_where_it_lies_but_for_a_gradient_that_is_not() -> None:
    def model() -> nn.Module:
        return Two().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    memory = memory_of(model, images().to(memory_format=torch.channels_last))

    assert memory.workspace_bytes == pytest.approx(IMAGE, rel=0.05)  # that of the mean


@pytest.mark.parametrize("case", ["float64", "three channels", "another device"])
def test_nothing_is_copied_where_one_dnn_reads_it_as_it_is_or_is_not_asked(case: str) -> None:
    channels = 3 if case == "three channels" else CHANNELS
    dtype = torch.float64 if case == "float64" else torch.float32
    device = "cuda" if case == "another device" else "cpu"

    memory = memory_of(lambda: Two(channels, dtype), images(channels), device=device)

    assert memory.workspace_bytes == 0


class Sequences(nn.Module):
    def __init__(self, width: int, hidden: int, *, depth: int = 1, both: bool = False) -> None:
        super().__init__()
        self.layers = nn.LSTM(width, hidden, depth, batch_first=True, bidirectional=both)
        self.head = nn.Linear(hidden * (2 if both else 1), 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layers(x)[0][:, -1])
        return scores


@pytest.mark.parametrize(
    ("width", "hidden", "depth", "both"),
    [
        (64, 64, 1, False),
        (64, 64, 3, False),
        (32, 128, 1, False),
        (128, 64, 2, False),
        (64, 64, 1, True),
        (64, 64, 2, True),
    ],
)
def test_the_peak_of_an_lstm_is_that_of_the_allocator_within_ten_percent(
    width: int, hidden: int, depth: int, both: bool
) -> None:
    inputs = torch.randn(32, 60, width)

    def model() -> nn.Module:
        return Sequences(width, hidden, depth=depth, both=both)

    memory = memory_of(model, inputs)

    measured = allocated(model(), (inputs, torch.arange(len(inputs)) % 10), accumulate=1)
    assert memory.most_bytes == pytest.approx(measured, rel=0.1)
