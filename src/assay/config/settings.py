"""Settings of a project, and variables of this project or of this machine.

A project's file is `.assay/settings.toml`, the user's own lies in their config folder. `[globals]`
holds the variables that a config names as `${global:NAME}`; the project's win. Everything else is
read from the project's file only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_config_path

from assay.config.allow_list import can_trust
from assay.config.edit import with_key, without_key
from assay.config.notify_rules import NOTIFY, NotifyRule, notify_rules, wrong_rules
from assay.config.sources.toml import read_all
from assay.config.tree import (
    KeyPath,
    Leaf,
    List,
    Node,
    Table,
    from_plain,
    get_at,
    plain,
    problem_at,
)
from assay.core.diagnostics import Origin, Problem
from assay.core.directory import PRIVATE, file_mode, make_directory
from assay.core.errors import ConfigError, InputError, did_you_mean
from assay.core.regular_file import read_start
from assay.formats.json_codec import write_atomic
from assay.formats.project import FOLDER_MODES, SETTINGS_NAME, project_root, settings_file

Scope = Literal["local", "global"]
SCOPES: tuple[Scope, ...] = ("local", "global")

GLOBALS = "globals"
RUNS_DIR = "runs_dir"
PERMISSIONS = "permissions"
TRUSTED = "trusted"
KUBERNETES = "kubernetes"
KUBERNETES_KEYS = ("image", "claim", "mount")
SETTINGS: Mapping[str, str] = {
    RUNS_DIR: "Folder of the runs: a path, from the project's folder on.",
    PERMISSIONS: (
        "Access to new runs and kept code: `private`, nobody else, or `group`, those of the group"
        " too."
    ),
    TRUSTED: (
        "Packages whose classes and functions configs may name; `assay config trust` adds one."
    ),
    KUBERNETES: "Image, volume claim and its mount, for `assay run --on k8s`.",
    NOTIFY: "Rules that send messages of runs by mail, webhook, command or to the desktop.",
}
"""Every setting of a project, and what it is for."""

_NAME = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
_MAX_BYTES = 1_000_000


@dataclass(frozen=True)
class Settings:
    """Settings that a config in the folder `start` sees.

    Files are read once, when something is asked for.
    """

    start: Path

    @cached_property
    def local_file(self) -> Path | None:
        """File of the project's settings, None where there is no project."""
        root = project_root(self.start)
        return None if root is None else settings_file(root)

    @cached_property
    def global_file(self) -> Path:
        """File of the user's own settings."""
        return global_file()

    @cached_property
    def local(self) -> Table:
        return (
            _read(self.local_file, "local")
            if self.local_file is not None
            else _nothing("<no project>")
        )

    @cached_property
    def globally(self) -> Table:
        return _read(self.global_file, "global")

    @cached_property
    def trusted(self) -> frozenset[str]:
        """Packages that this project allows as targets."""
        node = self.local.items.get(TRUSTED)
        return (
            frozenset(str(plain(item)) for item in node.items)
            if isinstance(node, List)
            else frozenset()
        )

    @cached_property
    def notify_rules(self) -> list[NotifyRule]:
        """Rules by which messages of this project's runs are sent."""
        return notify_rules(self.local.items.get(NOTIFY))

    @cached_property
    def kubernetes(self) -> Mapping[str, str] | None:
        """Image, volume claim and mount of jobs in Kubernetes; None where they are not set."""
        node = self.local.items.get(KUBERNETES)
        return plain(node) if node is not None else None

    @cached_property
    def variables(self) -> Mapping[str, Any]:
        """Values that `${global:NAME}` stands for, by name."""
        return {**_variables(self.globally), **_variables(self.local)}

    def of(self, scope: Scope) -> Table:
        """Return the tree of the file of a scope."""
        return self.local if scope == "local" else self.globally

    def origin_of(self, variable: str) -> Origin | None:
        """Return the place where a variable was set: by the project, else by the user."""
        for scope in SCOPES:
            node = get_at(self.of(scope), (GLOBALS, variable))
            if node is not None:
                return node.origin
        return None


