"""Code that both checkers must refuse, at each line that is marked, and at no other.

``# WRONG`` counts at every target; ``# WRONG from 3.13`` where the checkers know the ``__replace__`` that
types updates.
"""
# pyright: strict

import asyncio

from right import (
    Approval,
    Brief,
    Claims,
    Customer,
    CustomerFacts,
    Deps,
    Empty,
    Limited,
    Plain,
    Question,
    Receipt,
    Rejection,
    Reviewing,
    Summarise,
    customers,
    draft_summary,
    get_customer,
    notify,
    publish,
    today,
)

from perdure.machines import (
    Absent,
    Accept,
    Append,
    ArtifactRef,
    Budget,
    Call,
    Cancellation,
    Failure,
    Fire,
    Found,
    Machine,
    Retry,
    State,
    Step,
    Unknown,
    anywhere,
    diagram,
    dot,
    effect,
    read,
    replace,
)
from perdure.runtime import Runtime, Thread


class OtherDeps: ...


@read
async def other_read(call: Call[OtherDeps]) -> str:
    return ""


async def plain_function(call: Call[Deps]) -> str:
    return ""


@effect
async def charge(call: Call[Deps], amount: int) -> Receipt:
    return Receipt(number=amount)


@charge.lookup  # WRONG
async def other_parameters(call: Call[Deps], name: str) -> Found[Receipt] | Absent | Unknown:
    return Absent()


@publish.lookup  # WRONG
async def other_result(call: Call[Deps], ref: ArtifactRef) -> Found[str] | Absent | Unknown:
    return Absent()


@publish.lookup  # WRONG
async def no_answer(call: Call[Deps], ref: ArtifactRef) -> None: ...


@read  # WRONG
def not_async(call: Call[Deps]) -> str:
    return ""


@effect(idempotent="yes")  # WRONG
async def not_a_flag(call: Call[Deps]) -> None: ...


@effect(deadline=5)  # WRONG
async def not_a_duration(call: Call[Deps]) -> None: ...


class Wrong(Machine[Brief, Deps], calls=[plain_function]):  # WRONG
    first = State(initial=True, retry=3)  # WRONG
    second = State(deadline=60)  # WRONG
    last = State(final=True)

    go = first.to(second)
    by_name = first.to("second")  # WRONG
    by_value = first.to(second, when=Brief.ready(Brief(customer_id="")))  # WRONG
    misspelt = first.to(second, when=Brief.reday)  # WRONG
    approve = second.to(last).on_signal(Approval)
    late = second.to(last).after(60)  # WRONG
    later = second.to(last).at(60)  # WRONG
    latest = second.to(last).after(lambda data: 60)  # WRONG
    unknown = second.to(last).at(Brief.meeting_)  # WRONG
    failed = first.to(last).on_failure("ValueError")  # WRONG
    gave_up = first.to(last).on_failure()

    @first.handler
    async def updates(self, data: Brief, step: Step[Deps]) -> Fire:
        self.go(custmer=None)  # WRONG from 3.13
        self.go(customer="ada")  # WRONG from 3.13
        self.go(transitions=3)  # WRONG from 3.13
        self.go(ready=True)  # WRONG from 3.13
        self.go("cust_42")  # WRONG from 3.13
        self.nowhere()  # WRONG
        self.late()  # WRONG
        return self.approve()  # WRONG

    @first.handler
    async def calls(self, data: Brief, step: Step[Deps]) -> Fire:
        await step.call(get_customer)  # WRONG
        await step.call(get_customer, 42)  # WRONG
        await step.call(draft_summary, Customer(name=""), length=3)  # WRONG
        await step.call(other_read)  # WRONG
        await step.call(plain_function)  # WRONG
        await step.call(publish.keyed(7), data.summary)  # WRONG
        await step.call(notify.keyed("a"), data.summary)  # WRONG
        await step.call(get_customer, data.customer.name)  # WRONG
        name: str = await step.call(get_customer, "a")  # WRONG
        one, two = await asyncio.gather(step.call(today), step.call(get_customer, "a"))
        print(one.name, two.upper())  # WRONG
        self.go(customer=await step.call(today))  # WRONG from 3.13
        print(step.call(get_customer, "a").name)  # WRONG
        return self.go(draft=name)

    @first.handler
    async def memory(self, data: Brief, step: Step[Deps]) -> Fire:
        await step.memory.put(customers, "a", "facts")  # WRONG
        await step.memory.put("customers", "a", "facts")  # WRONG
        facts: CustomerFacts = await step.memory.get(customers, "a")  # WRONG
        await step.artifacts.put("text", media_type="text/plain")  # WRONG
        await step.artifacts.put(b"text")  # WRONG
        return self.go(summary=facts.last_summary)

    @second.handler  # WRONG
    async def returns_none(self, data: Brief, step: Step[Deps]) -> None: ...

    @second.handler  # WRONG
    def not_async(self, data: Brief, step: Step[Deps]) -> Fire:
        return self.go()

    @approve.received  # WRONG
    def other_payload(self, data: Brief, payload: Rejection) -> Accept:
        return self.approve(approved_by=payload.why)

    @approve.received  # WRONG
    def fires(self, data: Brief, payload: Approval) -> Fire:
        return self.go()

    @gave_up.received
    def updates_of_receiver(self, data: Brief, failure: Failure) -> Accept:
        return self.gave_up(error=failure.error)  # WRONG from 3.13


