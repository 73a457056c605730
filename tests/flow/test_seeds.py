"""The snippets that the texts before assay show run as they stand in `examples/seeds`, and print
what they should."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from assay.config import get_at, load, plain
from assay.core import run_file
from assay.core.event_log import Evaluated, read_events
from assay.query.run import RunView
from assay.store.blobs import FileBlobs
from assay.store.code_trees import read_tree
from assay.store.file_changes import files_left
from assay.store.layout import open_project, run_folders
from assay.store.series import read_series
from event_reader import read
from examples import EXAMPLES, SRC
from warm_python import Run

SEEDS = EXAMPLES / "seeds"

BUILT_IN = (
    "('epoch', {epoch}),\n ('eidx', 1),\n ('idx', 0),\n ('global_step', 0),\n ('device', 'cpu')"
)
OF_THE_CLASS = (
    f"Params[{BUILT_IN.format(epoch=10)},\n ('batch_size', 50),\n ('topk', (1, 2, 3, 4)),\n"
    " ('optim', {'lr': 0.009, 'moment': 0.9})]\n"
)
FORMAT = r"{date},\d{{3}} - {name} - {level} - {text}"
DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
PLUGINS = """\
plugins = [
    { type = "alchemy.plugins.BasicSetup" },
    { type = "alchemy.plugins.FileLogger", log_dir = "records/weixin/tagger/train", subdirs = ["detail_log"] },
    { type = "alchemy.plugins.Backup", paths = ["alchemy", "src"] },
    { type = "alchemy.plugins.TensorboardLogger" },
    { type = "alchemy.plugins.Seeding", seed = 0, use_deterministic_algorithms = true },
    { type = "alchemy.plugins.DisplayRunningInfo" },
]
"""
PIPES = """\
pipes = [
    { type = "alchemy.pipeline.lst.SequenceWrapper", datapipe = ["/home/wsh/data/datasets/ace04/train.jsonl"] },
    { type = "src.task.ner.datapipe.JsonLOpener" },
    { type = "alchemy.pipeline.itr.SplitByWorker" },
    { type = "alchemy.pipeline.itr.Shuffle" },
    { type = "src.task.ner.datapipe.ParseJsonDoc" },
    { type = "src.task.ner.datapipe.PruneLongText" },
    { type = "src.task.ner.datapipe.Sample2Encoding" },
    { type = "alchemy.pipeline.itr.Batch", batch_size = 8 },
]
"""


PLUGIN_NAMES = [
    "BasicSetup",
    "FileLogger",
    "Backup",
    "TensorboardLogger",
    "Seeding",
    "DisplayRunningInfo",
]
PIPE_NAMES = ["SequenceWrapper", "JsonLOpener", "SplitByWorker", "Shuffle"]
PIPE_NAMES += ["ParseJsonDoc", "PruneLongText", "Sample2Encoding", "Batch"]


@pytest.fixture
def run(warm: Run) -> Run:
    """Runs a snippet in a process of its own that sees no GPU, to a good end."""
    return lambda script, *arguments, folder: well(warm, [str(SEEDS / script), *arguments], folder)


@pytest.fixture
def assay(warm: Run) -> Run:
    """The same for a command of assay."""
    return lambda *arguments, folder, **more: well(
        warm, ["-m", "assay", *arguments], folder, **more
    )


def well(
    run: Run, arguments: list[str], folder: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done: subprocess.CompletedProcess[str] = run(
        arguments, folder=folder, variables={**os.environ, **own, **more}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.row("S-C1", "C02")
def test_the_basic_use_of_parameters(run, tmp_path: Path) -> None:
    done = run("params_basic.py", folder=tmp_path)

    assert done.stdout == f"Params[{BUILT_IN.format(epoch=400)},\n ('batch_size', 25)]\n"
    assert done.stderr == ""


@pytest.mark.row("S-C2", "C05", "C06")
def test_parameters_with_a_class_of_their_own(run, tmp_path: Path) -> None:
    done = run("params_class.py", folder=tmp_path)

    assert done.stdout == f"Base{OF_THE_CLASS}Assigned{OF_THE_CLASS}"
    assert done.stderr == ""


@pytest.mark.row("S-C3", "C07")
def test_parameters_from_the_command_line(run, tmp_path: Path) -> None:
    done = run("params_command_line.py", "--epoch=400", "--optim.lr=0.01", folder=tmp_path)

    assert done.stdout == f"Params[{BUILT_IN.format(epoch=400)},\n ('optim', {{'lr': 0.01}})]\n"
    assert "UserWarning: unknown parameter `optim`: it is added" in done.stderr


@pytest.mark.row("S-C4", "C16", "C17")
def test_measured_values_and_their_forms(run, tmp_path: Path) -> None:
    values = torch.rand(
        20, generator=torch.Generator().manual_seed(0)
    )  # the snippet draws 1, 1, 2 and 16

    first, second = run("meter.py", folder=tmp_path).stdout.splitlines()

    assert re.fullmatch(
        r"@a=1  @b=2  @c=0\.\d{4}  @c1=0\.\d{4}  @c2=tensor\(\[0\.\d{4}, 0\.\d{4}\]\)"
        r"  @c3=tensor\(\[\[(0\.\d{4}, ){3}0\.\d{4}\],\.\.\.",
        first,
    )
    assert first.startswith(f"@a=1  @b=2  @c={values[0]:.4f}  @c1=")
    assert second == "@a=23.60%"


@pytest.mark.row("S-C5", "C20")
def test_means_over_what_was_measured(run, tmp_path: Path) -> None:
    lines = run("meter_average.py", folder=tmp_path).stdout.splitlines()

    form = re.compile(
        r"@a=1  @b=2  @c=\d+\.\d\d%\((?P<c>\d+\.\d\d)%\)  @c1=0\.\d{4}\((?P<c1>0\.\d{4})\)"
        r"  @c2=tensor\(\[0\.\d{4}, 0\.\d{4}\]\)  @c3=tensor\(\[\[(0\.\d{4}, ){3}0\.\d{4}\],\.\.\."
        r"  @d=\[4\]  @e=\{5: '6'\}"
    )
    assert len(lines) == 5
    found = [form.fullmatch(line) for line in lines]
    assert all(found)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drawn = [[torch.rand(n).double().mean() for n in (1, 1, 2, 16)] for _ in range(500)]
    c, c1, *_ = torch.tensor(drawn, dtype=torch.float64).mean(dim=0).tolist()
    assert found[-1] is not None
    assert (found[-1]["c"], found[-1]["c1"]) == (f"{100 * c:.2f}", f"{c1:.4f}")


@pytest.mark.row("S-C6", "C29")
def test_the_state_of_the_generators_put_back_gives_the_same_parameters(
    run, tmp_path: Path
) -> None:
    printed = run("random_state.py", folder=tmp_path).stdout

    first, second = printed[: len(printed) // 2], printed[len(printed) // 2 :]
    assert first == second
    assert first.count("Parameter containing") == 2


@pytest.mark.row("S-C7", "C32", "C33")
def test_keypoints_checkpoints_and_models_grow_as_they_should(run, tmp_path: Path) -> None:
    lines = run("saver.py", folder=tmp_path).stdout.splitlines()

    assert [line.count("Checkpoint(") for line in lines] == [
        *range(1, 11),
        1,
        2,
        *[3] * 8,
        *range(1, 11),
    ]
    names = [f"Checkpoint(step-{i:09d}, {{'b': {i}}})" for i in (7, 8, 9)]
    assert lines[19] == f"[{', '.join(names)}]"


@pytest.mark.row("S-B5", "B27")
def test_a_dictionary_that_holds_all_comes_back_from_both_kinds_of_files(
    run, tmp_path: Path
) -> None:
    lines = run("checkpoint_dict.py", folder=tmp_path).stdout.splitlines()

    assert lines == ["True {1.0} {'epoch': 7, 'best_loss': 0.25, 'alpha': 0.25, 'gamma': 2.0}"] * 2
    (name,) = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert re.fullmatch(r"m-\d{8}-\d{6}-0\.2500", name)


@pytest.mark.row("A04")
def test_blocks_of_plugins_and_pipes_load_as_they_stand() -> None:
    text = (SEEDS / "tagger" / "tagger.toml").read_text(encoding="utf-8")
    plugins = PLUGINS.replace("alchemy.", "")
    pipes = PIPES.replace("alchemy.pipeline.lst.", "assay.engine.data.map_style.")
    pipes = pipes.replace("alchemy.pipeline.itr.", "assay.engine.data.streams.")
    pipes = re.sub(r'"(alchemy|src\.task\.ner)\.', '"', pipes).replace(
        "/home/wsh/data/datasets/ace04/", ""
    )
    assert plugins in text and pipes in text

    root = load(SEEDS / "tagger" / "tagger.toml").root

    found = plain(get_at(root, ("plugins",)) or root)
    assert [each["type"].split(".")[-1] for each in found] == PLUGIN_NAMES
    assert found[4] == {"type": "plugins.Seeding", "seed": 0, "use_deterministic_algorithms": True}
    found = plain(get_at(root, ("data", "train", "source", "pipes")) or root)
    assert [each["type"].split(".")[-1] for each in found] == PIPE_NAMES


@pytest.mark.row("S-A1", "S-A2", "A64")
def test_plugins_and_pipes_are_checked_built_and_entered_in_order(
    run, assay, tmp_path: Path
) -> None:
    done = run("tagger/show.py", folder=tmp_path)
    for command in (["check"], ["run"], ["run", "--tag", "split", "data.train.workers=3"]):
        assay(*command, str(SEEDS / "tagger" / "tagger.toml"), folder=tmp_path)

    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:6]] == [["enter", name] for name in PLUGIN_NAMES]
    assert lines[1] == "enter FileLogger records/weixin/tagger/train ['detail_log']"
    assert lines[6:9] == [
        "0 workers: batches of 8 8 8 8 8 4",
        "3 workers: batches of 8 8 8 7 7 6",
        "44 samples, the same",
    ]
    assert [line.split() for line in lines[9:]] == [
        ["leave", name] for name in reversed(PLUGIN_NAMES)
    ]

    found = {run_file.read(each.path).tag: each for each in run_folders(open_project(tmp_path))}
    assert read_series(found["split"].metrics)["train/loss"].steps.tolist() == list(range(1, 13))
    folder = found["tagger"]
    assert {"# tagger"} <= set(folder.readme.read_text(encoding="utf-8").splitlines())
    assert "12 steps in" in folder.log.read_text(encoding="utf-8")
    assert (folder.config_dir / "tagger.toml").read_bytes() == (
        SEEDS / "tagger" / "tagger.toml"
    ).read_bytes()
    code = run_file.read(folder.path).newest.code
    backup = read_tree(FileBlobs(open_project(tmp_path).code_dir), code.snapshot)
    assert f"{SEEDS.resolve() / 'tagger'}/plugins.py" in backup
    losses = read(folder.path / "board").scalars["train/loss"]
    curve = read_series(folder.metrics)["train/loss"]
    assert [step for step, _ in losses] == curve.steps.tolist() == list(range(1, 13))


@pytest.mark.row("E10")
def test_a_config_in_python_with_its_imports_and_objects_of_omegaconf(run, tmp_path: Path) -> None:
    done = run("mnist/show.py", folder=tmp_path)

    assert done.stdout.splitlines() == [
        "Linear(in_features=512, out_features=10, bias=True)",
        "Linear(in_features=512, out_features=10, bias=True)",
        "['losses'] [64]",
        "['prediction_scores'] (32, 10)",
        "0 20 128 10 1234",
        "Section(enabled=True)",
    ]
    file = SEEDS / "mnist" / "config.py"
    config = load(file)
    assert {"model", "dataloader", "train"} <= config.root.items.keys()
    assert (
        plain(get_at(config.root, ("train", "seed")) or config.root) == 1234
    )  # of the imported defaults
    assert plain(get_at(config.root, ("evaluate", "every")) or config.root) == "100 steps"
    lines = file.read_text(encoding="utf-8").splitlines()
    told = {note.key: lines[note.origin.line - 1].strip() for note in config.notes}
    for key, text in {
        "eval_period": "eval_period=100,",
        "topk": "topk=(1,),",
        "recompute_grad": "recompute_grad=",
    }.items():
        assert told[f"train.{key}"].startswith(text)


def line_of(name: str, level: str, text: str) -> str:
    return FORMAT.format(date=DATE, name=name, level=level, text=text)


@pytest.mark.row("S-B1", "B15")
def test_logging_in_four_ways(run, tmp_path: Path) -> None:
    errors = run("logging_four_ways.py", folder=tmp_path).stderr.splitlines()

    assert re.fullmatch(line_of("one", "INFO", "to the console"), errors[0])
    assert re.fullmatch(
        line_of("two", "INFO", "to the file"), (tmp_path / "Alibaba.log").read_text().rstrip()
    )
    assert re.fullmatch(
        r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d - three - WARNING - with another date", errors[2]
    )
    result = (tmp_path / "result.log").read_text().splitlines()
    assert errors[3:] == result
    expected = [
        ("INFO", "Start"),
        ("WARNING", "Something maybe fail."),
        ("ERROR", "Faild to get result"),
    ]
    for line, (level, text) in zip(result, expected, strict=False):
        assert re.fullmatch(line_of("four", level, text), line)
    assert result[3] == "Traceback (most recent call last):"
    assert result[-2] == "ZeroDivisionError: division by zero"
    assert re.fullmatch(line_of("four", "INFO", "Finished"), result[-1])


@pytest.mark.row("S-C8", "C41")
def test_a_run_around_any_script(run, tmp_path: Path) -> None:
    def stored() -> set[str]:
        return set(FileBlobs(tmp_path / ".assay" / "code").digests())

    first = run("experiment.py", folder=tmp_path)
    before = stored()
    run("experiment.py", folder=tmp_path)

    assert len(re.findall(r"INFO \d$", first.stderr, re.MULTILINE)) == 10
    assert stored() == before
    for folder in run_folders(open_project(tmp_path)):
        file = run_file.read(folder.path)
        assert (file.status, file.tag) == ("finished", "exp")
        (digest,) = file.newest.code.keys.values()
        assert (
            FileBlobs(tmp_path / ".assay" / "code")
            .get(digest)
            .startswith(b"@run.keycode()\ndef train():")
        )
        left = files_left(folder)
        assert "log/log.log" in left
        kept = {path.split("/")[1] for path in left if path.startswith("save/")}
        assert kept == {f"step-{step:09}" for step in (47, 48, 49)}
        for path, change in left.items():
            data = (folder.path / "files" / path).read_bytes()
            assert (change.size_bytes, change.sha256) == (
                len(data),
                hashlib.sha256(data).hexdigest(),
            )


@pytest.mark.row("S-C9", "C52")
def test_what_was_recorded_is_looked_at_and_variables_come_back(run, tmp_path: Path) -> None:
    run("experiment.py", folder=tmp_path)
    (folder,) = run_folders(open_project(tmp_path))
    made = run_file.read(folder.path)

    listed, _, count, *rest = run("viewer.py", folder=tmp_path).stdout.splitlines()

    assert (listed.split(), count) == (["id", "tag", "status"], "1")
    *viewed, given, both, file = rest
    assert ast.literal_eval(viewed[0]) == [(made.id, "log/log.log")]
    sources, (tag, status, command) = (
        ast.literal_eval(each) for each in _values("\n".join(viewed[1:]))
    )
    assert sources["__main__.train"].startswith("@run.keycode()\ndef train():")
    assert (tag, status) == ("exp", "finished") and command[-1].endswith("experiment.py")
    assert given == "/path/to/all/datasets"
    assert ast.literal_eval(both) == {"datasets": given, "a": 1}
    assert given in Path(file).read_text(encoding="utf-8")


def _values(text: str) -> list[str]:
    """The two values that `pprint` has written one behind the other."""
    first, brace, second = text.partition("}\n")
    return [first + brace, second]


@pytest.mark.row("S-B6", "B33")
def test_a_loop_by_hand_is_seen_in_tensorboard_and_in_the_terminal(
    run, assay, tmp_path: Path
) -> None:
    printed = run("board.py", folder=tmp_path).stdout
    run("history.py", folder=tmp_path)

    assert re.findall(r"^epoch: (\d)|^global_step:(\d+), loss:\d\.\d$", printed, re.MULTILINE) == [
        ("0", ""), ("1", ""), ("", "10"), ("2", ""), ("", "20"), ("3", ""), ("", "30"), ("4", ""), ("", "40")
    ]  # fmt: skip
    by_tag = {
        run_file.read(folder.path).tag: folder for folder in run_folders(open_project(tmp_path))
    }
    events, curves = read(by_tag["board"].path / "board"), read_series(by_tag["board"].metrics)
    for name in ("train loss", "test accuary"):
        steps, values = zip(*events.scalars[name], strict=True)
        assert steps == (10, 20, 30, 40) and np.allclose(values, curves[name].values)
    image = [
        (step, height, width) for step, height, width, _ in events.images["train image sample"]
    ]
    assert image == [(step, 11 * 30 + 2, 12 * 30 + 2) for step in (10, 20, 30, 40)]
    sizes = {"0.weight": 36, "0.bias": 4, "3.weight": 27040, "3.bias": 10}
    assert {name: rows[-1][1]["num"] for name, rows in events.histograms.items()} == sizes
    view = RunView(by_tag["history"])
    assert list(view.history("train_loss", "test_acc")) == [(1, 10), (2, 20), (3, 30), (4, 40)]
    shown = assay("live", view.id, "--image", "hidden_weight", folder=tmp_path).stdout.splitlines()
    assert shown[0].startswith("history") and "epoch 5  step 40" in shown[0]
    assert "train_loss" in shown and any(line.startswith("test_acc") for line in shown)
    weight = shown[shown.index("hidden_weight  step 40") + 1 :]
    assert (
        len(weight) == 5
        and all(len(line) == 16 for line in weight)
        and len(set("".join(weight))) > 2
    )


@pytest.mark.row("S-A4", "A86")
def test_a_run_is_trained_and_tested_in_two_linked_records(run, tmp_path: Path) -> None:
    printed = run("train_and_test/train_and_test.py", folder=tmp_path).stdout

    assert printed == "finished test/acc test/loss\n"
    by_kind = {
        run_file.read(folder.path).kind: folder for folder in run_folders(open_project(tmp_path))
    }
    train, test = (RunView(by_kind[kind]) for kind in ("train", "test"))
    assert train.best is not None and test.file.parent == f"{train.id}@{train.best.checkpoint}"
    assert (train.tag, test.tag, train.desc, test.desc) == (
        "points",
        "points-test",
        "a first try",
        "a first try",
    )
    told = [event.fact for event in train.events if isinstance(event.fact, Evaluated)]
    (then,) = [fact for fact in told if (fact.split, fact.step) == ("test", train.best.step)]
    (now,) = [event.fact for event in test.events if isinstance(event.fact, Evaluated)]
    assert (
        dict(now.metrics) == dict(then.metrics)
        and len({fact.metrics["test/acc"] for fact in told[1::2]}) > 1
    )
    assert train.artifacts and not test.artifacts


ALONE = {
    "from assay import Meter\nm = Meter(); m.loss = 0.5; print(m)": {"record"},
    "from assay import Params\np = Params(); p.lr = 0.1; print(p)": {"config"},
    "from assay import Logger\nLogger().info('alone')": {"record"},
    "import assay\nwith assay.start() as run: run.log({'loss': 0.5}, 1)": {
        "script",
        "record",
        "config",
        "store",
    },
    "from assay.config import load\nopen('a.toml', 'w').write('lr = 0.1'); load('a.toml')": {
        "config"
    },
    "from assay.engine import Saver, Where\nSaver('saved').save({'a': {'b': 1}}, Where(step=1))": {
        "engine"
    },
    "from assay.build import Context\nwith Context().use(): pass": {"build", "config"},
    "from assay.interop.event_file import EventFile\nfrom pathlib import Path\n"
    "f = EventFile(Path('b')); f.scalars([('a', 1.0)], 1); f.close()": {"interop"},
    "from assay.store.series import read_series\nprint(read_series('none.bin'))": {"store"},
    "from assay.query.find import find_run\nfrom assay import start\nstart().finish(); print(find_run('last').id)": {
        "query",
        "store",
        "config",
        "record",
        "script",
    },
}


@pytest.mark.row("C01")
@pytest.mark.parametrize("text", ALONE)
def test_each_part_works_alone_with_nothing_else_of_the_framework(
    text: str, tmp_path: Path
) -> None:
    rooms = "{name.split('.')[1] for name in sys.modules if name.startswith('assay.')}"
    (tmp_path / "alone.py").write_text(
        f"{text}\nimport sys\nprint('rooms', *sorted({rooms}))\nprint('torch', 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "alone.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    *_, loaded, torch_line = done.stdout.splitlines()
    assert set(loaded.split()[1:]) <= {"core", *ALONE[text]}
    assert torch_line == f"torch {'engine' in ALONE[text]}"


@pytest.mark.row("S-D2", "D12", "D18")
def test_a_process_without_a_base_class_is_called_and_learns_as_in_the_loops_of_the_text(
    run, tmp_path: Path
) -> None:
    lines = run("process.py", folder=tmp_path).stdout.splitlines()

    assert lines == [
        " ".join(["train(True)", *["training_step", "update"] * 4]),
        "the calls are those of the loop: True",
        "the weights are those of the loop: True",
        " ".join(["train(False)", *["validation_step"] * 4]),
        "the calls are those of the loop: True",
        "the loss is that of the loop: True 32",
    ]


@pytest.mark.row("D19", "D20")
def test_a_state_has_the_fields_and_defaults_of_the_text(run, tmp_path: Path) -> None:
    lines = run("state.py", folder=tmp_path).stdout.splitlines()

    assert lines == [
        *(
            "epoch = 0",
            "max_epochs = None",
            "local_iteration = 0",
            "global_iteration = 0",
            "epoch_length = None",
        ),
        *(
            "max_iterations = None",
            "batch = None",
            "output = None",
            "dataloader = None",
            "metrics = {}",
        ),
        "2 7 {'valid': {'acc': 0.5, 'loss': [1.0, 2.0]}} None None None",
    ]


@pytest.mark.row("E17", "E19")
def test_a_model_with_its_loss_inside_gives_losses_in_training_and_scores_in_evaluation(
    run, tmp_path: Path
) -> None:
    lines = run("mnist/train.py", folder=tmp_path).stdout.splitlines()

    assert lines == [
        "train: {'losses': ()}",
        "eval: {'prediction_scores': (32, 10)}",
        "4 steps, ['test/Acc@1']",
    ]


@pytest.mark.slow
@pytest.mark.row("E58")
def test_the_whole_project_of_the_tutorial_runs_to_its_end_and_learns_the_digits(
    assay, tmp_path: Path
) -> None:
    (tmp_path / ".assay").mkdir()
    project = str(SEEDS / "mnist" / "project.py")
    ran = assay("run", project, "--device", "cpu", folder=tmp_path, ASSAY_RUNS_DIR=str(tmp_path))

    assert "20 epochs x 32 (4,000 samples / 128, rounded up) = 640 steps" in ran.stderr
    (run_path,) = tmp_path.glob("*-mnist")
    curves = read_series(run_path / "metrics.bin")
    assert list(curves["test/Acc@1"].steps) == [*range(100, 601, 100), 640]
    assert float(curves["test/Acc@1"].values[-1]) > 0.9
    shown = re.findall(r"^epoch .*step +(\d+) ", ran.stderr, re.MULTILINE)
    assert [int(step) for step in shown] == list(range(10, 641, 10))
    best = run_file.read(run_path).best
    assert best is not None and best.metric == "test/Acc@1"


@pytest.mark.row("S-A5")
def test_a_task_that_gives_a_collate_with_its_data_is_asked_for_every_batch(
    assay, tmp_path: Path
) -> None:
    config = str(
        SEEDS / "collate" / "train.toml"
    )  # lists of different length make no batch without its collate
    ran = assay("run", config, "--device", "cpu", folder=tmp_path, ASSAY_RUNS_DIR=str(tmp_path))

    assert "step     5  loss " in ran.stderr and "valid/loss" in ran.stderr


@pytest.mark.row("S-B2")
def test_features_are_made_once_by_two_processes(run, tmp_path: Path) -> None:
    lines = run("features.py", folder=tmp_path).stdout.splitlines()

    assert [line.rstrip("01") for line in lines] == [
        "Creating features from dataset file at text.txt by ",
        "features [3, 1, 4]",
        "features [3, 1, 4]",
    ]


@pytest.mark.row("S-B3")
def test_two_processes_train_what_one_does_by_one_option(run, tmp_path: Path) -> None:
    found = []
    for count in ("1", "2"):
        (tmp_path / count).mkdir()
        done = run("parallel.py", count, folder=tmp_path / count)
        assert (f"= {count} processes" in done.stderr) == (count == "2")
        found.append(done.stdout)

    assert found[1] == found[0]  # ten digits of every weight
    assert found[0].startswith("status finished loss 0.04")
    assert len(found[0].splitlines()) == 5


@pytest.mark.row("S-A3", "A62")
def test_a_pipeline_at_the_end_of_an_epoch_evaluates_every_second_one(
    assay, tmp_path: Path
) -> None:
    assay("run", str(SEEDS / "eval_epoch" / "train.toml"), folder=tmp_path)

    (folder,) = (tmp_path / "runs").iterdir()
    evaluated = [
        each.fact
        for each in read_events(folder / "events.jsonl")
        if isinstance(each.fact, Evaluated)
    ]
    assert [(fact.split, fact.step // 3) for fact in evaluated] == [
        ("dev", 2),
        ("dev", 4),
        ("dev", 6),
    ]
    log = (folder / "log.txt").read_text(encoding="utf-8")
    assert [
        line.partition("  ")[2].rpartition("  ")[2]
        for line in log.splitlines()
        if "EvalEpoch at" in line
    ] == [f"EvalEpoch at epoch {epoch} step {3 * epoch}" for epoch in (2, 4, 6)]


@pytest.mark.row("S-B4", "B22")
def test_the_loop_of_the_text_and_its_schedules_are_those_of_an_engine(run, tmp_path: Path) -> None:
    lines = run("loop.py", folder=tmp_path).stdout.splitlines()

    names = [
        "by hand",
        "by an engine",
        "StepLR",
        "MultiStepLR",
        "ExponentialLR",
        "CosineAnnealingLR",
    ]
    assert lines == [f"{name}: True" for name in names]


@pytest.mark.row("S-C10", "C56", "C59")
def test_a_trainer_trains_evaluates_and_keeps_all_that_belongs_to_the_experiment(
    run, tmp_path: Path
) -> None:
    run("trainer.py", folder=tmp_path)

    (folder,) = (tmp_path / "experiment" / "runs").iterdir()
    file = run_file.read(folder)
    assert (file.tag, file.status, file.newest.to_step) == ("mytrainer_lr=0.01", "finished", 310)
    steps = {split: [] for split in ("eval", "test")}
    for each in read_events(folder / "events.jsonl"):
        if isinstance(each.fact, Evaluated):
            steps[each.fact.split].append(each.fact.step)
    assert steps == {"eval": list(range(31, 311, 31)), "test": [155, 310]}
    curve = read_series(folder / "metrics.bin")["train/loss"]
    assert curve.steps.tolist() == list(range(1, 311))
    board = read(folder / "board").scalars
    assert [step for step, _ in board["train/loss"]] == list(range(1, 311))
    assert np.allclose([value for _, value in board["train/loss"]], curve.values)
    assert [step for step, _ in board["eval/acc"]] == list(range(31, 311, 31))
    assert "epoch 10/10  step 310  @loss=" in (folder / "log.txt").read_text(encoding="utf-8")
    assert (
        len(list((folder / "checkpoints").glob("step-*"))) == 4
    )  # the newest three, and the final one
    assert plain(load(folder / "config.toml").root)["lr"] == 0.01
    assert file.newest.code.snapshot
