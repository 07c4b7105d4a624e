"""Which table of DynamoDB a store lies in: its URL taken apart."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

from attrs import frozen

from ._errors import BadStoreURL

CONNECTIONS = 32
TIMEOUT = 15.0

OPTIONS = ("region", "endpoint", "connections", "timeout")
"""What may stand behind the question mark."""
TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
REGION = re.compile(r"[a-z0-9-]{1,64}")

WRITE = "write dynamodb://TABLE?region=eu-central-1"
WHERE_CREDENTIALS = (
    "credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the machine's role"
)


@frozen(kw_only=True)
class Place:
    """A table, and how to reach it."""

    table: str
    region: str | None = None
    """None: the one that the environment names."""
    endpoint: str | None = None
    """Another address than Amazon's for the region."""
    connections: int = CONNECTIONS
    """At most so many at once."""
    timeout: float = TIMEOUT
    """Seconds that a call may take with all of its tries."""

    @property
    def where(self) -> str:
        """For people."""
        at = f" at {self.endpoint}" if self.endpoint is not None else ""
        in_ = f" in {self.region}" if self.region is not None else ""
        return f"the DynamoDB table {self.table!r}{in_}{at}"


def find_place(url: str) -> Place:
    """Take a URL apart; ``BadStoreURL`` where it cannot be one, without a word of it that could be secret."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise BadStoreURL(f"this is no dynamodb URL: {WRITE}") from None
    if "@" in url:
        raise BadStoreURL(f"a dynamodb URL takes no credentials: {WHERE_CREDENTIALS}")
    if parts.path not in ("", "/") or "#" in url or not TABLE.fullmatch(parts.netloc):
        raise BadStoreURL(
            "a dynamodb URL names a table, of 3 to 255 letters, digits, '_', '-' and '.', and nothing else "
            f"before its options: {WRITE}"
        )
    names = [name for name, _ in options]
    if any(name not in OPTIONS for name in names) or len(set(names)) < len(names):
        raise BadStoreURL(f"a dynamodb URL takes the options {', '.join(OPTIONS)}, each once")
    given = dict(options)
    return Place(
        table=parts.netloc,
        region=_region(given.get("region")),
        endpoint=_endpoint(given.get("endpoint")),
        connections=_number(given, "connections", CONNECTIONS),
        timeout=float(_number(given, "timeout", int(TIMEOUT))),
    )


def _region(given: str | None) -> str | None:
    if given is not None and not REGION.fullmatch(given):
        raise BadStoreURL(f"the region of a dynamodb URL is one of AWS's: {WRITE}")
    return given


def _endpoint(given: str | None) -> str | None:
    if given is None:
        return None
    try:
        parts = urlsplit(given)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    else:
        fine = fine and parts.path in ("", "/") and not parts.query and not parts.fragment
    if not fine:
        raise BadStoreURL("the endpoint of a dynamodb URL is an address such as https://host:port")
    return given


def _number(given: dict[str, str], name: str, usual: int) -> int:
    text = given.get(name, str(usual))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10_000:
        raise BadStoreURL(f"{name} of a dynamodb URL is a whole number from 1 to 10000")
    return int(text)
