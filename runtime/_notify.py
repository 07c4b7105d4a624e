"""Tells a service manager how the process stands, where it gave it a socket for that (``sd_notify``)."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

import anyio


class Notifier:
    """Sends datagrams to ``NOTIFY_SOCKET``; nothing where there is none."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        here = environ.get("WATCHDOG_PID") in (None, "", str(os.getpid()))
        wanted = environ.get("WATCHDOG_USEC", "") if here and self._address else ""
        self.watchdog = int(wanted) / 1e6 if wanted.isdecimal() else 0.0
        """Seconds after which the manager takes a silent process for dead; 0: it does not."""

    def send(self, *lines: str) -> None:
        """Tell what has changed. Who does not listen is not waited for."""
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.setblocking(False)
            to.sendto("\n".join(lines).encode(), self._address)

    async def keep(self) -> None:
        """Show that the event loop turns, twice as often as it has to."""
        while True:
            self.send("WATCHDOG=1")
            await anyio.sleep(self.watchdog / 2)
