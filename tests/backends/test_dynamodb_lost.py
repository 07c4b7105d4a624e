"""What comes of a store's calls in DynamoDB where answers are lost and tokens are new: each counts once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest
from servers.http_faults import LOST, HttpFaults, http_faults

from perdure.stores import Log, Memory, Messages, OutcomeUnknown, StaleClaim
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import (
    WORKSPACE,
    after,
    commit_of,
    remember_of,
    signal_of,
    start_of,
    thread_at,
    write_of,
)
from perdure.stores._dynamodb import DynamoDBStore

pytestmark = pytest.mark.anyio
T = TypeVar("T")

WRITES = ("TransactWriteItems", "PutItem", "UpdateItem", "BatchWriteItem", "DeleteItem")


@pytest.fixture
async def faults(dynamodb_endpoint: str) -> AsyncIterator[HttpFaults]:
    async with http_faults(dynamodb_endpoint) as faults:
        yield faults


@pytest.fixture
async def store(dynamodb_url: str, faults: HttpFaults) -> AsyncIterator[DynamoDBStore]:
    """A store whose calls pass the faults."""
    url = dynamodb_url.partition("endpoint=")[0] + f"endpoint=http://127.0.0.1:{faults.port}&timeout=60"
    async with DynamoDBStore(url) as store:
        yield store


async def until_known(call: Callable[[], Awaitable[T]]) -> T:
    """As the runtime does it: the identical write again, until its outcome is known."""
    for _ in range(20):
        try:
            return await call()
        except OutcomeUnknown:
            pass
    raise AssertionError("the outcome never came to be known")


@pytest.mark.parametrize("every", [3, 4])
async def test_each_write_lands_once_whatever_answers_are_lost(
    every: int, store: DynamoDBStore, faults: HttpFaults
) -> None:
    """Of each operation's answers each third or fourth one is lost, the first ones too."""
    for operation in WRITES:
        faults.plan_every(operation, every, LOST)
    thread = (await until_known(lambda: store.start(start_of()))).thread
    for number in range(3):
        commit = commit_of(thread, messages=(b"hi",), memory=(write_of("k", b"v", number),))
        await until_known(lambda commit=commit: store.commit(commit))  # type: ignore[misc]
        thread = after(thread, commit)
    delivered = [await until_known(lambda: store.deliver(signal_of())) for _ in range(2)]
    assert delivered[0].row.number == delivered[1].row.number == 1
    fact = remember_of("outside", b"v", None)
    assert (await until_known(lambda: store.remember(fact))).version == 1
    assert (await until_known(lambda: store.remember(fact))).version == 1
    stands = await thread_at(store)
    assert (stands.n, stands.inbox) == (4, 1)
    assert [row.n for row in await rows(store, Log(address=stands.address))] == [0, 1, 2, 3]
    assert len(await rows(store, Messages(workspace=WORKSPACE, session="talk"))) == 3
    newest = await rows(store, Memory(workspace=WORKSPACE, namespace="customer"))
    assert {row.key: row.version for row in newest} == {"k": 3, "outside": 1}


async def test_the_identical_commit_under_another_token_is_a_no_op(
    store: DynamoDBStore, dynamodb_url: str, faults: HttpFaults
) -> None:
    """That is what becomes of it eleven minutes later, when the service has forgotten the first token."""
    thread = (await store.start(start_of())).thread
    commit = commit_of(thread, messages=(b"hi",), memory=(write_of("k", b"v", 0),))
    await store.commit(commit)
    await store.commit(commit)
    async with DynamoDBStore(dynamodb_url) as other:
        await other.commit(commit)
    tokens = [body["ClientRequestToken"] for body in faults.bodies if "ClientRequestToken" in body]
    assert len(tokens) == len(set(tokens))
    assert (await thread_at(store)).n == 2
    assert len(await rows(store, Messages(workspace=WORKSPACE, session="talk"))) == 1
    await store.commit(commit_of(after(thread, commit), release=True))
    await store.commit(commit)
    with pytest.raises(StaleClaim):
        await store.commit(commit_of(thread, payload=b"another"))
