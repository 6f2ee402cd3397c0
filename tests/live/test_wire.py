"""The wire accepts this run's own processes and nothing else."""

from __future__ import annotations

import os
import pickle
import resource
import socket as plain_sockets
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import zmq

from emberflow.runners.live.wire.sockets import (
    HANDSHAKE_MS_MAX,
    PART_BYTES_MAX,
    STRANGERS_MAX,
    Wire,
    WireError,
    WireKeys,
)

SOON_MS = 5_000
NEVER_MS = 400
AGAIN_MS = 250


@pytest.fixture
def keys() -> WireKeys:
    return WireKeys.made()


@pytest.fixture
def server(keys: WireKeys) -> Iterator[tuple[Wire, zmq.Socket[bytes], str]]:
    wire = Wire(keys, incarnation=7)
    socket, address = wire.listening(zmq.PULL, "127.0.0.1")
    yield wire, socket, address
    wire.close()


def arrives(socket: zmq.Socket[bytes], within_ms: int) -> bool:
    return bool(socket.poll(within_ms))


def test_what_is_sent_arrives_in_order(
    keys: WireKeys, server: tuple[Wire, zmq.Socket[bytes], str]
) -> None:
    wire, listening, address = server
    peer = Wire(keys, incarnation=7)
    pushing = peer.connected(zmq.PUSH, address)
    for number in range(100):
        pushing.send_multipart(peer.envelope(3, number, [peer.encode(b"F", (number, "payload"))]))
    for number in range(100):
        assert next_of(wire, listening) == (3, number, [(b"F", (number, "payload"))])
    peer.close()


def test_what_is_too_large_for_one_part_travels_in_several(
    keys: WireKeys, server: tuple[Wire, zmq.Socket[bytes], str]
) -> None:
    wire, listening, address = server
    peer = Wire(keys, incarnation=7)
    pushing = peer.connected(zmq.PUSH, address)
    for size in (PART_BYTES_MAX - 100, PART_BYTES_MAX, 3 * PART_BYTES_MAX + 17):
        payload = os.urandom(size)
        parts = peer.envelope(0, 0, [peer.encode(b"F", payload)])
        assert all(len(part) <= PART_BYTES_MAX for part in parts)
        pushing.send_multipart(parts)
        assert next_of(wire, listening) == (0, 0, [(b"F", payload)])
    peer.close()


def next_of(wire: Wire, listening: zmq.Socket[bytes]) -> tuple[int, int, list[tuple[bytes, Any]]]:
    assert arrives(listening, SOON_MS)
    envelope = wire.opened(listening.recv_multipart())
    assert envelope is not None
    return envelope.link, envelope.number, list(wire.decoded(envelope.content))


def read(wire: Wire, whole: bytes) -> list[tuple[bytes, Any]]:
    envelope = wire.opened([whole])
    assert envelope is not None
    return list(wire.decoded(envelope.content))


