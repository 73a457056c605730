"""A run in one file: a `tar.gz` that any tool opens, with its folder, its code, and the SHA-256 of every file.

`pack.json` comes first: `format`, `id`, `folder`, and `files`, which has size and SHA-256 by name. Then `run/...`, the
run's folder, and `code/<digest>`, the blobs of its code.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from assay.core import lease as leases
from assay.core import run_file
from assay.core.errors import InputError, RecordError, did_you_mean
from assay.core.ids import id_of_folder
from assay.core.plain import dumps, from_plain
from assay.core.ports import Blobs
from assay.store.blobs import FileBlobs
from assay.store.inside import inside
from assay.store.layout import Project, RunFolder, refusal
from assay.store.reach import named_digests, reachable

FORMAT = 1
LIST_NAME = "pack.json"
SUFFIX = ".tar.gz"
_MOST_LIST_BYTES = 64 << 20
_BLOCK = 1 << 20
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFile:
    """One file of a pack. `sha256` in hex of its bytes."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """What a pack holds. `folder` is the name of the run's folder."""

    format: int = FORMAT
    id: str
    folder: str
    tag: str = ""
    files: Mapping[str, PackedFile]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


def pack(folder: RunFolder, blobs: Blobs, to: Path) -> Pack:
    """Write a run that has ended, with its code, into the new file `to`."""
    run = run_file.read(folder.path)
    lease = leases.read(folder.path)
    if lease is not None and leases.liveness(lease) != "dead":
        who = leases.describe(lease)
        raise InputError(f"The run {run.id} is being written by {who}.", where=str(folder.path), fix="stop it first")
    paths = {f"run/{name}": path for name, path in _run_files(folder.path)}
    code = {f"code/{digest}": blobs.get(digest) for digest in sorted(reachable(named_digests(folder), blobs))}
    files = {name: _measured(path) for name, path in paths.items()}
    files |= {name: PackedFile(size_bytes=len(data), sha256=name[5:]) for name, data in code.items()}
    found = Pack(id=run.id, folder=folder.path.name, tag=run.tag, files=files)
    temporary = to.with_name(f".{to.name}.{secrets.token_hex(4)}.tmp")
    try:
        if to.exists():
            raise InputError("This file is there already.", where=str(to), fix="choose another name with --to")
        with open(temporary, "xb") as raw, tarfile.open(fileobj=raw, mode="w:gz", compresslevel=1) as tar:
            _add(tar, LIST_NAME, dumps(found).encode("utf-8", "surrogateescape"))
            for name, path in paths.items():
                with open(path, "rb") as file:
                    entry = _entry(name, files[name].size_bytes)
                    tar.addfile(entry, file)
            for name, data in code.items():
                _add(tar, name, data)
        os.replace(temporary, to)
    except OSError as error:
        raise refusal(error, to, "The run cannot be packed", fix="Write it to another place with --to.") from error
    finally:
        with contextlib.suppress(OSError):  # where nothing can be written there is nothing to take away
            temporary.unlink()
    return found


def check(file: Path) -> Pack:
    """Read a whole pack and compare every file with its digest. RecordError names the first that is not as packed."""
    with _opened(file) as tar:
        found = _list_of(tar, file)
        for _ in _verified(tar, found, file):
            pass
    return found


def unpack(file: Path, project: Project) -> RunFolder:
    """The run of a pack as one of `project`, its code in the project's store; nothing of it when anything is wrong."""
    blobs = FileBlobs(project.code_dir)
    temporary = project.runs_dir / f".unpack-{secrets.token_hex(6)}.tmp"
    try:
        with _opened(file) as tar:
            found = _list_of(tar, file)
            folder = inside(project.runs_dir, found.folder)
            _refuse_if_there(project, found)
            temporary.mkdir(parents=True, mode=0o700)
            for name, data in _verified(tar, found, file):
                kind, _, rest = name.partition("/")
                if kind == "code":
                    blobs.put(b"".join(data))
                    continue
                path = inside(temporary, rest)
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "xb") as out:
                    out.writelines(data)
            if run_file.read(temporary).id != found.id:
                raise RecordError("The run in the pack is another one than the pack says.", where=str(file))
            os.rename(temporary, folder)
    except OSError as error:
        raise refusal(error, project.runs_dir, "The run cannot be unpacked") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return RunFolder(folder)


