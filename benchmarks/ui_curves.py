"""Curves of the page in Chromium over a real server: many of them, one long one, live ones.

`crowd` is from opening the page to 10 drawn panels of 100 runs with 10,000 points each, a window of
2560 x 1440; `crosshair` is the 95th percentile of the time between frames while the pointer moves
over them, `crosshair_cpu` the CPU time of the page's main thread a frame. `zoom` is from the end of
a drag on a curve of 1,000,000 points to the detail that the server sends. `pixel` is from the log
call to the drawn point, with 20 live runs that log ten times a second. `training` is the time of a
loop that logs each step with the page open, as a ratio to the same loop without, in turns.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from figures import Figure, machine, options, show
from playwright.sync_api import Browser, Page, sync_playwright
from ui import SOURCE, WINDOW, make_store, opened, server

from assay.core import frames, metrics_file
from assay.core.ids import new_run_id
from assay.record.recorder import RunRecorder
from assay.store.layout import Project, open_project

RUNS = 100
METRICS = tuple(f"train/metric_{i}" for i in range(10))
LIVE_RUNS = 20
WIDE = {"width": 2560, "height": 1440}
FRAMES = """
async () => {
  const times = [];
  let last = performance.now();
  for (let i = 0; i < 120; i++) {
    await new Promise((done) => requestAnimationFrame(done));
    const now = performance.now();
    times.push(now - last);
    last = now;
    const over = document.querySelectorAll('.u-over')[0], box = over.getBoundingClientRect();
    const at = { clientX: box.left + (box.width * i) / 120, clientY: box.top + 40, bubbles: true };
    over.dispatchEvent(new MouseEvent(i ? 'mousemove' : 'mouseenter', at));
  }
  times.sort((a, b) => a - b);
  return times[Math.floor(times.length * 0.95)];
}
"""
LOOP = """
import sys, time
import assay
with assay.start(tag="loop") as run:
    start = time.perf_counter()
    for step in range(int(sys.argv[1])):
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass
        run.log({"train/loss": 1 / (step + 1), "train/lr": 0.1}, step=step)
    print(time.perf_counter() - start)
"""


def main() -> int:
    asked = options(__doc__ or "")
    points, steps = (1_000, 500) if asked.quick else (10_000, 5_000)
    with (
        tempfile.TemporaryDirectory(prefix="assay-ui-") as name,
        sync_playwright() as driver,
    ):
        path = os.environ.get("DEV_BROWSER") or shutil.which("chromium")
        browser = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        root = Path(name)
        figures = crowd(browser, root / "crowd", points)
        figures += zoom(browser, root / "long", 100 * points)
        figures += live(browser, root / "live")
        figures += training(browser, root / "loop", steps, rounds=1 if asked.quick else 3)
        browser.close()
    show("ui: curves in a browser", figures, machine(), as_json=asked.as_json)
    return 0


def new_project(root: Path) -> Project:
    root.mkdir()
    return open_project(root, create=True)


def crowd(browser: Browser, root: Path, points: int) -> list[Figure]:
    project = new_project(root)
    recorder = RunRecorder.start(project, tag="crowd", keep_code=False)
    recorder.log(dict.fromkeys(METRICS, 1.0), step=0)
    recorder.finish()
    first = recorder.folder.path
    own = recorder.folder.id
    head = frames.file_head(metrics_file.FORM)
    head += frames.pack_extent(metrics_file.FORM, sequence=0, attempt=1, base_ns=0, end=0)
    head += metrics_file.pack_keys(metrics_file.KeySet(0, METRICS))
    text = (first / "run.json").read_text(encoding="utf-8")
    for i in range(RUNS):
        run_id = new_run_id()
        folder = project.runs_dir / first.name.replace(own, run_id)
        folder.mkdir()
        (folder / "run.json").write_text(text.replace(own, run_id), encoding="utf-8")
        rows = (
            metrics_file.pack_wide(0, step, step, [(i + j + step % 97) / 200 for j in range(10)])
            for step in range(points)
        )
        (folder / "metrics.bin").write_bytes(head + b"".join(rows))
    shutil.rmtree(first)
    with server(project) as (link, _, _):
        page = browser.new_page(viewport=WIDE, reduced_motion="reduce")
        opened(page, link)
        page.get_by_text(f"{RUNS} runs").wait_for(timeout=120_000)
        start = time.perf_counter()
        page.goto(f"{link.partition('/login')[0]}/?sel=*&hide=runs")
        page.wait_for_function(
            "last => [...document.querySelectorAll('[data-last]')]"
            ".filter(each => Number(each.dataset.last) >= last).length === 10",
            arg=points - 1,
            timeout=120_000,
        )
        took = time.perf_counter() - start
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        before = busy(session)
        frame = page.evaluate(FRAMES)
        cpu = 1000 * (busy(session) - before) / 120
        page.close()
    return [
        Figure(name="ui.crowd", value=took, unit="s", at_most=1.0),
        Figure(name="ui.crosshair", value=frame, unit="ms", at_most=17.0),
        Figure(name="ui.crosshair_cpu", value=cpu, unit="ms"),
    ]


def busy(session: object) -> float:
    """Return the CPU seconds of the page's main thread."""
    metrics = session.send("Performance.getMetrics")["metrics"]  # type: ignore[attr-defined]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def zoom(browser: Browser, root: Path, points: int) -> list[Figure]:
    project = new_project(root)
    run = make_store(project, 1, points)
    times = []
    with server(project) as (link, _, _):
        page = browser.new_page(viewport=WINDOW, reduced_motion="reduce")
        opened(page, link)
        for _ in range(3):
            page.goto(f"{link.partition('/login')[0]}/runs/{run}?tab=curves")
            page.wait_for_function(
                "() => Number(document.querySelector('[data-last]')?.dataset.last) > 1000"
            )
            times.append(zoomed(page))
        page.close()
    return [Figure(name="ui.zoom", value=median(times), unit="s", at_most=0.15)]


