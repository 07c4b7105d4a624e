"""Signals are checked against what the thread's version takes, also by who does not have its code."""

from __future__ import annotations

import json
import socket
import sqlite3
import urllib.request
from asyncio import sleep
from typing import Any

import pytest
from attrs import evolve
from harness.cli import Perdure
from harness.engine import CALLS, Note, Sim, World, simulated
from harness.loop import SimLoop

from perdure.machines import Accept, Machine, State, definition, record
from perdure.runtime import SignalRefused
from perdure.runtime._client import Client
from perdure.runtime._schemas import LARGEST_PAYLOAD, checked, schemas_of
from perdure.stores import Definitions, Inbox, Workers

pytest_plugins = ("harness.desk",)


def made(version: int, payload: Any) -> Any:
    """The same machine at another version, whose signal takes something else."""

    class Desk(Machine[Note, World], version=version, calls=CALLS):
        waits = State(initial=True)
        done = State(final=True)
        say = waits.to(done).on_signal(payload)

        @say.received
        def said(self, data: Note, word: Any) -> Accept:
            return self.say(text=str(word))

    return Desk


@record
class Old:
    by: str
    note: str = ""


@record
class New:
    who: str


One, Two, Same = made(1, Old), made(2, New), made(2, Old)
PLACE: dict[str, Any] = {"thread_id": "t", "workspace": "w"}


