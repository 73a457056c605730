"""Model card of a run in the form of the Hugging Face Hub: metadata in YAML, then Markdown."""

from __future__ import annotations

import contextlib
import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from assay.core.errors import AssayError
from assay.core.facts import Evaluated
from assay.formats.export_folder import METRIC_HEAD, ExportCertificate, ExportSchema
from assay.formats.json_codec import dumps
from assay.query.find import find_run
from assay.query.run import RunView
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
from assay.report.run_report import fact_grid, find_tests, full_sections, report_run
from assay.store.code_trees import code_blobs, read_tree
from assay.store.layout import Project

_SECTIONS = ("Result", "Test", "Data", "Config", "Cost", "Code", "Run it again")
_UNSAID = "The record does not say. Write it here before you publish the model."


def make_card(view: RunView, project: Project) -> str:
    """Return the card: what the record knows; what only a person knows is marked as missing.

    Tests of the run are looked for in `project`.
    """
    report = report_run(view, project=project)
    weights = ', "best"' if view.best_checkpoint is not None else ""
    code = f'import assay\n\nmodel = assay.load_model("{view.id}"{weights})'
    use = DocumentSection("Use", (Listing(code, "python"),))
    limits = DocumentSection("Intended use and limitations", (Prose(_UNSAID),))
    purpose = [each for each in report.sections if each.title == "Purpose"]
    rest = [each for each in report.sections if each.title in _SECTIONS]
    card = replace(report, sections=(*purpose, use, limits, *rest))
    return card_metadata(view, project) + card.to_markdown()


def make_export_readme(
    view: RunView,
    project: Project,
    certificate: ExportCertificate,
    schema: ExportSchema,
    *,
    step: int,
    why: str,
    hooks: Sequence[str],
) -> str:
    """Return the README of an exported model, of weights of `step`, with `hooks` of its process.

    It is the metadata of a card, then what the model takes and gives, and its certificate.
    """
    facts: list[tuple[str, Cell]] = [
        ("run", certificate.run),
        ("checkpoint", f"{certificate.checkpoint}{f': {why}' if why else ''}"),
        ("weights", certificate.weights),
        ("config", WebLink("config.toml", "config.toml")),
        ("hash of the config", view.file.newest.config_hash),
        *((name, f"sha256 {digest}") for name, digest in certificate.files.items()),
    ]
    use = (
        f"A model of assay, exported to {certificate.target}. `python run_model.py` runs it on the"
        " batch in `example.safetensors`; it does not need assay."
    )
    named = " and ".join(f"`{name}`" for name in hooks)
    kept = f" With {named} of its process." if hooks else ""
    mode = (
        f"The model is in evaluation mode and in fp32.{kept} What else the data and the process did"
        " before and after it is not part of it. `schema.json` has the same for programs."
    )
    verdict = (
        f"{'Within' if certificate.is_within else 'NOT within'} its tolerance: {certificate.text}."
        f" Batches: {certificate.batching}."
        " `certificate.json` has it for programs."
    )
    sections: dict[str, list[Block]] = {
        "Use": [Prose(use)],
        "Inputs and outputs": [CellGrid(("", "name", "dtype and shape"), schema.rows), Prose(mode)],
        "Certificate": [Prose(verdict), CellGrid(METRIC_HEAD, certificate.metric_rows, 1)],
    }
    title = f"{view.tag or view.id}, {certificate.target}"
    document = ReportDocument(view.id, title, fact_grid(facts), full_sections(sections))
    tags = (certificate.target,)
    head = card_metadata(view, project, *tags, checkpoint=certificate.checkpoint, step=step)
    return head + document.to_markdown()


def card_metadata(
    view: RunView, project: Project, *tags: str, checkpoint: str = "", step: int | None = None
) -> str:
    """Return the YAML block of a card: library, license if known, metrics, and their results.

    The results are the evaluations of `step`, else of the best step, else the last ones, of each
    split, and those of the newest `assay test` (of `checkpoint`).
    """
    tests = [find_run(each, project) for each in find_tests([view], project, checkpoint)]
    evaluated = [(view, fact) for fact in _evaluations(view, step)]
    evaluated += [(test, fact) for test in tests for fact in _evaluations(test)]
    names = (name.rpartition("/")[2] for _, each in evaluated for name in each.metrics)
    license_name = _license(view)
    lines = ["---", "library_name: assay"]
    lines += [f"license: {dumps(license_name)}"] if license_name else []
    lines += [f"tags: {dumps(['assay', 'pytorch', *tags])}"]
    lines += [f"metrics: {dumps(list(dict.fromkeys(names)))}"]
    seeds = view.file.newest.seeds if view.file.attempts else {}
    lines += [f"{name}: {seed}" for name, seed in seeds.items()]
    if evaluated:
        lines += ["model-index:", f"- name: {dumps(view.tag or view.id)}", "  results:"]
    for run, each in evaluated:
        split = dumps(each.split)
        lines += ["  - task: {type: other}"]
        lines += [f"    dataset: {{type: other, name: {split}, split: {split}}}", "    metrics:"]
        for name, value in each.metrics.items():
            shown = dumps(f"{name}, step {each.step} of run {run.id}")
            kind = dumps(name.rpartition("/")[2])
            # To YAML 1e-05 is a text, 1.0e-05 a number.
            written = repr(value) if "." in repr(value) else repr(value).replace("e", ".0e")
            lines += [f"    - {{type: {kind}, value: {written}, name: {shown}}}"]
    return "\n".join([*lines, "---", "", ""])


def _evaluations(view: RunView, step: int | None = None) -> Iterator[Evaluated]:
    """Yield the newest evaluation of each split up to a step, by default the best or last one."""
    if step is None:
        step = view.best.step if view.best is not None else view.last_step
    newest: dict[str, Evaluated] = {}
    for event in view.events:
        fact = event.fact
        if isinstance(fact, Evaluated) and not fact.partial and fact.step <= step:
            newest[fact.split] = fact
    for each in newest.values():
        finite = {name: value for name, value in each.metrics.items() if math.isfinite(value)}
        if finite:
            yield replace(each, metrics=finite)


def _license(view: RunView) -> str:
    """Return the license in the project's `pyproject.toml`, as it was kept with the code."""
    with contextlib.suppress(AssayError, KeyError, OSError, ValueError):
        blobs = code_blobs(Project(Path(view.file.project)))
        file = read_tree(blobs, view.code.snapshot)["pyproject.toml"]
        found = tomllib.loads(blobs.get(file.digest).decode("utf-8"))["project"]["license"]
        return found.lower() if isinstance(found, str) else ""
    return ""
