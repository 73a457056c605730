"""Guards around every test: each kind of thing left behind fails its own test, and no other."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

TESTS = Path(__file__).resolve().parent

LEAKS = {
    "variable": ("os.environ['LEFT'] = '1'", "the variable LEFT='1'"),
    "removed_variable": ("del os.environ['PATH']", "the variable PATH=None"),
    "thread": (
        "threading.Thread(target=threading.Event().wait, daemon=True, name='left').start()",
        "the thread 'left'",
    ),
    "file": ("global kept; kept = open('left.txt', 'w')", "the open file"),
    "process": ("global child; child = subprocess.Popen(['sleep', '60'])", "(sleep"),
    "path": ("sys.path.append('/left')", "sys.path: ['/left']"),
    "folder": ("os.chdir('/')", "the working directory: /"),
}


@pytest.mark.thorough
@pytest.mark.slow
def test_what_a_test_leaves_behind_fails_it_and_is_put_right(pytester: pytest.Pytester) -> None:
    leaking = "".join(
        f"def test_leaks_{name}():\n    {code}\n\ndef test_after_{name}(): pass\n\n"
        for name, (code, _) in LEAKS.items()
    )
    house(pytester, "import os, subprocess, sys, threading\n\n" + leaking)

    result = pytester.runpytest_subprocess("-p", "no:xdist", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=2 * len(LEAKS), errors=len(LEAKS))
    for name, (_, said) in LEAKS.items():
        assert f"ERROR at teardown of test_leaks_{name} " in result.stdout.str()
        assert said in result.stdout.str(), name


@pytest.mark.slow
def test_nothing_of_the_person_at_this_machine_reaches_a_test_its_fixtures_or_what_they_start(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    for folder in (".local/share/assay", ".config/assay", ".cache/assay"):
        (precious / folder).mkdir(parents=True)
    hostile = os.fsencode(tmp_path) + b"/hostile-\xff"
    os.makedirs(hostile + b"/.assay")
    (precious / ".local/share/assay/projects.txt").write_bytes(hostile + b"\n")
    (precious / ".config/assay/settings.toml").write_text("not = [toml", encoding="utf-8")
    monkeypatch.setenv("ASSAY_RUNS_DIR", str(precious / "runs"))
    monkeypatch.setenv("HOME", str(precious))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    house(
        pytester,
        """
        import os
        import subprocess
        import sys

        import platformdirs
        import pytest

        from assay.store.known_projects import known_projects

        SHOW = "from assay.store.known_projects import known_projects; print(known_projects())"

        def places():
            assert known_projects() == []
            started = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True)
            assert started.stdout.split() == ["[]"], started
            assert "ASSAY_RUNS_DIR" not in os.environ
            home = os.path.expanduser("~")
            folders = [platformdirs.user_cache_dir("assay"), platformdirs.user_config_dir("assay")]
            assert all(folder.startswith(home) for folder in folders)
            return home

        COLLECTED = places()

        @pytest.fixture(scope="session")
        def of_the_session():
            return places()

        @pytest.fixture(scope="module")
        def of_the_module():
            return places()

        def test_home(of_the_session, of_the_module):
            homes = {COLLECTED, of_the_session, of_the_module}
            assert not any("precious" in home for home in {places(), *homes})
        """,
    )

    pytester.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=1)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_tracker_of_multiprocessing_that_has_just_been_started_is_no_leak(
    pytester: pytest.Pytester,
) -> None:
    house(
        pytester,
        """
        import pytest
        from multiprocessing.resource_tracker import ResourceTracker

        trackers = []

        @pytest.mark.parametrize("again", range(20))
        def test_begins_tracking(again):
            trackers.append(ResourceTracker())
            trackers[-1].ensure_running()
        """,
    )

    pytester.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=20)


@pytest.mark.thorough
@pytest.mark.slow
def test_torch_has_one_thread_in_every_test(pytester: pytest.Pytester) -> None:
    house(
        pytester,
        """
        def test_one():
            import torch
            assert torch.get_num_threads() == 1
            torch.set_num_threads(2)

        def test_two():
            import torch
            assert torch.get_num_threads() == 1
        """,
    )

    pytester.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=2)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_failure_with_half_a_character_in_it_reaches_the_report_of_parallel_tests(
    pytester: pytest.Pytester,
) -> None:
    house(pytester, "def test_half():\n    print('said \\ud800')\n    assert 'got \\ud800' == ''\n")

    result = pytester.runpytest_subprocess("-n", "1")

    result.assert_outcomes(failed=1)
    assert "ud800" in result.stdout.str()


def house(pytester: pytest.Pytester, source: str) -> None:
    """A folder with our conftest and one file of tests."""
    pytester.makeini(
        "[pytest]\nmarkers =\n    row(*ids): rows\npythonpath = .\naddopts = --import-mode=importlib"
    )
    for name in (
        "conftest.py",
        "repeatable.py",
        "rows.py",
        "rows.toml",
        "warm_python.py",
    ):
        shutil.copy(TESTS / name, pytester.path / name)
    pytester.makepyfile(source)
