"""What starting costs: commands and imports, each in a process of its own.

Every command is run in turn with the others, round after round, beside `python -c pass` (the floor)
and `import torch` (the ceiling). CPU time is user and system time of the process as the kernel
counts it, in seconds; wall time is what somebody waits. Told are medians. `start` imports what
records; `over_python` is what that adds to `python -c pass`, in time and in memory: the median over
the rounds of the difference within one. `record` starts a run, logs once and ends it. `ls` lists
real run folders, copies of one run, with the index that earlier calls have made; `first_cpu_s` is
the call that makes it. `run_misspelt` is refused for a wrong section name, with exit code 2. `warm`
is what begin and end of a run cost in a process that has had some: without the output of the
program, which a process of its own keeps, and with it (`output`, of which a line is printed);
`in_memory` is the first on a disk in memory, for which nobody waits.

Afterwards each command runs once more in an interpreter that tells which of the packages that take
long were loaded; `startup.NAME.heavy` is how many, and none may be where only text goes in and out.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from time import perf_counter

from figures import Figure, machine, options, show

from assay.core.ids import folder_name, new_run_id
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.store.layout import open_project

HEAVY = ("torch", "numpy", "pydantic", "rich", "fastapi", "starlette", "uvicorn")
MINUTE_NS = 60 * 10**9
MISSPELT = """\
[model]
type = "torch.nn.Linear"
args = [4, 2]

[trian]
epochs = 1
"""
WARM = """\
import json, time
from pathlib import Path
import assay

def once(keep_output):
    wall, cpu = time.perf_counter(), time.process_time()
    run = assay.start(tag="warm", config={{"lr": 0.1}}, keep_output=keep_output)
    print("epoch 1")
    run.log({{"loss": 1.0}}, step=1)
    run.finish()
    return time.process_time() - cpu, time.perf_counter() - wall

