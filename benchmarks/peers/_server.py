"""The PostgreSQL server on which perdure and a peer keep their steps, each in a database of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from attrs import frozen

from benchmarks.stores._postgres import ask, counts

NAME = "peers"
BYTES = "SELECT CAST(sum(pg_total_relation_size(relid)) AS BIGINT) AS bytes FROM pg_stat_user_tables"
TRANSITIONS = "SELECT count(*) AS steps FROM perdure.log WHERE seq > 0"


@frozen
class Server:
    """A server by its URL."""

    url: str

    @contextlib.contextmanager
    def database(self) -> Generator[str]:
        """The URL of an empty database."""
        ask(self.url, f"CREATE DATABASE {NAME}")
        try:
            yield f"{self.url.rpartition('/')[0]}/{NAME}"
        finally:
            ask(self.url, f"DROP DATABASE {NAME} WITH (FORCE)")

    def syncs(self) -> int:
        """Flushes of the log so far."""
        return counts(self.url)["fsyncs"]

    def bytes(self, url: str) -> int:
        """Of the tables and indexes of a database."""
        return int(ask(url, BYTES)[0]["bytes"])

    def transitions(self, url: str) -> int:
        """Of perdure's, on the disk."""
        return int(ask(url, TRANSITIONS)[0]["steps"])
