"""Vocabulary of five older systems: their names, keys, configs and imports, by what stands here.

What stands for them are targets, named as text: the adapters among them lie in `assay.compat`.
"""
