"""ZeroMQ sockets that accept messages of this run's own processes only.

What is guaranteed: **a process deserializes only messages of peers that hold this run's keys.** Keys
are made for each run and travel in the closure that Spark ships. Every listening socket is a CURVE
server, and the authenticator of its process accepts one client key only; every connecting socket proves
that it has that key and checks the server's. Everything is encrypted. A peer without the keys gets no
further than the handshake, and none of its messages reaches us.

Until the handshake is done, a peer can cost us little: no part of a message may be larger than
``PART_BYTES_MAX`` (large messages travel in several parts), a handshake takes ``HANDSHAKE_MS_MAX`` at
the most, and a listening socket has no more than ``STRANGERS_MAX`` connections beyond those of this
run's processes (`Doorkeeper`).

An *envelope* is what travels: the incarnation of the set of workers, the link, the number of the
envelope on its link, and one or several messages, because waking up the receiver costs more than
reading one. The receiver drops envelopes of another incarnation unread: they come from a worker that
has not yet noticed that its life is over. `wire.links` checks the numbers.

Buffers have a bound (``MESSAGES_MAX``), and a send that blocks past its time limit raises.
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
from emberflow.runners.live.wire.doorkeeper import Doorkeeper

#: The number of envelopes in a socket's buffer, in each direction.
MESSAGES_MAX = 10_000
#: If a send blocks for so long, the peer is gone.
SEND_MS_MAX = 30_000
LINGER_MS = 1_000
_JOIN_SECONDS = 5.0

#: What a peer can make us allocate at once before it is known, and how long it may take to prove itself.
PART_BYTES_MAX = 1 << 20
HANDSHAKE_MS_MAX = 5_000
#: Connections to a listening socket beyond those of this run's own processes.
STRANGERS_MAX = 64
#: A connection on which the peer does not answer for so long is closed.
_PING_MS = 2_000
_PING_ANSWER_MS_MAX = 8_000
#: What encryption adds to a part.
_PART_OVERHEAD = 1 << 10

_ENVELOPE = struct.Struct("!QIQ")
_LENGTH = struct.Struct("!Q")
#: The kind of a message that contains several.
_TOGETHER = b"&"


class WireError(EmberflowError):
    """A message of this query could not be sent or understood."""


def own_address(towards: str) -> str:
    """The address of this machine as a peer at ``tcp://host:port`` sees it."""
    host, _, port = towards.removeprefix("tcp://").rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))  # a datagram socket sends nothing here
        return str(probe.getsockname()[0])


