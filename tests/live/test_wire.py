"""The wire accepts this run's own processes and nothing else."""

from __future__ import annotations

import os
import pickle
import socket as plain_sockets
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import zmq

from emberflow.runners.live.wire.sockets import RunKeys, Wire, WireError

SOON_MS = 5_000
NEVER_MS = 400


@pytest.fixture
def keys() -> RunKeys:
    return RunKeys.made()


@pytest.fixture
def server(keys: RunKeys) -> Iterator[tuple[Wire, zmq.Socket[bytes], str]]:
    wire = Wire(keys, incarnation=7)
    socket, address = wire.listening(zmq.PULL, "127.0.0.1")
    yield wire, socket, address
    wire.close()


def arrives(socket: zmq.Socket[bytes], within_ms: int) -> bool:
    return bool(socket.poll(within_ms))


def test_what_is_sent_arrives_in_order(
    keys: RunKeys, server: tuple[Wire, zmq.Socket[bytes], str]
) -> None:
    wire, listening, address = server
    peer = Wire(keys, incarnation=7)
    pushing = peer.connected(zmq.PUSH, address)
    for number in range(100):
        pushing.send(peer.encode(b"F", (number, "payload")))
    for number in range(100):
        assert arrives(listening, SOON_MS)
        assert wire.decode(listening.recv()) == (b"F", (number, "payload"))
    peer.close()


class Bomb:
    """Shows when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return os.putenv, ("EMBERFLOW_BOMB", "1")


@pytest.mark.parametrize("stranger", ["another client key", "another server key", "no keys at all"])
def test_a_stranger_is_not_heard(
    stranger: str, keys: RunKeys, server: tuple[Wire, zmq.Socket[bytes], str]
) -> None:
    _, listening, address = server
    others = RunKeys.made()
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
    pushing.send(peer.encode(b"F", Bomb()))
    assert not arrives(listening, NEVER_MS)
    peer.close()


def test_garbage_on_the_port_reaches_nobody_and_harms_nobody(
    keys: RunKeys, server: tuple[Wire, zmq.Socket[bytes], str]
) -> None:
    wire, listening, address = server
    host, port = address.removeprefix("tcp://").split(":")
    with plain_sockets.create_connection((host, int(port)), timeout=5) as raw:
        raw.sendall(os.urandom(4_096))
    assert not arrives(listening, NEVER_MS)
    peer = Wire(keys, incarnation=7)
    peer.connected(zmq.PUSH, address).send(peer.encode(b"F", "still here"))
    assert arrives(listening, SOON_MS)
    assert wire.decode(listening.recv()) == (b"F", "still here")
    peer.close()


def test_a_message_of_another_incarnation_is_dropped_unread(keys: RunKeys) -> None:
    now, before = Wire(keys, incarnation=8), Wire(keys, incarnation=7)
    try:
        message = before.encode(b"F", "late")
        assert now.decode(message[:-1] + b"\xff") is None, "not even looked at"
        assert before.decode(message) == (b"F", "late")
    finally:
        now.close()
        before.close()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_several_messages_in_one_are_told_apart_again(count: int, keys: RunKeys) -> None:
    wire, before = Wire(keys, incarnation=7), Wire(keys, incarnation=6)
    try:
        words = [(bytes([65 + number]), ["word", b"&" * number]) for number in range(count)]
        message = wire.together([wire.encode(*word) for word in words])
        assert list(wire.decoded(message)) == words
        late = before.together([before.encode(*word) for word in words])
        assert list(wire.decoded(late)) == []
        for length in range(len(message)):
            told: list[Any] = []
            with suppress(WireError):  # the data ends within a message
                told.extend(wire.decoded(message[:length]))
            assert told == words[: len(told)], "nothing is made up"
            assert len(told) < count
    finally:
        wire.close()
        before.close()


@pytest.mark.parametrize("garbled", [b"", b"short", None])
def test_a_garbled_message_of_a_peer_is_an_error_that_says_so(
    garbled: bytes | None, keys: RunKeys
) -> None:
    wire = Wire(keys, incarnation=7)
    try:
        message = wire.encode(b"F", ["payload"])[:-3] if garbled is None else garbled
        with pytest.raises(WireError, match="message"):
            wire.decode(message)
    finally:
        wire.close()


def test_keys_do_not_show_in_what_is_printed(keys: RunKeys) -> None:
    assert keys.client_secret.decode() not in repr(keys)
    assert keys.server_secret.decode() not in f"{keys}"


def test_payloads_of_a_class_that_no_module_has_travel_by_value() -> None:
    """As in a script or a notebook: the worker knows the class from the flow."""
    namespace: dict[str, Any] = {}
    exec("class Word(str):\n    __module__ = '__main__'", namespace)
    word = namespace["Word"]
    wire = Wire(RunKeys.made(), 7)
    try:
        for payload in ("plain", word("own"), "plain again"):
            decoded = wire.decode(wire.encode(b"F", [payload]))
            assert decoded == (b"F", [payload])
            assert type(decoded[1][0]) is type(payload)
    finally:
        wire.close()
