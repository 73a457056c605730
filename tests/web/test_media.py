"""Pictures, tables and legends of pages: the newest first, every step at hand, within the screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import assay
from assay.formats.run_file import Best
from assay.store.layout import Project
from run_folders import make_project, make_run
from web.conftest import Visitor, wait_for_answers
from web.serving import Server, serving

pytestmark = pytest.mark.slow

STEPS = (10, 20, 30)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = make_project(tmp_path_factory.mktemp("media") / "project")
    for i in range(3):
        make_run(
            project,
            tag=f"digits-{i}",
            age_s=900 + i,
            points={"train/loss": [1.0, 0.5], **({"valid/acc": [0.5, 0.9]} if i else {})},
            config=f"seed = {i}\nlr = 0.{i + 1}\n",
            best=Best(metric="train/loss", mode="min", value=0.5, step=2),
        )
    return project


@pytest.fixture(scope="module")
def run(project: Project) -> str:
    """A run with a picture and a table at three steps, and another picture at the first."""
    with assay.start(tag="pictures", project=project.root) as run:
        for step in STEPS:
            run.image("samples", np.full((8, 8, 3), step, np.uint8), step)
            run.table("words", [{"word": f"at {step}", "rank": 2**60 + step}], step=step)
            if step == STEPS[0]:
                run.image("filters", np.full((8, 8, 3), 200, np.uint8), step)
    return run.id


@pytest.fixture(scope="module")
def server(project: Project, run: str) -> Iterator[Server]:
    with serving(project.root) as server:
        yield server


def test_the_overview_shows_the_newest_pictures_and_leads_to_all_their_steps(
    server: Server, run: str, visit: Callable[..., Visitor]
) -> None:
    page = visit(server).open(f"/runs/{run}")

    pictures = page.get_by_role("region", name="Pictures")
    pictures.get_by_role("img").nth(1).wait_for()
    names = pictures.get_by_role("figure").all_inner_texts()
    assert [name.split("\n") for name in names] == [["samples", "step 30"], ["filters", "step 10"]]
    pictures.get_by_role("button", name="samples").click()
    page.get_by_role("dialog", name="samples").get_by_role("slider").wait_for()


def test_one_slider_leads_all_artifacts_to_a_step_and_follows_the_newest_at_its_end(
    server: Server, run: str, visit: Callable[..., Visitor]
) -> None:
    page = visit(server).open(f"/runs/{run}?tab=artifacts")
    words = page.get_by_role("figure", name="words")
    samples = page.get_by_role("figure", name="samples")
    words.get_by_text("at 30").wait_for()
    assert words.get_by_text(str(2**60 + 30), exact=True).count() == 1

    everything = page.get_by_role("slider", name="Step of all")
    everything.focus()
    page.keyboard.press("Home")
    words.get_by_text("at 10").wait_for()
    samples.get_by_text("step 10").wait_for()
    assert "step=10" in page.url
    words.get_by_role("slider").focus()
    page.keyboard.press("ArrowRight")
    words.get_by_text("at 20").wait_for()
    assert samples.get_by_text("step 10").count() == 1
    everything.focus()
    page.keyboard.press("End")
    words.get_by_text("at 30").wait_for()
    samples.get_by_text("step 30").wait_for()
    assert "step=" not in page.url


def test_a_panel_of_several_curves_names_them_and_one_of_a_single_curve_does_not(
    server: Server, visit: Callable[..., Visitor]
) -> None:
    page = visit(server, viewport={"width": 1440, "height": 900}).open("/?sel=*")
    wait_for_answers(page)

    loss = page.get_by_role("figure", name="train/loss", exact=True)
    legend = loss.get_by_role("list", name="Legend")
    legend.get_by_text("digits-0").wait_for()
    names = [text.split(" ")[0] for text in legend.get_by_role("listitem").all_inner_texts()]
    assert sorted(names) == ["digits-0", "digits-1", "digits-2"]
    acc = page.get_by_role("figure", name="valid/acc", exact=True)
    assert acc.get_by_role("list", name="Legend").get_by_role("listitem").count() == 2
    (alone,) = server.get("/api/runs/ids", where="tag = digits-0")
    page.goto(f"{server.root}?sel={alone}")
    loss.get_by_role("img").wait_for()
    wait_for_answers(page)
    assert page.get_by_role("list", name="Legend").count() == 0


@pytest.mark.parametrize("width", [1440, 1280])
def test_the_table_of_runs_is_as_wide_as_its_half_of_the_screen(
    server: Server, visit: Callable[..., Visitor], width: int
) -> None:
    page = visit(server, viewport={"width": width, "height": 800}).open("/")
    page.locator("[data-run]").first.wait_for()
    wait_for_answers(page)

    table, room, whole = page.evaluate(
        "() => { const grid = document.querySelector('[role=grid]');"
        " return [grid.scrollWidth, grid.clientWidth, document.documentElement.scrollWidth]; }"
    )
    assert whole == width
    assert table == room if width == 1440 else table > room
