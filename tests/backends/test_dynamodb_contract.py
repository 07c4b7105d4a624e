"""DynamoDB keeps every promise of the contract: one check, one test, on a table of its own."""

from __future__ import annotations

import uuid

import pytest

from perdure.stores._dynamodb import DynamoDBStore
from perdure.stores.contract import CHECKS, Check, Clock, Kit

NOT_ON_MOTO = ("one_key_written_by_many", "session_under_concurrent_commits")
"""Its transactions are not atomic: others come in between looking at the conditions and writing."""


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_store_contract(check: Check, dynamodb_url: str) -> None:
    await run(check, dynamodb_url)


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.parametrize(
    "check", [check for check in CHECKS if check.name not in NOT_ON_MOTO], ids=lambda check: check.name
)
async def test_a_second_service_answers_alike(check: Check, moto_endpoint: str) -> None:
    """It looks at no signature, and knows no client token: it is never the only proof."""
    await run(check, f"dynamodb://test-{uuid.uuid4().hex}?region=us-east-1&endpoint={moto_endpoint}")


async def run(check: Check, url: str) -> None:
    clock = Clock()
    await check.run(Kit(open=lambda: DynamoDBStore(url, clock=clock), clock=clock))
