"""Search of the learning rate and the width of the digits example with Optuna."""

from pathlib import Path

import optuna

import assay

CONFIG = Path(__file__).parent.parent / "01_digits" / "digits.toml"


def objective(trial: optuna.Trial) -> float:
    overrides = {
        "optimizer.lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
        "model.width": trial.suggest_categorical("width", [16, 32]),
    }
    result = assay.run(CONFIG, overrides=overrides, tag="search", max_steps=40, device="cpu")
    return result.value["valid/acc"]


if __name__ == "__main__":
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=3)
    print(study.best_params, study.best_value)
