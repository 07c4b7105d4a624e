"""PostgreSQL's own limit: the rows that perdure wrote, written again by asyncpg alone, in batches as large.

python -m benchmarks.stores._floor URL SCHEMA COPY BATCH

A batch is one statement over arrays, on one connection: standings are updated where their fence holds, and
log rows written for those.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import asyncpg

from benchmarks._raw import Row, rounds_of
from perdure.stores import open_store

LOG = {
    "thread": "BIGINT",
    "n": "BIGINT",
    "seq": "BIGINT",
    "epoch": "BIGINT",
    "kind": "BIGINT",
    "at": "BIGINT",
    "head": "BYTEA",
    "salt": "BYTEA",
    "payload": "BYTEA",
    "schema": "BIGINT",
}
NAMES = ", ".join(LOG)
ARRAYS = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(LOG.values(), 1))
LAND = f"""WITH given AS MATERIALIZED (SELECT * FROM unnest({ARRAYS}) AS g ({NAMES})),
    fenced AS (
        UPDATE {{copy}}.standing s SET state = 'writing', seq = g.seq, status = 0, base = 0, n = s.n + 1
        FROM given g WHERE s.id = g.thread AND s.n = g.n AND s.epoch = 1 RETURNING s.id)
    INSERT INTO {{copy}}.log ({NAMES}) SELECT {", ".join(f"g.{name}" for name in LOG)}
        FROM given g JOIN fenced f ON f.id = g.thread"""


async def prepared(connection: asyncpg.Connection[Any], url: str, schema: str, copy: str) -> list[list[Row]]:
    """Make a schema whose threads are at their beginning; the log rows of each, still to be written."""
    async with open_store(f"{url}?schema={copy}"):
        pass
    await connection.execute(f"INSERT INTO {copy}.standing SELECT * FROM {schema}.standing")
    await connection.execute(
        f"UPDATE {copy}.standing SET n = 0, seq = 0, epoch = 1, status = 0, owner = 'bench'"
    )
    await connection.execute(f"VACUUM ANALYZE {copy}.standing")
    by_thread: dict[int, list[Row]] = {}
    for row in await connection.fetch(f"SELECT {NAMES} FROM {schema}.log ORDER BY thread, n"):
        by_thread.setdefault(row["thread"], []).append(tuple(row))
    return list(by_thread.values())


async def measure(url: str, schema: str, copy: str, batch: int) -> dict[str, Any]:
    """Seconds for all rows, and how many they were."""
    connection = await asyncpg.connect(url)
    rounds = rounds_of(await prepared(connection, url, schema, copy), batch)
    land = await connection.prepare(LAND.format(copy=copy))
    began, cpu = time.perf_counter(), time.process_time()
    for rows in rounds:
        await _land(land, rows)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    await connection.close()
    return {"seconds": seconds, "cpu": cpu, "rows": sum(map(len, rounds))}


async def _land(land: Any, rows: Sequence[Row]) -> None:
    await land.fetch(*zip(*rows, strict=True))
    if land.get_statusmsg() != f"INSERT 0 {len(rows)}":
        raise RuntimeError(f"not all of {len(rows)} rows landed: {land.get_statusmsg()}")


def main() -> None:
    url, schema, copy, batch = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    print(json.dumps(asyncio.run(measure(url, schema, copy, batch))))


if __name__ == "__main__":
    main()
