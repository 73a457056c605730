"""Run of several ranks: one record, the update of one process, and one end for all."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import torch

import assay as assay_package
from assay.engine.checkpoint.tensor_file import read_tensors
from assay.formats import run_file
from assay.store.series import read_series
from flow.conftest import PLAIN, SRC, as_it_was, wait_for
from flow.test_train import last_digest, only_run
from warm_python import Begin

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shy")]


@pytest.mark.thorough
@pytest.mark.row("A80", "B16", "E48")
def test_two_processes_train_what_one_does_with_one_record_and_one_log(assay, toy: Path) -> None:
    exact = ["model.type=plain.Net", "optimizer.type=torch.optim.SGD", "optimizer.lr=0.5"]
    alone = assay("run", "toy.toml", *exact, "train.accumulate=2")
    assert alone.returncode == 0, alone.stderr
    one = only_run(toy)
    one.rename(toy.parent / "one")

    shared = assay("run", "toy.toml", *exact, "--nproc", "2")

    assert shared.returncode == 0, shared.stderr
    assert "mesh: data 2 = 2 processes" in shared.stderr
    assert "a step has 8 = 2 ranks x 1 accumulate x 4" in shared.stderr
    two = only_run(toy)
    assert "rank 1 loads" in (two / "ranks" / "1.txt").read_text()
    assert "rank 1 loads" not in shared.stdout + shared.stderr
    curves = [read_series(run / "metrics") for run in (toy.parent / "one", two)]
    for name in ("train/loss", "train/grad_norm", "valid/loss", "valid/acc"):
        assert list(curves[1][name].steps) == list(curves[0][name].steps)
        assert list(curves[1][name].values) == pytest.approx(list(curves[0][name].values), abs=1e-5)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.warns(UserWarning, match="was made elsewhere"),
    ):
        patch.chdir(toy)
        models = [assay_package.load_model(str(run), "latest") for run in (toy.parent / "one", two)]
    for mine, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6, rtol=0)


def test_what_another_rank_prints_is_in_the_record_while_it_runs(assay, toy: Path) -> None:
    (toy / "heard.py").write_text(
        "import multiprocessing, os, time\nfrom pathlib import Path\nimport points\n\n"
        "def is_heard():\n"
        "    files = Path('runs').glob('*/ranks/1.txt')\n"
        "    return any('a word of rank 1' in file.read_text() for file in files)\n\n"
        "class Heard(points.Points):\n"
        "    def __getitem__(self, i):\n"
        "        is_rank = multiprocessing.parent_process() is None  # not one that checks its samples\n"
        "        if is_rank and os.environ['RANK'] == '1' and not is_heard():\n"
        "            print('a word of rank 1', flush=True)\n"
        "            end = time.monotonic() + 60\n"
        "            while not is_heard() and time.monotonic() < end:\n"
        "                time.sleep(0.05)\n"
        "            assert is_heard()\n"
        "        return super().__getitem__(i)\n"
    )
    config = (toy / "toy.toml").read_text().replace("shy.Shy", "heard.Heard")
    (toy / "toy.toml").write_text(config)

    done = assay("run", "toy.toml", "--nproc", "2")

    assert done.returncode == 0, done.stderr
    kept = (only_run(toy) / "ranks" / "1.txt").read_text()
    assert kept.count("a word of rank 1") == 1


class Whole(NamedTuple):
    """Undisturbed run: its last checkpoint's weights, and the digest of the whole checkpoint."""

    digest: str
    weights: bytes


@pytest.fixture(scope="module")
def undisturbed() -> list[Whole]:
    """One such run for all tests, once somebody has needed it."""
    return []


@pytest.mark.thorough
@pytest.mark.parametrize("axis", ["data", "shard"])
def test_gradients_summed_in_half_precision_train_nearly_what_whole_ones_do(
    assay, toy: Path, axis: str
) -> None:
    losses = []
    for precision in ("fp32", "bf16"):
        given = (f"parallel.{axis}=2", f"parallel.gradient_precision={precision}")
        ran = assay("run", "toy.toml", "model.type=plain.Net", "train.epochs=1", *given)
        assert ran.returncode == 0, ran.stderr
        losses.append(list(read_series(only_run(toy) / "metrics")["train/loss"].values))
        only_run(toy).rename(toy.parent / precision)

    assert losses[1] != losses[0] and losses[1] == pytest.approx(losses[0], rel=0.01)


