"""Processes that crash: workers, each with the fronts beside it and its outlets to sinks.

A killed process does nothing any more. A lingering process does not know that it was replaced. The
simulation decides both from outside; the code here does not know. Every message carries its
incarnation, and a process drops messages of other incarnations.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from emberflow.engine.cuts.cut import Row, Scheduled, owned
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
from emberflow.engine.progress.gate import Gate
from emberflow.engine.worker.routing import barrier_host, front_host
from emberflow.engine.worker.worker import Worker
from emberflow.errors import ERRORS_SINK
from emberflow.graph.nodes import Front
from emberflow.runners.elements import MalformedElement
from emberflow.runners.simulation.accounts import SimulatedAccount
from emberflow.runners.simulation.checkers import CheckError
from emberflow.runners.simulation.crashes.storage import SinkPartition
from emberflow.runners.simulation.entries import entered, front_of
from emberflow.runners.simulation.judges import Evictions
from emberflow.runners.simulation.network import Network
from emberflow.runners.simulation.queries import ReadingHost
from emberflow.values.item import TIME_MIN, FlatItem

if TYPE_CHECKING:
    from emberflow.runners.simulation.crashes.recovery import Life


def is_of_another(incarnation: int, own: int) -> bool:
    """Whether a message of this incarnation must be dropped by a process of incarnation ``own``."""
    return incarnation != own


class Process:
    """A process that can be killed. A dead one no longer acts on its timers."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.alive = True

    def kill(self) -> None:
        self.alive = False

    def later(self, ticks: int, action: Callable[[], None]) -> None:
        self.network.later(ticks, lambda: self.if_alive(action))

    def if_alive(self, action: Callable[[], None]) -> None:
        if self.alive:
            action()


