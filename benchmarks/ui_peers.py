"""The page beside those of TensorBoard, MLflow, Aim and trackio: the same runs in each store.

Each tool writes the same runs (1,000 of 20 metrics with 100 points), in the way that is quickest
with it, and then serves them:

    write   seconds to write them; `write_cpu`: CPU time
    size    MiB of the folder
    ready   from the start of the server to its first answer
    table   from opening its page of runs to the first name of a run, a server that was just started
    memory  MiB of the server's processes after that

assay also draws 100 of the runs in 20 panels (`chart`); the others have no address for that.

`--python NAME=PATH` names the interpreter of an environment that has the tool; without one the tool
is left out. It is a part of the name: `python -m venv E && E/bin/pip install mlflow`, then
`--python mlflow=E/bin/python`. assay needs none.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from browsing import SOURCE, Session, measure, opened, root_of
from browsing import server as assay_server
from figures import machine, options, show
from playwright.sync_api import Page

from assay.store.layout import open_project

WRITE_ASSAY = """
import assay
for run in range(RUNS):
    with assay.start(project=FOLDER, tag=f"run-{run:04d}", keep_output=False) as each:
        for step in range(POINTS):
            each.log(values(run, step), step=step)
"""
WRITE_TENSORBOARD = """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
for run in range(RUNS):
    writer = EventFileWriter(f"{FOLDER}/run-{run:04d}")
    for step in range(POINTS):
        found = [Summary.Value(tag=name, simple_value=value) for name, value in values(run, step).items()]
        writer.add_event(Event(step=step, wall_time=1.7e9 + step, summary=Summary(value=found)))
    writer.close()
"""
WRITE_MLFLOW = """
import mlflow
from mlflow.entities import Metric
mlflow.set_tracking_uri(f"sqlite:///{FOLDER}/mlflow.db")
client = mlflow.MlflowClient()
for run in range(RUNS):
    each = client.create_run("0", run_name=f"run-{run:04d}").info.run_id
    found = [Metric(name, value, 1_700_000_000_000 + step, step) for step in range(POINTS) for name, value in values(run, step).items()]
    for at in range(0, len(found), 1000):
        client.log_batch(each, metrics=found[at:at + 1000])
    client.set_terminated(each)
"""
WRITE_AIM = """
from aim import Run
for run in range(RUNS):
    each = Run(repo=FOLDER, system_tracking_interval=None, capture_terminal_logs=False)
    each.name = f"run-{run:04d}"
    for step in range(POINTS):
        each.track(values(run, step), step=step)
    each.close()
"""
WRITE_TRACKIO = """
import trackio
for run in range(RUNS):
    trackio.init(project="benchmark", name=f"run-{run:04d}", auto_log_gpu=False, auto_log_cpu=False)
    for step in range(POINTS):
        trackio.log(values(run, step), step=step)
    trackio.finish()
"""
HEAD = """
import sys, time, math
FOLDER, RUNS, POINTS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def values(run, step):
    return {f"train/metric_{i}": math.exp(-step / 50) + 0.001 * (run % 97) + 0.01 * ((7 * step + i) % 5) for i in range(20)}
