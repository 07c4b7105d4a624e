"""The file of a SQLite store: where it may lie, how it is opened, and what its driver's errors mean."""

from __future__ import annotations

import logging
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from ._errors import BadStoreURL, StoreError, StoreUnavailable, StoreUnreadable

SYNCHRONOUS = "FULL"
"""An answer is given after the disk has it."""

PRAGMAS = (
    "PRAGMA fullfsync = ON",
    "PRAGMA checkpoint_fullfsync = ON",
    "PRAGMA wal_autocheckpoint = 128",
    "PRAGMA journal_size_limit = 16777216",
    "PRAGMA cache_size = -16384",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA trusted_schema = OFF",
)
"""Set on each connection. 128 pages of 8 KB are 1 MB of write-ahead log between two checkpoints."""

OLDEST = (3, 38)
"""The first SQLite whose JSON functions are always there."""

NETWORK = (
    *(
        "afpfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "gfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
    ),
    *("ncpfs", "nfs", "nfs3", "nfs4", "ocfs2", "orangefs", "smb2", "smb3", "smbfs", "webdav", "fuse.ceph"),
    *(
        "fuse.davfs",
        "fuse.davfs2",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
    ),
)
"""File systems that several machines share: the write-ahead log gets corrupted there."""

SHARED = (
    *("9p", "fuse.grpcfuse", "fuse.osxfs", "fuse.portal", "fuse.vmhgfs-fuse", "prl_fs", "vboxsf", "virtiofs"),
    "vmhgfs",
)
"""File systems that a virtual machine or container shares with its host: safe from one side only."""

log = logging.getLogger("perdure.stores")


def connect(path: str, patience: float, read_only: bool = False) -> sqlite3.Connection:
    """Open a connection that waits up to ``patience`` seconds for locks; one thread at a time uses it."""
    db = sqlite3.connect(
        f"file:{quote(path)}?mode=ro" if read_only else path,
        timeout=patience,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        uri=read_only,
    )
    try:
        db.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
        for pragma in PRAGMAS:
            db.execute(pragma)
    except BaseException:
        db.close()
        raise
    return db


def find_place(path: str | Path) -> str:
    """Answer with the file's real path; ``BadStoreURL`` where no database can lie there."""
    if sqlite3.sqlite_version_info < OLDEST:
        raise BadStoreURL(
            f"this Python has SQLite {sqlite3.sqlite_version}: perdure needs {OLDEST[0]}.{OLDEST[1]} or newer"
        )
    try:
        place = os.path.realpath(path)
        is_folder, has_folder = os.path.isdir(place), os.path.isdir(os.path.dirname(place))
    except ValueError as error:
        raise BadStoreURL(f"{str(path)!r} is no file name: {error}") from None
    if is_folder:
        raise BadStoreURL(
            f"{place} is a folder: name a file in it, such as {os.path.join(place, 'perdure.db')}"
        )
    if not has_folder:
        raise BadStoreURL(
            f"{os.path.dirname(place)} is no folder: create it, or correct the path of the store"
        )
    _judge_file_system(place, find_file_system(place, read_mounts()))
    return place


def _judge_file_system(place: str, kind: str | None) -> None:
    if kind in NETWORK:
        raise BadStoreURL(
            f"{place} lies on a network file system ({kind}), on which SQLite's write-ahead log gets "
            "corrupted: put the file on a local disk"
        )
    if kind in SHARED:
        log.warning(
            "%s lies on a file system shared with a host (%s): open it from one side only, or it gets "
            "corrupted; a local disk or volume is safe",
            place,
            kind,
        )


def read_mounts() -> list[tuple[str, str]]:
    """Mount points with the kinds of their file systems, as far as this system tells."""
    try:
        if sys.platform == "darwin":
            return parse_mount(
                subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5).stdout
            )
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return parse_mountinfo(file.read())
    except (OSError, subprocess.SubprocessError):
        return []


def parse_mountinfo(text: str) -> list[tuple[str, str]]:
    """Read Linux's ``/proc/self/mountinfo`` (proc(5)), whose octal escapes stand for blanks."""
    mounts: list[tuple[str, str]] = []
    for line in text.splitlines():
        left, found, right = line.partition(" - ")
        fields = left.split(" ")
        if found and len(fields) > 4 and right:
            point = fields[4]
            for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
                point = point.replace(escape, character)
            mounts.append((point, right.split(" ")[0]))
    return mounts


def parse_mount(text: str) -> list[tuple[str, str]]:
    """Read the lines of macOS's mount(8): ``//ada@host/share on /Volumes/share (smbfs, nodev)``."""
    mounts: list[tuple[str, str]] = []
    for line in text.splitlines():
        left, found, options = line.rpartition(" (")
        _, on, point = left.partition(" on ")
        if found and on:
            mounts.append((point, options.rstrip(")").split(",")[0]))
    return mounts


def find_file_system(place: str, mounts: list[tuple[str, str]]) -> str | None:
    """The kind of the file system that holds ``place``; None where it is not known."""
    best, kind = "", None
    for point, candidate in mounts:
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        # Of two mounts at one point the later one lies on top.
        if inside and len(point) >= len(best):
            best, kind = point, candidate
    return kind


def is_busy(error: BaseException) -> bool:
    """Another connection holds a lock that this call needed."""
    return isinstance(error, sqlite3.OperationalError) and _code(error) in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    )


def _code(error: sqlite3.Error | UnicodeDecodeError) -> int:
    if isinstance(error, UnicodeDecodeError) or "Could not decode to UTF-8" in str(error):
        return sqlite3.SQLITE_CORRUPT  # of the schema, which the driver decodes without a word of its own
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def explain(path: str, error: sqlite3.Error | UnicodeDecodeError, *, opening: bool = False) -> StoreError:
    """Say what a driver's error means for this file, and what to do. Nothing was written."""
    match _code(error):
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_FORMAT:
            return StoreUnreadable(
                f"{path} is damaged or no database ({error}): restore it from a copy, or name another file"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreUnavailable(
                f"{path} is held by another process ({error}): end it, or try again later"
            )
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            kind = BadStoreURL if opening else StoreUnavailable
            return kind(
                f"{path} cannot be opened for writing ({error}): check the permissions of it and its folder"
            )
        case sqlite3.SQLITE_FULL:
            return StoreUnavailable(f"the disk that holds {path} is full: make room and try again")
        case sqlite3.SQLITE_IOERR:
            return StoreUnavailable(
                f"{path} cannot be read or written ({error}): look after its disk, for faults and for room"
            )
        case _:
            return StoreUnavailable(f"{path}: {error}")
