"""Refusals of a run: each is found by a check before it, or the table says why none can.

Every error that `engine` and `compose` raise about the user's input stands in `TABLE` by the check
that finds it. `CASES` try them: the check has to say what the run says.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import assay as house
from assay.compose import Launch, train
from assay.compose.checks import Examiner, problems_of_shape
from assay.compose.rehearsal import RehearsalRequest, rehearse
from assay.config import open_config
from assay.core.errors import AssayError

SRC = Path(house.__file__).parent
ERRORS = {
    "InputError",
    "ArgumentError",
    "ConfigError",
    "MissingExtraError",
    "UnknownDenominatorError",
}

FOUND = ("check", "check --rehearse", "check --rehearse --layout", "check --data")
"""Checks that find an error before a run does."""

REASONS = {
    "launch": "about a command, a machine, a record or a checkpoint: refused before anything is"
    " built",
    "ranks": "about what the other ranks have, and a check is alone",
    "program": "raised by an object that a person calls in Python; no config leads to it",
    "later": "about values or calls after the first batches, which only the run sees",
    "export": "about a recorded run that is exported, which no training does",
    "device": "about kernels of a device, which fake tensors do not call",
}
"""Why no check can find an error, by the section of the table."""

# Each line: a module, and its functions that raise; *2 of one that raises two.
TABLE = """
[check]
compose/checks.py: refuse
compose/examination.py: _check_sources weights_to_test
engine/callbacks/early_stop.py: EarlyStop.judge
engine/callbacks/save.py: Save.save_best
engine/checkpoint/saver.py: Saver.__init__
engine/data/source.py: Replayed.__init__
engine/loop/bus.py: every steps Bus._with_length
engine/numerics/precision.py: autocast_dtype gather_dtype
engine/numerics/seed.py: checked_seed
engine/optim/plateau.py: PlateauFollower.follow

[check --rehearse]
compose/weights.py: Weights.fill find_weights*2 initial_weights
compose/loaders.py: _check_batches*4 _load_dataset _load_samples*2 _make_source _refuse_empty*2
    _refuse_index_key lengths_of*3
compose/prepared_run.py: _check_names*2 _weights_of _build_optimizer _build_own_step _parameters_of
    _refuse_not_taken _check_schedules*2 _refuse_whole_compile
compose/run_scope.py: dataset_of*2 make_task
engine/callbacks/change.py: SetRequiresGrad.check*2 SetValue.__init__ SetValue._now*3
    SetValue.check _check_step _member*2 _parts
engine/callbacks/early_stop.py: EarlyStop.__init__*3
engine/callbacks/ema.py: EMA.__init__*2 EMA.begin
engine/callbacks/evaluate.py: Evaluate.__init__ count_samples empty_split metrics_of
engine/callbacks/norms.py: Norms.__init__
engine/callbacks/pipelines.py: Pipelines.__init__
engine/callbacks/probe.py: Probe.__init__ Probe.check
engine/callbacks/resources.py: Profile.__init__
engine/checkpoint/weight_mapping.py: _read_hdf5 _rename_by _reshape _rule*3 _table
    map_weights*2
engine/checkpoint/weights.py: _rename*2 _unpickle*2 read_foreign*2
engine/data/adopt.py: refuse_samples
engine/data/batch_size.py: _check_sizes*2 _contradiction batch_size*4
engine/data/batches.py: blame_device
engine/data/chain.py: _over*3 chain*3
engine/data/batches.py: refuse_none
engine/data/instance.py: Instance.stack*2 _check_alike _check_placed_alike
engine/data/loader.py: _check_dataset _check_options*4
engine/data/map_style.py: Cache.over RandomSplit.__init__*2 RandomSplit.over Select.over
    SequenceWrapper.__init__
engine/data/instance.py: part_of
engine/data/samplers.py: ByLength.__init__ Listed._list_indices Subset._choose_indices Weighted.order*2
    _values*2 order_of
