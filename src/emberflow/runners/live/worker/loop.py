"""The worker's loop: one process, one engine worker, one thread that owns the sockets.

Each round takes what is there (frames of other workers, words of the coordinator, elements of the
fronts it feeds), runs the engine once over all of it, and sends what came of it: frames first, then
all that it has to tell the coordinator, in one message. What came of frames and words goes out before
elements are taken: others wait for it, and nobody yet for what comes next. When a round finds nothing,
the next one waits for the sockets and for whatever its threads have (see `bell`), a millisecond at most.

A worker begins by restoring its range of the cut that its life begins from, and says that it is
ready; fronts begin when all are. Cuts are captured at the end of a round, when what the progress to
their moment let go has been handed to the stores (see `engine.cuts.cut`, `cut_writer`).
"""

from __future__ import annotations

import os
import time
from collections import deque
from itertools import islice
from typing import Any, TypeVar

import zmq

from emberflow.checkpoint.cuts.lists import SavedLists
from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.checkpoint.cuts.rows import SCHEDULED
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.logs.front_log import FrontLogWriter
from emberflow.engine.cuts.cut import Row, Scheduled
from emberflow.engine.layout import Layout
from emberflow.engine.messages import (
    AFTER_ALL,
    BEFORE_ALL,
    Ack,
    Effects,
    Frame,
    Moment,
    Progress,
    TurnXors,
    Xors,
)
from emberflow.engine.worker.routing import barrier_host, front_host
from emberflow.engine.worker.worker import Worker
from emberflow.errors import ERRORS_SINK, EmberflowError, StepError, shortened
from emberflow.fronts.protocol import front_contract
from emberflow.runners.interpreter import serving
from emberflow.runners.live.wire import protocol
from emberflow.runners.live.wire.bell import Bell
from emberflow.runners.live.wire.codec import packed, unpacked_frame
from emberflow.runners.live.wire.heartbeat import Heartbeat
from emberflow.runners.live.wire.plan import Plan, WorkerNews
from emberflow.runners.live.wire.questions import Answering
from emberflow.runners.live.wire.sockets import Wire, WireError, own_address
from emberflow.runners.live.worker.cut_writer import Capturing, CutOrder
from emberflow.runners.live.worker.diverted import fit_to_travel
from emberflow.runners.live.worker.feed import Feed
from emberflow.runners.live.worker.journal import Journal
from emberflow.runners.live.worker.reader import Beginning
from emberflow.runners.live.worker.store import Store
from emberflow.sinks.protocol import StoredBundle, sink_contract
from emberflow.sinks.writer import WriterThread
from emberflow.values.item import front_index
from emberflow.values.shares import range_in

T = TypeVar("T")

#: However idle it is: a front that takes the time of arrival promises the present in every round.
_IDLE_MS = 1
_NEWS_SECONDS = 0.25
_RENDEZVOUS_MS_MAX = 60_000
_SILENCE_SECONDS_MAX = 20.0
#: Messages taken in one round: enough for a batch, few enough to look up in between.
_MESSAGES_A_ROUND = 256
#: Fronts wait while this many final items wait for sinks here.
_UNSTORED_MAX = 200_000
_JOIN_SECONDS = 5.0
#: Rows of a cut that are restored at once.
ROWS_AT_ONCE = 2_000
#: Of how many keys the sizes are looked at for the news: more would hold up the loop.
_KEYS_LOOKED_AT = 10_000
#: How long a thread of the worker may keep the interpreter when another one wants it.
_SWITCH_SECONDS = 0.0005
#: What nobody waits for goes with what somebody does, and alone no more often than this.
_COMPANY_SECONDS = 0.005


class CoordinatorGoneError(EmberflowError):
    """The driver has not been heard for too long."""


