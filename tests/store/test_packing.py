"""A run in one file: it comes out as it went in, or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.core.errors import AssayError, InputError, RecordError
from assay.query.diff import code_store
from assay.query.run import RunView
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.store.blobs import FileBlobs
from assay.store.code_trees import read_tree
from assay.store.layout import Project, RunFolder
from assay.store.packing import LIST_NAME, check, left_out, pack_run, unpack_run
from run_folders import make_checkpoint, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path / "here")
    (made.root / "model.py").write_text("x = 1\n")
    return made


@pytest.fixture
def run(project: Project) -> RunFolder:
    with start_run(project, AttemptSpec(config_toml="lr = 0.1\n"), tag="packed") as recorder:
        recorder.log({"loss": 0.5}, 1)
        recorder.artifact(b"picture", "../a.png")
        make_checkpoint(recorder.folder.path, 3)
    return recorder.folder


def packed(run: RunFolder, to: Path) -> Path:
    pack_run(run, code_store(RunView(run)), to)
    return to


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.row("F13")
def test_a_packed_run_comes_out_elsewhere_as_it_was_with_its_code(
    project: Project, run: RunFolder, tmp_path: Path
) -> None:
    file = packed(run, tmp_path / "run.tar.gz")
    before = files(run.path)
    shutil.rmtree(project.root)  # another machine
    other = make_project(tmp_path / "there")

    assert check(file).id == run.id
    folder = unpack_run(file, other)

    assert files(folder.path) == before
    view = RunView(folder)
    assert (view.tag, view.metric("loss").values.tolist(), view.checkpoints[0].step) == (
        "packed",
        [0.5],
        3,
    )
    assert list(read_tree(FileBlobs(other.code_dir), view.code.snapshot)) == ["model.py"]


def test_a_run_is_not_unpacked_twice_nor_a_file_overwritten(
    project: Project, run: RunFolder, tmp_path: Path
) -> None:
    file = packed(run, tmp_path / "run.tar.gz")

    with pytest.raises(InputError, match="here already"):
        unpack_run(file, project)
    with pytest.raises(InputError, match="there already"):
        packed(run, file)


def test_a_place_where_no_pack_can_be_written_is_one_clear_error(
    run: RunFolder, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(InputError, match="cannot be packed: it is a file, not a folder"):
        packed(run, tmp_path / "file" / "run.tar.gz")


def test_a_run_that_goes_on_is_not_packed(project: Project, tmp_path: Path) -> None:
    with start_run(project) as recorder, pytest.raises(InputError, match="being written"):
        packed(recorder.folder, tmp_path / "run.tar.gz")


@pytest.mark.parametrize("at", [0.0, 0.1, 0.5, 0.8])
@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_a_damaged_pack_is_refused_and_leaves_nothing(
    run: RunFolder, tmp_path: Path, at: float, how: str
) -> None:
    file = packed(run, tmp_path / "run.tar.gz")
    data = bytearray(file.read_bytes())
    place = int(len(data) * at)
    data[place] ^= 0xFF
    file.write_bytes(data[:place] if how == "cut" else data)
    other = make_project(tmp_path / "there")

    with pytest.raises(AssayError):
        unpack_run(file, other)
    with pytest.raises(AssayError):
        check(file)

    assert not other.runs_dir.exists() or list(other.runs_dir.iterdir()) == []


Change = Callable[[dict[str, bytes], dict[str, object]], None]


def leave_out(files: dict[str, bytes], listed: dict[str, object]) -> None:
    del files["run/run.json"]


def change(files: dict[str, bytes], listed: dict[str, object]) -> None:
    files["run/config.toml"] = b"lr = 0.9\n"


def add(files: dict[str, bytes], listed: dict[str, object]) -> None:
    files["run/evil.py"] = b"x"


def climb(files: dict[str, bytes], listed: dict[str, object]) -> None:
    files["run/../../evil.py"] = files.pop("run/config.toml")
    table = listed["files"]
    assert isinstance(table, dict)
    table["run/../../evil.py"] = table.pop("run/config.toml")


def add_code(files: dict[str, bytes], listed: dict[str, object]) -> None:
    """A blob with the right digest, that no snapshot has."""
    code = b"import os\n"
    digest = hashlib.sha256(code).hexdigest()
    files[f"code/{digest}"] = code
    table = listed["files"]
    assert isinstance(table, dict)
    table[f"code/{digest}"] = {"size_bytes": len(code), "sha256": digest}


def rename(files: dict[str, bytes], listed: dict[str, object]) -> None:
    listed["folder"] = "../../outside"


def future(files: dict[str, bytes], listed: dict[str, object]) -> None:
    listed["format"] = 99


@pytest.mark.parametrize("harm", [leave_out, change, add, add_code, climb, rename, future])
def test_a_pack_that_somebody_changed_is_refused_and_leaves_nothing(
    run: RunFolder, tmp_path: Path, harm: Change
) -> None:
    with tarfile.open(packed(run, tmp_path / "run.tar.gz")) as tar:
        contents = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    listed = json.loads(contents.pop(LIST_NAME))
    harm(contents, listed)
    file = tmp_path / "harmed.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        for name, data in {LIST_NAME: json.dumps(listed).encode(), **contents}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    other = make_project(tmp_path / "a" / "there")

    with pytest.raises(AssayError):
        unpack_run(file, other)

    assert not list(tmp_path.rglob("evil.py"))
    assert not other.runs_dir.exists() or list(other.runs_dir.iterdir()) == []
    assert not other.code_dir.exists()


def listing(run: RunFolder, **files: dict[str, object]) -> bytes:
    """The list of a pack that says it holds these files."""
    return json.dumps({"format": 1, "id": run.id, "folder": run.path.name, "files": files}).encode()


def a_file_of(size_bytes: int) -> dict[str, object]:
    return {"size_bytes": size_bytes, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("name", "size_bytes", "said"),
    [
        ("run/" + "a/" * 50 + "b", 1, "longer or deeper"),
        ("run/" + "a" * 1200, 1, "longer or deeper"),
        ("run/config.toml", -1, "less than nothing"),
        ("code/" + "0" * 64, 1 << 30, "a file of code of more than"),
        ("run/metrics/1.rows", 1 << 50, "larger inside than a run can be"),
        ("run/metrics/1.rows", 600_000_000, "larger inside than a run can be"),
        ("run/model.py", 1, "'run/model.py', a record has no such file"),
        ("run/src/model.py", 1, "a record has no such folder"),
        ("run/.assay/settings.toml", 1, "a part of it is hidden"),
        ("run/config/.env", 1, "a part of it is hidden"),
        ("run/config/a\x1b[2J", 1, "cannot be shown"),
        ("run/config/a\nb", 1, "cannot be shown"),
        ("run/CONFIG.toml", 1, "a record has no such file"),
        ("other/config.toml", 1, "a record has no such file"),
        ("run/config//a", 1, "leads out of its folder"),
        ("code/../../x", 1, "a record has no such file"),
    ],
)
def test_a_pack_that_lists_more_than_a_run_can_be_is_refused_before_any_of_it_is_read(
    run: RunFolder, tmp_path: Path, name: str, size_bytes: int, said: str
) -> None:
    file = tmp_path / "bomb.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        data = listing(run, **{name: a_file_of(size_bytes)})
        entry = tarfile.TarInfo(LIST_NAME)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))

    with pytest.raises(RecordError, match=said):
        check(file)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("run/config/a.py", "run/config/A.py"), "written like 'run/config/a.py'"),
        (("run/config/e\u0301", "run/config/\u00e9"), "written like"),
        (("run/config/a/b", "run/config/A/c"), "written like 'run/config/a'"),
        (("run/config", "run/config/a.py"), "a record has no such file"),
        (("run/config.toml", "run/config.toml/a"), "a record has no such folder"),
        (("run/config/a", "run/config/a/b"), "it lies in a file"),
        (tuple(f"run/config/{number}" for number in range(2000)), "at most 1000 are unpacked"),
    ],
)
def test_names_that_one_file_system_takes_for_another_are_refused(
    run: RunFolder, tmp_path: Path, names: tuple[str, ...], said: str
) -> None:
    file = tmp_path / "twins.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        data = listing(run, **{name: a_file_of(1) for name in names})
        entry = tarfile.TarInfo(LIST_NAME)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))

    with pytest.raises(RecordError, match=said):
        unpack_run(file, make_project(tmp_path / "there"))
    assert not (tmp_path / "there" / "runs").exists()


def test_what_a_program_put_beside_the_files_of_a_record_is_left_out_and_told(
    project: Project, run: RunFolder, tmp_path: Path
) -> None:
    (run.path / "model.py").write_text("x = 1\n")
    (run.path / "files" / "out").mkdir(parents=True)
    (run.path / "files" / "out" / "model.py").write_text("x = 1\n")

    file = packed(run, tmp_path / "run.tar.gz")

    assert left_out(run) == ["model.py"]
    folder = unpack_run(file, make_project(tmp_path / "there"))
    assert (folder.path / "files" / "out" / "model.py").exists()
    assert not (folder.path / "model.py").exists()


def test_a_header_that_does_not_end_is_not_read_to_its_end(run: RunFolder, tmp_path: Path) -> None:
    file = tmp_path / "header.tar.gz"
    with tarfile.open(file, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        data = listing(run)
        entry = tarfile.TarInfo(LIST_NAME)
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
        endless = tarfile.TarInfo("run/config.toml")
        endless.pax_headers = {"comment": "x" * 4_000_000}
        tar.addfile(endless)

    with pytest.raises(RecordError, match="longer than it may be"):
        check(file)


def test_links_and_devices_in_a_pack_are_refused(run: RunFolder, tmp_path: Path) -> None:
    with tarfile.open(packed(run, tmp_path / "run.tar.gz")) as tar:
        listed = tar.extractfile(LIST_NAME).read()  # type: ignore[union-attr]
    file = tmp_path / "links.tar.gz"
    with tarfile.open(file, "w:gz") as tar:
        entry = tarfile.TarInfo(LIST_NAME)
        entry.size = len(listed)
        tar.addfile(entry, io.BytesIO(listed))
        link = tarfile.TarInfo("run/README.md")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)

    with pytest.raises(RecordError, match="what its list does not"):
        check(file)


@pytest.mark.parametrize("data", [b"", b"no archive", b"\x1f\x8b\x08\x00" + b"\0" * 50])
def test_what_is_no_pack_is_told_so(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.tar.gz"
    file.write_bytes(data)

    with pytest.raises(AssayError):
        check(file)
    with pytest.raises(InputError, match="no such file") as absent:
        check(tmp_path / "absent")
    assert absent.value.fix == "there is x.tar.gz"
    with pytest.raises(InputError, match="no such file") as misspelt:
        check(tmp_path / "xx.tar.gz")
    assert misspelt.value.fix == "did you mean `x.tar.gz`?"
    with pytest.raises(InputError, match="no such file") as nowhere:
        check(tmp_path / "folder" / "absent")
    assert nowhere.value.fix == f"the folder {tmp_path / 'folder'} does not exist"


def with_run_json(data: bytes) -> Change:
    return lambda files, listed: files.update({"run/run.json": data})


def in_folder(ending: str) -> Change:
    return lambda files, listed: listed.update(folder=f"{listed['folder']}{ending}")


def with_artifact(name: str) -> Change:
    return lambda files, listed: files.update({f"run/artifacts/{name}": b"x"})


@pytest.mark.parametrize(
    "alter",
    {
        "no run": leave_out,
        "no JSON": with_run_json(b"no JSON"),
        "another run": with_run_json(
            b'{"format": 1, "id": "zzzzzzzz", "kind": "train", "created_ns": 1}'
        ),
        "a folder in a folder": in_folder("-x/y"),
        "a folder that paints": in_folder("-\x1b[2J"),
        "a name of Windows": with_artifact("a\\b"),
        "a name that is too long": with_artifact("a" * 300),
    }.items(),
    ids=lambda named: named[0],
)
def test_what_is_wrong_with_a_pack_is_known_before_anything_is_written(
    run: RunFolder, tmp_path: Path, alter: tuple[str, Change]
) -> None:
    file = packed(run, tmp_path / "run.tar.gz")
    with tarfile.open(file) as tar:
        (_, head), *rest = [(m.name, tar.extractfile(m).read()) for m in tar.getmembers()]  # type: ignore[union-attr]
    listed, contents = json.loads(head), dict(rest)
    alter[1](contents, listed)
    listed["files"] = {
        name: {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in contents.items()
    }
    with tarfile.open(file, "w:gz") as tar:
        for name, data in [(LIST_NAME, json.dumps(listed).encode()), *contents.items()]:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    empty = tmp_path / "empty"
    empty.mkdir()

    with pytest.raises(AssayError):
        unpack_run(file, Project(empty))

    assert list(empty.iterdir()) == []
