"""The step that a handler is given: one lane of one attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from random import Random
from typing import Any
from uuid import UUID

from perdure.machines import Choice, Declared, Fire, Refusal, ToolCall
from perdure.stores import check_name

from ._attempt import Attempt
from ._book import signature_of
from ._choices import choices, decide
from ._context import moment
from ._errors import CallMisuse
from ._progress import Progress
from ._step_artifacts import ArtifactsOfStep, follow
from ._step_memory import MemoryOfStep


class StepOfAttempt:
    """Implements ``perdure.machines.Step``."""

    def __init__(self, attempt: Attempt, lane: str, progress: Progress) -> None:
        self._attempt = attempt
        self._lane = lane
        self._progress = progress

    # Made when asked for: one that was kept would point back, and leave each step to the garbage collector.
    @property
    def memory(self) -> MemoryOfStep:
        return MemoryOfStep(self._attempt, self._lane, self.call)

    @property
    def artifacts(self) -> ArtifactsOfStep:
        return ArtifactsOfStep(self._attempt, self._lane)

    @property
    def thread_id(self) -> str:
        return self._attempt.visit.row.address.thread_id

    @property
    def seq(self) -> int:
        return self._attempt.visit.seq

    @property
    def attempt(self) -> int:
        return self._attempt.number

    def call(self, declared: Declared[Any, ..., Any], /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        call = self._attempt.register(self._lane, declared, args, kwargs)
        call.used = follow(self._attempt.trail, self._lane, call)
        return call

    def lane(self, name: str, /) -> StepOfAttempt:
        if not name or "/" in name:
            raise CallMisuse(
                f"{self._attempt.visit.where}: a lane's name is not empty and has no '/': {name!r}"
            )
        check_name(f"{self._attempt.visit.where}: the name of a lane", name)
        return StepOfAttempt(self._attempt, f"{self._lane}/{name}", self._progress)

    def now(self) -> Awaitable[datetime]:
        return self._drawn(
            "step.now",
            lambda: str(self._attempt.visit.env.now()).encode(),
            lambda stored: moment(int(stored)),
        )

    def uuid(self) -> Awaitable[UUID]:
        return self._drawn(
            "step.uuid",
            lambda: f'"{UUID(bytes=self._attempt.visit.env.token(16), version=4)}"'.encode(),
            lambda stored: UUID(stored.decode().strip('"')),
        )

    def random(self) -> Awaitable[float]:
        return self._drawn(
            "step.random",
            lambda: repr(Random(self._attempt.visit.env.token(16)).random()).encode(),
            lambda stored: float(stored),
        )

    def report(self, **progress: object) -> None:
        self._attempt.visit.report(progress)

    def choices(self) -> Sequence[Choice]:
        return choices(self._attempt.visit)

    def decide(self, call: ToolCall, /) -> Fire | Refusal:
        return decide(self._attempt.visit, self._progress, call)

    def patch_from_model(self, answer: Mapping[str, Any], /) -> dict[str, Any]:
        return self._attempt.visit.definition.data.patch(answer)

    def patch_schema(self) -> dict[str, Any]:
        return self._attempt.visit.definition.data.patch_schema()

    def _drawn(self, call: str, draw: Callable[[], bytes], decode: Callable[[bytes], Any]) -> Awaitable[Any]:
        async def perform() -> tuple[bytes, Any]:
            stored = draw()
            return stored, decode(stored)

        return self._attempt.register_plain(
            signature_of(self._lane, call, b"[]"), label=call, kept=False, perform=perform, decode=decode
        )
