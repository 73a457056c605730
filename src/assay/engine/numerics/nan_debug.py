"""Search for the first value that is not finite: the step runs again with hooks on every module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from assay.core.errors import AssayError
from assay.core.formatting import name_some
from assay.engine.numerics import private_torch
from assay.engine.numerics.sparse import entries, is_sparse
from assay.engine.numerics.structures import TensorPath, tensors_by_path, tensors_in

MEND = (
    "The weights are still those of before. Mend or leave out that sample, or [train]"
    ' non_finite="skip".'
)


class NonFiniteError(AssayError):
    """A loss or gradient became nan or infinite; the weights are those of before the step.

    `mend` is the fix where the value was in the data.
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "", mend: str = MEND) -> None:
        super().__init__(what, where=where, fix=fix)
        self.mend = mend


@contextmanager
def locate_backward_errors(*, enabled: bool = True) -> Iterator[None]:
    """Show the line of the forward pass in an error of the backward pass, and name its loss.

    An op that gives nan in the backward pass is such an error.
    """
    with torch.autograd.set_detect_anomaly(enabled or torch.is_anomaly_enabled()):
        yield


DATA = "the data: "
_SHOWN = 5
NOWHERE = "nowhere when the step was done again: its batch and its seed alone do not explain it"


def in_the_data(batches: Sequence[Any], samples_of: Callable[[int], Sequence[int]]) -> str:
    """Return the first non-finite tensor of the micro-batches, and its samples; "" if none.

    `samples_of` gives the dataset indices of a micro-batch; none where they are unknown.
    """
    for number, batch in enumerate(batches):
        for path, tensor in tensors_by_path(batch):
            kind = "" if tensor.is_meta or _is_mask(tensor) else _kind(tensor)
            if kind:
                of = f" of micro-batch {number + 1}" if batches[1:] else ""
                which = _in_samples(tensor, samples_of(number))
                return f"{DATA}{_in_batch(path)}{of} holds {kind}{which}"
    return ""


def first_non_finite(owner: Any, again: Callable[[], None]) -> str:
    """Describe the module or parameter where the first non-finite value appears in `again`.

    `owner`, a process, has the modules as attributes; `again` repeats forward and backward of the
    step. The loss that it gives its optimizer step is looked at in between.
    """
    watch = _Watch()
    watched: set[nn.Module] = set()
    for root, part in vars(owner).items():
        if isinstance(part, nn.Module):
            for name, module in part.named_modules():
                if module not in watched:  # a criterion may hold the model, a process name it twice
                    watched.add(module)
                    watch.add(module, _name_of(root, name, module))
            for name, parameter in part.named_parameters():
                if not entries(parameter).isfinite().all():
                    watch.leave()
                    return f"the parameter {name}, before the step"
                if parameter.requires_grad:
                    watch.add_parameter(parameter, name)
    step = getattr(owner, "backward", None)
    try:
        owner.backward = _WatchedStep(step, watch)
        with _eager(watched):
            again()
    except Exception as error:  # what it cannot finish does not matter: what it met on the way does
        return (
            watch.found
            or f"nowhere: done again, the step failed with {type(error).__name__}: {error}"
        )
    finally:
        owner.backward = step
        watch.leave()
    return watch.found or NOWHERE


@contextmanager
def _eager(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Inside compiled code nobody can look."""
    compiled = {
        module: call
        for module in modules
        if (call := private_torch.compiled_call(module)) is not None
    }
    for module in compiled:
        private_torch.set_compiled_call(module, None)
    try:
        yield
    finally:
        for module, call in compiled.items():
            private_torch.set_compiled_call(module, call)


class _Watch:
    """Hooks on modules and parameters; `found` describes the first non-finite value."""

    def __init__(self) -> None:
        self.found = ""
        self._told: Tensor | None = None
        self._handles: list[RemovableHandle] = []

    def add(self, module: nn.Module, who: str) -> None:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = (args, kwargs)
            for tensor in tensors_in(given):
                if not _is_mask(tensor):
                    self.look(
                        tensor,
                        f"what comes to {who}, from the code between it and the module before",
                    )
                self.look_at_gradient(tensor, f"the gradient that {who} passes back", is_made=True)

        def after(_: nn.Module, args: Any, output: Any) -> None:
            for tensor in tensors_in(output):
                self.look(tensor, f"the output of {who}")
                self.look_at_gradient(tensor, f"the gradient that comes to {who}")

        self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self._handles.append(module.register_forward_hook(after))

    def add_parameter(self, parameter: nn.Parameter, name: str) -> None:
        def after(gradient: Tensor) -> None:
            self.look(gradient, f"the gradient of {name}")

        self._handles.append(parameter.register_hook(after))  # type: ignore[no-untyped-call]

    def look(self, tensor: Tensor, where: str, *, is_made: bool = False) -> None:
        # A gradient between two modules is told by the one that made it, whichever of the two is
        # asked first.
        if not self.found or (is_made and tensor is self._told):
            kind = _kind(tensor)
            if kind:
                self.found = f"{where} ({kind})"
                self._told = tensor

    def look_at_gradient(self, tensor: Tensor, where: str, *, is_made: bool = False) -> None:
        if tensor.requires_grad and torch.is_grad_enabled():
            look = partial(self.look, where=where, is_made=is_made)
            self._handles.append(tensor.register_hook(lambda grad: look(grad)))  # type: ignore[no-untyped-call]

    def look_at_loss(self, loss: Any) -> None:
        for path, tensor in tensors_by_path(loss):
            name = ".".join(key for key in path if isinstance(key, str) and key != "value")
            of = f" {name}" if name else ""
            self.look(tensor, f"the loss{of}, from outputs of modules that are finite")

    def leave(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class _WatchedStep:
    """Optimizer step whose losses are looked at before they are differentiated."""

    def __init__(self, step: Any, watch: _Watch) -> None:
        self._step = step
        self._watch = watch

    def __call__(self, loss: Any) -> None:
        self._watch.look_at_loss(loss)
        self._step(loss)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)


def _name_of(root: str, name: str, module: nn.Module) -> str:
    inside = name if root == "model" and name else f"{root}.{name}".rstrip(".")
    return f"{inside} ({type(module).__name__})"


def _kind(tensor: Tensor) -> str:
    """ "nan" or "inf", whichever there is; "" for what is finite."""
    values = entries(tensor)
    if not values.is_floating_point() and not values.is_complex():
        return ""
    if values.isnan().any():
        return "nan"
    return "" if values.isfinite().all() else "inf"


def _is_mask(tensor: Tensor) -> bool:
    """Return whether a tensor holds finite values and -inf alone: a mask added to scores."""
    values = entries(tensor)
    return _kind(tensor) == "inf" and bool((values.isfinite() | values.isneginf()).all())


def _in_batch(path: TensorPath) -> str:
    """Return a path within a batch as text: batch[0]['x']."""
    return "batch" + "".join(f"[{key!r}]" for key in path)


def _in_samples(tensor: Tensor, samples: Sequence[int]) -> str:
    """Of which samples the rows are that are not finite, if each row is one."""
    if not tensor.dim() or is_sparse(tensor) or len(tensor) != len(samples):
        return ""
    found = (
        (~tensor.detach().isfinite()).reshape(len(samples), -1).any(1).nonzero().flatten().tolist()
    )
    names = name_some([str(samples[row]) for row in found], _SHOWN)
    return f", in sample{'s' if found[1:] else ''} {names} of data.train"
