"""Train and test, by a runner of this project: python -m assay.compat train_and_test.py"""

from alchemy import prepare_cfg, run, sym_tbl

cfg = prepare_cfg("cfg.toml")
cfg["runner"] = "src.runner.TrainAndTest"
for result in run([cfg], device=-1, desc="tagging with alchemy"):
    if isinstance(result, Exception):
        raise result
    trained, tested = result
    print("trained", trained.id, "tested", tested.value)
sym_tbl().reset()
