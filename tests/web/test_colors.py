"""Colours of runs: given by their names, and kept for good in the browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from assay.store.layout import Project
from run_folders import id_of, make_project, make_run
from web.conftest import Visitor, wait_for_answers
from web.serving import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.slow

COLORS = 8


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_project(tmp_path_factory.mktemp("colors") / "project")


@pytest.fixture(scope="module")
def runs(project: Project) -> list[str]:
    """Ten runs, the oldest first."""
    return [
        id_of(make_run(project, tag=f"r{i}", age_s=900 - i, points={"loss": [1.0, 1 / (i + 1)]}))
        for i in range(COLORS + 2)
    ]


@pytest.fixture(scope="module")
def server(project: Project, runs: list[str]) -> Iterator[Server]:
    with serving(project.root) as server:
        yield server


@pytest.fixture
def someone(server: Server, visit: Callable[..., Visitor]) -> Visitor:
    return visit(server, viewport={"width": 1440, "height": 900})


def dot(page: Page, run: str) -> Locator:
    return page.locator(f"[data-run={run}]").get_by_role("button", name="Colour of")


def color(page: Page, run: str) -> str:
    """Return the colour of a run in the list, "" for one that has none yet."""
    where = dot(page, run)
    where.wait_for()
    if where.get_attribute("data-none") is not None:
        return ""
    return str(where.evaluate("element => getComputedStyle(element).color"))


def choose(page: Page, *runs: str) -> None:
    """Select runs one after the other by their boxes, without others."""
    box = "[data-check] span"
    page.locator(f"[data-run={runs[0]}] [role=gridcell]").nth(2).click()
    for run in runs[1:]:
        page.locator(f"[data-run={run}] {box}").first.click()
    wait_for_answers(page)


def test_eight_runs_have_eight_colours_which_stay_and_are_the_same_where_they_are_compared(
    someone: Visitor, runs: list[str]
) -> None:
    page = someone.open("/?sel=-")
    assert [color(page, run) for run in runs] == [""] * len(runs)

    order = [runs[at] for at in (5, 0, 9, 3, 1, 7, 2, 4)]
    choose(page, *order)

    given = [color(page, run) for run in order]
    assert len(set(given)) == COLORS and "" not in given
    page.reload()
    assert [color(page, run) for run in order] == given
    names = someone.open(f"/compare?runs={order[2]},{order[0]},{order[1]}")
    names.locator("thead svg").nth(2).wait_for()
    drawn = names.eval_on_selector_all(
        "thead svg line", "lines => lines.map(line => getComputedStyle(line).stroke)"
    )
    assert drawn == [given[2], given[0], given[1]]


def test_two_pages_of_a_browser_keep_the_colours_that_the_other_has_given(
    someone: Visitor, runs: list[str]
) -> None:
    one, two = someone.open("/?sel=-"), someone.open("/?sel=-")
    assert color(one, runs[0]) == color(two, runs[0]) == ""

    choose(one, runs[0], runs[1])
    choose(two, runs[2], runs[0])
    choose(one, runs[3])

    given = {run: color(one, run) for run in runs[:4]}
    assert len(set(given.values())) == 4 and "" not in given.values()
    assert {run: color(two, run) for run in runs[:4]} == given
    two.reload()
    assert {run: color(two, run) for run in runs[:4]} == given


def test_a_colour_that_somebody_chose_is_shown_at_once_and_stays(
    someone: Visitor, runs: list[str]
) -> None:
    page = someone.open(f"/?sel={runs[0]}")
    page.locator(f"[data-run={runs[0]}] button:not([data-none])").first.wait_for()
    before = color(page, runs[0])

    dot(page, runs[0]).click()
    page.get_by_role("button", name="Colour 7").click()
    page.get_by_role("button", name="Colour 7").wait_for(state="detached")

    after = color(page, runs[0])
    assert before and after != before
    page.reload()
    assert color(page, runs[0]) == after
