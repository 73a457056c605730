"""A probe: what modules gave at chosen steps, saved for a case study. The model is not touched."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from safetensors.torch import save
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from assay.core.errors import InputError, did_you_mean
from assay.core.events import At, Event, Handler
from assay.core.facts import Warned
from assay.engine.loop.bus import Before
from assay.engine.loop.engine import Engine
from assay.engine.metrics.outputs import try_keep_artifact
from assay.engine.numerics.structures import tensors_by_path

if TYPE_CHECKING:
    from assay.engine.parallel.pipeline import Pipeline


class Probe:
    """Callback that saves the outputs of modules, by patterns of names, at the given `steps`.

    Each step makes an artifact `probe/step-000000010.safetensors` of tensors by module:
    `encoder.0.attn` for a module that gives a tensor, `encoder.0.attn/1` or
    `encoder.0.attn/weights` for a part of what it gives, `...#1` for its second call within the
    step (of a second micro-batch, for example). `inputs` saves what it got, too: `...<0`. In a
    pipeline that is what all stages gave.
    """

    def __init__(
        self, match: str | Sequence[str], steps: Sequence[int], *, inputs: bool = False
    ) -> None:
        self.match = (match,) if isinstance(match, str) else tuple(match)
        if not steps or min(steps) < 1:
            raise InputError(f"steps is {list(steps)}; it lists steps, of which 1 is the first.")
        self.when = At(frozenset(steps))
        self.inputs = inputs
        self._hooks: list[RemovableHandle] = []
        self._calls: dict[str, int] = {}
        self._seen: dict[str, Tensor] = {}

    def handlers(self) -> list[Handler]:
        return [
            Handler(event=Event.RUN_BEGIN, fn=self.check),
            Handler(event=Event.STEP_BEGIN, fn=self.listen, when=Before(self.when)),
            Handler(event=Event.STEP_END, fn=self.write, when=self.when, priority=-1000),
            Handler(event=Event.EXCEPTION, fn=self.leave, priority=-1000),
        ]

    def check(self, engine: Engine) -> None:
        """InputError for a pattern that no module matches."""
        names = [name for name, _ in engine.process.model.named_modules() if name]
        for pattern in self.match:
            if not any(fnmatchcase(name, pattern) for name in names):
                fix = did_you_mean(pattern, names) or f"There are: {', '.join(names[:8])}."
                raise InputError(f"Probe: no module of the model is called {pattern!r}.", fix=fix)

    def listen(self, engine: Engine) -> None:
        for name, module in engine.process.model.named_modules():
            if name and any(fnmatchcase(name, pattern) for pattern in self.match):
                self._hooks.append(
                    module.register_forward_hook(self._hook_of(name, engine.pipeline))
                )

    def write(self, engine: Engine) -> None:
        """Keep what was seen as an artifact of the run."""
        seen, step = self._seen, engine.state.step
        self.leave()
        if engine.pipeline is not None:
            seen = engine.pipeline.all_gather_stages(seen)
            if not engine.pipeline.is_first_rank:
                return
        if seen:
            name = f"probe/step-{step:09d}.safetensors"
            try_keep_artifact(engine.recorder, save(seen), name, step=engine.state.step)
        else:
            message = f"Probe: none of {', '.join(self.match)} gave a tensor; nothing was saved."
            engine.recorder.tell(Warned(message=message, step=step))

    def leave(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._calls, self._seen = [], {}, {}

    def _hook_of(self, name: str, pipeline: Pipeline | None) -> Any:
        def look(_module: nn.Module, inputs: Any, output: Any) -> None:
            if pipeline is not None and pipeline.is_measuring:
                return
            number = self._calls.get(name, 0)
            self._calls[name] = number + 1
            which = f"{name}#{number}" if number else name
            self._keep(output, which)
            if self.inputs:
                for place, given in enumerate(inputs):
                    self._keep(given, f"{which}<{place}")

        return look

    def _keep(self, given: Any, name: str) -> None:
        for path, tensor in tensors_by_path(given):
            # A copy: what comes after may write into it, and tensors of one file share no memory.
            kept = tensor.detach().to("cpu", copy=True).contiguous()
            self._seen["/".join([name, *map(str, path)])] = kept
