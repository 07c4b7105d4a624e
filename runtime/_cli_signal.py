"""``perdure signal``: a person's or a script's word for a thread, checked against what its machine takes."""

from __future__ import annotations

import secrets
from typing import Any

from perdure.artifacts import open_artifacts
from perdure.machines import Definition, Unreadable
from perdure.stores import Address, Signal, Store, ThreadRow

from ._cli_load import BadInput, address_of, parse
from ._cli_look import Place
from ._cli_operate import answered, known_machine
from ._cli_text import Output
from ._client import Client
from ._client_start import refuse_reserved
from ._env import Env
from ._errors import SignalRefused
from ._keys import digest
from ._look import find_thread
from ._schemas import checked, schemas_of


async def send_signal(
    out: Output, place: Place, thread_id: str, name: str, data: str | None, id: str | None
) -> None:
    """Put a signal into the thread's inbox, once by its id, which is drawn where none is given."""
    address = address_of(place.workspace, thread_id)
    given = f"signal-{secrets.token_hex(8)}" if id is None else id
    async with place.store as store:
        client = Client(store, open_artifacts("memory:"), Env(), place.definitions, None)
        row = await find_thread(store, address)
        again = f"send it again with --id {given}: it counts once"
        if place.code is None:
            signal = await _by_record(store, row, name, data, given)
            with answered(f"whether signal {name} reached thread {thread_id!r}", again):
                await client.deliver(signal)
        else:
            plan = known_machine(place, row)
            payload = payload_of(plan, name, data, "--data")
            with answered(f"whether signal {name} reached thread {thread_id!r}", again):
                await client.send(plan, address, name, payload, given)
    if out.as_json:
        said = {"thread": thread_id, "workspace": place.workspace, "signal": name}
        out.json({**said, "id": given, "drawn": id is None})
        return
    drawn = ", drawn at random: to send this very signal again, give that id" if id is None else ""
    out.line(f"signal {name} is in the inbox of thread {thread_id!r} with id {given}{drawn}")


async def _by_record(store: Store, row: ThreadRow, name: str, data: str | None, id: str) -> Signal:
    """A signal by what the workers of the thread's version have recorded that it takes."""
    address: Address = row.address
    refuse_reserved(address, id)
    standing, said = row.standing, f"version {row.standing.version} of {row.machine}"
    schemas = await schemas_of(store, row.machine, standing.version, standing.definition)
    if schemas is None:
        raise BadInput(f"no worker has recorded what {said} takes: name the code with --runtime MODULE:NAME")
    where = f"thread {address.thread_id!r}: signal {id!r}"
    payload = None if data is None else bytes(parse(data, "--data"))
    encoded = checked(schemas, name, payload, where, said)
    return Signal(
        address=address,
        id=id,
        event=name,
        payload=encoded,
        digest=digest(name, encoded),
        version=standing.version,
    )


def payload_of(plan: Definition, name: str, data: str | None, option: str) -> Any:
    """The payload of its declared type; the client refuses a signal that the machine does not have."""
    event = plan.events.get(name)
    if event is None or event.kind != "signal":
        return None
    if event.payload is None:
        if data is not None:
            raise BadInput(f"{option}: {plan.name}.{name} takes no payload: leave it away")
        return None
    where = f"{option}: {plan.name}.{name}"
    if data is None:
        kind = getattr(event.payload.type, "__name__", event.payload.type)
        raise BadInput(f"{where} takes a payload of type {kind}: give its fields as a JSON object")
    try:
        return event.payload.decode(bytes(parse(data, option)), where)
    except Unreadable as error:
        raise SignalRefused(str(error)) from None
