"""Learning rates over a run. Their optimizer is the one of the config."""

from assay.config.lazy import L

WarmupCosine = L("assay.engine.WarmupCosine")(warmup_ratio=0.05)
Step = L("torch.optim.lr_scheduler.StepLR")(step_size=1000, gamma=0.5)

schedule = WarmupCosine
