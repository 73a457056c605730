"""Options of the commands that train, and the lines that they end with."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from assay.cli.failure_hint import failure_hint
from assay.cli.terminal import echo, echo_json, paint, use_color, width
from assay.cli.usage_errors import did_you_mean_option
from assay.core.errors import AssayError, InputError
from assay.core.terminal import fold
from assay.formats.manifest import checkpoints

if TYPE_CHECKING:
    from assay.compose import Launch, RunResult


_DEVICE = click.option(
    "--device",
    help="cpu, cuda, cuda:1, mps; several runs take those of cuda:0,1 in turn. Left"
    " out: the accelerator if there is one.",
)
_DESC = click.option("--desc", default="", help="What this run is for; the body of its README.")
_DEBUG = click.option(
    "--debug", is_flag=True, help="A line for every step, and the op that fails in backward."
)
_PDB = click.option(
    "--pdb", is_flag=True, help="When it fails, look around there with Python's debugger."
)
_NO_FILE = click.option("--no-file", is_flag=True, help="Leave no record and no other file.")
_MAX_STEPS = click.option(
    "--max-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after that many steps at the latest.",
)
_NPROC = click.option(
    "--nproc",
    type=click.IntRange(min=1),
    metavar="N",
    help="Train in N processes that share each batch.",
)
_NNODES = click.option(
    "--nnodes",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="The same on each of N machines.",
)
_NODE_RANK = click.option(
    "--node-rank",
    type=click.IntRange(min=0),
    metavar="I",
    help="Which of the machines this is, from 0.",
)
_RENDEZVOUS = click.option(
    "--rendezvous",
    default="",
    metavar="HOST:PORT",
    help="Where they meet: machine 0, and a free port.",
)
_MAX_RESTARTS = click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Resume up to N times from the newest checkpoint when a process fails or is killed.",
)
_QUIET = click.option("--quiet", is_flag=True, help="Print nothing but problems and the end.")
_JSON = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="At the end print one JSON object to stdout; all other output goes to stderr.",
)

_SUFFIXES = (".toml", ".py", ".json", ".yaml", ".yml", ".ini", ".cfg")


def launch_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Settings of one launch. They are recorded, and kept out of the config and its hash."""
    ranks = (_NPROC, _NNODES, _NODE_RANK, _RENDEZVOUS, _MAX_RESTARTS)
    options = (_DEVICE, _DESC, _DEBUG, _PDB, _NO_FILE, _MAX_STEPS, *ranks, _QUIET, _JSON)
    return _with_options(command, options)


def resume_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `launch_options` but those of several machines: there the job resumes."""
    options = (_DEVICE, _DESC, _DEBUG, _PDB, _NO_FILE, _MAX_STEPS, _NPROC, _QUIET, _JSON)
    return _with_options(command, options)


def rerun_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `launch_options` that belong to a run again as it was."""
    return _with_options(command, (_DEVICE, _DESC, _MAX_STEPS, _NPROC, _QUIET, _JSON))


