"""`assay run`."""

from __future__ import annotations

import ast
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.completion import complete_config, complete_run_or_config
from assay.cli.job_options import NAMES, job_fields, job_options
from assay.cli.launch import (
    code_of_both,
    json_at_end,
    launch_of,
    launch_options,
    result_data,
    split_arguments,
    told_both,
)
from assay.cli.one_config import names_and_overrides, user_dirs_option, variants_option
from assay.cli.permission import permission, say, trust_option
from assay.cli.seeds import METAVAR, parse_seeds
from assay.cli.sweep_table import print_summary, summary_of
from assay.cli.terminal import echo, paint, use_color
from assay.core.diagnostics import Problem
from assay.core.errors import AssayError, ConfigError, InputError
from assay.core.ids import new_run_id

if TYPE_CHECKING:
    from assay.compose import Launch, RunResult
    from assay.config import Config
    from assay.jobs.backends.submission import Scheduler


_OF_SCRIPTS = ("parse_args", "parse_known_args", "backward")
FAST_STEPS = 20
FAST = ["evaluate.every=10 steps", "evaluate.limit=2", "checkpoint.every=10 steps"]
"""What `--fast-dev-run` asks for: evaluated and saved twice, then over."""


@click.command(
    name="run",
    help="Train the model of a config. KEY=VALUE overrides a key of the file: assay run a.toml"
    " optimizer.lr=0.01",
    context_settings={"ignore_unknown_options": True},
)
@names_and_overrides("CONFIG...", complete_config)
@launch_options
@variants_option("A variant of the file, or all of them; may be repeated.")
@click.option(
    "--no-sweep", is_flag=True, help="Leave the sweep of the file aside: run its base once."
)
@user_dirs_option
@click.option(
    "--from",
    "weights_from",
    metavar="RUN[@CKPT]|FILE",
    default="",
    shell_complete=complete_run_or_config,
    help="Begin with these weights.",
)
@click.option(
    "--resume",
    "resumed",
    type=click.Choice(["auto"]),
    help="auto: resume the newest run of this config and tag that did not finish, if there is one.",
)
@click.option(
    "--rehearse",
    is_flag=True,
    help="First try one step without its memory: see assay check --rehearse.",
)
@click.option("--tag", help="Instead of the config's tag.")
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", help="Instead of the config's seed."
)
@click.option(
    "--seeds",
    type=parse_seeds,
    metavar=METAVAR,
    default=1,
    help="Repeat each config under N successive seeds, or these: mean, deviation, 95 % interval.",
)
@click.option(
    "--fast-dev-run",
    "fast",
    is_flag=True,
    help="20 steps with all that a run does on the way: a trial.",
)
@click.option(
    "--isolate/--no-isolate",
    default=None,
    help="An OS process for each run, so that a crash ends no other; the default for several.",
)
@click.option(
    "--stop-at-first", is_flag=True, help="Of several runs, start none after one has failed."
)
@click.option(
    "--per-device",
    "--jobs",
    "per_device",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Let up to N isolated runs share a device. On the CPU: its cores by the threads of a run.",
)
@click.option("--no-wait", is_flag=True, help="End, with who has the devices, where none is free.")
@click.option(
    "--on",
    "scheduler",
    type=click.Choice(["slurm", "ray", "k8s"]),
    help="Submit to Slurm, Ray or Kubernetes instead: a job for each run, with a GPU unless"
    " --device cpu.",
)
@click.option(
    "--queue",
    "is_queued",
    is_flag=True,
    help="Check, rehearse and freeze each run with its code, and put it in line: assay queue.",
)
@job_options
@click.option(
    "--then-test", is_flag=True, help="Test each run when it has finished, in a record of its own."
)
@click.option(
    "--edit-test",
    metavar="TARGET",
    help="A function of yours that changes the config of that test.",
)
@trust_option
def command(
    arguments: tuple[str, ...],
    variants: tuple[str, ...],
    no_sweep: bool,
    user_dirs: tuple[str, ...],
    tag: str | None,
    seed: int | None,
    seeds: int | tuple[int, ...],
    fast: bool,
    resumed: str | None,
    rehearse: bool,
    scheduler: Scheduler | None,
    is_queued: bool,
    then_test: bool,
    edit_test: str | None,
    isolate: bool | None,
    stop_at_first: bool,
    per_device: int | None,
    no_wait: bool,
    trust: bool,
    **options: Any,
) -> int:
    files, overrides = split_arguments(arguments)
    if not files:
        raise InputError("`assay run` needs a config file.", fix="assay run digits.toml")
    of_jobs = {name: options.pop(name) for name in NAMES}
    if is_queued or scheduler is not None:
        has_more = resumed is not None or edit_test is not None
        _refuse_here_options(is_queued, scheduler, has_more=has_more, **options)
    if not is_queued:
        _refuse_job_options(of_jobs)
    overrides += _shorthands(tag, seed, fast=fast)
    if fast:
        options["max_steps"] = min(options["max_steps"] or FAST_STEPS, FAST_STEPS)
    held = click.get_current_context().with_resource(ExitStack())
    if len(files) == 1:
        from assay.compose import modules_of

        held.enter_context(modules_of(files[0], user_dirs))
    made = _open_configs(
        files, overrides, variants, user_dirs, sweep=not no_sweep, seeds=seeds, trust=trust
    )
    configs = [config for same_file in made for config in same_file]
    _refuse_test_options(edit_test, resumed, then_test=then_test, runs=len(configs))
    launch = launch_of(**options)
    if is_queued:
        return _queue(
            configs,
            _of_one_sweep(launch, configs),
            as_json=options["as_json"],
            then_test=then_test,
            per_device=per_device or 0,
            **job_fields(**of_jobs),
        )
    code = _rehearse(configs, launch) if rehearse else 0
    if code:
        return code
    if not launch.no_file:
        _start_watchers(configs)
    if scheduler is not None:
        _examine(configs, launch, is_here=False)
        return _submit(scheduler, configs, _of_one_sweep(launch, configs), then_test=then_test)
    pdb = options["pdb"]
    is_isolated = _should_isolate(configs, pdb=pdb) if isolate is None else isolate
    is_series = len(configs) > 1 or (is_isolated and resumed is None)
    with json_at_end(options["as_json"], several=is_series) as ended:
        if not is_series:
            result = _train_one(configs[0], launch, resumed, then_test, edit_test)
            ended.append(result_data(result))
            return told_both(result, pdb=pdb)
        held.close()  # each run imports its modules for itself
        how: dict[str, Any] = {"then_test": then_test, "edit_test": edit_test}
        how["stop_at_first"] = stop_at_first
        if is_isolated:
            how |= {"per_device": per_device or 0, "waits": not no_wait}
        return _series(made, launch, ended, pdb=pdb, is_isolated=is_isolated, **how)


