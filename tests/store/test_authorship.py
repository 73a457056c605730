"""A user's own records are recognised while nothing in them that chooses code is changed."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.formats import run_file
from assay.formats.run_file import Attempt, Code, RunFile
from assay.store import authorship
from assay.store.layout import RunFolder

ROOT = Path(__file__).resolve().parents[2]
ATTEMPT = Attempt(
    number=1,
    started_ns=1,
    cwd="/home/me",
    host="here",
    launch={"user_dirs": ["/home/me/src"], "max_steps": 3, "from": ""},
    code=Code(snapshot="ab" * 32),
    environment={"variables": {"OMP_NUM_THREADS": "2"}, "python": "3.11.7"},
    devices=("cpu",),
)
RUN = RunFile(id="abcdefgh", kind="train", created_ns=1, project="/home/me", attempts=(ATTEMPT,))


@pytest.fixture
def made(tmp_path: Path) -> RunFolder:
    """A record of this user."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.config_toml.write_text("seed = 1\n")
    run_file.write(folder.path, authorship.sign(folder, RUN))
    return folder


def read(folder: RunFolder) -> RunFile:
    return run_file.read(folder.path)


def changed(run: RunFile, **values: Any) -> RunFile:
    return replace(run, attempts=(replace(run.attempts[0], **values),))


def test_a_record_is_known_again_by_who_made_it(made: RunFolder) -> None:
    run = read(made)

    assert authorship.is_own(made, run) and not authorship.is_moved(made, run)
    ended = replace(
        changed(run, status="finished", to_step=9, ended_ns=2),
        status="finished",
        sealed=True,
        tag="b",
    )
    assert authorship.is_own(made, ended)


@pytest.mark.parametrize(
    "changes",
    [
        {"launch": {"user_dirs": ["/tmp/evil"], "max_steps": 3, "from": ""}},
        {"cwd": "/tmp/evil"},
        {"code": Code(snapshot="cd" * 32)},
        {"environment": {"variables": {"LD_PRELOAD": "evil.so"}, "python": "3.11.7"}},
        {"number": 2},
    ],
)
def test_whoever_changes_what_chooses_code_makes_it_foreign(
    made: RunFolder, changes: dict[str, Any]
) -> None:
    assert not authorship.is_own(made, changed(read(made), **changes))


def test_another_project_config_or_attempt_makes_it_foreign(made: RunFolder) -> None:
    run = read(made)

    assert not authorship.is_own(made, replace(run, project="/tmp/evil"))
    assert not authorship.is_own(made, replace(run, made_by=""))
    assert not authorship.is_own(made, replace(run, made_by="0" * 64))
    assert not authorship.is_own(
        made, replace(run, attempts=(*run.attempts, replace(ATTEMPT, number=2)))
    )
    made.config_toml.write_text('seed = 1\n[model]\ntype = "evil.Net"\n')
    assert not authorship.is_own(made, run)


def test_a_record_of_another_user_is_foreign(
    made: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "somebody else"))

    assert not authorship.is_own(made, read(made))
    assert authorship.sign(made, read(made)).made_by not in ("", read(made).made_by)


def test_a_copy_is_known_and_known_to_be_one(made: RunFolder, tmp_path: Path) -> None:
    copy = RunFolder(tmp_path / "copy")
    shutil.copytree(made.path, copy.path)

    assert authorship.is_own(copy, read(copy)) and authorship.is_moved(copy, read(copy))


def test_nobody_else_may_read_the_key(made: RunFolder) -> None:
    assert stat.S_IMODE(os.stat(authorship.key_file()).st_mode) == 0o600
    assert len(authorship.key_file().read_bytes()) == authorship.KEY_BYTES
    assert list(authorship.key_file().parent.glob(f".{authorship.KEY_NAME}*")) == []


def test_processes_that_make_a_key_at_once_share_one(tmp_path: Path) -> None:
    script = "from assay.store.authorship import _key; print(_key(make=True).hex())"
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_DATA_HOME": str(tmp_path)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script], env=variables, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]

    keys = {process.communicate()[0] for process in started}

    assert len(keys) == 1 and len(keys.pop().strip()) == 2 * authorship.KEY_BYTES


def test_without_a_place_for_the_key_a_record_is_made_all_the_same(
    made: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))

    run = authorship.sign(made, RUN)

    assert run.made_by == "" and not authorship.is_own(made, run)


def test_a_key_that_was_cut_short_knows_nothing(made: RunFolder) -> None:
    authorship.key_file().write_bytes(b"")

    assert not authorship.is_own(made, read(made))


# ----------------------------------------------------------------------------------------------------- attempt by attempt


def test_of_a_record_from_elsewhere_only_the_attempts_made_here_are_ones_own(
    made: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "somebody else"))
    run = read(made)
    resumed = authorship.sign(
        made, replace(run, attempts=(*run.attempts, replace(ATTEMPT, number=2, made_by="")))
    )
    first, second = resumed.attempts

    assert authorship.is_own(made, resumed)
    assert authorship.is_own(made, resumed, second)
    assert not authorship.is_own(made, resumed, first)
    for forged in ("", second.made_by, "0" * 64):
        other = replace(resumed, attempts=(replace(first, made_by=forged), second))
        assert not authorship.is_own(made, other, other.attempts[0])


def test_an_attempt_is_known_by_its_own_config_also_when_a_later_one_changed_it(
    made: RunFolder,
) -> None:
    aside = made.config_dir / "before-attempt-2" / "config.toml"
    aside.parent.mkdir(parents=True)
    aside.write_text("seed = 1\n")
    made.config_toml.write_text("seed = 2\n")
    run = read(made)
    resumed = authorship.sign(
        made, replace(run, attempts=(*run.attempts, replace(ATTEMPT, number=2)))
    )

    assert all(authorship.is_own(made, resumed, attempt) for attempt in resumed.attempts)
    aside.write_text('seed = 1\n[model]\ntype = "evil.Net"\n')
    assert not authorship.is_own(made, resumed, resumed.attempts[0])


def test_a_record_of_an_earlier_version_which_signed_all_attempts_together_is_ones_own(
    made: RunFolder,
) -> None:
    run = read(made)
    older = replace(run, attempts=(replace(run.attempts[0], made_by=""),))
    facts = authorship._run_facts(made, older)
    older = replace(older, made_by=authorship._digest(authorship._key(make=False), facts))

    assert authorship.is_own(made, older, older.attempts[0])
    own = authorship.own_attempts(made, older)
    both = replace(older, attempts=(*older.attempts, replace(ATTEMPT, number=2)))
    resumed = authorship.sign(made, both, own)
    assert authorship.own_attempts(made, resumed) == [1, 2]


def test_a_record_of_two_authors_does_not_become_one_of_an_earlier_version(
    made: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as theirs:
        theirs.setenv("XDG_DATA_HOME", str(tmp_path / "somebody else"))
        foreign = authorship.sign(made, read(made))
    both = replace(foreign, attempts=(*foreign.attempts, replace(ATTEMPT, number=2)))
    resumed = authorship.sign(made, both)
    assert authorship.own_attempts(made, resumed) == [2]

    unsigned = tuple(replace(attempt, made_by="") for attempt in resumed.attempts)

    assert authorship.own_attempts(made, replace(resumed, attempts=unsigned)) == []
