"""`assay ls`."""

from __future__ import annotations

import csv
import io
import json
import resource
import shutil
from pathlib import Path

import pytest

from assay.core.errors import RecordError
from assay.formats.run_file import Best
from assay.script import start
from assay.store.layout import Project
from expression_corpus import texts_of
from run_folders import hold_lease, make_project, make_run

from .conftest import Assay


def test_a_full_disk_that_takes_no_index_is_told_and_no_fault_of_assay(
    project: Project, assay: Assay
) -> None:
    make_run(project)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        full = assay("ls")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert full.code == RecordError.exit_code and full.out == ""
    assert full.err.startswith("error: No index of the runs can be written")
    assert "fix: free some space" in full.err
    assert assay("ls").code == 0


def test_where_nothing_is_the_way_to_begin_is_said(
    tmp_path: Path, assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        assay("ls").out
        == "There is no project here, so there are no runs. `assay init` makes one.\n"
    )

    make_project(tmp_path / "my runs")
    below = "cd 'my runs': it is a project"
    assert below in assay("ls").out and below in assay("show", "last").err

    make_project(tmp_path)
    assert below in assay("ls").out
    shutil.rmtree(tmp_path / "my runs")
    said = assay("ls")

    assert said.code == 0
    assert said.out.startswith("There are no runs yet. `assay run CONFIG` makes one")
    assert assay("ls", "--tests").out == "There are no runs yet. `assay run CONFIG` makes one.\n"
    assert assay("ls", "--json").out == "[]\n"
    assert assay("ls", "--csv").out == "status,tag,id,best_metric,best,duration_s,created\n"


def test_runs_are_listed_the_newest_first(project: Project, assay: Assay) -> None:
    make_run(
        project, tag="older", age_s=7300, best=Best(metric="acc", mode="max", value=0.5, step=1)
    )
    hold_lease(make_run(project, tag="newer", age_s=100, ran_s=None))

    said = assay("ls")

    assert said.code == 0
    assert [line.split()[:2] for line in said.lines] == [
        ["status", "tag"],
        ["running", "newer"],
        ["finished", "older"],
    ]
    assert said.lines[2].endswith("acc 0.5  1 min 12 s    2 h ago")


def test_columns_sorting_and_limit_are_asked_for(project: Project, assay: Assay) -> None:
    for tag, value in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        make_run(project, tag=tag, points={"loss": [value]})

    said = assay("ls", "--columns", "tag, loss", "--sort", "-loss", "-n", "2")

    assert [line.split() for line in said.lines] == [["tag", "loss"], ["a", "3"], ["c", "2"]]
    wrong = assay("ls", "--columns", "los")
    assert wrong.code == 2
    assert "did you mean `loss`?" in wrong.err


def test_a_column_may_be_in_backquotes_as_in_an_expression(project: Project, assay: Assay) -> None:
    make_run(project, id="kq3f7abc", tag="a")

    quoted = assay("ls", "--columns", "`tag`,status")

    assert (quoted.code, quoted.out) == (0, assay("ls", "--columns", "tag,status").out)


def test_a_fold_is_to_a_fold_what_a_seed_is_to_a_seed(project: Project, assay: Assay) -> None:
    for width, fold, seed, acc in ((8, 0, 0, 0.5), (8, 1, 0, 0.7), (8, 1, 1, 0.9), (9, 0, 0, 0.1)):
        with start(
            config={"width": width, "seed": seed, "data": {"fold": fold}}, tag=f"w{width}"
        ) as run:
            run.log({"acc": acc}, 1)

    def groups(*options: str) -> list[list[str]]:
        return [line.split() for line in assay("ls", "--group", "--columns", "acc", *options).lines]

    together = [
        ["name", "runs", "acc"],
        ["w9", "width=9", "1", "0.1"],
        ["w8", "width=8", "3", "0.70", "±", "0.20"],
    ]
    assert groups("--except", "data.fold") == groups("--except", "*.fold") == together
    assert len(groups()) == 4
    wrong = assay("ls", "--group", "--except", "data.flod")
    assert wrong.code == 2 and "did you mean `data.fold`?" in wrong.err
    assert "give --group, too" in assay("ls", "--except", "data.fold").err


def test_a_key_that_only_others_are_copied_from_is_a_key_of_the_run(
    project: Project, assay: Assay
) -> None:
    for width, fold, acc in ((8, 0, 0.5), (8, 1, 0.7), (9, 0, 0.1)):
        copied = f"fold = {fold}  # from cv.fold\n"
        config = f"[model]\nwidth = {width}\n[data.train]\n{copied}[data.valid]\n{copied}"
        make_run(project, tag=f"w{width}f{fold}", config=config, points={"acc": [acc]})

    assert [line.split()[1] for line in assay("ls", "cv.fold = 1").lines[1:]] == ["w8f1"]
    columns = [line.split() for line in assay("ls", "--columns", "tag,cv.fold").lines]
    assert columns == [["tag", "cv.fold"], ["w9f0", "0"], ["w8f1", "1"], ["w8f0", "0"]]
    groups = assay("ls", "--group", "--except", "cv.fold", "--columns", "acc").lines
    assert [line.split()[-2:] for line in groups[:2]] == [["runs", "acc"], ["1", "0.1"]]
    assert groups[2].split() == ["width=8", "2", "0.60", "±", "0.14"]


