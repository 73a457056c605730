"""`assay`: the table of commands, and how every one of them ends."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import NoReturn

import click

from assay.cli.terminal import echo, paint, use_color
from assay.core.errors import AssayError, ConfigError, InputError, did_you_mean, suggestion
from assay.core.retired import instead_of
from assay.core.version import version

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Train": {
        "init": ("assay.cli.init", "Make a project to begin with."),
        "run": ("assay.cli.run", "Train the model of a config."),
        "queue": ("assay.cli.queue", "Queue runs on the devices of this machine."),
        "resume": ("assay.cli.resume", "Resume a stopped, failed or killed run."),
        "rerun": ("assay.cli.rerun", "Train the config of a run again, as a new run."),
        "sweep": ("assay.cli.sweep", "Search for good hyper-parameters."),
        "test": ("assay.cli.test", "Evaluate a run on its test data."),
    },
    "Look": {
        "ls": ("assay.cli.ls", "List the runs of this project."),
        "show": ("assay.cli.show", "Show one run on a page."),
        "log": ("assay.cli.log", "Print the log of a run; --follow to watch it."),
        "metrics": ("assay.cli.metrics", "Print the metrics of a run as numbers."),
        "live": ("assay.cli.live", "Draw the curves of a run while it trains."),
        "ui": ("assay.cli.ui", "Show the runs in a browser."),
        "board": ("assay.cli.board", "Show the curves of runs in TensorBoard."),
        "table": ("assay.cli.table", "Read and write result tables."),
        "inbox": (
            "assay.cli.inbox",
            "List runs that ended, with the cause; --follow to be told.",
        ),
        "find": ("assay.cli.find", "Find the run that made a file."),
    },
    "Compare": {
        "compare": ("assay.cli.compare", "Compare groups of runs: means, intervals, tests."),
        "diff": ("assay.cli.diff", "Compare two runs: config, metrics, environment, code."),
        "replay": ("assay.cli.replay", "Train a recorded run again, and compare the bits."),
        "diverge": ("assay.cli.diverge", "Find the first step and operation in which runs differ."),
        "prove": ("assay.cli.prove", "Compare the first steps with a golden file or a run."),
        "verify-resume": (
            "assay.cli.verify_resume",
            "Kill and resume a config's run, and compare the bits.",
        ),
    },
    "Keep": {
        "edit": ("assay.cli.edit", "Add notes, labels, another title; leave runs out of lists."),
        "rm": ("assay.cli.rm", "Remove runs, until `gc` for good."),
        "gc": ("assay.cli.gc", "Delete what was removed; --index rebuilds the index."),
    },
    "Check": {
        "check": ("assay.cli.check", "Check a config and list every mistake, without running it."),
        "config": ("assay.cli.config", "Read and change settings; show a config, explain a value."),
    },
    "Share": {
        "figure": ("assay.cli.figure", "Draw a figure for a paper, and draw it again later."),
        "export": ("assay.cli.export", "Export the model of a run to ONNX or torch.export."),
        "serve": ("assay.cli.serve", "Serve the model of a run over HTTP."),
        "report": ("assay.cli.report", "Write a report of a run or of several, or a model card."),
        "pack": ("assay.cli.pack", "Put a run into one file."),
        "unpack": ("assay.cli.unpack", "Add a packed run to this project."),
        "restore": ("assay.cli.restore", "Restore the code and config of a run in a folder."),
        "import": ("assay.cli.import", "Import runs of TensorBoard, MLflow or wandb."),
    },
}
"""Commands by what they are for: module, which has it as `command`, and line of help.

Help and completion read this table and import nothing.
"""

COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}

ELSEWHERE = {
    **dict.fromkeys(("train", "fit", "launch"), "run"),
    **dict.fromkeys(("list", "history", "status"), "ls"),
    **dict.fromkeys(("info", "describe"), "show"),
    **dict.fromkeys(("dashboard", "server", "web"), "ui"),
    **dict.fromkeys(("evaluate", "eval"), "test"),
    **dict.fromkeys(("delete", "remove"), "rm"),
    **dict.fromkeys(("tune", "search"), "sweep"),
    "clean": "gc",
    "rehearse": "check --rehearse",
    "rename": "edit --tag",
    "reproduce": "replay",
    "plot": "figure",
    "tensorboard": "board",
    "validate": "check",
}
"""Names that other tools give to commands, each with the command that does it here."""

_MODULES = "it imports the modules that the config names, and a Python config is a program itself"
_FOREIGN = (
    "the config of the run, with the modules of your working tree. It asks first if the run was"
    " not made here."
)
RUNS_CODE: dict[str, str] = {
    "check": f"{_MODULES}. With --shape it runs nothing.",
    "run": f"{_MODULES}.",
    "queue": f"`rerun` checks and rehearses, `work` trains: {_MODULES}. All else reads data only.",
    "sweep": f"{_MODULES}.",
    "resume": _FOREIGN,
    "rerun": _FOREIGN,
    "test": _FOREIGN,
    "export": _FOREIGN,
    "serve": "with a run, what `export` runs: "
    + _FOREIGN
    + " With an exported folder it runs none.",
    "replay": "the config and the code that were kept with the run. It asks first if the run was"
    " not made here.",
    "diverge": "the config and the code that were kept with each run, to train steps again. It"
    " asks first if one was not made here. With --no-rerun it runs nothing.",
    "verify-resume": f"{_MODULES}.",
    "prove": f"{_MODULES}.",
    "inbox": "no module, but with --follow and --test the `command` of a [[notify]] rule in the"
    " settings of the project.",
    "config": "only `explain` and `show`: a Python config, modules for a key that is not there.",
}
"""Name -> what of the user's a command runs. Every other command reads data only."""

