"""The worker's loop: one process, one engine worker, one thread that owns the sockets.

Each round takes what is there (frames of other workers, control messages of the coordinator, elements
of the fronts it feeds), runs the engine over all of it, and sends the results: frames first, then
everything for the coordinator, in one message. The loop sends the results of frames and control
messages first, because other workers wait for them. Then it reads new elements. When nothing more is
there, the next round waits for the sockets and for the loop's threads (`wire.bell`), a millisecond at
most, or ten once nothing has come for a while: a query without input costs its machine next to nothing.

Where transactions conflict, rounds are many and small. So a round costs little: it takes in frames and
progress as one event, and does not look twice whether more has come.

A worker begins by restoring its range of the cut that its life begins from, and says that it is ready.
Fronts begin when all workers are. The loop begins a cut at the end of a round, when it has handed to
the stores what the progress to the cut's moment released (`engine.cuts.cut`, `cut_writer`).

**A new version of the flow** can take over in the same process. The loop makes the loop of the new
version beside itself, in a thread: that one imports the flow, connects and meets the other workers. When
the old loop has ended at the cut, it leaves to the new one what goes on in memory (`Estate`): the state,
the feeds that are where the cut is, and the writers of sinks. The new loop takes the state over as if it
had restored the cut, translated. **Another number of workers** takes over in the same way (`live.rescale`).

Another version can also run *beside* this one (`mirror`), in a thread of its own, on the same elements.

**When a life is lost,** the loops of the processes that are left end, and the process begins the next life
with a new one: it meets the others, and restores its range of the cut again (`processes`).

What depends on the ordering of the query is in the strategy that the loop is given (`cuts`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeAlias

import zmq

from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.errors import CheckpointError, FencedError
from emberflow.checkpoint.logs.front_log import FrontLogWriter
from emberflow.engine.interface import EngineWorker
from emberflow.engine.messages import (
    AFTER_ALL,
    BEFORE_ALL,
    Dealt,
    Effects,
    Entries,
    Frame,
    Moment,
    Progress,
)
from emberflow.engine.worker.routing import barrier_host, front_host
from emberflow.engine.worker.succession import copied_rows, copied_timers
from emberflow.engine.worker.worker import Worker
from emberflow.errors import ERRORS_SINK, EmberflowError
from emberflow.fronts.protocol import front_contract
from emberflow.graph.nodes import Front
from emberflow.runners.interpreter import Collector, serving
from emberflow.runners.live.balance.meter import Meter
from emberflow.runners.live.cold.ahead import CopiedAhead
from emberflow.runners.live.cold.bound import StateBound, default_limit, resident
from emberflow.runners.live.mirror import Copied, Entered, Mirror, MirrorFeed, Released
from emberflow.runners.live.observation import Observer
from emberflow.runners.live.wire import protocol
from emberflow.runners.live.wire.bell import Bell
from emberflow.runners.live.wire.codec import packed, unpacked_frame
from emberflow.runners.live.wire.heartbeat import Heartbeat
from emberflow.runners.live.wire.links import Receiver, Sender, has_come, received_parts
from emberflow.runners.live.wire.log_records import capture, captured
from emberflow.runners.live.wire.plan import Plan, WorkerNews
from emberflow.runners.live.wire.questions import Answering
from emberflow.runners.live.wire.sockets import Wire, WireError, own_address
from emberflow.runners.live.worker.cut_writer import CutOrder, CutWriter
from emberflow.runners.live.worker.cuts import (
    Begun,
    Delivered,
    WorkerCuts,
    begun_of,
    copied_ahead,
)
from emberflow.runners.live.worker.diverted import fit_to_travel
from emberflow.runners.live.worker.feed import IDLE_MS, Feed, LoopFeed
from emberflow.runners.live.worker.journal import Journal
from emberflow.runners.live.worker.link import (
    MEETING_SECONDS_MAX,
    MESSAGES_A_ROUND,
    TAKEOVER_SECONDS_MAX,
    CoordinatorGoneError,
    CoordinatorLink,
)
from emberflow.runners.live.worker.machine.background import in_background
from emberflow.runners.live.worker.machine.memory import MemoryWatch, available
from emberflow.runners.live.worker.machine.spare import Rests, Spare
from emberflow.runners.live.worker.store import Store
from emberflow.sinks.protocol import SinkMovedError, StoredBundle, sink_contract
from emberflow.sinks.writer import WriterThread, kept_of, writers_of
from emberflow.values.item import FRONT_MIN, TIME_MIN, front_index

_log = logging.getLogger("emberflow")

#: Makes the strategy of a worker, given what the sinks have from earlier.
Strategy: TypeAlias = Callable[[Plan, int, Delivered], WorkerCuts]

#: How long a round waits for something to do.
_WAIT_MS = 1
#: If this many rounds found nothing, a round waits longer. What is sent alone now and then has been sent, and
#: a front that takes the time of arrival promises the present no more often.
_REST_MS = IDLE_MS
_QUIET_ROUNDS = 20
_NEWS_SECONDS = 0.25
#: Fronts wait while this many final items, or bytes of them, wait for sinks here.
_UNSTORED_MAX = 200_000
_UNSTORED_BYTES_MAX = 64 << 20
#: Where too many keys are in memory, a front that all others wait for takes one in so many elements of a batch.
_SLOWED_BEHIND = 20
#: Bytes of elements that the fronts of a worker may have at or above the minimal time, in all.
CREDIT_BYTES = 128 << 20
_JOIN_SECONDS = 5.0
#: How long a process waits at its end for the threads of its last life.
_CLOSING_SECONDS = 15.0
#: How long the next life of a process waits for the readers of the last one.
_READERS_SECONDS = 0.3
#: A process in which threads of so many lives do not end gives itself up; another one is forked for it.
_LEFT_MAX = 16
#: With more keys than this, the news do not tell the sizes of buckets: the loop would stop for too long. With fewer,
#: they are counted so often.
_KEYS_VISITED_MAX = 10_000
_COUNTED_SECONDS = 1.0
#: How often what items wait is added up, and how often the links are looked at.
_PASSED_SECONDS = 0.002
_LINKS_SECONDS = 0.05
#: Frames leave before their event is over if the loop has more than this part of its time left.
_AHEAD_FROM = 0.5
#: How long a thread of the worker may keep the interpreter when another one wants it.
_SWITCH_SECONDS = 0.0005
#: Low-priority messages are piggybacked; sent alone at most this often.
_PIGGYBACK_SECONDS = 0.005
#: How long a worker waits at its end for the version beside it, which ends with its own coordinator: when
#: it has come to the end, or does not go on.
_TWIN_SECONDS = 20.0


class NotNeededError(EmberflowError):
    """The life that this worker was prepared for does not begin."""


class Estate(NamedTuple):
    """What the loop of one version leaves to that of the next one, in the same process."""

    engine: EngineWorker
    feeds: list[Feed]
    writers: dict[tuple[str, int], WriterThread]
    state_bound: StateBound | None
    #: Ends all else that the old loop had.
    ending: threading.Thread


class Lives(Protocol):
    """Where a process that outlives its life hears of the others."""

    def next_plan(self) -> tuple[Plan, int] | None:
        """Wait for the plan of the next life, and which worker of it this process is; None when the query is
        over."""

    def is_over(self, life: int) -> bool:
        """Whether a life is over. Its coordinator tells the workers that it knows."""


def serve(plan: Plan, index: int, strategy: Strategy, lives: Lives | None = None) -> None:
    """Run a worker until the query is over, through all versions that take over in its process.

    Without ``lives`` the process works in one life, and raises the error of that life.
    """
    begun_with = resident()
    with ExitStack() as stack:
        stack.enter_context(captured(plan.log_levels))
        tuned = _Tuned(stack)
        if lives is None:
            _live(WorkerLoop(plan, index, strategy), tuned, closes=True)
            return
        left: list[_Left] = []
        following: tuple[Plan, int] | None = (plan, index)
        while following is not None:
            loop = WorkerLoop(*following, strategy, lives=lives, begun_with=begun_with)
            try:
                _live(loop, tuned, closes=False)
            except Exception as error:
                _log.debug("a life has ended: %s", error)  # the driver has been told
            left = [earlier for earlier in left if earlier.is_alive()]
            if len(left) == _LEFT_MAX:
                raise EmberflowError(f"{_LEFT_MAX} lives have left threads here that do not end")
            left.append(_Left(loop.last_heir()))
            del loop
            # A source may admit one reader at a time. Mostly they end at once.
            left[-1].readers_have_ended.wait(_READERS_SECONDS)
            following = lives.next_plan()
        left[-1].closed.wait(_CLOSING_SECONDS)


class _Left(threading.Thread):
    """Ends what a lost life has left in the process, for as long as that takes: it holds up nobody."""

    def __init__(self, loop: WorkerLoop) -> None:
        super().__init__(name="emberflow left", daemon=True)
        self.readers_have_ended = threading.Event()
        #: Set when all have been told to end, and those that may take long have been waited for.
        self.closed = threading.Event()
        loop.free_state()
        self._loop = loop
        self.start()

    def run(self) -> None:
        try:
            self._loop.close_readers()
            self.readers_have_ended.set()
            self._loop.close_rest()
        finally:
            self.closed.set()
            self._loop.join_readers()


class _Tuned:
    """The interpreter is tuned for a loop when the first one has met the others, and stays so."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._collector: Collector | None = None

    def collector(self) -> Collector:
        if self._collector is None:
            self._collector = self._stack.enter_context(serving(_SWITCH_SECONDS))
        return self._collector


