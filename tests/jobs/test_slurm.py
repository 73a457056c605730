"""Jobs of a real Slurm: one controller and one node on this machine, with fake GPUs."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.core.errors import AssayError
from assay.core.job import JobSpec
from assay.formats import run_file
from assay.jobs.backends import slurm
from assay.jobs.backends.slurm import submit_to_slurm
from flow.conftest import CONFIG as CONFIG_OF_TOY
from flow.conftest import NET, POINTS, wait_for

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
IS_MISSING = not all(map(shutil.which, PROGRAMS)) or os.geteuid() != 0
REASON = "there is no Slurm here: apt-get install slurmctld slurmd slurm-client munge, as root"
GPUS = 4
SLOW_POINTS = POINTS.replace(
    "x = self.points[i]\n", "x = self.points[i]\n        time.sleep(0.03)\n"
)
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0
MpiDefault=none
GresTypes=gpu
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:16
"""

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(IS_MISSING, reason=REASON)]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def configure(folder: Path) -> Path:
    """Write the configuration of a cluster of one node; return its main file."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = socket.gethostname().partition(".")[0]
    for number in range(GPUS):
        null = os.makedev(1, 3)  # Slurm wants devices, and nobody opens these
        os.mknod(folder / f"gpu{number}", stat.S_IFCHR | 0o600, null)
    text = CONFIG.format(
        host=host,
        folder=folder,
        ports=(free_port(), free_port()),
        cpus=os.cpu_count(),
        gpus=GPUS,
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n")
    is_first = Path("/sys/fs/cgroup/memory").exists()
    (folder / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v{1 if is_first else 2}\n")
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    return folder / "slurm.conf"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of a running cluster, for which SLURM_CONF is set."""
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    config = configure(folder)
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    commands = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge],
        ["slurmctld", "-D", "-f", str(config)],
        ["slurmd", "-D", "-f", str(config)],
    ]
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(config))
        for command in commands:
            daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(daemon.wait)
            stack.callback(daemon.terminate)
            time.sleep(0.5)
        await_idle(folder)
        yield folder


def await_idle(folder: Path) -> None:
    until = time.monotonic() + 60
    state = ""
    while state != "idle" and time.monotonic() < until:
        asked = ["sinfo", "-h", "-o", "%t"]
        state = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        time.sleep(0.2)
    log = folder / "slurmd.log"
    assert state == "idle", log.read_text() if log.exists() else state


def job(code: str, folder: Path, **options: Any) -> JobSpec:
    """Return a job that runs a line of Python in a folder."""
    command = (sys.executable, "-c", code)
    return JobSpec(command=command, cwd=str(folder), device="cpu", **options)


def outputs(files: Path, handles: Sequence[str]) -> list[str]:
    """Return what jobs have printed, once Slurm has none of them any more."""
    jobs = ",".join(dict.fromkeys(handle.partition("_")[0] for handle in handles))
    until = time.monotonic() + 180
    while subprocess.run(["squeue", "-h", "-j", jobs], capture_output=True, check=False).stdout:
        assert time.monotonic() < until, handles
        time.sleep(0.2)
    return [(files / f"{handle}.txt").read_text().strip() for handle in handles]


@pytest.fixture
def files(cluster: Path, tmp_path: Path) -> Path:
    return tmp_path / "slurm files"


def test_jobs_that_ask_for_the_same_are_one_array_of_their_own_words(
    files: Path, tmp_path: Path
) -> None:
    handles = submit_to_slurm([job(f"print('$HOME {i}')", tmp_path) for i in range(3)], files)

    assert outputs(files, handles) == [f"$HOME {i}" for i in range(3)]
    assert len({each.split("_")[0] for each in handles}) == 1
    assert [each.split("_")[1] for each in handles] == ["0", "1", "2"]


def test_no_two_jobs_hold_one_gpu(files: Path, tmp_path: Path) -> None:
    code = "import os, time; print(os.environ['SLURM_JOB_GPUS']); time.sleep(2)"
    spec = replace(job(code, tmp_path), device="auto", devices=2)

    held = outputs(files, submit_to_slurm([spec] * 2, files))

    assert sorted(each for text in held for each in text.split(",")) == ["0", "1", "2", "3"]


def test_a_run_whose_time_is_up_saves_and_goes_on_in_the_queue(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "WARNING_S", 55)  # Slurm looks at limits of whole minutes
    code = (
        "import os, pathlib, signal, sys, time\n"
        "if pathlib.Path('saved').exists(): print('resumed'); sys.exit(0)\n"
        "def stop(*_):\n    pathlib.Path('saved').touch(); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, stop)\nprint('begun', flush=True)\ntime.sleep(600)"
    )

    (said,) = outputs(files, submit_to_slurm([job(code, tmp_path, time_limit_s=60.0)], files))

    assert said.split()[0] == "begun" and said.split()[-1] == "resumed"


def test_what_slurm_refuses_is_told_in_its_words(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")

    with pytest.raises(AssayError, match="invalid partition"):
        submit_to_slurm([job("pass", tmp_path)], files)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    folder = tmp_path / "toy project"
    folder.mkdir()
    for name, text in {"toy.toml": CONFIG_OF_TOY, "net.py": NET, "points.py": SLOW_POINTS}.items():
        (folder / name).write_text(text)
    (folder / ".assay").mkdir()
    return folder


def submitted(toy: Path, *words: str) -> list[str]:
    """Submit the toy config to Slurm; return the handles."""
    command = [sys.executable, "-m", "assay", "run", "toy.toml", "--on", "slurm", *words]
    done = subprocess.run(command, cwd=toy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [line.split()[1] for line in done.stdout.splitlines()]


def test_a_run_that_slurm_puts_back_goes_on_under_its_id_with_the_code_of_its_submission(
    cluster: Path, toy: Path
) -> None:
    files = toy / ".assay" / "slurm"
    (handle,) = submitted(toy, "--device", "cpu", "tag=again")
    (toy / "net.py").write_text("raise SystemExit('half edited')")
    wait_for(lambda: list(toy.glob("runs/*/checkpoints/step-*")))

    subprocess.run(["scontrol", "requeue", handle], check=True)
    (said,) = outputs(files, [handle])

    (folder,) = (toy / "runs").iterdir()
    run = run_file.read(folder)
    assert run.status == "finished" and len(run.attempts) == 2, said
    assert run.newest.from_step > 0


def test_the_points_of_a_sweep_are_jobs_of_one_array(cluster: Path, toy: Path) -> None:
    with (toy / "toy.toml").open("a") as config:
        config.write('\n[sweep]\n"optimizer.lr" = [1e-2, 1e-3]\n')
    handles = submitted(toy, "--device", "cpu", "--max-steps", "5")

    outputs(toy / ".assay" / "slurm", handles)

    assert len({handle.split("_")[0] for handle in handles}) == 1
    runs = [run_file.read(each) for each in (toy / "runs").iterdir()]
    assert [each.status for each in runs] == ["finished"] * 2
    assert len({each.newest.launch["sweep"] for each in runs}) == 1
