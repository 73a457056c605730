"""Rehearsed steps: what is found, what it needs, and that nothing is told that is not so."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from assay.engine import Accuracy, OwnLoss
from assay.engine.rehearse import ladder
from assay.formats.rehearsal import Rehearsal
from engine.rehearse.rehearsing import classes, pair, rehearsed
from warm_python import Run

TESTS = Path(__file__).resolve().parents[2]


def found(report: Rehearsal) -> list[tuple[str, str]]:
    return [(finding.kind, finding.module) for finding in report.findings]


# ---------------------------------------------------------------------------------- mistakes that are found


class Conv(nn.Module):
    """A small image classifier whose head expects `wide` features."""

    def __init__(self, wide: int = 8) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(wide, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).mean((2, 3))
        return self.head(x)  # type: ignore[no-any-return]


def test_a_bad_shape_is_named_with_module_inputs_and_line() -> None:
    report = rehearsed(lambda: Conv(9), classes(4, 3, 6, 6), criterion=nn.CrossEntropyLoss)

    (finding,) = report.failures
    assert (finding.kind, finding.module) == ("shape", "model.head (Linear)")
    assert finding.given == "float32 [4, 8]"
    assert (
        finding.message == "mat1 and mat2 shapes cannot be multiplied (4x8 and 9x3)"
    )  # of real tensors, as in a run
    assert finding.source == __file__ and finding.code.startswith("return self.head(x)")


@pytest.mark.parametrize(
    ("model", "batch", "module"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(9, 2)), pair(8, 4), "model.1 (Linear)"),
        (lambda: nn.Sequential(nn.LSTM(4, 8)), pair(8, 5, 3), "model.0 (LSTM)"),
        (lambda: nn.Sequential(nn.BatchNorm1d(5)), pair(8, 4), "model.0 (BatchNorm1d)"),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3)), pair(8, 1, 9, 9), "model.0 (Conv2d)"),
        (lambda: nn.Sequential(nn.LayerNorm(5)), pair(8, 4), "model.0 (LayerNorm)"),
    ],
)
def test_the_module_with_the_bad_shape_is_named(
    model: Callable[[], nn.Module], batch: Any, module: str
) -> None:
    assert found(rehearsed(model, batch)) == [("shape", module)]


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x))  # type: ignore[no-any-return]


def test_a_bad_dtype_is_named() -> None:
    assert found(rehearsed(Mixed, pair(8, 4))) == [("dtype", "model.two (Linear)")]


class Wide(nn.Module):
    """A layer too large for its weights to keep their values, behind a change of the dtype."""

    def __init__(self, layer: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.inside, self.dtype = layer, dtype

    def forward(self, x: Tensor) -> Tensor:
        found = self.inside(x.to(self.dtype))
        return (found[0] if isinstance(found, tuple) else found).float()  # type: ignore[no-any-return]


class TwoInputs(nn.Bilinear):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Linear(256, 256), (8, 256)),
        (lambda: TwoInputs(256, 256, 4), (8, 256)),
        (lambda: nn.Conv1d(256, 256, 3, padding=1), (8, 256, 3)),
        (lambda: nn.ConvTranspose1d(256, 256, 3), (8, 256, 3)),
        (lambda: nn.LSTM(256, 256), (1, 8, 256)),
        (lambda: nn.PReLU(256), (8, 256)),
    ],
)
def test_a_bad_dtype_is_named_whatever_the_size_of_the_layer(
    layer: Callable[[], nn.Module], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    report = rehearsed(lambda: Wide(layer(), dtype), pair(*shape, target=(1,)))

    kind = type(layer()).__name__
    assert found(report) == [("dtype", f"model.inside ({kind})")]


@pytest.mark.parametrize("layer", [nn.LayerNorm, nn.BatchNorm1d, lambda n: nn.GroupNorm(2, n)])
def test_a_norm_with_weights_of_another_dtype_fails_where_a_run_would(
    layer: Callable[[int], nn.Module],
) -> None:
    def findings(dtype: torch.dtype) -> list[str]:
        report = rehearsed(lambda: Wide(layer(2**15), dtype), pair(2, 2**15, target=(2, 2**15)))
        assert report.rung == "fake"
        return [finding.kind for finding in report.findings]

    assert findings(torch.float64) == ["dtype"]
    assert findings(torch.bfloat16) == []  # mixed kernels exist for low precision


def test_a_layer_in_low_precision_behind_a_cast_is_no_mistake() -> None:
    report = rehearsed(
        lambda: Wide(nn.Linear(256, 256, dtype=torch.bfloat16), torch.bfloat16),
        pair(8, 256, target=(8, 256)),
    )

    assert report.findings == () and report.rung == "fake"


def test_a_target_that_does_not_fit_the_prediction_is_found() -> None:
    report = rehearsed(lambda: nn.Linear(4, 3), classes(8, 4), criterion=nn.BCEWithLogitsLoss)

    assert found(report) == [("shape", "process.criterion (BCEWithLogitsLoss)")]


@pytest.mark.parametrize(
    ("target", "kind", "said"),
    [
        (torch.tensor([0, 1, 3, 2]), "value", "3 is out of range for 3 classes: 0 to 2"),
        (torch.tensor([0, 1, -1, 2]), "value", "-1 is out of range for 3 classes: 0 to 2"),
        (torch.tensor([0, 1, 2, 2], dtype=torch.int32), "dtype", "int"),
        (torch.tensor([0.0, 1.0, 2.0, 2.0]), "dtype", "float"),
    ],
)
def test_a_label_that_is_no_class_is_found(target: Tensor, kind: str, said: str) -> None:
    batch = (torch.randn(4, 4), target)

    report = rehearsed(lambda: nn.Linear(4, 3), batch, criterion=nn.CrossEntropyLoss)

    (finding,) = report.failures
    assert (finding.kind, finding.module) == (kind, "process.criterion (CrossEntropyLoss)")
    assert said in finding.message.lower()


def test_a_label_of_the_index_that_is_ignored_is_no_mistake() -> None:
    batch = (torch.randn(4, 4), torch.tensor([0, -100, 2, 1]))

    report = rehearsed(lambda: nn.Linear(4, 3), batch, criterion=nn.CrossEntropyLoss)

    assert report.findings == ()


def test_a_bad_label_in_a_later_batch_is_found() -> None:
    later = (torch.randn(8, 4), torch.full((8,), 3))

    report = rehearsed(
        lambda: nn.Linear(4, 3), classes(8, 4), classes(8, 4), later, criterion=nn.CrossEntropyLoss
    )

    (finding,) = report.failures
    assert finding.kind == "value"
    assert finding.message == "3 is out of range for 3 classes: 0 to 2 (step 3)"


def test_labels_outside_of_0_to_1_are_found_although_fake_tensors_have_no_values() -> None:
    batch = (torch.randn(4, 4), torch.tensor([[0.0], [1.0], [2.0], [1.0]]))

    report = rehearsed(
        lambda: nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), batch, criterion=nn.BCELoss
    )

    assert found(report) == [("value", "process.criterion (BCELoss)")]


class Positions(nn.Module):
    def __init__(self, most: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(10, 4), nn.Embedding(most, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return (self.embed(tokens) + self.place(places)).mean(1)


@pytest.mark.parametrize(
    ("most", "top", "module", "said"),
    [
        (6, 10, "model.embed (Embedding)", "10 is out of range for 10 rows of the embedding"),
        (5, 9, "model.place (Embedding)", "5 is out of range for 5 rows of the embedding"),
    ],
)
def test_tokens_and_positions_beyond_an_embedding_are_found(
    most: int, top: int, module: str, said: str
) -> None:
    tokens = torch.zeros(8, 6, dtype=torch.int64)
    tokens[3, 3] = top

    report = rehearsed(lambda: Positions(most), (tokens, torch.randn(8, 4)))

    (finding,) = report.failures
    assert (finding.kind, finding.module) == ("value", module)
    assert said in finding.message


class Hosted(nn.Module):
    """Uses tensors of the host as `how` says: some of these ways fail on a GPU."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.inside = nn.Linear(4, 2)
        self.scale = torch.ones(2)
        self.one = torch.tensor(2.0)
        self.register_buffer("shift", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inside(x)
        match self.how:
            case "factory":
                return x + torch.arange(2)
            case "attribute":
                return x * self.scale
            case "mask":
                return x.masked_fill(torch.zeros(2, dtype=torch.bool), 0.0)
        x = x * self.scale.to(x.device) + self.shift + self.one * torch.tensor(3.0)
        x = x[:, torch.arange(2)] + torch.arange(2, device=x.device) + x.new_ones(2)
        return torch.where(x > torch.tensor(0.0), x, torch.zeros_like(x))


@pytest.mark.parametrize("how", ["factory", "attribute", "mask"])
def test_a_tensor_that_stays_on_the_host_is_found_without_a_gpu(how: str) -> None:
    (finding,) = rehearsed(lambda: Hosted(how), pair(8, 4), device="cuda").failures

    assert (finding.kind, finding.module) == ("device", "model (Hosted)")
    assert finding.line and "register_buffer" in finding.fix
    assert rehearsed(lambda: Hosted(how), pair(8, 4)).findings == ()


def test_what_a_gpu_takes_from_the_host_is_no_mistake() -> None:
    assert rehearsed(lambda: Hosted(""), pair(8, 4), device="cuda").findings == ()


def test_a_frozen_model_is_told_as_in_training() -> None:
    def frozen() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2))
        model[0].requires_grad_(False)
        return model

    report = rehearsed(frozen, pair(8, 4), optimizer=lambda *_, **__: sgd_of(nn.Linear(2, 2)))

    (finding,) = report.failures
    assert "gives no gradient to any parameter of the optimizer" in finding.message


