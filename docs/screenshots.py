"""Take the pictures of `assay ui` on the home page: `.venv/bin/python docs/screenshots.py FOLDER`.

Trains the digits example and a sweep of 30 runs in FOLDER (reused if it has runs), starts
`assay ui` there, and writes `NAME-light.png` and `NAME-dark.png` for each of PAGES to
`docs/_static`. The name of FOLDER stands in the pictures. Needs the environment and the page of
`./dev setup`, and a Chromium (or its path in `DEV_BROWSER`).
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
ASSAY = [sys.executable, "-m", "assay"]
SIZE = {"width": 1280, "height": 800}
PICTURES = ROOT / "docs" / "_static"
PAGES = {"ui": "/"}
"""Paths of the pages that are taken, by the name of the picture."""
COLUMNS = ("status", "best", "optimizer.lr", "model.width", "duration")
"""Columns of the table of runs: as many as its side of the page shows."""

SWEEP = """
[sweep]
"optimizer.lr" = [3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
"model.width" = [8, 16, 32]
seed = [0, 1]
"""


def train(folder: Path) -> None:
    """Fill the project in `folder` with runs of the digits example."""
    shutil.copytree(ROOT / "examples" / "01_digits", folder, dirs_exist_ok=True)
    base = (folder / "digits.toml").read_text(encoding="utf-8")
    (folder / "sweep.toml").write_text(
        base.replace('"digits-cnn"', '"lr-width"') + SWEEP, encoding="utf-8"
    )
    run = [*ASSAY, "run", "--quiet", "--device", "cpu"]
    subprocess.run([*run, "digits.toml"], cwd=folder, check=True)
    subprocess.run([*run, "sweep.toml", "train.epochs=6"], cwd=folder, check=True)


def open_runs(browser: Browser, link: str) -> Page:
    """Return the page of runs, with all of them selected."""
    page = browser.new_context(viewport=SIZE, reduced_motion="reduce").new_page()
    page.goto(link)
    page.wait_for_url(lambda url: "/login" not in url, wait_until="commit")
    page.goto(f"{link.partition('/login')[0]}/?{'&'.join(f'c={name}' for name in COLUMNS)}")
    runs = page.locator("[data-run]")
    runs.first.click()
    runs.last.click(modifiers=["Shift"])
    return page


def main(folder: Path) -> None:
    """Train, start the server, and take one picture for each colour scheme."""
    program = os.environ.get("DEV_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)))
    if not (folder / "runs").exists():
        train(folder)
    server = subprocess.Popen(
        [*ASSAY, "ui", "--port", "0"], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        link = next(line.strip() for line in server.stdout or () if "/login#" in line)
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
            page = open_runs(browser, link)
            root, selected = link.partition("/login")[0], page.url
            for name, path in PAGES.items():
                page.goto(selected if path == "/" else root + path)
                for theme in ("light", "dark"):
                    page.emulate_media(color_scheme=theme)
                    page.reload()  # what is selected is in the address
                    page.locator("main").wait_for()
                    page.wait_for_timeout(2_000)  # until every curve is drawn
                    page.screenshot(path=PICTURES / f"{name}-{theme}.png")
            browser.close()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
