"""Weights without a shape are found where the model is built, with the module that has them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from assay.core.errors import InputError
from assay.engine.model.modules import refuse_lazy


def test_a_model_with_a_lazy_module_inside_is_refused_until_it_has_seen_a_batch() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.LazyBatchNorm1d(), nn.LazyLinear(2)))

    with pytest.raises(
        InputError,
        match=r"1\.0\.weight of the model has no shape .* LazyBatchNorm1d is a lazy module",
    ):
        refuse_lazy(model)

    model(torch.zeros(3, 4))
    refuse_lazy(model)