def sgd_of(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_what_does_not_fit_into_the_memory_is_a_failure_with_the_largest_batch_that_does() -> None:
    report = rehearsed(
        lambda: nn.Linear(1000, 2), pair(64, 1000, target=(64, 2)), limit_bytes=200_000
    )

    (finding,) = report.failures
    assert finding.kind == "memory" and "200,000" in finding.message
    assert report.largest is not None and 0 < report.largest.samples < 64
    assert report.largest.peak_bytes <= 180_000


def test_a_bad_shape_of_the_evaluation_is_found() -> None:
    batch = (torch.randn(8, 5), torch.arange(8) % 3)

    report = rehearsed(
        lambda: nn.Linear(4, 3), classes(8, 4), criterion=nn.CrossEntropyLoss, evaluation=batch
    )

    assert found(report) == [("shape", "model (Linear)")]
    assert report.memory is not None


class Block(nn.Module):
    """A block of GPT-2 whose MLP gives `inner` features and takes `taken`."""

    def __init__(self, inner: int, taken: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(768), nn.LayerNorm(768)
        self.qkv, self.out = nn.Linear(768, 3 * 768), nn.Linear(768, 768)
        self.up, self.down = nn.Linear(768, inner), nn.Linear(taken, 768)

    def forward(self, x: Tensor) -> Tensor:
        heads = [
            part.unflatten(2, (12, 64)).transpose(1, 2)
            for part in self.qkv(self.ln1(x)).split(768, 2)
        ]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT2(nn.Module):
    """GPT-2 with 124 M parameters; the MLP of block `bad` does not fit together."""

    def __init__(self, bad: int = -1) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
        self.blocks = nn.ModuleList(Block(3072, 3070 if i == bad else 3072) for i in range(12))
        self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, 50257, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).transpose(1, 2)


TOKENS = (torch.randint(0, 50257, (2, 64)), torch.randint(0, 50257, (2, 64)))


def test_a_bad_shape_deep_in_gpt2_is_named_and_124_million_weights_take_no_memory() -> None:
    good = rehearsed(GPT2, TOKENS, criterion=nn.CrossEntropyLoss)
    bad = rehearsed(lambda: GPT2(bad=7), TOKENS, criterion=nn.CrossEntropyLoss)

    assert (good.rung, good.findings, good.parameters) == ("fake", (), 124_439_808)
    (finding,) = bad.failures
    assert (finding.kind, finding.module) == ("shape", "model.blocks.7.down (Linear)")
    assert finding.given == "float32 [2, 64, 3072]"
    assert finding.code.startswith("return x + self.down(")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "path", "kind"),
    [
        ("gpt2", "transformer.h.1.mlp.c_proj", "Conv1D"),
        ("llama", "model.layers.1.mlp.up_proj", "Linear"),
    ],
)
def test_a_bad_shape_in_a_model_of_transformers_is_named(name: str, path: str, kind: str) -> None:
    transformers = pytest.importorskip("transformers")

    def model(bad: str = "") -> nn.Module:
        if name == "gpt2":
            config = transformers.GPT2Config(
                vocab_size=100, n_positions=32, n_embd=16, n_layer=2, n_head=2
            )
            made = transformers.GPT2LMHeadModel(config)
        else:
            sizes = {
                "hidden_size": 16,
                "intermediate_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
            }
            made = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=100, **sizes))
        if bad:
            parent, _, last = bad.rpartition(".")
            wrong = (
                nn.Linear(15, 32) if kind == "Linear" else transformers.pytorch_utils.Conv1D(16, 63)
            )
            setattr(made.get_submodule(parent), last, wrong)
        return made  # type: ignore[no-any-return]

    def process(made: nn.Module) -> Any:
        return OwnLoss(made, sgd_of(made))

    tokens = torch.randint(0, 100, (2, 16))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
    good = rehearsed(model, batch, process=process)
    bad = rehearsed(lambda: model(path), batch, process=process)

    assert (good.rung, good.findings) == ("fake", ())
    (finding,) = bad.failures
    assert (finding.kind, finding.module) == ("shape", f"model.{path} ({kind})")
    assert "transformers" in finding.source and finding.line


