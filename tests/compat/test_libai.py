"""The tutorial of LiBai, followed line by line in a folder of its own, and its library functions."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.build import instantiate
from assay.compat.libai.loaders import (
    ClsEvaluator,
    build_image_test_loader,
    build_nlp_test_loader,
    build_nlp_train_loader,
    build_nlp_train_val_test_loader,
    get_config,
    get_default_optimizer_params,
)
from assay.compat.parts.features import to_tensors
from assay.compat.parts.text import TextExample, TextProcessor, WordPieces, pair_features
from assay.config import check_shape, load, plain
from assay.core.errors import ConfigError, InputError
from assay.engine import DistTensorData, Instance
from assay.formats import run_file
from assay.store.series import read_series
from examples import EXAMPLES, SRC
from snippets import executed
from warm_python import Run

CONFIG = ("S-E1.model", "S-E1.dataloader", "S-E1.train")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The files of the tutorial as it says to write them, and 5,000 digits."""
    files = {
        "modeling/model.py": executed("S-E2"),
        "dataset/dataset.py": executed("S-E1.dataset"),
        "configs/train.py": executed("S-E1.defaults"),
        "configs/config.py": "\n".join(map(executed, CONFIG)),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    for folder in (".assay", "data"):
        (tmp_path / folder).mkdir(exist_ok=True)
    shutil.copy(EXAMPLES / "01_digits" / "digits.npz", tmp_path / "data")
    return tmp_path


DATA = ("data.train.source.path=data/", "data.test.source.path=data/")
"""Folder of the digits, in place of one on the machine of the text's author."""

TRAIN = ("-m", "assay", "run", "configs/config.py", "--user-dir", ".", "--device", "cpu", *DATA)


IN_PROCESS = ("data.train.workers=0", "data.test.workers=0")


@pytest.mark.row("S-E1", "E10", "E15")
def test_the_config_of_the_tutorial_says_the_same_in_the_sections_of_assay(project: Path) -> None:
    config = load(project / "configs" / "config.py", user_dir=project)
    root: Any = plain(config.root)

    assert [p.message for p in check_shape(config) if p.severity == "error"] == []
    told = {note.key: note for note in config.notes}
    assert told[""].message.startswith("ClsEvaluator, WarmupCosineLR of an older system")
    assert {"train.eval_period", "train.topk", "train.recompute_grad", "dataloader"} <= told.keys()
    assert root["model"] == {"type": "modeling.model.NeuralNetwork", "num_classes": 10}
    path = "/workspace/quickstart/data/"
    source = {"type": "dataset.dataset.MnistDataSet", "path": path, "is_train": True}
    assert root["data"]["train"] == {"source": source, "workers": 4, "batch_size": 128}
    assert root["data"]["test"]["batch_size"] == 32
    assert root["train"] == {"activation_checkpoint": True, "epochs": 20, "precision": "bf16"}
    assert root["evaluate"] == {"enabled": True, "splits": ["test"], "every": "100 steps"}
    assert root["checkpoint"]["best"] == {"metric": "test/Acc@1", "mode": "max"}
    assert root["schedule"]["warmup_ratio"] == 0.01 and root["schedule"]["final"] == 0.01
    assert (root["seed"], root["tag"], root["display"]) == (1234, "MNIST", {"every": "10 steps"})


def test_the_page_shows_the_tutorial_as_it_is_printed(project: Path) -> None:
    page = (SRC.parent / "docs" / "compat" / "libai.md").read_text(encoding="utf-8")

    for name in (
        "modeling/model.py",
        "dataset/dataset.py",
        "configs/train.py",
        "configs/config.py",
    ):
        printed = (project / name).read_text(encoding="utf-8").rstrip()
        assert f":caption: {name}\n\n{printed}\n```" in page, name


MORE = """
train.update(dict(
    global_batch_size=256, num_accumulation_steps=2, train_iter=30, train_epoch=2, eval_period=40,
    evaluation=dict(evaluator=LazyCall("libai.evaluation.ClsEvaluator")(topk=(1, 3)), eval_iter=5,
                    eval_metric="Acc@3", eval_mode="min"),
    checkpointer=dict(period=7, max_to_keep=2), load_weight="start.safetensors", amp=dict(enabled=False),
    scheduler=LazyCall("libai.scheduler.WarmupMultiStepLR")(warmup_factor=0.1, milestones=[0.5]),
    dist=dict(data_parallel_size=2, tensor_parallel_size=1, pipeline_parallel_size=1),
    zero_optimization=dict(enabled=True, stage=1),
))
del train["topk"]
from libai.config import get_config
graph = get_config("common/models/graph.py").graph
graph.enabled = True
optim = get_config("common/optim.py").optim
from copy import deepcopy
dataloader.test = [dataloader.test[0], deepcopy(dataloader.test[0])]
"""


@pytest.mark.row("E51")
def test_every_other_key_of_the_tutorial_is_a_key_of_assay(project: Path) -> None:
    with (project / "configs" / "config.py").open("a", encoding="utf-8") as file:
        file.write(MORE)

    config = load(project / "configs" / "config.py", user_dir=project)
    root: Any = plain(config.root)

    assert [p.message for p in check_shape(config) if p.severity == "error"] == []
    assert root["data"].keys() == {"train", "test_0", "test_1"}
    assert root["data"]["train"]["batch_size"] == 256
    assert root["evaluate"]["limit"] == 5 and root["evaluate"]["splits"] == ["test_0", "test_1"]
    assert root["process"]["metrics"].keys() == {"Acc@1", "Acc@3"}
    best = {"metric": "test_0/Acc@3", "mode": "min"}
    assert root["checkpoint"] == {"every": "7 steps", "keep": 2, "best": best}
    assert root["load_weights"] == {"path": "start.safetensors"}
    assert root["parallel"]["data"] == 2 and root["parallel"]["zero"]["stage"] == 1
    train = {"steps": 30, "epochs": 2, "until": "last", "accumulate": 2, "clip_norm": 1.0}
    assert root["train"].items() >= {**train, "compile": True, "precision": "fp32"}.items()
    assert root["schedule"]["type"] == "assay.engine.WarmupMultiStep"
    rules = root["optimizer"]["params"]["rules"]
    assert [rule["kind"] for rule in rules] == ["norm", "bias"]


OVERRIDES = {
    "optim.lr=0.01": ("optimizer.lr", 0.01),
    "optim.weight_decay=0.1": ("optimizer.weight_decay", 0.1),
    "train.dist.data_parallel_size=2": ("parallel.data", 2),
    "train.dist.tensor_parallel_size=2": ("parallel.tensor", 2),
    "dataloader.train.num_workers=0": ("data.train.workers", 0),
    "dataloader.train.dataset.0.path=data/": ("data.train.source.path", "data/"),
    "dataloader.test.0.num_workers=2": ("data.test.workers", 2),
    "dataloader.test[0].num_workers=1": ("data.test.workers", 1),
    "dataloader.train.dataset[0].path=data/": ("data.train.source.path", "data/"),
    "train.train_micro_batch_size=16": ("data.train.batch_size", 16),
    "train.test_micro_batch_size=16": ("data.test.batch_size", 16),
    "train.num_accumulation_steps=4": ("train.accumulate", 4),
    "train.global_batch_size=256": ("data.train.batch_size", 256),
    "train.train_iter=10": ("train.steps", 10),
    "train.train_epoch=3": ("train.epochs", 3),
    "train.amp.enabled=False": ("train.precision", "fp32"),
    "train.recompute_grad.enabled=False": ("train.activation_checkpoint", False),
    "train.zero_optimization.enabled=True": ("parallel.zero.enabled", True),
    "train.checkpointer.period=7": ("checkpoint.every", "7 steps"),
    "train.checkpointer.max_to_keep=3": ("checkpoint.keep", 3),
    "train.evaluation.enabled=False": ("evaluate.enabled", False),
    "train.evaluation.eval_iter=5": ("evaluate.limit", 5),
    "train.evaluation.eval_metric=loss": ("checkpoint.best.metric", "test/loss"),
    "train.evaluation.eval_mode=min": ("checkpoint.best.mode", "min"),
    "train.eval_period=50": ("evaluate.every", "50 steps"),
    "train.topk=1,5": ("process.metrics.Acc@5.top", 5),
    "train.load_weight=a.safetensors": ("load_weights.path", "a.safetensors"),
    "train.log_period=5": ("display.every", "5 steps"),
    "train.warmup_ratio=0.1": ("schedule.warmup_ratio", 0.1),
    "train.scheduler.warmup_factor=0.1": ("schedule.start", 0.1),
    "train.output_dir=out/x": ("tag", "x"),
    "train.seed=5": ("seed", 5),
    "graph.enabled=True": ("train.compile", True),
    "model.num_classes=12": ("model.num_classes", 12),
}
"""Override of a key of LiBai -> the key and value here."""


@pytest.mark.row("E59")
def test_a_test_set_that_is_not_there_is_refused(project: Path) -> None:
    with pytest.raises(ConfigError, match=r"`dataloader.test` has no item `1`"):
        load(
            project / "configs" / "config.py",
            ["dataloader.test[1].num_workers=1"],
            user_dir=project,
        )


@pytest.mark.row("E13")
@pytest.mark.parametrize(("setting", "meant"), OVERRIDES.items())
def test_an_override_names_a_key_of_libai(
    project: Path, setting: str, meant: tuple[str, Any]
) -> None:
    config = load(project / "configs" / "config.py", [setting], user_dir=project)

    key, value = meant
    node: Any = plain(config.root)
    for part in key.split("."):
        node = node[part]
    assert node == value
    assert [p.message for p in check_shape(config) if p.severity == "error"] == []


BOTH = 'train.evaluation = dict(enabled=True, eval_period=30)\ntrain["eval_period"] = 40\n'


@pytest.mark.parametrize(
    ("written", "settings", "every", "named"),
    [
        ("", ["train.evaluation.eval_period=7"], "7 steps", "train.eval_period"),
        (BOTH, [], "30 steps", "train.eval_period"),
        (BOTH, ["train.eval_period=8"], "8 steps", "train.eval_period"),
        (BOTH, ["train.evaluation.eval_period=9"], "9 steps", "train.eval_period"),
        ("", ["train.evaluation.evaluator.topk=[3]"], "100 steps", "train.topk"),
    ],
)
def test_of_two_places_of_one_key_the_later_or_more_exact_counts_and_the_other_is_named(
    project: Path, written: str, settings: list[str], every: str, named: str
) -> None:
    with (project / "configs" / "config.py").open("a", encoding="utf-8") as file:
        file.write(written)

    config = load(project / "configs" / "config.py", settings, user_dir=project)

    root: Any = plain(config.root)
    assert root["evaluate"]["every"] == every
    if "topk" in named:
        assert list(root["process"]["metrics"]) == ["Acc@3"]
    assert any(named in note.key for note in config.notes)


def test_overrides_of_libai_are_all_applied_before_what_follows_from_them(project: Path) -> None:
    settings = ("train.train_micro_batch_size=8", "train.num_accumulation_steps=4")
    length = ("train.train_iter=10", "train.train_epoch=0")

    config = load(project / "configs" / "config.py", [*settings, *length], user_dir=project)

    root: Any = plain(config.root)
    assert root["data"]["train"]["batch_size"] == 32
    assert root["train"].items() >= {"accumulate": 4, "steps": 10}.items()
    assert "epochs" not in root["train"]


EVALUATOR = """
class Share:
    def __init__(self, scale=1):
        self.scale = scale
        self.reset()

    def reset(self):
        self.hit = self.all = 0

    def process(self, inputs, outputs):
        hit = outputs["prediction_scores"].argmax(1) == inputs["labels"]
        self.hit, self.all = self.hit + int(hit.sum()), self.all + len(hit)

    def evaluate(self):
        return {"share": self.scale * self.hit / self.all}
"""
TWO_SETS = """
from share import Share
dataloader.test.append(dataloader.test[0])
train.evaluation = dict(
    enabled=True, evaluator=LazyCall(Share)(scale=100), eval_metric="share", eval_mode="max"
)
del train["topk"]
train.train_iter, train.train_epoch, train.amp = 4, 0, dict(enabled=False)
"""


@pytest.mark.row("E60", "E11", "E41")
def test_an_evaluator_of_ones_own_measures_two_test_sets_of_which_one_is_the_other(
    python: Run, project: Path
) -> None:
    (project / "share.py").write_text(EVALUATOR, encoding="utf-8")
    with (project / "configs" / "config.py").open("a", encoding="utf-8") as file:
        file.write(TWO_SETS)
    paths = ("data.train.source.path=data/", "data.test_0.source.path=data/")
    workers = ("data.train.workers=0", "data.test_0.workers=0", "data.test_1.workers=0")
    other = "data.test_1.source.path=data/"

    python(*TRAIN[: -len(DATA)], *paths, other, *workers)

    (run,) = (project / "runs").glob("*-mnist")
    curves = read_series(run / "metrics")
    assert curves["test_0/share"].values.tolist() == curves["test_1/share"].values.tolist()
    assert 0 < curves["test_0/share"].values[-1] <= 100
    best = run_file.read(run).best
    assert best is not None and best.metric == "test_0/share"


def test_a_key_that_means_nothing_is_refused_by_name(project: Path) -> None:
    with (project / "configs" / "config.py").open("a", encoding="utf-8") as file:
        file.write("train.update(dict(planted=1))\n")

    problems = check_shape(load(project / "configs" / "config.py", user_dir=project))

    assert [p.key for p in problems if p.severity == "error"] == ["train.planted"]


def test_a_name_that_libai_has_and_assay_has_not_is_one_error_with_the_nearest(
    project: Path,
) -> None:
    (project / "configs" / "config.py").write_text("from libai.scheduler import WarmupCosinLR\n")

    with pytest.raises(ConfigError) as caught:
        load(project / "configs" / "config.py", user_dir=project)

    (problem,) = caught.value.problems
    assert "WarmupCosinLR" in problem.message and "`libai.scheduler.WarmupCosineLR`" in problem.fix


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.row("S-E3", "E58")
def test_the_tutorial_trains_as_it_is_printed(python: Run, project: Path) -> None:
    said = python(*TRAIN, *IN_PROCESS, "train.epochs=8").stderr

    (run,) = (project / "runs").glob("*-mnist")
    curve = read_series(run / "metrics")["test/Acc@1"]
    assert "8 epochs x 32 (4,000 samples / 128, rounded up) = 256 steps" in said
    assert list(curve.steps) == [100, 200, 256] and curve.values[-1] > 0.9
    shown = re.findall(r"^epoch .*step +(\d+) ", said, re.MULTILINE)
    assert [int(step) for step in shown] == [*range(10, 251, 10), 256]
    best = run_file.read(run).best
    assert best is not None and best.metric == "test/Acc@1"


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.row("E30")
def test_the_tutorial_with_as_many_pictures_as_in_its_text_has_9380_steps(
    python: Run, project: Path
) -> None:
    for name, size in {"train": 60_000, "t10k": 10}.items():
        write_idx(project / "data" / f"{name}-images-idx3-ubyte", np.zeros((size, 28, 28), "u1"))
        write_idx(project / "data" / f"{name}-labels-idx1-ubyte", np.zeros(size, "u1"))

    said = python(*TRAIN, *IN_PROCESS, "--max-steps", "1").stderr

    assert "20 epochs x 469 (60,000 samples / 128, rounded up) = 9,380 steps" in said


def write_idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    path.write_bytes(head + array.tobytes())


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.row("E47", "E48")
def test_the_tutorial_trains_on_two_ranks(python: Run, project: Path) -> None:
    with (project / "configs" / "config.py").open("a", encoding="utf-8") as file:
        file.write(
            "train.update(dict(train_micro_batch_size=64, dist=dict(data_parallel_size=2)))\n"
        )

    python(*TRAIN, "train.epochs=2", "data.train.workers=0", "data.test.workers=0")

    (run,) = (project / "runs").glob("*-mnist")
    record = run_file.read(run)
    curve = read_series(run / "metrics")["test/Acc@1"]
    assert record.status == "finished" and (run / "ranks" / "1.txt").is_file()
    assert record.newest.to_step == 64  # 2 x 32 steps of 2 x 64 samples
    assert curve.values[-1] > 0.75


@pytest.mark.slow
@pytest.mark.row("S-E2", "E17", "E19")
def test_the_model_gives_losses_in_training_and_scores_in_evaluation(
    python: Run, project: Path
) -> None:
    (project / "show.py").write_text(
        "import oneflow as flow\nfrom modeling.model import NeuralNetwork\n"
        "model = NeuralNetwork()\nx, y = flow.tensor([[[0.5] * 28] * 28] * 3), flow.tensor([1, 2, 3])\n"
        "print({k: tuple(v.shape) for k, v in model(x, y).items()})\n"
        "print({k: tuple(v.shape) for k, v in model.eval()(x, y).items()})\n"
    )

    lines = python("-m", "assay.compat", "show.py").stdout.splitlines()

    assert lines == ["{'losses': ()}", "{'prediction_scores': (3, 10)}"]


@pytest.mark.slow
@pytest.mark.row("E08")
def test_a_configurable_model_takes_a_dictionary(python: Run, project: Path) -> None:
    (project / "text.py").write_text(executed("S-E1.configurable"))
    (project / "show.py").write_text(
        "from libai.config import instantiate\nfrom text import model\n"
        "print(model, type(instantiate(model)).__name__)\n"
    )

    said = python("-m", "assay.compat", "show.py").stdout

    assert said == "L('text.NeuralNetwork')(Section(num_classes=10)) NeuralNetwork\n"


class Words:
    """Sentences as numbers of words, which differ in length."""

    randomness = "none"

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Instance:
        ids = torch.full((1 + index % 3,), index)
        return Instance(
            input_ids=DistTensorData(ids),
            labels=DistTensorData(torch.tensor(index % 2), placement_idx=-1),
        )


def padded(samples: list[Instance]) -> Instance:
    ids = [sample.input_ids for sample in samples]
    joined = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1)
    return Instance(input_ids=joined, labels=torch.stack([each.labels for each in samples]))


