"""What a person sees: a bar on a terminal, plain lines elsewhere, nothing when nobody looks."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, TextIO

import pytest

from assay.core.errors import InputError
from assay.engine import EMA, Display, Engine, Evaluate
from assay.engine.callbacks import display as display_module
from engine.toys import engine, loader, supervised

CONTROL = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")
COLOR = re.compile(r"\x1b\[[0-9;]*m")
SECONDS = re.compile(r"\d+\.\d s")
LEFT = re.compile(r"  eta .*")  # told by a machine that is slow or busy


class Kept(logging.Handler):
    """The lines that would go to `log.txt`."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def log() -> Iterator[Kept]:
    kept = Kept()
    logger = logging.getLogger("test.display")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(kept)
    yield kept
    logger.removeHandler(kept)


def shown_by(runs: Engine, stream: TextIO, **given: Any) -> Display:
    display = Display(logger=logging.getLogger("test.display"), stream=stream, **given)
    runs.bus.extend(display.handlers())
    return display


def plain(runs: Engine, **given: Any) -> list[str]:
    """The lines of a run where there is no terminal, without how long each took."""
    stream = io.StringIO()
    shown_by(runs, stream, **given)
    runs.run()
    text = stream.getvalue()
    assert "\x1b" not in text and "\r" not in text
    return [SECONDS.sub("# s", line) for line in text.splitlines()]


# --------------------------------------------------------------------------------------------------- without a terminal


def test_without_a_terminal_there_is_one_plain_line_an_epoch(log: Kept) -> None:
    runs = engine()
    runs.bus.extend(Evaluate({"valid": loader(6, 4)}).handlers())
    losses: list[float] = []
    valid: list[str] = []
    runs.on("step_end")(lambda state: losses.append(state.loss))
    runs.on("epoch_end", priority=50)(
        lambda state: valid.append(f"valid/loss {state.metrics['valid/loss']:.4f}")
    )

    lines = [LEFT.sub("", line) for line in plain(runs)]

    means = [sum(losses[:3]) / 3, sum(losses[3:]) / 3]
    assert lines == [
        f"epoch  1/2  step     3  loss {means[0]:.4f}  {valid[0]}  # s",
        f"epoch  2/2  step     6  loss {means[1]:.4f}  {valid[1]}  # s",
    ]


def test_a_line_says_that_averaged_weights_were_evaluated(log: Kept) -> None:
    runs = engine()
    runs.bus.extend(EMA(0.5).handlers())
    runs.bus.extend(Evaluate({"valid": loader(6, 4)}).handlers())

    lines = [LEFT.sub("", line) for line in plain(runs)]

    assert all(re.search(r"valid/loss \S+  \(averaged weights\)  # s$", line) for line in lines)


@pytest.mark.parametrize(
    ("every", "beginnings"),
    [
        ("2 epochs", ["epoch  2/2  step     6"]),
        ("2 steps", ["epoch  1/2  step     2", "epoch  2/2  step     4", "epoch  2/2  step     6"]),
        ("3 steps", ["epoch  1/2  step     3", "epoch  2/2  step     6"]),
        ("4 steps", ["epoch  2/2  step     4", "epoch  2/2  step     6"]),
        ("99 steps", ["epoch  2/2  step     6"]),
        ("never", []),
    ],
)
def test_how_often_a_line_is_printed_can_be_said(
    every: str, beginnings: list[str], log: Kept
) -> None:
    lines = plain(engine(), every=every)

    assert [line.split("  loss")[0] for line in lines] == beginnings
    assert [line.split("  loss")[0] for line in log.lines[:-1]] == beginnings


def test_a_period_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="'often' is no period"):
        Display(
            logger=logging.getLogger("test.display"), stream=io.StringIO(), every="often"
        ).handlers()


def test_metrics_stand_only_in_the_line_of_the_step_they_were_measured_at(log: Kept) -> None:
    runs = engine(epochs=3)
    runs.bus.extend(Evaluate({"valid": loader(6, 4)}, every="2 epochs").handlers())

    lines = plain(runs)

    assert ["valid/loss" in line for line in lines] == [False, True, False]


