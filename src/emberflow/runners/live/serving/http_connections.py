"""HTTP connections: those without the token can take nothing from those that have it.

What is guaranteed:

1. *A connection is a stranger's until its head has shown the token.* One thread reads the heads of all
   strangers and never waits for any of them. A head has `HEAD_BYTES_MAX` bytes and `HEAD_SECONDS_MAX`
   in all, not per read. If there are more than `UNKNOWN_MAX` strangers, the one that has been there
   longest is closed. So strangers cost a bounded amount of memory and no threads, and a client that
   sends its request at once always gets in.
2. *Threads are for known clients.* There is a bounded number of them. A further request is told to
   come again. A body has `BODY_SECONDS_MAX` in all, and so has sending an answer.
3. *A connection serves one request.* So no byte of it can be taken for the beginning of another.

Why not a library: the servers of Python's standard library and the small ones beside it either give a
thread to a connection before they know whose it is, or limit the time of each read and not of the
request. An asynchronous framework would do this, and bring an event loop and a dozen packages into
the driver of a query. The part of HTTP that is needed here, one request with a length, is small.
"""

from __future__ import annotations

import contextlib
import io
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.client import HTTPException, parse_headers
from typing import NamedTuple

#: Connections that have not shown a token, and what each of them may send and take.
UNKNOWN_MAX = 256
HEAD_BYTES_MAX = 16_384
HEAD_SECONDS_MAX = 5.0
BODY_SECONDS_MAX = 10.0
#: How much of a body that is not wanted the server reads, so that the client gets the answer.
_PASSED_OVER_MAX = 8_000_000
_SEND_SECONDS_MAX = 10.0
_READ_BYTES = 65_536
_BACKLOG = 128
_ACCEPTED_AT_ONCE_MAX = 64
_TICK_SECONDS = 0.1
_JOIN_SECONDS = 5.0
_FULL_PAUSE_SECONDS = 0.01
#: Lengths with more digits are too long anyway.
_LENGTH_DIGITS_MAX = 18
_HEAD_END = re.compile(rb"\r?\n\r?\n")


