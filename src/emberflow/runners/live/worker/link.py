"""The link from a worker to the coordinator: control messages, one envelope a round.

What is guaranteed: **nothing overtakes an ack.** The link is FIFO, and whatever a worker sends goes
behind the acks that the link holds by then. So to the coordinator a held ack only looks like a slower
link.

Why acks are held: until a front here reports that it is past some elements, the minimal time does not
pass them, whatever is acked. So the ack of a batch waits for the report, or for the next message. That
saves a message for each batch, for the worker and for the driver.

Where workers have accounts (`engine.progress.accounts`), acks are entered there, and what is new of the account
is stated: with whatever is sent anyway, and alone so often that the driver gets no more than
`STATEMENTS_A_SECOND_MAX` from all workers. So what the driver does has a bound, however many workers and elements
there are.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import zmq

from emberflow.engine.messages import Ack, Dealt, Moment, Said, TurnXors, Xors
from emberflow.engine.progress.accounts import Account
from emberflow.errors import EmberflowError, StepError, shortened
from emberflow.runners.live.wire import protocol
from emberflow.runners.live.wire.links import Receiver, Sender, received_parts
from emberflow.runners.live.wire.sockets import Wire

T = TypeVar("T")

#: How long a worker waits for the others at the beginning; and until it takes over from one that works.
MEETING_SECONDS_MAX = 60.0
TAKEOVER_SECONDS_MAX = 600.0
_SILENCE_SECONDS_MAX = 20.0
#: From all workers. The driver takes some 60 µs for each.
STATEMENTS_A_SECOND_MAX = 4_000
#: Messages taken in one round: enough for a batch, few enough to look up in between.
MESSAGES_A_ROUND = 256


class CoordinatorGoneError(EmberflowError):
    """The driver has not been heard for too long."""


class CoordinatorLink:
    """The link of one worker."""

    def __init__(self, wire: Wire, address: str, worker: int) -> None:
        self.socket = wire.connected(zmq.DEALER, address)
        self._sender = Sender(wire, self.socket, worker, "the driver")
        self._receiver = Receiver(wire, f"worker {worker}")
        self._wire = wire
        self._address = address
        self._worker = worker
        #: What the next `flush` sends.
        self._outgoing: list[bytes] = []
        self._held_acks: list[Ack] = []
        #: What this worker has sent and others have not dealt with, if it has an account of that; whether there is
        #: something new of it, and whether that is to be stated soon.
        self.account: Account | None = None
        self._is_unstated = False
        self._states = False
        self._stated_at = 0.0
        self._statement_seconds = 0.0
        self._received: deque[tuple[bytes, Any]] = deque()
        self._heard_at = time.monotonic()

    # To the coordinator.

    @property
    def has_outgoing(self) -> bool:
        """Whether a low-priority message has something to be piggybacked on."""
        return bool(self._outgoing)

    @property
    def has_received(self) -> bool:
        """Whether messages of an envelope wait for the next round."""
        return bool(self._received)

    def send(self, kind: bytes, body: Any) -> None:
        """Send a message with the next `flush`."""
        self.send_encoded(self._wire.encode(kind, body))

    def send_encoded(self, message: bytes) -> None:
        self._release_acks()
        self._outgoing.append(message)

    def keep_account(self, workers: int) -> None:
        """Enter acks in an account from now on."""
        self.account = Account(self._worker, workers)
        self._statement_seconds = workers / STATEMENTS_A_SECOND_MAX

    def send_acks(self, acks: list[Ack], *, hold: bool) -> list[tuple[int, Dealt]]:
        """Send several acks as one: with the next `flush`, or held until the next message.

        If there is an account, they are entered there. Returns what other workers have to be told then.
        """
        if self.account is None:
            self._held_acks += acks
            if not hold:
                self._release_acks()
            return []
        new = [ack for ack in acks if ack]
        dealt = [each for ack in new for each in self.account.receive(ack)]
        self._is_unstated = self._is_unstated or bool(new)
        self._states = self._states or (self._is_unstated and (bool(dealt) or not hold))
        return dealt

    @property
    def has_news(self) -> bool:
        """Whether something new of the account is to be stated, for which others may wait."""
        return self._states

    def hear(self, dealt: Dealt) -> None:
        """Another worker has dealt with frames of this one."""
        assert self.account is not None
        self.account.hear(dealt)
        self._is_unstated = self._states = True

    def _release_acks(self) -> None:
        if self.account is not None and self._is_unstated:
            self._is_unstated = self._states = False
            statement = self.account.statement()
            if statement is not None:
                self._stated_at = time.monotonic()
                self._outgoing.append(self._wire.encode(protocol.ACK, statement))
        elif self._held_acks:
            acks, self._held_acks = self._held_acks, []
            ack = _one_ack(self._worker, acks)
            if ack:
                self._outgoing.append(self._wire.encode(protocol.ACK, ack))

    def send_failure(self, error: Exception) -> None:
        """Send an error at once; in a plainer form if it cannot be pickled."""
        try:
            self.send(protocol.FAILED, error)
        except Exception:  # a payload in it cannot be pickled, for example
            if isinstance(error, StepError):
                error.payload = shortened(error.payload)
                error.__cause__ = None
                self.send(protocol.FAILED, error)
            else:
                self.send(protocol.FAILED, EmberflowError(f"{type(error).__qualname__}: {error}"))
        self.flush()

    def flush(self) -> None:
        if self._states and time.monotonic() - self._stated_at >= self._statement_seconds:
            self._release_acks()
        if self._outgoing:
            outgoing, self._outgoing = self._outgoing, []
            self._sender.send(outgoing)

    # From the coordinator.

    def received(self) -> Iterator[tuple[bytes, Any]]:
        """The messages of this round. Who stops early gets the rest in the next round."""
        received = self._received
        for _ in range(MESSAGES_A_ROUND):
            if received:
                yield received.popleft()
                continue
            if not self._take():
                return

    def _take(self) -> bool:
        """Take an envelope, if there is one."""
        parts = received_parts(self.socket)
        if parts is None:
            return False
        self._heard_at = time.monotonic()
        envelope = self._receiver.opened(parts)
        if envelope is not None:
            self._received.extend(self._wire.decoded(envelope.content))
        return True

    def check(self, now: float) -> None:
        """Raises if the connection is lost, or the driver silent."""
        self._sender.look(now)
        if now - self._heard_at > _SILENCE_SECONDS_MAX:
            raise CoordinatorGoneError(
                f"worker {self._worker} has not heard the driver for {_SILENCE_SECONDS_MAX:.0f} s"
            )

    def awaited(
        self,
        is_over: Callable[[], bool] = lambda: False,
        seconds: float = MEETING_SECONDS_MAX,
    ) -> tuple[bytes, Any]:
        """Send what there is, and wait for the next message, unless the life is over."""
        self.flush()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if is_over():
                raise CoordinatorGoneError("the life was over before all workers had met")
            if self._received:
                return self._received.popleft()
            if self.socket.poll(100):
                self._take()
        raise CoordinatorGoneError(
            f"worker {self._worker} heard nothing from the driver at {self._address} for "
            f"{seconds:.0f} s. Can executors reach the driver's host?"
        )


def _one_ack(worker: int, acks: list[Ack]) -> Ack:
    """Several acks as one: xors are xored; of promises and numbers the last one counts."""
    if len(acks) == 1:
        return acks[0]
    anywhere: TurnXors = {}
    deeper: dict[int, TurnXors] = {}
    ranges: dict[int, Xors] = {}
    reports: dict[int, Moment] = {}
    said: dict[int, Said] = {}
    own: dict[int, dict[int, Xors]] = {}
    number = 0
    for ack in acks:
        _xor_into(anywhere, ack.anywhere)
        for level, by_turn in ack.deeper.items():
            _xor_into(deeper.setdefault(level, {}), by_turn)
        for host, xors in ack.ranges.items():
            _xor_into(ranges.setdefault(host, {}), xors)
        for owner, by_level in ack.own.items():
            tables = own.setdefault(owner, {})
            for level, xors in by_level.items():
                _xor_into(tables.setdefault(level, {}), xors)
        reports.update(ack.reports)
        said.update(ack.said)
        number = ack.number
    return Ack(worker, anywhere, ranges, reports, number, deeper, said, own)


def _xor_into(table: dict[T, int], xors: dict[T, int]) -> None:
    for moment, xor in xors.items():
        table[moment] = table.get(moment, 0) ^ xor
