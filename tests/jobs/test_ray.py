"""Jobs of a real Ray on this machine."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.core.errors import MissingExtraError
from assay.core.job import JobSpec
from assay.jobs.backends.ray import run_on_ray

HAS_RAY = importlib.util.find_spec("ray") is not None
NEEDS_RAY = pytest.mark.skipif(not HAS_RAY, reason="there is no Ray here: pip install 'assay[ray]'")


def test_ray_names_its_extra_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(MissingExtraError, match="needs the extra `ray`"):
        run_on_ray([], tmp_path, lambda place, status: None)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    import ray

    src = os.pathsep.join(sys.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONBREAKPOINT", "")  # Ray sets it, and leaves it set
        ray.init(
            num_cpus=4,
            num_gpus=2,
            include_dashboard=False,
            logging_level="ERROR",
            log_to_driver=False,
            # With an environment of its own Ray starts workers by a line of the shell, unquoted.
            runtime_env={
                "env_vars": {"PYTHONPATH": src},
                "py_executable": shlex.quote(sys.executable),
            },
        )
        yield
        ray.shutdown()


@pytest.mark.thorough
@NEEDS_RAY
@pytest.mark.filterwarnings("ignore")  # those of Ray's own threads and files
def test_each_job_ends_in_its_own_state_and_no_two_hold_one_gpu(
    cluster: None, tmp_path: Path
) -> None:
    code = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(1)"
    lines = [
        "print('fine')",
        "import sys; sys.exit(3)",
        "import os; os.kill(os.getpid(), 9)",
        "raise MemoryError('torch.OutOfMemoryError')",
        *[code] * 2,
    ]
    specs = [
        JobSpec(
            command=(sys.executable, "-c", line),
            cwd=str(tmp_path),
            device="auto" if line == code else "cpu",
        )
        for line in lines
    ]
    told: dict[int, str] = {}

    ended = run_on_ray(specs, tmp_path / "ray files", lambda i, end: told.update({i: end.state}))

    assert [each.state for each in ended] == ["finished", *["failed"] * 3, *["finished"] * 2]
    assert told == dict(enumerate(each.state for each in ended))
    assert [each.exit_code for each in ended[:2]] == [0, 3]
    assert [each.signal for each in ended] == [0, 0, 9, 0, 0, 0]
    assert [each.failure for each in ended[:4]] == ["", "exception", "killed", "out-of-memory"]
    printed = [file.read_text().strip() for file in (tmp_path / "ray files").glob("*.txt")]
    assert {"0", "1", "fine"} <= set(printed)
