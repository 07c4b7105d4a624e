"""The contract of the artifact seam on S3, as a real service serves it: one check, one test, one bucket."""

import pytest
from s3_tools import outside

from perdure.artifacts.contract import CHECKS, Check

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_artifact_contract(check: Check, s3_endpoint: str) -> None:
    async with outside(s3_endpoint) as bucket:
        await check(bucket.kit())


QUICK = (
    "check_invisible_until_published",
    "check_published_twice",
    "check_crafted_digests",
    "check_delete",
    "check_publish_after_delete",
)
"""What the second service is put through each time; the long sweeps put it through all."""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_artifact_contract_on_a_second_service(
    check: Check, moto_endpoint: str, full_sweep: bool
) -> None:
    if full_sweep or check.__name__ in QUICK:
        async with outside(moto_endpoint) as bucket:
            await check(bucket.kit())
