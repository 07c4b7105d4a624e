"""PgBouncer in transaction mode before a PostgreSQL server, on a free loopback port.

It is in no wheel: the one that is installed is taken, or else Debian's package is unpacked beside the Python
that runs this, for which nobody has to be root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from .postgres import PATIENCE, as_plain_user, free_port, owner

PACKAGES = ("pgbouncer", "libc-ares2", "libevent-2.1-7")
CONFIG = """\
[databases]
* = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 500
server_tls_sslmode = disable
server_login_retry = 1
"""
CONNECTIONS = 4
"""Fewer than a store has: each of them serves several of its own."""


@contextlib.contextmanager
def pgbouncer(server: int) -> Iterator[str]:
    """The URL of a pooler before the PostgreSQL of this port; it keeps no prepared statements."""
    program, variables = _program()
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="perdure-pgbouncer-") as folder:
        config, log = Path(folder, "pgbouncer.ini"), Path(folder, "log")
        config.write_text(CONFIG.format(server=server, port=port, connections=CONNECTIONS))
        shutil.chown(folder, *owner())
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*as_plain_user(), str(program), "--quiet", str(config)],
                env={**os.environ, **variables},
                stdout=output,
                stderr=output,
            )
        try:
            deadline = time.monotonic() + PATIENCE
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PgBouncer did not start: {log.read_text()[-2000:]}")
                time.sleep(0.02)
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres?statement_cache_size=0"
        finally:
            process.kill()
            process.wait(PATIENCE)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _program() -> tuple[Path, Mapping[str, str]]:
    """The program, and what its environment needs."""
    installed = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if installed is not None:
        return Path(installed), {}
    folder = Path(sys.prefix, "pgbouncer")
    if not folder.is_dir():
        _unpack(folder)
    [program] = folder.glob("usr/sbin/pgbouncer")
    libraries = {str(found.parent) for found in folder.glob("usr/lib/**/*.so*")}
    return program, {"LD_LIBRARY_PATH": ":".join(sorted(libraries))}


def _unpack(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        try:
            subprocess.run(
                ["apt-get", "-q", "download", *PACKAGES], cwd=made, check=True, capture_output=True
            )
            for package in Path(made).glob("*.deb"):
                subprocess.run(["dpkg", "-x", str(package), f"{made}/all"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise RuntimeError("there is no PgBouncer to test with: install pgbouncer") from error
        Path(made, "all").chmod(0o755)
        with contextlib.suppress(OSError):  # another process was here first
            Path(made, "all").rename(folder)
