"""Models that compute their own loss: what they get, what may come back, and what does not fit."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from assay.core.errors import InputError
from assay.core.ports import MemoryRecorder
from assay.engine import Accuracy, Engine, Evaluate, OwnLoss, evaluate
from engine.toys import net, points, same_bits, weights_of


class Regression(nn.Module):
    """As a model of the older system: a loss in training, scores in evaluation."""

    def __init__(self, **factors: float) -> None:
        super().__init__()
        self.net = net()
        self.factors = factors or {"losses": 1.0}

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        scores = self.net(inputs)
        if labels is not None and self.training:
            return {
                name: factor * mse_loss(scores, labels) for name, factor in self.factors.items()
            }
        return {"prediction_scores": scores}


def batches(size: int = 8) -> list[dict[str, Tensor]]:
    inputs, labels = points(16).tensors
    return [
        {"inputs": inputs[i : i + size], "labels": labels[i : i + size]} for i in range(0, 16, size)
    ]


def trained(
    model: nn.Module, data: Any = None, *, reduction: Any = None, **given: Any
) -> tuple[Engine, MemoryRecorder]:
    recorder = MemoryRecorder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    process = OwnLoss(model, optimizer, reduction=reduction)
    engine = Engine(
        process, batches() if data is None else data, epochs=2, recorder=recorder, **given
    )
    engine.run()
    return engine, recorder


@pytest.mark.row("E17")
def test_several_losses_are_added_up_and_each_is_logged() -> None:
    one, three = (
        Regression(),
        Regression(mlm_loss=0.25, loss_of_order=0.5, losses_rest=0.25, score=9.0),
    )
    _, whole = trained(one)

    engine, recorder = trained(three)

    assert same_bits(weights_of(three), weights_of(one))
    for name, part in {"mlm_loss": 0.25, "loss_of_order": 0.5, "losses_rest": 0.25}.items():
        found = recorder.curve(f"train/{name}")
        assert [step for step, _ in found] == [1, 2, 3, 4]
        assert [value for _, value in found] == pytest.approx(
            [part * loss for _, loss in whole.curve("train/loss")]
        )
    assert (
        recorder.curve("train/loss") == whole.curve("train/loss")
        and recorder.curve("train/score") == []
    )
    assert engine.state.output["loss"].item() == engine.state.loss


def test_a_single_loss_by_another_name_is_logged_by_it_too() -> None:
    _, recorder = trained(Regression())

    assert recorder.curve("train/losses") == recorder.curve("train/loss") != []


@pytest.mark.row("E18")
def test_fields_that_are_no_arguments_are_told_with_both_signatures_before_a_weight_changes() -> (
    None
):
    model = Regression()
    before = weights_of(model)
    data = [{"images": batch["inputs"], "labels": batch["labels"]} for batch in batches()]

    with pytest.raises(InputError) as caught:
        trained(model, data)

    said = str(caught.value)
    assert "(images, labels)" in said
    assert "Regression.forward takes  (inputs:" in said and "labels:" in said
    assert same_bits(weights_of(model), before)


@pytest.mark.parametrize(
    ("fields", "what"),
    [(("inputs", "labels", "weight"), "unexpected"), (("labels",), "missing a required")],
)
def test_a_field_too_many_and_one_too_few_are_told_by_name(
    fields: tuple[str, ...], what: str
) -> None:
    data = [dict.fromkeys(fields, torch.zeros(2, 4))]

    with pytest.raises(InputError, match=what):
        trained(Regression(), data)


@pytest.mark.row("E19")
def test_an_evaluation_with_labels_gives_scores_and_no_loss() -> None:
    class Classes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            scores = self.net(inputs)
            return (
                {"losses": cross_entropy(scores, labels)}
                if self.training
                else {"prediction_scores": scores}
            )

    model = Classes()
    inputs, _ = points(16).tensors
    data = [{"inputs": inputs, "labels": inputs.sum(1).gt(0).long()}]
    process = OwnLoss(
        model, torch.optim.SGD(model.parameters(), lr=0.1), metrics={"acc": Accuracy()}
    )
    engine = Engine(process, data, epochs=3, handlers=Evaluate({"valid": data}).handlers())

    state = engine.run()

    assert state.metrics.keys() == {"valid/acc"}
    with torch.no_grad():
        expected = (
            model.eval()(**data[0])["prediction_scores"]
            .argmax(1)
            .eq(data[0]["labels"])
            .float()
            .mean()
        )
    assert state.metrics["valid/acc"] == pytest.approx(float(expected))


def test_no_loss_in_training_says_what_came_instead() -> None:
    class Forgets(Regression):
        def forward(self, inputs: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            return {"scores": self.net(inputs)}

    with pytest.raises(
        InputError, match="Forgets gave no loss in training: it returned the keys scores"
    ):
        trained(Forgets())


class Output(OrderedDict[str, Any]):
    """Output as of transformers' models: a mapping without None values, and with attributes."""

    def __init__(self, **items: Any) -> None:
        super().__init__({name: value for name, value in items.items() if value is not None})
        for name, value in items.items():
            setattr(self, name, value)


