"""Where everything lies in a DynamoDB table: partition keys, sort keys and the indexes.

Parts of a key are parted by a control character, which no name may hold, and which sorts before all that a
name may hold. Numbers have 20 digits, so that they sort as texts.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence

from attrs import frozen

from ._dynamodb_asks import Key, Span
from ._limits import MAX_ID
from ._records import Address

PART = "\x1f"
BEHIND = "\x20"
"""Sorts behind ``PART`` and whatever follows it, and before any longer name."""
NEXT = "\x01"
"""Appended to a key it gives the first one behind it, since no key goes on with so little."""
SHARDS = 4
"""Over so many partitions lists are spread that would else be as busy as the whole table."""


@frozen(kw_only=True)
class Index:
    """A secondary index: the attributes that are its keys, and those that it holds besides the table's keys.
    Items without the keys are not in it."""

    pk: str
    sk: str
    holds: tuple[str, ...]


GROUPS, DUE, SUSPECTS = "groups", "due", "suspects"
INDEXES: Mapping[str, Index] = {
    GROUPS: Index(pk="gk", sk="gs", holds=("version", "crashes", "wake")),
    DUE: Index(pk="dk", sk="ds", holds=("version", "crashes", "priority")),
    SUSPECTS: Index(pk="xk", sk="xs", holds=("version", "owner", "status", "wake")),
}
"""By name."""
EXPIRES = "ttl"
"""The attribute with the second in which the service may delete an item by itself."""


def joined(*parts: str) -> str:
    return PART.join(parts)


def number(value: int) -> str:
    return f"{value + 2**63:020d}"


def parse_number(text: str) -> int:
    return int(text) - 2**63


def shard_of(*names: str) -> str:
    digest = hashlib.sha256(joined(*names).encode(errors="surrogatepass")).digest()
    return str(digest[0] % SHARDS)


def every_shard() -> Sequence[str]:
    return [str(shard) for shard in range(SHARDS)]


def below(pk: str, *parts: str, after: str | None = None, index: str | None = None) -> Span:
    """What goes on behind these parts in a partition; ``after``: what comes behind this key."""
    first = joined(*parts, "") if parts else None
    last = joined(*parts) + BEHIND if parts else None
    if after is not None:
        first = max(first or "", after + NEXT)
    return Span(pk=pk, first=first, last=last, index=index)


def span_until(pk: str, last: str, index: str | None = None) -> Span:
    """What comes before a key in a partition."""
    return Span(pk=pk, last=last, index=index)


def is_name(text: str) -> bool:
    """Something may be stored under it: else a filter finds nothing."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= MAX_ID and not any(unicodedata.category(character) == "Cc" for character in text)


def thread_pk(address: Address) -> str:
    return joined("thread", address.workspace, address.thread_id)


def standing_key(address: Address) -> Key:
    return Key(thread_pk(address), "standing")


def log_key(address: Address, n: int) -> Key:
    return Key(thread_pk(address), joined("log", number(n)))


def items_key(address: Address, n: int) -> Key:
    return Key(thread_pk(address), joined("items", number(n)))


def inbox_key(address: Address, count: int) -> Key:
    return Key(thread_pk(address), joined("inbox", number(count)))


def signal_key(address: Address, id_: str) -> Key:
    """Says which number the signal of this id may have."""
    return Key(thread_pk(address), joined("signal", id_))


def outbox_key(address: Address, seq: int, n: int) -> Key:
    return Key(thread_pk(address), joined("outbox", number(seq), number(n)))


def listed_pk(workspace: str, shard: str) -> str:
    """Lists the ids of a workspace's threads."""
    return joined("threads", workspace, shard)


def listed_key(address: Address) -> Key:
    return Key(listed_pk(address.workspace, shard_of(address.thread_id)), address.thread_id)


def workspace_key(workspace: str) -> Key:
    """Lists workspaces that have threads."""
    return Key("workspaces", workspace)


def machine_key(machine: str) -> Key:
    """Lists machines that have threads."""
    return Key("machines", machine)


def session_pk(workspace: str, session: str) -> str:
    return joined("session", workspace, session)


def count_key(workspace: str, session: str) -> Key:
    """Holds the number of the session's last message."""
    return Key(session_pk(workspace, session), "count")


def message_key(workspace: str, session: str, count: int) -> Key:
    return Key(session_pk(workspace, session), joined("message", number(count)))


def memory_pk(workspace: str, namespace: str, key: str) -> str:
    """Holds the versions of a memory key."""
    return joined("memory", workspace, namespace, key)


def version_key(workspace: str, namespace: str, key: str, version: int) -> Key:
    return Key(memory_pk(workspace, namespace, key), number(version))


def request_key(workspace: str, namespace: str, key: str, id_: str) -> Key:
    """Says which version the write of this id may have made."""
    return Key(joined("request", workspace, namespace, key, id_), "request")


def sessions_pk(workspace: str, shard: str) -> str:
    """Lists a workspace's sessions."""
    return joined("sessions", workspace, shard)


def session_key(workspace: str, session: str) -> Key:
    return Key(sessions_pk(workspace, shard_of(session)), session)


def effects_pk(workspace: str, shard: str) -> str:
    """Lists the effects of which a workspace has explicit keys."""
    return joined("effects", workspace, shard)


def listed_effect_key(workspace: str, effect: str) -> Key:
    return Key(effects_pk(workspace, shard_of(effect)), effect)


def facts_pk(workspace: str, shard: str) -> str:
    """Lists a workspace's memory keys."""
    return joined("facts", workspace, shard)


def fact_key(workspace: str, namespace: str, key: str) -> Key:
    return Key(facts_pk(workspace, shard_of(namespace, key)), joined(namespace, key))


def effect_key(workspace: str, effect: str, key: str) -> Key:
    """Holds an explicit key."""
    return Key(joined("key", workspace, effect, key), "key")


def keys_pk(workspace: str, effect: str, shard: str) -> str:
    """Lists the explicit keys of an effect."""
    return joined("keys", workspace, effect, shard)


def artifact_key(workspace: str, id_: str) -> Key:
    """Holds an artifact's record."""
    return Key(joined("artifact", workspace, id_), "artifact")


def artifacts_pk(workspace: str, by: str, text: str, shard: str) -> str:
    """Lists artifacts by what they have in common."""
    return joined("artifacts", workspace, by, text, shard)


def groups_pk(kind: str, machine: str, shard: str) -> str:
    return joined(kind, machine, shard)


def parked_pk(shard: str) -> str:
    return joined("parked", shard)


def due_pk(machine: str, shard: str) -> str:
    return joined("due", machine, shard)


def suspects_pk(machine: str) -> str:
    return joined("suspects", machine)


def expiry_pk(shard: str) -> str:
    """Lists what expires, by its moment."""
    return joined("expiry", shard)


def workers_pk(shard: str) -> str:
    return joined("workers", shard)


def worker_key(worker: str) -> Key:
    return Key(workers_pk(shard_of(worker)), worker)


def lease_pk(shard: str) -> str:
    """Orders workers, in the index of what is due, by the moment from which they count as dead."""
    return joined("lease", shard)


def left_pk(shard: str) -> str:
    """Orders workers that are dead and own nothing, in the same index, by their last beat."""
    return joined("left", shard)


def definition_key(machine: str, version: int, hash_: str) -> Key:
    return Key("definitions", joined(machine, number(version), hash_))


def share_pk(limit: str) -> str:
    return joined("share", limit)


def room_pk(machine: str) -> str:
    """Holds the gate of a limited machine, and whom it let in."""
    return joined("room", machine)
