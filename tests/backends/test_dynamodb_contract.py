"""DynamoDB keeps every promise of the contract: one check, one test, on a table of its own."""

from __future__ import annotations

import pytest

from perdure.stores._dynamodb import DynamoDBStore
from perdure.stores.contract import CHECKS, Check, Clock, Kit

SAMPLE = 6
"""`make test-stores` takes every so many of the checks, `make test-stores-full` all."""


def _param(number: int, check: Check) -> object:
    return pytest.param(check, id=check.name, marks=[pytest.mark.long] if number % SAMPLE else [])


@pytest.mark.anyio
@pytest.mark.parametrize("check", [_param(number, check) for number, check in enumerate(CHECKS)])
async def test_store_contract(check: Check, dynamodb_url: str) -> None:
    clock = Clock()
    await check.run(Kit(open=lambda: DynamoDBStore(dynamodb_url, clock=clock), clock=clock))
