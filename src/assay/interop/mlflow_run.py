"""Run as MLflow's library gives it, as assay records it."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from assay.core.errors import InputError
from assay.core.facts import EndStatus
from assay.formats.json_codec import parse_json
from assay.interop.foreign_run import (
    ForeignFile,
    ForeignRun,
    block_of,
    files_below,
    is_inside,
    media_kind,
    ns_of,
)
from assay.interop.nested_keys import nest
from assay.store.safe_path import safe_path
from assay.store.series import Block

_MOST_TOLD = 4000
_MOST_PARAMS = 20_000
_STATUSES: Mapping[str, EndStatus] = {
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "stopped",
}
_CONTEXT = "mlflow.data.context"
_SYSTEM = "mlflow."
_OF_A_DATASET = ("source_type", "source", "schema", "profile")
_NUMBER = re.compile(r"-?\d{1,20}(\.\d{1,20})?(e[+-]\d{1,3})?|-?inf|nan", re.ASCII)
_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Model:
    """Model of MLflow 3 that a run made or took in; `step` is that of a run that made it."""

    model: Any
    name: str
    step: int | None


def as_foreign_run(store: Any, run: Any, base: Path) -> ForeignRun:
    warnings: list[str] = []
    info = run.info
    tags = {key: str(value or "") for key, value in run.data.tags.items()}
    params = _first(run.data.params, "parameters", warnings)
    models = _models_of(store, run, warnings)
    blocks = [_curve(store, info.run_id, key) for key in run.data.metrics]
    times_ns = [
        int(at_ns) for block in blocks for at_ns in (min(block.times_ns), max(block.times_ns))
    ]
    created_ns = _ns(info.start_time) or min(times_ns, default=0)
    ended_ns = _ns(info.end_time) or max(times_ns, default=created_ns)
    status = _STATUSES.get(info.status)
    source = tags.get("mlflow.source.name", "")
    user = tags.get("mlflow.user") or info.user_id
    usual = [info.experiment_id, info.run_id, "artifacts"]
    kept = _artifacts_of(info.artifact_uri, base, usual, warnings)
    return ForeignRun(
        tag=info.run_name or info.run_id,
        desc=tags.get("mlflow.note.content", ""),
        config=nest({key: parameter_of(text) for key, text in params.items()}),
        values={
            **_own(_first(tags, "tags", warnings)),
            **_describe_datasets(run.inputs.dataset_inputs if run.inputs else []),
            **{f"model/{each.name}": _describe_model(each) for each in models},
        },
        about={
            "id": info.run_id,
            "experiment": store.get_experiment(info.experiment_id).name,
        },
        status=status or "stopped",
        reason="" if status else f"MLflow has no end of it: there it is {info.status}",
        parent=tags.get("mlflow.parentRunId", ""),
        created_ns=created_ns,
        ended_ns=max(created_ns, ended_ns),
        command=[source] if source else [],
        user="" if user in ("unknown", None) else user,
        git_commit=tags.get("mlflow.source.git.commit", ""),
        blocks=blocks,
        files=[
            *_files(kept, base, warnings),
            *_files_of_models(models, base, warnings),
        ],
        warnings=warnings,
    )


def _curve(store: Any, run_id: str, name: str) -> Block:
    points = store.get_metric_history(run_id, name)
    steps = [point.step for point in points]
    times_ns = [_ns(point.timestamp) for point in points]
    return block_of([name], steps, times_ns, [[_as_logged(point.value) for point in points]])


def _as_logged(value: float) -> float:
    """The databases of MLflow have no infinity: the largest number stands for it."""
    if abs(value) >= sys.float_info.max:
        return math.copysign(math.inf, value)
    return value


def _first(values: Mapping[str, str], what: str, warnings: list[str]) -> dict[str, str]:
    """As many as a record has room for."""
    if len(values) > _MOST_PARAMS:
        warnings.append(f"{len(values) - _MOST_PARAMS} of {len(values)} {what} were left out")
    return dict(islice(values.items(), _MOST_PARAMS))


def _own(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that are not MLflow's."""
    return {key: text for key, text in tags.items() if not key.startswith(_SYSTEM)}


