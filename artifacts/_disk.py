"""File work below one folder: names are opened step by step from it, and links are never followed.

Everything here blocks, and is called in worker threads. Descriptors of folders live no longer than the call
that opened them, so that none is ever used after its number went to another file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress

_FOLDER = os.O_RDONLY | os.O_DIRECTORY
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO must not hang who opens it
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_FULLFSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


class NotRegular(OSError):
    """Where a file of ours should be there is a link, a folder or a device."""


def sync(fd: int) -> None:
    """Return when what was written is on the disk; on macOS fsync alone leaves it in the drive's cache."""
    if _FULLFSYNC is not None:
        with suppress(OSError):  # network file systems know only fsync
            fcntl.fcntl(fd, _FULLFSYNC)
            return
    os.fsync(fd)


@contextmanager
def opened_root(path: str) -> Generator[int]:
    """The folder everything lies in; it may be reached through links, what lies in it may not."""
    fd = os.open(path, _FOLDER)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def opened_folder(name: str, at: int, /, *, make: bool = False) -> Generator[int]:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=at)
    try:
        fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(f"{name!r} in it is a link or no folder and is not followed: remove it") from error
        raise
    try:
        yield fd
    finally:
        os.close(fd)


def open_regular(name: str, at: int, /) -> int:
    """Open a file for reading; ``NotRegular`` for a link or whatever else stands under the name."""
    if not stat.S_ISREG(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
        raise NotRegular(f"{name} is no regular file")
    fd = os.open(name, _READ, dir_fd=at)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegular(f"{name} is no regular file")
    return fd


def create(name: str, at: int, /) -> int:
    return os.open(name, _CREATE, 0o666, dir_fd=at)


@contextmanager
def locked(name: str, at: int, /) -> Generator[None]:
    """Hold the lock file of that name alone, among threads and processes; one that dies lets go of it."""
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=at)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def claim(fd: int) -> bool:
    """Lock an open file for as long as it is open, unless somebody has locked it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_all(fd: int, content: bytes | bytearray, /) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def read_exactly(fd: int, size: int, offset: int, /) -> bytes:
    """Fewer bytes where the file ends before."""
    pieces: list[bytes] = []
    while size and (piece := os.pread(fd, size, offset)):
        pieces.append(piece)
        size -= len(piece)
        offset += len(piece)
    return b"".join(pieces)


def folder_name(label: str) -> str:
    """A folder name for any text: bounded, of lower-case ASCII, and its own for each label.

    The digest makes it so, also where file systems fold case or normalise; what stands before it is for
    people who look into the folder.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", label.lower())[:32].strip("-") or "workspace"
    return f"{readable}.{hashlib.sha256(label.encode('utf-8', 'surrogatepass')).hexdigest()}"


def is_folder_name(name: str) -> bool:
    """Whether it may be one; file managers and backups put files of their own beside."""
    return re.fullmatch(r"[a-z0-9-]+\.[0-9a-f]{64}", name) is not None