out = {{}}
for name, keep_output in (("warm", False), ("warm_output", True)):
    times = [once(keep_output) for _ in range({rounds} + 3)][3:]
    out[name] = [sorted(each)[len(times) // 2] for each in zip(*times)]
Path("warm.json").write_text(json.dumps(out))
"""
TELL = """\
import atexit, json, sys
atexit.register(lambda: print(json.dumps([name for name in {heavy} if name in sys.modules]), file=sys.stderr))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One thing to start in `folder`, and its times.

    It is `code` for `python -c`, or `arguments` of assay.
    """

    folder: Path
    code: str = ""
    arguments: Sequence[str] = ()
    exit_code: int = 0
    at_most_s: float | None = None
    is_light: bool = True
    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Once, timed."""
        command = ["-c", self.code] if self.code else ["-m", "assay", *self.arguments]
        begun = perf_counter()
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(process.pid, 0)
        self.wall_s.append(perf_counter() - begun)
        self.cpu_s.append(used.ru_utime + used.ru_stime)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != self.exit_code:
            raise SystemExit(
                f"error: {' '.join(command)} ended with {process.returncode}, not {self.exit_code}"
            )

    def most_mb(self) -> float:
        """Peak memory in MB, as told by the process: that of `wait4` begins with its parent's."""
        code = f"{self.code}\nprint(open('/proc/self/status').read())"
        told = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
        )
        return int(told.stdout.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6

    def heavy(self) -> list[str]:
        """Which packages that take long to import it loads."""
        call = f"sys.argv = {['assay', *self.arguments]!r}\nfrom assay.__main__ import main\nsys.exit(main())"
        code = TELL.format(heavy=HEAVY) + (self.code or call)
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        loaded: list[str] = json.loads(done.stderr.splitlines()[-1])
        return loaded


def starts(folder: Path, projects: dict[int, Path]) -> dict[str, Start]:
    """Everything that is started, by name."""
    config = folder / "misspelt.toml"
    config.write_text(MISSPELT, encoding="utf-8")
    scripts = folder / "scripts"
    scripts.mkdir()
    recording = "import assay\nwith assay.start() as run:\n    run.log({'loss': 1.0}, step=1)"
    ls_at_most_s = {1_000: 0.12, 10_000: 0.3}
    return {
        "python": Start(folder=folder, code="pass"),
        "torch": Start(folder=folder, code="import torch", is_light=False),
        "import_assay": Start(folder=folder, code="import assay", at_most_s=0.05),
        "import_config": Start(folder=folder, code="import assay.config"),
        "start": Start(folder=folder, code="import assay; assay.start"),
        "import_record": Start(folder=folder, code="import assay.record.recorder"),
        "import_engine": Start(folder=folder, code="import assay.engine", is_light=False),
        "record": Start(folder=scripts, code=recording),
        "help": Start(folder=folder, arguments=["--help"], at_most_s=0.10),
        "run_misspelt": Start(folder=folder, arguments=["run", str(config)], exit_code=2),
        **{
            f"ls_{count}": Start(
                folder=project, arguments=["ls"], at_most_s=ls_at_most_s.get(count)
            )
            for count, project in projects.items()
        },
    }


def project_with(count: int, folder: Path) -> Path:
    """A project with that many runs: copies of one, each with an id and a time of its own."""
    folder.mkdir()
    project = open_project(folder, create=True)
    if not count:
        return folder
    recorder = start_run(
        project, AttemptSpec(config_toml="[optimizer]\nlr = 0.1\n", keep_code=False), tag="digits"
    )
    for step in range(50):
        recorder.log({"train/loss": 1 / (step + 1), "train/lr": 0.1}, step)
    recorder.finish()
    one, text = recorder.run, recorder.folder.run_json.read_text(encoding="utf-8")
    for i in range(1, count):
        run_id, created_ns = new_run_id(), one.created_ns - i * MINUTE_NS
        copy = project.runs_dir / folder_name(
            datetime.fromtimestamp(created_ns / 1e9), run_id, one.tag
        )
        copy.mkdir()
        run_json = text.replace(one.id, run_id).replace(str(one.created_ns), str(created_ns))
        (copy / recorder.folder.run_json.name).write_text(run_json, encoding="utf-8")
        for file in (recorder.folder.events, recorder.folder.config_toml):
            os.link(file, copy / file.name)
        shutil.copytree(recorder.folder.metrics, copy / "metrics", copy_function=os.link)
    return folder


def warm_figures(folder: Path, rounds: int) -> Iterator[Figure]:
    """Begin and end of a run in a process that has had some, CPU and wall."""
    for name, (cpu_s, wall_s) in warm(folder, rounds).items():
        most_cpu, most_wall = (0.010, None) if name == "warm" else (None, 0.015)
        yield Figure(name=f"startup.{name}.cpu_s", value=cpu_s, unit="s", at_most=most_cpu)
        yield Figure(name=f"startup.{name}.wall_s", value=wall_s, unit="s", at_most=most_wall)
    memory = Path("/dev/shm")
    if os.access(memory, os.W_OK):
        with tempfile.TemporaryDirectory(dir=memory) as name:
            _, wall_s = warm(Path(name) / "warm", rounds)["warm"]
        yield Figure(name="startup.warm_in_memory.wall_s", value=wall_s, unit="s", at_most=0.010)


def warm(folder: Path, rounds: int) -> dict[str, list[float]]:
    """CPU and wall, without output and with it."""
    folder.mkdir()
    code = WARM.format(rounds=rounds)
    quiet = subprocess.DEVNULL
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, stdout=quiet, stderr=quiet)
    measured: dict[str, list[float]] = json.loads(
        (folder / "warm.json").read_text(encoding="utf-8")
    )
    return measured


def figures_of(all_starts: dict[str, Start], first_s: dict[str, float]) -> Iterator[Figure]:
    for name, start in all_starts.items():
        yield Figure(
            name=f"startup.{name}.cpu_s",
            value=median(start.cpu_s),
            unit="s",
            at_most=start.at_most_s,
        )
        yield Figure(name=f"startup.{name}.wall_s", value=median(start.wall_s), unit="s")
        if name in first_s:
            yield Figure(name=f"startup.{name}.first_cpu_s", value=first_s[name], unit="s")
    torch_s = median(all_starts["torch"].cpu_s)
    python, start = all_starts["python"], all_starts["start"]
    over_s = median(a - b for a, b in zip(start.cpu_s, python.cpu_s, strict=True))
    yield Figure(name="startup.start.over_python_s", value=over_s, unit="s", at_most=0.05)
    if sys.platform == "linux":
        over_mb = median(start.most_mb() - python.most_mb() for _ in range(3))
        yield Figure(name="startup.start.over_python_mb", value=over_mb, unit="MB", at_most=8)
    over_s = median(all_starts["import_engine"].cpu_s) - torch_s
    yield Figure(name="startup.import_engine.over_torch_s", value=over_s, unit="s", at_most=0.1)
    yield Figure(name="startup.help.of_torch", value=median(all_starts["help"].cpu_s) / torch_s)
    for name, start in all_starts.items():
        if start.is_light:
            loaded = start.heavy()
            yield Figure(
                name=f"startup.{name}.heavy", value=len(loaded), at_most=0, note=", ".join(loaded)
            )


def main() -> None:
    asked = options("What starting costs.")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for variable in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            os.environ[variable] = str(folder)
        # Else every start compiles what was changed since the last one that was allowed to keep it.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        for variable in [
            each for each in os.environ if each == "ASSAY" or each.startswith("ASSAY_")
        ]:
            del os.environ[variable]
        counts = (0, 1_000) if asked.quick else (0, 1_000, 10_000)
        projects = {count: project_with(count, folder / f"with-{count}-runs") for count in counts}
        all_starts = starts(folder, projects)
        first_s = {}
        for name in (f"ls_{count}" for count in counts if count):
            for _ in range(4):  # runs that have just come are looked at more than once
                all_starts[name].run()
            first_s[name] = all_starts[name].cpu_s[0]
        for start in all_starts.values():
            start.run()
            start.cpu_s.clear()
            start.wall_s.clear()
        for _ in range(1 if asked.quick else 15):
            for start in all_starts.values():
                start.run()
        figures = [
            *figures_of(all_starts, first_s),
            *warm_figures(folder / "warm", 5 if asked.quick else 40),
        ]
    show("startup: commands and imports", figures, machine(), as_json=asked.as_json)


if __name__ == "__main__":
    main()
