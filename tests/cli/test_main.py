"""How every command begins and ends."""

from __future__ import annotations

import importlib.util
import os
import pty
import signal
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

import assay as face
from assay import __main__ as door
from assay.cli import main as cli
from assay.cli.main import COMMANDS, ELSEWHERE, commands, main
from assay.core import code_places
from assay.core.diagnostics import Origin, Problem
from assay.core.errors import ConfigError, InputError, RecordError
from assay.store.layout import Project
from run_folders import make_run

from .conftest import Assay

ROOT = Path(__file__).resolve().parents[2]
Act = Callable[[], object]


@pytest.fixture
def acting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Act], None]]:
    """Puts a command `act` into the table, whose body is the test's."""

    def put(act: Act) -> None:
        module = types.ModuleType("acting_command")
        module.command = click.Command("act", callback=act)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "acting_command", module)
        monkeypatch.setitem(COMMANDS, "act", ("acting_command", "Act."))

    yield put


def raising(error: BaseException) -> Act:
    def act() -> None:
        raise error

    return act


def process(*arguments: str, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-m", "assay", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        text=True,
        check=False,
        **{"capture_output": True, **options},
    )


def test_assay_alone_shows_its_commands_in_the_order_of_the_table(assay: Assay) -> None:
    said = assay()

    assert said.code == 0
    assert said == assay("--help") == assay("-h")
    shown = [
        line.split()[0]
        for line in said.lines
        if line.startswith("  ") and line.split()[0] in COMMANDS
    ]
    assert shown == list(COMMANDS)
    assert all(line in said.out for _, line in COMMANDS.values())
    assert max(map(len, said.lines)) <= 80


def test_help_imports_no_command(tmp_path: Path) -> None:
    script = (
        "import sys; from assay.__main__ import main; sys.argv = ['assay', '--help']; main();"
        "rooms = ('assay.cli.', 'assay.query', 'assay.store', 'assay.config');"
        "print(sorted(m for m in sys.modules if m.startswith(rooms)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines()[-1] == "['assay.cli.main', 'assay.cli.terminal']"


@pytest.mark.parametrize(
    "name", [name for name, (module, _) in COMMANDS.items() if importlib.util.find_spec(module)]
)
def test_a_command_has_its_name_and_its_line_of_help(name: str, assay: Assay) -> None:
    module, _ = COMMANDS[name]
    command = importlib.import_module(module).command

    said = assay(name, "--help")

    assert command.name == name
    assert said.code == 0
    assert f"Usage: assay {name}" in said.out
    assert max(map(len, said.lines)) <= 80


def test_every_file_with_a_command_is_in_the_table() -> None:
    folder = Path(cli.__file__).parent
    texts = {
        path.stem.replace("_", "-"): path.read_text(encoding="utf-8")
        for path in folder.glob("*.py")
    }
    files = {name for name, text in texts.items() if "\ndef command(" in text}

    assert files <= set(COMMANDS)
    modules = {name: f"assay.cli.{name.replace('-', '_')}" for name in COMMANDS}
    assert {name: module for name, (module, _) in COMMANDS.items()} == modules


def test_a_command_that_does_not_exist_names_its_neighbour(assay: Assay) -> None:
    near, far = assay("shwo"), assay("frobnicate")
    elsewhere = assay("train")

    assert (near.code, far.code) == (2, 2)
    assert elsewhere.err == "error: There is no command `train`.\n  fix: did you mean `run`?\n"
    assert near.err == "error: There is no command `shwo`.\n  fix: did you mean `show`?\n"
    assert "the commands are init, run, " in far.err
    assert near.out == far.out == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["ls", "--jsn"], "`assay ls` has no option `--jsn`.\n  fix: did you mean `--json`?"),
        (["ls", "--zzz"], "`assay ls` has no option `--zzz`.\n  fix: `assay ls --help` shows how"),
        (["ls", "--where"], "has no option `--where`.\n  fix: `assay ls --help` shows how"),
        (["run", "a.toml", "--name", "x"], "`--name`.\n  fix: `assay run --help` shows them"),
        (["--vers"], "`assay` has no option `--vers`.\n  fix: did you mean `--version`?"),
        (
            ["board"],
            "`assay board` needs the argument RUN|EXPR.\n  fix: `assay board --help` shows how",
        ),
        (["tag", "last", "x"], "There is no command `tag`.\n  fix: assay edit RUN --tag TITLE"),
        (
            ["summary", "a.toml"],
            "no command `summary`.\n  fix: assay check CONFIG --show layers",
        ),
        (["show", "a", "b"], "`assay show` takes fewer arguments: not `b` too."),
        (
            ["sweep", "a.toml", "--sampler", "tep"],
            "`assay sweep`: --sampler cannot be `tep`.\n  fix: did you mean `tpe`?",
        ),
        (["sweep", "a.toml", "--sampler", "zzz"], "  fix: the choices are tpe, cma-es, nsga2"),
        (
            ["log", "last", "-n", "x"],
            "`assay log`: -n must be a whole number of at least 0, not 'x'.",
        ),
        (
            ["run", "a.toml", "--max-steps", "0"],
            "`assay run`: --max-steps must be a whole number of at least 1, not 0.",
        ),
        (
            ["config", "gett", "x"],
            "`assay config` has no command `gett`.\n  fix: did you mean `get`?",
        ),
        (["config", "zzz"], "`assay config` has no command `zzz`.\n  fix: the commands are "),
        (
            ["ls", "--json", "--csv"],
            "--json and --csv are two different things.\n  fix: give one of them",
        ),
    ],
)
def test_a_wrong_argument_is_said_in_our_words(
    arguments: list[str], text: str, assay: Assay
) -> None:
    said = assay(*arguments)

    assert said.code == 2
    assert text in said.err
    assert "Usage:" not in said.err


