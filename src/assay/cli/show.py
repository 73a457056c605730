"""`assay show`."""

from __future__ import annotations

import os
import shlex
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from assay.cli.one_run import run_argument
from assay.cli.terminal import STATUS_STYLES, echo, echo_json, paint, use_color
from assay.cli.text import WIDTH, wrap
from assay.core.errors import InputError
from assay.core.facts import COSTS, Warned
from assay.core.formatting import age, count, duration, moment, number, size
from assay.core.terminal import elide, escaped_json, visible
from assay.formats.json_codec import dumps, to_plain
from assay.formats.run_file import IMPORTED, Summary
from assay.query.determinism import KINDS, Condition, Kind, conditions
from assay.query.find import checkpoint_of, find
from assay.query.run import RunView
from assay.store.known_projects import projects_here

_KIND_TITLES: Mapping[Kind, str] = {
    "trap": "Traps",
    "code": "Code",
    "bound": "Bound",
    "safe": "Safe",
}
_KIND_STYLES: Mapping[Kind, str] = {
    "trap": "red bold",
    "code": "yellow bold",
    "bound": "bold",
    "safe": "green bold",
}
_VERDICT_STYLES = {"as written": "green bold", "damaged": "red bold", "unverified": "yellow bold"}
_CONFIG_LINES = 40
_METRICS = 30
_CHECKPOINTS = 10
_ARTIFACTS = 10
_WARNINGS = 5


