"""Sentences and pairs of sentences as numbers: examples from a file, word pieces, features.

A tokenizer is any object with `tokenize`, `convert_tokens_to_ids` and the texts of its special
tokens: `WordPieces` here, or a tokenizer of `transformers`.
"""

from __future__ import annotations

import csv
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Protocol

from assay.compat.parts.features import OutputMode
from assay.core.errors import InputError, choose

_LONGEST_WORD = 100
"""Characters of a word beyond which it is unknown, as in BERT's own tokenizer."""
_SHORTEST = 5
"""Tokens of a pair of single words: `[CLS] a [SEP] b [SEP]`."""
_ENTITIES = {"e1": "$", "e2": "#"}


class Tokenizer(Protocol):
    """Maker of tokens and their numbers, as those of `transformers`."""

    cls_token: str
    sep_token: str
    pad_token: str

    def tokenize(self, text: str) -> list[str]: ...
    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExample:
    """Sentence, or pair of sentences, with the text of its label; None where it has none."""

    text_a: str
    text_b: str | None = None
    label: str | None = None


# No slots: the pickle reader of `torch.load(weights_only=True)` fills the attributes one by one.
@dataclass(frozen=True, kw_only=True)
class PairFeatures:
    """Numbers of an example, each list as long as `max_seq_len`.

    `segment_ids` are 0 for the first sentence and 1 for the second. `e1_mask` and `e2_mask` are 1
    at the tokens of the two marked entities; None where none are asked for.
    """

    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    label_id: float | None = None
    e1_mask: list[int] | None = None
    e2_mask: list[int] | None = None


class TextProcessor:
    """Reader of a folder with `train`, `dev` and `test` as .tsv, .csv, .jsonl or .json files.

    A .tsv or .csv file has one example in a line: label, sentence and, maybe, second sentence; the
    label may be empty. A line of .jsonl, or an item of .json, is a mapping with `text_a` (or
    `text`), `text_b` and `label`. `labels` are in the order of their numbers.
    """

    def __init__(self, labels: Sequence[str] = ()) -> None:
        self._labels = list(labels)

    def get_labels(self) -> list[str]:
        """Return the labels in the order of their numbers."""
        return list(self._labels)

    def get_train_examples(self, data_dir: str | PathLike[str]) -> list[TextExample]:
        return self.examples(data_dir, "train")

    def get_dev_examples(self, data_dir: str | PathLike[str]) -> list[TextExample]:
        return self.examples(data_dir, "dev")

    def get_test_examples(self, data_dir: str | PathLike[str]) -> list[TextExample]:
        return self.examples(data_dir, "test")

    def examples(self, data_dir: str | PathLike[str], split: str) -> list[TextExample]:
        """Return the examples of a split. InputError for a missing file or a line without text."""
        folder = Path(data_dir)
        endings = (".tsv", ".csv", ".jsonl", ".json")
        paths = [folder / f"{split}{ending}" for ending in endings]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            names = ", ".join(path.name for path in paths)
            raise InputError(
                f"There is no data for {split}.",
                where=str(folder),
                fix=f"Put one of {names} there.",
            )
        read = _read_columns if path.suffix in (".tsv", ".csv") else _read_mappings
        found = list(read(path))
        if not found:
            raise InputError("The file has no examples.", where=str(path))
        return found


def _read_columns(path: Path) -> Iterator[TextExample]:
    is_tabs = path.suffix == ".tsv"
    with path.open(encoding="utf-8", newline="") as file:
        # Tabs separate, and quotes are part of the text, as in the files of GLUE and SemEval.
        rows = csv.reader(
            file,
            delimiter="\t" if is_tabs else ",",
            quoting=csv.QUOTE_NONE if is_tabs else csv.QUOTE_MINIMAL,
        )
        for number, row in enumerate(rows, start=1):
            if not row:
                continue
            if len(row) not in (2, 3) or not row[1].strip():
                raise InputError(
                    f"A line has {len(row)} columns; an example is a label and one or two texts.",
                    where=f"{path}:{number}",
                )
            text_b = row[2] if len(row) == 3 else None
            yield TextExample(text_a=row[1], text_b=text_b, label=row[0] or None)


