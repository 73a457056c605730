"""Makes the archives beside it with the trackers themselves.

They were made with tensorboard 2.21.0, torch 2.13.0, mlflow-skinny 3.17.2 and wandb 0.31.0, each in
a new folder /data, by a user and on a host without a name:

    unshare --uts sh -c 'hostname host; exec env -i PATH=/usr/bin:/bin HOME=/nowhere USER=somebody
    LOGNAME=somebody \\
        PYTHON make_files.py tensorboard|mlflow-files|mlflow-db|wandb|wandb-resumed'
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

NUMBERS = [2.0, math.nan, 0.5, math.inf, -math.inf, 0.25]
EPOCH_S = 1_760_000_000.0
"""When everything is said to have happened: 2025-10-09, 08:53:20 UTC."""


def tensorboard() -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.histogram.summary_v2 import histogram_pb
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from torch import arange, float32, tensor, zeros
    from torch.utils.tensorboard import SummaryWriter

    time.time = lambda: EPOCH_S
    with SummaryWriter("logs/first") as writer:
        for i, value in enumerate(NUMBERS):
            writer.add_scalar("train/loss", value, i - 2, walltime=EPOCH_S + 1 + i)
        writer.add_scalar("2^40 steps", 1.5, 2**40, walltime=EPOCH_S + 9)
        writer.add_scalar(
            "dense", tensor(0.75, dtype=float32), 3, new_style=True, walltime=EPOCH_S + 9
        )
        writer.add_text("note", "# It works\nwith two lines", 4, walltime=EPOCH_S + 9)
        writer.add_image("dots", zeros(3, 2, 2), 5, walltime=EPOCH_S + 9)
        writer.add_histogram("weights", arange(10.0), 6, walltime=EPOCH_S + 9)
        writer.add_hparams(
            {"lr": 0.1, "layers": 3, "act": "relu", "bias": True},
            {"final/acc": 0.9},
            run_name="best",
        )

    for lr in ("0.1", "0.01"):
        writer = EventFileWriter(f"logs/sweep/lr={lr}")
        for step in range(3):
            summary = scalar_pb("valid/acc", float(lr) * step)
            writer.add_event(Event(wall_time=EPOCH_S + step, step=step, summary=summary))
        writer.add_event(
            Event(
                wall_time=EPOCH_S + 3, step=3, summary=histogram_pb("weights", [0.0, 1.0, 1.0], 2)
            )
        )
        writer.close()

    for time_s, steps, purge in ((EPOCH_S, range(6), None), (EPOCH_S + 100, range(3, 8), 3)):
        time.time = lambda at_s=time_s: at_s
        with SummaryWriter("logs/resumed", purge_step=purge) as writer:
            for step in steps:
                writer.add_scalar(
                    "loss", step + (0.5 if purge else 0.0), step, walltime=time_s + step
                )

    time.time = lambda: EPOCH_S
    with SummaryWriter("logs/killed") as writer:
        for step in range(20):
            writer.add_scalar("loss", 1 / (1 + step), step, walltime=EPOCH_S + step)
    (path,) = Path("logs/killed").iterdir()
    os.truncate(path, path.stat().st_size - 21)


def mlflow(uri: str) -> None:
    import mlflow
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    mlflow.set_tracking_uri(uri)
    client = MlflowClient()
    at_ms = round(EPOCH_S * 1000)
    experiment = client.create_experiment("points of view", artifact_location=None)
    tags = {
        "mlflow.runName": "first: a run whose name is so long that YAML has to fold it, 'quoted', over two lines"
    }
    tags |= {
        "mlflow.note.content": "does it learn?\n\nyes",
        "team": "nlp/ärzte",
        "mlflow.user": "ada",
    }
    tags |= {
        "mlflow.source.name": "train.py",
        "mlflow.source.git.commit": "0123456789abcdef0123456789abcdef01234567",
    }
    first = client.create_run(
        experiment, start_time=at_ms, tags=tags, run_name=tags["mlflow.runName"]
    )
    run_id = first.info.run_id
    metrics = [
        Metric("train/loss", value, at_ms + 1000 * i, i - 2) for i, value in enumerate(NUMBERS)
    ]
    params = [
        Param("lr", "0.003"),
        Param("model.width", "16"),
        Param("model.bias", "True"),
        Param("act", "relu"),
    ]
    params += [Param("layers", "[16, 8]"), Param("seed", "007"), Param("text", "two\nlines")]
    client.log_batch(run_id, metrics, params, [RunTag("stage", "dev")])
    Path("model.txt").write_text("weights")
    client.log_artifact(run_id, "model.txt", "out/deep")
    client.log_text(run_id, "said\n", "said.txt")
    _inputs_and_models(client, experiment, run_id, at_ms)
    client.set_terminated(run_id, "FINISHED", at_ms + 60_000)

    child = client.create_run(
        experiment, at_ms + 5000, {"mlflow.parentRunId": run_id}, run_name="../../child"
    )
    client.log_metric(child.info.run_id, "acc", 0.5, at_ms + 6000, 1)
    client.set_terminated(child.info.run_id, "FAILED", at_ms + 7000)
    open_run = client.create_run(experiment, at_ms + 8000, {}, run_name="still open")
    client.log_metric(open_run.info.run_id, "acc", 0.25, at_ms + 9000, 1)
    gone = client.create_run(experiment, at_ms + 9000, {}, run_name="deleted")
    client.delete_run(gone.info.run_id)


def _inputs_and_models(client: Any, experiment: str, run_id: str, at_ms: int) -> None:
    """What MLflow 3 has beside a run: the data that went in, and the models that came out."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput, LoggedModelOutput

    train = Dataset(
        "digits",
        "0a1b2c3d",
        "local",
        '{"uri": "/data/digits.csv"}',
        '{"columns": []}',
        '{"rows": 5000}',
    )
    valid = Dataset("digits", "4e5f6071", "http", '{"url": "https://example.org/valid.csv"}')
    inputs = [
        DatasetInput(train, [InputTag("mlflow.data.context", "train")]),
        DatasetInput(valid, [InputTag("mlflow.data.context", "validation"), InputTag("fold", "3")]),
    ]
    client.log_inputs(run_id, inputs)
    params = {"width": "16"}
    model = client.create_logged_model(
        experiment, "net", run_id, tags={"stage": "dev"}, params=params, model_type="cnn"
    )
    client.log_metric(
        run_id,
        "acc",
        0.75,
        at_ms + 5000,
        3,
        model_id=model.model_id,
        dataset_name="digits",
        dataset_digest="4e5f6071",
    )
    Path("net").mkdir()
    Path("net/MLmodel").write_text("flavors: {}\n")
    Path("net/weights.txt").write_text("weights of the net")
    client.log_model_artifacts(model.model_id, "net")
    client.finalize_logged_model(model.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, 3)])
    other = client.create_logged_model(experiment, "teacher")
    client.finalize_logged_model(other.model_id, "FAILED")
    client.log_inputs(run_id, models=[LoggedModelInput(other.model_id)])


