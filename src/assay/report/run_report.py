"""Report of a run or of several, from their records: result, curves, config, cost, repetition."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from assay.core.errors import AssayError, InputError
from assay.core.facts import COSTS, Evaluated
from assay.core.formatting import count, duration, moment, number, size
from assay.formats.json_codec import dumps
from assay.formats.run_file import IMPORTED
from assay.query.catalog import Asked, Catalog, open_catalog
from assay.query.columns import DEFAULT_COLUMNS
from assay.query.config_rows import config_rows
from assay.query.determinism import conditions
from assay.query.drawing import CurveDrawing
from assay.query.find import find_run, is_expression, select_group
from assay.query.groups import BY_CONFIG
from assay.query.rerun import commands_for
from assay.query.run import RunView
from assay.query.table import (
    GroupTable,
    RunTable,
    default_columns,
    differing_keys,
    make_group_table,
)
from assay.report.document import (
    Block,
    Cell,
    CellGrid,
    DocumentSection,
    Listing,
    Prose,
    ReportDocument,
    WebLink,
)
from assay.report.figure_data import FigureRequest, as_curve, read_panels
from assay.store import authorship
from assay.store.known_projects import project_here
from assay.store.layout import Project

_UNDRAWN = (*COSTS, "epoch")
_MOST_PICTURES, _MOST_LINES = 60, 8
_FOLDED = ("checkpoints", "report")
"""Folders of a record whose files are not listed one by one."""


def make_report(address: str, project: Project | None = None) -> ReportDocument:
    """Return the report of one run, or of all runs that fulfil an expression of `assay ls`.

    InputError where there is no such run, RecordError for a run whose `run.json` cannot be read.
    """
    home = project or project_here()
    try:
        view = find_run(address, home)
    except InputError:
        if not is_expression(address):  # a tag may read like one
            raise
        return report_runs(address, home)
    return report_run(view, project=home)


def report_run(view: RunView, *, links: str = "", project: Project | None = None) -> ReportDocument:
    """Return the report of a run; RecordError where its `run.json` cannot be read.

    `links` leads from the document to the folder of the run, as "..": its files are linked then.
    Tests of the run are looked for in `project`.
    """
    sections: dict[str, Iterable[Block]] = {
        "Damaged": [Listing("\n".join(view.damages))] if view.damages else [],
        "Purpose": [Prose(view.desc)] if view.desc else [],
        "Result": _result(view),
        "Test": _tests([view], project),
        "Curves": _own_curves(view),
        "Data": _data(view),
        "Config": _config(view),
        "Cost": [_cost(view)],
        "Code": [_code(view)],
        "Environment": _environment(view),
        "Reproducibility": _reproducibility(view),
        "Run it again": [_again(view)],
        "Notes": [Prose(f"**{moment(note.at_ns)}** {note.new}") for note in view.notes],
        "Files": [_files(view, links)],
    }
    return ReportDocument(view.id, view.tag or view.id, _lead(view), full_sections(sections))


def report_runs(where: str, project: Project) -> ReportDocument:
    """Return the report of all runs that fulfil an expression; InputError where none does.

    Its results are the rows of `assay ls EXPR --group --diff`.
    """
    catalog = open_catalog(project)
    selection = select_group(catalog, where)
    # A file is read later: an age in it would be wrong.
    columns = ("created" if name == "age" else name for name in DEFAULT_COLUMNS)
    runs = RunTable.of(selection, [catalog.known_column(name) for name in columns])
    keys = differing_keys(selection, without=("seed",))
    names = [*keys, *default_columns(selection)]
    grouped = Asked(where=where, group=(BY_CONFIG,), columns=names, limit=None)
    groups = make_group_table(catalog, grouped)
    views = [view for view in runs if not view.error]
    head, *rows = groups.shown_rows()
    verdicts = [(view.id, moment(v.at_ns), v.said) for view in views for v in view.verdicts]
    quoted = shlex.quote(where)
    commands = [f"assay ls {quoted} --group --diff", f"assay report {quoted}"]
    commands += [f"assay rerun {view.id}" for view in views if view.file.config_path]
    spread = Prose("± is the sample standard deviation over the finished runs of a row.")
    sections: dict[str, Iterable[Block]] = {
        "Result": [CellGrid(head, rows, 1), spread, *map(Prose, groups.find_doubts())],
        "Test": _tests(views[::-1], project, keys),
        "Curves": _group_curves(catalog, where, views),
        "Runs": [CellGrid([each.name for each in runs.columns], runs.shown_rows())],
        **{f"Config of {view.id}": _config(view) for view in views[-1:]},
        "Reproducibility": [CellGrid(("run", "when", "verdict"), verdicts)],
        "Run it again": [Listing("\n".join(commands), "console")],
    }
    lead = [
        ("runs", f"{len(runs)}, of {count(len(groups), 'config')}"),
        ("ran", f"{duration(sum(view.duration_s for view in views))} together"),
    ]
    return ReportDocument("runs", where, fact_grid(lead), full_sections(sections))


def full_sections(sections: Mapping[str, Iterable[Block]]) -> tuple[DocumentSection, ...]:
    """Return the sections and blocks that hold something."""
    full = {
        title: tuple(each for each in blocks if not isinstance(each, CellGrid) or each.rows)
        for title, blocks in sections.items()
    }
    return tuple(DocumentSection(title, blocks) for title, blocks in full.items() if blocks)


def fact_grid(pairs: Iterable[tuple[str, Cell]]) -> CellGrid:
    """Return names and values, without those that are empty."""
    return CellGrid((), [pair for pair in pairs if pair[1]])


def _lead(view: RunView) -> CellGrid:
    best = view.best
    is_open = view.status in ("running", "unknown")
    is_foreign = not view.origin and not authorship.is_own(view.folder, view.file)
    pairs = [
        ("run", view.id if view.kind == "train" else f"{view.id}, a test run"),
        ("status", f"{view.status_text}{': all numbers are those of now' if is_open else ''}"),
        ("best", f"{best.metric} {number(best.value)} at step {best.step:,}" if best else ""),
        ("started", f"{view.created:%Y-%m-%d %H:%M}"),
        ("ran", f"{duration(view.duration_s)}, {count(view.last_step, 'step')}"),
        ("of", view.file.parent),
        ("labels", ", ".join(view.labels)),
        ("imported", ", ".join(f"{name} {text}" for name, text in view.origin.items())),
        ("author", "somebody else: nothing here proves what it says" if is_foreign else ""),
    ]
    return fact_grid(pairs)


def _result(view: RunView) -> Iterator[Block]:
    values = {key: each for key, each in view.values.items() if not key.startswith(IMPORTED)}
    yield fact_grid((key, it if isinstance(it, str) else dumps(it)) for key, it in values.items())
    rows = []
    for name, each in view.summaries.items():
        if not name.startswith(_UNDRAWN):
            low, high = _extreme(each.min, each.at_min), _extreme(each.max, each.at_max)
            rows.append((name, number(each.last), *low, *high))
    yield CellGrid(("metric", "last", "min", "at step", "max", "at step"), rows, 1)


def _extreme(value: float, step: int) -> tuple[str, str]:
    """Return a value and its step; neither for a metric that was never a number."""
    return (number(value), f"{step:,}") if value == value else ("-", "-")


def find_tests(views: Iterable[RunView], project: Project, checkpoint: str = "") -> list[str]:
    """Return the newest finished `assay test` of each run that has one, by its id.

    With `checkpoint` those of other weights do not count.
    """
    asked = Asked(where="kind = test and status = finished", sort=("created",), limit=None)
    ids, parents = open_catalog(project).values(asked, ["id", "parent"])
    newest = {}
    for test, parent in zip(ids, parents, strict=True):
        run, _, tested = parent.partition("@")
        if checkpoint in ("", tested):
            newest[run] = test
    return [newest[view.id] for view in views if view.id in newest]


def _tests(
    views: Sequence[RunView], project: Project | None, keys: Sequence[str] = ()
) -> Iterator[Block]:
    """Yield the metrics of tests of runs: of one with its weights, of several by config."""
    tests = find_tests(views, project) if project is not None else []
    if not tests or project is None:
        return
    catalog = open_catalog(project)
    metrics = [name for name in catalog.metrics_of(tests) if not name.startswith(_UNDRAWN)]
    found = catalog.select_ids(tests)
    columns = tuple(map(catalog.known_column, ("parent", *metrics, "id")))
    if len(views) == 1:
        yield CellGrid(("weights", *metrics, "run"), RunTable.of(found, columns).shown_rows())
        return
    columns = tuple(map(catalog.known_column, (*keys, *metrics)))
    groups = catalog.group(found, Asked(group=(BY_CONFIG,))).groups(columns, 0, None)
    head, *rows = GroupTable(columns, tuple(groups)).shown_rows()
    yield CellGrid(head, rows, 1)


def _own_curves(view: RunView) -> Iterator[CurveDrawing]:
    """Yield drawings of all metrics with one last part, as train/loss and valid/loss."""
    panels: dict[str, list[str]] = {}
    for name in view.metrics:
        if not name.startswith(_UNDRAWN):
            panels.setdefault(name.rpartition("/")[2], []).append(name)
    for title, metrics in list(panels.items())[:_MOST_PICTURES]:
        with contextlib.suppress(AssayError):  # a lost curve: `damages` tells
            curves = {name: view.metric(name) for name in metrics[:_MOST_LINES]}
            yield CurveDrawing.of_series(title, curves)


def _group_curves(catalog: Catalog, where: str, views: Sequence[RunView]) -> Iterator[CurveDrawing]:
    """Yield a drawing of each metric; repeats are their mean with a band of one deviation."""
    names = dict.fromkeys(name for view in views for name in view.metrics)
    metrics = [name for name in names if not name.startswith(_UNDRAWN)][:_MOST_PICTURES]
    with contextlib.suppress(AssayError):  # a lost curve: `damages` tells
        request = FigureRequest(kind="curves", runs=(where,), metrics=tuple(metrics))
        for panel in read_panels(catalog, request) if metrics else ():
            curves = {item.label: as_curve(item) for item in panel.items[:_MOST_LINES]}
            yield CurveDrawing(panel.title, curves, panel.axes[0])


def _data(view: RunView) -> Iterator[Block]:
    attempts = view.file.attempts
    pairs = [("data.train", attempts[-1].exactness if attempts else "")]
    facts = [event.fact for event in view.events if isinstance(event.fact, Evaluated)]
    counts = {fact.split: f"{fact.samples:,} samples evaluated" for fact in facts}
    yield fact_grid([*pairs, *((f"data.{split}", text) for split, text in counts.items())])
    inputs = view.environment.get("inputs")
    files = inputs.get("files", {}) if isinstance(inputs, dict) else {}
    yield CellGrid(("file read", "digest"), [(name, str(files[name])) for name in files])


def _config(view: RunView) -> Iterator[Block]:
    try:
        rows = config_rows(view)
    except AssayError as error:
        yield Listing(f"{error.what}\n\n{view.config_text}")
        return
    asked = [row for row in rows if row.kind not in ("default", "injected")]
    cells = [(row.key, row.value, row.origin or row.kind) for row in asked]
    yield CellGrid(("key", "value", "origin"), cells)
    if defaults := [f"{row.key} = {row.value}" for row in rows if row.kind == "default"]:
        yield Prose("**Defaults taken**")
        yield Listing("\n".join(defaults))


def _cost(view: RunView) -> CellGrid:
    """Return the time of a run and of its parts, its speed and largest memory."""
    attempts = view.file.attempts
    parts: dict[str, list[str]] = {kind: [] for kind in ("time", "speed", "memory")}
    for name, each in view.summaries.items():
        kind, _, part = name.partition("/")
        if kind == "time" and each.mean > 0:
            parts[kind].append(f"{part.removesuffix('_s')} {duration(each.mean * each.count)}")
        elif kind == "speed" and part != "eta_s":
            parts[kind].append(f"{number(each.mean)} {part.replace('_per_s', ' per s')}")
        elif kind == "memory" and each.max > 0:
            parts[kind].append(f"{part.removesuffix('_mib')} {size(int(each.max * 2**20))}")
    devices = ", ".join(attempts[-1].devices) if attempts else ""
    shown = [("ran", f"{duration(view.duration_s)}, in {count(len(attempts), 'attempt')}")]
    shown += [("on", devices), *((kind, ", ".join(each)) for kind, each in parts.items())]
    return fact_grid(shown)


def _code(view: RunView) -> CellGrid:
    code = view.code
    commit: Cell = code.git_commit
    if code.git_commit and code.git_remote.startswith("https://"):
        commit = WebLink(code.git_commit, f"{code.git_remote}/commit/{code.git_commit}")
    kept = f"snapshot {code.snapshot}, {count(code.files, 'file')}" if code.snapshot else "no"
    changes = f"patch {code.patch}" if code.patch else "not kept as a patch"
    pairs = [
        ("repository", code.git_remote),
        ("commit", commit),
        ("changes to it", changes if code.git_dirty else ""),
        ("kept", kept),
        ("left out", ", ".join(code.left_out)),
    ]
    return fact_grid(pairs)


def _environment(view: RunView) -> Iterator[Block]:
    found = view.environment
    torch = found.get("torch")
    torch = torch if isinstance(torch, dict) else {}
    system = " ".join(str(found[key]) for key in ("platform", "machine", "kernel") if key in found)
    pairs = [("python", str(found.get("python", ""))), ("system", system)]
    pairs += [(key, str(found.get(key, ""))) for key in ("cpus", "gpus", "driver")]
    pairs += [(f"torch {key}", str(value)) for key, value in torch.items() if value is not None]
    pairs += [(key, str(value)) for key, value in (found.get("variables") or {}).items()]
    yield fact_grid(pairs)
    if packages := found.get("packages"):
        yield Listing("\n".join(f"{name}=={version}" for name, version in packages.items()))


def _reproducibility(view: RunView) -> Iterator[Block]:
    yield CellGrid(("when", "verdict"), [(moment(each.at_ns), each.said) for each in view.verdicts])
    if not any(each.question == "replay" for each in view.verdicts):
        yield Prose(f"Never replayed: `assay replay {view.id}` trains it again and compares bits.")
    rows = [(each.name, each.value, each.kind, each.why) for each in conditions(view)]
    yield CellGrid(("depends on", "value", "kind", "why"), rows)


def _again(view: RunView) -> Listing:
    command = view.file.newest.command if view.file.attempts else ()
    commands = commands_for(view)
    started = shlex.join(command)
    is_told = started in ("", *(each.line for each in commands))
    begin = [] if is_told else [f"{started}  # as it was started", ""]
    width = max(len(each.line) for each in commands)
    shown = [f"{each.line:<{width}}  # {each.purpose}" for each in commands]
    last = f"{f'assay report {view.id}':<{width}}  # this report"
    return Listing("\n".join([*begin, *shown, last]), "console")


def _files(view: RunView, links: str) -> CellGrid:
    """Return the files of a run with their sizes; a checkpoint is one line."""
    places = [each.path for each in view.checkpoints]
    for path in sorted(view.path.rglob("*")):
        if path.is_file() and path.relative_to(view.path).parts[0] not in _FOLDED:
            places.append(path)
    rows = []
    for place in places:
        name = place.relative_to(view.path).as_posix()
        files: Iterable[Path] = place.iterdir() if place.is_dir() else [place]
        with contextlib.suppress(OSError):  # gone meanwhile
            cell: Cell = WebLink(name, f"{links}/{name}") if links else name
            rows.append((cell, size(sum(file.lstat().st_size for file in files))))
    return CellGrid(("file", "size"), rows, 1)
