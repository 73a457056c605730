"""Acts of the workspace in a real browser: columns, panels, axes, views, keys, and what is done with
a selection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.store.layout import Project
from run_folders import make_project, make_run
from web.conftest import Visitor
from web.serving import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.slow

STEPS = 200


def id_of(folder: Path) -> str:
    return folder.name.split("-")[2]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_project(tmp_path_factory.mktemp("acts") / "project")


@pytest.fixture(scope="module")
def runs(project: Project) -> list[str]:
    """Four runs of two configs, each with two seeds; the newest first."""
    found = []
    for width in (32, 64):
        for seed in (0, 1):
            points = {
                name: [scale / (step + 1) + 0.01 * seed for step in range(STEPS)]
                for name, scale in (("train/loss", 2.0), ("train/error", 1.0), ("valid/acc", 0.5))
            }
            folder = make_run(
                project,
                tag=f"w{width}-s{seed}",
                age_s=400 - width - seed,
                points=points,
                config=f"seed = {seed}\nlr = 0.1\n[model]\nwidth = {width}\n",
            )
            found.append(id_of(folder))
    return found[::-1]


@pytest.fixture(scope="module")
def server(project: Project, runs: list[str]) -> Iterator[Server]:
    with serving(project.root) as server:
        yield server


@pytest.fixture
def someone(server: Server, visit: Callable[..., Visitor]) -> Visitor:
    return visit(server)


@pytest.fixture
def page(someone: Visitor, runs: list[str]) -> Page:
    """The workspace with two runs drawn."""
    page = someone.open(f"/?sel={runs[0]},{runs[1]}")
    panel(page, "train/loss").get_by_role("img").wait_for()
    return page


def panel(page: Page, name: str) -> Locator:
    return page.get_by_role("figure", name=name, exact=True)


def panels(page: Page) -> list[str]:
    return [each.get_attribute("aria-label") or "" for each in page.get_by_role("figure").all()]


def heads(page: Page) -> list[str]:
    found = [each.get_attribute("data-column") for each in page.locator("[data-column]").all()]
    return [each for each in found if each]


def choose(page: Page, trigger: Locator, item: str) -> None:
    """Open a menu by keyboard and choose an entry of it."""
    trigger.focus()
    page.keyboard.press("Enter")
    page.get_by_role("menu").get_by_text(item, exact=True).click()
    page.get_by_role("menu").wait_for(state="detached")


def drag(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move((start[0] + end[0]) / 2, (start[1] + end[1]) / 2, steps=4)
    page.mouse.move(*end, steps=4)
    page.mouse.up()


def middle(place: Locator) -> tuple[float, float]:
    place.scroll_into_view_if_needed()
    box = place.bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drawn(page: Page, name: str) -> str:
    """Return the picture of a chart."""
    picture = panel(page, name).locator("canvas").first.evaluate("each => each.toDataURL()")
    assert isinstance(picture, str)
    return picture


def drawn_differs(page: Page, name: str, before: str) -> None:
    page.wait_for_function(
        """([name, before]) => document.querySelector(`figure[aria-label="${name}"] canvas`)
            ?.toDataURL() !== before""",
        arg=[name, before],
    )


def address_has(page: Page, text: str) -> None:
    page.wait_for_url(re.compile(text))


# ------------------------------------------------------------------------------------------- panels


def test_a_panel_is_dragged_pinned_and_enlarged_and_stays_so(page: Page) -> None:
    assert [each for each in panels(page) if each.startswith("train")] == [
        "train/error",
        "train/loss",
    ]
    drag(
        page,
        middle(panel(page, "train/loss").locator("figcaption")),
        middle(panel(page, "train/error")),
    )
    page.wait_for_function(
        "() => document.querySelector('figure').getAttribute('aria-label') === 'train/loss'"
    )
    page.reload()
    panel(page, "train/loss").get_by_role("img").wait_for()
    assert panels(page)[:2] == ["train/loss", "train/error"]

    choose(page, page.get_by_role("button", name="Panel acc"), "Pin to the top")
    page.get_by_role("region", name="pinned").get_by_role("figure").wait_for()
    x, y = middle(page.locator('[data-panel="train/loss"] > span'))
    drag(page, (x, y), (x, y + 100))
    page.wait_for_function(
        """() => document.querySelector('figure[aria-label="train/loss"] [role=img]')
            .clientHeight > 240"""
    )
    page.get_by_role("button", name="Enlarge loss").click()
    page.get_by_role("dialog", name="train/loss").get_by_role("img").wait_for()
    page.keyboard.press("Escape")
    choose(page, page.get_by_role("button", name="Panel loss"), "As a table")
    page.get_by_role("dialog").get_by_role("columnheader", name="lowest").wait_for()


def test_a_drag_zooms_all_panels_and_a_double_click_leads_back(page: Page) -> None:
    others = drawn(page, "train/error")
    x, y = middle(panel(page, "train/loss").locator(".u-over"))
    drag(page, (x - 40, y), (x + 40, y))
    address_has(page, "z=")
    drawn_differs(page, "train/error", others)
    zoomed = re.search(r"z=(\d+)[^&]*?(\d+)", page.url)
    assert zoomed is not None
    page.get_by_role("button", name=re.compile(r"^\d+.* to \d+")).wait_for()
    page.reload()
    page.get_by_role("button", name=re.compile(r"^\d+.* to \d+")).wait_for()

    page.go_back()
    page.wait_for_url(re.compile(r"^(?!.*z=)"))
    page.go_forward()
    address_has(page, "z=")
    panel(page, "train/loss").locator(".u-over").dblclick()
    page.wait_for_url(re.compile(r"^(?!.*z=)"))


def test_the_pointer_shows_the_values_of_all_runs_the_largest_first(page: Page) -> None:
    x, y = middle(panel(page, "train/loss").locator(".u-over"))
    page.mouse.move(x, y)
    page.mouse.move(x + 2, y)
    values = panel(page, "train/loss").locator("[aria-hidden] >> text=/^step \\d+/")
    values.wait_for()
    shown = values.locator("..").inner_text().split()
    assert [each for each in shown if each.startswith("w64")] == ["w64-s1", "w64-s0"]


# -------------------------------------------------------------------------------------------- views


def test_a_saved_view_brings_back_columns_filter_groups_and_panels_after_a_restart(
    tmp_path: Path, serve: Callable[..., Server], visit: Callable[..., Visitor]
) -> None:
    project = make_project(tmp_path / "project")
    for width in (32, 64):
        make_run(
            project,
            tag=f"w{width}",
            points={"train/loss": [1.0, 0.5], "train/error": [1.0, 0.4]},
            config=f"[model]\nwidth = {width}\n",
        )
    with serving(project.root) as first:
        page = visit(first).open("/?w=model.width+%3E+40&c=tag&c=model.width&smooth=0.6")
        page.get_by_text("1 run,").wait_for()
        choose(page, page.get_by_role("button", name="Panel loss"), "Pin to the top")
        choose(page, page.get_by_role("button", name=re.compile("^view")), "Save as ...")
        page.keyboard.type("mine")
        page.keyboard.press("Enter")
        page.get_by_text("Saved as .assay/views/mine.toml").wait_for()
        page.close()
    assert "model.width > 40" in (project.assay_dir / "views" / "mine.toml").read_text()

    page = visit(serve(project.root)).open()
    page.get_by_text("2 runs,").wait_for()
    choose(page, page.get_by_role("button", name=re.compile("^view")), "mine")
    page.get_by_text("1 run,").wait_for()
    assert heads(page) == ["tag", "model.width"]
    page.get_by_role("region", name="pinned").get_by_role("figure", name="train/loss").wait_for()
    address_has(page, "smooth=0.6")


# --------------------------------------------------------------------------------- keys and the rest


def test_every_key_of_the_list_does_what_it_says(page: Page, runs: list[str]) -> None:
    page.keyboard.press("?")
    said = page.get_by_role("dialog", name="Keys").inner_text()
    for text in ("Next run", "Select the run", "Open the run", "Compare", "Go to the inbox"):
        assert text in said
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")

    page.keyboard.press("a")
    page.get_by_text("4 runs, 4 selected").wait_for()
    page.keyboard.press("[")
    page.get_by_role("region", name="Runs").wait_for(state="detached")
    page.keyboard.press("[")
    page.keyboard.press("]")
    page.get_by_role("region", name="Curves").wait_for(state="detached")
    page.keyboard.press("]")
    for key, address in (
        ("p", "/parameters"),
        ("t", "/tables"),
        ("i", "/inbox"),
        ("o", "/projects"),
    ):
        page.keyboard.press("g")
        page.keyboard.press(key)
        address_has(page, address)
        page.locator("#main").wait_for()
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.locator(f'[data-run="{runs[0]}"]').wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    address_has(page, f"/runs/{runs[0]}")
    page.keyboard.press("Escape")
    page.locator(f'[data-run="{runs[0]}"]').wait_for()


def test_the_bar_between_runs_and_curves_is_moved_by_mouse_and_by_keyboard(page: Page) -> None:
    bar = page.get_by_role("separator", name="Room for the runs")
    before = int(bar.get_attribute("aria-valuenow") or 0)
    x, y = middle(bar)
    drag(page, (x, y), (x - 150, y))
    moved = int(bar.get_attribute("aria-valuenow") or 0)
    assert moved < before - 5
    bar.focus()
    page.keyboard.press("ArrowRight")
    page.reload()
    bar.wait_for()
    assert int(bar.get_attribute("aria-valuenow") or 0) == moved + 2
