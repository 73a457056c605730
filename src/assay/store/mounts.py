"""Kind of disk that a path lies on."""

from __future__ import annotations

import os
import re
from pathlib import Path

# fmt: off
NETWORK_TYPES = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs",
})
# fmt: on
_MOUNTS = Path("/proc/self/mountinfo")


def is_network(path: Path) -> bool:
    """Return whether a path is on a network or FUSE disk, as far as the system tells.

    Such disks may not show what a memory map wrote, and may answer a write with an error much
    later.
    """
    kind = filesystem_type(path)
    return kind in NETWORK_TYPES or kind.startswith("fuse")


def filesystem_type(path: Path) -> str:
    """The type of the mount that `path` lies on ("ext4"), "" where the system does not tell."""
    try:
        text = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    return type_in(text, os.path.realpath(path))


def type_in(mountinfo: str, real_path: str) -> str:
    """Return the type of the innermost mount in the text `mountinfo` that holds `real_path`."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        # The last of two mounts at one place is the one that is seen.
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
        inside = real_path == point or real_path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best = point
            kind = right.split(" ", 1)[0]
    return kind
