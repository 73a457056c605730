"""Names that have left assay: whoever still writes one is told what to write instead."""

from __future__ import annotations

from collections.abc import Mapping

_SAMPLERS = "write mode = {!r} in [sweep], and leave --sampler out"
_PAGE = "the page of the project draws it: assay ui"
RETIRED: Mapping[str, str] = {
    "assay convert": "a config of an older system runs as it is; `assay config show CONFIG` prints"
    " it as one of assay",
    "assay summary": "assay check CONFIG --show layers",
    "assay graph": "assay check CONFIG --show batch",
    "assay events": "assay check CONFIG --show callbacks",
    "assay bench": "assay check CONFIG --show loading",
    "assay note": "assay edit RUN --note TEXT",
    "assay label": "assay edit RUN --label NAME",
    "assay tag": "assay edit RUN --tag TITLE",
    "assay archive": "assay edit RUN --archive",
    "assay reindex": "assay gc --index",
    "assay watch": "assay inbox --follow",
    "assay table ls": "assay table show",
    "assay table export": "assay table show TABLE -o FILE, or --as FORM",
    "assay table import": "assay table set TABLE ROW COLUMN VALUE, or the page: assay ui",
    "assay config ls": "assay config get",
    "assay config unset": "assay config set NAME --unset",
    "assay queue add": "assay run CONFIG --queue",
    "assay queue rerun": "assay rerun RUN --queue",
    "assay queue resume": "assay queue pause --undo",
    "assay queue move": "the order is given with the job: assay run CONFIG --queue --priority 5",
    "assay run --on local": "assay run CONFIG --queue",
    "assay sweep --sampler grid": _SAMPLERS.format("grid"),
    "assay sweep --sampler zip": _SAMPLERS.format("zip"),
    "assay sweep --sampler random": _SAMPLERS.format("random"),
    "assay figure parallel": _PAGE,
    "assay figure histogram": _PAGE,
    "assay.engine.KerasModel": "write the model in torch, and load its weights with [load_weights]",
}
"""Command, command with option and value, or target -> what to write instead."""


def instead_of(name: str) -> str:
    """Return what to write instead of a name that has left, "" for any other.

    >>> instead_of("assay sweep --sampler zip"), instead_of("assay run")
    ("write mode = 'zip' in [sweep], and leave --sampler out", '')
    """
    return RETIRED.get(name, "")
