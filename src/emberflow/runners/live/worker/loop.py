"""The worker's loop: one process, one engine worker, one thread that owns the sockets.

Each round takes what is there (frames of other workers, control messages of the coordinator, elements
of the fronts it feeds), runs the engine over all of it, and sends the results: frames first, then
everything for the coordinator, in one message. The loop sends the results of frames and control
messages first, because other workers wait for them. Then it reads new elements. When a round finds
nothing, the next one waits for the sockets and for the loop's threads (`wire.bell`), a millisecond at
most.

A worker begins by restoring its range of the cut that its life begins from, and says that it is ready.
Fronts begin when all workers are. The loop begins a cut at the end of a round, when it has handed to
the stores what the progress to the cut's moment released (`engine.cuts.cut`, `cut_writer`).

What depends on the ordering of the query is in the strategy that the loop is given (`cuts`).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import zmq

from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.logs.front_log import FrontLogWriter
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Effects, Frame, Moment, Progress
from emberflow.engine.worker.routing import barrier_host, front_host
from emberflow.errors import ERRORS_SINK
from emberflow.fronts.protocol import front_contract
from emberflow.runners.interpreter import serving
from emberflow.runners.live.wire import protocol
from emberflow.runners.live.wire.bell import Bell
from emberflow.runners.live.wire.codec import packed, unpacked_frame
from emberflow.runners.live.wire.heartbeat import Heartbeat
from emberflow.runners.live.wire.links import Receiver, Sender, received_parts
from emberflow.runners.live.wire.plan import Plan, WorkerNews
from emberflow.runners.live.wire.questions import Answering
from emberflow.runners.live.wire.sockets import Wire, WireError, own_address
from emberflow.runners.live.worker.cut_writer import CutOrder, CutWriter
from emberflow.runners.live.worker.cuts import Delivered, WorkerCuts
from emberflow.runners.live.worker.diverted import fit_to_travel
from emberflow.runners.live.worker.feed import Feed
from emberflow.runners.live.worker.journal import Journal
from emberflow.runners.live.worker.link import MESSAGES_A_ROUND, CoordinatorLink
from emberflow.runners.live.worker.memory import MemoryWatch
from emberflow.runners.live.worker.store import Store
from emberflow.sinks.protocol import StoredBundle, sink_contract
from emberflow.sinks.writer import WriterThread
from emberflow.values.item import TIME_MIN, front_index

#: Makes the strategy of a worker, given what the sinks have from earlier.
Strategy: TypeAlias = Callable[[Plan, int, Delivered], WorkerCuts]

#: However idle it is: a front that takes the time of arrival promises the present in every round.
_IDLE_MS = 1
_NEWS_SECONDS = 0.25
#: Fronts wait while this many final items, or bytes of them, wait for sinks here.
_UNSTORED_MAX = 200_000
_UNSTORED_BYTES_MAX = 64 << 20
#: Bytes of elements that the fronts of a worker may have at or above the minimal time, in all.
CREDIT_BYTES = 128 << 20
_JOIN_SECONDS = 5.0
#: With more keys than this, the news do not tell the sizes of buckets: the loop would stop for too long.
_KEYS_VISITED_MAX = 10_000
#: How long a thread of the worker may keep the interpreter when another one wants it.
_SWITCH_SECONDS = 0.0005
#: Low-priority messages are piggybacked; sent alone at most this often.
_PIGGYBACK_SECONDS = 0.005


class WorkerLoop:
    """Runs until the coordinator says that it is over, or something fails."""

    def __init__(self, plan: Plan, index: int, strategy: Strategy) -> None:
        self.plan = plan
        self.index = index
        self._strategy = strategy
        self._wire = Wire(plan.keys, plan.incarnation)
        self._frames_in, self._address = self._wire.listening(
            zmq.PULL, own_address(plan.coordinator), peers=plan.workers
        )
        self._receiver = Receiver(self._wire, f"worker {index}")
        self._link = CoordinatorLink(self._wire, plan.coordinator, index)
        self._heartbeat = Heartbeat(self._wire, plan.coordinator, index)
        self._peers: dict[int, Sender] = {}
        #: Rung by the threads that have something for the loop.
        self._bell = Bell()
        self._poller = zmq.Poller()
        for waited_for in (self._frames_in, self._link.socket, self._bell.fileno()):
            self._poller.register(waited_for, zmq.POLLIN)
        self._feeds: list[Feed] = []
        self._stores: dict[tuple[str, int], Store] = {}
        self._writers: dict[tuple[str, int], WriterThread] = {}
        self._latencies: list[tuple[float, int]] = []
        #: What is settled here: what was sent last, and when. What is settled everywhere.
        self._settled_sent = BEFORE_ALL
        self._settled_sent_at = 0.0
        self._settled_everywhere = BEFORE_ALL
        self._cut_writer: CutWriter | None = None
        self._order: CutOrder | None = None
        self._answering: Answering | None = None
        self._fronts_begun = False
        self._paused = False
        self._ending = False
        self._last_minimal = AFTER_ALL
        self._done = False
        self._quit = False
        self._news_at = 0.0
        self._passed_until = 0.0
        self._memory = MemoryWatch()
        #: For the coordinator's watchdog, which looks for frames that were lost.
        self._caught_up = False
        self._last_bound_for: dict[int, int] = {}

    def run(self) -> None:
        try:
            self._heartbeat.start()
            self._meet()
            with serving(_SWITCH_SECONDS) as collector:
                self._restore()
                self._passed_until = time.monotonic()
                while not self._quit:
                    if not self._round():
                        self._wait()
                    collector.look()
        except Exception as error:
            self._link.send_failure(error)
            raise
        finally:
            for feed in self._feeds:
                feed.join(_JOIN_SECONDS)
            for writer in self._writers.values():
                writer.close(_JOIN_SECONDS)
            if self._cut_writer is not None:
                self._cut_writer.close(_JOIN_SECONDS)
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
        self._link.send(protocol.HELLO, (plan.graph.fingerprint, self._address))
        kind, body = self._link.awaited()
        if kind != protocol.PEERS:
            raise WireError(f"worker {self.index} expected its peers and heard {kind!r}")
        addresses, delivered = body
        for index, address in enumerate(addresses):
            if index != self.index:
                self._peers[index] = Sender(
                    self._wire,
                    self._wire.connected(zmq.PUSH, address),
                    self.index,
                    f"worker {index}",
                )
        self._cuts = self._strategy(plan, self.index, {**delivered, **self._last_of_writers()})
        self._engine = self._cuts.engine
        if self._cuts.reader is not None:
            self._answering = Answering(self.index, self._cuts.reader, self._reached)
        for sink, partition in self._own_partitions():
            given = plan.sinks[sink]  # None if it is on the driver
            places = given is not None and sink_contract(given).places
            self._stores[sink, partition] = Store(sink, partition, places=places)
        self._feeds = list(self._made_feeds())

    def _last_of_writers(self) -> Delivered:
        """What the sinks here have from earlier: the barriers will not release it again."""
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
        own = [
            (name, node, partition, index)
            for name, node in fronts.items()
            for partition in range(plan.fronts[name].partitions)
            for index in [front_index(node.index, len(fronts), partition)]
            if front_host(index, plan.workers) == self.index
        ]
        return [
            Feed(
                name,
                node.id,
                plan.fronts[name],
                partition,
                index,
                plan.credit,
                credit_bytes=CREDIT_BYTES // len(own),
                step=str(node),
                diverts=plan.on_error == "divert",
                late_node=plan.graph.late_node,
                journal=self._journal(name, partition, index),
                ring=self._bell.ring,
                unit=plan.graph.unit,
            )
            for name, node, partition, index in own
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
        if not self._cuts.journals(front):
            return None
        log = FrontLogWriter(
            plan.checkpoint, front, partition, plan.incarnation, payloads=not contract.replayable
        )
        return Journal(log, f"{front} {partition}", index, ring=self._bell.ring)

    # Restoring.

    def _restore(self) -> None:
        """Restore this worker's range of the cut to begin from, and say that it is ready."""
        plan = self.plan
        if plan.checkpoint is not None:
            store = CheckpointStore(plan.checkpoint)
            self._cut_writer = CutWriter(store, self.index, plan.incarnation)
            if plan.restored is not None:
                lists = self._cut_writer.lists
                for effects in self._cuts.restored(store, plan.restored, lists):
                    self._do([effects])
        lasts = self._last_of_writers().values()
        self._link.send(protocol.READY, max(lasts, default=None))
        self._link.flush()

    def _begin_fronts(self, last: Moment | None) -> None:
        """All workers are ready. ``last`` is the greatest global time that any sink has."""
        self._fronts_begun = True
        for feed in self._feeds:
            feed.start(self._cuts.beginning(feed, last))

    # A round.

    def _wait(self) -> None:
        self._bell.heard_in(self._poller.poll(_IDLE_MS))

    def _round(self) -> bool:
        """Do what there is to do; return whether there was anything."""
        self._pass_time()
        frames = self._take_frames()
        effects = [*frames, *self._take_messages()]
        self._do(effects)
        self._caught_up = self._caught_up or not frames
        if any(map(_is_waited_for, effects)):
            # Others wait for these results, and nobody yet for those of new elements.
            self._store()
            self._link.flush()
        elements = self._take_elements()
        self._do(elements, reports_follow=any(feed.owes_report for feed in self._feeds))
        self._store()
        self._link.flush()
        effects += elements
        # Nobody waits for this, nor for what follows.
        self._engine.tidy(is_waited_for=self._is_waited_for())
        self._go_on_with_cut(loop_is_busy=bool(effects))
        self._answer()
        self._send_news()
        self._link.flush()
        return (
            bool(effects)
            or (self._cut_writer is not None and self._cut_writer.is_busy)
            or (self._answering is not None and self._answering.is_busy)
        )

    def _pass_time(self) -> None:
        now = time.monotonic()
        self._engine.pass_time(now - self._passed_until)
        self._passed_until = now

    def _is_waited_for(self) -> bool:
        """Whether there is something for the next round already."""
        sockets = (self._frames_in, self._link.socket)
        return any(int(socket.get(zmq.EVENTS)) & zmq.POLLIN for socket in sockets) or any(
            feed.waiting for feed in self._feeds
        )

    def _do(self, effects: list[Effects], *, reports_follow: bool = False) -> None:
        """Send frames first, then one ack, then hand on what is final.

        Where a front's report is to follow, the link may hold the ack until then.
        """
        if not effects:
            return
        for effect in effects:
            self._send_frames(effect)
        acks = [effect.ack for effect in effects]
        self._link.send_acks(acks, hold=reports_follow and not any(ack.reports for ack in acks))
        for effect in effects:
            for bundle in effect.bundles:
                self._stores[bundle.sink, bundle.partition].add(bundle)
            if effect.failure is not None:
                raise effect.failure

    def _go_on_with_cut(self, *, loop_is_busy: bool) -> None:
        writer = self._cut_writer
        if writer is None:
            return
        if self._order is not None:
            self._do(self._cuts.begin(self._order, self._feeds, writer))
            self._order = None
        captured = self._cuts.go_on(self._stores.values(), writer, loop_is_busy=loop_is_busy)
        if captured is not None:
            self._link.send(protocol.CAPTURED, captured)

    def _answer(self) -> None:
        if self._answering is not None:
            answers = self._answering.answers()
            if answers:
                self._link.send(protocol.ANSWERS, answers)

    def _take_frames(self) -> list[Effects]:
        frames: list[Frame] = []
        items = 0
        for _ in range(MESSAGES_A_ROUND):  # those of other incarnations, too
            if items >= self.plan.batch:
                break
            parts = received_parts(self._frames_in)
            if parts is None:
                break
            envelope = self._receiver.opened(parts)
            if envelope is None:
                continue
            for kind, body in self._wire.decoded(envelope.content):
                if kind == protocol.FRAME:
                    frame = unpacked_frame(body)
                    frames.append(frame)
                    items += sum(len(own) for _, own in frame.parts)
        return [self._engine.deliver(frames)] if frames else []

    def _take_messages(self) -> list[Effects]:
        """Handle the control messages of the coordinator."""
        progress: Progress | None = None
        for kind, body in self._link.received():
            if kind == protocol.PROGRESS:
                progress = body  # the last one says all
            elif kind == protocol.CUT:
                self._order = body
                break  # later progress would trim what the cut needs
            else:
                self._handle(kind, body)
        self._check_links()
        if progress is None:
            return []
        for feed in self._feeds:
            feed.minimal_time(progress.of_all())
        return [self._engine.progress(progress)]

    def _check_links(self) -> None:
        now = time.monotonic()
        self._link.check(now)
        for peer in self._peers.values():
            peer.look(now)

    def _handle(self, kind: bytes, body: Any) -> None:
        if kind == protocol.STORED:
            partition, bundles = body
            self._stores[partition].stored(bundles)
        elif kind == protocol.SETTLED:
            self._settled_everywhere = body
            for feed, below in self._cuts.settled_elements(body, self._feeds):
                feed.settled_below(below, self._latencies.append)
        elif kind == protocol.ASK:
            assert self._answering is not None
            self._answering.hear(body)
        elif kind == protocol.COMMITTED:
            self._paused = False
            for bundle in self._cuts.committed(body):
                self._stores[bundle.sink, bundle.partition].add(bundle)
        elif kind == protocol.PAUSE:
            self._paused = True
            self._link.send(protocol.PAUSED, None)
        elif kind == protocol.START:
            self._begin_fronts(body)
        elif kind == protocol.HALT and body is None:
            for feed in self._feeds:
                feed.halt()
            self._news_at = 0.0
        elif kind == protocol.HALT:
            reached = [feed.halt_at(body) for feed in self._feeds]
            self._link.send(protocol.BOUNDED, max(reached, default=TIME_MIN))
        elif kind == protocol.GO_ON:
            for feed in self._feeds:
                feed.halt_at(None)
        elif kind == protocol.END:
            self._ending = True
            self._last_minimal = body
        elif kind == protocol.QUIT:
            self._quit = True

    def _take_elements(self) -> list[Effects]:
        if (
            not self._fronts_begun
            or self._paused
            or not self._cuts.takes_elements
            or sum(store.unstored for store in self._stores.values()) > _UNSTORED_MAX
            or sum(store.unstored_bytes for store in self._stores.values()) > _UNSTORED_BYTES_MAX
        ):
            return []
        effects = []
        most = self._memory.most(self.plan.batch, time.monotonic())
        for feed in self._feeds:
            items = feed.take(most)
            malformed = feed.aside.take()
            if late := feed.take_late():
                assert feed.late_node is not None
                effects.append(self._engine.enter_items(feed.late_node, late, {}))
            report = feed.report()
            if items or report or malformed:
                effects.append(self._engine.enter_items(feed.node, items, report, malformed))
        return effects

    def _send_frames(self, effects: Effects) -> None:
        for destination, frame in effects.frames:
            self._peers[destination].send([self._encoded(protocol.FRAME, frame)])
            self._last_bound_for[destination] = frame.parts[0][0]

    def _encoded(self, kind: bytes, body: Frame | StoredBundle) -> bytes:
        try:
            return self._wire.encode(kind, packed(body))
        except Exception:
            return self._wire.encode(kind, packed(fit_to_travel(body)))

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
                    self._link.send_encoded(self._encoded(protocol.BUNDLE, bundle))
            unstored = unstored or store.unstored > 0
        self._send_settled()
        # A worker with fronts ends when all that it took in has settled: it reports latencies till then.
        settled = not self._feeds or self._settled_everywhere >= self._last_minimal
        if self._ending and settled and not unstored and not self._done:
            self._done = True
            self._link.send(protocol.DONE, self._news())

    def _send_settled(self) -> None:
        """Send what is settled here: piggybacked, or alone now and then."""
        settled = self._cuts.settled_output(self._stores.values())
        if settled > self._settled_sent:
            now = time.monotonic()
            if self._link.has_outgoing or now - self._settled_sent_at >= _PIGGYBACK_SECONDS:
                self._settled_sent, self._settled_sent_at = settled, now
                self._link.send(protocol.SETTLED, settled)

    def _send_news(self) -> None:
        now = time.monotonic()
        if now - self._news_at >= _NEWS_SECONDS:
            self._news_at = now
            self._link.send(protocol.NEWS, self._news())

    def _news(self) -> WorkerNews:
        latencies, self._latencies = self._latencies, []
        caught_up, self._caught_up = self._caught_up, False
        few_keys = self._engine.keys <= _KEYS_VISITED_MAX
        statistics = self._engine.statistics(sizes_too=few_keys)
        unstored = sum(store.unstored for store in self._stores.values())
        late: Counter[str] = Counter()
        for feed in self._feeds:
            late[feed.name] += feed.late
        return WorkerNews(
            worker=self.index,
            statistics=statistics,
            waiting=sum(feed.waiting for feed in self._feeds),
            unstored=unstored + self._cuts.unreleased,
            halted=all(feed.over and feed.is_reported for feed in self._feeds),
            held=self._engine.held_items,
            bucket_items=statistics.bucket_items if few_keys else None,
            settled=sum(feed.settled for feed in self._feeds),
            latencies_ms=latencies,
            lag_ms=max((feed.lag_ms for feed in self._feeds), default=0.0),
            cpu_seconds=time.process_time(),
            pid=os.getpid(),
            chose=any(feed.chose for feed in self._feeds),
            memory=self._memory.look(time.monotonic()),
            caught_up=caught_up,
            sent={peer: (sender.sent, self._step(peer)) for peer, sender in self._peers.items()},
            received=dict(self._receiver.received),
            late=late,
        )

    def _step(self, peer: int) -> str:
        """The step that the last frame to a peer was bound for."""
        node = self._last_bound_for.get(peer)
        if node is None:
            return ""
        nodes = self.plan.graph.nodes
        return str(nodes[node]) if node < len(nodes) else "the barrier of failures"


def _is_waited_for(effects: Effects) -> bool:
    """Whether others wait for it: it releases output, or acks frames that may go anywhere.

    Frames for the barriers here concern only this worker, which knows of them (`progress.receipts`).
    """
    return bool(effects.bundles or effects.ack.anywhere or effects.ack.deeper)