# --------------------------------------------------------------------------- models with nothing wrong


WIDE = 2500
"""So many numbers that nobody knows their values: those of small tensors are known."""


class Ways(nn.Module):
    """Valid code of many kinds; fake tensors cannot do all of it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.one, self.two = nn.Linear(4, WIDE), nn.Linear(WIDE, 2)
        self.norm = nn.BatchNorm1d(WIDE)
        self.drop = nn.Dropout(0.5)
        self.lstm = nn.LSTM(WIDE, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.rates = [rate.item() for rate in torch.linspace(0, 0.2, 3)]
        self.seen = 0.0
        if how == "tied":
            self.two = nn.Linear(4, WIDE)
            self.two.weight = self.one.weight
        if how == "parametrized":
            nn.utils.parametrizations.weight_norm(self.one)
        if how == "half":
            self.to(torch.bfloat16).to(torch.float32)
        if how == "numpy table":
            self.table = nn.Parameter(torch.from_numpy(np.ones((WIDE, WIDE), dtype=np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.one(x)
        match self.how:
            case "branch":
                hidden = hidden * 2 if hidden.sum() > 1e9 else hidden
            case "item":
                self.seen = hidden.abs().max().item()
            case "numpy":
                self.seen = float(hidden.detach().numpy().mean())
            case "mask":
                hidden = torch.cat([hidden[hidden[:, 0] > 0], hidden[hidden[:, 0] <= 0]])
            case "random":
                hidden = hidden * random.random() if random.random() < 0.5 else hidden
            case "draw":
                hidden = hidden + 1 if torch.rand(1).item() < 0.5 else hidden
            case "packed":
                lengths = torch.tensor([3, 2, 1, 3, 3, 2, 1, 1])
                rows = hidden.unsqueeze(1).expand(-1, 3, -1)
                packed = nn.utils.rnn.pack_padded_sequence(
                    rows, lengths, batch_first=True, enforce_sorted=False
                )
                hidden = hidden + self.lstm(packed)[1][0][0].sum()
            case "lstm":
                hidden = hidden + self.lstm(hidden.unsqueeze(1))[0][:, 0].sum()
            case "attention":
                rows = hidden[None, :, :8]
                hidden = hidden + self.attention(rows, rows, rows)[0].sum()
            case "in place":
                hidden = hidden.clone()
                hidden[:, 0] = 0
                hidden += 1
            case "checkpoint":
                hidden = torch.utils.checkpoint.checkpoint(self.one, x, use_reentrant=False)
            case "unique":
                hidden = hidden[: int(torch.unique(hidden.detach().round()).numel() > 0) + 7]
            case "numpy table":
                hidden = hidden @ self.table
            case "caught":
                try:
                    self.seen = float(hidden.sum())
                except Exception as error:
                    raise ValueError("a loss must be a number") from error
        if self.how == "tied":
            return self.two(hidden[:, :4])[:, :2]
        return self.two(self.drop(self.norm(hidden)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "how",
    [
        *("plain", "branch", "item", "numpy", "mask", "random", "draw", "packed", "lstm"),
        *("attention", "in place", "checkpoint", "unique", "tied", "parametrized", "half"),
        *("numpy table", "caught"),
    ],
)
def test_nothing_wrong_is_told_of_code_that_works(how: str) -> None:
    report = rehearsed(lambda: Ways(how), pair(8, 4), optimizer=torch.optim.AdamW)

    assert report.findings == ()
    assert report.memory is not None and report.memory.optimizer_bytes > 0
    assert report.rung == ("real" if how in REAL else "fake")


REAL = {"branch", "item", "numpy", "mask", "packed", "unique", "caught"}
"""Ways that depend on values of weights: the step is then computed."""


@pytest.mark.parametrize("how", sorted(REAL))
def test_what_is_too_large_to_compute_and_cannot_be_faked_is_unchecked_with_its_line(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladder, "REAL_SHARE", 1e-9)

    report = rehearsed(lambda: Ways(how), pair(8, 4))

    assert report.failures == ()
    (finding,) = report.unchecked
    assert finding.source == __file__ and finding.line
    assert report.memory is not None and report.memory.where == "without activations"
    assert report.memory.weights_bytes == weights_of(Ways(how))


class Seldom(nn.Module):
    """A block that most steps leave out."""

    def __init__(self, *, is_used: bool) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, 2)
        self.is_used = is_used

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.is_used:
            hidden = hidden + self.block(hidden)
        return self.last(hidden)  # type: ignore[no-any-return]


def test_parameters_that_the_step_leaves_out_have_their_state_counted_and_are_told() -> None:
    left_out, whole = (
        rehearsed(lambda used=used: Seldom(is_used=used), pair(8, 4), optimizer=torch.optim.AdamW)  # type: ignore[misc]
        for used in (False, True)
    )

    assert left_out.memory is not None and whole.memory is not None
    assert left_out.memory.optimizer_bytes == whole.memory.optimizer_bytes > 0
    assert (left_out.left_out, whole.left_out) == (64 * 64 + 64, 0)
    assert whole.findings == left_out.findings == ()


def weights_of(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def test_a_model_that_cannot_be_built_on_fake_tensors_is_built_for_real_and_converted() -> None:
    def orthogonal() -> nn.Module:
        model = nn.Linear(4, 2)
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(model.weight.detach().numpy() * 2))
        return model

    report = rehearsed(orthogonal, pair(8, 4))

    assert (report.rung, report.findings) == ("converted", ())
    assert rehearsed(lambda: nn.Sequential(orthogonal(), nn.Linear(3, 2)), pair(8, 4)).failures


def test_an_error_of_the_constructor_is_raised_as_in_a_run() -> None:
    def broken() -> nn.Module:
        raise ValueError("heads must divide width")

    with pytest.raises(ValueError, match="heads must divide width"):
        rehearsed(broken, pair(8, 4))


def test_an_optimizer_that_reads_values_is_unchecked_and_the_rest_is_told() -> None:
    class Reading(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                if all(bool(weight.grad.norm() > 0) for weight in group["params"]):
                    return super().step(closure)

    report = rehearsed(lambda: nn.Linear(4, 2), pair(8, 4), optimizer=Reading)

    assert report.failures == () and report.memory is not None


def test_a_failure_in_code_for_a_gpu_is_no_failure_here() -> None:
    class Kernel(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("FlashAttention only supports CUDA tensors")

    report = rehearsed(lambda: Kernel(4, 2), pair(8, 4), device="cuda")

    assert report.failures == ()
    assert "FlashAttention" in report.unchecked[0].message


# -------------------------------------------------------------------------------------------- what it needs


def allocated(model: nn.Module, batch: tuple[Tensor, Tensor], *, accumulate: int) -> int:
    """Peak of torch's allocator in the second step of a hand-written loop, in bytes."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    criterion = nn.CrossEntropyLoss()

    def step() -> None:
        for _ in range(accumulate):
            pred = model(batch[0])
            loss = criterion(pred, batch[1])
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    tensors = [*model.parameters(), *model.buffers(), *batch]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    live = most = sum(tensor.nbytes for tensor in tensors)
    activities = [ProfilerActivity.CPU]
    with profile(activities=activities, profile_memory=True, acc_events=True) as seen:
        step()
    events = [
        event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return int(most)


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(32 * 15 * 15, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))  # type: ignore[no-any-return]


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(x)).mean(1))  # type: ignore[no-any-return]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
            for _ in range(3)
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


