"""Data sets and the tokenizer of LiBai by its names and arguments, each sample an `Instance`."""

from __future__ import annotations

from typing import Any

from assay.compat.parts.images import CIFAR100
from assay.compat.parts.masked_text import MaskedSentencePairs
from assay.compat.parts.text import Tokenizer, WordPieces
from assay.engine.data.instance import DistTensorData, Instance

_LAST = -1
"""Pipeline stage that needs the labels."""

_FIELDS = {
    "input_ids": ("input_ids", 0),
    "attention_mask": ("attention_mask", 0),
    "tokentype_ids": ("token_type_ids", 0),
    "ns_labels": ("order", _LAST),
    "lm_labels": ("labels", _LAST),
    "loss_mask": ("label_mask", _LAST),
}
"""Field in LiBai -> field here, and the pipeline stage that needs it."""


class BertTokenizer(WordPieces):
    """Word pieces of the vocabulary in a file, one a line."""

    def __init__(self, vocab_file: str, do_lower_case: bool = True) -> None:
        super().__init__(vocab_file, lower_case=do_lower_case)


class BertDataset(MaskedSentencePairs):
    """Masked sentence pairs of the text file `data_prefix`: one sentence a line.

    In a config, `tokenization.tokenizer` is the tokenizer where none is given.
    """

    def __init__(
        self,
        data_prefix: str,
        tokenizer: Tokenizer,
        *,
        name: str = "",
        max_seq_length: int = 512,
        mask_lm_prob: float = 0.15,
        seed: int = 1234,
    ) -> None:
        super().__init__(
            data_prefix, tokenizer, max_seq_len=max_seq_length, mask_prob=mask_lm_prob, seed=seed
        )
        self.name = name

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return Instance(
            **{
                name: DistTensorData(sample[here], placement_idx=stage)
                for name, (here, stage) in _FIELDS.items()
            }
        )


class CIFAR100Dataset(CIFAR100):
    """Pictures of CIFAR-100 as `images` and `labels`; `root` has its files, binary version."""

    def __init__(
        self,
        root: str,
        train: bool = True,
        transform: Any = None,
        download: bool = False,
        dataset_name: str = "",
    ) -> None:
        super().__init__(root, train, transform, download)
        self.dataset_name = dataset_name

    def __getitem__(self, index: int) -> Any:
        image, _ = super().__getitem__(index)
        return Instance(
            images=DistTensorData(image),
            labels=DistTensorData(self.labels[index], placement_idx=_LAST),
        )
