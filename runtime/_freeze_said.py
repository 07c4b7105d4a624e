"""What ``perdure freeze`` does and says, and ``perdure check --frozen``."""

from __future__ import annotations

from pathlib import Path

from ._check_store import Report
from ._cli_load import BadInput, load_runtime, store_at
from ._cli_options import run_async
from ._cli_text import Output, Styled, counted
from ._freeze import Written, check_folder, freeze


def freeze_into(out: Output, code: str, url: str | None, folder: Path, each: int) -> None:
    """Write the files and name them."""
    runtime = load_runtime(code)
    store = store_at(url, runtime, read_only=True)
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"--out {str(folder)!r} is a file: name a folder")
    folder.mkdir(parents=True, exist_ok=True)

    async def work() -> Written:
        async with store as opened:
            return await freeze(opened, runtime.definitions, folder, each)

    tell_written(out, run_async(work()), folder)


def tell_written(out: Output, written: Written, folder: Path) -> None:
    """Which files were written, and what to do before they are committed."""
    if out.as_json:
        skipped = list(written.skipped)
        out.json({"files": list(written.files), "threads": written.threads, "skipped": skipped})
        return
    for name, shape in written.files.items():
        status = f"parked ({shape.reason})" if shape.status == "parked" else shape.status
        what = ", ".join([status, *(f"{event} pending" for event in shape.pending), *shape.calls])
        state = f"{shape.machine} version {shape.version}, state {shape.state}"
        out.line(Styled(str(folder / name), "bold"), f"  {state}: {what}")
    for line in written.skipped:
        out.line(Styled("left out ", "yellow"), line)
    out.line(f"{counted(len(written.files), 'file')}, from {counted(written.threads, 'thread')}")
    if written.files:
        out.line(
            "They hold real data: before you commit them, look at `payload` (the data, its items, calls with "
            "arguments and answers, signals), at `messages`, and at the names in `thread`"
        )


def look_at_folder(code: str, folder: Path) -> Report:
    """Look at frozen checkpoints under the code that is named."""
    runtime = load_runtime(code)
    if not folder.is_dir():
        raise BadInput(f"--frozen {str(folder)!r} is no folder: `perdure freeze` makes one")
    return check_folder(runtime.definitions, folder)
