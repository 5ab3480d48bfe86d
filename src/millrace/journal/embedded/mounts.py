"""Which kind of file system a folder is on. SQLite's log needs one that is local.

Over a network each look at a file takes its time, so files there are read several at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from millrace.errors import UserError

NETWORK: Final = frozenset(
    (
        *("nfs", "nfs3", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afs", "9p", "ceph"),
        *("glusterfs", "fuse.glusterfs", "lustre", "beegfs", "gpfs", "orangefs", "ocfs2", "gfs2"),
        *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.mount-s3", "davfs"),
        *("fuse.davfs2", "coda", "ncpfs", "fuse.juicefs", "fuse.blobfuse", "fuse.blobfuse2"),
        *("fuse.goofys", "fuse.ceph", "fuse.ceph-fuse", "fuse.mfs", "fuse.seaweedfs"),
        *("fuse.hadoop-fuse-dfs", "fuse.fuse_dfs", "wekafs", "panfs", "pvfs2"),
    )
)
_MOUNTS: Final = "/proc/self/mountinfo"


def refuse_network(folder: str) -> None:
    """Raise if a folder is on a network file system; where mounts are not listed, trust it."""
    kind = network_kind(folder)
    if kind is not None:
        raise UserError(
            f"the ledger cannot lie in {folder}, which is on a network file system ({kind})\n"
            "  to fix: put it on a local disk; other hosts join its owner"
        )


def network_kind(folder: str) -> str | None:
    """The type of a folder's file system if it is one of a network, as far as mounts are listed."""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
            kind = kind_of(os.path.realpath(folder), file)
    except OSError:
        return None
    return kind if kind in NETWORK else None


def kind_of(path: str, mounts: Iterable[str]) -> str | None:
    """The type of the file system of a path, from lines of mountinfo."""
    best, kind = "", None
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:  # noqa: PLR2004 - the fifth field is the mount point
            continue
        point = fields[4].encode().decode("unicode_escape")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # A later mount on the same point hides the earlier one.
        if inside and len(point) >= len(best):
            best, kind = point, after.split(" ")[0]
    return kind
