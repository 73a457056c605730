"""Panel of a notebook: buttons that start and stop a training, and its curves while it trains."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from assay.core.errors import AssayError, InputError, MissingExtraError
from assay.core.terminal import visible
from assay.query.run import RunView
from assay.store.layout import open_project, run_folders

_EVERY_S = 1.0
_NEWEST = 20
_SHOWN_CHARACTERS = 4_000


class RunPanel:
    """Panel that trains a config in an OS process of its own, as `assay run` does."""

    def __init__(self, config: str | Path, *arguments: str) -> None:
        """Make the buttons; `arguments` are further ones of `assay run`, as "train.epochs=3".

        MissingExtraError without ipywidgets.
        """
        try:
            widgets: Any = import_module("ipywidgets")  # by name: it has no types
        except ImportError:
            raise MissingExtraError("A panel of buttons", extra="notebook") from None
        self.command = [sys.executable, "-m", "assay", "run", str(config), *arguments, "--quiet"]
        self.folder = Path(config).absolute().parent
        self.process: subprocess.Popen[bytes] | None = None
        self.start_button = widgets.Button(description="Start", icon="play")
        self.stop_button = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.start_button.on_click(lambda _: self.start())
        self.stop_button.on_click(lambda _: self.stop())
        self.page = widgets.HTML()
        self.widget = widgets.VBox([widgets.HBox([self.start_button, self.stop_button]), self.page])

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.widget._repr_mimebundle_(**options)

    @property
    def run(self) -> RunView | None:
        """The record of the training; None before it begins."""
        pid = self.process.pid if self.process is not None else 0
        for folder in reversed(run_folders(open_project(self.folder))[-_NEWEST:]):
            view = RunView(folder)
            if not view.error and view.file.attempts and view.file.newest.pid == pid:
                return view
        return None

    def start(self) -> None:
        """Begin the training; InputError while it is under way."""
        if self.process is not None and self.process.poll() is None:
            raise InputError("The training is under way.", fix="stop it first")
        output = tempfile.TemporaryFile()  # noqa: SIM115  # `_watch` closes it
        self.process = subprocess.Popen(self.command, stdout=output, stderr=output)
        self.start_button.disabled, self.stop_button.disabled = True, False
        threading.Thread(target=self._watch, args=(self.process, output), daemon=True).start()

    def stop(self) -> None:
        """Ask the training to stop: it saves a checkpoint, and `assay resume` resumes it."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def _watch(self, process: subprocess.Popen[bytes], output: Any) -> None:
        """Draw the run about once a second until its process ends."""
        with output:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_EVERY_S)
                output.seek(0)
                self.page.value = self._draw(output.read().decode("utf-8", "replace"))
        self.start_button.disabled, self.stop_button.disabled = False, True

    def _draw(self, printed: str) -> str:
        """Return the run as HTML, or what its process printed where there is no record yet."""
        try:
            view = self.run
            if view is not None:
                return view._repr_html_() + (view.plot().svg if view.metrics else "")
        except AssayError as error:  # no loss yet, or a record that is being made
            printed = printed or error.what
        text = "\n".join(map(visible, printed[-_SHOWN_CHARACTERS:].splitlines()))
        return f"<pre>{escape(text) or 'starting ...'}</pre>"
