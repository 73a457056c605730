"""Guards around every test: each kind of thing left behind fails its own test, and no other."""

from __future__ import annotations

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


@pytest.mark.thorough
@pytest.mark.slow
def test_a_test_has_a_home_of_its_own_and_no_setting_of_the_person(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_RUNS_DIR", "/precious")
    monkeypatch.setenv("HOME", "/precious")
    house(
        pytester,
        """
        import os
        import platformdirs

        def test_home():
            assert "ASSAY_RUNS_DIR" not in os.environ
            assert "precious" not in os.path.expanduser("~")
            for folder in (platformdirs.user_cache_dir("assay"), platformdirs.user_config_dir("assay")):
                assert folder.startswith(os.path.expanduser("~"))
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
        "row_results.py",
        "rows.py",
        "rows.toml",
        "warm_python.py",
    ):
        shutil.copy(TESTS / name, pytester.path / name)
    pytester.makepyfile(source)
