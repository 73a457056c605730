"""Bad records and bad luck: each has words of its own, and the rest of the page works."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.store.layout import Project, RunFolder
from run_folders import id_of, make_project, make_run
from web.conftest import Visitor, hold_requests, wait_for_answers
from web.serving import Server, serving

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project")


def test_a_run_that_vanishes_while_it_is_shown_says_so_and_stays_readable(
    tmp_path: Path,
    project: Project,
    serve: Callable[..., Server],
    visit: Callable[..., Visitor],
) -> None:
    folder = make_run(project, tag="short-lived", points={"loss": [1.0, 0.5]}, config="lr = 0.1\n")
    make_run(project, tag="stays", points={"loss": [1.0]})
    someone = visit(serve(project.root))
    someone.expected.append("404")  # of what the page asks for while the run goes
    page = someone.open(f"/runs/{id_of(folder)}")
    page.get_by_role("heading", name="short-lived").wait_for()

    folder.rename(tmp_path / "removed")

    page.get_by_text("This run was removed. What is shown is what it was.").wait_for()
    page.keyboard.press("Escape")
    page.get_by_text("1 run,").wait_for()


def test_a_damaged_record_says_so_in_its_row_and_on_its_page_and_the_others_are_drawn(
    project: Project, serve: Callable[..., Server], visit: Callable[..., Visitor]
) -> None:
    damaged = make_run(project, tag="damaged", points={"loss": [1.0]}, config="lr = [[[")
    (damaged / "run.json").write_bytes(b"\xff\xfe{{{")
    good = make_run(project, tag="good", points={"loss": [1.0, 0.5]})
    someone = visit(serve(project.root))
    someone.expected.append("422")
    page = someone.open(f"/?sel={id_of(good)},{id_of(damaged)}")
    page.get_by_role("figure", name="loss").get_by_role("img").wait_for()
    page.locator(f'[data-run="{id_of(damaged)}"]').get_by_text("damaged").wait_for()

    page.locator(f'[data-run="{id_of(damaged)}"]').dblclick()

    page.get_by_text(f"The run {id_of(damaged)} is damaged").wait_for()
    page.get_by_text("tells what is left of it").wait_for()


@pytest.mark.thorough
def test_nan_and_infinities_have_a_mark_at_the_curve_and_words_in_the_table(
    project: Project, serve: Callable[..., Server], visit: Callable[..., Visitor]
) -> None:
    nan, inf = float("nan"), float("inf")
    make_run(
        project,
        tag="bad-numbers",
        points={"loss": [1.0, 0.5, nan, inf, -inf, 0.4], "all": [nan, nan]},
    )
    page = visit(serve(project.root)).open()
    figure = page.get_by_role("figure", name="loss")
    figure.get_by_role("img").wait_for()
    page.get_by_role("button", name="Panel loss").click()
    page.get_by_text("As a table").click()

    row = page.get_by_role("dialog").get_by_role("row").nth(1)

    assert row.inner_text().split()[-1] == "3"  # values that are not finite
    page.keyboard.press("Escape")
    page.get_by_role("figure", name="all").wait_for()


@pytest.mark.thorough
def test_ten_megabytes_of_text_are_shown_from_their_end_and_searched(
    project: Project, serve: Callable[..., Server], visit: Callable[..., Visitor]
) -> None:
    folder = make_run(
        project,
        tag="talkative",
        points={"loss": [1.0]},
        config="x = '''%s'''\n" % ("y" * 10_000_000),
    )
    lines = "".join(f"line {i} {'x' * 90}\n" for i in range(100_000))
    RunFolder(folder).log.write_text("ValueError: at the very start\n" + lines, encoding="utf-8")
    page = visit(serve(project.root)).open(f"/runs/{id_of(folder)}?tab=log")

    page.get_by_text("Load 9").wait_for()
    page.get_by_role("button", name="First error").click()
    page.get_by_text("ValueError: at the very start").wait_for()
    assert page.get_by_role("log").locator("> div > div").count() < 200
    page.get_by_role("tab", name="Config").click()
    page.get_by_role("toolbar", name="Config").wait_for()


def test_the_first_error_of_a_log_is_asked_for_before_the_log_has_come(
    project: Project, serve: Callable[..., Server], visit: Callable[..., Visitor]
) -> None:
    folder = make_run(project, tag="talkative", points={"loss": [1.0]})
    text = "ValueError: at the very start\n" + "x" * 99 * 12_000 + "\n"
    RunFolder(folder).log.write_text(text, encoding="utf-8")
    someone = visit(serve(project.root))
    let_go = hold_requests(someone.context, "**/text?*")
    page = someone.open(f"/runs/{id_of(folder)}?tab=log")
    page.get_by_role("button", name="First error").click()

    let_go()

    page.get_by_text("ValueError: at the very start").wait_for()


@pytest.mark.thorough
def test_five_thousand_metrics_are_filtered_and_only_what_is_seen_is_drawn(
    project: Project, serve: Callable[..., Server], visit: Callable[..., Visitor]
) -> None:
    points = {f"layer{i // 50}/weight{i}": [1.0, 2.0] for i in range(5_000)}
    make_run(project, tag="many", points=points)
    page = visit(serve(project.root)).open()
    page.get_by_role("figure").first.wait_for()
    assert page.locator("canvas").count() < 60

    page.get_by_role("textbox", name="Filter panels").fill("weight4999")

    page.get_by_role("figure", name="layer99/weight4999").get_by_role("img").wait_for()
    assert page.get_by_role("figure").count() == 1


def test_an_image_of_a_hundred_megapixels_is_not_decoded_by_the_page_of_its_run(
    project: Project, serve: Callable[..., Server], visit: Callable[..., Visitor]
) -> None:
    (project.root / "huge.png").write_bytes(png(10_000, 10_000))
    script = """
