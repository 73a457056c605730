"""The pipeline that the README of alchemy shows.

Other than there: the imports. `train_sched` counts what is completed, so at the end of an epoch
this epoch is counted already, and is said by `epoch` and `step`.
"""

import logging
from typing import Any, Dict  # noqa: UP035

from alchemy import EndEpochPipeline, SchedPipeline, evaluate

from assay.build import sym_tbl

logger = logging.getLogger("assay")


@SchedPipeline.register("EvalEpochEEPipeline")
class EvalEpochEEPipeline(EndEpochPipeline):
    def __init__(self, period: int, split: str = "dev", **kwargs) -> None:
        super().__init__()
        self.period = period
        self.split = split

    def __call__(self, **kwargs) -> Dict[str, Any]:  # noqa: UP006
        cur_epoch = sym_tbl().train_sched.epoch
        if cur_epoch % self.period == 0:
            logger.info(
                "EvalEpoch at epoch {} step {}".format(  # noqa: UP032
                    sym_tbl().train_sched.epoch,
                    sym_tbl().train_sched.step,
                )
            )
            evaluate(self.split)
        return kwargs
