"""Config of an older system, written anew as a config of assay in TOML, with its comments.

A file is translated as for a run; then its targets get the names here, too. What only a person can
translate is listed: targets that stay, and the imports of older systems in code.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from assay.config.check import check_shape
from assay.config.diff import changed_keys
from assay.config.expansion import (
    expand,
    problems_of_sections,
    unique_problems,
    variations,
)
from assay.config.freeze import dump
from assay.config.loading import PYTHON, READERS, Config, open_text
from assay.config.older_systems.names import (
    PACKAGES,
    explain_unmapped,
    names_of,
    older_name,
)
from assay.config.overrides import DELETE
from assay.config.secret_keys import redacted_keys, without_secrets
from assay.config.sources.positions import MAX_BYTES
from assay.config.sources.toml import read_toml
from assay.config.sources.toml_tokens import BRACKET
from assay.config.translation import with_older_arguments
from assay.config.tree import (
    KeyPath,
    Leaf,
    List,
    Node,
    Table,
    delete_at,
    dotted,
    from_plain,
    get_at,
    is_reference,
    key_origin_at,
    parse_dotted,
    same,
    set_at,
    walk,
    without_names,
)
from assay.config.variants import SECTION, variants_of
from assay.core import schema
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import ConfigError, InputError
from assay.core.regular_file import NotRegularFileError, read_start

_PACKAGE = Path(__file__).resolve().parents[1]
_ADAPTERS = re.compile(r"assay\.compat\.(?!parts\.)(\w+)")
_OLDER_TEXT = re.compile(rf"(?<![\w.])(?:{'|'.join(PACKAGES)})\.|_target_\b")
"""Marks of an older system in the text of a config, other than in Python."""

_SECTIONS_OF_PYTHON = {"model", "dataloader"}
"""Names that every config of LiBai binds: another program is not run to see what it is."""

_COMMENTS_OF_YAML = re.compile(
    r'(?<![^\s\[{,:])(?:"(?:\\.|[^"\\])*"|\'(?:\'\'|[^\'])*\')|(?<!\S)#[^\n]*', re.DOTALL
)
"""Comments, and the quoted texts that may look like one."""

_OF_TOOLS = re.compile(r"#\s*(?:!|-\*-|noqa|type:|fmt:|pylint|pyright|ruff)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionNote:
    """Something that was translated, or that needs a hand: where it stood, and what it is here."""

    where: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """Text of the new config, what was translated in it, and what needs a hand."""

    text: str
    translated: tuple[ConversionNote, ...]
    by_hand: tuple[ConversionNote, ...]


@dataclass(frozen=True, slots=True)
class _Comment:
    line: int
    text: str
    is_behind: bool


def convert(config: Config) -> Conversion:
    """Return a config of an older system as one of assay.

    ConfigError for what cannot be read, or has no literal form; InputError for a config that is one
    of assay already, or of no system that is known.
    """
    if config.read_problems:
        raise ConfigError(config.read_problems)
    wrong = _errors(config)
    notes = [each for each in config.file_notes if each.kind == "alias"]
    if not notes:
        raise _nothing_to_convert(config, wrong)
    if wrong:
        raise ConfigError(wrong)
    notes = [each for each in notes if not each.key.endswith("type")]  # targets follow
    translated = [_finding(note.origin, note.message) for note in notes]
    translated += _moved_keys(config, {note.key for note in notes})
    by_hand: list[ConversionNote] = []
    root = _with_own_targets(config.written, translated, by_hand)
    root = _with_variants(root, config)
    root = _without_secrets(root, by_hand)
    sections = [key.name for key in schema.SECTIONS if key.name in root.items]
    names = dict.fromkeys((*sections, *root.items))
    root = Table({name: root.items[name] for name in names}, root.origin, root.key_origins)
    text = _with_comments(dump(root), root, config.files)
    if not same(read_toml(text, "<converted>", excerpt=True), root):
        raise InputError("Its comments cannot be kept.", where=str(config.path))
    by_hand += [
        ConversionNote(
            where="in the new file", message=f"{each.message}{each.fix and f': {each.fix}'}"
        )
        for each in _errors(replace(open_text(text), user_dirs=config.user_dirs))
    ]
    by_hand += [
        ConversionNote(where="in the new file", message=f"what was read from {name} is fixed")
        for name in config.outside
    ]
    translated.sort(key=_line_of)
    return Conversion(text=text, translated=tuple(translated), by_hand=tuple(by_hand))


def is_older_config(path: Path) -> bool:
    """Return whether a file may be a config of an older system, by the look of its text."""
    if path.suffix.lower() not in (*READERS, PYTHON):
        return False
    text = _text_of(path)
    return _binds_sections(text) if path.suffix == PYTHON else bool(_OLDER_TEXT.search(text))


def _binds_sections(text: str) -> bool:
    """Return whether a Python text imports an older system and binds the sections of a config."""
    tree = _parse(text)
    bound: set[str] = set()
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.Assign):
            bound |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    return bound >= _SECTIONS_OF_PYTHON and any(_older_imports(tree))


def imports_by_hand(path: Path, shown: str) -> Iterator[ConversionNote]:
    """Yield each name of an older system that a Python file uses, and how it is said here."""
    tree = _parse(_text_of(path))
    used = dict(reversed([*_older_imports(tree)]))  # at its first place
    for name, line in sorted(used.items(), key=lambda item: (item[1], item[0])):
        entry = names_of(PACKAGES[name.partition(".")[0]]).get(name) or older_name(name)
        if entry is None and name in PACKAGES:
            continue  # what is used of it follows
        here = entry.instead if entry is not None else explain_unmapped(name).fix
        yield ConversionNote(where=f"{shown}:{line}", message=f"{name.rpartition('.')[2]}: {here}")


def _older_imports(tree: ast.Module | None) -> Iterator[tuple[str, int]]:
    """Yield dotted name and line of each import of an older system, and of what is used of one."""
    packages: dict[str, str] = {}
    for node in ast.walk(tree) if tree is not None else ():
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
            packages |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{each.name}".removesuffix(".*") for each in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            package = packages.get(node.value.id, "")
            is_whole = package not in PACKAGES or package in names_of(PACKAGES[package])
            names = [] if is_whole else [f"{package}.{node.attr}"]
        for name in names:
            if name.partition(".")[0] in PACKAGES:
                yield name, node.lineno  # type: ignore[attr-defined]  # a statement or expression


def _errors(config: Config) -> list[Problem]:
    """Return the mistakes in all configs of a file that can be told without an import."""
    found = [*unique_problems(variations(config), check_shape), *problems_of_sections(config)]
    return [each for each in found if each.severity == "error"]


def _nothing_to_convert(config: Config, problems: list[Problem]) -> InputError:
    where = str(config.path)
    if not problems:
        return InputError("This is a config of assay already.", where=where)
    return InputError(
        f"This config names nothing of alchemy, LiBai or Hydra: {problems[0].message}.",
        where=where,
        fix="write it anew: assay init makes one to begin with",
    )


def _moved_keys(config: Config, told: Collection[str]) -> Iterator[ConversionNote]:
    """Yield each key of LiBai's `train` that has another place here and is not `told`."""
    before, after = config.unaliased, config.given
    assert before is not None
    here: dict[Origin, list[KeyPath]] = {}
    for path, node in walk(after):
        if isinstance(node, Leaf) and path[-1] != "type":
            here.setdefault(key_origin_at(after, path), []).append(path)
    for old, node in walk(before) if "dataloader" in before.items else ():
        is_moved = isinstance(node, Leaf) and old[0] == "train" and get_at(after, old) is None
        origin = key_origin_at(before, old) if is_moved else before.origin
        places = here.get(origin, ()) if dotted(old) not in told else ()
        for new in sorted(places, key=lambda path: str(path[-1]) not in str(old[-1]))[:1]:
            yield _finding(origin, f"`{dotted(old)}` is `{dotted(new)}` here")