TASK_COMMAND = "_task"
"""Not for people: an OS process that assay starts does the task in a file.

Named here, too, so that a command that starts none imports nothing for it.
"""

TRACEBACK_VARIABLE = "ASSAY_TRACEBACK"
COMPLETE_VARIABLE = "_ASSAY_COMPLETE"
SIGINT_CODE, SIGPIPE_CODE = 130, 141
_SHOWN_FRAMES = 8
_RUNS = """\
RUN is an id or its beginning, a tag, last, last-2, best:METRIC, a path, or an
expression of `assay ls` that one run fulfils, such as 'tag = a and seed = 1';
left out, the last run is meant where a command takes one.
RUN@CKPT is a checkpoint of it: a step, best, latest, or a name."""


class Commands(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        if cmd_name in RUNS_CODE and not command.epilog:
            command.epilog = f"Runs code: {RUNS_CODE[cmd_name]}"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            if os.path.isfile(name):
                what = f"`{name}` is a file, and no command of assay."
                raise InputError(what, fix=f"assay run {shlex.join(args)}")
            here = ELSEWHERE.get(name)
            near = suggestion([here]) if here else did_you_mean(name, COMMANDS)
            fix = instead_of(f"assay {name}") or near
            fix = fix or f"the commands are {', '.join(COMMANDS)}"
            raise InputError(f"There is no command `{name}`.", fix=fix)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                rows = [(name.ljust(width), line) for name, (_, line) in group.items()]
                formatter.write_dl(rows)
        with formatter.section("Code"):
            names = ", ".join(RUNS_CODE)
            formatter.write_text(
                f"Your code runs with {names}; see their --help. All else reads data only."
            )


def _print_version(ctx: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked:
        echo(f"assay {version()}")
        ctx.exit()


@click.group(
    cls=Commands,
    help="Train PyTorch models from one config file, and keep a record of every run.",
    epilog="\b\n" + _RUNS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
def commands() -> None:
    """Root of the command line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 fine, 1 failed or different, 2 wrong input, 130 interrupted.
    """
    args = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    try:
        code = _run(args)
        sys.stdout.flush()
        if argv is None and _is_one_of_several():
            _end_at_once(code)
        return code
    except BrokenPipeError:
        _forget_output()
        return SIGPIPE_CODE


def _run(args: list[str]) -> int:
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(commands, {}, "assay", COMPLETE_VARIABLE, instruction)
    try:
        return _invoke(args)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        echo(error.ctx.get_help())
        return 0
    except click.UsageError as error:
        from assay.cli.usage_errors import input_error

        _complain(input_error(error))
        return InputError.exit_code
    except click.ClickException as error:
        _complain(InputError(error.format_message()))
        return InputError.exit_code
    except (KeyboardInterrupt, click.Abort):
        return SIGINT_CODE
    except AssayError as error:
        _complain(error)
        return error.exit_code
    except BrokenPipeError:
        raise
    except Exception as error:  # the edge of the process: whatever nobody expected becomes text
        _report(error)
        return 1


def _invoke(args: list[str]) -> int:
    """Run the command that `args` begin with: one of assay's own OS processes, or of the user."""
    if args[0] == TASK_COMMAND and args[1:]:
        return _do_task(args[1])
    # Not `commands.main`: it has endings of its own for what `_run` ends.
    with commands.make_context("assay", args) as context:
        result = commands.invoke(context)
    return result if isinstance(result, int) else 0


def _do_task(file: str) -> int:
    """Do a task as one of assay's own OS processes; print how it ended where that is asked for."""
    from pathlib import Path

    from assay.cli.launch import told_both
    from assay.compose.task_process import do_task

    task, result = do_task(Path(file))
    if task.tells == "nothing":
        return result.exit_code
    return told_both(result, can_resume=task.tells == "advice")


def _is_one_of_several() -> bool:
    """Return True if another launcher has started several processes, and they have met."""
    ranks = sys.modules.get("assay.engine.parallel.process_group")
    return ranks is not None and ranks.world().count > 1


def _end_at_once(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of torch.distributed now and then abort a process that ends in order


def _complain(error: AssayError) -> None:
    color = use_color(sys.stderr)
    if isinstance(error, ConfigError):
        from assay.core.diagnostics import render, summary

        echo(f"{render(error.problems, color=color)}\n\n{summary(error.problems)}", err=True)
    else:
        echo(f"{paint('error:', 'red bold', on=color)} {error}", err=True)


def _report(error: BaseException) -> None:
    """Print a fault: the useful part of its traceback, and where to report it."""
    import platform
    import traceback

    from assay.record.tracebacks import users_part

    theirs = users_part(error)
    if theirs is not None:
        echo(theirs.rstrip(), err=True)
        return

    shown = traceback.TracebackException.from_exception(error)
    if not os.environ.get(TRACEBACK_VARIABLE):
        shown = traceback.TracebackException(type(error), error, _beyond_us(error.__traceback__))
        del shown.stack[: -_SHOWN_FRAMES or None]
    lines = [
        "".join(shown.format()).rstrip(),
        "",
        f"This is a fault in assay, or in code that it ran. {TRACEBACK_VARIABLE}=1 shows all of"
        " the traceback.",
        "If it is assay's, please report it with the text above and this line:"
        f" assay {version()}, Python {platform.python_version()}, {sys.platform}.",
    ]
    echo("\n".join(lines), err=True)


def _beyond_us(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of click and of this file."""
    click_folder = os.path.dirname(click.__file__)
    while trace is not None and trace.tb_next is not None:
        name = trace.tb_frame.f_code.co_filename
        if name != __file__ and not name.startswith(click_folder):
            break
        trace = trace.tb_next
    return trace


def _forget_output() -> None:
    """Nobody reads any more: let Python's own flush at the end have somewhere to go."""
    import contextlib

    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
