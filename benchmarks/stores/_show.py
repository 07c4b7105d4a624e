"""The tables that a person reads."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

COLUMNS: dict[str, tuple[str, str]] = {
    "per_second": ("steps/s", ",.0f"),
    "beside_sqlite": ("/SQLite", ".2f"),
    "beside_floor": ("/asyncpg", ".2f"),
    "p50_ms": ("p50 ms", ",.1f"),
    "p99_ms": ("p99 ms", ",.1f"),
    "cpu_per_thousand": ("CPU s/1000", ".2f"),
    "server_cpu_per_thousand": ("server's", ".2f"),
    "bytes": ("bytes", ",.0f"),
    "transactions": ("commits", ".3f"),
    "fsyncs": ("fsyncs", ".3f"),
}
"""A figure's heading and format."""


def show(
    title: str, names: tuple[str, ...], columns: dict[str, tuple[str, str]], rows: list[dict[str, Any]]
) -> None:
    """One row each; a figure that a row has not got is left empty."""
    table = Table(title=title, box=SIMPLE_HEAD)
    for name in names:
        table.add_column(name.replace("_", " "))
    for heading, _ in columns.values():
        table.add_column(heading, justify="right")
    for row in rows:
        values = ((row.get(name), form) for name, (_, form) in columns.items())
        cells = ("" if value is None else format(value, form) for value, form in values)
        table.add_row(*(str(row[name]) for name in names), *cells)
    Console(width=120).print(table)


def show_stores(rows: list[dict[str, Any]]) -> None:
    """Transitions on each store."""
    title = "ten transitions a thread, 1 KB changed in each, full history, each durable before the next"
    show(title, ("at_once", "store"), COLUMNS, rows)


def show_claims(rows: list[dict[str, Any]]) -> None:
    """A claim of fifty, among so many."""
    stores = ("SQLite", "PostgreSQL")
    columns = {
        f"{store} {name}": (f"{store} {name}", ",.1f") for store in stores for name in ("claim", "longest")
    }
    show("a claim of fifty threads, ms", ("threads", "so_many"), columns, rows)


def show_artifacts(rows: list[dict[str, Any]]) -> None:
    """One blob, or one of many at once."""
    columns = {
        "put": ("put 1 KB", ",.1f"),
        "put_together": ("ten at once", ",.1f"),
        "open": ("open 1 KB", ",.1f"),
        "put_large": ("put 64 MB", ",.0f"),
        "open_large": ("open 64 MB", ",.0f"),
    }
    show("artifacts, ms", ("backend",), columns, rows)