def wandb() -> None:
    import numpy as np
    import wandb

    config = {"lr": 0.003, "model": {"width": 16, "layers": [16, 8]}, "act": None, "a.b": "dotted"}
    run = wandb.init(
        project="points",
        name="first",
        id="abcd1234",
        notes="does it learn?",
        tags=["try", "nlp/ärzte"],
        group="pair",
        job_type="train",
        config=config,
        settings=_offline(console="wrap"),
    )
    print("a line that it printed")
    run.define_metric("tokens")
    run.define_metric("valid/*", step_metric="tokens")
    for step, value in enumerate(NUMBERS):
        run.log({"train/loss": value, "train/acc": step / 10}, step=step)
    run.log({"tokens": 8192, "valid/loss": 2.5}, step=7)
    dots = wandb.Image(np.zeros((2, 2, 3), dtype=np.uint8), caption="black")
    run.log({"dots": dots, "nested": {"a": 1}}, step=8)
    run.log({"weights": wandb.Histogram([0.0, 1.0, 1.0], num_bins=2), "said": "a word"}, step=9)
    run.log({"rows": wandb.Table(columns=["a", "b"], data=[[1, "x"]])}, step=10)
    run.config.update({"later": True})
    run.summary["best"] = 0.125
    artifact = wandb.Artifact("weights", type="model")
    with artifact.new_file("model.txt") as file:
        file.write("weights")
    run.log_artifact(artifact)
    run.finish()

    with wandb.init(project="points", name="failed", id="failed01", settings=_offline()) as run:
        run.finish(exit_code=3)
    subprocess.run([sys.executable, __file__, "wandb-killed"], check=False)
    (path,) = Path("wandb").glob("*killed01/*.wandb")
    os.truncate(path, path.stat().st_size - 100)


def wandb_resumed() -> None:
    import wandb

    for attempt in (1, 2):
        settings = _offline(console="wrap")
        with wandb.init(
            project="points",
            name="again",
            id="again001",
            resume="allow",
            config={"lr": 0.1 * attempt},
            settings=settings,
        ) as run:
            print("attempt", attempt)
            for step in range(5):
                run.log({"loss": attempt + step / 10}, step=3 * (attempt - 1) + step)
            run.finish(exit_code=2 - attempt)
        time.sleep(1.5)  # a folder is named by the second


def wandb_killed() -> None:
    import wandb

    run = wandb.init(
        project="points",
        name="../../killed",
        id="killed01",
        config={"lr": 0.1},
        settings=_offline(),
    )
    for step in range(200):
        run.log({"loss": 1 / (1 + step)})
    time.sleep(3)
    os.kill(os.getpid(), signal.SIGKILL)


def _offline(**others):
    import wandb

    return wandb.Settings(
        mode="offline",
        silent=True,
        host="host",
        program="train.py",
        root_dir=".",
        save_code=False,
        disable_git=True,
        disable_job_creation=True,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        **{"console": "off", **others},
    )


def pack(name: str, patterns: list[str]) -> None:
    """What fits, in one archive that says nothing of who made it."""

    def nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = int(EPOCH_S)
        return entry

    with tarfile.open(f"{name}.tar.gz", "w:gz") as tar:
        for path in sorted(
            {path for pattern in patterns for path in Path().glob(pattern) if path.is_file()}
        ):
            tar.add(path, filter=nobodys)


match sys.argv[1]:
    case "tensorboard":
        tensorboard()
        pack("tensorboard", ["logs/**/*"])
    case "mlflow-files":
        mlflow(Path("mlruns").absolute().as_uri())
        pack("mlflow-files", ["mlruns/**/*"])
    case "mlflow-db":
        mlflow("sqlite:///mlflow.db")
        pack("mlflow-db", ["mlflow.db", "mlruns/**/*"])
    case "wandb":
        wandb()
        pack("wandb", ["wandb/offline-run-*/*.wandb", "wandb/offline-run-*/files/**/*"])
    case "wandb-resumed":
        wandb_resumed()
        pack(
            "wandb-resumed", ["wandb/offline-run-*/*.wandb", "wandb/offline-run-*/files/output.log"]
        )
    case "wandb-killed":
        wandb_killed()
