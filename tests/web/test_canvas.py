"""Canvas of a history, open in a browser while a loop draws on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from assay.compat.framework.canvas import Canvas, History

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

POINTS = "() => document.querySelector('svg')?.outerHTML ?? ''"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    yield page
    context.close()


@pytest.mark.slow
@pytest.mark.row("B33", "S-B6")
def test_an_open_page_shows_each_new_drawing_until_the_run_ends(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    history, canvas = History(), Canvas()

    def draw(step: int) -> None:
        history.log((0, step), loss=1 / step, weight=np.eye(4) * step)
        with canvas:
            canvas.draw_plot(history["loss"])
            canvas.draw_image(history["weight"])

    draw(1)
    folder = history.run.folder
    assert folder is not None
    page.goto((folder.path / "canvas.html").as_uri())
    first = page.evaluate(POINTS)
    draw(2)
    page.wait_for_function("document.querySelector('figcaption')?.textContent.includes('step 2')")
    assert page.evaluate(POINTS) != first
    assert page.evaluate("document.querySelector('img').naturalWidth") > 0

    history.run.finish()
    page.wait_for_function("document.querySelector('meta[http-equiv=refresh]') === null")
    assert "step 2" in page.content()
