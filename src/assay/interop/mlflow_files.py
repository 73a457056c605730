"""Reader of MLflow's runs in the folder `mlruns`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from assay.core.errors import InputError
from assay.core.regular_file import read_bytes
from assay.interop.foreign_run import (
    ForeignRun,
    ForeignSource,
    files_below,
    is_inside,
    read_file,
)
from assay.interop.mlflow_run import MlflowDataset, MlflowModel, MlflowRun, as_foreign_run
from assay.store.safe_path import safe_path

_MOST_YAML_BYTES = 1 << 20
_STATUS_NAMES = {"1": "RUNNING", "2": "SCHEDULED", "3": "FINISHED", "4": "FAILED", "5": "KILLED"}
_OF_A_DATASET = ("source_type", "source", "schema", "profile")


def runs_in_folder(folder: Path, root: Path) -> Iterator[tuple[int, ForeignSource]]:
    """Yield the runs of `mlruns`, of one experiment in it, or one, with the time it began in ms."""
    metas = [*folder.glob("meta.yaml"), *folder.glob("*/meta.yaml"), *folder.glob("*/*/meta.yaml")]
    for meta in sorted(metas):
        about = _flat_yaml(meta, root)
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
    return as_foreign_run(_from_files(folder, about, root), root)


def _from_files(folder: Path, about: Mapping[str, str], root: Path) -> MlflowRun:
    status = about.get("status", "")
    # The folder of the experiment is above that of a run which is given alone.
    store = folder.parent if folder == root else root
    experiment = _flat_yaml(folder.parent / "meta.yaml", store)
    kept = MlflowRun(
        about.get("run_id") or about["run_uuid"],
        about.get("run_name", ""),
        _STATUS_NAMES.get(status, status),
        _int(about.get("start_time")),
        _int(about.get("end_time")),
        experiment.get("name", ""),
        about.get("user_id", ""),
    )
    for values, part in ((kept.params, "params"), (kept.tags, "tags")):
        for name, path in files_below(folder / part, root, left_out=kept.warnings):
            values[name] = read_file(path).decode("utf-8", "replace")
    for name, path in files_below(folder / "metrics", root, left_out=kept.warnings):
        kept.metrics[name] = list(_points(path, kept.warnings))
    kept.artifacts = _own_folder(folder / "artifacts")
    kept.datasets = list(_datasets_in(folder, store))
    kept.models = list(_models_in(folder, kept.id, root, store, kept.warnings))
    return kept


def _own_folder(folder: Path) -> Path | None:
    return folder if folder.is_dir() and not folder.is_symlink() else None


def _datasets_in(folder: Path, store: Path) -> Iterator[MlflowDataset]:
    for meta in sorted(folder.glob("inputs/*/meta.yaml")):
        about = _flat_yaml(meta, store)
        if about.get("source_type") != "DATASET":
            continue
        with contextlib.suppress(InputError):
            place = safe_path(folder.parent / "datasets", about.get("source_id", ""))
            data = _flat_yaml(place / "meta.yaml", store)
            told = {key: data[key] for key in _OF_A_DATASET if key in data}
            tags = _table(about, "tags")
            yield MlflowDataset(data.get("name", ""), data.get("digest", ""), told, tags)


def _models_in(
    folder: Path, run_id: str, root: Path, store: Path, warnings: list[str]
) -> Iterator[MlflowModel]:
    links: dict[str, Path] = {}
    for meta in folder.glob("*puts/*/meta.yaml"):
        links[_flat_yaml(meta, store).get("source_id", "")] = meta
    for meta in sorted((folder.parent / "models").glob("*/meta.yaml")):
        about = _flat_yaml(meta, store)
        model_id = about.get("model_id", "")
        link = links.get(model_id)
        is_output = link is not None and link.parent.parent.name == "outputs"
        is_own = about.get("source_run_id") == run_id or is_output
        is_deleted = about.get("lifecycle_stage") == "deleted"
        if is_deleted or not (is_own or link is not None):
            continue
        step = 0 if link is None else _int(_flat_yaml(link, store).get("step"))
        role = "output" if is_own else "input"
        model = MlflowModel(
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
            first = first if lost else offset
            lost += 1
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


def _flat_yaml(path: Path, root: Path) -> dict[str, str]:
    """Return the scalars of a YAML file that MLflow wrote; keys of an inner table as `tags.key`.

    Null is left out, and so is all of a file that a link leads to out of `root`. Long scalars may
    be folded. The file is read without a library: nobody should have to install one to move away.
    """
    if not is_inside(os.path.realpath(root), path):
        return {}
    try:
        lines = (
            read_bytes(path, _MOST_YAML_BYTES, follow=True).decode("utf-8", "replace").splitlines()
        )
    except OSError:
        return {}
    folded: list[tuple[str, str]] = []
    above = ""
    for line in lines:
        found = _PLAIN_KEY.fullmatch(line)
        inner = _INNER_KEY.fullmatch(line)
        if found:
            above = found[1]
            folded.append((above, found[2] or ""))
        elif (
            inner
            and folded
            and (folded[-1] == (above, "") or folded[-1][0].startswith(f"{above}."))
        ):
            folded.append((f"{above}.{_unquote(inner[1])}", inner[2] or ""))
        elif folded and line.strip(" "):
            key, value = folded[-1]
            if value[:1] == '"' and value.endswith("\\"):
                joined = value[:-1] + line.lstrip(" ")  # a space at its begin is escaped
            else:
                space = "" if value.endswith("\n") else " "
                joined = f"{value}{space}{line.strip(' ')}"
            folded[-1] = key, joined
        elif folded:  # an empty line inside of a folded text is a line's end
            folded[-1] = folded[-1][0], folded[-1][1] + "\n"
    return {key: _unquote(value) for key, value in folded if value not in ("null", "~", "")}


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
    "N": "\x85",
    "_": "\xa0",
    "L": "\u2028",
    "P": "\u2029",
}
_ESCAPED = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)


def _unquote(value: str) -> str:
    if value[:1] == "'" and value[-1:] == "'":
        return value[1:-1].replace("''", "'")
    if value[:1] == '"' and value[-1:] == '"':
        return _ESCAPED.sub(_character_of, value[1:-1])
    return value


def _character_of(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) == 1:
        return _ESCAPES.get(code, code)
    number = int(code[1:], 16)
    return chr(number) if number < 0x110000 else "\ufffd"


def _int(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
