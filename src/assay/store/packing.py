"""Run in one file: a `tar.gz` with its folder, its code, and the SHA-256 of every file.

`pack.json` comes first: `format`, `id`, `folder`, and `files`, which has size and SHA-256 by name.
Then `run/...`, the run's folder, and `code/<digest>`, the blobs of its code.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import secrets
import tarfile
import unicodedata
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from assay.core.directory import (
    Directory,
    create_file,
    discard,
    file_mode,
    make_directory,
    open_directory,
)
from assay.core.errors import InputError, RecordError, did_you_mean
from assay.core.formatting import size
from assay.core.ids import id_of_folder
from assay.core.ports import Blobs
from assay.core.regular_file import hollowness, open_regular
from assay.core.terminal import visible
from assay.formats import lease as leases
from assay.formats import run_file
from assay.formats.json_codec import dataclass_from, dumps, parse_json
from assay.formats.run_file import RunFile
from assay.store.code_trees import PACK_SUFFIX, code_blobs
from assay.store.layout import Project, RunFolder, make_project, refusal, why_not_of_record
from assay.store.referenced_blobs import (
    NAMING_FILES,
    digests_in,
    digests_in_tree,
    follow_blobs,
    named_digests,
    reachable,
)
from assay.store.safe_path import safe_path

FORMAT = 1
LIST_NAME = "pack.json"
_MOST_LIST_BYTES = 64 << 20
_MOST_FILES = 100_000
_MOST_CODE_BYTES = 256 << 20
_MOST_HEADER_BYTES = 64 << 10
_MOST_RATIO = 200
_LEAST_BYTES_OF_FILE = 32  # in the pack: its digest, which nothing makes shorter
_ALWAYS_BYTES = 64 << 20
_ALWAYS_FILES = 1000
"""So many files, and so much, may come out of a pack however short it is."""

_SLACK_BYTES = 64 << 10
_BLOCK = 1 << 20
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFile:
    """One file of a pack. `sha256` in hex of its bytes."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Content of a pack. `folder` is the name of the run's folder."""

    format: int = FORMAT
    id: str
    folder: str
    tag: str = ""
    files: Mapping[str, PackedFile]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


def pack_run(folder: RunFolder, blobs: Blobs, to: Path) -> Pack:
    """Write an ended run with its code into the new file `to`, with the folder's permissions."""
    run = _ended_run(folder)
    try:
        if to.exists():
            raise InputError(
                "This file is there already.", where=str(to), fix="choose another name with --to"
            )
        digests = sorted(reachable(_read_named(folder), blobs))
        code = {f"code/{digest}": blobs.get(digest) for digest in digests}
        with open_directory(folder.path) as source, open_directory(to.parent, follow=True) as place:
            files = {f"run/{name}": _measure(source, name) for name in _run_files(source)}
            for name, data in code.items():
                sha256 = name.removeprefix("code/")
                files[name] = PackedFile(size_bytes=len(data), sha256=sha256)
            found = Pack(id=run.id, folder=folder.path.name, tag=run.tag, files=files)
            _write_pack(found, code, source, place, to.name)
    except OSError as error:
        raise refusal(
            error, to, "The run cannot be packed", fix="Write it to another place with --to."
        ) from error
    return found


def _ended_run(folder: RunFolder) -> RunFile:
    """Return the run of a folder; InputError where there is none, or while it is written."""
    try:
        run = run_file.read(folder.path)
    except FileNotFoundError:
        raise InputError(
            "There is no run in this folder to pack.", where=str(folder.path)
        ) from None
    lease = leases.read(folder.path)
    if lease is None:
        return run
    if leases.liveness(lease, written_ns=leases.written_ns(folder.path)) == "alive":
        raise InputError(
            f"The run {run.id} is being written by {leases.describe(lease)}.",
            where=str(folder.path),
            fix="stop it first",
        )
    return run


