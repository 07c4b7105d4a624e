"""Artifacts as one attempt sees them: staged, recorded as pending, then visible."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence

from perdure.artifacts import ArtifactBackend, Staged
from perdure.machines import ArtifactRef, NotStorable
from perdure.stores import MAX_SOURCES, ArtifactRow, check_name

from ._attempt import Attempt
from ._errors import CallMisuse
from ._journal import Entry
from ._keys import artifact_id
from ._open_calls import OpenCall, OpenEffect, OpenRead
from ._provenance import Trail, ids_in


class ArtifactsOfStep:
    """``step.artifacts``."""

    def __init__(self, attempt: Attempt, lane: str) -> None:
        self._attempt = attempt
        self._lane = lane

    async def put(
        self,
        data: bytes | AsyncIterable[bytes],
        /,
        *,
        media_type: str,
        derived_from: Sequence[ArtifactRef] = (),
    ) -> ArtifactRef:
        visit = self._attempt.visit
        check_name(f"{visit.where}: media type of an artifact", media_type)
        by_hand = self._by_hand(derived_from)
        workspace = visit.row.address.workspace
        async with await visit.artifacts.put(workspace, chunks_of(data)) as staged:
            ref = self._ref(staged, media_type)
            self._attempt.check_open()
            if ref.id not in visit.book.artifacts:
                writing = asyncio.get_running_loop().create_task(self._record(ref, by_hand))
                self._attempt.background.add(writing)
                await asyncio.shield(writing)
            await staged.publish()
            self._attempt.artifact_ids.add(ref.id)  # the transition drops one that never became visible
        return ref

    def open(self, ref: ArtifactRef, /) -> AsyncIterator[bytes]:
        self._attempt.trail.use(self._lane, (ref.id,))
        return self._attempt.visit.artifacts.open(self._attempt.visit.row.address.workspace, ref.sha256)

    async def get(self, ref: ArtifactRef, /) -> bytes:
        self._attempt.trail.use(self._lane, (ref.id,))
        return await read_all(self._attempt.visit.artifacts, self._attempt.visit.row.address.workspace, ref)

    def _by_hand(self, refs: Sequence[ArtifactRef]) -> tuple[str, ...]:
        named = tuple(dict.fromkeys(ref.id for ref in refs))
        if len(named) > MAX_SOURCES:
            raise CallMisuse(
                f"{self._attempt.visit.where}: derived_from= names {len(named)} artifacts: at most "
                f"{MAX_SOURCES} are kept; put what they have in common as an artifact, and name that"
            )
        return named

    def _ref(self, staged: Staged, media_type: str) -> ArtifactRef:
        attempt, visit = self._attempt, self._attempt.visit
        same = (self._lane, staged.sha256, media_type)
        occurrence = attempt.artifact_counts.get(same, 0)
        attempt.artifact_counts[same] = occurrence + 1
        made = artifact_id(
            visit.row.incarnation, visit.seq, self._lane, staged.sha256, media_type, occurrence
        )
        return ArtifactRef(id=made, sha256=staged.sha256, media_type=media_type, size_bytes=staged.size_bytes)

    async def _record(self, ref: ArtifactRef, by_hand: Sequence[str]) -> None:
        visit = self._attempt.visit
        now = visit.env.now()
        row = ArtifactRow(
            id=ref.id,
            workspace=visit.row.address.workspace,
            sha256=ref.sha256,
            size_bytes=ref.size_bytes,
            media_type=ref.media_type,
            principal=visit.row.principal,
            thread_id=visit.row.address.thread_id,
            incarnation=visit.row.incarnation,
            seq=visit.seq,
            derived_from=self._attempt.trail.sources(self._lane, by_hand, ref.id),
            created=now,
        )
        entry: Entry = {
            "k": "artifact",
            "id": ref.id,
            "lane": self._lane,
            "sha256": ref.sha256,
            "media_type": ref.media_type,
            "size_bytes": ref.size_bytes,
            "at": now,
        }
        await visit.ledger.record([entry], artifacts=(row,))
        visit.book.apply(entry)


def follow(trail: Trail, lane: str, call: OpenCall) -> Callable[[bytes], None]:
    """What tells the trail of a call's answer, with the artifacts in it and in what it was asked."""
    _, name, arguments = call.signature
    read = trail.name_read(lane, name) if isinstance(call, OpenRead) else None

    def used(answer: bytes) -> None:
        record = call.record if isinstance(call, OpenEffect) else None
        source = read if record is None else f"effect:{record.call}@{record.key}"
        trail.use(lane, (*ids_in(arguments), *ids_in(answer), *([source] if source else [])))

    return used


async def chunks_of(data: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Bytes or a stream, as a stream."""
    if isinstance(data, bytes):
        yield data
        return
    if not isinstance(data, AsyncIterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise NotStorable(
            f"an artifact is bytes or an async iterable of bytes, not {type(data).__name__}: encode it"
        )
    async for chunk in data:
        yield chunk


async def read_all(artifacts: ArtifactBackend, workspace: str, ref: ArtifactRef) -> bytes:
    """All bytes of an artifact, verified against its digest."""
    return b"".join([chunk async for chunk in artifacts.open(workspace, ref.sha256)])