@pytest.mark.row("E44")
@pytest.mark.parametrize(
    ("every", "evaluated", "steps"),
    [
        ("1 epoch", "2 steps", ["2 valid", "3", "4 valid", "6 valid"]),
        ("2 steps", "1 epoch", ["2", "3 valid", "4", "6"]),
        ("2 steps", "2 steps", ["2 valid", "4 valid", "6 valid"]),
        ("2 epochs", "1 epoch", ["3 valid", "6 valid"]),
        ("never", "2 steps", []),
    ],
)
def test_a_line_for_each_period_and_one_for_an_evaluation_at_another_time(
    every: str, evaluated: str, steps: list[str], log: Kept
) -> None:
    runs = engine()
    runs.bus.extend(Evaluate({"valid": loader(6, 4)}, every=evaluated).handlers())

    lines = plain(runs, every=every)

    found = [re.search(r"step +(\d+)", line) for line in lines]
    assert [
        each[1] + " valid" * ("valid/loss" in line)
        for each, line in zip(found, lines, strict=True)
        if each
    ] == steps


def test_an_epoch_of_a_run_bounded_by_steps_has_no_total(log: Kept) -> None:
    lines = plain(engine(steps=6))

    assert [line.split("  step")[0] for line in lines] == ["epoch  1", "epoch  2"]


def test_what_is_shown_is_logged_too_and_the_end_is_only_logged(log: Kept) -> None:
    lines = plain(engine())

    assert [SECONDS.sub("# s", line) for line in log.lines[:-1]] == lines
    assert re.fullmatch(r"6 steps in \d+\.\d s( \(.*\))?", log.lines[-1])


def test_a_line_that_is_printed_is_not_printed_again_by_who_listens_to_all_logs(log: Kept) -> None:
    above, logger = Kept(), logging.getLogger("test.display")
    logging.getLogger("test").addHandler(above)
    logger.propagate = True
    try:
        lines = plain(engine())
        assert len(lines) == 2 and len(log.lines) == 3
        assert [line.split(" in ")[0] for line in above.lines] == ["6 steps"]
        assert logger.propagate
        assert plain(engine(), quiet=True) == [] and len(above.lines) == 4
    finally:
        logging.getLogger("test").removeHandler(above)


def test_quiet_prints_nothing_and_logs_the_same(log: Kept) -> None:
    assert plain(engine(), quiet=True) == []
    assert [line.split("  loss")[0] for line in log.lines[:-1]] == [
        "epoch  1/2  step     3",
        "epoch  2/2  step     6",
    ]


def test_nothing_is_done_for_a_step_that_nobody_sees(log: Kept) -> None:
    for stream, given in ((io.StringIO(), {}), (Terminal(), {"quiet": True})):
        display = Display(logger=logging.getLogger("test.display"), stream=stream, **given)
        assert not [handler for handler in display.handlers() if "step" in handler.event]


