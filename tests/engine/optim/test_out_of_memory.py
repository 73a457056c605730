"""No memory left: the user is told of what there was too much, and what takes less."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from assay.engine import Loader
from assay.engine.optim.out_of_memory import OutOfMemoryError, is_out_of_memory
from engine.toys import engine, points, same_bits, supervised, weights_of


class Greedy(nn.Module):
    """Asks for a petabyte in its third forward pass."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.layer, self.calls, self.error = nn.Linear(4, 2), 0, error

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == 3:
            if self.error is not None:
                raise self.error
            torch.empty(2**50)
        return self.layer(x)  # type: ignore[no-any-return]


@pytest.mark.row("C65")
@pytest.mark.parametrize(
    "error", [None, torch.OutOfMemoryError("CUDA out of memory. It was 4.00 PiB.\nMore.")]
)
def test_it_tells_shapes_sizes_and_three_settings_to_try(error: Exception | None) -> None:
    model = Greedy(error)
    optimizer = torch.optim.AdamW(model.parameters())
    runs = engine(
        supervised(model, optimizer=optimizer), Loader(points(16), batch_size=8, accumulate=2)
    )
    before = []
    runs.on("step_end")(lambda: before.append(weights_of(model)))

    with pytest.raises(OutOfMemoryError) as caught:
        runs.run()

    told = caught.value
    assert told.what.startswith("There was no memory left at step 2: ")
    assert told.what.endswith("PiB." if error else told.what[-1]) and "\n" not in told.what
    assert told.where.startswith(
        "batch [float32 [4, 4], float32 [4, 2]]; weights 0 MiB, gradients 0 MiB, optimizer 0 MiB"
    )
    for setting in ("accumulate = 4", "activation_checkpoint = true", 'precision = "bf16"'):
        assert setting in told.fix
    assert told.exit_code == 1 and told.__cause__ is not None
    assert runs.state.step == 1 and same_bits(weights_of(model), before[0])


def test_other_errors_are_something_else() -> None:
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("DefaultCPUAllocator: "))
