"""A machine class as it is written, and what the engine reads of it."""

import inspect
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import attrs
import pytest

import perdure.machines
from perdure.machines import (
    Absent,
    Accept,
    Append,
    ArtifactRef,
    BadUpdate,
    Call,
    Conversation,
    DefinitionError,
    Ephemeral,
    Failure,
    Fire,
    Found,
    Machine,
    Message,
    ModelWritable,
    Namespace,
    NotStorable,
    Position,
    Retry,
    State,
    Step,
    Unknown,
    definition,
    effect,
    present,
    read,
    record,
    runtime_owned,
)


@attrs.frozen
class Deps:
    http: Any


@record
class Customer:
    name: str


@record
class Note:
    text: str


@record
class Approval:
    by: str


@record
class Rejection:
    why: str


@record
class Receipt:
    number: int


@record
class CustomerFacts:
    last_summary: ArtifactRef


class Cache:
    """Not storable, and need not be."""


@record
class Brief:
    customer_id: str
    customer: Customer | None = None
    draft: Annotated[str | None, ModelWritable()] = None
    summary: ArtifactRef | None = None
    approved_by: str | None = None
    notes: Annotated[Sequence[Note], Append()] = ()
    talk: Annotated[Sequence[Message], Conversation()] = ()
    transitions: int = runtime_owned(Position.seq)
    scratch: Annotated[Cache | None, Ephemeral()] = None

    @property
    def ready(self) -> bool:
        """There is a draft to look at."""
        return self.draft is not None


@read(reuse_for=timedelta(seconds=60))
async def get_customer(call: Call[Deps], customer_id: str) -> Customer:
    return Customer(name=customer_id)


@read(keep=True)
async def draft_summary(call: Call[Deps], customer: Customer) -> str:
    return f"about {customer.name}"


@effect
async def publish(call: Call[Deps], ref: ArtifactRef) -> Receipt:
    receipt: Receipt = await call.deps.http.publish(ref, idempotency_key=call.key)
    return receipt


@publish.lookup
async def find_published(call: Call[Deps], ref: ArtifactRef) -> Found[Receipt] | Absent | Unknown:
    return Unknown()


customers = Namespace("customer", CustomerFacts)


class Summarise(Machine[Brief, Deps], version=1, calls=[get_customer, draft_summary, publish]):
    """Summarise a customer, have a person approve it, publish it."""

    loading = State(initial=True)
    drafting = State(retry=Retry(attempts=3), deadline=timedelta(minutes=5))
    review = State()
    publishing = State()
    done = State(final=True)
    rejected = State(final=True)

    loaded = loading.to(drafting)
    drafted = drafting.to(review, when=Brief.ready)
    approve = review.to(publishing).on_signal(Approval)
    reject = review.to(rejected).on_signal(Rejection)
    expired = review.to(rejected).after(timedelta(days=1))
    gave_up = drafting.to(rejected).on_failure()
    published = publishing.to(done)

    @loading.handler
    async def load(self, data: Brief, step: Step[Deps]) -> Fire:
        return self.loaded(customer=await step.call(get_customer, data.customer_id))

    @drafting.handler
    async def draft(self, data: Brief, step: Step[Deps]) -> Fire:
        text = await step.call(draft_summary, present(data.customer))
        ref = await step.artifacts.put(text.encode(), media_type="text/plain")
        return self.drafted(draft=text, summary=ref, notes=[Note(text="drafted")])

    @approve.received
    def approved(self, data: Brief, approval: Approval) -> Accept:
        return self.approve(approved_by=approval.by)

    @publishing.handler
    async def publish_it(self, data: Brief, step: Step[Deps]) -> Fire:
        ref = present(data.summary)
        await step.call(publish, ref)
        await step.memory.put(customers, data.customer_id, CustomerFacts(last_summary=ref))
        return self.published()


@record
class Count:
    n: int = 0


