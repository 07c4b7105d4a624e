"""S3 where it is easily wrong: when links end, what is cleared up, where reads break, what is kept secret."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
import pytest
from s3_tools import Outside, outside, put
from servers import seaweed
from servers.proxy import Fault, proxy
from servers.recorder import recorder

from perdure.artifacts import ArtifactError, S3Artifacts
from perdure.artifacts._s3 import RANGE
from perdure.artifacts._s3_upload import PART

pytestmark = pytest.mark.anyio

DAY = 24 * 3600 * 1_000_000
TOKEN = "a-session-token-that-nobody-may-see"


@pytest.fixture
async def bucket(s3_endpoint: str) -> AsyncIterator[Outside]:
    async with outside(s3_endpoint) as bucket:
        yield bucket


def _status(link: str) -> int:
    try:
        with urllib.request.urlopen(link, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.parametrize(("minutes", "status"), [(1, 403), (60, 200)])
async def test_a_link_is_good_for_as_long_as_it_was_signed_for(
    minutes: int, status: int, bucket: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signed two minutes ago."""
    auth: Any = import_module("botocore.auth")
    now = auth.get_current_datetime

    def earlier(*given: Any, **named: Any) -> datetime:
        moment: datetime = now(*given, **named) - timedelta(minutes=2)
        return moment

    async with bucket.artifacts() as backend:
        digest = await put(backend, b"for a while")
        monkeypatch.setattr(auth, "get_current_datetime", earlier)
        link = await backend.presign("acme", digest, expires=timedelta(minutes=minutes))
    assert await anyio.to_thread.run_sync(_status, link) == status


@pytest.mark.parametrize(("days", "left"), [(6, True), (8, False)])
async def test_what_a_dead_process_left_is_removed_a_week_later(
    days: int, left: bool, bucket: Outside
) -> None:
    mine, others = "deep/er/staging/mine", "elsewhere/theirs"
    for key in (mine, others):
        await bucket.client.create_multipart_upload(Bucket=bucket.bucket, Key=key)
    await bucket.client.put_object(Bucket=bucket.bucket, Key="deep/er/staging/whole", Body=b"bytes")
    async with bucket.artifacts() as backend:
        digest = await put(backend, b"kept")
    later = time.time_ns() // 1000 + days * DAY
    async with bucket.artifacts(clock=lambda: later) as backend:
        assert (await backend.stat("acme", digest)).size_bytes == 4
    assert sorted(await bucket.uploads()) == ([mine, others] if left else [others])
    assert ("deep/er/staging/whole" in await bucket.keys()) is left


