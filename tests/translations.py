"""Compare the Chinese pages in `docs/zh` with the English ones they translate.

`python tests/translations.py` copies the code blocks of the English pages into the Chinese ones,
and lists what else differs: headings, tables, list items, paragraphs, links.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
CHINESE = DOCS / "zh"
LOOSE = "<!-- numbers vary -->\n"
FENCE = re.compile(rf"^(?:{LOOSE})?```[^\n]*\n.*?^```$", re.MULTILINE | re.DOTALL)
OWN = re.compile(r"```\{(index|toctree|image)\}")  # blocks that each language writes for itself
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)]+)\)")


def pairs() -> list[tuple[Path, Path]]:
    """Return (English, Chinese) for every page that is to be in both languages."""
    english = [DOCS / "index.md"]
    for book in ("tour", "guide", "compat"):
        english += sorted((DOCS / book).glob("*.md"))
    return [(page, CHINESE / page.relative_to(DOCS)) for page in english]


def code_blocks(text: str) -> list[str]:
    return [found for found in FENCE.findall(text) if not OWN.match(found)]


def outline(page: Path) -> list[str]:
    """Return the kinds of the blocks of a page in order: `## `, `code`, `table 3x2`, `text`."""
    text = page.read_text(encoding="utf-8")
    text = FENCE.sub(lambda found: "" if OWN.match(found[0]) else "\nCODE\n", text)
    kinds = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.split("\n")
        if block.startswith("#"):
            kinds.append(block.partition(" ")[0])
        elif block == "CODE":
            kinds.append("code")
        elif block.startswith("|"):
            kinds.append(f"table {len(lines)}x{lines[1].count('-')}")
        elif items := sum(bool(re.match(r"(\d+\.|-) ", line)) for line in lines):
            kinds.append(f"list {items}")
        elif not re.fullmatch(r"\[(English|中文)\]\([^)]+\)", block):
            kinds.append("text")
    return kinds


def links(page: Path) -> list[str]:
    """Return the pages that a page links to, in the English tree, without the other language."""
    found = LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    folder, other = page.parent, {english: chinese for english, chinese in pairs()}
    other |= {chinese: english for english, chinese in pairs()}
    targets = []
    for link in found:
        page_alone = link.partition("#")[0]  # the headings are in another language
        target = Path(os.path.normpath(folder / page_alone)) if "://" not in link else None
        if target is None:
            targets.append(link)
        elif target in other and (CHINESE in target.parents) != (CHINESE in page.parents):
            if target != other[page]:
                targets.append(f"{link}, in the other language")
        else:
            inner = target.relative_to(CHINESE) if CHINESE in target.parents else None
            targets.append((inner or target.relative_to(DOCS)).as_posix())
    return sorted(targets)


def is_linked(page: Path, other: Path) -> bool:
    """Return whether a page links to its translation."""
    link = os.path.relpath(other, page.parent)
    return (
        re.search(rf"^\[(English|中文)\]\({re.escape(link)}\)$", page.read_text("utf-8"), re.M)
        is not None
    )


def copy_code(english: Path, chinese: Path) -> bool:
    """Copy the code blocks; return False where the pages have different numbers of them."""
    blocks = iter(code_blocks(english.read_text(encoding="utf-8")))
    text = chinese.read_text(encoding="utf-8")
    if len(code_blocks(text)) != len(code_blocks(english.read_text(encoding="utf-8"))):
        return False
    copied = FENCE.sub(lambda found: found[0] if OWN.match(found[0]) else next(blocks), text)
    chinese.write_text(copied, encoding="utf-8")
    return True


def main() -> int:
    problems = 0
    for english, chinese in pairs():
        name = chinese.relative_to(DOCS)
        if not chinese.exists():
            print(f"{name} is missing")
        elif not copy_code(english, chinese) or outline(english) != outline(chinese):
            print(f"{name}: {outline(chinese)}\ninstead of {outline(english)}")
        elif links(english) != links(chinese):
            print(f"{name}: links to {links(chinese)}\ninstead of {links(english)}")
        else:
            continue
        problems += 1
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