# --- targets --------------------------------------------------------------------------------------


def _with_own_targets(
    root: Table, translated: list[ConversionNote], by_hand: list[ConversionNote]
) -> Table:
    """Return `root` with the names here for targets, and without what nothing is needed for."""
    root = with_older_arguments(root)
    gone: list[KeyPath] = []
    told: dict[str, None] = {}
    for path, node in list(walk(without_names(root, schema.MAKERS))):
        target = node.target if isinstance(node, Table) else None
        if not isinstance(node, Table) or target is None:
            continue
        entry, origin = older_name(target), node.key_origin("type")
        adapter = _ADAPTERS.match(target)
        if entry is None and adapter is not None:
            message = f"`{target}` adapts code of {adapter[1]}: docs/compat/{adapter[1]}.md"
            by_hand.append(_finding(origin, message))
        if entry is None:
            continue
        own = entry.own
        if own == "" and not _ADAPTERS.match(entry.target):
            own = entry.target
        if own:
            root = set_at(root, (*path, "type"), replace(node.items["type"], value=own), origin)  # type: ignore[arg-type]
            message = f"`{target}` is `{own}` here"
        elif own is None:
            gone.append(path)
            message = f"`{target}` is left out: {entry.instead}"
        else:
            message = f"`{target}` stays; here: {entry.instead}"
        if message not in told:
            (by_hand if own == "" else translated).append(_finding(origin, message))
        told[message] = None
    for path in reversed(gone):  # of a list the last item goes first
        root = delete_at(root, path)
        above = get_at(root, path[:-1])
        if isinstance(above, List) and not above.items:
            root = delete_at(root, path[:-1])
    return root


