"""`--resume auto`: the run of a config that somebody began and nobody ended, and what keeps one from going on."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from assay.config import canonical, config_hash, plain
from assay.config.loading import Config
from assay.config.tree import Table
from assay.core.errors import AssayError, InputError
from assay.core.run_file import Attempt
from assay.query.diff import flat
from assay.query.run import RunView
from assay.store.layout import find_project, run_folders

_DECISIVE = ("python", "machine", "packages.torch", "packages.numpy", "torch.", "variables.")
"""What of the environment may change a bit."""


def unfinished(config: Config) -> RunView | None:
    """The newest training run of the project with this config's hash and tag that is not finished and not running.

    `config` has passed both stages of the check: the hash needs the names that these find.
    """
    start = config.path.resolve().parent if config.path is not None else None
    project = find_project(start) if start is not None else None
    if project is None:
        return None
    wanted, tag = config_hash(config.named or config.root), plain(config.root).get("tag", "")
    found = []
    for folder in run_folders(project):
        with contextlib.suppress(AssayError):  # a record that cannot be read is none to go on with
            view = RunView(folder)
            file = view.file
            if file.kind != "train" or file.tag != tag or not file.attempts or file.newest.config_hash != wanted:
                continue
            if view.status not in ("finished", "running"):
                found.append(view)
    return max(found, key=lambda view: view.file.created_ns, default=None)


def refuse_other_data(run_id: str, old: Table, new: Table, changed: Sequence[str]) -> None:
    """InputError when a run would go on with another seed or other data than it began with.

    Batches of another size are the same samples in the same order.
    """
    if _drawn_from(old) == _drawn_from(new):
        return
    keys = [key for key in changed if key == "seed" or key.startswith("data.")]
    raise InputError(
        f"The run {run_id} was trained with another {', '.join(keys)}: it would be neither the one nor the other.",
        fix="Begin a new run: assay rerun; --force goes on all the same",
    )


def _drawn_from(root: Table) -> str:
    """The seed and the training data, in their canonical form."""
    kept = {name: node for name, node in root.items.items() if name in ("seed", "data")}
    data = kept.get("data")
    if isinstance(data, Table) and isinstance(train := data.items.get("train"), Table):
        sizes = ("batch_size", "micro_batch_size")
        inside = {name: node for name, node in train.items.items() if name not in sizes}
        kept["data"] = Table({**data.items, "train": Table(inside, train.origin)}, data.origin)
    return canonical(Table(kept, root.origin))


def told_differences(before: Attempt, now: Attempt) -> list[str]:
    """What is not as it was when the attempt before began, beside the config: code and environment."""
    lines = []
    if now.changed_code:
        lines.append(f"code changed: {'  '.join(now.changed_code)}")
    a, b = (dict(flat(attempt.environment)) for attempt in (before, now))
    for key in dict.fromkeys([*a, *b]):
        if key.startswith(_DECISIVE) and a.get(key) != b.get(key):
            lines.append(f"environment changed: {key}  {a.get(key, 'not set')} -> {b.get(key, 'not set')}")
    return lines
