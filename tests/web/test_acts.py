"""Acts of the workspace in a browser: columns, panels, axes, views, keys, acts on a selection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.core.facts import Saved, Started
from assay.store.layout import Project
from run_folders import id_of, make_project, make_run, tell_now
from web.conftest import Visitor, hold_requests, wait_for_answers
from web.serving import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.slow

STEPS = 200


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
    wait_for_curve(page, "train/loss")
    return page


def panel(page: Page, name: str) -> Locator:
    return page.get_by_role("figure", name=name, exact=True)


def panels(page: Page) -> list[str]:
    return [each.get_attribute("aria-label") or "" for each in page.get_by_role("figure").all()]


def heads(page: Page) -> list[str]:
    found = [each.get_attribute("data-column") for each in page.locator("[data-column]").all()]
    return [each for each in found if each]


def heads_become(page: Page, first: list[str]) -> None:
    """Wait until these columns are the first ones."""
    page.wait_for_function(
        """first => JSON.stringify(first) === JSON.stringify(
            [...document.querySelectorAll('[data-column]')]
                .map(each => each.dataset.column).filter(Boolean).slice(0, first.length))""",
        arg=first,
    )


def choose(page: Page, trigger: Locator, item: str) -> None:
    """Open a menu by keyboard and choose an entry of it."""
    trigger.focus()
    page.keyboard.press("Enter")
    page.get_by_role("menu").get_by_text(item, exact=True).click()
    if page.get_by_role("menuitemcheckbox", name=item).count():
        page.keyboard.press("Escape")  # a menu stays open after a switch
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


def wait_for_curve(page: Page, name: str) -> None:
    """Wait until a chart shows its curve, and nothing that comes later can move it."""
    panel(page, name).locator(f"[data-last='{STEPS}']").wait_for()
    wait_for_answers(page)


def point_at(page: Page, figure: Locator, step: int) -> None:
    box = figure.locator(".u-over").bounding_box()
    assert box is not None
    left = box["width"] * (step - 1) / (STEPS - 1)
    page.mouse.move(box["x"] + left, box["y"] + box["height"] - 4)


def address_has(page: Page, text: str) -> None:
    page.wait_for_url(re.compile(text))


# ------------------------------------------------------------------------------------------- panels


@pytest.mark.thorough
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


@pytest.mark.thorough
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
    heads_become(page, ["tag", "model.width"])
    assert len(heads(page)) == 2
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
    page.wait_for_function(
        """x => {
            const { left, right } = document.querySelector('[role=separator]').getBoundingClientRect();
            return Math.abs((left + right) / 2 - x) < 10;
        }""",
        arg=x - 150,
    )
    moved = int(bar.get_attribute("aria-valuenow") or 0)
    assert moved < before - 5
    bar.focus()
    page.keyboard.press("ArrowRight")
    page.reload()
    bar.wait_for()
    assert int(bar.get_attribute("aria-valuenow") or 0) == moved + 2


def test_two_metrics_share_a_panel_with_a_logarithmic_axis_and_are_taken_apart(page: Page) -> None:
    page.get_by_role("button", name="Draw another metric with loss").first.focus()
    page.keyboard.press("Enter")
    page.get_by_role("combobox", name="Draw with").fill("error")
    page.keyboard.press("Enter")
    both = panel(page, "train/loss and error")
    both.get_by_role("img").wait_for()
    page.reload()
    both.get_by_role("img").wait_for()
    assert both.get_by_role("img").get_attribute("aria-label") == "train/loss and error: 2 runs"

    before = drawn(page, "train/loss and error")
    choose(page, page.get_by_role("button", name="Panel loss and error"), "Logarithmic y axis")
    drawn_differs(page, "train/loss and error", before)
    choose(page, page.get_by_role("button", name="Panel loss and error"), "Take apart")
    both.wait_for(state="detached")
    panel(page, "train/error").get_by_role("img").wait_for()


def test_a_metric_is_drawn_against_another_and_the_steps_on_a_logarithmic_axis(page: Page) -> None:
    page.get_by_role("button", name="Draw one metric against another").focus()
    page.keyboard.press("Enter")
    for name in ("train/loss", "valid/acc"):
        page.get_by_role("combobox").last.fill(name)
        page.keyboard.press("Enter")
    panel(page, "train/loss by valid/acc").get_by_role("img").wait_for()

    before = drawn(page, "train/error")
    choose(page, page.get_by_role("button", name=re.compile("^x ")), "Logarithmic")
    address_has(page, "logx")
    drawn_differs(page, "train/error", before)


def test_the_lines_of_a_chart_follow_the_colours_of_the_page(page: Page, someone: Visitor) -> None:
    someone.expected.append("willReadFrequently")
    has_grid = """() => {
        const chart = document.querySelector('figure[aria-label="train/loss"] [role=img]');
        const grid = getComputedStyle(chart).borderTopColor.match(/[0-9]+/g).slice(0, 3).join();
        const canvas = chart.querySelector('canvas');
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] === 255 && [data[i], data[i + 1], data[i + 2]].join() === grid) return true;
        return false;
    }"""
    page.wait_for_function(has_grid)
    for theme in ("system", "light", "dark"):
        page.get_by_role("button", name=f"Colours: {theme}").click()
        page.get_by_role("button", name=f"Colours: {theme}").wait_for(state="detached")
        page.wait_for_function(has_grid)


def test_a_filter_keeps_all_that_is_typed_though_it_is_applied_meanwhile(
    page: Page, someone: Visitor
) -> None:
    someone.expected.append("400")  # of a part of the filter, when the keys come slowly
    page.keyboard.press("/")
    page.keyboard.type("lr = 0.1 ")
    address_has(page, "w=lr")
    page.keyboard.type("and model.width = 64")
    page.get_by_text("2 runs,").wait_for()

    assert page.get_by_role("search").get_by_role("combobox").input_value() == (
        "lr = 0.1 and model.width = 64"
    )


def test_a_column_is_dragged_to_another_place_and_stays_there(page: Page) -> None:
    page.locator('[data-column="model.width"]').wait_for()
    page.locator("[data-column=seed]").wait_for()
    before = heads(page)
    drag(
        page,
        middle(page.locator("[data-column=tag] button").first),
        middle(page.locator("[data-column=status] button").first),
    )
    address_has(page, "c=tag")
    heads_become(page, ["tag", "status"])
    page.reload()
    heads_become(page, ["tag", "status", *before[2:]])


def test_a_scrolled_table_has_its_rows_in_order_and_tells_a_shortened_value_in_full(
    tmp_path: Path, serve: Callable[..., Server], visit: Callable[..., Visitor]
) -> None:
    """The elements of a row that leaves the window are those of one that comes."""
    project = make_project(tmp_path / "project")
    rates = {
        id_of(make_run(project, age_s=60 * i, config=f"lr = {1 / (i + 3)!r}\n")): 1 / (i + 3)
        for i in range(90)
    }
    page = visit(serve(project.root)).open("/")
    page.locator("[role=row][data-run]").first.wait_for()
    for top in (400, 900, 10_000, 700):
        order = page.evaluate(
            """async top => {
                document.querySelector("[role=grid]").scrollTo(0, top);
                for (const _ of "12") await new Promise(requestAnimationFrame);
                const ids = document.querySelector("[role=rowgroup]").getAttribute("aria-owns");
                return ids.split(" ").map(id => document.getElementById(id).dataset.run);
            }""",
            top,
        )
        start = list(rates).index(order[0])
        assert order == list(rates)[start : start + len(order)]

        run_id = order[len(order) // 2]
        cell = page.locator(f"[data-run={run_id}] [role=gridcell]").filter(
            has_text=f"{rates[run_id]:.4g}"
        )
        cell.hover()
        assert cell.get_attribute("title") == str(rates[run_id])
    page.close()


def test_a_group_shows_mean_and_spread_and_opens_to_its_runs(page: Page, runs: list[str]) -> None:
    choose(page, page.get_by_role("button", name="Column model.width"), "Group by this")
    page.get_by_text("2 groups of 4 runs").wait_for()
    page.locator("[role=gridcell] [aria-expanded=false]").first.click()
    page.locator("[data-inside]").nth(1).wait_for()
    inside = [each.get_attribute("data-run") for each in page.locator("[data-inside]").all()]
    assert set(inside) in (set(runs[:2]), set(runs[2:]))
    page.locator("[role=gridcell] [aria-expanded=true]").click()
    page.locator("[data-inside]").first.wait_for(state="detached")
    page.go_back()
    page.get_by_text("4 runs,").wait_for()


def test_what_is_done_with_a_selection_is_shown_at_once_and_can_be_undone(
    someone: Visitor, server: Server, runs: list[str]
) -> None:
    page = someone.open(f"/?sel={runs[0]},{runs[1]}&c=tag&c=labels&c=train/loss")
    someone.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_text("4 runs, 2 selected").wait_for()

    page.get_by_role("button", name="Label", exact=True).click()
    page.keyboard.type("good, kept")
    page.keyboard.press("Enter")
    page.get_by_text("2 runs labelled: good, kept").wait_for()
    page.locator(f'[data-run="{runs[0]}"]').get_by_text("kept").wait_for()
    page.get_by_role("button", name="Undo").last.click()
    page.locator(f'[data-run="{runs[0]}"]').get_by_text("kept").wait_for(state="detached")

    more = page.get_by_role("button", name="More to do with the selected runs")
    choose(page, more, "Copy as CSV")
    page.get_by_text("2 runs copied as CSV.").wait_for()
    copied = page.evaluate("() => navigator.clipboard.readText()").splitlines()
    assert copied[0].split(",")[:2] == ["id", "tag"]
    assert {line.split(",")[0] for line in copied[1:]} == {runs[0], runs[1]}
    choose(page, more, "Copy commands that run them again")
    page.get_by_text("The commands are copied.").wait_for()

    page.get_by_role("button", name="Archive", exact=True).click()
    page.get_by_text("2 runs archived").wait_for()
    page.get_by_text("2 runs,").wait_for()
    page.get_by_role("button", name="Undo").last.click()
    page.get_by_text("4 runs,").wait_for()
    choose(page, more, "Remove 2 runs")
    page.get_by_text("2 runs removed").wait_for()
    page.get_by_text("2 runs,").wait_for()
    page.get_by_role("button", name="Undo").last.click()
    page.get_by_text("4 runs,").wait_for()
    assert server.get(f"/api/runs/{runs[0]}")["line"]["labels"] == []
    page.close()


def test_a_run_is_removed_and_brought_back_while_it_is_drawn_alone(
    someone: Visitor, runs: list[str]
) -> None:
    """The visitor sees to it that nobody asks for the marks of a run that is gone."""
    page = someone.open(f"/?sel={runs[0]}")
    panel(page, "train/loss").get_by_role("img").wait_for()

    choose(
        page, page.get_by_role("button", name="More to do with the selected runs"), "Remove 1 run"
    )
    page.get_by_text("3 runs,").wait_for()
    page.get_by_role("button", name="Undo").last.click()
    page.get_by_text("4 runs,").wait_for()
    page.close()


def test_a_question_about_a_run_that_is_removed_meanwhile_is_taken_back(
    someone: Visitor, runs: list[str]
) -> None:
    """The server would answer it with 404, of which the visitor hears."""
    let_go = hold_requests(someone.context, f"**/api/runs/{runs[0]}*")
    page = someone.open(f"/?sel={runs[0]}")
    panel(page, "train/loss").get_by_role("img").wait_for()

    choose(
        page, page.get_by_role("button", name="More to do with the selected runs"), "Remove 1 run"
    )
    page.get_by_text("3 runs,").wait_for()
    let_go()
    wait_for_answers(page)
    page.get_by_role("button", name="Undo").last.click()
    page.get_by_text("4 runs,").wait_for()
    page.close()


def test_the_ticks_of_a_curve_name_checkpoints_and_resumes_and_open_their_events(
    server: Server, someone: Visitor, project: Project
) -> None:
    folder = make_run(project, tag="resumed", points={"train/loss": [1.0] * STEPS})
    saved = Saved(name="step-50", kind="checkpoint", step=50)
    tell_now(folder, Started(attempt=1), saved, Started(attempt=2, step=100, checkpoint="step-100"))
    server.get(f"/api/runs/{id_of(folder)}")
    page = someone.open(f"/runs/{id_of(folder)}?tab=curves")
    figure = panel(page, "train/loss")
    wait_for_curve(page, "train/loss")

    for step, words in ((50, "saved step-50"), (100, "resumed, attempt 2 from step-100")):
        point_at(page, figure, step)
        figure.locator("strong", has_text=words).wait_for()
    point_at(page, figure, 75)
    figure.locator("strong", has_text="resumed").wait_for(state="detached")
    assert figure.locator("strong", has_text="saved").count() == 0

    point_at(page, figure, 50)
    figure.locator("strong", has_text="saved step-50").wait_for()
    page.mouse.down()
    page.mouse.up()

    page.wait_for_url(re.compile("tab=attempts"))
    page.locator("tr[data-kind=saved]").get_by_text("step-50").wait_for()
    page.close()
    server.ask("POST", "/api/acts", {"act": "remove", "runs": [id_of(folder)]})


def test_a_pointer_that_stands_still_shows_what_comes_to_lie_below_it(
    someone: Visitor, project: Project, server: Server
) -> None:
    folder = make_run(project, tag="marked", points={"train/loss": [1.0] * STEPS})
    tell_now(folder, Started(attempt=1), Saved(name="step-50", kind="checkpoint", step=50))
    server.get(f"/api/runs/{id_of(folder)}")
    let_marks_come = hold_requests(someone.context, f"**/api/runs/{id_of(folder)}?*")
    page = someone.open(f"/?sel={id_of(folder)}")
    figure = panel(page, "train/loss")
    figure.locator(f"[data-last='{STEPS}']").wait_for()
    point_at(page, figure, 50)
    figure.get_by_text(re.compile(r"^step \d")).wait_for()

    let_marks_come()

    figure.locator("strong", has_text="saved step-50").wait_for()
    page.set_viewport_size({"width": 1000, "height": 800})
    figure.locator("strong", has_text="saved step-50").wait_for(state="detached")
    point_at(page, figure, 50)
    figure.locator("strong", has_text="saved step-50").wait_for()
    page.close()
    server.ask("POST", "/api/acts", {"act": "remove", "runs": [id_of(folder)]})


def test_a_table_is_exported_by_keyboard_alone_from_the_start(
    someone: Visitor, project: Project, runs: list[str]
) -> None:
    page = someone.open()
    someone.context.grant_permissions(["clipboard-read", "clipboard-write"])
    press = page.keyboard.press
    page.locator(f'[data-run="{runs[0]}"]').wait_for()

    def focus(name: str) -> None:
        """Walk by the tab key to a control."""
        for _ in range(80):
            press("Tab")
            if name in page.evaluate(
                "() => document.activeElement.ariaLabel || document.activeElement.textContent"
            ):
                return
        raise AssertionError(f"no tab stop is called {name}")

    someone.expected.append("400")  # of a part of the filter, when the keys come slowly
    press("/")
    page.keyboard.type("model.width = 64")
    press("Enter")
    page.get_by_text("2 runs,").wait_for()
    press("Tab")
    press("a")
    page.get_by_text("2 runs, 2 selected").wait_for()
    focus("More to do with the selected runs")
    press("Enter")
    page.get_by_role("menu").wait_for()
    page.keyboard.type("New")
    page.wait_for_function("() => document.activeElement.textContent === 'New table'")
    press("Enter")
    page.get_by_role("dialog").wait_for()
    page.keyboard.type("By keyboard")
    page.get_by_role("button", name="Make the table", disabled=False).wait_for()
    press("Enter")
    page.wait_for_url(re.compile("/tables/by-keyboard"))
    page.get_by_role("grid").or_(page.get_by_role("table")).first.wait_for()
    focus("Export")
    press("Enter")
    page.wait_for_function("() => document.activeElement?.textContent === 'Markdown'")
    press("Enter")
    page.get_by_text("Copied as Markdown.").wait_for()
    assert "| " in page.evaluate("() => navigator.clipboard.readText()")
    assert (project.assay_dir / "tables" / "by-keyboard.toml").is_file()
    page.close()
