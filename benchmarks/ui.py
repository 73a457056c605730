"""How fast the page is with 10,000 runs of 200 config keys, in Chromium over a real server.

    first_ever   from opening the page to the first row, of a store whose index is not made yet;
                 `first_ever_index`: until all rows are there, `first_ever_index_cpu`: of the server
    ready, first of a cold server with the index: from `assay ui` to its link, from opening the page
                 to its first row
    filter, sort from the key or the click to the changed rows
    scroll       `blank`: share of animation frames with a row that is not filled while the table is
                 scrolled from end to end in 300 steps; `frame`: 95th percentile of the time between
                 two of them; `frame_cpu`: CPU time of the page's main thread a frame; `plain_frame`
                 and `plain_frame_cpu`: the same of a list in plain DOM
    points       from opening a run to its drawn curve of 1,000,000 points, the server's first look
                 at it; `points_again`: later ones
    server       memory after all of it, CPU over five seconds without a request

Beside an act stand the CPU seconds of the server and of all processes of the browser. Each figure
is printed as it is made, and one that fails leaves the others. `--only PART` takes a part alone.
"""

from __future__ import annotations

import argparse
import sys
import time

import psutil
from browsing import (
    Session,
    cpu_of,
    drawn,
    forget_index,
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

from assay.store.layout import Project

KEYS = 200
CURVES = {"train/loss": [0.5] * 20, "valid/acc": [0.25] * 20}
IDLE_S = 5
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
    asked = options(__doc__ or "", parts=("table", "points"))
    found = measure({"table": table, "points": points}, asked)
    show("ui: 10,000 runs in a browser", found.figures.values(), machine(), as_json=asked.as_json)
    return 1 if found.failed else 0


def table(session: Session, asked: argparse.Namespace) -> None:
    count = 500 if asked.quick else 10_000
    with new_project() as project:
        copy_runs(project, count, keys=KEYS, curves=CURVES)
        first_ever(session, project, count)
        for _ in range(1 if asked.quick else 3):
            with server(project) as (link, process, ready), session.page() as page:
                session.add("ready", ready, at_most=1.0)
                session.add("ready_cpu", cpu_of(process))
                in_table(session, page, link, count, process)
                of_server(session, process)


def first_ever(session: Session, project: Project, count: int) -> None:
    forget_index(project)
    with server(project) as (link, process, _), session.page() as page:
        start = time.perf_counter()
        opened(page, link)
        session.add("first_ever", time.perf_counter() - start)
        page.get_by_text(f"{count:,} runs").wait_for()
        session.add("first_ever_index", time.perf_counter() - start)
        session.add("first_ever_index_cpu", cpu_of(process))


def in_table(session: Session, page: Page, link: str, count: int, process: psutil.Process) -> None:
    """Measure what somebody sees of the table."""
    session.act("first", process, opened, page, link, at_most=1.0)
    page.get_by_text(f"{count:,} runs").wait_for()
    session.act("filter", process, filtered, page, count, at_most=0.3)
    page.get_by_label("Filter runs").fill("")
    page.keyboard.press("Enter")
    page.get_by_text(f"{count:,} runs").wait_for()
    session.act("sort", process, sorted_by_rate, page, at_most=0.3)
    session.add("blank", 100 * scroll(session, page, ""), "%", 0.0)
    with session.page() as plain:
        plain.set_content(PLAIN_LIST)
        scroll(session, plain, "plain_")


def scroll(session: Session, page: Page, prefix: str) -> float:
    """Scroll a list to its end; return the share of frames with an empty row."""
    with main_thread(page) as spent:
        before = spent()
        found = page.evaluate(SCROLL)
        cpu_ms = 1000 * (spent() - before) / 300
    session.add(f"{prefix}frame", found["frame"], "ms", None if prefix else 17.0)
    session.add(f"{prefix}frame_cpu", cpu_ms, "ms")
    return float(found["blank"])


def points(session: Session, asked: argparse.Namespace) -> None:
    count = 50_000 if asked.quick else 1_000_000
    with new_project() as project:
        ended = long_run(project, count)
        copy_runs(project, 1, curves=CURVES)  # the newest, whose curves the first page shows
        with server(project) as (link, process, _), session.page() as page:
            opened(page, link)
            for name, run in (
                ("points", ended),
                *([("points_again", ended)] * (1 if asked.quick else 3)),
            ):
                # From another page: an address that differs in nothing but its query is no new one.
                page.goto("about:blank")
                address = f"{root_of(link)}/runs/{run}?tab=curves"
                session.act(name, process, drawn, page, address, count - 1, at_most=0.3)


def of_server(session: Session, process: psutil.Process) -> None:
    time.sleep(4)  # a server imports numpy three seconds after its start
    before = cpu_of(process)
    time.sleep(IDLE_S)
    session.add("idle", 100 * (cpu_of(process) - before) / IDLE_S, "% CPU", 0.5)
    session.add("memory", process.memory_info().rss / 2**20, "MiB", 150.0)


def filtered(page: Page, count: int) -> None:
    page.get_by_label("Filter runs").fill("lr < 0.1")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "(all) => { const text = document.body.innerText;"
        " return /runs?, \\d/.test(text) && !text.includes(all); }",
        arg=f"{count:,} runs",
    )


def sorted_by_rate(page: Page) -> None:
    """Sort by a key of the config; the runs come by it, the smallest first."""
    first = "[role=row][data-run]"
    before = page.locator(first).first.get_attribute("data-run")
    page.locator("[data-column=lr] button").first.click()
    page.wait_for_function(
        f"before => document.querySelector('{first}')?.dataset.run !== before", arg=before
    )


if __name__ == "__main__":
    sys.exit(main())
