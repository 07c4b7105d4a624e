"""Spans of time, sizes and moments as the command line takes and shows them, and where its artifacts lie."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from perdure.artifacts import ArtifactBackend, open_artifacts
from perdure.stores import Micros

from ._cli_load import BadInput
from ._context import moment
from ._runtime import Runtime

DEFAULT_ARTIFACTS = "file:artifacts"
LONGEST = timedelta(days=36500)

_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def span_of(text: str, option: str) -> timedelta:
    """``90s``, ``15m``, ``1h``, ``30d`` or ``2w`` as a span of time."""
    found = _SPAN.fullmatch(text)
    if found is None:
        raise BadInput(f"{option}: {text!r} is no span of time: write it as in 90s, 15m, 1h, 30d or 2w")
    span = timedelta(**{_UNITS[found[2]]: float(found[1])})
    if span > LONGEST:
        raise BadInput(f"{option}: {text} is longer than a hundred years: leave it out for what never ends")
    return span


def size_text(size: float) -> str:
    """Bytes for people: ``812 bytes``, ``1.5 MB``."""
    if size < 1000:
        return f"{size:.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def time_text(at: Micros | None) -> str:
    """A moment to the second, UTC; empty for none."""
    return "" if at is None else f"{moment(at):%Y-%m-%d %H:%M:%S}Z"


def backend_at(url: str | None, runtime: Runtime[Any] | None, *, make: bool = False) -> ArtifactBackend:
    """The backend asked for, else the runtime's, else the default; a folder must be there unless ``make``."""
    given = url or (DEFAULT_ARTIFACTS if runtime is None else runtime.artifacts_at)
    if not isinstance(given, str):
        return given
    backend = open_artifacts(given)
    folder = unquote(given.removeprefix("file:").removeprefix("//")) if given.startswith("file:") else ""
    if folder and not make and not Path(folder).is_dir():
        raise BadInput(f"there are no artifacts at {folder!r}: name their folder with --artifacts file:PATH")
    return backend
