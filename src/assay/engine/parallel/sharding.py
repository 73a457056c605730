"""Sharding: each process keeps a part of every weight, gradient and optimizer state (FSDP2; ZeRO,
arXiv 1910.02054).

The weights of a block come together when it is called, and its gradients are added up and divided
when they are there.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from assay.core.errors import InputError
from assay.engine.data.batches import mapped
from assay.engine.model.blocks import blocks_of, modules_named

if TYPE_CHECKING:
    from assay.engine.parallel.mesh import Mesh

Blocks = bool | str | Sequence[str] | None
SETTING = "[parallel] shard_blocks"
METHOD = "shard_blocks"
"""A model may have a method of this name, which gives the modules (or patterns of their names) that come together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """A model whose weights are shared out. `modules`: those whose weights come together when they
    are called.

    `stage` as in ZeRO: 3, weights too are let go of between forward and backward pass; 2, they stay
    until the backward pass is done; 1, gradients stay whole as well until the last micro-batch of a
    step.
    """

    modules: Sequence[Any]
    blocks: Sequence[str]
    stage: int
    has_replicas: bool
    given: list[tuple[Tensor, int]] = field(default_factory=list)
    """Views that the model gave, each as often changed as it was then."""

    def look(self, _module: nn.Module, _args: Any, output: Any) -> None:
        """What a model gives that comes together as a whole: from its gradient the backward pass
        knows that it begins.

        That of a view is lost when it is changed in place.
        """

        def keep(tensor: Tensor) -> Tensor:
            if tensor.requires_grad and tensor._is_view():
                self.given.append((tensor, tensor._version))
            return tensor

        mapped(output, keep)

    def begin_backward(self, *, is_last: bool) -> None:
        """A backward pass comes; the last one of a step has to leave the gradient of the whole
        step."""
        given = list(self.given)
        self.given.clear()
        if any(tensor._version != version for tensor, version in given):
            raise InputError(
                "What the model gave, a view of another tensor, was changed in place: its gradient would be lost.",
                fix="Write out = out + x, not out += x; or divide the model into blocks: [parallel] shard_blocks.",
            )
        for module in self.modules:
            if self.stage == 1:
                module.set_requires_gradient_sync(is_last, recurse=False)
            elif self.has_replicas:
                module.set_requires_all_reduce(is_last, recurse=False)

    def reshard(self) -> None:
        """Weights that are together come apart: after a forward pass that no backward pass
        follows."""
        for module in self.modules:
            module.reshard()


def shard_model(model: nn.Module, mesh: Mesh, *, blocks: Blocks = None, stage: int = 3) -> Sharding:
    """Share out the weights of `model` along `shard`, in place; along `data` there are copies of
    these shares (HSDP).

    `blocks`: which modules come together, each at its time; None: what the model says in
    `shard_blocks()`, else the blocks that it repeats; false: all at once. InputError for what
    cannot be shared out.
    """
    from torch.distributed.fsdp import fully_shard

    if not _is_new_enough():
        raise InputError(
            "[parallel] shard wants a newer torch than this one.", fix="Update torch, or use data."
        )
    _check(model)
    has_replicas = mesh.layout.data > 1
    devices = mesh.devices["data", "shard"] if has_replicas else mesh.devices["shard"]
    found = _blocks(model, blocks)
    done: list[nn.Module] = []
    for module in found.values():
        fully_shard(module, mesh=devices, reshard_after_forward=stage == 3)
        done.append(module)
    for root in _roots(model):
        if root not in done:
            fully_shard(root, mesh=devices, reshard_after_forward=None if stage == 3 else False)
            done.append(root)
    sharding = Sharding(modules=done, blocks=list(found), stage=stage, has_replicas=has_replicas)
    for root in _roots(model):
        _accept_views(root)
        if not found:
            root.register_forward_hook(sharding.look)
    for each in done:
        # What an engine differentiates is a share of the loss of the whole step: the gradient is
        # the sum.
        each.set_gradient_divide_factor(1.0)  # type: ignore[operator]
        each.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]
    return sharding


