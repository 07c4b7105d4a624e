"""What the command line writes: lines for people, JSON for programs, nothing that a terminal would obey."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TextIO

from attrs import frozen

UNSAFE = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
"""Unicode categories that move the cursor, reorder a line or cannot be seen: always written as escapes."""

SHOWN_TEXT = 200
"""Characters of a value that are shown in a line."""


def _unsafe(char: str) -> bool:
    return not char.isprintable() and unicodedata.category(char) in UNSAFE


def safe(text: object) -> str:
    """Text on one line, in which every control, bidi and invisible character is an escape."""
    said = str(text)
    if said.isprintable():
        return said
    return "".join(_escape(char) if _unsafe(char) else char for char in said)


def _escape(char: str) -> str:
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char)
    if short is not None:
        return short
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def as_json(value: object, indent: int | None = None) -> str:
    """Valid JSON whose strings hold no character that a terminal would obey."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, default=_plain)
    return "".join(_json_escape(char) if char != "\n" and _unsafe(char) else char for char in text)


def counted(number: int, what: str) -> str:
    """``1 file`` or ``2 files``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def short(value: object) -> str:
    """A JSON value, cut where it is long."""
    text = as_json(value)
    cut = len(text) > SHOWN_TEXT
    return f"{text[:SHOWN_TEXT]}... ({len(text)} characters; --json has them all)" if cut else text


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _plain(value: object) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is no JSON")


@frozen
class Styled:
    """Text with a style of rich's."""

    text: object
    style: str


class Output:
    """Writes to the terminal with colours, and to everything else without."""

    def __init__(self, *, as_json: bool, stream: TextIO | None = None) -> None:
        from rich.console import Console  # put off, as all of rich: `--help` needs none of it

        self.as_json = as_json
        self.console = Console(
            file=stream or sys.stdout, markup=False, highlight=False, emoji=False, soft_wrap=True
        )

    def line(self, *parts: object) -> None:
        """One line; what a part is but ``Styled`` is shown as text."""
        from rich.text import Text

        line = Text()
        for part in parts:
            text, style = (part.text, part.style) if isinstance(part, Styled) else (part, "")
            line.append(safe(text), style)
        self.console.print(line)

    def json(self, value: object) -> None:
        """One JSON value on one line."""
        self.console.file.write(as_json(value) + "\n")

    def verbatim(self, text: str) -> None:
        """Text of several lines, each made safe."""
        for line in text.rstrip("\n").split("\n"):
            self.console.file.write(safe(line.replace("\t", "    ")) + "\n")

    def flush(self) -> None:
        """Hand what was written on at once, as whoever follows it waits for it."""
        self.console.file.flush()

    def pretty(self, value: object) -> None:
        """A JSON value for people, over several lines."""
        from rich.text import Text

        self.console.print(Text(as_json(value, indent=2)))

    def table(self, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Columns on a terminal; elsewhere one line a row, its cells parted by tabs."""
        cells = [[safe(cell) for cell in row] for row in rows]
        if not self.console.is_terminal:
            for row in [head, *cells]:
                self.console.file.write("\t".join(row) + "\n")
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in head:
            table.add_column(name, overflow="fold")
        for row in cells:
            table.add_row(*[Text(cell, _style(cell)) for cell in row])
        self.console.print(table, soft_wrap=False)


def _style(cell: str) -> str:
    status = cell.partition(" (")[0]
    return STATUS_STYLES.get(status, "")


STATUS_STYLES = {"ended": "green", "parked": "red", "running": "cyan", "waiting": "yellow"}
