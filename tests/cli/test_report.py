"""`assay report`: a page, Markdown and a model card of what records say."""

from __future__ import annotations

import html
import json
import os
import re
import resource
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from markdown_it import MarkdownIt

from assay.core.errors import RecordError
from assay.core.facts import Evaluated
from assay.formats.run_file import Best, Code
from assay.formats.verdict import Verdict
from assay.query.drawing import CurveDrawing, DrawnCurve
from assay.query.run import RunView
from assay.record import edits
from assay.report.document import CellGrid, DocumentSection, ReportDocument, WebLink
from assay.report.model_card import card_metadata
from assay.report.run_report import make_report, report_run
from assay.store.layout import Project
from run_folders import make_checkpoint, make_run, tell

from .conftest import Assay

CONFIG = 'tag = "digits"\nseed = 1\n\n[optimizer]\nlr = 0.1\n\n[data.train]\nname = "a|b <b>"\n'
POINTS = {"train/loss": [2.0, 1.0, 0.5], "valid/loss": [2.5, 1.5, 1.25], "valid/acc": [0.5, 0.75]}
COMMIT = "0123456789012345678901234567890123456789"
HOSTILE = """\
Why **wider**? <script>document.title = "run"</script><img src="http://evil.test/x" onerror="a()">
![pixel](http://evil.test/pixel.png) and [home](https://example.org), [no](javascript:alert(1))

```html
<b>code</b>
```
"""


