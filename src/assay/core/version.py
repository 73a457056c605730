"""Version of the installed package."""

from __future__ import annotations


def version() -> str:
    """Return the version of the installed package."""
    from importlib import metadata  # here: it takes longer to load than most commands take to run

    try:
        return metadata.version("assay")
    except metadata.PackageNotFoundError:  # run from its source, never installed
        return "0+unknown"
