"""Export of a recorded run: a folder with the model that needs no assay, and its certificate."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from assay.compose.export_files import script_of
from assay.compose.launch import Launch
from assay.compose.loaders import make_loader, splits_of
from assay.compose.prepared_run import evaluation_plan, make_process
from assay.compose.run_scope import RunScope, evaluation_of, make_task, open_run_scope
from assay.compose.testing import is_config, promise_no_engine
from assay.compose.trust import Tell, Trust, open_saved
from assay.compose.weights import Weights, weights_at
from assay.core.errors import InputError, choose
from assay.core.schema import is_for_tests
from assay.core.version import version
from assay.formats import manifest as manifests
from assay.formats.export_folder import (
    CERTIFICATE,
    EXAMPLE,
    SCHEMA,
    TOLERANCE,
    ExportCertificate,
    ExportSchema,
    Target,
    TensorSchema,
    sha256_of,
)
from assay.formats.json_codec import dumps
from assay.formats.verdict import Verdict
from assay.query.find import find
from assay.query.run import RunView
from assay.record.edits import keep_verdict
from assay.store.known_projects import project_here
from assay.store.whole_output import explain_disk_errors, new_folder, refuse_taken

if TYPE_CHECKING:
    from assay.engine.export.interface import Interface
    from assay.engine.export.parity import EvaluatedSplit, Parity
    from assay.engine.export.program import Runner
    from assay.engine.loop.process import Model, Process

TARGETS: tuple[str, ...] = get_args(Target)
_WHAT = "The export cannot be written"
_PACKAGES = {
    "onnx": ("torch", "onnx", "onnxruntime"),
    "torch-export": ("torch",),
    "safetensors": ("torch", "safetensors"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """Target of an export, and how the model is compared.

    `part` is a module of the model, "" for all of it; `split` those data, "" for the evaluated
    ones; `batches` the first so many of them, 0 for all. With `static` the model takes batches of
    one size. `force` keeps a model beyond the tolerance, and moves away what is in the folder.
    """

    target: Target = "onnx"
    part: str = ""
    split: str = ""
    batches: int = 0
    tolerance: float = TOLERANCE
    static: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """Folder of an exported model, None where it was refused, with what it holds.

    `why` says why it is this checkpoint of the run. `moved` is where what was in the folder lies
    now.
    """

    folder: Path | None
    schema: ExportSchema
    certificate: ExportCertificate
    why: str = ""
    moved: Path | None = None


def export(
    address: str,
    folder: str | Path | None = None,
    wanted: ExportRequest | None = None,
    *,
    trust: Trust = False,
    tell: Tell = lambda line: None,
) -> ExportResult:
    """Export the model of RUN or RUN@CKPT into a new folder, after comparing it with the record's.

    The weights are the best ones if the run kept any, else the newest. Both models run over the
    evaluated split; the record keeps the verdict. Above the tolerance nothing is left. InputError
    for a model that cannot be exported, and for a run that was not made here unless `trust` allows
    what its config says.
    """
    wanted = wanted or ExportRequest()
    if wanted.target not in TARGETS:
        raise InputError(
            f"There is no export to {wanted.target!r}.",
            fix=choose(wanted.target, TARGETS, "--format"),
        )
    if is_config(address):
        raise InputError(
            f"{address} is a config, and an export takes a run.",
            fix=f"assay run {address}, then assay export last",
        )
    view, _ = find(address)
    place = Path(folder or f"{view.id}-{wanted.target}").absolute()
    refuse_taken(place, force=wanted.force)
    config = open_saved(view, use="export it", trust=trust, tell=tell)
    weights = weights_at(address)
    with open_run_scope(config, Launch(device="cpu")) as scope, new_folder(place, _WHAT) as output:
        if wanted.target == "onnx":
            from assay.engine.export.program import require_onnx  # needs torch, which was asked for

            require_onnx()
        exporting = _Exporting(view, weights, scope, wanted, place)
        interface, parity, files = exporting.write_model(output.scratch)
        certificate = exporting.certify(parity, files)
        _keep_verdict(view, weights, certificate, tell)
        schema = _schema_of(interface, files[0].name)
        result = ExportResult(folder=None, schema=schema, certificate=certificate, why=weights.why)
        if not certificate.is_within and not wanted.force:
            return result
        with explain_disk_errors(place, _WHAT):
            exporting.write_rest(output.scratch, interface, schema, certificate)
            moved = output.put_in_place()
    return replace(result, folder=place, moved=moved)


class _Exporting:
    """One export: the run's parts, built anew on the CPU, and the files made of them."""

    def __init__(
        self,
        view: RunView,
        weights: Weights,
        scope: RunScope,
        wanted: ExportRequest,
        place: Path,
    ) -> None:
        self.view, self.weights, self.scope, self.wanted = view, weights, scope, wanted
        self.place = place
        self.split = wanted.split or _evaluated_split(scope)
        if self.split not in splits_of(scope.root):
            raise InputError(
                f"The config of {view.id} has no [data.{self.split}].",
                where=str(view.path),
                fix=choose(self.split, splits_of(scope.root), "--split names one of"),
            )
        # The parts of a run for tests: there is no training.
        evaluate = replace(scope.sections.evaluate, precision="fp32")
        scope.sections = replace(scope.sections, evaluate=evaluate)
        promise_no_engine(scope, splits_of(scope.root))
        self.process: Process = make_process(scope, training=False)
        self._load()
        self.process.eval()
        self.module = _part_of(self.process.model, wanted.part)
        self.loader = make_loader(scope, self.split)

    def _load(self) -> None:
        from assay.engine.callbacks.ema import load_to_evaluate

        assert self.weights.path is not None
        load_to_evaluate(self.process, self.weights.path, self.weights.options)

    def write_model(self, scratch: Path) -> tuple[Interface, Parity, list[Path]]:
        """Write the files of the model, read them back, and compare."""
        from assay.engine.data.batches import size_of
        from assay.engine.export.interface import Hooks, find_interface

        first = next(iter(self._batches()), None)
        if first is None:
            raise InputError(
                f"The split {self.split} is empty: an export needs a real batch.",
                fix=f"Look at [data.{self.split}]; or name another with --split.",
            )
        takes_hooks = self.wanted.target != "safetensors" and not self.wanted.part
        hooks = Hooks.of(self.process) if takes_hooks else Hooks()
        interface = find_interface(self.process, self.module, first, hooks)
        split = self._split(only=size_of(first) if self.wanted.static else 0)
        surveyed, recorded = split.survey(interface)
        if not self.wanted.static:
            interface = surveyed
        files, runner = self._write(interface, scratch)
        return interface, split.compare(interface, runner, recorded, self.wanted.tolerance), files

    def _batches(self) -> Iterable[Any]:
        return islice(self.loader, self.wanted.batches) if self.wanted.batches else self.loader

    def _split(self, only: int) -> EvaluatedSplit:
        from assay.engine.export.parity import EvaluatedSplit

        pipes, metrics = evaluation_of(self.scope)
        options = {
            "split": self.split,
            "step": self.weights.step,
            "seed": self.scope.seed,
            "pipes": pipes,
            "metrics": metrics,
        }
        return EvaluatedSplit(self.process, self.module, self._batches, options, only)

    def _write(self, interface: Interface, scratch: Path) -> tuple[list[Path], Runner]:
        from assay.engine.export import program

        if self.wanted.target == "safetensors":
            with explain_disk_errors(self.place, _WHAT):
                files = program.write_weights(self.module, scratch)
            return files, program.run_weights(files[0], self._fresh_module(), interface)
        graph = program.trace_program(self.module, interface)
        if self.wanted.target == "onnx":
            with explain_disk_errors(self.place, _WHAT):
                files = program.write_onnx(graph, interface, scratch)
            return files, program.run_onnx(files[0], interface)
        with explain_disk_errors(self.place, _WHAT):
            files = program.write_program(graph, scratch)
        return files, program.run_program(files[0], interface)

    def _fresh_module(self) -> Any:
        """Return the exported module of a model that is built anew, with other weights."""
        config = self.scope.config
        with open_run_scope(config, Launch(device="cpu"), part="model") as scope:
            make_task(scope)
            return _part_of(scope.build("model"), self.wanted.part)

    def certify(self, parity: Parity, files: list[Path]) -> ExportCertificate:
        """Return the certificate of the written files."""
        wanted, path = self.wanted, self.weights.path
        outputs = parity.outputs.values()
        is_checkpoint = path is not None and (path / manifests.FILE_NAME).is_file()
        return ExportCertificate(
            run=self.view.id,
            checkpoint=path.name if path is not None else "",
            weights=manifests.read(path).digest if path is not None and is_checkpoint else "",
            target=wanted.target,
            files={file.name: sha256_of(file) for file in files},
            split=self.split,
            samples=parity.samples,
            is_whole=not wanted.batches and not parity.left_out,
            tolerance=wanted.tolerance,
            is_within=parity.calls > 0
            and all(each.is_within(wanted.tolerance) for each in outputs),
            outputs=parity.outputs,
            batch=parity.batch,
            why_alone=parity.why_alone,
            recorded=parity.recorded,
            exported=parity.exported,
            versions=_versions(wanted.target),
            at_ns=time.time_ns(),
        )

    def write_rest(
        self,
        scratch: Path,
        interface: Interface,
        schema: ExportSchema,
        certificate: ExportCertificate,
    ) -> None:
        """Write what lies beside the model."""
        from safetensors.torch import save

        # numpy: a check of a config has none
        from assay.report.model_card import make_export_readme

        batch = {f"input.{name}": tensor for name, tensor in interface.example.items()}
        batch |= {f"output.{name}": tensor for name, tensor in interface.expected.items()}
        view = self.view
        readme = make_export_readme(
            view,
            project_here(),
            certificate,
            schema,
            step=self.weights.step,
            why=self.weights.why,
            hooks=interface.hooks.names,
        )
        texts = {
            SCHEMA: dumps(schema, indent=2) + "\n",
            CERTIFICATE: dumps(certificate, indent=2) + "\n",
            "config.toml": view.config_text,
            "README.md": readme,
            "run_model.py": script_of(schema, self.wanted.target),
        }
        (scratch / EXAMPLE).write_bytes(
            save({name: tensor.contiguous().clone() for name, tensor in batch.items()})
        )
        for name, text in texts.items():
            (scratch / name).write_text(text, encoding="utf-8", errors="surrogateescape")