@pytest.mark.row("E25")
def test_loaders_of_text_give_batches_of_one_or_several_sets_and_parts_of_the_sizes_asked() -> None:
    train = build_nlp_train_loader([Words(10), Words(5)], 4, collate_fn=padded)
    test = build_nlp_test_loader(Words(10), 4, collate_fn=padded)

    assert [len(batch.labels) for batch in train] == [4, 4, 4, 3]
    assert [int(batch.input_ids[0, 0]) for batch in test] == [0, 4, 8]
    assert [tuple(batch.input_ids.shape) for batch in test] == [(4, 3), (4, 3), (2, 3)]
    parts = build_nlp_train_val_test_loader(
        [Words(100)], (70, 20, 10), train_batch_size=8, test_batch_size=5, collate_fn=padded
    )
    seen = [[int(i) for batch in part for i in batch.input_ids[:, 0]] for part in parts]
    assert [len(each) for each in seen] == [70, 20, 10]
    assert sorted(i for each in seen for i in each) == list(range(100))
    with pytest.raises(InputError, match="need three"):
        build_nlp_train_val_test_loader(Words(9), (1, 2))


@pytest.mark.row("E25", "B11")
def test_loaders_of_text_read_files_with_the_pipeline_of_assay(tmp_path: Path) -> None:
    lines = "yes\tthe cat sat\ta mat\nno\tthe dog\tthe cat\nyes\ta dog ran\tran\n"
    (tmp_path / "train.tsv").write_text(lines, encoding="utf-8")
    (tmp_path / "test.jsonl").write_text('{"text": "a cat", "label": "no"}\n', encoding="utf-8")
    processor, tokenizer = TextProcessor(["no", "yes"]), WordPieces(PIECES.split())

    def split(examples: list[TextExample]) -> Any:
        return to_tensors(
            pair_features(examples, processor.get_labels(), tokenizer, max_seq_len=10)
        )

    train = build_nlp_train_loader(split(processor.get_train_examples(tmp_path)), 2)
    test = build_nlp_test_loader([split(processor.get_test_examples(tmp_path))], 2)

    seen = [(ids[1:3], int(label)) for batch in train for ids, label in _rows(batch)]
    assert sorted(seen) == sorted(
        (tokenizer.convert_tokens_to_ids(tokens.split()), label)
        for tokens, label in [("the cat", 1), ("the dog", 0), ("a dog", 1)]
    )
    (batch,) = list(test)
    words = ["[CLS]", "a", "cat", "[SEP]"]
    assert batch["input_ids"][0, :4].tolist() == tokenizer.convert_tokens_to_ids(words)


