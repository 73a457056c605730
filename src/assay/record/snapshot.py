"""The code as it was when an attempt began, kept by content in the project's code store.

All files that look like code or config: those that git knows or would know, else those that a walk
finds. Files of secrets and what is too large never; what was left out is said. A secret inside of a
file is replaced by a word, in what is kept. No link is followed: one that leads to kept files
stands for these. What git has not committed is also kept as a patch. The user's repository is only
read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from assay.core.errors import AssayError
from assay.core.ports import Blobs
from assay.core.regular_file import read_bytes
from assay.core.secrets.names import REDACTED
from assay.core.secrets.replacement import Secrets
from assay.core.secrets.texts import edition
from assay.formats.json_codec import write_atomic
from assay.formats.run_file import Code
from assay.record.git_patch import dirty_patch
from assay.record.redaction import content_kind
from assay.store.code_trees import CodeFile, put_tree, write_tree

MAX_FILE_BYTES = 5 << 20
MAX_LEFT_OUT = 100
MAX_WALKED = 100_000
"""Most files looked at in a project without git: it may hold a data set or be a home folder."""

STAT_CACHE = "stat.json"
_MOST_CACHE_BYTES = 256 << 20
_MOST_WAITING_BYTES = 64 << 20
"""So much code waits in memory for what other files say to be secret; the rest is read again."""

_REDACTED = REDACTED.encode()
_REMOTE = re.compile(
    r"(?:(?:https?|ssh|git)://(?:[^/]*@)?|[^@/:\s]+@)(?P<host>[\w-]+(?:\.[\w-]+)+)(?::\d+/|[:/])"
    r"(?P<path>[^?#\s]+?)(?:\.git)?/?"
)
"""Address of a repository that a server has, for https or for ssh."""

# fmt: off
SUFFIXES = frozenset({
    ".bash", ".bat", ".bib", ".c", ".cc", ".cfg", ".cl", ".cmake", ".conf", ".cpp", ".css", ".cu",
    ".cuh", ".cxx", ".f", ".f90", ".go", ".gradle", ".h", ".hpp", ".html", ".hxx", ".ini", ".ipynb",
    ".j2", ".java", ".jinja", ".jl", ".js", ".json", ".json5", ".jsx", ".ld", ".lua", ".m", ".md",
    ".mk", ".mm", ".patch", ".pl", ".proto", ".ps1", ".pxd", ".pxi", ".py", ".pyi", ".pyx", ".r",
    ".rb", ".rs", ".rst", ".s", ".scss", ".sh", ".sql", ".svelte", ".swift", ".tex", ".toml", ".ts",
    ".tsx", ".txt", ".typed", ".vue", ".xml", ".yaml", ".yml", ".zsh",
})
NAMES = frozenset({
    ".dockerignore", ".editorconfig", ".gitattributes", ".gitignore", ".gitmodules",
    ".python-version", "CMakeLists.txt", "CODEOWNERS", "Dockerfile", "Justfile", "LICENSE",
    "Makefile", "NOTICE", "Pipfile", "Procfile", "README", "Snakefile", "dev", "justfile",
    "makefile",
})
_SKIPPED_FOLDERS = frozenset({
    "__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist", "target", "out",
    "wandb", "mlruns", "lightning_logs", "runs", "htmlcov",
})
# fmt: on
_SECRET = re.compile(
    r"""(\.env(\..*)? | .*\.env | .*\.(pem|key|p12|pfx|jks|keystore|kdbx|gpg|asc|ppk)
    | .*\.(crt|cer|der|ovpn|token|secret)
    | id_(rsa|dsa|ecdsa|ed25519)(\..*)?
    | .*(credential|secret|passwd|password).*\.(json|ya?ml|toml|ini|txt|cfg|env|conf)
    | (.*[-_.])?api[-_]?keys?(\.\w{1,6})?
    | (.*[-_.])?(auth|access|refresh|api|bot|hf|hub|wandb|github|gitlab|slack)
        [-_]?tokens?(\.\w{1,6})?
    | (tokens?|auth|keys?|apikeys?)\.(txt|json|ya?ml|toml|ini|cfg|conf) | token
    | credentials | [._]?netrc | \.npmrc | \.pypirc | \.pgpass | \.my\.cnf
    | \.htpasswd | \.git-credentials
    | \.dockercfg | \.?docker[-_]?config\.json | \.s3cfg | \.boto | \.cdsapirc | rclone\.conf
    | kubeconfig.* | .*\.kubeconfig
    | .*\.(tfvars|tfstate)(\..*)? | kaggle\.json | service[-_]?account.*\.json
    | client[-_]?secret.*\.json
    | secrets\.(toml|ya?ml|json|py|ini|txt))""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
