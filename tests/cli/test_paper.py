"""From groups of runs to the table of a paper, and back from its numbers to the runs."""

from __future__ import annotations

import csv
import json
import math
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from assay.store.layout import Project
from cli.conftest import Assay
from run_folders import id_of, make_run

GROUPS = {"best_1": (0.90, 0.92, 0.94), "second": (0.79, 0.81, 0.83), "last": (0.50, 0.51, 0.52)}


@pytest.fixture
def ids(project: Project, assay: Assay) -> dict[str, list[str]]:
    """Three groups of three seeds in a table `digits`, by one command; the ids of their runs."""
    found: dict[str, list[str]] = {}
    for tag, values in GROUPS.items():
        for seed, value in enumerate(values):
            folder = make_run(
                project,
                tag=tag,
                age_s=100 - seed,
                points={"valid/acc": [value]},
                config=f'seed = {seed}\nwidth = 8\nrecipe = "100 % {tag}"\n',
            )
            found.setdefault(tag, []).append(id_of(folder))
    expressions = [f"tag = {tag}" for tag in GROUPS]
    columns = ("-m", "valid/acc.max:max", "-m", "width", "-m", "recipe")
    said = assay("table", "fill", "digits", *expressions, *columns)
    assert said.code == 0, said.err
    return found


@pytest.fixture
def paper(ids: dict[str, list[str]], assay: Assay) -> Path:
    """A document that holds the table, and two of its numbers in a sentence."""
    file = Path("paper.tex")
    table = assay("table", "show", "digits", "--as", "latex").out
    file.write_text(
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
        f"{table}"
        "\n% assay: digits/r1/valid-acc-max\n"
        "It reaches 92.0\\,\\% ($\\pm$ 2.0), the smallest\n"
        "$0.51$ of three. % assay: digits/r3/valid-acc-max\n"
        "The best is $.92$. % assay: digits/r1/valid-acc-max\n"
        "\\end{document}\n",
        encoding="utf-8",
    )
    return file


@pytest.mark.row("C77")
def test_a_table_is_filled_with_a_row_for_each_expression_and_a_column_for_each_metric(
    ids: dict[str, list[str]], project: Project, assay: Assay
) -> None:
    shown = assay("table", "show", "digits")

    head, *rows = [line.split() for line in shown.lines[:4]]
    assert head == ["name", "valid/acc.max", "width", "recipe"]
    assert [row[0] for row in rows] == list(GROUPS)
    assert rows[0][1:] == ["0.920", "±", "0.020*", "8", "100", "%", "best_1"]
    assert rows[1][1:4] == ["0.810", "±", "0.020_"]
    assert "*: best of its column (valid/acc.max: the largest). _: the one after it." in shown.out

    make_run(project, tag="last", points={"valid/acc": [0.9]}, config="seed = 9\nwidth = 8\n")
    again = assay("table", "fill", "digits", "tag = last", "-m", "valid/acc.max")
    assert again.code == 0 and "(n 4)" in again.out
    assert len([line for line in again.lines if line.startswith("last")]) == 1


def test_the_second_of_a_column_is_marked_and_explained_in_every_form(
    ids: dict[str, list[str]], assay: Assay
) -> None:
    forms = ("markdown", "latex", "html")
    markdown, latex, html = (assay("table", "show", "digits", "--as", form).out for form in forms)

    assert "| *0.810 ± 0.020* |" in markdown and "| **0.920 ± 0.020** |" in markdown
    assert r"\underline{0.810 $\pm$ 0.020}" in latex and r"\textbf{0.920 $\pm$ 0.020}" in latex
    assert "<u>0.810 ± 0.020</u>" in html and "<strong>0.920 ± 0.020</strong>" in html
    assert "Italic: the one after it." in markdown
    assert "Underlined: the one after it." in latex and "Underlined: the one after it." in html