@click.command(name="show", help="Show one run on a page.")
@run_argument()
@click.option(
    "--config", "only_config", is_flag=True, help="Its config and nothing else, as it was saved."
)
@click.option(
    "--determinism",
    is_flag=True,
    help="On what its bits depend: switches, threads, versions, traps.",
)
@click.option(
    "--check", is_flag=True, help="Read all of it: what is as written, and what nobody can tell."
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(run: str, only_config: bool, determinism: bool, check: bool, as_json: bool) -> int:
    view, checkpoint = find(run)
    if checkpoint:
        checkpoint_of(view, checkpoint)  # so that a wrong one is told
    pages = {"--config": only_config, "--determinism": determinism, "--check": check}
    given = [name for name, is_given in pages.items() if is_given]
    if len(given) > 1:
        raise InputError(
            f"{' and '.join(given)} are {len(given)} pages.", fix="leave out all but one"
        )
    if check:
        return _print_verified(view, as_json=as_json)
    if only_config:
        echo(escaped_json(view.config_text), end="")  # TOML escapes as JSON does
    elif determinism:
        found = conditions(view)
        if as_json:
            echo_json([asdict(each) for each in found])
        else:
            echo("\n".join(_determinism(view, found, use_color(sys.stdout))))
    elif as_json:
        echo_json(_data(view))
    else:
        echo("\n".join(_page(view, use_color(sys.stdout))))
    return 0


def _print_verified(view: RunView, *, as_json: bool) -> int:
    """Print what can be verified and what cannot; return 1 for a damaged record."""
    parts = view.verify()
    if as_json:
        echo_json([asdict(part) for part in parts])
    else:
        color = use_color(sys.stdout)
        echo("\n".join(_title(view, color)) + "\n")
        width = max((len(visible(part.name)) for part in parts), default=0)
        for part in parts:
            style = _VERDICT_STYLES[part.verdict]
            verdict = paint(f"{part.verdict:<10}", style, on=color)
            echo(f"  {visible(part.name):<{width}}  {verdict}  {visible(part.why)}")
    return 1 if any(part.verdict == "damaged" for part in parts) else 0


def _page(view: RunView, color: bool) -> Iterator[str]:
    yield from _title(view, color)
    yield from _damage(view, color)
    yield from _facts(view)
    yield from _metrics(view, color)
    yield from _checkpoints(view, color)
    yield from _said_lines(view, color)
    yield from _config(view, color)
    yield from _next(view, color)


def _determinism(view: RunView, found: Sequence[Condition], color: bool) -> Iterator[str]:
    yield from _title(view, color)
    width = max(len(each.name) for each in found)
    for kind, meaning in KINDS.items():
        own = [each for each in found if each.kind == kind]
        if not own:
            continue
        style = _KIND_STYLES[kind]
        yield from ("", f"{paint(_KIND_TITLES[kind], style, on=color)}: {meaning}")
        for each in own:
            indent = " " * (width + 4)
            yield from _hanging(f"  {visible(each.name):<{width}}  ", visible(each.value), indent)
            if each.why:
                yield from _hanging(indent, each.why, indent)
            if each.remedy:
                yield from _hanging(f"{indent}-> ", each.remedy, f"{indent}   ")
    verdicts = [verdict for verdict in view.verdicts if verdict.question == "replay"]
    said = verdicts[-1].said if verdicts else f"never tried: assay replay {_address(view)}"
    yield from ("", f"{paint('Replay', 'bold', on=color)}  {visible(said)}")


def _hanging(first: str, text: str, indent: str) -> list[str]:
    """Lines of a text under each other, the first after `first`."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _title(view: RunView, color: bool) -> Iterator[str]:
    name = visible(view.tag) or "(no tag)"
    status = paint(view.status, STATUS_STYLES[view.status], on=color)
    yield f"{paint(name, 'bold', on=color)}  {view.id}  {status}" + (
        "" if view.kind == "train" else f"  {view.kind} run"
    )
    if view.status_text != view.status and not view.error:  # which stands below
        yield from wrap(view.status_text)
    if view.desc:
        yield ""
        for paragraph in view.desc.split("\n"):
            yield from wrap(paragraph)


def _damage(view: RunView, color: bool) -> Iterator[str]:
    if view.damages:
        yield from ("", paint("Damaged", "red bold", on=color))
        for sentence in view.damages:
            yield from wrap(sentence)


def _facts(view: RunView) -> Iterator[str]:
    yield ""
    if view.error:
        yield _fact("folder", visible(_short(view.path)))
        return
    run = view.file
    now_ns = time.time_ns()
    yield _fact("started", f"{moment(run.created_ns)}, {age(run.created_ns, now_ns)}")
    attempts = f", in {len(run.attempts)} attempts" if len(run.attempts) > 1 else ""
    yield _fact("ran", f"{duration(view.duration_s)}{attempts}")
    for key, changed in view.changed_settings.items():
        yield _fact("changed", visible(f"{key} {changed}"))
    if view.status == "finished" and view.reason:
        yield _fact("ended", visible(view.reason))
    if run.parent:
        yield _fact("of", visible(run.parent))
    if view.best is not None:
        best = view.best
        yield _fact("best", f"{visible(best.metric)} {number(best.value)} at step {best.step}")
    if view.origin:
        yield _fact(
            "imported", visible(", ".join(f"{key} {value}" for key, value in view.origin.items()))
        )
    for key, value in view.values.items():
        if key.startswith(IMPORTED):
            continue
        yield _fact(
            "result",
            f"{visible(key)} = {visible(value if isinstance(value, str) else dumps(value))}",
        )
    if run.attempts:
        if run.newest.command:
            yield _fact("command", visible(shlex.join(run.newest.command)))
        yield _fact("on", _environment(view))
        yield _fact("code", _code(view))
        if run.newest.exactness:
            yield _fact("exactness", f"data: {visible(run.newest.exactness)}")
        if run.newest.resume:
            yield _fact("resume", visible(run.newest.resume))
    yield _fact("folder", visible(_short(view.path)))


def _environment(view: RunView) -> str:
    environment, newest = view.environment, view.file.newest
    torch = environment.get("torch")
    parts = [
        newest.host,
        ", ".join(newest.devices),
        f"{environment['cpus']} cpus" if "cpus" in environment else "",
        f"python {environment['python']}" if "python" in environment else "",
        f"torch {torch['version']}" if isinstance(torch, dict) and "version" in torch else "",
    ]
    return visible(", ".join(str(part) for part in parts if part)) or "-"


def _code(view: RunView) -> str:
    code = view.code
    parts = [
        f"snapshot {code.snapshot[:12]}, {count(code.files, 'file')}"
        if code.snapshot
        else "not kept"
    ]
    if code.git_commit:
        parts.append(f"git {code.git_commit[:10]}{' with changes' if code.git_dirty else ''}")
    if code.left_out:
        parts.append(f"{count(len(code.left_out), 'file')} left out")
    return ", ".join(parts)


def _metrics(view: RunView, color: bool) -> Iterator[str]:
    summaries = view.summaries
    if not summaries:
        return
    folded_names = [name for name in summaries if name.startswith(COSTS)]
    shown = [name for name in summaries if name not in folded_names] or list(summaries)
    names = shown[:_METRICS]
    width = min(24, max(len(visible(name)) for name in names))
    yield ""
    head = (
        f"{'Metrics':<{width + 2}}  {'last':>10}  {'min':>10} {'at step':>9}  {'max':>10}"
        f" {'at step':>9}"
    )
    yield paint(head, "bold", on=color)
    for name in names:
        each = summaries[name]
        low = _at(each.min, each.at_min)
        high = _at(each.max, each.at_max)
        yield f"  {elide(visible(name), width):<{width}}  {number(each.last):>10}  {low}  {high}"
    yield from _left_out(len(shown) - len(names), "more")
    if shown != list(summaries):
        yield from _fold(summaries)


def _fold(summaries: Mapping[str, Summary]) -> Iterator[str]:
    """Yield a line for speed, for time and for memory: the largest last values, as many as fit."""
    for prefix in COSTS:
        lasts = {name: each.last for name, each in summaries.items() if name.startswith(prefix)}
        names = sorted(lasts, key=lambda name: -lasts[name])
        parts = [f"{visible(name.removeprefix(prefix))} {number(lasts[name])}" for name in names]
        if parts:
            yield f"  {prefix.rstrip('/'):<9}  {_fitting(parts, WIDTH - 13)}"


def _fitting(parts: Sequence[str], width: int) -> str:
    """Return parts with commas between them; `...` stands for the last ones that do not fit."""
    for kept in range(len(parts), 0, -1):
        rest = ["..."] if kept < len(parts) else []
        line = ", ".join([*parts[:kept], *rest])
        if len(line) <= width:
            return line
    return elide(parts[0], width)


def _at(value: float, step: int) -> str:
    """Return a value and its step; neither for a metric that was never a number."""
    return f"{number(value):>10} {step:>9}" if value == value else f"{'-':>10} {'-':>9}"


def _checkpoints(view: RunView, color: bool) -> Iterator[str]:
    complete, broken = view.checkpoints, view.incomplete_checkpoints
    if not complete and not broken:
        return
    yield from ("", paint("Checkpoints", "bold", on=color))
    now_ns = time.time_ns()
    best = view.best_checkpoint
    yield from _left_out(len(complete) - _CHECKPOINTS, "older")
    for each in complete[-_CHECKPOINTS:]:
        manifest = each.manifest
        assert manifest is not None
        names = [*(["best"] if best is not None and best.name == each.name else [])]
        names += ["latest"] if each is complete[-1] else []
        names += [manifest.kind] if manifest.kind not in ("checkpoint", "best") else []
        room = sum(file.size_bytes for file in manifest.files)
        words = f"{size(room):>7}  {age(manifest.created_ns, now_ns):<10}  {', '.join(names)}"
        yield f"  step {manifest.step:<9}  {words}".rstrip()
    for each in broken:
        yield from wrap(f"{each.name} cannot be used: {each.why}")


def _said_lines(view: RunView, color: bool) -> Iterator[str]:
    if view.labels:
        yield from ("", f"{paint('Labels', 'bold', on=color)}  {visible(', '.join(view.labels))}")
    if view.verdicts:
        yield from ("", paint("Verdicts", "bold", on=color))
        yield from _left_out(len(view.verdicts) - _CHECKPOINTS, "older")
        for verdict in view.verdicts[-_CHECKPOINTS:]:
            yield from wrap(f"{moment(verdict.at_ns)}  {visible(verdict.said)}")
    if view.notes:
        yield from ("", paint("Notes", "bold", on=color))
        for note in view.notes:
            yield f"  {moment(note.at_ns)}  {visible(note.who)}".rstrip()
            yield from wrap(str(note.new), indent="    ")
    warnings = _warnings(view)
    if warnings:
        yield from ("", paint("Warnings", "bold", on=color))
        yield from _left_out(len(warnings) - _WARNINGS, "older")
        for message in warnings[-_WARNINGS:]:
            yield from wrap(message)
    if view.artifacts:
        yield from ("", paint("Artifacts", "bold", on=color))
        for artifact in view.artifacts[:_ARTIFACTS]:
            step = "" if artifact.step is None else f"  step {artifact.step}"
            yield f"  {size(artifact.size_bytes):>7}  {visible(artifact.name)}{step}"
        rest = view.artifacts[_ARTIFACTS:]
        steps = sorted({artifact.step for artifact in rest if artifact.step is not None})
        span = f", of {_describe_steps(steps)}" if steps else ""
        yield from _left_out(len(rest), f"more{span}")


def _warnings(view: RunView) -> list[str]:
    return [event.fact.message for event in view.events if isinstance(event.fact, Warned)]


def _left_out(number: int, which: str) -> Iterator[str]:
    """Yield a line on what is not shown, if there is anything."""
    if number > 0:
        yield f"  ... and {number} {which}: --json has all"


def _describe_steps(steps: Sequence[int]) -> str:
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def _config(view: RunView, color: bool) -> Iterator[str]:
    lines = view.config_text.strip().split("\n") if view.config_text.strip() else []
    if not lines:
        return
    yield from ("", paint("Config", "bold", on=color))
    shown = lines if len(lines) <= _CONFIG_LINES + 5 else lines[:_CONFIG_LINES]
    for line in shown:
        yield f"  {visible(line)}".rstrip()
    if len(shown) < len(lines):
        yield (
            f"  ... and {len(lines) - len(shown)} lines more: assay show {_address(view)} --config"
        )


def _next(view: RunView, color: bool) -> Iterator[str]:
    run = _address(view)
    if view.error:
        steps = [
            (f"assay log {run}", "what it said last"),
            (f"assay rm {run}", "take it out of the lists"),
        ]
        yield from ("", paint("Next", "bold", on=color))
        yield from (f"  {line:<{len(steps[0][0])}}  {why}" for line, why in steps)
        return
    if view.status == "running":
        steps = [(f"assay log {run} -f", "watch it")]
    elif view.status == "unknown":
        steps = [(f"assay log {run}", "what it said last")]
    elif view.status == "finished":
        steps = [(f"assay log {run}", "what it logged")]
        steps += [(f"assay test {run}", "evaluate it on its test data")] if view.checkpoints else []
        steps += (
            [(f"assay rerun {run} KEY=VALUE", "train it again, changed")]
            if view.file.config_path
            else []
        )
    else:
        steps = [(f"assay log {run}", "what it said last")]
        steps += [(f"assay resume {run}", "resume it")] if view.checkpoints else []
    steps.append((f"assay diff {run} RUN", "compare it with another"))
    yield from ("", paint("Next", "bold", on=color))
    width = max(len(line) for line, _ in steps)
    for line, why in steps:
        yield f"  {line:<{width}}  {why}"


def _address(view: RunView) -> str:
    """Return the run's id, or its folder where no project here has it."""
    folder = view.path.absolute().parent.resolve()
    is_here = any(project.runs_dir.resolve() == folder for project in projects_here())
    return view.id if is_here else shlex.quote(str(view.path))


def _fact(name: str, text: str) -> str:
    """`  name       text`, further lines under the text."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=f"  {name:<9}  ",
        subsequent_indent=" " * 13,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _short(path: Path) -> str:
    """Return a path relative to the working directory if it lies below, else as it is."""
    try:
        return os.fspath(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return os.fspath(path.absolute())


def _data(view: RunView) -> dict[str, Any]:
    """`run.json`, with what is derived and what was said later."""
    checkpoints = [
        {
            "name": each.name,
            "path": str(each.path),
            "step": each.step,
            "kind": each.manifest and each.manifest.kind,
        }
        | ({"why": each.why} if each.why else {})
        for each in view.all_checkpoints
    ]
    return {
        **(to_plain(view.file) if not view.error else {"id": view.id}),
        "status": view.status,
        "damages": list(view.damages),
        "tag": view.tag,
        "desc": view.desc,
        "labels": view.labels,
        "verdicts": to_plain(view.verdicts),
        "notes": [{"at_ns": note.at_ns, "who": note.who, "text": note.new} for note in view.notes],
        "warnings": _warnings(view),
        "values": view.values,
        "changed_settings": {key: str(each) for key, each in view.changed_settings.items()},
        "duration_s": view.duration_s,
        "summaries": to_plain(dict(view.summaries)),
        "checkpoints": checkpoints,
        "artifacts": to_plain(view.artifacts),
        "config": view.config_text,
        "path": str(view.path.absolute()),
    }