engine/data/stream_loader.py: StreamLoader.__init__*3
engine/data/streams/blocks.py: Bucket.__init__
engine/data/streams/items.py: Length.__init__
engine/data/streams/joined.py: Mix.__init__*2 _Joined.__init__ _all_or_none_sharded
engine/data/streams/items.py: Prefetch.over
engine/data/streams/items.py: SplitByWorker.over
engine/data/streams/stream.py: at_least_one
engine/data/streams/stream.py: as_stream*2
engine/loop/bounds.py: Bounds.__post_init__ Bounds.refuse_uncounted larger
engine/loop/engine.py: check_trainable*2
engine/loop/epoch.py: no_batch
engine/loop/process.py: Process._forward Process._call_batch_hook Supervised.__init__
    Supervised._no_tensor*2 Supervised.forward_step _check_kinds*3 _not_taken
engine/loop/styles/adapt.py: _another_optimizer _choose_backward _model_of _unknown*2
engine/loop/styles/own_loss.py: OwnLoss._check OwnLoss.forward_step _items
engine/loop/styles/own_updates.py: OwnProcess._differentiate*2 OwnUpdates._check*3
    OwnUpdates.check_given*2 pair_output
engine/loop/task.py: Task.dataset
engine/metrics/classes.py: Accuracy.__init__ Confusion.__init__ Confusion._settle*2 Score.__init__
    _classes_of*2
engine/metrics/labels.py: AUROC.__init__ LabelCounts.read _labels_of
engine/metrics/means.py: LoggedMeans.add
engine/metrics/means.py: Mean.update
engine/metrics/metric.py: as_metric take_parts
engine/metrics/outputs.py: Pipes.__call__ Pipes.__init__ Pipes.end SaveOutputs.__init__
    per_sample*3
engine/model/modules.py: modules_named
engine/model/compiling.py: _check_home
engine/model/modules.py: refuse_lazy
engine/model/modules.py: padded_vocabulary
engine/optim/clip.py: _dense_gradients
engine/optim/criterion.py: CriterionCall.__init__ _Binder._ambiguity_error
    _Binder._source_asked_for blame_dtype
    _Binder._missing_error _Binder._unused_error
engine/optim/denominators.py: unknown_denominator weigh_model_loss
engine/optim/gradients.py: Gradients._add_named Gradients.begin _two_kinds
engine/optim/groups.py: Groups.__init__ Groups.check _read*4 _refuse_unfit _texts
engine/optim/losses.py: check_loss check_loss_names*2 sum_losses
engine/optim/multi_optimizer_step.py: MultiOptimizerStep.__call__*4 MultiOptimizerStep.__init__*3
    _as_part _refuse_shared
engine/optim/optimizer_step.py: OptimizerStep._check_reach*2
engine/optim/schedules.py: LearningRate._in_epochs LearningRate.walk Noam.__init__
    TorchSchedule.__init__ TorchSchedule._step TorchSchedule.check_length
    WarmupMultiStep.__init__ WarmupPoly.__init__ WarmupStep.__init__ _Warmup.__init__*4
    _Warmup._need_total _Warmup.check_length _applicable*2 _refuse_non_finite
engine/rehearse/fake.py: Fakes.__init__
engine/rehearse/imagined_ranks.py: imagined_mesh

[check --rehearse --layout]
engine/loop/failed_step.py: explain_failure
engine/parallel/data.py: _check_shareable*4
engine/metrics/outputs.py: check_mergeable*2
engine/parallel/layout.py: Layout._check_stages*2 Layout.check_micro_batches*2
engine/parallel/pipeline.py: Pipeline._hand_over*2 Pipeline._loss Pipeline._uncalled_error Pipeline.join
engine/parallel/pipeline_stages.py: _find_starts*3 _balance_starts _parts*3 pipeline_parts*2 split_model
engine/parallel/sharding.py: Sharding.begin_backward _check*2 _refuse_shared _roots _blocks_named_by_model*2
    shard_model
engine/parallel/pipeline_stages.py: sendable
engine/parallel/tensor_parallel.py: _plan_of_transformers _check_counts _check_input _resolve_plan*4 check_plan*2
    tensor_plan_of

[check --data]
engine/data/workers.py: Workers._start

