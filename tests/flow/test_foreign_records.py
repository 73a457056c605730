"""A foreign record is data: nothing named by it runs unasked, and no path in it is followed."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from assay.cli.check_views import VIEWS
from assay.cli.permission import say
from assay.compose.trust import Foreign
from assay.formats import run_file
from assay.store import authorship
from assay.store.layout import RunFolder
from flow.conftest import SRC, Assay

pytestmark = pytest.mark.slow

MARK = "import pathlib\npathlib.Path({mark!r}).touch()\n"
COMMANDS = (("resume",), ("rerun",), ("test",), ("replay",), ("export",))


@pytest.fixture
def given(toy: Path, assay: Assay, tmp_path: Path) -> Path:
    """Run of the toy project as sent by another person: its record names foreign modules."""
    done = assay(
        "run", "toy.toml", "--max-steps", "6", "--quiet", XDG_DATA_HOME=str(tmp_path / "theirs")
    )
    assert done.returncode == 0, done.stderr
    (run,) = (toy / "runs").iterdir()
    evil = tmp_path / "evil"
    evil.mkdir()
    for name in ("net.py", "points.py"):
        (evil / name).write_text(
            MARK.format(mark=str(tmp_path / "PWNED")) + (toy / name).read_text()
        )
    data = json.loads((run / run_file.FILE_NAME).read_text())
    data["attempts"][0]["launch"]["user_dirs"] = [str(evil), f"{data['project']}/../evil"]
    data["attempts"][0] |= {"cwd": str(evil), "status": "stopped"}
    data["status"] = "stopped"
    data["attempts"][0]["environment"]["variables"]["LD_PRELOAD"] = str(evil / "evil.so")
    (run / run_file.FILE_NAME).write_text(json.dumps(data))
    return run


def pwned(tmp_path: Path) -> bool:
    return (tmp_path / "PWNED").exists()


@pytest.mark.parametrize("command", (*COMMANDS, ("serve", "--port", "0")), ids=" ".join)
def test_a_record_that_was_not_made_here_does_not_run_unasked(
    command: Sequence[str], given: Path, assay: Assay, toy: Path, tmp_path: Path
) -> None:
    (toy / "net.py").write_text(
        MARK.format(mark=str(tmp_path / "PWNED")) + (toy / "net.py").read_text()
    )

    done = assay(*command, given.name[12:20])

    assert done.returncode == 2
    assert "was not made here" in done.stderr
    assert "--trust" in done.stderr
    assert "Traceback" not in done.stderr
    assert not pwned(tmp_path)
    assert len(list((toy / "runs").iterdir())) == 1


@pytest.mark.parametrize("command", COMMANDS[:3], ids=" ".join)
def test_a_trusted_record_runs_with_the_modules_of_the_working_tree(
    command: Sequence[str], given: Path, assay: Assay, toy: Path, tmp_path: Path
) -> None:
    run = given.name[12:20]

    done = assay(*command, run, "--trust")

    assert done.returncode == 0, done.stderr
    assert f"{run} was made elsewhere: its modules are taken from {toy}" in " ".join(
        done.stderr.split()
    )
    assert not pwned(tmp_path)


@pytest.mark.thorough
def test_a_record_that_was_resumed_on_trust_is_ones_own_from_then_on(
    given: Path, assay: Assay, toy: Path
) -> None:
    run = given.name[12:20]

    assert assay("resume", run, "--trust", "--quiet", "--max-steps", "8").returncode == 0
    done = assay("resume", run, "--quiet")

    assert done.returncode == 0, done.stderr
    assert "elsewhere" not in done.stderr
    assert run_file.read(given).project == str(toy)


@pytest.mark.thorough
def test_resume_auto_takes_the_checkpoints_of_a_foreign_record_and_does_not_vouch_for_it(
    given: Path, assay: Assay, toy: Path, tmp_path: Path
) -> None:
    done = assay("run", "toy.toml", "--resume", "auto", "--quiet")

    assert done.returncode == 0, done.stderr
    assert len(run_file.read(given).attempts) == 2
    assert not pwned(tmp_path)
    again = assay("rerun", given.name[12:20])
    assert again.returncode == 2 and "was not made here" in again.stderr


@pytest.mark.thorough
def test_a_run_of_ones_own_is_used_without_a_question(toy: Path, assay: Assay) -> None:
    assert assay("run", "toy.toml", "--max-steps", "6", "--quiet").returncode == 0

    for command in COMMANDS:
        done = assay(*command, "last")
        assert done.returncode == 0, done.stderr
        assert "elsewhere" not in done.stderr


@pytest.mark.thorough
def test_a_project_that_was_moved_uses_the_modules_where_it_is_now(
    toy: Path, assay: Assay, tmp_path: Path
) -> None:
    assert assay("run", "toy.toml", "--max-steps", "6", "--quiet").returncode == 0
    moved = tmp_path / "moved"
    toy.rename(moved)
    toy.mkdir()  # whatever comes there later is not what the run was made with
    (toy / "net.py").write_text("raise RuntimeError('not mine')\n")

    (run,) = (moved / "runs").iterdir()
    for command in (("test",), ("rerun",), ("resume",)):
        done = assay(*command, run.name[12:20], cwd=moved)
        assert done.returncode == 0, done.stderr
        assert f"its modules are taken from {moved}" in " ".join(done.stderr.split())

    done = assay("test", run.name[12:20], cwd=moved)
    assert "elsewhere" not in done.stderr, "the attempt that was made here says where it was made"


@pytest.mark.thorough
@pytest.mark.usefixtures("forking")
def test_load_model_needs_trust_for_a_record_that_was_not_made_here(
    given: Path, toy: Path, tmp_path: Path
) -> None:
    script = (
        "import sys, warnings, assay\n"
        "warnings.simplefilter('always')\n"
        "trust = {'trust': True} if sys.argv[2:] else {}\n"
        "print(type(assay.load_model(sys.argv[1], 'latest', **trust)).__module__)\n"
    )
    variables = {**os.environ, "PYTHONPATH": str(SRC)}

    def load(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", script, str(given), *more]
        return subprocess.run(
            command, cwd=toy, env=variables, capture_output=True, text=True, check=False
        )

    refused, loaded = load(), load("trust")

    assert "was not made here" in refused.stderr and refused.returncode != 0
    assert loaded.stdout == "net\n", loaded.stderr
    assert "its modules are taken from" in loaded.stderr
    assert not pwned(tmp_path)


@pytest.mark.thorough
@pytest.mark.usefixtures("forking")
def test_on_a_terminal_a_person_sees_what_would_run_before_it_does(
    given: Path, toy: Path, tmp_path: Path
) -> None:
    def typed(answer: bytes) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "assay", "test", given.name[12:20]],
            cwd=toy,
            env={
                **os.environ,
                "PYTHONPATH": str(SRC),
                "NO_COLOR": "1",
                "TERM": "xterm",
                "COLUMNS": "80",
            },
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
        )
        os.close(theirs)
        said = b""
        while b"Run it? [y/N]" not in said:
            said += os.read(ours, 4096)
        os.write(ours, answer)
        process.communicate(timeout=120)
        os.close(ours)
        return process.returncode, said.decode()

    code, said = typed(b"n\n")

    assert code == 2
    assert "The run" in said and "was not made here." in said
    assert "calls  net.Net, points.Points" in said
    assert f"modules in {toy}" in " ".join(said.split())
    assert typed(b"y\n")[0] == 0
    assert not pwned(tmp_path)


def test_words_of_a_foreign_record_cannot_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    foreign = Foreign(
        run="a", use="test it", made="It says: in \x1b[2J/proj.", calls=("net\u202e.Net",), code="c"
    )

    for line in foreign.lines():
        say(line)

    said = capsys.readouterr().err
    assert "/proj" in said and "\x1b" not in said and "\u202e" not in said


def test_a_replay_of_a_foreign_record_sets_no_variable_that_steers_a_process(
    given: Path, assay: Assay, toy: Path, tmp_path: Path
) -> None:
    done = assay("replay", given.name[12:20], "--trust", "--force")

    assert not pwned(tmp_path)
    assert "evil.so" not in done.stderr  # what the loader says of a library that is not there


@pytest.mark.thorough
def test_packed_and_unpacked_by_somebody_else_it_asks(
    toy: Path, assay: Assay, tmp_path: Path
) -> None:
    theirs = {"XDG_DATA_HOME": str(tmp_path / "theirs")}
    assert assay("run", "toy.toml", "--max-steps", "6", "--quiet", **theirs).returncode == 0
    assert assay("pack", "last", "--to", "run.tar.gz", **theirs).returncode == 0
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(toy / "run.tar.gz", other)
    assert assay("unpack", "run.tar.gz", cwd=other).returncode == 0
    (run,) = (other / "runs").iterdir()

    assert not authorship.is_own(RunFolder(run), run_file.read(run))
    asked = assay("test", "last", cwd=other)
    assert (asked.returncode, "was not made here" in asked.stderr) == (2, True)
    for name in ("net.py", "points.py"):
        shutil.copy(toy / name, other)
    assert assay("test", "last", "--trust", cwd=other).returncode == 0


# ----------------------------------------------------------------------------------------------- every command, every owner

OF_THE_NEWEST = (
    *(("check", "RUN"), *(("check", "RUN", "--show", it) for it in VIEWS)),
    *(
        ("check", "FILE"),
        ("check", "FILE", "--show", "layers"),
        ("config", "explain", "seed", "FILE"),
    ),
    *(("check", "FILE", "--show", "loading"), ("run", "FILE", "--queue")),
    *(("run", "FILE", "--max-steps", "1"), ("test", "FILE", "--from", "RUN")),
    *(("prove", "FILE", "--write", "golden.json", "--steps", "1"), ("restore", "RUN")),
    *(("test", "RUN"), ("rerun", "RUN", "--max-steps", "1")),
)
OF_THE_SECOND = (("replay", "RUN@step-000000003"),)
OF_THE_FIRST = (("replay", "RUN", "--steps", ":3"), ("replay", "RUN", "--force", "--steps", ":2"))
OWNERS = {
    "this user": ((), (*OF_THE_NEWEST, *OF_THE_FIRST)),
    "nobody": ((*OF_THE_NEWEST, *OF_THE_FIRST), ()),
    "another user": ((*OF_THE_NEWEST, *OF_THE_FIRST), ()),
    "another user, resumed here": (OF_THE_FIRST, (*OF_THE_NEWEST, *OF_THE_SECOND)),
    "this user, moved": ((), (("check", "RUN"), ("test", "RUN"), *OF_THE_FIRST[:1])),
}


@pytest.mark.thorough
@pytest.mark.parametrize("owner", OWNERS)
def test_each_command_asks_for_what_this_user_did_not_make_and_for_nothing_else(
    toy: Path, assay: Assay, tmp_path: Path, owner: str
) -> None:
    maker = {} if owner.startswith("this") else {"XDG_DATA_HOME": str(tmp_path / "theirs")}
    done = assay("run", "toy.toml", "--max-steps", "3", "--quiet", **maker)
    assert done.returncode == 0, done.stderr
    (folder,) = (toy / "runs").iterdir()
    if owner == "nobody":
        run_file.write(folder, replace(run_file.read(folder), made_by=""))
    if owner.endswith("resumed here"):
        done = assay("resume", "last", "--trust", "--max-steps", "6", "--quiet")
        assert done.returncode == 0, done.stderr
    if owner.endswith("moved"):
        other = tmp_path / "moved" / "runs"
        other.mkdir(parents=True)
        shutil.move(folder, other)
        shutil.move(other / folder.name, folder.parent / f"{folder.name}-moved")
        folder = folder.parent / f"{folder.name}-moved"
    known = {"RUN": run_file.read(folder).id, "FILE": str(folder / "config.toml")}
    asking, silent = OWNERS[owner]

    for words in (*asking, *silent):
        done = assay(*(known.get(word, word).replace("RUN", known["RUN"]) for word in words))

        asks = "was not made here" in done.stderr
        assert asks == (words in asking), (owner, words, done.stderr)
        assert done.returncode == 2 or not asks
        assert "Traceback" not in done.stderr


BESIDE = {
    "net.py": "MARKnet = None\n",
    "points.py": "MARKpoints = None\n",
    "src/net.py": "MARKnet = None\n",
    "sitecustomize.py": "MARK",
    ".assay/settings.toml": 'trusted = ["net"]\n[[notify]]\nwhen = ["finished", "failed"]\nchannel = "command"\ncommand = "touch PWNED"\n',
}


@pytest.mark.parametrize("command", [("run", "--max-steps", "1"), ("check",)], ids=" ".join)
def test_nothing_beside_a_config_in_a_record_is_a_module_or_a_setting(
    toy: Path, assay: Assay, tmp_path: Path, command: Sequence[str]
) -> None:
    """Also in a record of one's own: whoever can put files there runs nothing by it."""
    assert assay("run", "toy.toml", "--max-steps", "1", "--quiet").returncode == 0
    (folder,) = (toy / "runs").iterdir()
    mark = MARK.format(mark=str(tmp_path / "PWNED"))
    for name, text in BESIDE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(
            text.replace("MARK", mark).replace("PWNED", str(tmp_path / "PWNED"))
        )

    name, *options = command
    done = assay(name, str(folder / "config.toml"), *options, cwd=folder)

    assert done.returncode == 0, done.stderr
    assert not pwned(tmp_path)
    assert {path.name for path in folder.parent.iterdir() if path.is_dir()} >= {folder.name}
    assert not (folder / "runs").exists()


