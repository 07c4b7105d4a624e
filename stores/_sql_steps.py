"""What stores in SQL databases share: work that is told as the statements it asks for.

``Steps`` yield a statement with its values and are sent the rows that it gave; who runs them has the driver.
So a rule is written once, and runs in SQLite's writer thread as well as on the event loop with PostgreSQL.

Statements are written as both databases read them: ``?`` stands for a value, a value whose type PostgreSQL
could not tell from its place stands in a ``CAST``, and what is left to be different is in a ``Dialect``.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from attrs import frozen

T = TypeVar("T")

Row = Sequence[Any]
Ask = tuple[str, Row]
"""A statement and its values."""
Steps = Generator[Ask, Sequence[Row], T]


@frozen(kw_only=True)
class Dialect:
    """Where a database has a word of its own."""

    join: str
    """Joins two tables; where the planner has to be told, in the order in which they are named."""
    index: str
    """Names the index to be used; empty where the planner finds it."""
    numbers: str
    """A table ``j`` whose column ``value`` has the numbers of a list, which is given as one value."""
    derived: str
    """Holds of an artifact that names a source; its values: workspace and source."""
    row: str
    """Names a row of any table."""
    lock: str
    """Ends a query whose rows are changed next, and leaves out what somebody else is changing."""


def first(rows: Sequence[Row]) -> Row | None:
    """The first row, where there is one."""
    return rows[0] if rows else None
