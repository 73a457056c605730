"""Files of others are opened by one door, `core.regular_file`: no pipe, and nothing huge."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from assay.core.errors import AssayError
from assay.engine.checkpoint.tensor_file import read_header, read_slices, read_tensors
from assay.engine.checkpoint.weight_mapping import read_arrays
from assay.engine.checkpoint.weights import read_foreign
from assay.formats.onnx_model import open_onnx
from assay.report.figure import redo_figure

SOURCE = Path(__file__).resolve().parents[2] / "src" / "assay"

READERS = {"read_text", "read_bytes", "load_file", "safe_open"}
"""Methods and functions that open a file by its path, whatever it is."""
OPENERS = {
    *("torch.load", "np.load", "tarfile.open", "ZipFile", "zipfile.ZipFile", "gzip.open"),
    *("io.open", "sqlite3.connect", "h5py.File", "Image.open", "wave.open"),
}
DOORS = ("open_regular(", "_opened_file(", "create_file(", "os.devnull")

EXCEPTIONS = {
    # What the kernel tells of this machine and of its OS processes.
    "core/processes.py": {"state_and_group"},
    "engine/callbacks/resources.py": {"_process_bytes", "Profile.end"},
    "formats/lease.py": {"process_start", "_boot_id"},
    "jobs/devices.py": {"driver_uuids"},
    "record/environment.py": {"gpus"},
    "store/mounts.py": {"filesystem_type"},
    # What this OS process, or one that it started, has just written for itself.
    "compat/alchemy/plugins.py": {"DisplayRunningInfo.begin"},
    "compat/parts/torch_file.py": {"write_torch_file"},
    "compat/thexp/saver.py": {"TorchFileSaver.load_info"},
    "engine/parallel/rank_folder.py": {"RankFolder.given_order", "read_if_there"},
    "jobs/backends/ray.py": {"_status"},
    "jobs/study.py": {"_cut_torn_line"},
    "proof/scratch_project.py": {"last_lines"},
    "record/media.py": {"wav"},
    "record/redaction.py": {"clean_file"},
    "interop/mlflow.py": {"_runs_in_database"},
    # The user's own key, secret, caches and lists, in a folder that is closed to others.
    "store/authorship.py": {"_read"},
    "store/index_database.py": {"open_database"},
    "store/job_journal.py": {"JobJournal.__init__"},
    "web/access.py": {"read_token"},
    # Data, code and configs that the user names or imports, which run as the user.
    "cli/run.py": {"_refuse_script"},
    "compat/__main__.py": {"_read"},
    "compat/alchemy/runner.py": {"prepare_cfg"},
    "compat/parts/features.py": {"_key", "_digest"},
    "compat/parts/images.py": {"_read", "_idx"},
    "compat/parts/masked_text.py": {"_pairs"},
    "compat/parts/text.py": {"_read_columns", "_read_mappings", "WordPieces.__init__"},
    "compat/pasted.py": {"imported_texts"},
    "config/params/files.py": {"read"},
    "config/sources/ini.py": {"_IniReader.read"},
    "engine/checkpoint/weight_mapping.py": {"_table", "_read_npz", "_read_hdf5"},
    "interop/mlflow.py ": {"_open_read_only"},
    "record/artifact_source.py": {"_keep_folder"},  # of what `is_file` is true for
    "record/outside_inputs.py": {"OutsideInputs._digest", "_read"},
    "record/snapshot.py": {"_Keeper._read_clean"},  # no link, of what a scan found to be a file
    # Libraries that `report_unreadable` lets open what it has looked at.
    "engine/checkpoint/folder.py": {"refuse_damaged"},
    "engine/checkpoint/tensor_file.py": {"read_tensors", "read_header", "read_slices"},
    "engine/checkpoint/weights.py": {"_unpickle"},
    # The page itself.
    "web/pages.py": {"Files.read", "_file"},
}
"""Functions that open files otherwise, by module, and why they may."""


def opened(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield function and text of each call that opens a file for reading by its path."""

    def walk(node: ast.AST, where: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            inside = where
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inside = f"{where}.{child.name}".lstrip(".")
            if isinstance(child, ast.Call) and is_reading(child):
                yield inside, ast.unparse(child)
            yield from walk(child, inside)

    return walk(tree, "")


def is_reading(call: ast.Call) -> bool:
    text = ast.unparse(call)
    if any(door in text for door in (*DOORS, "fileobj=")):
        return False
    name = ast.unparse(call.func)
    last = name.rpartition(".")[2]
    if name in ("open", "Path.open") or (last == "open" and has_mode(call)):
        return not any(letter in mode_of(call) for letter in "wxa")
    is_of_door = isinstance(call.func, ast.Name) and last in ("read_bytes", "read_text")
    return name in OPENERS or (last in READERS and not is_of_door)


def has_mode(call: ast.Call) -> bool:
    """Return whether `x.open(...)` is of a path: a mode or an encoding is given."""
    return any(each.arg in ("encoding", "newline") for each in call.keywords) or (
        bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value == "rb"
    )


def mode_of(call: ast.Call) -> str:
    place = 1 if isinstance(call.func, ast.Name) else 0
    given = [each.value for each in call.keywords if each.arg == "mode"]
    node = given[0] if given else call.args[place] if len(call.args) > place else None
    return str(node.value) if isinstance(node, ast.Constant) else "r"


def test_every_function_that_opens_a_file_otherwise_is_listed_with_its_reason() -> None:
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if name == "core/regular_file.py":
            continue
        for function, text in opened(ast.parse(path.read_text("utf-8"))):
            if not text.startswith(("open(descriptor", "open(file_descriptor")):
                found.setdefault(name, set()).add(function)
    listed: dict[str, set[str]] = {}
    for name, functions in EXCEPTIONS.items():
        listed.setdefault(name.strip(), set()).update(functions)

    assert {name: sorted(each) for name, each in found.items()} == {
        name: sorted(each) for name, each in listed.items()
    }


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a.safetensors", read_tensors),
        ("a.safetensors", read_header),
        ("a.safetensors", lambda path: read_slices(path, {})),
        ("a.safetensors", lambda path: read_foreign(path, pickled=True)),
        ("a.pt", lambda path: read_foreign(path, pickled=True)),
        ("a.npz", read_arrays),
        ("a.svg", redo_figure),
        ("a.onnx", open_onnx),
    ],
)
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    os.mkfifo(tmp_path / name)

    with pytest.raises(AssayError):
        read(tmp_path / name)