def test_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `launch_options` that an evaluation has: it has no steps and no ranks."""
    return _with_options(command, (_DEVICE, _DESC, _PDB, _NO_FILE, _JSON))


def _with_options(
    command: Callable[..., Any], options: Sequence[Callable[..., Any]]
) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


def launch_of(**options: Any) -> Launch:
    """Return the launch that the options of `launch_options` describe."""
    from assay.compose import Launch

    return Launch(
        **{name: given for name, given in options.items() if name not in ("pdb", "as_json")},
        command=("assay", *sys.argv[1:]),
    )


def print_result(result: RunResult, *, pdb: bool = False, can_resume: bool = True) -> int:
    """Print how a run ended, for a person; return the exit code.

    With `pdb` they may look around where it failed.
    """
    if not result.is_first and result.exception is None:
        return result.exit_code
    error = result.exception
    if result.status == "finished":
        _print_finished(result)
    elif result.status == "stopped":
        _print_stopped(result)
    else:
        _explain(error, use_color(sys.stderr))
    if result.record_dir is not None:
        echo(f"record:  {result.record_dir}", err=True)
    is_whole = result.status == "finished" and result.exit_code == 0
    if not is_whole and can_resume and (advice := _advice(result)):
        mended = "once that is mended, " if isinstance(error, InputError) else ""
        echo(f"{mended}{advice}", err=True)
    if pdb and error is not None:
        _look_around(error)
    return result.exit_code


def _advice(result: RunResult) -> str:
    """Return how a run may go on that has begun and is not whole, "" where it cannot."""
    if result.record_dir is None or not result.step:
        return ""
    found = checkpoints(result.record_dir / "checkpoints")
    manifests = [it.manifest for it in found if it.manifest is not None and not it.why]
    steps = [it.step for it in manifests if it.kind != "model"]
    if not steps:
        return f"train it again with: assay rerun {result.id}  (no checkpoint was kept)"
    if result.status == "finished" and max(steps) >= result.step:
        return ""  # nothing is left to train
    return f"resume with: assay resume {result.id}"


def _print_finished(result: RunResult) -> None:
    values = _last_and_best(result)
    reasons = [part for part in result.reason.split("; ") if part not in result.note]
    parts = [f"finished {result.id}".rstrip(), f"step {result.step}", *values, *reasons]
    text = "  ".join(part for part in [*parts, result.note] if part)
    first, *rest = fold(text, width(sys.stderr))
    head = paint("finished", "green bold", on=use_color(sys.stderr))
    echo("\n".join([head + first.removeprefix("finished"), *rest]), err=True)


def _last_and_best(result: RunResult) -> list[str]:
    """Return the last values of a run, that of its best metric with the best one."""
    texts = {name: f"{name} {value:.4f}" for name, value in result.value.items()}
    best = None
    if result.record_dir is not None:
        with contextlib.suppress(AssayError):  # a record that is gone by now
            best = result.run.best
    if best is not None:
        last = texts.get(best.metric, best.metric)
        texts[best.metric] = f"{last} (best {best.value:.4f} at step {best.step})"
    return list(texts.values())


def _print_stopped(result: RunResult) -> None:
    color = use_color(sys.stderr)
    if isinstance(result.exception, AssayError):  # what hung meanwhile
        _explain(result.exception, color)
    why = f"  {result.reason}" if result.reason else ""
    head = paint("stopped", "yellow bold", on=color)
    echo(f"{head} {result.id}  at step {result.step}{why}", err=True)


@contextlib.contextmanager
def json_at_end(as_json: bool, *, several: bool = False) -> Iterator[list[dict[str, Any]]]:
    """Print one JSON object of the results appended to the list, and nothing else, to stdout.

    It is that of the one run, of `several` {"runs": [...]}. All that is printed inside goes to
    stderr, by child processes too. Nothing is printed at the end where no run has begun. Does
    nothing unless `as_json`.
    """
    found: list[dict[str, Any]] = []
    if not as_json:
        yield found
        return
    with _stdout_to_stderr():
        yield found
    if found:
        echo_json({"runs": found} if several else found[0])


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send stdout to stderr: Python's stream and the descriptor that child processes inherit."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def result_data(result: RunResult) -> dict[str, Any]:
    """Return a result as plain data, as `--json` prints it."""
    error = result.exception
    return {
        "id": result.id,
        "status": result.status,
        "reason": result.reason,
        "step": result.step,
        "values": dict(result.value),
        "record": str(result.record_dir) if result.record_dir is not None else None,
        "error": None if error is None else _error_text(error),
        "note": result.note,
        "exit_code": result.exit_code,
        **({"test": result_data(result.test)} if result.test is not None else {}),
    }


def _error_text(error: BaseException) -> str:
    """Return an error with its type, the original one if another OS process raised it."""
    kind = getattr(error, "kind", "") or type(error).__name__
    text = str(error)
    return text if text.startswith(f"{kind}: ") else f"{kind}: {text}"


def told_both(result: RunResult, *, pdb: bool = False, can_resume: bool = True) -> int:
    """Tell how a run ended, and the test after it, if there was one; the exit code."""
    code = print_result(result, pdb=pdb, can_resume=can_resume)
    return max(code, told_test(result.test, pdb=pdb)) if result.test is not None else code


def code_of_both(result: RunResult) -> int:
    """Return the exit code of a run, and of the test after it, if there was one."""
    return max(result.exit_code, result.test.exit_code if result.test is not None else 0)


def told_test(result: RunResult, *, measures: bool = True, pdb: bool = False) -> int:
    """Print the results of a test; return its exit code. `measures`: metrics were asked for."""
    if result.status == "finished":
        for name, value in result.value.items():
            echo(f"{name:<20} {value:.4f}")
        if measures and not result.value:
            echo("nothing was measured: the process has no metrics, and gives no loss")
    return print_result(result, pdb=pdb, can_resume=False)


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split positional arguments into config files and overrides; InputError for others."""
    from assay.config import is_override

    files: list[str] = []
    overrides: list[str] = []
    for i, argument in enumerate(arguments):
        if argument.startswith("-") and argument != "-":
            raise _no_option(argument)
        if is_override(argument):
            overrides.append(argument)
        else:
            _refuse_torn(arguments, i)
            files.append(argument)
    return files, overrides


