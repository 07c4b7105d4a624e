"""The contract of the artifact seam on S3, as a real service serves it: one check, one test, one bucket."""

import pytest
from s3_tools import outside

from perdure.artifacts.contract import CHECKS, Check

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_artifact_contract(check: Check, s3_endpoint: str) -> None:
    async with outside(s3_endpoint) as bucket:
        await check(bucket.kit())
