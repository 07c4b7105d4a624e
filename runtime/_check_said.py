"""What ``perdure check`` looks at and says: causes for people, threads for programs."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from attrs import asdict, frozen

from perdure.stores import Standing

from ._check import Checked
from ._check_store import Report, check_store, check_store_beside
from ._cli_load import BadInput, load_runtime, store_at
from ._cli_options import run_async
from ._cli_text import Output, Styled

NAMED = 10
"""Threads of one cause that are named in text."""


def look(code: str, url: str | None, sample: int | None, processes: int) -> Report:
    """Look at a store's threads under the code that is named."""
    runtime = load_runtime(code)
    store = store_at(url, runtime, read_only=True)
    if processes == 1:
        return run_async(check_store(store, runtime.definitions, sample=sample))
    place = url or runtime.store
    if not isinstance(place, str):
        raise BadInput("--processes needs a store that has a URL: name it with --store")
    # Started anew and not forked: this process may have threads.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return run_async(check_store_beside(store, place, code, pool, sample=sample))


@frozen(kw_only=True)
class Cause:
    """What several threads have in common."""

    machine: str
    version: int
    about: str
    what: str
    reason: str
    mend: str
    fault: bool

    @property
    def said(self) -> str:
        """What it is, in one line."""
        about = "" if self.about == "version" else f", {self.about} {self.what}"  # that one is said already
        return f"{self.machine} version {self.version}{about}: {self.reason}"


def tell(out: Output, report: Report) -> None:
    """What was found, by cause, and how many threads there are."""
    if out.as_json:
        out.json(_json(report))
        return
    for cause, threads in causes_of(report.found):
        sign = Styled("stops ", "red") if cause.fault else Styled("note  ", "yellow")
        out.line(sign, cause.said)
        out.line(f"      mend: {cause.mend}")
        for line in threads[:NAMED]:
            out.line(f"      {line}")
        if len(threads) > NAMED:
            out.line(f"      and {len(threads) - NAMED:,} more, which --json names")
    out.line(_summary(report))


def _order(found: tuple[Cause, list[str]]) -> tuple[Any, ...]:
    cause, threads = found
    return not cause.fault, cause.machine, cause.version, -len(threads)


def causes_of(found: Iterable[Checked]) -> list[tuple[Cause, list[str]]]:
    """Each cause with its threads in a line each: those that stop threads first."""
    causes: dict[Cause, list[str]] = {}
    for checked in found:
        row, standing = checked.thread, checked.thread.standing
        where = checked.source or f"{row.address.workspace}/{row.address.thread_id}"
        line = f"{where}  state {standing.state}, seq {standing.seq}, {_status(standing)}"
        for finding in checked.findings:
            cause = Cause(machine=row.machine, version=standing.version, **asdict(finding))
            causes.setdefault(cause, []).append(line)
    return sorted(causes.items(), key=_order)


def _status(standing: Standing) -> str:
    return f"parked ({standing.reason})" if standing.status == "parked" else standing.status


def _summary(report: Report) -> str:
    stopped = len(report.stopped)
    said = f"{report.looked_at:,} {'thread' if report.looked_at == 1 else 'threads'} looked at"
    if report.left_out:
        said += f" of {report.looked_at + report.left_out:,}"
    said += f": {report.looked_at - stopped:,} would go on, {stopped:,} would not"
    return f"{said}; {report.parked:,} parked already" if report.parked else said


def _json(report: Report) -> dict[str, Any]:
    stopped = len(report.stopped)
    return {
        "looked_at": report.looked_at,
        "left_out": report.left_out,
        "would_go_on": report.looked_at - stopped,
        "would_not": stopped,
        "parked": report.parked,
        "threads": [_thread(checked) for checked in report.found],
    }


def _thread(checked: Checked) -> dict[str, Any]:
    row, standing = checked.thread, checked.thread.standing
    file = {"file": checked.source} if checked.source else {}
    return {
        **file,
        "workspace": row.address.workspace,
        "thread": row.address.thread_id,
        "machine": row.machine,
        "version": standing.version,
        "state": standing.state,
        "seq": standing.seq,
        "status": standing.status,
        "parked": standing.reason if standing.status == "parked" else None,
        "would_go_on": checked.resumes,
        "findings": [asdict(finding) for finding in checked.findings],
    }
