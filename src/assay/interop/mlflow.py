"""Reader of MLflow: the folder `mlruns`, or an SQLite database such as `mlflow.db`."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from assay.core.errors import InputError, RecordError
from assay.core.event_log import EndStatus
from assay.core.json_codec import parse_json
from assay.core.regular_file import open_regular, read_bytes
from assay.interop.foreign_run import (
    ForeignFile,
    ForeignRun,
    ForeignSource,
    curve,
    files_below,
    kind_of,
    ns_of,
    read_file,
)
from assay.interop.nested_keys import nested
from assay.store.safe_path import safe_path
from assay.store.series import Block

_MOST_YAML_BYTES = 1 << 20
_MOST_TOLD = 4000
_MOST_CELL_BYTES = 64 << 20
_MOST_PARAMS = 20_000
_STEPS_A_TURN = 10_000
_LEAST_TURNS = 5_000  # fifty million steps of SQLite: a second or two
_TURNS_PER_BYTE = 20
_MAX_FLOAT = sys.float_info.max
_STATUS_NAMES = {"1": "RUNNING", "2": "SCHEDULED", "3": "FINISHED", "4": "FAILED", "5": "KILLED"}
_STATUSES: Mapping[str, EndStatus] = {
    "FINISHED": "finished",
    "FAILED": "failed",
    "KILLED": "stopped",
}
_TABLES = {"experiments", "runs", "metrics", "params", "tags"}
_SUFFIXES = {".db", ".sqlite", ".sqlite3"}
_TABLES_OF_3 = {"inputs", "input_tags", "datasets", "logged_models", "logged_model_metrics"}
_TABLES_OF_3 |= {"logged_model_params", "logged_model_tags"}
_NAMES_OF_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"
_OF_A_DATASET = ("source_type", "source", "schema", "profile")
_STATUS_OF_MODELS = {"1": "pending", "2": "ready", "3": "failed"}
_CONTEXT = "mlflow.data.context"
_SYSTEM = "mlflow."
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")


@dataclass(slots=True)
class _Dataset:
    """Data that went into a run: what MLflow was told of them. `tags` say what for, as
    `mlflow.data.context`."""

    name: str
    digest: str
    about: dict[str, str]
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Model:
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
class _MlflowFile:
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
    datasets: list[_Dataset] = field(default_factory=list)
    models: list[_Model] = field(default_factory=list)
    artifacts: Path | None = None
    warnings: list[str] = field(default_factory=list)


def find(root: Path) -> list[ForeignSource]:
    """Return the runs of `root`, the oldest first: of a database, `mlruns`, or a folder with them.

    InputError when there are none. Runs that were deleted in MLflow are not among them.
    """
    base = root if root.is_dir() else root.parent
    databases = [
        path
        for path in _candidates(root)
        if _is_ours(path, is_meant=path in (root, root / "mlflow.db"))
    ]
    found = [run for path in databases for run in _in_database(path, base)]
    found += [
        run
        for folder in (root, root / "mlruns")
        if folder.is_dir()
        for run in _in_files(folder, root)
    ]
    if not found:
        raise _nothing(root, databases)
    once = {run.key: (start_ms, run) for start_ms, run in reversed(found)}
    return [run for _, run in sorted(once.values(), key=lambda each: each[0])]


def _nothing(root: Path, databases: list[Path]) -> InputError:
    if databases:
        return InputError("This database of MLflow has no runs.", where=str(databases[0]))
    beside = root.parent / "mlflow.db" if root.name == "mlruns" else None
    fix = (
        "It is `mlflow.db`, another database of SQLite, or `mlruns` with a meta.yaml in the "
        "folder of each run"
    )
    if beside is not None and beside.is_file():
        fix = f"its runs are in {beside}: give the folder that holds both"
    return InputError("There are no runs of MLflow in this place.", where=str(root), fix=fix)


# ------------------------------------------------------------------------------------- the database


def _candidates(root: Path) -> list[Path]:
    if root.is_dir():
        return sorted(
            path for path in root.iterdir() if path.suffix in _SUFFIXES and path.is_file()
        )
    return [root]


def _is_ours(path: Path, *, is_meant: bool) -> bool:
    try:
        with _opened(path) as database:
            return {name for (name,) in database.execute(_NAMES_OF_TABLES)} >= _TABLES
    except (OSError, sqlite3.Error) as error:
        if is_meant and path.stat().st_size:
            raise InputError(
                f"This is no database that can be read: {error}.", where=str(path)
            ) from error
        return False


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the database read-only, so that a running MLflow does not notice.

    A table that is none, or a page that leads back to itself, would be read without end: the work
    stays in proportion to the file.
    """
    os.close(open_regular(path, follow=True))  # SQLite would wait for ever at a named pipe
    database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)
    database.text_factory = lambda data: data.decode("utf-8", "replace")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_CELL_BYTES)
    turns = _LEAST_TURNS + _TURNS_PER_BYTE * path.stat().st_size // _STEPS_A_TURN
    database.set_progress_handler(Countdown(turns), _STEPS_A_TURN)
    try:
        yield database
    finally:
        database.close()


