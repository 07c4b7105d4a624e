"""A small object storage, as a process of its own on loopback, and its client.

It stands for whatever an agent changes in the world. Every PUT that arrives is logged, before anything else
and never deduplicated, so that the log shows how often something really happened. It remembers which key an
object was put with, and can be asked.

    python examples/_objects.py --dir DIR --port-file FILE

serves until it is terminated. GET lists ``/arrivals`` and ``/objects``, reads ``/objects/NAME`` and looks up
``/by-key/KEY``; PUT stores ``/objects/NAME`` and needs the header ``Idempotency-Key``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import PIPE
from typing import Any, cast
from urllib.parse import quote, unquote

import anyio
import attrs

LONGEST_NAME = 1000
LARGEST_OBJECT = 16 << 20


@attrs.frozen(kw_only=True)
class StoredObject:
    """What the storage knows of an object."""

    name: str
    key: str
    """The idempotency key of the PUT that made it."""
    sha256: str
    size_bytes: int


@attrs.frozen(kw_only=True)
class Arrival:
    """One PUT that reached the storage, whatever came of it."""

    number: int
    at: int
    """Microseconds since the Unix epoch."""
    name: str
    key: str
    sha256: str
    size_bytes: int


class ObjectStorageError(Exception):
    """A call failed; whether a PUT was done is not known."""


class Unreachable(ObjectStorageError):
    """No connection was made, so nothing arrived."""


class Refused(ObjectStorageError):
    """The storage says that it did nothing, and why."""


@attrs.frozen
class ObjectStorage:
    """Calls the storage that listens on a port of this machine."""

    port: int

    async def put(self, name: str, content: bytes, *, key: str) -> StoredObject:
        """Store an object under a name, over one that is there; what comes back is what was stored."""
        body = await self._call("PUT", f"/objects/{_escaped(name)}", content, key=key)
        return StoredObject(**json.loads(body or b"{}"))

    async def find(self, key: str) -> StoredObject | None:
        """The object that was put with this key, or None."""
        body = await self._call("GET", f"/by-key/{_escaped(key)}")
        return None if body is None else StoredObject(**json.loads(body))

    async def get(self, name: str) -> bytes | None:
        """An object's bytes, or None where there is none of that name."""
        return await self._call("GET", f"/objects/{_escaped(name)}")

    async def objects(self) -> list[StoredObject]:
        """All objects, by name."""
        body = await self._call("GET", "/objects")
        return [StoredObject(**each) for each in json.loads(body or b"[]")]

    async def arrivals(self) -> list[Arrival]:
        """Every PUT that arrived, in order."""
        body = await self._call("GET", "/arrivals")
        return [Arrival(**each) for each in json.loads(body or b"[]")]

    async def _call(self, method: str, path: str, body: bytes = b"", *, key: str = "") -> bytes | None:
        what = f"object storage on port {self.port}: {method} {unquote(path)[:200]!r}"
        try:
            stream = await anyio.connect_tcp("127.0.0.1", self.port)
        except OSError as error:
            raise Unreachable(f"{what}: no connection; is it running?") from error
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        head += f"Content-Length: {len(body)}\r\nIdempotency-Key: {_escaped(key)}\r\n\r\n"
        try:
            async with stream:
                await stream.send(head.encode() + body)
                reply = b"".join([chunk async for chunk in stream])
        except (OSError, anyio.BrokenResourceError) as error:
            raise ObjectStorageError(f"{what}: the connection broke") from error
        return _body_of(reply, what)


@asynccontextmanager
async def object_storage(folder: Path) -> AsyncGenerator[ObjectStorage]:
    """Run a storage that keeps what it gets in a folder; it ends with the context, and with this process."""
    command = [sys.executable, str(Path(__file__)), "--dir", str(folder), "--until-stdin-closes"]
    async with await anyio.open_process(command, stdin=PIPE, stdout=PIPE, stderr=None) as process:
        assert process.stdout is not None
        said = b""
        try:
            while b"\n" not in said:
                said += await process.stdout.receive()
            yield ObjectStorage(int(said.rpartition(b":")[2]))
        except anyio.EndOfStream:
            raise ObjectStorageError("the object storage did not start; see above for the reason") from None
        finally:
            with suppress(ProcessLookupError):  # it may have ended by itself
                process.terminate()


def _escaped(text: str) -> str:
    return quote(text, safe="")


def _body_of(reply: bytes, what: str) -> bytes | None:
    """The body of an HTTP reply, None for one that says that there is nothing."""
    head, _, body = reply.partition(b"\r\n\r\n")
    first, *fields = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    status = first.split(" ")[1] if first.startswith("HTTP/") else ""
    if not status.isdecimal() or headers.get("content-length") != str(len(body)):
        raise ObjectStorageError(f"{what}: the reply broke off")
    if status == "404":
        return None
    if status.startswith("4"):
        raise Refused(f"{what}: {status} {body.decode(errors='replace')}")
    if not status.startswith("2"):
        raise ObjectStorageError(f"{what}: {status} {body.decode(errors='replace')}")
    return body


