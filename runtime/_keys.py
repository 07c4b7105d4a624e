"""Digests that name things: effect keys, artifact ids, what a thread was started with."""

from __future__ import annotations

from hashlib import blake2b


def digest(*parts: bytes | str | int, size: int = 16) -> bytes:
    """A digest of parts that no other split of the same bytes shares."""
    h = blake2b(digest_size=size)
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        h.update(len(raw).to_bytes(8, "big"))
        h.update(raw)
    return h.digest()


def derived_key(
    incarnation: bytes, seq: int, lane: str, effect: str, arguments: bytes, occurrence: int
) -> str:
    """The key of one logical action: the same in every attempt, worker, process and hash seed."""
    return "pd_" + digest("effect", incarnation, seq, lane, effect, arguments, occurrence).hex()


def explicit_key(workspace: str, effect: str, key: str) -> str:
    """The key that receivers see for an explicit key: one over all threads of a workspace."""
    return "pk_" + digest("key", workspace, effect, key).hex()


def artifact_id(
    incarnation: bytes, seq: int, lane: str, sha256: str, media_type: str, occurrence: int
) -> str:
    """The id of one put of one blob: the same when the step puts it again."""
    return "art_" + digest("artifact", incarnation, seq, lane, sha256, media_type, occurrence).hex()
