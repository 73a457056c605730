"""Size of an optimizer step: batch = ranks x accumulate x micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

from assay.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """Samples of one optimizer step: ranks x `accumulate` x `micro`."""

    micro: int
    accumulate: int = 1
    ranks: int = 1

    @property
    def whole(self) -> int:
        return self.micro * self.accumulate * self.ranks

    def __str__(self) -> str:
        """Return the effective batch size and its factors.

        >>> print(BatchSize(micro=8, accumulate=4, ranks=2))
        64 = 2 ranks x 4 accumulate x 8
        """
        ranks = f"{self.ranks} ranks x " if self.ranks > 1 else ""
        return f"{self.whole} = {ranks}{self.accumulate} accumulate x {self.micro}"


def batch_size(
    whole: int | None = None,
    *,
    micro: int | None = None,
    accumulate: int | None = None,
    ranks: int = 1,
    split: str = "train",
) -> BatchSize:
    """Compute the sizes that are not given; InputError names sizes that fit.

    >>> batch_size(64, accumulate=4, ranks=2)
    BatchSize(micro=8, accumulate=4, ranks=2)
    """
    _check_sizes(split, batch_size=whole, micro_batch_size=micro, accumulate=accumulate)
    if whole is None:
        if micro is None:
            fix = f"Write batch_size = 64 under [data.{split}]."
            raise InputError(f"[data.{split}] has no batch_size.", fix=fix)
        return BatchSize(micro=micro, accumulate=accumulate or 1, ranks=ranks)
    on = f" on {ranks} ranks" if ranks > 1 else ""
    if whole % ranks:
        near = sorted({max(ranks, whole // ranks * ranks), -(-whole // ranks) * ranks})
        fix = f"batch_size can be {' or '.join(map(str, near))}."
        raise InputError(f"A batch of {whole} cannot be split evenly{on}.", fix=fix)
    own = whole // ranks
    choices = ", ".join(str(n) for n in range(1, own + 1) if own % n == 0)
    if micro is None:
        if own % (accumulate or 1):
            what = f"A batch of {whole} cannot be split into {accumulate} equal micro-batches{on}."
            raise InputError(what, fix=f"accumulate can be {choices}.")
        return BatchSize(micro=own // (accumulate or 1), accumulate=accumulate or 1, ranks=ranks)
    if accumulate not in (None, 1) and micro * accumulate != own:
        raise _contradiction(whole, micro, accumulate, ranks)
    if own % micro:
        what = f"A batch of {whole} cannot be split into micro-batches of {micro}{on}."
        raise InputError(what, fix=f"micro_batch_size can be {choices}.")
    return BatchSize(micro=micro, accumulate=own // micro, ranks=ranks)


def _check_sizes(split: str, **sizes: int | None) -> None:
    for name, value in sizes.items():
        place = name if name == "accumulate" else f"data.{split}.{name}"
        if value is not None and not hasattr(value, "__index__"):
            raise InputError(f"{place} is {value!r}; it must be a whole number.")
        if value is not None and value < 1:
            raise InputError(f"{place} is {value}; it must be at least 1.")


def _contradiction(whole: int, micro: int, accumulate: int, ranks: int) -> InputError:
    """Return the error for three sizes of which the product is not the whole."""
    of_ranks = f"{ranks} ranks x " if ranks > 1 else ""
    product = f"{of_ranks}accumulate {accumulate} x micro_batch_size {micro}"
    other = f"Or batch_size = {ranks * micro * accumulate}."
    return InputError(
        f"batch_size {whole} is not {product}.",
        fix=f"Give one of the two; the other follows. {other}",
    )
