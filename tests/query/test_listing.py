"""`assay.runs`."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import assay
from assay.core.errors import InputError
from assay.formats.event_log import Edit
from assay.formats.metrics_file import metrics_state
from assay.query.run import RunView
from assay.store.index_database import index_file
from assay.store.layout import Project
from run_folders import edit, make_project, make_run

SRC = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture
def three(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(project.root)
    for i in range(3):
        make_run(
            project,
            tag=f"t{i}",
            age_s=100 - i,
            points={"loss": [3.0, i]} if i else {},
            config=f"width = {i}\n",
        )
    return project


def test_runs_are_found_by_an_expression_and_can_be_looked_at(three: Project) -> None:
    found = assay.runs("loss < 2")

    assert len(found) == 1
    run = found[0]
    assert isinstance(run, RunView)
    assert (run.tag, list(run.metric("loss").values)) == ("t1", [3.0, 1.0])
    assert [each.tag for each in assay.runs(sort="created")] == ["t0", "t1", "t2"]
    assert len(assay.runs(project=three.root, limit=2)) == 2


def test_a_table_becomes_arrays(three: Project) -> None:
    table = assay.runs(sort="created", columns=["tag", "loss", "width"])

    arrays = table.to_numpy()

    assert arrays["tag"].tolist() == ["t0", "t1", "t2"]
    assert arrays["loss"].dtype == np.float64
    np.testing.assert_array_equal(arrays["loss"], [np.nan, 1.0, 2.0])


class Frame:
    """What a DataFrame is made of: pandas itself is nothing that assay or its tests need."""

    def __init__(self, data: Any, index: Any) -> None:
        self.data = data
        self.columns = list(data)
        self.index = index

    def __getitem__(self, name: str) -> Any:
        return self.data[name]


def test_a_table_becomes_a_frame(three: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "pandas", SimpleNamespace(DataFrame=Frame, Index=lambda ids, name: ids)
    )
    table = assay.runs(sort="created", columns=["tag", "loss", "width"])

    frame = table.to_pandas("loss", "width")

    assert list(frame.columns) == ["loss", "width"]
    assert list(frame.index) == [row.id for row in table.rows]
    assert frame["width"].tolist() == [0, 1, 2]


def test_integers_stay_integers_in_a_frame(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = SimpleNamespace(
        DataFrame=Frame, Index=lambda ids, name: ids, array=lambda values, dtype: (dtype, values)
    )
    monkeypatch.setitem(sys.modules, "pandas", arrays)
    for i, width in enumerate((2**62 + 1, 3)):
        numbers = {"width": width, "rate": (1, 0.5)[i], "huge": (10**400, 7)[i]}
        make_run(project, values={**numbers, **({"some": 2**53 + 1} if i else {})}, age_s=9 - i)

    table = assay.runs(project=project, sort="created", columns=["width", "some", "rate", "huge"])
    frame = table.to_pandas()

    assert frame["width"].dtype == np.int64 and frame["width"].tolist() == [2**62 + 1, 3]
    assert frame["some"] == ("Int64", [None, 2**53 + 1])
    assert frame["rate"].dtype == np.float64
    assert frame["huge"].tolist() == [10**400, 7]
    assert table.to_numpy("huge")["huge"].tolist() == [10**400, 7]


def test_without_pandas_the_way_out_is_said(
    three: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(InputError, match="needs pandas"):
        assay.runs().to_pandas()


def test_a_notebook_gets_a_table_that_no_tag_can_break(project: Project) -> None:
    make_run(project, tag="<script>alert(1)</script>")

    page = assay.runs(project=project)._repr_html_()

    assert "&lt;script&gt;" in page and "<script>" not in page
    assert page.count("<tr>") == 2


@pytest.mark.row("A17")
def test_notes_are_found_by_their_words_and_their_history_is_kept(project: Project) -> None:
    folder = make_run(project, tag="a")
    make_run(project, tag="b")
    edit(
        folder, [Edit(what="note", new="first thought"), Edit(what="note", new="Größer is better")]
    )

    assert [run.tag for run in assay.runs(grep="größer", project=project)] == ["a"]
    assert [run.tag for run in assay.runs(grep="THOUGHT first", project=project)] == ["a"]
    assert len(assay.runs(grep="thought worse", project=project)) == 0
    assert [note.new for note in RunView(folder).notes] == ["first thought", "Größer is better"]


def test_a_readme_that_was_edited_is_found_by_its_new_words(project: Project) -> None:
    folder = make_run(project, tag="a")
    (folder / "README.md").write_text("# a\n\nold words\n")
    assert len(assay.runs(grep="old", project=project)) == 1

    with open(folder / "README.md", "a") as page:  # the folder itself does not change
        page.write("and a walrus\n")

    assert len(assay.runs(grep="walrus", project=project)) == 1


def test_an_edited_readme_is_found_where_the_index_is_locked(project: Project) -> None:
    folder = make_run(project, tag="a")
    (folder / "README.md").write_text("# a\n\nold words\n")
    os.utime(folder, ns=(0, 0))  # what has just changed is read again
    assert len(assay.runs(grep="old", project=project)) == 1
    with open(folder / "README.md", "a") as page:  # the folder itself does not change
        page.write("and a walrus\n")

    with closing(sqlite3.connect(index_file(project), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert len(assay.runs(grep="walrus", project=project)) == 1


def test_archived_runs_are_listed_on_request(project: Project) -> None:
    edit(make_run(project, tag="old"), [Edit(what="label", key="archived", new=True)])
    make_run(project, tag="new")

    assert [run.tag for run in assay.runs(project=project)] == ["new"]
    assert len(assay.runs(project=project, archived=True)) == 2
    assert [run.tag for run in assay.runs("label = archived", project=project)] == ["old"]


@pytest.mark.row("A38", "C45")
def test_runs_of_all_projects_are_listed_and_a_lost_project_is_named_until_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from assay.cli.main import main
    from assay.store.known_projects import known_projects
    from assay.store.trash import clean

    for name in "abc":
        with assay.start(name, project=tmp_path / name):
            pass
    monkeypatch.chdir(tmp_path)
    assert sorted(row.tag for row in assay.runs(all_projects=True).rows) == ["a", "b", "c"]

    (tmp_path / "b").rename(tmp_path / "elsewhere")
    assert main(["ls", "--all-projects"]) == 0
    assert f"lost: {tmp_path / 'b'} is not there any more" in capsys.readouterr().err
    assert sorted(row.tag for row in assay.runs(all_projects=True).rows) == ["a", "c"]

    assert clean(None).projects == (tmp_path / "b",)
    assert main(["ls", "--all-projects"]) == 0
    assert not capsys.readouterr().err
    assert known_projects() == [tmp_path / "a", tmp_path / "c"]


def test_every_shown_column_of_a_key_is_aligned_as_numbers_are(project: Project) -> None:
    make_project(project.root)
    make_run(project, tag="a", config="lr = 0.5\n")

    assert repr(assay.runs(project=project, columns=["tag", "lr"])) == "tag   lr\na    0.5"


HUGE = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1_500_000_000,) * 2)
import assay
from assay.cli.main import main
(run,) = assay.runs("layer_4999/norm.count = 200 and layer_4999/norm = 4999")
assert run.metric("layer_4999/norm").values.tolist() == [4999.0] * 200
sys.exit(main(["show", "last"]))
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_of_a_million_points_under_five_thousand_names_that_printed_two_gigabytes_is_read_in_little_memory(
    project: Project,
) -> None:
    norms = {f"layer_{i}/norm": float(i) for i in range(5_000)}
    with assay.start(project=project, keep_output=False) as run:
        for step in range(200):
            run.log(norms, step)
    assert run.folder is not None
    assert metrics_state(run.folder.metrics)[0] < 12_000_000
    run.folder.output.touch()
    os.truncate(run.folder.output, 2_000_000_000)

    shown = subprocess.run(
        [sys.executable, "-c", HUGE],
        cwd=project.root,
        env={**os.environ, "PYTHONPATH": str(SRC), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert shown.returncode == 0, shown.stderr
    assert "layer_0/norm" in shown.stdout
