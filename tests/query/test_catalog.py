"""The runs of a project, a page at a time, as they are now."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.core.errors import InputError
from assay.formats.run_file import Best
from assay.query.catalog import Asked, Catalog
from assay.query.groups import BY_CONFIG, Spread
from assay.store.layout import Project
from run_folders import make_run


@pytest.fixture
def catalog(project: Project) -> Catalog:
    """Catalog of two repeats of one config, a run of another, and an archived failed run."""
    for i, (lr, loss, alike) in enumerate(
        [("0.1", 1.0, "a"), ("0.1", 3.0, "a"), ("0.2", 8.0, "b")]
    ):
        make_run(
            project,
            id=f"aaaaaaa{i + 2}",
            age_s=100 - i,
            config=f"lr = {lr}\nseed = {i}\n",
            attempt={"seedless_hash": alike},
            points={"loss": [loss]},
            best=Best(metric="loss", mode="min", value=loss, step=3),
        )
    make_run(project, id="aaaaaaa5", age_s=50, status="failed", config="lr = 0.3\n", tag="other")
    made = Catalog(project)
    made.synchronize()
    return made


def test_a_page_has_the_rows_that_are_asked_for_in_their_order(catalog: Catalog) -> None:
    page = catalog.page(
        Asked(where="loss < 5", sort=("-loss",), columns=("id", "lr", "loss", "nothing"), limit=1)
    )

    assert (page.total, page.runs) == (2, 2)
    assert [column.kind for column in page.columns] == ["run", "config", "metric", "missing"]
    assert [row.cells for row in page.rows] == [("aaaaaaa3", 0.1, 3.0, None)]
    assert catalog.ids(Asked(where="loss < 5", sort=("-loss",), offset=1)) == [
        "aaaaaaa3",
        "aaaaaaa2",
    ]
    assert catalog.ids(Asked(grep="other")) == ["aaaaaaa5"]


def test_repeats_stand_together_with_their_mean_and_deviation(catalog: Catalog) -> None:
    page = catalog.page(Asked(group=(BY_CONFIG,), sort=("-loss",), columns=("loss", "lr", "tag")))

    assert [group.ids for group in page.groups] == [
        ("aaaaaaa4",),
        ("aaaaaaa3", "aaaaaaa2"),
        ("aaaaaaa5",),
    ]
    loss = page.groups[1].cells[0]
    assert isinstance(loss, Spread) and (loss.mean, loss.count) == (2.0, 2)
    assert page.groups[2].cells[0] is None and page.groups[1].cells[2] == "digits"
    assert sorted(catalog.repeats_of("aaaaaaa2")) == ["aaaaaaa2", "aaaaaaa3"]
    assert catalog.repeats_of("aaaaaaa5") == ["aaaaaaa5"]


def test_groups_of_texts_are_sorted_by_text(catalog: Catalog) -> None:
    page = catalog.page(Asked(group=("tag",), sort=("tag",), columns=("tag",)))

    assert [group.cells for group in page.groups] == [("digits",), ("other",)]


def test_grouped_by_what_no_run_has_all_runs_are_one_group(catalog: Catalog) -> None:
    page = catalog.page(Asked(group=("nothing",), columns=("tag",)))

    assert (page.total, page.runs) == (1, 4)
    (group,) = page.groups
    assert (group.key, len(group.ids)) == ((), 4)


def test_values_are_asked_for_by_name_and_a_wrong_one_is_told_with_the_nearest(
    catalog: Catalog,
) -> None:
    assert catalog.values_of(["aaaaaaa2", "aaaaaaa5"], "loss") == {"aaaaaaa2": 1.0}
    assert catalog.values(Asked(sort=("loss",)), ["loss", "none"])[1] == [None] * 4
    with pytest.raises(InputError) as wrong:
        catalog.values_of(["aaaaaaa2"], "lsos")
    assert "loss" in wrong.value.fix
    with pytest.raises(InputError, match="sort: -lsos"):
        catalog.page(Asked(sort=("-lsos",)))


def test_the_best_metrics_are_found(catalog: Catalog) -> None:
    assert list(catalog.best_modes()) == ["loss"]
    assert catalog.metrics_of(["aaaaaaa2"]) == ["loss"]
    assert set(catalog.rows(["aaaaaaa2", "zzzzzzz2"])) == {"aaaaaaa2"}


def test_a_metric_that_runs_call_their_best_by_has_a_mode_unless_they_differ(
    project: Project,
) -> None:
    for best in (
        Best(metric="loss", mode="min", value=1.0, step=1),
        Best(metric="loss", mode="min", value=1.0, step=1),
        Best(metric="score", mode="max", value=1.0, step=1),
        Best(metric="mixed", mode="max", value=1.0, step=1),
        Best(metric="mixed", mode="min", value=1.0, step=1),
    ):
        make_run(project, points={best.metric: [1.0]}, best=best)
    catalog = Catalog(project)
    catalog.synchronize()

    assert catalog.best_modes() == {"loss": "min", "score": "max", "mixed": ""}


def test_a_run_that_appears_is_seen_after_the_next_look(catalog: Catalog, project: Project) -> None:
    before = catalog.version
    folder = make_run(project, id="aaaaaaa6", age_s=1, ran_s=None)

    assert catalog.ids(Asked(where='id = "aaaaaaa6"')) == []
    catalog.synchronize([folder.name])

    assert catalog.version > before
    assert catalog.ids(Asked(where='id = "aaaaaaa6"')) == ["aaaaaaa6"]
    assert [row.written.id for row in catalog.open_rows()] == ["aaaaaaa6"]
    assert "aaaaaaa6" in [row.written.id for row in catalog.recent_rows(0, 10)]


def test_where_no_index_can_be_kept_one_is_made_for_this_process_alone(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(project, id="aaaaaaa2")
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(
        "assay.store.index.index_file", lambda project: tmp_path / "file" / "index.sqlite"
    )
    catalog = Catalog(project)

    catalog.synchronize()

    assert catalog.ids(Asked()) == ["aaaaaaa2"]
    catalog.close()
