"""The bridge: other processes send requests to a live query.

Spark runs the code of a data source in processes of its own, on the driver's machine and on executors.
They know the *address* of a bridge: an endpoint and a token. The bridge runs in the driver of the live
query and has *services*, by name; a service answers requests. A front that Structured Streaming feeds
has one, and so do a sink that it reads and a state.

What is guaranteed:

1. *Both sides look only at messages of peers that hold the token.* The keys of both sides are derived
   from it, and the sockets use CURVE, as those of the workers do (`wire.sockets`). A client with
   another token gets no further than the handshake, and gets another error than if nobody listens.
2. *No message runs code.* Messages are JSON and byte strings (`messages`). So a client need not trust
   the server whose address it was given, nor the server its clients.
3. *A peer without the token costs little.* Until the handshake is done, ZeroMQ keeps one frame of a
   peer at most, of limited size. The handshake has a short time limit, and so many peers at most can
   be in it (`strangers`).
4. *What a holder of the token sends is bounded too*: a frame, the requests in progress, a client's
   waiting messages. (ZeroMQ gathers all frames of a message before the bridge sees that it is too
   large.) A client waits for a limited time, and notices a lost connection.
5. *A request is answered once or not at all.* A client without an answer cannot know whether the
   request was served, and may retry. So services make their methods idempotent.

A request is ``[number, service, method, arguments]``, an answer ``[number, outcome, result]``. A message
travels in frames, because the limit of ZeroMQ is for a frame, and is the same before and after the
handshake.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from emberflow.errors import EmberflowError, InputError
from emberflow.runners.live.driver.cluster import ClusterError, CoordinatorAddress
from emberflow.runners.live.serving.messages import decoded, encoded, frames
from emberflow.runners.live.serving.strangers import Strangers
from emberflow.runners.live.wire.bell import Bell
from emberflow.runners.live.wire.sockets import WireKeys

#: The size of a request or an answer. Services send less.
MESSAGE_BYTES_MAX = 32 << 20
#: The size of a frame of it. A peer that sends a larger one is disconnected, known or not.
FRAME_BYTES_MAX = 256 << 10
#: What encryption adds to a frame, and more.
_FRAME_MARGIN = 1_024
#: Peers that may be in the handshake, and for how long.
STRANGERS_MAX = 128
HANDSHAKE_MS_MAX = 5_000
#: The size of one message of a longer answer.
CHUNK_BYTES = 4 << 20
#: Waiting messages of one client.
_MESSAGES_MAX = 16
#: Requests that are being served or wait; further ones get the answer to retry.
_UNDER_WAY_MAX = 64
_THREADS = 4
_POLL_MS = 200
_JOIN_SECONDS = 5.0
#: If no server has answered for so long, none will.
_CONNECT_SECONDS_MAX = 3.0
_BUSY_PAUSE_SECONDS = 0.05

_DONE, _INPUT, _FAILED, _BUSY = "done", "input", "failed", "busy"

_log = logging.getLogger("emberflow")


class BridgeError(EmberflowError):
    """A request to a live query failed."""


class BridgeAwayError(BridgeError):
    """The live query is not running, or does not answer."""


class BridgeRefusedError(BridgeError):
    """The server at the endpoint has another token."""


class Address(NamedTuple):
    """The endpoint of a live query's bridge, and its token."""

    endpoint: str
    token: str

    def __repr__(self) -> str:
        return f"Address({self.endpoint!r}, ...)"  # a token does not belong in a log


class Service(Protocol):
    """Answers requests, in any of several threads. `InputError` means that the request is wrong."""

    def serve(self, method: str, arguments: dict[str, Any]) -> Any: ...

    def close(self) -> None: ...


def keys_of(token: str) -> WireKeys:
    """The keys of both sides: digests of the token. Any 32 bytes are a secret key."""

    def pair(side: bytes) -> tuple[bytes, bytes]:
        digest = hashlib.blake2b(token.encode(), digest_size=32, person=side).digest()
        secret = zmq.utils.z85.encode(digest)
        return zmq.curve_public(secret), secret

    return WireKeys(*pair(b"emberflow server"), *pair(b"emberflow client"))


class _OnlyWithToken:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._key


