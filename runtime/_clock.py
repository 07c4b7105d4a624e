"""The store's clock, as well as this process knows it from the store's answers."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from attrs import frozen

from perdure.stores import Micros

FAR = 10**15
"""Microseconds by which no two clocks differ."""


@frozen
class Ahead:
    """By how much the store's clock may be ahead of this process's, as its answers bound it."""

    least: Micros = -FAR
    most: Micros = FAR

    @property
    def width(self) -> Micros:
        return self.most - self.least

    @property
    def middle(self) -> Micros:
        return (self.least + self.most) // 2

    def narrowed(self, least: Micros, most: Micros) -> Ahead:
        """With another answer: one that took long bounds little, and spoils nothing. Where the two disagree,
        a clock was set, and the newer one holds."""
        both = Ahead(max(self.least, least), min(self.most, most))
        return both if both.least <= both.most else Ahead(least, most)


class StoreClock:
    """Learns from every answer that brings the store's time; any thread may ask and tell it."""

    def __init__(self, here: Callable[[], Micros]) -> None:
        self.here = here
        """This process's own clock."""
        self._ahead = Ahead()
        self._telling = Lock()

    def now(self) -> Micros:
        """The store's clock, as well as it is known here."""
        return self.here() + self._ahead.middle

    @property
    def width(self) -> Micros:
        """How far apart the earliest and the latest time are that the store's clock may show."""
        return self._ahead.width

    def heard(self, at: Micros, *, sent: Micros) -> None:
        """The store's clock showed ``at`` between ``sent``, on this process's, and now."""
        with self._telling:
            self._ahead = self._ahead.narrowed(at - self.here(), at - sent)