def test_each_cell_carries_the_ids_of_its_runs_in_every_form(
    ids: dict[str, list[str]], assay: Assay
) -> None:
    names = ("markdown", "latex", "html", "csv")
    forms = {name: assay("table", "show", "digits", "--as", name).out for name in names}

    first = " ".join(ids["best_1"])
    assert f"\n% assay: digits/r1/valid-acc-max: {first}\n" in forms["latex"]
    assert f"\nassay: digits/r1/valid-acc-max: {first}\n" in forms["markdown"]
    head, row, *_ = csv.reader(forms["csv"].splitlines())
    assert dict(zip(head, row, strict=True))["valid/acc.max runs"] == first
    cells: list[dict[str, str | None]] = []

    class Cells(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag == "td":
                cells.append(dict(attrs))

    Cells().feed(forms["html"])
    assert cells[1] == {"data-cell": "digits/r1/valid-acc-max", "data-runs": first}


@pytest.mark.row("C77")
def test_numbers_of_a_document_that_the_records_have_are_right_though_rounded(
    paper: Path, assay: Assay
) -> None:
    said = assay("table", "check", str(paper))

    assert (said.code, said.out, said.err) == (0, "12 numbers are what the records say\n", "")


def test_every_sign_of_a_name_is_that_sign_in_latex(project: Project, assay: Assay) -> None:
    names = [r"[a]", "*b", "c|d<e>", r"100 % f_g & $h #i {j} ~k ^l \m"]
    for name in names:
        make_run(project, tag=name, points={"loss": [1.0]})
    assay("table", "fill", "t", *(f"tag = {json.dumps(name)}" for name in names), "-m", "loss")

    assay("table", "show", "t", "-o", "t.tex")

    rows = [line for line in Path("t.tex").read_text().splitlines() if line.endswith(r"& 1 \\")]
    assert [row.partition(" & 1")[0] for row in rows] == [
        "{[}a]",
        "{*}b",
        "c$|$d$<$e$>$",
        r"100 \% f\_g \& \$h \#i \{j\} \textasciitilde{}k \textasciicircum{}l \textbackslash{}m",
    ]
    assert assay("table", "check", "t.tex").code == 0


@pytest.mark.parametrize(
    "values",
    [
        (-0.0004, 0.0003, 0.00001),
        (-0.05, 0.0499),
        (1e-5, 1e-5, 1e-5),
        (1e200, 2e200),
        (math.nan, 0.5),
        (math.inf, 0.5),
        (-math.inf,),
    ],
)
def test_a_table_that_was_just_exported_is_what_the_records_say(
    values: tuple[float, ...], project: Project, assay: Assay
) -> None:
    for seed, value in enumerate(values):
        make_run(project, tag="a", points={"loss": [value]}, config=f"seed = {seed}\n")
    assert assay("table", "fill", "t", "tag = a", "-m", "loss").code == 0
    assay("table", "show", "t", "-o", "t.tex")

    assert assay("table", "check", "t.tex").out == "1 number is what the records say\n"
    file = Path("t.tex")
    file.write_text(file.read_text(encoding="utf-8").replace("a & ", "a & 1"), encoding="utf-8")
    assert assay("table", "check", "t.tex").code == 1


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (1234.5678, "1,234.57"),
        (1234567.0, "1{,}234{,}567"),
        (1234.5678, r"$1.235\times10^{3}$"),
        (2e-9, r"$2.0 \cdot 10^{-9}$"),
        (3e4, r"$3\times 10^4$"),
    ],
)
def test_a_number_is_read_in_groups_of_three_digits_and_with_a_power_of_ten(
    value: float, written: str, project: Project, assay: Assay
) -> None:
    make_run(project, tag="a", points={"loss": [value]})
    assay("table", "fill", "t", "tag = a", "-m", "loss")
    Path("a.tex").write_text(f"It is {written} now. % assay: t/r1/loss\n", encoding="utf-8")

    assert assay("table", "check", "a.tex").out == "1 number is what the records say\n"


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        (r"\textbf{0.920 ", r"\textbf{0.930 ", "digits/r1/valid-acc-max is 0.920 ± 0.020 now"),
        (r"$\pm$ 0.020}", r"$\pm$ 0.010}", "digits/r1/valid-acc-max is 0.920 ± 0.020 now"),
        ("& 8 &", "& 16 &", "digits/r1/width is 8 now, not 16"),
        ("& 8 &", "& 18 &", "digits/r1/width is 8 now, not 18"),
        ("& 8 &", "& -8 &", "digits/r1/width is 8 now, not -8"),
        ("& 8 &", "& 8.5 &", "digits/r1/width is 8 now, not 8.5"),
        (r"best\_1 \\", r"best\_12 \\", "digits/r1/recipe is 100 % best_1 now"),
        (r"best\_1 \\", r"best\_1-b \\", "digits/r1/recipe is 100 % best_1 now"),
        (r"100 \% best", r"99 \% best", "digits/r1/recipe is 100 % best_1 now"),
        ("92.0", "93.0", "digits/r1/valid-acc-max is 0.920 ± 0.020 now, of 3 runs"),
        ("$0.51$", "$0.5$", "digits/r3/valid-acc-max is 0.510 ± 0.010 now, of 3 runs"),
        (
            "of three.",
            "of three (n = 5).",
            "digits/r3/valid-acc-max is 0.510 ± 0.010 now, of 3 runs",
        ),
        ("last & ", r"last & \textbf ", "digits/r3/valid-acc-max is not the best of its column"),
        (r"\underline{0.81", r"\textbf{0.81", "r2/valid-acc-max is not the best of its column"),
        (r"\textbf{0.92", r"\underline{0.92", "r1/valid-acc-max is not the second of its column"),
        ("last & 0.51", r"last & $^{\dagger}$0.51", "is not near the best of its column"),
        ("digits/r3/valid-acc-max\n", "digits/r9/valid-acc-max\n", "is not in the table any more"),
        ("digits/r3/valid-acc-max\n", "other/r3/acc\n", "is of no table"),
    ],
)
def test_a_number_that_was_changed_by_hand_is_named_with_its_line(
    paper: Path, assay: Assay, old: str, new: str, place: str
) -> None:
    text = paper.read_text(encoding="utf-8")
    assert old in text
    paper.write_text(text.replace(old, new, 1), encoding="utf-8")
    line = text[: text.index(old)].count("\n") + 1

    said = assay("table", "check", str(paper))

    assert said.code == 1
    (told,) = said.lines
    assert told.startswith(f"{paper}:{line}: ") and place in told
    assert said.err == "1 of 12 numbers are not what the records say\n"


