"""Snippets of the five older texts, and what is executed of them: the text with its repairs.

`compat/snippets/ROW.txt` is a copy of the text of a row; a row with several texts has
`ROW.NAME.txt`. Where the texts themselves lie beside the repository, the copy must be in one of
them, line for line. `repairs` of the row in `rows.toml` are the only changes, but for a margin that
all lines share.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import rows

FOLDER = Path(__file__).parent / "compat" / "snippets"
SYSTEMS = {"A": "alchemy", "B": "framework", "C": "thexp", "D": "flame", "E": "LiBai"}
TEXTS = Path(__file__).resolve().parents[2] / "shared" / "seeds"


def original(name: str) -> str:
    """The text of a snippet, `S-C8` or `S-C9.viewer`."""
    copy = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    for line in copy.splitlines() if TEXTS.is_dir() else ():
        assert line in _lines(), f"{name}: no text has the line {line!r}"
    return copy


def executed(name: str) -> str:
    """The text of a snippet with the repairs of its row, each of which must change something."""
    repairs = rows.read_table()[name.partition(".")[0]].get("repairs", ())
    lines = textwrap.dedent(original(name)).splitlines()
    top: list[str] = []
    for repair in repairs:
        if repair.get("of", name) != name:
            continue
        if not repair.get("line"):
            top += repair["becomes"].splitlines()
            continue
        places = [i for i, line in enumerate(lines) if line.strip() == repair["line"].strip()]
        assert places, f"{name}: the repair of {repair['line']!r} changes nothing"
        for i in places:
            indent = lines[i][: len(lines[i]) - len(lines[i].lstrip())]
            lines[i] = "\n".join(f"{indent}{line}" for line in repair["becomes"].splitlines())
    return "\n".join([*top, *lines]) + "\n"


def table_lines() -> list[str]:
    """The table of `docs/reference/older-texts.md`: each text, what is checked of it, what is changed."""
    table = ["| text | what the tests check | what had to change |", "| --- | --- | --- |"]
    for name, row in rows.read_table().items():
        if name.startswith("S-"):
            changes = [_change_of(repair) for repair in row.get("repairs", ())]
            changes += [row["instead"]] if "instead" in row else []
            check = row["check"].partition(" (repairs:")[0].replace("|", "\\|")
            title = f"{SYSTEMS[row['title'][0]]}{row['title'][1:]}"
            table.append(f"| {title} | {check} | {'; '.join(changes) or 'nothing'} |")
    return table


def _change_of(repair: Mapping[str, str]) -> str:
    line, becomes = (
        " ".join(repair[key].split()).replace("|", "\\|") for key in ("line", "becomes")
    )
    return f"`{line}` -> {f'`{becomes}`' if becomes else 'gone'} ({repair['why']})"


@cache
def _lines() -> frozenset[str]:
    texts = (path.read_text(encoding="utf-8") for path in sorted(TEXTS.glob("*.txt")))
    return frozenset(line for text in texts for line in text.splitlines())