class WorkerLoop:
    """Runs until the coordinator says that it is over, or something fails."""

    def __init__(self, plan: Plan, index: int) -> None:
        self.plan = plan
        self.index = index
        self._wire = Wire(plan.keys, plan.incarnation)
        self._frames_in, self._address = self._wire.listening(
            zmq.PULL, own_address(plan.coordinator)
        )
        self._coordinator = self._wire.connected(zmq.DEALER, plan.coordinator)
        self._heartbeat = Heartbeat(self._wire, plan.coordinator, index)
        #: What is to be told to the coordinator at the end of the round, and what it has told us.
        self._telling: list[bytes] = []
        #: Acks that wait for company: see `_do`.
        self._held_acks: list[Ack] = []
        self._told: deque[tuple[bytes, Any]] = deque()
        self._peers: dict[int, zmq.Socket[bytes]] = {}
        #: Rung by the threads that have something for the loop.
        self._bell = Bell()
        self._poller = zmq.Poller()
        for waited_for in (self._frames_in, self._coordinator, self._bell.fileno()):
            self._poller.register(waited_for, zmq.POLLIN)
        self._feeds: list[Feed] = []
        self._stores: dict[tuple[str, int], Store] = {}
        self._writers: dict[tuple[str, int], WriterThread] = {}
        self._latencies: list[tuple[float, int]] = []
        self._settled_told = BEFORE_ALL
        self._settled_told_at = 0.0
        self._settled_heard = BEFORE_ALL
        self._capturing: Capturing | None = None
        self._cut: CutOrder | None = None
        self._answering: Answering | None = None
        self._fronts_begun = False
        self._ending = False
        self._last_minimal = AFTER_ALL
        self._done = False
        self._quit = False
        self._news_at = 0.0
        self._heard_at = time.monotonic()

    def run(self) -> None:
        try:
            self._heartbeat.start()
            self._meet()
            with serving(_SWITCH_SECONDS) as collector:
                self._restore()
                while not self._quit:
                    if not self._round():
                        self._wait()
                    collector.look()
        except Exception as error:
            self._tell_failure(error)
            raise
        finally:
            for feed in self._feeds:
                feed.join(_JOIN_SECONDS)
            for writer in self._writers.values():
                writer.close(_JOIN_SECONDS)
            if self._capturing is not None:
                self._capturing.close(_JOIN_SECONDS)
            self._heartbeat.close(_JOIN_SECONDS)
            self._bell.close()
            self._wire.close()

    # Rendezvous.

    def _meet(self) -> None:
        """Listen first, then say where, then hear where the others are."""
        plan = self.plan
        for sink, partition in self._own_partitions():
            if plan.sinks[sink] is not None:
                self._writers[sink, partition] = WriterThread(
                    plan.sinks[sink], sink, partition, ring=self._bell.ring
                )
        self._tell(protocol.HELLO, (self.index, plan.graph.fingerprint, self._address))
        kind, body = self._expect()
        if kind != protocol.PEERS:
            raise WireError(f"worker {self.index} expected its peers and heard {kind!r}")
        addresses, delivered = body
        delivered = {**delivered, **self._last_of_writers()}
        for index, address in enumerate(addresses):
            if index != self.index:
                self._peers[index] = self._wire.connected(zmq.PUSH, address)
        self._worker = self._made_worker(delivered)
        if plan.ordering == "time":
            self._answering = Answering(self.index, self._worker.reading, self._reached)
        for sink, partition in self._own_partitions():
            given = plan.sinks[sink]  # None if it is on the driver
            places = given is not None and sink_contract(given).places
            self._stores[sink, partition] = Store(sink, partition, places=places)
        self._feeds = list(self._made_feeds())

    def _made_worker(self, delivered: dict[tuple[str, int], Moment]) -> Worker:
        plan = self.plan
        return Worker(
            Layout(plan.graph, on_error=plan.on_error),
            self.index,
            plan.workers,
            incarnation=plan.incarnation,
            delivered=delivered,
            shares=plan.shares,
        )

    def _last_of_writers(self) -> dict[tuple[str, int], Moment]:
        """What the sinks here have from earlier: the barriers will not give it again."""
        lasts = {key: writer.last() for key, writer in self._writers.items()}
        return {key: last for key, last in lasts.items() if last is not None}

    def _own_partitions(self) -> list[tuple[str, int]]:
        errors = self.plan.on_error == "divert" and self.index == 0
        return ([(ERRORS_SINK, 0)] if errors else []) + [
            (sink.name, partition)
            for sink in self.plan.graph.sinks.values()
            for partition in range(sink.partitions)
            if barrier_host(sink, partition, self.plan.workers) == self.index
        ]

    def _made_feeds(self) -> list[Feed]:
        plan = self.plan
        fronts = plan.graph.fronts
        return [
            Feed(
                name,
                node.id,
                plan.fronts[name],
                partition,
                index,
                plan.credit,
                step=str(node),
                diverts=plan.on_error == "divert",
                journal=self._journal(name, partition, index),
                ring=self._bell.ring,
            )
            for name, node in fronts.items()
            for partition in range(plan.fronts[name].partitions)
            for index in [front_index(node.index, len(fronts), partition)]
            if front_host(index, plan.workers) == self.index
        ]

    def _reached(self) -> Moment:
        """All that the fronts here have let in is below this."""
        return max((feed.gate.reached for feed in self._feeds), default=BEFORE_ALL)

    def _journal(self, front: str, partition: int, index: int) -> Journal | None:
        """The journal of a front that may choose what its source does not know."""
        plan = self.plan
        contract = front_contract(plan.fronts[front])
        if plan.checkpoint is None or plan.guarantee == "at-least-once":
            return None
        if not contract.chooses:
            return None
        log = FrontLogWriter(
            plan.checkpoint, front, partition, plan.incarnation, payloads=not contract.replayable
        )
        return Journal(log, f"{front} {partition}", index, ring=self._bell.ring)

    # Restoring.

    def _restore(self) -> None:
        """Take over this worker's range of the cut to begin from, and say that it is ready."""
        plan = self.plan
        if plan.checkpoint is not None:
            store = CheckpointStore(plan.checkpoint)
            self._capturing = Capturing(store, self.index, plan.incarnation)
            if plan.restored is not None:
                self._restore_from(store, plan.restored, self._capturing.lists)
        lasts = self._last_of_writers().values()
        self._tell(protocol.READY, (self.index, max(lasts, default=None)))
        self._send_words()

    def _restore_from(self, store: CheckpointStore, cut: Manifest, lists: SavedLists) -> None:
        own = range_in(self.plan.shares, self.index)
        rows = store.rows(cut, own.low, own.high, lists=lists)
        while chunk := [Row._make(row) for row in islice(rows, ROWS_AT_ONCE)]:
            self._do([self._worker.restore(cut.time, chunk, [])])
        scheduled = store.rows(cut, own.low, own.high, kind=SCHEDULED)
        while items := [Scheduled._make(row) for row in islice(scheduled, ROWS_AT_ONCE)]:
            self._do([self._worker.restore(cut.time, [], items)])

    def _begin_fronts(self, last: Moment | None) -> None:
        """All workers are ready. ``last`` is the greatest global time that any sink has."""
        self._fronts_begun = True
        cut = self.plan.restored
        for feed in self._feeds:
            position = cut.positions.get(feed.name, {}).get(feed.partition) if cut else None
            moment = cut.time if cut else BEFORE_ALL
            until = None
            if self.plan.guarantee == "at-most-once":
                until = BEFORE_ALL if last is None else last
            joins_at = BEFORE_ALL if last is None else last
            if self.plan.incarnation == 1:  # nobody was here before: there is nothing to join
                joins_at = BEFORE_ALL
            # Every cut of a live query names all its fronts. One that does not is a backfill's,
            # which had all below it, and was not told where in the source that ends.
            passes_over = cut is not None and feed.name not in cut.positions
            feed.start(Beginning(position, moment, until, joins_at, passes_over))

    def _expect(self) -> tuple[bytes, Any]:
        self._send_words()
        deadline = time.monotonic() + _RENDEZVOUS_MS_MAX / 1_000
        while time.monotonic() < deadline:
            if self._told:
                return self._told.popleft()
            if self._coordinator.poll(100):
                self._told.extend(self._wire.decoded(self._coordinator.recv()))
        raise CoordinatorGoneError(
            f"worker {self.index} heard nothing from the driver at {self.plan.coordinator} for "
            f"{_RENDEZVOUS_MS_MAX // 1_000} s. Can executors reach the driver's host?"
        )

    # A round.

    def _wait(self) -> None:
        self._bell.heard_in(self._poller.poll(_IDLE_MS))

    def _round(self) -> bool:
        effects = [*self._take_frames(), *self._take_words()]
        self._do(effects)
        if any(map(_is_waited_for, effects)):  # and nobody waits yet for what comes next
            self._store()
            self._send_words()
        elements = self._take_elements()
        self._do(elements, reports_follow=any(feed.owes_report for feed in self._feeds))
        self._store()
        self._send_words()
        effects += elements
        # Nobody waits for that, nor for what follows.
        self._worker.tidy(is_waited_for=self._is_waited_for())
        self._go_on_with_cut(loop_is_busy=bool(effects))
        self._answer()
        self._tell_news()
        self._send_words()
        return (
            bool(effects)
            or (self._capturing is not None and self._capturing.is_busy)
            or (self._answering is not None and self._answering.is_busy)
        )

    def _is_waited_for(self) -> bool:
        """Whether there is something for the next round already."""
        sockets = (self._frames_in, self._coordinator)
        return any(int(socket.get(zmq.EVENTS)) & zmq.POLLIN for socket in sockets) or any(
            feed.waiting for feed in self._feeds
        )

    def _do(self, effects: list[Effects], *, reports_follow: bool = False) -> None:
        """Send frames first, then one ack, then hand on what is final.

        Until a front here reports that it is past some elements, the minimal time does not pass them,
        whatever is acked. So their acks wait for the report, or for whatever else is told: a message
        less for each batch, for us and for the driver. To the driver the link is slower for a moment,
        no more: nothing is told ahead of an ack that is held (`_say`).
        """
        if not effects:
            return
        for effect in effects:
            self._send_frames(effect)
        acks = [effect.ack for effect in effects]
        self._held_acks += acks
        if not reports_follow or any(ack.reports for ack in acks):
            self._tell_acks()
        for effect in effects:
            for bundle in effect.bundles:
                self._stores[bundle.sink, bundle.partition].add(bundle)
            if effect.failure is not None:
                raise effect.failure

    def _go_on_with_cut(self, *, loop_is_busy: bool) -> None:
        capturing = self._capturing
        if capturing is None:
            return
        if self._cut is not None:
            positions = {(feed.name, feed.partition): feed.gate.position for feed in self._feeds}
            capturing.begin(self._worker, self._cut, positions)
            self._cut = None
        captured = capturing.go_on(loop_is_busy=loop_is_busy)
        if captured is not None:
            self._tell(protocol.CAPTURED, captured)

    def _answer(self) -> None:
        if self._answering is not None:
            answers = self._answering.answers()
            if answers:
                self._tell(protocol.ANSWERS, answers)

    def _take_frames(self) -> list[Effects]:
        frames: list[Frame] = []
        items = 0
        for _ in range(_MESSAGES_A_ROUND):  # those of other incarnations, too
            if items >= self.plan.batch:
                break
            try:
                message = self._wire.decode(self._frames_in.recv(zmq.NOBLOCK))
            except zmq.Again:
                break
            if message is not None:
                frame = unpacked_frame(message[1])
                frames.append(frame)
                items += sum(len(own) for _, own in frame.parts)
        return [self._worker.deliver(frames)] if frames else []

    def _take_words(self) -> list[Effects]:
        progress: Progress | None = None
        told = self._told
        for _ in range(_MESSAGES_A_ROUND):
            if not told:
                try:
                    message = self._coordinator.recv(zmq.NOBLOCK)
                except zmq.Again:
                    break
                self._heard_at = time.monotonic()
                told.extend(self._wire.decoded(message))
                continue
            kind, body = told.popleft()
            if kind == protocol.PROGRESS:
                progress = body  # the last one says all
            elif kind == protocol.CUT:
                self._cut = body
                break  # later progress would trim what it needs
            else:
                self._hear(kind, body)
        if time.monotonic() - self._heard_at > _SILENCE_SECONDS_MAX:
            raise CoordinatorGoneError(
                f"worker {self.index} has not heard the driver for {_SILENCE_SECONDS_MAX:.0f} s"
            )
        if progress is None:
            return []
        for feed in self._feeds:
            feed.minimal_time(progress.of_all())
        return [self._worker.progress(progress)]

    def _hear(self, kind: bytes, body: Any) -> None:
        if kind == protocol.STORED:
            partition, bundles = body
            self._stores[partition].stored(bundles)
        elif kind == protocol.SETTLED:
            self._settled_heard = body
            for feed in self._feeds:
                feed.settled_below(body, self._latencies.append)
        elif kind == protocol.ASK:
            assert self._answering is not None
            self._answering.hear(body)
        elif kind == protocol.COMMITTED:
            self._worker.cut_committed(body)
        elif kind == protocol.START:
            self._begin_fronts(body)
        elif kind == protocol.HALT:
            for feed in self._feeds:
                feed.halt()
            self._news_at = 0.0
        elif kind == protocol.END:
            self._ending = True
            self._last_minimal = body
        elif kind == protocol.QUIT:
            self._quit = True

    def _take_elements(self) -> list[Effects]:
        if (
            not self._fronts_begun
            or sum(store.unstored for store in self._stores.values()) > _UNSTORED_MAX
        ):
            return []
        effects = []
        for feed in self._feeds:
            items = feed.take(self.plan.batch)
            malformed = feed.aside.take()
            report = feed.report()
            if items or report or malformed:
                effects.append(self._worker.enter_items(feed.node, items, report, malformed))
        return effects

    def _send_frames(self, effects: Effects) -> None:
        for destination, frame in effects.frames:
            try:
                self._peers[destination].send(self._encoded(protocol.FRAME, frame))
            except zmq.Again:
                raise WireError(
                    f"worker {destination} has taken no frame of worker {self.index} for too long"
                ) from None

    def _store(self) -> None:
        unstored = False
        for key, store in self._stores.items():
            writer = self._writers.get(key)
            if writer is not None and store.is_under_way:
                store.stored(writer.stored())
            bundle = store.next()
            if bundle is not None:
                if writer is not None:
                    writer.store(bundle)
                else:
                    self._say(self._encoded(protocol.BUNDLE, bundle))
            unstored = unstored or store.unstored > 0
        self._tell_settled()
        # Once all that was taken in here has settled, so that the last latencies are told too.
        settled = not self._feeds or self._settled_heard >= self._last_minimal
        if self._ending and settled and not unstored and not self._done:
            self._done = True
            self._tell(protocol.DONE, (self.index, self._news()))

    # Telling.

    def _encoded(self, kind: bytes, body: Frame | StoredBundle) -> bytes:
        try:
            return self._wire.encode(kind, packed(body))
        except Exception:
            if self.plan.on_error == "fail":
                raise
            return self._wire.encode(kind, packed(fit_to_travel(body)))

    def _tell(self, kind: bytes, body: Any) -> None:
        """Tell the coordinator, with all else of this round (see `_send_words`)."""
        self._say(self._wire.encode(kind, body))

    def _tell_acks(self) -> None:
        acks, self._held_acks = self._held_acks, []
        ack = _one_ack(self.index, acks)
        if ack:
            self._say(self._wire.encode(protocol.ACK, ack))

    def _say(self, message: bytes) -> None:
        """Whatever is told is told behind the acks that were held until then."""
        if self._held_acks:
            self._tell_acks()
        self._telling.append(message)

    def _send_words(self) -> None:
        if self._telling:
            told, self._telling = self._telling, []
            self._coordinator.send(self._wire.together(told))

    def _tell_failure(self, error: Exception) -> None:
        self._tell_error(error)
        self._send_words()

    def _tell_error(self, error: Exception) -> None:
        try:
            self._tell(protocol.FAILED, error)
        except Exception:  # it does not travel: a payload in it does not, say
            if isinstance(error, StepError):
                error.payload = shortened(error.payload)
                error.__cause__ = None
                self._tell(protocol.FAILED, error)
            else:
                self._tell(protocol.FAILED, EmberflowError(f"{type(error).__qualname__}: {error}"))

    def _tell_settled(self) -> None:
        """Tell what is settled here, with all else that is told, or alone now and then."""
        settled = self._settled_here()
        if settled > self._settled_told:
            now = time.monotonic()
            if self._telling or now - self._settled_told_at >= _COMPANY_SECONDS:
                self._settled_told, self._settled_told_at = settled, now
                self._tell(protocol.SETTLED, (self.index, settled))

    def _settled_here(self) -> Moment:
        """Up to where all output of the barriers here is stored; where there are none, all is."""
        stores = self._stores.values()
        if not stores:
            return AFTER_ALL
        return min([self._worker.minimal, *[store.settled for store in stores]])

    def _tell_news(self) -> None:
        now = time.monotonic()
        if now - self._news_at >= _NEWS_SECONDS:
            self._news_at = now
            self._tell(protocol.NEWS, self._news())

    def _news(self) -> WorkerNews:
        latencies, self._latencies = self._latencies, []
        worker = self._worker
        keys = sum(len(machine.buckets) for machine in worker.machines.stateful.values())
        few_keys = keys <= _KEYS_LOOKED_AT
        statistics = worker.statistics(sizes_too=few_keys)
        barriers = [barrier for held in worker.barriers.values() for barrier in held.values()]
        return WorkerNews(
            worker=self.index,
            statistics=statistics,
            waiting=sum(feed.waiting for feed in self._feeds),
            unstored=sum(store.unstored for store in self._stores.values()),
            halted=all(feed.over for feed in self._feeds),
            held=sum(barrier.held_items for barrier in barriers),
            bucket_items=statistics.bucket_items if few_keys else None,
            settled=sum(feed.settled for feed in self._feeds),
            latencies_ms=latencies,
            lag_ms=max((feed.lag_ms for feed in self._feeds), default=0.0),
            cpu_seconds=time.process_time(),
            pid=os.getpid(),
            chose=any(feed.chose for feed in self._feeds),
        )


def _is_waited_for(effects: Effects) -> bool:
    """Whether it moves what others go by; what has come to the barriers here is known here."""
    return bool(effects.bundles or effects.ack.anywhere)


def _one_ack(worker: int, acks: list[Ack]) -> Ack:
    """Several acks as one: xors are xored, of promises and numbers the last one counts."""
    if len(acks) == 1:
        return acks[0]
    anywhere: TurnXors = {}
    ranges: dict[int, Xors] = {}
    reports: dict[int, Moment] = {}
    number = 0
    for ack in acks:
        _xor_into(anywhere, ack.anywhere)
        for host, xors in ack.ranges.items():
            _xor_into(ranges.setdefault(host, {}), xors)
        reports.update(ack.reports)
        number = ack.number
    return Ack(worker, anywhere, ranges, reports, number)


def _xor_into(table: dict[T, int], xors: dict[T, int]) -> None:
    for moment, xor in xors.items():
        table[moment] = table.get(moment, 0) ^ xor
