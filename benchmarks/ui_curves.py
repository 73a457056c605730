"""Curves of the page in Chromium over a real server: many of them, a long one, live ones.

    crowd     from opening the page to 10 drawn panels of 100 runs with 10,000 points each, a window
              of 2560 x 1440; the curves fall, with noise. `crowd_worst`: of curves that go up
              and down between the same two values
    crosshair 95th percentile of the time between frames while the pointer moves over them;
              `crosshair_cpu`: CPU time of the page's main thread a frame
    zoom      from the end of a drag on a curve of 1,000,000 points to the detail that the server
              sends
    pixel     from the log call to the drawn point, with 20 live runs that log ten times a second
    training  time of a loop that logs each step with the page open, as a ratio to the same loop
              without, in turns; `training_cpu`: the same in CPU time of the loop

Beside an act stand the CPU seconds of the server and of all processes of the browser. Each figure
is printed as it is made, and one that fails leaves the others. `--only PART` takes a part alone.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import threading
import time

from browsing import (
    SOURCE,
    WIDE,
    Session,
    drawn,
    main_thread,
    measure,
    new_project,
    opened,
    root_of,
    server,
)
from figures import machine, options, show
from generated_runs import copy_runs, long_run
from playwright.sync_api import Page

from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.store.layout import Project

RUNS = 100
METRICS = tuple(f"train/metric_{i}" for i in range(10))
LIVE_RUNS = 20
NEW_S = 20.0
"""Seconds until the index has read folders again that were new when it read them."""
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
    start, begun = time.perf_counter(), time.process_time()
    for step in range(int(sys.argv[1])):
        until = time.perf_counter() + 0.001
        while time.perf_counter() < until:
            pass
        run.log({"train/loss": 1 / (step + 1), "train/lr": 0.1}, step=step)
    print(time.perf_counter() - start, time.process_time() - begun)
"""


def main() -> int:
    asked = options(__doc__ or "", parts=("crowd", "zoom", "live", "training"))
    parts = {"crowd": crowd, "zoom": zoom, "live": live, "training": training}
    found = measure(parts, asked)
    show("ui: curves in a browser", found.figures.values(), machine(), as_json=asked.as_json)
    return 1 if found.failed else 0


def crowd(session: Session, asked: argparse.Namespace) -> None:
    points = 1_000 if asked.quick else 10_000
    noise = random.Random(0)
    drawn_curves = {
        "crowd": lambda step: 1 / (1 + step / 500) + noise.gauss(0, 0.02),
        "crowd_worst": lambda step: step % 97 / 200,
    }
    for part, curve in drawn_curves.items():
        one_crowd(
            session, asked, part, {name: [curve(i) for i in range(points)] for name in METRICS}
        )


def one_crowd(
    session: Session, asked: argparse.Namespace, part: str, curves: dict[str, list[float]]
) -> None:
    points = len(curves[METRICS[0]])
    with new_project() as project:
        copy_runs(project, RUNS, curves=curves)
        with server(project) as (link, process, _), session.page(WIDE) as page:
            opened(page, link)
            page.get_by_text(f"{RUNS} runs").wait_for()
            time.sleep(NEW_S)
            address = f"{root_of(link)}/?sel=*&hide=runs"
            for name in (part, f"{part}_again"):
                page.goto("about:blank")
                session.act(name, process, panels_drawn, page, address, points - 1, at_most=1.0)
            for _ in range(0 if part != "crowd" else 1 if asked.quick else 3):
                with main_thread(page) as spent:
                    before, all_before = spent(), session.browser_cpu()
                    frame = page.evaluate(FRAMES)
                    cpu_ms = 1000 * (spent() - before) / 120
                    all_ms = 1000 * (session.browser_cpu() - all_before) / 120
                session.add("crosshair", frame, "ms", 17.0)
                session.add("crosshair_cpu", cpu_ms, "ms")
                session.add("crosshair_browser_cpu", all_ms, "ms")


def panels_drawn(page: Page, address: str, last: int) -> None:
    page.goto(address)
    page.wait_for_function(
        "last => [...document.querySelectorAll('[data-last]')]"
        ".filter(each => Number(each.dataset.last) >= last).length === 10",
        arg=last,
    )


def zoom(session: Session, asked: argparse.Namespace) -> None:
    points = 100_000 if asked.quick else 1_000_000
    with new_project() as project:
        run = long_run(project, points)
        with server(project) as (link, process, _), session.page() as page:
            opened(page, link)
            for _ in range(3):
                page.goto("about:blank")
                drawn(page, f"{root_of(link)}/runs/{run}?tab=curves", points - 1)
                drag(page)
                session.act("zoom", process, released, page, at_most=0.15)


def drag(page: Page) -> None:
    """Mark a part of the chart, and hold the button."""
    box = page.locator(".u-over").first.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 50, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, y, steps=3)


def released(page: Page) -> None:
    """Let the button go; wait until the detail of that part is drawn."""
    with page.expect_response(lambda answer: "/api/curves" in answer.url and "low=" in answer.url):
        page.mouse.up()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(done))")


def live(session: Session, asked: argparse.Namespace) -> None:
    with new_project() as project:
        runs = [
            start_run(project, AttemptSpec(keep_code=False), tag=f"live-{i}")
            for i in range(LIVE_RUNS)
        ]
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
        try:
            with server(project) as (link, _, _), session.page() as page:
                opened(page, link)
                page.goto(f"{root_of(link)}/runs/{runs[0].folder.id}?tab=curves")
                page.wait_for_selector("[data-last]")
                for _ in range(10):
                    time.sleep(0.5)
                    start = time.perf_counter()
                    step = log(0)
                    page.wait_for_function(
                        "step => Number(document.querySelector('[data-last]').dataset.last)"
                        " >= step",
                        arg=step,
                    )
                    session.add("pixel", time.perf_counter() - start, at_most=1.0)
        finally:
            is_over.set()
            thread.join()
            for run in runs:
                run.finish()


def training(session: Session, asked: argparse.Namespace) -> None:
    steps, rounds = (500, 1) if asked.quick else (5_000, 5)
    with new_project() as project:
        loop(project, steps)
        for _ in range(rounds):
            alone = loop(project, steps)
            with server(project) as (link, _, _), session.page() as page:
                opened(page, link)
                beside = loop(project, steps)
            session.add("training", beside[0] / alone[0], "x", 1.01)
            session.add("training_cpu", beside[1] / alone[1], "x")


def loop(project: Project, steps: int) -> tuple[float, float]:
    """Log every step of a loop in a process of its own; return its seconds and CPU seconds."""
    done = subprocess.run(
        [sys.executable, "-c", LOOP, str(steps)],
        cwd=project.root,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, cpu_seconds = map(float, done.stdout.split()[-2:])
    return seconds, cpu_seconds


if __name__ == "__main__":
    sys.exit(main())