def _read_mappings(path: Path) -> Iterator[TextExample]:
    text = path.read_text(encoding="utf-8")
    try:
        lines = text.splitlines() if path.suffix == ".jsonl" else None
        items = json.loads(text) if lines is None else [json.loads(each) for each in lines if each]
    except json.JSONDecodeError as error:
        raise InputError(f"The file is no JSON: {error}.", where=str(path)) from None
    for number, item in enumerate(items, start=1):
        given = item if isinstance(item, Mapping) else {}
        text_a = given.get("text_a", given.get("text"))
        if not isinstance(text_a, str):
            raise InputError(
                "An example has no `text_a`.",
                where=f"{path}, example {number}",
                fix='{"text": ...}',
            )
        label = given.get("label")
        yield TextExample(
            text_a=text_a, text_b=given.get("text_b"), label=None if label is None else str(label)
        )


class WordPieces:
    """Tokenizer of BERT: lower case, punctuation by itself, the longest known pieces first.

    `vocabulary` lists the tokens in the order of their numbers, or names a file with one a line; a
    piece that continues a word begins with `##`. Gives the tokens of `BertTokenizer` of
    transformers with the same vocabulary (Devlin et al. 2018, arXiv 1810.04805). InputError for a
    vocabulary without the special tokens.
    """

    cls_token = "[CLS]"
    sep_token = "[SEP]"
    pad_token = "[PAD]"
    unk_token = "[UNK]"

    def __init__(
        self, vocabulary: Sequence[str] | str | PathLike[str], *, lower_case: bool = True
    ) -> None:
        if isinstance(vocabulary, str | PathLike):
            vocabulary = Path(vocabulary).read_text(encoding="utf-8").splitlines()
        self.ids = {token: i for i, token in enumerate(vocabulary)}
        self.lower_case = lower_case
        special = (self.cls_token, self.sep_token, self.pad_token, self.unk_token)
        if missing := [token for token in special if token not in self.ids]:
            raise InputError(f"The vocabulary has no {', '.join(missing)}.")

    def __len__(self) -> int:
        return len(self.ids)

    def tokenize(self, text: str) -> list[str]:
        """Return the pieces of a text; special tokens in it stay whole."""
        return [piece for word in self._words(text) for piece in self._pieces(word)]

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        """Return the number of each token, of an unknown one that of `[UNK]`."""
        unknown = self.ids[self.unk_token]
        return [self.ids.get(token, unknown) for token in tokens]

    def _words(self, text: str) -> Iterator[str]:
        for chunk in text.split():
            if chunk in (self.cls_token, self.sep_token, self.pad_token, self.unk_token):
                yield chunk
                continue
            if self.lower_case:
                decomposed = unicodedata.normalize("NFD", chunk.lower())
                chunk = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
            word = ""
            for character in chunk:
                if _stands_alone(character):
                    yield from filter(None, (word, character))
                    word = ""
                elif unicodedata.category(character) not in ("Cc", "Cf"):
                    word += character
            if word:
                yield word

    def _pieces(self, word: str) -> list[str]:
        if len(word) > _LONGEST_WORD:
            return [self.unk_token]
        pieces: list[str] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self.ids), None)
            if end is None:
                return [self.unk_token]
            pieces.append(prefix + word[start:end])
            start = end
        return pieces


def _stands_alone(character: str) -> bool:
    """Return whether a character is a token of its own: punctuation, or a Chinese character."""
    code = ord(character)
    is_symbol = character.isascii() and not character.isalnum() and character.isprintable()
    is_chinese = 0x4E00 <= code <= 0x9FFF or 0x3400 <= code <= 0x4DBF or 0xF900 <= code <= 0xFAFF
    return is_symbol or is_chinese or unicodedata.category(character).startswith("P")


