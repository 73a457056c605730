"""Pages in a browser, over a store of runs: each opens, works, and is accessible."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

from assay.core.facts import Ended
from assay.formats.event_log import Edit
from assay.formats.json_codec import to_plain
from assay.formats.verdict import Difference, Verdict
from assay.query.picture import decode_png
from assay.record import edits
from assay.store.layout import Project, RunFolder
from run_folders import id_of, make_project, make_run, tell_now
from web.conftest import (
    Visitor,
    axe_violations,
    hold_answers,
    hold_requests,
    wait_for_answers,
)
from web.serving import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

HOSTILE = '"><img src=http://evil.test/x onerror=alert(1)><script>alert(2)</script>'
TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: no such column\n'
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_project(tmp_path_factory.mktemp("pages") / "project")


@pytest.fixture(scope="module")
def runs(project: Project) -> dict[str, str]:
    """Runs by tag: two that differ, one that failed, one whose every text is hostile."""
    folders = {
        "small": make_run(
            project,
            tag="small",
            age_s=300,
            points={"train/loss": [1.0, 0.5, 0.2], "valid/acc": [0.5, 0.7, 0.9]},
            config="seed = 0\nlr = 0.1\n[model]\nwidth = 32\n",
        ),
        "wide": make_run(
            project,
            tag="wide",
            age_s=200,
            points={"train/loss": [1.0, 0.6, 0.1], "valid/acc": [0.5, 0.8, 0.95]},
            config="seed = 0\nlr = 0.1\n[model]\nwidth = 64\n",
        ),
        "broken": make_run(project, tag="broken", age_s=100, ran_s=50, status="failed"),
        "hostile": make_run(
            project,
            tag=HOSTILE,
            age_s=400,
            points={HOSTILE: [1.0]},
            config=f"x = '''{HOSTILE}'''\n",
        ),
    }
    ended = Ended(status="failed", step=2, reason="ValueError: no such column", traceback=TRACEBACK)
    tell_now(folders["broken"], ended)
    RunFolder(folders["small"]).log.write_text("hello from the log\n", encoding="utf-8")
    folder = RunFolder(folders["hostile"])
    edits.note(folder, HOSTILE)
    edits.describe(
        folder,
        f"{HOSTILE}\n\n[link](javascript:alert(3)) ![image](http://evil.test/y.png)",
        title=HOSTILE,
    )
    keep_verdict(folders["small"], folders["wide"])
    return {tag: id_of(path) for tag, path in folders.items()}


def keep_verdict(left: Path, right: Path) -> None:
    """Leave what `assay diverge` found about two runs with both."""
    first = Difference(
        step=2,
        phase="backward",
        module="model.head",
        op="aten.mm",
        occurrence=1,
        left="9f3a",
        right="11c2",
    )
    verdict = Verdict(
        question="diverge",
        runs=(id_of(left), id_of(right)),
        equal=False,
        first_step=1,
        last_step=3,
        compared=12,
        difference=first,
        cause="config",
        changed_inputs={"model.width": [32, 64]},
        at_ns=1_700_000_000_000_000_000,
    )
    for path in (left, right):
        edit = Edit(what="verdict", key="diverge", new=to_plain(verdict))
        edits.append(RunFolder(path), edit)


@pytest.fixture(scope="module")
def server(
    project: Project, runs: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with serving(
        project.root, variables={"XDG_DATA_HOME": str(tmp_path_factory.mktemp("data"))}
    ) as server:
        yield server


@pytest.fixture(scope="module")
def filled(server: Server, runs: dict[str, str]) -> None:
    """A table with a row of values and one of text."""
    made = {"name": "filled", "columns": ["valid/acc", "model.width"], "runs": [runs["wide"]]}
    assert server.ask("POST", "/api/tables", made).status < 300
    text = {"changes": [{"what": "add-row"}, {"what": "notes", "text": "by **hand**"}]}
    assert server.ask("POST", "/api/tables/filled/changes", text).status < 300


@pytest.fixture
def someone(server: Server, visit: Callable[..., Visitor]) -> Visitor:
    return visit(server)


def shown(page: Page) -> list[str]:
    """Return the ids of the runs in the table, top down."""
    return [
        each.get_attribute("data-run") or "" for each in page.locator("[role=row][data-run]").all()
    ]


@pytest.mark.thorough
def test_a_filter_a_sort_and_a_selection_are_in_the_address_and_come_back(
    someone: Visitor, runs: dict[str, str]
) -> None:
    page = someone.open()
    page.locator(f'[data-run="{runs["wide"]}"]').wait_for()
    assert shown(page) == [runs[tag] for tag in ("broken", "wide", "small", "hostile")]

    someone.expected.append("400")  # of a part of the filter, when the keys come slowly
    page.keyboard.press("/")
    page.keyboard.type("model.width >= 32")
    page.keyboard.press("Enter")
    page.get_by_text("2 runs").wait_for()
    page.locator(f'[data-run="{runs["small"]}"]').click()
    page.wait_for_url(re.compile(rf"sel={runs['small']}"))
    page.reload()
    row = page.locator(f'[data-run="{runs["small"]}"]')
    row.wait_for()
    assert row.get_attribute("aria-selected") == "true"
    assert shown(page) == [runs["wide"], runs["small"]]
    page.go_back()
    page.wait_for_url(re.compile(r"^(?!.*sel=)"))
    page.go_back()
    page.get_by_text("4 runs").wait_for()


@pytest.mark.usefixtures("runs")
def test_a_step_back_leads_to_before_a_filter_that_was_typed_with_pauses(someone: Visitor) -> None:
    page = someone.open()
    page.get_by_text("4 runs").wait_for()
    someone.expected.append("400")

    page.keyboard.press("/")
    for part, address in (("model", "model"), (".width", "model.width"), (" >= 32", "32")):
        page.keyboard.type(part)
        page.wait_for_url(re.compile(rf"w=[^&]*{re.escape(address)}$"))
    page.get_by_text("2 runs").wait_for()
    page.keyboard.press("Enter")
    page.keyboard.type(" and model.width < 64")
    page.keyboard.press("Enter")
    page.get_by_text("1 run, 1 selected").wait_for()

    page.go_back()
    page.get_by_text("2 runs").wait_for()
    assert page.get_by_role("combobox", name="Filter runs").input_value() == "model.width >= 32"
    page.go_back()
    page.get_by_text("4 runs").wait_for()


@pytest.mark.usefixtures("runs")
def test_a_filter_whose_field_is_left_before_its_end_is_applied_is_one_step(
    someone: Visitor,
) -> None:
    page = someone.open()
    page.get_by_text("4 runs").wait_for()
    someone.expected.append("400")

    page.keyboard.press("/")
    page.keyboard.type("model.width")
    page.wait_for_url(re.compile(r"w=[^&]*model.width$"))
    page.keyboard.type(" >= 32")
    page.keyboard.press("Tab")
    page.wait_for_url(re.compile(r"w=[^&]*32$"))
    page.go_back()

    page.wait_for_url(re.compile(r"^(?!.*w=[^&]*model)"))
    assert page.get_by_role("combobox", name="Filter runs").input_value() == ""


def test_a_mistake_in_a_filter_is_shown_at_its_place_and_the_rows_stay(
    someone: Visitor, runs: dict[str, str]
) -> None:
    page = someone.open()
    page.locator(f'[data-run="{runs["wide"]}"]').wait_for()
    someone.expected.append("400")

    page.keyboard.press("/")
    page.keyboard.type("model.widht = 64")
    page.keyboard.press("Enter")

    page.get_by_text("did you mean").wait_for()
    assert len(shown(page)) == 4


@pytest.mark.parametrize("path", ["/", "/parameters"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.usefixtures("runs")
def test_a_mistake_in_a_filter_is_shown_once(
    server: Server, visit: Callable[..., Visitor], width: int, path: str
) -> None:
    someone = visit(server, viewport={"width": width, "height": 844})
    someone.expected.append("400")

    page = someone.open(f"{path}?w=model.widht+%3D+64")

    page.get_by_text("did you mean").first.wait_for()
    wait_for_answers(page)
    assert page.get_by_text("did you mean").count() == 1
    box = page.get_by_role("alert").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    page.close()


def test_tabs_fade_out_at_the_edge_beyond_which_there_are_more(
    server: Server, visit: Callable[..., Visitor], runs: dict[str, str]
) -> None:
    narrow = visit(server, viewport={"width": 390, "height": 844})
    page = narrow.open(f"/runs/{runs['small']}")
    tabs = page.get_by_role("tablist")
    page.locator("[data-after] > [role=tablist]").wait_for()
    assert tabs.get_by_role("tab").first.bounding_box() is not None
    assert page.locator("[data-before] > [role=tablist]").count() == 0
    assert axe_violations(page) == []

    tabs.get_by_role("tab", selected=True).focus()
    page.keyboard.press("ArrowLeft")

    page.locator("[data-before]:not([data-after]) > [role=tablist]").wait_for()
    assert tabs.get_by_role("tab").last.get_attribute("aria-selected") == "true"
    tabs.get_by_role("tab").first.evaluate("tab => tab.append('0'.repeat(12))")
    page.wait_for_function(
        "list => list.scrollLeft + list.clientWidth > list.scrollWidth - 2",
        arg=tabs.element_handle(),
    )
    page.set_viewport_size({"width": 1280, "height": 844})
    page.locator("[data-before] > [role=tablist]").wait_for(state="detached")
    assert page.locator("[data-after] > [role=tablist]").count() == 0
    page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_table_wider_than_the_screen_is_shaded_at_the_edge_beyond_which_there_is_more(
    server: Server, visit: Callable[..., Visitor], runs: dict[str, str], theme: str
) -> None:
    narrow = visit(server, viewport={"width": 390, "height": 844}, color_scheme=theme)
    page = narrow.open(f"/compare?runs={runs['small']},{runs['wide']}")
    wait_for_answers(page)
    table = page.locator("div:has(> table)").first
    table.wait_for()

    def is_shaded() -> bool:
        """Whether most of the last column of pixels differs from the colour of the page."""
        image = decode_png(table.screenshot())
        return bool(
            (np.abs(image[:, -1].astype(int) - image[-2, -16]).max(axis=-1) > 8).mean() > 0.5
        )

    assert is_shaded()

    table.evaluate("place => { place.scrollLeft = place.scrollWidth }")

    assert not is_shaded()
    page.close()


@pytest.mark.parametrize("held", ["answers", "stream"])
def test_a_change_that_the_first_answers_of_a_page_do_not_hold_is_shown(
    tmp_path: Path, visit: Callable[..., Visitor], held: str
) -> None:
    project = make_project(tmp_path / "project")
    failed = make_run(project, tag="broken", ran_s=50, status="failed")
    tell_now(failed, Ended(status="failed", step=2, reason="ValueError", traceback=TRACEBACK))
    with serving(project.root) as server:
        someone = visit(server)
        # Answers older than the change; or a change before the stream of changes is open.
        let_go = (
            hold_answers(someone.context, "**/api/inbox?*")
            if held == "answers"
            else hold_requests(someone.context, "**/api/live*")
        )
        page = someone.open("/inbox")
        if held == "answers":
            page.get_by_role("link", name="Inbox, 1 unread").wait_for()
        else:
            page.get_by_text("1 unread", exact=True).wait_for()
        server.ask("POST", "/api/inbox/marks", {"ids": [], "isRead": True, "everything": True})
        if held == "answers":
            page.get_by_role("link", name="Inbox", exact=True).wait_for()

        let_go()

        page.get_by_text("all read", exact=True).wait_for()
        page.get_by_role("link", name="Inbox", exact=True).wait_for()
        page.close()


def test_the_first_difference_of_two_runs_is_a_table_of_their_comparison(
    someone: Visitor, runs: dict[str, str]
) -> None:
    page = someone.open(f"/compare?runs={runs['wide']},{runs['small']}")

    found = page.get_by_role("region", name="First difference")
    found.wait_for()
    assert "diverge: not equal, steps 1 to 3, cause: config" in found.inner_text()
    heads = found.get_by_role("columnheader").all_inner_texts()
    assert heads == ["step", "phase", "module", "operation", runs["small"], runs["wide"]]
    cells = found.get_by_role("cell").all_inner_texts()
    assert cells == [
        *("2", "backward", "model.head", "aten.mm (call 2 of the step)"),
        *("9f3a", "11c2"),
    ]
    changed = found.get_by_role("list", name="Changed inputs").inner_text()
    assert changed.strip() == "model.width 32 → 64"


def test_runs_without_a_verdict_name_the_command_that_finds_their_first_difference(
    someone: Visitor, runs: dict[str, str]
) -> None:
    page = someone.open(f"/compare?runs={runs['small']},{runs['broken']}")

    found = page.get_by_role("region", name="First difference")
    found.wait_for()
    assert f"assay diverge {runs['small']} {runs['broken']}" in found.inner_text()


def test_two_runs_are_compared_by_keyboard_alone(someone: Visitor, runs: dict[str, str]) -> None:
    page = someone.open("/?w=lr+%3D+0.1")
    page.locator(f'[data-run="{runs["wide"]}"]').wait_for()

    for key in ("j", "j", "x", "c"):
        page.keyboard.press(key)

    page.get_by_text("differ in model.width", exact=False).wait_for()
    assert page.get_by_role("row", name=re.compile("^model.width")).inner_text().split() == [
        "model.width",
        "64",
        "32",
    ]
    page.get_by_text("first different step 2", exact=False).wait_for()


@pytest.mark.parametrize(
    ("tab", "text"),
    [
        ("curves", "train"),
        ("config", "width"),
        ("code", "No code"),
        ("log", "hello from the log"),
        ("attempts", "finished"),
    ],
)
def test_each_tab_of_a_run_opens_at_its_own_address(
    someone: Visitor, runs: dict[str, str], tab: str, text: str
) -> None:
    page = someone.open(f"/runs/{runs['small']}")
    page.get_by_role("heading", name="small").wait_for()

    page.get_by_role("tab", name=re.compile(tab, re.IGNORECASE)).first.click()

    page.wait_for_url(re.compile(f"tab={tab}"))
    page.get_by_role("tabpanel").get_by_text(re.compile(text)).first.wait_for()


@pytest.mark.thorough
def test_a_note_and_a_title_are_kept_though_the_server_starts_anew(
    someone: Visitor, project: Project, visit: Callable[..., Visitor]
) -> None:
    run = id_of(make_run(project, tag="to-edit", age_s=9_000))
    page = someone.open(f"/runs/{run}")
    page.get_by_placeholder("add a note").fill("looks right")
    page.keyboard.press("Enter")
    page.get_by_text("looks right").wait_for()
    page.get_by_role("button", name="to-edit", exact=True).click()
    page.get_by_label("Title").fill("edited")
    page.keyboard.press("Enter")
    page.get_by_text("Called edited now.").wait_for()

    with serving(project.root) as again:
        later = visit(again).open(f"/runs/{run}")
        later.get_by_role("heading", name="edited").wait_for()
        later.get_by_text("looks right").wait_for()
        later.close()
    page.close()
    someone.server.ask("POST", "/api/acts", {"act": "remove", "runs": [run]})


@pytest.mark.row("A39")
def test_a_table_is_made_of_selected_runs_filled_and_exported(
    someone: Visitor, project: Project, runs: dict[str, str]
) -> None:
    page = someone.open(f"/tables?from={runs['small']},{runs['wide']}")
    page.get_by_label("Title").fill("My results")
    page.get_by_role("button", name="Make the table").click()
    page.wait_for_url(re.compile("/tables/my-results"))
    page.get_by_role("link", name="0.95").wait_for()
    assert (project.assay_dir / "tables" / "my-results.toml").is_file()

    page.get_by_role("button", name="Add a column").click()
    page.get_by_role("columnheader", name="column 3").wait_for()
    page.locator('[data-place="0:2"]').focus()
    page.keyboard.press("Enter")
    page.keyboard.type("remark by hand")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    wait_for_answers(page)
    page.reload()

    page.get_by_text("remark by hand").wait_for()
    someone.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Export").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement?.textContent === 'Markdown'")
    page.keyboard.press("ArrowDown")
    page.wait_for_function(
        "() => document.activeElement?.textContent === 'LaTeX (booktabs)'"
    )  # moved by a timer
    page.keyboard.press("Enter")
    page.get_by_text("Copied as LaTeX.").wait_for()
    assert r"\toprule" in page.evaluate("() => navigator.clipboard.readText()")


def make_table(server: Server, name: str, columns: list[str]) -> None:
    """Make a table with one row."""
    assert server.ask("POST", "/api/tables", {"name": name, "columns": columns}).status < 300
    row = {"changes": [{"what": "add-row"}]}
    assert server.ask("POST", f"/api/tables/{name}/changes", row).status < 300


def write(page: Page, place: str, text: str) -> None:
    """Write into a cell of a table by keyboard."""
    page.locator(f'[data-place="{place}"]').focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.tagName === 'INPUT'")
    page.keyboard.press("Control+A")
    page.keyboard.type(text)
    page.keyboard.press("Enter")
    page.get_by_text(text).wait_for()


def test_cells_that_are_written_faster_than_the_server_answers_are_all_kept(
    server: Server, someone: Visitor
) -> None:
    make_table(server, "quick", ["tag", "note"])
    let_go = hold_requests(someone.context, "**/changes?*")
    page = someone.open("/tables/quick")
    write(page, "0:0", "one")
    write(page, "0:1", "two")

    let_go()

    wait_for_answers(page)
    page.reload()
    for text in ("one", "two"):
        page.get_by_role("gridcell", name=text).wait_for()
    page.close()


def test_the_notes_of_a_table_are_markdown_that_is_edited_as_text(
    server: Server, someone: Visitor
) -> None:
    make_table(server, "noted", ["tag"])
    page = someone.open("/tables/noted")
    page.get_by_role("button", name="Add notes").click()
    field = page.get_by_role("textbox", name="Notes, in Markdown")
    field.fill("by **hand** <img src=x onerror=alert(1)>")
    field.press("Control+Enter")

    page.locator("main strong").get_by_text("hand").wait_for()
    assert page.locator("main img").count() == 0
    wait_for_answers(page)
    page.reload()
    page.get_by_role("button", name="Edit the notes").click()
    assert field.input_value().startswith("by **hand** <img")


def test_the_history_of_a_cell_names_what_stood_there_before(
    server: Server, someone: Visitor
) -> None:
    make_table(server, "changed", ["tag"])
    page = someone.open("/tables/changed")
    for text in ("first try", "second try"):
        write(page, "0:0", text)

    page.locator('[data-place="0:0"]').hover()
    page.locator('[data-place="0:0"]').get_by_role("button", name="Cell").click()
    page.get_by_role("menuitem", name="History").click()

    dialog = page.get_by_role("dialog", name="History of the cell")
    dialog.get_by_role("listitem").nth(1).wait_for()
    lines = [" ".join(each.split()) for each in dialog.get_by_role("listitem").all_inner_texts()]
    assert lines[0].endswith("first try → second try")
    assert lines[1].endswith("nothing → first try")
    page.close()


@pytest.mark.thorough
def test_the_parameter_view_names_the_key_that_matters_and_a_brush_chooses_runs(
    visit: Callable[..., Visitor], tmp_path: Path
) -> None:
    project = make_project(tmp_path / "project")
    ids = {}
    for number in range(16):
        width, lr = 8 * 2 ** (number % 4), (0.1, 0.001)[number % 2]
        folder = make_run(
            project,
            tag=f"p{number}",
            points={"valid/acc": [0.5, 0.5 + width / 200]},
            config=f"seed = {number}\nlr = {lr}\n[model]\nwidth = {width}\n",
        )
        ids[id_of(folder)] = width
    with serving(project.root) as server:
        someone = visit(server)
        page = someone.open("/")
        page.get_by_text("16 runs, ").wait_for()
        page.keyboard.press("g")
        page.keyboard.press("p")

        table = page.get_by_role("region", name="Importance")
        first = table.get_by_role("row").nth(1)
        first.wait_for()
        assert "model.width" in first.inner_text()
        page.get_by_text("16 of 16 runs chosen").wait_for()

        wait_for_answers(page)
        axis = page.locator('[data-axis="model.width"]').bounding_box()
        assert axis is not None
        middle = axis["x"] + axis["width"] / 2
        page.mouse.move(middle, axis["y"] + 36)
        page.mouse.down()
        page.mouse.move(middle, axis["y"] + 60, steps=4)
        page.mouse.up()
        page.get_by_text("4 of 16 runs chosen").wait_for()
        chosen = page.get_by_role("region", name="Chosen runs").get_by_role("row").all_inner_texts()
        assert {ids[line.split()[0]] for line in chosen[1:]} == {64}

        page.reload()
        page.get_by_text("4 of 16 runs chosen").wait_for()
        page.get_by_role("link", name="Curves of 4").click()
        page.get_by_text("16 runs, 4 selected").wait_for()
        page.go_back()
        page.get_by_role("button", name="Choose all").click()
        page.get_by_text("16 of 16 runs chosen").wait_for()
        page.close()


def test_the_inbox_says_why_a_run_died_and_forgets_it_once_read(someone: Visitor) -> None:
    page = someone.open("/inbox")
    line = page.get_by_role("button", name=re.compile("broken"))
    line.wait_for()
    assert "no such column" in line.inner_text()

    line.click()

    page.get_by_text('File "train.py", line 3').wait_for()
    page.get_by_text("all read", exact=True).wait_for()
    wait_for_answers(page)
    page.reload()
    page.get_by_text("all read", exact=True).wait_for()


def test_a_run_that_is_not_there_has_its_own_words(someone: Visitor) -> None:
    someone.expected.append("404")
    page = someone.open("/runs/zzzzzzzz")
    page.get_by_text("There is no run zzzzzzzz.").wait_for()


def test_hostile_texts_are_shown_as_texts(someone: Visitor, runs: dict[str, str]) -> None:
    """No dialog, no request to another host: the visitor looks for both at the end."""
    pages = ["/?sel=*", f"/compare?runs={runs['hostile']},{runs['small']}", "/inbox", "/projects"]
    pages += [
        f"/runs/{runs['hostile']}?tab={tab}"
        for tab in ("", "curves", "config", "artifacts", "environment")
    ]
    for path in pages:
        page = someone.open(path)
        page.locator("#main").get_by_text(
            re.compile("onerror|runs|project|Inbox|artifact|No ")
        ).first.wait_for()
        assert (
            page.locator('img[src^="http://evil"], a[href^="javascript"], #main script').count()
            == 0
        ), path
        page.close()


PAGES = (
    "/",
    "/runs/{small}",
    *(
        f"/runs/{{small}}?tab={tab}"
        for tab in ("curves", "config", "code", "log", "checkpoints", "artifacts", "environment")
    ),
    "/runs/{small}?tab=proof",
    "/runs/{small}?tab=attempts",
    "/runs/{broken}",
    "/compare?runs={small},{wide}",
    "/parameters",
    "/tables",
    "/tables/filled",
    "/inbox",
    "/queue",
    "/projects",
)


@pytest.mark.thorough
@pytest.mark.usefixtures("filled")
def test_the_pages_can_be_used_by_everybody(someone: Visitor, runs: dict[str, str]) -> None:
    for path in PAGES:
        page = someone.open(path.format(**runs))
        page.locator("#main").wait_for()
        page.wait_for_load_state("load")
        assert violations_by_theme(page) == NO_VIOLATIONS, path
        page.close()


NO_VIOLATIONS: dict[str, list[tuple[str, str, int]]] = {"light": [], "dark": []}


def violations_by_theme(page: Page) -> dict[str, list[tuple[str, str, int]]]:
    """Return what axe finds on a page in each theme, which changes while it is open."""
    found = {}
    themes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for theme in themes:
        page.emulate_media(color_scheme=theme)
        found[theme] = axe_violations(page)
    return found


def press(*keys: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        for key in keys:
            page.keyboard.press(key)

    return act


def click(name: str, item: str = "", *, within: str = "body") -> Callable[[Page], None]:
    """Click a button, then an item of the menu that it opens."""

    def act(page: Page) -> None:
        page.locator(within).get_by_role("button", name=name).first.click(force=True)
        if item:
            page.get_by_role("menuitem", name=item).click()

    return act


DIALOGS: tuple[tuple[str, Callable[[Page], None], str], ...] = (
    ("/", press("?"), "dialog"),
    ("/", press("Control+k"), "dialog"),
    ("/", click("columns"), "dialog"),
    ("/", click("group"), "menu"),
    ("/", click("view"), "menu"),
    ("/", click("Project"), "menu"),
    ("/?sel={small},{wide}", click("Label"), "dialog"),
    ("/?sel={small},{wide}", click("More to do with the selected runs"), "menu"),
    ("/runs/{small}", click("More to do with this run"), "menu"),
    ("/compare?runs={small},{wide}", click("Add a run"), "dialog"),
    ("/tables", click("New table"), "dialog"),
    ("/tables/filled", click("Export"), "menu"),
    ("/tables/filled", click("More", "History"), "dialog"),
    ("/tables/filled", click("Cell", "A value of runs", within='[data-place="1:1"]'), "dialog"),
    ("/tables/filled", click("Cell", "History", within='[data-place="0:1"]'), "dialog"),
)


@pytest.mark.thorough
@pytest.mark.usefixtures("filled")
def test_open_dialogs_and_menus_can_be_used_by_everybody(
    someone: Visitor, runs: dict[str, str]
) -> None:
    for path, act, role in DIALOGS:
        page = someone.open(path.format(**runs))
        page.locator("#main").get_by_role("button").first.wait_for()
        wait_for_answers(page)  # a click hits its button only if nothing moves it away
        act(page)
        page.locator(f"[role={role}]").first.wait_for()
        assert violations_by_theme(page) == NO_VIOLATIONS, path
        assert page.locator(f"[role={role}]").count(), path
        page.close()


@pytest.mark.thorough
@pytest.mark.usefixtures("filled")
def test_a_narrow_screen_shows_everything_without_scrolling_sideways(
    server: Server, visit: Callable[..., Visitor], runs: dict[str, str]
) -> None:
    someone = visit(server, viewport={"width": 390, "height": 844})
    for path in PAGES:
        page = someone.open(path.format(**runs))
        page.locator("#main").wait_for()
        wait_for_answers(page)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390, path
        page.close()


def test_a_read_only_page_offers_nothing_that_it_would_refuse(
    project: Project, runs: dict[str, str], visit: Callable[..., Visitor]
) -> None:
    with serving(project.root, "--read-only") as server:
        someone = visit(server)
        page = someone.open(f"/runs/{runs['small']}")
        page.get_by_role("heading", name="small").wait_for()
        assert page.get_by_placeholder("add a note").count() == 0
        page.goto(server.root + "tables")
        page.get_by_role("heading", name="Tables").wait_for()
        assert page.get_by_role("button", name="New table").count() == 0
        page.close()
