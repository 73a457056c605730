"""Sharding: each rank keeps a part of every weight, gradient and optimizer state.

FSDP2; ZeRO, arXiv 1910.02054. The weights of a block are gathered when it is called, its gradients
are reduced and scattered when they are ready.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from assay.core.errors import InputError
from assay.engine.model.modules import blocks_of, modules_named
from assay.engine.numerics import private_torch
from assay.engine.numerics.structures import tensors_in

if TYPE_CHECKING:
    from assay.engine.parallel.process_group import Mesh

Blocks = bool | str | Sequence[str] | None
SETTING = "[parallel] shard_blocks"
METHOD = "shard_blocks"
"""Method of a model that returns the modules, or patterns of names, gathered one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Sharded model. `modules` are those whose weights are gathered when they are called.

    `stage` as in ZeRO: 3 frees gathered weights between forward and backward pass; 2 keeps them
    until the backward pass is done; 1 keeps whole gradients too, until the last micro-batch of a
    step.
    """

    modules: Sequence[Any]
    blocks: Sequence[str]
    stage: int
    has_replicas: bool
    given: list[tuple[Tensor, int]] = field(default_factory=list)
    """Views that the model gave, each as often changed as it was then."""

    def look(self, _module: nn.Module, _args: Any, output: Any) -> None:
        """Forward hook that remembers output views: their gradient starts FSDP2's backward pass.

        An in-place change of a view loses that gradient.
        """
        for tensor in tensors_in(output):
            if tensor.requires_grad and private_torch.is_view(tensor):
                self.given.append((tensor, private_torch.version_of(tensor)))

    def begin_backward(self, *, is_last: bool) -> None:
        """Prepare a backward pass: the last one of a step leaves the gradient of the whole step."""
        given = list(self.given)
        self.given.clear()
        if any(private_torch.version_of(tensor) != version for tensor, version in given):
            raise InputError(
                "What the model gave, a view of another tensor, was changed in place: its"
                " gradient would be lost.",
                fix=(
                    "Write out = out + x, not out += x; or divide the model into blocks:"
                    " [parallel] shard_blocks."
                ),
            )
        for module in self.modules:
            if self.stage == 1:
                module.set_requires_gradient_sync(is_last, recurse=False)
            elif self.has_replicas:
                module.set_requires_all_reduce(is_last, recurse=False)

    def use_new_memory(self, device: torch.device) -> None:
        """Take in that weights were divided on `meta`, and have memory on `device` now."""
        for module in self.modules:
            module.to(device)  # by which FSDP2 looks at its parameters again

    def reshard(self) -> None:
        """Free gathered weights after a forward pass that no backward pass follows."""
        for module in self.modules:
            module.reshard()


def shard_model(
    model: nn.Module,
    mesh: Mesh,
    *,
    blocks: Blocks = None,
    stage: int = 3,
    dtype: torch.dtype | None = None,
) -> Sharding:
    """Shard the weights of `model` along `shard`, in place, with replicas along `data` (HSDP).

    `blocks` are the modules gathered one at a time; None: those of the model's `shard_blocks()`,
    else its repeated blocks; False: the model as a whole. In `dtype` the weights of blocks are
    gathered and their inputs arrive; gradients are reduced in the format of `mesh`, else in fp32.
    InputError for a model that cannot be sharded.
    """
    if not _is_new_enough():
        raise InputError(
            "[parallel] shard wants a newer torch than this one.", fix="Update torch, or use data."
        )
    _check(model)
    has_replicas = mesh.layout.data > 1
    devices = mesh.devices["data", "shard"] if has_replicas else mesh.devices["shard"]
    found = _blocks(model, blocks)
    roots = _roots(model)
    if mesh.pipeline is not None:
        found = mesh.pipeline.own_blocks(found)
        roots = [mesh.pipeline.held]
    done: list[nn.Module] = []
    reduced = mesh.ranks.gradient_dtype
    policy = MixedPrecisionPolicy(dtype, reduced or (torch.float32 if dtype else None))
    root_policy = MixedPrecisionPolicy(reduce_dtype=reduced)
    for module in found.values():
        fully_shard(module, mesh=devices, reshard_after_forward=stage == 3, mp_policy=policy)
        done.append(module)
    for root in roots:
        if root not in done:
            fully_shard(
                root,
                mesh=devices,
                reshard_after_forward=None if stage == 3 else False,
                mp_policy=root_policy,
            )
            done.append(root)
    sharding = Sharding(modules=done, blocks=list(found), stage=stage, has_replicas=has_replicas)
    is_answering = mesh.pipeline is None or mesh.pipeline.is_last
    for root in roots:
        _accept_views(root)
        if not found and is_answering:
            root.register_forward_hook(sharding.look)
    for each in done:
        # What an engine differentiates is a share of the loss of the whole step: the gradient is
        # the sum.
        each.set_gradient_divide_factor(1.0)  # type: ignore[operator]
        each.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]
    return sharding


def _accept_views(root: nn.Module) -> None:
    """Silence torch's warning about a model that returns a view, as many do.

    A root keeps its weights until the backward pass, and blocks in it see that pass by themselves;
    `Sharding` checks for changes in place.
    """
    said = f"FSDP2-wrapped module ({type(root).__name__}) returned a view tensor"
    warnings.filterwarnings("ignore", message=re.escape(said), category=UserWarning)


def _is_new_enough() -> bool:
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
    """Return the modules called from outside: the model, or its parts if it has no `forward`."""
    if type(model).forward is not nn.Module.forward:
        return [model]
    loose = [name for name, _ in model.named_parameters(recurse=False)]
    if loose:
        raise InputError(
            f"The model is never called as a whole, and {loose[0]} belongs to no part of it:"
            " [parallel] shard cannot know when it is used.",
            fix="Give the model a forward, or put the parameter into a module of its own.",
        )
    parts = [part for part in model.children() if next(part.parameters(), None) is not None]
    return [root for part in parts for root in _roots(part)]


def _blocks(model: nn.Module, asked: Blocks) -> dict[str, nn.Module]:
    """Return the modules by name that are gathered one at a time, inner ones first."""
    if asked is False:
        return {}
    said = getattr(model, METHOD, None)
    if asked is None and callable(said):
        return _blocks_named_by_model(model, said())
    if asked is None or asked is True or asked == "blocks":
        found = {name: module for name, module in blocks_of(model).items() if module is not model}
        shared = _find_tied(model, found)
        return {name: module for name, module in found.items() if name not in shared}
    found = modules_named(model, asked, setting=SETTING)
    _refuse_shared(model, found)
    return found


def _blocks_named_by_model(model: nn.Module, said: Any) -> dict[str, nn.Module]:
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


def _find_tied(model: nn.Module, found: Mapping[str, nn.Module]) -> dict[str, str]:
    """Return the blocks with a tied parameter, each with the name of its use elsewhere."""
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
    for name, user in _find_tied(model, found).items():
        fix = "Leave it out: what is in no block comes together for the whole step."
        raise InputError(
            f"{SETTING}: {name} has a weight that is used outside of it too ({user}).", fix=fix
        )