def _rows(batch: Any) -> list[tuple[list[int], int]]:
    return list(zip(batch["input_ids"].tolist(), batch["label_id"].tolist(), strict=True))


COMMON = {
    "common/train.py": ["train"],
    "common/optim.py": ["optim"],
    "common/models/graph.py": ["graph"],
    "common/models/bert.py": ["bert_model", "pretrain_model"],
    "common/data/bert_dataset.py": ["dataloader", "tokenization"],
    "common/data/cifar100.py": ["dataloader"],
}
SENTENCES = "the cat sat on the mat .\nthe dog ran .\na cat ran on a mat .\n\n" * 8
PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sat ran on mat ."


def texts(folder: Path) -> None:
    """Write sentences and a vocabulary into a folder."""
    (folder / "sentences.txt").write_text(SENTENCES, encoding="utf-8")
    (folder / "vocab.txt").write_text("\n".join(PIECES.split()), encoding="utf-8")


@pytest.mark.row("E04", "E05")
def test_the_six_packaged_configs_are_found_by_the_name_that_libai_has(tmp_path: Path) -> None:
    for path, names in COMMON.items():
        assert get_config(path).keys() >= set(names), path
    assert get_config("common/models/graph.py").graph.enabled is False
    with pytest.raises(InputError, match=r"common/optim\.py"):
        get_config("common/optimm.py")


