"""Where a file lies: several machines must not share a store, or a cache of models.

SQLite's locks, its syncs and the shared memory of its write-ahead log are those of one machine's kernel. Over
a network they are slow at best and missing at worst, and two machines that write damage the file:
https://sqlite.org/useovernet.html, https://sqlite.org/howtocorrupt.html (section 2.1).
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dray.errors import ConfigError
from dray.machine import lines_of

_UNPACKED = "/runtime_resources/working_dir_files/"  # in the folder of Ray's session, on each of its nodes
_MOUNTS = Path("/proc/self/mountinfo")  # proc(5): what is mounted where, in the order of mounting

# Of the kernel (https://docs.kernel.org/filesystems/) and of vendors, that several machines mount.
_NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda", "davfs", "dvs"),
        *("lustre", "lustre_lite", "gpfs", "mmfs", "beegfs", "ceph", "glusterfs", "orangefs", "pvfs2"),
        *("panfs", "wekafs", "ocfs2", "gfs", "gfs2", "acfs", "objectivefs"),
    )
)
# Programs behind FUSE that do the same, by the subtype or the source that they mount with.
_NETWORK_FUSE = re.compile(
    r"sshfs|s3fs|mountpoint-s3|mount-s3|goofys|geesefs|gcsfuse|blobfuse|rclone|juicefs|gluster|ceph|moosefs|mfs"
    r"|lizardfs|seaweed|weed|quobyte|alluxio|hdfs|fuse_dfs|davfs|curlftpfs|cvmfs|beegfs|objectivefs|smbnetfs",
    re.IGNORECASE,
)
_MEMORY = frozenset(("tmpfs", "ramfs"))
# Where a write-ahead log may be used. A store on an unlisted file system has the rollback journal.
_LOCAL = frozenset(
    (
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs"),
        *(*_MEMORY, "overlay"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """``kind`` as the kernel calls it; empty where it does not say. ``source`` is what was mounted."""

    kind: str
    mounted_at: str
    source: str

    @property
    def network(self) -> bool:
        """Whether other machines may have it mounted, too."""
        if self.kind.partition(".")[0] in ("fuse", "fuseblk"):
            return _NETWORK_FUSE.search(f"{self.kind} {self.source.partition(':')[0]}") is not None
        return self.kind in _NETWORK

    @property
    def memory(self) -> bool:
        """Whether what it holds lies in memory."""
        return self.kind in _MEMORY

    @property
    def local(self) -> bool:
        """Whether it is surely of this machine alone."""
        return self.kind in _LOCAL


def file_system_of(path: Path) -> FileSystem:
    """The file system that holds, or will hold, ``path``."""
    real = Path(os.path.realpath(path))
    with suppress(OSError):
        real.parent.stat()  # has it mounted, where that happens by itself
    found = FileSystem(kind="", mounted_at="", source="")
    for line in lines_of(_MOUNTS):
        left, _, right = line.partition(" - ")
        place = Path(_unescaped(left.split()[4]))
        kind, source = right.split()[:2]
        if real.is_relative_to(place) and len(place.parts) >= len(Path(found.mounted_at).parts):
            found = FileSystem(kind=kind, mounted_at=str(place), source=_unescaped(source))
    return found


def refuse_network(path: Path, found: FileSystem) -> None:
    """Refuse a file that several machines may open.

    Raises:
        ConfigError: says where it is, and where a store can be.
    """
    if found.network:
        raise ConfigError(
            f"store {path}: SQLite cannot be relied on there: {found.mounted_at} is a network's file system "
            f"({found.kind}), whose locks do not hold between machines. Put the store on a local disk "
            f"(--store /var/tmp/{path.name}), or use PostgreSQL (--store postgresql://...); the output may "
            "stay where it is"
        )


def refuse_unpacked(path: Path) -> None:
    """Refuse a place in the folder that Ray unpacks for a job of its own (``ray job submit --working-dir``).

    Raises:
        ConfigError: says where else to write.
    """
    if _UNPACKED in f"{os.path.realpath(path)}/":
        raise ConfigError(
            f"{path}: lies in a folder that Ray unpacked for its job, and Ray deletes this folder after the "
            "job; give an absolute path elsewhere, or an object store (with PostgreSQL for --store)"
        )


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
