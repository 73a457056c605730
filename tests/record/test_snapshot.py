"""Code is kept as it was, secrets are not, and the user's repository is only read."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from assay.core.ports import MemoryBlobs
from assay.formats import run_file
from assay.formats.run_file import Code
from assay.record.attempt import AttemptSpec
from assay.record.opening import start_run
from assay.record.snapshot import MAX_FILE_BYTES, STAT_CACHE, is_code, is_secret_file, snapshot
from assay.store.blobs import FileBlobs
from assay.store.code_trees import read_file, read_tree
from assay.store.layout import open_project

SECRETS = [
    ".env",
    ".env.local",
    "prod.env",
    "server.pem",
    "a.key",
    "id_rsa",
    "id_ed25519.pub",
    "credentials.json",
    "my-secrets.yaml",
    "kaggle.json",
    ".netrc",
    ".pypirc",
    "service-account-1.json",
    "secrets.toml",
]
PLAIN = [
    "train.py",
    "conf.toml",
    "keys.py",
    "README.md",
    "data.json",
    "Makefile",
    "kernel.cu",
    "tokenizer.py",
    "run.sh",
]
NOT_CODE = [
    "model.pt",
    "photo.png",
    "data.bin",
    "weights.safetensors",
    "archive.zip",
    "noextension",
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture(params=["git", "plain"])
def tree(request: pytest.FixtureRequest, root: Path) -> Path:
    """A folder with and without a repository."""
    if request.param == "git":
        git(root, "init", "-q")
    return root


def git(folder: Path, *words: str) -> str:
    identity = [
        "-c",
        "user.name=me",
        "-c",
        "user.email=me@example.org",
        "-c",
        "commit.gpgsign=false",
    ]
    done = subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def write(folder: Path, *names: str, text: str = "x = 1\n") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def names(code: Code, blobs: MemoryBlobs | FileBlobs) -> list[str]:
    return sorted(read_tree(blobs, code.snapshot))


def test_code_is_kept_and_what_is_no_code_is_not(tree: Path) -> None:
    write(tree, "a.py", "pkg/b.py", "conf/c.toml", *NOT_CODE, text="first\n")
    blobs = MemoryBlobs()

    code = snapshot(tree, blobs)

    assert names(code, blobs) == ["a.py", "conf/c.toml", "pkg/b.py"]
    assert (code.files, code.left_out) == (3, ())
    assert read_file(blobs, code.snapshot, "pkg/b.py") == b"first\n"


def test_secrets_are_never_kept_and_it_is_said(tree: Path) -> None:
    secret = "AKIA-very-secret"
    write(tree, *SECRETS, *(f"deep/er/{name}" for name in SECRETS), text=secret)
    write(tree, *PLAIN)
    blobs = MemoryBlobs()

    code = snapshot(tree, blobs)

    assert names(code, blobs) == sorted(PLAIN)
    assert all(secret.encode() not in blobs.get(digest) for digest in blobs.digests())
    assert len(code.left_out) == 2 * len(SECRETS)
    assert ".env (may hold secrets)" in code.left_out


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret_file(name)


@pytest.mark.parametrize("name", PLAIN)
def test_code_is_known_by_its_name(name: str) -> None:
    assert is_code(name)
    assert not is_secret_file(name)


def test_what_is_too_large_is_left_out_and_it_is_said(tree: Path) -> None:
    write(tree, "big.json", text="1" * (MAX_FILE_BYTES + 1))
    write(tree, "fits.json", text="1" * MAX_FILE_BYTES)
    blobs = MemoryBlobs()

    code = snapshot(tree, blobs)

    assert names(code, blobs) == ["fits.json"]
    assert code.left_out == ("big.json (5.2 MB)",)


def test_records_environments_and_build_outputs_are_no_code(root: Path) -> None:
    write(
        root,
        "a.py",
        "runs/1/config.toml",
        ".venv/x.py",
        ".assay/settings.toml",
        "node_modules/m/i.js",
        "build/b.py",
    )
    write(
        root,
        "__pycache__/a.py",
        "myenv/pyvenv.cfg",
        "myenv/lib/x.py",
        "a.egg-info/PKG.txt",
        ".hidden/h.py",
    )
    blobs = MemoryBlobs()

    assert names(snapshot(root, blobs), blobs) == ["a.py"]


def test_git_decides_what_belongs_to_the_project_where_there_is_git(root: Path) -> None:
    git(root, "init", "-q")
    write(root, "tracked.py", "sub/untracked.py", "ignored.py", ".github/ci.yml", "build/kept.py")
    (root / ".gitignore").write_text("ignored.py\n")
    git(root, "add", "tracked.py")
    blobs = MemoryBlobs()

    assert names(snapshot(root, blobs), blobs) == [
        ".github/ci.yml", ".gitignore", "build/kept.py", "sub/untracked.py", "tracked.py"
    ]  # fmt: skip


def test_commit_and_dirtiness_are_noted(root: Path) -> None:
    git(root, "init", "-q")
    write(root, "a.py")
    git(root, "add", "a.py")
    blobs = MemoryBlobs()
    first = snapshot(root, blobs)
    assert (first.git_commit, first.git_dirty) == ("", True)

    git(root, "commit", "-qm", "one")
    clean = snapshot(root, blobs)
    write(root, "a.py", text="x = 2\n")
    dirty = snapshot(root, blobs)

    assert (clean.git_commit, clean.git_dirty) == (git(root, "rev-parse", "HEAD"), False)
    assert (dirty.git_commit, dirty.git_dirty) == (clean.git_commit, True)
    assert clean.snapshot != dirty.snapshot


@pytest.mark.parametrize(
    ("address", "page"),
    [
        ("git@host.test:me/net.git", "https://host.test/me/net"),
        ("ssh://git@host.test:22/me/net", "https://host.test/me/net"),
        ("https://me:s3cr3t@host.test/me/net.git", "https://host.test/me/net"),
        ("https://host.test/me/net/", "https://host.test/me/net"),
        ("/srv/git/net.git", ""),
        ("../net.git", ""),
        ("file:///srv/net.git", ""),
    ],
)
def test_the_page_of_a_remote_repository_is_noted_without_a_password(
    root: Path, address: str, page: str
) -> None:
    git(root, "init", "-q")
    git(root, "remote", "add", "origin", address)
    write(root, "a.py")
    git(root, "add", "a.py")
    git(root, "commit", "-qm", "one")

    assert snapshot(root, MemoryBlobs()).git_remote == page


def test_without_a_repository_there_is_no_commit(root: Path) -> None:
    write(root, "a.py")

    code = snapshot(root, MemoryBlobs())

    assert (code.git_commit, code.git_dirty) == ("", False)


def test_the_users_repository_stays_as_it_is_byte_for_byte(root: Path) -> None:
    git(root, "init", "-q")
    write(root, "a.py", "b.py")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    write(root, "b.py", text="changed\n")
    os.utime(root / "a.py", (1, 1))  # git would like to refresh its index

    def repository() -> dict[str, str]:
        files = (path for path in sorted((root / ".git").rglob("*")) if path.is_file())
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    before = repository()
    snapshot(root, MemoryBlobs())

    assert repository() == before


def test_git_variables_of_the_caller_do_not_lead_elsewhere(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(root, "init", "-q")
    write(root, "mine.py")
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    write(other, "other.py")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    blobs = MemoryBlobs()

    assert names(snapshot(root, blobs), blobs) == ["mine.py"]


def test_a_repository_inside_the_project_is_kept_with_its_files(root: Path) -> None:
    git(root, "init", "-q")
    inner = root / "vendored"
    inner.mkdir()
    git(inner, "init", "-q")
    write(root, "a.py", "vendored/lib.py", "vendored/deep/x.py")
    git(inner, "add", ".")
    git(inner, "commit", "-qm", "inner")
    blobs = MemoryBlobs()

    assert names(snapshot(root, blobs), blobs) == ["a.py", "vendored/deep/x.py", "vendored/lib.py"]


def test_without_git_installed_the_folder_is_walked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(root, "init", "-q")
    write(root, "a.py")
    monkeypatch.setenv("PATH", "")
    blobs = MemoryBlobs()

    code = snapshot(root, blobs)

    assert names(code, blobs) == ["a.py"]
    assert code.git_commit == ""


def test_unchanged_code_adds_nothing_and_is_not_read_again(tree: Path, tmp_path: Path) -> None:
    write(tree, "a.py", "b.py")
    for name in ("a.py", "b.py"):
        os.utime(tree / name, (1_000_000_000, 1_000_000_000))
    blobs = FileBlobs(tmp_path / "code")
    cache = tmp_path / "code" / STAT_CACHE
    first = snapshot(tree, blobs, cache=cache)
    kept = set(blobs.digests())

    (tree / "a.py").chmod(0o000)  # who reads it now fails, unless root
    second = snapshot(tree, blobs, cache=cache)

    assert second.snapshot == first.snapshot
    assert set(blobs.digests()) == kept


def test_the_cache_is_believed_only_while_the_file_is_the_same(root: Path, tmp_path: Path) -> None:
    write(root, "a.py", text="one\n")
    os.utime(root / "a.py", ns=(10**18, 10**18))
    blobs = FileBlobs(tmp_path / "code")
    cache = tmp_path / "code" / STAT_CACHE
    snapshot(root, blobs, cache=cache)
    for change in (lambda: write(root, "a.py", text="two\n"), lambda: cache.write_text("rubbish")):
        change()
        code = snapshot(root, blobs, cache=cache)
        assert read_file(blobs, code.snapshot, "a.py") == b"two\n"

    blobs.path(read_tree(blobs, code.snapshot)["a.py"].digest).unlink()
    again = snapshot(root, blobs, cache=cache)
    assert read_file(blobs, again.snapshot, "a.py") == b"two\n"


def test_folders_outside_of_the_project_are_kept_by_their_full_path(
    root: Path, tmp_path: Path
) -> None:
    write(root, "a.py", "src/b.py")
    write(tmp_path / "library", "c.py")
    blobs = MemoryBlobs()

    code = snapshot(root, blobs, folders=[root / "src", tmp_path / "library", tmp_path / "library"])

    outside = (tmp_path / "library").resolve().as_posix()
    assert names(code, blobs) == sorted(["a.py", "src/b.py", f"{outside}/c.py"])


def test_links_lead_to_their_files_and_never_in_circles(root: Path) -> None:
    write(root, "a.py", "sub/b.py")
    (root / "link.py").symlink_to("a.py")
    (root / "broken.py").symlink_to("nowhere.py")
    (root / "sub" / "up").symlink_to("..")
    blobs = MemoryBlobs()

    assert names(snapshot(root, blobs), blobs) == ["a.py", "link.py", "sub/b.py"]


def test_the_executable_bit_is_kept(tree: Path) -> None:
    write(tree, "run.sh", "lib.sh")
    (tree / "run.sh").chmod(0o755)
    blobs = MemoryBlobs()

    files = read_tree(blobs, snapshot(tree, blobs).snapshot)

    assert (files["run.sh"].mode, files["lib.sh"].mode) == (0o755, 0o644)


def test_names_are_data(tree: Path) -> None:
    odd = ["with space.py", "new\nline.py", "‮.py", "quote'\".py", "-rf.py"]
    write(tree, *odd)
    blobs = MemoryBlobs()

    assert names(snapshot(tree, blobs), blobs) == sorted(odd)


# ------------------------------------------------------------------------------------------ what was not committed

PLANTED = {
    "hf": "hf_" + "Ab3dEf6hIj9" * 3,
    "aws": "AKIAZX7QWERTYUIOPLKJ",
    "named": "f3a9c1d27b8e4c60a5d1",
    "password": "corr3ct-horse",
    "variable": "x9y8z7w6v5u4t3",
}


@pytest.fixture
def repository(root: Path) -> Path:
    git(root, "init", "-q")
    write(root, "train.py", text="".join(f"line {i}\n" for i in range(20)))
    write(root, "gone.py", "tool.sh", "sub/a b.py")
    (root / "logo.bin").write_bytes(bytes(range(256)) * 4)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    return root


def everything_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def dirty(repository: Path) -> None:
    text = (repository / "train.py").read_text()
    (repository / "train.py").write_text(text.replace("line 3", "line three"))
    git(repository, "add", "train.py")
    (repository / "train.py").write_text(
        text.replace("line 3", "line three").replace("line 15", "fifteen")
    )
    (repository / "gone.py").unlink()
    (repository / "logo.bin").write_bytes(bytes(range(255, -1, -1)) * 4)
    (repository / "tool.sh").chmod(0o755)
    write(repository, "new.py", "sub/späte Idee.py", text="fresh = True\n")
    (repository / "no end.py").write_text("x = 1")


@pytest.mark.row("A36")
def test_what_is_not_committed_is_a_patch_that_applies_cleanly_and_the_repository_stays_as_it_was(
    repository: Path, tmp_path: Path
) -> None:
    dirty(repository)
    before = everything_in(repository / ".git")
    commit = git(repository, "rev-parse", "HEAD")

    project = open_project(repository, create=True)
    with start_run(project) as run:
        pass

    code = run_file.read(run.folder.path).newest.code
    assert (code.git_commit, code.git_dirty) == (commit, True)
    patch = run.folder.path / "dirty.patch"
    assert FileBlobs(project.code_dir).get(code.patch) == patch.read_bytes()
    assert everything_in(repository / ".git") == before
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    git(clone, "apply", "--index", str(patch))
    ours = {
        name: data
        for name, data in everything_in(repository).items()
        if not name.startswith((".git/", ".assay", "runs"))
    }
    theirs = {
        name: data
        for name, data in everything_in(clone).items()
        if not name.startswith((".git/", ".assay"))
    }
    assert theirs == ours
    assert (clone / "tool.sh").stat().st_mode & 0o100


def test_of_a_project_in_a_part_of_a_repository_only_that_part_is_in_the_patch(
    repository: Path,
) -> None:
    dirty(repository)
    blobs = MemoryBlobs()

    code = snapshot(repository / "sub", blobs)

    patch = blobs.get(code.patch).decode()
    assert patch.count("diff --git") == 1
    assert "sub/sp" in patch


def test_a_clean_repository_and_one_without_commits_have_no_patch(
    repository: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    write(empty, "a.py")

    assert snapshot(repository, MemoryBlobs()).patch == ""
    code = snapshot(empty, MemoryBlobs())
    assert (code.patch, code.git_commit, code.git_dirty, code.files) == ("", "", True, 1)


def test_a_user_who_configured_git_oddly_gets_the_same_patch(repository: Path) -> None:
    dirty(repository)
    blobs = MemoryBlobs()
    plain = snapshot(repository, blobs).patch
    for key, value in {
        "diff.noprefix": "true",
        "color.diff": "always",
        "diff.external": "false",
        "diff.mnemonicPrefix": "true",
        "diff.renames": "copies",
    }.items():
        git(repository, "config", key, value)

    assert snapshot(repository, blobs).patch == plain


def test_planted_secrets_are_nowhere_in_the_record(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOME_SERVICE_TOKEN", PLANTED["variable"])
    write(
        repository,
        "train.py",
        "conf/new.toml",
        text=f'login("{PLANTED["hf"]}")\naws = ["{PLANTED["aws"]}"]\napi_key = "{PLANTED["named"]}"\n'
        f'url = "postgres://me:{PLANTED["password"]}@host/db"\nvalue = "{PLANTED["variable"]}"\nlr = 0.1\n',
    )
    write(repository, ".env", "deploy.pem", text=PLANTED["named"])
    project = open_project(repository, create=True)
    for _ in range(2):  # the second time the digests are remembered
        with start_run(
            project,
            AttemptSpec(
                command=["train.py", "--token", PLANTED["hf"], f"--key={PLANTED['variable']}"]
            ),
        ) as run:
            pass

    for folder in (project.assay_dir, run.folder.path):
        for name, data in everything_in(folder).items():
            found = [kind for kind, secret in PLANTED.items() if secret.encode() in data]
            assert found == [], f"{name} holds {found}"
    code = run_file.read(run.folder.path).newest.code
    assert "train.py (5 secrets in it replaced)" in code.left_out
    assert any(each.startswith("deploy.pem") for each in code.left_out)
    kept = read_file(FileBlobs(project.code_dir), code.snapshot, "train.py").decode()
    assert kept.splitlines()[0] == 'login("<redacted>")'
    assert kept.splitlines()[-1] == "lr = 0.1"
    assert "<redacted>" in (run.folder.path / "dirty.patch").read_text()


def test_a_change_beside_a_committed_secret_is_left_out_of_the_patch_and_said(
    repository: Path,
) -> None:
    write(repository, "old.py", text=f'key = "{PLANTED["hf"]}"\nlr = 0.1\n')
    git(repository, "add", "old.py")
    git(repository, "commit", "-qm", "oops")
    write(repository, "old.py", text=f'key = "{PLANTED["hf"]}"\nlr = 0.2\n')
    write(repository, "fine.py")
    blobs = MemoryBlobs()

    code = snapshot(repository, blobs)

    assert PLANTED["hf"] not in blobs.get(code.patch).decode()
    assert "fine.py" in blobs.get(code.patch).decode()
    assert "old.py in dirty.patch (may hold secrets)" in code.left_out
