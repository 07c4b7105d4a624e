"""Artifacts outside of a thread."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterable, AsyncIterator
from datetime import timedelta

from perdure.artifacts import ArtifactBackend
from perdure.machines import ArtifactRef
from perdure.stores import MAX_WORKSPACE, ArtifactRow, Store, check_name

from ._bounds import check_span
from ._context import micros
from ._env import Env
from ._reliable import until_known
from ._step_artifacts import chunks_of, read_all

DEFAULT_WORKSPACE = "default"
DEFAULT_PRINCIPAL = "owner"


class Uploads:
    """Artifacts outside a thread: what a customer uploads, say."""

    def __init__(self, store: Store, artifacts: ArtifactBackend, env: Env) -> None:
        self._store = store
        self._artifacts = artifacts
        self._env = env

    async def put(
        self,
        data: bytes | AsyncIterable[bytes],
        /,
        *,
        media_type: str,
        workspace: str = DEFAULT_WORKSPACE,
        principal: str = DEFAULT_PRINCIPAL,
        expires: timedelta | None = None,
    ) -> ArtifactRef:
        """Store bytes and record who put them; after ``expires`` the record no longer keeps the blob.
        ``ValueError`` where that is no span of time."""
        check_name("workspace", workspace, MAX_WORKSPACE)
        check_name("principal", principal)
        if expires is not None:
            check_span("expires=", expires, zero=True)
        now = self._env.now()
        async with await self._artifacts.put(workspace, chunks_of(data)) as staged:
            ref = ArtifactRef(
                id="art_" + self._env.token(16).hex(),
                sha256=staged.sha256,
                media_type=media_type,
                size_bytes=staged.size_bytes,
            )
            row = ArtifactRow(
                id=ref.id,
                workspace=workspace,
                sha256=ref.sha256,
                size_bytes=ref.size_bytes,
                media_type=media_type,
                principal=principal,
                thread_id=None,
                incarnation=None,
                seq=None,
                derived_from=(),
                created=now,
                expires=None if expires is None else now + micros(expires),
            )
            await until_known(lambda: self._store.upload(row))
            await staged.publish()
        return ref

    def open(self, ref: ArtifactRef, /, *, workspace: str = DEFAULT_WORKSPACE) -> AsyncIterator[bytes]:
        """The bytes in chunks, verified as they are read."""
        return self._artifacts.open(workspace, ref.sha256)

    async def get(self, ref: ArtifactRef, /, *, workspace: str = DEFAULT_WORKSPACE) -> builtins.bytes:
        """All the bytes, verified."""
        return await read_all(self._artifacts, workspace, ref)
