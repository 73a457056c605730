"""Cells executed in a real kernel of Jupyter."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"


def executed(cells: Sequence[str], folder: Path) -> list[Any]:
    """Return the cells with their outputs, run one after another in the folder.

    Errors of a cell are among its outputs. Skips the test where Jupyter is not installed.
    """
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    client = nbclient.NotebookClient(
        notebook, timeout=300, allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )
    # In a thread with a loop of its own: the loop of a browser may run in this one, and nbclient
    # would then start a thread that never ends.
    with ThreadPoolExecutor(1) as thread:
        done = client.async_execute(env={**os.environ, "PYTHONPATH": str(SRC)})
        thread.submit(asyncio.run, done).result()
    found: list[Any] = notebook.cells
    return found
