"""`assay check`."""

from __future__ import annotations

import contextlib
import gc
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from assay.cli.check_views import VIEWS
from assay.cli.launch import split_arguments
from assay.cli.one_config import one_config, read_config, user_dir_option
from assay.cli.one_run import LAST
from assay.cli.rehearsal import layout_overrides, rehearsal_options, request_of
from assay.cli.rehearsal import rehearsal_lines as lines_of
from assay.cli.terminal import echo, echo_json, paint, use_color, width
from assay.core.diagnostics import Problem, render, summary, to_json
from assay.core.errors import InputError
from assay.formats.json_codec import to_plain

if TYPE_CHECKING:
    from assay.build import Examined
    from assay.cli.variations import Variation
    from assay.compose import Examiner, Launch
    from assay.compose.rehearsal import RehearsalRequest
    from assay.config import Config
    from assay.config.tree import Table
    from assay.engine.data.audit import Audit
    from assay.formats.rehearsal import Rehearsal
    from assay.proof import ResumeCheck


@contextlib.contextmanager
def _pause_collection() -> Iterator[None]:
    """Switch garbage collection off: it takes a tenth of a check, whose objects live to its end."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@click.command(
    name="check",
    help="Check a config and list every mistake, without running it.",
    context_settings={"ignore_unknown_options": True},
)
@one_config
@click.option("--shape", is_flag=True, help="Only what can be told without running any code.")
@click.option(
    "--strict",
    is_flag=True,
    help="Refuse keys that nothing can check: those that vanish in **kwargs.",
)
@click.option(
    "--defaults",
    is_flag=True,
    help="List every default that is taken, and everything that is injected.",
)
@click.option(
    "--list",
    "listed",
    is_flag=True,
    help="List the configs of the file: variants, points of its sweep.",
)
@click.option(
    "--data",
    is_flag=True,
    help="Load one epoch of every split in several ways: all of it, and the same?",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Train some steps twice, once left in the middle and resumed by a fresh OS process, and"
    " compare every part.",
)
@click.option(
    "--show",
    "view",
    type=click.Choice(list(VIEWS)),
    help="Show in place of the check: the layers of the model, one batch at each stage of a step,"
    " the callbacks in their order, or the speed of loading.",
)
@rehearsal_options
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@user_dir_option
@_pause_collection()
def command(
    arguments: tuple[str, ...],
    shape: bool,
    strict: bool,
    defaults: bool,
    listed: bool,
    data: bool,
    resume: bool,
    view: str | None,
    rehearse: bool,
    layout: str | None,
    memory: str | None,
    bandwidth: str | None,
    device: str | None,
    batch: str,
    variant: str | None,
    trust: bool,
    as_json: bool,
    user_dir: str | None,
) -> int:
    conditions = {
        "--layout": layout,
        "--memory": memory,
        "--bandwidth": bandwidth,
        "--batch": batch,
    }
    from assay.compose.launch import Launch

    _refuse_without_rehearsal(conditions, rehearse=rehearse)
    if view is not None:
        if shape or strict or defaults or listed or data or resume or rehearse:
            raise InputError("`--show` takes the place of the check.", fix=f"--show {view} alone")
        shown = read_config("check", arguments, variant, user_dir=user_dir, trust=trust)
        return VIEWS[view](shown, as_json)
    asked = request_of(memory, device, batch, bandwidth) if rehearse else None
    if shape:
        _refuse_with_shape(
            arguments, defaults=defaults, data=data, rehearse=rehearse, resume=resume
        )
    given_more = [*arguments, *layout_overrides(layout)]
    names, _ = split_arguments(arguments)
    if len(names) == 1:
        from assay.compose import modules_of

        click.get_current_context().with_resource(modules_of(names[0], user_dir))
    config = read_config("check", given_more, user_dir=user_dir, trust=trust)
    # The device of a rehearsal need not be here.
    found = _check(
        config,
        variant,
        shape=shape,
        strict=strict,
        quiet=as_json,
        launch=Launch(device=None if rehearse else device),
    )
    report = _Report(found)
    if defaults and found.examined:
        report.taken = _plain_defaults(found.config, found.examined)
    if listed:
        report.variations = [] if found.bad else _rows(found)
    if data and not found.bad:
        report.audits = _audit(found.config)
    if resume and not found.bad:
        report.resume = _try_resume(found.config, device)
    if asked is not None and not found.bad:
        report.rehearsal = _rehearse(found.config, asked)
    if as_json:
        _print_json(report)
    else:
        _print_text(report, _name(arguments))
    return report.exit_code


@dataclass(slots=True)
class _Report:
    """Findings about a config, and what else the options ask for; None where they do not."""

    found: _Checked
    taken: dict[str, list[dict[str, Any]]] | None = None
    variations: list[Variation] | None = None
    audits: Sequence[Audit] = ()
    rehearsal: Rehearsal | None = None
    resume: ResumeCheck | None = None

    @property
    def bad(self) -> bool:
        is_rehearsal_bad = self.rehearsal is not None and bool(self.rehearsal.failures)
        return self.found.bad or is_rehearsal_bad

    @property
    def exit_code(self) -> int:
        """2 for an error, 1 for data or a resumed run that is not the same each time."""
        is_other = self.resume is not None and not self.resume.equal
        return 2 if self.bad else int(is_other or any(audit.problems for audit in self.audits))


def _print_json(report: _Report) -> None:
    extra: dict[str, Any] = {**(report.taken or {})}
    if report.variations is not None:
        from assay.cli.variations import plain_variations

        extra["configs"] = plain_variations(report.variations)
    if report.audits:
        extra["data"] = [asdict(audit) for audit in report.audits]
    if report.rehearsal is not None:
        extra["rehearsal"] = to_plain(report.rehearsal)
    if report.resume is not None:
        extra["resume"] = report.resume.verdict
    problems = to_json(report.found.problems)
    echo_json({"problems": problems, **extra} if extra else problems)


def _print_text(report: _Report, name: str) -> None:
    """Print all but the problems, which are printed as they are found."""
    found = report.found
    color = use_color(sys.stdout)
    if found.problems:
        echo(f"\n{summary(found.problems)}")
    if report.taken:
        _show_taken(report.taken, after=bool(found.problems))
    if report.variations:
        from assay.cli.variations import variation_lines

        given = shlex.join([name, *found.config.overrides])
        lines = variation_lines(report.variations, given, variant=found.variant, color=color)
        echo("\n".join(lines))
    elif not report.bad:
        named = found.examiner.canonical(found.config) if found.has_signatures else None
        _show_fine(name, named, is_part=found.is_part)
    _show_audits(report.audits)
    if report.resume is not None:
        from assay.proof.differences import format_comparisons

        echo("\n".join(["", *format_comparisons(report.resume.compared)]))
        echo(f"resume: {report.resume.verdict}")
    if report.rehearsal is not None:
        echo("\n".join(["", *lines_of(report.rehearsal, color=color)]))


def _refuse_without_rehearsal(conditions: Mapping[str, str | None], *, rehearse: bool) -> None:
    """Raise InputError for options of a rehearsal where none is asked for."""
    if rehearse:
        return
    for name, value in conditions.items():
        if value:
            raise InputError(
                f"`{name}` says how to rehearse.", fix=f"assay check --rehearse {name} {value}"
            )


def _name(arguments: Sequence[str]) -> str:
    """Return the config or run that was given, the last run where none was."""
    return next(iter(split_arguments(arguments)[0]), LAST)


def _refuse_with_shape(
    arguments: Sequence[str], *, defaults: bool, data: bool, rehearse: bool, resume: bool
) -> None:
    """Raise InputError for what --shape leaves out, and for a Python config."""
    left_out = {
        "--defaults needs the signatures": defaults,
        "--data loads the data": data,
        "--rehearse builds the model": rehearse,
        "--resume trains the model": resume,
    }
    for what, is_asked in left_out.items():
        if is_asked:
            raise InputError(f"{what}, which --shape leaves out.", fix="leave out one of the two")
    file = next(iter(split_arguments(arguments)[0]), "")
    if file.lower().endswith(".py"):
        raise InputError(
            f"--shape runs nothing, and {file} is a program: only running it tells its shape.",
            fix="leave out --shape to run it, or write the config as TOML: assay show RUN --config",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checked:
    """Findings of both stages about the configs of one file.

    `config` is the base, or the first that `variant` names; `written` is the file with both.
    `is_part`: the config says that others read it, and no run is made of it.
    """

    config: Config
    written: Config
    variant: str | None
    problems: list[Problem]
    examiner: Examiner
    examined: Examined | None
    has_signatures: bool
    is_part: bool

    @property
    def bad(self) -> bool:
        return any(problem.severity == "error" for problem in self.problems)


def _check(
    config: Config,
    variant: str | None,
    *,
    shape: bool,
    strict: bool,
    quiet: bool,
    launch: Launch,
) -> _Checked:
    """Check every config of a file, or one variant alone ("all": each of them).

    The problems of each stage are printed at once unless `quiet`.
    """
    from assay.compose import Examiner, problems_of_runs, problems_of_shape
    from assay.compose.checks import section_problems
    from assay.config import expand
    from assay.config.expansion import problems_of_sections, unique_problems, variations

    written = config
    of_file = problems_of_sections(config)
    if variant is None or of_file:
        configs = list(variations(config)) if variant is None else [config]
    else:
        configs = expand(config, [variant], sweep=False)
        config = configs[0]
    problems: list[Problem] = []

    def tell(found: list[Problem]) -> None:
        if not quiet:
            _show(found, after=bool(problems))
        problems.extend(found)

    tell([*unique_problems(configs, problems_of_shape), *of_file])
    examined = None
    examiner = Examiner(strict=strict)
    # As a run does: the signatures take an import of torch, and would be those of another config.
    has_signatures = not shape and not any(each.severity == "error" for each in problems)
    if has_signatures:
        tell(_not_told(problems, examiner.problems(configs)))
        examined = examiner.examine(config)
    is_part = False
    if not any(problem.severity == "error" for problem in problems):
        # Not beside errors: a section that seems to be missing may be one whose name is wrong.
        if shape:
            found = unique_problems(configs, section_problems)
        else:
            found = problems_of_runs(configs, launch, examiner=examiner)
        is_part = any(problem.kind == "partial" for problem in found)
        tell([problem for problem in found if problem.kind != "partial"])
    return _Checked(
        config=config,
        written=written,
        variant=variant,
        problems=problems,
        examiner=examiner,
        examined=examined,
        has_signatures=has_signatures,
        is_part=is_part,
    )


def _rows(found: _Checked) -> list[Variation]:
    """Return a row for each config of the file, with its hash where signatures were checked."""
    from assay.cli.variations import rows

    hashed = found.examiner.canonical if found.has_signatures else lambda _: None
    return rows(found.written, hashed, variant=found.variant)


def _audit(config: Config) -> list[Audit]:
    from assay.compose import audit_data

    return audit_data(config)


def _try_resume(config: Config, device: str | None) -> ResumeCheck:
    from assay.compose import Launch
    from assay.proof.verify_resume import check_resume

    return check_resume(config, Launch(device=device), tell=lambda line: echo(line, err=True))


def _rehearse(config: Config, asked: RehearsalRequest) -> Rehearsal:
    from assay.compose.rehearsal import rehearse

    return rehearse(config, asked)


def _show_audits(audits: Sequence[Audit]) -> None:
    on = use_color(sys.stdout)
    for audit in audits:
        echo(
            f"\n{paint(f'data.{audit.split}', 'bold', on=on)}  {audit.samples:,} samples,"
            f" {audit.batches:,} batches"
        )
        rate = f"{audit.batches_per_s:,.0f} batches/s, " if audit.batches_per_s else ""
        for name, text in (
            *audit.facts,
            ("speed", f"{rate}the first after {audit.first_batch_s:.2f} s"),
        ):
            echo(f"  {name:<10}  {text}")
        for problem in audit.problems:
            echo(f"  {paint('problem', 'red bold', on=on)}     {problem}")


def _not_told(told: Sequence[Problem], further: Sequence[Problem]) -> list[Problem]:
    """Return the problems at places of which the shape stage has reported none."""
    places = {(str(problem.origin), problem.key) for problem in told}
    return [problem for problem in further if (str(problem.origin), problem.key) not in places]


def _show(problems: list[Problem], *, after: bool = False) -> None:
    if problems:
        text = render(problems, color=use_color(sys.stdout), width=width(sys.stdout) or 80)
        echo(f"\n{text}" if after else text)


def _show_fine(file: str, named: Table | None, *, is_part: bool) -> None:
    from assay.config import config_hash

    hashed = f"  {config_hash(named)[:16]}" if named is not None else ""
    fine = "fine as a part" if is_part else "fine"
    echo(f"{paint(fine, 'green bold', on=use_color(sys.stdout))}  {file}{hashed}")


def _plain_defaults(config: Config, found: Examined) -> dict[str, list[dict[str, Any]]]:
    """Return defaults and injected values as plain data."""
    from assay.config.check import standard_defaults

    defaults = [*standard_defaults(config.root), *found.defaults]
    return {
        "defaults": [
            {
                "key": one.key,
                "value": one.value,
                "of": one.owner,
                "source": one.origin.source,
                "line": one.origin.line,
            }
            for one in defaults
        ],
        "injected": [
            {
                "key": one.key,
                "by": one.by,
                "of": one.owner,
                "source": one.origin.source,
                "line": one.origin.line,
            }
            for one in found.injected
        ],
    }


def _show_taken(taken: dict[str, list[dict[str, Any]]], *, after: bool) -> None:
    on = use_color(sys.stdout)
    lines = [""] if after else []
    for title, sign, what in (("defaults", "=", "value"), ("injected", "by", "by")):
        lines += [paint(title, "bold", on=on)] if taken[title] else []
        for owner, rows in groupby(
            taken[title], key=lambda row: f"{row['of']}  {_place(row)}".rstrip()
        ):
            lines.append(f"  {paint(owner, 'dim', on=on)}")
            lines += [f"    {row['key']} {sign} {row[what]}" for row in rows]
        lines += [""] if taken[title] else []
    echo("\n".join(lines))


def _place(row: dict[str, Any]) -> str:
    return f"{row['source']}:{row['line']}" if row["line"] else ""
