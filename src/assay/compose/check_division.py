"""Checks of tensor and pipeline parallelism before a process is started."""

from __future__ import annotations

from typing import Any

from assay.config.loading import Config
from assay.config.tree import Leaf, Table, get_at
from assay.config.typed_sections import sections_of


def check_division(config: Config) -> None:
    """InputError when the model cannot be divided or split as [parallel] says, with the arithmetic.

    Only a model that is a class and takes plain values is looked at, without memory for its
    weights; of any other the processes find out themselves.
    """
    parallel = sections_of(config.root).parallel
    size = parallel.tensor or 1
    if size == 1 and (parallel.pipeline or 1) == 1:
        return
    from assay.engine.parallel.layout import Layout
    from assay.engine.parallel.pipeline_split import split_model
    from assay.engine.parallel.tensor_parallel import check_plan, plan_of

    model = _outline(config)
    layout = Layout.of(parallel)
    if not hasattr(model, "named_modules"):
        return
    if size > 1:
        check_plan(model, plan_of(model, parallel.tensor_plan), size)
    if layout.pipeline > 1:
        split_model(model, layout.stage_count, layout.split)


def _outline(config: Config) -> Any:
    """Return the model on the meta device, None where building it may do more than that."""
    from assay.build import Context, build, resolve, user_code
    from assay.engine.loop.device import without_memory

    node = get_at(config.root, ("model",))
    if not isinstance(node, Table) or node.target is None:
        return None
    leaves = [item for key, item in node.items.items() if key != "type"]
    if not all(
        isinstance(leaf, Leaf) and not str(leaf.value).startswith(("@", "$")) for leaf in leaves
    ):
        return None
    dirs, trusted = config.user_dirs, config.settings.trusted
    with user_code(dirs):
        context = Context()
        try:
            if not isinstance(resolve(str(node.target), user_dirs=dirs, trusted=trusted), type):
                return None
            with context.use(), without_memory():
                return build(
                    node,
                    context,
                    root=config.root,
                    path=("model",),
                    user_dirs=dirs,
                    trusted=trusted,
                )
        except Exception:  # what the model raises is told by the processes that need it
            return None
        finally:
            context.close()