class Bridge:
    """Serves until it is closed. Services are named, such as ``front docs``."""

    def __init__(
        self, services: Mapping[str, Service], *, query: str, place: CoordinatorAddress, token: str
    ) -> None:
        self._services = dict(services)
        self._query = query
        self._place = place
        keys = keys_of(token)
        self._context = zmq.Context()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(
            domain="*", credentials_provider=_OnlyWithToken(keys.client_public)
        )
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.sndhwm = self._socket.rcvhwm = _MESSAGES_MAX
        self._socket.linger = 0
        self._socket.maxmsgsize = FRAME_BYTES_MAX + _FRAME_MARGIN
        self._socket.handshake_ivl = HANDSHAKE_MS_MAX
        self._socket.curve_server = True
        self._socket.curve_publickey = keys.server_public
        self._socket.curve_secretkey = keys.server_secret
        self._strangers = Strangers(
            self._socket,
            connections_max=STRANGERS_MAX,
            handshake_seconds=HANDSHAKE_MS_MAX / 1_000,
        )
        try:
            self._port = port = self._bound()
        except zmq.ZMQError as error:
            self._release()
            raise ClusterError(
                f"the live query cannot listen for Structured Streaming on {place.listens_on}, "
                f"port {place.port or 'any'}: {error}. Set .option('bridgeHost', ...) to an address "
                f"of this machine, and to a port that is free."
            ) from error
        self.address = Address(f"tcp://{place.reached_at}:{port}", token)
        self._under_way = 0
        self._answers: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()
        self._bell = Bell()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="emberflow service")
        self._ended = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="emberflow bridge", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more requests. Closing again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._ended.set()
        self._bell.ring()
        self._thread.join(_JOIN_SECONDS)
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._bell.close()
        self._release()
        for service in self._services.values():
            service.close()

    def _bound(self) -> int:
        host, port = self._place.listens_on, self._place.port
        if not port:
            return int(self._socket.bind_to_random_port(f"tcp://{host}"))
        self._socket.bind(f"tcp://{host}:{port}")
        return port

    def _release(self) -> None:
        self._strangers.close()
        self._socket.close()
        self._authenticator.stop()
        self._context.term()

    # The thread that owns the socket.

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._strangers.monitor, zmq.POLLIN)
        poller.register(self._bell.fileno(), zmq.POLLIN)
        while not self._ended.is_set():
            self._bell.heard_in(poller.poll(_POLL_MS))
            self._strangers.count(self._port)
            self._take()
            while not self._answers.empty():
                self._send(*self._answers.get())
                self._under_way -= 1

    def _take(self) -> None:
        for _ in range(_UNDER_WAY_MAX):
            try:
                identity, *parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._strangers.heard(int(identity.get(zmq.SRCFD)))
            try:
                number, service, method, arguments = _joined(part.buffer for part in parts)
            except (ValueError, TypeError, RecursionError) as error:
                _log.warning("a request to live query %r cannot be read: %s", self._query, error)
                continue
            if self._under_way >= _UNDER_WAY_MAX:
                self._send(identity.bytes, encoded((number, _BUSY, None)))
                continue
            self._under_way += 1
            self._pool.submit(self._serve, identity.bytes, number, service, method, arguments)

    def _send(self, identity: bytes, answer: bytes) -> None:
        # An answer to a client that has left, or does not read, is dropped.
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send_multipart([identity, *frames(answer, FRAME_BYTES_MAX)], zmq.NOBLOCK)

    # The threads that serve.

    def _serve(
        self, identity: bytes, number: int, name: str, method: str, arguments: dict[str, Any]
    ) -> None:
        try:
            answer = encoded((number, _DONE, self._service(name).serve(method, arguments)))
            if len(answer) > MESSAGE_BYTES_MAX:
                raise InputError(
                    f"the answer has {len(answer):,} bytes, more than a message may have."
                )
        except InputError as error:
            answer = encoded((number, _INPUT, str(error)))
        except Exception as error:
            _log.warning("live query %r: %s failed to %s: %s", self._query, name, method, error)
            answer = encoded((number, _FAILED, f"{type(error).__qualname__}: {error}"))
        self._answers.put((identity, answer))
        self._bell.ring()

    def _service(self, name: str) -> Service:
        try:
            return self._services[name]
        except KeyError:
            kind, _, own = name.partition(" ")
            known = [other for other in self._services if other.startswith(f"{kind} ")]
            offered = ", ".join(repr(other.partition(" ")[2]) for other in known) or "none"
            raise InputError(
                f"live query {self._query!r} offers no {kind} {own!r} to Spark; it offers "
                f"{offered}. Give it as {_HOW.get(kind, 'a service')} when the query is started."
            ) from None


def _joined(parts: Iterable[Any]) -> Any:
    """The value of a message that came in frames."""
    message = b"".join(parts)
    if len(message) > MESSAGE_BYTES_MAX:
        raise ValueError(
            f"it has {len(message):,} bytes, and a message at most {MESSAGE_BYTES_MAX:,}"
        )
    return decoded(message)


