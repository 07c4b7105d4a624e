"""Servers for the tests of stores and backends: one of each for a run, and room of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from servers.postgres import postgres_url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL server that the tests of this process share."""
    with postgres_url() as url:
        yield url


@pytest.fixture
def postgres_schema(postgres_server: str) -> str:
    """The URL of a store of this test's own, which does not exist yet."""
    return f"{postgres_server}?schema=test_{uuid.uuid4().hex}"
