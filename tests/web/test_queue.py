"""Page of the queue: a real dispatcher, real jobs, and what a person does with them."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from assay.core.job import JobSpec
from assay.formats import run_file
from assay.jobs.devices import FakeDevices
from assay.jobs.dispatcher import Dispatcher
from assay.store.job_journal import FILE_NAME, JobJournal
from assay.store.layout import Project
from flow.conftest import CONFIG, NET, POINTS
from run_folders import id_of, make_project, make_run
from web.conftest import Visitor, axe_violations, hold_requests, wait_for_answers
from web.serving import SOURCE, Server

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forking")]

HOSTILE = '"><img src=http://evil.test/x onerror=alert(1)><script>alert(2)</script>'
WORK = """
import sys
from pathlib import Path
from assay.jobs.devices import FakeDevices
from assay.jobs.dispatcher import Dispatcher
from assay.store.job_journal import JobJournal
Dispatcher(JobJournal(Path(sys.argv[1])), FakeDevices("2"), grace_s=5.0).run()
"""
TALK = 'exec 3<>{fifo}; while read line <&3; do echo "$line"; done'
"""A job that prints each line of a named pipe, until it is stopped."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project").root


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JobJournal]:
    with JobJournal(tmp_path / "queue") as opened:
        yield opened


@pytest.fixture
def dispatcher(journal: JobJournal) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start a dispatcher for two devices that exist in name only; it and its jobs end."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
        started.append(
            subprocess.Popen([sys.executable, "-c", WORK, str(journal.folder)], env=environment)
        )
        return started[-1]

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        process.wait()
    journal.request_cancel([each.id for each in journal.jobs(("waiting", "running"))])
    Dispatcher(journal, FakeDevices("2"), grace_s=1.0).run(until_empty=True)


@pytest.fixture
def server(root: Path, journal: JobJournal, serve: Callable[..., Server]) -> Server:
    return serve(root, variables={"ASSAY_QUEUE_DIR": str(journal.folder)})


def shell(text: str, **fields: Any) -> JobSpec:
    """A job that runs a line of shell."""
    environment = {"PATH": os.environ["PATH"]}
    given = {"cwd": "/", "environment": environment, **fields}
    return JobSpec(command=("sh", "-c", text), **given)


def row(page: Page, job: int) -> Locator:
    return page.locator(f'[data-job="{job}"]')


def waiting(page: Page) -> list[int]:
    """Return the jobs of the line, first to last."""
    line = page.get_by_role("region", name="Waiting").locator("[data-job]").all()
    return [int(each.get_attribute("data-job") or 0) for each in line]


def line_becomes(page: Page, jobs: list[int]) -> None:
    page.wait_for_function(
        """jobs => JSON.stringify([...document.querySelectorAll('[aria-label=Waiting] [data-job]')]
            .map(each => Number(each.dataset.job))) === JSON.stringify(jobs)""",
        arg=jobs,
    )


def test_a_machine_without_jobs_says_how_to_queue_one_and_the_navigation_is_silent(
    root: Path, tmp_path: Path, serve: Callable[..., Server], visit: Callable[..., Visitor]
) -> None:
    folder = tmp_path / "no-queue"
    page = visit(serve(root, variables={"ASSAY_QUEUE_DIR": str(folder)})).open()
    page.get_by_role("navigation", name="Pages").get_by_text("Runs").wait_for()
    assert page.get_by_role("link", name="Queue").count() == 0

    page.keyboard.press("g")
    page.keyboard.press("q")

    page.get_by_text("assay run digits.toml --queue").wait_for()
    assert not folder.exists()
    with JobJournal(folder) as journal:
        journal.submit([shell("true", title="first of all")])
    page.get_by_role("link", name="Queue").wait_for()
    page.get_by_text("first of all").wait_for()
    page.get_by_text("assay queue work --detach").wait_for()


