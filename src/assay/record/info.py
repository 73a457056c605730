"""Launch summary of a run for its log; `run.json` has the same as data."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from assay.formats.run_file import RunFile


def info_lines(run: RunFile, config_toml: str) -> Iterator[str]:
    """Tag, id, command, code, device, versions and config of the newest attempt."""
    newest = run.newest
    found = newest.environment
    yield f"run {run.id}  tag {run.tag or '-'}  attempt {newest.number}"
    if newest.command:
        yield f"command {shlex.join(newest.command)}"
    code = newest.code
    if code.git_commit:
        changes = " with changes" if code.git_dirty else ""
        yield f"code commit {code.git_commit[:12]}{changes}, {code.files} files kept"
    elif code.snapshot:
        yield f"code {code.files} files kept"
    machine = f"{found.get('machine')}  {found.get('cpus')} cpus  kernel {found.get('kernel')}"
    yield f"host {found.get('host')}  {machine}"
    gpus = "".join(f"  {name}" for name in found.get("gpus", []))
    driver = f"  driver {found['driver']}" if "driver" in found else ""
    yield f"device {', '.join(newest.devices) or '-'}{gpus}{driver}"
    torch = found.get("torch", {})
    versions = {
        "python": found.get("python"),
        "torch": torch.get("version"),
        "cuda": torch.get("cuda"),
    }
    versions |= {"cudnn": torch.get("cudnn")}
    yield "  ".join(f"{name} {version}" for name, version in versions.items() if version)
    for line in config_toml.splitlines():
        yield f"| {line}"