def test_tests_are_listed_on_request_with_their_kind(project: Project, assay: Assay) -> None:
    make_run(project, tag="trained")
    make_run(project, tag="tested", kind="test")

    assert "tested" not in assay("ls").out
    lines = assay("ls", "--tests").lines
    assert lines[0].split()[:3] == ["status", "tag", "kind"]
    assert "tested" in "".join(lines)


def test_all_projects_are_listed_with_where_they_are(
    project: Project, assay: Assay, tmp_path: Path
) -> None:
    with start("far", project=tmp_path / "elsewhere"):
        pass
    make_run(project, tag="near")

    said = assay("ls", "--all-projects")

    assert str(tmp_path / "elsewhere") in said.out and str(project.root) in said.out
    assert "far" not in assay("ls").out


def test_programs_get_json_and_csv(project: Project, assay: Assay) -> None:
    make_run(project, id="aaaaaaaa", tag="=1+1")

    (row,) = json.loads(assay("ls", "--json").out)
    _, cells = csv.reader(io.StringIO(assay("ls", "--csv").out))

    assert (row["id"], row["tag"], row["duration_s"], row["best"]) == (
        "aaaaaaaa",
        "=1+1",
        72.0,
        None,
    )
    assert cells[1:3] == ["'=1+1", "aaaaaaaa"]


def test_a_tag_cannot_paint_the_terminal(project: Project, assay: Assay) -> None:
    make_run(project, tag="\x1b[31mred\nline")

    said = assay("ls")

    assert len(said.lines) == 2
    assert "\\x1b[31mred line" in said.out


def test_an_expression_chooses_the_runs(project: Project, assay: Assay) -> None:
    make_run(project, tag="good", points={"loss": [0.25]}, config="lr = 0.1\n")
    make_run(project, tag="bad", points={"loss": [4.0]}, config="lr = 0.2\n")

    assert [
        line.split()[0] for line in assay("ls", "loss < 1", "--columns", "tag,loss,lr").lines
    ] == ["tag", "good"]
    wrong = assay("ls", "los < 1")
    assert wrong.code == 2
    assert wrong.err == (
        "error: No run has anything called `los`.\n  at:  los < 1\n       ^^^\n  fix: did you mean `loss`?\n"
    )


@pytest.mark.row("A16")
def test_tag_and_description_are_the_readme_and_are_found_by_their_words(
    project: Project, assay: Assay
) -> None:
    with start("my title", desc="Does the walrus converge?") as run:
        pass
    make_run(project, tag="another")

    assert run.folder is not None
    assert run.folder.readme.read_text().startswith("# my title\n\nDoes the walrus converge?\n")
    for word in ("walrus", "TITLE"):
        assert [line.split()[1] for line in assay("ls", "--grep", word).lines[1:]] == ["my"]
    assert assay("ls", "desc ~ walrus", "--columns", "desc").lines[1] == "Does the walrus converge?"


@pytest.mark.row("C79")
def test_runs_stand_side_by_side_with_what_differs(project: Project, assay: Assay) -> None:
    for tag, lr in (("a", 0.1), ("b", 0.2)):
        make_run(
            project,
            tag=tag,
            id=tag * 8,
            config=f"same = 1\n[optimizer]\nlr = {lr}\n",
            points={"acc": [lr]},
        )

    said = assay("ls", "--diff", "--columns", "acc.max", "--sort", "tag")

    assert [line.split() for line in said.lines] == [
        ["tag", "id", "optimizer.lr", "acc.max"], ["a", "aaaaaaaa", "0.1", "0.1"], ["b", "bbbbbbbb", "0.2", "0.2"]
    ]  # fmt: skip


def test_repeats_are_listed_as_groups(project: Project, assay: Assay) -> None:
    for value in (0.5, 0.75):
        make_run(project, tag="exp", points={"acc": [value]}, attempt={"seedless_hash": "same"})

    assert assay("ls", "--group", "--columns", "acc").lines[1].split() == [
        "exp",
        "2",
        "0.62",
        "±",
        "0.18",
    ]
    assert (
        json.loads(assay("ls", "--group", "--columns", "acc", "--json").out)[0]["acc"]["count"] == 2
    )


