"""Servers for the tests of stores and backends: one of each for a run, and room of its own for each test."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import dynamodb, moto, seaweed
from servers.postgres import postgres_url

# At the end: the folders beside examples must not stand before what is installed.
sys.path += [str(Path(__file__).parents[1] / "simulation"), str(Path(__file__).parents[2])]


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
def s3_service() -> Iterator[str]:
    """The endpoint of an S3 service that the tests of this process share."""
    if given := os.environ.get(seaweed.URL):
        yield given
        return
    with seaweed.seaweed() as service:
        yield service.endpoint


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the usual chain of credentials finds: those of the tests' own service, unless one is given."""
    if seaweed.URL not in os.environ:
        _log_in(monkeypatch, seaweed.ACCESS_KEY, seaweed.SECRET_KEY)


@pytest.fixture
def s3_endpoint(s3_service: str, s3_credentials: None) -> str:
    """An S3 service that lets this test in."""
    return s3_service


@pytest.fixture(scope="session")
def moto_service() -> Iterator[str]:
    """The endpoint of a second S3 service that the tests of this process share."""
    with moto.moto() as endpoint:
        yield endpoint


@pytest.fixture
def moto_endpoint(moto_service: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A second S3 service, which lets in whoever has any credentials."""
    _log_in(monkeypatch, "anybody", "any secret")
    return moto_service


@pytest.fixture(scope="session")
def dynamodb_service() -> Iterator[str]:
    """The endpoint of a DynamoDB that the tests of this process share."""
    if given := os.environ.get(dynamodb.URL):
        yield given
        return
    with dynamodb.dynamodb() as endpoint:
        yield endpoint


@pytest.fixture
def dynamodb_endpoint(dynamodb_service: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A DynamoDB that lets this test in."""
    if dynamodb.URL not in os.environ:
        _log_in(monkeypatch, dynamodb.ACCESS_KEY, dynamodb.SECRET_KEY)
    return dynamodb_service


@pytest.fixture
def dynamodb_url(dynamodb_endpoint: str) -> Iterator[str]:
    """The URL of a store of this test's own, whose table does not exist yet and is dropped afterwards."""
    table = f"test-{uuid.uuid4().hex}"
    region = os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
    yield f"dynamodb://{table}?region={region}&endpoint={dynamodb_endpoint}"
    dynamodb.drop(table, region, dynamodb_endpoint)


def _log_in(patch: pytest.MonkeyPatch, access_key: str, secret_key: str) -> None:
    patch.setenv("AWS_ACCESS_KEY_ID", access_key)
    patch.setenv("AWS_SECRET_ACCESS_KEY", secret_key)
    patch.delenv("AWS_SESSION_TOKEN", raising=False)
    patch.setenv("AWS_CONFIG_FILE", os.devnull)
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
