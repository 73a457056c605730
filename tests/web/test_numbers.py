"""Numbers of the page are those of the record: curves of many shapes, zoomed, smoothed, exported."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from assay.query.run import RunView
from assay.store.layout import Project
from run_folders import id_of, make_project, make_run
from web.conftest import Visitor, wait_for_answers
from web.serving import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.slow

DRAW = np.random.default_rng(0)
STEPS = 5000
CURVES = {
    "constant": [0.25] * 40,
    "line": [step / 7 for step in range(300)],
    "noise": (1 / np.sqrt(np.arange(1, STEPS + 1)) + 0.1 * DRAW.normal(size=STEPS)).tolist(),
    "spike": [0.5 + 40.0 * (step == 3210) for step in range(STEPS)],
    "signs": [math.sin(step / 9) for step in range(700)],
    "below": [-1.0 - step for step in range(20)],
    "gaps": [math.nan if 20 <= step < 30 else float(step % 7) for step in range(90)] + [math.nan],
    "infinite": [1.0, math.inf, 2.0],
    "large": [float(2**62), float(2**53 + 2), 12345.678],
    "one": [3.5],
    "lr": [
        0.01 * min(step / 20, 0.5 * (1 + math.cos(math.pi * step / 300))) for step in range(300)
    ],
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_project(tmp_path_factory.mktemp("numbers") / "project")


@pytest.fixture(scope="module")
def folder(project: Project) -> Path:
    folder = make_run(project, tag="shapes", points=CURVES)
    # A folder that has just changed may change again within the same tick: it is read once more.
    os.utime(folder, (time.time() - 60,) * 2)
    return folder


@pytest.fixture(scope="module")
def server(project: Project, folder: Path) -> Iterator[Server]:
    with serving(project.root) as server:
        yield server


@pytest.fixture
def view(folder: Path) -> RunView:
    return RunView(folder)


@pytest.fixture
def look(server: Server, folder: Path, visit: Callable[..., Visitor]) -> Callable[[str], Page]:
    """Open the curves of the run with a part of the address, once they are drawn."""
    someone = visit(server, viewport={"width": 1280, "height": 2400})

    def open_page(search: str) -> Page:
        page = someone.open(f"/runs/{id_of(folder)}?tab=curves{search}")
        panel(page, "noise").get_by_role("img").wait_for()
        wait_for_answers(page)
        return page

    return open_page


@pytest.mark.parametrize("path", ["/?sel={run}", "/?sel={run}&g=tag", "/runs/{run}?tab=curves"])
def test_a_page_asks_for_its_curves_in_one_request(
    server: Server, folder: Path, visit: Callable[..., Visitor], path: str
) -> None:
    someone = visit(server, viewport={"width": 1280, "height": 2400})
    asked: list[str] = []
    someone.context.on("request", lambda request: asked.append(request.url))

    page = someone.open(path.format(run=id_of(folder)))

    panel(page, "noise").get_by_role("img").wait_for()
    wait_for_answers(page)
    in_rows = "points=24"
    assert len([url for url in asked if "/api/curves?" in url and in_rows not in url]) == 1
    assert page.locator("[data-last]").count() == len(CURVES)


def panel(page: Page, name: str) -> Locator:
    return page.get_by_role("figure", name=name, exact=True)


def short(value: float) -> str:
    """Return a number as the page shows it, with four digits that count."""
    if not math.isfinite(value):
        return repr(value)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if not 1e-3 <= abs(value) < 1e6:
        digits, power = f"{value:.3e}".split("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    if abs(value) >= 1e4:
        return str(round(value))
    text = f"{value:#.4g}"
    return text.rstrip("0").rstrip(".")


def average(values: np.ndarray, weight: float) -> list[float]:
    """The moving average point by point, as its definition says."""
    total = seen = 0.0
    found = []
    for value in values:
        if math.isfinite(value):
            total = weight * total + (1 - weight) * value
            seen = weight * seen + 1 - weight
        found.append(total / seen if seen else math.nan)
    return found


@pytest.mark.parametrize("search", ["", "&z=100:160", "&smooth=0.9"])
def test_last_least_and_largest_are_those_of_the_record_whatever_part_is_shown(
    look: Callable[[str], Page], view: RunView, search: str
) -> None:
    page = look(search)

    for name in CURVES:
        if search == "&z=100:160" and len(CURVES[name]) < 100:
            continue  # no point of it is in view
        kept = view.summaries[name]
        cells = panel(page, name).locator("table.sr-only td").all_inner_texts()
        assert cells[1:] == [short(kept.last), short(kept.min), short(kept.max)], name


def test_a_copied_table_has_every_digit(look: Callable[[str], Page], view: RunView) -> None:
    page = look("")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])

    for name in ("noise", "large", "spike"):
        panel(page, name).get_by_role("button", name=f"Panel {name}").click()
        page.get_by_role("menuitem", name="As a table").click()
        page.get_by_role("button", name="Copy as CSV").click()
        page.get_by_text("Copied as CSV.").first.wait_for()
        (row,) = csv.DictReader(io.StringIO(page.evaluate("navigator.clipboard.readText()")))
        page.keyboard.press("Escape")
        kept = view.summaries[name]
        numbers = [float(row[key]) for key in ("last", "lowest", "highest")]
        assert numbers == [kept.last, kept.min, kept.max], name
        assert int(row["points"]) == len(CURVES[name])
        if name == "large":
            assert row["highest"] == str(2**62)


@pytest.mark.parametrize("search", ["", "&z=1000:4000", "&z=2990:3010"])
def test_a_smoothed_value_is_that_of_all_points_at_every_zoom(
    look: Callable[[str], Page], view: RunView, search: str
) -> None:
    page = look(f"&smooth=0.9{search}")
    values = view.metric("noise").values
    averages = average(values, 0.9)

    for share in (0.3, 0.5, 0.8):
        step, shown = hovered(page, "noise", share)
        at = int(np.searchsorted(view.metric("noise").steps, step))
        assert shown == short(averages[at]), (step, share)


@pytest.mark.parametrize("search", ["", "&z=40:60"])
def test_a_value_under_the_cursor_is_a_point_of_the_record(
    look: Callable[[str], Page], view: RunView, search: str
) -> None:
    page = look(search)

    for name in ("line", "gaps") if search else ("line", "signs", "constant", "spike"):
        curve = view.metric(name)
        step, shown = hovered(page, name, 0.5)
        at = int(np.searchsorted(curve.steps, step))
        assert shown == short(float(curve.values[at])), name


def test_a_curve_over_a_rate_that_rises_and_falls_is_whole_when_it_is_zoomed(
    look: Callable[[str], Page], view: RunView
) -> None:
    page = look("&x=lr&z=0.006:0.0099")
    rates = np.asarray(CURVES["lr"])

    colored = rows_of_curve(page, panel(page, "line").locator(".u-over"), 0.6)
    assert 1 + sum(below - above > 5 for above, below in pairwise(colored)) == 2
    rate, shown = hovered(page, "line", 0.5)
    on_curve = np.isclose(rates, rate, rtol=1e-3)
    assert shown in {short(value) for value in np.asarray(CURVES["line"])[on_curve]}


def test_a_logarithmic_axis_says_what_it_has_no_place_for(look: Callable[[str], Page]) -> None:
    page = look("")

    for name, said in (("below", "nothing above 0"), ("signs", "at or below 0")):
        panel(page, name).get_by_role("button", name=f"Panel {name}").click()
        page.get_by_role("menuitemcheckbox", name="Logarithmic y axis").click()
        page.keyboard.press("Escape")
        panel(page, name).get_by_text(said).wait_for()


def rows_of_curve(page: Page, chart: Locator, share: float) -> list[int]:
    """Return the rows of pixels with a colour in one column of a chart, once there are any."""
    rows: list[int] = []
    for _ in range(100):
        pixels = np.asarray(Image.open(io.BytesIO(chart.screenshot())).convert("RGB"), np.int16)
        column = pixels[:, int(share * pixels.shape[1])]
        rows = np.flatnonzero(np.ptp(column, axis=1) > 25).tolist()
        if rows:
            break
        page.wait_for_timeout(50)
    return rows


def hovered(page: Page, name: str, share: float) -> tuple[float, str]:
    """Point into a panel; return the x and the value that it then shows."""
    chart = panel(page, name).locator(".u-over")
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + share * box["width"] - 1, box["y"] + 5)
    page.mouse.move(box["x"] + share * box["width"], box["y"] + 6)
    values = panel(page, name).locator("[aria-hidden=true]", has_text=re.compile(r"^(step|lr)"))
    values.wait_for()
    head, *rest = values.inner_text().splitlines()
    _, _, x = head.partition(" ")
    return float(x.replace(",", "")), rest[-1].split(" ")[0]
