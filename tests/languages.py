"""Writes one content in every language that a config can be written in."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import date, time
from typing import Any

from assay.config import dump, from_plain
from assay.config.tree import Table, dotted
from assay.core.diagnostics import Origin


def to_toml(content: Mapping[str, Any]) -> str:
    root = from_plain(content, Origin(source="<content>"))
    assert isinstance(root, Table)
    return dump(root)


def to_json(value: Any) -> str:
    match value:
        case dict():
            return (
                "{"
                + ", // a comment\n".join(
                    f"{json.dumps(k)}: {to_json(v)}" for k, v in value.items()
                )
                + "}"
            )
        case list():
            return "[" + ", ".join(map(to_json, value)) + ("," if value else "") + " /* end */]"
        case date() | time():
            return value.isoformat()
        case _:
            return json.dumps(value)


def to_yaml(content: Mapping[str, Any]) -> str:
    return "".join(
        f"{quoted(key)}:\n  {_yaml(value)}  # a comment\n" for key, value in content.items()
    )


def to_ini(content: Mapping[str, Any]) -> str:
    lines = ["; a comment"]
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    for key, value in content.items():
        if key not in tables:
            lines.append(f"{_ini_key(key)} = {_ini(value)}")
    for key, table in tables.items():
        lines.append(f"[{_ini_key(key)}]")
        lines += [f"{_ini_key(name)} : {_ini(value)}" for name, value in table.items()]
    return "\n".join(lines) + "\n"


def to_python(content: Mapping[str, Any]) -> str:
    return f"import datetime\n\nnan, inf = float('nan'), float('inf')\nconfig = {dict(content)!r}\n"


WRITERS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    ".toml": to_toml,
    ".json": to_json,
    ".yaml": to_yaml,
    ".ini": to_ini,
    ".py": to_python,
}


def quoted(text: str) -> str:
    """Text in double quotes, as TOML and YAML both read it."""
    escapes = {'"': '\\"', "\\": "\\\\"}
    inside = "".join(escapes.get(c, c if c.isprintable() else f"\\U{ord(c):08x}") for c in text)
    return f'"{inside}"'


def _yaml(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{quoted(k)}: {_yaml(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_yaml, value)) + "]"
        case date() | time():
            return f'!!timestamp "{value.isoformat()}"'
        case float() if not math.isfinite(value):
            return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}[str(value)]
        case str():
            return quoted(value)
        case _:
            return (
                {None: "~", True: "true", False: "false"}.get(value, repr(value))
                if _is_word(value)
                else repr(value)
            )


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _ini_key(key: str) -> str:
    return f'"{key}"' if key == "DEFAULT" else dotted((key,))


def _ini(value: Any) -> str:
    return _inline(value).replace("%", "%%")


def _inline(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{quoted(k)} = {_inline(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_inline, value)) + "]"
        case date() | time():
            return value.isoformat()
        case str():
            return quoted(value)
        case None:
            return '"@none"'
        case bool():
            return "true" if value else "false"
        case _:
            return repr(value)
