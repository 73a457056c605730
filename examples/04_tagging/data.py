"""Lines of the standard library: their tokens, and by the syntax tree what each name in them is."""

from __future__ import annotations

import ast
import sysconfig
import tokenize
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor

TAGS = ["other", "function", "class", "parameter", "keyword", "attribute", "module", "set", "used"]
IGNORED = -100
FILES = {
    "train": (
        *("argparse", "ast", "calendar", "csv", "difflib", "fractions", "heapq"),
        *("imaplib", "inspect", "pdb", "pickle", "shutil", "smtplib", "tarfile"),
    ),
    "valid": ("configparser", "dataclasses", "textwrap"),
    "test": ("functools", "optparse", "statistics"),
}
_SPACE = (
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)


class Lines:
    """(word numbers, tags) of each logical line with a name in it; lines differ in length."""

    randomness = "none"

    def __init__(self, split: str, words: int = 4096) -> None:
        folder = Path(sysconfig.get_path("stdlib"))
        self.lines = [
            (
                torch.tensor([1 + crc32(word.encode()) % (words - 1) for word, _ in line]),
                torch.tensor(tags),
            )
            for name in FILES[split]
            for line in tagged((folder / f"{name}.py").read_text(encoding="utf-8"))
            if any(tags := [tag for _, tag in line])
        ]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.lines[index]

    @staticmethod
    def collate_fn(lines: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Lines of one batch, filled up to the longest: word 0, and a tag that is not counted."""
        words, tags = zip(*lines, strict=True)
        fill = torch.nn.utils.rnn.pad_sequence
        return fill(words, batch_first=True), fill(tags, batch_first=True, padding_value=IGNORED)


def tagged(source: str) -> Iterator[list[tuple[str, int]]]:
    """The logical lines of a program: each word with the number of its tag."""
    tag_at = dict(_tags(ast.parse(source)))
    line: list[tuple[str, int]] = []
    before = ""
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            yield line
            line = []
        elif token.type not in _SPACE:
            tag = {"def": "function", "class": "class"}.get(before) or tag_at.get(
                token.start, "other"
            )
            # Ends are kept too: an attribute is known by where it ends.
            tag = tag_at.get(("end", *token.end), tag) if token.type == tokenize.NAME else "other"
            line.append((token.string[:40], TAGS.index(tag)))
            before = token.string


def _tags(tree: ast.AST) -> Iterator[tuple[tuple[object, ...], str]]:
    """Where names begin, or end, and what they are. Columns are those of ASCII text."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(lineno=line, col_offset=column):
                yield (line, column), "parameter"
            case ast.keyword(arg=str(), lineno=line, col_offset=column):
                yield (line, column), "keyword"
            case ast.Attribute(end_lineno=line, end_col_offset=column):
                yield ("end", line, column), "attribute"
            case ast.alias(lineno=line, col_offset=column):
                yield (line, column), "module"
            case ast.Name(ctx=ast.Store(), lineno=line, col_offset=column):
                yield (line, column), "set"
            case ast.Name(lineno=line, col_offset=column):
                yield (line, column), "used"
