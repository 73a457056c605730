"""Plugins that a config can name: each uses only what a plugin of the user's own could use."""

from assay.plugins.auto_report import AutoReport as AutoReport
from assay.plugins.tensorboard import TensorBoard as TensorBoard

__all__ = ["AutoReport", "TensorBoard"]
