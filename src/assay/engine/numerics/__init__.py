"""Precision, determinism, keyed randomness and the search for non-finite values."""
