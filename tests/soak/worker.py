"""One worker of the soak, until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal

from soak.desk import runtime


async def main() -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with runtime:
        await stopped.wait()


logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
asyncio.run(main())
