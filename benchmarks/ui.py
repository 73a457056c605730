"""How fast the page is with 10,000 runs of 200 config keys, in Chromium over a real server.

`ready` is from the start of `assay ui` to its link. `first_ever` is from opening the page to the
first row of a store whose index is not made yet (`first_ever_cpu`: CPU time of the server until
all rows are there), `first` the same of a cold server with the index;
`filter` and `sort` are from the key or click to the changed rows. `blank` is the share of animation
frames with a row that is not filled while the table is scrolled from end to end in 300 steps;
`frame` is the 95th percentile of the time between two of them, and `frame_cpu` the CPU time of the
page's main thread a frame; `plain_frame` and `plain_frame_cpu` are the same of a list in plain DOM.
`points` is from opening a run to
its drawn curve of 1,000,000 points. `memory` and `idle` are those of the server: RSS after all of
it, CPU over five seconds without a request.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psutil
from figures import Figure, machine, options, show
from playwright.sync_api import Page, sync_playwright

from assay.core import frames, metrics_file
from assay.core.ids import new_run_id
from assay.record.recorder import RunRecorder
from assay.store.layout import Project, open_project

SOURCE = Path(__file__).resolve().parents[1] / "src"
KEYS = 200
WINDOW = {"width": 1280, "height": 800}
SCROLL = """
async () => {
  const box = [...document.querySelectorAll('*')].find(
    (each) => each.scrollHeight > 5000 && ['auto', 'scroll'].includes(getComputedStyle(each).overflowY));
  const steps = 300, times = [];
  let blank = 0, last = performance.now();
  for (let i = 1; i <= steps; i++) {
    box.scrollTop = (box.scrollHeight - box.clientHeight) * i / steps;
    await new Promise((done) => requestAnimationFrame(done));
    const now = performance.now();
    times.push(now - last);
    last = now;
    const { top, bottom } = box.getBoundingClientRect();
    const rows = [...document.querySelectorAll('[role=row][aria-rowindex]')].filter((row) => {
      const at = row.getBoundingClientRect();
      return at.bottom > top + 30 && at.top < bottom;
    });
    if (rows.length < 5 || rows.some((row) => row.dataset.loading)) blank++;
  }
  times.sort((a, b) => a - b);
  return { blank: blank / steps, frame: times[Math.floor(times.length * 0.95)] };
}
"""
PLAIN_LIST = """
<style>
  body { margin: 0; font: 13px/28px sans-serif }
  #box { position: relative; width: 588px; height: 690px; overflow: auto }
  #box div div { position: absolute; left: 0; right: 0; height: 28px; white-space: nowrap }
  span { display: inline-block; width: 66px; overflow: hidden }
</style>
<div id="box"><div style="position: relative; height: 280028px"></div></div>
<script>
  const body = document.querySelector('#box div');
  let shown = new Map();
  document.querySelector('#box').addEventListener('scroll', ({ target }) => {
    const first = Math.max(0, Math.floor(target.scrollTop / 28) - 20);
    const last = Math.min(10000, first + 65), fresh = new Map();
    for (let i = first; i <= last; i++) {
      let row = shown.get(i);
      if (!row) {
        row = document.createElement('div');
        row.setAttribute('role', 'row');
        row.setAttribute('aria-rowindex', i);
        row.style.top = 28 * i + 'px';
        for (let j = 0; j < 8; j++) row.append(Object.assign(document.createElement('span'), { textContent: i * j }));
        body.append(row);
      }
      fresh.set(i, row);
    }
    for (const [i, row] of shown) if (!fresh.has(i)) row.remove();
    shown = fresh;
  });