def _accept_views(root: nn.Module) -> None:
    """Torch warns of each model that gives a view, which many do: what is done to it in place is
    not seen.

    A root keeps its weights until the backward pass, and blocks in it see that pass by themselves.
    """
    said = f"FSDP2-wrapped module ({type(root).__name__}) returned a view tensor"
    warnings.filterwarnings("ignore", message=re.escape(said), category=UserWarning)


def _is_new_enough() -> bool:
    from torch.distributed.fsdp import FSDPModule

    return hasattr(FSDPModule, "set_force_sum_reduction_for_comms")


def _check(model: nn.Module) -> None:
    for name, weight in model.named_parameters():
        if weight.dim() == 0:
            fix = "Give it the shape (1,)."
            raise InputError(
                f"{name} is a single number, which cannot be shared out: [parallel] shard.", fix=fix
            )
        if not weight.is_contiguous():
            fix = "Leave out [train] channels_last, or [parallel] shard."
            raise InputError(
                f"{name} does not lie in memory row by row, as [parallel] shard wants it.", fix=fix
            )


def _roots(model: nn.Module) -> list[nn.Module]:
    """The modules that are called from outside: the model, or the parts of one that has no
    `forward` of its own."""
    if type(model).forward is not nn.Module.forward:
        return [model]
    loose = [name for name, _ in model.named_parameters(recurse=False)]
    if loose:
        raise InputError(
            f"The model is never called as a whole, and {loose[0]} belongs to no part of it: [parallel] shard cannot"
            " know when it is used.",
            fix="Give the model a forward, or put the parameter into a module of its own.",
        )
    parts = [part for part in model.children() if next(part.parameters(), None) is not None]
    return [root for part in parts for root in _roots(part)]


def _blocks(model: nn.Module, asked: Blocks) -> dict[str, nn.Module]:
    """The modules by name that come together one at a time, inner ones first."""
    if asked is False:
        return {}
    said = getattr(model, METHOD, None)
    if asked is None and callable(said):
        return _said(model, said())
    if asked is None or asked is True or asked == "blocks":
        found = {name: module for name, module in blocks_of(model).items() if module is not model}
        shared = _shared(model, found)
        return {name: module for name, module in found.items() if name not in shared}
    found = modules_named(model, asked, setting=SETTING)
    _refuse_shared(model, found)
    return found


def _said(model: nn.Module, said: Any) -> dict[str, nn.Module]:
    where = f"{type(model).__name__}.{METHOD}"
    items = [said] if isinstance(said, str) else list(said) if isinstance(said, Iterable) else None
    if items is None or not all(isinstance(each, str | nn.Module) for each in items):
        raise InputError(
            f"{where} gave {said!r}.", fix="Give modules of the model, or patterns of their names."
        )
    names = {id(module): name for name, module in model.named_modules()}
    found: dict[str, nn.Module] = {}
    for each in items:
        if isinstance(each, str):
            found |= modules_named(model, [each], setting=where)
        elif id(each) in names:
            found[names[id(each)]] = each
        else:
            raise InputError(f"{where} gave a {type(each).__name__} that is no part of the model.")
    _refuse_shared(model, found)
    # torch wants what lies inside to be shared out before what it lies in.
    return dict(sorted(found.items(), key=lambda item: -item[0].count(".")))


def _shared(model: nn.Module, found: Mapping[str, nn.Module]) -> dict[str, str]:
    """Of the blocks that have a parameter which is used elsewhere too (tied weights): its name."""
    users: dict[int, set[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        users.setdefault(id(weight), set()).add(name)
    tied = {}
    for name, module in found.items():
        for weight in module.parameters():
            outside = [user for user in users[id(weight)] if not user.startswith(f"{name}.")]
            if outside:
                tied[name] = sorted(outside)[0]
    return tied


def _refuse_shared(model: nn.Module, found: Mapping[str, nn.Module]) -> None:
    for name, user in _shared(model, found).items():
        fix = "Leave it out: what is in no block comes together for the whole step."
        raise InputError(
            f"{SETTING}: {name} has a weight that is used outside of it too ({user}).", fix=fix
        )