def test_groups_are_sorted_and_show_the_keys_that_differ_in_every_form(
    project: Project, assay: Assay
) -> None:
    for lr, values in ((0.1, (0.5, 0.7)), (0.2, (0.9, 0.8)), (0.3, (0.2,))):
        for seed, value in enumerate(values):
            status = "failed" if value == 0.8 else "finished"
            make_run(
                project,
                tag="exp",
                config=f"seed = {seed}\nsame = 1\n[optimizer]\nlr = {lr}\n",
                points={"acc": [value]},
                status=status,
                attempt={"seedless_hash": str(lr), "launch": {"sweep": "swsw2345"}},
            )
    shown = ("ls", "sweep = swsw2345", "--group", "--diff", "--columns", "acc", "--sort", "-acc")

    assert [line.split() for line in assay(*shown).lines] == [
        ["name", "runs", "optimizer.lr", "acc"],
        ["exp", "1", "of", "2", "0.2", "0.9"],
        ["exp", "2", "0.1", "0.60", "±", "0.14"],
        ["exp", "1", "0.3", "0.2"],
    ]
    head, first, _, last = assay(*shown, "--csv").lines
    assert head == "name,tag,runs,finished,optimizer.lr,acc,acc.std"
    assert first == "lr=0.2,exp,2,1,0.2,0.9," and last == "lr=0.3,exp,1,1,0.3,0.2,"
    assert [row["optimizer.lr"] for row in json.loads(assay(*shown, "--json").out)] == [
        0.2,
        0.1,
        0.3,
    ]
    assert assay("ls", "--group", "--sort", "optimizer.lr", "-n", "1").lines[1].split()[1] == "2"
    assert "did you mean" in assay("ls", "--group", "--sort", "ac").err


def test_more_keys_than_fit_a_terminal_are_counted(
    project: Project, assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(2):
        make_run(
            project, tag="r", config="".join(f"a_long_name_of_a_key_{k} = {i}\n" for k in range(9))
        )
    monkeypatch.setattr("assay.cli.ls.width", lambda stream: 80)

    said = assay("ls", "--diff")

    assert max(map(len, said.lines)) <= 80
    assert "a_long_name_of_a_key_0" in said.lines[0]
    assert said.err.startswith("... and 7 more keys that differ")
    assert "a_long_name_of_a_key_8" in assay("ls", "--diff", "--csv").lines[0]


def test_a_terminal_gets_the_newest_runs_and_a_pipe_all(
    project: Project, assay: Assay, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tag, age_s in (("new", 10), ("old", 200), ("oldest", 3000)):
        make_run(project, tag=tag, age_s=age_s)
    monkeypatch.setattr("assay.cli.ls._AT_TERMINAL", 2)

    assert len(assay("ls").lines) == 4
    monkeypatch.setattr("assay.cli.ls.width", lambda stream: 80)
    said = assay("ls", "--columns", "tag")

    assert [line.strip() for line in said.lines] == ["tag", "new", "old"]
    assert said.err == "... a terminal gets 2 runs at most; -n N shows another number\n"
    assert len(assay("ls", "-n", "3").lines) == 4
    assert assay("ls", "-n", "2").err == ""
    assert len(json.loads(assay("ls", "--json").out)) == 3


@pytest.mark.row("D27")
def test_experiments_are_named_in_groups_by_tags_with_slashes(
    project: Project, assay: Assay
) -> None:
    for tag in ("gan/small", "gan/large", "vae/small"):
        make_run(project, tag=tag, points={"loss": [1.0]})

    said = assay("ls", 'tag ~ "gan/"', "--columns", "tag")

    assert sorted(line.strip() for line in said.lines[1:]) == ["gan/large", "gan/small"]
    assert assay("show", "gan/small").out.startswith("gan/small")
    assert assay("show", "gan/smal").code == 2
    folders = sorted(path.name for path in project.runs_dir.iterdir())
    assert sorted(name.split("-", 3)[3] for name in folders) == [
        "gan-large",
        "gan-small",
        "vae-small",
    ]


@pytest.mark.parametrize("length", [300, 100_000])
@pytest.mark.parametrize(
    "command",
    [
        ("ls",),
        ("ls", "--grep"),
        ("ls", "--sort"),
        ("ls", "--group", "--sort"),
        ("show",),
        ("figure", "curves", "-m", "loss", "-o", "x.pdf"),
        ("metrics",),
        ("table", "set", "t", "row", "column", "loss", "--where"),
    ],
)
def test_any_kind_of_text_in_the_place_of_a_run_is_answered_or_refused(
    project: Project, assay: Assay, command: tuple[str, ...], length: int
) -> None:
    make_run(project, tag="one", points={"loss": [1.0]}, config="lr = 0.1\n")
    for kind, text in texts_of(length, ends=("x", " = 1")).items():
        argument = f"{command[-1]}={text}" if command[-1].startswith("--") else text
        last = () if argument != text else (text,)
        said = assay(*(command if last else (*command[:-1], argument)), *last)

        assert said.code in (0, 2), (kind, said.err[:500])
        assert "a fault in assay" not in said.err, (kind, said.err[:500])
        assert len(said.err) < 2_000, kind