class Globals(Mapping[str, Any]):
    """The variables of this machine and project, from code: `globs["datasets"]`.

    >>> from pathlib import Path
    >>> sorted(Globals(Path("/nowhere")))
    []

    The project is the one around `start`, by default around the working directory. Read anew each
    time.
    """

    def __init__(self, start: Path | None = None) -> None:
        self._start = start

    @property
    def settings(self) -> Settings:
        return Settings(self._start or Path.cwd())

    @property
    def glob_fn(self) -> Path:
        """File of the variables that hold for all projects."""
        return global_file()

    def __getitem__(self, name: str) -> Any:
        variables = self.settings.variables
        if name not in variables:
            raise UnknownVariableError(name, variables)
        return variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.settings.variables)

    def __len__(self) -> int:
        return len(self.settings.variables)

    def update(self, scope: Scope, name: str, value: object) -> None:
        """Set a variable, of this project ("local") or of all ("global")."""
        write(file_of(self.settings, scope), variable_path(name), value)

    def list_config(self, globa: bool = True, local: bool = True) -> dict[str, Any]:
        """Return the variables of the given scopes by name; the project's win."""
        settings = self.settings
        return {
            **(_variables(settings.globally) if globa else {}),
            **(_variables(settings.local) if local else {}),
        }


class UnknownVariableError(InputError, KeyError):
    """A variable that is not set."""

    def __init__(self, name: str, known: Mapping[str, Any]) -> None:
        fix = did_you_mean(name, known)
        how = f"assay config set --global {name} VALUE"
        super().__init__(
            f"The variable `{name}` is not set.", fix=f"{fix} Else: {how}" if fix else how
        )

    __str__ = Exception.__str__  # KeyError would show the text in quotes


globs = Globals()


def global_file() -> Path:
    """Return the path of the user's own settings."""
    return user_config_path("assay", appauthor=False) / SETTINGS_NAME


def file_of(settings: Settings, scope: Scope) -> Path:
    """Return the file of a scope; InputError where there is no project."""
    if scope == "global":
        return settings.global_file
    if settings.local_file is None:
        fix = "Go into a project, make one with `assay init`, or use --global."
        raise InputError(
            f"There is no project in {settings.start.absolute()} or above it.", fix=fix
        )
    return settings.local_file


def path_of(name: str) -> KeyPath:
    """Return the path of a name given to `assay config`: settings at the top, else variables."""
    return (name,) if name in SETTINGS else variable_path(name)


def variable_path(name: str) -> KeyPath:
    """Return the path of a variable; InputError for what cannot be its name."""
    if name in SETTINGS:
        raise InputError(
            f"`{name}` is a setting, not a variable.", fix=f"assay config set {name} VALUE"
        )
    if not _NAME.fullmatch(name):
        fix = "Use letters, digits, - and _; begin with a letter."
        raise InputError(f"`{name}` cannot be the name of a variable.", fix=fix)
    return (GLOBALS, name)


def write(file: Path, path: KeyPath, value: object) -> None:
    """Set one key of a settings file and keep its comments; InputError for a wrong value."""
    text = _text(file)
    node = from_plain(value, Origin(source="<cli>"))
    _replace(file, with_key(text, path, node, source=str(file)))


def remove_setting(file: Path, path: KeyPath) -> None:
    """Remove one key of a settings file; InputError when it is not there."""
    _replace(file, without_key(_text(file), path, source=str(file)))


def trust(settings: Settings, package: str) -> bool:
    """Allow the targets of a package in this project; False when they were allowed already."""
    why = _explain_distrust(package)
    if why:
        raise InputError(
            why, fix="Call it in a function of your own code and name that function in the config."
        )
    if package in settings.trusted:
        return False
    write(file_of(settings, "local"), (TRUSTED,), sorted({*settings.trusted, package}))
    return True


def distrust(settings: Settings, package: str) -> None:
    """Take a package off the list; InputError when it is not on it."""
    if package not in settings.trusted:
        fix = did_you_mean(package, settings.trusted)
        raise InputError(f"`{package}` is not trusted here.", fix=fix)
    write(file_of(settings, "local"), (TRUSTED,), sorted(settings.trusted - {package}))


def _explain_distrust(package: str) -> str:
    if not all(part.isidentifier() for part in package.split(".")):
        return f"`{package}` is no name of a package."
    if not can_trust(package):
        owners = {
            "assay": "it is assay itself",
            "torch": "of torch, a project trusts one class or function at a time",
        }
        return (
            f"`{package}` cannot be trusted:"
            f" {owners.get(package.split('.')[0], 'it is Python itself')}."
        )
    return ""


