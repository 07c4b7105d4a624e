"""The workload on LangGraph: a graph whose node follows itself, checkpointed before each next step."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any, TypedDict

import aiosqlite
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from ._workload import BODY, STEPS, arguments, body, checked, drive, durable, finish, on_disk


class Page(TypedDict):
    number: int
    body: str


async def write(page: Page) -> Page:
    return {"number": page["number"] + 1, "body": body(page["number"])}


def following(page: Page) -> str:
    return END if page["number"] == STEPS else "write"


def compiled(saver: AsyncSqliteSaver) -> Any:
    graph = StateGraph(Page)
    graph.add_node("write", write)
    graph.add_edge(START, "write")
    graph.add_conditional_edges("write", following, ["write", END])
    return graph.compile(checkpointer=saver)


async def measure(path: Path, threads: int, concurrency: int) -> tuple[dict[str, Any], str]:
    """All threads share one saver, as its connection is the file's one writer."""
    async with aiosqlite.connect(path) as connection:
        await connection.execute("PRAGMA journal_mode = WAL")
        await connection.execute("PRAGMA synchronous = FULL")
        saver = AsyncSqliteSaver(connection)
        await saver.setup()
        graph = compiled(saver)

        async def one(number: int) -> None:
            config = {"configurable": {"thread_id": f"thread-{number}"}}
            page = await graph.ainvoke({"number": 0, "body": ""}, config, durability="sync")
            checked(number, page["number"])

        result = await drive(one, threads, concurrency)
        journal = await (await connection.execute("PRAGMA journal_mode")).fetchone()
        synchronous = await (await connection.execute("PRAGMA synchronous")).fetchone()
    return result, durable(journal[0], synchronous[0])


def recorded(path: Path) -> int:
    """Checkpoints on disk that a step left: the two that a thread begins with hold no body."""
    query = "SELECT count(*) FROM checkpoints WHERE length(checkpoint) > ?"
    [count] = sqlite3.connect(path).execute(query, (BODY,)).fetchone()
    return int(count)


def main() -> None:
    folder, threads, concurrency = arguments()
    path = folder / "langgraph.db"
    result, settings = asyncio.run(measure(path, threads, concurrency))
    result["bytes"] = on_disk(folder)
    settings = f'{settings}; AsyncSqliteSaver, durability="sync"'
    finish(result, recorded(path), settings)


if __name__ == "__main__":
    main()
