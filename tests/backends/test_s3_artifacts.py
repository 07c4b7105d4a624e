"""What artifacts in S3 do beyond the contract: parts, links, and errors that say what to do and no secret."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import AsyncIterator
from datetime import timedelta
from hashlib import sha256

import anyio.to_thread
import pytest
from s3_tools import Outside, outside, put
from servers import seaweed

from perdure.artifacts import (
    ArtifactError,
    ArtifactsUnavailable,
    BadArtifactsURL,
    NoSuchBlob,
    S3Artifacts,
    open_artifacts,
)
from perdure.artifacts._s3 import RANGE
from perdure.artifacts._s3_upload import EVEN_PARTS, MOST_BYTES, PART, part_size

pytestmark = pytest.mark.anyio

SECRET = "a wrong secret that nobody may see"


@pytest.fixture
async def bucket(s3_endpoint: str) -> AsyncIterator[Outside]:
    async with outside(s3_endpoint) as bucket:
        yield bucket


def test_parts_grow_so_that_ten_thousand_hold_the_largest_blob() -> None:
    sent = 0
    for number in range(10_000):
        size = part_size(sent)
        assert size >= PART
        assert number >= EVEN_PARTS or size == PART
        sent += size
    assert sent >= MOST_BYTES
    assert part_size(MOST_BYTES) < 5 << 30  # the longest part that S3 takes


async def test_a_blob_of_several_parts_comes_back_and_its_staging_goes(bucket: Outside) -> None:
    content = bytes(range(256)) * (3 * PART // 256) + b"the end"
    async with bucket.artifacts() as backend:
        assert await put(backend, content) == sha256(content).hexdigest()
        digest = sha256(content).hexdigest()
        read = b"".join([chunk async for chunk in backend.open("acme", digest)])
        assert read == content
        middle = backend.open("acme", digest, start=PART - 3, end=PART + 3)
        assert b"".join([chunk async for chunk in middle]) == content[PART - 3 : PART + 3]
    assert await bucket.leftovers() == []


async def test_a_read_goes_on_in_a_newer_copy_where_its_own_is_deleted(bucket: Outside) -> None:
    content = bytes(range(256)) * (2 * RANGE // 256)
    async with bucket.artifacts() as backend:
        digest = await put(backend, content)
        [first] = await bucket.keys()
        reading = backend.open("acme", digest)
        read = await anext(reading)
        await put(backend, content)
        await bucket.client.delete_object(Bucket=bucket.bucket, Key=first)
        read += b"".join([chunk async for chunk in reading])
        assert read == content
        await bucket.client.delete_object(Bucket=bucket.bucket, Key=(await bucket.keys())[0])
        with pytest.raises(NoSuchBlob):
            await anext(backend.open("acme", digest))


async def test_a_url_opens_the_bucket_that_it_names(bucket: Outside) -> None:
    async with open_artifacts(
        f"s3://{bucket.bucket}/deep/er?endpoint={bucket.endpoint}&addressing=path"
    ) as backend:
        async with bucket.artifacts() as other:
            digest = await put(other, b"content")
        assert (await backend.stat("acme", digest)).size_bytes == 7


async def test_a_link_gives_the_blob_to_whoever_has_it(bucket: Outside) -> None:
    async with bucket.artifacts() as backend:
        digest = await put(backend, b"for you")
        link = await backend.presign("acme", digest, expires=timedelta(minutes=5))
        assert await anyio.to_thread.run_sync(_fetch, link) == b"for you"
        assert seaweed.SECRET_KEY not in link
        with pytest.raises(ValueError, match="between one second and 7 days"):
            await backend.presign("acme", digest, expires=timedelta(days=8))
        with pytest.raises(NoSuchBlob):
            await backend.presign("acme", "0" * 64, expires=timedelta(minutes=5))


def _fetch(link: str) -> bytes:
    with urllib.request.urlopen(link, timeout=30) as answer:
        content: bytes = answer.read()
        return content


async def test_a_bucket_that_is_not_there_is_named(s3_endpoint: str) -> None:
    with pytest.raises(BadArtifactsURL, match="there is no such bucket: make it"):
        async with S3Artifacts("nobody-made-it", endpoint=s3_endpoint, addressing="path"):
            pass


async def test_a_wrong_secret_is_refused_and_shown_nowhere(
    bucket: Outside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with caplog.at_level(logging.INFO), pytest.raises(BadArtifactsURL, match="is not allowed") as refused:
        async with bucket.artifacts():
            pass
    assert "AWS_ACCESS_KEY_ID" in str(refused.value)
    assert SECRET not in f"{refused.value} {refused.value.__cause__} {caplog.text}"


@pytest.mark.parametrize(
    "url",
    [
        f"s3://key:{SECRET.replace(' ', '')}@bucket/prefix",
        f"s3://bucket/prefix?aws_secret_access_key={SECRET.replace(' ', '')}",
        "s3://",
        "s3://bucket/../up",
        "s3://bucket?endpoint=ftp://host",
    ],
)
def test_a_url_that_is_none_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(BadArtifactsURL) as refused:
        open_artifacts(url)
    assert SECRET.replace(" ", "") not in str(refused.value)


@pytest.mark.long  # SeaweedFS takes half a minute to come back
async def test_a_service_that_dies_makes_nothing_visible_and_is_found_again_when_it_is_back(
    s3_credentials: None,
) -> None:
    with seaweed.seaweed() as service:
        async with outside(service.endpoint) as bucket, bucket.artifacts() as backend:
            kept = await put(backend, b"kept")

            async def dying() -> AsyncIterator[bytes]:
                yield b"a" * (PART + 1)
                await anyio.to_thread.run_sync(service.kill)
                yield b"b" * PART

            with pytest.raises(ArtifactsUnavailable, match="try again later"):
                await put(backend, dying())
            await anyio.to_thread.run_sync(service.start)
            assert (await backend.stat("acme", kept)).size_bytes == 4
            assert [blob.sha256 for blob in (await backend.list("acme")).blobs] == [kept]


async def test_nothing_is_asked_of_a_backend_that_is_not_open(s3_endpoint: str) -> None:
    backend = S3Artifacts("bucket", endpoint=s3_endpoint)
    with pytest.raises(ArtifactError, match="is not open: use `async with`"):
        await backend.stat("acme", "0" * 64)
