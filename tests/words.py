"""Figures of the house's language, by room: `python tests/words.py`. See CONTRIBUTING.md.

Four of them are rules: no docstring begins with a question or a pronoun, no two classes share a
name, no two functions that are imported by name do, and no function is named by a bare participle.
The others are there to be looked at.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "assay"
COLUMNS = 100
LONG_FUNCTION = 40

QUESTIONS_AND_PRONOUNS = {
    "How",
    "It",
    "That",
    "Those",
    "What",
    "Where",
    "Whether",
    "Which",
    "Who",
}

# One concept in two places, each with its own public class.
FAMILIES: dict[str, str] = {}

# Participles that are no "-ed"; those that are verbs as well (read, set, put, split, run) are absent.
_IRREGULAR = """
begun bound broken built bought caught chosen done drawn fed felt found given gone got grown held heard
kept known laid led left lost made meant met paid said seen sent shown sold spent stood taken thought
told won worn written
"""
IRREGULAR = frozenset(_IRREGULAR.split())
_VERBS_IN_ED = "bed embed exceed feed need proceed reseed seed shed speed succeed"
VERBS_IN_ED = frozenset(_VERBS_IN_ED.split())
PUBLIC_DOUBLES = {"run"}  # `assay.run`, and what it calls in this process
PUBLIC_PARTICIPLES = {"dotted", "entered", "marked", "opened"}  # documented for users
# Tokens of layout say nothing about how much a line holds.
LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def modules(source: Path = SOURCE) -> Iterator[tuple[str, str, ast.Module]]:
    """Yield (path relative to the source, text, syntax tree) of each module."""
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield path.relative_to(source).as_posix(), text, ast.parse(text)


def documented(tree: ast.Module) -> Iterator[tuple[Documented, str]]:
    """Yield each module, class and function that has a docstring, with the docstring."""
    for node in ast.walk(tree):
        if isinstance(node, Documented) and (docstring := ast.get_docstring(node)):
            yield node, docstring


def dialect(source: Path = SOURCE) -> list[str]:
    """Return `file:line: first line` of each docstring that begins with a question or a pronoun."""
    return [
        f"{name}:{getattr(node, 'lineno', 1)}: {docstring.splitlines()[0]}"
        for name, _, tree in modules(source)
        for node, docstring in documented(tree)
        if docstring.split()[0].rstrip(",:") in QUESTIONS_AND_PRONOUNS
    ]


def shared_names(source: Path = SOURCE) -> dict[str, list[str]]:
    """Return the names that several top-level classes have, with their files."""
    files = defaultdict(list)
    for name, _, tree in modules(source):
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                files[node.name].append(name)
    return {
        name: found
        for name, found in sorted(files.items())
        if len(found) > 1 and name not in FAMILIES
    }


def doubled_names(source: Path = SOURCE) -> dict[str, list[str]]:
    """Return the names under which functions of several modules are imported, with these modules.

    What is called as `module.read` has its meaning from the module.
    """
    trees = {f"assay.{name[:-3].replace('/', '.')}": tree for name, _, tree in modules(source)}
    functions = {
        (module, node.name)
        for module, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }
    homes: defaultdict[str, set[str]] = defaultdict(set)
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in node.names:
                    if (node.module, name.name) in functions:
                        homes[name.name].add(node.module)
    return {
        name: sorted(found)
        for name, found in sorted(homes.items())
        if len(found) > 1 and name not in PUBLIC_DOUBLES
    }


def participles(source: Path = SOURCE) -> list[str]:
    """Return `file:line: name` of each function that a bare participle names, but properties."""
    return [
        f"{name}:{node.lineno}: {node.name}"
        for name, _, tree in modules(source)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_participle(node.name.strip("_"))
        if not any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
    ]


def is_participle(word: str) -> bool:
    if word in VERBS_IN_ED or word in PUBLIC_PARTICIPLES:
        return False
    return word in IRREGULAR or (word.endswith("ed") and "_" not in word)


def figures(name: str, text: str, tree: ast.Module) -> Counter[str]:
    """Count lines, tokens, comments, docstrings and functions of a module."""
    counted = Counter(files=1, lines=text.count("\n"))
    docstring_lines: set[int] = set()
    for node, _ in documented(tree):
        expression = node.body[0]
        docstring_lines.update(range(expression.lineno, (expression.end_lineno or 0) + 1))
        counted["docstrings"] += 1
    code_lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            counted["comments"] += 1
        elif token.type not in LAYOUT and token.start[0] not in docstring_lines:
            code_lines.update(range(token.start[0], token.end[0] + 1))
            counted["tokens"] += 1
    counted["code"] = len(code_lines)
    counted["too wide"] = sum(len(line) > COLUMNS for line in text.splitlines())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            counted["functions"] += 1
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            counted["long functions"] += length > LONG_FUNCTION
            counted["hidden imports"] += sum(
                isinstance(inner, ast.Import | ast.ImportFrom) for inner in ast.walk(node)
            )
    return counted


def by_room(source: Path = SOURCE) -> dict[str, Counter[str]]:
    """Add the figures of all modules up by their first folder."""
    rooms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, text, tree in modules(source):
        room = name.split("/")[0] if "/" in name else "."
        rooms[room].update(figures(name, text, tree))
    return dict(rooms)


def print_table(rooms: dict[str, Counter[str]]) -> None:
    """Print the figures of each room and of the whole, on lines of 80 columns."""
    whole: Counter[str] = Counter()
    for counted in rooms.values():
        whole.update(counted)
    print("room      files   code  tokens/line  comments  >40 lines  imports inside  wide")
    for room, counted in [*rooms.items(), ("all", whole)]:
        tokens = counted["tokens"] / max(1, counted["code"])
        comments = 100 * counted["comments"] / max(1, counted["lines"])
        print(
            f"{room:9} {counted['files']:5} {counted['code']:6} {tokens:12.1f}"
            f" {comments:7.1f} % {counted['long functions']:10} {counted['hidden imports']:15}"
            f" {counted['too wide']:5}"
        )


def main() -> int:
    print_table(by_room())
    wrong = dialect()
    shared = shared_names()
    for line in wrong:
        print(f"docstring: src/assay/{line}")
    named = participles()
    for name, found in shared.items():
        print(f"class {name}: {', '.join(found)}")
    doubled = doubled_names()
    for name, found in doubled.items():
        print(f"function {name}: {', '.join(found)}")
    for line in named:
        print(f"participle: src/assay/{line}")
    return 1 if wrong or shared or doubled or named else 0


if __name__ == "__main__":
    sys.exit(main())
