"""Digests of the batches of every step: two runs that saw the same data have equal curves."""

from __future__ import annotations

from hashlib import blake2b

from assay.core.errors import CheckpointError
from assay.core.events import Event, Handler
from assay.core.facts import Warned
from assay.engine.checkpoint.codec import digest_state, digest_tensor
from assay.engine.data.loader import planned_indices
from assay.engine.loop.engine import Engine
from assay.engine.numerics.structures import tensors_in

NAME = "data/digest"
ORDER = "data/order"
_BITS = 48  # a point of a curve is a float64: more would be rounded


class BatchDigest:
    """Records `data/digest`: 48 bits of a digest of the micro-batches of each step, in their order.

    They are as the model gets them, augmented and on the device; each step waits for that. Of a
    batch with something in it that is neither plain data nor a tensor only the tensors count; that
    there are none is told once. `data/order` is a digest of the indices of the samples, where the
    order is the loader's and not that of a sampler: it tells other samples from other content.
    """

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=_BITS // 8)
        self._indices: list[list[int]] = []
        self._is_told = False

    def handlers(self) -> list[Handler]:
        return [
            Handler(event=Event.BACKWARD_BEGIN, fn=self.add, priority=1000),
            Handler(event=Event.STEP_END, fn=self.record, priority=-1000),
        ]

    def add(self, engine: Engine) -> None:
        state, number = engine.state, len(self._indices)
        batch = state.batch
        indices = planned_indices(engine.source, state.epoch, state.epoch_samples, number)
        if indices is not None:
            self._indices.append(indices)
        try:
            found = digest_state(batch)
        except CheckpointError:  # a class of somebody: what counts in it are its tensors
            inside = [digest_tensor(tensor) for tensor in tensors_in(batch)]
            found = " ".join(inside)
            if not inside and not self._is_told:
                message = (
                    f"{NAME} does not say what is in a batch: a {type(batch).__name__} holds no"
                    " tensors."
                )
                engine.recorder.tell(Warned(message=message, step=engine.state.step))
                self._is_told = True
        self._hash.update(f"{found}\n".encode())

    def record(self, engine: Engine) -> None:
        values = {NAME: self._hash.digest()}
        if self._indices:
            indices = repr(self._indices).encode()
            values[ORDER] = blake2b(indices, digest_size=_BITS // 8).digest()
        self._hash = blake2b(digest_size=_BITS // 8)
        self._indices = []
        numbers = {name: float(int.from_bytes(value, "big")) for name, value in values.items()}
        engine.recorder.log(numbers, engine.state.step)