def _refuse_here_options(
    is_queued: bool, scheduler: str | None, *, has_more: bool, pdb: bool, no_file: bool, **_: Any
) -> None:
    """Raise InputError for options that a run in another place cannot have."""
    if is_queued and scheduler is not None:
        raise InputError("`--queue` is the line of this machine.", fix="leave --on out")
    if has_more or pdb or no_file:
        what = "--queue" if is_queued else "--on"
        raise InputError(f"`{what}` takes no --resume, --edit-test, --pdb and --no-file.")


def _refuse_job_options(given: Mapping[str, Any]) -> None:
    """Raise InputError for an option about jobs where there are none."""
    for name, value in given.items():
        if value not in (None, False):
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"`{option}` is for jobs of the queue.", fix="give --queue, too")


def _refuse_test_options(
    edit_test: str | None, resumed: str | None, *, then_test: bool, runs: int
) -> None:
    """Raise InputError for options about a later test that do not go together."""
    if edit_test is not None and not then_test:
        raise InputError("`--edit-test` changes the config of a test.", fix="give --then-test, too")
    if resumed is not None and (then_test or runs > 1):
        raise InputError(
            "`--resume auto` resumes one run.", fix="give one config, and no --then-test"
        )


def _shorthands(tag: str | None, seed: int | None, *, fast: bool) -> list[str]:
    """Return the overrides that options stand for."""
    from assay.config.sources.literals import quote

    # The word none and a text that begins with a bracket are tags like any other.
    given_keys = {"tag": tag and quote(tag), "seed": seed}
    overrides = [f"{key}={value}" for key, value in given_keys.items() if value is not None]
    return [*overrides, *FAST] if fast else overrides


