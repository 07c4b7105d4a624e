"""The DynamoDB that the tests run on is there for this machine alone, and goes with those who started it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

HELD = """
from servers.dynamodb import dynamodb
with dynamodb() as endpoint:
    print(endpoint, flush=True)
    input()
"""


def test_it_is_reached_on_loopback_and_goes_when_its_starter_is_killed() -> None:
    tests = Path(__file__).parents[1]
    starter = subprocess.Popen(
        [sys.executable, "-c", HELD], cwd=tests, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with starter:
        assert starter.stdout is not None
        endpoint = starter.stdout.readline().strip()
        try:
            assert endpoint.startswith("http://127.0.0.1:")
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(endpoint)
            (relay,) = children(starter.pid)
            (server,) = children(relay)
            assert namespace(server) == namespace(relay) != namespace(os.getpid())
            ends = os.pidfd_open(server)
        finally:
            starter.send_signal(signal.SIGKILL)
    select.select([ends], [], [])
    os.close(ends)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")
