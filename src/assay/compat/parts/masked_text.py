"""Pairs of sentences with masked tokens: samples for the pre-training of BERT."""

from __future__ import annotations

from itertools import pairwise
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from assay.compat.parts.text import TextExample, Tokenizer, pair_features
from assay.core.errors import InputError

_KEPT, _REPLACED = 0.1, 0.1
"""Shares of the chosen tokens that stay as they are, and that become a random token."""


class MaskedSentencePairs:
    """Map-style data set of neighbouring sentences; in half of the pairs they are swapped.

    The file at `path` has one sentence a line, and an empty line between documents. A sample is a
    dict of tensors: `input_ids`, `attention_mask`, `token_type_ids`, `labels` (the tokens before
    they were masked), `label_mask` (1 where a token was chosen) and `order` (1 for a swapped pair).
    It is a function of `seed` and its index. InputError for a file without a pair, and for a
    tokenizer without `[MASK]`.
    """

    randomness = "none"

    def __init__(
        self,
        path: str | PathLike[str],
        tokenizer: Tokenizer,
        *,
        max_seq_len: int = 512,
        mask_prob: float = 0.15,
        seed: int = 0,
    ) -> None:
        self.pairs = list(_pairs(Path(path)))
        self.tokenizer = tokenizer
        self.max_seq_len = max_seq_len
        self.mask_prob = mask_prob
        self.seed = seed
        mask, unknown = tokenizer.convert_tokens_to_ids(["[MASK]", "[UNK]"])
        if mask == unknown:
            raise InputError("The vocabulary has no [MASK].")
        self.mask_id = mask
        special = [tokenizer.cls_token, tokenizer.sep_token, tokenizer.pad_token]
        self.special = tokenizer.convert_tokens_to_ids(special)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        draw = np.random.default_rng([self.seed, index])
        first, second = self.pairs[index]
        is_swapped = bool(draw.random() < 0.5)
        if is_swapped:
            first, second = second, first
        (features,) = pair_features(
            [TextExample(text_a=first, text_b=second)],
            [],
            self.tokenizer,
            max_seq_len=self.max_seq_len,
        )
        ids = np.array(features.input_ids)
        chosen = (draw.random(len(ids)) < self.mask_prob) & ~np.isin(ids, self.special)
        return {
            "input_ids": torch.from_numpy(self._mask(ids, chosen, draw)),
            "attention_mask": torch.tensor(features.input_mask),
            "token_type_ids": torch.tensor(features.segment_ids),
            "labels": torch.from_numpy(ids),
            "label_mask": torch.from_numpy(chosen.astype(np.int64)),
            "order": torch.tensor(int(is_swapped)),
        }

    def _mask(self, ids: np.ndarray, chosen: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """Return ids in which most of the chosen tokens are `[MASK]`, and some are random."""
        share = draw.random(len(ids))
        # Random tokens come from the pair: a tokenizer need not tell its size.
        other = draw.choice(ids, len(ids))
        masked = np.where(chosen & (share >= _KEPT), self.mask_id, ids)
        is_random = chosen & (share >= _KEPT) & (share < _KEPT + _REPLACED)
        return np.where(is_random, other, masked)


def _pairs(path: Path) -> list[tuple[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise InputError(f"The sentences cannot be read: {reason}.", where=str(path)) from None
    pairs = [(one, two) for one, two in pairwise(lines) if one.strip() and two.strip()]
    if not pairs:
        raise InputError(
            "The file has no two sentences of one document.",
            where=str(path),
            fix="Write one sentence a line, and an empty line between documents.",
        )
    return pairs
