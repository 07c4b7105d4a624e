"""Answers probes over HTTP from threads of its own, so that a blocked event loop is told and not hidden."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from ._errors import PerdureError
from ._health import Health

LOOPBACK = "127.0.0.1"
POLL = 0.1
"""Seconds within which the end is noticed."""
PATIENCE = 5.0
"""Seconds that a client may take to send its request."""


class PortTaken(PerdureError):
    """The health port cannot be listened on."""


class Probe:
    """Listens on a port of the loopback interface (0: one that is free)."""

    def __init__(self, port: int) -> None:
        self._judge: Callable[[], Health] | None = None
        try:
            self._server = ThreadingHTTPServer((LOOPBACK, port), self._handler())
        except (OSError, OverflowError) as error:
            raise PortTaken(
                f"health port {port} cannot be listened on ({error}): name one that is free, or 0 for any"
            ) from error
        self._server.daemon_threads = True
        self.url = f"http://{LOOPBACK}:{self._server.server_address[1]}"
        Thread(target=self._server.serve_forever, args=(POLL,), name="perdure health", daemon=True).start()

    def answer_with(self, judge: Callable[[], Health]) -> None:
        """From now on there is a worker to be asked about."""
        self._judge = judge

    def close(self) -> None:
        """Listen no more; blocks for up to half a second."""
        self._server.shutdown()
        self._server.server_close()

    def _respond(self, path: str) -> tuple[int, dict[str, object]]:
        if path not in ("/healthz", "/readyz"):
            return 404, {"error": "ask for /healthz or /readyz"}
        if self._judge is None:
            reasons = ["the worker starts"]
            return (200 if path == "/healthz" else 503), {"status": "degraded", "reasons": reasons}
        health = self._judge()
        well = health.live if path == "/healthz" else health.ready
        return (200 if well else 503), health.document()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        respond = self._respond

        class Handler(BaseHTTPRequestHandler):
            timeout = PATIENCE

            def do_GET(self) -> None:
                status, document = respond(self.path.partition("?")[0])
                body = json.dumps(document).encode() + b"\n"
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Probes are not worth a line each."""

        return Handler
