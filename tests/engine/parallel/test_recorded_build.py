"""A model that is built in parts is that of a plain build, and no rank has more than its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from assay.engine.numerics.dtensor import local_tensor
from assay.engine.numerics.private_torch import DispatchMode
from assay.engine.numerics.structures import tensors_in
from assay.engine.parallel.join import partition_model
from assay.engine.parallel.layout import Layout
from assay.engine.parallel.recorded_build import RecordedBuild, UnrecordableError, give_memory
from assay.engine.rehearse.fake import Fakes, is_foreign
from assay.engine.rehearse.imagined_ranks import imagined_mesh
from assay.engine.rehearse.ledger import Ledger
from engine.parallel.launching import answers, script
from warm_python import Run

SCRIPT = Path(__file__).with_name("build_cases.py")
cases = script("build_cases", SCRIPT)


class Holder(nn.Module):
    """Module with one weight, drawn by `draw`; it reads numbers of it, and draws another after."""

    def __init__(self, draw: Callable[[], Any]) -> None:
        super().__init__()
        found = draw()
        self.part = found if isinstance(found, nn.Module) else nn.Module()
        if isinstance(found, Tensor):
            self.weight = nn.Parameter(found, requires_grad=found.is_floating_point())
        self.after = nn.Parameter(torch.randn(3))
        first = max(self.parameters(), key=torch.numel).detach()
        self.numbers = [float(first.float().std()), first.flatten()[5].item(), first.shape]


def linear(begin: Callable[[Tensor], object]) -> Callable[[], nn.Module]:
    def draw() -> nn.Module:
        made = nn.Linear(40, 50)
        begin(made.weight)
        return made

    return draw


def changed_by_hand() -> nn.Module:
    made = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40).double())
    with torch.no_grad():
        made[0].weight[:10].mul_(2)
        made[0].weight[3] = torch.linspace(0, 1, 40)
        made[1].weight.t().copy_(made[0].weight.double())
        made[1].weight[:, torch.tensor([1, 2])] = made[0].weight.max().double()
    return made


def tied() -> nn.Module:
    made = nn.Sequential(nn.Linear(40, 40), nn.Linear(40, 40), nn.Linear(40, 40))
    made[2].weight = made[0].weight
    made[0].weight.is_special = True  # type: ignore[attr-defined]
    return made


def of_own_generator() -> Tensor:
    draw = torch.Generator().manual_seed(1)
    torch.rand(7, generator=draw)
    return torch.rand(40, 40, generator=draw)


DRAWS: dict[str, Callable[[], Any]] = {
    "randn": lambda: torch.randn(40, 40) * 0.02,
    "own generator": of_own_generator,
    "permuted": lambda: torch.rand(1000)[torch.randperm(1000)],
    "bernoulli": lambda: torch.bernoulli(torch.rand(40, 40)),
    "multinomial": lambda: torch.multinomial(torch.rand(40, 40), 20).float(),
    "gamma": lambda: torch._standard_gamma(torch.rand(40, 40)),  # takes as many as values want
    "integers": lambda: torch.randint(0, 9, (40, 40)),
    "xavier": linear(nn.init.xavier_normal_),
    "orthogonal": linear(nn.init.orthogonal_),
    "truncated": linear(nn.init.trunc_normal_),
    "sparse": linear(lambda weight: nn.init.sparse_(weight, 0.5)),
    "twice": linear(lambda weight: nn.init.normal_(weight).data.uniform_()),
    "embedding": lambda: nn.Embedding(50, 40, padding_idx=3),
    "channels last": lambda: nn.Conv2d(8, 16, 3).to(memory_format=torch.channels_last),
    "half": lambda: nn.Linear(40, 40).bfloat16(),
    "copied": lambda: copy.deepcopy(nn.Linear(40, 40)),
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(40, 40)),
    "transformer": lambda: nn.Transformer(16, 2, 1, 1, 32, batch_first=True),
    "by hand": changed_by_hand,
    "tied": tied,
}


@pytest.mark.parametrize("large_bytes", [1, 2000])
@pytest.mark.parametrize("name", DRAWS)
def test_a_recorded_model_has_the_bits_of_a_plain_one(name: str, large_bytes: int) -> None:
    torch.manual_seed(3)
    plain = Holder(DRAWS[name])
    state = torch.get_rng_state()

    torch.manual_seed(3)
    record = RecordedBuild(large_bytes=large_bytes)
    model = record.build(lambda: Holder(DRAWS[name]))

    assert torch.equal(torch.get_rng_state(), state)
    assert model.numbers == plain.numbers
    missing = record.tensors(model)
    assert bool(missing) and all(tensor.is_meta for tensor in missing)
    for tensor in missing:
        give_memory(tensor, record.compute(record.find(tensor)))
    expected = dict(plain.named_parameters(remove_duplicate=False))
    found = dict(model.named_parameters(remove_duplicate=False))
    assert found.keys() == expected.keys()
    for key, weight in found.items():
        assert type(weight) is nn.Parameter
        assert torch.equal(weight, expected[key]) and weight.dtype == expected[key].dtype
        assert weight.stride() == expected[key].stride()
        assert weight.requires_grad == expected[key].requires_grad
        assert weight.__dict__ == expected[key].__dict__
    if name == "tied":
        assert model.part[0].weight is model.part[2].weight


def test_small_tensors_have_their_values_at_once() -> None:
    record = RecordedBuild()

    model = record.build(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(300, 300)))

    assert [weight.is_meta for weight in model.parameters()] == [False, False, True, False]


class Elsewhere(nn.Module):
    held: ClassVar[list[Tensor]] = []

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(40, 40))
        self.held.append(torch.rand(40, 40))


class Shares(nn.Module):
    """Two weights in one memory: each alone would be another."""

    def __init__(self) -> None:
        super().__init__()
        both = torch.rand(80, 40)
        self.one, self.other = nn.Parameter(both[:40]), nn.Parameter(both[40:])


class Reads(nn.Module):
    """Leaves torch for numpy."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(40, 40))
        self.numbers = self.weight.detach().numpy()