class Nested(Machine[Brief, Deps]):
    outer = State(initial=True)
    inner = State(parent="outer", initial=True)  # WRONG
    last = State(final=True)

    out = anywhere.to("last")  # WRONG
    guarded = anywhere.to(last, when=Brief.reday)  # WRONG
    waits = anywhere.on_signal()  # WRONG
    pick = inner.to(last).on_choice(Question)
    by_value = inner.to(last).on_choice("Question")  # WRONG
    stop = anywhere.to(last).on_cancel()
    reasoned = anywhere.to(last).on_cancel(ValueError)  # WRONG
    spent = outer.to(last).on_budget("tokens")  # WRONG
    limit = outer.to(last).on_budget()

    @anywhere.handler  # WRONG
    async def everywhere(self, data: Brief, step: Step[Deps]) -> Fire:
        raise NotImplementedError

    @inner.handler
    async def chooses(self, data: Brief, step: Step[Deps]) -> Fire:
        return self.pick(draft="a")  # WRONG

    @inner.handler
    async def decides(self, data: Brief, step: Step[Deps]) -> Fire:
        step.decide("pick")  # WRONG
        return step.decide(data.talk[-1].tool_calls[0])  # WRONG

    @inner.handler
    async def cancels(self, data: Brief, step: Step[Deps]) -> Fire:
        return self.stop()  # WRONG

    @pick.received  # WRONG
    def other_choice(self, data: Brief, payload: Rejection) -> Accept:
        return self.pick()

    @pick.received
    def picked(self, data: Brief, question: Question) -> Accept:
        return self.pick(words=question.words)  # WRONG from 3.13

    @stop.received  # WRONG
    def other_reason(self, data: Brief, why: Failure) -> Accept:
        return self.stop()

    @stop.received
    def reasons(self, data: Brief, why: Cancellation) -> Accept:
        return self.stop(draft=why.cause)  # WRONG

    @limit.received  # WRONG
    def other_limit(self, data: Brief, why: Cancellation) -> Accept:
        return self.limit()


class Spending(Machine[Limited]):
    first = State(initial=True)
    last = State(final=True)
    go = first.to(last)

    @first.handler
    async def run(self, data: Limited, step: Step) -> Fire:
        self.go(tokens="many")  # WRONG from 3.13
        self.go(newest=replace(("text",)))  # WRONG from 3.13
        self.go(tokens=replace("many"))  # WRONG from 3.13
        return self.go(budget=30)  # WRONG from 3.13


Budget(steps="30")  # WRONG
Append(keep="5")  # WRONG
diagram(Brief)  # WRONG
dot(Summarise, path=["loading"])  # WRONG
Retry(attempts="3")  # WRONG
Retry(3)  # WRONG
brief = Brief(customer_id="a", transitions=3)  # WRONG
brief.draft = "changed"  # WRONG
Brief()  # WRONG
Brief("cust_42")  # WRONG

Runtime(machines=[Summarise], deps=OtherDeps())  # WRONG
runtime = Runtime(machines=[Summarise, Plain], deps=Deps(url=""))


async def outside(plain: Thread[Plain, Empty]) -> None:
    await runtime.start(Summarise, Empty(), thread_id="a")  # WRONG
    await runtime.start(Brief, Brief(customer_id="a"), thread_id="a")  # WRONG
    thread = await runtime.start(Summarise, Brief(customer_id="a"), thread_id="a")
    await thread.signal(Summarise.approve, Rejection(why=""), id="a")  # WRONG
    await thread.signal(Summarise.approve, id="a")  # WRONG
    await thread.signal(Summarise.nudge, Approval(by="a"), id="a")  # WRONG
    await thread.signal(Summarise.loaded, id="a")  # WRONG
    await thread.signal("approve", Approval(by="a"), id="a")  # WRONG
    await plain.signal(Summarise.approve, Approval(by="a"), id="a")  # WRONG
    await thread.signal(Reviewing.ask, Question(words=""), id="a")  # WRONG
    await thread.signal(Reviewing.stop, id="a")  # WRONG
    await thread.cancel("too late")  # WRONG
    await thread.terminate(reason=Cancellation(by="a", reason="b"))  # WRONG
    await runtime.start(Claims, Empty(), thread_id="a")  # WRONG
    ended = await thread.result()
    print(ended.data.custmer_id)  # WRONG
