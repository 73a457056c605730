"""Checkpoints nobody can tear and nothing can hide in.

`codec`           any tree of state as tensors (safetensors) and tagged JSON; no pickle on any path
`tensor_file`     one file of tensors, hashed while it is written; copies in host memory
`folder`          one checkpoint, written and read by parts, verified when read; two compared
`saver`           a folder of checkpoints: written aside, synced, renamed; found by step, name,
                  newest or best
`together`        a checkpoint that several processes write, a file each
`weights`         checkpoints put into models and optimizers, from folders and from other files
"""
