"""Translation of places in a config of alchemy that are more than another name of a key."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from assay.config.tree import (
    KeyPath,
    Leaf,
    List,
    Node,
    Table,
    delete_at,
    from_plain,
    get_at,
    plain,
    set_at,
)
from assay.core.diagnostics import Problem

_MOMENT = re.compile(r"((?:begin|end)_(?:epoch|step))(?:_?pipelines?|_?pipes?)?")
_OUTPUT_PIPES = (("task", "outputpipes"), ("model", "outputpipes"))
_EVAL_PIPES = ("task", "evalpipes")
_PERIOD = ("evaluate", "every")
_WINDOWS = (("backward", "period"), ("model", "backward_cfg", "period"))
_PROCESS = {"type": "assay.compat.alchemy.model.make_process"}
"""Process of a model that says itself how it is trained."""


def translate_alchemy(root: Table, takes: Callable[[str], bool]) -> tuple[Table, list[Problem]]:
    """Return a config of alchemy with the parts that have another place here, and notes.

    `takes` tells whether the model has an argument of this name.
    """
    notes: list[Problem] = []
    for moves in (_move_timed_pipelines, _move_output_pipes, _move_batch_size, _move_handler):
        root = moves(root, notes)
    return _add_process(_move_weights(root, takes, notes)), notes


def _move_timed_pipelines(root: Table, notes: list[Problem]) -> Table:
    """Make the pipelines of [sched], as `end_epoch = [...]`, a plugin."""
    sched = root.items.get("sched")
    if not isinstance(sched, Table):
        return root
    plugin: Table | None = None
    for name, node in sched.items.items():
        moment = _MOMENT.fullmatch(name)
        if moment is None:
            continue
        if plugin is None:
            made = from_plain({"type": "assay.engine.Pipelines"}, sched.key_origin(name))
            assert isinstance(made, Table)
            plugin = made
        plugin = set_at(plugin, (moment[1],), node, sched.key_origin(name))
        root = delete_at(root, ("sched", name))
        notes.append(_note(f"sched.{name}", f"`{moment[1]}` of a plugin", node))
    if plugin is None:
        return root
    left = root.items["sched"]
    if isinstance(left, Table) and not left.items:
        root = delete_at(root, ("sched",))
    if get_at(root, _PERIOD) is None and isinstance(root.items.get("evaluate", root), Table):
        # Alchemy evaluates when a pipeline does, and at no other time.
        root = set_at(root, _PERIOD, Leaf("never", plugin.origin), plugin.origin)
    given = root.items.get("plugins")
    before = given.items if isinstance(given, List) else ()
    if given is not None and not isinstance(given, List):
        return root  # the check reports it
    return set_at(root, ("plugins",), List((*before, plugin), plugin.origin), plugin.origin)


def _move_output_pipes(root: Table, notes: list[Problem]) -> Table:
    """Put the pipes of outputs before those of an evaluation."""
    for path in _OUTPUT_PIPES:
        pipes = get_at(root, path)
        if not isinstance(pipes, List):
            continue
        root = delete_at(root, path)
        later = get_at(root, _EVAL_PIPES)
        row = (*pipes.items, *(later.items if isinstance(later, List) else ()))
        root = set_at(root, _EVAL_PIPES, List(row, pipes.origin), pipes.origin)
        notes.append(_note(".".join(map(str, path)), "the first of `evaluate.pipes`", pipes))
    return root


def _move_batch_size(root: Table, notes: list[Problem]) -> Table:
    """Make the batch of a loader that of a forward pass where an update has several."""
    above: KeyPath = ("task", "datasets", "train")
    node = get_at(root, (*above, "batch_size"))
    if node is None or all(get_at(root, path) is None for path in _WINDOWS):
        return root
    key = "task.datasets.train.batch_size"
    notes.append(_note(key, "`data.train.micro_batch_size`, that of a forward pass,", node))
    root = delete_at(root, (*above, "batch_size"))
    return set_at(root, (*above, "micro_batch_size"), node, node.origin)


def _move_handler(root: Table, notes: list[Problem]) -> Table:
    """Make `model.backward_cfg` the section [backward]."""
    path: KeyPath = ("model", "backward_cfg")
    handler = get_at(root, path)
    if handler is None or "backward" in root.items:
        return root
    notes.append(_note("model.backward_cfg", "[backward]", handler))
    return set_at(delete_at(root, path), ("backward",), handler, handler.origin)


def _move_weights(root: Table, takes: Callable[[str], bool], notes: list[Problem]) -> Table:
    """Make `model.model_path` the section [load_weights], unless the model reads it itself."""
    path: KeyPath = ("model", "model_path")
    node = get_at(root, path)
    if node is None or "load_weights" in root.items or takes("model_path"):
        return root
    notes.append(_note("model.model_path", "`load_weights`, the weights to begin with,", node))
    made = {"path": plain(node)}
    if Path(str(plain(node))).is_file():
        # A pipe of the user has saved it by torch, from the wrapper or from the model inside.
        made |= {"pickled": True, "rename": {r"^(?!_?model\.|criterion\.)": "_model."}}
    section = from_plain(made, node.origin)
    return set_at(delete_at(root, path), ("load_weights",), section, node.origin)


def _add_process(root: Table) -> Table:
    """Let the model say how it is trained, where no [process] does."""
    model = root.items.get("model")
    is_of_torch = isinstance(model, Table) and str(model.target).startswith("torch.")
    if not isinstance(model, Table) or "process" in root.items or is_of_torch:
        return root
    return set_at(root, ("process",), from_plain(_PROCESS, model.origin), model.origin)


def _note(key: str, here: str, node: Node) -> Problem:
    message = f"`{key}` is {here} here"
    return Problem(kind="alias", severity="note", message=message, origin=node.origin, key=key)