_HOW = {
    "front": ".read(name=ef.fronts.Structured(...))",
    "sink": ".write(name=ef.sinks.Structured(...))",
    "state": "flow.state(name), or name a reduce with name=,",
}


class BridgeClient:
    """Sends requests to one live query. For one thread."""

    def __init__(self, address: Address, *, seconds: float = 30.0) -> None:
        self._address = address
        self._seconds = seconds
        self._numbers = itertools.count()
        keys = keys_of(address.token)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.sndhwm = self._socket.rcvhwm = _MESSAGES_MAX
        self._socket.linger = 0
        self._socket.maxmsgsize = FRAME_BYTES_MAX + _FRAME_MARGIN
        self._socket.curve_serverkey = keys.server_public
        self._socket.curve_publickey = keys.client_public
        self._socket.curve_secretkey = keys.client_secret
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_CONNECTED
            | zmq.EVENT_DISCONNECTED
            | zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> BridgeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Spark does not close all readers and writers, and an open context waits for its sockets
        # forever.
        with contextlib.suppress(Exception):
            self.close()

    def close(self) -> None:
        """Closing again does nothing."""
        if self._context.closed:
            return
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close()
        self._context.term()

    def ask(self, service: str, method: str, **arguments: Any) -> Any:
        """The answer of a service. Raises `InputError` if the request is wrong, else `BridgeError`."""
        deadline = time.monotonic() + self._seconds
        while True:
            number = next(self._numbers)
            request = encoded((number, service, method, arguments))
            if len(request) > MESSAGE_BYTES_MAX:
                raise InputError(
                    f"a request has {len(request):,} bytes, and a message at most "
                    f"{MESSAGE_BYTES_MAX:,}."
                )
            try:
                self._socket.send_multipart(list(frames(request, FRAME_BYTES_MAX)), zmq.NOBLOCK)
            except zmq.ZMQError as error:
                raise BridgeAwayError(
                    f"{self._address.endpoint} accepts no request: {error}."
                ) from error
            outcome, result = self._heard(number, deadline)
            if outcome == _DONE:
                return result
            if outcome == _INPUT:
                raise InputError(result)
            if outcome == _FAILED:
                raise BridgeError(f"the live query could not answer: {result}")
            time.sleep(_BUSY_PAUSE_SECONDS)

    def _connect(self) -> None:
        """Connect, and find out whether the server accepts the token before sending anything."""
        endpoint = self._address.endpoint
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise InputError(
                f"option 'endpoint' takes an address such as tcp://host:4321, got {endpoint!r}: "
                f"{error}."
            ) from error
        deadline = time.monotonic() + min(self._seconds, _CONNECT_SECONDS_MAX)
        connected = False
        while True:
            event = self._event(deadline)
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return
            if event is None:
                raise BridgeAwayError(
                    f"nobody answers at {endpoint}. Is the live query running, and can this machine "
                    f"reach that address?"
                )
            if event == zmq.EVENT_CONNECTED:
                connected = True
            elif connected:
                raise BridgeRefusedError(
                    f"the server at {endpoint} refuses this token. Take endpoint and token of the "
                    f"live query as it runs now: query.bridge has both."
                )

    def _event(self, deadline: float) -> int | None:
        """The next event of the connection; None if there is none before the deadline."""
        remaining = max(0.0, deadline - time.monotonic())
        if not self._monitor.poll(int(remaining * 1_000)):
            return None
        return int(recv_monitor_message(self._monitor)["event"])

    def _answer(self) -> tuple[int, str, Any]:
        try:
            answered, outcome, result = _joined(self._socket.recv_multipart())
        except (ValueError, TypeError, RecursionError) as error:
            raise BridgeError(
                f"the server at {self._address.endpoint} sends what is no answer of a live query: "
                f"{error}."
            ) from error
        return answered, outcome, result

    def _heard(self, number: int, deadline: float) -> tuple[str, Any]:
        while (remaining := deadline - time.monotonic()) > 0:
            ready = dict(self._poller.poll(int(remaining * 1_000) + 1))
            if self._socket in ready:
                answered, outcome, result = self._answer()
                if answered == number:
                    return outcome, result
            elif self._monitor in ready and (
                recv_monitor_message(self._monitor)["event"] == zmq.EVENT_DISCONNECTED
            ):
                raise BridgeAwayError(
                    f"the connection to the live query at {self._address.endpoint} was lost."
                )
        raise BridgeAwayError(
            f"the live query at {self._address.endpoint} has not answered for {self._seconds:g} s."
        )