class Tied(nn.Module):
    """Language model with a tied head, which tells the last of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(500, 64)
        self.mix = nn.MultiheadAttention(64, 4, batch_first=True)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        x = x + self.mix(x, x, x, need_weights=False)[0]
        x = x + self.down(F.gelu(self.up(x)))
        return x[:, -1] @ self.tokens.weight.T


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "accumulate"), [(16, 1), (16, 3), (40, 1)])
@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Image, lambda n: torch.randn(n, 3, 32, 32)),
        (Residual, lambda n: torch.randn(n, 3, 32, 32)),
        (Words, lambda n: torch.randint(0, 500, (n, 48))),
        (Tied, lambda n: torch.randint(0, 500, (n, 48))),
        (perceptron, lambda n: torch.randn(n, 64)),
    ],
)
def test_the_peak_is_that_of_the_allocator_within_ten_percent(
    model: Callable[[], nn.Module],
    inputs: Callable[[int], Tensor],
    samples: int,
    accumulate: int,
) -> None:
    batch = (inputs(samples), torch.arange(samples) % 10)

    report = rehearsed(
        model,
        batch,
        criterion=nn.CrossEntropyLoss,
        optimizer=lambda weights, lr: torch.optim.AdamW(weights, fused=True),
        micro_batches=accumulate,
    )

    assert report.memory is not None
    measured = allocated(model(), batch, accumulate=accumulate)
    assert report.memory.peak_bytes == pytest.approx(measured, rel=0.1)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.inside(x).view(*x.shape[:2], 2, 4).transpose(1, 2)
        seen = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return seen.transpose(1, 2).flatten(2).mean(1)


def test_attention_counts_in_the_flops_of_a_step() -> None:
    """Two products of (length, length) by each head's width; forward once, backward two and a half."""
    batch = [torch.zeros(3, 5, 8), torch.zeros(3, 8)]

    report = rehearsed(Attending, batch, criterion=nn.MSELoss)

    product = 2 * 3 * 5 * 5 * 8
    linear = 2 * 3 * 5 * 8 * 8
    assert report.flops_per_step == 2 * linear + 2 * product + 5 * product


