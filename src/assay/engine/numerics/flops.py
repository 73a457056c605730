"""Floating-point operations of what torch has no formula for."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import flop_registry


def count_attention_on_cpu() -> None:
    """Give torch's counters the formulas of attention for its form on a CPU, which they leave out.

    The whole of a causal mask counts, as it does elsewhere in torch.
    """
    aten = torch.ops.aten
    known = aten._scaled_dot_product_flash_attention
    forward = aten._scaled_dot_product_flash_attention_for_cpu
    known_backward = aten._scaled_dot_product_flash_attention_backward
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    flop_registry.setdefault(forward, flop_registry[known])
    flop_registry.setdefault(backward, flop_registry[known_backward])
