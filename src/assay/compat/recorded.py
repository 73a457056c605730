"""Training of a script by an engine, with its record and its checkpoints."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from assay.core.signals import stopping
from assay.engine import Engine, Evaluate, Save, Saver, State
from assay.engine.metrics.outputs import Evaluation
from assay.formats.run_file import Best
from assay.record.recorder import RunRecorder
from assay.record.start import Run
from assay.script import start


class BestOfRecord:
    """Part of a record that notes which checkpoint is the best."""

    def __init__(self) -> None:
        self._recorder: RunRecorder | None = None

    def attach(self, recorder: RunRecorder) -> None:
        self._recorder = recorder

    def set(self, metric: str, mode: Any, value: float, step: int, checkpoint: str) -> None:
        """Note the best checkpoint so far."""
        if self._recorder is not None:
            best = Best(metric=metric, mode=mode, value=value, step=step, checkpoint=checkpoint)
            self._recorder.set_best(best)


def add_checkpoints(engine: Engine, run: Run, best: tuple[str, Any] | None = None) -> Saver | None:
    """Save checkpoints of the engine into the record, one after each epoch; None without one."""
    if run.folder is None:
        return None
    noted = BestOfRecord()
    run.attach(noted)
    saver = Saver(run.folder.checkpoints)
    engine.bus.extend(Save(saver, best=best, on_best=noted.set).handlers())
    return saver


def train_recorded(engine: Engine, run: Run) -> State:
    """Train to the end of the engine, which ends the record too.

    Raises SystemExit with 130 or 143 after a signal, once the checkpoint is saved.
    """
    stop = engine.state.stop
    with run, stopping(stop, say=_say):
        state = engine.run()
        if stop.interrupts:
            run.finish("stopped", stop.reason)
    if stop.interrupts and stop.signal:
        raise SystemExit(128 + stop.signal)
    return state


class MeansOfNumbers:
    """Pipe of an evaluation: the mean over the samples of each number in an output.

    `known` are metrics that are measured otherwise; the loss is one, too.
    """

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.known = {"loss", *known}

    def begin_eval(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self._sums: dict[str, Any] = {}

    def __call__(self, output: Any) -> Any:
        for name, value in output.items() if isinstance(output, Mapping) else ():
            is_number = isinstance(value, int | float) or getattr(value, "ndim", None) == 0
            if is_number and name not in self.known:
                weighted = value * self._evaluation.size
                self._sums[name] = self._sums.get(name, 0) + weighted
        return output

    def end_eval(self, evaluation: Evaluation) -> Mapping[str, float]:
        count = max(1, evaluation.samples)
        return {name: float(total) / count for name, total in self._sums.items()}


class RecordedEngine:
    """Engine of assay with a record, as `flame.Engine`; it has what the engine has.

    `evaluate` are loaders by split, evaluated after each epoch: metrics are those of the process,
    and the mean of each number in the output of a validation step. `best` is a metric and its mode,
    ("val/acc", "max"). A `State` that was injected into the process is that of the engine from here
    on. A script that is killed resumes by `assay resume`.
    """

    def __init__(
        self,
        process: Any,
        train: Iterable[Any],
        *,
        evaluate: Mapping[str, Iterable[Any]] | None = None,
        best: tuple[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        tag: str = "",
        **given: Any,
    ) -> None:
        name = tag or type(process).__name__
        self.record = start(tag=name, config=dict(config or {}), resumable=True)
        self.engine = Engine(process, train, recorder=self.record, **given)
        for attribute, value in list(vars(process).items()):
            if isinstance(value, State):
                setattr(process, attribute, self.engine.state)
        if evaluate:
            means = MeansOfNumbers(known=getattr(process, "metrics", ()))
            self.engine.bus.extend(Evaluate(evaluate, pipes=[means]).handlers())
        saver = add_checkpoints(self.engine, self.record, best)
        if saver is not None:
            self.engine.resume(saver)  # a new record has no checkpoint

    def run(self) -> State:
        """Train all epochs, or those that are left; the record ends with it."""
        return train_recorded(self.engine, self.record)

    def __getattr__(self, name: str) -> Any:
        if name == "engine":
            raise AttributeError(name)
        return getattr(self.engine, name)


def _say(line: str) -> None:
    print(line, file=sys.stderr)
