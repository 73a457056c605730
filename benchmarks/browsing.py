"""A browser and a server for the benchmarks of the page: acts in it by the clock and in CPU time.

Each part of a benchmark is measured by itself. Each figure is printed to stderr as it is made, and
a part that fails takes no other one with it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
from figures import Figure
from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from assay.store.index_database import index_file
from assay.store.layout import Project, open_project

SOURCE = Path(__file__).resolve().parents[1] / "src"
WINDOW = {"width": 1280, "height": 800}
WIDE = {"width": 2560, "height": 1440}
NO_GPU = ("--no-sandbox", "--disable-gpu")
"""Without the second a machine that has no GPU draws with one that is emulated."""
PATIENCE_MS = 180_000


@dataclass
class Session:
    """What a benchmark measures with, and the figures it has found so far."""

    browser: Browser
    figures: dict[str, Figure] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    _values: dict[str, list[float]] = field(default_factory=dict)
    _spent: dict[int, float] = field(default_factory=dict)

    def add(
        self, name: str, value: float, unit: str = "s", at_most: float | None = None, note: str = ""
    ) -> None:
        """Keep one value of a figure, which is the median of all that were kept, and print it."""
        values = self._values.setdefault(name, [])
        values.append(value)
        if not note and len(values) > 1:
            note = f"{min(values):.3g} to {max(values):.3g}"
        self.figures[name] = Figure(
            name=f"ui.{name}", value=median(values), unit=unit, at_most=at_most, note=note
        )
        load = os.getloadavg()[0]
        print(f"  ui.{name} {value:.3f} {unit} (load {load:.0f})", file=sys.stderr, flush=True)

    def act(
        self,
        name: str,
        server: psutil.Process,
        act: Callable[..., object],
        *arguments: object,
        at_most: float | None = None,
    ) -> None:
        """Do something in the page; keep its time, and the CPU time of server and browser."""
        before, start = (cpu_of(server), self.browser_cpu()), time.perf_counter()
        act(*arguments)
        self.add(name, time.perf_counter() - start, at_most=at_most)
        self.add(f"{name}_server_cpu", cpu_of(server) - before[0])
        self.add(f"{name}_browser_cpu", self.browser_cpu() - before[1])

    def browser_cpu(self) -> float:
        """CPU seconds of all processes of the browser, those that have ended too."""
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "chrom" in process.name():
                    self._spent[process.pid] = cpu_of(process)
        return sum(self._spent.values())

    @contextmanager
    def page(self, window: Mapping[str, int] = WINDOW) -> Iterator[Page]:
        """Open an empty page, which is closed whatever happens in it."""
        page = self.browser.new_page(
            viewport={"width": window["width"], "height": window["height"]}, reduced_motion="reduce"
        )
        page.set_default_timeout(PATIENCE_MS)
        try:
            yield page
        finally:
            page.close()


Part = Callable[[Session, argparse.Namespace], object]


def measure(parts: Mapping[str, Part], asked: argparse.Namespace) -> Session:
    """Measure each part that is asked for; one that fails is told and left out."""
    with contextlib.ExitStack() as stack:
        # The index and the list of the user's projects are left alone.
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="assay-ui-home-"))
        os.environ |= {"XDG_CACHE_HOME": home, "XDG_DATA_HOME": home}
        driver = stack.enter_context(sync_playwright())
        found = filter(None, map(shutil.which, ("chromium", "chromium-headless-shell")))
        path = os.environ.get("DEV_BROWSER") or next(found, None)
        browser = driver.chromium.launch(executable_path=path, args=list(NO_GPU))
        session = Session(browser)
        for name, part in parts.items():
            if asked.only and name not in asked.only:
                continue
            print(f"{name} ...", file=sys.stderr, flush=True)
            try:
                part(session, asked)
            except Exception:
                session.failed.append(name)
                traceback.print_exc()
        browser.close()
    return session


@contextmanager
def new_project() -> Iterator[Project]:
    """Make a project in a folder that is deleted afterwards, with its index."""
    with tempfile.TemporaryDirectory(prefix="assay-ui-") as name:
        project = open_project(Path(name), create=True)
        try:
            yield project
        finally:
            forget_index(project)


def forget_index(project: Project) -> None:
    """Delete the index of a project, so that the next server makes it."""
    with contextlib.suppress(FileNotFoundError):
        index_file(project).unlink()


@contextmanager
def server(project: Project) -> Iterator[tuple[str, psutil.Process, float]]:
    """Start `assay ui`; yield its link, its process and the seconds that it took to be ready."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "assay", "ui", "--port", "0"],
        cwd=project.root,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        link = next(line.strip() for line in process.stdout if re.search("/login#", line))
        yield link, psutil.Process(process.pid), time.perf_counter() - start
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def root_of(link: str) -> str:
    return link.partition("/login")[0]


def opened(page: Page, link: str) -> None:
    """Open the page, until its first row is there."""
    page.goto(link)
    page.wait_for_selector("[role=row][data-run]")


def drawn(page: Page, address: str, last: int) -> None:
    """Open a page, until it has drawn a curve as far as `last`."""
    page.goto(address)
    page.wait_for_function(
        "last => Number(document.querySelector('[data-last]')?.dataset.last) >= last", arg=last
    )


def cpu_of(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system)


@contextmanager
def main_thread(page: Page) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the CPU seconds of the page's main thread."""
    session: CDPSession = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))

    try:
        yield spent
    finally:
        session.detach()