[launch]
compose/examination.py: rehearse_apart
compose/rehearsal.py: bench_data
compose/launch.py: ProcessTask.read
compose/ranks.py: asked_processes*2 is_spread*2
compose/training.py: _refuse_finished rerun resume resume_or_train refuse_other_data
    refuse_without_checkpoints refuse_without_config*2
compose/run_scope.py: _check_alike*2 _fill_in_secrets the_one_device
compose/testing.py: _resolve_edit _choose_splits apply_edit test
    train_and_test
compose/weights.py: weights_at
compose/trust.py: _ask*2 _record_of refuse_redacted
engine/data/shapes.py: _unread
engine/data/source.py: check_workers
engine/data/stream_loader.py: StreamLoader.load_state_dict
engine/loop/device.py: pick_device*4
engine/loop/process.py: Process.inference_step
engine/parallel/launcher.py: launch_ranks
engine/parallel/process_group.py: init_mesh
engine/parallel/nodes.py: check_shared nodes_of*3
engine/parallel/process_group.py: device_of_rank world

[ranks]
engine/parallel/distributed_group.py: DistributedGroup._find_kind
engine/parallel/gradient_buckets.py: GradientBuckets._note GradientBuckets._send
engine/parallel/tensor_parallel.py: GradientAgreement.check
engine/parallel/distributed_group.py: StagedGroup.clip_grad_norm_

[program]
engine/loop/kept.py: _names_to_keep
engine/loop/engine_state.py: as_stateful
compose/launch.py: RunResult.run
engine/callbacks/evaluate.py: Evaluate.handlers
engine/callbacks/save.py: Save.judge
engine/checkpoint/given_state.py: name_from*2
engine/checkpoint/weights.py: load_checkpoint
engine/data/adopt.py: as_source
engine/data/instance.py: Placement.is_on
engine/loop/bus.py: Bus.extend Point.remove bind_by_name.bind event_named
engine/loop/engine.py: Engine.__iter__
engine/loop/styles/flags.py: ModelWrapper._learn ModelWrapper.forward ModelWrapper.loss
engine/loop/styles/hand.py: ByHand.forward_step
engine/metrics/classes.py: Confusion.index
engine/metrics/outputs.py: Collect.__getitem__
engine/optim/ramps.py: _check*2
engine/optim/scaled_optimizer_step.py: ScaledOptimizerStep.__init__

[later]
engine/data/loader.py: Loader.check_order
engine/callbacks/pipelines.py: run
engine/data/source.py: Replayed._begin
engine/data/streams/items.py: _LengthCursor.__next__*2
engine/metrics/classes.py: _outside
engine/metrics/outputs.py: as_plain

[export]
compose/exporting.py: _Exporting.__init__ _Exporting.write_model _evaluated_split _part_of
    export*2
engine/export/interface.py: find_interface*2 watch_calls.after
engine/export/parity.py: _check*2
engine/export/program.py: _explain_onnx_error*2 _explain_trace_error*3 require_onnx

[device]
engine/numerics/precision.py: deterministic
"""

PARTS = """\
import torch
from torch import nn
from assay.engine import MultiOptimizerStep, OptimizerStep, Process, Supervised, Task


class Net(nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.body, self.head = nn.Linear(4, width), nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.body(x).relu())


class Odd(nn.Module):
    def __init__(self, kind: str):
        super().__init__()
        self.kind, self.body = kind, nn.Linear(4, 2)

    def forward(self, x):
        y = self.body(x)
        return {"text": "text", "detached": y.detach(), "mapping": {"a": y}}[self.kind]


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.LazyLinear(2)

    def forward(self, x):
        return self.body(x)


class Own(Process):
    def __init__(self, model: nn.Module, kind: str, optimizer: torch.optim.Optimizer | None = None):
        self.model, self.kind = model, kind
        if optimizer is not None:
            self.backward = OptimizerStep(optimizer)

    def forward_step(self, batch):
        x, y = batch if isinstance(batch, (list, tuple)) else (torch.zeros(1, 4), torch.zeros(1).long())
        loss = nn.functional.cross_entropy(self.model(x), y)
        return {
            "nothing": None,
            "fixed": (self.model(torch.zeros(1, 4)).sum(), {}),
            "alone": loss,
            "number": (1.0, {}),
            "none": ({"a": None}, {}),
            "named": ({"a": loss, "b": loss}, {}),
            "pair": (loss, {"loss": loss, "pred": self.model(x)}),
        }[self.kind]


