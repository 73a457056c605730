"""What a run says of its length."""

from __future__ import annotations

import pytest

from assay.core.errors import InputError
from assay.engine.data.adopt import as_source
from assay.engine.data.loader import Loader
from assay.engine.loop.bounds import arithmetic, larger


class Images:
    """As many as the best known set of digits has."""

    def __len__(self) -> int:
        return 60_000

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.row("E30")
@pytest.mark.parametrize(
    ("options", "epochs", "total", "lines"),
    [
        ({}, 20, 9380, ["20 epochs x 469 (60,000 samples / 128, rounded up) = 9,380 steps"]),
        (
            {"drop_last": True},
            20,
            9360,
            ["20 epochs x 468 (60,000 samples / 128, the last 96 left out) = 9,360 steps"],
        ),
        (
            {},
            1,
            1,
            [
                "1 step, which come before 1 epoch x 469 (60,000 samples / 128, rounded up) = 469 steps"
            ],
        ),
        ({}, None, 938, ["938 steps = 2 epochs x 469 (60,000 samples / 128, rounded up)"]),
        ({}, None, None, ["an epoch has 469 (60,000 samples / 128, rounded up) steps"]),
        (
            {"batch_size": 100, "accumulate": 4},
            2,
            1200,
            [
                "2 epochs x 600 (60,000 samples / 100) = 1,200 steps",
                "a step has 100 = 4 accumulate x 25",
            ],
        ),
    ],
)
def test_the_length_of_a_run_is_told_with_its_arithmetic(
    options: dict[str, int], epochs: int | None, total: int | None, lines: list[str]
) -> None:
    loader = Loader(Images(), **{"batch_size": 128, **options})  # type: ignore[arg-type]

    assert arithmetic(loader, epochs=epochs, total=total) == lines


@pytest.mark.row("E30")
@pytest.mark.parametrize(
    ("epochs", "steps", "expected"),
    [
        (
            500,
            10_000,
            (None, 10_000, "the larger of 10,000 steps and 500 epochs x 10 = 5,000 steps"),
        ),
        (500, 4_999, (500, None, "the larger of 4,999 steps and 500 epochs x 10 = 5,000 steps")),
        (1, 1, (1, None, "the larger of 1 step and 1 epoch x 10 = 10 steps")),
    ],
)
def test_the_larger_of_two_bounds_is_told_with_its_arithmetic(
    epochs: int, steps: int, expected: tuple[int | None, int | None, str]
) -> None:
    assert larger(as_source([None] * 10), epochs=epochs, steps=steps) == expected


def test_the_larger_of_two_bounds_is_unknown_where_the_length_of_an_epoch_is() -> None:
    with pytest.raises(InputError, match="nobody knows how many batches an epoch has"):
        larger(as_source(iter([None] * 10)), epochs=2, steps=3)
