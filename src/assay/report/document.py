"""Document of sections: one HTML page without outside requests, Markdown, and notebook output."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from markdown_it import MarkdownIt

from assay.core.errors import InputError
from assay.core.terminal import visible
from assay.query.drawing import CurveDrawing
from assay.query.result_tables import markdown_grid, markdown_text
from assay.store.whole_output import explain_disk_errors, new_folder, refuse_taken

PAGE, TEXT, PICTURES = "report.html", "report.md", "pictures"

_WHAT = "The report cannot be written"
_MOST_CHARACTERS = 200_000
_LONG = 30
"""Lines of a listing that stand in columns from here on."""

_FENCES = re.compile(r"^ {0,3}(`{3,})", re.MULTILINE)
# No HTML passes, and no picture is fetched: what is left of it is a link.
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")


@dataclass(frozen=True, slots=True)
class WebLink:
    """Cell that leads to `url`: a page of the web, or a file by its path from the document."""

    text: str
    url: str


Cell = str | WebLink


@dataclass(frozen=True, slots=True)
class Prose:
    """Markdown; HTML in it is shown as text."""

    text: str


@dataclass(frozen=True, slots=True)
class CellGrid:
    """Rows of cells under a head; without a head the first cell of a row names the others.

    Cells from column `numbers` on stand on the right.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: int = 100


@dataclass(frozen=True, slots=True)
class Listing:
    """Text as it is: commands, a config."""

    text: str
    language: str = ""


Block = Prose | CellGrid | Listing | CurveDrawing


@dataclass(frozen=True, slots=True)
class DocumentSection:
    """Blocks under a title, which a notebook shows."""

    title: str
    blocks: tuple[Block, ...]

    def _repr_html_(self) -> str:
        return f"<h2>{escape(visible(self.title))}</h2>{''.join(map(_html, self.blocks))}"


@dataclass(frozen=True, slots=True, repr=False)
class ReportDocument:
    """Titled sections; `report["Result"]` is one of them. `name` is good for a file."""

    name: str
    title: str
    lead: CellGrid
    sections: tuple[DocumentSection, ...]

    def __getitem__(self, title: str) -> DocumentSection:
        return {section.title: section for section in self.sections}[title]

    def __repr__(self) -> str:
        return f"<ReportDocument {self.title}: {', '.join(each.title for each in self.sections)}>"

    def _repr_html_(self) -> str:
        parts = (section._repr_html_() for section in self.sections)
        return f"<h1>{escape(visible(self.title))}</h1>{_html(self.lead)}{''.join(parts)}"

    def to_html(self) -> str:
        """Return one page that needs no other file: light, dark and printable."""
        title = escape(visible(self.title))
        return _PAGE.format(title=title, style=_STYLE, body=self._repr_html_())

    def to_markdown(self, pictures: str = "") -> str:
        """Return GitHub's Markdown. Curves are `0.svg`, `1.svg`, ... in the folder `pictures`.

        Without such a folder they are left out.
        """
        parts = [f"# {_markdown_cell(self.title)}", _markdown(self.lead)]
        numbers = itertools.count()
        for section in self.sections:
            parts.append(f"## {_markdown_cell(section.title)}")
            for block in section.blocks:
                if isinstance(block, CurveDrawing):
                    names = _markdown_cell(", ".join(block.names))
                    shown = f"![{names}]({pictures}/{next(numbers)}.svg)" if pictures else names
                    parts.append(f"**{_markdown_cell(block.title)}**\n\n{shown}")
                else:
                    parts.append(_markdown(block))
        return "\n\n".join(parts) + "\n"

    def write(self, place: Path, *, force: bool = False) -> Path | None:
        """Write one file, `.html` or `.md`; or a folder with both and a picture of each curve.

        It appears when it is whole. InputError where something is in its place, unless `force`
        moves it away; return where to.
        """
        suffix = place.suffix.lower()
        if suffix in (".html", ".md"):
            text = self.to_html() if suffix == ".html" else self.to_markdown()
            return write_text(place, text, force=force)
        if suffix and not place.is_dir():
            fix = f"name it {place.stem}.html or {place.stem}.md; or a folder without a suffix"
            raise InputError(f"{place.name} is no kind of report.", fix=fix)
        refuse_taken(place, force=force)
        with new_folder(place, _WHAT) as output, explain_disk_errors(place, _WHAT):
            (output.scratch / PICTURES).mkdir()
            blocks = (block for section in self.sections for block in section.blocks)
            drawings = (block for block in blocks if isinstance(block, CurveDrawing))
            for i, drawing in enumerate(drawings):
                drawing.save(output.scratch / PICTURES / f"{i}.svg")
            output.write(PAGE, self.to_html())
            output.write(TEXT, self.to_markdown(PICTURES))
            return output.put_in_place()


