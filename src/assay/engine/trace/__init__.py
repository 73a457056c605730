"""Fingerprints of a run, step by step, from which another run is told apart."""