def _write_pack(
    pack: Pack, code: Mapping[str, bytes], source: Directory, place: Directory, name: str
) -> None:
    """Write the list, then each file of `pack_run`; what is not `code` is read from `source`."""
    temporary = f".{name}.{secrets.token_hex(4)}.tmp"
    try:
        with (
            os.fdopen(place.create(temporary, file_mode(source.mode)), "wb") as raw,
            tarfile.open(fileobj=raw, mode="w:gz", compresslevel=1) as tar,
        ):
            _add(tar, LIST_NAME, dumps(pack).encode("utf-8", "surrogateescape"))
            for path, file in pack.files.items():
                if path in code:
                    _add(tar, path, code[path])
                    continue
                with open(_opened_file(source, path.removeprefix("run/")), "rb") as data:
                    tar.addfile(_entry(path, file.size_bytes), data)
        place.move(temporary, place, name)
    except BaseException:  # raised again, Ctrl-C included: no half of a pack stays
        with contextlib.suppress(OSError):
            place.remove(temporary)
        raise


def left_out(folder: RunFolder) -> list[str]:
    """Return the files beside a record that `pack_run` leaves out, as `unpack_run` refuses them."""
    with open_directory(folder.path) as source:
        names = [name for name, _ in source.files()]
    return [name for name in names if not name.startswith(".") and why_not_of_record(name)]


def check(file: Path) -> Pack:
    """Read a whole pack and compare digests; RecordError names the first file that differs."""
    with _open_pack(file) as packed:
        found = packed.read_listing()
        run = b""
        named: set[str] = set()
        named_by: dict[str, list[str]] = {}
        for name, data in packed.verify(found):
            kind, _, rest = name.partition("/")
            if kind == "code":
                inner = digests_in_tree(b"".join(data))
                named_by[rest] = [each for each in inner if f"code/{each}" in found.files]
            elif rest in NAMING_FILES:
                content = b"".join(data)
                named.update(digests_in(content))
                run = content if rest == run_file.FILE_NAME else run
        _refuse_another_run(file, run, found)
        unnamed = named_by.keys() - follow_blobs(named, named_by.get)
        if unnamed:
            raise RecordError(
                f"The pack holds code that its run does not name: {min(unnamed)}.", where=str(file)
            )
    return found


def _refuse_another_run(file: Path, run: bytes, pack: Pack) -> None:
    if not run:
        raise RecordError("The pack holds no run.", where=str(file))
    try:
        run_id = run_file.decode(run).id
    except RecordError as error:
        raise RecordError(
            f"The run in the pack cannot be read: {error.what}", where=str(file)
        ) from error
    if run_id != pack.id:
        raise RecordError("The run in the pack is another one than the pack says.", where=str(file))


def unpack_run(file: Path, project: Project) -> RunFolder:
    """Unpack a run into `project` and its code into the store; all of it or nothing.

    The whole pack is checked before anything is written. RecordError for one that is damaged, or
    that holds what is no part of a record.
    """
    found = check(file)
    _refuse_if_there(project, found)
    if not project.assay_dir.is_dir():
        make_project(project.root)
    blobs = code_blobs(project)
    temporary = project.runs_dir / f".unpack-{secrets.token_hex(6)}.tmp"
    try:
        with _open_pack(file) as packed:
            if packed.read_listing() != found:
                raise RecordError("The pack changed while it was read.", where=str(file))
            folder = safe_path(project.runs_dir, found.folder)
            make_directory(project.runs_dir, project.folder_mode)
            temporary.mkdir(mode=project.folder_mode)
            for name, data in packed.verify(found):
                kind, _, rest = name.partition("/")
                if kind == "code":
                    blobs.put(b"".join(data))
                    continue
                path = safe_path(temporary, rest)
                make_directory(path.parent)
                with os.fdopen(create_file(path), "wb") as out:
                    out.writelines(data)
            os.rename(temporary, folder)
    except OSError as error:
        raise refusal(error, project.runs_dir, "The run cannot be unpacked") from error
    finally:
        discard(temporary)
    return RunFolder(folder)


def _refuse_if_there(project: Project, found: Pack) -> None:
    is_name = found.folder.isprintable() and not {*"/\\"} & {*found.folder}
    if not is_name or id_of_folder(found.folder) != found.id:
        raise RecordError(f"The pack has a wrong folder name: {found.folder!r}.")
    there = [
        path
        for path in project.runs_dir.glob(f"*-{found.id}*")
        if id_of_folder(path.name) == found.id
    ]
    if there:
        raise InputError(
            f"The run {found.id} is here already.",
            where=str(there[0]),
            fix=f"assay show {found.id}",
        )


