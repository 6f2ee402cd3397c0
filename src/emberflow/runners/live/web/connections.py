"""HTTP connections: those that have not shown a token can take nothing from those that have.

uvicorn serves, in a thread of its own. What it does not bound, this module does:

1. *A connection is a stranger's until the application has found a token or a session in its head*
   (`Connection.is_known`). A head has `HEAD_BYTES_MAX` bytes, and a stranger `HEAD_SECONDS_MAX` in all, not
   per read. If there are more than `UNKNOWN_MAX` strangers, the one that has been there longest is closed.
   Strangers cost a bounded amount of memory and no threads, and a client that sends its request at once
   always gets in.
2. *A connection serves one request.* So no byte of it can be taken for the beginning of another. The
   application says ``Connection: close`` with each answer.

The bounds of known clients are the application's (`application`).

Why uvicorn: it parses with h11, which is strict, and gives a connection no thread, so slow strangers cost
nothing but memory. Starlette runs on it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from emberflow.errors import InputError

#: Connections that have not shown a token, and what each of them may send and take.
UNKNOWN_MAX = 256
HEAD_BYTES_MAX = 16_384
HEAD_SECONDS_MAX = 5.0
_BACKLOG = 512
_JOIN_SECONDS = 5.0
#: Requests in progress have so long when the server ends.
_GRACE_SECONDS = 2

#: Strangers may send nonsense as often as they like: it is no news.
_silent = logging.Logger("emberflow http")
_silent.disabled = True


class Connection(H11Protocol):
    """A connection. The application finds it as ``scope["state"]["connection"]``."""

    def __init__(self, strangers: dict[Connection, None], **given: Any) -> None:
        super().__init__(**given)
        self.app_state = {**self.app_state, "connection": self}
        self.logger = self.access_logger = _silent
        self.access_log = False
        self._strangers = strangers
        self._head = bytearray()
        self._has_head = False
        self._is_refused = False
        self._deadline: asyncio.TimerHandle | None = None

    def is_known(self) -> None:
        """It has shown who it is: no limit of strangers holds for it."""
        self._strangers.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        while len(self._strangers) >= UNKNOWN_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        self._strangers[self] = None
        self._deadline = self.loop.call_later(HEAD_SECONDS_MAX, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_known()  # it is nobody's any more
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if not self._has_head:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if (len(self._head) if end < 0 else end) > HEAD_BYTES_MAX:
                self._refuse(
                    431, f"the request line and the headers have at most {HEAD_BYTES_MAX:,} bytes."
                )
                return
            if end >= 0:
                self._has_head = True
                self._head.clear()
        super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client may close its side first, and still hear the answer to what it has asked."""
        is_asked = self._has_head and bool(self.cycle) and not self.cycle.more_body
        return is_asked and not self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP request.")

    def _refuse(self, status: int, problem: str) -> None:
        """Answer what is no request. Read on until the client closes: it may still be sending."""
        self._is_refused = True
        self._head.clear()
        content = json.dumps({"error": problem}).encode()
        phrase = {400: "Bad Request", 431: "Request Header Fields Too Large"}[status]
        head = (
            f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + content)
        self.transport.write_eof()


class Listener:
    """Listens as soon as it is made, and serves an application from `start` until `close`."""

    def __init__(self, host: str, port: int, options: str) -> None:
        """``options`` are what the user may change if the address is taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise InputError(
                f"the query cannot listen on {host}, port {port or 'any'}: {error}. Set {options}."
            ) from error
        self.port = int(self._socket.getsockname()[1])
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}"
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def start(self, application: Any) -> None:
        """Starting again does nothing."""
        with self._lock:
            if self._thread is not None or self._is_closed:
                return
            strangers: dict[Connection, None] = {}

            def connection(**given: Any) -> Connection:
                return Connection(strangers, **given)

            config = uvicorn.Config(
                application,
                http=connection,  # type: ignore[arg-type]  # whatever makes a protocol
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=HEAD_BYTES_MAX,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
            self._server = uvicorn.Server(config)
            self._thread = threading.Thread(target=self._run, name="emberflow http", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Serve no more requests. Those in progress are answered. Closing again does nothing."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._server is None or self._thread is None:
            self._socket.close()
            return
        self._server.should_exit = True
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        assert self._server is not None
        asyncio.run(self._server.serve(sockets=[self._socket]))
