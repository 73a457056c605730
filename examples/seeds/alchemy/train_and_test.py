"""Train, then test the best checkpoint: python -m assay.compat train_and_test.py"""

from alchemy import prepare_cfg, run, sym_tbl

(trained,) = run([prepare_cfg("cfg.toml")], device=-1, desc="tagging with alchemy")
if isinstance(trained, Exception):
    raise trained
cfg = prepare_cfg(trained.record_dir / "cfg.toml")
cfg["runner"] = "alchemy.runner.Tester"
for name in ("sched", "optim", "checkpoint"):
    cfg.pop(name)
cfg["task"]["datasets"].pop("train")
cfg["model"]["model_path"] = str(trained.record_dir / "checkpt" / "best")
(tested,) = run([cfg], device=-1)
print("trained", trained.id, "tested", tested.value)
sym_tbl().reset()
