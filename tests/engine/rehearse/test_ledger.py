"""The ledger: what tensors hold, and what was alive at the peak."""

from __future__ import annotations

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.engine.rehearse.ledger import Ledger


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 64)), max_size=40), st.integers(0, 99))
def test_the_peak_is_the_most_that_was_alive_at_once(
    orders: list[tuple[int, int]], seed: int
) -> None:
    draw = random.Random(seed)
    ledger, alive, most = Ledger(), [torch.empty(16)], 0
    ledger.see(alive[0])
    ledger.begin()

    for kind, size in orders:
        if kind == 0 and alive:
            alive.pop(draw.randrange(len(alive)))
        else:
            alive.append(torch.empty(size))
            ledger.see(alive[-1])
        most = max(most, sum(tensor.nbytes for tensor in alive))

    assert ledger.memory().peak_bytes == max(most, 64)
    assert ledger.live_bytes == sum(tensor.nbytes for tensor in alive)


def test_views_hold_nothing_of_their_own() -> None:
    ledger, tensor = Ledger(), torch.empty(8, 8)

    for each in (tensor, tensor[0], tensor.t(), tensor.detach()):
        ledger.see(each)

    assert ledger.live_bytes == 256


def test_optimizer_states_count_from_the_first_step_on() -> None:
    ledger = Ledger()
    weight = torch.empty(100)
    ledger.use([weight], "weights")
    ledger.begin()
    activation = torch.empty(1000)
    ledger.see(activation)
    del activation
    state = torch.empty(200)
    ledger.see(state)
    ledger.use([state], "optimizer")

    memory = ledger.memory()

    assert memory.peak_bytes == 4 * (100 + 1000 + 200)
    assert (memory.weights_bytes, memory.optimizer_bytes) == (400, 800)
    assert memory.activations_bytes == 4000


def test_the_shares_add_up_to_the_peak_and_name_where_it_was() -> None:
    ledger = Ledger()
    weight = torch.empty(10)
    ledger.use([weight], "weights")
    ledger.begin()
    ledger.where = "first"
    one = torch.empty(20)
    ledger.see(one)
    ledger.where = "second"
    two = torch.empty(30)
    ledger.see(two)
    ledger.use([two], "gradients")
    del one
    ledger.where = "third"
    ledger.see(torch.empty(1))

    memory = ledger.memory()

    assert memory.where == "second"
    assert memory.gradients_bytes == 120 and memory.activations_bytes == 80
    assert memory.peak_bytes == 240


def test_a_storage_that_is_resized_is_a_gathered_weight() -> None:
    ledger = Ledger()
    gathered = torch.empty(50)
    ledger.see(gathered)
    gathered.untyped_storage().resize_(0)
    ledger.see_resize(gathered.untyped_storage())
    ledger.begin()

    gathered.untyped_storage().resize_(200)
    ledger.see_resize(gathered.untyped_storage())

    assert ledger.live_bytes == 200
    assert ledger.memory().gathered_bytes == 200
