"""Each store beside SQLite: ten transitions a thread, 1 KB of data, full history, everything durable.

    python -m benchmarks.stores [--runs 3] [--concurrency 1 10 100 1000] [--claims 1000 10000 100000]
                                [--no-artifacts] [--json FILE]

PostgreSQL is started for it, with every commit flushed to the disk, unless PERDURE_TEST_POSTGRES_URL names
one. Its floor is asyncpg alone, which writes the very rows that perdure wrote, in batches as large as the
concurrency. All take turns; figures are medians of the runs, ratios medians of the rounds' ratios.

Then what a claim of fifty threads costs among so many, and what artifacts take, in files and in S3: the
service is SeaweedFS on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from ._bucket import bucket_url
from ._claims import WAYS
from ._others import measure_artifacts, measure_claims
from ._postgres import durable_server, version
from ._rounds import Result, measure_stores
from ._show import show_artifacts, show_claims, show_stores


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stores",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--concurrency", type=int, nargs="*", default=[1, 10, 100, 1000])
    parser.add_argument("--claims", type=int, nargs="*", default=[1000, 10_000, 100_000], metavar="THREADS")
    parser.add_argument("--no-artifacts", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows: list[Result] = []
    loads = [os.getloadavg()[0]]
    with durable_server() as server:
        print(f"PostgreSQL {version(server)}; fsync, full_page_writes and synchronous_commit are on")
        if asked.concurrency:
            rows += measure_stores(server, asked.runs, asked.concurrency)
            show_stores(rows)
        if asked.claims:
            claims = measure_claims(server, asked.runs, asked.claims, list(WAYS))
            show_claims(claims)
            rows += claims
    if not asked.no_artifacts:
        with bucket_url() as url:
            artifacts = measure_artifacts(url, asked.runs)
        show_artifacts(artifacts)
        rows += artifacts
    loads.append(os.getloadavg()[0])
    print(f"load of the machine, before and after: {', '.join(f'{load:.1f}' for load in loads)}")
    if asked.json is not None:
        asked.json.write_text(json.dumps({"load": loads, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
