"""Weights, compilation, recomputation and the modules behind wrappers."""
