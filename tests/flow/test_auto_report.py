"""The report that a run writes into its folder by one line of its config."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from assay.query.run import RunView

from .conftest import CONFIG, Assay

pytestmark = pytest.mark.slow
LINE = 'plugins = [{ type = "assay.plugins.AutoReport" }'
BROKEN = """\
class Broken:
    def record_end(self, folder):
        raise ValueError("no paper")
"""


@pytest.mark.row("C69")
def test_a_line_of_the_config_writes_a_report_once_the_record_has_ended(
    toy: Path, assay: Assay
) -> None:
    (toy / "toy.toml").write_text(f"{LINE}]\n{CONFIG}")
    assert assay("run", "toy.toml", "train.epochs=1").returncode == 0
    (folder,) = (toy / "runs").iterdir()
    text = (folder / "report" / "report.md").read_text(encoding="utf-8")
    assert "| status | finished |" in text and "| train.epochs | 1 | train.epochs=1 |" in text
    assert "| valid/acc |" in text and "| metrics |" not in text
    places = re.findall(r"\]\(([^)]*)\)", text)
    assert {"pictures/0.svg", "../metrics/names.jsonl", "../checkpoints/step-000000008"} <= set(
        places
    )
    assert all((folder / "report" / place).exists() for place in places)

    view = RunView(folder)
    assert assay("resume", view.id, "train.epochs=2").returncode == 0

    again = (folder / "report" / "report.md").read_text(encoding="utf-8")
    assert "in 2 attempts" in again and [each.name for each in folder.glob("*report*")] == [
        "report"
    ]


def test_a_plugin_that_fails_after_the_end_changes_nothing_about_the_run(
    toy: Path, assay: Assay
) -> None:
    (toy / "broken.py").write_text(BROKEN)
    (toy / "toy.toml").write_text(f'{LINE}, {{ type = "broken.Broken" }}]\n{CONFIG}')

    done = assay("run", "toy.toml", "train.epochs=1")

    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "plugins.1 (Broken) after the end: ValueError: no paper" in said
    (folder,) = (toy / "runs").iterdir()
    assert RunView(folder).status == "finished" and (folder / "report" / "report.html").is_file()
