"""Checkpoints nobody can tear and nothing can hide in.

`codec`   any tree of state as tensors (safetensors) and tagged JSON; no pickle on any path
`saver`   folders written aside, synced, renamed; found by step, name, newest or best; verified when read
"""
