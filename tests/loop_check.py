"""A check that library code never blocks the event loop, over blockbuster."""

import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType

from blockbuster import BlockBuster, BlockBusterFunction

import perdure

LIBRARY = tuple(perdure.__path__)
"""Where a blocking call is a fault. The same call made by a test or an example is its own affair."""

CALLERS = (*LIBRARY, str(Path(__file__).parent), str(Path(__file__).parents[1] / "examples"))
"""The nearest of these on the stack has made the call, through whatever libraries lie between."""

BLOCKING = ("builtins.open", "io.open", "os.fdatasync", "os.fsync", "os.open", "os.waitpid")
"""What blocks, beside the files, sockets, locks, sqlite3 and sleeps that blockbuster knows."""

HARMLESS = ("os.getcwd", "os.path.abspath", "os.path.samestat", "os.path.sameopenfile")
"""What blockbuster counts as blocking and no disk or peer can make slow."""

ALLOWED: dict[tuple[str, str], str] = {
    ("stores/_sqlite_writer.py", "_landed_here"): "whoever opens a store with commit=inline asks for it",
    ("<frozen importlib._bootstrap>", "_find_and_load"): "the first import of a module, once a process",
    ("aiobotocore/credentials.py", "load_credentials"): "the user's credentials file, once for a client",
    ("asyncpg/connect_utils.py", "_parse_connect_dsn_and_args"): "the user's password file, for a connection",
    ("linecache.py", "updatecache"): "the source lines of a traceback, cached",
    ("linecache.py", "checkcache"): "the source lines of a traceback, cached",
    ("logging/__init__.py", "handle"): "where log lines go is the user's choice; pytest keeps them in memory",
    ("runtime/_cli_text.py", "line"): "what the command line prints for a person",
    ("runtime/_cli_text.py", "json"): "what the command line prints for a program",
    ("machines/_source.py", "_parsed"): "the source of a machine's code, once, as its class is created",
    ("machines/_source.py", "strings_under"): "the source of a machine's class, once, as it is created",
}
"""Functions in which blocking is meant, as (end of the file's path, function), each with its reason."""


class Blocked:
    """Patches what may block for the whole session, and keeps each call that the library made on the loop.

    A call in a thread without a loop, or on a socket or file that does not block, is nothing to it. The call
    raises `BlockingError`; since library code may turn that into a failed call, the test fails as well.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self._patched = BlockBuster()
        functions = self._patched.functions
        functions.update({name: BlockBusterFunction(None, name) for name in BLOCKING})
        for name in HARMLESS:
            del functions[name]
        for name, function in functions.items():
            function.can_block_predicate = self._may_block(name, function.can_block_predicate)
            function.can_block_functions += [(file, [inside]) for file, inside in ALLOWED]

    def _may_block(self, name: str, harmless: Callable[..., bool]) -> Callable[..., bool]:
        allowed = self._patched.functions[name].can_block_functions

        def may_block(*args: object, **kwargs: object) -> bool:
            if harmless(*args, **kwargs):
                return True
            here = inspect.currentframe()
            caller = _library_caller(here and here.f_back, allowed)
            if caller is not None:
                stack = "".join(traceback.format_stack(caller, limit=3))
                self.found.append(f"{name} on the event loop, called from\n{stack}")
            return caller is None

        return may_block

    def __enter__(self) -> "Blocked":
        self._patched.activate()
        return self

    def __exit__(self, *_: object) -> None:
        self._patched.deactivate()


def _library_caller(
    frame: FrameType | None, allowed: Sequence[tuple[str, Iterable[str]]]
) -> FrameType | None:
    caller: FrameType | None = None
    while frame is not None:
        filename, function = frame.f_code.co_filename, frame.f_code.co_name
        if any(function in inside and filename.endswith(file) for file, inside in allowed):
            return None
        if caller is None and filename.startswith(CALLERS):
            if not filename.startswith(LIBRARY):
                return None
            caller = frame
        if function == "_run" and filename.endswith("asyncio/events.py"):
            break  # what lies below a callback of the loop runs the loop, it did not make the call
        frame = frame.f_back
    return caller