</script>
"""
"""A list of as many rows in plain DOM: what the browser of this machine can do at best."""


def main() -> int:
    asked = options(__doc__ or "")
    count = 500 if asked.quick else 10_000
    points = 50_000 if asked.quick else 1_000_000
    with tempfile.TemporaryDirectory(prefix="assay-ui-") as name:
        project = open_project(Path(name), create=True)
        long_run = make_store(project, count, points)
        figures = measured(project, long_run, count, rounds=1 if asked.quick else 3)
    show("ui: 10,000 runs in a browser", figures, machine(), as_json=asked.as_json)
    return 0


def make_store(project: Project, count: int, points: int) -> str:
    """Fill a store with copies of one recorded run that differ in a key and a value; return the id
    of a long run."""
    keys = "\n".join(f"key_{i} = {i}" for i in range(KEYS - 1))
    recorder = RunRecorder.start(
        project, tag="many", keep_code=False, config_toml=f"lr = 0.125\n{keys}\n"
    )
    for step in range(20):
        recorder.log({"train/loss": 0.0625, "valid/acc": 0.03125}, step=step)
    recorder.finish()
    first = recorder.folder.path
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in (first / "run.json", first / "config.toml")
    }
    own = recorder.folder.id
    for i in range(count):
        run_id = new_run_id()
        folder = project.runs_dir / first.name.replace(own, run_id)
        folder.mkdir()
        for path, text in texts.items():
            changed = (
                text.replace(own, run_id)
                .replace("0.125", str(i / count))
                .replace("0.03125", str(i / count / 2))
            )
            (folder / path.name).write_text(changed, encoding="utf-8")
        shutil.copyfile(first / "metrics.bin", folder / "metrics.bin")
    shutil.rmtree(first)
    long = RunRecorder.start(project, tag="long", keep_code=False)
    long.log({"train/loss": 1.0}, step=0)
    long.finish()
    data = frames.file_head(metrics_file.FORM)
    data += frames.pack_extent(metrics_file.FORM, sequence=0, attempt=1, base_ns=0, end=0)
    data += metrics_file.pack_keys(metrics_file.KeySet(0, ("train/loss",)))
    parts = (
        metrics_file.pack_wide(0, step, step, [1 / (1 + step % 997)]) for step in range(points)
    )
    (long.folder.path / "metrics.bin").write_bytes(data + b"".join(parts))
    return long.folder.id


def measured(project: Project, long_run: str, count: int, *, rounds: int) -> list[Figure]:
    found: dict[str, list[float]] = {}
    with sync_playwright() as driver:
        path = os.environ.get("DEV_BROWSER") or shutil.which("chromium")
        browser = driver.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        with server(project) as (link, process, _):
            page = browser.new_page(viewport=WINDOW)
            found["first_ever"] = [timed(opened, page, link)]
            page.get_by_text(f"{count + 1:,} runs").wait_for(timeout=600_000)
            spent = process.cpu_times()
            found["first_ever_cpu"] = [spent.user + spent.system]
        for _ in range(rounds):
            with server(project) as (link, process, ready):
                page = browser.new_page(viewport=WINDOW, reduced_motion="reduce")
                one = {"ready": ready, **in_page(page, link, long_run, count), **of_server(process)}
            for name, value in one.items():
                found.setdefault(name, []).append(value)
        browser.close()
    units = {
        "blank": ("%", 0.0),
        "frame": ("ms", 17.0),
        "memory": ("MiB", 150.0),
        "idle": ("% CPU", 0.5),
    }
    limits = {"ready": 1.0, "first": 1.0, "filter": 0.3, "sort": 0.3, "points": 0.3}
    figures = []
    for name, values in found.items():
        unit, limit = units.get(name, ("s", limits.get(name)))
        figures.append(Figure(name=f"ui.{name}", value=median(values), unit=unit, at_most=limit))
    return figures


def in_page(page: Page, link: str, long_run: str, count: int) -> dict[str, float]:
    """Measure what somebody sees; the page is closed afterwards."""
    found = {"first": timed(opened, page, link)}
    page.get_by_text(f"{count + 1:,} runs").wait_for()
    found["filter"] = timed(filtered, page, count)
    page.get_by_label("Filter runs").fill("")
    page.keyboard.press("Enter")
    page.get_by_text(f"{count + 1:,} runs").wait_for()
    found["sort"] = timed(sorted_by_tag, page)
    scrolled = scroll(page)
    found |= {"blank": 100 * scrolled["blank"]}
    browser = page.context.browser
    assert browser is not None
    plain = browser.new_page(viewport=WINDOW)
    plain.set_content(PLAIN_LIST)
    for name in ("frame", "frame_cpu"):
        found[name] = scrolled[name]
    found |= {f"plain_{name}": value for name, value in scroll(plain).items() if name != "blank"}
    plain.close()
    root = link.partition("/login")[0]
    found["points"] = timed(drawn, page, f"{root}/runs/{long_run}?tab=curves")
    page.close()
    return found


def scroll(page: Page) -> dict[str, float]:
    """Scroll a list to its end; `frame_cpu` is the CPU time of the page's main thread a frame."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(each["value"] for each in metrics if each["name"] == "TaskDuration")

    before = spent()
    found = page.evaluate(SCROLL)
    found["frame_cpu"] = 1000 * (spent() - before) / 300
    session.detach()
    return dict(found)


def of_server(process: psutil.Process) -> dict[str, float]:
    time.sleep(1)
    before = process.cpu_times()
    time.sleep(5)
    after = process.cpu_times()
    spent = after.user + after.system - before.user - before.system
    return {"idle": 100 * spent / 5, "memory": process.memory_info().rss / 2**20}


def opened(page: Page, link: str) -> None:
    page.goto(link)
    page.wait_for_selector("[role=row][data-run]", timeout=600_000)


def drawn(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_function(
        "() => Number(document.querySelector('[data-last]')?.dataset.last) > 1000"
    )


def filtered(page: Page, count: int) -> None:
    page.get_by_label("Filter runs").fill("lr < 0.1")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "(all) => { const text = document.body.innerText; return /runs?, \\d/.test(text) && !text.includes(all); }",
        arg=f"{count + 1:,} runs",
    )


def sorted_by_tag(page: Page) -> None:
    page.locator("[data-column=tag] button").first.click()
    page.wait_for_function(
        "() => document.querySelector('[data-index=\"0\"], [aria-rowindex=\"2\"]')?.innerText.includes('long')"
    )


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
        process.wait(120)
        process.stdout.close()


def timed(act: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    act(*arguments)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
