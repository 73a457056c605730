"""Shell script that runs one of several jobs, chosen by an index."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from assay.core.errors import InputError
from assay.core.job import JobSpec

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def choose_job(specs: Sequence[JobSpec], index: str) -> str:
    """Return lines of a POSIX shell that take on one job: its variables, folder and `"$@"`.

    `index` is the name of the variable with the position in `specs`. Every word is quoted: nothing
    of a config or a path is read by the shell.
    """
    cases = [f"{number})\n{_job(spec)}\n  ;;" for number, spec in enumerate(specs)]
    return "\n".join([f'case "${index}" in', *cases, "esac"])


def _job(spec: JobSpec) -> str:
    wrong = [name for name in spec.environment if not _NAME.fullmatch(name)]
    if wrong:
        raise InputError(f"`{wrong[0]}` cannot be the name of an environment variable.")
    lines = [f"  export {name}={shlex.quote(value)}" for name, value in spec.environment.items()]
    lines += [f"  cd {shlex.quote(spec.cwd)} || exit 127", f"  set -- {shlex.join(spec.command)}"]
    return "\n".join(lines)