# A file that was changed a moment ago may be changed again within the same tick of the disk's
# clock.
_RACY_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class _Found:
    """A file to be kept: its name in the tree, and where it lies."""

    name: str
    path: str


def snapshot(
    root: Path,
    blobs: Blobs,
    *,
    folders: Sequence[Path] = (),
    skip: Path | None = None,
    cache: Path | None = None,
    secrets: Secrets | None = None,
) -> Code:
    """Keep the code under `root` and under outside `folders`; unchanged code adds nothing.

    `skip` is a folder that holds no code, as that of the runs. `cache` is a file that remembers
    digests by size, time and inode, so that the next time is quick. `secrets` are those that are
    known.
    """
    secrets = secrets or Secrets.among(os.environ)
    git = _git_state(root)
    skipped = _below(skip, root)
    keeper = _Keeper(blobs, _Cache(cache, secrets), secrets)
    names = [
        name for name in file_names(root, in_git=git is not None) if not name.startswith(skipped)
    ]
    if git is None and len(names) == MAX_WALKED:
        keeper.left_out.append(f"all after the first {MAX_WALKED} files")
    for name in names:
        keeper.keep(_Found(name, os.path.join(root, name)))
    for folder in _outside(folders, root):
        for name in file_names(folder):
            keeper.keep(_Found(f"{folder.as_posix()}/{name}", os.path.join(folder, name)))
    keeper.finish()
    keeper.follow_links(root)
    digest = put_tree(blobs, keeper.files)
    keeper.known.save()
    commit, is_dirty = git or ("", False)
    patch = _dirty_patch(root, skipped, secrets, keeper.left_out) if is_dirty else b""
    return Code(
        snapshot=digest,
        files=len(keeper.files),
        left_out=_list_left_out(keeper.left_out),
        git_commit=commit,
        git_dirty=is_dirty,
        git_remote=_git_remote(root) if commit else "",
        patch=blobs.put(patch) if patch else "",
    )


def copy_code(source: Path, to: Path, blobs: Blobs, secrets: Secrets) -> tuple[str, ...]:
    """Copy the code in a folder, or one file, as a snapshot keeps it; return what was left out."""
    keeper = _Keeper(blobs, _Cache(None, secrets), secrets)
    folder = source if source.is_dir() else source.parent
    for name in file_names(folder):
        if source == folder or name == source.name:
            keeper.keep(_Found(name, os.path.join(folder, name)))
    keeper.finish()
    keeper.follow_links(folder)
    write_tree(keeper.files, blobs, to if source == folder else to.parent)
    if source != folder and not keeper.files and not keeper.left_out:
        return (f"{source.name} (no code, or ignored)",)
    return _list_left_out(keeper.left_out)


def _dirty_patch(
    root: Path, skipped: tuple[str, ...], secrets: Secrets, left_out: list[str]
) -> bytes:
    def keeps(name: str, is_new: bool) -> bool:
        if name.startswith(skipped) or (is_new and not is_code(os.path.basename(name))):
            return False
        return _fits(root / name)

    return dirty_patch(root, _git, keeps=keeps, secrets=secrets, left_out=left_out)


