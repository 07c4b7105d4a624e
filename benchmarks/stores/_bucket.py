"""The S3 service that is measured."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Generator
from importlib import import_module

from servers import seaweed

BUCKET = "perdure-bench"


@contextlib.contextmanager
def bucket_url() -> Generator[str]:
    """The URL of an empty bucket on a new service, whose credentials the environment has from now on.

    The service is SeaweedFS on this machine: what it says of S3 itself is how many round trips there are.
    """
    with seaweed.seaweed() as service:
        os.environ |= {
            "AWS_ACCESS_KEY_ID": seaweed.ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": seaweed.SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        asyncio.run(_make(service.endpoint))
        yield f"s3://{BUCKET}/artifacts?endpoint={service.endpoint}&region=us-east-1&addressing=path"


async def _make(endpoint: str) -> None:
    session = import_module("aiobotocore.session").get_session()  # it has no types
    async with session.create_client("s3", endpoint_url=endpoint, region_name="us-east-1") as client:
        await client.create_bucket(Bucket=BUCKET)
