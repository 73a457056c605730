"""Each part of the package used by itself, in a script of a few lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import SRC

ALONE = {
    "from assay import Meter\nm = Meter(); m.loss = 0.5; print(m)": {"record"},
    "from assay import Params\np = Params(); p.lr = 0.1; print(p)": {"config"},
    "from assay import Logger\nLogger().info('alone')": {"record"},
    "import assay\nwith assay.start() as run: run.log({'loss': 0.5}, 1)": {
        "script",
        "record",
        "config",
        "store",
    },
    "from assay.config import load\nopen('a.toml', 'w').write('lr = 0.1'); load('a.toml')": {
        "config",
        "compat",  # the translator, which looks for older names
    },
    "from assay.engine import Saver, Where\nSaver('saved').save({'a': {'b': 1}}, Where(step=1))": {
        "engine"
    },
    "from assay.build import Context\nwith Context().use(): pass": {"build", "config"},
    "from assay.interop.event_file import EventFile\nfrom pathlib import Path\n"
    "f = EventFile(Path('b')); f.scalars([('a', 1.0)], 1); f.close()": {"interop"},
    "from assay.store.series import read_series\nprint(read_series('none.bin'))": {"store"},
    "from assay.query.find import find_run\nfrom assay import start\nstart().finish(); print(find_run('last').id)": {
        "query",
        "store",
        "config",
        "record",
        "script",
    },
}


@pytest.mark.row("C01")
@pytest.mark.parametrize("text", ALONE)
def test_each_part_works_alone_with_nothing_else_of_the_framework(
    text: str, tmp_path: Path
) -> None:
    rooms = "{name.split('.')[1] for name in sys.modules if name.startswith('assay.')}"
    (tmp_path / "alone.py").write_text(
        f"{text}\nimport sys\nprint('rooms', *sorted({rooms}))\nprint('torch', 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "alone.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    *_, loaded, torch_line = done.stdout.splitlines()
    assert set(loaded.split()[1:]) <= {"core", "formats", *ALONE[text]}
    assert torch_line == f"torch {'engine' in ALONE[text]}"