class Counting:
    """A store that remembers what it was asked."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.asked: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def page(self, query: Any, **options: Any) -> Any:
        self.asked.append(query)
        return await self._store.page(query, **options)


async def versions_in_inbox(sim: Sim, thread: Any) -> list[int]:
    return [row.version for row in (await sim.store.page(Inbox(address=thread.address))).rows]


@simulated
async def test_a_worker_records_what_its_machines_take(loop: SimLoop) -> None:
    sim = Sim(loop, One)
    await sim.engine()
    (row,) = (await sim.store.page(Definitions(machine="Desk"))).rows
    assert (row.version, row.hash) == (1, definition(One).hash)
    assert b'"by"' in row.document
    assert json.loads(row.document)["signals"].keys() == {"say"}


@simulated
async def test_old_code_cannot_send_a_newer_thread_what_its_version_does_not_take(loop: SimLoop) -> None:
    sim = Sim(loop, One)
    old = sim.client()
    newer = await sim.engine(Two)
    thread = await newer.start(Two)
    seen = old.thread(One, **PLACE)
    with pytest.raises(SignalRefused, match=r"does not fit what version 2 of Desk takes as say: .*by"):
        await seen.signal(One.say, Old(by="ada"), id="1")
    assert await versions_in_inbox(sim, thread) == []


@simulated
async def test_what_both_versions_take_is_accepted_as_the_threads_version(loop: SimLoop) -> None:
    sim = Sim(loop, One)
    old = sim.client()
    newer = await sim.engine(Same)
    thread = await newer.start(Same)
    await old.thread(One, **PLACE).signal(One.say, Old(by="ada"), id="1")
    assert await versions_in_inbox(sim, thread) == [2]
    assert (await thread.result()).state == "done"


@simulated
async def test_while_one_version_is_stored_a_signal_costs_no_look_at_its_thread(loop: SimLoop) -> None:
    sim = Sim(loop, One)
    await sim.engine()
    store: Any = Counting(sim.store)
    client = Client(store, sim.artifacts, sim.env, {"Desk": definition(One)}, None)
    for number in range(3):
        await client.thread(One, thread_id=f"u{number}").signal(One.say, Old(by="ada"), id="1")
    assert store.asked == [Definitions(machine="Desk")]


@simulated
async def test_a_signal_of_newer_code_is_left_to_a_worker_that_has_it(loop: SimLoop) -> None:
    sim = Sim(loop, One)
    older = await sim.engine(One)
    thread = await older.start(One)
    newer = sim.client(Two)
    await newer.thread(Two, **PLACE).signal(Two.say, New(who="ada"), id="1")
    await sleep(12)
    assert (await thread.row()).standing.status == "waiting"
    assert [row.version for row in await thread.pending()] == [2]
    await sim.engine(Two)
    await sim.until("ended")
    assert (await sim.thread(Two).data()).text == str(New(who="ada"))


# --- by the record alone ------------------------------------------------------------------------------


def refusal(schema: Any, payload: bytes | None, event: str = "say") -> str:
    with pytest.raises(SignalRefused) as refused:
        checked({"say": schema, "stop": None}, event, payload, "here", "version 1 of Desk")
    return str(refused.value)


SCHEMA = {"type": "object", "properties": {"by": {"type": "string"}}, "required": ["by"]}
DEEP = b"[" * 90 + b"]" * 90
TOO_DEEP = b"[" * 5000 + b"]" * 5000


@pytest.mark.parametrize(
    ("schema", "payload", "event", "said"),
    [
        (SCHEMA, b"{}", "say", "'by' is a required property"),
        (SCHEMA, b'{"by": 3}', "say", "by: 3 is not of type 'string'"),
        (SCHEMA, None, "say", "say takes a payload: give it as JSON"),
        (SCHEMA, b"{", "say", "no JSON that can be read"),
        (SCHEMA, b"\xff", "say", "no JSON that can be read"),
        (SCHEMA, b"{}", "stop", "stop takes no payload"),
        (SCHEMA, b"{}", "nope", "has no signal 'nope'; it has: say, stop"),
        ({}, TOO_DEEP, "say", "here: the payload is"),
        ({}, b"[" * 150 + b"]" * 150, "say", "nested deeper than 100 levels"),
        ({}, b'"' + b"x" * LARGEST_PAYLOAD + b'"', "say", "without the machine's code"),
        *(
            ({"type": "string", "format": name}, b'"soon"', "say", f"'soon' is not a '{name}'")
            for name in ("date", "date-time", "decimal", "time", "uuid")
        ),
        ({"$ref": "#/$defs/none"}, b"{}", "say", "the stored schema cannot be used"),
        ({"$ref": "#"}, b"{}", "say", "the stored schema cannot be used"),
        ({"type": 7}, b"{}", "say", "the stored schema cannot be used"),
        (7, b"{}", "say", "the stored schema cannot be used"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(
    schema: Any, payload: bytes | None, event: str, said: str
) -> None:
    assert said in refusal(schema, payload, event)


def test_what_fits_is_kept_in_its_canonical_form() -> None:
    taken = checked({"say": SCHEMA}, "say", b'{ "by" : "ada", "a": [1] }', "here", "it")
    assert taken == b'{"a":[1],"by":"ada"}'
    when = b'"2026-03-29T02:30:00+01:00"'
    assert checked({"say": {"type": "string", "format": "date-time"}}, "say", when, "here", "it") == when
    assert checked({"say": {}}, "say", DEEP, "here", "it") == DEEP
    assert checked({"stop": None}, "stop", None, "here", "it") == b"null"


def test_no_schema_is_fetched_from_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def refuse(*where: object, **_: object) -> None:
        asked.append(where)
        raise OSError("there is no network")

    for module, name in ((socket, "create_connection"), (socket, "getaddrinfo"), (urllib.request, "urlopen")):
        monkeypatch.setattr(module, name, refuse)
    for address in ("http://127.0.0.1:9/x", "https://example.com/x", "file:///etc/passwd"):
        assert "the stored schema cannot be used" in refusal({"$ref": address}, b"{}")
    assert asked == []


@pytest.mark.parametrize("document", [b"", b"7", b'{"signals": 7}', b"\xff", b"[" * 5000, b" " * 2_000_000])
@simulated
async def test_a_record_that_cannot_be_read_is_as_none(loop: SimLoop, document: bytes) -> None:
    sim = Sim(loop, One)
    await sim.engine()
    (row,) = (await sim.store.page(Definitions(machine="Desk"))).rows
    assert await schemas_of(sim.store, "Desk", 1, row.hash) is not None
    odd = evolve(row, version=9, document=document)
    await sim.store.beat((await sim.store.page(Workers())).rows[0], [odd])
    assert await schemas_of(sim.store, "Desk", 9, row.hash) is None
    assert await schemas_of(sim.store, "Desk", 8, row.hash) is None


def test_a_signal_needs_no_code_where_a_worker_has_recorded_what_is_taken(cli: Perdure) -> None:
    said = cli("signal", "review", "approve", "--data", '{"by": "ada"}', "--id", "a1")
    assert (said.status, said.err) == (0, "")
    again = cli("signal", "review", "approve", "--data", '{"by": "ada", "amount": 0}', "--id", "a2")
    assert again.status == 0
    with sqlite3.connect("perdure.db") as db:
        db.execute("DELETE FROM definition")
    refused = cli("signal", "review", "approve", "--data", '{"by": "ada"}')
    assert (refused.status, "name the code with --runtime MODULE:NAME" in refused.err) == (2, True)
