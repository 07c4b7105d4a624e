"""What a claim brings, once it is known which threads are claimed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, TypeVar

from ._records import Claim, ClaimRequest, Micros
from ._sql_rows import INBOX, ITEMS, LOG, NEWEST, THREAD, read_inbox, read_items, read_log, read_thread
from ._sql_steps import Dialect, Row, Steps
from ._sql_writes import INBOX_LIMIT

T = TypeVar("T")

# Steps from one owner to the next through the index, so that a worker's many threads cost one step.
OWNERS = """WITH RECURSIVE owners (id) AS (
        SELECT min(owner) FROM standing WHERE owner IS NOT NULL
        UNION ALL
        SELECT (SELECT min(s.owner) FROM standing s WHERE s.owner > owners.id)
        FROM owners WHERE owners.id IS NOT NULL)
    SELECT o.id, w.beat, w.lease, w.ended FROM owners o LEFT JOIN worker w ON w.id = o.id
    WHERE o.id IS NOT NULL"""

THREADS_OF = f"""SELECT s.id, {THREAD} FROM {{numbers}} {{join}} standing s ON s.id = j.value
    {{join}} thread t ON t.id = s.id {{join}} {NEWEST}"""
LOG_OF = f"""SELECT l.thread, {LOG} FROM {{numbers}} {{join}} standing s ON s.id = j.value
    {{join}} log l ON l.thread = s.id AND l.n >= s.base
    WHERE l.kind IN (0, 1) OR l.seq = s.seq"""
# A base is a checkpoint, where a visit begins; only where it is another row do rows of the visit lie before.
EARLIER_OF = f"""SELECT l.thread, {LOG} FROM {{numbers}} {{join}} standing s ON s.id = j.value
    {{join}} log b ON b.thread = s.id AND b.n = s.base AND b.seq = s.seq AND b.kind NOT IN (0, 1)
    {{join}} log l ON l.thread = s.id AND l.n < s.base WHERE l.seq = s.seq"""
ITEMS_OF = f"""SELECT i.thread, {ITEMS} FROM {{numbers}} {{join}} standing s ON s.id = j.value
    {{join}} items i ON i.thread = s.id AND i.n >= s.items"""
# The first entry beyond the limit is found by the index, so a long inbox costs no more than a short one.
INBOX_OF = f"""SELECT i.thread, {INBOX} FROM {{numbers}} {{join}} inbox i ON i.thread = j.value
    WHERE i.consumed IS NULL AND i.number < coalesce((
        SELECT x.number FROM inbox x WHERE x.thread = j.value AND x.consumed IS NULL
        ORDER BY x.number LIMIT 1 OFFSET {INBOX_LIMIT}), 9223372036854775807)"""


def owners(request: ClaimRequest, now: Micros) -> Steps[tuple[dict[str, bool], list[str]]]:
    """Those that are dead, with whether they ended in good order, and those that live."""
    dead: dict[str, bool] = {}
    living: list[str] = []
    for owner, beat, lease, ended in (yield OWNERS, ()):
        silent = beat is None or now - beat > lease
        if owner != request.worker and (silent or ended is not None or owner in request.dead):
            dead[owner] = ended is not None
        else:
            living.append(owner)
    return dead, living


def load(
    numbers: Sequence[int], listed: Any, taken_from: Mapping[int, str | None], dialect: Dialect
) -> Steps[dict[int, Claim]]:
    """Claims by the threads' numbers; ``listed`` is the numbers as the database takes a list of them."""
    damaged: set[int] = set()
    threads, earlier, logs, items, inboxes = _statements(dialect)
    thread_of = _by_thread((yield threads, (listed,)), 0, read_thread, damaged)
    earlier_of = _by_thread((yield earlier, (listed,)), 2, read_log, damaged)
    log_of = _by_thread((yield logs, (listed,)), 2, read_log, damaged)
    items_of = _by_thread((yield items, (listed,)), 1, read_items, damaged)
    inbox_of = _by_thread((yield inboxes, (listed,)), 1, read_inbox, damaged)
    return {
        number: Claim(
            thread=thread_of[number][0],
            log=(*earlier_of.get(number, ()), *log_of.get(number, ())),
            items=tuple(items_of.get(number, ())),
            inbox=tuple(inbox_of.get(number, ())),
            taken_from=taken_from[number],
        )
        for number in numbers
        # Else rows that no store wrote, or none where one must be: the other threads go on.
        if number in thread_of and number not in damaged
    }


@cache
def _statements(dialect: Dialect) -> Sequence[str]:
    words = {"numbers": dialect.numbers, "join": dialect.join}
    return [text.format(**words) for text in (THREADS_OF, EARLIER_OF, LOG_OF, ITEMS_OF, INBOX_OF)]


def _by_thread(
    rows: Sequence[Row], position: int, read: Callable[[Row], T], damaged: set[int]
) -> dict[int, list[T]]:
    """Rows by thread, each thread's ordered by one column. To sort them here spares the database copying
    them."""
    found: dict[int, list[T]] = {}
    for row in sorted(rows, key=itemgetter(0, position)):
        try:
            found.setdefault(row[0], []).append(read(row[1:]))
        except (LookupError, TypeError, ValueError):
            damaged.add(row[0])
    return found
