"""What benchmarks of live queries wait for, and where they listen."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # workers import this with the fronts of a benchmark
    from emberflow.runners.live.query import LiveQuery

_SECONDS_MAX = 120.0
_NAP_SECONDS = 0.01


def until(
    happened: Callable[[], object],
    query: LiveQuery,
    *,
    seconds: float = _SECONDS_MAX,
    nap: float = _NAP_SECONDS,
) -> None:
    """Wait for something that a query does. It has so many seconds, and must not end before."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, query.status
        time.sleep(nap)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
