"""A bucket as a test sees it from outside, and a kit of the contract over it."""

import itertools
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from perdure.artifacts import S3Artifacts
from perdure.artifacts.contract import ArtifactKit


def ticking() -> Callable[[], int]:
    """A clock of which no two readings are equal."""
    return itertools.count(1_700_000_000_000_000).__next__


async def stream(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


class Outside:
    """A new bucket, looked into by a client that knows nothing of artifacts."""

    def __init__(self, client: Any, endpoint: str) -> None:
        self.client = client
        self.endpoint = endpoint
        self.bucket = f"perdure-{uuid.uuid4().hex}"

    def artifacts(self, prefix: str = "deep/er", **options: Any) -> S3Artifacts:
        return S3Artifacts(
            self.bucket, prefix, endpoint=self.endpoint, addressing="path", **{"clock": ticking(), **options}
        )

    async def keys(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return [found["Key"] async for page in pages for found in page.get("Contents", ())]

    async def uploads(self) -> list[str]:
        answer = await self.client.list_multipart_uploads(Bucket=self.bucket)
        return [found["Key"] for found in answer.get("Uploads", ())]

    async def leftovers(self) -> list[str]:
        keys = [key for key in await self.keys() if "/blobs/" not in key and "/labels/" not in key]
        return keys + await self.uploads()

    async def damage(self, workspace: str, sha256: str) -> None:
        for key in [key for key in await self.keys() if sha256 in key]:
            answer = await self.client.get_object(Bucket=self.bucket, Key=key)
            content = bytearray(await answer["Body"].read())
            content[-1] ^= 1
            await self.client.put_object(Bucket=self.bucket, Key=key, Body=bytes(content))

    def kit(self) -> ArtifactKit:
        clock = ticking()
        return ArtifactKit(
            handle=lambda: self.artifacts(clock=clock),
            leftovers=self.leftovers,
            damage=self.damage,
            boundaries=(1 << 20, 8 << 20),
        )


@asynccontextmanager
async def outside(endpoint: str) -> AsyncGenerator[Outside]:
    config = AioConfig(
        signature_version="s3v4",
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"},
    )
    session: Any = get_session()
    async with session.create_client(
        "s3", region_name="us-east-1", endpoint_url=endpoint, config=config
    ) as client:
        bucket = Outside(client, endpoint)
        await client.create_bucket(Bucket=bucket.bucket)
        yield bucket


async def put(backend: S3Artifacts, content: bytes | AsyncIterable[bytes], workspace: str = "acme") -> str:
    chunks = stream([content]) if isinstance(content, bytes) else content
    async with await backend.put(workspace, chunks) as staged:
        await staged.publish()
        return staged.sha256
