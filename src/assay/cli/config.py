"""Command `assay config`: settings of a project, variables, and the origin of values."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.cli.completion import complete_variants
from assay.cli.launch import split_arguments
from assay.cli.one_config import config_to_open, user_dir_option
from assay.cli.permission import permission, say, trust_option
from assay.cli.terminal import echo, echo_json, paint, use_color
from assay.core.errors import ConfigError, InputError, did_you_mean
from assay.core.terminal import elide, visible

if TYPE_CHECKING:
    from assay.config import Config, Node
    from assay.config.settings import Scope, Settings

WIDTH = 80


@click.group(
    name="config",
    help="Settings of this project, variables of this machine, and where a value comes from.",
)
def command() -> None:
    """Group of the commands below it."""


_global_option = click.option(
    "--global", "is_global", is_flag=True, help="Of all your projects on this machine."
)


@command.command(
    name="get", help="Print one setting or variable; the project's wins. Without NAME list all."
)
@click.argument("name", required=False)
@_global_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def get(name: str | None, is_global: bool, as_json: bool) -> int:
    from assay.config import get_at, plain
    from assay.config.settings import SETTINGS, UnknownVariableError, path_of

    settings = _settings()
    scopes: tuple[Scope, ...] = ("global",) if is_global else ("local", "global")
    if name is None:
        if as_json:
            echo_json({each: plain(settings.of(each)) for each in scopes})
        else:
            echo("\n".join(_listing(settings, scopes)))
        return 0
    for each in scopes:
        node = get_at(settings.of(each), path_of(name))
        if node is not None:
            if as_json:
                echo_json(plain(node))
            else:
                echo(_text(plain(node)))
            return 0
    if name in SETTINGS:
        return 0  # not set, and so as it is by default
    raise UnknownVariableError(name, settings.variables)


@command.command(
    name="set",
    help="Set a setting or a variable, for this project unless --global. Configs name it as"
    " ${global:NAME}.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("name")
@click.argument("value", required=False)
@_global_option
@click.option("--unset", is_flag=True, help="Remove it instead.")
def set_(name: str, value: str | None, is_global: bool, unset: bool) -> int:
    from assay.config.settings import SETTINGS, path_of, remove_setting, write
    from assay.config.sources.literals import value_of

    if unset != (value is None):
        raise InputError(
            f"`{name}` is removed, or gets a value.",
            fix=f"assay config set {name} VALUE, or --unset",
        )
    path = path_of(name)
    scope: Scope = "global" if is_global else "local"
    if value is None:
        remove_setting(_file(scope), path)
        return 0
    if name in SETTINGS and is_global:
        raise InputError(f"`{name}` is a setting of one project.", fix="Leave out --global.")
    near = did_you_mean(name, SETTINGS) if name not in SETTINGS else ""
    write(_file(scope), path, value if name == "runs_dir" else value_of(value))
    if near:
        echo(
            f"`{name}` is a variable now; there is a setting with a name like it: {near}", err=True
        )
    return 0


@command.command(
    name="trust",
    help="Let configs of this project name what a package defines, or one class or function of"
    " torch.",
)
@click.argument("packages", nargs=-1)
@click.option("--remove", is_flag=True, help="Trust it no longer.")
def trust(packages: tuple[str, ...], remove: bool) -> int:
    from assay.config import settings as own

    settings = _settings()
    if not packages:
        echo("\n".join(sorted(settings.trusted)) or "no packages are trusted here")
    for package in packages:
        settings = _settings()
        if remove:
            own.distrust(settings, package)
        else:
            _file("local")
            own.trust(_settings(), package)
            is_one = package.startswith("torch.")
            named = package if is_one else f"what is defined in {package}"
            echo(f"configs of this project may name {named}", err=True)
    return 0


@command.command(
    name="explain",
    help="Where the value of KEY comes from: what set it, and what that replaced.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("key")
@config_to_open
@click.option("--variant", shell_complete=complete_variants, help="With this variant of the file.")
@user_dir_option
@trust_option
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def explain(
    key: str,
    arguments: tuple[str, ...],
    variant: str | None,
    user_dir: str | None,
    as_json: bool,
    trust: bool,
) -> int:
    from assay.compose import open_given
    from assay.config import expand

    files, overrides = split_arguments(arguments)
    if len(files) != 1:
        raise InputError(
            "`assay config explain` looks at one config.",
            fix=f"assay config explain {key} digits.toml",
        )
    how: dict[str, Any] = {"use": "explain it", "trust": permission(trust), "tell": say}
    base = open_given(files[0], overrides, user_dir=user_dir, **how)
    (config,) = expand(base, [variant] if variant else [], sweep=False)
    found = _explain(config, key)
    if as_json:
        echo_json(found)
    else:
        echo("\n".join(_story(found, use_color(sys.stdout))))
    return 0


@command.command(
    name="show",
    help="Print a config as it is read: one in another language or of an older system as TOML, with"
    " the names that are used here. What was translated is printed to stderr.",
    context_settings={"ignore_unknown_options": True},
)
@config_to_open
@user_dir_option
@trust_option
def show(arguments: tuple[str, ...], user_dir: str | None, trust: bool) -> int:
    from assay.compose import open_given
    from assay.config.freeze import dump
    from assay.config.loading import rename_targets
    from assay.config.secret_keys import without_secrets

    files, overrides = split_arguments(arguments)
    if len(files) != 1:
        raise InputError(
            "`assay config show` prints one config.", fix="assay config show digits.toml"
        )
    how: dict[str, Any] = {"use": "show it", "trust": permission(trust), "tell": say}
    config = open_given(files[0], overrides, user_dir=user_dir, **how)
    if config.problems:
        raise ConfigError(config.problems)
    for note in config.notes:
        echo(f"note: {note.origin}  {visible(note.message)}", err=True)
    echo(dump(without_secrets(rename_targets(config))), end="")
    return 0


def _settings() -> Settings:
    from assay.config.settings import Settings

    return Settings(Path.cwd())


def _file(scope: Scope) -> Path:
    """Return the file of a scope; the working directory becomes a project where there is none."""
    from assay.config.settings import file_of

    settings = _settings()
    if scope == "local" and settings.local_file is None:
        from assay.store.layout import open_project

        project = open_project(Path.cwd(), create=True)
        echo(f"{project.root} is a project now: {project.assay_dir}", err=True)
        settings = _settings()
    return file_of(settings, scope)


def _listing(settings: Settings, scopes: tuple[Scope, ...]) -> Iterator[str]:
    from assay.config import plain
    from assay.config.settings import GLOBALS

    color = use_color(sys.stdout)
    for scope in scopes:
        file = settings.local_file if scope == "local" else settings.global_file
        root = settings.of(scope)
        yield f"{paint(scope, 'bold', on=color)}  {file or 'no project here'}"
        values = dict(plain(root))
        variables = values.pop(GLOBALS, {})
        rows = [*values.items(), *variables.items()]
        wide = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            is_hidden = scope == "global" and len(scopes) > 1 and name in _local_names(settings)
            yield (
                f"  {name:{wide}} "
                f" {visible(_text(value))}{'  (the project has its own)' if is_hidden else ''}"
            )
        if not rows:
            yield "  nothing is set"


def _local_names(settings: Settings) -> set[str]:
    from assay.config import Table
    from assay.config.settings import GLOBALS

    node = settings.local.items.get(GLOBALS)
    return set(node.items) if isinstance(node, Table) else set()


def _text(value: Any) -> str:
    """Return a value for the shell: text bare, all else about as TOML writes it."""
    from assay.config import from_plain
    from assay.core.diagnostics import Origin
    from assay.query.diff import write_value

    return (
        value if isinstance(value, str) else str(write_value(from_plain(value, Origin(source=""))))
    )


def _path(key: str) -> Any:
    from assay.config import parse_dotted

    try:
        return parse_dotted(key)
    except ValueError:
        raise InputError(
            f"`{key}` is no path of keys.", fix="Write it as in optimizer.lr."
        ) from None


def _explain(config: Config, key: str) -> dict[str, Any]:
    """Return the value of a key and the chain of its origins, as plain data."""
    import os

    from assay.config import get_at, plain
    from assay.config.explain import origin_steps
    from assay.config.references import external_names
    from assay.config.resolver import with_external_values
    from assay.config.tree import dotted, fit_path
    from assay.core.secrets.names import REDACTED, sureness

    path = fit_path(config.root, _path(key))
    raw = get_at(config.root, path) or get_at(config.written, path)
    if raw is None:
        return _not_given(config, dotted(path), key)
    root, _ = with_external_values(config.root, os.environ, config.settings.variables)
    node: Node = get_at(root, path) or raw
    value = plain(node)
    text = plain(raw)
    if isinstance(text, str) and any(sureness(name) for _, name in external_names(text)):
        value = REDACTED
    return {
        "key": dotted(path),
        "value": value,
        "shown": _text(value),
        "how": "given",
        "steps": [
            {
                "how": step.how,
                "source": step.origin.source,
                "line": step.origin.line,
                "column": step.origin.column,
                "note": step.origin.note,
                "text": step.text,
            }
            for step in origin_steps(config, path)
        ],
    }


def _not_given(config: Config, key: str, asked: str) -> dict[str, Any]:
    """Explain a key that nobody wrote: a default, something injected, or a mistake."""
    from assay.compose import check_calls
    from assay.config import dotted, walk
    from assay.config.check import standard_defaults

    standard = {each.key: each for each in standard_defaults(config.root)}
    found = check_calls(config) if key not in standard else None
    defaults = {**standard, **({each.key: each for each in found.defaults} if found else {})}
    injected = {each.key: each for each in found.injected} if found else {}
    if key in defaults:
        one = defaults[key]
        step = {"how": f"is the default of {one.owner}", "text": ""}
        return {
            "key": key,
            "value": one.value,
            "shown": one.value,
            "how": "default",
            "steps": [_at(one.origin, step)],
        }
    if key in injected:
        by = injected[key]
        step = {"how": f"is filled by {by.by} for {by.owner}", "text": ""}
        return {
            "key": key,
            "value": None,
            "shown": "(injected)",
            "how": "injected",
            "steps": [_at(by.origin, step)],
        }
    known = [*(dotted(path) for path, _ in walk(config.root) if path), *defaults, *injected]
    raise InputError(f"There is no `{asked}` in {config.path}.", fix=did_you_mean(asked, known))


def _at(origin: Any, step: dict[str, Any]) -> dict[str, Any]:
    return {
        "source": origin.source,
        "line": origin.line,
        "column": origin.column,
        "note": origin.note,
        **step,
    }


def _story(found: dict[str, Any], color: bool) -> Iterator[str]:

    yield elide(visible(f"{found['key']} = {found['shown']}"), WIDTH)
    rows = [(step["how"], _place(step), step["text"]) for step in found["steps"]]
    how_wide = max((len(how) for how, _, _ in rows), default=0)
    wide = max((len(place) for _, place, _ in rows), default=0)
    for how, place, text in rows:
        left = f"  {how:{how_wide}}  {place:{wide}}"
        rest = elide(visible(text), max(WIDTH - len(left) - 2, 20)) if text else ""
        yield f"{left}  {paint(rest, 'dim', on=color)}".rstrip() if rest else left.rstrip()


def _place(step: dict[str, Any]) -> str:
    place = str(step["source"])
    if step["line"]:
        place += f":{step['line']}" + (f":{step['column']}" if step["column"] else "")
    return f"{place} ({step['note']})" if step["note"] else place
