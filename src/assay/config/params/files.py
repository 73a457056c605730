"""Encoding of parameters as JSON, YAML and TOML, and back: tuples, dates and int keys survive.

Types without a literal in these languages are tables with one key: `{"@tuple": [1, 2]}`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from pathlib import Path, PurePath
from typing import Any

import tomli_w

from assay.config.sources import json as json_source
from assay.config.sources import toml as toml_source
from assay.config.sources import yaml as yaml_source
from assay.config.tree import NONE, Table, from_plain, plain, spell_none
from assay.core.diagnostics import Origin
from assay.core.errors import ConfigError, InputError, MissingExtraError

SUFFIXES = (".json", ".yaml", ".yml", ".toml")
FORMS = ".json, .yaml or .toml"
_WORD = re.compile(r"[A-Za-z_]{2,}[\w./-]*", re.ASCII)
_MARKS = ("@tuple", "@path", "@date", "@datetime", "@time", "@text", "@items")


def encode(value: Any, where: str = "") -> Any:
    """Convert `value` to dictionaries with string keys, lists and common scalars."""
    match value:
        case bool() | None:
            return value
        case str():
            return {"@text": value[1:]} if value == NONE else str(value)
        case int():
            return int(value)
        case float():
            return float(value)
        case datetime():
            return {"@datetime": value.isoformat()}
        case date():
            return {"@date": value.isoformat()}
        case time():
            return {"@time": value.isoformat()}
        case PurePath():
            return {"@path": str(value)}
        case tuple():
            return {"@tuple": [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]}
        case list():
            return [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
        case Mapping():
            return _encode_mapping(value, where)
        case _:
            raise InputError(
                f"`{where}` is of type {type(value).__name__}, which no file can hold.",
                fix="Keep numbers, strings, true/false, None, dates, paths,"
                " tuples, lists and dictionaries.",
            )


def _encode_mapping(value: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Return a table, or `@items` where keys are no strings or look like an encoded value."""
    has_only_texts = all(isinstance(key, str) for key in value)
    looks_encoded = len(value) == 1 and next(iter(value)) in _MARKS
    if has_only_texts and not looks_encoded:
        return {str(key): encode(item, f"{where}.{key}".lstrip(".")) for key, item in value.items()}
    return {"@items": [[encode(key, where), encode(item, where)] for key, item in value.items()]}


def decode(value: Any) -> Any:
    """Invert `encode`."""
    match value:
        case {"@text": str(text), **rest} if not rest:
            return f"@{text}"
        case {"@tuple": list(items), **rest} if not rest:
            return tuple(map(decode, items))
        case {"@items": list(items), **rest} if not rest:
            return {decode(key): decode(item) for key, item in items}
        case dict() if len(value) == 1 and isinstance(text := next(iter(value.values())), str):
            (mark,) = value
            return _READERS[mark](text) if mark in _READERS else {mark: text}
        case dict():
            return {key: decode(item) for key, item in value.items()}
        case list():
            return list(map(decode, value))
        case _:
            return value


_READERS: dict[str, Callable[[str], Any]] = {
    "@path": Path,
    "@date": date.fromisoformat,
    "@datetime": datetime.fromisoformat,
    "@time": time.fromisoformat,
}


def write(values: Mapping[str, Any], path: Path) -> None:
    """Write `values` to the file `path` in the language of its ending."""
    try:
        path.write_text(text_of(values, path.suffix), encoding="utf-8")
    except (OSError, UnicodeEncodeError) as error:
        raise InputError(f"The parameters cannot be written to {path}: {error}") from error


def text_of(values: Mapping[str, Any], suffix: str) -> str:
    """Return the text of a file with that suffix."""
    data = encode(values)
    match _check_suffix(suffix):
        case ".json":
            return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
        case ".toml":
            return tomli_w.dumps(plain(spell_none(from_plain(data, Origin(source="<python>")))))
        case _:
            return _yaml_text(data)


def read(path: Path) -> Table:
    """Return the tree of a file with the origin of every value.

    Raises ConfigError with all mistakes.
    """
    suffix = _check_suffix(path.suffix)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The parameters in {path} cannot be read: {error}") from error
    read_all = {".json": json_source.read_all, ".toml": toml_source.read_all}.get(
        suffix, yaml_source.read_all
    )
    root, problems = read_all(text, str(path))
    if problems:
        raise ConfigError(problems)
    return root


def values_of(root: Table) -> dict[str, Any]:
    """Return the values of a tree that `read` returned."""
    try:
        return {key: decode(plain(node)) for key, node in root.items.items()}
    except (ValueError, TypeError) as error:
        raise InputError(
            f"A value in {root.origin.source} is no date, time or table: {error}"
        ) from error


def _check_suffix(suffix: str) -> str:
    if suffix.lower() not in SUFFIXES:
        raise InputError(
            f"Parameters are not kept in {suffix or 'a file without an ending'}.",
            fix=f"Use {FORMS}.",
        )
    return suffix.lower()


def _yaml_text(data: Any) -> str:
    try:
        import yaml  # of an extra
    except ImportError:
        raise MissingExtraError("Writing YAML", extra="yaml") from None

    class Dumper(yaml.SafeDumper):
        """Dumper that quotes all but plain words: YAML 1.1 and 1.2 differ in what is a number."""

        def represent_str(self, text: str) -> Any:
            style = None if _WORD.fullmatch(text) else '"'
            return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    Dumper.add_representer(str, Dumper.represent_str)
    return str(yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True))


# --- names ----------------------------------------------------------------------------------------


LONGEST = 40  # characters of one value
_KEPT = 24  # of a longer one, before its hash
_SAFE = frozenset("._+,-@()[]")


def experiment_name(prefix: str, values: dict[str, Any], sep: str) -> str:
    """Join `prefix` and every `name=value` by `sep`.

    >>> experiment_name("mytrainer", {"lr": 0.01, "data": "a/b"}, "_")
    'mytrainer_lr=0.01_data=a%2Fb'
    """
    parts = [
        safe(prefix.strip()),
        *(f"{safe(name)}={short(value)}" for name, value in values.items()),
    ]
    name = sep.join(part for part in parts if part)
    return f"%2E{name[1:]}" if name.startswith(".") else name


def safe(text: str) -> str:
    """Escape the characters that a file name should not hold as %41; letters of any script stay."""
    return "".join(
        c if c.isalnum() or c in _SAFE else "".join(f"%{byte:02X}" for byte in _utf8(c))
        for c in text
    )


def short(value: Any) -> str:
    """Return a value in at most 40 characters; a hash tells what was cut off apart."""
    text = str(value)
    if len(text) <= LONGEST and len(made := safe(text)) <= LONGEST:
        return made
    return f"{safe(text[:_KEPT])[:_KEPT]}~{hashlib.sha256(_utf8(text)).hexdigest()[:8]}"


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