def _nothing(source: str) -> Table:
    return Table({}, Origin(source=source))


def _variables(file: Table) -> dict[str, Any]:
    node = file.items.get(GLOBALS)
    return dict(plain(node)) if node is not None else {}


def _read(file: Path, scope: Scope) -> Table:
    """Read a settings file; ConfigError with everything that is wrong in it."""
    root, problems = read_all(_text(file), str(file))
    problems += _wrong(root, scope)
    if problems:
        raise ConfigError(problems)
    return root


def _text(file: Path) -> str:
    try:
        raw = read_start(file, _MAX_BYTES + 1, follow=True)
        if len(raw) > _MAX_BYTES:
            raise InputError("The settings are too large to be settings.", where=str(file))
        return raw.decode("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The settings cannot be read: {error}", where=str(file)) from error


def _replace(file: Path, text: str) -> None:
    root, _ = read_all(text, str(file))
    node = root.items.get(PERMISSIONS)
    folder_mode = FOLDER_MODES.get(str(plain(node)), PRIVATE) if node is not None else PRIVATE
    try:
        make_directory(file.parent, PRIVATE)
        # A settings file that is a link stays one.
        place = Path(os.path.realpath(file))
        write_atomic(place, text.encode("utf-8"), mode=file_mode(folder_mode))
    except OSError as error:
        raise InputError(
            f"The settings cannot be written: {error.strerror or error}.", where=str(file)
        ) from error


def _wrong(root: Table, scope: Scope) -> Iterator[Problem]:
    for name, node in root.items.items():
        origin = root.key_origin(name)
        if name == GLOBALS:
            if not isinstance(node, Table):
                yield problem_at(
                    "wrong-type", f"`{GLOBALS}` must be a table of variables", node.origin, name
                )
                continue
            for key in node.items:
                if not _NAME.fullmatch(key):
                    message = f"`{key}` cannot be the name of a variable"
                    yield problem_at(
                        "unknown-key", message, node.key_origin(key), f"{GLOBALS}.{key}"
                    )
        elif name not in SETTINGS:
            known = [GLOBALS, *SETTINGS] if scope == "local" else [GLOBALS]
            fix = did_you_mean(name, known) or f"variables of your own stand under [{GLOBALS}]"
            yield problem_at("unknown-key", f"there is no setting `{name}`", origin, name, fix)
        elif scope == "global":
            fix = f"write it into .assay/{SETTINGS_NAME} of the project"
            yield problem_at(
                "unknown-key", f"`{name}` is a setting of one project", origin, name, fix
            )
        else:
            yield from _wrong_setting(name, node)


def _wrong_setting(name: str, node: Node) -> Iterator[Problem]:
    is_text = isinstance(node, Leaf) and isinstance(node.value, str) and node.value
    if name == RUNS_DIR and not is_text:
        yield problem_at("wrong-type", f"`{name}` must be a path in quotes", node.origin, name)
    if name == PERMISSIONS and not (isinstance(node, Leaf) and node.value in FOLDER_MODES):
        known = " or ".join(f'"{each}"' for each in FOLDER_MODES)
        yield problem_at("wrong-value", f"`{name}` must be {known}", node.origin, name)
    if name == KUBERNETES:
        yield from _wrong_kubernetes(node)
    if name == NOTIFY:
        yield from wrong_rules(node)
    if name != TRUSTED:
        return
    if not isinstance(node, List):
        yield problem_at(
            "wrong-type", f'`{name}` must be a list of packages, as in ["timm"]', node.origin, name
        )
        return
    for item in node.items:
        value = plain(item)
        why = (
            _explain_distrust(value) if isinstance(value, str) else "a package is named by a string"
        )
        if why:
            yield problem_at("wrong-value", why.rstrip("."), item.origin, name)


def _wrong_kubernetes(node: Node) -> Iterator[Problem]:
    found = plain(node)
    needed = set(KUBERNETES_KEYS)
    is_right = isinstance(found, dict) and set(found) == needed
    if not is_right or not all(isinstance(each, str) and each for each in found.values()):
        message = f"`{KUBERNETES}` must be a table with the texts {', '.join(KUBERNETES_KEYS)}"
        yield problem_at("wrong-type", message, node.origin, KUBERNETES)
