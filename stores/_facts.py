"""What can be said of a store from outside: where it lies, how large it is, and on what disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from urllib.parse import quote

from attrs import field, frozen

from ._sqlite import SQLiteStore
from ._sqlite_files import NETWORK, SHARED, SYNCHRONOUS, find_file_system, read_mounts
from ._store import Store


@frozen(kw_only=True)
class StoreFacts:
    """What a store is, as far as its kind says. None: not known, or nothing that this kind has."""

    kind: str
    """``sqlite``, or the store's class name."""
    place: str | None = None
    """The file; of a store elsewhere its ``where``, which says it for people, without credentials."""
    files: Mapping[str, int] = field(factory=dict[str, int])
    """The store's files, each with its size in bytes."""
    schema: int | None = None
    journal_mode: str | None = None
    synchronous: str | None = None
    """How perdure's own connections write."""
    file_system: str | None = None
    shared: str | None = None
    """``network`` or ``host``: who else may open the files, where that can corrupt them."""
    free_bytes: int | None = None


def store_facts(store: Store) -> StoreFacts:
    """Look at a store's files, opened or not; blocks on the disk, and changes nothing.

    A file that is not there, or cannot be read, is left out.
    """
    if not isinstance(store, SQLiteStore):
        return StoreFacts(kind=type(store).__name__, place=getattr(store, "where", None))
    place = os.path.realpath(store.path)
    kind = find_file_system(place, read_mounts())
    schema, mode = _header(place)
    return StoreFacts(
        kind="sqlite",
        place=place,
        files={path: os.path.getsize(path) for path in _files(place) if os.path.isfile(path)},
        schema=schema,
        journal_mode=mode,
        synchronous=SYNCHRONOUS,
        file_system=kind,
        shared="network" if kind in NETWORK else "host" if kind in SHARED else None,
        free_bytes=_free(os.path.dirname(place)),
    )


def _files(place: str) -> list[str]:
    return [place, f"{place}-wal", f"{place}-shm"]


def _free(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _header(place: str) -> tuple[int | None, str | None]:
    try:
        with closing(sqlite3.connect(f"file:{quote(place)}?mode=ro", uri=True)) as db:
            ((schema,),) = db.execute("PRAGMA user_version").fetchall()
            ((mode,),) = db.execute("PRAGMA journal_mode").fetchall()
    except sqlite3.Error:
        return None, None
    return int(schema), str(mode)
