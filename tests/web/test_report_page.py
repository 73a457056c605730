"""The page of `assay report` in a browser, from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from assay.query.run import RunView
from assay.report.run_report import report_run
from run_folders import make_project, make_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

README = '# a\n\n<script>document.title = "run"</script><img src="http://evil.test/x">\n\n![p](http://evil.test/p.png)\n'


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_asks_for_nothing_runs_nothing_and_fits(
    tmp_path: Path, browser: Browser, scheme: str
) -> None:
    project = make_project(tmp_path / "project")
    points = {"train/loss": [2.0, 1.0, 0.5], "valid/acc": [0.5, 0.75]}
    words = " = ".join(["long_name_of_a_key" * 8, '"' + "value" * 40 + '"'])
    folder = make_run(project, points=points, config=f"{words}\n")
    (folder / "README.md").write_text(README, encoding="utf-8")
    report_run(RunView(folder)).write(tmp_path / "report.html")

    with browser.new_context(color_scheme=scheme) as context:  # type: ignore[arg-type]
        page = context.new_page()
        asked: list[str] = []
        said: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        address = (tmp_path / "report.html").as_uri()
        page.goto(address, wait_until="networkidle")

        assert asked == [address] and said == []
        assert page.title() == "digits"
        assert page.locator("figure svg polyline").count() == 2
        assert page.get_by_text("<script>document.title").is_visible()
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(22, 24, 28)") == (scheme == "dark")
        page.emulate_media(media="print")
        printed = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert printed == "rgb(255, 255, 255)"
