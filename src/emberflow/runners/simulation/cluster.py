"""A cluster in one process: the real machines, driven by a fake network.

Everything that happens is an event of the network, in an order that the seed decides. A front lives
beside the worker that it feeds. Frames, acks and progress travel on links of their own, each FIFO.
Nothing crashes here; `crashes.recovery` puts the same machines into processes that do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from emberflow.dsl.flow import Flow
from emberflow.dsl.versions import Versions
from emberflow.engine.layout import Layout
from emberflow.engine.messages import (
    BEFORE_ALL,
    Ack,
    Dealt,
    Effects,
    Frame,
    Moment,
    Progress,
    Statement,
)
from emberflow.engine.progress.accounts import Accounts
from emberflow.engine.progress.acker import Acker
from emberflow.engine.progress.gate import Gate
from emberflow.engine.queries.worker import readable_states
from emberflow.engine.worker.routing import front_host
from emberflow.engine.worker.worker import Worker
from emberflow.errors import ERRORS_SINK, InputError, NondeterminismError, OnError
from emberflow.graph.nodes import Front, Graph
from emberflow.runners.diversion import check_parameters, checked_on_error
from emberflow.runners.elements import MalformedElement, graph_for, timed_elements
from emberflow.runners.playback.recorder import Recorder, Recording
from emberflow.runners.questions import Question
from emberflow.runners.served import Served, served
from emberflow.runners.simulation.accounts import SimulatedAccount, kind_of_acker
from emberflow.runners.simulation.checkers import (
    CheckError,
    MinimalTimeChecker,
    ReleaseChecker,
    check_drained,
    check_patience,
)
from emberflow.runners.simulation.crashes.recovery import CrashSimulation
from emberflow.runners.simulation.entries import entered, front_of, sources_of
from emberflow.runners.simulation.judges import Evictions, judges
from emberflow.runners.simulation.network import DoesNotDrainError, Network
from emberflow.runners.simulation.options import Faults, Options
from emberflow.runners.simulation.queries import Asker, ReadingHost, SimulatedRead
from emberflow.runners.simulation.results import (
    Replay,
    SimulationError,
    SimulationResult,
    states_of,
)
from emberflow.values.item import FlatItem


def simulate(
    flow: Flow | Versions,
    /,
    *,
    seed: int = 0,
    workers: int | None = None,
    crashes: int = 0,
    on_error: OnError = "fail",
    queries: Sequence[Mapping[str, Any]] = (),
    **elements: Iterable[Any],
) -> SimulationResult:
    """Run a flow on several workers over a network with delays, all drawn from the seed.

    With ``crashes``, a worker or the driver dies that many times, at moments drawn from the seed.
    Each time the run is restored from its last cut, and the output is the same.

    >>> import emberflow as ef
    >>> flow = ef.Flow("word count")
    >>> flow.front("lines").flat_map(str.split).key_by(lambda word: word).count().sink("counts")
    >>> result = ef.simulate(flow, lines=["the dog", "the cat"], seed=7, workers=3)
    >>> result.outputs == ef.run(flow, lines=["the dog", "the cat"])
    True
    >>> ef.simulate(flow, lines=["the dog", "the cat"], crashes=2).outputs == result.outputs
    True

    ``on_error="divert"`` works as in `emberflow.run`: an item that a function cannot process goes
    to an output ``"errors"``, and the run goes on.

    >>> flow = ef.Flow("inverse")
    >>> flow.front("numbers").map(lambda n: 12 // n).sink("out")
    >>> numbers = [3, 0, 4, 0]
    >>> result = ef.simulate(flow, numbers=numbers, seed=7, workers=3, on_error="divert")
    >>> result.outputs == ef.run(flow, numbers=numbers, on_error="divert")
    True

    ``queries`` are reads of state, as for `LiveQuery.read`: each is a dict from names of states to
    keys. They are asked at moments drawn from the seed, so ``answers`` are as of various times.

    >>> flow = ef.Flow("word count")
    >>> words = flow.front("lines").flat_map(str.split).key_by(lambda word: word)
    >>> words.count(name="counts").sink("out")
    >>> lines = ["the dog", "the cat"]
    >>> result = ef.simulate(flow, lines=lines, queries=[{"counts": ["the", "dog"]}])
    >>> result.answers[0]["counts"] in ({}, {"the": 1, "dog": 1}, {"the": 2, "dog": 1})
    True

    ``result.play("run.html")`` writes a page that shows the run: what was computed, taken back and
    released, worker by worker.

    `Versions` of a flow follow one another, with crashes before, at and after their times.
    """
    parts: list[Served] = []
    if isinstance(flow, Versions):
        if queries:
            raise InputError("simulate() takes queries of one flow, not of versions.")
        parts = list(served(flow, elements, on_error))
        graph = parts[0].graph
    else:
        graph = graph_for(flow.graph(on_error=on_error), elements)
    for own in [part.graph for part in parts] or [graph]:
        check_parameters(own, "simulate", "seed", "workers", "crashes", "on_error", "queries")
    on_error = checked_on_error(graph, on_error, "simulate(on_error=)")
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise InputError(f"simulate(workers=) takes an int of at least 1, got {workers!r}.")
    if not isinstance(crashes, int) or crashes < 0:
        raise InputError(f"simulate(crashes=) takes an int of at least 0, got {crashes!r}.")
    options = Options.drawn(seed, workers=workers)
    states = readable_states(Layout(graph))
    reads = [SimulatedRead(Question(graph.flow, states, query), default=True) for query in queries]
    if parts:
        faults = Faults.drawn(seed, crashes=crashes)
        return CrashSimulation(graph, options, faults, on_error=on_error, served=parts).run()
    if crashes:
        faults = Faults.drawn(seed, crashes=crashes)
        simulation = CrashSimulation(graph, options, faults, on_error=on_error, reads=reads)
        return simulation.run(timed_elements(graph, elements))
    entries = list(timed_elements(graph, elements))
    result = Simulation(graph, options, on_error=on_error, reads=reads).run(entries)

    def again() -> Recording:
        again = Simulation(graph, options, on_error=on_error, reads=reads, records=True)
        second = again.run(entries)
        if (second.trace, second.outputs) != (result.trace, result.outputs):
            raise NondeterminismError(
                "play() runs the simulation once more, and this time something else happened: a "
                "function is not pure. emberflow.verify(flow, ...) finds it."
            )
        assert again.recorder is not None
        return again.recorder.recording

    return replace(result, replay=Replay(again))


class Simulation:
    """One run of a graph under given options, without crashes."""

    def __init__(
        self,
        graph: Graph,
        options: Options,
        *,
        worker: type[Worker] = Worker,
        acker: type[Acker] = Acker,
        on_error: OnError = "fail",
        reads: Sequence[SimulatedRead] = (),
        history: int = 0,
        records: bool = False,
    ) -> None:
        self.graph = graph
        self.options = options
        self.network = Network(options)
        self.asker = Asker(self.network, reads, history)
        layout = Layout(graph, on_error=on_error)
        owners = options.owners(options.workers)
        self._kind_of_acker = kind_of_acker(options, acker)
        self.has_accounts = self._kind_of_acker is Accounts
        self.workers = [
            _WorkerHost(
                self,
                worker(
                    layout,
                    index,
                    options.workers,
                    owners=owners,
                    judges=judges(options.patience, f"{options.seed} {index}"),
                    splits=self.has_accounts,
                ),
            )
            for index in range(options.workers)
        ]
        #: Listens to the workers, for `SimulationResult.play`.
        self.recorder: Recorder | None = None
        if records:
            self.recorder = Recorder(layout, options.workers, lambda: self.network.now)
            for host in self.workers:
                self.recorder.attach(host.worker)
        #: One for each partition of a front; set by `run`, as is the acker.
        self.fronts: list[_FrontHost] = []
        self.acker: Acker | Accounts
        self.minimal_time_checker = MinimalTimeChecker(
            graph, [host.worker for host in self.workers]
        )
        self.release_checker = ReleaseChecker()
        self.released: dict[str, list[FlatItem]] = {name: [] for name in graph.sinks}
        if layout.diverts:
            self.released[ERRORS_SINK] = []
        self.failure: Exception | None = None

    def run(self, elements: Iterable[tuple[Moment, Front, Any]]) -> SimulationResult:
        sources = sources_of(self.graph, elements)
        self.acker = self._kind_of_acker(workers=self.options.workers, fronts=list(sources))
        self.fronts = [_FrontHost(self, index) for index in sources]
        for front in self.fronts:
            front.begin(sources[front.index])
        self.asker.attach(self.options.owners(self.options.workers), BEFORE_ALL, self._ask)
        self.asker.reached = lambda: max(front.gate.reached for front in self.fronts)
        self.asker.begin()
        try:
            self.network.run()
            if self.failure is None:
                for host in self.workers:
                    # releases the history that reads had kept
                    host.worker.progress(self.acker.progress)
                self.minimal_time_checker.finished()
                check_drained([host.worker for host in self.workers], self.acker.entries)
                check_patience([host.worker for host in self.workers], self.options.patience)
        except (CheckError, DoesNotDrainError) as error:
            raise SimulationError(str(error), self.options) from error
        if self.failure is not None:
            raise self.failure
        return SimulationResult(
            outputs={
                # Each partition is in order already; merge the partitions into one order.
                sink: [payload for _, _, payload in sorted(released, key=lambda item: item[0])]
                for sink, released in self.released.items()
            },
            statistics=[host.worker.statistics() for host in self.workers],
            options=self.options,
            trace=self.network.trace,
            states=states_of([host.worker for host in self.workers]),
            answered=list(self.asker.answered),
        )

    # Called by the hosts below.

    def send_frames(self, index: int, frames: list[tuple[int, Frame]]) -> None:
        for destination, frame in frames:
            self.network.note("frame", index, destination, frame.id, len(frame.parts))
            self.minimal_time_checker.sent(destination, frame)
            self._send_frame(index, destination, frame)

    def effects(self, index: int, effects: Effects) -> None:
        if self.failure is not None:
            return
        self.send_frames(index, effects.frames)
        if effects.ack:
            self.workers[index].acked(effects.ack)
        for bundle in effects.bundles:
            self.network.note("bundle", bundle.sink, bundle.partition, bundle.last)
            self.release_checker.released(bundle)
            self.released[bundle.sink] += bundle.items
        if effects.failure is not None:
            self.failure = effects.failure

    def _send_frame(self, index: int, destination: int, frame: Frame) -> None:
        host, recorder, sent = self.workers[destination], self.recorder, self.network.now

        def receive() -> None:
            if recorder is not None:
                recorder.hop(destination, frame, sent)
            host.receive(frame)

        self.network.send(f"worker {index}", f"worker {destination}", receive)

    def send_ack(self, index: int, ack: Ack | Statement) -> None:
        self.network.send(f"worker {index}", "acker", lambda: self._receive_ack(ack))

    def send_dealt(self, index: int, sender: int, dealt: Dealt) -> None:
        host = self.workers[sender]
        self.network.send(f"worker {index}", f"worker {sender}", lambda: host.hear(dealt))

    def _receive_ack(self, ack: Any) -> None:
        before = self.acker.progress
        self.acker.receive(ack)
        self.acker.settle()
        progress = self.acker.progress
        self.minimal_time_checker.progress(progress)
        if progress == before:
            return
        self.network.note("progress", progress)
        if self.recorder is not None:
            self.recorder.progress(progress)
        self.asker.progress(progress, self._tell_progress)

    def _tell_progress(self, progress: Progress) -> None:
        for host in self.workers:
            self._send_progress(host, progress)

    def _ask(self, worker: int, message: Any) -> None:
        host = self.workers[worker]
        self.network.send("acker", f"worker {worker}", lambda: host.reading.hear(message))

    def answer(self, worker: int, message: Any) -> None:
        self.network.send(f"worker {worker}", "acker", lambda: self.asker.hear(message))

    def _send_progress(self, host: _WorkerHost, progress: Progress) -> None:
        self.network.send("acker", f"worker {host.index}", lambda: host.progress(progress))


class _WorkerHost:
    """A worker and the queue of frames that wait for it."""

    def __init__(self, simulation: Simulation, worker: Worker) -> None:
        self.simulation = simulation
        self.worker = worker
        self.index = worker.index
        if simulation.options.sends_ahead:
            worker.ahead = partial(simulation.send_frames, self.index)
        self._waiting: deque[Frame] = deque()
        self._busy = False
        self._passed_until = 0
        options = simulation.options
        self._evictions = Evictions(worker, options.evictions, f"{options.seed} {worker.index}")
        self._account: SimulatedAccount | None = None
        if simulation.has_accounts:
            self._account = SimulatedAccount(
                simulation.network,
                options,
                worker,
                tell=lambda sender, dealt: simulation.send_dealt(self.index, sender, dealt),
                state=lambda statement: simulation.send_ack(self.index, statement),
                later=simulation.network.later,
            )
        self.reading = ReadingHost(
            simulation.network,
            worker,
            reached=self._reached,
            send=lambda message: simulation.answer(self.index, message),
            later=simulation.network.later,
        )

    def _reached(self) -> Moment:
        """Everything that the fronts of this worker have let in is below this moment."""
        fronts = [front for front in self.simulation.fronts if front.host is self]
        return max((front.gate.reached for front in fronts), default=BEFORE_ALL)

    def pass_time(self) -> None:
        now = self.simulation.network.now
        self.worker.pass_time(now - self._passed_until)
        self._passed_until = now

    def acked(self, ack: Ack) -> None:
        if self._account is None:
            self.simulation.send_ack(self.index, ack)
        else:
            self._account.receive(ack)

    def hear(self, dealt: Dealt) -> None:
        assert self._account is not None
        self._account.hear(dealt)

    def receive(self, frame: Frame) -> None:
        self._waiting.append(frame)
        self._work_later()

    def _work_later(self) -> None:
        if self._busy or not self._waiting:
            return
        self._busy = True
        network, options = self.simulation.network, self.simulation.options
        most = options.work_ticks_max
        if network.is_slow(("worker", self.index), options.slow_workers):
            most *= options.slowness
        network.later(network.ticks(most), self._work)

    def _taken(self, count: int) -> list[Frame]:
        return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]

    def _work(self) -> None:
        self._busy = False
        frames = self._taken(len(self._waiting) if self.simulation.options.takes_all else 1)
        if not frames:
            return  # they came together with progress
        self.pass_time()
        effects = self.worker.deliver(frames)
        self.simulation.effects(self.index, effects)
        for frame in frames:
            self.simulation.minimal_time_checker.processed(frame)
        self.simulation.minimal_time_checker.at_barriers(self.worker)
        self._evictions.draw()
        self._work_later()

    def progress(self, progress: Progress) -> None:
        self.pass_time()
        frames = self._taken(len(self._waiting) if self.simulation.options.takes_together else 0)
        self.simulation.effects(self.index, self.worker.progress(progress, frames))
        for frame in frames:
            self.simulation.minimal_time_checker.processed(frame)
        self.simulation.minimal_time_checker.at_barriers(self.worker)
        self.worker.tidy(is_waited_for=bool(self._waiting))
        self._evictions.draw()
        for front in self.simulation.fronts:
            if front.host is self:
                front.progress(progress)


class _FrontHost:
    """A partition of a front with its elements, beside the worker that it feeds."""

    def __init__(self, simulation: Simulation, index: int) -> None:
        self.simulation = simulation
        self.index = index
        self.node = front_of(simulation.graph, index)
        self.host = simulation.workers[front_host(index, len(simulation.workers))]
        self.gate = Gate(front=index, credit=simulation.options.credit)
        self._elements: deque[tuple[Moment, Any]] = deque()
        self._waiting_for_credit = False

    def begin(self, elements: list[tuple[Moment, Any]]) -> None:
        self._elements.extend(elements)
        self.simulation.minimal_time_checker.will_enter(
            self.index,
            [moment for moment, one in elements if one.__class__ is not MalformedElement],
        )
        self._pause()

    def _pause(self) -> None:
        network, options = self.simulation.network, self.simulation.options
        most = options.pause_ticks_max
        if network.is_slow(("front", self.index), 0.5):
            most *= options.skew
        network.later(network.ticks(most), self._emit)

    def _emit(self) -> None:
        network = self.simulation.network
        if self.simulation.failure is not None:
            return
        if self.gate.credits == 0:
            self._waiting_for_credit = True
            return
        count = min(
            network.count(self.simulation.options.burst_max),
            self.gate.credits,
            len(self._elements),
        )
        elements = [self._elements.popleft() for _ in range(count)]
        for moment, payload in elements:
            if payload.__class__ is not MalformedElement:
                self.gate.emitted(moment)
                self.simulation.minimal_time_checker.entered(self.index, moment)
        if not self._elements:
            self.gate.finished()
        self.host.pass_time()
        reports = {self.index: self.gate.promise}
        for effects in entered(self.host.worker, self.node, elements, reports):
            self.simulation.effects(self.host.index, effects)
        if self._elements:
            self._pause()

    def progress(self, progress: Progress) -> None:
        self.gate.minimal_time(progress.of_all())
        if self._waiting_for_credit and self.gate.credits:
            self._waiting_for_credit = False
            self._pause()
