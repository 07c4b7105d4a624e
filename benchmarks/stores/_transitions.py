"""The workload of ``benchmarks._ours`` on any store.

python -m benchmarks.stores._transitions URL THREADS CONCURRENCY
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from benchmarks._ours import Ten, run_threads, runtime_of
from perdure.runtime._garbage import spare_collector


async def measure(url: str, threads: int, concurrency: int) -> dict[str, Any]:
    """Seconds: of all threads, of CPU, and of one thread."""
    async with runtime_of(Ten, url, concurrency) as runtime:
        return await run_threads(runtime, Ten, threads, concurrency)


def main() -> None:
    url, threads, concurrency = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    spare_collector()  # as `perdure serve` does
    print(json.dumps(asyncio.run(measure(url, threads, concurrency))))


if __name__ == "__main__":
    main()