def test_a_device_shows_its_job_from_start_to_end_and_its_log_is_followed(
    server: Server,
    journal: JobJournal,
    dispatcher: Callable[[], subprocess.Popen[bytes]],
    visit: Callable[..., Visitor],
    tmp_path: Path,
) -> None:
    fifo = tmp_path / "says"
    os.mkfifo(fifo)
    page = visit(server).open("/queue")
    talking, failing = journal.submit(
        [
            shell(TALK.format(fifo=fifo), title="talks"),
            shell("echo it broke; exit 3", title="fails", max_attempts=2, retry=("exception",)),
        ]
    )
    page.get_by_text("No dispatcher is at work").wait_for()
    dispatcher()

    lane = page.get_by_role("listitem", name="cuda:0")
    lane.get_by_text("talks").wait_for()
    page.get_by_text("No dispatcher is at work").wait_for(state="detached")
    ended = page.get_by_role("region", name="Ended")
    ended.get_by_text("fails").wait_for()
    assert re.search(r"exception\s+exit code 3\s+attempt 2 of 2", row(page, failing).inner_text())
    page.get_by_role("listitem", name="cuda:1").get_by_text("free").wait_for()

    lane.get_by_role("button", name=f"Log of job {talking}").click()
    log = page.get_by_role("log", name=f"job {talking}")
    with fifo.open("w") as pipe:
        for line in ("step 1", HOSTILE, "\x1b[31mred\x1b[0m step 2"):
            print(line, file=pipe, flush=True)
            log.get_by_text(line.replace("\x1b[31mred\x1b[0m", "red")).wait_for()
    assert f"job={talking}" in page.url
    page.reload()
    page.get_by_role("log", name=f"job {talking}").get_by_text("red step 2").wait_for()
    assert page.locator("#main img, #main script").count() == 0

    journal.request_cancel([talking])
    ended.get_by_text("talks").wait_for()
    lane.get_by_text("free").wait_for()


def test_jobs_are_paused_and_stopped_as_the_commands_do_it(
    server: Server,
    journal: JobJournal,
    dispatcher: Callable[[], subprocess.Popen[bytes]],
    visit: Callable[..., Visitor],
    tmp_path: Path,
) -> None:
    order = tmp_path / "order"
    first, second = journal.submit([shell("sleep 600", title=f"sleeps {i}") for i in range(2)])
    a, b, c, d = journal.submit([shell(f"echo {i} >> {order}", title=f"echo {i}") for i in "abcd"])
    dispatcher()
    page = visit(server).open("/queue")
    page.get_by_role("listitem", name="cuda:1").get_by_text("sleeps 1").wait_for()
    line_becomes(page, [a, b, c, d])

    page.get_by_role("button", name=f"Pause job {a}").click()
    row(page, a).get_by_text("paused").wait_for()
    page.get_by_role("button", name="Pause the queue").click()
    page.get_by_text("The queue is paused").wait_for()
    page.get_by_role("button", name=f"Stop job {second}").click()
    page.get_by_role("dialog").get_by_role("button", name=f"Stop job {second}").click()
    page.get_by_role("region", name="Ended").get_by_text("sleeps 1").wait_for()
    wait_for_answers(page)
    page.reload()
    line_becomes(page, [a, b, c, d])
    assert (journal.held_jobs(), journal.is_paused) == ({a}, True)
    assert journal.job(second).status.state == "cancelled"
    assert not order.exists()

    page.get_by_role("button", name="Start jobs again").click()
    line_becomes(page, [a])
    page.get_by_role("region", name="Ended").get_by_text("echo d").wait_for()
    assert order.read_text().split() == ["b", "c", "d"]
    page.get_by_role("button", name=f"Let job {a} start").click()
    page.get_by_role("region", name="Ended").get_by_text("echo a").wait_for()
    assert journal.job(first).status.state == "running"


def test_a_job_is_reached_paused_and_its_log_opened_by_keyboard_alone(
    server: Server, journal: JobJournal, visit: Callable[..., Visitor]
) -> None:
    _, b = journal.submit([shell("true", title=f"waits {i}") for i in "ab"])
    page = visit(server).open()
    page.get_by_role("link", name="Queue").wait_for()

    for key in ("g", "q"):
        page.keyboard.press(key)
    row(page, b).wait_for()
    page.keyboard.press("j")
    page.keyboard.press("p")
    page.get_by_text("paused").wait_for()
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").get_by_text("Pause the job, or let it start").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("job="))
    page.keyboard.press("Escape")
    page.wait_for_url(re.compile(r"/queue$"))


def test_acts_reach_the_server_in_the_order_in_which_they_are_done(
    server: Server, journal: JobJournal, visit: Callable[..., Visitor]
) -> None:
    (job,) = journal.submit([shell("true", title="waits")])
    someone = visit(server)
    let_go = hold_requests(someone.context, "**/api/queue/acts")
    page = someone.open("/queue")
    page.get_by_role("button", name=f"Pause job {job}").click()
    page.get_by_role("button", name=f"Let job {job} start").click()
    page.get_by_role("button", name=f"Pause job {job}").wait_for()

    let_go()

    wait_for_answers(page)
    assert journal.held_jobs() == set()