def _with_variants(root: Table, config: Config) -> Table:
    """Return `root` with the variants as what they change in it."""
    for name in variants_of(config.written)[0]:
        varied = _with_own_targets(expand(config, [name], sweep=False)[0].written, [], [])
        changes: dict[str, Node] = {}
        makers = [without_names(each, schema.MAKERS) for each in (root, varied)]
        for change in changed_keys(*makers):
            path = parse_dotted(change.key)
            lists = [i for i, part in enumerate(path) if isinstance(part, int)]
            if lists and (change.before is None or change.after is None):
                path = path[: lists[0]]  # a list that has another length is set whole
            value = get_at(varied, path) or from_plain(DELETE, root.origin)
            plus = "+" if get_at(root, path) is None and schema.find(path) is None else ""
            changes[f"{plus}{dotted(path)}"] = value
        root = set_at(root, (SECTION, name), Table(changes, root.items[SECTION].origin))
    return root


def _without_secrets(root: Table, by_hand: list[ConversionNote]) -> Table:
    """Return `root` with a variable of the environment for each secret that it holds."""
    for path in redacted_keys(without_secrets(root)):
        node = get_at(root, path)
        if not isinstance(node, Leaf) or is_reference(node) or "${" in str(node.value):
            continue
        name = re.sub(r"\W", "_", str(path[-1])).upper()
        root = set_at(root, path, replace(node, value=f"${{env:{name}}}", typed=None))
        message = f"`{dotted(path)}` is a secret: set it as the variable {name}"
        by_hand.append(_finding(node.origin, message))
    return root


def _line_of(found: ConversionNote) -> tuple[bool, str, int]:
    """Return the place of a finding, for sorting; defaults come last."""
    source, _, line = found.where.rpartition(":")
    return not source, source, int(line) if source else 0


def _finding(origin: Origin, message: str) -> ConversionNote:
    source = Path(origin.source)
    is_ours = source.is_absolute() and source.is_relative_to(_PACKAGE)
    return ConversionNote(
        where="a default" if is_ours else f"{origin.source}:{origin.line}", message=message
    )


# --- comments -------------------------------------------------------------------------------------


def _with_comments(text: str, root: Table, files: Mapping[str, str]) -> str:
    """Return the text with each comment of the older files at the key that it stood at.

    That of a key which is gone stands at the end, with its place.
    """
    lines = text.split("\n")
    new = read_toml(text, "<converted>", excerpt=True)
    above: dict[int, list[str]] = {}
    behind: dict[int, str] = {}
    rest: list[str] = []
    for source, old in files.items():
        keys: dict[int, KeyPath] = {}
        inside: set[int] = set()
        for path, node in walk(root):
            if not path or get_at(new, path) is None:
                continue
            origin = key_origin_at(root, path)
            if origin.source == source:
                keys.setdefault(origin.line, path)
            if isinstance(node, Leaf) and node.origin.source == source:
                inside |= set(range(node.origin.line + 1, node.origin.end_line))
        for comment in _comments(old, source):
            if comment.line in inside:
                continue  # a line of a text
            after = (line for line in sorted(keys) if line >= comment.line)
            line = next(after, None) if not comment.is_behind else comment.line
            if line not in keys:
                rest.append(f"# {source}:{comment.line}: {comment.text}")
                continue
            at = key_origin_at(new, keys[line]).line - 1
            if comment.is_behind and at not in behind:
                behind[at] = comment.text
            else:
                above.setdefault(at, []).append(comment.text)
    made: list[str] = []
    for i, said in enumerate(lines):
        indent = said[: len(said) - len(said.lstrip())]
        made += [f"{indent}# {each}".rstrip() for each in above.get(i, ())]
        made.append(f"{said}  # {behind[i]}" if i in behind else said)
    return "\n".join([*made, *rest, ""] if rest else made)


def _comments(text: str, source: str) -> Iterator[_Comment]:
    """Yield the comments of a config in TOML, YAML or Python, without what marks them."""
    suffix = Path(source).suffix.lower()
    lines = text.split("\n")
    if Path(source).is_relative_to(_PACKAGE) or suffix in (".json", ".jsonc", ".ini", ".cfg"):
        return
    if suffix == PYTHON:
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        rows = [(*each.start, each.string) for each in tokens if each.type == tokenize.COMMENT]
    else:
        pattern = _COMMENTS_OF_YAML if suffix in (".yaml", ".yml") else BRACKET
        marks = [each for each in pattern.finditer(text) if each[0].startswith("#")]
        starts = [text.rfind("\n", 0, each.start()) + 1 for each in marks]
        rows = [
            (text.count("\n", 0, start) + 1, each.start() - start, each[0])
            for start, each in zip(starts, marks, strict=True)
        ]
    for line, column, whole in rows:
        said = whole.strip("#").strip()
        if said and not _OF_TOOLS.match(whole):
            yield _Comment(line, said, bool(lines[line - 1][:column].strip()))


def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _text_of(path: Path) -> str:
    """Return the text of a file; "" for one that is too large for a config, or no text."""
    try:
        raw = read_start(path, MAX_BYTES + 1, follow=True)
        return raw.decode("utf-8-sig") if len(raw) <= MAX_BYTES else ""
    except (OSError, UnicodeDecodeError, NotRegularFileError):
        return ""
