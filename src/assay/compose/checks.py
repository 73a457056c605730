"""Both stages of the check of a config: its shape, then its calls.

Only the second imports torch.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assay.compose.loaders import lengths_of
from assay.compose.prepared_run import GIVEN
from assay.config import check_shape
from assay.config.check import standard_defaults, with_defaults
from assay.config.defaults import HOMES
from assay.config.expansion import unique_problems
from assay.config.loading import Config
from assay.config.resolver import (
    asks_lengths,
    asks_machine,
    with_external_values,
    with_lengths,
    with_machine,
)
from assay.config.standard_keys import wrong_type
from assay.config.tree import Leaf, Node, Table, dotted, get_at, is_data, is_given, walk
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import ConfigError, InputError

if TYPE_CHECKING:
    from assay.build import Examined


_SIZES = (
    ("data", "train", "batch_size"),
    ("data", "train", "micro_batch_size"),
    ("train", "accumulate"),
)


_PLACES_OF_TORCH = ("torch.nn.modules.", "torch.optim.")


def problems_of_shape(config: Config) -> list[Problem]:
    """Return everything wrong with a config that is known without an import."""
    return check_shape(config)


def check_calls(config: Config, *, strict: bool = False, training: bool = True) -> Examined:
    """Check the calls of a config against the signatures of their targets, which are imported.

    What only `training` needs may be missing otherwise: the criterion.
    """
    from assay.build import ROLES, examine, plan_context, promised_types, user_code

    if importlib.util.find_spec("torch") is None:
        return _without_torch(config)
    # What is wrong with references was told by the shape stage; the values they stand for are then
    # not judged.
    root, _ = with_external_values(config.root, os.environ, config.settings.variables)
    where: dict[str, Any] = {"user_dirs": config.user_dirs, "trusted": config.settings.trusted}
    with user_code(config.user_dirs):  # one import for all that follows
        plan = plan_context(root, **where)
        has_criterion = not training or "criterion" in plan.names()
        findings = examine(
            root,
            **where,
            roles=[role for role in ROLES if role != "criterion" or has_criterion],
            types=promised_types(plan),
            given={"backward": GIVEN},
            strict=strict,
            is_whole=not config.read_problems,
        )
        if any(problem.severity == "error" for problem in findings.problems):
            return findings
        further = _problems_between_calls(root, where)
        return replace(findings, problems=(*findings.problems, *further))


def _problems_between_calls(root: Table, where: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong between calls that are right in themselves."""
    from assay.build import (
        check_criteria,
        check_criterion_args,
        check_graph,
        check_materials,
        check_sources,
        plan_context,
    )

    yield from check_sources(root, **where)
    yield from check_materials(root, **where)
    yield from check_criteria(root, **where)
    yield from check_criterion_args(root, **where)
    yield from check_graph(root, plan_context(root, **where), **where)
    yield from _processes_without_step(root, where)
    impossible = list(_impossible_numbers(root))
    yield from impossible
    yield from _refused_values(root, where, known=[problem.origin for problem in impossible])


