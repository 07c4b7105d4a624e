"""The object storage that the examples use: what it logs, what it remembers, and how its client fails."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from anyio.abc import SocketAttribute, SocketStream

from examples import _objects
from examples._objects import ObjectStorage, ObjectStorageError, Refused, Unreachable, object_storage

pytestmark = pytest.mark.anyio


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[ObjectStorage]:
    async with object_storage(tmp_path / "storage") as storage:
        yield storage


async def test_put_find_get(storage: ObjectStorage, tmp_path: Path) -> None:
    stored = await storage.put("cust_42/summary", b"a summary", key="key-1")
    assert (stored.name, stored.key, stored.size_bytes) == ("cust_42/summary", "key-1", 9)
    assert await storage.find("key-1") == stored
    assert await storage.get("cust_42/summary") == b"a summary"
    assert await storage.objects() == [stored]
    assert await storage.find("key-2") is None
    assert await storage.get("cust_43/summary") is None


async def test_every_arrival_is_logged_also_under_the_same_key(
    storage: ObjectStorage, tmp_path: Path
) -> None:
    for content in (b"one", b"one", b"two"):
        await storage.put("name", content, key="same")
    await storage.put("other", b"", key="another")
    arrivals = await storage.arrivals()
    assert [(each.number, each.name, each.key, each.size_bytes) for each in arrivals] == [
        (0, "name", "same", 3),
        (1, "name", "same", 3),
        (2, "name", "same", 3),
        (3, "other", "another", 0),
    ]
    assert await storage.get("name") == b"two"
    assert [each.name for each in await storage.objects()] == ["name", "other"]
    lines = (tmp_path / "storage" / "arrivals.jsonl").read_text().splitlines()
    assert [json.loads(line)["number"] for line in lines] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "text", ["a b/c?d#e%41", "../../etc/x", "naïve ☃ \U0001f980", "new\r\nline", "\x00", ".."]
)
async def test_odd_names_and_keys(text: str, storage: ObjectStorage, tmp_path: Path) -> None:
    stored = await storage.put(text, b"content", key=text)
    assert (stored.name, stored.key) == (text, text)
    assert await storage.find(text) == stored
    assert await storage.get(text) == b"content"
    assert os.listdir(tmp_path) == ["storage"]


async def test_what_it_refuses_does_not_arrive(storage: ObjectStorage) -> None:
    with pytest.raises(Refused, match="Idempotency-Key is missing"):
        await storage.put("name", b"content", key="")
    for name in ("", "x" * 1001):
        with pytest.raises(Refused, match="a name has 1 to 1000 characters"):
            await storage.put(name, b"content", key="key")
    assert await storage.arrivals() == []


async def test_many_at_once(storage: ObjectStorage) -> None:
    async def put(n: int) -> None:
        await storage.put(f"name-{n % 5}", b"%d" % n, key=f"key-{n}")

    async with anyio.create_task_group() as tasks:
        for n in range(40):
            tasks.start_soon(put, n)
    arrivals = await storage.arrivals()
    assert sorted(each.key for each in arrivals) == sorted(f"key-{n}" for n in range(40))
    assert [each.number for each in arrivals] == list(range(40))
    assert len(await storage.objects()) == 5


async def test_all_is_there_after_it_was_killed(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    command = [
        sys.executable,
        "-m",
        "examples._objects",
        "--dir",
        str(tmp_path),
        "--port-file",
        str(port_file),
    ]
    root = Path(_objects.__file__).parents[1]
    child = await anyio.open_process(command, cwd=root, stderr=None)
    assert child.stdout is not None
    async with child:
        said = await child.stdout.receive()
        port = int(port_file.read_text())
        assert said == b"listening on 127.0.0.1:%d\n" % port
        await ObjectStorage(port).put("name", b"content", key="key")
        child.send_signal(signal.SIGKILL)
    for name in ("arrivals.jsonl", "stored.jsonl"):
        log = tmp_path / name
        log.write_bytes(log.read_bytes() + b'{"number": 1, "na')
    async with object_storage(tmp_path) as storage:
        assert await storage.get("name") == b"content"
        await storage.put("other", b"more", key="key-2")
    async with object_storage(tmp_path) as storage:
        assert [each.key for each in await storage.arrivals()] == ["key", "key-2"]


async def test_head(storage: ObjectStorage) -> None:
    await storage.put("name", b"content", key="key")
    for name, status in (("name", b"200"), ("none", b"404")):
        async with await anyio.connect_tcp("127.0.0.1", storage.port) as stream:
            await stream.send(b"HEAD /objects/%s HTTP/1.1\r\nConnection: close\r\n\r\n" % name.encode())
            reply = b"".join([chunk async for chunk in stream])
        assert reply.split(b" ")[1] == status
        assert reply.endswith(b"\r\n\r\n")


async def test_nobody_listens(storage: ObjectStorage) -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(SocketAttribute.local_port)
    with pytest.raises(Unreachable, match=f"port {port}: PUT '/objects/name': no connection; is it running"):
        await ObjectStorage(port).put("name", b"content", key="key")


@pytest.mark.parametrize(
    "reply",
    [b"", b"HTTP/1.1 201 Created\r\n", b"HTTP/1.1 201 Created\r\nContent-Length: 50\r\n\r\n{}", b"hello"],
)
async def test_a_reply_that_breaks_off(reply: bytes) -> None:
    async def serve(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(reply)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        storage = ObjectStorage(listener.extra(SocketAttribute.local_port))
        with pytest.raises(ObjectStorageError, match="broke"):
            await storage.put("name", b"content", key="key")
        tasks.cancel_scope.cancel()


async def test_one_that_cannot_start_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ObjectStorageError, match="did not start"):
        async with object_storage(tmp_path / "file"):
            pass
    said = capfd.readouterr().err
    assert f"cannot serve {tmp_path / 'file'} on port 0" in said
    assert "Traceback" not in said


async def test_it_ends_with_who_started_it(tmp_path: Path) -> None:
    def run() -> int:
        command = [sys.executable, _objects.__file__, "--dir", str(tmp_path), "--until-stdin-closes"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert child.stdin is not None
        child.stdin.close()
        return child.wait(10)

    assert await to_thread.run_sync(run) == 0
    assert "arrivals.jsonl" in os.listdir(tmp_path)