class WireKeys(NamedTuple):
    """The keys of a query: one pair for all listening sockets, one for all connecting ones."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes

    @classmethod
    def made(cls) -> WireKeys:
        return cls(*zmq.curve_keypair(), *zmq.curve_keypair())

    def __repr__(self) -> str:
        return "WireKeys(...)"  # keys do not belong in a log


class Envelope(NamedTuple):
    """What travels between two processes: some messages, and where they belong."""

    link: int  # by which the receiver tells its senders apart
    number: int  # of the envelope on its link
    content: memoryview  # see `Wire.decoded`


class _OnlyThisQuery:
    """Accepts only the client key of this query."""

    def __init__(self, keys: WireKeys) -> None:
        self._key = keys.client_public

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._key


class Wire:
    """A process's end of the wire: its context, its authenticator and its sockets."""

    def __init__(self, keys: WireKeys, incarnation: int) -> None:
        self.incarnation = incarnation
        self._keys = keys
        self._by_value = False
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(
            domain="*", credentials_provider=_OnlyThisQuery(keys)
        )
        self._sockets: list[zmq.Socket[bytes]] = []
        self._monitors: list[tuple[zmq.Socket[bytes], zmq.Socket[Any]]] = []
        self._doorkeepers: list[Doorkeeper] = []

    def listening(
        self, kind: int, host: str, port: int = 0, *, peers: int = 1
    ) -> tuple[zmq.Socket[bytes], str]:
        """A listening socket for so many peers, and its address. Port 0 picks a free port."""
        listening = self._socket(kind)
        listening.curve_server = True
        listening.curve_publickey = self._keys.server_public
        listening.curve_secretkey = self._keys.server_secret
        if port:
            listening.bind(f"tcp://{host}:{port}")
        else:
            port = listening.bind_to_random_port(f"tcp://{host}")
        self._doorkeepers.append(Doorkeeper(listening, port, peers + STRANGERS_MAX))
        return listening, f"tcp://{host}:{port}"

    def admit(self, more: int) -> None:
        """Let so many more peers connect to the sockets that listen."""
        for doorkeeper in self._doorkeepers:
            doorkeeper.connections_max += more

    def connected(self, kind: int, address: str) -> zmq.Socket[bytes]:
        connected = self._socket(kind)
        connected.curve_serverkey = self._keys.server_public
        connected.curve_publickey = self._keys.client_public
        connected.curve_secretkey = self._keys.client_secret
        connected.heartbeat_ivl = _PING_MS
        connected.heartbeat_timeout = _PING_ANSWER_MS_MAX
        connected.connect(address)
        return connected

    def monitor(self, socket: zmq.Socket[bytes], events: int) -> zmq.Socket[Any]:
        """A socket that gets these events of another one."""
        monitor = socket.get_monitor_socket(events)
        self._monitors.append((socket, monitor))
        return monitor

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.sndhwm = made.rcvhwm = MESSAGES_MAX
        made.sndtimeo = SEND_MS_MAX
        made.linger = LINGER_MS
        made.maxmsgsize = PART_BYTES_MAX + _PART_OVERHEAD
        made.handshake_ivl = HANDSHAKE_MS_MAX
        self._sockets.append(made)
        return made

    def encode(self, kind: bytes, body: Any) -> bytes:
        """A message: one byte for its kind, and the body.

        Other processes cannot find a class that a script or a notebook defines by its name. Payloads
        of such classes travel by value, as the flow itself does, and become instances of the class
        that came with the flow. That costs more, so it begins with the first such payload.
        """
        if not self._by_value:
            try:
                return kind + pickle.dumps(body, pickle.HIGHEST_PROTOCOL)
            except Exception:
                by_value = cloudpickle.dumps(body, pickle.HIGHEST_PROTOCOL)  # may raise as well
                self._by_value = True
                return kind + bytes(by_value)
        return kind + bytes(cloudpickle.dumps(body, pickle.HIGHEST_PROTOCOL))

    def envelope(self, link: int, number: int, messages: list[bytes]) -> list[bytes | memoryview]:
        """The parts of an envelope with some messages."""
        parts = [_ENVELOPE.pack(self.incarnation, link, number)]
        if len(messages) == 1:
            parts += messages
        else:
            parts.append(_TOGETHER)
            for message in messages:
                parts += (_LENGTH.pack(len(message)), message)
        whole = b"".join(parts)
        if len(whole) <= PART_BYTES_MAX:
            return [whole]
        view = memoryview(whole)
        return [view[at : at + PART_BYTES_MAX] for at in range(0, len(view), PART_BYTES_MAX)]

    def opened(self, parts: list[bytes]) -> Envelope | None:
        """The envelope; None for one of another incarnation."""
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            incarnation, link, number = _ENVELOPE.unpack_from(whole)
        except struct.error as error:
            raise WireError(f"a message of {len(whole)} bytes has no header") from error
        if incarnation != self.incarnation:
            return None
        return Envelope(link, number, memoryview(whole)[_ENVELOPE.size :])

    def decoded(self, content: bytes | memoryview) -> Iterator[tuple[bytes, Any]]:
        """Kinds and bodies of the messages in an envelope."""
        if content[:1] != _TOGETHER:
            yield self.decode(content)
            return
        begin = 1
        while begin < len(content):
            try:
                (length,) = _LENGTH.unpack_from(content, begin)
            except struct.error as error:
                raise WireError(f"a message of {len(content)} bytes ends too early") from error
            begin += _LENGTH.size + length
            yield self.decode(content[begin - length : begin])

    def decode(self, message: bytes | memoryview) -> tuple[bytes, Any]:
        """Kind and body of a message."""
        kind = bytes(message[:1])
        try:
            return kind, pickle.loads(memoryview(message)[1:])
        except Exception as error:
            raise WireError(
                f"a message of kind {kind!r} and {len(message)} bytes cannot be read: {error}. "
                f"Do all workers have the same packages and versions?"
            ) from error

    def close(self) -> None:
        for doorkeeper in self._doorkeepers:
            doorkeeper.close(_JOIN_SECONDS)
        for monitored, monitor in self._monitors:
            monitored.disable_monitor()
            monitor.close(linger=0)
        for open_socket in self._sockets:
            open_socket.close()
        self._authenticator.stop()
        self._context.term()
