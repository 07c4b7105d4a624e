"""What an artifact backend takes to put a blob and to read it whole, small ones and a large one.

python -m benchmarks.stores._artifacts URL
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from hashlib import sha256
from statistics import median
from typing import Any

from perdure.artifacts import ArtifactBackend, open_artifacts

KILOBYTE = 1024
CHUNK = 1024 * KILOBYTE
LARGE = 64 * CHUNK
BLOBS = 50
"""Small ones, one after another."""
AT_ONCE = 10
WORKSPACE = "bench"


async def chunks_of(content: bytes) -> AsyncIterator[bytes]:
    """The content, a megabyte at a time."""
    for start in range(0, len(content), CHUNK):
        yield content[start : start + CHUNK]


async def put(backend: ArtifactBackend, content: bytes) -> float:
    """Seconds until the blob is durable and visible."""
    began = time.perf_counter()
    async with await backend.put(WORKSPACE, chunks_of(content)) as staged:
        await staged.publish()
    return time.perf_counter() - began


async def read(backend: ArtifactBackend, content: bytes) -> float:
    """Seconds until all of it was read and verified."""
    began, size = time.perf_counter(), 0
    async for chunk in backend.open(WORKSPACE, sha256(content).hexdigest()):
        size += len(chunk)
    if size != len(content):
        raise RuntimeError(f"{size} bytes of {len(content)} were read")
    return time.perf_counter() - began


async def measure(url: str) -> dict[str, Any]:
    """Seconds of one, and of many at once."""
    small = [os.urandom(KILOBYTE) for _ in range(BLOBS)]
    more = [os.urandom(KILOBYTE) for _ in range(BLOBS)]
    large = os.urandom(LARGE)
    async with open_artifacts(url) as backend:
        await put(backend, b"a connection is made")
        puts = [await put(backend, content) for content in small]
        reads = [await read(backend, content) for content in small]
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(content: bytes) -> None:
            async with slots:
                await put(backend, content)

        began = time.perf_counter()
        await asyncio.gather(*map(one, more))
        together = (time.perf_counter() - began) / len(more)
        return {
            "put": median(puts),
            "put_together": together,
            "open": median(reads),
            "put_large": await put(backend, large),
            "open_large": await read(backend, large),
        }


def main() -> None:
    print(json.dumps(asyncio.run(measure(sys.argv[1]))))


if __name__ == "__main__":
    main()
