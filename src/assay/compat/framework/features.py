"""Features of sentence pairs, by the name and the arguments that the text calls them with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from assay.compat.names import import_target
from assay.compat.parts.features import OutputMode
from assay.compat.parts.text import PairFeatures, TextExample, Tokenizer, pair_features

# The text keeps features with `torch.save`. Without this `torch.load` would refuse to read them
# back: it makes only what it knows, and these are plain lists of numbers.
import_target("torch.serialization.add_safe_globals")([PairFeatures])


def convert_examples_to_features(
    examples: Iterable[TextExample],
    label_list: Sequence[str],
    max_seq_len: int,
    tokenizer: Tokenizer,
    output_mode: OutputMode = "classification",
    use_entity_indicator: bool = False,
) -> list[PairFeatures]:
    """Return the features of examples; see `pair_features`, to which the arguments go."""
    return pair_features(
        examples,
        label_list,
        tokenizer,
        max_seq_len=max_seq_len,
        output_mode=output_mode,
        mark_entities=use_entity_indicator,
    )
