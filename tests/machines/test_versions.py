"""What a machine declares of its older versions: names, upcasters, and each fault of them by name."""

from collections.abc import Callable
from datetime import timedelta
from types import new_class
from typing import Any

import pytest

from perdure.machines import (
    Accept,
    Call,
    DefinitionError,
    Fire,
    Machine,
    State,
    Step,
    Unreadable,
    Upcasts,
    definition,
    effect,
    record,
    upcast,
)


@record
class Brief:
    customer: str = ""
    notes: tuple[str, ...] = ()


@record
class Approval:
    by: str


@effect
async def publish(call: Call, ref: str, quiet: bool) -> str:
    return ref


@effect
async def unlisted(call: Call) -> None: ...


class Desk(Machine[Brief], version=3, removed_events=("nag",), removed_calls=("post",), calls=[publish]):
    phase = State(renamed="stage")
    review = State(parent=phase, initial=True, renamed=("waiting", "phase.look"))
    publishing = State(initial=True)
    done = State(final=True)

    begin = publishing.to(phase)
    approve = review.to(done).on_signal(Approval).renamed("accept", "ok")
    expired = review.to(done).after(timedelta(days=1))

    @publishing.handler
    async def work(self, data: Brief, step: Step) -> Fire:
        return self.begin()

    @approve.received
    def approved(self, data: Brief, approval: Approval) -> Accept:
        return self.approve()

    @upcast(from_version=1)
    def named(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"customer": data.pop("customer_id"), **data}

    @upcast(from_version=2)
    def listed(self, data: dict[str, Any]) -> dict[str, Any]:
        data["notes"] = [data.pop("note")]
        return data

    @upcast(from_version=1, of=approve)
    def signed(self, payload: Any) -> dict[str, Any]:
        return {"by": payload}

    @upcast(from_version=2, of=publish)
    def loud(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {**arguments, "quiet": False}


PLAN = definition(Desk)


def test_old_names_lead_to_today_s() -> None:
    assert PLAN.state_names == {
        "stage.review": "phase.review",
        "waiting": "phase.review",
        "phase.look": "phase.review",
    }
    assert PLAN.event_names == {"accept": "approve", "ok": "approve"}
    assert PLAN.removed_events == {"nag"}
    assert PLAN.removed_calls == {"post"}
    for stored in ("waiting", "phase.review"):
        state = PLAN.state_of(stored)
        assert state is not None
        assert state.name == "phase.review"
    event = PLAN.event_of("ok")
    assert event is not None
    assert event.name == "approve"
    assert PLAN.state_of("phase") is None
    assert PLAN.event_of("nag") is None


def test_upcasters_are_chained_from_the_stored_version_on() -> None:
    ups = PLAN.upcasts
    one = {"customer_id": "c", "note": "a"}
    assert ups.data(dict(one), 1, "here") == {"customer": "c", "notes": ["a"]}
    assert ups.data({"customer": "c", "note": "a"}, 2, "here") == {"customer": "c", "notes": ["a"]}
    assert ups.data({"customer": "c"}, 3, "here") == {"customer": "c"}
    assert ups.payload("approve", b'"ada"', 1, "here") == b'{"by":"ada"}'
    assert ups.payload("approve", b'{"by":"ada"}', 2, "here") == b'{"by":"ada"}'
    assert ups.arguments("publish", b'{"ref":"x"}', 1, "here") == b'{"ref":"x","quiet":false}'
    assert [ups.changes_data(version) for version in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda u: u.data({}, 4, "thread 'x'"), "thread 'x': needs version >= 4 of Desk, and this code is 3"),
        (lambda u: u.data({}, 1, "thread 'x'"), "upcaster named (from version 1) raised KeyError"),
        (lambda u: u.arguments("publish", b"[1]", 1, "call"), "upcaster loud (from version 2) raised"),
        (lambda u: u.payload("approve", b"{", 1, "signal"), "signal: the stored bytes are damaged"),
    ],
)
def test_what_cannot_be_brought_over_is_unreadable(run: Callable[[Upcasts], Any], says: str) -> None:
    with pytest.raises(Unreadable) as raised:
        run(PLAN.upcasts)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "upcaster up (from version 1) returned NoneType, not a dict"),
        ({1: 2}, "returned dict, not a dict of plain values by name"),
        ({"n": float("nan")}, "field 'n', as its upcasters left it: no plain JSON value"),
        ({"n": {1, 2}}, "field 'n', as its upcasters left it: no plain JSON value"),
    ],
)
def test_what_an_upcaster_may_return(value: Any, says: str) -> None:
    class Bad(Machine[Brief], version=2):
        waiting = State(initial=True)
        done = State(final=True)
        go = waiting.to(done).on_signal()

        @upcast(from_version=1)
        def up(self, data: dict[str, Any]) -> dict[str, Any]:
            found: dict[str, Any] = value
            return found

    with pytest.raises(Unreadable) as raised:
        definition(Bad).upcasts.data({}, 1, "here")
    assert says in str(raised.value)


def test_below_the_oldest_version_nothing_is_read() -> None:
    class Window(Machine[Brief], version=3, oldest=2):
        waiting = State(initial=True)
        done = State(final=True)
        go = waiting.to(done).on_signal()

    plan = definition(Window)
    assert plan.oldest == 2
    plan.upcasts.check(2, "here")
    with pytest.raises(Unreadable, match=r"version 1 of Window wrote it, .* reads from version 2 on"):
        plan.upcasts.check(1, "here")


def made(keywords: dict[str, Any] | None = None, **body: Any) -> type[Any]:
    waiting, done = State(initial=True), State(final=True)
    parts = {"waiting": waiting, "done": done, "go": waiting.to(done).on_signal(), **body}
    return new_class(
        "Made", (Machine[Brief],), {"version": 2, **(keywords or {})}, lambda ns: ns.update(parts)
    )


