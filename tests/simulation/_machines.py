"""The machines that the simulation runs: between them they use every feature of a step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import anyio
from _story import (
    CALLS,
    RETRY,
    Did,
    Spending,
    Story,
    Word,
    act,
    charge,
    falter,
    post,
    price,
    publish,
    put,
    quote,
    rate,
    slowly,
    transfer,
    try_to,
)
from _world import Link, Planned

from perdure.machines import (
    Accept,
    Cancellation,
    Failure,
    Fire,
    Machine,
    Message,
    Namespace,
    Refusal,
    Spent,
    State,
    Step,
    ToolCall,
)


class Line(Machine[Story, Link], calls=CALLS):
    """One effect of each kind that can be recovered without a person, one after the other."""

    first = State(initial=True, retry=RETRY)
    second = State(retry=RETRY)
    third = State(retry=RETRY)
    fourth = State(retry=RETRY)
    fifth = State(retry=RETRY)
    done = State(final=True)

    charged = first.to(second)
    moved = second.to(third)
    published = third.to(fourth)
    stored = fourth.to(fifth)
    stored_again = fifth.to(done)

    @first.handler
    async def charge_it(self, data: Story, step: Step[Link]) -> Fire:
        return self.charged(did=[await act(step, price, charge, "charge")], trail=["first"])

    @second.handler
    async def move_it(self, data: Story, step: Step[Link]) -> Fire:
        did = await act(step, quote, transfer, "move")
        await falter(step)
        return self.moved(did=[did], trail=["second"])

    @third.handler
    async def publish_it(self, data: Story, step: Step[Link]) -> Fire:
        return self.published(did=[await act(step, rate, publish, "publish")], trail=["third"])

    @fourth.handler
    async def put_it(self, data: Story, step: Step[Link]) -> Fire:
        return self.stored(did=[await act(step, price, put, "register")], trail=["fourth"])

    @fifth.handler
    async def put_another(self, data: Story, step: Step[Link]) -> Fire:
        return self.stored_again(did=[await act(step, price, put, "register")], trail=["fifth"])


class Blind(Machine[Story, Link], calls=CALLS):
    """An effect whose receiver knows nothing, between two that do."""

    before = State(initial=True, retry=RETRY)
    blind = State(retry=RETRY)
    done = State(final=True)

    ready = before.to(blind)
    posted = blind.to(done)

    @before.handler
    async def prepare(self, data: Story, step: Step[Link]) -> Fire:
        return self.ready(did=[await act(step, price, publish, "before")], trail=["before"])

    @blind.handler
    async def post_it(self, data: Story, step: Step[Link]) -> Fire:
        return self.posted(did=[await act(step, price, post, "post")], trail=["blind"])


class Loop(Machine[Story, Link], calls=CALLS):
    """One state visited three times, with the same effects and arguments each time."""

    turn = State(initial=True, retry=RETRY)
    done = State(final=True)

    turned = turn.to(done, when=Story.often) | turn.to(turn)

    @turn.handler
    async def again(self, data: Story, step: Step[Link]) -> Fire:
        toll = await try_to(step, charge, "toll", 7)
        seal = await try_to(step, publish, "seal", 7)
        return self.turned(did=[toll, seal], trail=["turn"], rounds=data.rounds + 1)


class Parallel(Machine[Story, Link], calls=CALLS):
    """Effects side by side: gathered in one lane, in lanes of their own, and in branches."""

    gathering = State(initial=True, retry=RETRY)
    stranding = State(retry=RETRY)
    branching = State(retry=RETRY)
    done = State(final=True)

    gathered = gathering.to(stranding)
    stranded = stranding.to(branching)
    met = branching.to(done)

    @gathering.handler
    async def gather(self, data: Story, step: Step[Link]) -> Fire:
        value = await step.call(price, "gather")
        did = await asyncio.gather(
            try_to(step, charge, "a", value),
            try_to(step, publish, "b", value),
            try_to(step, publish, "c", value),
            try_to(step, transfer, "d", value),
        )
        return self.gathered(did=did, trail=["gathering"])

    @stranding.handler
    async def strand(self, data: Story, step: Step[Link]) -> Fire:
        did = await asyncio.gather(
            self.two(step.lane("left"), publish, "left"), self.two(step.lane("right"), transfer, "right")
        )
        return self.stranded(did=[*did[0], *did[1]], trail=["stranding"])

    async def two(self, step: Step[Link], issue: Any, slot: str) -> list[Did]:
        first = await act(step, price, issue, slot)
        return [first, await act(step, rate, issue, f"{slot} again")]

    @branching.handler
    async def one_branch(self, data: Story, step: Step[Link]) -> Fire:
        return self.met(did=[await act(step, price, publish, "one")], bumps=1)

    @branching.handler
    async def other_branch(self, data: Story, step: Step[Link]) -> Fire:
        await falter(step)
        did = await act(step, quote, charge, "other")
        return self.met(did=[did], bumps=1, trail=["branching"])


class Flaky(Machine[Story, Link], calls=CALLS):
    """A handler that fails before, between and after its effects, and a failure that is an event."""

    trying = State(initial=True, retry=RETRY, deadline=timedelta(seconds=9))
    mending = State(retry=RETRY)
    done = State(final=True)

    tried = trying.to(mending)
    gave_up = trying.to(mending).on_failure(Planned)
    mended = mending.to(done)

    @trying.handler
    async def attempt(self, data: Story, step: Step[Link]) -> Fire:
        await falter(step)
        first = await act(step, price, publish, "first")
        await falter(step)
        second = await act(step, rate, charge, "second")
        third = await act(step, price, transfer, "third")
        await falter(step)
        return self.tried(did=[first, second, third], trail=["trying"])

    @gave_up.received
    def note(self, data: Story, failure: Failure) -> Accept:
        return self.gave_up(rounds=failure.attempts)

    @mending.handler
    async def mend(self, data: Story, step: Step[Link]) -> Fire:
        return self.mended(did=[await act(step, price, put, "register")], trail=["mending"])


class Careful(Machine[Story, Link], calls=CALLS):
    """What is not done is answered: by something else in its stead, or by preparing it and trying again."""

    falling = State(initial=True, retry=RETRY)
    preparing = State(retry=RETRY)
    insisting = State(retry=RETRY)
    done = State(final=True)

    fell = falling.to(preparing)
    prepared = preparing.to(insisting)
    insisted = insisting.to(done)

    @falling.handler
    async def fall_back(self, data: Story, step: Step[Link]) -> Fire:
        value = await step.call(price, "fall")
        did = [await try_to(step, publish, "plan", value)]
        if not did[0].receipt:
            did.append(await act(step, price, charge, "instead"))
        await falter(step)
        return self.fell(did=did, trail=["falling"])

    @preparing.handler
    async def prepare(self, data: Story, step: Step[Link]) -> Fire:
        value = await step.call(rate, "prepare")
        did = [await try_to(step, transfer, "goal", value)]
        if not did[0].receipt:
            helped = await act(step, price, publish, "help")
            did = [helped, await try_to(step, transfer, "goal", value)]
        return self.prepared(did=did, trail=["preparing"])

    @insisting.handler
    async def insist(self, data: Story, step: Step[Link]) -> Fire:
        value = await step.call(price, "insist")
        did = await try_to(step, charge, "insist", value)
        for _ in range(2):
            if did.receipt:
                break
            did = await try_to(step, charge, "insist", value)
        return self.insisted(did=[did], trail=["insisting"])


class Review(Machine[Story, Link], calls=CALLS):
    """Signals: repeated, early, late and unwelcome; timeouts; a state that an event may interrupt."""

    working = State(initial=True, interruptible=True, retry=RETRY)
    review = State()
    acting = State(retry=RETRY)
    done = State(final=True)
    dropped = State(final=True)

    worked = working.to(review)
    hurry = working.to(review).on_signal(Word)
    tired = working.to(review).after(timedelta(seconds=6))
    note = review.to(review).on_signal(Word)
    approve = review.to(acting, when=Story.noted).on_signal(Word)
    expired = review.to(dropped).after(timedelta(seconds=20))
    acted = acting.to(done)

    @working.handler
    async def work(self, data: Story, step: Step[Link]) -> Fire:
        did = [await act(step, price, publish, "begin")]
        for n in range(4):
            await step.call(slowly, f"work {n}")
        did.append(await act(step, price, charge, "end"))
        return self.worked(did=did, trail=["working"])

    @hurry.received
    def hurried(self, data: Story, word: Word) -> Accept:
        return self.hurry(heard=[word.text])

    @note.received
    def noted_down(self, data: Story, word: Word) -> Accept:
        return self.note(heard=[word.text], notes=data.notes + 1)

    @approve.received
    def approved(self, data: Story, word: Word) -> Accept:
        return self.approve(heard=[word.text])

    @acting.handler
    async def act_on_it(self, data: Story, step: Step[Link]) -> Fire:
        return self.acted(did=[await act(step, quote, transfer, "act")], trail=["acting"])


tally = Namespace("tally", int)
tags = Namespace("tags", tuple[str, ...], merge=lambda old, new: tuple(sorted({*old, *new})))
facts = Namespace("facts", str)


def one_more(value: int | None) -> int:
    return (value or 0) + 1


class Memo(Machine[Story, Link], calls=CALLS):
    """Memory that threads share: updates, merges, puts that conflict, and effects that rest on it."""

    counting = State(initial=True, retry=RETRY)
    tagging = State(retry=RETRY)
    writing = State(retry=RETRY)
    resting = State(retry=RETRY)
    done = State(final=True)

    counted = counting.to(tagging)
    tagged = tagging.to(writing)
    written = writing.to(resting)
    rested = resting.to(done)

    @counting.handler
    async def count(self, data: Story, step: Step[Link]) -> Fire:
        did = await act(step, price, charge, "count")
        await step.memory.update(tally, "all", one_more)
        return self.counted(did=[did], bumps=1, trail=["counting"])

    @tagging.handler
    async def tag(self, data: Story, step: Step[Link]) -> Fire:
        known = await step.memory.get(tags, "all") or ()
        did = await act(step, price, publish, "tag")
        await step.memory.put(tags, "all", tuple(sorted({*known, step.thread_id})))
        return self.tagged(did=[did], trail=["tagging"])

    @writing.handler
    async def write(self, data: Story, step: Step[Link]) -> Fire:
        before = await step.memory.get(facts, "one")
        await step.call(price, "think")
        await step.memory.put(facts, "one", f"{step.thread_id} after {before}"[:60])
        return self.written(trail=["writing"])

    @resting.handler
    async def rest(self, data: Story, step: Step[Link]) -> Fire:
        value = await step.memory.get(tally, "all")
        receipt = await step.call(publish, "rest", value or 0)
        await step.memory.update(tally, "all", one_more)
        did = Did(slot="rest", value=value or 0, receipt=receipt, visit=step.seq)
        return self.rested(did=[did], bumps=1, trail=["resting"])


class Scribe(Machine[Story, Link], calls=CALLS):
    """Artifacts, and a conversation that two threads share."""

    drafting = State(initial=True, retry=RETRY)
    revising = State(retry=RETRY)
    done = State(final=True)

    drafted = drafting.to(revising)
    revised = revising.to(done)

    @drafting.handler
    async def draft(self, data: Story, step: Step[Link]) -> Fire:
        value = await step.call(price, "draft")
        ref = await step.artifacts.put(f"draft {value}".encode(), media_type="text/plain")
        with anyio.move_on_after(0.01):
            await step.artifacts.put(f"spare {value}".encode(), media_type="text/plain")
        await falter(step)
        did = Did(slot="draft", value=value, receipt=await step.call(publish, "draft", value), visit=step.seq)
        return self.drafted(did=[did], files=[ref], talk=[said(step)], trail=["drafting"])

    @revising.handler
    async def revise(self, data: Story, step: Step[Link]) -> Fire:
        draft = await step.artifacts.get(data.files[0])
        did = await act(step, price, charge, "revise")
        ref = await step.artifacts.put(
            draft + b" revised", media_type="text/plain", derived_from=[data.files[0]]
        )
        return self.revised(did=[did], files=[ref], talk=[said(step)], trail=["revising"])


def said(step: Step[Link]) -> Message:
    return Message(role="user", content=f"{step.thread_id}/{step.seq}")


class Keyed(Machine[Story, Link], calls=CALLS):
    """Explicit keys: whichever thread comes first acts, the others are served its outcome."""

    first = State(initial=True, retry=RETRY)
    second = State(retry=RETRY)
    done = State(final=True)

    charged = first.to(second)
    published = second.to(done)

    @first.handler
    async def charge_once(self, data: Story, step: Step[Link]) -> Fire:
        receipt = await step.call(charge.keyed("one charge"), "shared", 1)
        did = Did(slot="shared", value=1, receipt=receipt, visit=step.seq)
        return self.charged(did=[did], trail=["first"])

    @second.handler
    async def publish_once(self, data: Story, step: Step[Link]) -> Fire:
        receipt = await step.call(publish.keyed("one page"), "page", 2)
        did = Did(slot="page", value=2, receipt=receipt, visit=step.seq)
        return self.published(did=[did], trail=["second"])


class Hasty(Machine[Story, Link], calls=CALLS):
    """Many effects at once, each of which may be issued again while the issue before it is on its way."""

    rushing = State(initial=True, retry=RETRY)
    running = State(retry=RETRY)
    done = State(final=True)

    rushed = rushing.to(running)
    ran = running.to(done)

    @rushing.handler
    async def rush(self, data: Story, step: Step[Link]) -> Fire:
        value = await step.call(price, "rush")
        did = await asyncio.gather(*(try_to(step, charge, f"rush {n}", value) for n in range(6)))
        return self.rushed(did=did, trail=["rushing"])

    @running.handler
    async def run(self, data: Story, step: Step[Link]) -> Fire:
        value = await step.call(price, "run")
        did = await asyncio.gather(*(try_to(step, transfer, f"run {n}", value) for n in range(6)))
        return self.ran(did=did, trail=["running"])


class Drawn(Machine[Story, Link], calls=CALLS):
    """Time, chance and the handler's own time limits, each of which decides about effects."""

    drawing = State(initial=True, retry=RETRY)
    limiting = State(retry=RETRY)
    done = State(final=True)

    drawn = drawing.to(limiting)
    limited = limiting.to(done)

    @drawing.handler
    async def draw(self, data: Story, step: Step[Link]) -> Fire:
        chance = round(await step.random() * 1000)
        first = await try_to(step, publish, "random", chance)
        ident = (await step.uuid()).int % 1000
        second = await try_to(step, transfer, "uuid", ident)
        moment = (await step.now()).microsecond
        third = await try_to(step, charge if chance % 2 else publish, "now", moment)
        await falter(step)
        return self.drawn(did=[first, second, third], trail=["drawing"])

    @limiting.handler
    async def limit(self, data: Story, step: Step[Link]) -> Fire:
        value = await step.call(price, "limit")
        with anyio.move_on_after(0.1):
            await step.call(slowly, "too slow")
        did = await try_to(step, publish, "limit", value)
        with anyio.move_on_after(0.3):
            await step.call(slowly, "too slow as well")
        return self.limited(did=[did], trail=["limiting"])


