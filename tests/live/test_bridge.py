"""The bridge ignores clients without its token, answers all others, and reports what is wrong."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from emberflow.errors import InputError
from emberflow.runners.live.driver.cluster import CoordinatorAddress
from emberflow.runners.live.serving import bridge as bridge_module
from emberflow.runners.live.serving import strangers as strangers_module
from emberflow.runners.live.serving.addresses import Announcement, UnknownQueryError, address_of
from emberflow.runners.live.serving.bridge import (
    MESSAGE_BYTES_MAX,
    Address,
    Bridge,
    BridgeAwayError,
    BridgeClient,
    BridgeError,
    BridgeRefusedError,
)
from emberflow.runners.live.serving.strangers import Strangers
from emberflow.runners.live.serving.tokens import new_token

LOOPBACK = CoordinatorAddress("127.0.0.1", 0, "127.0.0.1")


class Echo:
    """Echoes each question, and keeps it."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.closed = False
        self.go_on = threading.Event()

    def serve(self, method: str, arguments: dict[str, Any]) -> Any:
        self.heard.append(arguments)
        if method == "mistake":
            raise InputError("what was asked is wrong")
        if method == "accident":
            raise OSError("the disk is full")
        if method == "wait":
            self.go_on.wait(30)
        return method, arguments

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def bridge(echo: Echo) -> Iterator[Bridge]:
    bridge = Bridge({"front docs": echo}, query="index", place=LOOPBACK, token=new_token())
    yield bridge
    echo.go_on.set()
    bridge.close()
    assert echo.closed


def test_a_service_answers(bridge: Bridge, echo: Echo) -> None:
    with BridgeClient(bridge.address) as client:
        for number in range(200):
            assert client.ask("front docs", "say", number=number) == ["say", {"number": number}]
        data = os.urandom(bridge_module.CHUNK_BYTES)
        assert client.ask("front docs", "say", data=data) == ["say", {"data": data}]


