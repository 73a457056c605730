"""Parameter groups by rules: no weight decay, another learning rate, or frozen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.optim import Optimizer

from assay.core.errors import ArgumentError, InputError, did_you_mean, nearest, suggestion
from assay.core.formatting import name_some

KINDS = ("norm", "bias", "embedding")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """Options of the parameters that one of the names or kinds fits."""

    match: tuple[str, ...]
    kind: tuple[str, ...]
    settings: Mapping[str, Any]


class Groups:
    """Parameter groups made from a model by `rules`; give them as the optimizer's `params`.

    A rule selects parameters by `match`, patterns of names such as `"encoder.*"` or `"*.bias"`, or
    by `kind`: "norm" (the parameters of normalisation layers), "bias", "embedding". `frozen = true`
    excludes the selected parameters from training; every other key is a setting of the group (lr,
    weight_decay, ...). If several rules select a parameter, a later rule overrides an earlier one.
    Parameters selected by no rule have the settings of the optimizer. `only`: patterns of names;
    all other parameters are left to other optimizers. Raises ArgumentError for a pattern that
    matches no parameter.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        rules: Sequence[Mapping[str, Any]] = (),
        only: str | Sequence[str] = ("*",),
    ) -> None:
        self.rules = [_read(number, rule) for number, rule in enumerate(rules)]
        self.frozen: list[str] = []
        only = (only,) if isinstance(only, str) else only
        names = _names(model)
        kinds = _kinds(model)
        self._refuse_unused(names)
        for each in only:
            _refuse_unfit(each, names, ("only",))
        by_settings: dict[str, dict[str, Any]] = {}
        for parameter in model.parameters():
            if not any(fnmatchcase(name, each) for name in names[id(parameter)] for each in only):
                continue
            own_rules = self._rules_of(names[id(parameter)], kinds[id(parameter)])
            settings = {key: value for rule in own_rules for key, value in rule.settings.items()}
            frozen = settings.pop("frozen", None)
            if frozen is not None:
                parameter.requires_grad_(not frozen)
            if not parameter.requires_grad:
                self.frozen.append(names[id(parameter)][0])
                continue
            label = ", ".join(f"{key} = {value}" for key, value in settings.items())
            name = ", ".join(part for own in own_rules for part in (*own.match, *own.kind))
            group = by_settings.setdefault(
                label, {"params": [], "name": name or "rest", **settings}
            )
            group["params"].append(parameter)
        self.groups = list(by_settings.values())
        if not self.groups:
            raise InputError("Every parameter of the model is frozen: there is nothing to train.")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.groups)

    def check(self, optimizer: Optimizer) -> None:
        """Raise ArgumentError for a setting unknown to `optimizer`; torch itself accepts any."""
        for number, rule in enumerate(self.rules):
            for key in rule.settings:
                if key != "frozen" and key not in optimizer.defaults:
                    raise ArgumentError(
                        f"{type(optimizer).__name__} has no setting {key!r}",
                        inside=("rules", number, key),
                        fix=did_you_mean(key, [*optimizer.defaults, "match", "kind", "frozen"])
                        or f"it has: {', '.join(optimizer.defaults)}",
                    )

    def _rules_of(self, names: Sequence[str], kinds: frozenset[str]) -> list[_Rule]:
        return [
            rule
            for rule in self.rules
            if kinds & set(rule.kind)
            or any(fnmatchcase(name, each) for name in names for each in rule.match)
        ]

    def _refuse_unused(self, names: Mapping[int, Sequence[str]]) -> None:
        for number, rule in enumerate(self.rules):
            for each in rule.match:
                _refuse_unfit(each, names, ("rules", number, "match"))


