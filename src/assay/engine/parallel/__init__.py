"""Several processes that train one model together.

1. `ranks`  one process among those that share the data: what they count together and agree on
2. `data`   an engine made to share each step with them
3. `stages`, `pipeline`   a model split into stages, and how the micro-batches of a step go through them
4. `join`   how a process finds the others, and leaves them
"""

from assay.engine.parallel.data import data_parallel
from assay.engine.parallel.data_parallel_group import DataParallelGroup

__all__ = ["DataParallelGroup", "data_parallel"]
