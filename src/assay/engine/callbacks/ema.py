"""An exponential moving average of the weights, and the weights that a checkpoint is judged by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.errors import CheckpointError, InputError
from assay.core.events import Event, Every, Handler
from assay.engine.checkpoint.folder import load_parts
from assay.engine.checkpoint.own_share import PROCESS_PARTS, Readers, Share, load_share
from assay.engine.checkpoint.weights import Report, fit_weights, load_weights
from assay.engine.loop.engine import Engine
from assay.engine.loop.engine_state import load_process_state
from assay.engine.loop.process import Process
from assay.engine.loop.state import State
from assay.engine.numerics import private_torch
from assay.engine.numerics.deferred import copy_unless_
from assay.engine.numerics.dtensor import distribute_like, local_tensor
from assay.formats import manifest as manifests

_FIRST = -50  # before who evaluates and saves
CHUNK_BYTES = 64 * 2**20
"""Weights averaged at once are about so many: what is computed of them goes before the next."""


class EMA:
    """Callback that keeps an exponential moving average of the weights.

    After every `every` steps, average = decay * average + (1 - decay) * weights; it begins as the
    weights. `warmup`: the decay of update t is at most (1 + t) / (10 + t), so that the first
    weights are soon forgotten. Buffers are not averaged.

    With `evaluate` the average is what is evaluated. It thus decides about the best checkpoint, is
    tested by `assay test` and returned by `load_model`. Training continues with the weights, which
    it never changes.
    """

    def __init__(
        self, decay: float = 0.999, *, every: int = 1, evaluate: bool = True, warmup: bool = False
    ) -> None:
        if not 0.0 <= decay < 1.0:
            raise InputError(
                f"decay is {decay}; it is the share of the average that stays, from 0 up to"
                " below 1."
            )
        if every < 1:
            raise InputError(f"every is {every}; it counts steps, from 1 on.")
        self.decay = decay
        self.every = every
        self.evaluate = evaluate
        self.warmup = warmup
        self.updates = 0
        self._live: list[Tensor] = []
        self._average: list[Tensor] = []
        self._chunks: list[slice] = []
        self._place: dict[str, int] = {}  # of every name of a parameter: tied ones have several
        self._loaded: Mapping[str, Tensor] | None = None
        self._aside: list[Tensor] | None = None
        self._engine: Engine | None = None
        self._newest = 0  # the step of the last update

    def handlers(self) -> list[Handler]:
        out = [
            Handler(event=Event.EXCEPTION, fn=self.go_back, priority=_FIRST),
            Handler(event=Event.RUN_BEGIN, fn=self.begin, priority=_FIRST),
            Handler(event=Event.STEP_END, fn=self.update, when=Every(self.every), priority=_FIRST),
        ]
        if self.evaluate:
            out.append(Handler(event=Event.EVAL_BEGIN, fn=self.put_in, priority=_FIRST))
            out.append(Handler(event=Event.EVAL_END, fn=self.take_out, priority=_FIRST))
            out.append(Handler(event=Event.EXCEPTION, fn=self.take_out, priority=-1000))
        return out

    @property
    def weights(self) -> dict[str, Tensor]:
        """The average by the names of the parameters."""
        return {name: self._average[place] for name, place in self._place.items()}

    def begin(self, engine: Engine) -> None:
        """Begin with the loaded average, else that of this model's earlier run, else the weights.

        InputError if two averages are to be evaluated.
        """
        if sum(average.evaluate for average in engine.bus.owners(EMA)) > 1:
            raise InputError(
                "Two averages are to be evaluated; one can.",
                fix="Give all EMA but one evaluate = false.",
            )
        weights = [weight for weight in engine.process.model.parameters() if _is_averaged(weight)]
        if [id(weight) for weight in weights] != [id(weight) for weight in self._live]:
            self._look_at(engine.process.model)
        if self._loaded is not None:
            self._fill(self._loaded)
            self._loaded = None
        self._engine, self._newest = engine, engine.state.step

    def go_back(self, state: State) -> None:
        """Discount the updates since a non-finite step, during which nothing was averaged.

        Such a step may be known only after later ones.
        """
        self.updates -= max(0, self._newest // self.every - state.step // self.every)
        self._newest = state.step

    @torch.no_grad()
    def update(self) -> None:
        decay = (
            min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
        )
        flag = self._engine.lasting_flag if self._engine is not None else None
        for chunk in self._chunks:
            means = [local_tensor(mean) for mean in self._average[chunk]]
            live = [
                local_tensor(weight).to(mean.dtype)
                for weight, mean in zip(self._live[chunk], means, strict=True)
            ]
            if flag is None:
                private_torch.foreach_lerp_(means, live, 1.0 - decay)
            else:
                copy_unless_(flag, means, private_torch.foreach_lerp(means, live, 1.0 - decay))
        self.updates += 1
        if self._engine is not None:
            self._newest = self._engine.state.step

    @torch.no_grad()
    def put_in(self) -> None:
        """The model has the averaged weights from here on."""
        # Without live weights this is a test, which has loaded what it tests.
        if not self._live or self._aside is not None:
            return
        self._aside = [local_tensor(weight).clone() for weight in self._live]
        private_torch.foreach_copy_(
            [local_tensor(weight) for weight in self._live],
            [local_tensor(mean) for mean in self._average],
        )

    @torch.no_grad()
    def take_out(self) -> None:
        """The model has its own weights again, bit for bit."""
        if self._aside is not None:
            private_torch.foreach_copy_(
                [local_tensor(weight) for weight in self._live], self._aside
            )
            self._aside = None

    def state_dict(self) -> dict[str, Any]:
        # Loaded weights stand until the first update.
        weights = self.weights if self._loaded is None else dict(self._loaded)
        return {"updates": self.updates, "evaluate": self.evaluate, "weights": weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.updates = state["updates"]
        self._loaded = state["weights"]

    def _look_at(self, model: nn.Module) -> None:
        places: dict[int, int] = {}
        self._live, self._average, self._place = [], [], {}
        for name, weight in model.named_parameters(remove_duplicate=False):
            if not _is_averaged(weight):
                continue
            if id(weight) not in places:
                places[id(weight)] = len(self._live)
                self._live.append(weight)
                kind = (
                    torch.float32
                    if weight.dtype in (torch.float16, torch.bfloat16)
                    else weight.dtype
                )
                # A small step would be lost in 16 bits.
                self._average.append(weight.detach().to(kind, copy=True))
            self._place[name] = places[id(weight)]
        self._chunks = list(_chunks_of(self._average))

    def _fill(self, saved: Mapping[str, Tensor]) -> None:
        odd = saved.keys() ^ self._place.keys()
        odd |= {
            name
            for name in saved.keys() - odd
            if saved[name].shape != self._average[self._place[name]].shape
        }
        if odd:
            some = ", ".join(sorted(odd)[:5])
            raise CheckpointError(
                f"The averaged weights of the checkpoint are of another model: {some}."
            )
        for name, place in self._place.items():
            average = self._average[place]
            local_tensor(average).copy_(local_tensor(distribute_like(average, saved[name])))


def _is_averaged(weight: Tensor) -> bool:
    """Return whether a weight has an average: one of whole numbers has none."""
    return weight.is_floating_point() or weight.is_complex()


def _chunks_of(tensors: Sequence[Tensor]) -> Iterator[slice]:
    """Yield slices of a list of tensors, of about CHUNK_BYTES each."""
    begin = size = 0
    for end, tensor in enumerate(tensors, 1):
        size += local_tensor(tensor).nbytes
        if size >= CHUNK_BYTES or end == len(tensors):
            yield slice(begin, end)
            begin, size = end, 0


def evaluated_weights(
    folder: Path, share: Share | None = None, readers: Readers | None = None
) -> dict[str, Any]:
    """Return the weights that the run of a checkpoint evaluated: averaged ones if there are any.

    With `share` they are those of one rank, as `load_share` reads them with the `readers`.
    """
    averages = tuple(
        part.name
        for part in manifests.read(folder).parts
        if part.name.partition(".")[0] == EMA.__name__
    )
    names = ("model", *averages)
    parts = (
        load_parts(folder, parts=names)
        if share is None
        else load_share(folder, share, parts=names, readers=readers)
    )
    weights = dict(parts["model"])
    for name in averages:
        if parts[name].get("evaluate") is True:
            weights.update(parts[name]["weights"])
    return weights


def load_to_evaluate(
    process: Process, path: Path, options: Mapping[str, Any] | None = None
) -> Report:
    """Load a checkpoint folder, or a file of weights, into a process; return what did not fit.

    A checkpoint also restores the criterion and the modules of the process. `options`: those of
    `load_weights`. CheckpointError when the weights cannot be read or do not fit.
    """
    how = dict(options or {})
    if path.is_dir() and any(part.name == "model" for part in manifests.read(path).parts):
        how.pop("pickled", None)
        report = fit_weights(process.model, evaluated_weights(path), resizes=not how, **how)
        beside = tuple(p.name for p in manifests.read(path).parts if p.name in PROCESS_PARTS)
        if beside:
            load_process_state(process, load_parts(path, parts=beside))
        return report
    return load_weights(process.model, path, **how)
