"""Pipes of the evaluation, and the one that evaluates every second epoch."""

from alchemy import (
    EndEpochPipeline,
    EvalPipeline,
    OutputPipeline,
    SchedPipeline,
    evaluate,
    logger,
    sym_tbl,
)


@OutputPipeline.register("Argmax")
class Argmax(OutputPipeline):
    def __call__(self, outputs):
        kept = outputs["tags"] != -100
        return {
            **outputs,
            "pred": outputs["logits"].argmax(-1)[kept],
            "target": outputs["tags"][kept],
        }


@EvalPipeline.register("EvalTags")
class EvalTags(EvalPipeline):
    def begin_eval(self, **kwargs):
        self.hit = self.all = 0

    def __call__(self, outputs):
        is_entity = outputs["target"] != 0
        self.hit += int((outputs["pred"] == outputs["target"])[is_entity].sum())
        self.all += int(is_entity.sum())
        return outputs

    def end_eval(self, **kwargs):
        return {"recall": self.hit / max(1, self.all)}


@EvalPipeline.register("LogBest")
class LogBest(EvalPipeline):
    best = 0.0

    def __call__(self, **kwargs):
        recall = kwargs["evaluation"].metrics[f"{kwargs['split']}/recall"]
        self.best = max(self.best, recall)
        logger.info("%s recall %.4f, best so far %.4f", kwargs["split"], recall, self.best)
        return kwargs


@SchedPipeline.register("EvalEpochEEPipeline")
class EvalEpochEEPipeline(EndEpochPipeline):
    def __init__(self, period: int, split: str = "dev", **kwargs) -> None:
        super().__init__()
        self.period = period
        self.split = split

    def __call__(self, **kwargs):
        sched = sym_tbl().train_sched
        if (sched.cur_epoch + 1) % self.period == 0:
            logger.info("EvalEpoch at epoch %d step %d", sched.cur_epoch, sched.cur_step)
            evaluate(self.split)
        return kwargs