class Response(NamedTuple):
    """An answer in JSON."""

    status: HTTPStatus
    content: bytes
    headers: Mapping[str, str] = {}

    def to_bytes(self) -> bytes:
        lines = [
            f"HTTP/1.0 {self.status.value} {self.status.phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(self.content)}",
            "Cache-Control: no-store",
            "Connection: close",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + self.content


class Head(NamedTuple):
    """The request line and the headers."""

    method: str
    target: str
    headers: Message

    @classmethod
    def parsed(cls, data: bytes) -> Head:
        """Raises `ValueError` or `HTTPException`."""
        file = io.BytesIO(data)
        method, target, version = file.readline().decode("latin-1").split()
        if not version.startswith("HTTP/1."):
            raise ValueError(f"version {version}")
        return cls(method, target, parse_headers(file))

    @property
    def length(self) -> int | None:
        """The length of the body; None if the head does not say it."""
        text = self.headers.get("Content-Length", "").strip()
        if not re.fullmatch(r"[0-9]+", text):
            return None
        return int(text[:_LENGTH_DIGITS_MAX])


class Request:
    """A request of a known client. The body is still to be read."""

    def __init__(self, head: Head, connection: socket.socket, begun: bytes) -> None:
        self.head = head
        self._connection = connection
        self._begun = begun
        self._remaining = head.length or 0
        self._deadline = time.monotonic() + BODY_SECONDS_MAX

    def body(self) -> bytes:
        """The whole body. Raises `OSError` if it does not come in time."""
        data = bytearray()
        while piece := self._piece():
            data += piece
        return bytes(data)

    def pass_over(self) -> None:
        """Read what is left of the body: closing a connection with unread bytes may lose the answer."""
        passed = 0
        with contextlib.suppress(OSError):  # the client has left, or may be waiting for the answer
            while passed < _PASSED_OVER_MAX and (piece := self._piece()):
                passed += len(piece)

    def _piece(self) -> bytes:
        if not self._remaining:
            return b""
        piece = self._begun[: self._remaining]
        self._begun = b""
        if not piece:
            self._connection.settimeout(max(0.001, self._deadline - time.monotonic()))
            piece = self._connection.recv(min(self._remaining, _READ_BYTES))
            if not piece:
                raise ConnectionResetError("the client has left in the middle of its body")
        self._remaining -= len(piece)
        return piece


@dataclass(eq=False, slots=True)
class _Stranger:
    """A connection that has not shown the token, or was refused and has not closed yet."""

    connection: socket.socket
    deadline: float
    head: bytearray = field(default_factory=bytearray)
    is_refused: bool = False


class HttpConnections:
    """Listens as soon as it is made, and serves from `start` until `close`.

    ``refusal`` gives the answer to a head that does not show the token, None to one that does.
    ``answer`` is called in threads, at most ``requests_max`` at once.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        refusal: Callable[[Head], Response | None],
        answer: Callable[[Request], Response],
        error: Callable[[HTTPStatus, str], Response],
        requests_max: int,
    ) -> None:
        self._refusal = refusal
        self._answer = answer
        self._error = error
        self._free = threading.BoundedSemaphore(requests_max)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._listening.setblocking(False)
        self.port = int(self._listening.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        #: In the order in which they came, which is that of their deadlines.
        self._strangers: dict[_Stranger, None] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="emberflow http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Serve no more requests. Those in progress are answered. Closing again does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)
        else:
            self._release()

    # The thread that owns the listening socket and the strangers.

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                for key, _ in self._selector.select(_TICK_SECONDS):
                    if key.data is None:
                        self._accept()
                    else:
                        self._read(key.data)
                self._close_late()
        finally:
            self._release()

    def _release(self) -> None:
        for stranger in list(self._strangers):
            self._close(stranger)
        self._selector.close()
        self._listening.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE_MAX):
            try:
                connection, _address = self._listening.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError:
                # No file descriptor is free: make one free, and do not try in a tight loop.
                self._close_oldest()
                time.sleep(_FULL_PAUSE_SECONDS)
                return
            connection.setblocking(False)
            if len(self._strangers) >= UNKNOWN_MAX:
                self._close_oldest()
            stranger = _Stranger(connection, time.monotonic() + HEAD_SECONDS_MAX)
            self._strangers[stranger] = None
            self._selector.register(connection, selectors.EVENT_READ, stranger)

    def _close_oldest(self) -> None:
        oldest = next(iter(self._strangers), None)
        if oldest is not None:
            self._close(oldest)

    def _close_late(self) -> None:
        now = time.monotonic()
        while (oldest := next(iter(self._strangers), None)) and oldest.deadline < now:
            self._close(oldest)

    def _close(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.connection.close()

    def _forget(self, stranger: _Stranger) -> None:
        self._strangers.pop(stranger, None)
        self._selector.unregister(stranger.connection)

    def _read(self, stranger: _Stranger) -> None:
        if stranger not in self._strangers:
            return  # it was closed to make room
        try:
            data = stranger.connection.recv(HEAD_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(stranger)
        elif not stranger.is_refused:
            stranger.head += data
            self._look_at(stranger)

    def _look_at(self, stranger: _Stranger) -> None:
        end = _HEAD_END.search(stranger.head)
        if (len(stranger.head) if end is None else end.end()) > HEAD_BYTES_MAX:
            self._refuse(
                stranger,
                self._error(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"the request line and the headers have at most {HEAD_BYTES_MAX:,} bytes.",
                ),
            )
            return
        if end is None:
            return
        try:
            head = Head.parsed(bytes(stranger.head[: end.end()]))
        except (ValueError, HTTPException):
            self._refuse(stranger, self._error(HTTPStatus.BAD_REQUEST, "this is no HTTP request."))
            return
        refusal = self._refusal(head)
        if refusal is None and not self._free.acquire(blocking=False):
            refusal = self._error(
                HTTPStatus.SERVICE_UNAVAILABLE, "all threads of the server are busy: try again"
            )
            refusal = refusal._replace(headers={"Retry-After": "1"})
        if refusal is not None:
            self._refuse(stranger, refusal)
            return
        self._forget(stranger)
        request = Request(head, stranger.connection, bytes(stranger.head[end.end() :]))
        thread = threading.Thread(
            target=self._serve,
            args=(request, stranger.connection),
            name="emberflow http request",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:  # the system has no thread for it
            stranger.connection.close()
            self._free.release()

    def _refuse(self, stranger: _Stranger, response: Response) -> None:
        """Send a short answer, and read on until the client closes: it may still be sending."""
        stranger.is_refused = True
        stranger.head.clear()
        with contextlib.suppress(OSError):
            stranger.connection.send(response.to_bytes())
            stranger.connection.shutdown(socket.SHUT_WR)

    # The threads of requests.

    def _serve(self, request: Request, connection: socket.socket) -> None:
        try:
            response = self._answer(request)
            request.pass_over()
            connection.settimeout(_SEND_SECONDS_MAX)
            connection.sendall(response.to_bytes())  # the time limit is for all of it
        except OSError:
            pass  # the client has gone, or was too slow
        finally:
            connection.close()
            self._free.release()
