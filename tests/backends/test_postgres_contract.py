"""PostgreSQL keeps every promise of the contract: one check, one test, on a schema of its own."""

from __future__ import annotations

import pytest

from perdure.stores._postgres import PostgresStore
from perdure.stores.contract import CHECKS, Check, Clock, Kit


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_store_contract(check: Check, postgres_schema: str) -> None:
    clock = Clock()
    await check.run(Kit(open=lambda: PostgresStore(postgres_schema, clock=clock), clock=clock))
