"""Parser for `--optim.lr=0.01` in the arguments of a script: keys, and the text of each value."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from assay.config.overrides import DELETE
from assay.config.tree import CLI, KeyPath, parse_dotted
from assay.core.diagnostics import Origin, Problem

_ARGUMENT = re.compile(
    r"(?:--)?(?P<plus>\+?)(?P<key>[A-Za-z_][\w.\-\[\]]*)(?:=(?P<value>.*))?", re.ASCII | re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One value to change. `creates`: written `+key=value`."""

    path: KeyPath
    key: str
    text: str
    creates: bool
    key_origin: Origin
    value_origin: Origin

    @property
    def deletes(self) -> bool:
        return self.text.strip() == DELETE


def read_arguments(
    argv: Sequence[str], *, is_flag: Callable[[str], bool]
) -> tuple[list[Argument], list[Problem]]:
    """Return the changes that `argv` asks for, and the arguments that cannot be parsed.

    `--key value` is `--key=value`, and `--key` alone is true where `is_flag(key)` says that the
    value is a bool.
    """
    arguments: list[Argument] = []
    problems: list[Problem] = []
    rest = list(argv)
    while rest:
        given = rest.pop(0)
        found = _ARGUMENT.fullmatch(given)
        if found is None or (found["value"] is None and not given.startswith("--")):
            problems.append(_refused(given, f"`{given}` names no parameter", "write --name=value"))
            continue
        key = found["key"]
        text = found["value"]
        if text is None and is_flag(key):
            text = "true"
        elif text is None:
            if not rest or _is_option(rest[0]):
                problems.append(_refused(given, f"`{given}` has no value", f"write --{key}=value"))
                continue
            text = rest.pop(0)
            given = f"{given} {text}"
        try:
            arguments.append(_argument(given, found, text))
        except ValueError:
            message = f"`{key}` is no name of a parameter"
            problems.append(_refused(given, message, "write --a.b=value"))
    return arguments, problems


def _argument(given: str, found: re.Match[str], text: str) -> Argument:
    """Return the argument `given` with its value. Raises ValueError for a malformed key."""
    return Argument(
        path=parse_dotted(found["key"]),
        key=found["key"],
        text=text,
        creates=bool(found["plus"]),
        key_origin=_origin(given, found.start("key"), found.end("key")),
        value_origin=_origin(given, len(given) - len(text), len(given)),
    )


def _is_option(text: str) -> bool:
    found = _ARGUMENT.fullmatch(text)
    return text.startswith("--") or (found is not None and found["value"] is not None)


def _refused(given: str, message: str, fix: str) -> Problem:
    return Problem(kind="syntax", message=message, origin=_origin(given, 0, len(given)), fix=fix)


def _origin(given: str, start: int, end: int) -> Origin:
    return Origin(source=CLI, line=1, column=start + 1, end_line=1, end_column=end + 1, text=given)
