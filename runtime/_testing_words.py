"""What happens at a boundary, in words for people."""

from __future__ import annotations

import re
from typing import Any, Literal

from attrs import define, field

from ._journal import Body, Entry, decode_body

_KEY = re.compile(r"\{key ([^}]*)\}")


@define
class Words:
    """Names the writes of one run, and the calls whose keys it has seen."""

    calls: dict[str, str] = field(factory=dict[str, str])
    """The effect of each key."""
    _ids: dict[int, str] = field(factory=dict[int, str])

    def write(self, side: Literal["before", "after"], method: str, write: Any, answer: Any) -> str | None:
        """What a write to the store does; None for one that no thread's fate hangs on."""
        if method == "commit":
            return f"{side} {self._commit(decode_body(write.log.payload), write.log.kind)}"
        if method == "claim":  # a worker that looks and finds nothing is no place to die at
            return "after the worker claimed the thread" if answer is not None and answer.claims else None
        if method in ("start", "deliver", "upload", "remember", "release"):
            return f"{side} the store's {method}"
        return None

    def named(self, words: str) -> str:
        """With the effects of keys instead of the keys, where they are known."""
        return _KEY.sub(lambda key: self._effect(key[1]), words)

    def _effect(self, key: str) -> str:
        return f"`{self.calls[key]}`" if key in self.calls else f"a request with key {key}"

    def request(self, key: str) -> str:
        """A request in words: its key, and its effect where that is known."""
        return f"`{self.calls[key]}` with key {key}" if key in self.calls else self._effect(key)

    def _commit(self, body: Body, kind: str) -> str:
        said = [word for word in map(self._entry, body.entries) if word is not None]
        if body.event is not None:
            return f"the transition `{body.event}` ({body.source} -> {body.dest}) was committed"
        what = " and ".join(said) or {"park": "the parking"}.get(kind, "a record")
        return f"{what} {'was' if len(said) < 2 else 'were'} recorded"

    def _entry(self, entry: Entry) -> str | None:
        match entry["k"]:
            case "intent":
                self.calls[entry["key"]] = self._ids[entry["id"]] = entry["call"]
                return f"the intent of `{entry['call']}`"
            case "done" | "not_done":
                return f"the outcome of `{self._ids.get(entry['id'], '?')}`"
            case "read":
                return f"the answer of `{entry['call']}`"
            case "lookup":
                return f"the lookup of `{self._ids.get(entry['id'], '?')}`"
            case "artifact":
                return "an artifact"
            case "failed":
                return "a failed attempt"
            case "branch":
                return f"the branch `{entry['lane']}`"
            case _:
                return None
