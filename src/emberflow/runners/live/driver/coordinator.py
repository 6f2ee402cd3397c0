"""The coordinator: a thread of the driver through which the workers of a query find each other.

It is the rendezvous, the acker, the home of sinks that live in the driver, and the one who knows
how things stand. Its life::

    meeting ──> restoring ──> running ──> halting ──> ending ──> over
                                 │           ^          ^          ^
                                 ├─ stop() ──┘          │          │
                                 ├─ fronts ended ───────┤ nothing is in flight
                                 └─ a failure ─────────────────────┘

*Running* begins when all workers have restored what they had to: what is scheduled was then acked,
and a front's report cannot overtake it.

*Ending* begins when no front will give anything more (ended, or halted) and no global time has an
entry: a front's last ack came before its worker said that it has halted, on the same FIFO link, so
then nothing is in flight. The last progress goes out, then 'end': workers store what is left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import zmq

from emberflow.engine.messages import BEFORE_ALL, Moment, Progress
from emberflow.engine.progress.acker import Acker
from emberflow.errors import EmberflowError, OnError
from emberflow.fronts.protocol import Front
from emberflow.graph.nodes import Graph
from emberflow.runners.diversion import sink_partitions
from emberflow.runners.live.driver.cluster import ClusterError, CoordinatorAddress
from emberflow.runners.live.driver.cuts import Committing
from emberflow.runners.live.driver.progress import Latencies
from emberflow.runners.live.wire import protocol
from emberflow.runners.live.wire.codec import unpacked_bundle
from emberflow.runners.live.wire.plan import WorkerNews, feeding_workers, front_indices
from emberflow.runners.live.wire.questions import Questions
from emberflow.runners.live.wire.sockets import RunKeys, Wire
from emberflow.sinks.protocol import sink_contract
from emberflow.sinks.writer import WriterThread

_POLL_MS = 5
_MEETING_SECONDS_MAX = 120.0
_SILENCE_SECONDS_MAX = 8.0
_HEARTBEAT_SECONDS = 1.0
#: So long the progress of ranges alone waits for that of all, and what is stored for any company.
_COMPANY_SECONDS = 0.004
_JOIN_SECONDS = 5.0
_MESSAGES_A_ROUND = 1_000


class WorkersMissingError(EmberflowError):
    """Not all workers have come, or one of them fell silent."""


class MismatchError(EmberflowError):
    """A worker runs another flow than the driver."""


class Coordinator:
    """Starts with `start`, ends by itself or after `stop`; `wait` tells when it is over."""

    def __init__(
        self,
        graph: Graph,
        *,
        workers: int,
        incarnation: int,
        keys: RunKeys,
        place: CoordinatorAddress,
        fronts: Mapping[str, Front],
        sinks: Mapping[str, Any],
        on_error: OnError = "fail",
        committing: Committing | None = None,
        since: Moment = BEFORE_ALL,
        history: int = 0,
    ) -> None:
        """``since`` is the moment of the cut to begin from; ``history`` is what queries look back."""
        self._graph = graph
        self.committing = committing
        self._workers = workers
        self._acker = Acker(workers=workers, fronts=front_indices(graph, fronts))
        #: Those who wait for what they took in to be settled.
        self._feeding = sorted(feeding_workers(graph, fronts, workers))
        self._writers: dict[tuple[str, int], WriterThread] = {}
        try:
            for name, partition in sink_partitions(graph, on_error):
                if sink_contract(sinks[name]).on_driver:
                    self._writers[name, partition] = WriterThread(sinks[name], name, partition)
        except BaseException:
            for writer in self._writers.values():
                writer.close(_JOIN_SECONDS)
            raise
        # Sinks that cannot be opened raise before there is a socket or a thread to be left behind.
        self._wire = Wire(keys, incarnation)
        try:
            self._socket, own = self._wire.listening(zmq.ROUTER, place.listens_on, place.port)
        except zmq.ZMQError as error:
            self._wire.close()
            raise ClusterError(
                f"the coordinator cannot listen on {place.listens_on}, port {place.port or 'any'}: "
                f"{error}. Set .option('coordinatorHost', ...) to an address of this machine."
            ) from error
        self.address = f"tcp://{place.reached_at}:{own.rpartition(':')[2]}"
        #: Who is told what is stored of each partition: the worker that holds its barrier.
        self._storing: dict[tuple[str, int], bytes] = {}
        self._identities: dict[int, bytes] = {}
        #: What is to be told to each worker at the end of the turn.
        self._telling: dict[bytes, list[bytes]] = {}
        #: What it can be told with that: since when, and what.
        self._waiting: dict[bytes, tuple[float, list[bytes]]] = {}
        self._addresses: dict[int, str] = {}
        self._heard_at: dict[int, float] = {}
        self._told: Progress | None = None
        self._told_at = 0.0
        self._stop_asked = threading.Event()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._done: set[int] = set()
        self._ready: dict[int, Moment | None] = {}
        self._last_cut_asked = False
        self.phase = "meeting"
        #: Whether all workers have come.
        self.met = False
        self.failure: BaseException | None = None
        self.news: dict[int, WorkerNews] = {}
        self.latencies = Latencies()
        self._settled_of = dict.fromkeys(range(workers), BEFORE_ALL)
        self._settled = BEFORE_ALL
        #: What is asked of the state.
        self.questions = Questions(workers, since=since, history=history)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self.questions.bell.fileno(), zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name="emberflow coordinator", daemon=True)

    # What the query asks.

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take nothing more in, let out what is final, then end."""
        self._stop_asked.set()

    def fail(self, error: BaseException) -> None:
        """Something outside went wrong: end now. The first failure is the one that counts."""
        with self._lock:
            if self.failure is None and not self._over.is_set():
                self.failure = error

    def wait(self, seconds: float | None) -> bool:
        return self._over.wait(seconds)

    @property
    def progress(self) -> Progress:
        return self._acker.progress

    @property
    def is_quiet(self) -> bool:
        """Whether all that was taken in is stored, as far as the last news say."""
        return (
            self._acker.entries == 0
            and len(self.news) == self._workers
            and all(news.waiting == 0 and news.unstored == 0 for news in self.news.values())
        )

    # The thread.

    def _run(self) -> None:
        begin = time.monotonic()
        try:
            while self.phase != "over":
                self._take()
                self._store()
                self._advance(time.monotonic() - begin)
                self._send_words()
                if self.failure is not None:
                    break
        except Exception as error:
            self.fail(error)
        finally:
            self.questions.end()
            self._tell_all(protocol.QUIT, None)
            self._send_words()
            for writer in self._writers.values():
                writer.close(_JOIN_SECONDS)
            if self.committing is not None:
                self.committing.close(_JOIN_SECONDS)
            self._wire.close()
            self.phase = "over"
            self._over.set()

    def _take(self) -> None:
        ready = self._poller.poll(_POLL_MS)
        if not ready:
            return
        self.questions.bell.heard_in(ready)
        for _ in range(_MESSAGES_A_ROUND):
            try:
                identity, message = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            for kind, body in self._wire.decoded(message):
                self._hear(identity, kind, body)

    def _hear(self, identity: bytes, kind: bytes, body: Any) -> None:
        if kind == protocol.ACK:
            self._acker.receive(body)
            self._heard_at[body.worker] = time.monotonic()
        elif kind == protocol.ANSWERS:
            self._ask(self.questions.heard(body))
        elif kind == protocol.SETTLED:
            worker, settled = body
            self._settled_of[worker] = settled
        elif kind == protocol.CAPTURED:
            assert self.committing is not None
            self.committing.captured(body)
        elif kind == protocol.NEWS:
            self._keep(body)
        elif kind == protocol.BUNDLE:
            bundle = unpacked_bundle(body)
            self._writers[bundle.sink, bundle.partition].store(bundle)
            self._storing[bundle.sink, bundle.partition] = identity
        elif kind == protocol.HELLO:
            self._meet(identity, *body)
        elif kind == protocol.READY:
            self._hear_ready(*body)
        elif kind == protocol.DONE:
            self._done.add(body[0])
            self._keep(body[1])
        elif kind == protocol.BEAT:
            self._heard_at[body] = time.monotonic()
        elif kind == protocol.FAILED:
            self.fail(body)

    def _keep(self, news: WorkerNews) -> None:
        self.news[news.worker] = news
        self._heard_at[news.worker] = time.monotonic()
        self.latencies.note(news.latencies_ms)

    def _meet(self, identity: bytes, worker: int, fingerprint: int, address: str) -> None:
        if fingerprint != self._graph.fingerprint:
            raise MismatchError(
                f"worker {worker} has a flow of fingerprint {fingerprint:#x}, the driver one of "
                f"{self._graph.fingerprint:#x}. Do executors import another version of the flow?"
            )
        self._identities[worker] = identity
        self._addresses[worker] = address
        self._heard_at[worker] = time.monotonic()
        if len(self._addresses) == self._workers:
            delivered = self._delivered()
            addresses = [self._addresses[index] for index in range(self._workers)]
            self._tell_all(protocol.PEERS, (addresses, delivered))
            self.phase = "restoring"
            self.met = True

    def _hear_ready(self, worker: int, last: Moment | None) -> None:
        self._heard_at[worker] = time.monotonic()
        self._ready[worker] = last
        if len(self._ready) == self._workers:
            lasts = [*self._ready.values(), *self._delivered().values()]
            self._tell_all(
                protocol.START, max((at for at in lasts if at is not None), default=None)
            )
            self.phase = "running"

    def _delivered(self) -> dict[tuple[str, int], Moment]:
        """What the sinks here have from earlier: the barriers will not give it again."""
        lasts = {key: writer.last() for key, writer in self._writers.items()}
        return {key: last for key, last in lasts.items() if last is not None}

    def _store(self) -> None:
        for partition, identity in list(self._storing.items()):
            if bundles := self._writers[partition].stored():
                self._tell_sometime(identity, protocol.STORED, (partition, bundles))

    def _advance(self, seconds: float) -> None:
        if self.phase == "meeting":
            if seconds > _MEETING_SECONDS_MAX:
                missing = sorted(set(range(self._workers)) - set(self._addresses))
                raise WorkersMissingError(
                    f"workers {missing} of {self._workers} have not come within "
                    f"{_MEETING_SECONDS_MAX:.0f} s. Are there slots for all of them at once?"
                )
            return
        self._check_silence()
        self._tell_progress()
        if self.phase == "restoring":
            return
        self._ask(self.questions.taken())
        self._tell_settled()
        self._cut()
        if self.phase == "running" and self._stop_asked.is_set():
            self._tell_all(protocol.HALT, None)
            self.phase = "halting"
        if (
            self.phase in ("running", "halting")
            and self._nothing_more()
            and self._last_cut_is_made()
        ):
            self._tell_progress(at_once=True)
            self._tell_all(protocol.END, self._last_moment())
            self.phase = "ending"
        if self.phase == "ending" and len(self._done) == self._workers:
            self.phase = "over"

    def _cut(self, *, now: bool = False) -> None:
        if self.committing is None:
            return
        manifest = self.committing.committed(self._settled)
        if manifest is not None:
            self._tell_all(protocol.COMMITTED, manifest.time)
        order = self.committing.due(self._acker.progress.of_all(), now=now)
        if order is not None:
            self._tell_progress(at_once=True)  # on the same link, just before
            self._tell_all(protocol.CUT, order)

    def _last_cut_is_made(self) -> bool:
        """What is left when all is stored is one more cut: who starts again has nothing to repeat."""
        if self.committing is None:
            return True
        if not self._last_cut_asked and self.committing.is_idle:
            self._last_cut_asked = True
            self._cut(now=True)
        return self._last_cut_asked and self.committing.is_idle

    def _nothing_more(self) -> bool:
        return (
            len(self.news) == self._workers
            and all(news.halted for news in self.news.values())
            and self._acker.entries == 0
        )

    def _check_silence(self) -> None:
        now = time.monotonic()
        for worker, heard_at in self._heard_at.items():
            if now - heard_at > _SILENCE_SECONDS_MAX:
                raise WorkersMissingError(
                    f"worker {worker} has been silent for {_SILENCE_SECONDS_MAX:.0f} s"
                )

    def _tell_progress(self, *, at_once: bool = False) -> None:
        """Tell how far things are, if that is news; and again from time to time, by which workers know
        that the driver is alive.

        Where only what is bound for barriers has come further, those who hold them know it already
        (`engine.progress.receipts`), and it can wait for company.
        """
        progress, told, now = self._acker.progress, self._told, time.monotonic()
        if told is not None and progress.turn == told.turn:
            waits = _HEARTBEAT_SECONDS
            if progress.ranges != told.ranges:
                waits = 0.0 if at_once else _COMPANY_SECONDS
            if now - self._told_at < waits:
                return
        self._told, self._told_at = progress, now
        kept = self.questions.kept_at(progress)
        self._tell_all(protocol.PROGRESS, progress._replace(kept=kept))
        self._ask(self.questions.told(progress, kept))

    def _ask(self, messages: list[tuple[int, Any]]) -> None:
        """Tell workers what is asked of them, all of it in one message each."""
        by_worker: dict[int, list[Any]] = {}
        for worker, message in messages:
            by_worker.setdefault(worker, []).append(message)
        for worker, own in by_worker.items():
            self._tell(self._identities[worker], protocol.ASK, own)

    def _tell_settled(self) -> None:
        settled = self._settled_now()
        if settled > self._settled:
            self._settled = settled
            for worker in self._feeding:
                self._tell_sometime(self._identities[worker], protocol.SETTLED, settled)

    def _settled_now(self) -> Moment:
        """All output below this is stored."""
        return min(self._acker.progress.of_all(), *self._settled_of.values())

    def _last_moment(self) -> Moment:
        """What is settled when nothing is left."""
        return self._acker.progress.of_all()

    def _tell_all(self, kind: bytes, body: Any) -> None:
        if self._identities:
            message = self._wire.encode(kind, body)
            for identity in self._identities.values():
                self._telling.setdefault(identity, []).append(message)

    def _tell(self, identity: bytes, kind: bytes, body: Any) -> None:
        """Tell a worker, with all else of this turn (see `_send_words`)."""
        self._telling.setdefault(identity, []).append(self._wire.encode(kind, body))

    def _tell_sometime(self, identity: bytes, kind: bytes, body: Any) -> None:
        """Tell a worker what it does not wait for, with the next that it does, or soon alone."""
        _, waiting = self._waiting.setdefault(identity, (time.monotonic(), []))
        waiting.append(self._wire.encode(kind, body))

    def _send_words(self) -> None:
        telling, self._telling = self._telling, {}
        if self._waiting:
            latest = time.monotonic() - _COMPANY_SECONDS
            for identity, (since, waiting) in list(self._waiting.items()):
                if identity in telling or since <= latest:
                    telling.setdefault(identity, []).extend(waiting)
                    del self._waiting[identity]
        for identity, messages in telling.items():
            self._socket.send_multipart([identity, self._wire.together(messages)])