def zoomed(page: Page) -> float:
    """Drag over a part of the chart; return the seconds until its detail is drawn."""
    box = page.locator(".u-over").first.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 50, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, y, steps=3)
    with page.expect_response(lambda answer: "/api/curves" in answer.url and "low=" in answer.url):
        start = time.perf_counter()
        page.mouse.up()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(done))")
    return time.perf_counter() - start


def live(browser: Browser, root: Path) -> list[Figure]:
    project = new_project(root)
    runs = [RunRecorder.start(project, tag=f"live-{i}", keep_code=False) for i in range(LIVE_RUNS)]
    is_over = threading.Event()
    lock = threading.Lock()
    steps = dict.fromkeys(range(LIVE_RUNS), 0)

    def log(at: int) -> int:
        with lock:
            steps[at] += 1
            runs[at].log({"train/loss": 1 / steps[at]}, step=steps[at])
            return steps[at]

    def others() -> None:
        while not is_over.wait(0.1):
            for at in range(1, LIVE_RUNS):
                log(at)

    log(0)
    thread = threading.Thread(target=others)
    thread.start()
    times = []
    try:
        with server(project) as (link, _, _):
            page = browser.new_page(viewport=WINDOW, reduced_motion="reduce")
            page.goto(link)
            page.wait_for_selector("[role=row][data-run]")
            page.goto(f"{link.partition('/login')[0]}/runs/{runs[0].folder.id}?tab=curves")
            page.wait_for_selector("[data-last]")
            for _ in range(10):
                time.sleep(0.5)
                start = time.perf_counter()
                step = log(0)
                page.wait_for_function(
                    "step => Number(document.querySelector('[data-last]').dataset.last) >= step",
                    arg=step,
                )
                times.append(time.perf_counter() - start)
            page.close()
    finally:
        is_over.set()
        thread.join()
        for run in runs:
            run.finish()
    return [Figure(name="ui.pixel", value=median(times), unit="s", at_most=1.0)]


def training(browser: Browser, root: Path, steps: int, *, rounds: int) -> list[Figure]:
    project = new_project(root)

    def loop() -> float:
        done = subprocess.run(
            [sys.executable, "-c", LOOP, str(steps)],
            cwd=project.root,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout.split()[-1])

    ratios = []
    loop()
    for _ in range(rounds):
        alone = loop()
        with server(project) as (link, _, _):
            page = browser.new_page(viewport=WINDOW, reduced_motion="reduce")
            opened(page, link)
            ratios.append(loop() / alone)
            page.close()
    return [Figure(name="ui.training", value=median(ratios), unit="x", at_most=1.01)]


if __name__ == "__main__":
    sys.exit(main())