class Desk(Machine[Spending, Link], calls=CALLS):
    """States in a state that has a clock and can be cancelled; a model that decides; a budget."""

    job = State(initial=True)
    asking = State(parent=job, initial=True, retry=RETRY)
    acting = State(parent=job, retry=RETRY)
    pausing = State(parent=job)
    tidying = State(retry=RETRY)
    done = State(final=True)
    late = State(final=True)

    go_on = asking.to(acting).on_choice(Word)
    ask_again = asking.to(asking)
    acted = acting.to(pausing)
    rested = pausing.to(asking).after(timedelta(seconds=0.5))
    used_up = asking.to(tidying).on_budget()
    stop = job.to(tidying).on_cancel()
    overdue = job.to(late).after(timedelta(seconds=25))
    tidied = tidying.to(done)

    @asking.handler
    async def ask(self, data: Spending, step: Step[Link]) -> Fire:
        did = await act(step, quote, publish, "ask")
        await step.call(slowly, "ask")
        name = "go_on" if did.value % 3 else "overdue"
        decided = step.decide(ToolCall(id="1", name=name, arguments=f'{{"text": "{did.value}"}}'))
        if isinstance(decided, Refusal):
            return self.ask_again(did=[did], trail=["job.asking"], tokens=7)
        return decided.also(did=[did], trail=["job.asking"], tokens=7)

    @acting.handler
    async def act_on_it(self, data: Spending, step: Step[Link]) -> Fire:
        first = await act(step, price, charge, "act")
        await step.call(slowly, "act")
        await falter(step)
        return self.acted(did=[first, await act(step, rate, transfer, "act more")], trail=["job.acting"])

    @used_up.received
    def note_it(self, data: Spending, spent: Spent) -> Accept:
        return self.used_up(used_up=spent.limit)

    @stop.received
    def stopped(self, data: Spending, asked: Cancellation) -> Accept:
        return self.stop(used_up=asked.by)

    @tidying.handler
    async def tidy(self, data: Spending, step: Step[Link]) -> Fire:
        return self.tidied(did=[await act(step, price, put, "register")], trail=["tidying"])


