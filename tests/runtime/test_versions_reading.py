"""New code meets what older versions wrote: names, data, signals, timers, and calls of a visit half done."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Sequence
from datetime import timedelta
from types import new_class
from typing import Annotated, Any

import pytest
from harness.engine import Engine, Reply, Sim, World, simulated
from harness.loop import SimLoop

from perdure.machines import (
    Absent,
    Accept,
    Append,
    Call,
    Effect,
    Fire,
    Found,
    Machine,
    State,
    Step,
    Unknown,
    Unreadable,
    effect,
    record,
    upcast,
)
from perdure.runtime import Resolution, StartConflict
from perdure.stores import Address
from perdure.stores import Signal as StoredSignal

HOUR = timedelta(hours=1)


@record
class OldBrief:
    customer_id: str = "c"
    note: str = ""
    lines: Annotated[Sequence[str], Append()] = ()
    newest: Annotated[Sequence[int], Append(keep=2)] = ()


@record
class OldApproval:
    by: str


@record
class Brief:
    customer: str = "c"
    notes: tuple[str, ...] = ()
    lines: Annotated[Sequence[str], Append()] = ()
    newest: Annotated[Sequence[str], Append(keep=2)] = ()
    urgent: bool = False


@record
class Approval:
    people: tuple[str, ...]


@effect(deadline=timedelta(seconds=10))
async def pay(call: Call[World], cents: int) -> str:
    return await call.deps.send("pay", call.key, str(cents))


@pay.lookup
async def find_pay(call: Call[World], cents: int) -> Found[str] | Absent | Unknown:
    return await call.deps.look("pay", call.key)  # type: ignore[no-any-return]


class Desk1(Machine[OldBrief, World], name="Desk", version=1, calls=[pay]):
    drafting = State(initial=True)
    review = State()
    paying = State()
    done = State(final=True)
    late = State(final=True)

    drafted = drafting.to(review)
    more = drafting.to(drafting)
    accept = review.to(paying).on_signal(OldApproval)
    expired = review.to(late).after(HOUR)
    paid = paying.to(done)

    @drafting.handler
    async def draft(self, data: OldBrief, step: Step[World]) -> Fire:
        if step.seq < 3:
            return self.more(note=f"n{step.seq}", lines=[f"l{step.seq}"], newest=[step.seq])
        return self.drafted()

    @accept.received
    def accepted(self, data: OldBrief, approval: OldApproval) -> Accept:
        return self.accept(note=approval.by)

    @paying.handler
    async def payment(self, data: OldBrief, step: Step[World]) -> Fire:
        await step.call(pay, 500)
        return self.paid()


def euros(name: str, **more: Any) -> Effect[World, ..., str]:
    """What ``pay`` became: another name, euros for cents, and a parameter that is new."""

    async def fn(call: Call[World], euros: int, currency: str = "EUR") -> str:
        return await call.deps.send("pay", call.key, f"{euros} {currency}")

    async def ask(call: Call[World], euros: int, currency: str = "EUR") -> Found[str] | Absent | Unknown:
        call.deps.asked.append(f"{euros} {currency}")
        return await call.deps.look("pay", call.key)  # type: ignore[no-any-return]

    fn.__name__ = name
    made = effect(deadline=timedelta(seconds=10), **more)(fn)
    made.lookup(ask)
    return made


transfer = euros("transfer", renamed=("pay",))


class Desk2(Machine[Brief, World], name="Desk", version=2, calls=[transfer]):
    drafting = State(initial=True)
    approval = State(renamed=("review",))
    paying = State()
    done = State(final=True)
    late = State(final=True)

    drafted = drafting.to(approval)
    more = drafting.to(drafting)
    approve = approval.to(paying).on_signal(Approval).renamed("accept")
    overdue = approval.to(late).after(HOUR).renamed("expired")
    paid = paying.to(done)

    @drafting.handler
    async def draft(self, data: Brief, step: Step[World]) -> Fire:
        return self.drafted()

    @approve.received
    def approved(self, data: Brief, approval: Approval) -> Accept:
        return self.approve(notes=(*data.notes, *approval.people), newest=["9"])

    @paying.handler
    async def payment(self, data: Brief, step: Step[World]) -> Fire:
        await step.call(transfer, 5)
        return self.paid(lines=["paid"], newest=["10"])

    @upcast(from_version=1)
    def from_one(self, data: dict[str, Any]) -> dict[str, Any]:
        data["customer"] = data.pop("customer_id")
        data["notes"] = [data.pop("note")]
        data["newest"] = [str(n) for n in data.get("newest", ())]
        return data

    @upcast(from_version=1, of=approve)
    def more_people(self, payload: dict[str, Any]) -> dict[str, Any]:
        return {"people": [payload["by"]]}

    @upcast(from_version=1, of=transfer)
    def in_euros(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"euros": arguments["cents"] // 100}


async def in_review(loop: SimLoop) -> Sim:
    """A thread of version 1 that waits for its signal, and no process."""
    sim = Sim(loop, Desk1)
    engine = await sim.engine()
    await engine.start(Desk1, OldBrief())
    await sim.until("waiting")
    engine.kill()
    return sim


@simulated
async def test_a_thread_goes_on_under_new_names_and_its_first_commit_writes_a_base(loop: SimLoop) -> None:
    sim = await in_review(loop)
    handle = sim.thread(Desk2)
    assert await handle.data() == Brief(notes=("n2",), lines=("l0", "l1", "l2"), newest=("1", "2"))
    before = await sim.rows()
    engine = await sim.engine(Desk2)
    await sleep(5)
    assert await sim.rows() == before  # reading writes nothing
    await sim.thread(Desk1).signal(Desk1.accept, OldApproval(by="ada"), id="a")
    ended = await handle.result()
    assert ended.data == Brief(notes=("n2", "ada"), lines=("l0", "l1", "l2", "paid"), newest=("9", "10"))
    rows = await sim.rows()
    assert rows[: len(before)] == before
    bases = [(body.version, body.dest) for _, body in rows if body.base is not None]
    assert bases == [(1, "drafting"), (2, "paying")]
    engine.kill()
    assert await sim.thread(Desk2).data() == ended.data


@simulated
async def test_what_came_in_before_the_deploy_is_taken_in(loop: SimLoop) -> None:
    sim = await in_review(loop)
    await sim.thread(Desk1).signal(Desk1.accept, OldApproval(by="ada"), id="a")
    assert "The next worker takes in: a (accept)" in await sim.thread(Desk2).why()
    await sim.engine(Desk2)
    assert (await sim.thread(Desk2).result()).data.notes == ("n2", "ada")


@simulated
async def test_a_timer_of_a_renamed_event_fires_when_it_was_due(loop: SimLoop) -> None:
    sim = await in_review(loop)
    at = loop.now()
    await sim.engine(Desk2)
    ended = await sim.thread(Desk2).result()
    assert (ended.state, (loop.now() - at) // 1_000_000) == ("late", 3600)


class Bare(Machine[Brief, World], name="Desk", version=2, calls=[transfer]):
    """``Desk2`` without a word of what was before."""

    drafting = State(initial=True)
    approval = State()
    paying = State()
    done = State(final=True)
    drafted = drafting.to(approval)
    approve = approval.to(paying).on_signal(Approval)
    paid = paying.to(done)

    @drafting.handler
    async def draft(self, data: Brief, step: Step[World]) -> Fire:
        return self.drafted()

    @paying.handler
    async def payment(self, data: Brief, step: Step[World]) -> Fire:
        await step.call(transfer, 5)
        return self.paid()


class Named(Machine[Brief, World], name="Desk", version=2, removed_events=("expired",), calls=[transfer]):
    """Knows the state and the data, not the signal."""

    drafting = State(initial=True)
    approval = State(renamed=("review",))
    paying = State()
    done = State(final=True)
    drafted = drafting.to(approval)
    approve = approval.to(paying).on_signal(Approval)
    paid = paying.to(done)

    @drafting.handler
    async def draft(self, data: Brief, step: Step[World]) -> Fire:
        return self.drafted()

    @paying.handler
    async def payment(self, data: Brief, step: Step[World]) -> Fire:
        await step.call(transfer, 5)
        return self.paid()

    @upcast(from_version=1)
    def from_one(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"customer": data["customer_id"]}


@simulated
async def test_what_nothing_declares_parks_untouched_and_goes_on_under_mended_code(loop: SimLoop) -> None:
    sim = await in_review(loop)
    before, bytes_before = await sim.row(), await sim.rows()
    await sim.thread(Desk1).signal(Desk1.accept, OldApproval(by="ada"), id="a")
    engine = await sim.engine(Bare)
    parked = await sim.until("parked")
    assert (parked.standing.reason, parked.standing.version) == ("unreadable", 1)
    assert "'review', which Desk version 2 does not have" in (parked.standing.note or "")
    assert "State(renamed=('review',))" in (parked.standing.note or "")
    assert (parked.standing.state, parked.standing.base) == (before.standing.state, before.standing.base)
    assert (await sim.rows())[: len(bytes_before)] == bytes_before
    engine.kill()
    engine = await sim.engine(Named)
    await sim.thread(Named).retry()
    parked = await sim.until_row(lambda row: "signal" in (row.standing.note or ""))
    assert "signal 'a' is for event 'accept', which Desk version 2 does not have" in str(parked.standing.note)
    assert ".renamed('accept')" in str(parked.standing.note)
    engine.kill()
    await sim.engine(Desk2)
    await sim.thread(Desk2).retry()
    assert (await sim.thread(Desk2).result()).data.notes == ("n2", "ada")


@simulated
async def test_a_timer_that_nothing_declares_parks_and_one_that_was_removed_is_off(loop: SimLoop) -> None:
    sim = await in_review(loop)
    await sim.engine(Named)
    await sim.store.deliver(
        StoredSignal(
            address=Address(workspace="w", thread_id="t"),
            id="x",
            event="expired",
            payload=b"null",
            digest=b"d",
        )
    )
    await sleep(7200)
    row = await sim.row()
    assert (row.standing.status, row.standing.wake) == ("waiting", None)
    assert "Not accepted here: x (expired)" in await sim.thread(Named).why()

    class Forgets(Named, name="Desk", version=2):
        pass

    with pytest.raises(Unreadable, match=r"a timer is for event 'expired'.*removed_events=\('expired',\)"):
        await sim.thread(Forgets).data()


# --- calls of a visit that is not over ------------------------------------------------------------


async def killed_in_payment(loop: SimLoop, reply: Reply) -> Sim:
    """A thread of version 1 whose process died in its payment."""
    sim = await in_review(loop)
    engine = await sim.engine()
    sim.world.reply("pay", reply)
    await sim.thread(Desk1).signal(Desk1.accept, OldApproval(by="ada"), id="a")
    await sleep(1)
    engine.kill()
    return sim


@pytest.mark.parametrize("lands", [0.0, None])
@simulated
async def test_an_effect_in_doubt_is_asked_for_and_issued_with_todays_arguments_under_its_stored_key(
    loop: SimLoop, lands: float | None
) -> None:
    sim = await killed_in_payment(loop, Reply(lands=lands, takes=9.0))
    (intent,) = await sim.entries("intent")
    assert await sim.thread(Desk2).data() == Brief(
        notes=("ada",), lines=("l0", "l1", "l2"), newest=("1", "2")
    )
    await sim.engine(Desk2)
    ended = await sim.thread(Desk2).result()
    assert ended.data.lines == ("l0", "l1", "l2", "paid")
    assert {key for _, key in sim.world.lookups} == {intent["key"]}
    assert set(sim.world.asked) == {"5 EUR"}
    assert [(a.key, a.args) for a in sim.world.arrivals] == [
        (intent["key"], ("500",) if lands == 0.0 else ("5 EUR",))
    ]


@simulated
async def test_a_recorded_outcome_is_served_to_the_call_as_it_is_written_today(loop: SimLoop) -> None:
    class Slow(Desk1, name="Desk", version=1):
        async def payment(self, data: OldBrief, step: Step[World]) -> Fire:
            await step.call(pay, 500)
            await sleep(60)
            return self.paid()

    sim = await in_review(loop)
    engine = await sim.engine(Slow)
    await sim.thread(Desk1).signal(Desk1.accept, OldApproval(by="ada"), id="a")
    await sleep(1)
    engine.kill()
    await sim.engine(Desk2)
    await sim.thread(Desk2).result()
    assert len(sim.world.arrivals) == 1


@simulated
async def test_a_roll_back_waits_and_says_so_and_forward_again_counts_each_key_once(loop: SimLoop) -> None:
    """Version 2 only wrote an intent; the data is version 1's still."""
    sim = await in_review(loop)
    await sim.thread(Desk1).signal(Desk1.accept, OldApproval(by="ada"), id="a")

    class Doubtful(Desk1, name="Desk", version=1):
        async def payment(self, data: OldBrief, step: Step[World]) -> Fire:
            await sleep(3600)
            return self.paid()

    one = await sim.engine(Doubtful)
    await sleep(1)
    one.kill()
    assert (await sim.row()).standing.version == 1
    sim.world.reply("pay", Reply(lands=0.0, takes=9.0))
    two = await sim.engine(Desk2)
    await sleep(1)
    two.kill()
    row = await sim.row()
    assert (row.standing.version, row.standing.state) == (2, "paying")
    versions = [(r.kind, body.version) for r, body in await sim.rows() if body.version is not None]
    assert versions == [("start", 1), ("record", 2)]
    back = await sim.engine(Desk1)
    await sleep(600)
    assert (await sim.row()).epoch == row.epoch
    assert "needs version >= 2, and this code is 1" in await sim.thread(Desk1).why()
    with pytest.raises(Unreadable, match=r"needs version >= 2 of Desk, and this code is 1"):
        await sim.thread(Desk1).data()
    back.kill()
    await sim.engine(Desk2)
    ended = await sim.thread(Desk2).result()
    assert ended.data.notes == ("ada",)
    assert [a.args for a in sim.world.arrivals] == [("5 EUR",)]
    bases = [body.version for _, body in await sim.rows() if body.base is not None]
    assert bases == [1, 2]


