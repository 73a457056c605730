"""Reporter of thexp: a report of an experiment in Markdown, with pictures of its curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from assay.compat.thexp.trainer import Callback, Trainer
from assay.core.errors import InputError
from assay.formats.json_codec import write_atomic
from assay.query.run import RunView

FILE_NAME = "report.md"
PICTURES = "pictures"


class Reporter:
    """Writer of `report.md` in the folder of a run: parameters, metrics, best, curves and files.

    All comes from the record, so that the same record gives the same report.
    """

    def __init__(self, view: RunView) -> None:
        self.view = view

    def write(self) -> Path:
        """Write the report and one SVG for each metric into `report/`; return the report."""
        folder = self.view.path / "report"
        (folder / PICTURES).mkdir(parents=True, exist_ok=True)
        write_atomic(folder / FILE_NAME, "\n".join(self._lines(folder)).encode("utf-8"))
        return folder / FILE_NAME

    def _lines(self, folder: Path) -> Iterator[str]:
        view = self.view
        yield f"# {' '.join((view.tag or view.id).split())}\n"
        yield f"Run `{view.id}`, {view.status_text}, {view.last_step} steps.\n"
        yield from ("## Parameters\n", "```toml", view.config_text.strip(), "```\n")
        yield from _table("Metrics", ("metric", "last", "min", "max"), self._metrics())
        if view.best is not None:
            best = view.best
            yield f"Best: {best.metric} = {_number(best.value)} at step {best.step}.\n"
        yield "## Curves\n"
        for i, name in enumerate(view.metrics):
            picture = view.plot(name).save(folder / PICTURES / f"{i}.svg")
            yield f"![{name}]({PICTURES}/{picture.name})\n"
        yield from _table("Files", ("file", "bytes"), self._files())

    def _metrics(self) -> Iterator[tuple[str, ...]]:
        for name, each in self.view.summaries.items():
            low = f"{_number(each.min)} at step {each.at_min}"
            high = f"{_number(each.max)} at step {each.at_max}"
            yield name, _number(each.last), low, high

    def _files(self) -> Iterator[tuple[str, ...]]:
        for checkpoint in self.view.checkpoints:
            place = checkpoint.path.relative_to(self.view.path).as_posix()
            size = sum(f.stat().st_size for f in checkpoint.path.rglob("*") if f.is_file())
            yield _link(place), str(size)
        for path in sorted(self.view.path.rglob("*")):
            name = path.relative_to(self.view.path)
            if path.is_file() and name.parts[0] not in ("checkpoints", "report"):
                yield _link(name.as_posix()), str(path.stat().st_size)


class AutoReport(Callback):
    """Callback that writes the report of a recorded training once its record has ended."""

    def on_train_begin(self, trainer: Trainer) -> None:
        if trainer.run is None:
            raise InputError(
                "AutoReport needs a record.", fix="Call initial_exp(folder) before train()."
            )

    def on_record_end(self, trainer: Trainer) -> None:
        if trainer.run is not None and trainer.run.folder is not None:
            path = Reporter(RunView(trainer.run.folder)).write()
            trainer.logger.info("report %s", path)


def _number(value: float) -> str:
    """Return a number with six digits."""
    return f"{value:.6g}"


def _link(name: str) -> str:
    return f"[{name}](../{quote(name)})"


def _table(title: str, head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    """Yield a table of Markdown under a heading; its cells hold no bar of their own."""
    yield f"## {title}\n"
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |"
    yield ""