def _list_left_out(left_out: Sequence[str]) -> tuple[str, ...]:
    more = len(left_out) - MAX_LEFT_OUT
    if more <= 0:
        return tuple(left_out)
    return (*left_out[:MAX_LEFT_OUT], f"and {more} more")


def _follow_link(
    link: _Found, places: Mapping[str, CodeFile], left_out: list[str]
) -> dict[str, CodeFile]:
    """Return the files behind a link under the name of the link, if they are kept anyway."""
    target = os.path.realpath(link.path)
    if target in places:
        return {link.name: places[target]}
    inside = target + os.sep
    found = {}
    for place, file in places.items():
        if place.startswith(inside):
            found[link.name + place[len(target) :].replace(os.sep, "/")] = file
    # A link to a folder above itself would hold itself.
    is_above = os.path.dirname(os.path.abspath(link.path)).startswith(target)
    if is_above or not found:
        if is_code(os.path.basename(link.name)) or os.path.isdir(target):
            left_out.append(f"{link.name} (a link to what is not kept)")
        return {}
    return found


def is_secret_file(name: str) -> bool:
    """Return whether a file of this name is never kept, wherever it lies.

    >>> names = (".env", "server.key", "keys.py", "id_rsa", "token.txt", "added_tokens.json")
    >>> [is_secret_file(name) for name in names]
    [True, True, False, True, True, False]
    """
    return _SECRET.fullmatch(name) is not None


def is_code(name: str) -> bool:
    """Return whether a file of this name looks like code or config."""
    return name in NAMES or os.path.splitext(name)[1].lower() in SUFFIXES


def _below(folder: Path | None, root: Path) -> tuple[str, ...]:
    """Return the prefix of names in `folder`, relative to `root`."""
    if folder is None:
        return ()
    try:
        relative = Path(os.path.abspath(folder)).relative_to(root.absolute())
    except ValueError:
        return ()
    return (relative.as_posix() + "/",)


def _fits(path: Path) -> bool:
    """Return whether a changed file may be in the patch; a deleted one always may."""
    try:
        return not is_secret_file(path.name) and path.stat().st_size <= MAX_FILE_BYTES
    except OSError:
        return not is_secret_file(path.name)


