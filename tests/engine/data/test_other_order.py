"""A run resumed within an epoch with other options sees each sample once, or is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from assay.core.errors import InputError
from assay.engine import Balanced, ByLength, Engine, Loader, Subset, Supervised, Weighted, seed_all
from assay.engine.loop.engine_state import capture_state, restore

SIZE = 400


class Numbered:
    """Samples that are their index."""

    randomness = "none"

    def __init__(self, size: int = SIZE) -> None:
        self.lengths = [1 + (i * 7919) % 97 for i in range(size)]
        self.labels = [i % 4 for i in range(size)]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index)]), torch.tensor([0.0])


class Backwards:
    """Order of a user's own."""

    def __init__(self, step: int = 1) -> None:
        self.step = step

    def order(self, dataset: Any, *, seed: int, batch_size: int) -> Any:
        class Order:
            n = len(dataset)

            def indices(this, epoch: int, start: int, count: int) -> Any:
                order = torch.arange(this.n - 1, -1, -1) * self.step % this.n
                return order[start : start + count].numpy()

        return Order()


def batches(size: int, *, shuffle: bool = False, drop_last: bool = False) -> BatchSampler:
    indices = RandomSampler(range(SIZE)) if shuffle else SequentialSampler(range(SIZE))
    return BatchSampler(indices, size, drop_last)


def trained(options: dict[str, Any], seen: list[int], *, part: Any = None, stop: int = 0) -> Any:
    """Train an epoch, or up to a step, or the rest after a checkpoint; return a checkpoint."""
    seed_all(0)
    model = nn.Linear(1, 1)
    options = dict(options)
    data = Numbered(options.pop("size", SIZE))
    options.setdefault("seed", 0)
    if "torch" in options:
        loader: Any = DataLoader(data, batch_size=options["torch"], shuffle=True)  # type: ignore[arg-type]
    else:
        loader = Loader(data, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-12)
    engine = Engine(
        Supervised(model, nn.MSELoss(), optimizer), loader, epochs=1, seed=options["seed"]
    )

    @engine.on("backward_begin")
    def look() -> None:
        seen.extend(engine.state.batch[0][:, 0].long().tolist())

    @engine.on("step_end")
    def end() -> None:
        if engine.state.step == stop:
            engine.stop("enough", interrupts=True)

    if part is not None:
        restore(engine, part)
    engine.run()
    return capture_state(engine)


SHUFFLED: dict[str, Any] = {"shuffle": True}
SORTED: dict[str, Any] = {"sampler": ByLength(window=4)}
LISTS: dict[str, Any] = {"batch_sampler": batches(32)}
# what it was, what it is, and the name that the refusal has; "" for each sample once
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    **{f"shuffled, {n}": (SHUFFLED, SHUFFLED | {"batch_size": n}, "") for n in (8, 16, 33, 64)},
    "sequential": ({}, {"batch_size": 24}, ""),
    "accumulate": (SHUFFLED, SHUFFLED | {"accumulate": 4}, ""),
    "micro-batches": (SHUFFLED, SHUFFLED | {"micro_batch_size": 16}, ""),
    "not shuffled any more": (SHUFFLED, {}, "order"),
    "shuffled from here on": ({}, SHUFFLED, "order"),
    "another seed": (SHUFFLED, SHUFFLED | {"seed": 5}, "seed"),
    "more samples, shuffled": (SHUFFLED, SHUFFLED | {"size": 416}, "samples"),
    "more samples": ({}, {"size": 416}, ""),
    "drop_last": (SHUFFLED | {"drop_last": True}, SHUFFLED | {"drop_last": True}, ""),
    "torch, shuffled": ({"torch": 32}, {"torch": 24}, ""),
    "a sampler from here on": (SHUFFLED, SORTED, "order"),
    **{f"by length, {n}": (SORTED, SORTED | {"batch_size": n}, "batch_size") for n in (8, 33, 64)},
    "by length, the same": (SORTED, SORTED, ""),
    "by length, accumulate": (SORTED, SORTED | {"accumulate": 2}, ""),
    "by length, window": (SORTED, {"sampler": ByLength(window=2)}, "window"),
    "by length, lengths": (SORTED, {"sampler": ByLength([1] * SIZE, window=4)}, "lengths"),
    "subset": ({"sampler": Subset(stop=1.0)}, {"sampler": Subset(stop=1.0), "batch_size": 24}, ""),
    "subset, another": (
        {"sampler": Subset(list(range(SIZE)))},
        {"sampler": Subset(list(range(SIZE))[::-1])},
        "indices",
    ),
    "balanced": ({"sampler": Balanced()}, {"sampler": Balanced(), "batch_size": 24}, ""),
    "balanced, others": (
        {"sampler": Balanced()},
        {"sampler": Balanced([i % 2 for i in range(SIZE)])},
        "labels",
    ),
    "weighted, others": (
        {"sampler": Weighted([1.0] * SIZE)},
        {"sampler": Weighted([2.0] + [1.0] * (SIZE - 1))},
        "weights",
    ),
    "own order": ({"sampler": Backwards()}, {"sampler": Backwards(), "batch_size": 24}, ""),
    "own order, another": ({"sampler": Backwards()}, {"sampler": Backwards(3)}, "indices"),
    "lists": (LISTS, LISTS, ""),
    "lists, accumulate": (LISTS | {"accumulate": 2}, LISTS | {"accumulate": 4}, ""),
    **{f"lists, {n}": (LISTS, {"batch_sampler": batches(n)}, "") for n in (8, 24, 64)},
    "lists, shuffled": (
        {"batch_sampler": batches(32, shuffle=True)},
        {"batch_sampler": batches(24, shuffle=True)},
        "",
    ),
    "lists, another order": (LISTS, {"batch_sampler": batches(32, shuffle=True)}, "indices"),
    "lists, others left out": (LISTS, {"batch_sampler": batches(24, drop_last=True)}, "indices"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_sample_is_seen_once_or_the_resume_is_refused(name: str) -> None:
    before, after, refused = CASES[name]
    sized = {"batch_sampler", "torch"}
    before, after = (
        options if sized & options.keys() else {"batch_size": 32, **options}
        for options in (before, after)
    )
    seen: list[int] = []
    part = trained(before, seen, stop=7 if "accumulate" not in before else 3)

    if refused:
        with pytest.raises(
            InputError, match=f"within epoch 1: .* depends on `{refused}`"
        ) as caught:
            trained(after, seen, part=part)
        assert "Finish the epoch" in caught.value.fix
        return
    trained(after, seen, part=part)
    whole = SIZE - SIZE % 32 if before.get("drop_last") else after.get("size", SIZE)
    assert len(seen) == whole
    if not isinstance(after.get("sampler"), Balanced):
        assert max(Counter(seen).values()) == 1


def test_another_order_begins_with_the_next_epoch() -> None:
    seen: list[int] = []
    part = trained({"batch_size": 32, **SORTED}, seen)
    part["state"]["epoch"] = 0  # the epoch is complete, and is made once more
    trained({"batch_size": 8, **SORTED}, seen, part=part)

    assert Counter(seen) == {index: 2 for index in range(SIZE)}