def step(**keywords: Any) -> Any:
    def fresh(self: Any, data: Any) -> Any:
        return data

    return upcast(**keywords)(fresh)


def two(first: dict[str, Any], last: dict[str, Any]) -> type[Any]:
    waiting, done = State(initial=True, **first), State(final=True, **last)
    return made(waiting=waiting, done=done, go=waiting.to(done).on_signal())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: made({"oldest": 3}), "oldest= takes the oldest version that this code still reads, 1 to 2"),
        (lambda: made({"oldest": 0}), "oldest= takes"),
        (lambda: made({"oldest": True}), "oldest= takes"),
        (lambda: made({"removed_events": "go"}), "removed_events= takes a tuple of names"),
        (lambda: made({"removed_events": ("go",)}), "removed_events= names 'go', which is a name of one"),
        (lambda: made({"removed_calls": (1,)}), "removed_calls= takes a tuple of names"),
        (
            lambda: made({"removed_calls": ("publish",), "calls": [publish]}),
            "removed_calls= names 'publish', which is a name of one of its calls",
        ),
        (
            lambda: two({"renamed": ("done",)}, {}),
            "'done', which it is said to have been named, is one of its states now",
        ),
        (lambda: two({"renamed": (1,)}, {}), "State(renamed=) takes the names that it had, as text"),
        (
            lambda: two({"renamed": "x"}, {"renamed": ["x"]}),
            "waiting and done are both said to have been named 'x'",
        ),
        (lambda: made(up=step(from_version=2)), "from_version= takes an older version, 1 to 1, not 2"),
        (lambda: made(up=step(from_version=0)), "from_version= takes an older version"),
        (lambda: made({"version": 1}, up=step(from_version=1)), "of which there is none: raise version="),
        (
            lambda: made({"version": 3, "oldest": 2}, up=step(from_version=1)),
            "nothing runs it: oldest=2 leaves what version 1 wrote unread",
        ),
        (
            lambda: made(a=step(from_version=1), b=step(from_version=1)),
            "a already brings the data on from version 1",
        ),
        (lambda: made(up=step(from_version=1, of=unlisted)), "effect unlisted is not one of its calls"),
        (lambda: made(up=step(from_version=1, of="go")), "of= takes a signal of the machine that has a"),
    ],
)
def test_faults(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        make()
    assert says in str(raised.value)


def test_a_signal_without_a_payload_has_nothing_to_bring_over() -> None:
    waiting, done = State(initial=True), State(final=True)
    go = waiting.to(done).on_signal()
    with pytest.raises(DefinitionError, match=r"Made\.up: of= takes a signal .* payload.*not 'go'"):
        made(waiting=waiting, done=done, go=go, up=step(from_version=1, of=go))


def test_an_event_s_older_names() -> None:
    waiting, done = State(initial=True), State(final=True)
    with pytest.raises(DefinitionError, match="stands behind all else"):
        waiting.to(done).renamed("old").on_signal()
    with pytest.raises(
        DefinitionError, match="'go', which it is said to have been named, is one of its events"
    ):
        made(
            waiting=waiting,
            done=done,
            go=waiting.to(done).on_signal(),
            on=waiting.to(done).on_signal().renamed("go"),
        )


def test_upcast_goes_over_a_plain_method() -> None:
    async def later(self: Any, data: Any) -> Any: ...

    for wrong in (later, 1):
        with pytest.raises(DefinitionError, match="directly over a plain method"):
            upcast(from_version=1)(wrong)  # type: ignore[type-var] # pyright: ignore[reportArgumentType]

    def alone(self: Any) -> Any: ...

    with pytest.raises(DefinitionError, match=r"an upcaster takes \(self, values\)"):
        made(up=upcast(from_version=1)(alone))  # type: ignore[type-var] # pyright: ignore[reportArgumentType]


def test_an_abstract_base_has_no_versions_and_gives_its_upcasters_on() -> None:
    with pytest.raises(DefinitionError, match="abstract, and the store never sees it"):

        class Base(Machine[Brief], abstract=True, oldest=2, version=2): ...

    class Shared(Machine[Brief], abstract=True):
        waiting = State(initial=True)
        done = State(final=True)
        go = waiting.to(done).on_signal()

        @upcast(from_version=1)
        def first(self, data: dict[str, Any]) -> dict[str, Any]:
            return {"customer": "base"}

    class Own(Shared, version=2):
        def first(self, data: dict[str, Any]) -> dict[str, Any]:
            return {"customer": "own"}

    assert definition(Own).upcasts.data({}, 1, "here") == {"customer": "own"}


def test_the_hash_tells_each_declaration() -> None:
    def renamed_event() -> type[Any]:
        waiting, done = State(initial=True), State(final=True)
        return made(waiting=waiting, done=done, go=waiting.to(done).on_signal().renamed("old"))

    def renamed_state() -> type[Any]:
        waiting, done = State(initial=True, renamed=("old",)), State(final=True)
        return made(waiting=waiting, done=done, go=waiting.to(done).on_signal())

    def with_payload() -> type[Any]:
        waiting, done = State(initial=True), State(final=True)
        return made(waiting=waiting, done=done, go=waiting.to(done).on_signal(Approval))

    machines = [
        made(),
        made({"oldest": 2}),
        made({"removed_events": ("x",)}),
        made({"removed_calls": ("x",)}),
        made(up=step(from_version=1)),
        renamed_event(),
        renamed_state(),
        with_payload(),
    ]
    hashes = {definition(machine).hash for machine in machines}
    assert len(hashes) == len(machines)
