"""DynamoDB keeps every promise of the contract: one check, one test, on a table of its own."""

from __future__ import annotations

import pytest

from perdure.stores._dynamodb import DynamoDBStore
from perdure.stores.contract import CHECKS, Check, Clock, Kit

NOT_YET = {
    "bodies": "an item holds 400 KB: the limit on bodies is about to fall below that",
    "limits_of_a_commit": "an item holds 400 KB: the limit on bodies is about to fall below that",
    "limits_of_restore": "an item holds 400 KB: the limit on bodies is about to fall below that",
}


def _param(check: Check) -> object:
    reason = NOT_YET.get(check.name)
    marks = [] if reason is None else [pytest.mark.xfail(strict=True, reason=reason)]
    return pytest.param(check, id=check.name, marks=marks)


@pytest.mark.anyio
@pytest.mark.parametrize("check", [_param(check) for check in CHECKS])
async def test_store_contract(check: Check, dynamodb_url: str) -> None:
    clock = Clock()
    await check.run(Kit(open=lambda: DynamoDBStore(dynamodb_url, clock=clock), clock=clock))
