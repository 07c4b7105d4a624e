"""The tables that a person reads."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

COLUMNS = (
    "at once",
    "steps/s",
    "raw/s",
    "ratio",
    "group/s",
    "ratio",
    "CPU s/1000",
    "bytes",
    "fsyncs",
    "p50",
    "p99",
    "p50/raw",
)

UNITS = {
    "memory": (1e-6, " MB"),
    "cpu": (100, " % of a core"),
    "cpu_empty": (100, " % of a core"),
    "cpu_per_thousand": (1, " s"),
}
"""Of a figure: what to multiply it with, and what it is then. Others are known by how their names end."""
ENDINGS = {
    "_per_second": (1, " /s"),
    "_per_step": (1, ""),
    "_ratio": (1, " times"),
    "bytes": (1, " bytes"),
    "": (1000, " ms"),
}


def show(rows: list[dict[str, Any]]) -> None:
    """Transitions beside the limits, a row for each concurrency."""
    table = _table("ten transitions a thread, 1 KB changed in each, full history, synchronous=FULL", COLUMNS)
    for row in rows:
        syncs = row["fsyncs_per_transition"]
        table.add_row(
            f"{row['concurrency']}{row['options']}",
            f"{row['transitions_per_second']:,.0f}",
            f"{row['raw_per_second']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['group_per_second']:,.0f}",
            f"{row['group_ratio']:.2f}",
            f"{row['cpu_per_thousand']:.3f}",
            f"{row['bytes_per_transition']:,.0f}",
            "no strace" if syncs is None else f"{syncs:.3f}",
            f"{row['thread_p50_ms']:.1f} ms",
            f"{row['thread_p99_ms']:.1f} ms",
            "" if row["p50_ratio"] is None else f"{row['p50_ratio']:.2f}",
        )
    Console(width=120).print(table)


def show_figures(title: str, rows: list[dict[str, Any]]) -> None:
    """One figure a line."""
    table = _table(title, ("measure", "size", "figure", "value"))
    for row in rows:
        figures = {name: value for name, value in row.items() if name not in ("measure", "size")}
        for number, (name, value) in enumerate(figures.items()):
            first = ("", "") if number else (row["measure"], f"{row['size']:,}")
            table.add_row(*first, name, _said(name, value))
    Console(width=120).print(table)


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _said(name: str, value: float) -> str:
    ending = next(end for end in ENDINGS if name.endswith(end))
    factor, unit = UNITS.get(name, ENDINGS[ending])
    return f"{value * factor:,.{0 if value * factor >= 1000 else 2}f}{unit}"