def _in_database(path: Path, base: Path) -> Iterator[tuple[int, ForeignSource]]:
    query = """SELECT r.run_uuid, r.name, r.start_time FROM runs r
        WHERE r.lifecycle_stage IS NOT 'deleted'"""
    try:
        with _opened(path) as database:
            rows = database.execute(query).fetchall()
    except sqlite3.Error as error:
        raise InputError(f"The database cannot be read: {error}.", where=str(path)) from error
    for run_id, name, start_ms in rows:
        yield (
            start_ms or 0,
            ForeignSource(
                tool="mlflow",
                key=str(run_id),
                name=str(name or run_id),
                path=path,
                read=partial(_read_database, path, base, run_id),
            ),
        )


def _read_database(path: Path, base: Path, run_id: str) -> ForeignRun:
    try:
        with _opened(path) as database:
            return _in_our_terms(_rows_of(database, base, run_id), base)
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"The database cannot be read: {error}.", where=str(path)) from error


def _rows_of(database: sqlite3.Connection, base: Path, run_id: str) -> _MlflowFile:
    query = """SELECT r.name, r.status, r.start_time, r.end_time, r.user_id, r.artifact_uri,
        r.experiment_id, e.name
        FROM runs r LEFT JOIN experiments e ON e.experiment_id = r.experiment_id
        WHERE r.run_uuid = ?"""
    name, status, start, end, user, uri, number, experiment = database.execute(
        query, (run_id,)
    ).fetchone()
    kept = _MlflowFile(
        run_id, name or "", status or "", start or 0, end or 0, experiment or "", user or ""
    )
    for table, values in (("params", kept.params), ("tags", kept.tags)):
        values.update(
            database.execute(
                f"SELECT key, value FROM {table} WHERE run_uuid = ?", (run_id,)
            ).fetchall()
        )
    query = (
        "SELECT key, timestamp, value, step, is_nan FROM metrics WHERE run_uuid = ? ORDER BY rowid"
    )
    for key, at_ms, value, step, is_nan in database.execute(query, (run_id,)):
        kept.metrics.setdefault(key, []).append((at_ms, _as_it_was(value, bool(is_nan)), step))
    kept.artifacts = _artifacts_of(
        str(uri or ""), base, [str(number), run_id, "artifacts"], kept.warnings
    )
    if {name for (name,) in database.execute(_NAMES_OF_TABLES)} >= _TABLES_OF_3:
        kept.datasets = list(_datasets_of(database, run_id))
        kept.models = list(_models_of(database, base, run_id, kept.warnings))
    return kept


def _datasets_of(database: sqlite3.Connection, run_id: str) -> Iterator[_Dataset]:
    query = """SELECT i.input_uuid, d.name, d.digest, d.dataset_source_type, d.dataset_source,
        d.dataset_schema,
        d.dataset_profile FROM inputs i JOIN datasets d ON d.dataset_uuid = i.source_id
        WHERE i.source_type = 'DATASET' AND i.destination_id = ? ORDER BY i.rowid"""
    for input_id, name, digest, *about in database.execute(query, (run_id,)).fetchall():
        tags = database.execute(
            "SELECT name, value FROM input_tags WHERE input_uuid = ?", (input_id,)
        ).fetchall()
        told = {
            key: str(value)
            for key, value in zip(_OF_A_DATASET, about, strict=True)
            if value is not None
        }
        yield _Dataset(
            str(name), str(digest), told, {str(key): str(value or "") for key, value in tags}
        )


