"""`fronts.Socket`: the lines that a server sends over TCP.

What is guaranteed, and what is not:

1. *A socket cannot replay.* What was read is gone: a new connection goes on with whatever the server
   sends then. A position only counts lines. So ``replayable`` is False, and a query that has a
   checkpoint keeps the elements in its log. Without one, read files or a log instead if you need
   exactly-once across a crash.
2. *Nothing is lost silently while the query runs.* A server that closes in the middle of a line, and a
   connection that breaks, are errors. A close behind a newline is the end of the front.
3. *Bounded.* The front takes from the socket only what the query takes from the front. So a slow query
   slows the server down through TCP, and nothing piles up here.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

from emberflow.errors import InputError
from emberflow.fronts.lines import LINE_BYTES_MAX, LineFormat, TimeOf
from emberflow.fronts.protocol import Element
from emberflow.values.event_time import OnLate, event_time
from emberflow.values.times import DEFAULT_UNIT, Duration, Time, Unit, milliseconds

_CHUNK_BYTES = 64 * 1024


class Socket:
    """Connects to a server, as Spark's socket source does, and takes its lines.

    ``format``, ``time`` and the rule of event time are as for `Files`, except that lines are ``"text"``
    by default. A worker
    connects, so ``host`` is a name that the worker knows. `check` connects once and hangs up before a
    query starts. With ``probe=False`` it does nothing, for servers that serve one connection and end
    (``nc -l`` without ``-k``).
    """

    partitions = 1
    #: The server sends a line once.
    replayable = False

    def __init__(
        self,
        host: str,
        port: int,
        *,
        format: str = "text",
        time: TimeOf | None = None,
        poll_ms: float | Duration = 50,
        connect_ms_max: float | Duration = 3_000,
        probe: bool = True,
        disorder: Duration = 0,
        watermark: Callable[[Any], Time | None] | None = None,
        ahead: Duration | None = None,
        on_late: OnLate = "divert",
        unit: Unit = DEFAULT_UNIT,
    ) -> None:
        if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65_536:
            raise InputError(f"fronts.Socket takes a port from 1 to 65535, got {port!r}.")
        poll_ms = milliseconds(poll_ms, "fronts.Socket(poll_ms=)")
        connect_ms_max = milliseconds(connect_ms_max, "fronts.Socket(connect_ms_max=)")
        if not poll_ms > 0 or not connect_ms_max > 0:
            raise InputError("fronts.Socket takes poll_ms and connect_ms_max above 0.")
        self._host = host
        self._port = port
        self._lines = LineFormat("Socket", format, time, unit)
        self.arrival = time is None
        self.event_time = event_time(
            "fronts.Socket",
            disorder=disorder,
            watermark=watermark,
            ahead=ahead,
            on_late=on_late,
            unit=unit,
        )
        self.unit = unit
        self._poll_seconds = poll_ms / 1_000
        self._connect_seconds_max = connect_ms_max / 1_000
        self._probe = probe

    def check(self) -> None:
        """Raises `InputError` if the server cannot be reached."""
        if self._probe:
            self._connected().close()

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        with self._connected() as connection:
            connection.settimeout(self._poll_seconds)
            yield from self._elements(connection, 0 if position is None else position + 1)

    def _connected(self) -> socket.socket:
        try:
            return socket.create_connection((self._host, self._port), self._connect_seconds_max)
        except OSError as error:
            raise InputError(
                f"fronts.Socket cannot connect to {self._host}:{self._port}: {error}. "
                "Start the server first; the front connects to it."
            ) from error

    def _elements(self, connection: socket.socket, number: int) -> Iterator[Element | None]:
        lines_of = self._lines
        begun: list[bytes] = []  # of a line whose newline has not come
        begun_bytes = 0

        def where() -> str:
            return f"fronts.Socket: {self._host}:{self._port}, line {number + 1} since it began,"

        while (chunk := self._received(connection)) != b"":
            if chunk is None:
                yield None
                continue
            first, *others = chunk.split(b"\n")
            begun.append(first)
            begun_bytes += len(first)
            lines: list[bytes] = []
            if others:
                lines = [b"".join(begun), *others[:-1]]
                begun, begun_bytes = [others[-1]], len(others[-1])
            for line in lines:
                if lines_of.is_element(line):
                    try:
                        payload = lines_of.payload(line, where)
                        time = lines_of.time(payload, where)
                    except InputError as error:
                        payload, time = lines_of.malformed(line, error), None
                    yield Element(number, payload, time)
                number += 1
            if begun_bytes > LINE_BYTES_MAX:
                raise InputError(f"{where()} is longer than {LINE_BYTES_MAX} bytes.")
            if not lines:
                yield None
        if begun_bytes:
            raise InputError(
                f"{where()} has no newline at its end, and the server closed the connection: "
                f"{b''.join(begun)[:100]!r}. Only lines that end in a newline are elements."
            )

    def _received(self, connection: socket.socket) -> bytes | None:
        """Bytes; empty at the end; None when nothing came in time."""
        try:
            return connection.recv(_CHUNK_BYTES)
        except TimeoutError:
            return None
        except OSError as error:
            raise InputError(
                f"fronts.Socket: the connection to {self._host}:{self._port} broke: {error}. "
                "A socket cannot replay: what the server sent meanwhile is lost."
            ) from error