@pytest.mark.parametrize("kind", [Elsewhere, Shares, Reads, lambda: nn.LSTM(40, 40)])
def test_a_model_that_cannot_be_computed_later_is_refused(kind: Callable[[], nn.Module]) -> None:
    try:
        with pytest.raises((UnrecordableError, RuntimeError)):
            RecordedBuild(large_bytes=4096).build(kind)
    finally:
        Elsewhere.held.clear()


@pytest.fixture(scope="module", params=[2, 4])
def built(request: Any, tmp_path_factory: pytest.TempPathFactory, warm: Run) -> list[Any]:
    """What each rank of a launch gave."""
    return answers(SCRIPT, tmp_path_factory.mktemp("build"), request.param, warm=warm)


@pytest.mark.slow
@pytest.mark.row("E55")
def test_each_rank_builds_its_own_part_of_the_weights_of_one_process(built: list[Any]) -> None:
    plain = cases.deep()
    expected = cases.digests(plain)
    sizes = {name: tensor.nbytes for name, tensor in plain.state_dict().items()}
    largest = max(sizes.values())

    for layout in cases.LAYOUTS[len(built)]:
        together: set[str] = set()
        for rank in built:
            found = rank["layouts"][str(layout)]["recorded"]
            names = found["digests"].keys()
            together |= names
            assert found["digests"] == {name: expected[name] for name in names}
            # What is divided, in as many parts as the axes have; the rest is there as a whole.
            share = sum(
                sizes[name]
                / (layout.shard if name != "mask" else 1)
                / (layout.tensor if name.startswith("blocks") else 1)
                for name in names - {"again.weight"}
            )
            assert found["most_bytes"] < share + 2 * largest
            assert rank["layouts"][str(layout)]["whole"]["most_bytes"] > share + 2 * largest
        assert together == expected.keys()


@pytest.mark.slow
def test_all_ranks_build_the_whole_where_one_has_to_and_say_why(built: list[Any]) -> None:
    lines = [rank["refused"] for rank in built]

    because = "a large tensor is held outside of its modules, or twice, as in nn.LSTM"
    assert lines == [
        [f"built whole before it was divided: {why}", 2, True, True]
        for why in ("as on another rank", *[because] * (len(built) - 1))
    ]


class Counting(DispatchMode):  # type: ignore[no-untyped-call]
    """Counts the memory that the fake tensors of one mode would have."""

    def __init__(self, fakes: Fakes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fakes = fakes
        self.ledger = Ledger()
        self.most_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_foreign(types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            if getattr(tensor, "fake_mode", None) is self.fakes.mode:
                self.ledger.see(tensor)
        self.most_bytes = max(self.most_bytes, self.ledger.live_bytes)
        return out


class Layers(nn.Module):
    """Weights of a language model, initialised when all are there."""

    def __init__(self, letters: int, width: int, hidden: int, depth: int) -> None:
        super().__init__()
        self.letter = nn.Embedding(letters, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(nn.Linear(width, width, bias=False) for _ in range(4)),
                *(nn.Linear(width, hidden, bias=False) for _ in range(2)),
                nn.Linear(hidden, width, bias=False),
            )
            for _ in range(depth)
        )
        self.scores = nn.Linear(width, letters, bias=False)
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02)

    def forward(self, letters: Tensor) -> Tensor:
        raise NotImplementedError


@pytest.mark.slow
def test_a_rank_of_eight_never_has_more_of_a_7b_model_than_its_share_and_one_weight() -> None:
    fakes = Fakes()
    record = RecordedBuild()
    counting = Counting(fakes)

    with imagined_mesh(Layout(shard=8), torch.device("cpu")) as mesh, fakes.use(), counting:
        model = record.build(lambda: Layers(32_000, 4096, 11_008, 32))
        at_build = counting.most_bytes
        partition_model(model, mesh, record=record)

    sizes = [weight.nbytes for weight in model.parameters()]
    assert sum(weight.numel() for weight in model.parameters()) == 6_738_149_376
    parts = sum(local_tensor(weight).nbytes for weight in model.parameters())
    assert parts == sum(sizes) // 8
    assert at_build < max(sizes) * 1.1
    assert parts < counting.most_bytes < (parts + max(sizes)) * 1.02