class WorkerProcess(Process):
    """A worker process: asks its sinks for their last times, restores the cut, then works."""

    def __init__(self, life: Life, index: int) -> None:
        super().__init__(life.network)
        self.life = life
        self.index = index
        self.name = f"worker {life.number}.{index}"
        self.worker: Worker | None = None
        self.fronts = [
            FrontOfProcess(self, front)
            for front in life.sources
            if front_host(front, life.workers) == index
        ]
        self._outlets = {
            (sink.name, partition): Outlet(self, sink.name, partition)
            for sink in life.graph.sinks.values()
            for partition in range(sink.partitions)
            if barrier_host(sink, partition, life.workers) == index
        }
        if index == 0 and life.layout.diverts:
            self._outlets[ERRORS_SINK, 0] = Outlet(self, ERRORS_SINK, 0)
        self._unanswered = len(self._outlets)
        self._waiting: deque[Frame] = deque()
        self._busy = False
        self._passed_until = life.network.now
        self._cut: CutOfProcess | None = None
        self._reading: ReadingHost | None = None
        self._evictions: Evictions | None = None
        self._account: SimulatedAccount | None = None

    def hear(self, incarnation: int, message: Callable[[WorkerProcess], None]) -> None:
        if self.alive and not is_of_another(incarnation, self.life.number):
            message(self)

    # From the start to the first frame.

    def start(self) -> None:
        self.ask_sinks()

    def ask_sinks(self) -> None:
        """The worker may release nothing before every sink has told its last global time."""
        for outlet in self._outlets.values():
            outlet.ask(self._answered)
        if not self._outlets:
            self._restore()

    def _answered(self) -> None:
        self._unanswered -= 1
        if not self._unanswered:
            self._restore()

    def _restore(self) -> None:
        life = self.life
        self.worker = life.new_worker(
            self.index,
            {partition: outlet.last for partition, outlet in self._outlets.items()},
        )
        options = life.options
        if options.sends_ahead:
            self.worker.ahead = self._send_frames
        if life.has_accounts:
            self._account = SimulatedAccount(
                life.network,
                options,
                self.worker,
                tell=self._tell,
                state=self._ack,
                later=self.later,
            )
        self._evictions = Evictions(
            self.worker, options.evictions, f"{options.seed} {life.number} {self.index}"
        )
        cut = life.cut
        if life.predecessor is not None:
            self._effects(life.succeeded(self.index, self.worker))
        elif cut is not None:
            rows = self._evictions.left_cold(owned(cut.rows, self.index, life.owners))
            scheduled = owned(cut.scheduled, self.index, life.owners)
            scheduled = self._evictions.at_rest(scheduled)
            self._effects(self.worker.restore(cut.manifest.moment, rows, scheduled))
        self._reading = ReadingHost(
            life.network,
            self.worker,
            reached=lambda: max((front.reached for front in self.fronts), default=BEFORE_ALL),
            send=lambda reply: life.tell_driver(self.name, lambda driver: driver.answered(reply)),
            later=self.later,
        )
        if self._account is not None:
            self._account.state()
        life.tell_driver(self.name, lambda driver: driver.restored(self.index))
        self._work_later()

    def go(self) -> None:
        """All workers have restored, and the acker knows the items that caused: fronts may report."""
        for front in self.fronts:
            front.begin()

    # Moves of slices.

    def hold_fronts(self) -> None:
        """Let in nothing more, and tell the driver how far the fronts are."""
        reached = max([front.hold() for front in self.fronts], default=TIME_MIN)
        self.life.tell_driver(self.name, lambda driver: driver.bounded(self.index, reached))

    def halt_fronts(self, moment: Moment | None) -> None:
        """Go on to a moment, which is above all that has entered; or without end."""
        for front in self.fronts:
            front.halt_at(moment)

    # Work.

    def receive(self, frame: Frame) -> None:
        self._waiting.append(frame)
        self._work_later()

    def _work_later(self) -> None:
        if self._busy or not self._waiting or self.worker is None:
            return
        self._busy = True
        network, options = self.life.network, self.life.options
        most = options.work_ticks_max
        if network.is_slow(("worker", self.index), options.slow_workers):
            most *= options.slowness
        self.later(network.ticks(most), self._work)

    def _taken(self, count: int) -> list[Frame]:
        return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]

    def _work(self) -> None:
        assert self.worker is not None
        self._busy = False
        frames = self._taken(len(self._waiting) if self.life.options.takes_all else 1)
        if not frames:
            return  # they came together with progress
        self.pass_time()
        self._effects(self.worker.deliver(frames))
        for frame in frames:
            self.life.minimal_time_checker.processed(frame)
        self.life.minimal_time_checker.at_barriers(self.worker)
        self._evict()
        self._work_later()

    def _evict(self) -> None:
        assert self._evictions is not None
        self._evictions.draw()

    def enter(
        self, node: Front, elements: list[tuple[Moment, Any]], reports: dict[int, Moment]
    ) -> None:
        assert self.worker is not None
        self.pass_time()
        for effects in entered(self.worker, node, elements, reports):
            self._effects(effects)

    def progress(self, progress: Progress) -> None:
        assert self.worker is not None
        self.pass_time()
        frames = self._taken(len(self._waiting) if self.life.options.takes_together else 0)
        self._effects(self.worker.progress(progress, frames))
        for frame in frames:
            self.life.minimal_time_checker.processed(frame)
        self.life.minimal_time_checker.at_barriers(self.worker)
        self.worker.tidy(is_waited_for=bool(self._waiting))
        self._evict()
        for front in self.fronts:
            front.progress(progress)

    def asked(self, message: Any) -> None:
        assert self._reading is not None
        self._reading.hear(message)

    def pass_time(self) -> None:
        assert self.worker is not None
        now = self.life.network.now
        self.worker.pass_time(now - self._passed_until)
        self._passed_until = now

    def _send_frames(self, frames: list[tuple[int, Frame]]) -> None:
        life = self.life
        for destination, frame in frames:
            life.network.note("frame", self.name, destination, frame.id, len(frame.parts))
            life.minimal_time_checker.sent(destination, frame)
            life.tell_worker(self.name, destination, _receives(frame))

    def _effects(self, effects: Effects) -> None:
        life = self.life
        self._send_frames(effects.frames)
        if effects.ack and self._account is not None:
            self._account.receive(effects.ack)
        elif effects.ack:
            self._ack(effects.ack)
        for bundle in effects.bundles:
            life.network.note("bundle", self.name, bundle.sink, bundle.partition, bundle.last)
            life.released(bundle)
            self._outlets[bundle.sink, bundle.partition].add(bundle.items)
        failure = effects.failure
        if failure is not None:
            life.tell_driver(self.name, lambda driver: driver.failed(failure))

    def _ack(self, ack: Ack | Statement) -> None:
        self.life.tell_driver(self.name, lambda driver: driver.receive(ack))

    def _tell(self, sender: int, dealt: Dealt) -> None:
        self.life.tell_worker(self.name, sender, lambda process: process.heard(dealt))

    def heard(self, dealt: Dealt) -> None:
        """Another worker has dealt with frames of this one, which has sent them: so it has restored."""
        assert self._account is not None
        self._account.hear(dealt)

    # Cuts.

    def begin_cut(self, number: int, moment: Moment, since: Moment) -> None:
        assert self.worker is not None
        self._cut = CutOfProcess(self, number, moment, since)

    def cut_committed(self, moment: Moment) -> None:
        assert self.worker is not None
        self.worker.cut_committed(moment)

    def has_stored_below(self, moment: Moment) -> bool:
        """Whether the sinks have stored all output below a moment."""
        return all(outlet.has_stored_below(moment) for outlet in self._outlets.values())

    def stored(self) -> None:
        if self._cut is not None:
            self._cut.report_if_done()

    @property
    def is_idle(self) -> bool:
        return not self._waiting and self.has_stored_below(AFTER_ALL)