def test_parameters_flops_layers_and_stages_are_told() -> None:
    report = rehearsed(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),
        classes(6, 4),
        criterion=nn.CrossEntropyLoss,
        metrics={"acc": Accuracy()},
        micro_batches=2,
    )

    forward = 2 * 6 * (4 * 8 + 8 * 3)
    assert (report.parameters, report.trained, report.samples) == (67, 67, 6)
    assert report.layers[0].flops == forward
    assert report.flops_per_step == 2 * (forward + 2 * 6 * (4 * 8 + 2 * 8 * 3))
    assert [layer.gave for layer in report.layers] == [
        *("float32 [6, 3]", "float32 [6, 8]", "float32 [6, 8]", "float32 [6, 3]")
    ]
    assert [stage.name for stage in report.stages] == [
        *("batch", "model", "model.0", "model.1", "model.2"),
        *("process.criterion", "output", "metric acc", "optimizer"),
    ]


def test_what_is_shared_counts_once_and_what_is_not_called_says_so() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
            self.second.weight = self.first.weight
            self.out = nn.Linear(4, 2)
            self.out.bias.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.second(self.first(self.first(x))))  # type: ignore[no-any-return]

    report = rehearsed(Shared, pair(8, 4))

    by_name = {layer.name: layer for layer in report.layers}
    assert (by_name["model.first"].params, by_name["model.second"].params) == (20, 4)
    assert (by_name["model.out"].params, by_name["model.out"].trained) == (10, 8)
    assert by_name["model.unused"].gave == ""
    assert by_name["model.first"].flops == 2 * 8 * 4 * 4
    assert report.parameters == sum(p.numel() for p in Shared().parameters())
    assert report.memory is not None and report.memory.weights_bytes == 4 * report.parameters


