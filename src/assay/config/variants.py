"""Variants, `[variants.big] "model.hidden" = 512`: named overrides inside one file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from assay.config.overrides import DELETE
from assay.config.sources.positions import duplicate
from assay.config.tree import (
    KeyPath,
    Leaf,
    Node,
    Setting,
    Table,
    dotted,
    fit_path,
    get_at,
    parse_dotted,
    problem_at,
    relocate,
)
from assay.core import schema
from assay.core.diagnostics import Origin, Problem

SECTION = "variants"
MAX_VARIANTS = 2_000
ALL = "all"
"""What stands for every variant on the command line, and so names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Changes of one variant, as they are written."""

    name: str
    table: Table

    def settings(self, root: Table) -> tuple[list[Setting], list[Problem]]:
        """Return its overrides of `root` in order, and the problems of malformed keys."""
        problems: list[Problem] = []
        settings = list(_settings(root, (), self.table, (), f"variant {self.name}", problems))
        return settings, problems + find_twice_set(settings)


def variants_of(root: Table) -> tuple[Mapping[str, Variant], list[Problem]]:
    """Return the variants of a file by name, and the problems of the section."""
    section = root.items.get(SECTION)
    if section is None:
        return {}, []
    if not isinstance(section, Table):
        return {}, [
            problem_at(
                "wrong-type",
                f"`{SECTION}` must be a table of variants",
                section.origin,
                SECTION,
                _FORM,
            )
        ]
    if len(section.items) > MAX_VARIANTS:
        message = f"the file has {len(section.items):,} variants; at most {MAX_VARIANTS:,} are read"
        fix = "write a sweep: [sweep] with a list of values for a key"
        return {}, [problem_at("too-large", message, section.origin, SECTION, fix)]
    found: dict[str, Variant] = {}
    problems = []
    for name, node in section.items.items():
        key = dotted((SECTION, name))
        if name == ALL:
            message = f"no variant can be called `{ALL}`: `--variant {ALL}` means every one"
            problems.append(
                problem_at(
                    "wrong-value", message, section.key_origin(name), key, "give it another name"
                )
            )
        elif not isinstance(node, Table):
            problems.append(
                problem_at(
                    "wrong-type", f"the variant `{name}` must be a table", node.origin, key, _FORM
                )
            )
        else:
            found[name] = Variant(name=name, table=node)
    return found, problems


_FORM = 'write [variants.big] and under it "model.hidden" = 512'


def key_setting(
    table: Table, key: str, value: Node, above: KeyPath, origins: tuple[Origin, ...]
) -> Setting:
    """Parse `"+a.b" = value` in a table. Raises ValueError when the key is no path."""
    parts = parse_dotted(key.removeprefix("+"))
    origin = table.key_origin(key)
    path = (*above, *parts)
    return Setting(
        parts=path,
        value=None if isinstance(value, Leaf) and value.value == DELETE else value,
        origins=(*origins, *(origin for _ in parts)),
        creates=key.startswith("+"),
        to_create=f'"+{dotted(path)}" = ...',
    )


def find_twice_set(settings: Iterable[Setting]) -> list[Problem]:
    """Return the problems of keys that are set twice, as by `"a.b"` and by `a.b`."""
    problems = []
    first: dict[str, Origin] = {}
    for setting in settings:
        key, origin = dotted(setting.parts), setting.origins[-1]
        if key in first:
            problems.append(duplicate(key, origin, first[key]))
        first.setdefault(key, origin)
    return problems


def with_note(node: Node, note: str) -> Node:
    """Return `node` with a note on every origin in it."""
    return relocate(node, lambda origin: replace(origin, note=note))


def _settings(
    root: Table,
    above: KeyPath,
    table: Table,
    origins: tuple[Origin, ...],
    note: str,
    problems: list[Problem],
) -> Iterator[Setting]:
    """Yield settings: a table without `type` merges into the one there, the rest replaces."""
    for key, node in table.items.items():
        try:
            setting = key_setting(table, key, node, above, origins)
        except ValueError:
            message = f"`{key}` is no path of keys"
            fix = 'write "a.b" = value'
            problems.append(problem_at("syntax", message, table.key_origin(key), key, fix))
            continue
        noted_origins = tuple(replace(origin, note=note) for origin in setting.origins)
        setting = replace(setting, origins=noted_origins)
        path = fit_path(root, setting.parts)
        old = get_at(root, path)
        is_filled = isinstance(node, Table) and bool(node.items) and "type" not in node.items
        if is_filled and _is_merged(old, path) and not setting.creates:
            assert isinstance(node, Table)
            yield from _settings(root, setting.parts, node, setting.origins, note, problems)
            continue
        if setting.value is not None:
            is_section = len(path) == 1 and old is None and isinstance(setting.value, Table)
            creates = setting.creates or is_section
            setting = replace(setting, value=with_note(setting.value, note), creates=creates)
        yield setting


def _is_merged(old: Node | None, path: KeyPath) -> bool:
    """Return whether a table at `path` is merged into what is there, instead of replacing it."""
    if old is not None:
        return isinstance(old, Table)
    standard = schema.find(path)
    return standard is not None and standard.kind == "table"
