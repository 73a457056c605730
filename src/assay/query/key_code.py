"""Key code of a run: the kept source of functions, classes and modules."""

from __future__ import annotations

from assay.core.errors import InputError
from assay.query.diff import code_store
from assay.query.run import RunView


def key_code(run: RunView) -> dict[str, str]:
    """Source by name, as it was in the newest attempt. InputError when it is not here."""
    blobs = code_store(run)
    try:
        return {
            name: blobs.get(digest).decode("utf-8", "replace")
            for name, digest in run.code.keys.items()
        }
    except KeyError:
        what = (
            f"The code of {run.id} is not here: its folder was copied without its project's code "
            "store."
        )
        raise InputError(what, where=str(run.path)) from None
