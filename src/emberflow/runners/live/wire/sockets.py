"""ZeroMQ sockets that accept messages of this run's own processes only.

What is guaranteed: **a process deserializes only messages of peers that hold this run's keys.** Keys
are made for each run and travel in the closure that Spark ships. Every listening socket is a CURVE
server, and the authenticator of its process accepts one client key only; every connecting socket proves
that it has that key and checks the server's. Everything is encrypted. A peer without the keys gets no
further than the handshake, and none of its messages reaches us.

Every message carries the incarnation of the set of workers it belongs to. The receiver drops messages
of another incarnation unread: they come from a worker that has not yet noticed that its life is over.

A message may contain several (`together`), because waking up the receiver costs more than reading one.

Links are FIFO: one connection per direction and pair. Buffers have a bound (``MESSAGES_MAX``), and a
send that blocks past its time limit raises.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import cloudpickle
import zmq
from zmq.auth.thread import ThreadAuthenticator

from emberflow.errors import EmberflowError

#: The number of messages in a socket's buffer, in each direction.
MESSAGES_MAX = 10_000
#: If a send blocks for so long, the peer is gone.
SEND_MS_MAX = 30_000
LINGER_MS = 1_000

_HEADER = struct.Struct("!Qc")
_LENGTH = struct.Struct("!Q")
#: The kind of a message that contains several.
_TOGETHER = b"&"


class WireError(EmberflowError):
    """A message of this run could not be sent or understood."""


def own_address(towards: str) -> str:
    """The address of this machine as a peer at ``tcp://host:port`` sees it."""
    host, _, port = towards.removeprefix("tcp://").rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))  # a datagram socket sends nothing here
        return str(probe.getsockname()[0])


class RunKeys(NamedTuple):
    """The keys of a run: one pair for all listening sockets, one for all connecting ones."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes

    @classmethod
    def made(cls) -> RunKeys:
        return cls(*zmq.curve_keypair(), *zmq.curve_keypair())

    def __repr__(self) -> str:
        return "RunKeys(...)"  # keys do not belong in a log


class _OnlyThisRun:
    """Accepts only the client key of this run."""

    def __init__(self, keys: RunKeys) -> None:
        self._key = keys.client_public

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._key


class Wire:
    """A process's end of the wire: its context, its authenticator and its sockets."""

    def __init__(self, keys: RunKeys, incarnation: int) -> None:
        self.incarnation = incarnation
        self._keys = keys
        self._by_value = False
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(
            domain="*", credentials_provider=_OnlyThisRun(keys)
        )
        self._sockets: list[zmq.Socket[bytes]] = []

    def listening(self, kind: int, host: str, port: int = 0) -> tuple[zmq.Socket[bytes], str]:
        """A listening socket and its address. Port 0 picks a free port."""
        listening = self._socket(kind)
        listening.curve_server = True
        listening.curve_publickey = self._keys.server_public
        listening.curve_secretkey = self._keys.server_secret
        if port:
            listening.bind(f"tcp://{host}:{port}")
        else:
            port = listening.bind_to_random_port(f"tcp://{host}")
        return listening, f"tcp://{host}:{port}"

    def connected(self, kind: int, address: str) -> zmq.Socket[bytes]:
        connected = self._socket(kind)
        connected.curve_serverkey = self._keys.server_public
        connected.curve_publickey = self._keys.client_public
        connected.curve_secretkey = self._keys.client_secret
        connected.connect(address)
        return connected

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.sndhwm = made.rcvhwm = MESSAGES_MAX
        made.sndtimeo = SEND_MS_MAX
        made.linger = LINGER_MS
        self._sockets.append(made)
        return made

    def encode(self, kind: bytes, body: Any) -> bytes:
        """A message: one byte for its kind, the incarnation, and the body.

        Other processes cannot find a class that a script or a notebook defines by its name. Payloads
        of such classes travel by value, as the flow itself does, and become instances of the class
        that came with the flow. That costs more, so it begins with the first such payload.
        """
        header = _HEADER.pack(self.incarnation, kind)
        if not self._by_value:
            try:
                return header + pickle.dumps(body, pickle.HIGHEST_PROTOCOL)
            except Exception:
                by_value = cloudpickle.dumps(body, pickle.HIGHEST_PROTOCOL)  # may raise as well
                self._by_value = True
                return header + bytes(by_value)
        return header + bytes(cloudpickle.dumps(body, pickle.HIGHEST_PROTOCOL))

    def together(self, messages: list[bytes]) -> bytes:
        """Several messages in one, which `decoded` splits again."""
        if len(messages) == 1:
            return messages[0]
        parts = [_HEADER.pack(self.incarnation, _TOGETHER)]
        for message in messages:
            parts += (_LENGTH.pack(len(message)), message)
        return b"".join(parts)

    def decoded(self, message: bytes) -> Iterator[tuple[bytes, Any]]:
        """Kinds and bodies of the messages in one, without those of another incarnation."""
        if message[_HEADER.size - 1 : _HEADER.size] != _TOGETHER:
            one = self.decode(message)
            if one is not None:
                yield one
            return
        whole = memoryview(message)
        begin = _HEADER.size
        while begin < len(whole):
            try:
                (length,) = _LENGTH.unpack_from(whole, begin)
            except struct.error as error:
                raise WireError(f"a message of {len(message)} bytes ends too early") from error
            begin += _LENGTH.size + length
            one = self.decode(whole[begin - length : begin])
            if one is not None:
                yield one

    def decode(self, message: bytes | memoryview) -> tuple[bytes, Any] | None:
        """Kind and body of a message; None for one of another incarnation."""
        try:
            incarnation, kind = _HEADER.unpack_from(message)
        except struct.error as error:
            raise WireError(f"a message of {len(message)} bytes has no header") from error
        if incarnation != self.incarnation:
            return None
        try:
            return kind, pickle.loads(memoryview(message)[_HEADER.size :])
        except Exception as error:
            raise WireError(
                f"a message of kind {kind!r} and {len(message)} bytes cannot be read: {error}. "
                f"Do all workers have the same packages and versions?"
            ) from error

    def close(self) -> None:
        for open_socket in self._sockets:
            open_socket.close()
        self._authenticator.stop()
        self._context.term()
