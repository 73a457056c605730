"""A search is one plan: what its table says is what its records hold, however it was resumed."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from assay.config.tree import fit_path, get_at
from assay.query.diff import write_value
from assay.query.run import RunView
from assay.store.job_journal import JobJournal

from .conftest import Assay, wait_for

GRID = '\n[sweep]\n"optimizer.lr" = [1e-3, 1e-2, 1e-1]\n'
DRAWN = '\n[sweep]\nmode = "random"\npoints = 3\n"optimizer.lr" = { low = 1e-3, high = 1.0 }\n'


def space(toy: Path, sweep: str, **changes: str) -> Path:
    """A project whose config `c.toml` trains two steps; `width` of its net is a whole number."""
    text = (toy / "toy.toml").read_text().replace("epochs = 4", "steps = 2")
    for old, new in changes.items():
        text = text.replace(old, new)
    (toy / "c.toml").write_text(text + sweep)
    net = (toy / "net.py").read_text().replace("self, width)", "self, width: int)")
    (toy / "net.py").write_text(net)
    return toy


def views(toy: Path) -> list[RunView]:
    """The runs in the order of their start."""
    runs = [RunView(file.parent) for file in toy.glob("runs/*/run.json")]
    return sorted(runs, key=lambda view: view.file.created_ns)


def configs(toy: Path) -> list[dict[str, Any]]:
    return [view.config for view in views(toy)]


def sweep_of(toy: Path) -> str:
    (sweep,) = {view.file.newest.launch["sweep"] for view in views(toy)}
    return str(sweep)


def cut(toy: Path, trials: int) -> str:
    """Make a search as one that was stopped after its first trials; return its id."""
    sweep = sweep_of(toy)
    for view in views(toy)[trials:]:
        view.path.rename(toy / view.path.name)
    return sweep


def rows(ran: Any) -> list[dict[str, Any]]:
    assert ran.returncode == 0, ran.stderr
    points: list[dict[str, Any]] = json.loads(ran.stdout)["points"]
    return points


@pytest.mark.row("A88")
@pytest.mark.parametrize("command", ["sweep", "run"])
def test_an_axis_over_the_seed_wins_over_the_config(assay: Assay, toy: Path, command: str) -> None:
    space(toy, '\n[sweep]\nseed = [4, 5]\n"model.width" = ["${seed}"]\n')
    how = ("--json",) if command == "sweep" else ("--no-isolate",)

    ran = assay(command, "c.toml", "--device", "cpu", *how)

    assert ran.returncode == 0, ran.stderr
    assert [each["seed"] for each in configs(toy)] == [4, 5]
    assert [each["model"]["width"] for each in configs(toy)] == [4, 5]
    assert [view.file.newest.seeds["seed"] for view in views(toy)] == [4, 5]
    assert [view.file.newest.launch["point"] for view in views(toy)] == ["1/2", "2/2"]
    if command == "sweep":
        found = {each["runs"][0]["id"]: each["values"] for each in rows(ran)}
        assert found == {
            view.id: {"seed": str(seed), "model.width": str(seed)}
            for view, seed in zip(views(toy), (4, 5), strict=True)
        }
    refused = assay(command, "c.toml", "--seeds", "2")
    assert refused.returncode == 2 and "varies `seed` itself" in refused.stderr


def test_a_search_is_resumed_by_its_plan_though_its_config_has_changed(
    assay: Assay, toy: Path
) -> None:
    space(toy, GRID)
    begun = ("c.toml", "train.steps=3", "model.width=6", "--device", "cpu", "--tag", "[night]")
    assert assay("sweep", *begun).returncode == 0
    sweep = cut(toy, 1)
    space(toy, GRID.replace("1e-3, 1e-2, 1e-1", "0.5, 0.25, 0.125"))

    retagged = assay("sweep", "--resume", sweep, "--tag", "day")
    refused = assay("sweep", "c.toml", "--resume", sweep)
    ran = assay("sweep", "--resume", sweep, "--json")

    assert retagged.returncode == 2 and "KEY=VALUE (or --tag) is not as in the" in retagged.stderr
    assert refused.returncode == 2 and "the config and KEY=VALUE (or --tag) are not as" in (
        refused.stderr
    )
    assert {view.tag for view in views(toy)} == {"[night]"}
    by_run = {each["runs"][0]["id"]: each for each in rows(ran)}
    assert len(views(toy)) == 3 == len(by_run)
    for view in views(toy):
        config = view.config
        assert by_run[view.id]["values"] == {"optimizer.lr": str(config["optimizer"]["lr"])}
        assert (config["train"]["steps"], config["model"]["width"]) == (3, 6)
        score = by_run[view.id]["runs"][0]
        acc = view.summaries["valid/acc"]
        assert (score["score"], score["step"]) == (acc.max, acc.at_max)
    assert sorted(each["optimizer"]["lr"] for each in configs(toy)) == [1e-3, 1e-2, 1e-1]


def test_what_is_given_beside_a_resume_extends_the_plan_or_is_refused_by_name(
    assay: Assay, toy: Path
) -> None:
    space(toy, DRAWN)
    first = rows(assay("sweep", "c.toml", "--device", "cpu", "--json", "--trials", "2"))
    sweep = sweep_of(toy)

    for given, named in (
        (("--sampler", "tpe"), "--sampler"),
        (("--pruner", "asha"), "--pruner"),
        (("-m", "valid/loss"), "--metric"),
        (("--seeds", "2"), "--seeds"),
        (("--search-seed", "1"), "--search-seed"),
        (("optimizer.lr=0.5",), "KEY=VALUE"),
        (("--trials", "1"), "--trials"),
    ):
        ran = assay("sweep", "--resume", sweep, *given)
        assert ran.returncode == 2 and named in ran.stderr, (given, ran.stderr)
    assert len(views(toy)) == 2
    more = rows(assay("sweep", "--resume", sweep, "--trials", "5", "--json"))

    assert len(views(toy)) == 5 == len(more)
    assert all(each in more for each in first)
    unknown = assay("sweep", "--resume", "nowhere2")
    assert unknown.returncode == 2 and "There is no search `nowhere2`." in unknown.stderr


def test_a_search_at_work_keeps_its_plan_though_another_process_wants_to_extend_it(
    begun, assay: Assay, toy: Path
) -> None:
    space(toy, DRAWN, **{"points.Points": "slow.Points", "steps = 2": "steps = 300"})
    (toy / "slow.py").write_text(SLOW)
    process = begun("sweep", "c.toml", "--device", "cpu")
    wait_for(lambda: views(toy))
    plan = toy / ".assay" / "searches" / sweep_of(toy) / "plan.json"
    before = plan.read_bytes()

    refused = assay("sweep", "--resume", sweep_of(toy), "--trials", "9")
    process.kill()
    process.communicate()

    assert refused.returncode == 2 and "is at work already" in refused.stderr
    assert plan.read_bytes() == before


def test_several_metrics_of_a_run_are_compared_at_one_step(assay: Assay, toy: Path) -> None:
    every = '[evaluate]\nevery = "1 steps"\n'
    space(toy, every + GRID, **{"steps = 2": "steps = 9", 'mode = "max"': 'mode = "max" '})
    asked = ("-m", "valid/acc:max", "-m", "valid/loss:min")

    ran = assay("sweep", "c.toml", "--device", "cpu", *asked, "--json")

    assert ran.returncode == 0, ran.stderr
    front = json.loads(ran.stdout)["front"]
    assert front
    for each in front:
        view = next(view for view in views(toy) if [view.id] == each["runs"])
        best = view.best
        assert best is not None and best.metric == "valid/acc"
        at = {name: dict(zip(*_curve(view, name), strict=True)) for name in each["values"]}
        assert each["values"] == {name: curve[best.step] for name, curve in at.items()}
    last = assay("sweep", "c.toml", "--device", "cpu", "-m", "valid/loss:min:last", "--json")
    for row in rows(last):
        run = RunView(next((toy / "runs").glob(f"*{row['runs'][0]['id']}*")))
        loss = run.summaries["valid/loss"]
        assert (row["mean"], row["runs"][0]["step"]) == (loss.last, loss.step)


def _curve(view: RunView, name: str) -> tuple[list[int], list[float]]:
    series = view.metric(name)
    return series.steps.tolist(), series.values.tolist()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("-m", "valid/f1:max"), "`valid/f1` is never measured"),
        (("-m", "vaild/acc"), "did you mean `valid/acc`?"),
        (("-m", "valid/acc:most"), "`--metric valid/acc:most` is no metric"),
        (("sweep.model.widht=[3,4]",), "did you mean `width`?"),
        (('sweep.model.width=["x", 4]',), "width"),
        (
            ("sweep.mode=random", "sweep.points=2", "sweep.model.width={low=1.0,high=8.0}"),
            "width",
        ),
        (
            (
                "--sampler",
                "tpe",
                "sweep.mode=random",
                "sweep.points=2",
                'sweep.model.width=["x",4]',
            ),
            "width",
        ),
        (("--sampler", "cma-es", "-m", "valid/acc", "-m", "valid/loss"), "one metric"),
        (("--pruner", "asha"), "--pruner asha needs an adaptive sampler."),
        (("--variant", "big"), "There is no variant `big`"),
        (("--variant", "all"), "A search is of one variant"),
        (("optimizer.lr=0.1",), "has no sweep"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused_before_anything_trains(
    assay: Assay, toy: Path, given: tuple[str, ...], said: str
) -> None:
    space(toy, GRID + '[variants.a]\n"model.width" = 3\n[variants.b]\n"model.width" = 4\n')

    ran = assay("sweep", "c.toml", *given)

    assert ran.returncode == 2 and said in ran.stderr, ran.stderr
    assert not list(toy.glob("runs/*/run.json")) and not list(toy.glob(".assay/searches/*"))


AXES = """
[sweep]
"model.sizes[0]" = [4, 5]
"model.kind" = ["${seed}", 1, true, 0, false]
"""


@pytest.mark.parametrize("sampler", [(), ("--sampler", "tpe", "--trials", "30")])
def test_values_in_lists_references_and_truths_are_told_apart(
    assay: Assay, toy: Path, sampler: tuple[str, ...]
) -> None:
    """Ten points: a sampler that proposes one again has it measured once."""
    space(toy, AXES, **{"width = 8": 'sizes = [8]\nkind = "x"'})
    (toy / "net.py").write_text(
        (toy / "net.py")
        .read_text()
        .replace("width: int)", "sizes, kind)", 1)
        .replace("super().__init__()", "super().__init__(); width = sizes[0]")
    )
    ran = assay("sweep", "c.toml", "--device", "cpu", "--json", *sampler)
    points = rows(ran)
    told = {each["runs"][0]["id"]: each["values"] for each in points}
    sweep = cut(toy, 1)
    again = rows(assay("sweep", "--resume", sweep, "--json"))

    models = [view.config["model"] for view in views(toy)]
    assert all(type(each["kind"]) in (int, bool) for each in models)
    assert len({(each["sizes"][0], repr(each["kind"])) for each in models}) == len(models)
    assert all(len(each["runs"]) == 1 for each in again)
    for view, model in zip(views(toy), models, strict=True):
        values = next(each["values"] for each in again if each["runs"][0]["id"] == view.id)
        assert values == {
            "model.sizes.0": str(model["sizes"][0]),
            "model.kind": json.dumps(model["kind"]),
        }
    assert sorted(map(str, told.values())) == sorted(str(each["values"]) for each in again)
    if sampler:
        assert "again" in ran.stderr and len(models) <= 10
    else:
        assert len(models) == 10


POOL: dict[str, list[str]] = {
    "model.options.a.b": ["1", "2.5", "-0.0", '"1"', "true", "[1, 2]", '{ kind = "x" }'],
    "model.options.list[1]": ["0", "false", '"false"', '"a b"', "1e-7"],
    "model.options.text": ['"${seed}"', '"on"', '"${model.options.a.b}"', '"seed ${seed}"'],
    "model.options.yes": ["true", "false", "1", "0"],
    "optimizer.lr": ["0.1", "0.01", "1e-3"],
    "model.width": ["4", "5"],
    "seed": ["3", "4"],
}
"""Keys with values that are easily taken for each other."""


def drawn_sweep(draw: random.Random) -> str:
    """A grid, a zip or random draws over some of the keys, six points at most."""
    keys = draw.sample(sorted(POOL), 2)
    mode = draw.choice(["grid", "zip", "random"])
    axes = {key: draw.sample(POOL[key], draw.choice([2, len(POOL[key])])) for key in keys}
    if mode == "grid":
        axes = {key: values[: 3 - i] for i, (key, values) in enumerate(axes.items())}
    if mode == "zip":
        fewest = min(map(len, axes.values()))
        axes = {key: values[:fewest] for key, values in axes.items()}
    lines = [f'"{key}" = [{", ".join(values)}]' for key, values in axes.items()]
    lines += [f'mode = "{mode}"', *(["points = 4"] if mode == "random" else [])]
    return "\n".join(["\n[sweep]", *lines])


OPTIONS = "width = 8\noptions = { a = { b = 0 }, list = [7, 7], text = '', yes = 0 }"


@pytest.mark.parametrize(
    "number", [0, 1, *(pytest.param(i, marks=pytest.mark.thorough) for i in range(2, 14))]
)
def test_what_a_table_says_is_what_the_records_hold_wherever_a_search_is_resumed(
    assay: Assay, toy: Path, number: int
) -> None:
    sweep = drawn_sweep(random.Random(number))
    space(toy, sweep, **{"width = 8": OPTIONS})
    net = (toy / "net.py").read_text().replace("width: int)", "width: int, options)")
    (toy / "net.py").write_text(net)
    how = ("c.toml", "--device", "cpu", "--json")

    whole = rows(assay("sweep", *how))

    search = sweep_of(toy)
    check_rows(toy, whole)
    expected = sorted((str(each["values"]), each["mean"]) for each in whole)
    for left in range(len(whole)):
        cut(toy, left)
        space(toy, '\n[sweep]\n"optimizer.lr" = [0.5]', **{"width = 8": OPTIONS})
        again = rows(assay("sweep", "--resume", search, "--json"))
        check_rows(toy, again)
        assert sorted((str(each["values"]), each["mean"]) for each in again) == expected
    space(toy, sweep, **{"width = 8": OPTIONS})
    cut(toy, 0)
    ran = assay("run", "c.toml", "--device", "cpu", "--no-isolate")
    assert ran.returncode == 0, ran.stderr
    trained = sorted(str(each) for each in kept_configs(toy, whole))
    assert sorted(str(view.config) for view in views(toy)) == trained
    for view in views(toy):
        view.path.rename(toy / view.path.name)
    check_queue(assay, toy, whole)
    assert sorted(str(view.config) for view in views(toy)) == trained


def check_queue(assay: Assay, toy: Path, whole: list[dict[str, Any]]) -> None:
    """The jobs of a sweep are its points in order, and each says what its record holds."""
    queue = {"ASSAY_QUEUE_DIR": str(toy / "queue")}
    how = ("--device", "cpu", "--queue", "--no-rehearse")
    added = assay("run", "c.toml", *how, **queue)
    assert added.returncode == 0, added.stderr
    worked = assay("queue", "work", "--until-empty", **queue)
    assert worked.returncode == 0, worked.stderr
    by_id = {view.id: view for view in views(toy)}
    with JobJournal(toy / "queue") as journal:
        jobs = journal.jobs()
    launches = [by_id[job.status.run].file.newest.launch for job in jobs]
    assert [each["point"] for each in launches] == [
        f"{i + 1}/{len(jobs)}" for i in range(len(jobs))
    ]
    assert len({each["sweep"] for each in launches}) == 1
    keys = list(whole[0]["values"])
    for job in jobs:
        tree = by_id[job.status.run].config_tree
        held = [
            f"{key}={write_value(get_at(tree, fit_path(tree, key.split('.'))))}" for key in keys
        ]
        assert job.spec.title == "  ".join(["toy", *held])


def check_rows(toy: Path, found: list[dict[str, Any]]) -> None:
    """Each row has the values and the score that its record holds."""
    by_id = {view.id: view for view in views(toy)}
    assert sorted(by_id) == sorted(run["id"] for each in found for run in each["runs"])
    for each in found:
        (run,) = each["runs"]
        view = by_id[run["id"]]
        for key, text in each["values"].items():
            assert text == write_value(
                get_at(view.config_tree, fit_path(view.config_tree, key.split(".")))
            )
        assert run["score"] == view.summaries["valid/acc"].max


def kept_configs(toy: Path, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The configs of runs that were moved away."""
    kept = {run["id"] for each in found for run in each["runs"]}
    runs = [RunView(file.parent) for file in toy.glob("*/run.json")]
    return [view.config for view in runs if view.id in kept]