class Bomb:
    """Shows when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return os.putenv, ("EMBERFLOW_BOMB", "1")


@pytest.mark.parametrize("stranger", ["another client key", "another server key", "no keys at all"])
def test_a_stranger_is_not_heard(
    stranger: str, keys: WireKeys, server: tuple[Wire, zmq.Socket[bytes], str]
) -> None:
    _, listening, address = server
    others = WireKeys.made()
    given = {
        "another client key": others._replace(server_public=keys.server_public),
        "another server key": keys._replace(server_public=others.server_public),
    }
    if stranger == "no keys at all":
        context = zmq.Context()
        pushing = context.socket(zmq.PUSH)
        pushing.connect(address)
        pushing.send(pickle.dumps(Bomb()))
        assert not arrives(listening, NEVER_MS)
        pushing.close(linger=0)
        context.term()
        return
    peer = Wire(given[stranger], incarnation=7)
    pushing = peer.connected(zmq.PUSH, address)
    pushing.linger = 0
    pushing.send_multipart(peer.envelope(0, 0, [peer.encode(b"F", Bomb())]))
    assert not arrives(listening, NEVER_MS)
    peer.close()


def test_garbage_on_the_port_reaches_nobody_and_harms_nobody(
    keys: WireKeys, server: tuple[Wire, zmq.Socket[bytes], str]
) -> None:
    wire, listening, address = server
    host, port = address.removeprefix("tcp://").split(":")
    with plain_sockets.create_connection((host, int(port)), timeout=5) as raw:
        raw.sendall(os.urandom(4_096))
    assert not arrives(listening, NEVER_MS)
    peer = Wire(keys, incarnation=7)
    sent = peer.envelope(0, 0, [peer.encode(b"F", "still here")])
    peer.connected(zmq.PUSH, address).send_multipart(sent)
    assert next_of(wire, listening) == (0, 0, [(b"F", "still here")])
    peer.close()


#: The greeting of ZeroMQ's protocol, with which every connection begins; this one is for CURVE.
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)


def test_a_stranger_cannot_make_us_allocate(
    server: tuple[Wire, zmq.Socket[bytes], str],
) -> None:
    """It announces a command of half a gigabyte in the middle of the handshake."""
    _, _, address = server
    host, port = address.removeprefix("tcp://").split(":")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sent = 0

    def send_on() -> None:
        nonlocal sent
        while sent < 512 << 20:
            sent += raw.send(bytes(1 << 16))

    with plain_sockets.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(GREETING + b"\x06" + (512 << 20).to_bytes(8, "big"))
        with pytest.raises(OSError, match=r"reset|pipe"):
            send_on()
    assert sent < 64 << 20, "it was cut off long before"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 << 10, "kilobytes"


def test_strangers_cannot_hold_all_connections(
    keys: WireKeys, server: tuple[Wire, zmq.Socket[bytes], str]
) -> None:
    """Each says nothing and waits. Those beyond a number are turned away, and peers get in."""
    wire, listening, address = server
    host, port = address.removeprefix("tcp://").split(":")
    strangers: list[plain_sockets.socket] = []
    try:
        strangers += [
            plain_sockets.create_connection((host, int(port)), timeout=10)
            for _ in range(3 * STRANGERS_MAX)
        ]
        # Of the last one the greeting is read, and then the end: it was turned away.
        strangers[-1].settimeout(SOON_MS / 1_000)
        with suppress(ConnectionResetError):
            while strangers[-1].recv(1_024):
                pass
        peer = Wire(keys, incarnation=7)
        pushing = peer.connected(zmq.PUSH, address)
        # The peer may be turned away as well, with what it has sent, and connects again.
        heard = None
        for number in range(4 * HANDSHAKE_MS_MAX // AGAIN_MS):
            pushing.send_multipart(peer.envelope(0, number, [peer.encode(b"F", "let in")]))
            if arrives(listening, AGAIN_MS):
                # A ping alone makes the socket readable: a read must not wait.
                with suppress(zmq.Again):
                    heard = wire.opened(listening.recv_multipart(zmq.NOBLOCK))
                    break
        assert heard is not None
        assert list(wire.decoded(heard.content)) == [(b"F", "let in")]
        peer.close()
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_message_of_another_incarnation_is_dropped_unread(keys: WireKeys) -> None:
    now, before = Wire(keys, incarnation=8), Wire(keys, incarnation=7)
    try:
        [message] = before.envelope(0, 0, [before.encode(b"F", "late")])
        assert now.opened([message]) is None
        envelope = before.opened([message])
        assert envelope is not None
        assert list(before.decoded(envelope.content)) == [(b"F", "late")]
    finally:
        now.close()
        before.close()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_several_messages_in_one_are_told_apart_again(count: int, keys: WireKeys) -> None:
    wire = Wire(keys, incarnation=7)
    try:
        words = [(bytes([65 + number]), ["word", b"&" * number]) for number in range(count)]
        [whole] = wire.envelope(0, 0, [wire.encode(*word) for word in words])
        envelope = wire.opened([whole])
        assert envelope is not None
        message = envelope.content
        assert list(wire.decoded(message)) == words
        for length in range(len(message)):
            told: list[Any] = []
            with suppress(WireError):  # the data ends within a message
                told.extend(wire.decoded(message[:length]))
            assert told == words[: len(told)], "nothing is made up"
            assert len(told) < count
    finally:
        wire.close()


@pytest.mark.parametrize("garbled", [b"", b"short", None])
def test_a_garbled_message_of_a_peer_is_an_error_that_says_so(
    garbled: bytes | None, keys: WireKeys
) -> None:
    wire = Wire(keys, incarnation=7)
    try:
        [whole] = wire.envelope(0, 0, [wire.encode(b"F", ["payload"])])
        message = whole[:-3] if garbled is None else garbled
        with pytest.raises(WireError, match="message"):
            read(wire, bytes(message))
    finally:
        wire.close()


def test_keys_do_not_show_in_what_is_printed(keys: WireKeys) -> None:
    assert keys.client_secret.decode() not in repr(keys)
    assert keys.server_secret.decode() not in f"{keys}"


def test_payloads_of_a_class_that_no_module_has_travel_by_value() -> None:
    """As in a script or a notebook: the worker knows the class from the flow."""
    namespace: dict[str, Any] = {}
    exec("class Word(str):\n    __module__ = '__main__'", namespace)
    word = namespace["Word"]
    wire = Wire(WireKeys.made(), 7)
    try:
        for payload in ("plain", word("own"), "plain again"):
            decoded = wire.decode(wire.encode(b"F", [payload]))
            assert decoded == (b"F", [payload])
            assert type(decoded[1][0]) is type(payload)
    finally:
        wire.close()
