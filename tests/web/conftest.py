"""A store of runs, a server that shows it, and one browser for all tests of a process."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from web.serving import PATIENCE_S, SOURCE, Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import APIResponse, Browser, BrowserContext, Page, Route

# The first has no window to draw, which halves what a page costs.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER_VARIABLE = "DEV_BROWSER"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
AXE = Path(__file__).resolve().parents[2] / "frontend" / "node_modules" / "axe-core" / "axe.min.js"
STATIC = Path(__file__).resolve().parents[2] / "src" / "assay" / "web" / "static"
LATEST_ANSWER_MS = 1500
COUNTED_FETCH = """
([seed, latest_ms]) => {
    const ask = window.fetch.bind(window);
    let drawn = seed;
    const wait = () => new Promise(resume => {
        drawn = (Math.imul(drawn, 1664525) + 1013904223) >>> 0;
        setTimeout(resume, latest_ms * drawn / 2 ** 32);
    });
    window.unanswered = 0;
    window.askedAt = performance.now();
    window.fetch = async (...asked) => {
        window.unanswered += 1;
        try {
            if (latest_ms) await wait();
            const answer = await ask(...asked);
            if (latest_ms) await wait();
            asked[0].signal?.throwIfAborted();
            return answer;
        } finally {
            window.unanswered -= 1;
            window.askedAt = performance.now();
        }
    };
}
"""
"""Count the requests that wait for an answer; make each of them late, by times drawn from a seed."""
QUIET = "() => !window.unanswered && performance.now() - window.askedAt > 200"


def browser_path() -> str | None:
    return os.environ.get(BROWSER_VARIABLE) or next(filter(None, map(shutil.which, BROWSERS)), None)


def missing() -> str:
    """Return why no browser test can run, "" when they can."""
    if browser_path() is None:
        return "there is no Chromium: apt-get install chromium-headless-shell"
    if not (STATIC / "index.html").exists():
        return "the page is not built: ./dev setup"
    return ""


def wait_for_answers(page: Page) -> None:
    """Wait until a page has every answer that it has asked for, and asks for nothing more."""
    page.wait_for_function(QUIET)


def hold_requests(context: BrowserContext, pattern: str) -> Callable[[], None]:
    """Hold back requests until the returned function is called, which lets the last go first."""
    held: list[Route] = []
    is_over = False

    def take(route: Route) -> None:
        if is_over:
            route.continue_()
        else:
            held.append(route)

    def let_go() -> None:
        nonlocal is_over
        is_over = True
        while held:
            held.pop().continue_()

    context.route(pattern, take)
    return let_go


def hold_answers(context: BrowserContext, pattern: str) -> Callable[[], None]:
    """Hold back what the server has answered by now until the returned function is called."""
    held: list[tuple[Route, APIResponse]] = []
    is_over = False

    def take(route: Route) -> None:
        if is_over:
            route.continue_()
        else:
            held.append((route, route.fetch()))

    def let_go() -> None:
        nonlocal is_over
        is_over = True
        while held:
            route, answer = held.pop()
            route.fulfill(response=answer)

    context.route(pattern, take)
    return let_go


def axe_violations(page: Page) -> list[tuple[str, str, int]]:
    """Return what axe finds on a page: rule, first element, and how many there are."""
    wait_for_answers(page)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate(
        "async () => (await axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa']}))"
        ".violations"
    )
    return [(each["id"], each["nodes"][0]["html"][:160], len(each["nodes"])) for each in found]


class Visitor:
    """Browser session whose pages may write nothing to the console, and call no other server."""

    def __init__(
        self, browser: Browser, server: Server, slow_seed: int | None = None, **options: Any
    ) -> None:
        self.server = server
        self.troubles: list[str] = []
        self.expected: list[
            str
        ] = []  # what the console may say after all: a status that the test asks for
        self.foreign: list[str] = []
        self.context: BrowserContext = browser.new_context(
            **{"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce", **options}
        )
        name, _, value = server.cookie.partition("=")
        self.context.add_cookies([{"name": name, "value": value, "url": server.root}])
        latest_ms = 0 if slow_seed is None else LATEST_ANSWER_MS
        self.context.add_init_script(f"({COUNTED_FETCH})([{slow_seed or 0}, {latest_ms}])")
        self.context.on("request", self._asked)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.server.root, "data:", "blob:")):
            self.foreign.append(request.url)

    def open(self, path: str = "/") -> Page:
        page = self.context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.troubles.append(f"dialog: {dialog.message}"))
        page.on(
            "console",
            lambda said: (
                self.troubles.append(f"{said.type}: {said.text}")
                if said.type in ("error", "warning")
                else None
            ),
        )
        page.goto(self.server.root.rstrip("/") + path)
        return page

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def visit(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Callable[..., Visitor]]:
    """Open a server as a visitor; the page must have no errors, and call only its server.

    With `--slow-server` each answer is late.
    """
    visitors: list[Visitor] = []

    def come(server: Server, **options: Any) -> Visitor:
        slow_seed = request.config.getoption("slow_server")
        visitor = Visitor(browser, server, slow_seed, **options)
        visitors.append(visitor)
        return visitor

    yield come
    for visitor in visitors:
        visitor.close()
        assert [
            said for said in visitor.troubles if not any(each in said for each in visitor.expected)
        ] == []
        assert visitor.foreign == []


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Start servers that end with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda folder, *arguments, **options: stack.enter_context(
            serving(folder, *arguments, **options)
        )


@pytest.fixture
def assay_ui() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `assay ui` to its end: for what it refuses to do."""

    def run(
        folder: Path, *arguments: str, variables: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "assay", "ui", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(SOURCE), **(variables or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    return run