@pytest.fixture
def whole(undisturbed: list[Whole], assay, toy: Path) -> Whole:
    if not undisturbed:
        assert assay("run", "toy.toml", "--nproc", "2").returncode == 0
        run = only_run(toy)
        undisturbed.append(
            Whole(last_digest(run), (last_checkpoint(run) / "model.safetensors").read_bytes())
        )
        run.rename(toy.parent / "reference")
    return undisturbed[0]


def last_checkpoint(run: Path) -> Path:
    return sorted(run.glob("checkpoints/step-?????????"))[-1]


@pytest.mark.thorough
@pytest.mark.row("B21")
def test_what_two_processes_train_is_done_again_to_the_same_bits_and_loads_into_the_plain_model(
    assay, toy: Path
) -> None:
    from safetensors.torch import load_file

    digest = "plugins=[{ type = 'assay.engine.BatchDigest' }]"
    assert assay("run", "toy.toml", digest, "--nproc", "2", "--max-steps", "3").returncode == 0

    again = assay("replay", "last")

    assert again.returncode == 0, again.stdout + again.stderr
    lines = dict(re.split(" {2,}", line, maxsplit=1) for line in again.stdout.splitlines()[:-1])
    assert lines["train/loss"] == lines["sample order"] == "equal, 3 points"
    assert lines["weights"] == lines["optimizer"] == lines["state"] == "equal at step 3"
    assert again.stdout.splitlines()[-1] == "equal: steps 1 to 3"
    run = only_run(toy)
    file = next(iter(sorted((run / "checkpoints").glob("step-*/model*.safetensors"))))
    sys.path.insert(0, str(toy))
    try:
        import net  # type: ignore[import-not-found]

        net.Net(8).load_state_dict(load_file(file), strict=True)
    finally:
        sys.path.remove(str(toy))
        sys.modules.pop("net", None)


@pytest.mark.thorough
def test_a_run_whose_second_process_was_killed_ends_soon_and_goes_on_to_the_same_bits_or_in_one_process(
    assay, toy: Path, whole: Whole
) -> None:
    killed = assay("run", "toy.toml", "--nproc", "2", KILL_AT="50")

    assert killed.returncode == 1
    assert killed.stderr.count("error:") == 1
    run = only_run(toy)
    assert run_file.read(run).status == "failed"
    assert "error: Rank 1 (pid " in killed.stderr and "killed" in killed.stderr
    assert f"resume with: assay resume {run_file.read(run).id}" in killed.stderr
    for count in ("2", "1"):
        with as_it_was(run):
            resumed = assay("resume", "last", "--nproc", count)
            assert resumed.returncode == 0, resumed.stderr
            has_gone_on(run)
            assert (last_digest(run) == whole.digest) == (count == "2")


@pytest.mark.thorough
def test_a_run_whose_first_process_was_killed_goes_on_in_four(assay, toy: Path) -> None:
    killed = assay("run", "toy.toml", "--nproc", "2", KILL_AT="50", SHY_RANK="0")
    assert killed.returncode == 1
    assert "error: Rank 0 (pid " in killed.stderr
    assert f"resume with: assay resume {run_file.read(only_run(toy)).id}" in killed.stderr

    resumed = assay("resume", "last", "--nproc", "4")

    assert resumed.returncode == 0, resumed.stderr
    has_gone_on(only_run(toy))


def has_gone_on(run: Path) -> None:
    """All steps were made, in two attempts at the same thing."""
    assert list(read_series(run / "metrics")["train/loss"].steps) == list(range(1, 33))
    file = run_file.read(run)
    assert (file.status, len(file.attempts)) == ("finished", 2)
    assert len({attempt.config_hash for attempt in file.attempts}) == 1