def test_an_act_that_comes_too_late_shows_how_it_is_and_a_refused_one_says_why(
    server: Server, journal: JobJournal, visit: Callable[..., Visitor]
) -> None:
    a, b = journal.submit([shell("true", title=f"waits {i}") for i in "ab"])
    someone = visit(server)
    someone.expected += ["400", "ERR_FAILED"]
    someone.context.route("**/api/live*", lambda route: route.abort())  # it hears of nothing
    page = someone.open("/queue")
    line_becomes(page, [a, b])
    journal.request_cancel([a])

    page.get_by_role("button", name=f"Pause job {a}").click()

    line_becomes(page, [b])

    (journal.folder / FILE_NAME).rename(journal.folder / "aside")
    page.get_by_role("button", name=f"Pause job {b}").click()

    page.get_by_text("There is no queue on this machine.").wait_for()
    page.get_by_text("No job was queued on this machine yet.").wait_for()


def test_a_page_that_may_only_read_shows_the_queue_and_offers_no_act(
    root: Path,
    journal: JobJournal,
    serve: Callable[..., Server],
    visit: Callable[..., Visitor],
) -> None:
    (job,) = journal.submit([shell("true", title="waits")])
    server = serve(root, "--read-only", variables={"ASSAY_QUEUE_DIR": str(journal.folder)})
    page = visit(server).open("/queue")
    row(page, job).wait_for()

    assert page.get_by_role("button", name=re.compile("Stop|Pause")).count() == 0
    assert server.ask("POST", "/api/queue/acts", {"act": "pause"}).status == 403
    assert not journal.is_paused


def test_hostile_titles_reasons_and_folders_are_texts(
    server: Server, journal: JobJournal, root: Path, visit: Callable[..., Visitor]
) -> None:
    bad = shell("exit 3", title=HOSTILE, config=HOSTILE, project=HOSTILE, group=HOSTILE)
    missing = JobSpec(command=(HOSTILE,), cwd="/", environment={"TOKEN": "secret-value"})
    journal.submit([bad, missing])
    Dispatcher(journal, FakeDevices("2"), grace_s=1.0).run(until_empty=True)
    journal.submit([bad])

    page = visit(server).open("/queue")

    page.get_by_role("region", name="Ended").get_by_text("onerror").first.wait_for()
    assert page.locator("#main img, #main script").count() == 0
    assert b"secret-value" not in server.ask("GET", "/api/queue").body
    for path in ("/api/queue/jobs/1/text", "/api/queue/jobs/2/text"):
        answer = server.ask("GET", path)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
    for path in (
        "/api/queue/jobs/99/text",
        "/api/queue/jobs/0/text",
        "/api/queue/jobs/..%2f1/text",
    ):
        assert server.ask("GET", path).status in (400, 404, 422)


