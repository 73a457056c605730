from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from assay.compat.parts.features import to_tensors
from assay.compat.parts.text import (
    PairFeatures,
    TextExample,
    TextProcessor,
    WordPieces,
    pair_features,
)
from assay.core.errors import InputError

VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "$",
    "#",
    "the",
    "fire",
    "was",
    "caus",
    "##ed",
    "by",
    "smoke",
    ".",
    ",",
    "!",
    "'",
    "t",
    "don",
    "cafe",
    "火",
    "house",
]
TEXTS = [
    "The fire was caused by smoke.",
    "Don't!  The CAFÉ, fire-house\tcaused\u00a0by 火火",
    "unknownwordthatisnowhere the [SEP] fire [MASK]",
    "a" * 101 + " smoke",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_word_pieces_are_those_of_transformers(text: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join([*VOCABULARY, "[MASK]"]), encoding="utf-8")
    theirs = transformers.BertTokenizer(str(file))

    ours = WordPieces(file)

    tokens = theirs.tokenize(text.replace("[MASK]", ""))
    assert ours.tokenize(text.replace("[MASK]", "")) == tokens
    assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)


@pytest.mark.row("B10", "B11")
def test_pairs_are_joined_shortened_and_padded_and_become_tensors() -> None:
    tokenizer = WordPieces(VOCABULARY)
    pair = TextExample(text_a="the fire was caused by smoke", text_b="the house", label="yes")
    single = TextExample(text_a="smoke", label="no")

    features = pair_features([pair, single], ["no", "yes"], tokenizer, max_seq_len=9)

    ids = tokenizer.convert_tokens_to_ids
    assert features[0] == PairFeatures(
        input_ids=ids(["[CLS]", "the", "fire", "was", "caus", "[SEP]", "the", "house", "[SEP]"]),
        input_mask=[1] * 9,
        segment_ids=[0] * 6 + [1] * 3,
        label_id=1,
    )
    assert features[1].input_mask == [1, 1, 1] + [0] * 6 and features[1].segment_ids == [0] * 9
    tensors = to_tensors(features).tensors
    assert tensors["input_ids"].shape == (2, 9) and tensors["label_id"].tolist() == [1, 0]
    numbers = pair_features([TextExample(text_a="fire", label="0.5")], [], tokenizer,
                            max_seq_len=5, output_mode="regression")  # fmt: skip
    assert to_tensors(numbers, output_mode="regression").tensors["label_id"].dtype == torch.float32


def test_entities_have_marks_and_masks_that_point_at_their_tokens() -> None:
    tokenizer = WordPieces(VOCABULARY)
    example = TextExample(text_a="<e2>the fire</e2> was caused by <e1>smoke</e1>.")

    (found,) = pair_features([example], [], tokenizer, max_seq_len=16, mark_entities=True)

    tokens = ["[CLS]", "#", "the", "fire", "#", "was", "caus", "##ed", "by", "$", "smoke", "$", "."]
    assert found.input_ids[:13] == tokenizer.convert_tokens_to_ids(tokens)
    assert found.e1_mask == [int(i in (9, 10, 11)) for i in range(16)]
    assert found.e2_mask == [int(i in (1, 2, 3, 4)) for i in range(16)]


@pytest.mark.parametrize(
    ("example", "length", "said"),
    [
        (TextExample(text_a="<e1>fire</e1> <e2>smoke</e2>", label="yse"), 16, "did you mean `yes`"),
        (TextExample(text_a="<e1>fire</e1> smoke"), 16, "two entities are not marked"),
        (TextExample(text_a="<e1>fire</e1> <e2>smoke"), 16, "two entities are not marked"),
        (TextExample(text_a="<e1>fire</e1> the the <e2>smoke</e2>"), 7, "lies behind max_seq_len"),
        (TextExample(text_a="fire"), 4, "too short for a pair"),
    ],
)
def test_an_example_that_cannot_be_used_is_one_error(
    example: TextExample, length: int, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        pair_features(
            [example], ["no", "yes"], WordPieces(VOCABULARY), max_seq_len=length, mark_entities=True
        )


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl", "json"])
def test_examples_are_read_from_each_kind_of_file(ending: str, tmp_path: Path) -> None:
    rows = [("yes", 'the "fire"', "smoke"), ("", "house", "")]
    items = [{"text_a": 'the "fire"', "text_b": "smoke", "label": "yes"}, {"text": "house"}]
    content = {
        "tsv": "".join("\t".join(row) + "\n" for row in rows),
        "csv": 'yes,"the ""fire""",smoke\n,house\n',
        "jsonl": "".join(f"{json.dumps(item)}\n" for item in items),
        "json": json.dumps(items),
    }[ending]
    (tmp_path / f"dev.{ending}").write_text(content, encoding="utf-8")

    first, second = TextProcessor(["no", "yes"]).get_dev_examples(tmp_path)

    assert first == TextExample(text_a='the "fire"', text_b="smoke", label="yes")
    assert (second.text_a, second.text_b or None, second.label) == ("house", None, None)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("train.tsv", "yes\n", "A line has 1 columns"),
        ("train.tsv", "", "has no examples"),
        ("train.jsonl", "{", "is no JSON"),
        ("train.json", '[{"label": "yes"}]', "has no `text_a`"),
        ("train.txt", "yes", "There is no data for train"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_error_with_its_place(
    name: str, content: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")

    with pytest.raises(InputError, match=said) as caught:
        TextProcessor().get_train_examples(tmp_path)

    assert str(tmp_path) in str(caught.value)


def test_a_vocabulary_without_special_tokens_is_refused() -> None:
    with pytest.raises(InputError, match=r"no \[SEP\], \[PAD\]"):
        WordPieces(["[CLS]", "[UNK]", "fire"])
