"""Room of its own for each run, in the store that a word or a URL names.

A word is a key of ``SERVERS``; a URL names a server that is there, and perhaps options that every room gets.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from urllib.parse import parse_qsl

import asyncpg

from servers import dynamodb
from servers.aws import logged_in
from servers.postgres import URL, postgres, postgres_url

Restart = Callable[[], None]
TABLES = "dynamodb://"
FILES = "sqlite"
"""A file in the folder of each run."""
REGION = "us-east-1"


@contextmanager
def dynamodb_url() -> Iterator[str]:
    """The DynamoDB that the environment names, or else a new one that lets this process in."""
    if given := os.environ.get(dynamodb.URL):
        yield f"dynamodb://?region={os.environ.get('AWS_DEFAULT_REGION', REGION)}&endpoint={given}"
        return
    with dynamodb.dynamodb() as endpoint, logged_in(dynamodb.ACCESS_KEY, dynamodb.SECRET_KEY):
        yield f"dynamodb://?region={REGION}&endpoint={endpoint}"


SERVERS: dict[str, Callable[[], AbstractContextManager[str]]] = {
    FILES: lambda: nullcontext(FILES),
    "postgres": postgres_url,
    "dynamodb": dynamodb_url,
}
"""By word: what starts a server, or finds the one that the environment names, and gives its URL."""


@contextmanager
def server(store: str) -> Iterator[str]:
    """What ``room`` takes, while the server is there; ``ValueError`` where it is neither word nor URL."""
    if store in SERVERS:
        with SERVERS[store]() as url:
            yield url
        return
    if not store.startswith(("postgresql://", "postgres://", TABLES)):
        raise ValueError(
            f"STORE is one of {', '.join(SERVERS)}, or the postgresql:// or {TABLES} URL of a server"
        )
    yield store


@contextmanager
def restartable(store: str) -> Iterator[tuple[str, Restart | None]]:
    """As ``server``, and what ends it without ceremony and starts it again, where it is one of ours."""
    if store != "postgres" or URL in os.environ:
        with server(store) as url:
            yield url, None
        return

    def restart() -> None:
        ours.kill()
        ours.start()

    with postgres(durable=True) as ours:
        yield ours.url, restart


@contextmanager
def room(server: str, folder: Path) -> Iterator[str]:
    """The URL of a store that does not exist yet; what became of it is gone afterwards, or in the folder."""
    if server == FILES:
        yield f"sqlite:///{folder}/perdure.db"
        return
    if server.startswith(TABLES):
        with _table(server) as url:
            yield url
        return
    schema = f"room_{uuid.uuid4().hex}"
    try:
        yield f"{server}{'&' if '?' in server else '?'}schema={schema}"
    finally:
        asyncio.run(_drop(server.partition("?")[0], schema))


@contextmanager
def _table(server: str) -> Iterator[str]:
    """A table of its own, wherever the URL's own one is."""
    options = server.partition("?")[2]
    table, at = f"room-{uuid.uuid4().hex}", dict(parse_qsl(options))
    try:
        yield f"{TABLES}{table}?{options}"
    finally:
        dynamodb.drop(table, at["region"], at["endpoint"])


async def _drop(server: str, schema: str) -> None:
    connection = await asyncpg.connect(server)
    try:
        await connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    finally:
        await connection.close()
