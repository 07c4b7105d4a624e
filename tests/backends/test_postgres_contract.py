"""PostgreSQL keeps every promise of the contract: one check, one test, on a schema of its own."""

from __future__ import annotations

import asyncio

import pytest
from attrs import evolve

from perdure.stores._contract_make import commit_of, start_of, thread_at
from perdure.stores._postgres import PostgresStore
from perdure.stores.contract import CHECKS, Check, Clock, Kit


@pytest.mark.anyio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_store_contract(check: Check, postgres_schema: str) -> None:
    clock = Clock()
    await check.run(Kit(open=lambda: PostgresStore(postgres_schema, clock=clock), clock=clock))


@pytest.mark.anyio
@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
async def test_a_text_that_the_database_cannot_hold_is_refused(text: str, postgres_schema: str) -> None:
    """By itself: what lands beside it in the same statement does."""
    async with PostgresStore(postgres_schema) as store:
        one = (await store.start(start_of("one"))).thread
        two = (await store.start(start_of("two"))).thread
        bad = commit_of(one)
        spoiled = evolve(bad, standing=evolve(bad.standing, state=text))
        answers = await asyncio.gather(
            store.commit(spoiled), store.commit(commit_of(two)), return_exceptions=True
        )
        assert isinstance(answers[0], ValueError)
        assert answers[1] is None
        assert (await thread_at(store, "one")).n == 1
        assert (await thread_at(store, "two")).n == 2
