"""Frozen checkpoints in a project's tests: the code at hand goes on with each."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from ._check_said import causes_of
from ._freeze import check_folder
from ._runtime import Runtime


def assert_resumes(runtime: Runtime[Any], folder: str | PathLike[str], /) -> None:
    """Each checkpoint that ``perdure freeze`` wrote into the folder is one that the runtime's machines go on
    with: data, state, pending signals, timers, and the records of an unfinished visit.

    They are loaded as a claim would load them, and their guards and receivers are asked; no handler runs, and
    nothing is opened. ``AssertionError`` names the files, what does not fit, and the declaration that would
    mend it; ``Unreadable`` a file that is no checkpoint; ``ValueError`` where there are none.
    """
    report = check_folder(runtime.definitions, Path(folder))
    lines: list[str] = []
    for cause, sources in causes_of(report.stopped):
        if cause.fault:
            lines.append(f"{cause.said}\n  mend: {cause.mend}")
            lines += [f"  {source}" for source in sources]
    if lines:
        raise AssertionError("\n".join(lines))
