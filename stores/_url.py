"""From a store's URL to the store."""

from __future__ import annotations

import re
from collections.abc import Callable

from ._clock import system_clock
from ._errors import BadStoreURL
from ._memory import MemoryStore
from ._records import Micros
from ._sqlite import SQLiteStore
from ._store import Store

SHAPES = (
    "write memory://, sqlite:///relative/path.db, sqlite:////absolute/path.db, "
    "postgresql://user:password@host/database or dynamodb://TABLE?region=eu-central-1"
)
INLINE = "commit=inline"


def open_store(
    url: str,
    *,
    clock: Callable[[], Micros] | None = None,
    read_only: bool = False,
    create: bool = True,
) -> Store:
    """Make the store that ``url`` names; ``async with`` opens it, and nothing is touched before.

    ``memory://`` is a new ``MemoryStore``. ``sqlite:///PATH`` is the file ``PATH``, taken as it is written,
    relative to the working directory unless it begins with a slash; ``?commit=inline`` behind it is
    ``SQLiteStore(inline=True)``. ``postgresql://user:password@host:port/database`` is a schema of a
    PostgreSQL database, made where it is missing; it needs ``perdure[postgres]``. Behind it: ``schema``
    (``perdure``), ``connections`` (at most so many at once: 10), ``timeout`` (seconds for a connection to be
    made and for a statement to be answered: 15), ``statement_cache_size`` (0 behind a pooler that keeps no
    prepared statements), and what asyncpg takes, such as ``sslmode`` or, with several hosts,
    ``target_session_attrs=read-write``. ``dynamodb://TABLE?region=eu-central-1`` is a table of Amazon
    DynamoDB, made where it is missing; it needs ``perdure[aws]``. Behind it: ``endpoint``, ``connections``
    (32) and ``timeout`` (seconds that a call may take: 15).

    ``BadStoreURL`` for anything else; what it says never repeats the URL, which may hold a password.
    ``clock`` gives microseconds since the epoch; None: this machine's, and with PostgreSQL the server's,
    which is one for all machines. ``read_only``: nothing is created, migrated or written; a new memory store
    has nothing to protect. ``create`` False: opening raises ``BadStoreURL`` where no store is there yet.
    """
    scheme, found, rest = url.partition("://")
    if not found or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,31}", scheme):
        raise BadStoreURL(f"this is no store URL: {SHAPES}")
    match scheme.lower():
        case "memory":
            if rest:
                raise BadStoreURL("memory:// takes nothing behind it: each is a new, empty store")
            return MemoryStore(clock or system_clock)
        case "sqlite":
            rest, option, given = rest.partition("?")
            if option and given != INLINE:
                raise BadStoreURL(f"the one option of a sqlite URL is ?{INLINE}, and no path holds a '?'")
            inline = bool(option)
            path = _sqlite_path(rest)
            return SQLiteStore(
                path, clock=clock or system_clock, read_only=read_only, create=create, inline=inline
            )
        case "postgresql" | "postgres":
            return _postgres(url, clock, read_only, create)
        case "dynamodb":
            return _dynamodb(url, clock, read_only, create)
        case other:
            raise BadStoreURL(f"no store is known for {other}:// URLs: {SHAPES}")


def _postgres(url: str, clock: Callable[[], Micros] | None, read_only: bool, create: bool) -> Store:
    try:
        from ._postgres import PostgresStore  # the driver is there for those who asked for it
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise BadStoreURL("PostgreSQL needs its driver: pip install 'perdure[postgres]'") from None
    return PostgresStore(url, clock=clock, read_only=read_only, create=create)


def _dynamodb(url: str, clock: Callable[[], Micros] | None, read_only: bool, create: bool) -> Store:
    try:
        from ._dynamodb import DynamoDBStore  # the driver is there for those who asked for it
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("aiobotocore", "aiohttp", "botocore"):
            raise
        raise BadStoreURL("DynamoDB needs its driver: pip install 'perdure[aws]'") from None
    return DynamoDBStore(url, clock=clock, read_only=read_only, create=create)


def _sqlite_path(rest: str) -> str:
    host, slash, path = rest.partition("/")
    if host or not slash:
        raise BadStoreURL(
            "a sqlite URL has three slashes before a relative path and four before an absolute one"
        )
    if not path or path.endswith("/"):
        raise BadStoreURL(
            "this sqlite URL names no file: sqlite:///perdure.db is one in the working directory"
        )
    if path == ":memory:":
        raise BadStoreURL("SQLite's own memory files are not supported: write memory://")
    if "#" in path or "\0" in path:
        raise BadStoreURL("the path of a sqlite URL takes no '#' or NUL: rename the file")
    return path