def _processes_without_step(root: Table, where: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a [process] whose `backward` is None, and which takes none from the context.

    An argument with a default gets what there is by its annotation.
    """
    from assay.build.targets import find_target
    from assay.engine import Process

    node = root.items.get("process")
    target = node.target if isinstance(node, Table) else None
    if target is None or not isinstance(node, Table) or "backward" in node.items:
        return
    kind = find_target(target, **where)
    if not (isinstance(kind, type) and issubclass(kind, Process)):
        return
    parameters = inspect.signature(kind).parameters
    steps = [parameters[name] for name in ("backward", "optimizer") if name in parameters]
    takes = any(each.default is each.empty or each.annotation is not each.empty for each in steps)
    is_none = getattr(kind, "backward", ...) is None or "backward" in parameters
    if is_none and not takes:
        yield Problem(
            kind="missing-argument",
            message=f"{kind.__name__} takes no `backward`: it stays None, and nothing is trained",
            origin=node.origin,
            fix="take it in the constructor, `def __init__(self, model, backward: OptimizerStep)`,"
            " and set self.backward",
        )


def _impossible_numbers(root: Table) -> Iterator[Problem]:
    """Yield sizes of a batch that contradict each other, and learning rates that cannot be."""
    from assay.engine.data.batch_size import batch_size

    nodes = [get_at(root, path) for path in _SIZES]
    whole, micro, accumulate = map(_whole_number, nodes)
    if whole is not None and whole > 0:  # the shape stage has told of other ones
        try:
            batch_size(whole, micro=micro, accumulate=accumulate)
        except InputError as error:
            origin = next(node.origin for node in reversed(nodes) if node is not None)
            yield Problem(kind="wrong-value", message=error.what, origin=origin, fix=error.fix)
    optimizer = root.items.get("optimizer")
    for path, node in walk(optimizer, ("optimizer",)) if optimizer is not None else ():
        rate = node.value if isinstance(node, Leaf) and path[-1] == "lr" else None
        if isinstance(rate, int | float) and not (math.isfinite(rate) and rate >= 0):
            yield Problem(
                kind="wrong-value",
                message=f"`{dotted(path)}` is {rate}; a learning rate is finite and not negative",
                origin=node.origin,
            )


def _refused_values(
    root: Table, where: Mapping[str, Any], *, known: Sequence[Origin]
) -> Iterator[Problem]:
    """Yield the values that a class of torch refuses, such as a dropout of 50.

    A call is left out that has a problem at one of the `known` places.
    """
    from assay.build import Context, TargetError, build, resolve
    from assay.engine.checkpoint.optimizer_state import idle_optimizer
    from assay.engine.loop.device import without_memory

    parameters = idle_optimizer().param_groups[0]["params"]
    for path, node in walk(root):
        target = node.target if isinstance(node, Table) else None
        if not isinstance(node, Table) or target is None or not target.startswith("torch."):
            continue
        given = {name: item for name, item in node.items.items() if name != "params"}
        try:
            kind = resolve(target, **where)
        except TargetError:  # told elsewhere
            continue
        is_of_torch = isinstance(kind, type) and kind.__module__.startswith(_PLACES_OF_TORCH)
        is_known = any(item.origin in known for item in given.values())
        is_plain = all(is_data(item) for name, item in given.items() if name != "type")
        if not is_of_torch or is_known or not is_plain:
            continue
        more = {"params": parameters} if kind.__module__.startswith("torch.optim.") else {}
        try:
            with without_memory(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                alone = replace(node, items=given)
                build(alone, Context(), root=root, path=path, extra=more, **where)
        except ConfigError as error:
            yield from (each for each in error.problems if each.kind == "wrong-value")
        except Exception:  # of what else it lacks, the call with all of its arguments tells
            continue


def _whole_number(node: Node | None) -> int | None:
    value = node.value if isinstance(node, Leaf) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class Examiner:
    """The signature stage for the configs of one file, each looked at once."""

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict
        self._found: dict[int, tuple[Config, Config, Examined]] = {}
        self._of_variant: dict[str, Examined] = {}

    def examine(self, config: Config) -> Examined:
        """Return the findings of the signature stage about `config`."""
        if id(config) not in self._found:
            known = _fill_in_machine(config)
            findings = check_calls(known, strict=self.strict)
            self._found[id(config)] = config, known, findings
            if not config.assigned:
                self._of_variant[config.variant] = findings
        return self._found[id(config)][2]

    def problems(self, configs: Sequence[Config]) -> list[Problem]:
        """Return what is wrong with the configs of one file, each problem once."""
        from assay.build import user_code

        with user_code(configs[0].user_dirs):  # one import for all of them
            return unique_problems(configs, lambda each: self.examine(each).problems)

    def settle(self, config: Config) -> Config:
        """Return a config that has no errors with typed values."""
        findings = self.examine(config)
        return replace(config, root=findings.settle(self._found[id(config)][1].root))

    def canonical(self, config: Config) -> Table:
        """Return the tree of `config` to hash.

        A point that sets plain values has the calls of its variant.
        """
        calls_others = any(
            key.endswith(("type", "args")) or not is_data(node) for key, node in config.assigned
        )
        if calls_others or config.variant not in self._of_variant:
            findings = self.examine(config)
            return findings.canonical(self._found[id(config)][1].root)
        return self._of_variant[config.variant].canonical(_fill_in_machine(config).root)


def _without_torch(config: Config) -> Examined:
    from assay.build import Examined

    problem = Problem(
        kind="missing-package",
        message="PyTorch is not installed: nothing can be trained, and the calls of a config"
        " cannot be checked",
        origin=Origin(source=str(config.path or "<string>")),
        fix="pip install torch   (pytorch.org says which build fits your machine)",
    )
    return Examined(problems=(problem,))


def ensure_sound(config: Config) -> Config:
    """Return the config if both stages of the check let it pass.

    ConfigError with the problems of the first stage that does not.
    """
    return check_and_settle(config)[0]


def check_and_settle(
    config: Config, *sections: str, training: bool = True
) -> tuple[Config, Examined]:
    """Return the config with typed values, and the findings of the signature stage.

    ConfigError if it lacks one of `sections`, too.
    """
    # A metric that decides is none of a test, which may well measure other things.
    refuse(each for each in problems_of_shape(config) if training or each.kind != "never-measured")
    config = _fill_in_machine(config)
    findings = check_calls(config, training=training)
    refuse(findings.problems)
    if splits := asks_lengths(config.root):
        config = replace(config, root=with_lengths(config.root, lengths_of(config, splits)))
        refuse(problems_of_shape(config))
        findings = check_calls(config)
        refuse(findings.problems)
    named = findings.canonical(config.root)
    taken = [*standard_defaults(named), *findings.defaults]
    config = replace(
        config,
        root=findings.settle(config.root),
        named=named,
        filled=with_defaults(named, taken),
    )
    refuse(_missing(config, "model", "process", *sections))
    return config, findings


def refuse(problems: Iterable[Problem]) -> None:
    """Raise ConfigError with the errors among problems, if there is one."""
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors:
        raise ConfigError(errors)


def sections_to_train(config: Config) -> tuple[str, ...]:
    """Return the sections without which `assay run` cannot train a config."""
    # A [backward] of the user's own may make its optimizers itself.
    has_own_backward = get_at(config.root, ("backward", "type")) is not None
    return ("model", "process", *(() if has_own_backward else ("optimizer",)), "data", "train")


SECTIONS_TO_TEST = ("model", "process", "data")
"""Sections without which a config that is a test cannot be evaluated."""
PARTIAL = "partial"
"""Key of a config that is only read by others."""


def section_problems(config: Config) -> list[Problem]:
    """Return what a config lacks for its runner, or that it says to be a part of others."""
    partial = config.written.items.get(PARTIAL)
    if partial is not None and not (isinstance(partial, Leaf) and isinstance(partial.value, bool)):
        return [wrong_type(partial, (PARTIAL,), "true or false")]
    if isinstance(partial, Leaf) and partial.value:
        message = f"this config is a part, which others read: it says {PARTIAL} = true"
        fix = "run a config that reads it, or leave the key out"
        return [
            Problem(kind="partial", message=message, origin=partial.origin, key=PARTIAL, fix=fix)
        ]
    wanted = sections_to_train(config) if is_trained(config) else SECTIONS_TO_TEST
    return _missing(config, *wanted)


def is_trained(config: Config) -> bool:
    """Return False for a config that its `runner` only evaluates."""
    runner = config.root.items.get("runner")
    return not isinstance(runner, Leaf) or runner.value in (None, "train")


def _missing(config: Config, *sections: str) -> list[Problem]:
    """Return one problem with the sections that a config lacks, none where it has them all."""
    missing = [name for name in dict.fromkeys(sections) if not is_given(config.root, name)]
    if not missing:
        return []
    names = ", ".join(f"[{name}]" for name in missing)
    what = f"sections {names}" if len(missing) > 1 else f"section {names}"
    source = os.fspath(config.path or "<config>")
    ready = [
        f"from assay.config.defaults.{HOMES[name]} import {name}"
        for name in missing
        if name in HOMES
    ]
    fix = f"write {'them' if len(missing) > 1 else 'it'}"
    if ready and source.endswith(".py"):
        fix += f", or start from a default: {'; '.join(ready)}"
    elif ready:
        fix += "; assay.config.defaults has one to start from"
    return [
        Problem(
            kind="missing-section",
            message=f"the config has no {what}, which a run needs",
            origin=Origin(source=source),
            fix=f"{fix}; or write {PARTIAL} = true in a config that is only read by others",
        )
    ]


def _fill_in_machine(config: Config) -> Config:
    """Return the config with facts of this machine filled in; import torch only if one is used."""
    if not asks_machine(config.root):
        return config
    from assay.engine.loop.device import device_count

    return replace(config, root=with_machine(config.root, {"device:count": device_count()}))
