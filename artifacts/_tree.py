"""Where blobs lie as files, and the blocking operations on them.

Below the root lie ``staging/``, one file for each put that is under way, and ``blobs/``, a folder for each
workspace with its label in ``label``, its lock in ``lock``, and its blobs in folders named by the first two
digits of their digests. A blob comes into its folder by a link to, or a rename of, a file that is whole and
synced. Publishing and deleting take the workspace's lock, so that neither decides on what the other changes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG

from attrs import frozen

from . import _disk
from ._backend import Blob, BlobDamaged, NoSuchBlob
from ._common import is_digest, no_such_blob

STAGING_GRACE = 60_000_000
"""Microseconds that a staging file without a lock is left alone: its writer may be about to lock it."""

_SHELF = re.compile(r"[0-9a-f]{2}")


@frozen(kw_only=True)
class Tree:
    """A root folder and the clock that stamps its blobs (microseconds since the Unix epoch)."""

    root: str
    clock: Callable[[], int]

    def prepare(self) -> None:
        """Make the folders, durably, and clear away what dead processes left in the staging folder."""
        missing = [path for path in (Path(self.root), *Path(self.root).parents) if not path.exists()]
        os.makedirs(self.root, exist_ok=True)
        for path in missing:
            with _disk.opened_root(str(path.parent)) as parent:
                _disk.sync(parent)
        with (
            _disk.opened_root(self.root) as root,
            _disk.opened_folder("blobs", root, make=True),
            _disk.opened_folder("staging", root, make=True) as staging,
        ):
            _disk.sync(root)
            for name in os.listdir(staging):
                with suppress(OSError):  # none of it can become visible, and the next opening tries again
                    self._clear(name, staging)

    def _clear(self, name: str, staging: int) -> None:
        fd = _disk.open_regular(name, staging)
        try:
            old = os.fstat(fd).st_mtime_ns // 1000 <= self.clock() - STAGING_GRACE
            if old and _disk.claim(fd):
                os.unlink(name, dir_fd=staging)
        finally:
            os.close(fd)

    @contextmanager
    def staging(self) -> Generator[int]:
        with _disk.opened_root(self.root) as root, _disk.opened_folder("staging", root) as staging:
            yield staging

    @contextmanager
    def _blobs(self) -> Generator[int]:
        with _disk.opened_root(self.root) as root, _disk.opened_folder("blobs", root) as blobs:
            yield blobs

    @contextmanager
    def _shelf(self, workspace: str, sha256: str) -> Generator[tuple[int, int]]:
        """The folders of workspace and blob; ``NoSuchBlob`` where they, or the blob in them, are missing."""
        with self._blobs() as blobs:
            home_folder = _disk.opened_folder(_disk.folder_name(workspace), blobs)
            try:
                with home_folder as home, _disk.opened_folder(sha256[:2], home) as shelf:
                    yield home, shelf
            except FileNotFoundError:
                raise no_such_blob(workspace, sha256) from None

    def open(self, workspace: str, sha256: str) -> int:
        """The blob's file, opened for reading."""
        with self._shelf(workspace, sha256) as (_, shelf):
            try:
                return _disk.open_regular(sha256, shelf)
            except _disk.NotRegular as error:
                raise BlobDamaged(
                    f"blob {sha256} of workspace {workspace!r} is a link or no file: put it again"
                ) from error

    def stat(self, workspace: str, sha256: str) -> Blob:
        fd = self.open(workspace, sha256)
        try:
            return _blob(workspace, sha256, os.fstat(fd))
        finally:
            os.close(fd)

    def publish(self, staged: str, fd: int, workspace: str, sha256: str) -> None:
        """Give the staged file, open as ``fd``, the blob's name, durably."""
        with (
            self.staging() as staging,
            self._blobs() as blobs,
            _disk.opened_folder(_disk.folder_name(workspace), blobs, make=True) as home,
            _disk.opened_folder(sha256[:2], home, make=True) as shelf,
        ):
            self._label(workspace, home, staging)
            with _disk.locked("lock", home):
                now = self.clock() * 1000
                os.utime(fd, ns=(now, now))
                _disk.sync(fd)
                _put_in_place(staged, staging, sha256, shelf)
            for folder in (shelf, home, blobs):
                _disk.sync(folder)

    def _label(self, workspace: str, home: int, staging: int) -> None:
        """Write the label before the first blob, so that no blob is ever without one."""
        with suppress(FileNotFoundError):
            os.stat("label", dir_fd=home, follow_symlinks=False)
            return
        name = f"{_disk.folder_name(workspace)}.{os.urandom(8).hex()}"
        fd = _disk.create(name, staging)
        try:
            _disk.write_all(fd, json.dumps(workspace).encode())
            _disk.sync(fd)
        finally:
            os.close(fd)
        os.rename(name, "label", src_dir_fd=staging, dst_dir_fd=home)
        _disk.sync(home)

    def delete(self, workspace: str, sha256: str, unless_modified_since: int) -> bool:
        with (
            suppress(NoSuchBlob),
            self._shelf(workspace, sha256) as (home, shelf),
            _disk.locked("lock", home),
        ):
            found = os.stat(sha256, dir_fd=shelf, follow_symlinks=False)
            if found.st_mtime_ns // 1000 >= unless_modified_since:
                return False
            os.unlink(sha256, dir_fd=shelf)
            _disk.sync(shelf)
        return True

    def walk(self, workspace: str | None, place: tuple[str, str]) -> Iterator[Blob]:
        """The blobs after that (workspace, sha256), in order."""
        with self._blobs() as blobs:
            folders = self._folders(blobs) if workspace is None else {workspace: _disk.folder_name(workspace)}
            for label in sorted(label for label in folders if label >= place[0]):
                with suppress(FileNotFoundError), _disk.opened_folder(folders[label], blobs) as home:
                    yield from _in_workspace(label, home, place[1] if label == place[0] else "")

    def _folders(self, blobs: int) -> dict[str, str]:
        """The folder of each workspace that ever held a blob, by its label."""
        folders: dict[str, str] = {}
        for name in filter(_disk.is_folder_name, os.listdir(blobs)):
            with suppress(FileNotFoundError), _disk.opened_folder(name, blobs) as home:
                label = _read_label(home)
                if _disk.folder_name(label) != name:
                    raise OSError(f"{name}/label does not belong to its folder: restore or remove the folder")
                folders[label] = name
        return folders