SLOW = """
import time
import points

class Points(points.Points):
    def __getitem__(self, i):
        time.sleep(0.01)
        return super().__getitem__(i)
"""


@pytest.mark.parametrize("command", ["sweep", "run"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_runs_at_work_save_at_a_signal_and_are_told_with_what_resumes_them(
    begun, toy: Path, number: signal.Signals, command: str
) -> None:
    space(toy, GRID, **{"points.Points": "slow.Points", "steps = 2": "steps = 300"})
    (toy / "slow.py").write_text(SLOW)
    queue = {"ASSAY_QUEUE_DIR": str(toy / "queue")}
    how = ("--parallel", "2") if command == "sweep" else ("--per-device", "2")
    process = begun(command, "c.toml", *how, "--device", "cpu", **queue)
    wait_for(lambda: len([view for view in views(toy) if view.last_step > 3]) == 2)

    os.kill(process.pid, number)
    said = process.communicate()[1]

    assert process.returncode == 128 + number
    assert [view.status for view in views(toy)] == ["stopped"] * 2
    assert all(view.checkpoints for view in views(toy))
    assert [each.name for each in (toy / "queue" / "launchers").iterdir()] == ["lock"]
    if command == "sweep":
        assert f"resume with: assay sweep --resume {sweep_of(toy)}" in said
    else:
        table = said[said.index("did not finish:") :].splitlines()
        for view in views(toy):
            assert f"resume with: assay resume {view.id}" in said
            assert any(line.split()[:2] == [view.id, "stopped"] for line in table)
        assert len([line for line in table if "not run" in line]) == 1


def test_a_run_of_a_search_that_somebody_kills_is_resumed_at_once(begun, toy: Path) -> None:
    space(toy, GRID, **{"points.Points": "slow.Points", "steps = 2": "steps = 30"})
    (toy / "slow.py").write_text(SLOW)
    queue = {"ASSAY_QUEUE_DIR": str(toy / "queue")}
    process = begun("sweep", "c.toml", "--parallel", "2", "--device", "cpu", **queue)
    wait_for(lambda: [view for view in views(toy) if view.checkpoints])
    killed = next(view for view in views(toy) if view.checkpoints)

    os.kill(killed.file.newest.pid, signal.SIGKILL)
    said = process.communicate()[1]

    assert process.returncode == 0, said
    assert "is begun again" in said
    assert [view.status for view in views(toy)] == ["finished"] * 3
    assert len(RunView(killed.path).file.attempts) == 2


def test_nothing_temporary_stays_of_a_search_that_was_killed(
    begun, assay: Assay, toy: Path
) -> None:
    space(toy, GRID, **{"points.Points": "slow.Points", "steps = 2": "steps = 300"})
    (toy / "slow.py").write_text(SLOW)
    queue = {"ASSAY_QUEUE_DIR": str(toy / "queue")}
    process = begun("sweep", "c.toml", "--parallel", "2", "--device", "cpu", **queue)
    wait_for(lambda: len([view for view in views(toy) if view.last_step > 3]) == 2)
    process.kill()
    process.communicate()
    wait_for(lambda: {view.status for view in views(toy)} == {"killed"})
    assert len(list((toy / "queue" / "launchers").iterdir())) == 2

    ran = assay("run", "toy.toml", "train.epochs=1", "--isolate", "--device", "cpu", **queue)

    assert ran.returncode == 0, ran.stderr
    assert [each.name for each in (toy / "queue" / "launchers").iterdir()] == ["lock"]
