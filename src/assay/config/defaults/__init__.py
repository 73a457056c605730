"""Default sections for Python configs.

Use them as in `from assay.config.defaults.optim import AdamW`, then change them.

A config that imports them, or takes them with `get_config("defaults/optim.py")`, gets copies of its
own. Targets are written as text, so that reading a default imports nothing.
"""

HOMES = {
    "model": "model",
    "data": "data",
    "process": "process",
    "optimizer": "optim",
    "schedule": "schedule",
    "train": "train",
    "evaluate": "train",
    "checkpoint": "train",
}
"""Section -> the module here that has one to start from."""
