"""Digest of the batches of every step: two runs that saw the same data have equal curves."""

from __future__ import annotations

from hashlib import blake2b

from torch import Tensor

from assay.core.errors import CheckpointError
from assay.core.event_log import Warned
from assay.core.events import Event, Handler
from assay.engine.checkpoint.codec import digest, digest_tensor
from assay.engine.data.batches import mapped
from assay.engine.loop.engine import Engine

NAME = "data/digest"
_BITS = 48  # a point of a curve is a float64: more would be rounded


class BatchDigest:
    """Records `data/digest`: 48 bits of a digest of the micro-batches of each step, in their order.

    They are as the model gets them, augmented and on the device; each step waits for that. Of a
    batch with something in it that is neither plain data nor a tensor only the tensors count; that
    there are none is told once.
    """

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=_BITS // 8)
        self._is_told = False

    def handlers(self) -> list[Handler]:
        return [
            Handler(event=Event.BACKWARD_BEGIN, fn=self.add, priority=1000),
            Handler(event=Event.STEP_END, fn=self.record, priority=-1000),
        ]

    def add(self, engine: Engine) -> None:
        batch = engine.state.batch
        try:
            found = digest(batch)
        except CheckpointError:  # a class of somebody: what counts in it are its tensors
            inside: list[str] = []

            def look(tensor: Tensor) -> Tensor:
                inside.append(digest_tensor(tensor))
                return tensor

            mapped(batch, look)
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
        value = int.from_bytes(self._hash.digest(), "big")
        self._hash = blake2b(digest_size=_BITS // 8)
        engine.recorder.log({NAME: float(value)}, engine.state.step)
