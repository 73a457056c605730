"""What holds for every test: one torch thread, a home of its own, and nothing left behind."""

from __future__ import annotations

import os

# Before torch or numpy is imported anywhere: two threads on two busy cores are many times slower
# than one.
os.environ["OMP_NUM_THREADS"] = "1"

import compileall
import gc
import itertools
import multiprocessing
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import warm_python

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from assay.build.registry import Registered

pytest_plugins = ["repeatable", "rows"]

# Set once by other packages when they are imported, or by pytest itself.
VARIABLES_OF_OTHERS = {
    "PYTEST_CURRENT_TEST",
    "KMP_INIT_AT_FORK",
    "KMP_DUPLICATE_LIB_OK",
    "CRC32C_SW_MODE",
    "TORCHINDUCTOR_CACHE_DIR",
}
LASTING = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", warm_python.__file__)
FILES_OF_OTHERS = (".coverage", ".hypothesis", "mpl-data")
MEASURED = ("core", "config", "build", "query", "cli", "compat")
"""The tests that reach most of the rooms that `dev` wants covered."""
THREAD_GRACE_S = 2.0
STARTING_S = 60.0

# A shell that starts a command in the background has it ignore Ctrl-C, and all that the command
# starts inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

PROCESS = psutil.Process()
TESTS = Path(__file__).resolve().parent
SOURCE = str(TESTS.parent / "src")


HOME_OF_SESSION = pytest.StashKey[tuple[pytest.MonkeyPatch, tempfile.TemporaryDirectory[str]]]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Move the home for modules that are collected, and for fixtures that outlive one test.

    Those are set up before the fixture `home`, and would find the projects, settings and queue of
    the person at this machine.
    """
    patch = pytest.MonkeyPatch()
    folder = tempfile.TemporaryDirectory(prefix="home-of-tests-", ignore_cleanup_errors=True)
    move_home(patch, Path(folder.name))
    config.stash[HOME_OF_SESSION] = patch, folder


def pytest_unconfigure(config: pytest.Config) -> None:
    patch, folder = config.stash[HOME_OF_SESSION]
    patch.undo()
    folder.cleanup()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile assay once."""
    if not hasattr(session.config, "workerinput"):
        compileall.compile_dir(SOURCE, quiet=2)