def test_a_config_among_records_that_belongs_to_none_is_refused(toy: Path, assay: Assay) -> None:
    place = toy / "runs" / "sent"
    (place / ".assay").mkdir(parents=True)
    shutil.copy(toy / "toy.toml", place)
    (toy / ".assay").mkdir(exist_ok=True)

    done = assay("run", "runs/sent/toy.toml", "--max-steps", "1")

    assert done.returncode == 2
    assert "lies among the records of runs, and belongs to none of them" in done.stderr


# ----------------------------------------------------------------------------------------------- what no attempt signed


@pytest.mark.thorough
@pytest.mark.parametrize("command", [("check",), ("run", "--max-steps", "1")], ids=" ".join)
def test_a_config_in_a_record_that_no_attempt_here_had_asks_also_after_it_was_resumed(
    toy: Path, assay: Assay, tmp_path: Path, command: Sequence[str]
) -> None:
    theirs = {"XDG_DATA_HOME": str(tmp_path / "theirs")}
    done = assay("run", "toy.toml", "--max-steps", "3", "--quiet", **theirs)
    assert done.returncode == 0, done.stderr
    (folder,) = (toy / "runs").iterdir()
    (folder / "artifacts").mkdir(exist_ok=True)
    shutil.copy(toy / "toy.toml", folder / "artifacts" / "other.toml")
    program = MARK.format(mark=str(tmp_path / "PWNED"))
    (folder / "artifacts" / "evil.py").write_text(program)
    done = assay("resume", "last", "--trust", "--quiet", "--max-steps", "6", "train.clip_norm=2.0")
    assert done.returncode == 0, done.stderr
    names = ("config/before-attempt-2/config.toml", "artifacts/other.toml", "artifacts/evil.py")

    name, *options = command
    for config in names:
        done = assay(name, str(folder / config), *options)
        assert done.returncode == 2 and "was not made here" in done.stderr, (config, done.stderr)

    assert not pwned(tmp_path)
    assert assay(name, str(folder / "config.toml"), *options).returncode == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        ("run", "../config.toml", "--max-steps", "1", "--nproc", "2"),
        ("verify-resume", "../config.toml", "--kills", "1"),
        ("run", "../config.toml", "--queue", "--max-steps", "1"),
    ],
    ids=lambda words: words[0],
)
def test_no_process_started_in_a_record_imports_what_lies_there(
    toy: Path, assay: Assay, tmp_path: Path, words: Sequence[str]
) -> None:
    assert assay("run", "toy.toml", "--max-steps", "3", "--quiet").returncode == 0
    (folder,) = (toy / "runs").iterdir()
    place = folder / "artifacts"
    place.mkdir(exist_ok=True)
    for name in ("assay", "click", "torch"):
        (place / f"{name}.py").write_text(MARK.format(mark=str(tmp_path / "PWNED")))

    subprocess.run(
        [sys.executable, "-P", "-m", "assay", *words],  # as the console script begins
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(SRC), "NO_COLOR": "1"},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )

    assert not pwned(tmp_path)