@pytest.mark.row("E05")
def test_the_calls_of_the_packaged_train_and_optim_are_built() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))

    train, optim = get_config("common/train.py").train, get_config("common/optim.py").optim
    given = {name: value for name, value in optim.params.items() if name != "type"}
    optimizer = instantiate(optim, params=get_default_optimizer_params(model, **given))
    evaluator = instantiate(train.evaluation.evaluator)
    schedule = instantiate(train.scheduler, warmup_ratio=0.1)

    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
    assert isinstance(evaluator, ClsEvaluator) and evaluator.metrics().keys() == {"Acc@1", "Acc@5"}
    assert schedule.factor(100, 100) == pytest.approx(0.01)


@pytest.mark.row("E05")
def test_the_packaged_bert_is_built_with_the_sizes_of_libai() -> None:
    bert = get_config("common/models/bert.py")

    with torch.device("meta"):
        encoder, whole = instantiate(bert.bert_model), instantiate(bert.pretrain_model)

    assert len(encoder.layers) == 24 and encoder.tokens.weight.shape == (30522, 768)
    assert encoder.layers[0].inner.out_features == 4096 and encoder.norm.eps == 1e-5
    count = sum(parameter.numel() for parameter in whole.parameters())
    assert count == sum(parameter.numel() for parameter in encoder.parameters()) + 624_188