class _Keeper:
    """Keeps files as blobs; `files` are those kept by name, `left_out` says which were not."""

    def __init__(self, blobs: Blobs, known: _Cache, secrets: Secrets) -> None:
        self.blobs = blobs
        self.known = known
        self.secrets = secrets
        self.files: dict[str, CodeFile] = {}
        self.left_out: list[str] = []
        self._links: list[_Found] = []
        self._remembered: list[tuple[_Found, os.stat_result]] = []
        self._waiting: list[tuple[_Found, os.stat_result, bytes | None, int]] = []
        self._waiting_bytes = 0

    def keep(self, found: _Found) -> None:
        """Keep a file that looks like code; a link waits for `follow_links`."""
        base = os.path.basename(found.name)
        if is_secret_file(base):
            self.left_out.append(f"{found.name} (may hold secrets)")
            return
        # The name of a folder has no suffix, and a link may lead to one.
        if not is_code(base) and "." in base[1:]:
            return
        with self._readable(found):
            status = os.lstat(found.path)
            if stat.S_ISLNK(status.st_mode):
                self._links.append(found)
            elif is_code(base) and stat.S_ISREG(status.st_mode):
                self._keep_regular(found, status)

    def follow_links(self, root: Path) -> None:
        """Keep the files behind links under the names of the links, if they are kept anyway."""
        if not self._links:
            return
        real = os.path.realpath(root)
        places = {os.path.join(real, name): file for name, file in self.files.items()}
        for link in self._links:
            self.files.update(_follow_link(link, places, self.left_out))

    def _keep_regular(self, found: _Found, status: os.stat_result) -> None:
        if status.st_size > MAX_FILE_BYTES:
            self.left_out.append(f"{found.name} ({status.st_size / 1e6:.1f} MB)")
            return
        digest = self.known.get(found.path, status)
        if digest and digest in self.blobs:
            self._remembered.append((found, status))
            self._add(found, status, digest)
        else:
            self._read(found, status)

    def finish(self) -> None:
        """Keep what waits: only now is known what the files say to be secret."""
        if self.known.is_of_other_secrets():
            for found, status in self._remembered:
                with self._readable(found):
                    self._read(found, status)
        for found, status, data, count in self._waiting:
            with self._readable(found):
                self._keep_clean(
                    found, status, *((data, count) if data else self._read_clean(found))
                )

    def _keep_clean(self, found: _Found, status: os.stat_result, data: bytes, count: int) -> None:
        clean = self.secrets.without_known(data)
        count += clean.count(_REDACTED) - data.count(_REDACTED)
        digest = self.blobs.put(clean)
        self._add(found, status, digest)
        if count:
            replaced = f"{count} secret{'s' if count > 1 else ''} in it replaced"
            self.left_out.append(f"{found.name} ({replaced})")
            self.known.forget(found.path)  # read each time: nothing else says what is secret
        else:
            self.known.put(found.path, status, digest)

    @contextlib.contextmanager
    def _readable(self, found: _Found) -> Iterator[None]:
        """Say that a file was left out if it cannot be read inside."""
        try:
            yield
        except OSError as error:
            self.left_out.append(f"{found.name} ({error.strerror or error})")

    def _read(self, found: _Found, status: os.stat_result) -> None:
        data, count = self._read_clean(found)
        self._waiting_bytes += len(data)
        is_short = self._waiting_bytes <= _MOST_WAITING_BYTES
        self._waiting.append((found, status, data if is_short else None, count))

    def _read_clean(self, found: _Found) -> tuple[bytes, int]:
        with open(found.path, "rb", opener=_no_link) as file:
            data = file.read()
        text = data.decode("utf-8", "surrogateescape")
        clean, count = self.secrets.clean_and_count(
            text, content_kind(os.path.basename(found.name))
        )
        return (clean.encode("utf-8", "surrogateescape"), count) if count else (data, 0)

    def _add(self, found: _Found, status: os.stat_result, digest: str) -> None:
        mode = 0o755 if status.st_mode & 0o100 else 0o644
        self.files[found.name] = CodeFile(digest=digest, mode=mode, size_bytes=status.st_size)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))


def file_names(folder: Path, *, in_git: bool = True) -> Iterable[str]:
    """Return names relative to `folder` of the files that belong to it, with `/`: those of git."""
    listed = (
        _git(folder, "ls-files", "-co", "--exclude-standard", "-z", "--deduplicate", "--", ".")
        if in_git
        else None
    )
    if listed is None:
        return list(islice(_walk(str(folder)), MAX_WALKED))
    names = [name for name in os.fsdecode(listed).split("\0") if name]
    # A repository inside this one is listed as one entry: its files are named by its own git.
    inner = [
        name
        for name in names
        if name.endswith("/")
        or (os.path.isdir(folder / name) and not os.path.islink(folder / name))
    ]
    for name in inner:
        names.remove(name)
        if os.path.realpath(folder / name) != os.path.realpath(folder):
            names += [f"{name.rstrip('/')}/{each}" for each in file_names(folder / name)]
    return names


def _walk(folder: str, prefix: str = "") -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        with contextlib.suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                hidden = entry.name.startswith(".") or entry.name.endswith(".egg-info")
                if not hidden and entry.name not in _SKIPPED_FOLDERS and not _is_venv(entry.path):
                    yield from _walk(entry.path, f"{prefix}{entry.name}/")
            elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                yield prefix + entry.name


def _is_venv(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, "pyvenv.cfg"))


def _outside(folders: Iterable[Path], root: Path) -> list[Path]:
    inside = Path(os.path.realpath(root))
    kept: list[Path] = []
    for folder in (Path(os.path.realpath(each)) for each in folders):
        if not any(folder == other or other in folder.parents for other in (inside, *kept)):
            kept.append(folder)
    return kept


