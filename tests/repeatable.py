"""Hooks for repeatable test runs: fixed examples, seeded generators and orders, recorded orders.

`./dev test --random-order SEED` finds a test that fails only behind certain others. Every run
leaves the list of tests that each worker ran, in order, in `.pytest_cache/d/order`; pytest repeats
such a list: `./dev test -n0 @FILE`. Workers begin with the longest modules, so that none of them is
left to one core at the end.
"""

from __future__ import annotations

import os
import random
import sys
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# No health check on speed: a loaded machine is no reason to fail.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", _PATIENT, derandomize=True, database=None)
settings.register_profile("quick", settings.get_profile("fixed"), max_examples=10)
settings.register_profile("fuzz", _PATIENT, max_examples=1_000, print_blob=True)
settings.load_profile("fixed")

LONGEST = (
    *("tests/security/test_hostile.py", "tests/flow/test_planted_faults.py"),
    *("tests/engine/parallel/test_matrix.py", "tests/web/test_pages.py"),
    *("tests/flow/test_parallel.py", "tests/flow/test_ends.py", "tests/test_benchmarks.py"),
    *("tests/test_checks.py", "tests/jobs/test_slurm.py", "tests/flow/test_export.py"),
    *("tests/security/test_compositions.py", "tests/test_docs.py"),
    *("tests/flow/test_foreign_records.py", "tests/flow/test_many.py"),
    *("tests/flow/test_outside.py", "tests/flow/test_examples.py", "tests/test_house.py"),
    *("tests/flow/test_verify_resume.py", "tests/flow/test_queue.py"),
)
"""Modules of a minute and more in `./dev check`, the longest first."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--random-order", type=int, metavar="SEED", help="run the tests in an order drawn from SEED"
    )
    parser.addoption(
        "--slow-server",
        type=int,
        metavar="SEED",
        help="make every answer to a browser late, by times drawn from SEED",
    )


def pytest_configure(config: pytest.Config) -> None:
    if settings().derandomize:
        draw_no_constants_of_modules()
    # xdist would begin with the modules of the most tests, and end with a long one on one core.
    config.option.loadscopereorder = False
    if config.pluginmanager.hasplugin(
        "cacheprovider"
    ):  # `-p no:cacheprovider` leaves no folder to write into
        config.pluginmanager.register(KeptOrder(config), "kept-order")


def draw_no_constants_of_modules() -> None:
    """Let examples depend on the test alone.

    Hypothesis also draws constants out of the source of all local modules that are imported by
    then: the same test would see other examples behind other tests, or after an edit elsewhere. It
    has no setting for that (6.170).
    """
    providers._get_local_constants = lambda: providers._local_constants


def pytest_report_header(config: pytest.Config) -> list[str]:
    seed = config.getoption("random_order")
    return [] if seed is None else [f"random order: seed {seed}"]


def seed_generators() -> None:
    """Let what draws without a seed of its own draw the same every time."""
    random.seed(0)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(0)
    # Torch seeds its own from the machine's entropy; a stub of torch has none.
    if torch is not None and hasattr(torch, "default_generator"):
        torch.default_generator.manual_seed(0)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Seed what a module of tests draws while it is imported."""
    if isinstance(collector, pytest.Module):
        seed_generators()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    seed_generators()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Seed again: how much was drawn before depends on which test is first to need a fixture."""
    seed_generators()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("random_order")
    if seed is not None:
        items[:] = shuffled(items, seed)
    elif hasattr(config, "workerinput"):
        items.sort(key=place_of)


def place_of(item: pytest.Item) -> int:
    """Return the place at which workers take the module of a test: the longest ones first."""
    path = item.path.as_posix()
    return next((i for i, name in enumerate(LONGEST) if path.endswith(name)), len(LONGEST))


def shuffled(items: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """Return modules in random order, with the tests of each together in random order.

    A module's fixtures are thus made once.
    """
    draw = random.Random(seed)
    modules = [list(each) for _, each in groupby(items, key=lambda item: item.path)]
    draw.shuffle(modules)
    for module in modules:
        draw.shuffle(module)
    return [item for module in modules for item in module]


class KeptOrder:
    """Plugin that lists each worker's tests in the order run, and names the lists at a failure."""

    def __init__(self, config: pytest.Config) -> None:
        self.folder = config.cache.mkdir("order")
        if worker() == "main":
            for path in self.files():
                path.unlink()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        with (self.folder / f"{worker()}.txt").open("a", encoding="utf-8") as file:
            file.write(f"{item.nodeid}\n")

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        if not terminalreporter.stats.get("failed") and not terminalreporter.stats.get("error"):
            return
        for line in pytest_report_header(config):  # -q shows no header
            terminalreporter.write_line(line)
        for path in self.files():
            shown = path.relative_to(config.rootpath)
            terminalreporter.write_line(
                f"order of {path.stem}, to be repeated: ./dev test -n0 @{shown}"
            )

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.txt"))


def worker() -> str:
    """Return the name of this worker of xdist; `main` for the process that was started."""
    return os.environ.get("PYTEST_XDIST_WORKER", "main")