async def test_ranges_at_the_edges(bucket: Outside) -> None:
    async with bucket.artifacts() as backend:

        async def part(digest: str, start: int, end: int | None = None) -> bytes:
            return b"".join([chunk async for chunk in backend.open("acme", digest, start=start, end=end)])

        empty, ten = await put(backend, b""), await put(backend, b"0123456789")
        for start, end in ((0, None), (0, 0), (0, 5), (7, None), (7, 9)):
            assert await part(empty, start, end) == b""
        assert await part(ten, 9) == b"9"
        assert await part(ten, 9, 10_000) == b"9"
        for start, end in ((10, None), (11, None), (10, 20), (3, 3), (1 << 40, None)):
            assert await part(ten, start, end) == b""


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.RESET])
async def test_a_read_that_breaks_off_goes_on_where_it_stopped(fault: Fault, bucket: Outside) -> None:
    content = bytes(range(256)) * (3 * RANGE // 256) + b"the end"
    async with bucket.artifacts() as backend:
        digest = await put(backend, content)
    where = urlsplit(bucket.endpoint)
    assert where.hostname is not None
    assert where.port is not None
    async with proxy(where.hostname, where.port) as between:
        endpoint = f"http://127.0.0.1:{between.port}"
        near = S3Artifacts(bucket.bucket, "deep/er", endpoint=endpoint, addressing="path")
        async with near as backend:
            reading = backend.open("acme", digest)
            read = await anext(reading)
            between.fail_after(RANGE // 2, fault, answers=True)
            read += b"".join([chunk async for chunk in reading])
            assert between.struck.is_set()
            assert read == content
            # What had come is not asked for again.
            assert between.passed[True] < len(content) + RANGE // 2


@pytest.mark.parametrize(
    ("asked", "header"),
    [
        ({"sse": "AES256"}, {"x-amz-server-side-encryption": "AES256"}),
        (
            {"sse": "aws:kms", "kms_key": "key-1"},
            {
                "x-amz-server-side-encryption": "aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id": "key-1",
            },
        ),
    ],
    ids=["AES256", "kms"],
)
async def test_encryption_is_asked_for_with_every_object_that_is_stored(
    asked: dict[str, str], header: dict[str, str], moto_endpoint: str
) -> None:
    where = urlsplit(moto_endpoint)
    assert where.hostname is not None
    assert where.port is not None
    async with outside(moto_endpoint) as bucket, recorder(where.hostname, where.port) as between:
        bucket.endpoint = between.endpoint
        async with bucket.artifacts(**asked) as backend:
            await put(backend, b"small")
            await put(backend, b"small", workspace="a name that is too long for a folder " * 9)
            await put(backend, b"large" * (PART // 5 + 1))
        for name, value in header.items():
            assert between.headers(name) == {"PUT": [value] * 3, "POST": [value], "PUT copy": [value]}
        for key in await bucket.keys():
            answer = await bucket.client.head_object(Bucket=bucket.bucket, Key=key)
            assert answer["ServerSideEncryption"] == asked["sse"]
            assert asked.get("kms_key", "") in answer.get("SSEKMSKeyId", "")


@pytest.mark.parametrize(("token", "level"), [(None, logging.DEBUG), (TOKEN, logging.INFO)])
async def test_no_log_holds_a_secret(
    token: str | None,
    level: int,
    bucket: Outside,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A session's token is a header, which the driver itself tells at DEBUG: see the page on S3."""
    if token is not None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    said = ""
    with caplog.at_level(level):
        try:
            async with bucket.artifacts() as backend:
                digest = await put(backend, b"c" * (PART + 1))
                await backend.presign("acme", digest, expires=timedelta(minutes=1))
        except ArtifactError as error:  # the service knows no such token
            said = f"{error} {error!r} {error.__cause__}"
    assert (level == logging.DEBUG) == ("CanonicalRequest" in caplog.text)
    assert (token is not None) == ("is not allowed" in said)
    for secret in (seaweed.SECRET_KEY, TOKEN):
        assert secret not in caplog.text + said


@pytest.mark.long
async def test_a_stream_of_unknown_length_takes_no_memory_of_its_own(
    bucket: Outside, full_sweep: bool
) -> None:
    """Of a whole process, at its highest, with what the driver holds."""
    megabytes = 200 if full_sweep else 48
    held = {size: await anyio.to_thread.run_sync(_highest, bucket, size) for size in (24, megabytes)}
    assert held[megabytes] - held[24] < 12 << 10, "KiB"


def _highest(bucket: Outside, megabytes: int) -> int:
    """KiB that a new process held at its highest, which put so much and read it."""
    child = subprocess.run(
        [sys.executable, "-c", STREAMS, json.dumps([bucket.bucket, bucket.endpoint, megabytes])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        stdout=subprocess.PIPE,
        timeout=300,
        check=True,
    )
    return int(child.stdout)


STREAMS = """
import asyncio, json, resource, sys
from perdure.artifacts import S3Artifacts

bucket, endpoint, megabytes = json.loads(sys.argv[1])

async def stream():
    for n in range(16 * megabytes):
        yield bytes([n % 251]) * 65536

async def main():
    async with S3Artifacts(bucket, endpoint=endpoint, addressing="path") as backend:
        async with await backend.put("acme", stream()) as staged:
            await staged.publish()
        read = 0
        async for chunk in backend.open("acme", staged.sha256):
            read += len(chunk)
        assert read == megabytes << 20

asyncio.run(main())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
