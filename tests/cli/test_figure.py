"""`assay figure`: what it shows, the files it writes, and the same figure again from the records."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import assay as face
from assay.core.errors import InputError
from assay.formats.json_codec import dumps
from assay.query.catalog import open_catalog
from assay.query.drawing import COLORS, choose_strokes
from assay.report.figure import make_request, read_recipe
from assay.report.figure_data import FigureItem, Panel, read_panels
from assay.report.figure_drawing import LINE_STYLES, STYLES
from assay.store.artifacts import keep_artifact
from assay.store.layout import Project, RunFolder
from run_folders import id_of, make_run

from .conftest import Assay

HEADS = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}
KINDS = ("curves", "bars", "scatter", "heatmap", "confusion")


def files(project: Project) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in project.root.iterdir() if path.is_file()}


def panels(project: Project, kind: str, *runs: str, **options: Any) -> tuple[Panel, ...]:
    return read_panels(open_catalog(project), make_request(kind, runs, **options))


def items(project: Project, kind: str, *runs: str, **options: Any) -> list[FigureItem]:
    return [item for panel in panels(project, kind, *runs, **options) for item in panel.items]


@pytest.fixture
def runs(project: Project) -> list[str]:
    """Two repeats that differ in their seed, and one run with another config."""
    alike = {"seedless_hash": "a"}
    one = {"train/loss": [4.0, 2.0, 1.0], "valid/acc": [0.1, 0.2]}
    make_run(project, tag="small", id="aaaaaaaa", points=one, attempt=alike)
    other = {"train/loss": [2.0, 2.0, 3.0, 9.0]}
    make_run(project, tag="small", id="bbbbbbbb", points=other, attempt=alike)
    last = {"train/loss": [1.0, 0.5]}
    make_run(project, tag="big", id="cccccccc", points=last, attempt={"seedless_hash": "b"})
    return ["aaaaaaaa", "bbbbbbbb", "cccccccc"]


@pytest.fixture
def sweep(project: Project) -> Project:
    """Two rates by three widths, each with three seeds, of which one failed; matrices."""
    age_s = 1000
    for rate, width, seed in itertools.product((0.01, 0.1), (8, 16, 32), (1, 2, 3)):
        age_s -= 1
        folder = make_run(
            project,
            tag=f"w{width}",
            age_s=age_s,
            status="failed" if (rate, width, seed) == (0.1, 32, 3) else "finished",
            points={"valid/acc": [0.5, rate + width / 100 + seed / 1000]},
            config=f"seed = {seed}\n[model]\nwidth = {width}\nname = 'm{width}'\n[optimizer]\nlr = {rate}\n",
            attempt={"seedless_hash": f"{rate} {width}"},
        )
        run = RunFolder(folder)
        keep_artifact(
            run,
            b"true,cat,dog\ncat,8,2\ndog,1,9\n",
            "valid/confusion.csv",
            at_ns=1,
            kind="table",
            step=1,
        )
    return project


def arguments(kind: str) -> Sequence[str]:
    named = {"curves": "acc", "confusion": "valid/confusion"}
    keys = ("-k", "optimizer.lr") if kind == "scatter" else ()
    keys = ("-k", "model.width", "-k", "optimizer.lr") if kind == "heatmap" else keys
    return (kind, "tag = w8", "-m", named.get(kind, "valid/acc.max"), *keys)


# --------------------------------------------------------------------------------------- the files


@pytest.mark.row("C73")
def test_curves_are_written_into_a_file_repeats_as_their_mean_with_a_band(
    assay: Assay, project: Project, runs: list[str]
) -> None:
    done = assay("figure", "curves", *runs, "-m", "loss", "-o", "fig.pdf", "--title", "losses")

    assert done.code == 0, done.err
    assert done.lines == [
        "small (n = 2)  train/loss  3 points",
        "big            train/loss  2 points",
        "written: fig.pdf, with its values in fig.pdf.json",
    ]
    mean, alone = items(project, "curves", *runs, runs[0], metrics="train/loss")
    assert mean.values["x"] == [1, 2, 3]  # where both have a point
    assert mean.values["y"] == [3, 2, 2]
    assert mean.values["band"] == pytest.approx([2**0.5, 0, 2**0.5])
    assert (mean.runs, alone.runs) == (("aaaaaaaa", "bbbbbbbb"), ("cccccccc",))
    assert "band" not in alone.values


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_a_file_that_holds_its_command_and_values_and_is_drawn_again_to_the_same_bytes(
    assay: Assay, sweep: Project, kind: str
) -> None:
    for ending, head in HEADS.items():
        name = f"it's {kind}.{ending}"
        done = assay("figure", *arguments(kind), "--style", "icml", "-o", name)
        assert done.code == 0, done.err
        data = Path(name).read_bytes()
        assert data.startswith(head)
        beside = json.loads(Path(f"{name}.json").read_text(encoding="utf-8"))
        assert dumps(read_recipe(Path(name))) == dumps(beside)
        assert beside["command"].startswith(f"assay figure {kind} 'tag = w8' -m ")
        assert (
            beside["command"].encode() in unescape(data.decode("latin-1")).encode()
            or ending == "pdf"
        )
        if ending == "pdf" or kind == "curves":
            again = assay("figure", "redo", name)
            assert (again.code, again.err) == (0, "")
            assert again.out == f"written: {name}, of the same values and to the same bytes\n"
            assert Path(name).read_bytes() == data


def test_a_pdf_has_the_width_of_the_venue_and_whole_fonts(assay: Assay, sweep: Project) -> None:
    for style, inches in STYLES.items():
        figure = face.figure("bars", "tag = w8", metrics="valid/acc", style=style)
        assert figure.get_figwidth() == inches
    assert assay("figure", *arguments("heatmap"), "--style", "ieee", "-o", "a.pdf").code == 0
    data = Path("a.pdf").read_bytes()
    (box,) = re.findall(rb"/MediaBox \[ ?0 0 (\S+) ", data)
    assert float(box) == pytest.approx(3.49 * 72, abs=0.01)
    assert b"/CIDFontType2" in data and b"/FontFile2" in data and b"/Type3" not in data
    assert b"assay figure heatmap 'tag = w8' -m valid/acc.max" in data


@pytest.mark.slow
def test_another_process_draws_the_same_bytes(assay: Assay, sweep: Project) -> None:
    command = ["figure", *arguments("curves"), "-o", "a.pdf"]
    assert assay(*command).code == 0
    before = Path("a.pdf").read_bytes()

    environment = {
        **os.environ,
        "PYTHONHASHSEED": "7",
        "SOURCE_DATE_EPOCH": "1",
        "TZ": "Asia/Tokyo",
    }
    subprocess.run([sys.executable, "-m", "assay", *command], env=environment, check=True)

    assert Path("a.pdf").read_bytes() == before


def test_the_command_beside_a_figure_makes_it_again(assay: Assay, sweep: Project) -> None:
    import shlex

    many = ("--by", "tag,model.width", "--except", "*.width", "--title", "it's", "--log", "y")
    assert assay("figure", *arguments("bars"), *many, "-o", "a.svg").code == 0
    data = Path("a.svg").read_bytes()
    command = read_recipe(Path("a.svg")).command
    Path("a.svg").unlink()

    assert assay(*shlex.split(command)[1:]).code == 0
    assert Path("a.svg").read_bytes() == data


def test_redo_says_that_values_have_changed_since_and_ends_with_1(
    assay: Assay, sweep: Project
) -> None:
    command = ("figure", "bars", "tag = w8", "-m", "valid/acc", "-o", "a.pdf")
    assert assay(*command).code == 0
    before = read_recipe(Path("a.pdf"))
    config = "[model]\nwidth = 8\nname = 'm8'\n[optimizer]\nlr = {}\n"
    for lr, group in ((0.01, "0.01 8"), (1.0, "other")):
        new = {"points": {"valid/acc": [0.5]}, "attempt": {"seedless_hash": group}}
        make_run(sweep, tag="w8", age_s=1, config=config.format(lr), **new)

    copy = assay("figure", "redo", "a.pdf", "-o", "b.pdf")
    done = assay("figure", "redo", "a.pdf")

    assert done.lines == ["written: a.pdf, of values that have changed"]
    assert copy.out == done.out.replace("a.pdf", "b.pdf") and copy.code == done.code == 1
    after = read_recipe(Path("a.pdf"))
    assert after.digest != before.digest and after.command == before.command
    assert assay("figure", "redo", "a.pdf").code == 0


# --------------------------------------------------------------------------------- what they show


def test_bars_have_the_means_of_ls_and_the_interval_of_scipy(assay: Assay, sweep: Project) -> None:
    shown = items(sweep, "bars", "valid/acc > 0", metrics="valid/acc")

    listed = json.loads(assay("ls", "--group", "--columns", "valid/acc", "--json").out)
    cells = {tuple(sorted(line["runs"])): line["valid/acc"] for line in listed}
    assert len(shown) == len(listed) == 6
    for item in shown:
        cell = next(cell for runs, cell in cells.items() if set(item.runs) <= set(runs))
        values = item.values
        assert (values["mean"], values["std"], values["n"]) == (
            cell["mean"],
            cell["std"],
            cell["count"],
        )
        low, high = stats.t.interval(
            0.95, values["n"] - 1, values["mean"], values["std"] / values["n"] ** 0.5
        )
        assert (values["low"], values["high"]) == pytest.approx((low, high))
    assert [item.repeats for item in shown] == ["(n = 3)"] * 5 + ["(n = 2 of 3)"]


def test_the_runs_that_are_left_out_are_named_with_the_reason(
    assay: Assay, project: Project, runs: list[str]
) -> None:
    failed = make_run(project, tag="small", status="failed", attempt={"seedless_hash": "a"})

    done = assay("figure", "curves", *runs, id_of(failed), "-m", "valid/acc", "-o", "a.svg")

    assert done.lines[0] == "small (n = 1 of 3)  valid/acc  2 points"
    assert "cccccccc (no valid/acc)" in done.err and f"{id_of(failed)} (failed)" in done.err
    assert "bbbbbbbb (no valid/acc)" in done.err


def test_a_group_may_be_of_other_columns_or_ignore_more_keys(sweep: Project) -> None:
    def labels(**how: Any) -> list[str]:
        found = items(sweep, "bars", "valid/acc > 0", metrics="valid/acc.max", **how)
        return [item.label for item in found]

    assert labels(by="tag") == ["w8 (n = 6)", "w16 (n = 6)", "w32 (n = 5 of 6)"]
    assert labels(by=["optimizer.lr", "tag"])[0] == "w8 lr=0.01 (n = 3)"
    assert labels(ignored="optimizer.*")[0].endswith("width=8 (n = 6)")
    assert labels()[0] == "w8 name=m8 width=8 lr=0.01 (n = 3)"


def test_a_heat_map_and_a_scatter_show_the_mean_over_their_keys(sweep: Project) -> None:
    keys = ["model.width", "optimizer.lr"]
    heat = items(sweep, "heatmap", "valid/acc > 0", metrics="valid/acc", keys=keys)
    points = items(sweep, "scatter", "valid/acc > 0", metrics="valid/acc", keys="valid/acc.max")

    found = {
        (item.values["model.width"], item.values["optimizer.lr"]): item.values for item in heat
    }
    assert found.keys() == set(itertools.product((8, 16, 32), (0.01, 0.1)))
    assert found[8, 0.01]["mean"] == pytest.approx(0.01 + 0.08 + 0.002)
    assert found[32, 0.1]["mean"] == pytest.approx(0.1 + 0.32 + 0.0015)  # one failed
    assert all(item.values["valid/acc.max"] == pytest.approx(0.5) for item in points)


def test_matrices_are_added_up(sweep: Project) -> None:
    matrix = items(sweep, "confusion", "valid/acc > 0", metrics="valid/confusion")[0]

    assert matrix.values == {"names": ["cat", "dog"], "counts": [[24, 6], [3, 27]]}


def test_a_class_may_be_called_true(project: Project) -> None:
    with face.start(tag="kept", config={"seed": 0}) as run:
        run.table("matrix", [[5, 1], [2, 7]], columns=["true", "false"])
        run.table("named", [["true", 5, 1], ["false", 2, 7]], columns=["true", "true", "false"])

    for name in ("matrix", "named"):
        (item,) = items(project, "confusion", "tag = kept", metrics=name)
        assert item.values == {"names": ["true", "false"], "counts": [[5.0, 1.0], [2.0, 7.0]]}


def test_a_misspelt_matrix_is_told_with_those_that_are_kept(assay: Assay, sweep: Project) -> None:
    done = assay("figure", "confusion", "kind = train", "-m", "valid/confusin", "-o", "a.pdf")

    assert done.code == 2 and "did you mean `valid/confusion.csv`?" in done.err
    with face.start(tag="kept", config={"seed": 0}) as run:
        run.value("matrix", [[1, 2], [3, 4]])
    done = assay("figure", "confusion", "tag = kept", "-m", "matrx", "-o", "a.pdf")
    assert done.code == 2 and "did you mean `matrix`?" in done.err


def test_lines_are_labelled_by_the_keys_that_differ_and_each_metric_has_a_panel_of_its_own(
    project: Project,
) -> None:
    for i in range(9):
        config = f'seed = {i}\ntag = "t{i}"\nsame = 1\n[optimizer]\nlr = {i}.5\n'
        points = {"train/loss": [2.0, 1.0], "valid/acc": [0.1, 0.2]}
        hashed = {"seedless_hash": f"{i}"}
        make_run(project, tag="sweep", points=points, config=config, attempt=hashed)
    make_run(project, tag="other", points={"train/loss": [1.0]}, config="same = 1")

    figure = face.figure("curves", "tag = sweep", metrics=["loss", "acc"], project=project)

    losses, accuracies = figure.axes
    assert (losses.get_ylabel(), accuracies.get_ylabel()) == ("train/loss", "valid/acc")
    lines = [line for line in losses.get_lines() if len(line.get_xdata()) == 2]
    looks = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in lines}
    assert len(set(looks.values())) == 9 and {color for color, _ in looks.values()} == set(COLORS)
    strokes = {
        name: (COLORS[slot], LINE_STYLES[dash])
        for name, (slot, dash) in choose_strokes(looks).items()
    }
    assert looks == strokes
    again = {
        line.get_label(): (line.get_color(), line.get_linestyle())
        for line in accuracies.get_lines()
    }
    assert again == looks


def test_lines_over_different_axes_are_drawn_over_the_steps_that_all_of_them_have(
    project: Project,
) -> None:
    for tag, seed, width in (("wide", 0, 1000), ("wide", 1, 1200), ("narrow", 0, 10)):
        with face.start(tag=tag, config={"seed": seed, "width": width}) as run:
            run.axis("tokens")
            for step in range(3):
                run.log({"train/loss": 1.0, "lr": 0.1}, step)
                run.log({"valid/loss": 2.0, "tokens": width * step}, step)

    (panel,) = panels(project, "curves", "width > 0", metrics="valid/loss", by=["tag"])
    (alone,) = panels(project, "curves", "width = 10", metrics="valid/loss")
    drawing = face.runs("width = 10")[0].plot("train/loss", "valid/loss")

    assert alone.axes == ("tokens",) and alone.items[0].values["x"] == [0.0, 10.0, 20.0]
    assert panel.axes == ("step",)
    assert [item.values["x"] for item in panel.items] == [[0.0, 1.0, 2.0]] * 2
    lines = re.findall('<polyline points="([^"]*)"', drawing.svg)
    ends = {line.split()[-1].partition(",")[0] for line in lines}
    assert len(lines) == 2 and len(ends) == 1 and ">step<" in drawing.svg


def test_a_logarithmic_axis_is_labelled_by_plain_numbers(sweep: Project) -> None:
    drawn = face.figure(
        "scatter", "valid/acc > 0", metrics="valid/acc", keys="model.width", log="xy", project=sweep
    )
    drawn.canvas.draw()

    axis = drawn.axes[0].xaxis
    labels = [each.get_text() for each in axis.get_ticklabels(which="both")]
    assert {"10", "20"} <= set(labels) and not any("$" in each for each in labels)


def test_texts_are_drawn_as_they_are_whatever_matplotlib_makes_of_them(project: Project) -> None:
    for tag in ("cost $5", "_hidden", "a$x_", "50 %"):
        make_run(project, tag=tag, points={"loss": [2.0, 1.0]}, attempt={"seedless_hash": tag})

    figure = face.figure("curves", "loss > 0", metrics="loss", title="$\\frac$", project=project)

    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == [r"cost \$5", " _hidden", r"a\$x_", "50 %"]
    shown: Any = figure
    assert shown._repr_png_().startswith(HEADS["png"])


@pytest.mark.parametrize(("side", "page"), [("light", "#ffffff"), ("dark", "#14161a")])
def test_eight_colours_of_figures_and_page_are_told_apart_by_the_colour_blind(
    side: str, page: str
) -> None:
    # Machado, Oliveira and Fernandes (2009): red, green and blue cones missing.
    missing = (
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    )  # fmt: skip
    of_page = Path(__file__).parents[2] / "frontend/src/state/colors.ts"
    colors = re.findall(rf'\b{side}: "(#\w{{6}})" ?[,}}]', of_page.read_text(encoding="utf-8"))[:8]
    assert side == "dark" or tuple(colors) == COLORS  # one palette

    for matrix in (*missing, np.eye(3)):
        seen = [_lab(np.clip(np.array(matrix) @ _linear(color), 0, 1)) for color in colors]
        distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
        assert min(distances) > 17  # in CIE Lab, where 2.3 is just noticed
    ground, *lights = (_linear(color) @ [0.2126, 0.7152, 0.0722] for color in (page, *colors))
    for light in lights:
        assert (max(light, ground) + 0.05) / (min(light, ground) + 0.05) >= 3  # as WCAG asks for


def _linear(color: str) -> Any:
    values = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def _lab(light: Any) -> Any:
    weights = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    cones = np.array(weights) @ light / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(cones > 0.008856, np.cbrt(cones), 7.787 * cones + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


# ---------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("curve", "aaaaaaaa", "-m", "loss", "-o", "a.pdf"), "did you mean `curves`?"),
        (("curves", "aaaaaaaa", "-o", "a.pdf"), "needs a metric.\n  fix: -m NAME draws it"),
        (("curves", "aaaaaaaa", "-m", "loss"), "needs the option -o or --to.\n  fix: -o fig.pdf"),
        (("curves", "aaaaaaaa", "-m", "los", "-o", "a.pdf"), "None of the chosen runs has a metric `los`."),
        (("curves", "aaaaaaaa", "-m", "los", "-o", "a.pdf"), "did you mean `loss`?"),
        (("bars", "aaaaaaaa", "-m", "valid/ac", "-o", "a.pdf"), "did you mean `valid/acc`?"),
        (("bars", "cccccccc", "-m", "valid/acc", "-o", "a.pdf"), "None of the chosen runs has `valid/acc`."),
        (("bars", "tag = none", "-m", "valid/acc", "-o", "a.pdf"), "No run fulfils `tag = none`."),
        (("bars", "aaaaaaaa", "-m", "tag", "-o", "a.pdf"), "`tag` is no number in the run aaaaaaaa: small."),
        (("scatter", "tag = big", "-m", "train/loss", "-k", "tag", "-o", "a.pdf"), "bars --by tag` compares"),
        (("scatter", "tag = big", "-m", "train/loss", "-o", "a.pdf"), "no key varies"),
        (("heatmap", "tag = big", "-m", "train/loss", "-k", "seed", "-o", "a.pdf"), "has 2 of the keys"),
        (("confusion", "tag = big", "-m", "acc", "-o", "a.pdf"), "None of the chosen runs kept a table `acc`."),
        (("bars", "aaaaaaaa", "-m", "valid/acc", "--style", "icm", "-o", "a.pdf"), "did you mean `icml`?"),
        (("curves", "aaaaaaaa", "-m", "loss", "-o", "a.xyz"), "a.xyz is no kind of figure.\n  fix: name it a.pdf, .svg or .png"),
        (("curves", "aaaaaaaa", "-m", "loss", "-o", "mine.pdf/a.pdf"), "something else is in its place.\n  at:  mine.pdf/a.pdf\n  fix: name another place"),
        (("curves", "aaaaaaaa", "-m", "loss", "-o", "mine.pdf"), "mine.pdf was not drawn by `assay figure`"),
        (("redo", "mine.pdf"), "mine.pdf was not drawn by `assay figure`: it holds no recipe."),
        (("redo", "none.pdf"), "none.pdf cannot be read: No such file or directory."),
        (("redo", "mien.pdf"), "mien.pdf cannot be read: No such file or directory.\n  at:  mien.pdf\n  fix: did you mean"),
        (("redo", "a.pdf", "b.pdf"), "takes one file"),
        (("redo", "mine.pdf", "-m", "loss"), "takes one file: all else is in it"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_told_in_one_error_and_nothing_is_written(
    assay: Assay, project: Project, runs: list[str], arguments: Sequence[str], said: str
) -> None:
    Path("mine.pdf").write_bytes(b"%PDF-1.4 of LaTeX")
    before = files(project)

    done = assay("figure", *arguments)

    assert done.code in (1, 2) and said in done.err and done.err.count("error: ") == 1
    assert files(project) == before


def test_more_lines_than_can_be_told_apart_are_refused(assay: Assay, project: Project) -> None:
    for i in range(33):
        make_run(project, tag="many", points={"loss": [1.0]}, attempt={"seedless_hash": f"{i}"})

    done = assay("figure", "curves", "tag = many", "-m", "loss", "-o", "a.pdf")

    assert done.code == 2 and "There are 33 lines, of which 32 can be told apart." in done.err
    assert (
        assay("figure", "curves", "tag = many", "--by", "tag", "-m", "loss", "-o", "a.pdf").code
        == 0
    )


def test_a_metric_that_is_never_a_number_is_told(assay: Assay, project: Project) -> None:
    run = make_run(project, tag="nan", points={"loss": [float("nan")]})

    for kind in ("bars", "curves"):
        done = assay("figure", kind, "tag = nan", "-m", "loss", "-o", "a.pdf")

        assert done.code == 2 and "No run has a value of `loss` to draw." in done.err
        assert f"{id_of(run)}: " in done.err and "loss is nan" in done.err


def test_what_has_no_place_on_an_axis_is_left_out_with_the_reason_and_not_counted(
    assay: Assay, project: Project
) -> None:
    below = make_run(project, tag="below", config="a = 1\n", points={"loss": [-2.0, -1.0]})
    make_run(project, tag="some", config="a = 2\n", points={"loss": [1.0, float("nan"), 2.0]})

    drawn = assay("figure", "curves", "tag in (below, some)", "-m", "loss", "-o", "a.svg")
    curves, bars = (
        assay("figure", kind, "tag in (below, some)", "-m", "loss", "-o", "b.svg", "--log", "y")
        for kind in ("curves", "bars")
    )

    assert "below a=1  loss  2 points" in drawn.out and "some a=2   loss  2 points" in drawn.out
    for done in (curves, bars):
        assert done.code == 0 and "a=1" not in done.out and "a=2" in done.out
        assert f"{id_of(below)} (" in done.err and "never above 0" in done.err


def test_runs_of_a_group_without_a_mean_are_not_said_to_lack_a_number(
    assay: Assay, project: Project
) -> None:
    for tag, value in (("a", 1.0), ("a", float("nan")), ("b", 2.0)):
        make_run(project, tag=tag, config="", points={"loss": [value]})

    done = assay("figure", "bars", "tag in (a, b)", "--by", "tag", "-m", "loss", "-o", "a.svg")

    assert done.err.count("(the mean of loss is nan)") == 2


def test_damaged_recipes_are_refused(assay: Assay, project: Project, runs: list[str]) -> None:
    import base64

    assert assay("figure", "curves", *runs, "-m", "loss", "-o", "a.svg").code == 0
    text = Path("a.svg").read_bytes()
    found = re.search(rb"assay-figure:([^;]+);", text)
    assert found is not None
    foreign = base64.b64encode(zlib.compress(b'{"format": 1, "command": 3}'))
    newer = base64.b64encode(zlib.compress(b'{"format": 99}'))
    for packed, said in (
        (b"AAAA", "holds no recipe"),
        (foreign, "command is 3"),
        (newer, "format 99"),
    ):
        Path("b.svg").write_bytes(text.replace(found[1], packed))
        done = assay("figure", "redo", "b.svg")
        assert done.code in (1, 2) and said in done.err and "Traceback" not in done.err


def test_a_full_disk_leaves_the_figure_that_was_there(
    assay: Assay, project: Project, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("figure", "curves", *runs, "-m", "loss", "-o", "a.pdf")
    assert assay(*command).code == 0
    before = files(project)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        done = assay(*command, "--title", "other")

    assert done.code == 1 and "The figure cannot be written: the disk is full." in done.err
    assert files(project) == before


def test_without_matplotlib_the_extra_is_named(
    assay: Assay, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    done = assay("figure", "curves", *runs, "-m", "loss", "-o", "a.pdf")

    assert done.code == 2 and "pip install 'assay[plot]'" in done.err


def test_a_letter_that_no_font_has_is_told(assay: Assay, project: Project) -> None:
    make_run(project, tag="\U000103a0", id="aaaaaaaa", points={"loss": [1.0]})

    done = assay("figure", "curves", "aaaaaaaa", "-m", "loss", "-o", "a.svg")

    assert done.code == 2 and "No font here has a letter: Glyph 66464 " in done.err
    assert "fix: install one that has it" in done.err and not files(project)


def test_a_run_of_another_project_and_no_kind_are_refused_in_python(
    project: Project, runs: list[str], tmp_path: Path
) -> None:
    from run_folders import make_project

    other = make_run(make_project(tmp_path / "other"), points={"loss": [1.0]})

    with pytest.raises(InputError, match="of another project"):
        face.figure("curves", str(other), metrics="loss", project=project)
    with pytest.raises(InputError, match="did you mean `bars`"):
        face.figure("bar", runs[0], metrics="loss", project=project)


def test_commands_that_take_runs_take_an_expression(assay: Assay, project: Project) -> None:
    for tag, run_id in (("a", "aaaaaaa2"), ("a", "aaaaaaa3"), ("b", "bbbbbbb4")):
        make_run(project, tag=tag, id=run_id)

    archived = assay("edit", "tag = a", "--archive")
    assert len(archived.lines) == 2 and archived.code == 0
    assert len(assay("ls").lines) == 2
    assert assay("rm", "tag = b and status = finished").lines[0].startswith("removed: bbbbbbb4")
    nothing = assay("rm", "tag = c")
    assert nothing.code == 2 and "No run fulfils `tag = c`." in nothing.err
    assert "There is no run `c`" in assay("edit", "c").err
