"""A plugin, and a runner that trains and then tests."""

import time
from copy import deepcopy

from alchemy import AlchemyRunner, AlchemyTester, RunnerPlugin, logger


class Timer(RunnerPlugin):
    def begin(self):
        self.begun = time.monotonic()

    def end(self):
        logger.info("took %.1f s", time.monotonic() - self.begun)


class TrainAndTest(AlchemyRunner):
    def run(self):
        trained = super().run()
        cfg = deepcopy(self.cfg)
        for name in ("sched", "optim", "checkpoint"):
            cfg.pop(name, None)
        for split in ("train", "dev"):
            cfg["task"]["datasets"].pop(split)
        cfg["model"].pop("criterion_cfg")
        cfg["model"].pop("backward_cfg")
        cfg["model"]["model_path"] = str(self.data["checkpt_dir"] / "best")
        return trained, AlchemyTester(cfg, **self.launch).run()