@pytest.mark.thorough
def test_a_run_whose_processes_are_killed_again_and_again_goes_on_by_itself_to_the_same_bits(
    assay, toy: Path, whole: Whole
) -> None:
    # Counted from the start of each process: of 32 steps the first has 12 behind it when it dies,
    # the next 12 more.
    restarted = assay("run", "toy.toml", "--nproc", "2", "--max-restarts", "2", KILL_AT="50")

    assert restarted.returncode == 0, restarted.stderr
    assert "restart 1: Rank 1 (pid" in restarted.stderr
    assert "stopping after this step" not in restarted.stderr
    file = run_file.read(only_run(toy))
    assert [attempt.status for attempt in file.attempts] == ["failed", "failed", "finished"]
    assert "Rank 1" in file.attempts[0].reason
    assert last_digest(only_run(toy)) == whole.digest
    assert list(read_series(only_run(toy) / "metrics")["train/loss"].steps) == list(range(1, 33))


@pytest.mark.thorough
def test_a_process_that_is_stopped_for_long_ends_the_run_with_that_as_the_cause(
    assay, toy: Path
) -> None:
    stopped = assay("run", "toy.toml", "--nproc", "2", STOP_AT="50")

    assert stopped.returncode == 1
    assert stopped.stderr.count("error:") == 1
    assert "was stopped for 5 s (SIGSTOP), and was ended" in stopped.stderr
    assert "resume with: assay resume" in stopped.stderr
    file = run_file.read(only_run(toy))
    assert (file.status, file.newest.reason.partition(" (pid")[0]) == (
        "failed",
        "RankError: Rank 1",
    )


@pytest.mark.thorough
def test_what_one_process_raises_is_told_once_and_first(assay, toy: Path) -> None:
    failed = assay("run", "toy.toml", "--nproc", "2", FAIL_AT="50")

    assert failed.returncode == 1
    assert "On rank 1" in failed.stderr
    assert failed.stderr.count("ValueError: a bad sample") == 1
    assert "shy.py" in failed.stderr
    assert "Another process" not in failed.stderr
    file = run_file.read(only_run(toy))
    assert file.status == "failed"
    assert "a bad sample" in file.newest.reason


@pytest.mark.thorough
@pytest.mark.row("B17", "E47")
def test_what_cannot_be_divided_is_refused_before_anything_starts(assay, toy: Path) -> None:
    uneven = assay("run", "toy.toml", "--nproc", "3")
    assert uneven.returncode == 2
    assert "a batch of 8 cannot be split evenly on 3 ranks" in uneven.stderr
    other = assay("run", "toy.toml", "--nproc", "8", "parallel.data=4")
    assert other.returncode == 2
    assert "--nproc 8 is not 4 data = 4" in other.stderr
    assert not (toy / "runs").exists()


