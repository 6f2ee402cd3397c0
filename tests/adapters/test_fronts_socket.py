"""`fronts.Socket`: errors at once, and ends that are ends."""

from __future__ import annotations

import re
import socket
import time

import pytest

from emberflow import fronts
from emberflow.errors import InputError
from emberflow.fronts import Element
from tests.adapters.fronts_under_test import line_server


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_server_that_is_not_there_is_an_error_at_once() -> None:
    port = closed_port()
    front = fronts.Socket("127.0.0.1", port)
    begin = time.monotonic()
    complaint = f"cannot connect to 127.0.0.1:{port}: .*refused"
    with pytest.raises(InputError, match=complaint):
        front.check()
    with pytest.raises(InputError, match=complaint):
        next(front.read(0, None))
    assert time.monotonic() - begin < 2
    fronts.Socket("127.0.0.1", port, probe=False).check()


def test_a_server_that_is_there_passes_the_check() -> None:
    with line_server(b"a\n") as port:
        fronts.Socket("127.0.0.1", port).check()


def test_json_with_a_time() -> None:
    with line_server(b'{"at": 3}\n\n{"at": 4}\n') as port:
        front = fronts.Socket("127.0.0.1", port, format="jsonl", time="at")
        found = [element for element in front.read(0, None) if element]
    assert found == [Element(0, {"at": 3}, 3), Element(2, {"at": 4}, 4)]


def test_malformed_json_says_where_and_is_read_past() -> None:
    with line_server(b'{"at": 1}\n{oops\n{"at": 1}\n{"at": 2}\n') as port:
        front = fronts.Socket("127.0.0.1", port, format="jsonl", time="at")
        one, oops, *others = (element for element in front.read(0, None) if element)
    assert [one, *others] == [
        Element(0, {"at": 1}, 1),
        Element(2, {"at": 1}, 1),
        Element(3, {"at": 2}, 2),
    ]
    assert (oops.position, oops.payload.raw, oops.payload.before_next) == (1, "{oops", True)
    assert re.search(f"127.0.0.1:{port}, line 2 .*is not JSON", oops.payload.problem)


def test_a_close_within_a_line_is_an_error() -> None:
    with line_server(b"a\nb") as port, pytest.raises(InputError, match=r"line 2 .*no newline"):
        list(fronts.Socket("127.0.0.1", port).read(0, None))


def test_it_says_that_it_cannot_replay() -> None:
    """A position only keeps numbers apart: a new connection goes on with what the server sends."""
    assert fronts.Socket.replayable is False
    with line_server(b"a\n") as port:
        found = [element for element in fronts.Socket("127.0.0.1", port).read(0, 6) if element]
    assert found == [Element(7, "a")]


@pytest.mark.parametrize("port", [0, 70_000, True, "80"])
def test_ports(port: object) -> None:
    with pytest.raises(InputError, match="takes a port"):
        fronts.Socket("localhost", port)  # type: ignore[arg-type]