def _evaluated_split(scope: RunScope) -> str:
    """Return the split that the run evaluated; without one the test data."""
    _, evaluated = evaluation_plan(scope)
    tests = [name for name in splits_of(scope.root) if is_for_tests(name)]
    known = [name for name in [*evaluated, *tests] if name in splits_of(scope.root)]
    if known:
        return known[0]
    raise InputError(
        "The config has no data to compare the models on: neither evaluated nor test data.",
        where=str(scope.config.path or ""),
        fix="name a split with --split"
        + (f": {', '.join(splits_of(scope.root))}" if splits_of(scope.root) else ""),
    )


def _part_of(model: Model, part: str) -> Any:
    """Return a module of the model by its path, "" for the model itself."""
    modules = dict(model.named_modules())
    if part in modules:
        return modules[part]
    raise InputError(
        f"The model has no module `{part}`.", fix=choose(part, [n for n in modules if n], "it has")
    )


def _keep_verdict(
    view: RunView, weights: Weights, certificate: ExportCertificate, tell: Tell
) -> None:
    """Keep in the record what was found about an exported model."""
    verdict = Verdict(
        question="export",
        runs=(view.id,),
        equal=certificate.is_within,
        first_step=weights.step,
        last_step=weights.step,
        compared=len(certificate.outputs),
        at_ns=certificate.at_ns,
        note=f"{certificate.text}, sha256 {certificate.digest}",
    )
    keep_verdict(view.folder, verdict, tell)


def _schema_of(interface: Interface, model: str) -> ExportSchema:
    def describe(tensors: Any, axes: Any) -> tuple[TensorSchema, ...]:
        return tuple(
            TensorSchema(
                name=name,
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=tuple(
                    axes.get(name, {}).get(axis, length) for axis, length in enumerate(tensor.shape)
                ),
            )
            for name, tensor in tensors.items()
        )

    return ExportSchema(
        model=model,
        inputs=describe(interface.example, interface.axes),
        outputs=describe(interface.expected, interface.output_axes),
    )


def _versions(target: Target) -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in _PACKAGES[target]}
    return {"assay": version(), **found}
