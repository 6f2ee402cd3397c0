"""The HTTP endpoint answers those with the token, whatever those without it do."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from emberflow.runners.live.web import application, connections
from emberflow.runners.live.web.application import READS_MAX
from emberflow.runners.live.web.server import Web
from tests.effort import SECONDS


class SlowReads:
    """What the endpoint asks of a query. Its list of states is there when ``go_on`` is set."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.asked = threading.Semaphore(0)

    @property
    def states(self) -> dict[str, Any]:
        self.asked.release()
        self.go_on.wait(SECONDS)
        info = SimpleNamespace(name="accounts", kind="state", has_default=True, default=0)
        return {"accounts": info}


def started(reads: SlowReads) -> Web:
    server = Web("127.0.0.1", http_port=0, ui_port=None)
    unlooked_at: Any = None
    query: Any = reads
    server.start("query", unlooked_at, query)
    return server


@pytest.fixture
def reads() -> SlowReads:
    return SlowReads()


@pytest.fixture
def server(reads: SlowReads) -> Iterator[Web]:
    server = started(reads)
    yield server
    reads.go_on.set()
    server.close()


def address(server: Web) -> tuple[str, int]:
    url = urlsplit(server.endpoint.url)
    assert url.hostname is not None
    assert url.port is not None
    return url.hostname, url.port


def get(server: Web, **headers: str) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection(*address(server), timeout=SECONDS)) as connection:
        connection.request("GET", "/states", headers=headers or server.endpoint.headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def assert_is_served(server: Web) -> None:
    status, body = get(server)
    assert (status, body["states"][0]["name"]) == (200, "accounts")


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes a connection, within a time in which it has to."""
    connection.settimeout(SECONDS)
    try:
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("count", [16, 200, connections.UNKNOWN_MAX + 50])
@pytest.mark.parametrize(
    "begins", [b"", b"GET /states HTTP/1.1\r\nHost: here\r\nAuthorization: Bear"]
)
def test_connections_that_dribble_keep_nobody_out(server: Web, count: int, begins: bytes) -> None:
    with ExitStack() as held:
        strangers = [
            held.enter_context(socket.create_connection(address(server))) for _ in range(count)
        ]
        for begun in (begins, b"e", b"r"):
            for stranger in strangers:
                try:
                    stranger.sendall(begun)
                except OSError:  # it was closed to make room
                    continue
            assert_is_served(server)


def test_a_connection_that_dribbles_is_closed_however_often_it_sends(
    server: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS_MAX", 0.3)
    with socket.create_connection(address(server)) as stranger:
        stranger.sendall(b"GET /states HTTP/1.1\r\n")
        with contextlib.suppress(OSError):
            for _ in range(1_000):  # fewer bytes than a head may have
                stranger.sendall(b"X:1\r\n")
                time.sleep(0.02)
            pytest.fail("the connection stays open")
    assert_is_served(server)


def test_a_known_client_that_dribbles_its_body_is_closed(
    server: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "BODY_SECONDS_MAX", 0.2)
    head = f"POST /read HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {server.endpoint.token}\r\n"
    with socket.create_connection(address(server)) as slow:
        slow.sendall(f"{head}Content-Length: 500\r\n\r\n{{".encode())
        assert is_closed(slow)
    assert_is_served(server)


def test_a_stranger_cannot_make_the_server_keep_much(server: Web) -> None:
    with socket.create_connection(address(server)) as stranger:
        stranger.sendall(b"GET /states HTTP/1.1\r\n")
        line = b"X-Long: " + b"x" * 1_000 + b"\r\n"
        for _ in range(connections.HEAD_BYTES_MAX // 1_000 + 1):
            stranger.sendall(line)
        stranger.settimeout(SECONDS)
        assert stranger.recv(100).startswith(b"HTTP/1.1 431 ")
    assert_is_served(server)


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer wrong", "Basic YWRhOmFkYQ==", "Bearer \xff\xfe"]
)
def test_without_the_token_nothing_is_asked_of_the_query(
    server: Web, reads: SlowReads, authorization: str
) -> None:
    status, body = get(server, Authorization=authorization)
    assert status == 401
    assert server.endpoint.token not in json.dumps(body)
    assert not reads.asked.acquire(blocking=False)


def test_a_stranger_with_a_long_body_is_told_too(server: Web) -> None:
    with closing(http.client.HTTPConnection(*address(server), timeout=SECONDS)) as connection:
        connection.request("POST", "/read", body=b"x" * 500_000)
        assert connection.getresponse().status == 401


def test_more_requests_than_it_serves_are_told_to_come_again(server: Web, reads: SlowReads) -> None:
    reads.go_on.clear()
    found: list[int] = []

    def ask() -> None:
        found.append(get(server)[0])

    clients = [threading.Thread(target=ask) for _ in range(READS_MAX)]
    for client in clients:
        client.start()
    for _ in clients:
        assert reads.asked.acquire(timeout=SECONDS)
    assert get(server)[0] == 503
    reads.go_on.set()
    for client in clients:
        client.join(SECONDS)
    assert found == [200] * READS_MAX
    assert_is_served(server)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /nothing HTTP/1.1", 404),
        ("PUT /states HTTP/1.1", 501),
        ("POST /read HTTP/1.1", 411),
        ("POST /read HTTP/1.1\r\nContent-Length: 99999999999999", 413),
        ("POST /read HTTP/1.1\r\nContent-Length: -1", 400),
        ("GET /states", 400),
        ("nonsense", 400),
    ],
)
def test_requests_that_are_wrong(server: Web, request_line: str, status: int) -> None:
    with socket.create_connection(address(server)) as client:
        token = server.endpoint.token
        client.sendall(
            f"{request_line}\r\nHost: here\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        )
        client.shutdown(socket.SHUT_WR)
        client.settimeout(SECONDS)
        assert client.recv(100).startswith(f"HTTP/1.1 {status} ".encode())


def test_after_its_end_nobody_is_served(reads: SlowReads) -> None:
    server = started(reads)
    with socket.create_connection(address(server)) as stranger:
        assert_is_served(server)
        server.close()
        server.close()
        assert is_closed(stranger)
    # By now another process may have been given the port, so a connection alone says nothing.
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        status, _ = get(server)
        assert status != 200