def test_plain_lines_need_no_rich(monkeypatch: pytest.MonkeyPatch, log: Kept) -> None:
    for name in ("rich", "rich.console", "rich.progress", "rich.table"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it fails

    assert len(plain(engine())) == 2


# -------------------------------------------------------------------------------------------------------- on a terminal


class Terminal(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs an engine on a real pseudo-terminal and returns every byte that it was sent."""

    def run(
        runs: Engine,
        *,
        columns: int = 80,
        error: type[BaseException] | None = None,
        before: Callable[[TextIO], object] = id,
        lengths: dict[str, int | None] | None = None,
        **variables: str,
    ) -> str:
        for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"TERM": "xterm-256color", "COLUMNS": str(columns), **variables}.items():
            monkeypatch.setenv(name, value)
        master, slave = os.openpty()
        termios.tcsetwinsize(slave, (24, columns))
        parts: list[bytes] = []
        reader = threading.Thread(target=_drain, args=(master, parts))
        reader.start()
        try:
            with os.fdopen(slave, "w", encoding="utf-8") as stream:
                assert stream.isatty()
                before(stream)
                shown_by(runs, stream, lengths=lengths)
                if error is None:
                    runs.run()
                else:
                    with pytest.raises(error):
                        runs.run()
        finally:
            reader.join()
            os.close(master)
        return b"".join(parts).decode("utf-8")

    return run


def _drain(descriptor: int, parts: list[bytes]) -> None:
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # the other end is closed
            return
        if not part:
            return
        parts.append(part)


def frames(text: str) -> list[str]:
    """What stood in the line of the bar, one drawing after the other."""
    return [
        each
        for each in re.split(r"[\r\n]+", CONTROL.sub("", text))
        if re.match(r"epoc.*(\d|…|\?) +loss", each) and "  step" not in each
    ]


def inner_frames(text: str) -> list[str]:
    """What stood in the line of the bar of an evaluation."""
    return [
        each
        for each in re.split(r"[\r\n]+", CONTROL.sub("", text))
        if re.match(r"  \w+ .*\d/[\d?]", each)
    ]


class _Unsized:
    """Batches that do not say how many they are."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def screen(text: str, columns: int = 80) -> list[str]:
    """What is left to see at the end: the few things a terminal does that the bar relies on."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
        if token == "\r":
            column = 0
        elif token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token.endswith("A") and token.startswith("\x1b"):
            row -= int(token[2:-1] or 1)
        elif token.startswith("\x1b[2K"):
            lines[row] = ""
        elif not token.startswith("\x1b"):
            assert column == 0 or len(lines[row]) == column
            lines[row] = lines[row][:column] + token
            column += len(token)
            assert column <= columns or "step" in token, "a drawing is wider than the terminal"
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def test_on_a_terminal_there_is_a_bar_that_leaves_with_the_run(
    terminal: Callable[..., str], log: Kept
) -> None:
    runs = engine()

    text = terminal(runs)

    drawn = frames(text)
    assert drawn[0].startswith("epoch 1/2 ") and "0/6 loss -" in drawn[0]
    assert any(
        each.startswith("epoch 2/2 ") and "6/6" in each and f"loss {runs.state.loss:.4f}" in each
        for each in drawn
    )
    assert all("━" in each for each in drawn)
    seen = screen(text)
    assert [line.split("  loss")[0] for line in seen] == [
        "epoch  1/2  step     3",
        "epoch  2/2  step     6",
    ]
    assert text.index("\x1b[?25l") < text.rindex("\x1b[?25h")
    assert text.rindex("\x1b[?25l") < text.rindex("\x1b[?25h")


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
def test_the_bar_fits_its_terminal(columns: int, terminal: Callable[..., str], log: Kept) -> None:
    text = terminal(engine(train=loader(800, 8), epochs=1), columns=columns)

    drawn = frames(text)
    assert len(drawn) >= 3
    room = (
        len("^C^C") if columns >= 60 else 0
    )  # a terminal writes it there, and a line that breaks stays behind
    assert max(map(len, drawn)) <= columns - room
    screen(text, columns)
    if columns >= 40:
        assert "100/100 loss" in drawn[-1] and "…" not in "".join(drawn)


@pytest.mark.parametrize("variables", [{"NO_COLOR": "1"}, {}])
def test_there_is_no_color_for_who_wants_none(
    variables: dict[str, str], terminal: Callable[..., str], log: Kept
) -> None:
    text = terminal(engine(), **variables)

    assert bool(COLOR.search(text)) == (not variables)
    assert len(frames(text)) >= 2


@pytest.mark.parametrize("kind", ["dumb", "unknown"])
def test_a_terminal_that_cannot_move_its_cursor_gets_plain_lines(
    kind: str, terminal: Callable[..., str], log: Kept
) -> None:
    text = terminal(engine(), TERM=kind)

    assert "\x1b" not in text
    assert [line.split("  loss")[0] for line in text.splitlines()] == [
        "epoch  1/2  step     3",
        "epoch  2/2  step     6",
    ]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_failing_run_gives_the_terminal_back(
    error: type[BaseException], terminal: Callable[..., str], log: Kept
) -> None:
    runs = engine()

    @runs.on("step_end", every=2)
    def fail() -> None:
        raise error

    text = terminal(runs, error=error)

    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert screen(text) == []


def test_the_bar_is_gone_before_anybody_else_hears_of_an_exception(
    monkeypatch: pytest.MonkeyPatch, log: Kept
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    runs = engine()
    bars: list[Any] = []
    for event in ("run_begin", "exception"):
        runs.on(event, priority=99 if event == "exception" else 101)(
            lambda: bars.append(display.bar)
        )
    runs.on("step_end")(lambda: 1 / 0)
    display = shown_by(runs, Terminal())

    with pytest.raises(ZeroDivisionError):
        runs.run()

    assert bars[0] is not None and bars[1:] == [None]


def test_a_run_of_unknown_length_has_a_bar_without_a_total(
    terminal: Callable[..., str], log: Kept
) -> None:
    text = terminal(engine(train=iter([batch for batch in loader(20, 4)]), samples=12))

    assert any("1/?" in each for each in frames(text))


def test_a_resumed_run_begins_where_it_is(terminal: Callable[..., str], log: Kept) -> None:
    runs = engine()
    runs.state.step, runs.state.epoch, runs.state.epoch_step = 4, 1, 1

    text = terminal(runs)

    assert "4/6" in frames(text)[0] and frames(text)[0].startswith("epoch 2/2")
    (line,) = [line for line in screen(text) if line.startswith("epoch")]
    assert re.match(r"epoch  2/2  step     6  loss [\d.]+ \(after step 4\)  ", line)


def test_a_run_that_begins_with_an_epoch_says_nothing_of_what_its_loss_is_of(
    terminal: Callable[..., str], log: Kept
) -> None:
    assert "after step" not in terminal(engine())


@pytest.mark.row("A47")
@pytest.mark.parametrize("columns", [80, 200])
def test_a_stream_has_a_bar_without_a_total_and_an_evaluation_a_bar_below_it(
    columns: int, terminal: Callable[..., str], log: Kept
) -> None:
    batches = list(loader(20, 4))
    runs = engine(train=(each for each in batches), samples=12)
    runs.bus.extend(
        Evaluate({"valid": loader(6, 4), "endless": _Unsized(batches)}, every="1 steps").handlers()
    )

    text = terminal(runs, columns=columns, lengths={"valid": 2})

    drawn = [line.rstrip() for line in frames(text) + inner_frames(text)]
    assert any(each.startswith("epoch 1 ") and " 1/?" in each for each in drawn)
    assert any(each.startswith("  valid ") and each.endswith("0/2") for each in drawn)
    assert any(each.startswith("  endless ") and each.endswith("0/?") for each in drawn)
    assert max(map(len, drawn)) <= columns
    left = [line.strip() for line in screen(text, columns)]
    assert all(
        re.match(r"epoch  1  step     \d  (valid|endless)/loss \d+\.\d{4}$", line)
        for line in left[:4]
    )
    last = r"epoch  1  step     3  loss \d+\.\d{4}  valid/loss \d\.\d{4}  endless/loss \d+\.\d{4}  \d+\.\d s"
    assert re.match(last, "  ".join(left[4:]))

    stream = io.StringIO()
    again = engine(train=_Unsized(batches), epochs=1)
    shown_by(again, stream)
    again.run()
    assert stream.getvalue().count("\n") == 1 and "━" not in stream.getvalue()


def test_the_bar_of_a_stream_has_a_total_from_its_second_epoch_on(
    terminal: Callable[..., str], log: Kept
) -> None:
    text = terminal(engine(train=_Unsized(list(loader(20, 4))), epochs=2))

    drawn = frames(text)
    assert any(each.startswith("epoch 1/2 ") and "/?" in each for each in drawn)
    assert any(each.startswith("epoch 2/2 ") and "10/10" in each for each in drawn)


@pytest.mark.parametrize("stream", ["stderr", "stdout", "log"])
def test_what_is_printed_meanwhile_stands_above_the_bar(
    stream: str, terminal: Callable[..., str], log: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = engine()
    logger = logging.getLogger("test.user")
    logger.propagate = False

    def speak(terminal: TextIO) -> Callable[[], None]:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(sys, "__stderr__", terminal)
        if stream == "stdout":
            monkeypatch.setattr(sys, "stdout", terminal)
        handler = logging.StreamHandler()
        logger.handlers = [handler] if stream == "log" else []
        says = {
            "stdout": lambda: print("hello"),
            "stderr": lambda: print("hello", file=sys.stderr),
            "log": lambda: logger.warning("hello"),
        }
        return says[stream]

    text = terminal(runs, before=lambda each: runs.on("step_end", every=3)(speak(each)))

    assert [line.split("  loss")[0] for line in screen(text)] == [
        "hello",
        "epoch  1/2  step     3",
        "hello",
        "epoch  2/2  step     6",
    ]
    if stream == "log":
        assert logger.handlers[0].stream is sys.__stderr__  # type: ignore[attr-defined]


def test_what_goes_to_a_file_still_does_while_there_is_a_bar(
    terminal: Callable[..., str], log: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = engine()
    runs.on("step_end")(lambda: print("mine"))

    text = terminal(runs)

    assert "mine" not in text
    assert capsys.readouterr().out == "mine\n" * 6


@pytest.mark.parametrize("hook", ["of Python", "of another debugger"])
def test_a_breakpoint_has_the_terminal_for_itself(
    hook: str, monkeypatch: pytest.MonkeyPatch, terminal: Callable[..., str], log: Kept
) -> None:
    stopped: list[Any] = []
    bars: list[Any] = []
    monkeypatch.setattr("pdb.Pdb.set_trace", lambda _, frame: stopped.append(frame.f_code.co_name))
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    theirs = sys.__breakpointhook__ if hook == "of Python" else lambda: stopped.append("theirs")
    monkeypatch.setattr(sys, "breakpointhook", theirs)
    before = sys.breakpointhook
    runs = engine()

    @runs.on("step_end", every=4)
    def look() -> None:
        breakpoint()
        bars.append(sys.breakpointhook)

    text = terminal(runs)

    assert stopped == ["look" if hook == "of Python" else "theirs"]
    assert bars == [before]
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert screen(text)[-1].startswith("epoch  2/2") and not [
        each for each in frames(text) if "5/6" in each
    ]


def test_a_line_that_is_too_long_is_broken_between_its_parts(
    terminal: Callable[..., str], log: Kept
) -> None:
    runs = engine()
    numbers = {f"valid/metric{i}": i / 7 for i in range(12)}
    runs.on("epoch_end", priority=50)(lambda state: state.metrics.update(numbers))
    runs.bus.extend(Evaluate({"valid": loader(6, 4)}).handlers())

    text = terminal(runs)

    seen = screen(text)
    assert len(seen) > 4 and max(map(len, seen)) <= 80
    assert [line.startswith("    valid/") for line in seen if not line.startswith("epoch")] == [
        True
    ] * (len(seen) - 2)
    assert "  ".join(part.strip() for part in seen[: len(seen) // 2]) == log.lines[0]


# ---------------------------------------------------------------------------------------------------- how long it takes


@pytest.mark.row("C63")
@pytest.mark.parametrize(
    "bound", [{"epochs": 4}, {"steps": 32}, {"samples": 256}, {"epochs": 4, "seconds": 1000.0}]
)
def test_the_time_that_is_left_is_right_within_a_fifth(
    bound: dict[str, Any], monkeypatch: pytest.MonkeyPatch, log: Kept
) -> None:
    """By this clock a step takes 5 s, an evaluation 3 s; each of 4 epochs ends with a line."""
    clock = [100.0]
    monkeypatch.setattr(display_module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    runs = engine(train=loader(64, 8), **bound)
    runs.on("step_end", priority=-1000)(lambda: clock.__setitem__(0, clock[0] + 5))
    runs.bus.extend(Evaluate({"valid": loader(6, 4)}).handlers())
    runs.on("eval_end")(lambda: clock.__setitem__(0, clock[0] + 3))
    at: list[float] = []
    runs.on("epoch_end", priority=101)(lambda: at.append(clock[0]))

    lines = plain(runs)

    told = [re.search(r"  eta (?:(\d+) min)? ?(?:(\d+) s)?$", line) for line in lines]
    left = [int(found[1] or 0) * 60 + int(found[2] or 0) for found in told if found]
    assert len(left) == 3 and told[3] is None
    assert left == pytest.approx([at[-1] - each for each in at[:3]], rel=0.2)


def test_a_bound_of_time_that_comes_first_is_what_is_left(
    monkeypatch: pytest.MonkeyPatch, log: Kept
) -> None:
    clock = [100.0]
    monkeypatch.setattr(display_module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    runs = engine(epochs=4, seconds=60.0)
    runs.on("step_end", priority=-1000)(lambda: clock.__setitem__(0, clock[0] + 5))

    lines = plain(runs)

    assert [line.rpartition("  ")[2] for line in lines] == [
        "eta 45 s",
        "eta 30 s",
        "eta 15 s",
        "# s",
    ]


def test_the_bar_is_drawn_ten_times_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch, log: Kept
) -> None:
    """By this clock a step takes 1/128 s: a tenth of a second is a bit more than twelve steps."""
    runs = engine(supervised(), loader(3200, 8), epochs=1)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(
        display_module, "time", SimpleNamespace(perf_counter=lambda: 1.0 + runs.state.step / 128)
    )
    display = shown_by(runs, Terminal())
    drawn: list[int] = []
    draw = display._draw
    monkeypatch.setattr(
        display, "_draw", lambda engine: (drawn.append(engine.state.step), draw(engine))
    )

    runs.run()

    assert runs.state.step == 400
    gaps = [later - earlier for earlier, later in pairwise(drawn)]
    assert gaps[0] == 1  # nothing is known yet
    assert set(gaps[1:-2]) == {12}
    assert len(drawn) == 36


def test_the_bar_goes_on_after_the_clock_went_back(
    monkeypatch: pytest.MonkeyPatch, log: Kept
) -> None:
    runs = engine(supervised(), loader(3200, 8), epochs=1)
    monkeypatch.setenv("TERM", "xterm")
    clock = SimpleNamespace(
        perf_counter=lambda: (9000.0 if runs.state.step < 200 else 1.0) + runs.state.step / 128
    )
    monkeypatch.setattr(display_module, "time", clock)
    display = shown_by(runs, Terminal())
    drawn: list[int] = []
    monkeypatch.setattr(display, "_draw", lambda engine: drawn.append(engine.state.step))

    runs.run()

    gaps = [later - earlier for earlier, later in pairwise(drawn)]
    assert max(gaps) == 12 and drawn[-1] > 380


def test_a_bar_that_is_slow_to_draw_is_drawn_less_often(
    monkeypatch: pytest.MonkeyPatch, log: Kept
) -> None:
    """A draw takes 4 ms, so only one fits a second's budget; a step takes 1/128 s."""
    runs = engine(supervised(), loader(3200, 8), epochs=1)
    spent = [0.0]
    monkeypatch.setenv("TERM", "xterm")
    clock = SimpleNamespace(perf_counter=lambda: 1.0 + runs.state.step / 128 + spent[0])
    monkeypatch.setattr(display_module, "time", clock)
    display = shown_by(runs, Terminal())
    drawn: list[int] = []

    def draw(engine: Engine) -> None:
        drawn.append(engine.state.step)
        spent[0] += 0.004

    monkeypatch.setattr(display, "_draw", draw)

    runs.run()

    assert runs.state.step == 400
    assert (
        len(drawn) < 10 and min(later - earlier for earlier, later in pairwise(drawn[2:-2])) > 100
    )