def trained(root: Path) -> str:
    """Train in a new folder from a config there; return the id of the run."""
    root.mkdir()
    short = CONFIG.replace("epochs = 4", "steps = 2")
    for name, text in {"toy.toml": short, "net.py": NET, "points.py": POINTS}.items():
        (root / name).write_text(text)
    subprocess.run(
        [sys.executable, "-m", "assay", "run", "toy.toml", "--quiet", "--device", "cpu"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        check=True,
    )
    (run,) = (run_file.read(path).id for path in (root / "runs").iterdir())
    return run


def test_the_page_puts_a_run_in_line_again_after_it_has_said_what_that_does(
    tmp_path: Path,
    journal: JobJournal,
    serve: Callable[..., Server],
    visit: Callable[..., Visitor],
) -> None:
    root = tmp_path / "toy"
    run = trained(root)
    variables = {
        "ASSAY_QUEUE_DIR": str(journal.folder),
        "PYTHONPATH": str(SOURCE),
        "ASSAY_UI_TOKEN": "a-token-that-no-job-may-see",
    }
    page = visit(serve(root, variables=variables)).open(f"/runs/{run}")

    page.get_by_role("button", name="Queue again").click()
    asks = page.get_by_role("dialog")
    asks.get_by_text(f"assay rerun --queue {run} --device cpu").wait_for()
    asks.get_by_text("the files of the project as they are now").wait_for()
    asks.get_by_text("assay queue work --detach").or_(
        asks.get_by_text("No dispatcher is at work")
    ).first.wait_for()
    assert journal.jobs() == []
    asks.get_by_role("button", name="Put in line").click()

    page.get_by_text("Job 1 is in line.").wait_for()
    page.get_by_role("button", name="Open the queue").click()
    row(page, 1).wait_for()
    (job,) = journal.line()
    assert job.spec.device == "cpu"
    assert "ASSAY_UI_TOKEN" not in job.spec.environment
    assert json.loads(Path(job.spec.command[-1]).read_text())["options"]["parent"] == run


def test_the_menu_of_a_selection_puts_its_runs_in_line_again(
    tmp_path: Path,
    journal: JobJournal,
    serve: Callable[..., Server],
    visit: Callable[..., Visitor],
) -> None:
    root = tmp_path / "toy"
    run = trained(root)
    script = id_of(make_run(Project(root), tag="script"))
    variables = {"ASSAY_QUEUE_DIR": str(journal.folder), "PYTHONPATH": str(SOURCE)}
    page = visit(serve(root, variables=variables)).open(f"/?sel={run},{script}")
    more = page.get_by_role("button", name="More to do with the selected runs")

    more.click()
    page.get_by_role("menuitem", name="Put in line again").click()
    asks = page.get_by_role("dialog", name="Put 2 runs in line again")
    asks.get_by_text("A script recorded it").wait_for()
    assert asks.get_by_role("button", name="Put in line").is_disabled()
    asks.get_by_role("button", name="Cancel").click()
    asks.wait_for(state="detached")
    assert journal.jobs() == []
    page.locator(f'[data-run="{run}"]').click()
    page.get_by_text("2 runs, 1 selected").wait_for()
    more.click()
    page.get_by_role("menuitem", name="Put in line again").click()
    page.get_by_role("dialog").get_by_role("button", name="Put in line").click()

    page.get_by_text("Job 1 is in line.").wait_for()
    (job,) = journal.line()
    assert json.loads(Path(job.spec.command[-1]).read_text())["options"]["parent"] == run


def test_a_selection_that_cannot_be_put_in_line_says_why_in_its_menu(
    root: Path, journal: JobJournal, serve: Callable[..., Server], visit: Callable[..., Visitor]
) -> None:
    run = id_of(make_run(Project(root)))
    variables = {"ASSAY_QUEUE_DIR": str(journal.folder)}
    page = visit(serve(root, "--read-only", variables=variables)).open(f"/?sel={run}")

    page.get_by_role("button", name="More to do with the selected runs").click()

    entry = page.get_by_role("menuitem", name="Put in line again")
    entry.get_by_text("read-only").wait_for()
    assert entry.is_disabled()


def test_a_page_puts_nothing_in_line_but_a_run_that_was_trained_from_a_config_here(
    server: Server, journal: JobJournal, root: Path, visit: Callable[..., Visitor]
) -> None:
    run = id_of(make_run(Project(root), tag=HOSTILE))
    words = "A script recorded it"
    (line,) = server.get("/api/queue/rerun", runs=run)["runs"]
    assert words in line["refusal"]
    for runs, status in (
        ([run], 400),
        (["aaaaaaaa"], 404),
        (["--trust"], 422),
        (["optimizer.lr=1"], 422),
        ([], 422),
        (["../x"], 422),
    ):
        assert server.ask("POST", "/api/queue/rerun", {"runs": runs}).status == status, runs
    answer = server.ask("POST", "/api/queue/rerun", {"runs": [run], "device": "$(true)"})
    assert answer.status == 422

    page = visit(server).open(f"/runs/{run}")
    button = page.get_by_role("button", name="Queue again")
    assert words in (button.get_attribute("title") or "")
    button.press("Enter")
    page.get_by_role("status").get_by_text(words).wait_for()
    assert page.get_by_role("dialog").count() == 0
    assert journal.jobs() == []


def test_a_server_that_others_reach_or_that_only_reads_puts_nothing_in_line(
    root: Path, journal: JobJournal, serve: Callable[..., Server]
) -> None:
    run = id_of(make_run(Project(root)))
    variables = {"ASSAY_QUEUE_DIR": str(journal.folder)}
    for option, status, words in (
        (("--read-only",), 403, "read-only"),
        (("--allow-host", "lab.example"), 400, "this machine alone"),
    ):
        server = serve(root, *option, variables=variables)
        assert words in server.get("/api/site")["queueRefusal"]
        answer = server.ask("POST", "/api/queue/rerun", {"runs": [run]})
        assert answer.status == status
        assert words in answer.json["what"]
    assert journal.jobs() == []


def test_the_page_of_the_queue_can_be_used_by_everybody_at_every_width(
    server: Server,
    journal: JobJournal,
    dispatcher: Callable[[], subprocess.Popen[bytes]],
    visit: Callable[..., Visitor],
) -> None:
    journal.submit(
        [
            shell("echo hello; sleep 600", title="digits-cnn  lr=0.1", max_attempts=3),
            shell("exit 1", title="wide  lr=0.3"),
            shell("true", title="x" * 300),
            shell("sleep 600", title="sleeps"),
            shell("sleep 600", title="waits"),
        ]
    )
    dispatcher()
    page = visit(server).open("/queue?job=1")
    page.get_by_role("log").get_by_text("hello").wait_for()
    row(page, 3).wait_for()
    page.get_by_role("region", name="Ended").locator('[data-job="2"]').wait_for()

    for width, theme in itertools.product((390, 1280, 2560), ("light", "dark")):
        page.set_viewport_size({"width": width, "height": 844})
        page.emulate_media(color_scheme=theme)
        assert axe_violations(page) == [], (width, theme)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