class TestWhatTheEngineReads:
    def test_names_states_and_calls(self) -> None:
        plan = definition(Summarise)
        assert (plan.name, plan.version, plan.machine, plan.initial) == ("Summarise", 1, Summarise, "loading")
        assert list(plan.states) == ["loading", "drafting", "review", "publishing", "done", "rejected"]
        assert [name for name, state in plan.states.items() if state.waiting] == ["review"]
        assert [name for name, state in plan.states.items() if state.final] == ["done", "rejected"]
        assert plan.calls == {
            "get_customer": get_customer,
            "draft_summary": draft_summary,
            "publish": publish,
        }

    def test_a_state_with_its_policy_and_its_ways_out(self) -> None:
        drafting = definition(Summarise).states["drafting"]
        assert drafting.retry.attempts == 3
        assert drafting.deadline == timedelta(minutes=5)
        assert [(row.dest, row.guard_name) for row in drafting.rows["drafted"]] == [("review", "ready")]
        assert [(failure.event, failure.errors) for failure in drafting.failures] == [("gave_up", ())]
        review = definition(Summarise).states["review"]
        assert review.signals == ("approve", "reject")
        assert [(each.event, each.kind, each.given, each.label) for each in review.timeouts] == [
            ("expired", "after", timedelta(days=1), "1 d")
        ]
        assert not review.handlers

    def test_a_guard_is_evaluated_on_the_data(self) -> None:
        (row,) = definition(Summarise).states["drafting"].rows["drafted"]
        assert row.guard is not None
        assert row.guard(Brief(customer_id="a", draft="text")) is True
        assert row.guard(Brief(customer_id="a")) is False

    def test_events_with_payload_receiver_and_text(self) -> None:
        events = definition(Summarise).events
        assert {name: event.kind for name, event in events.items()} == {
            "loaded": "fire",
            "drafted": "fire",
            "approve": "signal",
            "reject": "signal",
            "expired": "timeout",
            "gave_up": "failure",
            "published": "fire",
        }
        assert events["approve"].receiver is not None
        accepted = events["approve"].receiver(Brief(customer_id="a"), Approval(by="ada"))
        assert accepted == Accept(event="approve", updates={"approved_by": "ada"})
        payloads = {name: event.payload.type for name, event in events.items() if event.payload is not None}
        assert payloads == {"approve": Approval, "reject": Rejection, "gave_up": Failure}
        assert events["drafted"].doc == "There is a draft to look at."

    @pytest.mark.anyio
    async def test_a_handler_runs_bound_and_in_lane_main(self) -> None:
        class Asked:
            async def call(self, declared: object, customer_id: str) -> Customer:
                assert declared is get_customer
                return Customer(name=customer_id)

        (handler,) = definition(Summarise).states["loading"].handlers
        assert handler.lane == "main"
        fired = await handler.run(Brief(customer_id="cust_42"), Asked())
        assert fired == Fire(event="loaded", updates={"customer": Customer(name="cust_42")})

    def test_updates_by_position_are_never_dropped(self) -> None:
        machine: Any = Summarise()
        with pytest.raises(BadUpdate, match=r"loaded: 'Ada' is given by position"):
            machine.loaded("Ada")
        with pytest.raises(BadUpdate, match=r"approve: 'Ada' is given by position"):
            machine.approve("Ada")

    def test_signals_are_objects_of_the_class(self) -> None:
        assert (Summarise.approve.machine, Summarise.approve.name) == (Summarise, "approve")

    def test_only_a_subclass_has_a_definition(self) -> None:
        with pytest.raises(DefinitionError, match="Machine is not a machine: subclass"):
            definition(Machine)