def only_run(command: str, runs: Sequence[str]) -> str:
    """Return the one run that was given, the last one where none was; InputError for several."""
    if len(runs) > 1:
        listed = ", ".join(runs)
        raise InputError(
            f"`assay {command}` takes one run, not {len(runs)}: {listed}.",
            fix=f"assay {command} {runs[0]}",
        )
    return runs[0] if runs else "last"


def _no_option(argument: str) -> InputError:
    """`--lr=1` and `--strct`: neither click nor anybody else knows it."""
    from assay.config.overrides import keys_named

    name, has_value, value = argument.partition("=")
    context = click.get_current_context(silent=True)
    path = context.command_path if context is not None else "assay"
    parameters = context.command.params if context else []
    options = [option for parameter in parameters for option in parameter.opts]
    word = name.lstrip("-")
    key = next(iter(keys_named(word.replace("-", "_"))), "")
    near = written = ""
    if "." not in name and not key:
        near = did_you_mean_option(name, options)
    if key or has_value:
        written = f"write `{key or word}={value if has_value else '...'}`"
    fix = " or ".join(filter(None, [near.removesuffix("?"), written]))
    if near:
        fix += "?"
    return InputError(f"`{path}` has no option `{name}`.", fix=fix or f"`{path} --help` shows them")


def _refuse_torn(arguments: Sequence[str], i: int) -> None:
    """Raise InputError for an override that the shell split at spaces, into seeming files."""
    word = arguments[i]
    before = next((j for j in range(i - 1, -1, -1) if "=" in arguments[j]), None)
    is_value = word.startswith("=")
    is_name = i + 1 < len(arguments) and arguments[i + 1].startswith("=")
    if is_value or is_name:
        start = i - 1 if is_value else i
        end = start + 3 if arguments[start + 1] == "=" else start + 2
        whole = "".join(arguments[max(start, 0) : end])
        raise InputError(f"`{word}` is no config file.", fix=f"write `{whole}`, without spaces")
    is_key = "." in word and not os.path.exists(word) and os.path.splitext(word)[1] not in _SUFFIXES
    if is_key and i and i + 1 < len(arguments):  # `train.epochs 5`
        fix = f"write `{word}={arguments[i + 1]}`"
        raise InputError(f"`{word}` is no config file: a key and its value are one word.", fix=fix)
    if before is None:
        return
    value = arguments[before].partition("=")[2]
    is_open = any(value.count(one) > value.count(other) for one, other in ("[]", "{}", "()"))
    if value and not is_open:
        return
    closing = (k for k in range(i, len(arguments)) if arguments[k].endswith(("]", "}", ")")))
    cut = " ".join(arguments[before : next(closing, i) + 1])
    fix = f"write '{cut}'"
    if not value:
        fix = f"write `{''.join(arguments[before : i + 1])}`, without spaces"
    raise InputError(
        f"`{word}` is no config file: the shell has cut `{cut}` at its spaces.", fix=fix
    )


def _look_around(error: BaseException) -> None:
    """Open Python's debugger at the line that failed; the record is complete by now."""
    import pdb

    while error.__cause__ is not None:  # what was raised first knows more than what explains it
        error = error.__cause__
    if error.__traceback__ is not None and not isinstance(error, KeyboardInterrupt):
        pdb.post_mortem(error.__traceback__)


def _explain(error: BaseException | None, color: bool) -> None:
    if isinstance(error, AssayError):
        notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
        echo(f"{paint('error:', 'red bold', on=color)} {error}{notes}", err=True)
    elif error is not None:
        from assay.record.ending import ending

        _, _, trimmed = ending(error)
        text = trimmed or "".join(traceback.format_exception_only(error))
        echo(text.rstrip(), err=True)
        for line in failure_hint(error):
            echo(line, err=True)