def _receives(frame: Frame) -> Callable[[WorkerProcess], None]:
    return lambda process: process.receive(frame)


class CutOfProcess:
    """A cut under way in one process: captured step by step, written, reported to the driver."""

    def __init__(self, process: WorkerProcess, number: int, moment: Moment, since: Moment) -> None:
        assert process.worker is not None
        self._process = process
        self._number = number
        self._moment = moment
        self._capture = process.worker.begin_cut(moment, since)
        self._rows: list[Row | Scheduled] = []
        self._part = f"{process.name} cut {number}"
        self._written = False
        self._reported = False
        self._go_on()

    def _go_on(self) -> None:
        life = self._process.life
        ticks = life.network.ticks(life.faults.capture_ticks_max)
        self._process.later(ticks, self._step)

    def _step(self) -> None:
        if self._process._cut is not self:
            return  # abandoned for a later cut
        life = self._process.life
        rows = self._capture.next(life.faults.capture_limit)
        if rows is not None:
            for row in rows:
                if isinstance(row, Row | Scheduled):
                    self._rows.append(row)
                else:
                    self._rows += row  # out of memory
            self._go_on()
            return
        life.storage.cuts.write(self._part, self._rows)
        life.written_last = self._part
        self._process.later(life.network.ticks(life.faults.write_ticks_max), self._is_written)

    def _is_written(self) -> None:
        self._written = True
        self.report_if_done()

    def report_if_done(self) -> None:
        """Report to the driver once the part is written and all output below the cut is stored."""
        process = self._process
        if not self._written or self._reported or not process.has_stored_below(self._moment):
            return
        self._reported = True
        part = (self._part, len(self._rows))
        positions = {front.index: front.position_at(self._moment) for front in process.fronts}
        number, index = self._number, process.index
        process.life.tell_driver(
            process.name, lambda driver: driver.part_is_stored(number, index, part, positions)
        )


def _moment_of(item: FlatItem) -> Moment:
    return item[0][0], item[0][1]