class _Shelf:
    """Arrivals and objects in a folder, each durable before it is told; many threads may use it."""

    def __init__(self, folder: Path) -> None:
        self._contents = folder / "objects"
        self._contents.mkdir(parents=True, exist_ok=True)
        self._arrivals = _Log(folder / "arrivals.jsonl")
        self._stored = _Log(folder / "stored.jsonl")
        self._alone = threading.Lock()

    def put(self, name: str, key: str, content: bytes) -> dict[str, Any]:
        sha256 = hashlib.sha256(content).hexdigest()
        stored = {"name": name, "key": key, "sha256": sha256, "size_bytes": len(content)}
        with self._alone:
            number = len(self._arrivals.lines)
            self._arrivals.append({"number": number, "at": time.time_ns() // 1000, **stored})
            with open(self._contents / str(number), "wb") as file:
                file.write(content)
                os.fsync(file.fileno())
            self._stored.append({"number": number, **stored})
        return stored

    def arrivals(self) -> list[dict[str, Any]]:
        with self._alone:
            return list(self._arrivals.lines)

    def objects(self) -> dict[str, dict[str, Any]]:
        """What each name holds now, with the number of the arrival that made it."""
        with self._alone:
            newest = {line["name"]: line for line in self._stored.lines}
        return dict(sorted(newest.items()))

    def by_key(self, key: str) -> dict[str, Any] | None:
        with self._alone:
            return next((line for line in self._stored.lines if line["key"] == key), None)

    def content(self, number: int) -> bytes:
        return (self._contents / str(number)).read_bytes()


class _Log:
    """JSON lines in a file, each synced before the next; a line that a crash cut off is dropped."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a+b")  # noqa: SIM115 - open as long as the process
        self._file.seek(0)
        whole = self._file.read().rpartition(b"\n")
        self._file.truncate(len(whole[0]) + len(whole[1]))
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in whole[0].splitlines()]

    def append(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.lines.append(line)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, shelf: _Shelf) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.shelf = shelf


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30

    @property
    def _shelf(self) -> _Shelf:
        return cast("_Server", self.server).shelf

    def do_PUT(self) -> None:
        name = unquote(self.path.removeprefix("/objects/"))
        key = unquote(self.headers.get("Idempotency-Key", ""))
        length = self.headers.get("Content-Length", "")
        if not self.path.startswith("/objects/") or not 1 <= len(name) <= LONGEST_NAME:
            return self._refuse(400, f"a name has 1 to {LONGEST_NAME} characters and stands behind /objects/")
        if not key:
            return self._refuse(400, "the header Idempotency-Key is missing")
        if not length.isdecimal() or int(length) > LARGEST_OBJECT:
            return self._refuse(413, f"the length must be given, and be at most {LARGEST_OBJECT} bytes")
        content = self.rfile.read(int(length))
        if len(content) < int(length):
            return self._refuse(400, "the body broke off")
        return self._answer(201, self._shelf.put(name, key, content))

    def do_GET(self) -> None:
        kind, _, rest = self.path.removeprefix("/").partition("/")
        if (kind, rest) == ("arrivals", ""):
            self._answer(200, self._shelf.arrivals())
        elif (kind, rest) == ("objects", ""):
            self._answer(200, [_public(each) for each in self._shelf.objects().values()])
        elif kind == "objects" and (found := self._shelf.objects().get(unquote(rest))):
            self._send(200, self._shelf.content(found["number"]), "application/octet-stream")
        elif kind == "by-key" and (found := self._shelf.by_key(unquote(rest))):
            self._answer(200, _public(found))
        else:
            self._answer(404, {"error": f"nothing at {self.path[:200]}"})

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, status: int, value: object) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _refuse(self, status: int, why: str) -> None:
        self.close_connection = True  # its body may not have been read
        self._answer(status, {"error": why})

    def _send(self, status: int, body: bytes, media_type: str) -> None:
        self.send_response(HTTPStatus(status))
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The arrivals are the log."""


def _public(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "number"}


def _tell(port_file: Path, port: int) -> None:
    """Whole or not at all: whoever waits for the file reads a port as soon as it is there."""
    part = port_file.with_name(f"{port_file.name}.part")
    part.write_text(f"{port}\n")
    part.replace(port_file)


def main() -> None:
    parser = argparse.ArgumentParser(description="A small object storage on loopback.")
    parser.add_argument("--dir", type=Path, required=True, help="where objects and the log of arrivals go")
    parser.add_argument("--port", type=int, default=0, help="default: any that is free")
    parser.add_argument("--port-file", type=Path, help="written when it listens, with the port in it")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end with whoever started it")
    asked = parser.parse_args()
    try:
        server = _Server(asked.port, _Shelf(asked.dir))
    except (OSError, OverflowError) as error:
        parser.error(f"cannot serve {asked.dir} on port {asked.port}: {error}")

    def stop(*_: object) -> None:
        threading.Thread(target=server.shutdown).start()  # it waits for the loop that is interrupted here

    def stop_with_stdin() -> None:
        sys.stdin.buffer.read()
        server.shutdown()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if asked.until_stdin_closes:
        threading.Thread(target=stop_with_stdin, daemon=True).start()
    if asked.port_file:
        _tell(asked.port_file, server.server_port)
    sys.stdout.write(f"listening on 127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    with server:
        server.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main()
