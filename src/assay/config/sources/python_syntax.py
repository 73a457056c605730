"""Syntax of a Python config: its code, its mistakes, and the lines of its imports."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator
from pathlib import Path

from assay.config.sources.objects import OversizedError
from assay.config.sources.positions import duplicate, too_deep, too_large
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import ConfigError


def syntax_problem(error: SyntaxError, source: str) -> Problem:
    line, column = error.lineno or 1, max(1, error.offset or 1)
    origin = Origin(
        source=source,
        line=line,
        column=column,
        end_line=error.end_lineno or 0,
        end_column=error.end_offset or 0,
    )
    return Problem(kind="syntax", message=error.msg, origin=origin)


def compile_config(path: Path, source: str, text: str) -> tuple[ast.Module, types.CodeType]:
    """Parse and compile a config file. Raises ConfigError at the first syntax error."""
    refused = too_large(text, source)
    if refused is not None:
        raise OversizedError(refused)
    try:
        tree = ast.parse(text, filename=str(path))
        return tree, compile(tree, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ConfigError([syntax_problem(error, source)]) from None
    except (RecursionError, MemoryError):
        raise OversizedError(too_deep(Origin(source=source))) from None
    except ValueError as error:
        problem = Problem(kind="syntax", message=str(error), origin=Origin(source=source))
        raise ConfigError([problem]) from None


def lines_of_imports(tree: ast.Module) -> set[int]:
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def find_keys_given_twice(tree: ast.Module, source: str) -> Iterator[Problem]:
    """Yield a problem for each key that a `{...}` has twice, of which Python takes the last."""
    for node in ast.walk(tree):
        first: dict[str, Origin] = {}
        for key in node.keys if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                here = Origin(source=source, line=key.lineno)
                if key.value in first:
                    yield duplicate(key.value, here, first[key.value])
                first.setdefault(key.value, here)
