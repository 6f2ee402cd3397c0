"""The coordinator: a thread of the driver through which the workers of a query find each other.

It is the rendezvous, the acker, the home of sinks that live in the driver, and it alone knows the state
of the whole query. Its life::

    meeting ──> restoring ──> running ──> halting ──> ending ──> over
                                 │           ^          ^          ^
                                 ├─ stop() ──┘          │          │
                                 ├─ fronts ended ───────┤ nothing is in flight
                                 └─ a failure ─────────────────────┘

*Running* begins when all workers have restored their parts: scheduled items are acked by then, and no
front's report can overtake them.

*Ending* begins when no front will give anything more (ended, or halted) and nothing is in flight below
what the fronts have promised: a front's last ack came before its worker said that it has halted, on the
same FIFO link, so nothing else comes there. What is above can never become final. Some of it may be held
for ever: a patient node waits for a front that has halted further back, and a window for its end. The
coordinator sends the last progress, then 'end': workers store what is left.

**Another version takes over** at the last cut of this one, from another coordinator, in the same
processes if it can (`handover`). That one meets its workers while this one works, and then is *prepared*:
it waits for the state. What this one leaves to it in the driver is an `Inheritance`.

**Another number of workers** takes over in the same way (`live.rescale`): a worker that is not among them
is told to leave. One that is added meets the others in the coordinator that is prepared.

**Another version runs beside this one**, on the same elements, if it was asked for. It has a coordinator of
its own too. This one lets the workers record what enters, and when all below the minimal time has been
recorded, it tells them to begin there.

What depends on the ordering of the query is in the strategy that it is given (`cuts`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import zmq

from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Moment, Progress
from emberflow.engine.progress.accounts import Accounts
from emberflow.engine.progress.acker import Acker
from emberflow.errors import EmberflowError, OnError
from emberflow.fronts.protocol import Front
from emberflow.graph.nodes import Graph
from emberflow.graph.versions import CarryPlan
from emberflow.runners.diversion import sink_partitions
from emberflow.runners.live.balance.ledger import Ledger
from emberflow.runners.live.driver.cluster import ClusterError, CoordinatorAddress
from emberflow.runners.live.driver.cuts import CutCommitter, CutsByTime, DriverCuts, HeldCut
from emberflow.runners.live.driver.handover import Order, Standstill, Takeover
from emberflow.runners.live.driver.link import PIGGYBACK_SECONDS, WorkerLink
from emberflow.runners.live.driver.log import QueryLog
from emberflow.runners.live.driver.progress import Latencies
from emberflow.runners.live.driver.watchdog import Watchdog
from emberflow.runners.live.observation import ASIDE_MAX, Aside
from emberflow.runners.live.wire import protocol
from emberflow.runners.live.wire.codec import unpacked_bundle
from emberflow.runners.live.wire.links import UNNUMBERED, LinkError, Receiver, received_parts
from emberflow.runners.live.wire.plan import (
    WorkerNews,
    feeding_workers,
    front_indices,
    telling_fronts,
)
from emberflow.runners.live.wire.questions import Questions
from emberflow.runners.live.wire.sockets import Wire, WireKeys
from emberflow.runners.live.worker.cut_writer import AT_ONCE, CALM, QUICK
from emberflow.runners.live.worker.machine.memory import SLOW_FROM
from emberflow.sinks.protocol import sink_contract
from emberflow.sinks.writer import WriterThread
from emberflow.values.item import TIME_MIN, Place
from emberflow.values.owners import Owners

_POLL_MS = 5
_MEETING_SECONDS_MAX = 120.0
_SILENCE_SECONDS_MAX = 8.0
_HEARTBEAT_SECONDS = 1.0
_JOIN_SECONDS = 5.0
_WARNING_SECONDS = 30.0
#: How often it looks for workers that are silent, and for frames that were lost.
_LOOK_SECONDS = 0.25
#: There is no progress to send yet.
_NOT_WORKING = ("meeting", "prepared")
_MESSAGES_A_ROUND = 1_000
#: How long after a cut the next one waits for those who read it.
_PUT_OFF_SECONDS_MAX = 4.0


_log = logging.getLogger("emberflow")


class WorkersMissingError(EmberflowError):
    """Not all workers have come, or one of them has become silent."""


class MismatchError(EmberflowError):
    """A worker runs another flow than the driver."""


class OtherVersion(NamedTuple):
    """A version, or another owner table, for which the workers are to make loops. Its coordinator has
    started."""

    #: Its plan.
    shipped: bytes
    #: Told why a worker cannot make its loop.
    refuse: Callable[[BaseException], None]
    #: If it is to run beside this one: told of the moment from which on it does.
    begun: Callable[[Moment], None] | None = None
    #: If its workers are others: which number each worker that goes on has there. The others leave.
    numbers: Mapping[int, int] | None = None

    def number(self, worker: int) -> int | None:
        """The number that a worker of this life has there; None if it leaves."""
        return worker if self.numbers is None else self.numbers.get(worker)


class Inheritance(NamedTuple):
    """What a coordinator of a new version takes over in the driver."""

    #: The last cut of the version before. It does not count yet if it is ``held``.
    cut: Manifest
    held: HeldCut | None
    #: Since when no element has entered.
    standstill: Standstill
    #: The writers of sinks that live in the driver.
    writers: dict[tuple[str, int], WriterThread]


class Coordinator:
    """Starts with `start`, ends by itself or after `stop`; `wait` tells when it is over."""

    def __init__(
        self,
        graph: Graph,
        *,
        workers: int,
        incarnation: int,
        keys: WireKeys,
        place: CoordinatorAddress,
        fronts: Mapping[str, Front],
        sinks: Mapping[str, Any],
        on_error: OnError = "fail",
        committer: CutCommitter | None = None,
        strategy: DriverCuts | None = None,
        since: Moment = BEFORE_ALL,
        history: int = 0,
        carried: CarryPlan | None = None,
        running: Callable[[], None] = lambda: None,
        inherits: frozenset[str] | None = None,
        prepared: Callable[[BaseException | None], None] = lambda failure: None,
        met: Callable[[], None] | None = None,
        released: Callable[[int, Any], None] = lambda worker, released: None,
        log: QueryLog | None = None,
        owners: Owners | None = None,
        has_accounts: bool = False,
    ) -> None:
        """``since`` is the moment of the cut to begin from; ``history`` is what queries look back.

        ``carried``: that cut is of an earlier version of the flow, and this is how it is taken over.
        ``running`` is called when the workers were told to begin.

        ``inherits``: the workers are to take over from those of the version before, in the same
        processes, and these sinks are written as before. ``prepared`` is called when all of them have
        come, or with the failure because of which they have not. With ``met``, that one is called when they
        have come, and they are prepared when they have read what `copy` gives them first. ``released`` is called with what a
        version beside this one has released, on a worker. ``log`` is that of the query. ``owners`` say
        which worker has which keys. ``has_accounts``: the workers have accounts of what they have sent, and this
        one gets statements of them in place of all acks.
        """
        self._graph = graph
        self._log = QueryLog(graph.flow) if log is None else log
        self._inherits = inherits
        self._prepared = prepared
        self._released = released
        #: If slices move: called when the workers have come. What they are to read ahead, and whether it is
        #: sent; the workers that have read it; and who is called when all have.
        self._met = met
        self._ahead: tuple[Manifest | None, bool] | None = None
        self._copied: set[int] = set()
        self._brought_up: Callable[[], None] = lambda: None
        #: Who wants a cut to read from, and from then on only cuts that add to it.
        self._wants_cut: Callable[[Manifest | None], None] | None = None
        #: By worker: all that had entered when it began to record is below this.
        self._recorded_from: dict[int, Moment] = {}
        self._inheritance: Inheritance | None = None
        #: Whether it ends what it has, and takes nothing over any more.
        self._is_closed = False
        self._history = history
        self._carried = carried
        self._running = running
        self.committer = committer
        self._strategy = CutsByTime() if strategy is None else strategy
        self._workers = workers
        self.has_accounts = has_accounts
        acker = Accounts if has_accounts else Acker
        self._acker: Acker | Accounts = acker(workers=workers, fronts=front_indices(graph, fronts))
        #: The fronts that promise the present.
        self._telling = telling_fronts(graph, fronts)
        #: The workers that wait for their elements to be settled.
        self._feeding = sorted(feeding_workers(graph, fronts, workers))
        self._writers: dict[tuple[str, int], WriterThread] = {}
        try:
            for name, partition in sink_partitions(graph, on_error):
                if sink_contract(sinks[name]).on_driver and name not in (inherits or ()):
                    self._writers[name, partition] = WriterThread(sinks[name], name, partition)
        except BaseException:
            for writer in self._writers.values():
                writer.close(_JOIN_SECONDS)
            raise
        # Sinks that cannot be opened raise before there is a socket or a thread to be left behind.
        self._incarnation = incarnation
        self._wire = Wire(keys, incarnation)
        try:
            # Each worker has two connections: one for its loop, one for its heartbeat.
            self._socket, own = self._wire.listening(
                zmq.ROUTER, place.listens_on, place.port, peers=2 * workers
            )
        except zmq.ZMQError as error:
            self._wire.close()
            raise ClusterError(
                f"the coordinator cannot listen on {place.listens_on}, port {place.port or 'any'}: "
                f"{error}. Set .option('coordinatorHost', ...) to an address of this machine."
            ) from error
        self._socket.router_mandatory = True  # raise where a message would be dropped
        self.address = f"tcp://{place.reached_at}:{own.rpartition(':')[2]}"
        #: By sink partition: the worker that holds its barrier and waits for it to be stored.
        self._storing: dict[tuple[str, int], int] = {}
        self._receiver = Receiver(self._wire, "the driver")
        self._watchdog = Watchdog(workers)
        self._looked_at = 0.0
        self._warns_again_at = 0.0
        #: By worker, and by the address that ZeroMQ gave it.
        self._links: dict[int, WorkerLink] = {}
        self._addresses: dict[int, str] = {}
        self._heard_at: dict[int, float] = {}
        self._progress_sent: Progress | None = None
        self._progress_sent_at = 0.0
        self._progress_looked_at: Progress | None = None
        self._stop_asked = threading.Event()
        self._takeover_asked = threading.Event()
        self._flush_asked = threading.Event()
        self._takeover: Takeover | None = None
        #: What the workers are to prepare, and how often they were asked to prepare anything.
        self._other: OtherVersion | None = None
        self._others = 0
        self._is_other_sent = False
        self._hands_over = False
        #: The workers that were told to go on after all, and have not answered yet.
        self._going_on: set[int] = set()
        #: The greatest global time that any sink had when this life began.
        self._stored_before: Moment = BEFORE_ALL
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._done: set[int] = set()
        self._ready: dict[int, Moment | None] = {}
        self._last_cut_ordered = False
        self._flushed_for_good = False
        self._halted = False
        self.phase = "meeting"
        #: Whether all workers have come.
        self.met = False
        self.failure: BaseException | None = None
        self.news: dict[int, WorkerNews] = {}
        self.latencies = Latencies()
        #: The load of workers and slices.
        self.ledger = Ledger(workers)
        #: The least place in flight, if that and no front holds the minimal time back; now and then.
        self.least_in_flight: Place | None = None
        #: The newest records that were diverted or late, until somebody takes them.
        self.aside: deque[Aside] = deque(maxlen=ASIDE_MAX)
        self._settled_of = dict.fromkeys(range(workers), BEFORE_ALL)
        self._settled = BEFORE_ALL
        #: Reads of state.
        self._owners = owners
        self.questions = Questions(workers, since=since, history=history, owners=owners)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self.questions.bell.fileno(), zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name="emberflow coordinator", daemon=True)

    # What the query calls.

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no more elements, release what is final, then end."""
        self._stop_asked.set()

    def prepare(self, other: OtherVersion) -> None:
        """Have the workers make the loops of another version; let it run, if it runs beside this one."""
        self._recorded_from = {}
        self._others += 1
        self._other = other
        self._is_other_sent = False

    def stop_for_takeover(
        self,
        at: Moment | None,
        refuse: Callable[[int], None],
        *,
        in_place: bool | None,
        bring_up: Callable[[Manifest | None, bool], None] | None = None,
    ) -> None:
        """The same as `stop`, for another version, at a moment or as soon as possible (`handover`).

        What sinks have from earlier lives is of this version, so the moment at which it ends is behind
        that: all of it is computed again before the fronts halt. If elements of the time have entered
        already, the fronts go on, and ``refuse`` is told the greatest time that has. ``in_place``: the
        loops of the other version are prepared. With None they are being made, and this version does not
        end before `takeover_prepared`. ``bring_up`` is called with cuts, up to the one before the last, and
        `brought_up` has to follow each time.
        """
        self._takeover = Takeover(self._workers, at, refuse, in_place=in_place, bring_up=bring_up)
        if self.committer is not None:
            self.committer.reads_back = True
        self._takeover_asked.set()
        self.flush()  # the cuts before the end of this version wait for sinks

    def takeover_prepared(self, *, in_place: bool) -> None:
        """It is known now how the version takes over for which the fronts halt."""
        if self._takeover is not None:
            self._takeover.in_place = in_place

    def cancel_takeover(self) -> None:
        """The version for which the fronts halt does not take over: they go on."""
        self._wants_cut = None
        if self._takeover is not None:
            self._takeover.is_cancelled = True
        elif self.committer is not None:
            self.committer.only_adds = False

    def give_cut(self, take: Callable[[Manifest | None], None]) -> None:
        """Call this with the last cut that counts; None if there is nothing to save yet. Until a takeover is
        over, or cancelled, all cuts add to it.

        If the chain up to it is long, it is one of everything: that is read sooner.
        """
        if self.committer is not None:
            self.committer.only_adds = True
        self._wants_cut = take
        self.flush()

    def brought_up(self) -> None:
        """The workers of the next life have read the cut before the last one."""
        if self._takeover is not None:
            self._takeover.is_brought_up = True

    def copy(
        self, cut: Manifest | None, *, is_last: bool, copied: Callable[[], None] = lambda: None
    ) -> None:
        """Let the workers read from this cut what will come to them. ``copied`` is called when all have."""
        self._brought_up = copied
        self._ahead = (cut, is_last)
        self.questions.bell.ring()

    def take_over(self, inheritance: Inheritance) -> bool:
        """The version before has ended at a cut. All have been prepared.

        Returns whether it takes that over. Then `commit_with` must follow, or a failure. If it has failed
        already, it closes nothing of what the other one has left.
        """
        with self._lock:
            if self._is_closed:
                return False
            self._inheritance = inheritance
        self.questions.bell.ring()
        return True

    def commit_with(self, committer: CutCommitter) -> None:
        """Go on with the cuts of the version before. The workers take over meanwhile."""
        with self._lock:
            if self.failure is None and not self._over.is_set():
                self.committer = committer
                self.questions.bell.ring()
                return
        committer.close(_JOIN_SECONDS)

    @property
    def standstill(self) -> Standstill | None:
        """How long elements wait for the version that takes over, or wait here for this one to take over."""
        if self._takeover is not None:
            return self._takeover.standstill
        return None if self._inheritance is None else self._inheritance.standstill

    @property
    def workers(self) -> int:
        return self._workers

    @property
    def owners(self) -> Owners | None:
        return self._owners

    @property
    def hands_over(self) -> bool:
        """Whether it is over, and its workers go on in the same processes for another version."""
        return self._hands_over and self.failure is None

    def left_writers(self, names: frozenset[str]) -> dict[tuple[str, int], WriterThread]:
        """The writers of these sinks, once it is over. The others are closed."""
        left = {key: writer for key, writer in self._writers.items() if key[0] in names}
        for key, writer in self._writers.items():
            if key not in left:
                writer.close(_JOIN_SECONDS)
        return left

    def flush(self) -> None:
        """Have sinks store now what waits for more."""
        self._flush_asked.set()

    def fail(self, error: BaseException) -> None:
        """Something outside has failed: end now. Only the first failure counts."""
        with self._lock:
            if self.failure is None and not self._over.is_set():
                self.failure = error

    def fail_unless_over(self, error: BaseException) -> None:
        """A worker has left: end now, unless all have been told to leave."""
        if self.phase != "over":
            self.fail(error)

    @property
    def has_started(self) -> bool:
        return self._thread.ident is not None

    def wait(self, seconds: float | None) -> bool:
        return self._over.wait(seconds)

    @property
    def halted_before_the_end(self) -> bool:
        """Whether it is over because it was asked to stop, and not because all fronts have ended."""
        return self._halted and self._acker.progress.of_all() != AFTER_ALL

    @property
    def progress(self) -> Progress:
        return self._acker.progress

    @property
    def promises(self) -> dict[int, Moment]:
        """By front index: it lets nothing more in below this."""
        return dict(self._acker.reports)

    @property
    def is_quiet(self) -> bool:
        """Whether the output of all elements is stored, according to the last news."""
        return (
            self._acker.entries == 0
            and not self._acker.waits
            and len(self.news) == self._workers
            and all(news.waiting == 0 and news.unstored == 0 for news in self.news.values())
        )

    # The thread.

    def _run(self) -> None:
        begin = time.monotonic()
        try:
            while self.phase != "over":
                self._take()
                self._acker.settle()
                self._store()
                self._send_on()
                self._advance(time.monotonic() - begin)
                self._flush()
                if self.failure is not None:
                    break
            self._hands_over = self._is_followed and self.halted_before_the_end
            if self.committer is not None and self.failure is None and not self._hands_over:
                self.committer.commit_held()
        except Exception as error:
            self.fail(error)
        finally:
            self.questions.end()
            self._hands_over = self._hands_over and self.failure is None
            for worker, link in self._links.items():
                link.send(self._wire.encode(protocol.QUIT, self._hands_over_to(worker)))
                with contextlib.suppress(LinkError):  # of a worker that is gone
                    link.flush(time.monotonic())
            if self._hands_over:
                self._end()  # the other version takes the writers, and waits
            else:
                with self._lock:
                    self._is_closed = True
                    self._adopt()
                for writer in self._writers.values():
                    writer.close(_JOIN_SECONDS)
            if self.committer is not None:
                self.committer.close(_JOIN_SECONDS)
            self._wire.close()
            was_prepared = self._inherits is None or self._inheritance is not None
            if not was_prepared and self.failure is not None:
                self._prepared(self.failure)
            self._end()

    def _hands_over_to(self, worker: int) -> bool:
        """Whether a worker goes on in its process, rather than leaves."""
        return (
            self._hands_over and self._other is not None and self._other.number(worker) is not None
        )

    def _end(self) -> None:
        self.phase = "over"
        self._over.set()

    def _take(self) -> None:
        ready = self._poller.poll(_POLL_MS)
        if not ready:
            return
        self.questions.bell.heard_in(ready)
        for _ in range(_MESSAGES_A_ROUND):
            received = received_parts(self._socket)
            if received is None:
                return
            identity, *parts = received
            envelope = self._receiver.opened(parts)
            if envelope is None:
                continue
            if envelope.number != UNNUMBERED:
                self._check_identity(envelope.link, identity)
            for kind, body in self._wire.decoded(envelope.content):
                self._handle(envelope.link, kind, body)

    def _check_identity(self, worker: int, identity: bytes) -> None:
        """A worker that has connected anew has another identity, and lost what was sent to the old."""
        link = self._links.get(worker)
        if link is None:
            self._links[worker] = WorkerLink(self._wire, self._socket, worker, identity)
        elif link.identity != identity:
            link.identity = identity  # to which it can be told to quit
            raise LinkError(f"the connection of worker {worker} to the driver broke")

    def _handle(self, worker: int, kind: bytes, body: Any) -> None:
        if kind == protocol.ACK:
            self._acker.receive(body)
            self._heard_at[body.worker] = time.monotonic()
        elif kind == protocol.ANSWERS:
            self._ask(self.questions.heard(body))
        elif kind == protocol.SETTLED:
            self._settled_of[worker] = body
        elif kind == protocol.CAPTURED:
            assert self.committer is not None
            self.committer.captured(body)
        elif kind == protocol.PAUSED:
            self._strategy.paused(worker)
        elif kind == protocol.BOUNDED:
            self._note_bounded(worker, *body)
        elif kind == protocol.NEWS:
            self._keep(body)
        elif kind == protocol.LOGGED:
            self._log.relay(worker, self._incarnation, body)
        elif kind == protocol.BUNDLE:
            bundle = unpacked_bundle(body)
            self._writers[bundle.sink, bundle.partition].store(bundle)
            self._storing[bundle.sink, bundle.partition] = worker
        elif kind == protocol.COPIED:
            self._note_copied(worker)
        elif kind == protocol.PREPARED:
            number, problem, recorded_from = body
            if number == self._others and self._other is not None:  # not one that was given up
                self._recorded_from[worker] = recorded_from
                if problem is not None:
                    self._other.refuse(problem)
        elif kind == protocol.RELEASED:
            self._released(worker, body)
        elif kind == protocol.HELLO:
            self._meet(worker, *body)
        elif kind == protocol.READY:
            self._note_ready(worker, body)
        elif kind == protocol.DONE:
            self._done.add(worker)
            self._keep(body)
        elif kind == protocol.BEAT:
            self._heard_at[worker] = time.monotonic()
        elif kind == protocol.FAILED:
            self.fail(body)

    def _keep(self, news: WorkerNews) -> None:
        self.news[news.worker] = news
        self._watchdog.hear(news)
        self._warn_of_memory(news)
        self._heard_at[news.worker] = time.monotonic()
        self.latencies.note(news.latencies_ms)
        if news.load is not None:
            self.ledger.hear(news.worker, news.load)
        if news.observation is not None:
            self.aside += news.observation.aside

    def _warn_of_memory(self, news: WorkerNews) -> None:
        now = time.monotonic()
        if news.memory >= SLOW_FROM and now >= self._warns_again_at:
            self._warns_again_at = now + _WARNING_SECONDS
            _log.warning(
                "worker %d (process %d) has %.0f%% of its memory in use, so its fronts are slowed "
                "down. Give it more memory, or the query more workers.",
                news.worker,
                news.pid,
                100 * news.memory,
            )

    def _meet(self, worker: int, fingerprint: int, address: str) -> None:
        if fingerprint != self._graph.fingerprint:
            raise MismatchError(
                f"worker {worker} has a flow of fingerprint {fingerprint:#x}, the driver one of "
                f"{self._graph.fingerprint:#x}. Do executors import another version of the flow?"
            )
        self._addresses[worker] = address
        self._heard_at[worker] = time.monotonic()
        if len(self._addresses) == self._workers:
            is_ready = self._inherits is None
            delivered = self._delivered() if is_ready else None
            addresses = [self._addresses[index] for index in range(self._workers)]
            self._send_all(protocol.PEERS, (addresses, delivered))
            self.phase = "restoring" if is_ready else "prepared"
            self.met = True
            if self._met is None:
                self._prepared(None)
            else:
                self._met()

    def _note_copied(self, worker: int) -> None:
        self._copied.add(worker)
        if len(self._copied) < self._workers:
            return
        self._copied = set()
        self._brought_up()

    def _adopt(self) -> None:
        """From now on this one ends what it inherits."""
        if self._inheritance is not None:
            self._writers |= self._inheritance.writers

    def _inherit(self) -> None:
        """Take over from the version before, if it has ended."""
        if self._inheritance is None:
            return
        self._adopt()
        cut = self._inheritance.cut
        self._poller.unregister(self.questions.bell.fileno())
        self.questions.end()
        self.questions = Questions(
            self._workers, since=cut.time, history=self._history, owners=self._owners
        )
        self._poller.register(self.questions.bell.fileno(), zmq.POLLIN)
        self._send_all(protocol.TAKE_OVER, (cut, self._delivered()))
        self.phase = "restoring"

    def _note_ready(self, worker: int, last: Moment | None) -> None:
        self._heard_at[worker] = time.monotonic()
        self._ready[worker] = last
        self._begin_if_ready()

    def _begin_if_ready(self) -> None:
        """Let the fronts begin when all workers have the state. If another version had it before, or other
        owners, commit that these have taken over: from then on there is no way back."""
        is_ready = len(self._ready) == self._workers and not self._acker.waits
        if is_ready and (self._inheritance is None or self.committer is not None):
            if self._carried is not None or self._inheritance is not None:
                assert self.committer is not None
                self._take_over(self.committer)
            lasts = [*self._ready.values(), *self._delivered().values()]
            last = max((at for at in lasts if at is not None), default=None)
            if last is not None:
                self._stored_before = (last[0], last[1])
            bound = None if self._takeover is None else self._takeover.bind()
            self._send_all(protocol.START, (last, bound))
            self.phase = "running"
            self._running()

    def _take_over(self, committer: CutCommitter) -> None:
        left = self._inheritance
        if left is None:
            committer.take_over(self._carried)
            return
        left.standstill.ends("state")
        manifest = committer.take_over(self._carried, left.held)
        left.standstill.ends("note")
        if manifest is not None:
            self._log_cut(manifest)

    def _delivered(self) -> dict[tuple[str, int], Moment]:
        """What the sinks here have from earlier: the barriers will not release it again."""
        lasts = {key: writer.last() for key, writer in self._writers.items()}
        return {key: last for key, last in lasts.items() if last is not None}

    def _store(self) -> None:
        for partition, worker in self._storing.items():
            if bundles := self._writers[partition].stored():
                self._send_later(worker, protocol.STORED, (partition, bundles.total()))

    def _send_on(self) -> None:
        """Send new progress at once: workers wait for it, and for little else that a turn may bring."""
        progress = self._acker.progress
        if progress is self._progress_looked_at or self.phase in _NOT_WORKING:
            return
        self._progress_looked_at = progress
        if self.phase != "restoring":
            self._send_settled()
        self._send_progress()
        self._flush()

    def _advance(self, seconds: float) -> None:
        if self.phase == "meeting":
            if seconds > _MEETING_SECONDS_MAX:
                missing = sorted(set(range(self._workers)) - set(self._addresses))
                raise WorkersMissingError(
                    f"workers {missing} of {self._workers} have not come within "
                    f"{_MEETING_SECONDS_MAX:.0f} s. Are there slots for all of them at once?"
                )
            return
        now = time.monotonic()
        looks = now - self._looked_at >= _LOOK_SECONDS
        if looks:
            self._looked_at = now
            self._check_silence(now)
        if self.phase == "prepared":
            if self._ahead is not None:
                ahead, self._ahead = self._ahead, None
                self._send_all(protocol.AHEAD, ahead)
            self._inherit()
            return
        if looks:
            self.least_in_flight = self._acker.least_in_flight()
            self._watchdog.look(now, self.least_in_flight)
        self._send_progress()
        if self.phase == "restoring":
            self._begin_if_ready()
            return
        self._ask(self.questions.taken())
        self._send_settled()
        self._send_other()
        self._cut()
        self._give_cut()
        if self.phase == "running" and self._may_halt():
            self._send_all(protocol.HALT, None)
            self.phase = "halting"
            self._halted = True
        if self._flush_asked.is_set():
            self._flush_asked.clear()
            self._send_all(protocol.FLUSH, False)
        nothing_more = self.phase in ("running", "halting") and self._nothing_more()
        if nothing_more and self.standstill is not None:
            self.standstill.ends("halt")
        if nothing_more and not self._flushed_for_good:
            self._flushed_for_good = True
            self._send_all(protocol.FLUSH, True)
        if nothing_more and self._last_cut_is_made():
            if self.standstill is not None:
                self.standstill.ends("last cut")
            self._send_progress(at_once=True)
            self._send_all(protocol.END, self._last_moment())
            self.phase = "ending"
        if self.phase == "ending" and len(self._done) == self._workers:
            self.phase = "over"

    def _send_other(self) -> None:
        other = self._other
        if other is None:
            return
        if not self._is_other_sent:
            self._is_other_sent = True
            for worker, link in self._links.items():
                number = other.number(worker)
                if number is not None:
                    order = (self._others, other.shipped, other.begun is not None, number)
                    link.send(self._wire.encode(protocol.SUCCESSOR, order))
        if other.begun is None or len(self._recorded_from) < self._workers:
            return
        minimal = self._acker.progress.of_all()
        if max(self._recorded_from.values()) <= minimal < AFTER_ALL:
            self._other = other._replace(begun=None)
            self._send_progress(at_once=True)  # on the same link, just before the order
            self._send_all(protocol.TWIN, minimal)
            other.begun(minimal)

    def _give_cut(self) -> None:
        """Give the last cut to whoever wants it, as soon as there is one that others can add to."""
        take, committer = self._wants_cut, self.committer
        if take is None or self.phase != "running":
            return
        assert committer is not None
        if committer.hurry():
            self._send_all(protocol.HURRY, None)
        if not committer.is_idle:
            return
        has_one = committer.last is not None and committer.has_own_cut
        is_long = has_one and committer.is_long
        if (is_long or not has_one) and self._cut(now=True, share=QUICK, whole=is_long):
            return
        self._wants_cut = None
        take(committer.last if has_one else None)

    def _may_halt(self) -> bool:
        """Whether the fronts halt now, wherever they are."""
        if self._stop_asked.is_set():
            return True
        takeover = self._takeover
        if not self._takeover_asked.is_set() or takeover is None or self._going_on:
            return False
        if takeover.is_cancelled and not takeover.is_halting:
            self._forget_takeover()
            return False
        if not takeover.is_asked_for:
            if self._acker.progress.of_all() <= self._stored_before:
                return False
            if self.committer is not None and self.committer.hurry():
                self._send_all(protocol.HURRY, None)
            if self.committer is not None and not self.committer.has_own_cut:
                # A cut tells of one version that takes over from it. So this one serves some time first.
                self._cut(now=True, share=QUICK)
                return False
        order = takeover.order(self.committer, time.monotonic(), self._all_halted())
        if order is Order.CUT:
            self._cut(now=True, share=QUICK)
            self.flush()
        elif order is Order.HOLD:
            self._send_all(protocol.HOLD, None)
        elif order is Order.HALT_AT:
            self._send_all(protocol.HALT, takeover.moment)
        elif order is Order.GO_ON:
            self._forget_takeover()
            self._send_all(protocol.GO_ON, None)
            self._going_on = set(range(self._workers))
            if not takeover.is_cancelled:
                takeover.refuse(takeover.reached)
        self._halted = takeover.is_bounded and not takeover.is_cancelled
        return order is Order.HALT

    def _forget_takeover(self) -> None:
        self._takeover = None
        self._takeover_asked.clear()
        self._last_cut_ordered = False
        if self.committer is not None:
            self.committer.reads_back = self.committer.only_adds = False
            self.committer.unhold()

    def _note_bounded(self, worker: int, reached: int, promised: Moment) -> None:
        if worker in self._going_on:  # all that it said before it went on is here
            self._going_on.remove(worker)
            self.news[worker] = self.news[worker]._replace(halted=False)
        elif self._takeover is not None:
            self._takeover.note_bounded(worker, max(reached, self._stored_before[0]), promised)

    def _cut(self, *, now: bool = False, share: float = CALM, whole: bool = False) -> bool:
        """Go on with the cut under way, and begin another one if it is due. Returns whether one begins."""
        if self.committer is None:
            return False
        manifest = self.committer.committed(self._settled)
        if manifest is not None:
            self._send_all(protocol.COMMITTED, manifest.time)
            self._log_cut(manifest)
        if not now and self._is_read(self.committer):
            return False
        order = self.committer.due(self._acker.progress.of_all(), now=now, share=share, whole=whole)
        if order is not None:
            self._send_progress(at_once=True)  # on the same link, just before the order
            self._send_all(*self._strategy.announced(order))
        unblocked = self._strategy.unblocked(self._acker.entries)
        if unblocked is not None:
            self._send_all(protocol.CUT, unblocked)
        return order is not None

    def _is_read(self, committer: CutCommitter) -> bool:
        """Whether others read the last cut, and want one that adds to it when they have: then no other one is made
        meanwhile, for some time. Each would have much of what the one before it has, and would be read as well."""
        if self._takeover is not None and self._takeover.waits_for_cuts:
            return True
        put_off = time.monotonic() - committer.begun_at
        return committer.only_adds and put_off < _PUT_OFF_SECONDS_MAX

    def _log_cut(self, manifest: Manifest) -> None:
        made = self.committer
        assert made is not None
        self._log.event_later(
            logging.INFO,
            "cut",
            self._incarnation,
            f"cut {manifest.number} at {tuple(manifest.time)}: {made.last_rows:,} rows, "
            f"{made.last_bytes:,} bytes, {made.last_ms:,.0f} ms",
        )

    def _last_cut_is_made(self) -> bool:
        """Make one more cut when all is stored, so that a restart has nothing to repeat. If another version
        takes over in these processes, it commits that cut."""
        if self.committer is None:
            return True
        if not self._last_cut_ordered and self.committer.is_idle:
            self._last_cut_ordered = True
            self._cut(now=True, share=CALM if self._takeover is None else AT_ONCE)
            if self._is_followed:
                self.committer.hold()
        is_made = self.committer.is_idle or self.committer.held is not None
        return self._last_cut_ordered and is_made

    @property
    def _is_followed(self) -> bool:
        """Whether another version takes over in these processes, as far as it is known."""
        takeover = self._takeover
        return takeover is not None and takeover.in_place is True and not self._stop_asked.is_set()

    def _nothing_more(self) -> bool:
        takeover = self._takeover
        waits = takeover is not None and (takeover.in_place is None or takeover.is_cancelled)
        if waits and not self._stop_asked.is_set():
            return False  # the next version is still being made, or the fronts are to go on
        return self._all_halted() and not self._going_on and self._strategy.is_drained(self._acker)

    def _all_halted(self) -> bool:
        return len(self.news) == self._workers and all(news.halted for news in self.news.values())

    def _check_silence(self, now: float) -> None:
        for worker, heard_at in self._heard_at.items():
            if now - heard_at > _SILENCE_SECONDS_MAX:
                raise WorkersMissingError(
                    f"worker {worker} has been silent for {_SILENCE_SECONDS_MAX:.0f} s"
                )

    def _send_progress(self, *, at_once: bool = False) -> None:
        """Send the progress to all workers if it is new; and again from time to time, by which workers
        know that the driver is alive.

        Where only frames bound for barriers have progressed, the workers that hold them know it already
        (`engine.progress.receipts`). Such progress may wait a little for more.
        """
        progress, sent, now = self._acker.progress, self._progress_sent, time.monotonic()
        wanted = self._wanted()
        if wanted > progress.wanted:
            progress = progress._replace(wanted=wanted)
        if (
            sent is not None
            and wanted <= sent.wanted
            and progress.turn == sent.turn
            and progress.frontiers == sent.frontiers
            and progress.arrangements == sent.arrangements
            and progress.own == sent.own
            and progress.failing == sent.failing
        ):
            waits = _HEARTBEAT_SECONDS
            if progress.ranges != sent.ranges:
                waits = 0.0 if at_once else PIGGYBACK_SECONDS
            if now - self._progress_sent_at < waits:
                return
        self._progress_sent, self._progress_sent_at = progress, now
        kept = self.questions.kept_at(progress)
        self._send_all(protocol.PROGRESS, progress._replace(kept=kept))
        self._ask(self.questions.told(progress, kept))

    def _wanted(self) -> int:
        """The greatest time that a front has promised the present for, if another one has not. Otherwise the
        least time that there is, which nobody waits for."""
        if not self._telling:
            return TIME_MIN
        reports = self._acker.reports
        times = [reports[front][0] for front in self._telling if reports[front] != AFTER_ALL]
        greatest = max(times, default=TIME_MIN)
        return greatest if min(times, default=greatest) < greatest else TIME_MIN

    def _ask(self, messages: list[tuple[int, Any]]) -> None:
        """Send questions to workers, all of a worker in one message."""
        if not messages:
            return
        by_worker: dict[int, list[Any]] = {}
        for worker, message in messages:
            by_worker.setdefault(worker, []).append(message)
        for worker, own in by_worker.items():
            self._links[worker].send(self._wire.encode(protocol.ASK, own))

    def _send_settled(self) -> None:
        minimal = self._acker.progress.of_all()
        settled = self._strategy.settled(minimal, self._settled_of.values())
        if settled > self._settled:
            self._settled = settled
            for worker in self._feeding:
                self._send_later(worker, protocol.SETTLED, settled)

    def _last_moment(self) -> Moment:
        """What is settled when nothing is left."""
        minimal = self._acker.progress.of_all()
        if self.committer is None:
            return minimal
        return self._strategy.last_moment(minimal, self.committer.moment)

    def _send_all(self, kind: bytes, body: Any) -> None:
        message = self._wire.encode(kind, body)
        for link in self._links.values():
            link.send(message, replaces_last=kind == protocol.PROGRESS)

    def _send_later(self, worker: int, kind: bytes, body: Any) -> None:
        """Send a message that the worker does not wait for: piggybacked, or soon alone."""
        self._links[worker].send_later(self._wire.encode(kind, body))

    def _flush(self) -> None:
        now = time.monotonic()
        for link in self._links.values():
            link.flush(now)