@pytest.mark.thorough
@pytest.mark.usefixtures("forking")
def test_processes_that_were_started_by_torchrun_join(assay, toy: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--standalone",
    ]

    joined = subprocess.run(
        [*command, "-m", "assay", "run", "toy.toml", "--max-steps", "4"],
        cwd=toy,
        env={**os.environ, "PYTHONPATH": str(SRC), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert joined.returncode == 0, joined.stderr
    run = only_run(toy)
    assert list(read_series(run / "metrics")["train/loss"].steps) == [1, 2, 3, 4]


@pytest.mark.thorough
@pytest.mark.usefixtures("forking")
def test_a_machine_that_is_lost_for_good_leaves_a_run_that_goes_on_with_the_others(
    toy: Path,
) -> None:
    """Two launchers of torchrun stand for two machines; one dies with its rank."""
    elastic = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1"]
    elastic += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{_free_port()}", "--rdzv-id=toy"]
    elastic += ["--max-restarts=1", "--rdzv-conf"]
    variables = {
        **os.environ,
        "PYTHONPATH": str(SRC),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "SLOW": "0.1",
    }
    command = ["-m", "assay", "run", "toy.toml", "checkpoint.every=4 steps"]
    machines = []
    for is_host in (1, 0):
        rendezvous = f"last_call_timeout=5,is_host={is_host}"
        with (toy.parent / f"{is_host}.txt").open("w") as file:
            machine = subprocess.Popen(
                [*elastic, rendezvous, *command], cwd=toy, env=variables, stdout=file, stderr=file
            )
        machines.append(machine)
    first, second = machines
    try:
        wait_for(lambda: list(toy.glob("runs/*/checkpoints/step-*")))
        for lost in [*psutil.Process(second.pid).children(recursive=True), second]:
            lost.kill()
        second.wait()
        first.wait(timeout=100)
    finally:
        for machine in machines:
            machine.kill()
            machine.wait()

    told = (toy.parent / "1.txt").read_text()
    assert first.returncode == 0, told
    assert "mesh: data 2 = 2 processes" in told
    assert "the job was started again: resuming" in told
    assert "environment changed: variables.WORLD_SIZE  2 -> 1" in told
    run = only_run(toy)
    assert run_file.read(run).status == "finished"
    assert list(read_series(run / "metrics")["train/loss"].steps) == list(range(1, 33))


@pytest.mark.thorough
def test_a_signal_to_the_run_stops_all_processes_after_one_step_with_a_checkpoint(
    assay, begun: Begin, toy: Path, whole: Whole
) -> None:
    running = begun("run", "toy.toml", "--nproc", "2", SLOW="0.1")
    wait_for(lambda: list(toy.glob("runs/*/checkpoints/step-*")))
    workers = psutil.Process(running.pid).children(recursive=True)

    running.send_signal(signal.SIGTERM)
    told = running.communicate(timeout=100)[1]

    assert running.returncode == 143, told
    assert not psutil.wait_procs(workers, timeout=60)[1]  # a spare of the tests ends a moment later
    assert run_file.read(only_run(toy)).status == "stopped"
    assert assay("resume", "last", "--nproc", "2").returncode == 0
    assert last_digest(only_run(toy)) == whole.digest


@pytest.mark.thorough
@pytest.mark.row("E50")
def test_a_pipeline_of_two_processes_is_equal_to_one_and_leaves_a_checkpoint_for_either(
    assay, toy: Path
) -> None:
    split = ["model.type=plain.Net", "train.accumulate=2", "train.precision=fp16"]
    split += ['plugins=[{ type = "assay.engine.EMA", decay = 0.9 }]']
    (toy / "plain.py").write_text(PLAIN.replace("nn.Dropout(0.3), ", ""))
    assert assay("run", "toy.toml", *split).returncode == 0
    one = only_run(toy).rename(toy.parent / "one")
    whole = assay("run", "toy.toml", *split, "parallel.pipeline=2")
    assert whole.returncode == 0, whole.stderr
    two = only_run(toy).rename(toy.parent / "two")

    piped = assay("run", "toy.toml", *split, "parallel.pipeline=2", KILL_AT="150")

    assert piped.returncode == 1
    assert "Rank 1" in piped.stderr and "killed" in piped.stderr
    assert "mesh: pipeline 2 = 2 processes" in piped.stderr
    assert "stage 0 (pipeline rank 0)  0, 1  40 parameters" in piped.stderr
    assert "stage 1 (pipeline rank 1)  2     18 parameters" in piped.stderr
    newest = sorted(only_run(toy).glob("checkpoints/step-?????????"))[-1]
    stages = [read_tensors(newest / f"model{ending}.safetensors") for ending in ("", "-rank1")]
    assert [{name[0] for name in stage} for stage in stages] == [{"0"}, {"2"}]
    for count, shards in ((2, 1), (1, 1), (2, 2)):
        with as_it_was(only_run(toy)) as run:
            layout = (f"parallel.pipeline={count}", f"parallel.shard={shards}")
            gone_on = assay("resume", "last", *layout)
            assert gone_on.returncode == 0, gone_on.stderr
            assert "resume is not exact" not in gone_on.stderr
            is_same_layout = (count, shards) == (2, 1)
            assert not is_same_layout or last_digest(run) == last_digest(two)
            rounding = 1e-5 if shards == 1 else 2e-4  # fp16, in micro-batches of half the size
            curves = [read_series(each / "metrics") for each in (one, run)]
            for name in ("train/loss", "train/grad_norm", "train/lr", "valid/loss", "valid/acc"):
                assert list(curves[1][name].steps) == list(curves[0][name].steps)
                assert list(curves[1][name].values) == pytest.approx(
                    list(curves[0][name].values), abs=rounding
                )
            assert assay("resume", "last", "parallel.pipeline=1", "train.epochs=5").returncode == 0
            losses = read_series(run / "metrics")["train/loss"].values
            assert len(losses) > len(curves[0]["train/loss"].values)
            assert losses[-1] < max(losses[:8])
    few = assay("run", "toy.toml", "model.type=plain.Net", "parallel.pipeline=2")
    assert few.returncode == 2
    assert "a step has 1 micro-batch (8 = 1 accumulate x 8); 1f1b keeps 2 stages" in few.stderr
    deep = assay("run", "toy.toml", "parallel.pipeline=3", "parallel.schedule=gpipe", *split)
    assert deep.returncode == 2
    assert "the model has 2 parts with weights, too few for 3 stages" in deep.stderr


@pytest.mark.thorough
def test_processes_whose_parent_was_killed_stop_by_themselves_and_are_saved(
    begun: Begin, toy: Path
) -> None:
    running = begun("run", "toy.toml", "--nproc", "2", "train.epochs=400", SLOW="0.02")
    wait_for(lambda: list(toy.glob("runs/*/checkpoints/step-*")))
    workers = psutil.Process(running.pid).children(recursive=True)

    running.kill()
    running.communicate()

    assert not psutil.wait_procs(workers, timeout=100)[1]
    assert run_file.read(only_run(toy)).status == "stopped"


@pytest.mark.thorough
def test_two_machines_of_one_run_start_again_together_and_end_with_the_same_bits(
    begun: Begin, toy: Path, whole: Whole
) -> None:
    port = _free_port()
    typed = [
        "run",
        "toy.toml",
        "--nnodes",
        "2",
        "--nproc",
        "1",
        "--rendezvous",
        f"localhost:{port}",
    ]
    typed += ["--max-restarts", "2"]

    both = [begun(*typed, "--node-rank", str(rank), KILL_AT="50") for rank in range(2)]
    told = [each.communicate(timeout=400)[1] for each in both]

    assert [each.returncode for each in both] == [0, 0], "\n".join(told)
    assert sum("finished" in text for text in told) == 1
    assert [each.status for each in run_file.read(only_run(toy)).attempts][-1] == "finished"
    assert len(run_file.read(only_run(toy)).attempts) == 3
    assert last_digest(only_run(toy)) == whole.digest


@pytest.mark.thorough
@pytest.mark.usefixtures("forking")
def test_processes_of_srun_join_and_go_on_with_their_run_when_the_job_is_started_again(
    toy: Path, whole: Whole
) -> None:
    killed = _as_srun(toy, KILL_AT="50")

    assert killed[1].returncode == -signal.SIGKILL
    assert (killed[0].returncode, run_file.read(only_run(toy)).status) == (1, "failed")
    reason = run_file.read(only_run(toy)).newest.reason
    assert f"Rank 1 (pid {killed[1].pid}) ended without a word." in reason
    again = _as_srun(toy, SLURM_RESTART_COUNT="1")
    assert [each.returncode for each in again] == [0, 0]
    assert len(run_file.read(only_run(toy)).attempts) == 2
    assert last_digest(only_run(toy)) == whole.digest


@pytest.mark.thorough
@pytest.mark.usefixtures("forking")
def test_machines_that_do_not_share_the_run_folder_are_told_so_before_anything_is_written(
    toy: Path,
) -> None:
    both = _as_srun(toy, own_runs=True)

    for each in both:
        assert each.returncode == 2
        assert "rank 1 does not see what rank 0 writes there" in each.told
    assert not list(toy.glob("runs-*/*"))


PREPARED = """\
from accelerate import Accelerator

from net import Net


def net(width):
    return Accelerator(cpu=True).prepare_model(Net(width), evaluation_mode=True)
"""


@pytest.mark.thorough
@pytest.mark.row("A80")
def test_a_model_that_accelerate_has_prepared_is_trained_as_it_is(
    assay, toy: Path, whole: Whole
) -> None:
    (toy / "prepared.py").write_text(PREPARED)

    done = assay("run", "toy.toml", "model.type=prepared.net", "--nproc", "2")

    assert done.returncode == 0, done.stderr
    assert (last_checkpoint(only_run(toy)) / "model.safetensors").read_bytes() == whole.weights


@pytest.mark.parametrize(
    ("typed", "what"),
    [
        (["--nnodes", "2", "--nproc", "2"], "2 machines cannot find each other"),
        (
            ["--nnodes", "2", "--node-rank", "0", "--nproc", "2", "--rendezvous", "here"],
            "`here` is no HOST:PORT",
        ),
        (
            ["--nnodes", "2", "--nproc", "2", "parallel.data=2"],
            "--nnodes 2 x --nproc 2 is not 2 data = 2",
        ),
        (["--nnodes", "3", "parallel.data=4"], "4 processes cannot be split evenly on 3 machines"),
    ],
)
def test_machines_that_cannot_work_together_are_refused(
    assay, toy: Path, typed: list[str], what: str
) -> None:
    refused = assay("run", "toy.toml", *typed)

    assert refused.returncode == 2
    assert what in refused.stderr
    assert re.search(r"^  (fix:|=) ", refused.stderr, re.MULTILINE)


class Told(subprocess.Popen[str]):
    told: str = ""


def _as_srun(toy: Path, *, own_runs: bool = False, **more: str) -> list[Told]:
    """Two processes as `srun --ntasks=2 assay run toy.toml` starts them."""
    job = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": str(int(own_runs)),
        "SLURM_STEP_NODELIST": "localhost",
    }
    running = []
    for rank in ("0", "1"):
        place = {"ASSAY_RUNS_DIR": str(toy / f"runs-{rank}")} if own_runs else {}
        task = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_STEP_NUM_TASKS": "2"}
        command = [sys.executable, "-m", "assay", "run", "toy.toml"]
        env = {
            **os.environ,
            "PYTHONPATH": str(SRC),
            "NO_COLOR": "1",
            **job,
            **task,
            **place,
            **more,
        }
        running.append(Told(command, cwd=toy, env=env, stderr=subprocess.PIPE, text=True))
    for each in running:
        each.told = each.communicate(timeout=110)[1]
    return running


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


BREAKS = """
import os

from plain import Net


class Breaks(Net):
    calls = 0

    def forward(self, x):
        if not self.training and os.environ.get("BREAKS") == os.environ.get("RANK"):
            Breaks.calls += 1
            if Breaks.calls == 3:  # after the one that is tried before the second step
                raise ValueError("no such class")
        return super().forward(x)
"""


@pytest.mark.thorough
def test_an_evaluation_that_failed_on_one_rank_is_made_when_the_run_resumes(
    assay, toy: Path
) -> None:
    (toy / "breaks.py").write_text(BREAKS)
    given = ("model.type=breaks.Breaks", "checkpoint.every=1 epoch", "train.epochs=2")

    failed = assay("run", "toy.toml", *given, "--nproc", "2", BREAKS="1")
    assert "ValueError: no such class" in failed.stderr
    resumed = assay("resume", "last", "--nproc", "2")

    assert resumed.returncode == 0, resumed.stderr
    assert "resume is not exact" not in resumed.stderr
    curves = read_series(only_run(toy) / "metrics")
    steps = list(curves["train/loss"].steps)
    assert steps == list(range(1, steps[-1] + 1))
    assert list(curves["valid/loss"].steps) == [steps[-1] // 2, steps[-1]]