class Outlet:
    """Carries the output of one partition to its sink: one bundle at a time, resent until answered."""

    def __init__(self, process: WorkerProcess, sink: str, partition: int) -> None:
        self._process = process
        self._name = f"sink {sink} {partition}"
        self._sink: SinkPartition = process.life.storage.sinks[sink, partition]
        #: The sink's last global time, as far as this process knows.
        self.last: Moment = BEFORE_ALL
        self._items: list[FlatItem] = []
        self._under_way = 0
        self._attempt = 0

    def ask(self, then: Callable[[], None]) -> None:
        """Ask the sink for its last global time."""

        def asked() -> None:
            last = self._sink.last
            self._send_back(lambda: answered(last))

        def answered(last: Moment) -> None:
            self.last = last
            then()

        self._send_to_sink(asked)

    def _send_to_sink(self, action: Callable[[], None]) -> None:
        self._process.life.network.send(self._process.name, self._name, action)

    def _send_back(self, action: Callable[[], None]) -> None:
        process = self._process
        process.life.network.send(self._name, process.name, lambda: process.if_alive(action))

    def add(self, items: list[FlatItem]) -> None:
        # A lingering process may have stored more since the sink was asked: skip those items.
        self._items += items[bisect_right(items, self.last, key=_moment_of) :]
        self._store()

    def has_stored_below(self, moment: Moment) -> bool:
        return not self._items or self._items[0][0] >= moment

    def _store(self) -> None:
        """Send everything that waits as one bundle, unless one is under way."""
        if self._under_way or not self._items:
            return
        self._under_way = len(self._items)
        self._try()

    def _try(self) -> None:
        self._attempt += 1
        attempt, after = self._attempt, self.last
        items = self._items[: self._under_way]
        last = _moment_of(items[-1])
        life, sink = self._process.life, self._sink
        network, faults = life.network, life.faults

        def begin() -> None:
            sink.begin(items)
            network.later(network.ticks(faults.sink_ticks_max), commit)

        def commit() -> None:
            if not self._process.alive and network.chance(0.5):
                return  # the process was killed in the middle of the write
            is_stored = sink.commit(after, items, last)
            network.note("stored", self._name, is_stored, last)
            life.fenced += not is_stored
            if network.calm or not network.chance(faults.answers_lost):
                now_last = sink.last
                self._send_back(lambda: self._answered(attempt, now_last))

        self._send_to_sink(begin)
        self._process.later(
            faults.retry_ticks + 2 * faults.sink_ticks_max, lambda: self._retry(attempt)
        )

    def _retry(self, attempt: int) -> None:
        if attempt == self._attempt and self._under_way:
            self._try()

    def _answered(self, attempt: int, last: Moment) -> None:
        """Everything up to the sink's last time is stored, no matter which process stored it."""
        if attempt != self._attempt or not self._under_way:
            return
        self.last = last
        stored = bisect_right(self._items, last, key=_moment_of)
        del self._items[:stored]
        self._under_way = 0
        self._process.stored()
        self._store()