def _describe_datasets(inputs: Sequence[Any]) -> dict[str, Any]:
    """Return facts of the data sets by `dataset/<use>/<name>`, with the digest if repeated."""
    facts: dict[str, Any] = {}
    for each in inputs:
        data = each.dataset
        tags = {tag.key: tag.value for tag in each.tags}
        name = f"dataset/{tags.get(_CONTEXT, 'input')}/{data.name}"
        about = {
            key: _json_or_text(value)
            for key in _OF_A_DATASET
            if (value := getattr(data, key)) is not None
        }
        facts[name if name not in facts else f"{name}@{data.digest}"] = {
            "digest": data.digest,
            **about,
            **_own(tags),
        }
    return facts


def _models_of(store: Any, run: Any, warnings: list[str]) -> list[_Model]:
    """Return the models that the run made, and those that it took in."""
    made = {each.model_id: each.step for each in (run.outputs.model_outputs if run.outputs else [])}
    taken = [each.model_id for each in (run.inputs.model_inputs if run.inputs else [])]
    own = _models_made_by(store, run.info)
    made = {**dict.fromkeys(own, 0), **made}
    models = dict(own)
    for model_id in (*made, *taken):
        if model_id not in models:
            try:
                models[model_id] = store.get_logged_model(model_id)
            except Exception as error:  # a model that was deleted since
                warnings.append(f"A model of the run is left out: {error}")
    names = Counter(model.name for model in models.values())
    return [
        _Model(
            model,
            model.name if names[model.name] == 1 else f"{model.name}@{model_id}",
            made.get(model_id),
        )
        for model_id, model in models.items()
    ]


def _models_made_by(store: Any, info: Any) -> dict[str, Any]:
    wanted = f"source_run_id = '{info.run_id}'"
    found = store.search_logged_models([info.experiment_id], filter_string=wanted)
    return {model.model_id: model for model in found}


def _describe_model(each: _Model) -> dict[str, Any]:
    model = each.model
    about: dict[str, Any] = {
        "id": model.model_id,
        "type": model.model_type or "",
        "status": str(model.status).lower(),
    }
    about |= {"role": "input"} if each.step is None else {"step": each.step}
    about |= {
        "params": {key: parameter_of(text) for key, text in model.params.items()},
        "metrics": {metric.key: metric.value for metric in model.metrics or ()},
        "tags": _own(model.tags),
    }
    return {key: value for key, value in about.items() if value not in ("", {})}


def _files_of_models(
    models: Sequence[_Model], base: Path, warnings: list[str]
) -> Iterator[ForeignFile]:
    for each in models:
        if each.step is not None:
            usual = [each.model.experiment_id, "models", each.model.model_id, "artifacts"]
            kept = _artifacts_of(each.model.artifact_location, base, usual, warnings)
            for file in _files(kept, base, warnings):
                yield replace(file, name=f"models/{each.name}/{file.name}", step=each.step)


def _files(folder: Path | None, base: Path, warnings: list[str]) -> Iterator[ForeignFile]:
    if folder is not None:
        for name, path in files_below(folder, base, left_out=warnings):
            yield ForeignFile(
                name=name, source=path, at_ns=path.stat().st_mtime_ns, kind=media_kind(name)
            )


def _artifacts_of(uri: str, base: Path, usual: list[str], warnings: list[str]) -> Path | None:
    """Return the folder of the artifacts: as MLflow wrote it, or beside a store that was moved."""
    uri = uri or ""
    scheme = urlsplit(uri).scheme
    if scheme not in ("", "file", "mlflow-artifacts") and not os.path.isabs(uri):
        warnings.append(f"Its artifacts are not here but at {uri}; they were not copied")
        return None
    given = Path(unquote(urlsplit(uri).path) if scheme == "file" else uri)
    if uri and scheme != "mlflow-artifacts" and given.is_dir():
        if is_inside(os.path.realpath(base), given):
            return given
        warnings.append(
            f"Its artifacts are in {given}, outside of the folder that was given; they were not "
            "copied"
        )
        return None
    for above in ("mlruns", "mlartifacts", "."):
        with contextlib.suppress(InputError):
            place = safe_path(base / above, "/".join(map(str, usual)))
            if place.is_dir() and not place.is_symlink():
                return place
    return None


def _json_or_text(text: str) -> Any:
    with contextlib.suppress(ValueError):
        if len(text) <= _MOST_TOLD:
            return parse_json(text)
    return text if len(text) <= _MOST_TOLD else f"{text[:_MOST_TOLD]}…"


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


def _ns(ms: int | None) -> int:
    return ns_of((ms or 0) / 1000)