def test_nothing_of_the_size_of_the_model_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without the memory for it; one with plenty tries what failed for real."""
    monkeypatch.setattr("assay.engine.rehearse.ladder._limit_bytes", lambda: 2.0**33)
    before = peak_rss()

    good = rehearsed(lambda: nn.Linear(2**15, 2**15), pair(4, 2**15, target=(4, 2**15)))
    bad = rehearsed(lambda: nn.Linear(2**15, 2**15), pair(4, 2**15 + 1, target=(4, 2**15)))

    assert good.memory is not None and good.memory.peak_bytes > 2**33
    assert found(bad) == [("shape", "model (Linear)")]
    assert peak_rss() - before < 2**29


def peak_rss() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(
        next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]
    )


def test_what_is_recomputed_takes_less_memory_and_more_flops() -> None:
    from assay.engine.model.compiling import recompute

    def deep(which: bool) -> nn.Module:
        blocks = [
            nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(6)
        ]
        model = nn.Sequential(*blocks)
        recompute(model, which)
        return model

    batch = pair(256, 64, target=(256, 64))
    plain, less = (rehearsed(lambda which=which: deep(which), batch) for which in (False, True))

    assert plain.memory is not None and less.memory is not None
    assert less.memory.activations_bytes < 0.6 * plain.memory.activations_bytes
    assert less.flops_per_step > plain.flops_per_step


# ----------------------------------------------------------------------------------- a torch without them

DEGRADED = """
import sys
sys.path.insert(0, {tests!r})
import torch._dynamo, torch.utils.flop_counter
del {gone}
for name in [each for each in sys.modules if each.partition(".")[0] == "assay"]:
    del sys.modules[name]  # it is imported without that
