"""Rehearsal: a training step tried without its memory.

`ladder` tries the rungs; `trial` makes the step; `observer` sees its operations.
"""