def write_text(place: Path, text: str, *, force: bool) -> Path | None:
    """Write one file as `ReportDocument.write` does."""
    refuse_taken(place, force=force)
    with new_folder(place, _WHAT) as output, explain_disk_errors(place, _WHAT):
        output.write(place.name, text)
        return output.put_in_place(place.name)


def _html(block: Block) -> str:
    """Return a block as HTML: what its Markdown says, and curves as they are."""
    match block:
        case CurveDrawing():
            caption = f"<figcaption>{escape(visible(block.title))}</figcaption>"
            return f"<figure>{caption}{block.svg}</figure>"
        case Prose(text=text):
            kind, text = "prose", _visible_lines(text)
        case Listing(text=text):
            kind, text = "long" if text.count("\n") > _LONG else "", _markdown(block)
        case CellGrid(head=head):
            kind, text = "grid" if head else "grid facts", _markdown(block)
    return f'<div class="{kind}">{_MARKDOWN.render(text)}</div>'


def _markdown(block: Prose | CellGrid | Listing) -> str:
    match block:
        case Prose(text=text):
            return _without_html(_visible_lines(text))
        case Listing(text=text, language=language):
            fence = "`" * max([3, *(len(each) + 1 for each in _FENCES.findall(text))])
            return f"{fence}{language}\n{_visible_lines(text).rstrip()}\n{fence}"
        case CellGrid(head=head, rows=rows, numbers=numbers):
            columns = range(len((head, *rows)[-1]))
            lines = [[*map(_markdown_cell, row)] for row in (head or [""] * len(columns), *rows)]
            return markdown_grid(lines[0], lines[1:], [at >= numbers for at in columns])


def _markdown_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return markdown_text(visible(cell))
    safe = ":/?&=#%@+~" if "://" in cell.url else "/"  # the path of a file has none of these marks
    return f"[{markdown_text(visible(cell.text))}]({quote(cell.url, safe=safe)})"


def _visible_lines(text: str) -> str:
    """Return a text with its control characters escaped, line by line; a long one is cut."""
    return "\n".join(map(visible, text[:_MOST_CHARACTERS].expandtabs(4).splitlines()))


def _without_html(text: str) -> str:
    """Return Markdown in which HTML is text and pictures are links, outside of blocks of code.

    A picture would be fetched from wherever it says by whoever opens the page.
    """
    blocks = [each for each in _MARKDOWN.parse(text) if each.type in ("fence", "code_block")]
    is_code = {at for block in blocks for at in range(*(block.map or (0, 0)))}
    lines = enumerate(text.split("\n"))
    return "\n".join(line if at in is_code else _harmless(line) for at, line in lines)


def _harmless(line: str) -> str:
    return line.replace("<", "&lt;").replace("![", "[")


_STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --page: #fff; --soft: #f4f5f7; --line: #d9dce1;
  --muted: #5f6670; --accent: #0b62a8; }
@media screen and (prefers-color-scheme: dark) { :root { --text: #e4e6ea; --page: #16181c;
  --soft: #1f2227; --line: #363b43; --muted: #a0a7b1; --accent: #6cb6ff; }
  figure svg { filter: brightness(1.35); } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid var(--line); }
.prose :is(h1, h2, h3, h4, h5, h6) { font-size: 1rem; margin: 1rem 0 .4rem; border: 0; }
a { color: var(--accent); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0; }
th, td { min-width: 3.2rem; overflow-wrap: break-word; text-align: left; vertical-align: top;
  padding: .22rem 1.4rem .22rem 0; border-bottom: 1px solid var(--line); }
th, .facts td:first-child { font-weight: 600; color: var(--muted); white-space: nowrap; }
.facts thead { display: none; }
[style] { white-space: nowrap; }
.grid { overflow-x: auto; }
pre { background: var(--soft); padding: .7rem .9rem; white-space: pre-wrap; }
.long pre { columns: 15rem; column-gap: 1.5rem; }
code { font: .88em/1.45 ui-monospace, monospace; }
figure { display: inline-block; width: min(30.5rem, 100%); margin: 0 0 .8rem; break-inside: avoid; }
figcaption { font-weight: 600; }
svg { max-width: 100%; height: auto; }
svg text[fill="#767676"] { fill: var(--muted); }
@media print { body { font-size: 10pt; max-width: none; margin: 0; } h2 { break-after: avoid; }
  tr { break-inside: avoid; } td { overflow-wrap: anywhere; } figure { width: 49%; } }
"""
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