@dataclass
class Plain:
    """Another form of it, which is no mapping."""

    loss: Tensor | None
    logits: Tensor
    mlm_loss: Tensor | None


class Encoder(nn.Module):
    """Tiny model with the protocol of transformers; `loss` is the whole, whatever else is one."""

    def __init__(self, output: Any = Output) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(11, 6), nn.Linear(6, 3)
        self.output = output

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        embedded = self.embedding(input_ids) * mask[..., None]
        logits = self.head(embedded.sum(1) / mask.sum(1, keepdim=True))
        loss = None if labels is None else cross_entropy(logits, labels)
        return self.output(
            loss=loss, logits=logits, mlm_loss=None if loss is None else loss.detach() / 2
        )


def texts() -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 11, (24, 5), generator=draw)
    fields = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "token_type_ids": torch.zeros_like(ids),
    }
    fields["labels"] = ids[:, 0] % 3
    return [{name: value[i : i + 8] for name, value in fields.items()} for i in range(0, 24, 8)]


@pytest.mark.row("E20")
@pytest.mark.parametrize("output", [Output, Plain])
def test_a_model_with_the_protocol_of_transformers_trains_and_is_measured(output: Any) -> None:
    model, recorder = Encoder(output), MemoryRecorder()
    process = OwnLoss(
        model, torch.optim.AdamW(model.parameters(), lr=0.1), metrics={"acc": Accuracy()}
    )
    engine = Engine(
        process,
        texts(),
        epochs=20,
        recorder=recorder,
        handlers=Evaluate({"valid": texts()}).handlers(),
    )

    state = engine.run()

    losses = [value for _, value in recorder.curve("train/loss")]
    assert losses[-1] < 0.5 * losses[0]
    assert [value for _, value in recorder.curve("train/mlm_loss")] == pytest.approx(
        [loss / 2 for loss in losses]
    )
    assert state.metrics["valid/acc"] >= 0.75 and state.metrics["valid/loss"] < 0.6


def test_batches_may_be_named_tuples_dataclasses_and_plain_tuples() -> None:
    Named = namedtuple("Named", ["inputs", "labels"])

    @dataclass
    class Instance:
        inputs: Tensor
        labels: Tensor

    results = []
    for kind in (lambda **given: given, Named, Instance, lambda inputs, labels: (inputs, labels)):
        model = Regression()
        data = [kind(**batch) for batch in batches()]
        process = OwnLoss(model, torch.optim.SGD(model.parameters(), lr=0.05))
        for batch in data:
            process.backward.begin(None)
            process.training_step(batch)
            process.update(0)
        results.append(weights_of(model))

    assert all(same_bits(each, results[0]) for each in results)


def test_other_names_of_what_is_measured_are_said() -> None:
    model = Encoder()
    data = [
        {"input_ids": batch["input_ids"], "token_type_ids": batch["labels"]} for batch in texts()
    ]
    process = OwnLoss(model, metrics={"acc": Accuracy()}, pred="logits", target="token_type_ids")

    results, samples = evaluate(process, data, split="valid")

    assert results.keys() == {"valid/acc"} and samples == 24


# ---------------------------------------------------------------------------------------------------- tuples, and parts