class TestTheTable:
    def test_candidates_keep_their_order_and_sources_join(self) -> None:
        class Sorting(Machine[Count]):
            start = State(initial=True)
            again = State()
            low = State(final=True)
            high = State(final=True)
            sort = (
                start.to(high, when=lambda data: data.n > 10)
                | start.to(again, when=lambda data: data.n > 5)
                | start.to(low)
                | again.to(low)
            )

            @start.handler
            @again.handler
            async def run(self, data: Count, step: Step) -> Fire:
                return self.sort()

        states = definition(Sorting).states
        assert [row.dest for row in states["start"].rows["sort"]] == ["high", "again", "low"]
        assert [row.dest for row in states["again"].rows["sort"]] == ["low"]
        guards = [row.guard for row in states["start"].rows["sort"]]
        assert [guard is None or guard(Count(n=7)) for guard in guards] == [False, True, True]
        assert [handler.lane for state in states.values() for handler in state.handlers] == ["main", "main"]

    def test_names_that_transitions_itself_uses_are_free(self) -> None:
        class Odd(Machine[Count]):
            initial = State(initial=True)
            model = State(final=True)
            state = initial.to(model)
            trigger = initial.to(initial)

            @initial.handler
            async def run(self, data: Count, step: Step) -> Fire:
                return self.state()

        assert set(definition(Odd).states["initial"].rows) == {"state", "trigger"}

    def test_back_and_forth_a_hundred_thousand_times_needs_no_recursion(self) -> None:
        class PingPong(Machine[Count]):
            ping = State(initial=True)
            pong = State()
            over = ping.to(pong)
            back = pong.to(ping)

            @ping.handler
            async def serve(self, data: Count, step: Step) -> Fire:
                return self.over()

            @pong.handler
            async def answer(self, data: Count, step: Step) -> Fire:
                return self.back()

        states = definition(PingPong).states
        state, depth = "ping", len(inspect.stack(0))
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(depth + 20)
        try:
            for _ in range(100_000):
                (row,) = states[state].rows["over" if state == "ping" else "back"]
                state = row.dest
        finally:
            sys.setrecursionlimit(limit)
        assert state == "ping"

    def test_only_one_module_imports_transitions(self) -> None:
        names = perdure.machines.__path__[0]
        found = subprocess.run(
            ["grep", "-lrE", r"^\s*(import|from) transitions", "--include=*.py", names],
            capture_output=True,
            text=True,
            check=True,
        )
        assert [line.rsplit("/", 1)[1] for line in found.stdout.splitlines()] == ["_table.py"]


class Branching(Machine[Count]):
    both = State(initial=True)
    end = State(final=True)
    go = both.to(end)

    @both.handler
    async def left(self, data: Count, step: Step) -> Fire:
        return self.go(n=1)

    @both.handler
    async def right(self, data: Count, step: Step) -> Fire:
        return self.go()


class TestBranchesAndBases:
    def test_branches_take_the_lanes_of_their_names(self) -> None:
        handlers = definition(Branching).states["both"].handlers
        assert [handler.lane for handler in handlers] == ["left", "right"]

    def test_a_subclass_adds_and_overrides_by_name(self) -> None:
        @read
        async def look(call: Call[Deps]) -> str:
            return ""

        class Careful(Summarise, version=2, calls=[look]):
            checking = State()
            check = Summarise.review.to(checking).on_signal()
            checked = checking.to(Summarise.done)

            async def load(self, data: Brief, step: Step[Deps]) -> Fire:
                return self.loaded(approved_by="careful")

            def approved(self, data: Brief, approval: Approval) -> Accept:
                return self.approve(approved_by=approval.by.upper())

            @checking.handler
            async def look_at_it(self, data: Brief, step: Step[Deps]) -> Fire:
                return self.checked()

        plan, base = definition(Careful), definition(Summarise)
        assert plan.version == 2
        assert set(plan.calls) == {*base.calls, "look"}
        assert set(plan.states) == {*base.states, "checking"}
        assert plan.states["review"].signals == ("approve", "reject", "check")
        assert base.states["review"].signals == ("approve", "reject")
        (handler,) = plan.states["loading"].handlers
        assert handler.run.__func__ is Careful.load  # type: ignore[attr-defined]
        receiver = plan.events["approve"].receiver
        assert receiver is not None
        assert receiver(Brief(customer_id="a"), Approval(by="ada")).updates == {"approved_by": "ADA"}
        assert Careful.approve.machine is Careful

    def test_a_mixin_brings_what_it_declares(self) -> None:
        class Pausing:
            paused = State()
            resume = paused.to(Branching.both).on_signal()

        class Mixed(Pausing, Branching):
            pause = Branching.both.to(Pausing.paused)

        assert set(definition(Mixed).states) == {"paused", "both", "end"}
        assert definition(Mixed).states["paused"].signals == ("resume",)

    def test_another_name_in_the_store(self) -> None:
        class Renamed(Branching, name="Branching", version=3):
            pass

        assert (definition(Renamed).name, definition(Renamed).version) == ("Branching", 3)