def _open_configs(
    files: Sequence[str],
    overrides: Sequence[str],
    variants: Sequence[str],
    user_dirs: Sequence[str],
    *,
    sweep: bool,
    seeds: int | tuple[int, ...],
    trust: bool,
) -> list[list[Config]]:
    """Return the configs of each file; the problems of all their shapes are raised together."""
    from assay.compose import open_given, problems_of_shape
    from assay.config.expansion import repeat, unique_problems

    for file in files:
        _refuse_run(file)
        _refuse_script(file)
    how: dict[str, Any] = {"trust": permission(trust), "tell": say}
    opened = [open_given(file, overrides, user_dir=user_dirs or None, **how) for file in files]
    made = [repeat(each, variants, sweep=sweep, seeds=seeds) for each in opened]
    # All shapes first: a typo in the last config must not come to light after a night of training
    # the others.
    problems: list[Problem] = []
    for configs in made:
        problems += unique_problems(configs, problems_of_shape)
    _refuse(problems)
    return made


def _rehearse(configs: Sequence[Config], launch: Launch) -> int:
    from assay.cli.rehearsal import rehearse_first

    return rehearse_first(configs, launch)


def _queue(configs: Sequence[Config], launch: Launch, **placed: Any) -> int:
    from assay.cli.submission import submit_to_queue

    if launch.nnodes > 1:
        raise InputError("The queue is that of one machine.", fix="leave --nnodes out")
    return submit_to_queue(configs, launch, **placed)


def _submit(
    scheduler: Scheduler, configs: Sequence[Config], launch: Launch, *, then_test: bool
) -> int:
    from assay.cli.submission import submit

    return submit(scheduler, configs, launch, then_test=then_test)


def _should_isolate(configs: Sequence[Config], *, pdb: bool) -> bool:
    """Return whether each run gets an OS process, where the user has not said it."""
    from assay.compose.run_many import must_stay

    # A debugger needs what failed in its own process.
    return len(configs) > 1 and not pdb and not must_stay(configs)


def _train_one(
    config: Config, launch: Launch, resumed: str | None, then_test: bool, edit_test: str | None
) -> RunResult:
    from assay.compose import resume_or_train, run_one

    if resumed is not None:
        return resume_or_train(config, launch, tell=lambda line: echo(line, err=True))
    return run_one(config, launch, then_test=then_test, edit_test=edit_test)


def _start_watchers(configs: Sequence[Config]) -> None:
    """Have someone outside of this process send messages, where a project has rules for them."""
    from assay.jobs.watch import start_watcher
    from assay.store.layout import find_project

    folders = dict.fromkeys(config.path.absolute().parent for config in configs if config.path)
    found = [find_project(folder) for folder in folders]
    for project in dict.fromkeys(each for each in found if each is not None):
        start_watcher(project)


def _refuse_run(name: str) -> None:
    """Raise InputError for a run in the place of a config."""
    if os.path.exists(name) or "." in name:
        return
    from assay.query.find import find

    try:
        run = find(name)[0]
    except AssayError:
        return
    config = shlex.quote(os.path.relpath(run.folder.config_toml))
    fix = f"assay resume {name} resumes it; assay run {config} trains its config anew"
    raise InputError(f"`{name}` is a run, not a config file.", fix=fix)


