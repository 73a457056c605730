"""One attempt of a run: signals, record, engine, and an end that is recorded whatever happens."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from assay.compose.callbacks import AnyRecorder, add_callbacks, trace_run
from assay.compose.launch import Launch, RunResult
from assay.compose.prepared_run import PreparedRun
from assay.compose.ranks import ECHO_S, rank_report, tell_folder
from assay.compose.run_record import end_record, fail_record, set_recorder
from assay.compose.run_scope import keep_meta
from assay.config.loading import Config
from assay.core.errors import CheckpointError, RankError
from assay.core.facts import EndStatus, Warned
from assay.core.ports import NullRecorder
from assay.core.signals import heard_line, stopping
from assay.core.stop import Stop
from assay.core.terminal import for_terminal
from assay.formats.run_file import UNSAVED
from assay.record.recorder import RunRecorder
from assay.record.signs_of_life import signs_of_life
from assay.script import under_way

if TYPE_CHECKING:
    from assay.core.signals import Signals
    from assay.engine.loop.state import State
    from assay.engine.parallel.rank_folder import EndOrder


def run_attempt(
    prepared: PreparedRun, begin: Callable[[], AnyRecorder], config: Config, launch: Launch
) -> RunResult:
    """Train what is prepared, with the record that `begin` opens.

    Whatever is raised inside ends up in the result and in the record.
    """
    attempt = _Attempt(prepared, config, launch)
    stop = prepared.engine.state.stop
    with ExitStack() as stack:
        signals = attempt.listen_to_signals(stack)
        try:
            with signals.holding():  # a record that is half begun could not be ended
                attempt.recorder = begin()
            stack.enter_context(signs_of_life(prepared.engine.ranks, attempt.recorder))
            stack.enter_context(_guarding_exit(attempt.end_by_exit))
            state = _run_engine(prepared, attempt.recorder, launch)
        except BaseException as error:  # the result carries it, KeyboardInterrupt too
            with signals.holding():
                result = attempt.fail(error)
        else:
            result = attempt.finish(state, stop, signals)
    result = attempt.tell_plugins(result)
    return replace(result, signal=signals.heard[0] if signals.heard else stop.signal)


@dataclass(slots=True)
class _Attempt:
    """State of one attempt while it runs."""

    prepared: PreparedRun
    config: Config
    launch: Launch
    recorder: AnyRecorder = field(default_factory=NullRecorder)
    is_over: bool = False

    @property
    def _step(self) -> int:
        return self.prepared.engine.state.step

    def listen_to_signals(self, stack: ExitStack) -> Signals:
        """Stop the engine on a signal, and end the process on an order of the launcher."""
        ranks = self.prepared.scope.rank_folder
        if ranks is not None:
            heard = stack.enter_context
            heard(ranks.under_orders(self._end_by_order, self._print_heard))
        echo_s = ECHO_S if ranks is not None else 0.0
        stop = self.prepared.engine.state.stop
        return stack.enter_context(stopping(stop, say=self._print_unless_ending, echo_s=echo_s))

    def _print_heard(self, number: int) -> None:
        self.prepared.say(heard_line(number))

    def _print_unless_ending(self, line: str) -> None:
        # Nobody asked for the signal that ends the ranks which are left when one has failed; what
        # the launcher heard is printed by the thread that hears of it.
        from assay.engine.parallel.rank_folder import is_ending

        ranks = self.prepared.scope.rank_folder
        if not (ranks is not None and ranks.launcher_signal()) and not is_ending(ranks):
            self.prepared.say(line)

    def fail(self, error: BaseException) -> RunResult:
        """End the record with what was raised, or with its cause on another rank."""
        from assay.engine.parallel.rank_folder import error_behind

        scope = self.prepared.scope
        self.is_over = True
        scope.tell_ending()
        cause = error_behind(error, scope.rank_folder)
        return fail_record(self.recorder, self.config, cause, step=self._step)

    def finish(self, state: State, stop: Stop, signals: Signals) -> RunResult:
        """End the record of a run that was stopped or came to its own end."""
        scope = self.prepared.scope
        self.is_over = True
        status: EndStatus = "stopped" if stop.interrupts else "finished"
        note = "" if stop.interrupts else _describe_unsaved(self.prepared, state.step)
        reached = self.prepared.engine.bounds.reached_limit(state)
        ways = [note, stop.reason or reached, state.describe_left_out()]
        reason = "; ".join(filter(None, ways))
        with signals.holding():
            scope.tell_ending()
            result = end_record(
                self.recorder, self.config, status, reason, state.metrics, step=state.step
            )
        if stop.interrupts and stop.signal:
            result = replace(result, exit_code=128 + stop.signal)
        elif note:
            note = "; ".join(filter(None, [note, result.note]))
            result = replace(result, exit_code=CheckpointError.exit_code, note=note)
        return replace(result, is_first=scope.is_first)

    def tell_plugins(self, result: RunResult) -> RunResult:
        """Let the plugins see the record that has ended; their failures change no end of a run."""
        from assay.build import call_record_end

        if not isinstance(self.recorder, RunRecorder):
            return result
        failed = call_record_end(self.prepared.scope.plugins, self.recorder.folder.path)
        return replace(result, note="; ".join(filter(None, [result.note, *failed])))

    def _end_by_order(self, order: EndOrder) -> None:
        """End the record as the launcher orders, and then this process.

        Called from another thread, while the main thread hangs.
        """
        status: EndStatus = "stopped" if order.signal else "failed"
        code = 128 + order.signal if order.signal else RankError.exit_code
        self._end_at_once(
            status, order.reason, order.cause, "" if order.signal else order.cause, code
        )
        # Nothing else ends a main thread that hangs.
        os._exit(0 if order.signal else RankError.exit_code)

    def end_by_exit(self, code: int) -> int:
        """End the record of a process that its own code ends by `os._exit`; return the exit code.

        A run had more to do, so 0 would be a lie.
        """
        if self.is_over:
            return code
        reason = f"os._exit({code}): code of the run ended its process at step {self._step}"
        self._end_at_once("failed", reason, reason, reason, code or 1)
        return code or 1

    def _end_at_once(
        self, status: EndStatus, reason: str, cause: str, error: str, code: int
    ) -> None:
        """End the record, and tell person and launcher the `cause`; no `finally` will run."""
        self.is_over = True
        scope = self.prepared.scope
        if isinstance(self.recorder, RunRecorder):
            self.recorder.logger.info("%s", cause)
        result = end_record(self.recorder, self.config, status, reason, {}, step=self._step)
        if not self.launch.ranks_folder and scope.is_first:  # there is no launcher to print it
            line = for_terminal(f"error: {cause}", color=False)
            print(line, file=sys.stderr, flush=True)
        if scope.rank_folder is not None:
            report = rank_report(replace(result, exit_code=code), scope.rank)
            scope.rank_folder.report(scope.rank, replace(report, error=error))


def _describe_unsaved(prepared: PreparedRun, step: int) -> str:
    """Return a note on the final weights, if they were to be kept and are not."""
    if prepared.save is None or not prepared.scope.is_first:
        return ""
    why = prepared.save.why_unsaved(step)
    return f"{UNSAVED}: {why}" if why else ""


def _run_engine(prepared: PreparedRun, recorder: AnyRecorder, launch: Launch) -> State:
    """Run the engine with all callbacks, the trace and the plugins."""
    from assay.build import entered
    from assay.engine.numerics.precision import deterministic

    engine, scope = prepared.engine, prepared.scope
    engine.recorder = recorder
    set_recorder(scope, recorder)
    keep_meta(scope, recorder)
    if launch.ranks_folder:
        folder = recorder.folder.path if isinstance(recorder, RunRecorder) else None
        tell_folder(launch, scope, folder)
    add_callbacks(prepared, recorder, launch, saving=_is_saving(prepared, recorder))
    on = scope.sections.train.deterministic
    with (
        under_way(recorder),
        trace_run(prepared, recorder, launch),
        entered(scope.plugins),
        deterministic(engine.process.model, enabled=on),
    ):
        engine.bus.extend(handler for plugin in scope.plugins for handler in plugin.handlers())
        _restore_callbacks(prepared, recorder)
        return engine.run()


def _restore_callbacks(prepared: PreparedRun, recorder: AnyRecorder) -> None:
    """Restore callbacks, and warn about parts that have not kept the checkpoint's state."""
    from assay.engine.loop.engine_state import is_of_engine, restore_listeners, unlike

    engine = prepared.engine
    if prepared.loaded is not None:
        restore_listeners(engine, prepared.loaded)
        prepared.loaded = None
    if prepared.expected is not None:
        for part in unlike(engine, prepared.expected):
            # What the state of somebody else does to the run, nobody has compared.
            is_known = is_of_engine(part)
            effect = (
                "is not exact" if is_known else "may not be exact; assay verify-resume tries it"
            )
            message = (
                f"{part} took its state from the checkpoint and has another now: resume {effect}."
            )
            recorder.tell(Warned(message=message, step=engine.state.step))
        prepared.expected = None


def _is_saving(prepared: PreparedRun, recorder: AnyRecorder) -> bool:
    """Return True if this rank writes checkpoints: rank 0, or all where none has the whole model.

    Collective.
    """
    mesh = prepared.scope.mesh
    is_recording = isinstance(recorder, RunRecorder)
    if mesh is None or mesh.writers is None:
        return is_recording
    folder = mesh.writers.gather(str(prepared.saver_folder or "") if is_recording else "")[0]
    prepared.saver_folder = Path(folder) if folder else None
    return bool(folder)


@contextmanager
def _guarding_exit(end: Callable[[int], int]) -> Iterator[None]:
    """Call `end` with the code of an `os._exit` inside, of which nobody hears otherwise.

    Children are forked with it and end by it: theirs stays what it was.
    """
    real, pid = os._exit, os.getpid()

    def end_and_exit(status: int) -> NoReturn:
        os._exit = real
        try:
            status = end(status) if os.getpid() == pid else status
        finally:
            real(status)

    os._exit = end_and_exit
    try:
        yield
    finally:
        os._exit = real