def _refuse_if_there(project: Project, found: Pack) -> None:
    if id_of_folder(found.folder) != found.id:
        raise RecordError(f"The pack has a wrong folder name: {found.folder!r}.")
    there = [path for path in project.runs_dir.glob(f"*-{found.id}*") if id_of_folder(path.name) == found.id]
    if there:
        raise InputError(f"The run {found.id} is here already.", where=str(there[0]), fix=f"assay show {found.id}")


def _verified(tar: tarfile.TarFile, pack: Pack, file: Path) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Each file with its bytes, which have to be taken before the next; what was not taken is read all the same."""
    missing = dict(pack.files)
    for entry in _entries(tar, file):
        listed = missing.pop(entry.name, None)
        if listed is None or not entry.isreg() or entry.size != listed.size_bytes:
            raise RecordError(f"The pack holds what its list does not: {entry.name!r}.", where=str(file))
        source = tar.extractfile(entry)
        assert source is not None
        kind, _, rest = entry.name.partition("/")
        if kind not in ("run", "code") or (kind == "code" and rest != listed.sha256):
            raise RecordError(f"The pack holds what does not belong there: {entry.name!r}.", where=str(file))
        inside(Path("run"), rest)
        data = _checked(source, listed, entry.name, file)
        yield entry.name, data
        for _ in data:
            pass
    if missing:
        raise RecordError(f"The pack is not complete: {next(iter(missing))!r} is missing.", where=str(file))


def _checked(source: IO[bytes], listed: PackedFile, name: str, file: Path) -> Iterator[bytes]:
    digest = hashlib.sha256()
    try:
        while block := source.read(_BLOCK):
            digest.update(block)
            yield block
    except (OSError, EOFError, tarfile.TarError) as error:
        raise RecordError(f"The pack is damaged at {name!r}: {error}", where=str(file)) from error
    if digest.hexdigest() != listed.sha256:
        raise RecordError(f"The pack is damaged: {name!r} is not what was packed.", where=str(file))


def _entries(tar: tarfile.TarFile, file: Path) -> Iterator[tarfile.TarInfo]:
    while True:
        try:
            entry = tar.next()
        except (OSError, EOFError, tarfile.TarError) as error:
            raise RecordError(f"The pack is damaged: {error}", where=str(file)) from error
        if entry is None:
            return
        yield entry


def _opened(file: Path) -> tarfile.TarFile:
    try:
        # As a stream: nothing of a file is believed before what stands in front of it was read.
        return tarfile.open(file, mode="r|gz")
    except FileNotFoundError:
        raise InputError("There is no such file.", where=str(file), fix=_near(file)) from None
    except (OSError, EOFError, tarfile.TarError) as error:
        raise InputError("This is no packed run.", where=str(file), fix="assay pack RUN makes one") from error


def _near(file: Path) -> str:
    """The packed runs beside a file that is not there."""
    try:
        packs = sorted(each.name for each in file.parent.iterdir() if each.name.endswith(SUFFIX))
    except OSError:
        return f"the folder {file.parent} does not exist"
    if not packs:
        return "assay pack RUN makes one"
    return did_you_mean(file.name, packs) or f"there is {', '.join(packs[:_NAMED])}"


def _list_of(tar: tarfile.TarFile, file: Path) -> Pack:
    entry = next(_entries(tar, file), None)
    if entry is None or entry.name != LIST_NAME or not entry.isreg() or entry.size > _MOST_LIST_BYTES:
        raise InputError("This is no packed run.", where=str(file), fix="assay pack RUN makes one")
    source = tar.extractfile(entry)
    assert source is not None
    try:
        data = json.loads(source.read().decode("utf-8", "surrogateescape"))
        if data.get("format", 0) > FORMAT:
            fix = "Unpack it with the assay that packed it, or a newer one."
            raise RecordError(f"The pack has format {data['format']}; this assay knows {FORMAT}.", fix=fix)
        return from_plain(Pack, data)
    except (ValueError, AttributeError, TypeError, OSError, EOFError, tarfile.TarError) as error:
        raise RecordError(f"The list of the pack cannot be read: {error}", where=str(file)) from error


def _run_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """What belongs to a run for good: no lease, nothing that was half written, no links."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        half_written = any(part.endswith(".tmp") or part.startswith(".lease-") for part in name.split("/"))
        if path.is_file() and not path.is_symlink() and name != leases.FILE_NAME and not half_written:
            yield name, path


def _measured(path: Path) -> PackedFile:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return PackedFile(size_bytes=file.tell(), sha256=digest)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    tar.addfile(_entry(name, len(data)), io.BytesIO(data))


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.mode = 0o644
    return entry
