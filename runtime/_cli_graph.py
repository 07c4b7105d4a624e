"""``perdure graph``: a machine drawn, with the way that a thread took through it."""

from __future__ import annotations

import shutil
import subprocess
from typing import Literal

from perdure.machines import Definition, diagram, dot

from ._cli_load import BadInput, address_of, load_runtime, machine_of
from ._cli_look import Place, place_of
from ._cli_options import run_async
from ._cli_text import Output
from ._look import find_thread, history
from ._reserved import RESERVED

Format = Literal["mermaid", "svg", "dot"]
Path = list[tuple[str, str, str]]
PATIENCE = 60
"""Seconds that Graphviz may take."""


def draw(
    out: Output, code: str, machine: str, thread_id: str | None, form: Format, workspace: str, url: str | None
) -> None:
    """Write the drawing; nothing is looked up where no thread is named."""
    plan = machine_of(load_runtime(code), machine)
    path: Path = []
    if thread_id is not None:
        path = run_async(_path(place_of(workspace, url, code), plan, thread_id))
    text = diagram(plan, path=path) if form == "mermaid" else dot(plan, path=path)
    if form == "svg":
        text = _svg(text)
    if out.as_json:
        taken = [{"from": source, "event": event, "to": dest} for source, event, dest in path]
        out.json({"machine": plan.name, "thread": thread_id, "format": form, "path": taken, "text": text})
    else:
        out.verbatim(text)


async def _path(place: Place, plan: Definition, thread_id: str) -> Path:
    address = address_of(place.workspace, thread_id)
    async with place.store as store:
        row = await find_thread(store, address)
        if row.machine != plan.name:
            raise BadInput(f"thread {thread_id!r} is of machine {row.machine!r}, not {plan.name!r}")
        return [
            (step.state, step.event, step.dest)
            async for step in history(store, row)
            if step.state and step.event is not None and step.dest and step.event not in RESERVED
        ]


def _svg(text: str) -> str:
    program = shutil.which("dot")
    if program is None:
        raise BadInput(
            "there is no `dot` here, which draws SVG: install the package graphviz (apt install graphviz, "
            "brew install graphviz), or take --format mermaid or --format dot"
        )
    try:
        drawn = subprocess.run(
            [program, "-Tsvg"], input=text.encode(), capture_output=True, timeout=PATIENCE, check=True
        )
    except subprocess.TimeoutExpired:
        raise BadInput(f"`dot` takes more than {PATIENCE} s: take --format mermaid") from None
    except subprocess.CalledProcessError as error:
        said = bytes(error.stderr).decode(errors="replace").strip().partition("\n")[0]
        raise BadInput(f"`dot` cannot draw it ({said or error.returncode}): take --format mermaid") from None
    return drawn.stdout.decode(errors="replace")