class Changing(Machine[Story, Link], calls=CALLS):
    """A step of which two versions run side by side: see ``Changed``."""

    working = State(initial=True, retry=RETRY)
    done = State(final=True)

    worked = working.to(done)

    @working.handler
    async def work(self, data: Story, step: Step[Link]) -> Fire:
        value = await step.call(price, "change")
        did = [await try_to(step, publish, "change", value), await act(step, price, transfer, "more")]
        return self.worked(did=did, trail=["working"])


class Changed(Machine[Story, Link], calls=CALLS, name="Changing"):
    """The same machine under code that passes other arguments, and no longer makes the second call."""

    working = State(initial=True, retry=RETRY)
    done = State(final=True)

    worked = working.to(done)

    @working.handler
    async def work(self, data: Story, step: Step[Link]) -> Fire:
        value = await step.call(price, "change")
        did = await try_to(step, publish, "change", value + 1000)
        return self.worked(did=[did], trail=["working"])


SAME: Sequence[Any] = [
    Line,
    Blind,
    Loop,
    Parallel,
    Flaky,
    Careful,
    Review,
    Memo,
    Scribe,
    Keyed,
    Hasty,
    Drawn,
    Desk,
]
MACHINES: Sequence[Any] = [*SAME, Changing]
CHANGED: Sequence[Any] = [*SAME, Changed]
"""What a process runs under the other code."""
