"""A second service that speaks S3 and DynamoDB: moto's server, which also encrypts by name, but checks no
signatures."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

from .postgres import free_port

PATIENCE = 60.0
"""Seconds that the server has to come up."""


@contextlib.contextmanager
def moto() -> Iterator[str]:
    """The endpoint of a new, empty service."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("moto's server did not start: make test-stores installs it")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(PATIENCE)


def _answers(port: int) -> bool:
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5) as answer,
    ):
        return bool(answer.status == 200)
    return False