def test_many_clients_at_once(bridge: Bridge) -> None:
    found: list[Any] = []

    def ask(own: int) -> None:
        with BridgeClient(bridge.address) as client:
            found.extend(client.ask("front docs", "say", own=own)[1]["own"] for _ in range(20))

    threads = [threading.Thread(target=ask, args=(own,)) for own in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == sorted(list(range(8)) * 20)


def test_errors_say_whose_they_are(bridge: Bridge) -> None:
    with BridgeClient(bridge.address) as client:
        with pytest.raises(InputError, match="what was asked is wrong"):
            client.ask("front docs", "mistake")
        with pytest.raises(BridgeError, match="could not answer: OSError: the disk is full"):
            client.ask("front docs", "accident")
        with pytest.raises(
            InputError, match=r"'index' offers no front 'dogs' to Spark; it offers 'docs'"
        ):
            client.ask("front dogs", "say")
        with pytest.raises(InputError, match=r"offers no sink 'docs' to Spark; it offers none"):
            client.ask("sink docs", "say")
        assert client.ask("front docs", "say") == ["say", {}]


def test_another_token_is_refused(bridge: Bridge, echo: Echo) -> None:
    with pytest.raises(BridgeRefusedError, match="refuses this token"):
        BridgeClient(Address(bridge.address.endpoint, new_token()))
    assert not echo.heard


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_nothing_of_a_stranger_is_unpickled(bridge: Bridge, tmp_path: Path) -> None:
    message = pickle.dumps((0, "front docs", "say", Bomb(tmp_path / "exploded")))
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.connect(bridge.address.endpoint)
        stranger.send(message)
        host, port = bridge.address.endpoint.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(message)
        with BridgeClient(bridge.address) as client:  # a client with the token is served meanwhile
            for _ in range(50):
                client.ask("front docs", "say")
        assert not stranger.poll(200)
    assert not (tmp_path / "exploded").exists()


def test_what_is_too_big_is_not_taken(
    bridge: Bridge, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BridgeClient(bridge.address) as client:
        with pytest.raises(InputError, match=r"a request has .* and a message at most"):
            client.ask("front docs", "say", data=bytes(MESSAGE_BYTES_MAX + 1))
        assert not echo.heard
        assert client.ask("front docs", "say") == ["say", {}]
        monkeypatch.setattr(bridge_module, "FRAME_BYTES_MAX", 1 << 20)  # the client's, from now on
        with pytest.raises(BridgeAwayError, match=r"connection to the live query .* was lost"):
            client.ask("front docs", "say", data=bytes(1 << 20))
    assert len(echo.heard) == 1


def test_an_answer_that_is_too_big_is_told(
    bridge: Bridge, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BridgeClient(bridge.address) as client:
        monkeypatch.setattr(echo, "serve", lambda method, arguments: bytes(MESSAGE_BYTES_MAX))
        with pytest.raises(InputError, match=r"the answer has .* bytes"):
            client.ask("front docs", "say")


def address_of_bridge(bridge: Bridge) -> tuple[str, int]:
    host, port = bridge.address.endpoint.removeprefix("tcp://").split(":")
    return host, int(port)


def is_closed(connection: socket.socket) -> bool:
    """Whether the bridge closes a connection, within a time in which it has to."""
    connection.settimeout(30)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


#: What a peer sends first: the version of the protocol, and that it wants to use CURVE.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch, echo: Echo) -> Iterator[Bridge]:
    """A bridge that closes no connection only because its handshake takes long."""
    monkeypatch.setattr(bridge_module, "HANDSHAKE_MS_MAX", 600_000)
    bridge = Bridge({"front docs": echo}, query="index", place=LOOPBACK, token=new_token())
    yield bridge
    bridge.close()


def test_a_stranger_cannot_make_the_bridge_keep_much(patient: Bridge) -> None:
    """A frame that is too long ends the connection before its bytes come."""
    for size in (bridge_module.FRAME_BYTES_MAX * 2, MESSAGE_BYTES_MAX, 1 << 40):
        with socket.create_connection(address_of_bridge(patient)) as stranger:
            stranger.sendall(GREETING + b"\x06" + size.to_bytes(8, "big"))
            assert is_closed(stranger)


def test_strangers_keep_nobody_out(patient: Bridge) -> None:
    bridge = patient
    with contextlib.ExitStack() as held:
        strangers = [
            held.enter_context(socket.create_connection(address_of_bridge(bridge)))
            for _ in range(bridge_module.STRANGERS_MAX + 72)
        ]
        with BridgeClient(bridge.address) as client:
            assert client.ask("front docs", "say") == ["say", {}]
            assert all(is_closed(stranger) for stranger in strangers[:72])
            strangers += [
                held.enter_context(socket.create_connection(address_of_bridge(bridge)))
                for _ in range(bridge_module.STRANGERS_MAX + 10)
            ]
            # A client that is known is not closed to make room.
            assert client.ask("front docs", "say") == ["say", {}]


def test_who_is_heard_before_it_is_noted_is_no_stranger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[int] = []
    monkeypatch.setattr(strangers_module, "shut_down", lambda one, port: closed.append(one))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as server:
        server.linger = 0
        strangers = Strangers(server, connections_max=0, handshake_seconds=60.0)
        port = server.bind_to_random_port("tcp://127.0.0.1")
        with context.socket(zmq.DEALER) as client:
            client.linger = 0
            client.connect(f"tcp://127.0.0.1:{port}")
            client.send(b"one")
            assert server.poll(10_000)
            _, frame = server.recv_multipart(copy=False)
            strangers.heard(int(frame.get(zmq.SRCFD)))
            strangers.count(port)
        strangers.close()
    assert closed == []


def test_a_handshake_that_does_not_end_is_closed(
    monkeypatch: pytest.MonkeyPatch, echo: Echo
) -> None:
    monkeypatch.setattr(bridge_module, "HANDSHAKE_MS_MAX", 200)
    bridge = Bridge({"front docs": echo}, query="index", place=LOOPBACK, token=new_token())
    try:
        with (
            socket.create_connection(address_of_bridge(bridge)) as silent,
            socket.create_connection(address_of_bridge(bridge)) as greeting,
        ):
            greeting.sendall(GREETING)
            assert is_closed(silent)
            assert is_closed(greeting)
    finally:
        bridge.close()


def test_a_server_cannot_run_code_in_its_clients(bridge: Bridge, tmp_path: Path) -> None:
    """Who gives a client an address chooses the server, and its token too."""
    token = new_token()
    keys = bridge_module.keys_of(token)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as server:
        server.linger = 0
        server.curve_server = True
        server.curve_publickey, server.curve_secretkey = keys.server_public, keys.server_secret
        port = server.bind_to_random_port("tcp://127.0.0.1")
        bomb = pickle.dumps((0, "done", Bomb(tmp_path / "exploded")))

        def answer() -> None:
            if server.poll(30_000):
                server.send_multipart([server.recv_multipart()[0], bomb])

        serving = threading.Thread(target=answer)
        serving.start()
        address = Address(f"tcp://127.0.0.1:{port}", token)
        with (
            BridgeClient(address) as client,
            pytest.raises(BridgeError, match="no answer of a live query"),
        ):
            client.ask("state accounts", "open")
        serving.join(30)
    assert not (tmp_path / "exploded").exists()


def test_a_client_with_the_token_cannot_run_code_in_the_server(
    bridge: Bridge, echo: Echo, tmp_path: Path
) -> None:
    bomb = pickle.dumps((0, "front docs", "say", Bomb(tmp_path / "exploded")))
    with BridgeClient(bridge.address) as client:
        client._socket.send(bomb)
        assert client.ask("front docs", "say") == ["say", {}]
    assert not (tmp_path / "exploded").exists()
    assert len(echo.heard) == 1


def test_more_than_it_can_serve_come_again(
    bridge: Bridge, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_module, "_UNDER_WAY_MAX", 2)
    answers: list[Any] = []

    def ask() -> None:
        with BridgeClient(bridge.address) as client:
            answers.append(client.ask("front docs", "wait"))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    while len(echo.heard) < 2:
        time.sleep(0.01)
    assert len(echo.heard) == 2
    echo.go_on.set()
    for thread in threads:
        thread.join(60)
    assert answers == [["wait", {}]] * 6


def test_one_that_does_not_answer_is_given_up(bridge: Bridge) -> None:
    with (
        BridgeClient(bridge.address, seconds=0.3) as client,
        pytest.raises(BridgeAwayError, match=r"has not answered for 0.3 s"),
    ):
        client.ask("front docs", "wait")


def test_one_that_ends_is_noticed(bridge: Bridge, echo: Echo) -> None:
    with BridgeClient(bridge.address) as client:
        client.ask("front docs", "say")
        closing = threading.Timer(0.2, bridge.close)
        closing.start()

        def ask_on() -> None:
            while True:
                client.ask("front docs", "say")

        with pytest.raises(BridgeAwayError):
            ask_on()
        closing.join(60)


def test_where_nobody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_module, "_CONNECT_SECONDS_MAX", 0.2)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(BridgeAwayError, match=f"nobody answers at {endpoint}"):
        BridgeClient(Address(endpoint, new_token()))
    with pytest.raises(InputError, match="option 'endpoint' takes an address"):
        BridgeClient(Address("nonsense", new_token()))


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(Address("tcp://h:1", "secret"))


# --- Names ---


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMBERFLOW_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path / "runtime"


def test_a_name_is_told_to_the_owner_only(runtime: Path) -> None:
    address = Address("tcp://127.0.0.1:1", new_token())
    told = Announcement("a name/with: things", address, "run 1")
    (file,) = runtime.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    assert address_of("a name/with: things") == address
    told.close()
    assert not list(runtime.iterdir())


def test_a_name_that_nobody_has(runtime: Path) -> None:
    with pytest.raises(
        UnknownQueryError, match="no live query of the name 'index' on this machine"
    ):
        address_of("index", seconds=60)
    told = Announcement("other", Address("tcp://127.0.0.1:1", new_token()), "run 1")
    with pytest.raises(UnknownQueryError, match="there are 'other'"):
        address_of("index", seconds=60)
    told.close()


def test_a_name_is_taken_once(runtime: Path) -> None:
    told = Announcement("index", Address("tcp://127.0.0.1:1", new_token()), "run 1")
    with pytest.raises(InputError, match=f"runs already, in process {os.getpid()}"):
        Announcement("index", Address("tcp://127.0.0.1:2", new_token()), "run 2")
    told.close()
    Announcement("index", Address("tcp://127.0.0.1:2", new_token()), "run 2").close()


def test_a_query_that_was_killed_is_gone_and_may_come_back(runtime: Path) -> None:
    program = (
        "import os\n"
        "from emberflow.runners.live.serving.addresses import Announcement\n"
        "from emberflow.runners.live.serving.bridge import Address\n"
        "from emberflow.runners.live.serving.tokens import new_token\n"
        "Announcement('index', Address('tcp://127.0.0.1:1', new_token()), 'run 1')\n"
        "os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert len(list(runtime.iterdir())) == 1
    with pytest.raises(BridgeAwayError, match=r"'index' is gone: process .* has died"):
        address_of("index")
    address = Address("tcp://127.0.0.1:2", new_token())
    back: list[Announcement] = []
    coming = threading.Timer(0.3, lambda: back.append(Announcement("index", address, "run 2")))
    coming.start()
    assert address_of("index", seconds=60) == address
    coming.join(60)
    back[0].close()


def test_a_folder_that_others_can_enter_is_refused(runtime: Path) -> None:
    runtime.mkdir(mode=0o755)
    runtime.chmod(0o755)
    with pytest.raises(InputError, match=r"that only user .* can enter"):
        Announcement("index", Address("tcp://127.0.0.1:1", new_token()), "run 1")
    with pytest.raises(InputError, match=r"that only user .* can enter"):
        address_of("index")
