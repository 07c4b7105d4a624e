"""The workload on Burr: an action that follows itself, its state saved after each run."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import aiosqlite
from burr.core import ApplicationBuilder, GraphBuilder, State, action, default
from burr.core.persistence import SQLitePersister
from burr.integrations.persisters.b_aiosqlite import AsyncSQLitePersister

from ._workload import BODY, STEPS, arguments, body, checked, drive, durable, finish, on_disk

FULL = "PRAGMA synchronous = FULL"


@action(reads=["number"], writes=["number", "body"])
def write(state: State) -> State:
    return state.update(number=state["number"] + 1, body=body(state["number"]))


@action(reads=["number"], writes=["number", "body"])
async def awrite(state: State) -> State:
    return state.update(number=state["number"] + 1, body=body(state["number"]))


def application(persister: Any, graph: Any, number: int) -> Any:
    return (
        ApplicationBuilder()
        .with_graph(graph)
        .with_identifiers(app_id=f"thread-{number}")
        .with_state(number=0, body="")
        .with_entrypoint("write")
        .with_state_persister(persister)
    )


def graph_of(write: Any) -> Any:
    return GraphBuilder().with_actions(write=write).with_transitions(("write", "write", default)).build()


def run_blocking(path: Path, threads: int) -> tuple[dict[str, Any], str]:
    """One thread after another, each commit in place: nothing is faster where nothing runs beside it."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(FULL)
    persister = SQLitePersister(str(path), connection=connection)
    persister.initialize()
    graph = graph_of(write)

    async def one(number: int) -> None:
        app = application(persister, graph, number).build()
        for _ in range(STEPS):
            app.step()
        checked(number, app.state["number"])

    result = asyncio.run(drive(one, threads, 1))
    journal = connection.execute("PRAGMA journal_mode").fetchone()
    synchronous = connection.execute("PRAGMA synchronous").fetchone()
    persister.cleanup()
    return result, f"{durable(journal[0], synchronous[0])}; SQLitePersister"


async def run_async(path: Path, threads: int, concurrency: int) -> tuple[dict[str, Any], str]:
    """Threads share a persister, so that one's commit takes along the rows that others have inserted."""
    async with aiosqlite.connect(path) as connection:
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute(FULL)
        persister = AsyncSQLitePersister(connection)
        await persister.initialize()
        graph = graph_of(awrite)

        async def one(number: int) -> None:
            app = await application(persister, graph, number).abuild()
            for _ in range(STEPS):
                await app.astep()
            checked(number, app.state["number"])

        result = await drive(one, threads, concurrency)
        journal = await (await connection.execute("PRAGMA journal_mode")).fetchone()
        synchronous = await (await connection.execute("PRAGMA synchronous")).fetchone()
    return result, f"{durable(journal[0], synchronous[0])}; AsyncSQLitePersister"


def recorded(path: Path) -> int:
    """States on disk that a step left."""
    query = "SELECT count(*) FROM burr_state WHERE status = 'completed' AND length(state) > ?"
    [count] = sqlite3.connect(path).execute(query, (BODY,)).fetchone()
    return int(count)


def main() -> None:
    folder, threads, concurrency = arguments()
    path = folder / "burr.db"
    if concurrency == 1:
        result, settings = run_blocking(path, threads)
    else:
        result, settings = asyncio.run(run_async(path, threads, concurrency))
    result["bytes"] = on_disk(folder)
    finish(result, recorded(path), settings)


if __name__ == "__main__":
    main()