@simulated
async def test_both_versions_run_side_by_side(loop: SimLoop) -> None:
    sim = Sim(loop, Desk1)
    old, new = await sim.engine(Desk1), await sim.engine(Desk2)
    for n in range(12):
        if n % 2:
            await old.start(Desk1, OldBrief(), thread_id=f"t{n}")
        else:
            await new.start(Desk2, Brief(), thread_id=f"t{n}")
    await sleep(60)
    for n in range(12):
        row = await sim.row(f"t{n}")
        if row.standing.version == 1:
            await sim.thread(Desk1, f"t{n}").signal(Desk1.accept, OldApproval(by="ada"), id="a")
        else:
            await sim.thread(Desk2, f"t{n}").signal(Desk2.approve, Approval(people=("ada",)), id="a")
    await sleep(60)
    for n in range(12):
        assert (await sim.row(f"t{n}")).standing.status == "ended"
        assert "ada" in (await sim.thread(Desk2, f"t{n}").data()).notes
    assert len(set(sim.world.keys)) == len(sim.world.keys) == 12


@record
class Empty: ...


def paying(version: int, asks: Sequence[int], hold: float = 0.0, **more: Any) -> type[Any]:
    """One state that pays these amounts in turn, then waits a while."""
    call = more.pop("call", pay)

    async def work(self: Any, data: Empty, step: Step[World]) -> Fire:
        for amount in asks:
            await step.call(call, amount)
        await sleep(hold)
        return self.paid()  # type: ignore[no-any-return]

    going, done = State(initial=True), State(final=True)
    going.handler(work)
    body = {"going": going, "done": done, "paid": going.to(done), "work": work, **more.pop("body", {})}
    keywords = {"name": "Pays", "version": version, "calls": [call], **more}
    return new_class("Pays", (Machine[Empty, World],), keywords, lambda ns: ns.update(body))