def test_the_version_is_that_of_the_face(assay: Assay) -> None:
    said = assay("--version")

    assert said.code == 0
    assert said.out == f"assay {face.__version__}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert face.__version__ in (project["version"], "0+unknown")


def test_what_a_command_returns_is_the_exit_code(
    acting: Callable[[Act], None], assay: Assay
) -> None:
    for result, code in ((None, 0), (0, 0), (1, 1), (7, 7), ("text", 0)):
        acting(lambda result=result: result)
        assert assay("act").code == code


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (InputError("No.", where="there", fix="so"), 2, "error: No.\n  at:  there\n  fix: so\n"),
        (RecordError("Broken."), 1, "error: Broken.\n"),
        (click.ClickException("odd"), 2, "error: odd\n"),
        (
            click.UsageError("two"),
            2,
            "error: `assay act`: two.\n  fix: `assay act --help` shows how\n",
        ),
        (
            click.BadParameter("no"),
            2,
            "error: `assay act`: Invalid value: no.\n  fix: `assay act --help` shows how\n",
        ),
    ],
)
def test_an_error_on_purpose_is_its_text_and_no_traceback(
    error: Exception, code: int, text: str, acting: Callable[[Act], None], assay: Assay
) -> None:
    acting(raising(error))

    said = assay("act")

    assert (said.code, said.err, said.out) == (code, text, "")


def test_a_config_error_is_rendered_with_a_summary(
    acting: Callable[[Act], None], assay: Assay
) -> None:
    problem = Problem(
        kind="unknown-key", message="unknown key `trian`", origin=Origin(source="a.toml", line=3)
    )
    acting(raising(ConfigError([problem, problem])))

    said = assay("act")

    assert said.code == 2
    assert said.err.startswith("error: unknown key `trian`")
    assert said.err.endswith("\n\n2 errors\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt_ends_with_130(
    error: BaseException, acting: Callable[[Act], None], assay: Assay
) -> None:
    acting(raising(error))

    said = assay("act")

    assert said.code == 130
    assert "Traceback" not in said.err