def pair_features(
    examples: Iterable[TextExample],
    labels: Sequence[str],
    tokenizer: Tokenizer,
    *,
    max_seq_len: int,
    output_mode: OutputMode = "classification",
    mark_entities: bool = False,
) -> list[PairFeatures]:
    """Return the features of sentences and pairs: `[CLS] a [SEP] b [SEP]`, padded to one length.

    Of a pair that is too long the longer sentence loses tokens at its end. A label becomes its
    place among `labels`, in regression its number. With `mark_entities`, `<e1>...</e1>` and
    `<e2>...</e2>` in the first sentence become `$ ... $` and `# ... #`, and masks say where they
    are (Wu and He 2019, arXiv 1905.08284). Raises InputError with the number of the example for an
    unknown label, and for an entity that is not marked or is cut off.
    """
    if max_seq_len < _SHORTEST:
        raise InputError(f"max_seq_len is {max_seq_len}: too short for a pair.")
    found = []
    for index, example in enumerate(examples):
        where = f"example {index}"
        label = _label_id(example.label, labels, output_mode, where)
        spans: dict[str, tuple[int, int]] = {}
        if mark_entities:
            first, spans = _marked_tokens(example.text_a, tokenizer, where)
        else:
            first = tokenizer.tokenize(example.text_a)
        second = tokenizer.tokenize(example.text_b) if example.text_b is not None else []
        _shorten(first, second, max_seq_len - (3 if second else 2))
        masks = {
            f"{name}_mask": _mask(span, len(first), max_seq_len, f"{name} of {where}")
            for name, span in spans.items()
        }
        numbers = _numbers(first, second, tokenizer, max_seq_len)
        found.append(PairFeatures(**numbers, label_id=label, **masks))
    return found


def _numbers(
    first: list[str], second: list[str], tokenizer: Tokenizer, length: int
) -> dict[str, list[int]]:
    """Return ids, mask and segments of one or two sentences, padded."""
    tokens = [tokenizer.cls_token, *first, tokenizer.sep_token]
    segments = [0] * len(tokens)
    if second:
        tokens += [*second, tokenizer.sep_token]
        segments += [1] * (len(second) + 1)
    padding = [0] * (length - len(tokens))
    padded = tokens + [tokenizer.pad_token] * len(padding)
    return {
        "input_ids": tokenizer.convert_tokens_to_ids(padded),
        "input_mask": [1] * len(tokens) + padding,
        "segment_ids": segments + padding,
    }


def _label_id(
    label: str | None, labels: Sequence[str], mode: OutputMode, where: str
) -> float | None:
    if label is None:
        return None
    if mode == "classification":
        if label not in labels:
            fix = choose(label, list(labels), "labels are")
            raise InputError(f"The label `{label}` is unknown.", where=where, fix=fix)
        return list(labels).index(label)
    try:
        return float(label)
    except ValueError:
        raise InputError(f"The label `{label}` is no number.", where=where) from None


def _marked_tokens(
    text: str, tokenizer: Tokenizer, where: str
) -> tuple[list[str], dict[str, tuple[int, int]]]:
    """Return tokens with the marks of both entities, and the span of each: first and behind."""
    tokens: list[str] = []
    spans: dict[str, tuple[int, int]] = {}
    opened = {f"<{name}>": name for name in _ENTITIES}
    rest = text
    while mark := min((m for m in opened if m in rest), key=rest.index, default=""):
        name = opened.pop(mark)
        before, _, after = rest.partition(mark)
        inside, closing, rest = after.partition(f"</{name}>")
        if not closing:
            break
        tokens += tokenizer.tokenize(before)
        entity = [_ENTITIES[name], *tokenizer.tokenize(inside), _ENTITIES[name]]
        spans[name] = (len(tokens), len(tokens) + len(entity))
        tokens += entity
    if len(spans) != len(_ENTITIES):
        raise InputError(
            "The two entities are not marked.", where=where, fix="<e1>...</e1> and <e2>...</e2>"
        )
    return tokens + tokenizer.tokenize(rest), spans


def _shorten(first: list[str], second: list[str], room: int) -> None:
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()


def _mask(span: tuple[int, int], length: int, max_seq_len: int, what: str) -> list[int]:
    start, end = span
    if end > length:
        raise InputError(
            f"The entity {what} lies behind max_seq_len = {max_seq_len}.", fix="Make it longer."
        )
    return [int(start <= place - 1 < end) for place in range(max_seq_len)]  # [CLS] comes first
