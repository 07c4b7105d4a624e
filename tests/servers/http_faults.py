"""A proxy before an AWS service, which answers some calls in its place, or loses what it answers."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientSession, web
from attrs import define, field, frozen

PREFIX = "com.amazonaws.dynamodb.v20120810#"


@frozen(kw_only=True)
class Fault:
    """What becomes of one call: it is passed on or not, and answered, or cut off, or never answered."""

    passed_on: bool = False
    status: int | None = None
    """None: no answer."""
    body: Mapping[str, Any] = field(factory=dict[str, Any])
    silent: bool = False
    """Not even the connection is cut."""
    rewrite: Callable[[Mapping[str, Any]], tuple[Mapping[str, Any], Mapping[str, Any]]] | None = None
    """What of the call is passed on, and what is added to the service's answer."""


def refused(code: str, status: int = 400, *, passed_on: bool = False, **more: Any) -> Fault:
    body = {"__type": PREFIX + code, "message": f"{code} of a test", **more}
    return Fault(status=status, body=body, passed_on=passed_on)


CUT = Fault()
LOST = Fault(passed_on=True)
SILENT = Fault(silent=True)


@define
class HttpFaults:
    """``planned`` faults are used up call by call; ``seen`` has every call's operation in order."""

    target: str
    session: ClientSession
    port: int = 0
    closing: asyncio.Event = field(factory=asyncio.Event)
    planned: dict[str, list[Fault]] = field(factory=dict[str, list[Fault]])
    recurring: dict[str, tuple[int, Fault]] = field(factory=dict[str, tuple[int, Fault]])
    counted: Counter[str] = field(factory=Counter[str])
    seen: list[str] = field(factory=list[str])
    bodies: list[Any] = field(factory=list[Any])

    def plan(self, operation: str, *faults: Fault) -> None:
        self.planned.setdefault(operation, []).extend(faults)

    def plan_every(self, operation: str, every: int, fault: Fault) -> None:
        """The first call, and from then on each that is so many behind the last one."""
        self.recurring[operation] = every, fault

    def _next(self, operation: str) -> Fault | None:
        if planned := self.planned.get(operation):
            return planned.pop(0)
        every, fault = self.recurring.get(operation, (0, None))
        self.counted[operation] += 1
        return fault if every and (self.counted[operation] - 1) % every == 0 else None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        operation = request.headers["X-Amz-Target"].rpartition(".")[2]
        self.seen.append(operation)
        self.bodies.append(json.loads(body))
        fault = self._next(operation)
        if fault is None:
            return await self._pass_on(request, body)
        return await self._fail(request, body, fault)

    async def _fail(self, request: web.Request, body: bytes, fault: Fault) -> web.StreamResponse:
        if fault.rewrite is not None:
            asked, added = fault.rewrite(json.loads(body))
            answer = await self._pass_on(request, json.dumps(asked).encode())
            assert isinstance(answer.body, bytes)
            return web.json_response({**json.loads(answer.body), **added})
        if fault.passed_on:
            await self._pass_on(request, body)
        if fault.silent:
            await self.closing.wait()
        if fault.status is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.json_response(fault.body, status=fault.status)

    async def _pass_on(self, request: web.Request, body: bytes) -> web.Response:
        kept = {
            name: value for name, value in request.headers.items() if name not in ("Host", "Content-Length")
        }
        async with self.session.post(self.target, data=body, headers=kept) as answer:
            return web.Response(
                body=await answer.read(), status=answer.status, content_type=answer.content_type
            )


@asynccontextmanager
async def http_faults(target: str) -> AsyncGenerator[HttpFaults, None]:
    """A proxy on a free loopback port before the service at an address."""
    async with ClientSession() as session:
        made = HttpFaults(target, session)
        application = web.Application(client_max_size=32 * 2**20)
        application.router.add_post("/", made.answer)
        runner = web.AppRunner(application, shutdown_timeout=0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            made.port = runner.addresses[0][1]
            yield made
        finally:
            made.closing.set()
            await runner.cleanup()
