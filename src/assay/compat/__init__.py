"""Names of five older systems, each a table and small adapters over assay.

`alchemy`, `framework`, `thexp`, `flame` and `libai` each have a module here. A config may name
their targets. Python code finds their modules after `install()`, and under
`python -m assay.compat SCRIPT`.
"""

from assay.compat.names import UnmappedImportError, UnmappedNameError, install

__all__ = ["UnmappedImportError", "UnmappedNameError", "install"]