class TestTheHash:
    def test_it_is_the_same_in_every_process(self) -> None:
        code = "from test_machine import Summarise, definition; print(definition(Summarise).hash)"
        told = {
            subprocess.run(
                [sys.executable, "-c", code],
                cwd=__file__.rpartition("/")[0],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            for seed in ("1", "2")
        }
        assert told == {definition(Summarise).hash}
        assert len(definition(Summarise).hash) == 16

    def test_it_changes_with_rows_kinds_and_fields(self) -> None:
        @record
        class Other:
            n: float = 0.0

        def machine(data: Any, back: bool, later: bool) -> str:
            class Same(Machine[data]):
                start = State(initial=True)
                end = State(final=True)
                go = start.to(end)
                more = start.to(start if back else end)
                out = start.to(end).after(timedelta(hours=1)) if later else start.to(end).on_failure()

                @start.handler
                async def run(self, data: Any, step: Step) -> Fire:
                    return self.go()

            return definition(Same).hash

        hashes = [
            machine(Count, True, True),
            machine(Count, False, True),
            machine(Count, True, False),
            machine(Other, True, True),
        ]
        assert len(set(hashes)) == 4
        assert machine(Count, True, True) == hashes[0]


class TestRetries:
    def test_the_wait_grows_up_to_its_limit(self) -> None:
        retry = Retry(delay=timedelta(seconds=1), factor=3, max_delay=timedelta(seconds=20))
        assert [retry.wait_after(failed).total_seconds() for failed in (1, 2, 3, 4, 5)] == [1, 3, 9, 20, 20]
        assert retry.wait_after(10**9) == timedelta(seconds=20)

    def test_it_may_be_constant_or_nothing_and_never_overflows(self) -> None:
        assert Retry(factor=1).wait_after(10**9) == timedelta(seconds=1)
        assert Retry(delay=timedelta(0)).wait_after(10**9) == timedelta(0)
        huge = Retry(delay=timedelta(days=1), factor=1e300, max_delay=timedelta.max)
        assert huge.wait_after(3) == timedelta.max


class TestNamespaces:
    def test_it_knows_how_to_store_its_records(self) -> None:
        facts = CustomerFacts(last_summary=ArtifactRef(id="a", sha256="b", media_type="c", size_bytes=1))
        raw, back = customers.codec.roundtrip(facts, "memory customer/a")
        assert back == facts
        assert customers.codec.decode(raw, "memory customer/a") == facts
        wrong: Any = Note(text="no facts")
        with pytest.raises(NotStorable, match="memory customer/a"):
            customers.codec.encode(wrong, "memory customer/a")

    def test_a_type_that_cannot_be_stored_or_an_empty_name_is_refused(self) -> None:
        with pytest.raises(DefinitionError, match="namespace 'cache'"):
            Namespace("cache", Cache)
        with pytest.raises(DefinitionError, match="name is empty"):
            Namespace("", CustomerFacts)


def test_the_public_names() -> None:
    assert set(perdure.machines.__all__) == PUBLIC
    assert all(hasattr(perdure.machines, name) for name in PUBLIC)


PUBLIC = {
    "ABSENT",
    "ITEMS",
    "UNKNOWN",
    "Absent",
    "Accept",
    "AnthropicMessages",
    "Append",
    "ArtifactRef",
    "BadCall",
    "BadTranscript",
    "BadUpdate",
    "Budget",
    "Call",
    "Cancellation",
    "Choice",
    "Codec",
    "Conversation",
    "Cost",
    "DataPlan",
    "Declared",
    "Definition",
    "DefinitionError",
    "Effect",
    "Ephemeral",
    "EventPlan",
    "Failure",
    "FailurePlan",
    "FieldPlan",
    "Fire",
    "Found",
    "HandlerPlan",
    "Keyed",
    "Limit",
    "Loaded",
    "Machine",
    "Merge",
    "Merged",
    "Message",
    "ModelWritable",
    "Namespace",
    "NotDone",
    "NotStorable",
    "Of",
    "Position",
    "Read",
    "Reducer",
    "Refusal",
    "Replaced",
    "Retry",
    "Row",
    "Signal",
    "SignalMessage",
    "Span",
    "Spent",
    "State",
    "StatePlan",
    "Step",
    "StepArtifacts",
    "StepMemory",
    "TimeoutPlan",
    "ToolCall",
    "Unknown",
    "Unreadable",
    "Upcaster",
    "Upcasts",
    "anywhere",
    "arguments",
    "choice_of",
    "codec",
    "definition",
    "diagram",
    "dot",
    "effect",
    "from_anthropic",
    "from_openai",
    "payload_of",
    "present",
    "read",
    "record",
    "refusal",
    "replace",
    "runtime_owned",
    "to_anthropic",
    "to_openai",
    "tool",
    "upcast",
}
