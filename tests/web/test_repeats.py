"""Pages that say which of several runs is better: by the metric's mode, and with n and p."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from assay.formats.run_file import Best
from assay.query.run import RunView
from assay.store.layout import Project
from run_folders import id_of, make_project, make_run
from web.conftest import Visitor
from web.serving import Server, serving

pytestmark = pytest.mark.slow

LONG = 2**62 + 1
LOSSES = {"low": (0.20, 0.21, 0.22), "near": (0.21, 0.22, 0.23), "high": (0.90, 0.91, 0.92)}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return make_project(tmp_path_factory.mktemp("repeats") / "project")


@pytest.fixture(scope="module")
def runs(project: Project) -> dict[str, list[str]]:
    """Runs by tag: three seeds of each of three configs, whose loss is to be small."""
    found: dict[str, list[str]] = {}
    for at, (tag, losses) in enumerate(LOSSES.items()):
        for seed, loss in enumerate(losses):
            folder = make_run(
                project,
                tag=tag,
                points={"valid/loss": [1.0, loss], "valid/acc": [0.1, loss]},
                config=f"seed = {seed}\nlr = 0.{at + 1}\nsalt = {LONG + at}\n",
                attempt={"seedless_hash": tag},
                best=Best(metric="valid/loss", mode="min", value=loss, step=2),
                values={"params": LONG},
            )
            found.setdefault(tag, []).append(id_of(folder))
    return found


@pytest.fixture(scope="module")
def server(project: Project, runs: dict[str, list[str]]) -> Iterator[Server]:
    with serving(project.root) as server:
        columns = ["valid/loss", "params"]
        made = {"name": "losses", "columns": columns, "where": "valid/loss > 0", "group": True}
        assert server.ask("POST", "/api/tables", made).status < 300
        key = server.get("/api/tables/losses")["columns"][1]["key"]
        change = {"changes": [{"what": "column", "column": key, "best": "min"}]}
        assert server.ask("POST", "/api/tables/losses/changes", change).status < 300
        yield server


@pytest.fixture
def someone(server: Server, visit: Callable[..., Visitor]) -> Visitor:
    return visit(server, viewport={"width": 1440, "height": 900})


def test_the_parameter_view_has_the_best_first_as_the_metric_says(
    someone: Visitor, runs: dict[str, list[str]]
) -> None:
    page = someone.open("/parameters")

    chosen = page.get_by_role("region", name="Chosen runs")
    chosen.get_by_role("heading", name="Lowest valid/loss").wait_for()
    page.get_by_text("strong lines have low values of valid/loss").wait_for()
    assert chosen.locator("tbody th").first.inner_text() == runs["low"][0]
    page.get_by_role("button", name="metric valid/loss").click()
    page.get_by_role("option", name="valid/acc").click()
    chosen.get_by_role("heading", name="Highest valid/acc").wait_for()
    page.get_by_text("strong lines have high values of valid/acc").wait_for()
    assert chosen.locator("tbody th").first.inner_text() == runs["high"][-1]


def test_the_means_that_a_p_value_is_of_stand_beside_it(
    someone: Visitor, runs: dict[str, list[str]]
) -> None:
    page = someone.open(f"/compare?runs={runs['low'][0]},{runs['high'][1]}")

    row = page.get_by_role("row", name="valid/loss")
    row.get_by_text("p < 0.001").wait_for()
    base, other = row.locator("td").all_inner_texts()
    assert base.split("\n") == ["0.2", "0.210 ± 0.010 (n = 3)"]
    assert other.split("\n") == ["0.91 +0.71", "0.910 ± 0.010 (n = 3)", "p < 0.001"]


def test_a_table_explains_its_marks_its_n_and_its_p(someone: Visitor) -> None:
    page = someone.open("/tables/losses")

    page.get_by_text("± is the sample standard deviation of n = 3 runs in each cell.").wait_for()
    page.get_by_text("Bold: best of its column (valid/loss: the smallest).").wait_for()
    (tested,) = page.get_by_text("Welch's two-sided t-test").all_inner_texts()
    assert "† where p > 0.05" in tested and "near p = 0.29 †" in tested and "high p <" in tested


def test_a_long_integer_has_all_its_digits_on_every_page(
    someone: Visitor, project: Project, runs: dict[str, list[str]]
) -> None:
    run = runs["low"][0]

    page = someone.open(f"/?w=id+%3D+{run}&c=params&c=salt")
    cells = page.locator(f"[data-run={run}] [role=gridcell]")
    cells.filter(has_text=str(LONG)).first.wait_for()
    assert cells.filter(has_text=str(LONG)).count() == 2
    page = someone.open(f"/runs/{run}?tab=config")
    page.get_by_text(str(LONG), exact=True).wait_for()
    page = someone.open("/parameters?k=salt")
    page.get_by_role("region", name="Chosen runs").get_by_text(str(LONG + 1)).first.wait_for()
    page = someone.open(f"/runs/{run}")
    page.get_by_role("button", name=str(LONG), exact=True).click()
    page.get_by_label("params").fill(str(LONG + 2))
    page.keyboard.press("Enter")
    page.get_by_text("params is corrected").wait_for()
    (view,) = [RunView(path) for path in project.runs_dir.iterdir() if run in path.name]
    assert view.values["params"] == LONG + 2