class Points:
    def __init__(self, size: int = 32, kind: str = "pair", split: int = 0):
        draw = torch.Generator().manual_seed(split)
        self.kind, self.points = kind, torch.randn(size, 4, generator=draw)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        x, y = self.points[i], int(self.points[i].sum() > 0)
        if self.kind == "none" and i == 3:
            return None
        if self.kind == "none inside" and i == 3:
            return x, None
        return {"alone": x, "text": ("a", y), "wide": (torch.cat([x, x]), y)}.get(self.kind, (x, y))


class Counts:
    def reset(self):
        self.count = 0

    def update(self, output):
        self.count += 1

    def value(self):
        return float(self.count)


class Unsized:
    def __iter__(self):
        yield from ()


class Batches:
    def __iter__(self):
        for _ in range(4):
            yield type("Batch", (), {})()


class Job(Task):
    def dataset(self, split):
        return None


class Lose:
    def __call__(self, output):
        pass


class Twice:
    def end_eval(self, evaluation):
        return {"loss": 1.0} if evaluation.metrics.update({f"{evaluation.split}/loss": 1.0}) is None else {}
"""

CONFIG = """\
[model]
type = "parts.Net"
width = 8

[data.train]
source = { type = "parts.Points" }
batch_size = 8

[data.valid]
source = { type = "parts.Points", split = 1 }
batch_size = 8

[process]
type = "assay.engine.Supervised"
criterion = { type = "torch.nn.CrossEntropyLoss" }
metrics = { acc = { type = "assay.engine.Accuracy" } }

[optimizer]
type = "torch.optim.SGD"
lr = 0.1

[schedule]
type = "assay.engine.WarmupCosine"

[train]
steps = 6
"""


def entries() -> Iterator[tuple[str, str, int]]:
    """Yield the sections of the table with the functions in them and how often these raise."""
    section = module = ""
    for line in TABLE.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            continue
        for word in line.split():
            if word.endswith(":"):
                module = word[:-1]
            else:
                function, _, count = word.partition("*")
                yield section, f"{module}::{function}", int(count or 1)


def errors_of(path: Path) -> Iterator[str]:
    """Yield the functions of a module that make an error of the user's, once for each."""

    def visit(node: ast.AST, names: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call) and getattr(child.func, "id", "") in ERRORS:
                yield f"{path.relative_to(SRC).as_posix()}::{'.'.join(names)}"
            is_named = isinstance(child, ast.FunctionDef | ast.ClassDef)
            yield from visit(child, (*names, child.name) if is_named else names)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), ())


def test_every_error_has_a_check_that_finds_it_or_a_reason_why_none_can() -> None:
    raised = Counter(
        function
        for room in ("engine", "compose")
        for path in sorted((SRC / room).rglob("*.py"))
        for function in errors_of(path)
    )
    table = {function: count for _, function, count in entries()}

    new = {name: count for name, count in raised.items() if table.get(name) != count}
    assert not new, "give each an entry in TABLE, and in CASES if a check finds it"
    assert not table.keys() - raised.keys(), "these are raised no more"
    assert {section for section, _, _ in entries()} == {*FOUND, *REASONS}


