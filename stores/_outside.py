"""What is asked of a store outside of any thread: a memory write, and the end of what has had its time."""

from __future__ import annotations

from attrs import frozen

from ._records import Micros


@frozen(kw_only=True)
class Remember:
    """A memory key's next version, written outside of any thread."""

    id: str
    """Drawn by the caller, one for each write: the same id at the same key again is the same write."""
    workspace: str
    namespace: str
    key: str
    value: bytes | None
    """None: the key is deleted."""
    expected: int | None
    """The newest version that the writer knows (0: none). Another one refuses the write. None: whatever is
    there."""
    principal: str
    expires: Micros | None = None


@frozen(kw_only=True)
class Expire:
    """Which records have had their time, and how many of them one call takes."""

    at: Micros
    """Records whose ``expires`` is not after this."""
    limit: int
    """At most so many records."""
    dry_run: bool = False
    """Count them and leave them."""


@frozen(kw_only=True)
class Expired:
    """How many records of each kind had expired."""

    memory: int
    """Memory versions. The newest version of a key stays as a deletion, so that versions go on counting."""
    artifacts: int
    """Artifact records that no thread put."""
    keys: int
    """Explicit effect keys that have an outcome."""

    @property
    def total(self) -> int:
        """All of them; as many as the limit: there may be more."""
        return self.memory + self.artifacts + self.keys
