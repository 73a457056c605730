"""Stack of the modules at work, and what each was given and gave in its first call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from assay.engine.data.shapes import shape_of
from assay.engine.numerics.structures import tensors_in
from assay.formats.rehearsal import Layer


@dataclass(slots=True)
class ModuleCall:
    """A call of a module. `gave` is "" until it returns."""

    name: str
    given: str
    before: int
    gave: str = ""
    flops: int = 0


class ModuleStack:
    """Follows the calls of the modules of `roots`, by hooks, while in `watch`.

    `flops` gives the FLOPs counted so far. `at` hears the path of the module at work and the phase:
    "forward", or "backward" from the gradient of its output on.
    """

    def __init__(
        self,
        roots: Mapping[str, nn.Module],
        flops: Callable[[], int],
        at: Callable[[str], None],
    ) -> None:
        self.names: dict[nn.Module, str] = {}
        for root, part in roots.items():
            for name, module in part.named_modules():
                self.names.setdefault(module, f"{root}.{name}".rstrip("."))
        self.calls: dict[str, ModuleCall] = {}
        self.open: list[ModuleCall] = []
        """Modules that have not returned; after an error the last is the module that failed."""
        self.behind = ""
        """The module whose gradient was computed last."""
        self._flops = flops
        self._at = at

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch the modules within."""
        handles = []
        for module in self.names:
            if isinstance(module, torch.jit.ScriptModule):  # its hooks take no keyword arguments
                continue
            handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
            handles.append(module.register_forward_hook(self._after))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = [shape_of(each) for each in args]
        given += [f"{key}={shape_of(each)}" for key, each in kwargs.items() if each is not None]
        name = self.name_of(module)
        call = ModuleCall(name, ", ".join(given), self._flops())
        self.calls.setdefault(name, call)
        self.open.append(call)
        self._at(f"{call.name}, forward")

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        name = self.name_of(module)
        while self.open:  # a call that raised, and whose error was caught, is still open
            call = self.open.pop()
            if call.name == name:
                call.gave = shape_of(output)
                call.flops = self._flops() - call.before
                break
        self._at(f"{self.open[-1].name}, forward" if self.open else "forward")
        if torch.is_grad_enabled():
            for tensor in tensors_in(output):
                self._follow(tensor, name)

    def _follow(self, tensor: Tensor, name: str) -> None:
        if not tensor.requires_grad or tensor.is_leaf:
            return

        def note(_: Tensor) -> None:
            self.behind = name
            self._at(f"{name}, backward")

        tensor.register_hook(note)  # type: ignore[no-untyped-call]

    def name_of(self, module: nn.Module) -> str:
        """Return the path of a module and its class: `model.blocks.0 (Block)`."""
        return f"{self.names[module]} ({type(module).__name__})"

    def layers(self, model: nn.Module, root: str = "model") -> tuple[Layer, ...]:
        """Return the modules of `model` from the outside in, with their first calls."""
        layers = []
        counted: set[nn.Parameter] = set()
        for path, module in model.named_modules():
            own = [p for p in module.parameters(recurse=False) if p not in counted]
            counted.update(own)
            call = self.calls.get(self.name_of(module), ModuleCall("", "", 0))
            failed = "failed" if call.name and not call.gave else ""
            layers.append(
                Layer(
                    name=f"{root}.{path}".rstrip("."),
                    kind=type(module).__name__,
                    depth=path.count(".") + bool(path),
                    given=call.given,
                    gave=call.gave or failed,
                    params=sum(p.numel() for p in own),
                    trained=sum(p.numel() for p in own if p.requires_grad),
                    flops=call.flops,
                )
            )
        return tuple(layers)
