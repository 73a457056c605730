"""Which disks are somebody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.store.mounts import filesystem_type, is_network, type_in

MOUNTS = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:30 / /home rw shared:1 - nfs4 server:/home rw,vers=4.2
24 23 0:31 / /home/me/local\040disk rw - xfs /dev/sdb rw
25 22 0:32 / /mnt/ssh rw - fuse.sshfs me@host:/ rw
26 22 0:33 / /over rw - ext4 /dev/sdc rw
27 22 0:34 / /over rw - cifs //server/share rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/etc/passwd", "ext4"),
        ("/home", "nfs4"),
        ("/home/me/runs", "nfs4"),
        ("/homeless", "ext4"),
        ("/home/me/local disk/runs", "xfs"),
        ("/mnt/ssh/x", "fuse.sshfs"),
        ("/over/x", "cifs"),
    ],
)
def test_the_innermost_and_newest_mount_decides(path: str, kind: str) -> None:
    assert type_in(MOUNTS, path) == kind


@pytest.mark.parametrize(
    ("kind", "network"),
    [("nfs4", True), ("fuse.sshfs", True), ("ext4", False), ("tmpfs", False), ("", False)],
)
def test_only_disks_of_other_machines_and_fuse_count_as_network(
    kind: str, network: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.store.mounts.filesystem_type", lambda path: kind)

    assert is_network(Path("/x")) is network


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="only Linux tells")
def test_this_machine_has_proc_where_everybody_has_it() -> None:
    assert filesystem_type(Path("/proc/self")) == "proc"
