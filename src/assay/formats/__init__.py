"""Files of a record, a project and a checkpoint: each format in the module that describes it.

Standard library only.
"""