class FrontOfProcess:
    """A partition of a front beside the worker that it feeds: it replays from the cut, then goes on.

    A front that assigns arrival times replays logged elements at their logged times. It writes the
    times of new elements, and its promises while idle, to the log, and reports them once they are
    durable.
    """

    def __init__(self, process: WorkerProcess, index: int) -> None:
        life = process.life
        self._process = process
        self._node = front_of(life.graph, index)
        self.index = index
        self._arrival = index in life.faults.arrival
        self._gate = Gate(front=index, credit=life.options.credit)
        self._source = life.sources[index]
        self._log = life.storage.logs[index]
        self._begun_at = life.positions.get(index, 0)
        self._position = self._begun_at
        #: The global times of all elements since the cut.
        self._given: list[Moment] = []
        self._waiting_for_credit = False
        self._skew = 0
        self._logged: list[int] = []
        #: An earlier life may have promised up to here: no new element may be below it.
        self._floor = TIME_MIN
        #: Nothing at or above this enters, and nothing at all while it holds.
        self._bound = AFTER_ALL
        self._holds = False
        self._is_stopped = False

    def begin(self) -> None:
        life = self._process.life
        if self._arrival:
            most = life.faults.skew_ticks_max
            self._skew = life.network.count(2 * most + 1) - most - 1
            self._log.open(life.number)
            self._logged = list(self._log.times)
            self._floor = self._log.promise
        else:
            ahead = [
                moment
                for moment, one in self._source[self._position :]
                if one.__class__ is not MalformedElement
            ]
            life.minimal_time_checker.will_enter(self.index, ahead)
        self._pause()

    def hold(self) -> int:
        """Let in nothing. Returns the greatest time that has entered or was promised."""
        self._holds = True
        promise = self._gate.promise
        return max(self._gate.reached[0], promise[0] if promise != AFTER_ALL else TIME_MIN)

    def halt_at(self, moment: Moment | None) -> None:
        self._holds = False
        self._bound = AFTER_ALL if moment is None else moment
        if self._is_stopped:
            self._is_stopped = False
            self._pause()

    def _is_below_bound(self, position: int) -> bool:
        """Whether an element enters before the front halts. What has no time yet gets one behind that."""
        if self._bound == AFTER_ALL:
            return True
        if not self._arrival:
            return self._source[position][0] < self._bound
        return position < len(self._logged) and self._logged[position] < self._bound[0]

    @property
    def reached(self) -> Moment:
        return self._gate.reached

    def position_at(self, moment: Moment) -> int:
        """How many elements are below a moment at or above the cut that this life began from."""
        return self._begun_at + bisect_left(self._given, moment)

    def progress(self, progress: Progress) -> None:
        self._gate.minimal_time(progress.of_all())
        if self._waiting_for_credit and self._gate.credits:
            self._waiting_for_credit = False
            self._pause()

    def _pause(self) -> None:
        network, options = self._process.life.network, self._process.life.options
        most = options.pause_ticks_max
        if network.is_slow(("front", self.index), 0.5):
            most *= options.skew
        ticks = network.ticks(most)
        self._process.later(ticks, self._emit)
        if self._arrival and ticks > 2 and self._position >= len(self._logged):
            self._process.later(ticks // 2, self._idle)

    def _idle(self) -> None:
        if self._position < len(self._source) and not self._holds and self._bound == AFTER_ALL:
            self._gate.idle_until(self._clock())
            self._report([])

    def _clock(self) -> int:
        return max(self._process.life.network.now + self._skew, self._floor)

    def _emit(self) -> None:
        network, gate = self._process.life.network, self._gate
        if self._holds:
            self._is_stopped = True
            return
        if gate.credits == 0:
            self._waiting_for_credit = True
            return
        count = min(
            network.count(self._process.life.options.burst_max),
            gate.credits,
            len(self._source) - self._position,
        )
        while count and not self._is_below_bound(self._position + count - 1):
            count -= 1
        elements: list[tuple[Moment, Any]] = []
        new_times: list[int] = []
        for position in range(self._position, self._position + count):
            moment, payload = self._source[position]
            is_malformed = payload.__class__ is MalformedElement
            if self._arrival:
                moment = (self._time(position, new_times), self.index)
            elif not is_malformed:
                self._process.life.minimal_time_checker.entered(self.index, moment)
            if moment < self._process.life.acker_progress().anywhere:
                raise CheckError(f"front {self.index} emits {moment} below the minimal time")
            if not is_malformed:
                gate.emitted(moment)
            if self._arrival:
                gate.idle_until(moment[0] + 1)  # its times are its own choice, and unique
            self._given.append(moment)
            elements.append((moment, payload))
        self._position += count
        if self._position == len(self._source) and self._bound == AFTER_ALL:
            self._process.life.ends(gate)
        elif self._bound != AFTER_ALL and (
            self._position == len(self._source) or not self._is_below_bound(self._position)
        ):
            self._halt()
        if self._arrival:
            self._process.enter(self._node, elements, {})
            self._report(new_times)
        else:
            self._process.enter(self._node, elements, {self.index: gate.promise})
        if self._position < len(self._source) and not self._is_stopped:
            self._pause()

    def _halt(self) -> None:
        """All below the bound has entered. Another life may go on from there."""
        self._is_stopped = True
        if self._gate.promise != AFTER_ALL:
            self._gate.promises(self._bound)

    def _time(self, position: int, new_times: list[int]) -> int:
        if position < len(self._logged):
            return self._logged[position]
        time = max(self._clock(), self._gate.promise[0])
        new_times.append(time)
        return time

    def _report(self, new_times: list[int]) -> None:
        """Write to the log, and report once the write is durable."""
        process, log, promise = self._process, self._log, self._gate.promise
        life = process.life
        # The end of the elements is not logged: the source will say so again. It is no time that
        # the front chose.
        chosen = promise[0] if promise != AFTER_ALL else TIME_MIN

        def durable() -> None:
            times = new_times
            if not process.alive and life.network.chance(0.7):
                # Killed in the middle of the write: only the first few entries may be there.
                times = times[: life.network.count(len(times) + 1) - 1]
                log.append(life.number, times, TIME_MIN)
                log.close(life.number)
            elif log.append(life.number, times, chosen):
                process.if_alive(lambda: process.enter(self._node, [], {self.index: promise}))

        life.network.send(
            process.name, f"log {self.index}", durable, most=life.faults.log_ticks_max
        )