from torch import nn
from engine.rehearse.rehearsing import classes, rehearsed
good = rehearsed(lambda: nn.Linear(4, 3), classes(8, 4), criterion=nn.CrossEntropyLoss)
bad = rehearsed(lambda: nn.Linear(5, 3), classes(8, 4), criterion=nn.CrossEntropyLoss)
print(good.rung, len(good.findings), good.memory is not None, bad.rung, bad.failures[0].kind, bad.failures[0].module)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gone", "is_seen"),
    [
        ("torch._subclasses.fake_tensor.unset_fake_temporarily", True),
        ("torch.utils._python_dispatch.TorchDispatchMode", False),
    ],
)
def test_without_the_private_parts_of_torch_a_step_is_tried_for_real(
    gone: str, *, is_seen: bool, warm: Run, tmp_path: Path
) -> None:
    code = DEGRADED.format(gone=gone, tests=str(TESTS))

    done = warm(
        ["-c", code],
        folder=tmp_path,
        variables={**os.environ, "PYTHONPATH": str(TESTS.parent / "src")},
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == f"real 0 {is_seen} real shape model (Linear)".split()


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield


def test_functional_code_without_modules_has_no_module_and_a_line() -> None:
    def process(model: nn.Module) -> Any:
        from assay.engine import Process
        from assay.engine.optim.optimizer_step import OptimizerStep

        class Plain(Process):
            def __init__(self) -> None:
                self.model, self.metrics = model, {}
                self.backward = OptimizerStep(sgd_of(model))

            def forward_step(self, batch: Any) -> Any:
                pred = self.model(batch[0])
                loss = F.mse_loss(pred @ torch.ones(3, 2), batch[1])
                return loss, {"loss": loss.detach()}

        return Plain()

    (finding,) = rehearsed(lambda: nn.Linear(4, 2), pair(8, 4), process=process).failures

    assert (finding.kind, finding.module) == ("shape", "")
    assert finding.code.startswith("loss = F.mse_loss(")
