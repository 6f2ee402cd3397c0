"""The engine's workers and its acker over a model of a cluster: a clock, processors and links.

What runs is the engine itself, with real documents. What is a model is how long things take:

- a worker does one thing at a time: `EVENT_US` for each event and `ITEM_US` for each item that an
  operation of it gets. It takes all that waits for it at once, and sends when it is done;
- the driver takes no time, or, if it is `charged`, `MESSAGE_US` for each ack or statement that it gets, `ENTRY_US` for
  each entry of an ack, and `TELL_US` for each worker that it tells of progress, one thing at a time;
- workers have an acker in the driver, or accounts of their own (`emberflow.engine.progress.accounts`): then a worker
  takes an `ITEM_US` for what another one tells of its frames, and all together make no more than
  `STATEMENTS_A_SECOND_MAX` statements;
- a message takes `LINK_US` and a random time on top, exponential with the mean `JITTER_US`; messages
  of a link stay in order. The driver sends progress every `PROGRESS_US` at most;
- documents arrive at random, at a rate, and are dealt out to the workers, each of which has a front.
  The time of a document is that of its arrival. An idle front promises the present every `IDLE_US`.
- or all documents are there from the beginning (`Cluster.run_all`): then each front has `AHEAD`
  documents under way, and takes the next one when all output of one of them has left;
- a row of a cut takes its worker `ROW_US`, `ROWS_AT_ONCE` of them between other work at the most. To store and to
  commit what all have captured takes `COMMIT_US`.

Everything random is drawn from a seed, so a run gives the same figures everywhere.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple

import emberflow as ef
from emberflow.engine.cuts.cut import Capture
from emberflow.engine.layout import Layout
from emberflow.engine.messages import (
    AFTER_ALL,
    BEFORE_ALL,
    Ack,
    Dealt,
    Effects,
    Frame,
    Moment,
    Progress,
    Statement,
)
from emberflow.engine.progress.accounts import Account, Accounts
from emberflow.engine.progress.acker import Acker
from emberflow.engine.speculation.patience import Judges
from emberflow.engine.worker.routing import front_host
from emberflow.engine.worker.worker import Worker
from emberflow.runners.live.worker.link import STATEMENTS_A_SECOND_MAX
from emberflow.values.item import front_index
from speculation import Figures, documents

EVENT_US = 100
ITEM_US = 10
LINK_US = 200
JITTER_US = 300
PROGRESS_US = 1_000
IDLE_US = 2_000
ROW_US = 3
ROWS_AT_ONCE = 100
COMMIT_US = 5_000
MESSAGE_US = 60
ENTRY_US = 1
TELL_US = 20
AHEAD = 2

MODEL = (
    f"model: {ITEM_US} µs an item, {EVENT_US} µs an event; links {LINK_US / 1_000:g} ms "
    f"+ exponential {JITTER_US / 1_000:g} ms; progress every {PROGRESS_US / 1_000:g} ms"
)


class Cluster:
    """One run."""

    def __init__(
        self,
        flow: ef.Flow,
        workers: int,
        judges: Judges,
        seed: int,
        *,
        accounts: bool = False,
        charged: bool = False,
    ) -> None:
        graph = flow.graph()
        layout = Layout(graph)
        (self._front,) = graph.fronts.values()
        self._random = Random(f"emberflow model {seed}")
        self._now = 0.0
        self._number = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._arrival_last: dict[tuple[str, str], float] = {}
        self._hosts = [
            _Host(self, Worker(layout, index, workers, judges=judges, splits=accounts))
            for index in range(workers)
        ]
        if accounts:
            for host in self._hosts:
                host.account = Account(host.index, workers)
        self.statement_us = 1e6 * workers / STATEMENTS_A_SECOND_MAX
        self._charged = charged
        #: When the driver is done with all that it has got, and how long it has worked in all.
        self._driver_free_at = 0.0
        self.driver_us = 0.0
        self._indexes = [front_index(self._front.index, 1, number) for number in range(workers)]
        acker = Accounts if accounts else Acker
        self._acker: Any = acker(workers=workers, fronts=self._indexes)
        self._progress_sent = self._acker.progress
        self._progress_due = False
        #: By global time: when a document came, and how many of its change records are missing.
        self._missing: dict[Moment, list[float]] = {}
        self.latencies: list[float] = []
        #: By the index of a front: what it has not taken yet, if all documents are there from the beginning.
        self._waiting: dict[int, deque[tuple[int, documents.Document]]] = {}
        self._entered_last = dict.fromkeys(self._indexes, -1)
        #: The moment of the cut that is under way, how many workers have captured it, and the last that counts.
        self._cut_at: Moment | None = None
        self._captured = 0
        self._committed = BEFORE_ALL
        self._halts = False
        self.cuts = 0
        self._ended = 0.0

    def run(self, given: Sequence[documents.Document], rate: float) -> Figures:
        at = 0.0
        for number, document in enumerate(given):
            at += self._random.expovariate(rate / 1e6)
            self._later(at, functools.partial(self._arrive, number, document))
        self._run(lambda index: self._now > at)
        assert len(self.latencies) == len(given)
        statistics = [host.worker.statistics(sizes_too=False) for host in self._hosts]
        released = sum(worker.released for worker in statistics)
        return Figures(
            sum(worker.arrived for worker in statistics) / released,
            *documents.percentiles(self.latencies[len(given) // 10 :]),
            sum(worker.buffered for worker in statistics) / released / 1_000,
            sum(worker.waited for worker in statistics) / released / 1_000,
        )

    def run_all(
        self, given: Sequence[documents.Document], *, cut_us: float = 0.0, halts: bool = False
    ) -> float:
        """Seconds until the last output of all documents has left, with a cut so often. If the world ``halts`` for
        a cut, no document is taken until all that were are final and the cut is committed."""
        self._halts = halts
        for number, document in enumerate(given):
            index = self._indexes[number % len(self._indexes)]
            self._waiting.setdefault(index, deque()).append((number, document))
        for index in self._waiting:
            for _ in range(AHEAD):
                self._take(index)
        if cut_us:
            self._later(cut_us, functools.partial(self._begin_cut, cut_us))
        self._run(lambda index: not self._waiting.get(index))
        assert len(self.latencies) == len(given)
        return self._ended / 1e6

    def _run(self, is_over: Callable[[int], bool]) -> None:
        for index in self._indexes:
            self._later(0.0, functools.partial(self._idle, index, is_over))
        while self._agenda:
            self._now, _, action = heappop(self._agenda)
            action()

    @property
    def now(self) -> float:
        return self._now

    def _later(self, at: float, action: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._agenda, (at, self._number, action))

    def at(self, at: float, action: Callable[[], None]) -> None:
        self._later(at, action)

    def _host_of(self, index: int) -> _Host:
        return self._hosts[front_host(index, len(self._hosts))]

    def _arrive(self, number: int, document: documents.Document) -> None:
        self._enter(self._indexes[number % len(self._indexes)], number, document)

    def _take(self, index: int) -> None:
        """A front takes its next document, unless it has none or the world stands still."""
        if self._waiting.get(index) and not (self._halts and self._cut_at is not None):
            self._enter(index, *self._waiting[index].popleft())

    def _enter(self, index: int, number: int, document: documents.Document) -> None:
        self._entered_last[index] = at = max(int(self._now), self._entered_last[index] + 1)
        moment = (at, index)
        self._missing[moment] = [self._now, len(document)]
        self._host_of(index).enter(self._front.id, moment, (number, self._now, document))

    def _idle(self, index: int, is_over: Callable[[int], bool]) -> None:
        """A front promises the present; when all documents have come, that there will be no more."""
        over = is_over(index)
        present = max(int(self._now), self._entered_last[index] + 1)
        self._host_of(index).promise(index, AFTER_ALL if over else (present, index))
        if not over:
            self._later(self._now + IDLE_US, functools.partial(self._idle, index, is_over))

    def send(self, source: str, target: str, action: Callable[[], None]) -> None:
        delay = LINK_US + self._random.expovariate(1 / JITTER_US)
        at = max(self._now + delay, self._arrival_last.get((source, target), 0.0))
        self._arrival_last[source, target] = at
        self._later(at, action)

    def effects(self, index: int, effects: Effects) -> None:
        name = f"worker {index}"
        for destination, frame in effects.frames:
            host = self._hosts[destination]
            self.send(name, f"worker {destination}", functools.partial(host.receive, frame))
        host = self._hosts[index]
        if effects.ack and host.account is None:
            self.send(name, "acker", functools.partial(self._acked, effects.ack))
        elif effects.ack and host.account is not None:
            for sender, dealt in host.account.receive(effects.ack):
                other = self._hosts[sender]
                self.send(name, f"worker {sender}", functools.partial(other.told, dealt))
            host.state_soon()
        for bundle in effects.bundles:
            for place, _, _ in bundle.items:
                missing = self._missing[place[0], place[1]]
                missing[1] -= 1
                if not missing[1]:
                    self.latencies.append((self._now - missing[0]) / 1_000)
                    self._ended = self._now
                    self._take(place[1])
        if effects.failure is not None:
            raise effects.failure

    def stated(self, statement: Statement) -> None:
        self.send(f"worker {statement.worker}", "acker", functools.partial(self._acked, statement))

    def _acked(self, ack: Ack | Statement) -> None:
        took = float(MESSAGE_US)
        if isinstance(ack, Ack):
            levels, ranges, own = ack.entries
            tables = [
                *levels.values(),
                *ranges.values(),
                *(t for by in own.values() for t in by.values()),
            ]
            took += ENTRY_US * sum(map(len, tables))
        self._driver_works(took, functools.partial(self._counts, ack))

    def _driver_works(self, took: float, action: Callable[[], None]) -> None:
        """The driver does something when it is done with all before."""
        if not self._charged:
            action()
            return
        self._driver_free_at = max(self._now, self._driver_free_at) + took
        self.driver_us += took
        self._later(self._driver_free_at, action)

    def _counts(self, ack: Ack | Statement) -> None:
        self._acker.receive(ack)
        self._acker.settle()
        if not self._progress_due and self._acker.progress is not self._progress_sent:
            self._progress_due = True
            self._later(self._now + PROGRESS_US, self._tell_when_free)

    def _tell_when_free(self) -> None:
        self._driver_works(TELL_US * len(self._hosts), self._tell)

    def _tell(self) -> None:
        self._progress_due = False
        self._progress_sent = progress = self._acker.progress
        for host in self._hosts:
            self.send("acker", f"worker {host.index}", functools.partial(host.hear, progress))
        if self._halts and self._cut_at is not None:
            self._order_cut()

    # Cuts.

    def _begin_cut(self, every_us: float) -> None:
        """A cut is due. One that is under way is not given up for it."""
        if len(self._missing) > len(self.latencies) or any(self._waiting.values()):
            self._later(self._now + every_us, functools.partial(self._begin_cut, every_us))
            if self._cut_at is None:
                self._cut_at, self._captured = BEFORE_ALL, 0
                self._order_cut()

    def _order_cut(self) -> None:
        """Order a cut at the minimal time; if the world stands still for it, once nothing is under way."""
        is_quiet = len(self._missing) == len(self.latencies)
        if self._cut_at == BEFORE_ALL and (is_quiet or not self._halts):
            self._progress_sent = progress = self._acker.progress
            self._cut_at = progress.of_all()
            for host in self._hosts:
                order = functools.partial(host.hear, progress, self._committed)
                self.send("acker", f"worker {host.index}", order)

    def captured(self) -> None:
        """A worker has captured its part."""
        self._captured += 1
        if self._captured == len(self._hosts):
            self._later(self._now + COMMIT_US, self._commit)

    def _commit(self) -> None:
        assert self._cut_at is not None
        self._committed, self._cut_at = self._cut_at, None
        self.cuts += 1
        for host in self._hosts:
            self.send(
                "acker", f"worker {host.index}", functools.partial(host.commit, self._committed)
            )
        if self._halts:
            for index in self._waiting:
                for _ in range(AHEAD):
                    self._take(index)


class _Heard(NamedTuple):
    """A progress, and the moment of the last cut if it orders another one."""

    progress: Progress
    since: Moment | None


class _Host:
    """The processor of a worker, and what waits for it."""

    def __init__(self, cluster: Cluster, worker: Worker) -> None:
        self.worker = worker
        self.index = worker.index
        self._cluster = cluster
        self._busy = False
        self._passed_until = 0.0
        self._items = 0
        self._frames: list[Frame] = []
        self._elements: list[tuple[int, Any, Any]] = []
        self._reports: dict[int, Any] = {}
        self._heard: deque[_Heard] = deque()
        self._capture: Capture | None = None
        #: If it has one; what others have told of its frames; and when its last statement was made.
        self.account: Account | None = None
        self._dealt: list[Dealt] = []
        self._stated_at = -1e9
        self._states = False

    def told(self, dealt: Dealt) -> None:
        self._dealt.append(dealt)
        self._begin()

    def state_soon(self) -> None:
        """Make a statement, as soon as may be behind the last one."""
        if self._states:
            return
        self._states = True
        at = max(self._cluster.now, self._stated_at + self._cluster.statement_us)
        self._cluster.at(at, self._state)

    def _state(self) -> None:
        assert self.account is not None
        self._states = False
        self._stated_at = self._cluster.now
        statement = self.account.statement()
        if statement is not None:
            self._cluster.stated(statement)

    def receive(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._begin()

    def enter(self, node: int, moment: Moment, payload: Any) -> None:
        self._elements.append((node, moment, payload))
        self._reports[moment[1]] = (moment[0] + 1, moment[1])
        self._begin()

    def promise(self, index: int, promise: Any) -> None:
        self._reports[index] = max(promise, self._reports.get(index, promise))
        self._begin()

    def hear(self, progress: Progress, since: Moment | None = None) -> None:
        """The last progress says all, but for one with a cut."""
        if since is None and self._heard and self._heard[-1].since is None:
            self._heard.pop()
        self._heard.append(_Heard(progress, since))
        self._begin()

    def commit(self, moment: Moment) -> None:
        self.worker.cut_committed(moment)

    def _begin(self) -> None:
        """Do all that waits, unless the processor is busy; what comes of it is sent in the end."""
        if self._busy or not (
            self._frames or self._reports or self._heard or self._capture or self._dealt
        ):
            return
        self._busy = True
        now, worker = self._cluster.now, self.worker
        worker.pass_time(now - self._passed_until)
        self._passed_until = now
        done: list[Effects] = []
        since: Moment | None = None
        dealt, self._dealt = self._dealt, []
        if dealt:
            assert self.account is not None
            for one in dealt:
                self.account.hear(one)
            self.state_soon()
        if self._frames:
            frames, self._frames = self._frames, []
            done.append(worker.deliver(frames))
        if self._heard:
            progress, since = self._heard.popleft()
            done.append(worker.progress(progress))
            if since is not None:  # before anything is trimmed
                self._capture = worker.begin_cut(progress.of_all(), since)
        if self._reports:
            reports, self._reports = self._reports, {}
            elements, self._elements = self._elements, []
            node = elements[0][0] if elements else 0
            given = [(moment, payload) for _, moment, payload in elements]
            done.append(worker.enter(node, given, reports))
        worker.tidy()
        before, self._items = self._items, worker.statistics(sizes_too=False).items
        took = EVENT_US * len(done) + ITEM_US * (self._items - before + len(dealt))
        took += self._captured()
        self._cluster.at(now + took, functools.partial(self._finish, done))

    def _captured(self) -> float:
        """Capture some rows of the cut that is under way; how long that takes."""
        if self._capture is None:
            return 0.0
        rows = self._capture.next(ROWS_AT_ONCE)
        if rows is None:
            self._capture = None
            self._cluster.send(f"worker {self.index}", "acker", self._cluster.captured)
            return 0.0
        return ROW_US * max(1, len(rows))

    def _finish(self, done: list[Effects]) -> None:
        self._busy = False
        for effects in done:
            self._cluster.effects(self.index, effects)
        self._begin()
