"""Each config trained, then tested with its best weights, as the README of alchemy shows it.

Other than there: no tester takes the place of the runner, and nothing of it has to be taken out of
the config: a test builds neither schedule nor optimizer and takes the best weights. What the user
edits stays: here tag and pipes.
"""

from pathlib import Path

import assay


def train_and_test(cfgs, device=None, user_dir=None, desc="", debug=False):
    run_results = assay.run(
        list(cfgs),
        device=device,
        user_dir=user_dir,
        desc=desc,
        debug=debug,
        then_test=True,
        edit_test=for_the_test,
    )
    return [run_result.test for run_result in run_results]


def for_the_test(cfg):
    cfg["tag"] += "-test"
    evalpipes = cfg["evaluate"]["pipes"]
    for evalpipe in list(evalpipes):
        if evalpipe["type"] == "assay.engine.SaveOutputs":
            evalpipes.remove(evalpipe)
    return cfg


if __name__ == "__main__":
    for result in train_and_test([Path(__file__).with_name("train.toml")], desc="a first try"):
        print(result.status, *sorted(result.value))