"""
TOOLS = {
    "tensorboard": (WRITE_TENSORBOARD, ["-m", "tensorboard.main", "--logdir", "{folder}", "--port", "{port}", "--load_fast=false"], "/"),
    "mlflow": (WRITE_MLFLOW, ["-m", "mlflow", "server", "--backend-store-uri", "sqlite:///{folder}/mlflow.db", "--port", "{port}"], "/#/experiments/0/runs"),
    "aim": (WRITE_AIM, ["aim", "up", "--repo", "{folder}", "--port", "{port}", "--host", "127.0.0.1"], "/runs"),
    "trackio": (WRITE_TRACKIO, ["-c", "import trackio; trackio.show(project='benchmark', open_browser=False, block_thread=True)"], "/"),
}  # fmt: skip
"""How each writes, is served, and the address of its runs."""
PORT = 7911
PATIENCE_S = 120


@dataclass(frozen=True)
class Tool:
    """One tool in an environment of its own, with its folder."""

    name: str
    python: str
    folder: Path

    def environment(self) -> dict[str, str]:
        home = str(self.folder)
        return {
            **os.environ,
            **dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"), home),
            "PATH": f"{Path(self.python).parent}:{os.environ['PATH']}",
            "TRACKIO_DIR": f"{home}/trackio",
            "GRADIO_SERVER_PORT": str(PORT),
            "GRADIO_ANALYTICS_ENABLED": "False",
            "HF_HUB_OFFLINE": "1",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "true",
            "GIT_PYTHON_REFRESH": "quiet",
            **({"PYTHONPATH": str(SOURCE)} if self.name == "assay" else {}),
        }


def main() -> int:
    parser_of = argparse.ArgumentParser(add_help=False)
    parser_of.add_argument("--python", action="append", default=[])
    parser_of.add_argument("--runs", type=int, default=1_000)
    own, rest = parser_of.parse_known_args()
    asked = options(__doc__ or "", rest, parts=("assay", *TOOLS))
    asked.runs = 20 if asked.quick else own.runs
    pythons = dict(each.split("=", 1) for each in own.python)
    parts: dict[str, Callable[[Session, argparse.Namespace], object]] = {"assay": with_assay}
    for name in TOOLS:
        if name in pythons:
            parts[name] = lambda session, asked, name=name: with_peer(
                session, asked, name, pythons[name]
            )
    found = measure(parts, asked)
    show("ui: beside others", found.figures.values(), machine(), as_json=asked.as_json)
    return 1 if found.failed else 0


def with_assay(session: Session, asked: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="assay-peers-") as name:
        tool = Tool("assay", sys.executable, Path(name))
        project = open_project(Path(name), create=True)
        write(session, tool, WRITE_ASSAY, asked.runs)
        with assay_server(project) as (link, process, ready), session.page() as page:
            session.add("assay.ready", ready)
            table(session, "assay", page, lambda: opened(page, link))
            session.add("assay.memory", memory(process), "MiB")
            rows = page.locator("[data-run]").evaluate_all("all => all.map(e => e.dataset.run)")
            found = page.request.get(f"{root_of(link)}/api/runs/ids").json()[:100] or rows
            start = time.perf_counter()
            page.goto(f"{root_of(link)}/?sel={','.join(found)}&hide=runs")
            page.wait_for_function(
                "() => [...document.querySelectorAll('[data-last]')]"
                ".filter(each => Number(each.dataset.last) >= 99).length >= 4"
            )
            session.add("assay.chart", time.perf_counter() - start)


def with_peer(session: Session, asked: argparse.Namespace, name: str, python: str) -> None:
    script, command, path = TOOLS[name]
    with tempfile.TemporaryDirectory(prefix=f"{name}-peers-") as folder:
        tool = Tool(name, python, Path(folder))
        if name == "aim":
            subprocess.run([*program(python, "aim"), "init", "--repo", folder], check=True, env=tool.environment(), capture_output=True)  # fmt: skip
        write(session, tool, script, asked.runs)
        filled = [each.format(folder=folder, port=PORT) for each in command]
        with served(session, tool, filled) as process, session.page() as page:
            address = f"http://127.0.0.1:{PORT}{path}"
            table(session, name, page, lambda: named(page, address))
            session.add(f"{name}.memory", memory(process), "MiB")


def write(session: Session, tool: Tool, script: str, runs: int) -> None:
    start = time.perf_counter()
    process = psutil.Popen(
        [tool.python, "-c", HEAD + script, str(tool.folder), str(runs), "100"],
        env=tool.environment(),
        cwd=tool.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    before = os.times()
    _, said = process.communicate()
    after = os.times()
    if process.returncode:
        raise RuntimeError(said.decode()[-2000:])
    session.add(f"{tool.name}.write", time.perf_counter() - start)
    spent = (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )
    session.add(f"{tool.name}.write_cpu", spent)
    size = sum(each.lstat().st_blocks * 512 for each in tool.folder.rglob("*"))
    session.add(f"{tool.name}.size", size / 2**20, "MiB")


def program(python: str, *command: str) -> list[str]:
    """Return a command for an interpreter, or for a program beside it."""
    if command[0].startswith("-"):
        return [python, *command]
    return [str(Path(python).parent / command[0]), *command[1:]]


@contextmanager
def served(session: Session, tool: Tool, command: list[str]) -> Iterator[psutil.Process]:
    start = time.perf_counter()
    process = psutil.Popen(
        program(tool.python, *command),
        env=tool.environment(),
        cwd=tool.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not answers():
            if time.perf_counter() - start > PATIENCE_S or process.poll() is not None:
                raise RuntimeError(f"{tool.name} does not answer at port {PORT}")
            time.sleep(0.05)
        session.add(f"{tool.name}.ready", time.perf_counter() - start)
        yield process
    finally:
        everything = [*process.children(recursive=True), process]
        for each in everything:
            each.terminate()
        for each in psutil.wait_procs(everything, 10)[1]:
            each.kill()


def answers() -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def table(session: Session, name: str, page: Page, act: Callable[[], object]) -> None:
    start = time.perf_counter()
    act()
    session.add(f"{name}.table", time.perf_counter() - start)


def named(page: Page, address: str) -> None:
    page.goto(address, wait_until="commit")
    page.get_by_text(re.compile(r"run-\d{4}")).first.wait_for()


def memory(process: psutil.Process) -> float:
    everything = [*process.children(recursive=True), process]
    return sum(each.memory_info().rss for each in everything) / 2**20


if __name__ == "__main__":
    sys.exit(main())