class _Packed:
    """Reader of a pack from front to end, which trusts nothing before it is checked.

    What a member is to be allowed is said before it is read: a header may claim any size, and a
    stream of zeros is short in a file.
    """

    def __init__(self, file: Path, raw: IO[bytes]) -> None:
        self._file = file
        self._size = os.fstat(raw.fileno()).st_size
        self._stream = _Bounded(gzip.GzipFile(fileobj=raw))
        try:
            # Of a file it needs no more than `read`.
            self._tar = tarfile.open(fileobj=cast(Any, self._stream), mode="r|")  # noqa: SIM115 - closed by `close`
        except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
            raise self._no_pack() from error

    def close(self) -> None:
        self._tar.close()

    def read_listing(self) -> Pack:
        """Return the listed content; InputError when this is no pack, RecordError if damaged."""
        try:
            entry = next(self._entries(), None)
        except RecordError as error:
            raise self._no_pack() from error
        if (
            entry is None
            or entry.name != LIST_NAME
            or not entry.isreg()
            or entry.size > _MOST_LIST_BYTES
        ):
            raise self._no_pack()
        try:
            data = parse_json(b"".join(self._read(entry)).decode("utf-8", "surrogateescape"))
            if data.get("format", 0) > FORMAT:
                fix = "Unpack it with the assay that packed it, or a newer one."
                raise RecordError(
                    f"The pack has format {data['format']}; this assay knows {FORMAT}.", fix=fix
                )
            found = dataclass_from(Pack, data)
        except (ValueError, AttributeError, TypeError) as error:
            raise RecordError(
                f"The list of the pack cannot be read: {error}", where=str(self._file)
            ) from error
        self._refuse_too_much(found)
        self._refuse_other_files(found)
        return found

    def verify(self, pack: Pack) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield each file with its bytes, to be taken before the next; the rest is read anyway."""
        missing = dict(pack.files)
        for entry in self._entries():
            listed = missing.pop(entry.name, None)
            if listed is None or not entry.isreg() or entry.size != listed.size_bytes:
                raise self._wrong(f"The pack holds what its list does not: {entry.name!r}.")
            data = self._check(entry, listed)
            yield entry.name, data
            for _ in data:
                pass
        if missing:
            raise self._wrong(f"The pack is not complete: {next(iter(missing))!r} is missing.")

    def _check(self, entry: tarfile.TarInfo, listed: PackedFile) -> Iterator[bytes]:
        digest = hashlib.sha256()
        for block in self._read(entry):
            digest.update(block)
            yield block
        if digest.hexdigest() != listed.sha256:
            raise self._wrong(f"The pack is damaged: {entry.name!r} is not what was packed.")

    def _read(self, entry: tarfile.TarInfo) -> Iterator[bytes]:
        self._stream.allow(entry.size)
        source = self._tar.extractfile(entry)
        assert source is not None
        try:
            while block := source.read(_BLOCK):
                yield block
        except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
            raise self._wrong(f"The pack is damaged at {entry.name!r}: {error}") from error

    def _entries(self) -> Iterator[tarfile.TarInfo]:
        while True:
            self._stream.allow(_MOST_HEADER_BYTES)
            try:
                entry = self._tar.next()
            except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
                raise self._wrong(f"The pack is damaged: {error}") from error
            if entry is None:
                return
            yield entry

    def _refuse_too_much(self, pack: Pack) -> None:
        code = [each for name, each in pack.files.items() if name.startswith("code/")]
        most = min(_MOST_FILES, max(_ALWAYS_FILES, self._size // _LEAST_BYTES_OF_FILE))
        if len(pack.files) > most:
            raise self._wrong(
                f"The pack lists {len(pack.files)} files; of its size at most {most} are unpacked."
            )
        for name in NAMING_FILES:
            listed = pack.files.get(f"run/{name}")
            if listed is not None and listed.size_bytes > run_file.MAX_BYTES:
                raise self._wrong(f"The pack lists a {name} of {size(listed.size_bytes)}.")
        if any(each.size_bytes < 0 for each in pack.files.values()):
            raise self._wrong("The pack lists a file of less than nothing.")
        if any(each.size_bytes > _MOST_CODE_BYTES for each in code):
            raise self._wrong(
                f"The pack lists a file of code of more than {size(_MOST_CODE_BYTES)}."
            )
        if pack.size_bytes > max(_ALWAYS_BYTES, _MOST_RATIO * self._size):
            what = f"{size(self._size)} are to become {size(pack.size_bytes)}"
            raise self._wrong(f"The pack is larger inside than a run can be: {what}.")

    def _refuse_other_files(self, pack: Pack) -> None:
        """Refuse a pack for the first name in it that is no part of a record or of its code."""
        spelled: dict[str, str] = {}
        for name, listed in pack.files.items():
            kind, _, rest = name.partition("/")
            if kind == "code":
                why = "" if rest == listed.sha256 else "a record has no such file"
            else:
                why = why_not_of_record(rest) if kind == "run" else "a record has no such file"
            for other in _beginnings(name):
                alike = unicodedata.normalize("NFC", other).casefold()
                if spelled.setdefault(alike, other) != other:
                    why = why or f"it is written like {visible(spelled[alike])!r}"
            if not why and any(each in pack.files for each in _beginnings(name) if each != name):
                why = "it lies in a file"
            if why:
                what = f"The pack holds what does not belong there: {visible(name[:200])!r}, {why}."
                raise self._wrong(what)

    def _wrong(self, what: str) -> RecordError:
        return RecordError(what, where=str(self._file))

    def _no_pack(self) -> InputError:
        return InputError(
            "This is no packed run.", where=str(self._file), fix="assay pack RUN makes one"
        )


def _beginnings(name: str) -> Iterator[str]:
    """Yield the folders of a name, the outermost first, and the name itself."""
    for i, letter in enumerate(name):
        if letter == "/":
            yield name[:i]
    yield name


class _Bounded:
    """Stream with a limit, exceeded by no more than a block."""

    def __init__(self, source: IO[bytes] | gzip.GzipFile) -> None:
        self._source = source
        self._left = 0

    def allow(self, count: int) -> None:
        self._left = count + _SLACK_BYTES

    def read(self, count: int) -> bytes:
        if self._left < 0:
            raise tarfile.ReadError("a part of it is longer than it may be")
        data = self._source.read(count)
        self._left -= len(data)
        return data


@contextlib.contextmanager
def _open_pack(file: Path) -> Iterator[_Packed]:
    try:
        raw = open(open_regular(file, follow=True), "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        raise InputError("There is no such file.", where=str(file), fix=_near(file)) from None
    except OSError as error:
        what = f"This is no packed run: {error.strerror or error}."
        raise InputError(what, where=str(file), fix="assay pack RUN makes one") from error
    with raw, contextlib.closing(_Packed(file, raw)) as packed:
        yield packed


def _near(file: Path) -> str:
    """The packed runs beside a file that is not there."""
    try:
        packs = sorted(
            each.name for each in file.parent.iterdir() if each.name.endswith(PACK_SUFFIX)
        )
    except OSError:
        return f"the folder {file.parent} does not exist"
    if not packs:
        return "assay pack RUN makes one"
    return did_you_mean(file.name, packs) or f"there is {', '.join(packs[:_NAMED])}"


def _read_named(folder: RunFolder) -> set[str]:
    try:
        return named_digests(folder)
    except OSError as error:
        raise refusal(error, folder.path, "The record is damaged, and cannot be packed") from error


def _run_files(folder: Directory) -> list[str]:
    """Return the lasting files of a record: no lease, nothing half-written, no links.

    What else a program of the user put beside them is left out, as `unpack_run` would refuse it.
    """
    names = []
    for name, status in folder.files():
        if why := hollowness(status):
            raise RecordError(f"{name} is damaged: {why}.", where=str(folder.path))
        half_written = any(part.endswith(".tmp") for part in name.split("/"))
        if not half_written and not why_not_of_record(name):
            names.append(name)
    return names


def _opened_file(folder: Directory, name: str) -> int:
    return open_regular(
        name if folder.descriptor is not None else folder.path / name, dir_fd=folder.descriptor
    )


def _measure(folder: Directory, name: str) -> PackedFile:
    with open(_opened_file(folder, name), "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return PackedFile(size_bytes=file.tell(), sha256=digest)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    tar.addfile(_entry(name, len(data)), io.BytesIO(data))


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.mode = 0o600
    return entry
