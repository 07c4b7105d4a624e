"""``examples/triage.py``: a model decides within what the machine offers, whatever the model does."""

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from chat_server import Breaks, ChatServer, Fails, Garbles, Hangs, Said, chat_server

from examples._customers import load_customers
from examples._models import ChatCompletions, Model, Scripted
from examples._tickets import Tickets
from examples.triage import AT_ONCE, Case, Deps, Triage
from perdure import Budget, Ended, Runtime
from perdure.stores import MemoryStore

pytestmark = pytest.mark.anyio

SETTLE = Said([("settle", '{"topic": "a tent"}')])
ORDERS = ("list_orders", '{"customer_id": "cust_02"}')
TICKET = ("open_ticket", '{"customer_id": "cust_02", "about": "the tent"}')


@asynccontextmanager
async def desk(tmp_path: Path, model: Model) -> AsyncIterator[Runtime[Deps]]:
    deps = Deps(customers=load_customers(), tickets=Tickets(path=tmp_path / "tickets.db"), model=model)
    async with Runtime(machines=[Triage], deps=deps, store=MemoryStore(), artifacts="memory:") as running:
        yield running


async def triaged(tmp_path: Path, model: Model, case: Case | None = None) -> Ended[Case]:
    async with desk(tmp_path, model) as running:
        thread = await running.start(Triage, case or Case(customer_id="cust_02"), thread_id="t")
        return await thread.result()


def served_by(server: ChatServer, timeout: float = 30) -> ChatCompletions:
    return ChatCompletions(model="m", base_url=server.url, api_key="k", timeout=timeout)


def tickets(tmp_path: Path) -> list[tuple[str, str]]:
    if not (tmp_path / "tickets.db").exists():
        return []
    with closing(sqlite3.connect(tmp_path / "tickets.db")) as connection:
        return connection.execute("SELECT customer, about FROM tickets").fetchall()


def told(request: dict[str, Any]) -> list[str]:
    """What the tools answered, newest last."""
    return [message["content"] for message in request["messages"] if message["role"] == "tool"]


# --- without a network ----------------------------------------------------------------------------


@pytest.mark.parametrize("customer", ["cust_02", "cust_03", "cust_07", "cust_11", "cust_50"])
async def test_the_script_settles_a_case_with_at_most_one_ticket(tmp_path: Path, customer: str) -> None:
    ended = await triaged(tmp_path, Scripted(), Case(customer_id=customer))
    assert ended.state == "settled"
    assert ended.data.verdict is not None
    assert ended.data.verdict.urgent == (len(tickets(tmp_path)) == 1)
    assert 1 < ended.data.rounds <= 4


# --- over the network -----------------------------------------------------------------------------


async def test_tools_run_side_by_side_and_their_answers_go_back(tmp_path: Path) -> None:
    mails = ("read_messages", '{"customer_id": "cust_02", "newest": 1}')
    async with chat_server(Said([ORDERS, mails, TICKET]), SETTLE) as server:
        ended = await triaged(tmp_path, served_by(server))
    assert (ended.state, ended.data.tokens, ended.data.rounds) == ("settled", 200, 2)
    assert tickets(tmp_path) == [("cust_02", "the tent")]
    first, second = server.requests
    offered = {each["function"]["name"] for each in first["tools"]}
    assert offered == {"settle", "hand_over", "read_messages", "list_orders", "open_ticket"}
    assert first["stream"] is True
    orders, newest, number = told(second)
    assert [order["id"] for order in json.loads(orders)] == ["LM-19822", "LM-21590"]
    assert [mail["sender"] for mail in json.loads(newest)] == ["customer"]
    assert number == "1"


async def test_no_more_than_three_tools_run_at_once(tmp_path: Path) -> None:
    async with chat_server(Said([TICKET] * (AT_ONCE + 2)), SETTLE) as server:
        ended = await triaged(tmp_path, served_by(server))
    assert ended.state == "settled"
    assert len(tickets(tmp_path)) == AT_ONCE
    assert told(server.requests[1])[AT_ONCE:] == [f"not run: at most {AT_ONCE} at once; ask again"] * 2


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (Said([("pay", "{}")]), "'pay' is not on offer in state 'deciding'"),
        (Said([("act", "{}")]), "'act' is not on offer in state 'deciding'"),
        (Said([("settle", '{"topic":')]), "no valid JSON"),
        (Said([("settle", '{"topic": 3}')]), "settle.topic: expected str"),
        (Said([("settle", '{"topic": "x", "tokens": 0}')]), "has no field 'tokens'"),
        (Said([("list_orders", "[]")]), "send one JSON object"),
        (Said([("list_orders", '{"customer": "x"}')]), "has no parameter 'customer'"),
    ],
)
async def test_what_is_not_offered_or_does_not_fit_goes_back_and_changes_nothing(
    tmp_path: Path, answer: Said, refused: str
) -> None:
    async with chat_server(answer, SETTLE) as server:
        ended = await triaged(tmp_path, served_by(server))
    assert (ended.state, ended.data.rounds) == ("settled", 2)
    [said] = told(server.requests[1])
    assert refused in said


async def test_an_event_beside_tools_is_refused_whole(tmp_path: Path) -> None:
    async with chat_server(Said([TICKET, ("settle", '{"topic": "x"}')]), SETTLE) as server:
        ended = await triaged(tmp_path, served_by(server))
    assert ended.state == "settled"
    assert tickets(tmp_path) == []
    assert len(told(server.requests[1])) == 2


async def test_a_model_that_only_talks_is_asked_to_choose(tmp_path: Path) -> None:
    async with chat_server(Said(text="Let me think about this one."), SETTLE) as server:
        ended = await triaged(tmp_path, served_by(server))
    assert ended.state == "settled"
    assert "Call a tool" in server.requests[1]["messages"][-1]["content"]
    assert server.requests[1]["messages"][-2]["content"] == "Let me think about this one."


@pytest.mark.parametrize(
    "trouble", [Fails(429, [("Retry-After", "0")]), Fails(500), Breaks(), Garbles(), Hangs()]
)
async def test_a_call_that_fails_is_made_again_and_nothing_is_issued_twice(
    tmp_path: Path, trouble: Fails | Breaks | Garbles | Hangs
) -> None:
    async with chat_server(Said([TICKET]), trouble, trouble, SETTLE) as server:
        timeout = 0.2 if isinstance(trouble, Hangs) else 30
        ended = await triaged(tmp_path, served_by(server, timeout))
    assert (ended.state, ended.data.rounds, ended.data.tokens) == ("settled", 2, 200)
    assert len(server.requests) == 4
    assert server.requests[1] == server.requests[2] == server.requests[3]
    assert tickets(tmp_path) == [("cust_02", "the tent")]


async def test_ten_rounds_end_it(tmp_path: Path) -> None:
    async with chat_server(Said([("pay", "{}")])) as server:
        ended = await triaged(tmp_path, served_by(server))
    assert (ended.state, ended.data.rounds, len(server.requests)) == ("spent", 10, 10)


async def test_tokens_end_it(tmp_path: Path) -> None:
    case = Case(customer_id="cust_02", budget=Budget(tokens=450, rounds=10))
    async with chat_server(Said([ORDERS])) as server:
        ended = await triaged(tmp_path, served_by(server), case)
    assert (ended.state, ended.data.tokens, len(server.requests)) == ("spent", 500, 5)