@pytest.mark.row("E05", "E24")
def test_the_packaged_pictures_are_read_in_the_binary_format_of_cifar(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(256, (20, 3074), generator=draw, dtype=torch.uint8)
    rows[:, 1] %= 100
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(rows.numpy().tobytes())
    dataloader = get_config("common/data/cifar100.py").dataloader
    train, (test,) = dataloader.train, dataloader.test
    train.dataset[0].root = test.dataset.root = str(tmp_path)
    train.num_workers = test.num_workers = 0

    batches, tests = list(instantiate(train)), list(instantiate(test, test_batch_size=8))

    assert [tuple(batch.images.shape) for batch in batches] == [(20, 3, 32, 32)]
    assert [len(batch.labels) for batch in tests] == [8, 8, 4]
    whole = torch.cat([batch.images for batch in tests])
    assert torch.cat([batch.labels for batch in tests]).tolist() == rows[:, 1].tolist()
    first = (rows[0, 2:].view(3, 32, 32)[0] / 255 - 0.5071) / 0.2673
    assert torch.allclose(whole[0, 0], first, atol=1e-6)
    (tmp_path / "test.bin").write_bytes(b"short")
    with pytest.raises(InputError, match="binary format"):
        instantiate(test)


@pytest.mark.row("E05", "E25")
def test_the_packaged_texts_are_pairs_of_word_pieces_with_masked_tokens(tmp_path: Path) -> None:
    texts(tmp_path)
    common = get_config("common/data/bert_dataset.py")
    common.tokenization.tokenizer.vocab_file = str(tmp_path / "vocab.txt")
    given = common.dataloader.train.dataset[0]
    given.update(data_prefix=str(tmp_path / "sentences.txt"), max_seq_length=20, mask_lm_prob=0.5)
    tokenizer = instantiate(common.tokenization.tokenizer)
    pairs = instantiate(given, tokenizer=tokenizer)

    train, valid, test = build_nlp_train_val_test_loader(
        [pairs], [[12.0, 2.0, 2.0]], train_batch_size=4
    )

    assert len(pairs) == 16  # two pairs of neighbours in each of eight documents
    assert [len(each.dataset) for each in (train, valid, test)] == [12, 2, 2]
    batch = next(iter(train))
    assert batch.input_ids.shape == batch.tokentype_ids.shape == (4, 20)
    changed = batch.input_ids != batch.lm_labels
    assert bool(changed.any()) and bool((batch.loss_mask[changed] == 1).all())
    masked = tokenizer.convert_tokens_to_ids(["[MASK]"])[0]
    assert bool((batch.input_ids == masked).any())
    words = PIECES.split()
    for ids, swapped in zip(batch.lm_labels.tolist(), batch.ns_labels.tolist(), strict=True):
        tokens = " ".join(words[i] for i in ids if words[i] != "[PAD]")
        one, two = tokens.removeprefix("[CLS] ").removesuffix(" [SEP]").split(" [SEP] ")
        first, second = (two, one) if swapped else (one, two)
        assert f"{first}\n{second}\n" in SENTENCES
    again = instantiate(given, tokenizer=tokenizer)
    assert torch.equal(again[3].input_ids, pairs[3].input_ids)


BERT = """
from libai.config import get_config

dataloader = get_config("common/data/bert_dataset.py").dataloader
tokenization = get_config("common/data/bert_dataset.py").tokenization
dataloader.train.dataset[0].max_seq_length = 20
dataloader.train.splits = [[8.0, 1.0, 1.0]]
dataloader.train.num_workers = 0
model = get_config("common/models/bert.py").pretrain_model
model.cfg.update(hidden_size=16, hidden_layers=2, num_attention_heads=2, intermediate_size=32)
optim = get_config("common/optim.py").optim
optim.lr = 0.01
graph = get_config("common/models/graph.py").graph
train = get_config("common/train.py").train
train.update(dict(train_micro_batch_size=4, train_iter=40, evaluation=dict(enabled=False)))
"""


@pytest.mark.slow
@pytest.mark.row("E05", "E20", "E57")
def test_a_bert_of_packaged_configs_alone_learns_its_sentences(python: Run, project: Path) -> None:
    texts(project)
    (project / "bert.py").write_text(BERT, encoding="utf-8")

    python("-m", "assay", "run", "bert.py", "--device", "cpu", "--tag", "bert")

    (run,) = (project / "runs").glob("*-bert")
    curves = read_series(run / "metrics")
    assert len(curves["train/lm_loss"].values) == 40 and "train/sop_loss" in curves
    first, last = (
        curves["train/lm_loss"].values[part].mean() for part in (slice(5), slice(-5, None))
    )
    assert last < 0.8 * first
    saved: Any = plain(load(run / "config.toml").root)
    assert saved["model"]["cfg"]["vocab_size"]["type"] == "assay.engine.padded_vocabulary"


def test_digits_that_are_not_there_say_where_to_put_them(tmp_path: Path) -> None:
    from assay.compat.parts.images import MNIST

    with pytest.raises(InputError, match="nothing is downloaded"):
        MNIST(str(tmp_path), download=True, source_url="https://example.org/")
    shutil.copy(EXAMPLES / "01_digits" / "digits.npz", tmp_path)
    digits = MNIST(str(tmp_path), train=False)
    assert len(digits) == 1000 and digits[0][0].shape == (28, 28)
    assert len(next(iter(build_image_test_loader(digits, 64)))[1]) == 64
