"""``perdure start``: a thread for whichever worker has room, and nothing is run here."""

from __future__ import annotations

import secrets
from typing import Any

from attrs import frozen

from perdure.machines import Signal, SignalMessage

from ._cli_load import BadInput
from ._cli_operate import answered
from ._cli_run import Run
from ._cli_signal import payload_of
from ._cli_text import Output


@frozen(kw_only=True)
class With:
    """What the thread is to begin with, beside its data."""

    priority: int
    signal: str | None
    payload: str | None
    id: str | None


async def start(out: Output, asked: Run, url: str | None, given: With) -> None:
    """Start the thread, once by its id, and leave it to the workers."""
    plan, address = asked.plan, asked.address
    messages = _messages(asked, given)
    runtime = asked.runtime.with_store(url or asked.runtime.store)
    again = f"start it again with --thread {address.thread_id}" + "".join(
        f" and --id {message.id}" for message in messages
    )
    async with runtime.client() as client:
        with answered(f"whether thread {address.thread_id!r} started", f"{again}: it starts once"):
            thread = await client.start(
                plan.machine,
                asked.data,
                thread_id=address.thread_id,
                workspace=address.workspace,
                priority=given.priority,
                signals=messages,
            )
        row = await thread.row()
    if out.as_json:
        said = {"thread": address.thread_id, "workspace": address.workspace, "machine": plan.name}
        out.json({**said, "signals": [message.id for message in messages], "state": row.standing.state})
        return
    brought = "".join(f", with signal {message.name} (id {message.id}) in its inbox" for message in messages)
    out.line(f"thread {address.thread_id!r} of {plan.name} is in the store{brought}: a worker runs it")


def _messages(asked: Run, given: With) -> list[SignalMessage[Any]]:
    if given.signal is None:
        if given.payload is not None or given.id is not None:
            raise BadInput("--payload and --id go with --signal: say which signal is meant")
        return []
    drawn = f"signal-{secrets.token_hex(8)}" if given.id is None else given.id
    payload = payload_of(asked.plan, given.signal, given.payload, "--payload")
    signal = Signal[Any, Any](machine=asked.plan.machine, name=given.signal)
    return [signal.message(payload, id=drawn)]
