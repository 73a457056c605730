"""A run around any script, as the README of thexp shows it.

Other than there: the imports, a run in place of an experiment, checkpoints that are folders, and no
waiting.
"""

import assay
from assay import Logger
from assay.engine import Saver, Where

run = assay.start(tag="exp")


@run.keycode()
def train():
    logger = Logger()
    logger.add_log_dir(run.watch("log", [".log"]))
    save = Saver(run.watch("save", [".json"]))
    for i in range(10):
        for j in range(5):
            save.save({"state": {"i": i, "j": j}}, Where(step=5 * i + j))
        logger.info(i)


train()
