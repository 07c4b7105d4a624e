"""A session's messages: seen as they stood at a thread's start, then the thread's own."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Sequence
from typing import Annotated, Any

from harness.engine import CALLS, Sim, World, carrying, simulated
from harness.loop import SimLoop

from perdure.machines import Accept, Conversation, Fire, Machine, Message, State, Step, ToolCall, record
from perdure.stores import Messages


@record
class Talk:
    """Data with a conversation."""

    name: str
    talk: Annotated[Sequence[Message], Conversation()] = ()


@record
class Said:
    """Somebody says something."""

    content: str


class Chat(Machine[Talk, World], version=1, calls=CALLS):
    """Answers what it is told, for as long as it is told something."""

    waiting = State(initial=True)
    answering = State()
    done = State(final=True)
    tell = waiting.to(answering).on_signal(Said)
    answered = answering.to(waiting)
    close = waiting.to(done).on_signal()

    @tell.received
    def told(self, data: Talk, said: Said) -> Accept:
        return self.tell(talk=[Message(role="user", content=said.content)])

    @answering.handler
    async def answer(self, data: Talk, step: Step[World]) -> Fire:
        seen = " ".join(message.content for message in data.talk)
        return self.answered(talk=[Message(role="assistant", content=f"{data.name}({seen})")])


def contents(data: Any) -> list[str]:
    return [message.content for message in data.talk]


async def tell(sim: Sim, thread: Any, content: str) -> None:
    """Say something to a thread and wait for its answer."""
    before = (await sim.row(thread.thread_id)).standing.seq
    await thread.signal(Chat.tell, Said(content=content), id=f"{thread.thread_id}-{content}")
    await sim.until_row(
        lambda row: row.standing.seq == before + 2 and row.standing.status == "waiting", thread.thread_id
    )


async def session(sim: Sim, name: str) -> list[tuple[int, str, str]]:
    """Number, thread and content of every message of a session."""
    page = await sim.store.page(Messages(workspace="w", session=name))
    return [(row.number, row.thread_id, bytes(row.payload).decode()) for row in page.rows]


@simulated
async def test_a_thread_sees_the_session_as_it_stood_at_its_start_and_then_its_own_messages(
    loop: SimLoop,
) -> None:
    sim = Sim(loop, Chat)
    engine = await sim.engine()
    one = await engine.start(Chat, Talk(name="A"), thread_id="one", session="s")
    await tell(sim, one, "1")
    two = await engine.start(Chat, Talk(name="B"), thread_id="two", session="s")
    await tell(sim, one, "2")  # after the start of the other: not for it
    await tell(sim, two, "3")
    three = await engine.start(Chat, Talk(name="C"), thread_id="three", session="s")
    await tell(sim, three, "4")
    answers = ["A(1)", "A(1 A(1) 2)", "B(1 A(1) 3)"]
    assert contents(await one.data()) == ["1", "A(1)", "2", "A(1 A(1) 2)"]
    assert contents(await two.data()) == ["1", "A(1)", "3", "B(1 A(1) 3)"]
    assert contents(await three.data())[:6] == ["1", answers[0], "2", answers[1], "3", answers[2]]
    rows = [await sim.row(thread_id) for thread_id in ("one", "two", "three")]
    assert [(row.session, row.session_since) for row in rows] == [("s", 0), ("s", 2), ("s", 6)]
    numbers = [(number, thread_id) for number, thread_id, _ in await session(sim, "s")]
    assert numbers == [
        (1, "one"),
        (2, "one"),
        (3, "one"),
        (4, "one"),
        (5, "two"),
        (6, "two"),
        (7, "three"),
        (8, "three"),
    ]


@simulated
async def test_two_threads_that_talk_at_once_do_not_see_each_other(loop: SimLoop) -> None:
    sim = Sim(loop, Chat)
    engine = await sim.engine()
    threads = [await engine.start(Chat, Talk(name=name), thread_id=name, session="s") for name in ("A", "B")]
    for content in ("x", "y"):
        for thread in threads:
            await thread.signal(Chat.tell, Said(content=content), id=content)
    await sleep(10)
    for thread in threads:
        name = thread.thread_id
        assert contents(await thread.data()) == ["x", f"{name}(x)", "y", f"{name}(x {name}(x) y)"]
    assert [number for number, _, _ in await session(sim, "s")] == list(range(1, 9))


@simulated
async def test_without_a_session_a_thread_is_its_own(loop: SimLoop) -> None:
    sim = Sim(loop, Chat)
    engine = await sim.engine()
    one = await engine.start(Chat, Talk(name="A"), thread_id="one")
    two = await engine.start(Chat, Talk(name="B"), thread_id="two")
    await tell(sim, one, "1")
    await tell(sim, two, "2")
    assert contents(await one.data()) == ["1", "A(1)"]
    assert contents(await two.data()) == ["2", "B(2)"]
    assert [(await sim.row(thread_id)).session for thread_id in ("one", "two")] == ["one", "two"]


@simulated
async def test_another_workspaces_session_of_that_name_is_another(loop: SimLoop) -> None:
    sim = Sim(loop, Chat)
    engine = await sim.engine()
    one = await engine.start(Chat, Talk(name="A"), thread_id="one", session="s")
    await tell(sim, one, "1")
    client = sim.client()
    other = await client.start(Chat, Talk(name="B"), thread_id="one", workspace="v", session="s")
    assert contents(await other.data()) == []


@simulated
async def test_a_thread_that_is_started_with_messages_brings_them_into_the_session(loop: SimLoop) -> None:
    system = Message(role="system", content="Be brief.")
    sim = Sim(loop, Chat)
    engine = await sim.engine()
    one = await engine.start(Chat, Talk(name="A", talk=[system]), thread_id="one", session="s")
    await tell(sim, one, "1")
    assert contents(await one.data()) == ["Be brief.", "1", "A(Be brief. 1)"]
    again = await engine.start(Chat, Talk(name="A", talk=[system]), thread_id="one", session="s")
    assert contents(await again.data()) == ["Be brief.", "1", "A(Be brief. 1)"]
    two = await engine.start(Chat, Talk(name="B", talk=[system]), thread_id="two", session="s")
    assert contents(await two.data()) == ["Be brief.", "1", "A(Be brief. 1)", "Be brief."]


@simulated
async def test_after_a_kill_the_conversation_is_as_it_was_and_nothing_is_said_twice(loop: SimLoop) -> None:
    sim = Sim(loop, Chat)
    first = await sim.engine()
    thread = await first.start(Chat, Talk(name="A"), session="s")
    await tell(sim, thread, "1")
    first.store.fault("kill after", carrying("transition"), skip=1)
    await thread.signal(Chat.tell, Said(content="2"), id="2")
    await sim.until_dead(first)
    second = await sim.engine()
    await sim.until_row(lambda row: row.standing.seq == 4)
    await tell(sim, thread, "3")
    assert contents(await thread.data())[:4] == ["1", "A(1)", "2", "A(1 A(1) 2)"]
    assert len(await session(sim, "s")) == 6
    await second.end()


class Tools(Machine[Talk, World], version=1, calls=CALLS):
    """Says one message of every kind."""

    working = State(initial=True)
    done = State(final=True)
    finished = working.to(done)

    @working.handler
    async def work(self, data: Talk, step: Step[World]) -> Fire:
        call = ToolCall(id="1", name="look", arguments='{"a":\u20281}')
        return self.finished(
            talk=[
                Message(role="assistant", content="", tool_calls=[call]),
                Message(role="tool", content="no\x00", name="look", tool_call_id="1", tool_failed=True),
            ]
        )


@simulated
async def test_messages_come_back_whole(loop: SimLoop) -> None:
    sim = Sim(loop, Tools)
    thread = await (await sim.engine()).start(Tools, Talk(name="A"))
    await sim.until("ended")
    asked, answered = (await thread.data()).talk
    assert asked.tool_calls == (ToolCall(id="1", name="look", arguments='{"a":\u20281}'),)
    assert (answered.content, answered.name, answered.tool_call_id) == ("no\x00", "look", "1")
    assert answered.tool_failed is True


@simulated
async def test_a_handler_of_the_same_process_sees_the_session_as_one_after_a_resume(loop: SimLoop) -> None:
    """The first visit begins without reading the thread back, and sees the session all the same."""
    seen: list[list[str]] = []

    class Sees(Machine[Talk, World], version=1, calls=CALLS):
        """Looks at what was said."""

        looking = State(initial=True)
        again = State()
        done = State(final=True)
        looked = looking.to(again)
        ended = again.to(done)

        @looking.handler
        async def look(self, data: Talk, step: Step[World]) -> Fire:
            seen.append(contents(data))
            return self.looked(talk=[Message(role="user", content="own")])

        @again.handler
        async def look_again(self, data: Talk, step: Step[World]) -> Fire:
            seen.append(contents(data))
            return self.ended()

    sim = Sim(loop, Chat, Sees)
    engine = await sim.engine()
    one = await engine.start(Chat, Talk(name="A"), thread_id="one", session="s")
    await tell(sim, one, "1")
    await engine.start(Sees, Talk(name="B"), session="s")
    await sim.until("ended")
    assert seen == [["1", "A(1)"], ["1", "A(1)", "own"]]