def _models_of(
    database: sqlite3.Connection, base: Path, run_id: str, warnings: list[str]
) -> Iterator[_Model]:
    query = """SELECT m.model_id, m.name, m.status, m.model_type, m.artifact_location,
        m.experiment_id,
        (SELECT i.step FROM inputs i WHERE i.destination_id = m.model_id AND i.source_id = :run
         AND i.destination_type = 'MODEL_OUTPUT'),
        m.source_run_id = :run OR m.model_id IN (SELECT destination_id FROM inputs
            WHERE source_id = :run AND destination_type = 'MODEL_OUTPUT')
        FROM logged_models m WHERE m.lifecycle_stage IS NOT 'deleted'
            AND (m.source_run_id = :run OR m.model_id IN
            (SELECT destination_id FROM inputs WHERE source_id = :run
             AND destination_type IN ('MODEL_OUTPUT', 'MODEL_INPUT'))) ORDER BY m.rowid"""
    for model_id, name, status, kind, uri, number, step, is_own in database.execute(
        query, {"run": run_id}
    ).fetchall():
        model = _Model(
            str(model_id),
            str(name),
            str(status),
            str(kind or ""),
            "output" if is_own else "input",
            step or 0,
        )
        for table, values in (("param", model.params), ("tag", model.tags)):
            told = (
                f"SELECT {table}_key, {table}_value FROM logged_model_{table}s WHERE model_id = ?"
            )
            values.update(
                (str(key), str(value or "")) for key, value in database.execute(told, (model_id,))
            )
        told = (
            "SELECT metric_name, metric_value FROM logged_model_metrics WHERE model_id = ? ORDER "
            "BY metric_timestamp_ms"
        )
        model.metrics.update(
            (str(key), float(value)) for key, value in database.execute(told, (model_id,))
        )
        if is_own:
            usual = [str(number), "models", str(model_id), "artifacts"]
            model.artifacts = _artifacts_of(str(uri or ""), base, usual, warnings)
        yield model


def _as_it_was(value: float, is_nan: bool) -> float:
    """The database has no infinity: MLflow writes the largest number in its place."""
    if is_nan:
        return float("nan")
    if abs(value) >= _MAX_FLOAT:
        return float("inf") if value > 0 else float("-inf")
    return float(value)


def _artifacts_of(uri: str, base: Path, usual: list[str], warnings: list[str]) -> Path | None:
    """Return the folder of the artifacts: as MLflow wrote it, or beside a store that was moved."""
    scheme = urlsplit(uri).scheme
    if scheme not in ("", "file", "mlflow-artifacts") and not os.path.isabs(uri):
        warnings.append(f"Its artifacts are not here but at {uri}; they were not copied")
        return None
    given = (
        Path(unquote(urlsplit(uri).path) if scheme == "file" else uri)
        if scheme != "mlflow-artifacts"
        else None
    )
    if given is not None and uri and given.is_dir():
        if os.path.commonpath(
            [os.path.realpath(base), os.path.realpath(given)]
        ) == os.path.realpath(base):
            return given
        warnings.append(
            f"Its artifacts are in {given}, outside of the folder that was given; they were not "
            "copied"
        )
        return None
    for above in ("mlruns", "mlartifacts", "."):
        with contextlib.suppress(InputError):
            place = safe_path(base / above, "/".join(usual))
            if place.is_dir() and not place.is_symlink():
                return place
    return None


class Countdown:
    """A handler for SQLite that ends what takes more than so many turns."""

    def __init__(self, turns: int) -> None:
        self.left = turns

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


# ---------------------------------------------------------------------------------------- the files


def _in_files(folder: Path, root: Path) -> Iterator[tuple[int, ForeignSource]]:
    """The runs of `mlruns`, of one experiment in it, or one run."""
    metas = [*folder.glob("meta.yaml"), *folder.glob("*/meta.yaml"), *folder.glob("*/*/meta.yaml")]
    for meta in sorted(metas):
        about = _flat_yaml(meta)
        run_id = about.get("run_id") or about.get("run_uuid")
        if not run_id or about.get("lifecycle_stage") == "deleted":
            continue
        name = about.get("run_name") or run_id
        read = partial(_read_files, meta.parent, about, root)
        yield (
            _int(about.get("start_time")),
            ForeignSource(tool="mlflow", key=run_id, name=name, path=meta.parent, read=read),
        )


def _read_files(folder: Path, about: Mapping[str, str], root: Path) -> ForeignRun:
    return _in_our_terms(_from_files(folder, about, root), root)


