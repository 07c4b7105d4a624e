"""What an artifact was made from, as far as a step's own record tells.

A put names as its sources what its lane and the lanes around it had used by then: artifacts that were opened,
or whose ids stand in the arguments or answers of calls or in memory that was read, and the calls and memory
versions themselves. The names are the same in every attempt, since nothing of a process is in them:

- ``art_...``: an artifact;
- ``read:CALL@SEQ/LANE/N``: the N-th call of a read in that lane of that visit, counted from 0 in the order
  in which they were made;
- ``effect:CALL@KEY``: an effect, with the key that its receiver was given;
- ``memory:NAMESPACE/KEY@VERSION``: a fact;
- ``more``: there were others before, which are not kept.

Calls are those of the artifact's own thread. A name too long for a store is cut, and ends in ``~`` and a
digest of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from perdure.stores import MAX_ID, MAX_SOURCES

from ._keys import digest

MORE = "more"

_ID = re.compile(rb'"(art_[0-9a-f]{32})"')


def ids_in(encoded: bytes) -> tuple[str, ...]:
    """The ids of artifacts among the strings of a JSON value, in order, each once."""
    return tuple(dict.fromkeys(found.decode() for found in _ID.findall(encoded)))


class Trail:
    """What each lane of one attempt has used so far; of each lane the newest ``MAX_SOURCES`` names."""

    # Written out: one is made for each attempt, and attrs calls a factory for every field.
    def __init__(self, seq: int) -> None:
        self.seq = seq
        self._used: dict[str, dict[str, None]] = {}
        self._cut: set[str] = set()
        """Lanes whose first names are gone."""
        self._reads: dict[tuple[str, str], int] = {}

    def name_read(self, lane: str, call: str) -> str:
        """The name of a read that is registered now."""
        n = self._reads.get((lane, call), 0)
        self._reads[lane, call] = n + 1
        return f"read:{call}@{self.seq}/{lane}/{n}"

    def use(self, lane: str, names: Iterable[str]) -> None:
        """The lane has used these, after whatever it used before."""
        used = self._used.setdefault(lane, {})
        for name in names:
            short = _fitting(name)
            used.pop(short, None)
            used[short] = None
        while len(used) > MAX_SOURCES:
            del used[next(iter(used))]
            self._cut.add(lane)

    def sources(self, lane: str, by_hand: Sequence[str], made: str) -> tuple[str, ...]:
        """What an artifact that is put in this lane now was made from: what was named by hand, then what was
        used, by its last use, oldest first. Past ``MAX_SOURCES`` the oldest give way to ``more``."""
        named = tuple(dict.fromkeys(by_hand))
        used = dict.fromkeys(name for at in _around(lane) for name in self._used.get(at, ()))
        found = [name for name in used if name not in named and name != made]
        room = MAX_SOURCES - len(named)
        if len(found) <= room and not any(at in self._cut for at in _around(lane)):
            return (*named, *found)
        newest = found[-(room - 1) :] if room > 1 else []
        return (*named, *newest, MORE)[:MAX_SOURCES]


def _around(lane: str) -> Iterator[str]:
    """The lanes around this one, outermost first, and itself."""
    parts = lane.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts) + 1))


def _fitting(name: str) -> str:
    encoded = name.encode()
    if len(encoded) <= MAX_ID:
        return name
    kept = encoded[: MAX_ID - 40].decode(errors="ignore")
    return f"{kept}~{digest(name).hex()}"