def pytest_collection_finish() -> None:
    """Let neither the tests nor their commands write bytecode.

    That of a module which a test changes within a second, by as many characters, would be taken for
    the new one's. That of the tests themselves is written before: it takes 20 s to make.
    """
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            told = item.name.removeprefix("test_").replace("_", " ")
            pytest.skip(f"there is no CUDA device to tell that {told}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure coverage in tests of the rooms that are measured alone: measured calls take longer.

    What a property test reaches in a hundred examples, others reach in one.
    """
    plugin = item.config.pluginmanager.getplugin("_cov")
    if plugin is not None and (control := plugin.cov_controller) is not None:
        is_measured = item.get_closest_marker("hypothesis") is None and any(
            item.path.is_relative_to(TESTS / room) for room in MEASURED
        )
        if is_measured != control.started:
            (control.resume if is_measured else control.pause)()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, object, object]:
    """Spell out half characters (surrogates) in a report, which pytest's workers cannot send."""
    return spelled_out((yield))


def spelled_out(data: object) -> object:
    match data:
        case str():
            return (
                data if data.isascii() else data.encode("utf-8", "backslashreplace").decode("utf-8")
            )
        case dict():
            return {spelled_out(key): spelled_out(value) for key, value in data.items()}
        case list() | tuple():
            return type(data)(map(spelled_out, data))
        case _:
            return data


def without_the_monitor_of_tqdm() -> None:
    """Other packages draw bars with it, and its thread outlives them."""
    tqdm = sys.modules.get("tqdm")
    if tqdm is not None:
        tqdm.tqdm.monitor_interval = 0


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail a test that leaves state behind, and undo it, so that one leak fails one test.

    State is variables, threads, files, processes, a process group, a path or a folder.
    """
    variables = dict(os.environ)
    threads = set(threading.enumerate())
    without_the_monitor_of_tqdm()
    files = open_files()
    children = child_pids()
    path = list(sys.path)
    folder = os.getcwd()
    names = registered_names()
    tracer = sys.gettrace()
    one_torch_thread()

    yield

    if (
        sys.gettrace() is not tracer
    ):  # a recursion that is too deep turns off what measures coverage
        sys.settrace(tracer)

    leaks = [
        *leaked_process_group(),
        *leaked_variables(variables),
        *leaked_threads(threads),
        *leaked_files(files),
        *leaked_children(children),
        *leaked_names(names),
    ]
    if sys.path != path:
        leaks.append(f"sys.path: {sorted(set(sys.path) ^ set(path)) or 'its order'}")
        sys.path[:] = path
    if os.getcwd() != folder:
        leaks.append(f"the working directory: {os.getcwd()}")
        os.chdir(folder)
    one_torch_thread()
    if leaks:
        pytest.fail("the test left behind " + "; ".join(leaks), pytrace=False)


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders that are not there yet: `mktemp` looks at all that it has made before."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def home(nothing_is_left_behind: None, homes: Iterator[Path]) -> Iterator[Path]:
    """Home folder of the test's own, which hides all settings of the person at this machine."""
    folder = next(homes)
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        move_home(patch, folder)
        yield folder


def move_home(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make `folder` the home, and take away each variable that settings could come from."""
    for name in [
        name for name in os.environ if name == "ASSAY" or name.startswith(("ASSAY_", "XDG_"))
    ]:
        patch.delenv(name)
    patch.setenv("HOME", str(folder))
    patch.setenv("USERPROFILE", str(folder))
    for name, place in {
        "XDG_CACHE_HOME": ".cache",
        "XDG_CONFIG_HOME": ".config",
        "XDG_DATA_HOME": ".local/share",
        "XDG_STATE_HOME": ".local/state",
        "XDG_RUNTIME_DIR": ".run",
    }.items():
        patch.setenv(name, str(folder / place))


@pytest.fixture
def signals_as_they_were() -> Iterator[None]:
    """A test that fails must not leave the test run deaf to Ctrl-C."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The one browser of a process: a second driver would find the loop of the first one running."""
    from web.conftest import FLAGS, browser_path, missing

    if why := missing():
        pytest.skip(why)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path(), args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def warm() -> Iterator[warm_python.WarmPythons]:
    """Runner of Python processes with torch already imported, shared by this process's tests."""
    with warm_python.forked({**os.environ, "PYTHONPATH": SOURCE}) as run:
        yield run


@pytest.fixture
def forking(warm: warm_python.WarmPythons) -> Iterator[None]:
    """Let the Python commands that the test's own process starts be forked from such processes."""
    with warm.forking():
        yield


@pytest.fixture
def begin(warm: warm_python.WarmPythons) -> Iterator[warm_python.Begin]:
    """Starter of such processes, which go on; a test that leaves one behind fails."""
    processes: list[warm_python.Process] = []

    def start(*arguments: str, **how: Any) -> warm_python.Process:
        processes.append(warm.begin(arguments, **how))
        return processes[-1]

    yield start
    left = [each for each in processes if each.poll() is None]
    for each in left:
        each.kill()
        each.wait()
    for each in processes:
        for stream in (each.stdout, each.stderr):
            if stream is not None:
                stream.close()
    assert not left, "the test left a process behind"


def one_torch_thread() -> None:
    """Set torch to one thread if somebody has imported it."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads") and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


def open_files() -> dict[tuple[str, int], None]:
    """Regular files that this process holds open, by path and descriptor."""
    return {
        (file.path, file.fd): None
        for file in PROCESS.open_files()
        if not any(part.startswith(FILES_OF_OTHERS) for part in Path(file.path).parts)
    }


def child_pids() -> set[int]:
    """The processes that this one has started and not waited for, without multiprocessing's own."""
    try:
        pids = {
            int(pid)
            for task in os.listdir("/proc/self/task")
            for pid in Path(f"/proc/self/task/{task}/children").read_text(encoding="ascii").split()
        }
    except OSError:  # no such file on this system
        pids = {child.pid for child in PROCESS.children()}
    return pids


def registered_names() -> dict[tuple[str, str], Registered]:
    """What has a short name in this process."""
    module = sys.modules.get("assay.build.registry")
    return (
        {} if module is None else {(each.name, each.kind): each for each in module.registry.all()}
    )


def leaked_names(before: dict[tuple[str, str], Registered]) -> Iterator[str]:
    for key, each in registered_names().items():
        if key not in before and not each.place.startswith(SOURCE):
            yield f"the registered name {each} of {each.place}"


def leaked_process_group() -> Iterator[str]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
        yield "a torch process group"


def leaked_variables(before: dict[str, str]) -> Iterator[str]:
    for name in sorted((before.keys() | os.environ.keys()) - VARIABLES_OF_OTHERS):
        if before.get(name) != os.environ.get(name):
            yield f"the variable {name}={os.environ.get(name)!r}"
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


def leaked_threads(before: set[threading.Thread]) -> Iterator[str]:
    for thread in set(threading.enumerate()) - before:
        thread.join(THREAD_GRACE_S)
        if thread.is_alive():
            yield f"the thread {thread.name!r}"


def leaked_files(before: dict[tuple[str, int], None]) -> Iterator[str]:
    if open_files().keys() - before.keys():
        gc.collect()  # a file that only waits for the collector is no leak of the test's subject
        for path, _ in sorted(open_files().keys() - before.keys()):
            yield f"the open file {path}"


def command_of(child: psutil.Process) -> str:
    """Return the command line of a process, "" of one that has ended.

    Linux shows none for a moment after a process was started: it is set behind the point at which
    `vfork` lets the parent run on. The tracker of multiprocessing, which LASTING names, would be
    taken for a leak.
    """
    until = time.monotonic() + STARTING_S
    command = child.cmdline()
    while not command and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
        time.sleep(0.01)
        command = child.cmdline()
    return " ".join(command)


def leaked_children(before: set[int]) -> Iterator[str]:
    for child in multiprocessing.active_children():
        child.join(THREAD_GRACE_S)
    for pid in sorted(child_pids() - before):
        try:
            child = psutil.Process(pid)
            command = command_of(child)
        except psutil.Error:
            continue
        if any(name in command for name in LASTING):
            continue
        yield f"the process {pid} ({command[:80] or child.name()})"
        child.kill()