def test_a_number_whose_runs_changed_is_told_with_what_it_is_now(
    project: Project, paper: Path, ids: dict[str, list[str]], assay: Assay
) -> None:
    make_run(project, tag="best_1", points={"valid/acc": [0.5]}, config="seed = 7\nwidth = 8\n")
    for run in ids["second"]:
        assay("rm", run)

    said = assay("table", "check", str(paper))

    assert said.code == 1
    assert "digits/r1/valid-acc-max is 0.81 ± 0.21 (n 4) now, not" in said.out
    assert "digits/r2/valid-acc-max leads to no value any more" in said.out


def test_a_number_with_another_n_is_wrong(
    project: Project, ids: dict[str, list[str]], assay: Assay
) -> None:
    make_run(project, tag="last", points={"valid/acc": [0.51]}, config="seed = 9\nwidth = 8\n")
    text = assay("table", "show", "digits", "--as", "latex").out
    assert text.count("(n 3)") == 2 and text.count("(n 4)") == 1
    Path("right.tex").write_text(text, encoding="utf-8")
    Path("wrong.tex").write_text(text.replace("(n 4)", "(n 3)"), encoding="utf-8")

    right, wrong = (assay("table", "check", f"{name}.tex") for name in ("right", "wrong"))

    assert right.code == 0 and wrong.code == 1
    assert "digits/r3/valid-acc-max is 0.5100 ± 0.0082 (n 4) now, not" in wrong.out


def test_a_document_without_marks_and_one_that_is_not_there_are_told(
    project: Project, assay: Assay
) -> None:
    Path("plain.tex").write_text("0.5 \\% % assay is a program\n", encoding="utf-8")

    plain, absent = assay("table", "check", "plain.tex"), assay("table", "check", "no.tex")

    assert plain.code == 2 and "No number in plain.tex says which cell it is of." in plain.err
    assert absent.code == 2 and "no.tex" in absent.err and "Traceback" not in absent.err
    assert "error: There is no such file.\n  at:  no.tex\n  fix: " in absent.err
    near = assay("table", "check", "plian.tex")
    assert near.code == 2 and "did you mean `plain.tex`?" in near.err
    Path("latin.tex").write_bytes("na\u00efve".encode("latin-1"))
    latin = assay("table", "check", "latin.tex")
    assert latin.code == 2 and "The file is no text of UTF-8" in latin.err


def test_an_expression_without_runs_or_values_fills_nothing(project: Project, assay: Assay) -> None:
    make_run(project, tag="a", points={"valid/acc": [0.5]})
    make_run(project, tag="b", points={"loss": [0.5]})

    for arguments, what in (
        (("tag = nobody", "-m", "valid/acc"), "No run fulfils `tag = nobody`."),
        (("tag = a", "tag = b", "-m", "valid/acc"), "valid/acc of b leads to no value"),
        (
            ("tag = a", "-m", "valid/acd"),
            "called `valid/acd`.\n  at:  a\n  fix: did you mean `valid/acc`?",
        ),
        (("a", "-m", "valid/acc"), "`a` is no expression of `assay ls`."),
    ):
        said = assay("table", "fill", "digits", *arguments)
        assert said.code == 2 and what in said.err, said.err
    assert assay("table", "show").out.startswith("There is no table yet.")


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no TeX here")
def test_the_table_of_a_paper_is_compiled_by_tex(paper: Path) -> None:
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", paper.name],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-2000:]
    assert paper.with_suffix(".pdf").stat().st_size > 10_000
    assert "Undefined" not in done.stdout and "Missing" not in done.stdout