CASES = [
    ["train.accumulate=3"],
    ["data.train.batch_size=0"],
    ["optimizer.lr=inf"],
    ["schedule.warmup_steps=7"],
    ["schedule.warmup_ratio=1.5"],
    ['schedule={type="assay.engine.WarmupStep",step_size=0}'],
    ['schedule={type="torch.optim.lr_scheduler.OneCycleLR",max_lr=1.0,total_steps=5}'],
    ['schedule={type="torch.optim.lr_scheduler.ReduceLROnPlateau"}', "data.valid=@delete"],
    ['plugins=[{type="assay.engine.Probe",match="nope",steps=[1]}]'],
    ['plugins=[{type="assay.engine.Probe",match="body",steps=[0]}]'],
    ['plugins=[{type="assay.engine.EMA",decay=2.0}]'],
    ['plugins=[{type="assay.engine.EMA"},{type="assay.engine.EMA"}]'],
    ['plugins=[{type="assay.engine.SetRequiresGrad",step=1,match="nope",value=false}]'],
    ['plugins=[{type="assay.engine.EarlyStop",metric="valid/acc",mode="min",patience=0}]'],
    ['plugins=[{type="assay.engine.Norms",depth=0}]'],
    ['plugins=[{type="assay.engine.Profile",start=-1}]'],
    ["evaluate.limit=0"],
    ["data.valid.source.size=0"],
    ["data.train.source.size=0"],
    ["data.train.source.size=4", "data.train.drop_last=true"],
    ['model={type="parts.Lazy"}'],
    ['model={type="parts.Odd",kind="text"}'],
    ['model={type="parts.Odd",kind="detached"}'],
    ['model={type="parts.Odd",kind="mapping"}'],
    ["data.train.source.kind=alone"],
    ["data.valid.source.kind=alone"],
    ['process={type="parts.Own",kind="nothing",optimizer="@optimizer"}'],
    ['process={type="parts.Own",kind="alone",optimizer="@optimizer"}'],
    ['process={type="parts.Own",kind="number",optimizer="@optimizer"}'],
    ['process={type="parts.Own",kind="none",optimizer="@optimizer"}'],
    ['process={type="parts.Own",kind="named",optimizer="@optimizer"}', "backward.weights={c=1.0}"],
    ['process={type="parts.Own",kind="pair"}'],
    ['process.metrics.acc={type="assay.engine.Accuracy",top=9}'],
    ['process.metrics.acc={type="assay.engine.Accuracy",top=0}'],
    ['process.metrics.acc={type="assay.engine.Confusion",classes=1}'],
    ['process.metrics.acc={type="torch.nn.Linear",in_features=1,out_features=1}'],
    ["process.criterion=@delete"],
    ['data.train.source={type="parts.Unsized"}', "data.train.batch_size=@delete"],
    [
        'data.train.source={type="parts.Batches"}',
        "data.train.batch_size=@delete",
        "train.steps=@delete",
        "train.samples=8",
    ],
    [
        'data.valid.source={type="parts.Batches"}',
        "data.valid.batch_size=@delete",
        'process={type="parts.Own",kind="fixed",optimizer="@optimizer"}',
    ],
    ['task={type="parts.Job"}', "data.train.source=@delete"],
    ["optimizer.type=torch.optim.LBFGS"],
    ['optimizer={nope={type="torch.optim.SGD",lr=0.1}}', "schedule=@delete"],
    [
        'optimizer={body={type="torch.optim.SGD",lr=0.1},head={type="torch.optim.SGD",lr=0.1}}',
        'schedule={type="torch.optim.lr_scheduler.StepLR",step_size=3}',
    ],
    ["backward.every={body=2}"],
    ["load_weights.path=nope.safetensors"],
    ["seed=99999999999999999999"],
    ["checkpoint.keep=0"],
    [
        "train.until=last",
        "train.epochs=1",
        'data.train.source={type="parts.Batches"}',
        "data.train.batch_size=@delete",
    ],
    ['data.train.sampler={type="assay.engine.data.samplers.ByLength",window=0}'],
    ['optimizer.params={type="assay.engine.Groups",rules=[{match="nope",lr=0.1}]}'],
    ['optimizer.params={type="assay.engine.Groups",rules=[{match="body"}]}'],
    ['optimizer.params={type="assay.engine.Groups",only="nope"}'],
    ["data.train.workers=-1"],
    [
        'data.train.source={type="parts.Batches"}',
        "data.train.batch_size=@delete",
        "train.steps=@delete",
        "train.samples=8",
        "schedule=@delete",
        'process={type="parts.Own",kind="fixed",optimizer="@optimizer"}',
        "data.valid=@delete",
    ],
    ['evaluate.pipes=[{type="parts.Lose"}]'],
    ['evaluate.pipes=[{type="parts.Twice"}]'],
    ['evaluate.pipes=[{type="assay.engine.Collect",fields=["nope"]}]'],
    ['load_weights={path="pickled.pt"}'],
    ['load_weights={path="narrow.safetensors"}'],
    ['data.train.sampler={type="assay.engine.Weighted",weights=[1.0]}'],
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("parts.py").write_text(PARTS)
    Path("base.toml").write_text(CONFIG)
    Path("pickled.pt").write_text("no pickle")
    save_file({"body.weight": torch.zeros(3, 4)}, "narrow.safetensors")
    return tmp_path


def run_of(changes: list[str]) -> tuple[str, str]:
    """Return what a run of two steps says, and the function of ours that raised it."""
    launch = Launch(device="cpu", no_file=True, quiet=True, max_steps=2)
    try:
        error = train(open_config("base.toml", changes), launch).exception
    except AssayError as refused:
        error = refused
    assert isinstance(error, AssayError), error
    return message_of(error), raised_at(error)


def check_of(changes: list[str]) -> str:
    """Return what the checks say."""
    try:
        report = rehearse(open_config("base.toml", changes), RehearsalRequest(device="cpu"))
    except AssayError as refused:
        return message_of(refused)
    return "\n".join(finding.message for finding in report.failures)


def message_of(error: AssayError) -> str:
    return str(error).partition("\n")[0]


def raised_at(error: BaseException) -> str:
    """Return the last function of ours in the traceback that the table knows."""
    known = {function for _, function, _ in entries()}
    place, traceback = "", error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        path = Path(code.co_filename)
        if path.is_relative_to(SRC):
            name = code.co_qualname.replace(".<locals>", "")
            place = f"{path.relative_to(SRC).as_posix()}::{name}"
        traceback = traceback.tb_next
    return place if place in known else ""


@pytest.mark.slow
@pytest.mark.parametrize("changes", CASES, ids=" ".join)
def test_a_check_says_before_the_run_what_the_run_would_say(
    changes: list[str], project: Path
) -> None:
    said, place = run_of(changes)

    assert said in check_of(changes)
    sections = {function: section for section, function, _ in entries()}
    assert sections.get(place, "check") in FOUND


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["train.accumulate=3"], "A batch of 8 cannot be split into 3 equal micro-batches"),
        (["data.train.micro_batch_size=3"], "A batch of 8 cannot be split into micro-batches of 3"),
        (["optimizer.lr=inf"], "`optimizer.lr` is inf; a learning rate is finite and not neg"),
        (["optimizer.lr=-1"], "`optimizer.lr` is -1; a learning rate is finite and not negative"),
        (["data.train.batch_size=0"], "`data.train.batch_size` must be at least 1, not 0"),
        (
            ["optimizer.weight_decay=-1"],
            "`torch.optim.SGD` refuses it: Invalid weight_decay value: -1",
        ),
        (["optimizer.lr=-1", "optimizer.weight_decay=-1"], "`optimizer.lr` is -1; a learning"),
        (['model={type="torch.nn.Dropout", p=50}'], "has to be between 0 and 1, but got 50"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_plain_check_finds_numbers_that_cannot_be(
    changes: list[str], said: str, project: Path
) -> None:
    config = open_config("base.toml", changes)

    problems = [*problems_of_shape(config), *Examiner().problems([config])]

    assert [said in each.message for each in problems if each.severity == "error"] == [True]


@pytest.mark.slow
def test_a_config_without_a_mistake_passes_both(project: Path) -> None:
    launch = Launch(device="cpu", no_file=True, quiet=True, max_steps=2)

    assert train(open_config("base.toml"), launch).exception is None
    assert rehearse(open_config("base.toml"), RehearsalRequest(device="cpu")).findings == ()


@pytest.mark.slow
def test_a_metric_that_ranks_cannot_merge_is_found_under_a_layout(project: Path) -> None:
    changes = ['process.metrics.acc={type="parts.Counts"}']

    assert check_of(changes) == ""
    assert "'acc' is a Counts, which cannot be added up" in check_of([*changes, "parallel.data=2"])