def _from_files(folder: Path, about: Mapping[str, str], root: Path) -> _MlflowFile:
    kept = _MlflowFile(
        about.get("run_id") or about["run_uuid"],
        about.get("run_name", ""),
        _STATUS_NAMES.get(about.get("status", ""), about.get("status", "")),
        _int(about.get("start_time")),
        _int(about.get("end_time")),
        _flat_yaml(folder.parent / "meta.yaml").get("name", ""),
        about.get("user_id", ""),
    )
    for values, part in ((kept.params, "params"), (kept.tags, "tags")):
        for name, path in files_below(folder / part, root, left_out=kept.warnings):
            values[name] = read_file(path).decode("utf-8", "replace")
    for name, path in files_below(folder / "metrics", root, left_out=kept.warnings):
        kept.metrics[name] = list(_points(path, kept.warnings))
    kept.artifacts = _own_folder(folder / "artifacts")
    kept.datasets = list(_datasets_in(folder))
    kept.models = list(_models_in(folder, kept.id, root, kept.warnings))
    return kept


def _own_folder(folder: Path) -> Path | None:
    return folder if folder.is_dir() and not folder.is_symlink() else None


def _datasets_in(folder: Path) -> Iterator[_Dataset]:
    for meta in sorted(folder.glob("inputs/*/meta.yaml")):
        about = _flat_yaml(meta)
        if about.get("source_type") != "DATASET":
            continue
        with contextlib.suppress(InputError):
            data = _flat_yaml(
                safe_path(folder.parent / "datasets", about.get("source_id", "")) / "meta.yaml"
            )
            told = {key: data[key] for key in _OF_A_DATASET if key in data}
            yield _Dataset(
                data.get("name", ""), data.get("digest", ""), told, _table(about, "tags")
            )


def _models_in(folder: Path, run_id: str, root: Path, warnings: list[str]) -> Iterator[_Model]:
    links = {
        _flat_yaml(meta).get("source_id", ""): meta for meta in folder.glob("*puts/*/meta.yaml")
    }
    for meta in sorted((folder.parent / "models").glob("*/meta.yaml")):
        about = _flat_yaml(meta)
        model_id = about.get("model_id", "")
        is_own = about.get("source_run_id") == run_id or (
            model_id in links and links[model_id].parent.parent.name == "outputs"
        )
        if about.get("lifecycle_stage") == "deleted" or not (is_own or model_id in links):
            continue
        step = _int(_flat_yaml(links[model_id]).get("step")) if model_id in links else 0
        role = "output" if is_own else "input"
        model = _Model(
            model_id,
            about.get("name", ""),
            about.get("status", ""),
            about.get("model_type", ""),
            role,
            step,
        )
        for values, part in ((model.params, "params"), (model.tags, "tags")):
            for name, path in files_below(meta.parent / part, root, left_out=warnings):
                values[name] = read_file(path).decode("utf-8", "replace")
        for name, path in files_below(meta.parent / "metrics", root, left_out=warnings):
            model.metrics.update((name, value) for _, value, _ in _points(path, warnings))
        if is_own:
            model.artifacts = _own_folder(meta.parent / "artifacts")
        yield model


def _points(path: Path, warnings: list[str]) -> Iterator[tuple[int, float, int]]:
    """Lines of time, value and step. A line that is cut off is told with its place."""
    offset, lost, first = 0, 0, 0
    for line in read_file(path).splitlines(keepends=True):
        parts = line.split()
        try:
            if parts:
                yield int(parts[0]), float(parts[1]), _step(parts[2]) if len(parts) > 2 else 0
        except (ValueError, IndexError):
            first, lost = first if lost else offset, lost + 1
        offset += len(line)
    if lost:
        more = f", and {lost - 1} more lines are damaged" if lost > 1 else ""
        warnings.append(f"{path}: a line is no point at byte {first}{more}")


def _step(text: bytes) -> int:
    step = int(text)
    if not -(1 << 63) <= step < 1 << 63:
        raise ValueError(step)
    return step


def _table(about: Mapping[str, str], name: str) -> dict[str, str]:
    return {
        key[len(name) + 1 :]: value for key, value in about.items() if key.startswith(f"{name}.")
    }


_INNER_KEY = re.compile(r"  ((?!- )[^\s'\"][^:]*|'[^']*'|\"[^\"]*\"):(?: (.*))?")
_PLAIN_KEY = re.compile(r"([A-Za-z_][\w.]*):(?: (.*))?")