class TupleGPT(nn.Module):
    """Returns (logits, loss), as nanoGPT and minGPT do."""

    def __init__(self, order: Any = lambda logits, loss: (logits, loss)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(11, 6), nn.Linear(6, 11)
        self.order = order

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        logits = self.head(self.embedding(idx))
        loss = (
            None
            if targets is None
            else cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        )
        return self.order(logits, loss)


def characters(size: int = 8) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(11, (16, 6), generator=draw)
    targets = torch.where(
        torch.rand(16, 5, generator=draw) < torch.linspace(0, 1, 16)[:, None], -1, ids[:, 1:]
    )
    return [(ids[i : i + size, :-1], targets[i : i + size]) for i in range(0, 16, size)]


Named = namedtuple("Named", "scores loss")


@pytest.mark.parametrize(
    "order",
    [
        lambda logits, loss: (logits, loss),
        lambda logits, loss: (loss, logits) if loss is not None else (logits,),
        lambda logits, loss: [logits, None, loss],
        lambda logits, loss: Named(logits, loss),
    ],
    ids=["(logits, loss)", "(loss, logits)", "a list", "a named tuple"],
)
def test_a_model_may_return_its_loss_in_a_tuple(order: Any) -> None:
    expected, recorder = trained(Logits(), characters())
    engine, found = trained(TupleGPT(order), characters())

    assert found.curve("train/loss") == recorder.curve("train/loss")
    assert same_bits(weights_of(engine.process.model), weights_of(expected.process.model))
    output = engine.process.validation_step(characters()[0])
    assert {"scores", "pred"} & output.keys() and "loss" in output
    without = engine.process.validation_step((characters()[0][0],))
    assert "loss" not in without


class Logits(TupleGPT):
    """The same by names."""

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        logits, loss = super().forward(idx, targets)
        return {"loss": loss, "logits": logits}


def test_two_numbers_in_a_tuple_are_one_too_many() -> None:
    with pytest.raises(InputError, match="TupleGPT gave a tuple with 2 numbers in it") as caught:
        trained(TupleGPT(lambda logits, loss: (loss, logits.mean(), logits)), characters())

    assert '{"loss": loss' in caught.value.fix


@pytest.mark.parametrize("model", [TupleGPT, Logits])
def test_labels_that_are_ignored_count_for_nothing_in_micro_batches_and_in_evaluation(
    model: Any,
) -> None:
    whole, expected = trained(model().double(), characters(16), reduction="labels")
    parts, found = trained(model().double(), characters(4), accumulate=4, reduction="labels")
    one, _ = evaluate(whole.process, characters(16), split="valid")
    uneven, _ = evaluate(whole.process, characters(5), split="valid")

    for name, weight in weights_of(whole.process.model).items():
        torch.testing.assert_close(
            weights_of(parts.process.model)[name], weight, rtol=1e-10, atol=1e-12
        )
    for name in {point for point, *_ in expected.points} - {"train/lr"}:
        values = [[value for _, value in each.curve(name)] for each in (found, expected)]
        assert values[0] == pytest.approx(values[1], rel=1e-10), name
    assert uneven == pytest.approx(one, rel=1e-10)


class Summed(TupleGPT):
    """Says itself what divides its loss."""

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        logits, loss = super().forward(idx, targets)
        return {"loss": (loss * (targets >= 0).sum(), (targets >= 0).sum()), "logits": logits}


def test_a_model_may_return_a_sum_with_its_weight() -> None:
    whole, _ = trained(Summed().double(), characters(16))
    parts, _ = trained(Summed().double(), characters(4), accumulate=4)

    for name, weight in weights_of(whole.process.model).items():
        torch.testing.assert_close(
            weights_of(parts.process.model)[name], weight, rtol=1e-10, atol=1e-12
        )


def test_a_loss_that_says_no_denominator_is_refused_where_a_step_has_several_micro_batches() -> (
    None
):
    trained(TupleGPT(), characters(4))

    with pytest.raises(InputError, match="what TupleGPT divides its loss by is unknown") as caught:
        trained(TupleGPT(), characters(4), accumulate=4)

    assert 'reduction = "labels"' in caught.value.fix
    trained(TupleGPT(), characters(4), accumulate=4, reduction="mean")


START = {"num_heads": 2, "decoder_start_token_id": 0}
HEADS = {
    "GPT2LMHeadModel": ("GPT2Config", {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}),
    "BertForMaskedLM": (
        "BertConfig",
        {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
    ),
    "BertForTokenClassification": (
        "BertConfig",
        {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
    ),
    "T5ForConditionalGeneration": (
        "T5Config",
        {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, **START},
    ),
    "LlamaForCausalLM": (
        "LlamaConfig",
        {
            "hidden_size": 8,
            "intermediate_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
    ),
}


def sentences(size: int) -> list[dict[str, Tensor]]:
    """Of 12 words at most, with labels of -100 for what is padded: unevenly many in each."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 20, (12, 12), generator=draw)
    labels = torch.where(torch.arange(12) < torch.arange(1, 13)[:, None], ids, -100)
    return [
        {"input_ids": ids[i : i + size], "labels": labels[i : i + size]} for i in range(0, 12, size)
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("head", HEADS)
def test_labels_of_transformers_that_are_ignored_count_for_nothing(head: str) -> None:
    transformers = pytest.importorskip("transformers")
    kind, how = HEADS[head]
    config = getattr(transformers, kind)(vocab_size=20, num_labels=20, **how)
    for name in (
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "dropout_rate",
        "resid_pdrop",
        "embd_pdrop",
    ):
        setattr(config, name, 0.0)
    config.attn_pdrop = 0.0
    torch.manual_seed(0)
    start = getattr(transformers, head)(config).double()
    models = [deepcopy(start), deepcopy(start)]

    whole, expected = trained(models[0], sentences(12))
    found = trained(models[1], sentences(4), accumulate=3)[1]
    one, _ = evaluate(whole.process, sentences(12), split="valid")
    uneven, _ = evaluate(whole.process, sentences(5), split="valid")

    # In single precision: some of these models compute their loss in it, whatever their weights
    # are.
    losses = [[value for _, value in each.curve("train/loss")] for each in (found, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for name, weight in weights_of(models[0]).items():
        torch.testing.assert_close(weights_of(models[1])[name], weight, rtol=1e-5, atol=1e-7)
    assert uneven["valid/loss"] == pytest.approx(one["valid/loss"], rel=1e-6)


def test_inference_leaves_out_targets_that_the_model_can_do_without() -> None:
    model = Regression()

    output = OwnLoss(model).inference_step(batches()[0])

    assert output.keys() == {"prediction_scores", "pred"} and not output["pred"].requires_grad
    assert torch.equal(output["pred"], model.net(batches()[0]["inputs"]))
