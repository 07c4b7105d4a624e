"""A store's URL opens the store that it names, or is refused without being repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.stores import BadStoreURL, MemoryStore, SQLiteStore, open_store
from perdure.stores._contract_make import signal_of, start_of
from perdure.stores.contract import Clock

pytestmark = pytest.mark.anyio


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_memory_is_a_new_store_each_time() -> None:
    one, two = open_store("memory://"), open_store("MEMORY://")
    assert isinstance(one, MemoryStore)
    assert isinstance(two, MemoryStore)
    async with one, two:
        assert (await one.start(start_of())).created
        assert (await two.deliver(signal_of())).thread is None


async def test_three_slashes_are_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///a b%20é.db")
    assert isinstance(store, SQLiteStore)
    assert files(tmp_path) == []
    async with store:
        assert (tmp_path / "a b%20é.db").is_file()


async def test_four_slashes_are_an_absolute_path(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/x.db") as store:
        assert (await store.start(start_of())).created
    assert (tmp_path / "x.db").is_file()
    async with open_store(f"sqlite:///{tmp_path}/x.db") as store:
        assert (await store.start(start_of())).created


@pytest.mark.parametrize("url", ["memory://", "sqlite:////{folder}/x.db"])
async def test_the_clock_is_the_given_one(url: str, tmp_path: Path) -> None:
    clock = Clock(123)
    async with open_store(url.format(folder=tmp_path), clock=clock) as store:
        assert (await store.deliver(signal_of())).row.at == 123


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "this is no store URL"),
        ("perdure.db", "sqlite:///relative/path.db"),
        ("sqlite:perdure.db", "this is no store URL"),
        ("sqlite://", "three slashes"),
        ("sqlite://perdure.db", "three slashes"),
        ("sqlite://host/perdure.db", "three slashes"),
        ("sqlite:///", "names no file"),
        ("sqlite:///folder/", "names no file"),
        ("sqlite:///:memory:", "write memory://"),
        ("sqlite:///x.db?mode=ro", "commit=inline"),
        ("sqlite:///x.db#y", "takes no '#'"),
        ("sqlite:///x\0.db", "NUL"),
        ("memory://x", "nothing behind it"),
        ("mysql://host/db", "no store is known for mysql:// URLs"),
        ("postgresql://host/db?schema=", "from 1 to 63 bytes"),
        ("postgresql://host/db?schema=pg_x", "does not begin with pg_"),
        ("postgresql://host/db?connections=0", "connections of a postgresql URL"),
        ("postgresql://host/db?timeout=x", "timeout of a postgresql URL"),
        ("postgresql://host/db?=&", "no postgresql URL"),
        ("://x", "this is no store URL"),
        ("1a://x", "this is no store URL"),
    ],
)
async def test_a_bad_url_is_refused_with_what_to_write(url: str, says: str) -> None:
    with pytest.raises(BadStoreURL, match=says):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:p@ss%5E?]@host:5432/db",
        "postgresql://ada:p@ss%5E/x@host/db",
        "postgresql://ada:p@ss%5E@host/db",
        "postgresql+x://ada:p@ss%5E?]@[::1/db",
        "sqlite://ada:p@ss%5E?]@host/x.db",
        "sqlite:///x.db?key=p@ss%5E?]",
        "memory://p@ss%5E?]",
        "p@ss%5E?]://x",
        "ada:p@ss%5E?]",
        "s3://bucket/x?X-Amz-Signature=p@ss%5E?]",
        "p" * 40 + "@ss%5E?]://",
    ],
)
async def test_no_message_repeats_a_password(url: str) -> None:
    with pytest.raises(BadStoreURL) as refused:
        open_store(url)
    shown = "".join(
        repr(value) for value in (refused.value, refused.value.__cause__, refused.value.__context__)
    )
    assert "ss%5E" not in shown
    assert "ada" not in shown