import assay
with assay.start(tag="huge") as run:
    run.artifact("huge.png")
    print(run.id)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=project.root, capture_output=True, text=True, check=True
    )
    run = done.stdout.split()[0]
    page = visit(serve(project.root)).open(f"/runs/{run}?tab=artifacts")

    page.get_by_text("10,000 x 10,000, 100 megapixels").wait_for()
    assert page.locator("#main img").count() == 0
    page.get_by_role("button", name="Draw it").wait_for()


@pytest.fixture
def port() -> Iterator[int]:
    """A port that stays with this test, whether a server listens there or not."""
    with socket.socket() as holder:
        # A server may bind the port too, as nobody listens at this socket; no other process is
        # given it.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def test_a_server_that_goes_away_is_said_and_the_page_comes_up_to_date_when_it_is_back(
    project: Project, port: int, visit: Callable[..., Visitor]
) -> None:
    make_run(project, tag="before", points={"loss": [1.0, 0.5]})
    with serving(project.root, "--port", str(port)) as first:
        someone = visit(first)
        someone.expected += [
            "ERR_CONNECTION_REFUSED",
            "ERR_INCOMPLETE_CHUNKED",
            "ERR_EMPTY",
            "ERR_CONNECTION_RESET",
        ]
        page = someone.open()
        page.get_by_text("1 run,").wait_for()
        page.get_by_role("figure", name="loss").locator("[data-last='2']").wait_for()
        wait_for_answers(page)
    page.get_by_text("No answer from the server").wait_for()
    page.get_by_role("figure", name="loss").wait_for()  # what is here stays

    make_run(project, tag="meanwhile", points={"loss": [1.0, 0.5]})
    with serving(project.root, "--port", str(port)):
        page.get_by_text("2 runs,").wait_for()
        page.get_by_text("No answer from the server").wait_for(state="detached")
        page.close()


@pytest.mark.thorough
def test_a_filter_with_a_mistake_has_a_caret_below_its_place(
    project: Project, serve: Callable[..., Server], visit: Callable[..., Visitor]
) -> None:
    make_run(project, tag="one", points={"loss": [1.0]}, config="[model]\nwidth = 3\n")
    someone = visit(serve(project.root))
    someone.expected.append("400")
    page = someone.open()
    page.get_by_text("1 run,").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("loss < 3 and model.widht = 64")
    page.keyboard.press("Enter")
    page.get_by_text("did you mean").wait_for()
    assert page.get_by_role("search").locator("u").inner_text() == "model.widht"
    assert page.locator("[role=row][data-run]").count() == 1


def png(width: int, height: int) -> bytes:
    """Return a black picture of one bit a pixel: small as a file, large as pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = zlib.compress(b"\0" * ((width + 7) // 8 + 1) * height, 9)
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
