"""Servers for the tests of stores and backends: one of each for a run, and room of its own for each test."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from servers import dynamodb, moto, seaweed
from servers.aws import logged_in
from servers.postgres import postgres_url

# At the end: the folders beside examples must not stand before what is installed.
sys.path += [str(Path(__file__).parents[1] / "simulation"), str(Path(__file__).parents[2])]


SAMPLE = 8


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what takes long to the full sweep, and of what needs DynamoDB Local, which is slow, all but each
    file's first and every eighth behind it."""
    if config.getoption("--full-sweep"):
        return
    left = [item for item in items if item.get_closest_marker("long")]
    slow = [item for item in items if item not in left and _needs_dynamodb(item)]
    for _, of_file in groupby(slow, key=lambda item: item.path):
        left += [item for n, item in enumerate(of_file) if n % SAMPLE]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def _needs_dynamodb(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function):
        return False
    chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "dynamodb_endpoint" in item.fixturenames or "dynamodb_url" in chosen


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
def s3_credentials() -> Iterator[None]:
    """What the usual chain of credentials finds: those of the tests' own service, unless one is given."""
    if seaweed.URL in os.environ:
        yield
        return
    with logged_in(seaweed.ACCESS_KEY, seaweed.SECRET_KEY):
        yield


@pytest.fixture
def s3_endpoint(s3_service: str, s3_credentials: None) -> str:
    """An S3 service that lets this test in."""
    return s3_service


@pytest.fixture(scope="session")
def moto_service() -> Iterator[str]:
    """The endpoint of a second service of S3 and DynamoDB that the tests of this process share."""
    with moto.moto() as endpoint:
        yield endpoint


@pytest.fixture
def moto_endpoint(moto_service: str) -> Iterator[str]:
    """A second service, which lets in whoever has any credentials."""
    with logged_in("anybody", "any secret"):
        yield moto_service


@pytest.fixture(scope="session")
def dynamodb_service() -> Iterator[str]:
    """The endpoint of a DynamoDB that the tests of this process share."""
    if given := os.environ.get(dynamodb.URL):
        yield given
        return
    with dynamodb.dynamodb() as endpoint:
        yield endpoint


@pytest.fixture
def dynamodb_endpoint(dynamodb_service: str) -> Iterator[str]:
    """A DynamoDB that lets this test in."""
    if dynamodb.URL in os.environ:
        yield dynamodb_service
        return
    with logged_in(dynamodb.ACCESS_KEY, dynamodb.SECRET_KEY):
        yield dynamodb_service


REGION = os.environ.get("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def dynamodb_server(dynamodb_endpoint: str) -> str:
    """The URL of a DynamoDB, which names no table."""
    return f"dynamodb://?region={REGION}&endpoint={dynamodb_endpoint}"


@pytest.fixture
def dynamodb_url(dynamodb_endpoint: str) -> Iterator[str]:
    """The URL of a store of this test's own, whose table does not exist yet and is dropped afterwards."""
    table = f"test-{uuid.uuid4().hex}"
    yield f"dynamodb://{table}?region={REGION}&endpoint={dynamodb_endpoint}"
    dynamodb.drop(table, REGION, dynamodb_endpoint)
