"""Run as MLflow keeps it, and as assay records it."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from assay.core.facts import EndStatus
from assay.formats.json_codec import parse_json
from assay.interop.foreign_run import (
    ForeignFile,
    ForeignRun,
    block_of,
    files_below,
    media_kind,
    ns_of,
)
from assay.interop.nested_keys import nest
from assay.store.series import Block

_MOST_TOLD = 4000
_MOST_PARAMS = 20_000
_STATUSES: Mapping[str, EndStatus] = {
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "stopped",
}
_STATUS_OF_MODELS = {"1": "pending", "2": "ready", "3": "failed"}
_CONTEXT = "mlflow.data.context"
_SYSTEM = "mlflow."
_NUMBER = re.compile(r"-?\d{1,20}(\.\d{1,20})?(e[+-]\d{1,3})?|-?inf|nan", re.ASCII)
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)


@dataclass(slots=True)
class MlflowDataset:
    """Data set of a run as MLflow was told of it; its use is the tag `mlflow.data.context`."""

    name: str
    digest: str
    about: dict[str, str]
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class MlflowModel:
    """A model that MLflow 3 keeps beside its run. `metrics` are the last values, by name."""

    id: str
    name: str
    status: str
    kind: str
    role: str
    step: int = 0
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    artifacts: Path | None = None


@dataclass(slots=True)
class MlflowRun:
    """Data that MLflow has of one run. Times in ms; metrics as (time, value, step)."""

    id: str
    name: str
    status: str
    start_ms: int
    end_ms: int
    experiment: str
    user: str
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, list[tuple[int, float, int]]] = field(default_factory=dict)
    datasets: list[MlflowDataset] = field(default_factory=list)
    models: list[MlflowModel] = field(default_factory=list)
    artifacts: Path | None = None
    warnings: list[str] = field(default_factory=list)


def as_foreign_run(kept: MlflowRun, root: Path) -> ForeignRun:
    warnings = list(kept.warnings)
    params = _first(kept.params, "parameters", warnings)
    tags = {key: value or "" for key, value in _first(kept.tags, "tags", warnings).items()}
    times_ns = [ns_of(at_ms / 1000) for points in kept.metrics.values() for at_ms, _, _ in points]
    created_ns = _ns(kept.start_ms) or min(times_ns, default=0)
    ended_ns = _ns(kept.end_ms) or max(times_ns, default=created_ns)
    status = _STATUSES.get(kept.status)
    reason = f"MLflow has no end of it: there it is {kept.status or 'without a status'}"
    source = tags.get("mlflow.source.name", "")
    user = tags.get("mlflow.user") or kept.user
    return ForeignRun(
        tag=kept.name or tags.get("mlflow.runName") or kept.id,
        desc=tags.get("mlflow.note.content", ""),
        config=nest({key: parameter_of(text) for key, text in params.items()}),
        values={
            **{key: text for key, text in tags.items() if not key.startswith(_SYSTEM)},
            **_told_of_datasets(kept.datasets),
            **_told_of_models(kept.models),
        },
        about={"id": kept.id, "experiment": kept.experiment},
        status=status or "stopped",
        reason="" if status else reason,
        parent=tags.get("mlflow.parentRunId", ""),
        created_ns=created_ns,
        ended_ns=max(created_ns, ended_ns),
        command=[source] if source else [],
        user="" if user == "unknown" else user,
        git_commit=tags.get("mlflow.source.git.commit", ""),
        blocks=[_curve(key, points) for key, points in kept.metrics.items()],
        files=[
            *_files(kept.artifacts, root, warnings),
            *_files_of_models(kept.models, root, warnings),
        ],
        warnings=warnings,
    )


def _curve(name: str, points: Sequence[tuple[int, float, int]]) -> Block:
    """Return a metric as a curve; a point is time in ms, value and step."""
    steps = [step for _, _, step in points]
    times_ns = [_ns(at_ms) for at_ms, _, _ in points]
    return block_of([name], steps, times_ns, [[value for _, value, _ in points]])


def _first(values: dict[str, str], what: str, warnings: list[str]) -> dict[str, str]:
    """As many as a record has room for."""
    if len(values) > _MOST_PARAMS:
        warnings.append(f"{len(values) - _MOST_PARAMS} of {len(values)} {what} were left out")
    return dict(islice(values.items(), _MOST_PARAMS))


def _told_of_datasets(datasets: list[MlflowDataset]) -> dict[str, Any]:
    """Return facts of the data sets by `dataset/<use>/<name>`, with the digest if repeated."""
    told: dict[str, Any] = {}
    for data in datasets:
        use = data.tags.get(_CONTEXT, "input")
        name = f"dataset/{use}/{data.name}"
        others = {key: value for key, value in data.tags.items() if not key.startswith(_SYSTEM)}
        about = {key: _json_or_text(text) for key, text in data.about.items()}
        told[name if name not in told else f"{name}@{data.digest}"] = {
            "digest": data.digest,
            **about,
            **others,
        }
    return told


def _told_of_models(models: list[MlflowModel]) -> dict[str, Any]:
    """Return what is known of the models, by `model/<name>`; of two of one name with the id."""
    told: dict[str, Any] = {}
    for model, name in _name_models(models):
        about: dict[str, Any] = {
            "id": model.id,
            "type": model.kind,
            "status": _STATUS_OF_MODELS.get(model.status, model.status),
        }
        about |= {"step": model.step} if model.role == "output" else {"role": "input"}
        parts = {
            "params": {key: parameter_of(text) for key, text in model.params.items()},
            "metrics": model.metrics,
            "tags": {key: text for key, text in model.tags.items() if not key.startswith(_SYSTEM)},
        }
        told[f"model/{name}"] = {
            key: value for key, value in {**about, **parts}.items() if value not in ("", {})
        }
    return told


def _files_of_models(
    models: list[MlflowModel], root: Path, warnings: list[str]
) -> Iterator[ForeignFile]:
    for model, name in _name_models(models):
        for file in _files(model.artifacts, root, warnings):
            yield replace(file, name=f"models/{name}/{file.name}", step=model.step)


def _name_models(models: list[MlflowModel]) -> Iterator[tuple[MlflowModel, str]]:
    names = Counter(model.name for model in models)
    return (
        (model, model.name if names[model.name] == 1 else f"{model.name}@{model.id}")
        for model in models
    )


def _json_or_text(text: str) -> Any:
    with contextlib.suppress(ValueError):
        if len(text) <= _MOST_TOLD:
            return parse_json(text)
    return text if len(text) <= _MOST_TOLD else f"{text[:_MOST_TOLD]}…"


def _files(folder: Path | None, root: Path, warnings: list[str]) -> Iterator[ForeignFile]:
    if folder is not None:
        for name, path in files_below(folder, root, left_out=warnings):
            yield ForeignFile(
                name=name, source=path, at_ns=path.stat().st_mtime_ns, kind=media_kind(name)
            )


def parameter_of(text: str) -> Any:
    """Return a parameter as it was before MLflow made text of it, where that is beyond doubt.

    A number is what Python writes so: `12e4567` is the digest of a commit, `1.10` a version.
    """
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    number = float(text) if _NUMBER.fullmatch(text) else None
    return number if number is not None and repr(number) == text else text


def _ns(ms: int) -> int:
    return ns_of(ms / 1000)
