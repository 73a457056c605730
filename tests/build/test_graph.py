from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from assay.build import check_graph, plan_context, promised_types, user_code
from assay.config.tree import Table
from assay.core.diagnostics import Problem

Write = Callable[..., Path]
Tree = Callable[[str], Table]

PARTS = """
    from assay.build import Context, inject, provides

    class Net:
        made = 0
        def __init__(self, width=1): Net.made += 1
    class Tok: ...
    class Vocab: ...

    class Toks:
        @provides
        def tok(self, vocab: Vocab) -> Tok: raise AssertionError("built")
    class Vocabs:
        @provides
        def vocab(self) -> Vocab: raise AssertionError("built")
    class Loop:
        @provides
        def tok(self, vocab: Vocab) -> Tok: ...
        @provides
        def vocab(self, tok: Tok) -> Vocab: ...
    class Early:
        def __init__(self, state, seed=0): ...

    class Process:
        def __init__(self, model: Net, tok: Tok): raise AssertionError("built")
    class Reads:
        def __init__(self, tok: Tok): ...
    class NeedsState:
        def __init__(self, state): ...
    class NeedsOptimizer:
        def __init__(self, optimizer): ...
    class NeedsNet:
        def __init__(self, net: Net): ...
    def make(width=1): return Net(width)
    def typed() -> Net: return Net()
    class Wide(Net): ...
    class NeedsWide:
        def __init__(self, net: Wide): ...
    def base() -> Net: return Wide()
"""


@pytest.fixture
def check(write: Write, tree: Tree) -> Callable[[str], list[Problem]]:
    project = write(parts=PARTS)

    def judge(text: str) -> list[Problem]:
        root = tree(text)
        with user_code([project]):
            return check_graph(root, plan_context(root, user_dirs=[project]), user_dirs=[project])

    return judge


Check = Callable[[str], list[Problem]]


def test_a_sound_graph_has_no_problems_and_nothing_of_it_is_built(check: Check) -> None:
    assert (
        check(
            """
            plugins = [{ type = "parts.Vocabs" }, { type = "parts.Toks" }]
            model = { type = "parts.Net" }
            process = { type = "parts.Process" }
            [data.train]
            source = { type = "parts.Reads" }
            """
        )
        == []
    )


def test_a_missing_provider_is_told_with_the_whole_path_and_where_the_config_asks_for_it(
    check: Check,
) -> None:
    (problem,) = check(
        """
        plugins = [{ type = "parts.Toks" }]
        model = { type = "parts.Net" }
        [process]
        type = "parts.Process"
        [data.train]
        source = { type = "parts.Reads" }
        """
    )

    assert problem.kind == "missing-provider"
    assert problem.message == "nothing provides `vocab` (Vocab), needed by `process` -> `tok`"
    assert (problem.origin.source, problem.origin.line, problem.key) == (
        "digits.toml",
        3,
        "process",
    )


def test_a_cycle_of_providers_is_told_as_a_chain(check: Check) -> None:
    (problem,) = check(
        """
        plugins = [{ type = "parts.Loop" }]
        reader = { type = "parts.Reads" }
        """
    )

    assert problem.kind == "reference-cycle"
    assert problem.message == "these need each other to be built: `tok` -> `vocab` -> `tok`"
    assert (problem.origin.line, problem.key) == (2, "reader")


def test_a_cycle_through_references_and_injection_is_told_as_a_chain(check: Check) -> None:
    (problem,) = check(
        """
        model = { type = "parts.NeedsOptimizer" }
        optimizer = { type = "parts.NeedsNet", net = "@model" }
        """
    )

    assert problem.message == "these need each other to be built: `model` -> `optimizer` -> `model`"


def test_a_part_that_needs_the_whole_is_a_cycle(check: Check) -> None:
    (problem,) = check(
        """
        process = { type = "parts.NeedsNet", net = { type = "parts.NeedsState" } }
        """
    )

    assert (
        problem.message
        == "these need each other to be built: `process` -> `process.net` -> `state` -> `process`"
    )


def test_a_plugin_that_asks_for_what_is_made_later_is_told_so(check: Check) -> None:
    (problem,) = check(
        """
        plugins = [{ type = "parts.Early" }]
        model = { type = "parts.Net" }
        """
    )

    assert problem.kind == "too-early" and "`state` is made later than this" in problem.message
    assert "plugins.0" in problem.message


def test_two_plugins_that_provide_one_name_are_both_named(check: Check) -> None:
    (problem,) = check('plugins = [{ type = "parts.Vocabs" }, { type = "parts.Vocabs" }]')

    assert problem.kind == "provided-twice"
    assert problem.message == "`vocab` is provided twice: by `plugins.0` and by `plugins.1`"
    assert (problem.key, problem.origin.column) == ("plugins.1", 39)


def test_two_that_fit_are_both_named(check: Check) -> None:
    (problem,) = check(
        """
        model = { type = "parts.Net" }
        schedule = { type = "parts.typed" }
        [process]
        type = "parts.NeedsNet"
        """
    )

    assert problem.kind == "ambiguous"
    assert "More than one `Net` for `net`: `model` (Net) and `schedule` (Net)" in problem.message
    assert problem.key == "process"


@pytest.mark.parametrize("model", ["parts.make", "parts.base"])
def test_what_may_turn_out_to_fit_is_not_missing(
    check: Check, tree: Tree, write: Write, model: str
) -> None:
    text = f"""
        plugins = [{{ type = "parts.Wants" }}]
        model = {{ type = "{model}" }}
        reader = {{ type = "parts.Reads" }}
        """
    wants = "    class Wants:\n        @provides\n        def tok(self, net: Wide) -> Tok: ...\n"
    project = write("other", parts=PARTS + wants)

    root = tree(text)

    with user_code([project]):
        assert check_graph(root, plan_context(root, user_dirs=[project]), user_dirs=[project]) == []


def test_the_types_of_what_is_promised_say_where_too_little_is_known(
    tree: Tree, write: Write
) -> None:
    project = write(parts=PARTS)

    def names(text: str) -> set[str]:
        with user_code([project]):
            kinds = promised_types(plan_context(tree(text), user_dirs=[project]))
        return {getattr(kind, "__name__", str(kind)) for kind in kinds}

    assert {"Net", "Tok"} <= names(
        'plugins = [{ type = "parts.Toks" }]\nmodel = { type = "parts.typed" }'
    )
    assert "Any" not in names('model = { type = "parts.typed" }')
    assert "Any" in names('model = { type = "parts.make" }')
    assert "Any" not in names("")