def by_hundred(of: Effect[Any, ..., Any]) -> Any:
    def divided(self: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        return {name: value // 100 for name, value in arguments.items()}

    return upcast(from_version=1, of=of)(divided)


async def paid_by(loop: SimLoop, old: type[Any], new: type[Any]) -> tuple[Sim, Engine]:
    """Killed under the old code when it had paid, and gone on with under the new."""
    sim = Sim(loop, old)
    sim.world.remembers = True
    engine = await sim.engine()
    await engine.start(old, Empty())
    await sleep(1)
    engine.kill()
    return sim, await sim.engine(new)


@simulated
async def test_no_key_stands_for_two_actions(loop: SimLoop) -> None:
    """What paid 300 is today's 3; today's 300 is another action, and must not be taken for the old one."""
    sim, _ = await paid_by(
        loop, paying(1, [300], hold=60), paying(2, [3, 300], body={"divided": by_hundred(pay)})
    )
    await sim.until("ended")
    assert len(sim.world.effects) == 2
    assert len(set(sim.world.keys)) == 2


@simulated
async def test_calls_that_an_upcaster_makes_equal_are_matched_in_order(loop: SimLoop) -> None:
    sim, _ = await paid_by(
        loop, paying(1, [300, 301], hold=60), paying(2, [3, 3, 3], body={"divided": by_hundred(pay)})
    )
    await sim.until("ended")
    assert [a.args for a in sim.world.arrivals] == [("300",), ("301",), ("3",)]


@effect(deadline=timedelta(seconds=10))
async def other(call: Call[World], cents: int) -> str:
    return await call.deps.send("other", call.key, str(cents))


@simulated
async def test_a_call_that_nothing_lists_parks_and_one_that_was_removed_is_set_aside(loop: SimLoop) -> None:
    sim, engine = await paid_by(loop, paying(1, [300], hold=60), paying(2, [1], call=other))
    parked = await sim.until("parked")
    assert (parked.standing.reason, parked.standing.version) == ("unreadable", 1)
    assert "it holds effect pay with key pd_" in (parked.standing.note or "")
    assert "name it in removed_calls=" in (parked.standing.note or "")
    engine.kill()
    removed = paying(2, [1], call=other, removed_calls=("pay",))
    await sim.engine(removed)
    await sim.thread(removed).retry()
    await sim.until("ended")
    assert [a.name for a in sim.world.arrivals] == ["pay", "other"]


@simulated
async def test_a_removed_call_in_doubt_parks_until_somebody_says_what_became_of_it(loop: SimLoop) -> None:
    old = paying(1, [300])
    sim = Sim(loop, old)
    sim.world.reply("pay", Reply(takes=9.0))
    engine = await sim.engine()
    await engine.start(old, Empty())
    await sleep(1)
    engine.kill()
    removed = paying(2, [1], call=other, removed_calls=("pay",))
    await sim.engine(removed)
    parked = await sim.until("parked")
    assert parked.standing.reason == "in doubt"
    await sim.thread(removed).resolve(Resolution(action="done", value=b'"pay-1"'))
    await sim.until("ended")
    assert [a.name for a in sim.world.arrivals] == ["pay", "other"]


@simulated
async def test_arguments_that_nobody_brings_over_park_and_name_the_upcaster(loop: SimLoop) -> None:
    changed = euros("pay")
    sim, _ = await paid_by(loop, paying(1, [300], hold=60), paying(2, [3], call=changed))
    parked = await sim.until("parked")
    assert parked.standing.reason == "unreadable"
    assert "@upcast(from_version=1, of=pay)" in (parked.standing.note or "")


@simulated
async def test_a_recorded_outcome_that_does_not_fit_any_more_parks(loop: SimLoop) -> None:
    @effect
    async def counted(call: Call[World], cents: int) -> int:
        return 1

    counted.name = "pay"
    sim, _ = await paid_by(loop, paying(1, [300], hold=60), paying(2, [300], call=counted))
    parked = await sim.until("parked")
    assert parked.standing.reason == "unreadable"
    assert "state 'going': effect" in (parked.standing.note or "")
    assert "recorded result: expected int" in (parked.standing.note or "")
    assert "began at seq 0" in (parked.standing.note or "")


@simulated
async def test_below_the_oldest_version_a_thread_parks_and_says_which_code_reads_it(loop: SimLoop) -> None:
    sim = Sim(loop, paying(1, [], hold=60))
    engine = await sim.engine()
    await engine.start(sim.machines[0], Empty())
    await sleep(1)
    engine.kill()
    before = await sim.rows()
    engine = await sim.engine(paying(3, [], oldest=2))
    parked = await sim.until("parked")
    assert (parked.standing.reason, parked.standing.version) == ("unreadable", 1)
    assert "version 1 of Pays wrote it" in (parked.standing.note or "")
    assert "run code that reads version 1" in (parked.standing.note or "")
    assert (await sim.rows())[:-1] == before
    engine.kill()
    wide = paying(3, [])
    await sim.engine(wide)
    await sim.thread(wide).retry()
    await sim.until("ended")


# --- a start that is sent again -------------------------------------------------------------------


@simulated
async def test_a_start_sent_again_under_newer_code_is_the_same_start(loop: SimLoop) -> None:
    sim = await in_review(loop)
    first = await sim.row()
    client = sim.client(Desk2)
    address: dict[str, Any] = {"thread_id": "t", "workspace": "w"}
    await client.start(Desk2, Brief(notes=("",)), **address)
    assert await sim.row() == first
    message = Desk2.approve.message(Approval(people=("ada",)), id="s1")
    await client.start(Desk2, Brief(notes=("",)), **address, signals=[message])
    assert [row.id for row in await sim.thread(Desk2).pending()] == ["s1"]  # what comes with it arrives
    with pytest.raises(StartConflict, match="and other data"):
        await client.start(Desk2, Brief(notes=("",), urgent=True), **address)
    with pytest.raises(StartConflict, match="and other data"):
        await client.start(Desk2, Brief(notes=("",), lines=("x",)), **address)