def _git_state(root: Path) -> tuple[str, bool] | None:
    """Return the commit ("" before the first) and whether it is dirty; None without git."""
    place = root.absolute()
    if not any(os.path.lexists(folder / ".git") for folder in (place, *place.parents)):
        return None  # as git would say, which takes longer to begin than all the rest
    out = _git(
        root, "status", "--porcelain=v2", "--branch", "-z", "--untracked-files=normal", "--", "."
    )
    if out is None:
        return None
    lines = os.fsdecode(out).split("\0")
    commit = next(
        (line.removeprefix("# branch.oid ") for line in lines if line.startswith("# branch.oid ")),
        "",
    )
    dirty = any(line and not line.startswith("# ") for line in lines)
    return ("" if commit == "(initial)" else commit), dirty


def _git_remote(root: Path) -> str:
    """Return the web page of the repository's `origin`, "" where it has none."""
    out = _git(root, "config", "--get", "remote.origin.url")
    return _web_address(os.fsdecode(out or b"").strip())


def _web_address(address: str) -> str:
    """Return the page of a repository without user, password and `.git`; "" for a folder.

    >>> [_web_address(each) for each in ("git@host.org:a/b.git", "https://me:key@host.org/a/b")]
    ['https://host.org/a/b', 'https://host.org/a/b']
    """
    found = _REMOTE.fullmatch(address)
    return f"https://{found['host']}/{found['path']}" if found else ""


def _git(folder: Path, *words: str, variables: Mapping[str, str] | None = None) -> bytes | None:
    """Return the output of a read-only git command; None without git or a repository.

    Not even the index of the repository is refreshed.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    clean |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C", **(variables or {})}
    command = [
        "git",
        "-c",
        "core.fsmonitor=false",
        "-c",
        "core.quotePath=false",
        "-C",
        str(folder),
        *words,
    ]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            env=clean,
            stdin=subprocess.DEVNULL,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


class _Cache:
    """Digests of files that were read before, valid while size, time and inode are the same."""

    def __init__(self, path: Path | None, secrets: Secrets) -> None:
        self._path = path
        self._secrets = secrets
        self._old: dict[str, list[Any]] = {}
        self._new: dict[str, list[Any]] = {}
        if path is not None:
            with contextlib.suppress(OSError, ValueError):
                data = json.loads(read_bytes(path, _MOST_CACHE_BYTES))
                self._old = data if isinstance(data, dict) else {}

    def is_of_other_secrets(self) -> bool:
        """Return whether the remembered files were kept under other secrets or other rules."""
        return self._old.get("") != self._salt()

    def get(self, path: str, status: os.stat_result) -> str:
        """Return the digest of a file without secrets, or "" if it is not known."""
        entry = self._old.get(path)
        if entry is None or entry[:3] != [status.st_size, status.st_mtime_ns, status.st_ino]:
            return ""
        self._new[path] = entry
        return str(entry[3])

    def put(self, path: str, status: os.stat_result, digest: str) -> None:
        if time.time_ns() - status.st_mtime_ns > _RACY_NS:
            self._new[path] = [status.st_size, status.st_mtime_ns, status.st_ino, digest]

    def forget(self, path: str) -> None:
        self._new.pop(path, None)

    def _salt(self) -> list[Any]:
        salted = "\0".join([edition(), *sorted(self._secrets.values)]).encode("utf-8", "replace")
        return [hashlib.sha256(salted).hexdigest()[:8]]

    def save(self) -> None:
        self._new[""] = self._salt()  # "" is no path
        if self._path is None or self._new == self._old:
            return
        with contextlib.suppress(OSError, AssayError):  # it only saves time
            if not self._path.parent.is_dir():
                return  # nothing was kept
            text = json.dumps(self._new, separators=(",", ":"))
            write_atomic(self._path, text.encode("utf-8"), durable=False)
