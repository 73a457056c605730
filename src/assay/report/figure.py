"""Figures of records, for a notebook or as files that can be made again from the records."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import shlex
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import InputError, choose
from assay.core.regular_file import read_bytes
from assay.core.retired import instead_of
from assay.core.terminal import visible
from assay.formats.json_codec import decode_json, dumps
from assay.query.catalog import open_catalog
from assay.report.figure_data import KINDS, FigureRequest, Panel, read_panels
from assay.report.figure_drawing import FILE_SETTINGS, draw_figure
from assay.store.known_projects import project_here
from assay.store.layout import Project
from assay.store.whole_output import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT = 1
_METADATA = {
    ".pdf": ("Subject", "Keywords", "CreationDate"),
    ".svg": ("Description", "Keywords", "Date"),
    ".png": ("Description", "Comment", "Date"),
}
"""Names under which a file of each kind holds the command, the recipe, and no date."""

_RECIPE = re.compile(rb"assay-figure:([\w+/]+=*);")
_MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRecipe:
    """Content of the metadata of a figure, and of the file `.json` beside it.

    `command` makes the file again; `digest` is the sha256 of the panels.
    """

    format: int = FORMAT
    command: str
    digest: str
    request: FigureRequest
    panels: tuple[Panel, ...]


def figure(
    kind: str,
    *runs: str,
    metrics: str | Sequence[str],
    project: Project | None = None,
    **options: Any,
) -> Figure:
    """Return a matplotlib figure of runs, as `assay figure KIND RUN|EXPR...` draws it.

    The options are `metrics`, `keys`, `by` and `ignored` (texts or lists of them; -m, -k, --by and
    --except of the command), `style`, `title` and `log` ("x", "y", "xy"). InputError for what
    cannot be drawn, MissingExtraError without matplotlib.
    """
    request = make_request(kind, runs, metrics=metrics, **options)
    return draw_figure(read_panels(open_catalog(project or project_here()), request), request)


def make_request(kind: str, runs: Sequence[str], **options: Any) -> FigureRequest:
    """Return a request; a text stands for a list of it.

    InputError for no kind of figure, and without a metric.
    """
    if kind not in KINDS:
        fix = instead_of(f"assay figure {kind}") or choose(kind, KINDS, "there are", n=2)
        raise InputError(f"There is no kind of figure `{kind}`.", fix=fix)
    if not options.get("metrics"):
        raise InputError(f"A figure of the kind {kind} needs a metric.", fix="-m NAME draws it")
    given = {name: value for name, value in options.items() if value}
    for name in given.keys() & {"metrics", "keys", "by", "ignored"}:
        given[name] = (given[name],) if isinstance(given[name], str) else tuple(given[name])
    return FigureRequest(kind=kind, runs=tuple(runs), **given)


def write_figure(request: FigureRequest, to: Path, *, name: str = "") -> FigureRecipe:
    """Draw a figure into a file, with its recipe in the metadata and in `FILE.json` beside it.

    The same values give the same bytes. `name` is that of the file in the command, by default its
    own. InputError for an unknown ending, and for a file in its place that is no figure of ours.
    """
    names = _METADATA.get(to.suffix.lower())
    if names is None:
        fix = f"name it {to.stem or 'fig'}.pdf, .svg or .png"
        raise InputError(f"{to.name} is no kind of figure.", fix=fix)
    if to.exists():
        read_recipe(to)  # a file that somebody else made is not ours to replace
    panels = read_panels(open_catalog(project_here()), request)
    command = write_command(request, name or str(to))
    digest = hashlib.sha256(dumps(panels).encode()).hexdigest()
    recipe = FigureRecipe(command=command, digest=digest, request=request, panels=panels)
    text = f"{dumps(recipe)}\n".encode()
    readable = visible(command).encode("utf-8", "replace").decode()
    packed = f"assay-figure:{base64.b64encode(zlib.compress(text, 9)).decode()};"
    drawn = draw_figure(panels, request)
    from matplotlib import rc_context

    file = io.BytesIO()
    facts: Any = dict(zip(names, (readable, packed, None), strict=True))
    with rc_context(FILE_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("error", "Glyph .* missing")  # boxes in the place of letters
        try:
            drawn.savefig(file, format=to.suffix[1:].lower(), metadata=facts)
        except UserWarning as error:
            fix = "install one that has it, such as Noto Sans CJK"
            raise InputError(f"No font here has a letter: {error}", fix=fix) from None
    for path, data in ((to, file.getvalue()), (to.with_name(f"{to.name}.json"), text)):
        replace_file(path, data, "The figure cannot be written")
    return recipe


def write_command(request: FigureRequest, to: str) -> str:
    """Return the command that draws a figure into a file."""
    words = ["assay", "figure", request.kind, *request.runs]
    words += [word for metric in request.metrics for word in ("-m", metric)]
    words += [word for key in request.keys for word in ("-k", key)]
    plain = FigureRequest(kind=request.kind, runs=(), metrics=())
    for name in ("by", "ignored", "style", "title", "log"):
        given = getattr(request, name)
        if given != getattr(plain, name):
            option = "--except" if name == "ignored" else f"--{name}"
            words += [option, given if isinstance(given, str) else ",".join(given)]
    return shlex.join([*words, "-o", to])


def read_recipe(file: Path) -> FigureRecipe:
    """Return the recipe in a file; InputError for a file that `assay figure` did not write."""
    try:
        data = read_bytes(file, _MOST_BYTES, follow=True)
    except OSError as error:
        what = f"{file.name} cannot be read: {error.strerror or error}."
        others = [each.name for each in file.parent.glob(f"*{file.suffix}")]
        raise InputError(what, where=str(file), fix=choose(file.name, others)) from error
    found = _RECIPE.search(data)
    try:
        if found is None:
            raise ValueError
        packed = zlib.decompressobj()
        text = packed.decompress(base64.b64decode(found[1]), _MOST_BYTES)
        return decode_json(text, file, FigureRecipe, version=FORMAT)
    except (ValueError, zlib.error):
        what = f"{file.name} was not drawn by `assay figure`: it holds no recipe."
        raise InputError(what, where=str(file), fix="name another file") from None


def redo_figure(file: Path, to: Path | None = None) -> tuple[bool, bool]:
    """Draw the figure in a file again from the records, into it or into another one.

    Return whether its values are the same, and whether a file that is drawn over keeps its bytes.
    """
    before = read_recipe(file)
    old = read_bytes(file, _MOST_BYTES, follow=True)
    name = "" if to else shlex.split(before.command)[-1]
    after = write_figure(before.request, to or file, name=name)
    is_same = to is None and read_bytes(file, _MOST_BYTES, follow=True) == old
    return before.digest == after.digest, is_same
