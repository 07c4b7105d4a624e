"""Servers for the tests of stores and backends: one of each for a run, and room of its own for each test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from servers import seaweed
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


@pytest.fixture(scope="session")
def s3_credentials() -> Iterator[None]:
    """What the usual chain of credentials finds: those of the tests' own service, unless one is given."""
    with pytest.MonkeyPatch.context() as patch:
        if seaweed.URL not in os.environ:
            patch.setenv("AWS_ACCESS_KEY_ID", seaweed.ACCESS_KEY)
            patch.setenv("AWS_SECRET_ACCESS_KEY", seaweed.SECRET_KEY)
            patch.delenv("AWS_SESSION_TOKEN", raising=False)
            patch.setenv("AWS_CONFIG_FILE", os.devnull)
            patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
            patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield


@pytest.fixture(scope="session")
def s3_endpoint(s3_credentials: None) -> Iterator[str]:
    """An S3 service that the tests of this process share."""
    if given := os.environ.get(seaweed.URL):
        yield given
        return
    with seaweed.seaweed() as service:
        yield service.endpoint