def test_a_fault_shows_the_part_that_helps_and_where_to_take_it(
    acting: Callable[[Act], None], assay: Assay, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(code_places, "_places", {})
    monkeypatch.chdir(tmp_path)  # these lines are not of a user

    def odd(n: int) -> None:
        even(n - 1)

    def even(n: int) -> None:
        if not n:
            raise ZeroDivisionError("boom")
        odd(n - 1)

    acting(lambda: even(0))
    said = assay("act")

    assert said.code == 1
    assert said.err.startswith("Traceback (most recent call last):\n")
    assert f'File "{__file__}"' in said.err
    assert "ZeroDivisionError: boom" in said.err
    assert "click" not in said.err and "/main.py" not in said.err
    assert "please report it" in said.err and "Python 3." in said.err

    acting(lambda: even(20))
    assert assay("act").err.count(f'File "{__file__}"') == 8
    monkeypatch.setenv("ASSAY_TRACEBACK", "1")
    said = assay("act")
    assert said.err.count(f'File "{__file__}"') == 22
    assert "click" in said.err and "/main.py" in said.err


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    (tmp_path / ".assay").mkdir()
    read, write = os.pipe()
    os.close(read)
    try:
        done = process(
            "--help", cwd=tmp_path, capture_output=False, stdout=write, stderr=subprocess.PIPE
        )
    finally:
        os.close(write)

    assert done.returncode == 141
    assert done.stderr == ""


def test_the_module_and_the_console_script_are_one(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    done = process("lss", cwd=project.root)

    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean `ls`?" in done.stderr
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "scripts"
    ]
    assert scripts == {"assay": "assay.__main__:program"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["assay", "ls"])
        assert door.main() == 0
    assert "no runs yet" in capfd.readouterr().out


def test_a_command_that_trains_begins_again_with_fixed_hashes_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begun: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda *call: begun.append(call))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-W", "ignore", "-m", "assay", "run", "zzz"])

    for name in ("ls", "run"):
        monkeypatch.setattr(sys, "argv", ["assay", name, "zzz"])
        monkeypatch.setenv("PYTHONHASHSEED", "")
        monkeypatch.delenv("PYTHONHASHSEED")
        door.program()
        assert os.environ.get("PYTHONHASHSEED") == ("0" if name == "run" else None)
    monkeypatch.setattr(sys, "argv", ["assay", "run", "zzz"])
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    door.program()

    again = [sys.executable, "-W", "ignore", "-m", "assay", "run", "zzz"]
    assert begun == [(sys.executable, again)]
    assert os.environ["PYTHONHASHSEED"] == "7"


def on_a_terminal(*arguments: str, cwd: Path, **variables: str) -> str:
    """What `assay ARGUMENTS` prints on a terminal of 80 columns."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "COLUMNS": "80",
            "TERM": "xterm",
            **variables,
        }
        os.execve(sys.executable, [sys.executable, "-m", "assay", *arguments], environment)
    seen = b""
    try:
        while part := os.read(descriptor, 65_536):
            seen += part
    except OSError:  # the other side was closed
        pass
    os.waitpid(pid, 0)
    os.close(descriptor)
    return seen.decode().replace("\r\n", "\n")


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs a terminal")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_colours_and_width_are_for_terminals_and_for_those_who_want_them(project: Project) -> None:
    make_run(project, tag="a-very-long-tag-" * 8)
    variables = {name: "" for name in ("NO_COLOR",) if name in os.environ}

    shown = on_a_terminal("ls", cwd=project.root, **variables)
    plain = on_a_terminal("ls", cwd=project.root, NO_COLOR="1")
    piped = process("ls", cwd=project.root).stdout

    assert "\x1b[32mfinished\x1b[0m" in shown
    assert "…" in shown and "…" in plain
    assert "\x1b" not in plain and max(map(len, plain.splitlines())) <= 80
    assert "\x1b" not in piped and "a-very-long-tag-" * 8 in piped
    assert "\x1b" not in on_a_terminal("ls", cwd=project.root, TERM="dumb")
    assert "\x1b[31;1merror:" in on_a_terminal("show", "zzz", cwd=project.root, **variables)


def test_every_public_name_resolves_and_no_other() -> None:
    assert sorted(face.__all__) == list(face.__all__)
    assert [name for name in face.__all__ if getattr(face, name) is None] == []
    assert set(face.__all__) <= set(dir(face))
    assert face.start.__module__ == "assay.script"
    with pytest.raises(AttributeError, match="module 'assay' has no attribute 'strat'"):
        _ = face.strat


def test_a_shell_completes_commands(assay: Assay, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "_ASSAY_COMPLETE": "bash_complete",
        "COMP_WORDS": "assay sh",
        "COMP_CWORD": "1",
    }.items():
        monkeypatch.setenv(name, value)

    assert assay().out == "plain,show\n"


def test_the_table_is_what_completion_sees() -> None:
    with click.Context(commands) as context:
        assert commands.list_commands(context) == list(COMMANDS)
        assert commands.get_command(context, "nothing") is None
    assert main(["--help"]) == 0


def test_a_group_of_commands_alone_shows_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config", "table"):
        assert main([name]) == 0
        said = capsys.readouterr()
        assert said.out.startswith(f"Usage: assay {name} ") and "error" not in said.out + said.err
    assert main(["board"]) == 2
    assert "`assay board` needs the argument RUN|EXPR." in capsys.readouterr().err


def test_what_another_tool_calls_a_command_is_no_command_here_and_leads_to_one() -> None:
    assert not ELSEWHERE.keys() & COMMANDS.keys()
    assert {here.split()[0] for here in ELSEWHERE.values()} <= COMMANDS.keys()