def _flat_yaml(path: Path) -> dict[str, str]:
    """The keys of a file that MLflow wrote: scalars, long ones folded; those of an inner table as
    `tags.key`.

    Null is left out.

    Read without a library: nobody should have to install one to move away.
    """
    try:
        lines = (
            read_bytes(path, _MOST_YAML_BYTES, follow=True).decode("utf-8", "replace").splitlines()
        )
    except OSError:
        return {}
    folded: list[tuple[str, str]] = []
    above = ""
    for line in lines:
        found, inner = _PLAIN_KEY.fullmatch(line), _INNER_KEY.fullmatch(line)
        if found:
            above = found[1]
            folded.append((above, found[2] or ""))
        elif (
            inner
            and folded
            and (folded[-1] == (above, "") or folded[-1][0].startswith(f"{above}."))
        ):
            folded.append((f"{above}.{_unquoted(inner[1])}", inner[2] or ""))
        elif folded and line.strip():
            key, value = folded[-1]
            joined = (
                value[:-1] + line.lstrip().removeprefix("\\")
                if value.endswith("\\")
                else f"{value} {line.strip()}"
            )
            folded[-1] = key, joined
        elif folded:  # an empty line inside of a folded text is a line's end
            folded[-1] = folded[-1][0], folded[-1][1] + "\n"
    return {key: _unquoted(value) for key, value in folded if value not in ("null", "~", "")}


_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "f": "\f",
    "v": "\v",
}
_ESCAPED = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)


def _unquoted(value: str) -> str:
    if value[:1] == "'" and value[-1:] == "'":
        return value[1:-1].replace("''", "'")
    if value[:1] == '"' and value[-1:] == '"':
        return _ESCAPED.sub(_escaped, value[1:-1])
    return value


def _escaped(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) == 1:
        return _ESCAPES.get(code, code)
    number = int(code[1:], 16)
    return chr(number) if number < 0x110000 else "\ufffd"


# --------------------------------------------------------------------------------- in our own terms


def _in_our_terms(kept: _MlflowFile, root: Path) -> ForeignRun:
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
        config=nested({key: _value(text) for key, text in params.items()}),
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
        blocks=[_curve(i, key, points) for i, (key, points) in enumerate(kept.metrics.items())],
        files=[
            *_files(kept.artifacts, root, warnings),
            *_files_of_models(kept.models, root, warnings),
        ],
        warnings=warnings,
    )


def _curve(number: int, name: str, points: Sequence[tuple[int, float, int]]) -> Block:
    """Return a metric as a curve; a point is time in ms, value and step."""
    steps = [step for _, _, step in points]
    times_ns = [_ns(at_ms) for at_ms, _, _ in points]
    return curve(number, name, steps, times_ns, [value for _, value, _ in points])


def _first(values: dict[str, str], what: str, warnings: list[str]) -> dict[str, str]:
    """As many as a record has room for."""
    if len(values) > _MOST_PARAMS:
        warnings.append(f"{len(values) - _MOST_PARAMS} of {len(values)} {what} were left out")
    return dict(islice(values.items(), _MOST_PARAMS))


def _told_of_datasets(datasets: list[_Dataset]) -> dict[str, Any]:
    """Return what is known of the data, by `dataset/<what for>/<name>`; of two of one name with the
    digest."""
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


def _told_of_models(models: list[_Model]) -> dict[str, Any]:
    """Return what is known of the models, by `model/<name>`; of two of one name with the id."""
    told: dict[str, Any] = {}
    for model, name in _named(models):
        about: dict[str, Any] = {
            "id": model.id,
            "type": model.kind,
            "status": _STATUS_OF_MODELS.get(model.status, model.status),
        }
        about |= {"step": model.step} if model.role == "output" else {"role": "input"}
        parts = {
            "params": {key: _value(text) for key, text in model.params.items()},
            "metrics": model.metrics,
            "tags": {key: text for key, text in model.tags.items() if not key.startswith(_SYSTEM)},
        }
        told[f"model/{name}"] = {
            key: value for key, value in {**about, **parts}.items() if value not in ("", {})
        }
    return told


def _files_of_models(
    models: list[_Model], root: Path, warnings: list[str]
) -> Iterator[ForeignFile]:
    for model, name in _named(models):
        for file in _files(model.artifacts, root, warnings):
            yield replace(file, name=f"models/{name}/{file.name}", step=model.step)


def _named(models: list[_Model]) -> Iterator[tuple[_Model, str]]:
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
                name=name, source=path, at_ns=path.stat().st_mtime_ns, kind=kind_of(name)
            )


def _value(text: str) -> Any:
    """A parameter as it was before MLflow made text of it, where that is beyond doubt."""
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    is_number = _NUMBER.fullmatch(text) and not text.lstrip("+-").isdigit()
    return float(text) if is_number and not re.match(r"[+-]?0\d", text) else text


def _ns(ms: int) -> int:
    return ns_of(ms / 1000)


def _int(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