class Tags(HTMLParser):
    """Elements of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def write_readme(folder: Path, text: str) -> None:
    (folder / "README.md").write_text(f"# digits\n\n{text}\n", encoding="utf-8")


def make_whole_run(project: Project, **fields: Any) -> Path:
    code = Code(git_commit=COMMIT, git_dirty=True, git_remote="https://host.test/me/net", patch="p")
    attempt = {"code": code, "command": ("assay", "run", "a.toml"), "seeds": {"seed": 1}}
    environment: Mapping[str, Any] = {
        "python": "3.11.7",
        "packages": {"torch": "2.6.0"},
        "inputs": {"files": {"data/x.npy": "abcd"}},
    }
    best = Best(metric="valid/acc", mode="max", value=0.75, step=2)
    found = {"config": CONFIG, "points": POINTS, "best": best, "id": "aaaaaaaa", **fields}
    folder = make_run(project, attempt={**attempt, "environment": environment}, **found)
    for step, value in ((1, 0.5), (2, 0.75), (3, 0.25)):
        metrics = {"valid/acc": value, "valid/bad": float("nan")}
        tell(folder, Evaluated(split="valid", step=step, metrics=metrics, samples=500))
    make_checkpoint(folder, 2)
    return folder


def test_a_report_is_one_page_that_asks_for_nothing_and_markdown_with_its_pictures(
    assay: Assay, project: Project
) -> None:
    folder = make_whole_run(project)
    verdict = Verdict(
        question="replay", runs=("aaaaaaaa",), equal=True, first_step=1, last_step=3, compared=9
    )
    edits.keep_verdict(RunView(folder).folder, verdict, print)

    done = assay("report", "aaaaaaaa")

    assert (done.code, done.out, done.err) == (0, "written: aaaaaaaa-report\n", "")
    page = Path("aaaaaaaa-report/report.html").read_text(encoding="utf-8")
    tags = Tags(page).found
    fetched = [
        each for tag, each in tags if {"src", "srcset", "data"} & each.keys() or tag == "link"
    ]
    assert fetched == [] and not re.search(r"url\(|@import", page)
    assert "default-src 'none'" in page
    links = [each["href"] for tag, each in tags if tag == "a"]
    assert links == [f"https://host.test/me/net/commit/{COMMIT}"]
    assert page.count("<polyline") == 3 and page.count("<figcaption>") == 2  # loss and acc
    text = Path("aaaaaaaa-report/report.md").read_text(encoding="utf-8")
    for shown in (page, text):
        assert "replay: equal, steps 1 to 3" in shown and "torch==2.6.0" in shown
        assert "assay replay aaaaaaaa" not in shown  # which has been done, and no config is there
        assert "500 samples evaluated" in shown and "data/x.npy" in shown
    assert "| train/loss | 0.5 | 0.5 | 3 | 2 | 1 |" in text
    assert "| optimizer.lr | 0.1 |" in text
    assert r'| data.train.name | "a\|b \<b\>" |' in text
    assert "<td>&quot;a|b &lt;b&gt;&quot;</td>" in page
    pictures = re.findall(r"!\[[^]]*\]\(([^)]*)\)", text)
    assert pictures == ["pictures/0.svg", "pictures/1.svg"]
    assert all((Path("aaaaaaaa-report") / each).is_file() for each in pictures)
    again = assay("report", "aaaaaaaa", "-o", "again")
    assert again.code == 0
    assert Path("again/report.html").read_text(encoding="utf-8") == page  # of the same record


def test_html_in_a_readme_is_text_and_its_pictures_are_links(
    assay: Assay, project: Project
) -> None:
    write_readme(make_whole_run(project), HOSTILE)

    assert assay("report", "aaaaaaaa").code == 0

    page = Path("aaaaaaaa-report/report.html").read_text(encoding="utf-8")
    tags = Tags(page).found
    assert "<strong>wider</strong>" in page and "&lt;script&gt;" in page
    assert not {"script", "img"} & {tag for tag, _ in tags}
    links = {str(each["href"]) for tag, each in tags if tag == "a"}
    assert {"http://evil.test/pixel.png", "https://example.org"} <= links
    assert not any(each.startswith("javascript") for each in links)
    text = Path("aaaaaaaa-report/report.md").read_text(encoding="utf-8")
    assert "&lt;script>" in text and "<script>" not in text
    assert "](http://evil.test/pixel.png)" in text
    assert not re.search(r"!\[[^]]*\]\((?!pictures/)", text)
    assert "```html\n<b>code</b>\n```" in text


def test_a_report_of_several_runs_has_the_cells_of_ls(assay: Assay, project: Project) -> None:
    for at, (seed, rate) in enumerate([(1, 0.1), (2, 0.1), (1, 0.5)]):
        config = f"seed = {seed}\n\n[optimizer]\nlr = {rate}\n"
        best = Best(metric="valid/acc", mode="max", value=0.5 + at / 10, step=2)
        make_run(
            project,
            config=config,
            points={"valid/acc": [0.5, 0.5 + at / 10]},
            best=best,
            id=f"{at}aaaaaaa".replace("0", "z").replace("1", "y"),
            attempt={"seedless_hash": str(rate)},
        )

    assert assay("report", "tag = digits", "-o", "all.md").code == 0

    text = Path("all.md").read_text(encoding="utf-8")
    listed = assay("ls", "tag = digits", "--group", "--diff")
    assert listed.lines[0].split() == ["name", "runs", "optimizer.lr", "valid/acc.max"]
    assert "| name | runs | optimizer.lr | valid/acc.max |" in text
    rows = [line.split("  ") for line in listed.lines[1:]]
    assert len(rows) == 2 and "0.550 ± 0.071" in listed.out
    for row in rows:
        assert f"| {' | '.join(cell.strip() for cell in row if cell.strip())} |" in text
    assert all(re.search(rf"\| {run} \|", text) for run in ("zaaaaaaa", "yaaaaaaa", "2aaaaaaa"))
    assert "lr=0.1 (n = 2), lr=0.5" in text  # a line each, in one drawing
    assert "(n = 2)" not in assay("report", "optimizer.lr = 0.5", "-o", "one.md").out
    assert "| status | tag | id | best | duration | created |" in text  # an age would be wrong soon
    none = assay("report", "tag = nobody")
    assert none.code == 2 and "No run fulfils `tag = nobody`." in none.err


def test_a_cell_shows_its_text_as_it_is_in_both_forms() -> None:
    text = r"a &lt; ~~b~~ | \ *c* [d](e) `f` <i> #"
    site = "https://host.test/a%20b?c=d&e#f"
    grid = CellGrid(("k",), [(text,), (WebLink("a file", "x/a b#.txt"),), (WebLink("w", site),)])
    report = ReportDocument("r", text, grid, (DocumentSection(text, (grid,)),))

    page = report.to_html()

    assert page.count(f"<td>{html.escape(text)}</td>") == 2
    assert f"<h2>{html.escape(text)}</h2>" in page
    assert '<a href="x/a%20b%23.txt">a file</a>' in page
    assert f'<a href="{html.escape(site)}">w</a>' in page
    rendered = MarkdownIt("gfm-like", {"html": False, "linkify": False}).render(
        report.to_markdown()
    )
    assert rendered.count(f"<td>{html.escape(text)}</td>") == 2


def test_the_newest_test_of_each_run_is_in_its_report_and_in_that_of_its_group(
    assay: Assay, project: Project
) -> None:
    for seed, run in enumerate(("aaaaaaaa", "bbbbbbbb", "cccccccc")):
        config = f"seed = {seed}\n"
        run_of = {"config": config, "attempt": {"seedless_hash": "h"}, "points": POINTS}
        make_run(project, id=run, age_s=100 - seed, **run_of)
        for age_s, value in ((50, 0.25), (40, 0.5 + seed / 4)):
            test = {"id": f"{run[:7]}{'yz'[age_s < 50]}", "parent": f"{run}@step-2", "kind": "test"}
            points = {"test/acc": [value], "time/other_s": [1.0]}
            folder = make_run(project, age_s=age_s, **{**run_of, **test, "points": points})
            tell(folder, Evaluated(split="test", step=1, metrics={"test/acc": value}, samples=9))
    make_run(project, id="zzzzzzzz", parent="aaaaaaaa@step-2", kind="test", status="failed")

    assert assay("report", "aaaaaaaa", "-o", "one.md").code == 0
    assert assay("report", "tag = digits", "-o", "all.md").code == 0
    assert assay("report", "bbbbbbbb", "--card").code == 0

    one, group, card = (Path(f"{name}.md").read_text() for name in ("one", "all", "bbbbbbbb-card"))
    assert "## Test\n\n| weights | test/acc | run |\n" in one
    assert (
        "| aaaaaaaa@step-2 | 0.5 | aaaaaaaz |" in one
        and "0.25" not in one.partition("## Curves")[0]
    )
    assert "## Test\n\n| name | runs | test/acc |\n" in group
    assert "| digits | 3 | 0.75 ± 0.25 |" in group
    assert 'value: 0.75, name: "test/acc, step 1 of run bbbbbbbz"}' in card
    assert "| bbbbbbbb@step-2 | 0.75 | bbbbbbbz |" in card


def test_the_results_of_an_exported_checkpoint_are_its_own_and_not_those_of_the_best(
    project: Project,
) -> None:
    view = RunView(make_whole_run(project))
    for step, run in ((1, "bbbbbbbb"), (2, "cccccccc")):
        test = {"id": run, "parent": f"aaaaaaaa@step-{step}", "kind": "test", "age_s": 90 - step}
        folder = make_run(project, points={"test/acc": [0.125 * step]}, **test)
        tell(folder, Evaluated(split="test", step=1, metrics={"test/acc": 0.125 * step}))

    first = card_metadata(view, project, checkpoint="step-1", step=1)
    best = card_metadata(view, project)

    assert "value: 0.5, " in first and "value: 0.125, " in first
    assert "0.75" not in first and "0.25" not in first
    assert "value: 0.75, " in best and "value: 0.25, " in best


def test_each_number_of_a_card_is_a_number_in_yaml(project: Project) -> None:
    values = [1e-5, 2e300, 1.5e-7, 0.25, 1.0, -3e-9, 4e16]
    folder = make_run(project, points={"valid/m0": [1.0]})
    metrics = {f"valid/m{place}": value for place, value in enumerate(values)}
    tell(folder, Evaluated(split="valid", step=1, metrics=metrics))

    card = yaml.safe_load(card_metadata(RunView(folder), project).split("---")[1])

    (result,) = card["model-index"][0]["results"]
    assert [each["value"] for each in result["metrics"]] == values


def test_a_report_says_that_a_run_goes_on_is_damaged_or_was_made_by_somebody_else(
    assay: Assay, project: Project
) -> None:
    foreign = report_run(RunView(make_whole_run(project))).to_markdown()
    assert "somebody else: nothing here proves what it says" in foreign
    running = make_run(project, id="bbbbbbbb", ran_s=None, points=POINTS, status="running")
    assert "killed" in report_run(RunView(running)).to_markdown()
    (running / "metrics" / "1.rows").write_bytes(b"\x00" * 100)
    (running / "config.toml").write_text("lr = = 1\n")
    report = make_report("bbbbbbbb")
    assert report.sections[0].title == "Damaged" and "lr = = 1" in report["Config"]._repr_html_()

    (running / "run.json").write_text("{")
    done = assay("report", "bbbbbbbb")
    assert done.code == RecordError.exit_code
    assert done.err.startswith("error: The run bbbbbbbb is damaged: ") and "fix: " in done.err
    assert not list(project.root.glob("*report*"))


@pytest.mark.parametrize("place", ["there", "there.html"])
def test_what_is_in_the_place_stays_unless_it_is_moved_away(
    assay: Assay, project: Project, place: str
) -> None:
    make_whole_run(project)
    if place == "there":
        Path("there").mkdir()
        (Path("there") / "mine").write_text("mine")
    else:
        Path(place).write_text("mine")

    done = assay("report", "aaaaaaaa", "-o", place)
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("fix: name another place, or --force moves it away\n")
    forced = assay("report", "aaaaaaaa", "-o", place, "--force")

    assert forced.code == 0 and forced.err == f"moved away: {place}.old-1\n"
    moved = Path(f"{place}.old-1")
    assert (moved / "mine" if moved.is_dir() else moved).read_text() == "mine"
    kind = assay("report", "aaaaaaaa", "-o", "report.pdf")
    assert kind.code == 2 and "name it report.html or report.md" in kind.err


@pytest.mark.parametrize("place", ["out", "out.html", "out.md"])
def test_a_full_disk_leaves_no_half_report(assay: Assay, project: Project, place: str) -> None:
    packages = {f"package-{at}": "1" * 2_000 for at in range(100)}
    attempt = {"environment": {"packages": packages}}
    make_run(project, id="aaaaaaaa", attempt=attempt)
    assert assay("report", "aaaaaaaa", "-o", "first").code == 0  # and the index is made
    before = sorted(os.listdir(project.root))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, limits[1]))
    try:
        done = assay("report", "aaaaaaaa", "-o", place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert done.code != 0 and done.err.startswith("error: The report cannot be written")
    assert sorted(os.listdir(project.root)) == before


def test_a_card_has_the_results_of_the_best_weights_in_the_form_of_the_hub(
    assay: Assay, project: Project
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    tag = 'a: "b" #\n- c'
    make_whole_run(project, tag=tag)

    done = assay("report", "aaaaaaaa", "--card")

    assert done.out == "written: aaaaaaaa-card.md\n"
    text = Path("aaaaaaaa-card.md").read_text(encoding="utf-8")
    card = hub.ModelCard(text)
    assert card.data.library_name == "assay" and card.data.metrics == ["acc"]
    assert card.data.model_name == tag and card.data.to_dict()["seed"] == 1
    (result,) = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_split) == ("acc", 0.75, "valid")
    assert "step 2 of run aaaaaaaa" in result.metric_name
    assert 'assay.load_model("aaaaaaaa")' in text and "Write it here" in text
    several = assay("report", "tag ~ a", "--card", "-o", "x.md")
    assert several.code == 0  # an expression that one run fulfils
    make_run(project)
    assert "2 runs fulfil" in assay("report", "kind = train", "--card").err


def test_a_section_is_an_object_that_a_notebook_shows(project: Project) -> None:
    make_whole_run(project)
    report = make_report("aaaaaaaa")

    assert report["Result"]._repr_html_().startswith("<h2>Result</h2><div")
    assert report._repr_html_().count("<h2>") == len(report.sections)
    assert repr(report).startswith("<ReportDocument digits: Result, Curves, Data, Config, Cost")
    with pytest.raises(KeyError):
        report["Nothing"]


def test_a_spike_of_a_long_curve_is_drawn_and_a_band_surrounds_its_mean() -> None:
    ys = np.zeros(100_000)
    ys[33_333] = 7.0
    long = CurveDrawing("long", {"y": DrawnCurve(np.arange(100_000.0), ys)}).svg
    points = re.findall(r'<polyline points="([^"]*)"', long)[0].split()
    assert len(points) < 1_000 and min(float(each.split(",")[1]) for each in points) == 28.0
    assert json.dumps(long)  # one text
    alone = CurveDrawing("one", {"y": DrawnCurve(np.array([5.0]), np.array([0.25]))}).svg
    assert '<circle cx="64.0" cy="244.0"' in alone and 'viewBox="0 0 640 280"' in alone
    band = DrawnCurve(np.array([1.0, 2.0]), np.array([1.0, 1.0]), np.array([0.5, 0.5]))
    drawn = CurveDrawing("band", {"mean": band}).svg
    (area,) = re.findall(r'<polygon points="([^"]*)"', drawn)
    assert {each.split(",")[1] for each in area.split()} == {"28.0", "244.0"}
