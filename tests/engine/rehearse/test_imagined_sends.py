"""Sends of ranks that do not exist keep their tensors, as those of real ranks do."""

from __future__ import annotations

import weakref

import torch
import torch.distributed as dist

from assay.engine.rehearse.fake import imagined_world


def test_a_send_keeps_its_tensor_until_it_is_dropped() -> None:
    plain = dist.isend
    with imagined_world(0, 2):
        tensor = torch.ones(3)
        storage = weakref.ref(tensor.untyped_storage())
        sent = dist.P2POp(dist.isend, tensor, 1).op(tensor, 1)
        del tensor

        assert sent is not None and storage() is not None
        sent.wait()
        del sent
        assert storage() is None

    assert dist.isend is plain is dist.distributed_c10d.isend
