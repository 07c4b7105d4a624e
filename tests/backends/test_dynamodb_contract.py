"""DynamoDB keeps every promise of the contract: one check, one test, on a table of its own."""

from __future__ import annotations

import pytest

from perdure.stores._dynamodb import DynamoDBStore
from perdure.stores.contract import CHECKS, Check, Clock, Kit


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_store_contract(check: Check, dynamodb_url: str) -> None:
    clock = Clock()
    await check.run(Kit(open=lambda: DynamoDBStore(dynamodb_url, clock=clock), clock=clock))