def _put_in_place(staged: str, staging: int, sha256: str, shelf: int) -> None:
    """Create if absent. What is there gives way to the staged file in one step, since it may be damaged."""
    with suppress(FileExistsError):
        os.link(staged, sha256, src_dir_fd=staging, dst_dir_fd=shelf, follow_symlinks=False)
        return
    spare = f"{staged}.again"
    os.link(staged, spare, src_dir_fd=staging, dst_dir_fd=staging, follow_symlinks=False)
    try:
        os.rename(spare, sha256, src_dir_fd=staging, dst_dir_fd=shelf)
    finally:
        with suppress(FileNotFoundError):  # it is still there where both names were one file already
            os.unlink(spare, dir_fd=staging)


def _in_workspace(label: str, home: int, after: str) -> Iterator[Blob]:
    for name in sorted(os.listdir(home)):
        if _SHELF.fullmatch(name) and name >= after[:2]:
            with _disk.opened_folder(name, home) as shelf:
                yield from _on_shelf(label, shelf, after)


def _on_shelf(label: str, shelf: int, after: str) -> Iterator[Blob]:
    for name in sorted(name for name in os.listdir(shelf) if name > after and is_digest(name)):
        with suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=shelf, follow_symlinks=False)
            if S_ISREG(found.st_mode):
                yield _blob(label, name, found)


def _read_label(home: int) -> str:
    fd = _disk.open_regular("label", home)
    try:
        label = json.loads(_disk.read_exactly(fd, os.fstat(fd).st_size, 0))
    except ValueError:
        label = None
    finally:
        os.close(fd)
    return label if isinstance(label, str) else ""


def _blob(workspace: str, sha256: str, found: os.stat_result) -> Blob:
    return Blob(
        workspace=workspace,
        sha256=sha256,
        size_bytes=found.st_size,
        modified=found.st_mtime_ns // 1000,
    )
