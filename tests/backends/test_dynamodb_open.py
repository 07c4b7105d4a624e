"""Opening a store in DynamoDB: no table, another program's, a newer one, no credentials, no region."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from perdure.stores import BadStoreURL, StoreUnavailable, StoreUnreadable, Threads, open_store
from perdure.stores._contract_kit import rows
from perdure.stores._contract_make import start_of
from perdure.stores._dynamodb_asks import Key, Put
from perdure.stores._dynamodb_keys import INDEXES, Index
from perdure.stores._dynamodb_opening import MARK
from perdure.stores._dynamodb_place import find_place
from perdure.stores._dynamodb_table import DynamoDBTable

pytestmark = pytest.mark.anyio


async def put(url: str, key: Key, **item: object) -> None:
    table = DynamoDBTable(find_place(url))
    await table.open()
    await table.write(Put(key=key, item=item))
    await table.close()


async def test_many_make_a_table_at_once(dynamodb_url: str) -> None:
    async def start(number: int) -> None:
        async with open_store(dynamodb_url) as store:
            await store.start(start_of(f"t{number}"))

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(start, number)
    async with open_store(dynamodb_url, read_only=True) as store:
        assert len(await rows(store, Threads())) == 6
        with pytest.raises(StoreUnavailable, match="opened to be read"):
            await store.start(start_of("another"))


async def test_who_only_reads_makes_nothing(dynamodb_url: str) -> None:
    for _ in range(2):
        with pytest.raises(StoreUnreadable, match="there is no such table"):
            async with open_store(dynamodb_url, read_only=True):
                pass


async def test_who_makes_no_store_names_the_missing_one(dynamodb_url: str) -> None:
    for _ in range(2):
        with pytest.raises(BadStoreURL, match="there is no such table: name one"):
            async with open_store(dynamodb_url, create=False):
                pass
    async with open_store(dynamodb_url):
        pass
    async with open_store(dynamodb_url, create=False):
        pass


async def test_a_newer_layout_is_left_alone(dynamodb_url: str) -> None:
    await put(dynamodb_url, MARK, version=2)
    for read_only in (False, True):
        with pytest.raises(StoreUnreadable, match="of a newer perdure"):
            async with open_store(dynamodb_url, read_only=read_only):
                pass


async def test_the_table_of_another_program_is_left_alone(
    dynamodb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("perdure.stores._dynamodb_opening.MARK", Key("another", "mark"))
        await put(dynamodb_url, Key("some", "thing"))
    with pytest.raises(StoreUnreadable, match="another program's: it holds items"):
        async with open_store(dynamodb_url):
            pass


async def test_a_table_without_an_index_is_named(dynamodb_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(dynamodb_url):
        pass
    more = {**INDEXES, "new": Index(pk="a", sk="b", holds=())}
    monkeypatch.setattr("perdure.stores._dynamodb_opening.INDEXES", more)
    with pytest.raises(StoreUnreadable, match="lacks the index new"):
        async with open_store(dynamodb_url):
            pass


@pytest.mark.parametrize("given", ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", None])
async def test_missing_credentials_are_named(
    given: str | None, dynamodb_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    if given is not None:
        monkeypatch.setenv(given, "given")
    with pytest.raises(BadStoreURL, match=r"no credentials .* come from AWS_ACCESS_KEY_ID"):
        async with open_store(f"dynamodb://perdure?region=us-east-1&endpoint={dynamodb_endpoint}"):
            pass


async def test_a_missing_region_is_named(dynamodb_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with pytest.raises(BadStoreURL, match="is in no region: write"):
        async with open_store("dynamodb://perdure"):
            pass


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("dynamodb://", "names a table"),
        ("dynamodb://a", "names a table"),
        ("dynamodb://ta/ble", "names a table"),
        ("dynamodb://table#x", "names a table"),
        ("dynamodb://hunter2:hunter2@table", "takes no credentials"),
        ("dynamodb://table?region=eu-central-1&endpoint=http://me:hunter2@host", "takes no credentials"),
        ("dynamodb://table?secret=hunter2", "takes the options region, endpoint, connections, timeout"),
        ("dynamodb://table?region=a&region=b", "each once"),
        ("dynamodb://table?region=Frankfurt", "region"),
        ("dynamodb://table?endpoint=host", "endpoint"),
        ("dynamodb://table?endpoint=https://host/hunter2", "endpoint"),
        ("dynamodb://table?timeout=0", "timeout"),
        ("dynamodb://table?connections=many", "connections"),
        ("dynamodb://table?region", "write dynamodb://TABLE"),
    ],
)
def test_what_is_no_url_says_so_without_a_secret(url: str, says: str) -> None:
    with pytest.raises(BadStoreURL, match=says) as refused:
        open_store(url)
    assert "hunter2" not in str(refused.value)