SCRIPT = """\
import os
import assay

with assay.start(config={"lr": 1}, tag="t", resume=os.environ.get("RUN")) as run:
    run.log({"loss": 1.0}, 1)
"""
GIT_CONFIG = """\
[core]
repositoryformatversion = 0
bare = false
worktree = .
[filter "evil"]
clean = "touch '{mark}'; cat"
"""


def test_a_script_that_resumes_a_foreign_record_does_not_follow_it_to_its_project(
    tmp_path: Path,
) -> None:
    """The artifacts of the record are a repository, whose settings name a command for git."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "train.py").write_text(SCRIPT)

    def train(**variables: str) -> None:
        own = {**os.environ, "PYTHONPATH": str(SRC), **variables}
        subprocess.run([sys.executable, "train.py"], cwd=home, env=own, check=True)

    train(XDG_DATA_HOME=str(tmp_path / "theirs"))
    (folder,) = (path for path in (home / "runs").iterdir() if path.is_dir())
    place = folder / "artifacts"
    place.mkdir(exist_ok=True)
    (place / "data.txt").write_text("x\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        who = ["-c", "user.name=x", "-c", "user.email=x@x"]
        subprocess.run(["git", *who, *words], cwd=place, check=True)
    for name in ("HEAD", "config", "objects", "refs", "index", "info"):
        shutil.move(place / ".git" / name, place)
    shutil.rmtree(place / ".git")
    (place / "config").write_text(GIT_CONFIG.format(mark=str(tmp_path / "PWNED")))
    (place / "info" / "attributes").write_text("* filter=evil\n")
    os.utime(place / "data.txt", (1, 1))
    data = json.loads((folder / run_file.FILE_NAME).read_text())
    data |= {"project": f"runs/{folder.name}/artifacts", "status": "stopped"}
    data["attempts"][0]["status"] = "stopped"
    (folder / run_file.FILE_NAME).write_text(json.dumps(data))

    train(RUN=folder.name[12:20])

    assert not pwned(tmp_path)
    assert run_file.read(folder).project == str(home)
