"""Where a PostgreSQL store lies: its URL taken apart, so that no error or log line repeats a password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from attrs import frozen

from ._errors import BadStoreURL

SCHEMA = "perdure"
"""The schema of a store whose URL names none."""
CONNECTIONS = 10
TIMEOUT = 15.0

HOSTS = re.compile(r"((\[[0-9A-Fa-f:.]+\]|[^\[\]:,]*)(:[0-9]{1,5})?(,|$))*")

WRITE = (
    "write postgresql://user:password@host:5432/database?schema=perdure, with every special character of a "
    "name or password as %XX"
)


@frozen(kw_only=True)
class Place:
    """A schema of a database, and how to connect to it."""

    dsn: str
    """For the driver alone: it may hold a password."""
    where: str
    """For people."""
    schema: str
    connections: int
    """At most so many at once."""
    timeout: float
    """Seconds for a connection to be made, and for a statement to be answered."""
    cached_statements: int
    """How many prepared statements each connection keeps; 0: none."""


def find_place(url: str) -> Place:
    """Take a URL apart; ``BadStoreURL`` where it cannot be one, without a word of it that could be secret."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise BadStoreURL(f"this is no postgresql URL: {WRITE}") from None
    hosts = parts.netloc.rpartition("@")[2]
    if "@" in parts.netloc.replace("@", "", 1) + parts.path + parts.query or "#" in url:
        # Part of a password would be taken for a host, a database or an option, and shown.
        raise BadStoreURL(f"a '@', '#', '/' or '?' stands where this postgresql URL takes none: {WRITE}")
    if not HOSTS.fullmatch(hosts):
        raise BadStoreURL(f"a host of this postgresql URL is none, or its port no number: {WRITE}")
    schema = options.pop("schema", SCHEMA)
    if not schema or len(schema.encode()) > 63 or "\0" in schema or schema.startswith("pg_"):
        raise BadStoreURL("the schema of a postgresql URL has from 1 to 63 bytes and does not begin with pg_")
    options.setdefault("application_name", "perdure")
    place = f"{hosts or options.get('host', 'localhost')}/{unquote(parts.path.removeprefix('/'))}"
    return Place(
        connections=_number(options, "connections", CONNECTIONS, least=1),
        timeout=float(_number(options, "timeout", int(TIMEOUT), least=1)),
        cached_statements=_number(options, "statement_cache_size", 100, least=0),
        dsn=parts._replace(scheme="postgresql", query=urlencode(options, quote_via=quote)).geturl(),
        where=f"schema {schema!r} of the PostgreSQL database {place}",
        schema=schema,
    )


def _number(options: dict[str, str], name: str, usual: int, *, least: int) -> int:
    given = options.pop(name, str(usual))
    if not given.isascii() or not given.isdigit() or not least <= int(given) <= 10_000:
        raise BadStoreURL(f"{name} of a postgresql URL is a whole number from {least} to 10000")
    return int(given)


def arguments(place: Place) -> Mapping[str, Any]:
    """What the driver's pool is made with."""
    return {"min_size": 0, "max_size": place.connections, **of_each(place)}


def of_each(place: Place) -> Mapping[str, Any]:
    """What each of the driver's connections is made with."""
    return {
        "timeout": place.timeout,
        "command_timeout": place.timeout,
        "statement_cache_size": place.cached_statements,
    }
