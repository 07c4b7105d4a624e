"""``perdure show``: one thread as it stands, with or without the code."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import msgspec
from attrs import frozen

from perdure.machines import Definition, TimeoutPlan
from perdure.stores import InboxRow, Messages, Micros, Store, ThreadRow

from ._cli_load import address_of
from ._cli_look import Place, row_json, status_words
from ._cli_text import STATUS_STYLES, Output, Styled, short
from ._context import moment
from ._env import Env
from ._incoming import LATE
from ._look import find_thread, late_words, named_signals, pending_signals, rows_left
from ._progress import owned_values
from ._spilled import is_spilled, words_of_lost
from ._stored_data import stored_data

KINDS = {
    "fire": "by its handler",
    "failure": "on failure",
    "cancel": "on a cancel",
    "budget": "on a limit",
    "choice": "a model may choose it",
}
"""Of the kinds of events, those that their names do not tell."""
MOST_MESSAGES = 10_000
"""Messages of a conversation that are counted at most."""


@frozen(kw_only=True)
class Talk:
    """What a thread sees of its session's conversation."""

    messages: int
    more: bool
    """There are more than were counted."""
    last: Any
    """The last one's JSON, of those that were counted."""


async def show(out: Output, place: Place, thread_id: str) -> None:
    """State, data as stored, and, where the code is known, the events that may come next."""
    address = address_of(place.workspace, thread_id)
    async with place.store as store:
        row = await find_thread(store, address)
        data = await stored_data(store, row)
        inbox = await pending_signals(store, address)
        talk = await _talk(store, row)
    plan = place.definitions.get(row.machine)
    events = None if plan is None else _events(plan, row.standing.state)
    owned = None if plan is None else _owned(plan, row)
    if out.as_json:
        said = None if talk is None else {"messages": talk.messages, "more": talk.more, "last": talk.last}
        seen = {"owned": owned, "conversation": said, "events": events, "inbox": _signals_json(inbox)}
        out.json({**row_json(row), "data": data, **seen})
        return
    standing = row.standing
    out.line(Styled("thread    ", "dim"), thread_id)
    out.line(Styled("machine   ", "dim"), f"{row.machine}, version {standing.version}")
    out.line(Styled("state     ", "dim"), standing.state, ", seq ", standing.seq)
    out.line(Styled("status    ", "dim"), Styled(status_words(row), STATUS_STYLES[standing.status]))
    if standing.wake is not None:
        out.line(Styled("due       ", "dim"), _due(standing.wake, Env().now()))
    if standing.note:
        out.line(Styled("note      ", "dim"), standing.note)
    out.line(Styled("session   ", "dim"), row.session, Styled(", principal ", "dim"), row.principal)
    out.line(Styled("events    ", "dim"), _events_line(place, row, events))
    if inbox:
        out.line(Styled("inbox     ", "dim"), named_signals(inbox))
    if owned:
        out.line(Styled("owned     ", "dim"), ", ".join(f"{k}={v!r}" for k, v in owned.items()))
    if talk is not None:
        out.line(Styled("talk      ", "dim"), _talk_line(talk))
    out.line(Styled("data", "dim"))
    out.pretty(data)


def _owned(plan: Definition, row: ThreadRow) -> dict[str, object]:
    """Fields that only the runtime writes, and that are not stored."""
    values = owned_values(row.address.thread_id, row.standing.seq)
    return {name: values[field.owned] for name, field in plan.data.fields.items() if field.owned is not None}


async def _talk(store: Store, row: ThreadRow) -> Talk | None:
    query = Messages(
        workspace=row.address.workspace,
        session=row.session,
        since=row.session_since,
        incarnation=row.incarnation,
    )
    count, last = 0, b"null"
    async for message in rows_left(store, query, row.address.workspace):
        if count == MOST_MESSAGES:
            return Talk(messages=count, more=True, last=_message(last))
        count, last = count + 1, message.payload
    return Talk(messages=count, more=False, last=_message(last)) if count else None


def _message(payload: bytes) -> Any:
    if is_spilled(payload):
        return f"cannot be read: {words_of_lost(payload)}"
    try:
        return msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"cannot be read: {error}"


def _talk_line(talk: Talk) -> str:
    said: Any = talk.last
    message = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    if "role" in message and "content" in message:
        last = f"{message['role']}: {short(message['content'])}"
    else:
        last = short(talk.last)
    return f"{talk.messages}{' or more' if talk.more else ''} messages, the last {last}"


def _signals_json(inbox: Sequence[InboxRow]) -> list[dict[str, Any]]:
    return [{"id": row.id, "event": row.event, "at": moment(row.at)} for row in inbox]


def _events(plan: Definition, state: str) -> list[dict[str, Any]]:
    known = plan.state_of(state)
    if known is None:
        return []
    timers = {each.event: each for each in known.timeouts}
    return [
        {
            "event": event,
            "kind": plan.events[event].kind,
            "to": [row.dest for row in rows],
            "after": _seconds(timers.get(event)),
            "timer": f"{timers[event].kind} {timers[event].label}" if event in timers else None,
        }
        for event, rows in known.rows.items()
    ]


def _due(wake: Micros, now: Micros) -> str:
    late = f" ({late_words(now - wake)})" if now - wake > LATE else ""
    return f"{moment(wake):%Y-%m-%d %H:%M:%S}Z{late}"


def _kind(event: dict[str, Any]) -> str:
    return str(event["timer"] or KINDS.get(event["kind"], event["kind"]))


def _seconds(timer: TimeoutPlan | None) -> float | None:
    """A fixed delay."""
    given = None if timer is None else timer.given
    return given.total_seconds() if isinstance(given, timedelta) else None


def _events_line(place: Place, row: ThreadRow, events: list[dict[str, Any]] | None) -> str:
    if row.standing.status == "ended":
        return "none, it has ended"
    if events is None:
        known = "" if place.code is None else f", and {place.code} has no machine {row.machine!r}"
        return f"known with --runtime MODULE:NAME{known}"
    said = [f"{e['event']} -> {' or '.join(e['to'])} ({_kind(e)})" for e in events]
    return ", ".join(said) or "none"