def _live(first: WorkerLoop, tuned: _Tuned, *, closes: bool) -> None:
    """Run a loop, and those that take over from it in this process. The last one stays open if it is
    not to be closed."""
    loop: WorkerLoop | None = first
    while loop is not None:
        with loop.ending(closes=closes):
            if loop is first:
                if loop.plan.moved_from is not None:
                    loop.collector = tuned.collector()  # it makes state before it runs
                loop.meet()
            loop.run(tuned.collector())
        loop = loop.heir


class WorkerLoop:
    """Runs until the coordinator says that it is over, or something fails."""

    def __init__(
        self,
        plan: Plan,
        index: int,
        strategy: Strategy,
        *,
        bell: Bell | None = None,
        spare: Spare | None = None,
        lives: Lives | None = None,
        begun_with: int | None = None,
    ) -> None:
        """``bell`` and ``spare`` are those of the loop of an earlier version, in the same process; ``begun_with``
        what the process had resident before its first life."""
        self.plan = plan
        self.index = index
        self._lives = lives
        self._begun_with = begun_with
        #: Looks for cycles while this loop makes state before it runs, if no other loop of its process does.
        self.collector: Collector | None = None
        #: The loop that takes over when this one has ended.
        self.heir: WorkerLoop | None = None
        self._strategy = strategy
        #: What is left to it; None for the loop of a worker that is added, too.
        self._estate: Estate | None = None
        self._begun: Begun = ([], [])
        #: If slices move to this worker: what it has read of them before.
        self._ahead: CopiedAhead | None = None
        self._successor: _Successor | None = None
        #: What this loop gives to the version beside it; what this loop is given by the other one.
        self._twin: Mirror | None = None
        self._twin_at: Moment | None = None
        self._own_released: list[Released] = []
        self._released_below = (BEFORE_ALL, BEFORE_ALL)
        #: All that had entered when the loop began to record is below this.
        self._recorded_from = BEFORE_ALL
        self._mirror: Mirror | None = None
        self._hands_over = False
        self._tells_halt = False
        self._wire = Wire(plan.keys, plan.incarnation)
        self._frames_in, self._address = self._wire.listening(
            zmq.PULL, own_address(plan.coordinator), peers=plan.workers
        )
        self._receiver = Receiver(self._wire, f"worker {index}")
        self._link = CoordinatorLink(self._wire, plan.coordinator, index)
        self._heartbeat = Heartbeat(self._wire, plan.coordinator, index)
        self._peers: dict[int, Sender] = {}
        #: Rung by the threads that have something for the loop.
        self._bell = Bell() if bell is None else bell
        self._owns_bell = bell is None
        #: What this loop has left of its time, or the one that serves in this process until this one takes over.
        self._spare = Spare() if spare is None else spare
        #: Set from another thread if the loop is prepared and will not take over.
        self.is_discarded = False
        self._poller = zmq.Poller()
        for waited_for in (self._frames_in, self._link.socket, self._bell.fileno()):
            self._poller.register(waited_for, zmq.POLLIN)
        #: All that elements enter by; and those of them that read a source, which a mirror has none of.
        self._feeds: Sequence[LoopFeed] = []
        self._own_feeds: list[Feed] = []
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
        #: The items of all buckets, when they were last counted.
        self._bucket_items = 0
        self._counted_at = 0.0
        self._passed_until = 0.0
        #: Rounds since something came.
        self._quiet_rounds = 0
        #: Whether frames, and messages of the coordinator, may have come since they were taken last.
        self._frames_wait = self._messages_wait = True
        self._links_checked_at = 0.0
        self._memory = MemoryWatch()
        self._state_bound: StateBound | None = None
        #: The minimal time of all that was heard last.
        self._minimal = BEFORE_ALL
        #: For the coordinator's watchdog, which looks for frames that were lost.
        self._caught_up = False
        self._last_bound_for: dict[int, int] = {}
        #: By worker: what it is told of its frames for barriers, and since when that waits.
        self._dealt_later: dict[int, list[bytes]] = {}
        self._dealt_later_since = 0.0
        self._observer: Observer | None = None
        self._meter: Meter | None = None

    def run(self, collector: Collector | None = None) -> None:
        self._restore()
        if self.plan.is_observed and self._mirror is None:
            self._observer = Observer(self.plan.graph, self._engine)
        if isinstance(self._engine, Worker) and self._mirror is None:
            self._meter = Meter(self._engine)
        self._passed_until = time.monotonic()
        while not self._quit:
            if not self._round():
                self._wait()
            if collector is not None:
                collector.look()
        if self._hands_over:
            assert self._successor is not None
            self.heir = self._successor.loop()

    @contextmanager
    def ending(self, *, closes: bool = True) -> Iterator[None]:
        """Tell the driver of a failure, and end all threads; or leave them to the next version, or to
        whoever closes it."""
        try:
            yield
        except Exception as error:
            self._send_logged()
            self._link.send_failure(error)
            raise
        finally:
            if self.heir is None:
                if closes:
                    self.close()
            else:
                # Nobody waits for this, but all wait for the heir.
                ending = threading.Thread(
                    target=self._close_own, name="emberflow ending", daemon=True
                )
                ending.start()
                self.heir._estate = Estate(
                    self._engine, self._own_feeds, self._writers, self._state_bound, ending
                )

    def last_heir(self) -> WorkerLoop:
        """The loop that was the last to take over from this one in this process; or this one."""
        return self if self.heir is None else self.heir.last_heir()

    def free_state(self) -> None:
        """It will not run again: the next life needs the memory."""
        if self._state_bound is not None:
            self._state_bound.close()
            self._state_bound = None
        with contextlib.suppress(AttributeError):  # it may not have come so far
            del self._engine, self._cuts

    def join_readers(self) -> None:
        """Wait for threads that are in a source, however long it keeps them."""
        for feed in self._own_feeds:
            if feed.reader.thread.is_alive():
                feed.reader.thread.join()

    def close_readers(self) -> None:
        if self._twin is not None and self._twin.copied is not None:
            self._twin.is_over.wait(_TWIN_SECONDS)
        if self._successor is not None:
            self._successor.discard()
        for feed in self._own_feeds:
            feed.join(_JOIN_SECONDS)
        self._twin, self._successor = None, None

    def close(self) -> None:
        self.close_readers()
        self.close_rest()

    def close_rest(self) -> None:
        """Call it after `close_readers`."""
        for writer in set(self._writers.values()):
            writer.close(_JOIN_SECONDS)
        if self._state_bound is not None:
            self._state_bound.close()
        self._close_own()
        if self._estate is not None:
            self._estate.ending.join(_JOIN_SECONDS)
        if self._owns_bell or self._estate is not None:
            self._bell.close()

    def _close_own(self) -> None:
        """End what no other version goes on with."""
        if self._ahead is not None:
            self._ahead.close()
        if self._observer is not None:
            self._observer.close()
        if self._cut_writer is not None:
            self._cut_writer.close(_JOIN_SECONDS)
        self._heartbeat.close(_JOIN_SECONDS)
        self._wire.close()

    # Rendezvous.

    def meet(self) -> None:
        """Listen first, then say where, then hear where the others are."""
        plan = self.plan
        self._heartbeat.start()
        self._open_writers(left_out=plan.inherits or frozenset())
        if plan.inherits is not None:
            self._begun = begun_of(plan, self.index)
        self._link.send(protocol.HELLO, (plan.graph.fingerprint, self._address))
        # Workers that are added may have to wait for their slots.
        seconds = MEETING_SECONDS_MAX if plan.inherits is None else TAKEOVER_SECONDS_MAX
        addresses, delivered = self._awaited(protocol.PEERS, seconds)
        for index, address in enumerate(addresses):
            if index != self.index:
                self._peers[index] = Sender(
                    self._wire,
                    self._wire.connected(zmq.PUSH, address),
                    self.index,
                    f"worker {index}",
                )
        if delivered is not None and not plan.is_mirror:
            self._make_engine(delivered)
        if plan.moved_from is not None:
            self._copy_ahead()

    def _copy_ahead(self) -> None:
        """Read the slices that will come to this worker, from cuts of the workers that have them. The cut at
        which they move adds to the last of these."""
        plan, is_last = self.plan, False
        assert plan.checkpoint is not None
        store = CheckpointStore(plan.checkpoint)
        while not is_last:
            cut, is_last = self._awaited(protocol.AHEAD, TAKEOVER_SECONDS_MAX)
            try:
                if self._ahead is None and cut is not None and not is_last:
                    self._ahead = copied_ahead(plan, self.index, store, cut)
                if self._ahead is not None and cut is not None:
                    if self._owns_bell:  # nothing else works in this process
                        in_background(partial(self._ahead.bring_up, cut))
                    else:
                        self._ahead.bring_up(cut, Rests(self._spare).rest)
                    if not is_last:
                        self._ahead.settle(TAKEOVER_SECONDS_MAX)
            except (OSError, CheckpointError) as error:
                # Then the slices are read when they move, and whoever reads them then says so.
                _log.warning("slices that move cannot be read ahead: %s", error)
                self._ahead = None
            self._link.send(protocol.COPIED, None)
            self._link.flush()
            if self.collector is not None:
                self.collector.look()  # now, and not when all wait for the state

    def _open_writers(self, left_out: frozenset[str] = frozenset()) -> None:
        """Open the sinks for the partitions here that have no writer."""
        sinks = self.plan.sinks
        for sink, own in groupby(self._own_partitions(), key=itemgetter(0)):
            missing = [partition for _, partition in own if (sink, partition) not in self._writers]
            if missing and sinks[sink] is not None and sink not in left_out:
                opened = writers_of(
                    sinks[sink], sink, missing, ring=self._bell.ring, confirm=self._confirm
                )
                self._writers |= {(sink, partition): opened[partition] for partition in missing}

    def _confirm(self) -> None:
        """Raise `SinkMovedError` if this is not the newest life of its checkpoint."""
        if self.plan.checkpoint is not None:
            try:
                CheckpointStore(self.plan.checkpoint).check_not_followed(self.plan.incarnation)
            except FencedError as error:
                raise SinkMovedError(str(error)) from None

    def _awaited(self, expected: bytes, seconds: float) -> Any:
        kind, body = self._link.awaited(self._life_is_over, seconds)
        if kind == protocol.QUIT and self.plan.inherits is not None:
            raise NotNeededError("another life goes on")
        if kind != expected:
            raise WireError(f"worker {self.index} expected {expected!r} and heard {kind!r}")
        return body

    def _life_is_over(self) -> bool:
        lives = self._lives
        return self.is_discarded or (lives is not None and lives.is_over(self.plan.incarnation))

    def _make_engine(self, delivered: Delivered) -> None:
        """``delivered`` is what the sinks of the driver have from earlier."""
        plan = self.plan
        self._cuts = self._strategy(plan, self.index, {**delivered, **self._last_of_writers()})
        self._engine = self._cuts.engine
        if plan.has_accounts:
            self._link.keep_account(plan.workers)
        if isinstance(self._engine, Worker) and not plan.is_mirror:
            limit = plan.state_memory or default_limit(available(), plan.workers)
            self._state_bound = StateBound(self._engine, limit, plan.state_folder, self._begun_with)
        if self._cuts.reader is not None:
            self._answering = Answering(self.index, self._cuts.reader, self._reached)
        for sink, partition in self._own_partitions():
            given = plan.sinks[sink]  # None if it is on the driver
            contract = None if given is None else sink_contract(given)
            self._stores[sink, partition] = Store(
                sink,
                partition,
                places=contract is not None and contract.places,
                commit_every=0.0 if contract is None else contract.commit_every,
            )
        fed = list(self._fed_here())
        if self._mirror is not None:
            late_node = plan.graph.late_node
            self._feeds = [
                MirrorFeed(self._mirror, name, partition, index, node.id, late_node)
                for name, node, partition, index in fed
            ]
        else:
            self._feeds = self._own_feeds = self._made_feeds(fed)

    def _last_of_writers(self) -> Delivered:
        """What the sinks here have from earlier: the barriers will not release it again."""
        lasts = {key: writer.last(key[1]) for key, writer in self._writers.items()}
        return {key: last for key, last in lasts.items() if last is not None}

    def _own_partitions(self) -> list[tuple[str, int]]:
        errors = self.plan.on_error == "divert" and self.index == 0
        return ([(ERRORS_SINK, 0)] if errors else []) + [
            (sink.name, partition)
            for sink in self.plan.graph.sinks.values()
            for partition in range(sink.partitions)
            if barrier_host(sink, partition, self.plan.workers) == self.index
        ]

    def _fed_here(self) -> Iterator[tuple[str, Front, int, int]]:
        """The partitions of fronts that enter here: name, node, partition, index of the front."""
        plan = self.plan
        fronts = plan.graph.fronts
        for name, node in fronts.items():
            for partition in range(plan.fronts[name].partitions):
                index = front_index(node.index, len(fronts), partition)
                if front_host(index, plan.workers) == self.index:
                    yield name, node, partition, index

    def _made_feeds(self, own: list[tuple[str, Front, int, int]]) -> list[Feed]:
        """The feeds of these partitions. Those of an earlier version go on if they are where its cut is."""
        plan = self.plan
        inherited: dict[tuple[str, int], Feed] = {}
        if self._estate is not None:
            assert plan.restored is not None
            for feed in self._estate.feeds:
                if feed.can_go_over(plan.restored.time):
                    inherited[feed.name, feed.partition] = feed
                else:
                    feed.join(_JOIN_SECONDS)
        for other in inherited.keys() - {(name, partition) for name, _, partition, _ in own}:
            inherited.pop(other).join(_JOIN_SECONDS)  # another worker reads on
        for name, node, partition, _ in own:
            if (name, partition) in inherited:
                assert plan.restored is not None
                inherited[name, partition].go_over(
                    plan.restored.time, node.id, plan.graph.late_node, str(node)
                )
        return [
            inherited.get((name, partition))
            or Feed(
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
        if self.plan.inherits is not None:
            self._inherit()
        plan = self.plan
        if self._mirror is not None:
            self._make_engine({})
            assert self._mirror.copied is not None
            assert isinstance(self._engine, Worker)
            self._do([self._engine.restore(*self._mirror.copied)])
        elif plan.checkpoint is not None:
            store = CheckpointStore(plan.checkpoint)
            self._cut_writer = CutWriter(store, self.index, plan.incarnation, self._spare)
            cut, lists = plan.restored, self._cut_writer.lists
            old = None if self._estate is None else self._estate.engine
            if plan.moved_from is not None:
                assert cut is not None
                self._do_pieces(self._cuts.moved(store, cut, lists, old, self._ahead))
            elif old is not None:
                assert cut is not None
                begun, self._begun = self._begun, ([], [])
                self._do([self._cuts.inherited(old, cut.time, begun)])
            elif cut is not None:
                self._do_pieces(self._cuts.restored(store, cut, lists))
            if self._estate is not None:  # frees the old one
                self._estate = self._estate._replace(engine=self._engine, state_bound=None)
        lasts = self._last_of_writers().values()
        self._link.send(protocol.READY, max(lasts, default=None))
        self._link.flush()

    def _do_pieces(self, pieces: Iterator[Effects]) -> None:
        for effects in pieces:
            self._do([effects])
            if self._life_is_over():
                raise CoordinatorGoneError(f"life {self.plan.incarnation} is over")
            self._evict()

    def _inherit(self) -> None:
        """Take over what the loop before this one has left, if there was one here: now all of that life have
        ended."""
        restored, delivered = self._awaited(protocol.TAKE_OVER, TAKEOVER_SECONDS_MAX)
        self.plan = self.plan._replace(restored=restored)
        estate = self._estate
        left = {} if estate is None else estate.writers
        for key, writer in kept_of(left, set(self._own_partitions())).items():
            if key not in self._writers:
                self._writers[key] = writer
                writer.confirm = self._confirm
        for writer in set(left.values()).difference(self._writers.values()):
            writer.close(_JOIN_SECONDS)
        self._open_writers()  # those whose barrier was on another worker before
        self._make_engine(delivered)
        if self._state_bound is not None and estate is not None and estate.state_bound is not None:
            self._state_bound.inherit(estate.state_bound)

    def _begin_fronts(self, last: Moment | None) -> None:
        """All workers are ready. ``last`` is the greatest global time that any sink has."""
        self._fronts_begun = True
        for feed in self._own_feeds:
            if not feed.has_begun:
                feed.start(self._cuts.beginning(feed, last))

    # A round.

    def _wait(self) -> None:
        """Wait for a socket or a thread."""
        rests = self._quiet_rounds >= _QUIET_ROUNDS and not (
            self._link.has_news
            or any(feed.hurries for feed in self._feeds)
            or (self._cut_writer is not None and self._cut_writer.is_under_way)
        )
        begin = time.monotonic()
        ready = self._poller.poll(_REST_MS if rests else _WAIT_MS)
        self._frames_wait = self._messages_wait = False
        is_quiet = True
        for each, _ in ready:
            if each is self._link.socket:
                # Mostly that is about promises. If there is more to it, the round tells.
                self._messages_wait = True
            elif each is self._frames_in:
                self._frames_wait, is_quiet = True, False
            else:
                self._bell.still()
                is_quiet = False
        self._quiet_rounds = self._quiet_rounds + 1 if is_quiet else 0
        self._spare.gave(time.monotonic() - begin)

    def _round(self) -> bool:
        """Do what there is to do; return whether there is more at once."""
        self._pass_time()
        frames = self._taken_frames() if self._frames_wait else []
        progress = self._take_messages() if self._messages_wait else None
        # Unless a wait tells it better, anything may have come by the next round.
        self._frames_wait = self._messages_wait = True
        self._check_links()
        effects: list[Effects] = []
        if progress is not None:
            effects.append(self._engine.progress(progress, frames))
        elif frames:
            effects.append(self._engine.deliver(frames))
        self._do(effects)
        self._caught_up = self._caught_up or not frames
        if any(map(_is_waited_for, effects)):
            # Others wait for these results, and nobody yet for those of new elements.
            self._store()
            self._link.flush()
        elif self._link.has_news:
            self._link.flush()
        if self._meter is not None and self._feeds:
            self._meter.begin_fronts()
        elements = self._take_elements()
        if elements:
            self._do(elements, reports_follow=any(feed.owes_report for feed in self._feeds))
        if self._meter is not None and elements:
            self._meter.end_fronts()
        self._store()
        self._link.flush()
        effects += elements
        # Nobody waits for this, nor for what follows.
        is_waited_for = bool(effects) and self._is_waited_for()
        if self._engine.is_untidy:
            self._engine.tidy(is_waited_for=is_waited_for)
        if self._meter is not None and not is_waited_for:
            self._meter.settle()
        self._evict()
        self._go_on_with_cut(loop_is_busy=bool(effects))
        self._go_on_with_twin()
        self._answer()
        self._send_news()
        self._send_dealt()
        self._link.flush()
        if frames or any(effect.frames or effect.bundles for effect in effects):
            self._quiet_rounds = 0
        return (
            is_waited_for
            or self._link.has_received
            or (self._cut_writer is not None and self._cut_writer.is_busy)
            or (self._answering is not None and self._answering.is_busy)
        )

    def _evict(self) -> None:
        """Move keys that are cold out of memory, if there are too many."""
        if self._state_bound is not None:
            self._state_bound.go_on(time.monotonic(), self._memory.pressure)

    def _check_links(self) -> None:
        """Look at the links now and then. What has come is taken before: behind a long round much waits, and a link
        is silent only if nothing does."""
        now = time.monotonic()
        if now - self._links_checked_at >= _LINKS_SECONDS:
            self._links_checked_at = now
            self._link.check(now)
            for peer in self._peers.values():
                peer.look(now)

    def _pass_time(self) -> None:
        now = time.monotonic()
        self._spare.look(now)
        passed = now - self._passed_until
        if passed >= _PASSED_SECONDS:
            self._engine.pass_time(passed)
            self._passed_until = now
            if isinstance(self._engine, Worker):
                # Each frame costs both workers something. So only where they have time.
                has_time = self._spare.left > _AHEAD_FROM
                self._engine.ahead = self._send_ahead if has_time else None

    def _is_waited_for(self) -> bool:
        """Whether there is something for the next round already. What comes later ends the next wait."""
        return (
            has_come(self._frames_in)
            or has_come(self._link.socket)
            or any(feed.waiting for feed in self._feeds)
        )

    def _do(self, effects: list[Effects], *, reports_follow: bool = False) -> None:
        """Send frames first, then one ack, then hand on what is final.

        Where a front's report is to follow, the link may hold the ack until then.
        """
        if not effects:
            return
        acks = [effect.ack for effect in effects]
        hold = reports_follow and not any(ack.reports for ack in acks)
        self._send_frames(effects, self._link.send_acks(acks, hold=hold))
        for effect in effects:
            if self._mirror is not None:
                self._own_released += map(Released.of, effect.bundles)
            else:
                for bundle in effect.bundles:
                    self._stores[bundle.sink, bundle.partition].add(bundle)
                if self._observer is not None:
                    self._observer.note_released(effect.bundles)
            if effect.failure is not None:
                raise effect.failure
        if self._twin is not None:
            # At once: the engine's minimal time is what the last of the effects left.
            bundles = [bundle for effect in effects for bundle in effect.bundles]
            self._twin.release(bundles, self._engine.minimal)

    def _go_on_with_cut(self, *, loop_is_busy: bool) -> None:
        writer = self._cut_writer
        if writer is None:
            return
        if self._order is not None:
            self._do(self._cuts.begin(self._order, self._own_feeds, writer))
            self._order = None
        captured = self._cuts.go_on(self._stores.values(), writer, loop_is_busy=loop_is_busy)
        if captured is not None:
            self._link.send(protocol.CAPTURED, captured)

    def _made_beside(self, shipped: bytes, worker: int, bell: Bell | None) -> WorkerLoop:
        """The loop of another version, in the same process."""
        # The bytes came over a link that only this run's processes have the keys of.
        plan, spare = pickle.loads(shipped), None if bell is None else self._spare
        return WorkerLoop(plan, worker, self._strategy, bell=bell, spare=spare)

    def _promised(self) -> dict[tuple[str, int], Moment]:
        return {(feed.name, feed.partition): feed.reported for feed in self._feeds}

    def _go_on_with_twin(self) -> None:
        """Begin or end the version beside this one; or pass on what the other one has released."""
        if self._twin_at is not None:
            at, self._twin_at = self._twin_at, None
            if self._twin is not None and self._successor is not None:
                self._successor.run_beside(self._twin, self._engine, at)
        if self._twin is not None and self._twin.is_over.is_set():
            self._twin = None
        if self._mirror is not None:
            if self._mirror.failure is not None:
                raise self._mirror.failure
            # Ask first up to where all is released: then all that it is about is there.
            below = (self._mirror.released_below, self._engine.minimal)
            old = [self._mirror.released.popleft() for _ in range(len(self._mirror.released))]
            new, self._own_released = self._own_released, []
            if old or new or below != self._released_below:
                self._released_below = below
                self._link.send(protocol.RELEASED, (old, new, below))

    def _answer(self) -> None:
        if self._answering is not None:
            answers = self._answering.answers()
            if answers:
                self._link.send(protocol.ANSWERS, answers)

    def _taken_frames(self) -> list[Frame]:
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
                elif kind == protocol.DEALT:
                    self._link.hear(body)
        return frames

    def _take_messages(self) -> Progress | None:
        """Handle the control messages of the coordinator; return the last progress."""
        progress: Progress | None = None
        for kind, body in self._link.received():
            if kind == protocol.PROGRESS:
                progress = body  # the last one says all
            elif kind == protocol.CUT:
                self._order = body
                break  # later progress would trim what the cut needs
            elif kind == protocol.TWIN:
                self._twin_at = body
                break  # for the same reason
            else:
                self._handle(kind, body)
        if progress is None:
            return None
        self._minimal = progress.of_all()
        for feed in self._feeds:
            feed.minimal_time(self._minimal)
            feed.ask(progress.wanted)
        if self._twin is not None:
            self._twin.forget_below(progress.of_all())
        return progress

    def _handle(self, kind: bytes, body: Any) -> None:
        if kind == protocol.STORED:
            partition, bundles = body
            self._stores[partition].stored(bundles)
        elif kind == protocol.SETTLED:
            self._settled_everywhere = body
            for settling, below in self._cuts.settled_elements(body, self._own_feeds):
                settling.settled_below(below, self._latencies.append)
        elif kind == protocol.ASK:
            assert self._answering is not None
            self._answering.hear(body)
        elif kind == protocol.COMMITTED:
            self._paused = False
            for bundle in self._cuts.committed(body):
                self._stores[bundle.sink, bundle.partition].add(bundle)
        elif kind == protocol.HURRY:
            assert self._cut_writer is not None
            self._cut_writer.hurry()
        elif kind == protocol.PAUSE:
            self._paused = True
            self._link.send(protocol.PAUSED, None)
        elif kind == protocol.START:
            last, bound = body
            self._begin_fronts(last)
            if bound is not None:  # before anything enters
                self._bound_fronts([feed.halt_at(*bound) for feed in self._own_feeds], halts=True)
        elif kind == protocol.HALT and body is None:
            for feed in self._feeds:
                feed.halt()
            self._news_at = 0.0
        elif kind in (protocol.HOLD, protocol.HALT, protocol.GO_ON):
            holds = kind == protocol.HOLD
            at = body or (None, FRONT_MIN)
            reached = [feed.hold() if holds else feed.halt_at(*at) for feed in self._own_feeds]
            self._bound_fronts(reached, halts=kind == protocol.HALT)
        elif kind == protocol.FLUSH:
            self._flush_stores(for_good=body)
        elif kind == protocol.END:
            self._ending = True
            self._last_minimal = body
        elif kind == protocol.QUIT:
            self._quit = True
            self._hands_over = bool(body)
        elif kind == protocol.SUCCESSOR:
            number, shipped, is_mirror, worker = body
            self._twin = Mirror(self._promised()) if is_mirror else None
            self._recorded_from = max(self._reached(), self._engine.minimal)
            self._successor = _Successor(
                partial(self._made_beside, shipped, worker, None if is_mirror else self._bell),
                self._bell.ring,
                number=number,
                instead_of=self._successor,
            )

    def _bound_fronts(self, reached: list[int], *, halts: bool) -> None:
        """Tell that the fronts hold, or will halt at a moment, and what they have let in."""
        self._tells_halt = halts
        promised = min(self._promised().values(), default=AFTER_ALL)
        self._link.send(protocol.BOUNDED, (max(reached, default=TIME_MIN), promised))

    def _take_elements(self) -> list[Effects]:
        if not self._feeds or not self._fronts_begun or self._paused:
            return []
        if not self._cuts.takes_elements:
            return []
        stores = self._stores.values()
        if (
            sum([store.unstored for store in stores]) > _UNSTORED_MAX
            or sum([store.unstored_bytes for store in stores]) > _UNSTORED_BYTES_MAX
        ):
            self._flush_stores()  # the fronts wait for sinks, so output must not wait for more
            return []
        effects = []
        pressure = 0.0 if self._state_bound is None else self._state_bound.pressure
        now = time.monotonic()
        most = self._memory.most(self.plan.batch, now)
        most_ahead = self._memory.most(most, now, pressure) if pressure else most
        most_behind = max(most_ahead, min(most, self.plan.batch // _SLOWED_BEHIND))
        for feed in self._feeds:
            # Keys can be evicted once they are final. For that those that are behind must go on.
            is_behind = feed.reported <= self._minimal
            items = feed.take(most_behind if is_behind else most_ahead)
            malformed = feed.aside.take()
            if late := feed.take_late():
                assert feed.late_node is not None
                effects.append(self._engine.enter_items(feed.late_node, late, {}))
            report = feed.report()
            if self._twin is not None and (items or report or malformed or late):
                of, promise = (feed.name, feed.partition), report.get(feed.index)
                self._twin.enter(Entered(of, list(items), late, malformed, promise))
            if items or report or malformed:
                effects.append(self._engine.enter_items(feed.node, items, report, malformed))
        return effects

    def _send_frames(self, effects: list[Effects], dealt: list[tuple[int, Dealt]]) -> None:
        """Send the frames of several events, and what was dealt with of other workers' frames; all for a worker in
        one envelope."""
        by_destination: dict[int, list[bytes]] = {}
        for effect in effects:
            for destination, frame in effect.frames:
                encoded = self._encoded(protocol.FRAME, frame)
                by_destination.setdefault(destination, []).append(encoded)
                self._last_bound_for[destination] = frame.parts[0][0]
        for sender, one in dealt:
            own = by_destination
            if not _is_passed_on(one.entries):
                if not self._dealt_later:
                    self._dealt_later_since = time.monotonic()
                own = self._dealt_later
            own.setdefault(sender, []).append(self._wire.encode(protocol.DEALT, one))
        for destination, messages in by_destination.items():
            messages += self._dealt_later.pop(destination, ())
            self._peers[destination].send(messages)

    def _send_ahead(self, frames: list[tuple[int, Frame]]) -> None:
        """Send frames of the event that is under way: others can work on them meanwhile."""
        self._quiet_rounds = 0
        for destination, frame in frames:
            self._peers[destination].send([self._encoded(protocol.FRAME, frame)])
            self._last_bound_for[destination] = frame.parts[0][0]

    def _send_dealt(self) -> None:
        """Tell others which frames for barriers were dealt with: alone, if nothing else is sent to them for a while."""
        if not self._dealt_later:
            return
        if time.monotonic() - self._dealt_later_since >= _PIGGYBACK_SECONDS:
            later, self._dealt_later = self._dealt_later, {}
            for sender, messages in later.items():
                self._peers[sender].send(messages)

    def _encoded(self, kind: bytes, body: Frame | StoredBundle) -> bytes:
        try:
            return self._wire.encode(kind, packed(body))
        except Exception:
            return self._wire.encode(kind, packed(fit_to_travel(body)))

    def _store(self) -> None:
        together: dict[WriterThread, list[StoredBundle]] = {}
        for key, store in self._stores.items():
            writer = self._writers.get(key)
            if writer is not None and store.is_under_way:
                for partition, bundles in writer.stored().items():  # also those that share it
                    self._stores[key[0], partition].stored(bundles)
            bundle = store.next()
            if bundle is not None:
                if writer is not None:
                    together.setdefault(writer, []).append(bundle)
                else:
                    self._link.send_encoded(self._encoded(protocol.BUNDLE, bundle))
        for writer, given in together.items():
            writer.store(*given)
        self._send_settled()
        if self._ending and not self._done:
            self._end_if_settled()

    def _end_if_settled(self) -> None:
        """Say that all is done, if it is. A worker with fronts ends when all that it took in has settled: it reports
        latencies till then."""
        settled = not self._feeds or self._settled_everywhere >= self._last_minimal
        if settled and not any(store.unstored for store in self._stores.values()):
            self._done = True
            self._send_logged()
            self._link.send(protocol.DONE, self._news())

    def _flush_stores(self, *, for_good: bool = False) -> None:
        for store in self._stores.values():
            store.flush(for_good=for_good)

    def _send_settled(self) -> None:
        """Send what is settled here: piggybacked, or alone now and then."""
        now = time.monotonic()
        if self._link.has_outgoing or now - self._settled_sent_at >= _PIGGYBACK_SECONDS:
            settled = self._cuts.settled_output(self._stores.values())
            if settled > self._settled_sent:
                self._settled_sent, self._settled_sent_at = settled, now
                self._link.send(protocol.SETTLED, settled)

    def _send_news(self) -> None:
        now = time.monotonic()
        if self._tells_halt and all(feed.over and feed.is_reported for feed in self._feeds):
            self._tells_halt, self._news_at = False, 0.0  # others wait for it
        if now - self._news_at >= _NEWS_SECONDS:
            self._news_at = now
            self._send_logged()
            self._link.send(protocol.NEWS, self._news())
        if self._successor is not None and self._successor.is_news():
            successor = self._successor
            told = (successor.number, successor.problem, self._recorded_from)
            self._link.send(protocol.PREPARED, told)

    def _send_logged(self) -> None:
        """Send what functions, fronts and sinks have logged in this process."""
        batch = capture.taken()
        if batch is not None:
            self._link.send(protocol.LOGGED, batch)

    def _news(self) -> WorkerNews:
        latencies, self._latencies = self._latencies, []
        caught_up, self._caught_up = self._caught_up, False
        few_keys = self._engine.keys <= _KEYS_VISITED_MAX
        now = time.monotonic()
        counts = few_keys and (self._done or now - self._counted_at >= _COUNTED_SECONDS)
        statistics = self._engine.statistics(sizes_too=counts)
        if counts:
            self._counted_at, self._bucket_items = now, statistics.bucket_items
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
            bucket_items=self._bucket_items if few_keys else None,
            settled=sum(feed.settled for feed in self._feeds),
            latencies_ms=latencies,
            lag_ms=max((feed.lag_ms for feed in self._feeds), default=0.0),
            cpu_seconds=time.process_time(),
            pid=os.getpid(),
            chose=any(feed.chose for feed in self._feeds),
            memory=max(
                self._memory.look(time.monotonic()),
                0.0 if self._state_bound is None else self._state_bound.pressure,
            ),
            cold_keys=0 if self._state_bound is None else self._state_bound.cold_keys,
            caught_up=caught_up,
            sent={peer: (sender.sent, self._step(peer)) for peer, sender in self._peers.items()},
            received=dict(self._receiver.received),
            late=late,
            observation=(
                None
                if self._observer is None
                else self._observer.observed(self._feeds, self._stores.values())
            ),
            load=None if self._meter is None else self._meter.report(),
        )

    def _step(self, peer: int) -> str:
        """The step that the last frame to a peer was bound for."""
        node = self._last_bound_for.get(peer)
        if node is None:
            return ""
        nodes = self.plan.graph.nodes
        return str(nodes[node]) if node < len(nodes) else "the barrier of failures"


class _Successor:
    """The loop of the next version, made in a thread beside the loop that works."""

    def __init__(
        self,
        make: Callable[[], WorkerLoop],
        ring: Callable[[], None],
        *,
        number: int,
        instead_of: _Successor | None,
    ) -> None:
        """``ring`` wakes the loop that works. ``number`` is that of the order. ``instead_of`` has not taken
        over, and will not."""
        self.number = number
        #: Why it cannot take over.
        self.problem: Exception | None = None
        self._loop: WorkerLoop | None = None
        self._is_told = False
        self._thread = threading.Thread(
            target=self._prepare,
            args=(make, ring, instead_of),
            name="emberflow successor",
            daemon=True,
        )
        self._thread.start()

    def _prepare(
        self,
        make: Callable[[], WorkerLoop],
        ring: Callable[[], None],
        instead_of: _Successor | None,
    ) -> None:
        try:
            if instead_of is not None:
                instead_of.discard()
            self._loop = make()
            self._loop.meet()
        except NotNeededError:
            self._is_told = True  # the driver knows
        except Exception as error:
            self.problem = error
        ring()

    def is_news(self) -> bool:
        """Whether it has become clear, since the last call, that it can take over, or cannot."""
        if self._is_told or self._thread.is_alive():
            return False
        self._is_told = True
        return True

    def loop(self) -> WorkerLoop:
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)  # it has told that it is ready, and ends
        assert self._loop is not None
        return self._loop

    def run_beside(self, twin: Mirror, engine: EngineWorker, moment: Moment) -> None:
        """Copy the state of an engine as of a moment, and let the loop run on it in its thread."""
        loop = self.loop()
        self._thread = threading.Thread(
            target=self._run_beside, args=(loop, twin), name="emberflow mirror", daemon=True
        )
        try:
            assert isinstance(engine, Worker)
            assert loop.plan.carried is not None
            rows = list(copied_rows(engine, moment, loop.plan.carried))
            timers = list(copied_timers(engine, moment, loop.plan.carried))
        except Exception as error:  # of a migration: the version that works goes on
            loop._link.send_failure(error)
            twin.is_over.set()
            return
        twin.begin(Copied(moment, rows, timers), loop._bell.ring)
        loop._mirror = twin
        self._thread.start()

    def _run_beside(self, loop: WorkerLoop, twin: Mirror) -> None:
        try:
            with contextlib.suppress(Exception), loop.ending():  # the driver is told
                loop.run()
        finally:
            self._loop = None
            twin.is_over.set()

    def discard(self) -> None:
        loop = self._loop
        if loop is not None:
            loop.is_discarded = True
        if loop is not None and loop._mirror is not None:
            loop._quit = True
            loop._bell.ring()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)
        if self._loop is not None and not self._thread.is_alive():
            self._loop.close()


def _is_waited_for(effects: Effects) -> bool:
    """Whether others wait for it: it releases output, or acks frames that may go anywhere.

    Frames for the barriers here concern only this worker, which knows of them (`progress.receipts`).
    """
    ack = effects.ack
    return bool(effects.bundles or ack.anywhere or ack.deeper or ack.said or ack.own) or any(
        map(_is_passed_on, ack.dealt.values())
    )


def _is_passed_on(entries: Entries) -> bool:
    """Whether they are of frames that may have caused others."""
    return bool(entries.levels or entries.own)