def _refuse_unfit(
    pattern: str, names: Mapping[int, Sequence[str]], inside: Sequence[str | int]
) -> None:
    known = [name for each in names.values() for name in each]
    if any(fnmatchcase(name, pattern) for name in known):
        return
    parts = dict.fromkeys(
        f"{name[:i]}.*" for name in known for i, letter in enumerate(name) if letter == "."
    )
    near = nearest(pattern, [*parts, *known])
    raise ArgumentError(
        f"No parameter of the model fits {pattern!r}",
        inside=inside,
        fix=suggestion(near) or f"there are: {', '.join(known[:5])}{', ...' if known[5:] else ''}",
    )


def describe_groups(optimizers: Mapping[str, Optimizer], model: nn.Module) -> list[str]:
    """A line for each group with how much is in it, and one for what is not trained."""
    names = _names(model)
    lines: list[str] = []
    trained: set[int] = set()
    groups = [
        (name, group) for name, optimizer in optimizers.items() for group in optimizer.param_groups
    ]
    for name, group in groups:
        trained |= {id(parameter) for parameter in group["params"]}
        settings = {
            "lr": group.get("initial_lr", group["lr"]),
            "weight_decay": group.get("weight_decay"),
        }
        told = ", ".join(f"{key} {value:g}" for key, value in settings.items() if _is_number(value))
        lines.append(
            f"{name and name + ', '}group {len(lines) + 1} of {len(groups)}: {told}:"
            f" {_content(group['params'], names)}"
        )
    left = [parameter for parameter in model.parameters() if id(parameter) not in trained]
    return [*lines, f"not trained: {_content(left, names)}"] if left else lines


def _content(parameters: Sequence[nn.Parameter], names: Mapping[int, Sequence[str]]) -> str:
    known = [names[id(parameter)][0] for parameter in parameters if id(parameter) in names]
    size = sum(parameter.numel() for parameter in parameters)
    return f"{size:,} parameters ({name_some(known)})"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read(number: int, rule: Mapping[str, Any]) -> _Rule:
    chosen = {key: _texts(number, key, rule.get(key, ())) for key in ("match", "kind")}
    if not any(chosen.values()):
        raise ArgumentError(
            "A rule chooses nothing",
            inside=("rules", number),
            fix='give it a match = "encoder.*" or a kind = "bias"',
        )
    for kind in chosen["kind"]:
        if kind not in KINDS:
            fix = did_you_mean(kind, KINDS) or f"there are: {', '.join(KINDS)}"
            raise ArgumentError(
                f"There is no kind {kind!r} of parameters",
                inside=("rules", number, "kind"),
                fix=fix,
            )
    settings = {key: value for key, value in rule.items() if key not in ("match", "kind")}
    if not settings:
        fix = "say what is to be done: weight_decay = 0.0, lr = 1e-4, frozen = true"
        raise ArgumentError("A rule does nothing", inside=("rules", number), fix=fix)
    if not isinstance(settings.get("frozen", True), bool):
        raise ArgumentError("`frozen` is true or false", inside=("rules", number, "frozen"))
    return _Rule(match=chosen["match"], kind=chosen["kind"], settings=settings)


def _texts(number: int, key: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    if isinstance(given, list | tuple) and all(isinstance(text, str) for text in given):
        return tuple(given)
    raise ArgumentError(f"`{key}` is a text or a list of them", inside=("rules", number, key))


def _names(model: nn.Module) -> dict[int, list[str]]:
    """The names of each parameter; one that is used at several places has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names


def _kinds(model: nn.Module) -> dict[int, frozenset[str]]:
    kinds: dict[int, frozenset[str]] = {}
    for module in model.modules():
        of_module: set[str] = set()
        # By name: every library has its own RMSNorm.
        if "norm" in type(module).__name__.lower():
            of_module.add("norm")
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            of_module.add("embedding")
        for name, parameter in module.named_parameters(recurse=False):
            own = of_module | {"bias"} if "bias" in name else of_module
            kinds[id(parameter)] = kinds.get(id(parameter), frozenset()) | own
    return kinds


def unwrap_optimizer(thing: Any) -> Any:
    """Return the optimizer of a wrapper that has one as `optimizer`; anything else as it is."""
    return thing if isinstance(thing, Optimizer) else getattr(thing, "optimizer", thing)