def _refuse_script(name: str) -> None:
    """Raise InputError for a program with its own loop: as a config it would train at once."""
    try:
        tree = ast.parse(Path(name).read_text(encoding="utf-8")) if name.endswith(".py") else None
    except (OSError, ValueError, SyntaxError):
        return  # whoever reads it reports it
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for statement in tree.body if tree is not None else ():
        calls = [] if isinstance(statement, definitions) else ast.walk(statement)
        if any(isinstance(each, ast.Attribute) and each.attr in _OF_SCRIPTS for each in calls):
            raise InputError(
                f"{name} is a script with its own arguments or loop, not a config.",
                fix=f"python -m assay.compat {shlex.quote(name)} records what it trains",
            )


def _series(
    made: Sequence[Sequence[Config]],
    launch: Any,
    ended: list[dict[str, Any]],
    *,
    pdb: bool,
    is_isolated: bool,
    **how: Any,
) -> int:
    from assay.compose import train_each

    configs = [config for same_file in made for config in same_file]
    _examine(configs, launch)
    launch = _of_one_sweep(launch, configs)
    head = f"sweep {launch.sweep}: {len(configs)} runs" if launch.sweep else "1 run"
    results: Iterator[RunResult]
    if is_isolated:
        from assay.jobs.isolated_runs import train_apart

        echo(f"{head}, each in an OS process of its own", err=True)
        how |= {"show": lambda text: echo(text, err=True, end=""), "tells_ends": True}
        results = train_apart([(config, launch) for config in configs], **how)
    else:
        echo(f"{head}, one after another", err=True)
        results = train_each(configs, launch, records_all=True, **how)
    finished, code = _train_series(configs, results, pdb=pdb, is_isolated=is_isolated)
    ended += map(result_data, finished)
    echo("", err=True)
    print_summary(summary_of(launch.sweep, configs, finished), has_records=not launch.no_file)
    return code


def _of_one_sweep(launch: Launch, configs: Sequence[Config]) -> Launch:
    """Return the launch of several configs, whose runs share the id of their sweep."""
    return replace(launch, sweep=new_run_id() if len(configs) > 1 else "")


def _examine(configs: Sequence[Config], launch: Launch, *, is_here: bool = True) -> None:
    """Stop at a mistake in any config: the last must not come to light after a night."""
    from assay.compose import examine_runs

    examine_runs(configs, launch, is_here=is_here)


def _train_series(
    configs: Sequence[Config], results: Iterator[RunResult], *, pdb: bool, is_isolated: bool
) -> tuple[list[RunResult], int]:
    """Train each config; return the results up to a signal, and the exit code of all."""
    color = use_color(sys.stderr)
    ended: list[RunResult] = []
    code = 0
    for i, config in enumerate(configs, 1):
        echo(f"\n{paint(f'[{i}/{len(configs)}]', 'bold', on=color)} {_title(config)}", err=True)
        result = next(results, None)
        if result is None:  # none was started after the one that failed, or after a signal
            break
        has_told = is_isolated and result.status != "crashed"  # its own process has
        status = code_of_both(result) if has_told else told_both(result, pdb=pdb)
        code = status if result.status == "stopped" else code or int(status != 0)
        ended.append(result)
        if (result.status == "stopped" or result.signal) and not is_isolated:
            code = code or (128 + result.signal if i < len(configs) else 0)
            break
    heard = max((result.signal for result in ended), default=0)
    return ended, 128 + heard if heard and len(ended) < len(configs) else code


def _title(config: Config) -> str:
    from assay.core.terminal import elide, visible
    from assay.query.diff import write_value

    assigned = "  ".join(f"{key}={write_value(node)}" for key, node in config.assigned)
    file = str(config.path) if config.path is not None else ""
    return elide(visible("  ".join(filter(None, [file, config.variant, assigned]))), 72)


def _refuse(problems: Sequence[Any]) -> None:
    """Stop at what is wrong; what only looks wrong is said, and the run goes on."""
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        raise ConfigError(errors)
    warnings = [problem for problem in problems if problem.severity == "warning"]
    if warnings:
        from assay.core.diagnostics import render

        echo(render(warnings, color=use_color(sys.stderr)) + "\n", err=True)
