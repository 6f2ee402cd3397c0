"""The simulation with crashes: one incarnation after another, over storage that survives them.

A *life* is one incarnation: its number, its workers, the cut it was restored from, and its
checkers. The driver starts a life, runs its acker, takes its cuts and is told of its deaths. When
the driver dies, a new driver starts that knows only what is stored. In the end all sinks must hold
what the reference says, no matter who died when.

Checkers verify each life while it lasts; at the end the contents of the sinks are compared. The
number of crashes is limited and the network becomes calm; from then on the run has to drain.

**Versions.** A life runs one version of the flow. If another version follows it at T, the fronts of the
life promise T behind their last element below it. When the minimal time is T, the driver takes a cut at
T; once that is committed, the next life is of the next version, and restores the cut translated. Or the
workers of the next version, in the same processes, take the state over in memory
(`engine.worker.succession`) as soon as the cut is stored. It is committed when all of them have, and before
their fronts begin: until then nothing of the new version is let out. A cut says of which version it is. So
whoever crashes when: the newest cut alone tells which version goes on.

**Moves of slices** are takeovers by the same version with another owner table, and perhaps
another number of workers. T is not known beforehand: the driver lets the fronts hold, and then halt just
ahead of the last of them. If anybody crashes before the last cut is committed, nothing has moved. Some of
what moves was copied or made ahead (`storage.copied_ahead`, `storage.made_ahead`).

**Drivers that stand by** take over from one that fails, which may come back (`Standby`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, NamedTuple

from emberflow.checkpoint.cuts.backfills import all_rows
from emberflow.engine.cuts.cut import owned
from emberflow.engine.cuts.translation import translated_rows, translated_timers
from emberflow.engine.layout import Layout
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Bundle, Effects, Moment, Progress
from emberflow.engine.progress.accounts import Accounts
from emberflow.engine.progress.acker import Acker
from emberflow.engine.progress.gate import Gate
from emberflow.engine.worker.succession import StateAhead, move, moving, succeed
from emberflow.engine.worker.worker import Worker
from emberflow.errors import EmberflowError, OnError
from emberflow.graph.nodes import Front, Graph
from emberflow.graph.versions import CarryPlan
from emberflow.runners.served import Served
from emberflow.runners.simulation.accounts import kind_of_acker
from emberflow.runners.simulation.checkers import (
    CheckError,
    MinimalTimeChecker,
    ReleaseChecker,
    check_drained,
    check_owners,
    check_patience,
)
from emberflow.runners.simulation.crashes.processes import (
    Process,
    WorkerProcess,
    is_of_another,
)
from emberflow.runners.simulation.crashes.storage import (
    Manifest,
    Restorable,
    Storage,
    copied_ahead,
    made_ahead,
)
from emberflow.runners.simulation.entries import sources_of
from emberflow.runners.simulation.judges import drawn_steps, judges, leave_cold
from emberflow.runners.simulation.network import DoesNotDrainError, Network
from emberflow.runners.simulation.options import Faults, Move, MoveDraws, Options
from emberflow.runners.simulation.queries import Asker, SimulatedRead
from emberflow.runners.simulation.results import SimulationError, SimulationResult, states_of
from emberflow.values.item import FRONT_MIN, TIME_MAX, TIME_MIN
from emberflow.values.owners import Owners

#: Crashes while workers take over in memory, and after how many events they come at most.
TAKEOVER_CRASHES_MAX = 3
_TAKEOVER_EVENTS_MAX = 12
#: The share of cuts that hold everything, although there is one that they could add to.
_WHOLE = 0.15


class SimulatedVersion(NamedTuple):
    """A version of the flow, and its elements by front index of a partition."""

    layout: Layout
    plan: CarryPlan | None
    sources: dict[int, list[tuple[Moment, Any]]]
    #: The moment at which the next version takes over.
    end: Moment | None = None


def translated_cut(cut: Restorable, plan: CarryPlan) -> Restorable:
    """A cut of one version for the next one, with what it begins with from backfills."""
    begun, due = all_rows(plan)
    return cut._replace(
        rows=[*translated_rows(cut.rows, plan, cut.manifest.moment), *begun],
        scheduled=[*translated_timers(cut.scheduled, plan), *due],
    )


class CrashSimulation:
    """One run of a graph, or of several versions of it, under given options and faults."""

    def __init__(
        self,
        graph: Graph,
        options: Options,
        faults: Faults,
        *,
        worker: type[Worker] = Worker,
        acker: type[Acker] = Acker,
        on_error: OnError = "fail",
        reads: Sequence[SimulatedRead] = (),
        history: int = 0,
        served: Sequence[Served] = (),
    ) -> None:
        """``served`` are all versions with their elements; ``graph`` is that of the first one."""
        self.graph = graph
        self.options = options
        self.faults = faults
        self.network = Network(options)
        self.asker = Asker(self.network, reads, history)
        self.layout = Layout(graph, on_error=on_error)
        self.storage = Storage([each.graph for each in served] or [graph], on_error)
        self.worker = worker
        self.acker = acker
        ends = [(each.version.at.time, each.version.at.front) for each in served[1:]]
        self.versions = [
            SimulatedVersion(
                Layout(each.graph, on_error=on_error),
                each.version.plan,
                sources_of(each.graph, each.entries),
                end,
            )
            for each, end in zip(served, [*ends, None], strict=bool(served))
        ]
        self.lives: list[Life] = []
        self.driver: Driver | None = None
        #: Drivers that another one stands in for, and that may not know it.
        self.formers: list[Driver] = []
        self.standby = Standby(self) if faults.standby else None
        self.failure: Exception | None = None
        self._crashes_left = faults.crashes
        self._breaks = Random(f"emberflow breaks {options.seed}")
        self.takeovers = Random(f"emberflow takeovers {options.seed}")
        #: Decides which cuts hold everything.
        self.wholes = Random(f"emberflow whole cuts {options.seed}")
        self._takeover_crashes_left = TAKEOVER_CRASHES_MAX
        #: Messages that were on connections when they broke.
        self.messages_lost = 0
        self.moves = MoveDraws(options, faults)

    @property
    def sources(self) -> dict[int, list[tuple[Moment, Any]]]:
        """By front index of a partition: the elements of the first version."""
        return self.versions[0].sources

    def run(self, elements: Iterable[tuple[Moment, Front, Any]] = ()) -> SimulationResult:
        if not self.versions:
            sources = sources_of(self.graph, elements)
            self.versions = [SimulatedVersion(self.layout, None, sources)]
        self.storage.open_logs({front for version in self.versions for front in version.sources})
        self._plan_a_crash()
        self.start_driver()
        self.asker.begin()
        try:
            self.network.run()
            if self.failure is None:
                for worker in self.lives[-1].engines():
                    worker.progress(self.lives[-1].acker.progress)  # releases the history of reads
                self._check_drained()
        except (CheckError, DoesNotDrainError) as error:
            raise SimulationError(str(error), self.options, self.faults) from error
        if self.failure is not None:
            raise self.failure
        sinks = self.storage.sinks
        items = {
            name: [item for key, sink in sinks.items() if key[0] == name for item in sink.items]
            for name in dict.fromkeys(name for name, _ in sinks)
        }
        return SimulationResult(
            outputs={
                name: [payload for _, _, payload in sorted(own, key=lambda item: item[0])]
                for name, own in items.items()
            },
            statistics=[worker.statistics() for worker in self.lives[-1].engines()],
            options=self.options,
            trace=self.network.trace,
            faults=self.faults,
            incarnations=len(self.lives),
            cuts=len(self.storage.cuts.manifests),
            states=states_of(self.lives[-1].engines()),
            answered=list(self.asker.answered),
        )

    def _check_drained(self) -> None:
        life = self.lives[-1]
        if life.acker.progress.of_all() != AFTER_ALL:
            raise CheckError(f"the minimal time stays at {life.acker.progress}")
        for process in life.processes:
            if not process.alive or not process.is_idle:
                raise CheckError(f"{process.name} has not ended its work")
        life.minimal_time_checker.finished()
        check_drained(life.engines(), life.acker.entries)
        check_owners(life.engines(), life.owners)
        check_patience(life.engines(), self.options.patience)

    # Crashes.

    def _plan_a_crash(self) -> None:
        if self._crashes_left:
            self._crashes_left -= 1
            self.network.interrupt(self.network.count(self.faults.crash_events_max), self._crash)

    def crash_while_taking_over(self) -> None:
        """Perhaps plan one more crash: workers begin to take over in memory."""
        dice = self.takeovers
        if self._takeover_crashes_left and dice.random() < self.faults.takeovers:
            self._takeover_crashes_left -= 1
            self.network.interrupt(dice.randint(1, _TAKEOVER_EVENTS_MAX), self._crash_now)

    def _crash(self) -> None:
        self._crash_now()
        self._plan_a_crash()

    def _crash_now(self) -> None:
        if self.failure is not None:
            return
        breaks = self._breaks.random() < self.faults.breaks
        if self.driver is not None and not (breaks and self._break_a_connection(self.driver)):
            self._crash_a_process(self.driver)
        self._tear()

    def _crash_a_process(self, driver: Driver) -> None:
        network, faults = self.network, self.faults
        if self.standby is not None and network.chance(faults.driver):
            self.standby.fail(driver)
        elif self.standby is None and network.chance(faults.driver):
            if network.chance(faults.lingers):  # it may still commit its open cut
                network.later(network.count(faults.linger_ticks_max), driver.kill)
            else:
                driver.kill()
            self.driver = None
            self.asker.detach()
            network.note("the driver crashes")
            self.lives[-1].leave_alone()
            network.later(network.ticks(faults.restart_ticks_max), self.start_driver)
        else:
            life = self.lives[-1]
            process = life.processes[network.count(len(life.processes)) - 1]
            network.note("a worker crashes", process.name)
            process.kill()
            network.later(network.ticks(faults.restart_ticks_max), driver.hears_of_death(life))

    def _break_a_connection(self, driver: Driver) -> bool:
        """Between two processes of the newest life, if any are connected. Someone notices: by a gap, or
        by connecting anew."""
        network, life = self.network, self.lives[-1]
        names = {f"driver for {life.number}", *(process.name for process in life.processes)}
        links = network.links_of(names)
        if links:
            self.messages_lost += network.break_link(self._breaks.choice(links), self._breaks)
            network.later(network.ticks(self.faults.restart_ticks_max), driver.hears_of_death(life))
        return bool(links)

    def _tear(self) -> None:
        """The part written last may turn out not to be on the disk, although the write succeeded."""
        life = self.lives[-1]
        if life.written_last is not None and self.network.chance(self.faults.torn):
            self.storage.cuts.tear(life.written_last)

    def start_driver(self) -> None:
        self.driver = Driver(self)
        self.driver.start_workers()

    def end(self, failure: Exception) -> None:
        """A user's function has failed: stop everything."""
        self.failure = failure
        for life in self.lives:
            for process in life.processes:
                process.alive = False
        if self.driver is not None:
            self.driver.alive = False


class Suspension:
    """What waits for a driver that is suspended."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        self.is_on = False

    def put_off(self, action: Callable[[], None]) -> bool:
        """Let an action wait, if the driver is suspended."""
        if self.is_on:
            self._waiting.append(action)
        return self.is_on

    def end(self) -> None:
        self.is_on = False
        waiting, self._waiting = self._waiting, []
        for action in waiting:
            action()


class Standby:
    """The drivers that stand by, one after the other.

    A driver that fails is dead, or only suspended: what comes to it waits, and so does what it was about to do.
    If it comes back before its lease has lapsed it goes on. Later it finds that another one has claimed the
    next incarnation, and ends. Until it looks there are two drivers, each with workers, and only one counts.

    When the lease lapses is a matter of clocks, so it is drawn. That nobody relies on it is what is tested
    (`checkpoint.lease`).
    """

    def __init__(self, simulation: CrashSimulation) -> None:
        self._simulation = simulation
        self._random = Random(f"emberflow standby {simulation.options.seed}")
        #: How often one took over, and how often one came back and found that.
        self.takeovers = self.came_back = 0

    def fail(self, driver: Driver) -> None:
        """Let the driver that works fail."""
        simulation, random = self._simulation, self._random
        network, most = simulation.network, simulation.faults.restart_ticks_max
        if driver.suspension.is_on or random.random() < 0.4:
            network.note("the driver dies")
            driver.kill()
        else:
            network.note("the driver is suspended")
            driver.suspension.is_on = True
            network.later(random.randint(1, 3 * most), lambda: self._comes_back(driver))
        network.later(random.randint(1, most), lambda: self._looks(driver))

    def _looks(self, driver: Driver) -> None:
        """The lease has lapsed, unless the driver has come back."""
        simulation = self._simulation
        is_back = driver.alive and not driver.suspension.is_on
        if simulation.driver is not driver or is_back or simulation.failure is not None:
            return
        self.takeovers += 1
        simulation.network.note("another driver takes over")
        simulation.formers.append(driver)
        if not driver.alive:
            simulation.lives[-1].leave_alone()
        simulation.start_driver()

    def _comes_back(self, driver: Driver) -> None:
        driver.suspension.end()
        if not driver.is_followed:
            return
        self.came_back += 1
        most = self._simulation.faults.linger_ticks_max
        self._simulation.network.later(self._random.randint(1, most), driver.look)


class Life:
    """One incarnation, as its processes see it."""

    def __init__(
        self,
        simulation: CrashSimulation,
        number: int,
        workers: int,
        cut: Restorable | None,
        version: int,
        predecessor: Life | None = None,
        move: Move | None = None,
    ) -> None:
        """``predecessor`` is of the version before, or of the same one with other owners, and its workers
        hand their state over in memory. By a ``move`` it has others."""
        self.simulation = simulation
        self.predecessor = predecessor
        self.network = simulation.network
        self.options = simulation.options
        self.faults = simulation.faults
        self.storage = simulation.storage
        self.version = version
        self.layout = simulation.versions[version].layout
        self.graph = self.layout.graph
        self.sources = simulation.versions[version].sources
        self.end = simulation.versions[version].end
        self.number = number
        self.workers = workers
        self.staffing = None if move is None else move.staffing
        owners = None if move is None else move.owners
        if owners is None and predecessor is not None:
            owners = predecessor.owners
        self.owners: Owners = owners or self.options.owners(workers, number)
        self.cut = cut
        #: By partition of a front: where to go on. A version begins with its own elements.
        is_own = cut is not None and cut.manifest.version == version
        #: Whether anything may be let out. A crash before that has to leave no trace: in a live query the next
        #: version may then begin at another T, and here T is the same.
        self.serves = predecessor is None
        self.positions: dict[int, int] = (
            cut.manifest.positions if cut is not None and is_own else {}
        )
        kind = kind_of_acker(simulation.options, simulation.acker)
        self.has_accounts = kind is Accounts
        self.acker: Acker | Accounts = kind(workers=workers, fronts=list(self.sources))
        self.minimal_time_checker = MinimalTimeChecker(self.graph, [])
        self.release_checker = ReleaseChecker()
        #: The name of the part of a cut that was written last.
        self.written_last: str | None = None
        #: Bundles that a sink refused because its last bundle was not the one that the writer knew.
        self.fenced = 0
        self.processes = [WorkerProcess(self, index) for index in range(workers)]

    def new_worker(self, index: int, delivered: dict[tuple[str, int], Moment]) -> Worker:
        simulation = self.simulation
        worker = simulation.worker(
            self.layout,
            index,
            self.workers,
            incarnation=self.number,
            delivered=delivered,
            owners=self.owners,
            judges=judges(self.options.patience, f"{self.options.seed} {self.number} {index}"),
            splits=self.has_accounts,
        )
        self.minimal_time_checker.watch(worker)
        return worker

    def ends(self, gate: Gate) -> None:
        """A front has emitted its last element of this version."""
        if self.end is None:
            gate.finished()
        else:
            gate.promises(self.end)

    def engines(self) -> list[Worker]:
        return [process.worker for process in self.processes if process.worker is not None]

    def released(self, bundle: Bundle) -> None:
        if not self.serves:
            raise CheckError(
                f"version {self.version} lets out {bundle.last} before the cut counts that it takes over from"
            )
        self.release_checker.released(bundle)

    def acker_progress(self) -> Progress:
        return self.acker.progress

    def leave_alone(self) -> None:
        """Replace these processes. Some linger before they are killed."""
        network, faults = self.network, self.faults
        for process in self.processes:
            if process.alive and network.chance(faults.lingers):
                network.later(network.count(faults.linger_ticks_max), process.kill)
            else:
                process.kill()

    def end_for_heirs(self) -> None:
        """These workers do nothing more: those of the next version take their state over."""
        for process in self.processes:
            process.kill()

    def succeeded(self, index: int, worker: Worker) -> Effects:
        """Let a worker of this life take over what its predecessor has in memory."""
        assert self.predecessor is not None
        assert self.cut is not None
        if self.predecessor.version == self.version:
            return self._moved(self.predecessor, self.cut, index, worker)
        plan = self.simulation.versions[self.version].plan
        old = self.predecessor.processes[index].worker
        assert plan is not None
        assert old is not None
        begun, due = all_rows(plan)
        return succeed(
            old,
            worker,
            self.cut.manifest.moment,
            plan,
            owned(begun, index, self.owners),
            owned(due, index, self.owners),
        )

    def _moved(self, before: Life, cut: Restorable, index: int, worker: Worker) -> Effects:
        staffing = self.staffing
        assert staffing is not None
        former = {number: worker for worker, number in staffing.stays.items()}.get(index)
        old = None if former is None else before.processes[former].worker
        owners = staffing.renamed(before.owners)
        keeps_scheduled = not staffing.leaving
        ranges = self.owners.ranges(index)
        if old is not None:
            ranges = self.owners.arriving(owners, index)
        dice = Random(f"emberflow copies {self.options.seed} {self.number} {index}")
        steps = drawn_steps(worker, dice)
        layers = copied_ahead(self.storage.cuts, cut.manifest, steps, ranges, dice)

        def arrives(hashed: int) -> bool:
            is_new = old is None or owners.owner(hashed) != index
            return is_new and worker.owns(hashed)

        ahead: StateAhead | None = None
        if dice.random() < 0.7:
            ahead = StateAhead(worker.layout, arrives, steps)
            made_ahead(self.storage.cuts, cut.manifest, ahead, arrives, worker.owns, dice)
            rows = []
            scheduled = [] if keeps_scheduled else list(ahead.others(cut.manifest.moment))
        else:
            rows = [row for row in cut.rows if row.operation not in steps and arrives(row.key_hash)]
            own = owned(cut.scheduled, index, self.owners)
            scheduled = list(moving(own, worker.layout, arrives, others_too=not keeps_scheduled))
        return move(
            old,
            worker,
            cut.manifest.moment,
            self.owners,
            rows,
            scheduled,
            keeps_scheduled=keeps_scheduled,
            leave_cold=lambda worker: leave_cold(worker, layers),
            ahead=ahead,
        )

    def tell_driver(self, source: str, message: Callable[[Driver], None]) -> None:
        number = self.number

        def arrives() -> None:
            for driver in (self.simulation.driver, *self.simulation.formers):
                if driver is not None:
                    driver.hear(number, message)

        self.network.send(source, f"driver for {number}", arrives)

    def tell_worker(
        self, source: str, index: int, message: Callable[[WorkerProcess], None]
    ) -> None:
        number = self.number

        def arrives() -> None:
            process = self.processes[index]
            newest = self.simulation.lives[-1].processes
            if not process.alive and index < len(newest):
                process = newest[index]  # a newer process has this address by now
            process.hear(number, message)

        self.network.send(source, self.processes[index].name, arrives)


class Driver(Process):
    """Starts lives. Its acker and its open cut die with it."""

    def __init__(self, simulation: CrashSimulation) -> None:
        super().__init__(simulation.network)
        self.simulation = simulation
        self.faults = simulation.faults
        self.storage = simulation.storage
        self.life: Life  # set by the first start
        self._unrestored: set[int] = set()
        self._is_going = False
        self._cut: _CutUnderWay | None = None
        self._committed: Manifest | None = None
        #: The last cut of the version before: stored, and not committed yet.
        self._held: Manifest | None = None
        self._cuts_begun = 0
        self._cut_at = 0
        self._move: _MoveUnderWay | None = None
        self.suspension = Suspension()
        #: The last incarnation that it has claimed, or that it follows.
        self.number = self.storage.incarnation

    def if_alive(self, action: Callable[[], None]) -> None:
        if not self.suspension.put_off(lambda: self.if_alive(action)):
            super().if_alive(action)

    @property
    def is_followed(self) -> bool:
        """Whether another driver has claimed the next incarnation."""
        return self.storage.incarnation != self.life.number

    def look(self) -> None:
        """Look whether another driver has taken over, as drivers do now and then."""
        self.end_if_followed()

    def end_if_followed(self) -> bool:
        """Do nothing more if another driver has taken over. Its workers find that out for themselves."""
        if self.is_followed and self.alive:
            self.network.note("a driver that came back ends")
            self.kill()
            self.life.leave_alone()
        return self.is_followed

    def start_workers(
        self,
        predecessor: Life | None = None,
        held: Manifest | None = None,
        move: Move | None = None,
    ) -> None:
        """Start the next incarnation from the newest cut that is whole, or from workers in memory, whose
        last cut is ``held``; by a ``move`` with others."""
        storage = self.storage
        self._check_not_followed("begins another life")
        storage.incarnation += 1
        self.number = storage.incarnation
        cut = None if held is None else storage.cuts.restorable(held)
        if cut is None:
            # If there was one, it is torn: whatever went on from it could not be restored.
            predecessor, held = None, None
            cut = storage.cuts.newest()
        self._held = held
        version = 0 if cut is None else cut.manifest.version
        self._move = None
        self._committed = None if cut is None else cut.manifest
        self._cut = None
        if cut is not None and cut.manifest.moment == self.simulation.versions[version].end:
            version += 1
            plan = self.simulation.versions[version].plan
            assert plan is not None
            try:
                cut = translated_cut(cut, plan)
            except EmberflowError as error:  # of a migration, or a timer that nobody takes over
                self.simulation.end(error)
                return
            self._committed = None  # the next cut holds everything
        if move is not None:
            workers = move.owners.workers
        else:
            workers = self._workers() if predecessor is None else predecessor.workers
        life = Life(self.simulation, storage.incarnation, workers, cut, version, predecessor, move)
        self.life = life
        self.simulation.lives.append(life)
        self._unrestored = set(range(life.workers))
        self._is_going = False
        self.simulation.asker.detach()
        self.network.note("incarnation", life.number, life.workers, self._committed)
        for process in life.processes:
            process.later(self.network.ticks(self.faults.restart_ticks_max), process.start)

    def _check_not_followed(self, what: str) -> None:
        if self.simulation.standby is not None and self.number != self.storage.incarnation:
            raise CheckError(f"the driver of life {self.number} {what}, and has a successor")

    def _workers(self) -> int:
        lives = self.simulation.lives
        if not lives:
            return self.simulation.options.workers
        if self.faults.workers_change:
            return self.network.count(5)
        return lives[-1].workers

    def hears_of_death(self, life: Life) -> Callable[[], None]:
        def heard() -> None:
            # A replaced driver finds a newer incarnation in the storage, and leaves it alone.
            if self.life is life and not self.is_followed:
                life.leave_alone()
                self.start_workers()

        return lambda: self.if_alive(heard)

    def hear(self, incarnation: int, message: Callable[[Driver], None]) -> None:
        if not self.suspension.put_off(lambda: self.hear(incarnation, message)) and (
            self.alive and not is_of_another(incarnation, self.life.number)
        ):
            message(self)

    # Restoring.

    def restored(self, index: int) -> None:
        """A worker has restored. Its ack for the restored items came earlier on the same link."""
        self._unrestored.discard(index)
        self._go_if_ready()

    def _go_if_ready(self) -> None:
        """All workers have restored, and what they stated before that is taken in."""
        if self._unrestored or self._is_going or self.life.acker.waits:
            return
        self._is_going = True
        if self._held is None:
            self._go()
        else:
            life, held = self.life, self._held
            ticks = self.simulation.takeovers.randint(1, self.faults.write_ticks_max)
            self.later(ticks, lambda: self._take_over(life, held))

    def _take_over(self, life: Life, held: Manifest) -> None:
        """The cut counts, and so does the version that has taken over from it."""
        if self.life is not life or self.is_followed:
            return  # it was lost, or a new driver has begun another one
        self.storage.cuts.commit(held)
        self.network.note("committed", held)
        life.serves = True
        predecessor = life.predecessor
        is_move = predecessor is not None and predecessor.version == life.version
        self.simulation.moves.made += is_move
        self._go()

    def _go(self) -> None:
        check_owners(self.life.engines(), self.life.owners)
        for process in self.life.processes:
            self._tell(process, WorkerProcess.go)
        since = BEFORE_ALL if self.life.cut is None else self.life.cut.manifest.moment
        self.simulation.asker.attach(self.life.owners, since, self._ask)

    def _ask(self, worker: int, message: Any) -> None:
        self._tell(self.life.processes[worker], lambda process: process.asked(message))

    def answered(self, message: Any) -> None:
        self.simulation.asker.hear(message)

    def _tell(self, process: WorkerProcess, message: Callable[[WorkerProcess], None]) -> None:
        self.life.tell_worker(f"driver for {self.life.number}", process.index, message)

    # Progress.

    def receive(self, ack: Any) -> None:
        acker = self.life.acker
        before = acker.progress
        acker.receive(ack)
        acker.settle()
        progress = acker.progress
        self._go_if_ready()
        self.life.minimal_time_checker.progress(progress)
        if progress == before or self._unrestored:
            return
        self.network.note("progress", progress)
        self.simulation.asker.progress(progress, self._tell_progress)
        self._cut_if_due(progress.of_all())
        self._move_if_due(progress.of_all())

    def _tell_progress(self, progress: Progress) -> None:
        for process in self.life.processes:
            self._tell(process, lambda process: process.progress(progress))

    def failed(self, failure: Exception) -> None:
        self.simulation.end(failure)

    # Moves of slices.

    def _last_moment(self) -> Moment | None:
        """The moment at which this life ends, if another one takes over from it."""
        move = self._move
        return self.life.end if move is None or move.moment is None else move.moment

    def _move_if_due(self, minimal: Moment) -> None:
        if self._move is not None:
            if self._move.has_passed(minimal):  # all fronts have ended
                self._go_on()
            return
        move = None if minimal == AFTER_ALL else self.simulation.moves.next(self.life.owners)
        if move is not None:
            owners = move.owners
            self._move = _MoveUnderWay(move, self.life)
            stays = sorted(move.staffing.stays.items())
            self.network.note("move", owners.version, owners.workers, owners.of_slice, stays)
            for process in self.life.processes:
                self._tell(process, WorkerProcess.hold_fronts)

    def bounded(self, index: int, reached: int) -> None:
        """The fronts of a worker hold. They have let in elements up to a time."""
        move = self._move
        if move is None or not move.note_bounded(index, reached):
            return
        moment = move.moment
        assert moment is not None
        self.network.note("halt", moment)
        is_too_late = self.life.end is not None and moment >= self.life.end
        if (
            is_too_late or moment[0] > TIME_MAX
        ):  # another version takes over before, or nothing is behind
            self._go_on()
            return
        for process in self.life.processes:
            self._tell(process, lambda process: process.halt_fronts(moment))

    def _go_on(self) -> None:
        self._move = None
        for process in self.life.processes:
            self._tell(process, lambda process: process.halt_fronts(None))

    # Cuts.

    def _cut_if_due(self, moment: Moment) -> None:
        since = BEFORE_ALL if self._committed is None else self._committed.moment
        network = self.network
        if self._cut is not None and network.chance(self.faults.cuts_lost):
            self._cut = None  # abandon it half way and begin another
        if self._cut is not None or moment <= since:
            return
        if network.now < self._cut_at and moment != self._last_moment():
            return
        self._cut_at = network.now + self.faults.cut_ticks
        self._cuts_begun += 1
        number = 1_000 * self.life.number + self._cuts_begun
        is_whole = self.simulation.wholes.random() < _WHOLE
        since = BEFORE_ALL if is_whole else since
        self._cut = _CutUnderWay(number, moment, set(range(self.life.workers)), is_whole)
        network.note("cut", number, moment, since)
        for process in self.life.processes:
            self._tell(process, lambda process: process.begin_cut(number, moment, since))

    def part_is_stored(
        self, number: int, index: int, part: tuple[str, int], positions: dict[int, int]
    ) -> None:
        cut = self._cut
        if cut is None or cut.number != number:
            return
        cut.missing.discard(index)
        cut.parts.append(part)
        cut.positions.update(positions)
        if not cut.missing:
            ticks = self.network.ticks(self.faults.write_ticks_max)
            self.later(ticks, lambda: self._commit(cut))

    def _commit(self, cut: _CutUnderWay) -> None:
        if self._cut is not cut:
            return
        self._cut = None
        parent = None if self._committed is None or cut.is_whole else self._committed.number
        version = self.life.version
        manifest = Manifest(
            cut.number, parent, cut.moment, tuple(cut.parts), cut.positions, version
        )
        life, is_last = self.life, cut.moment == self._last_moment()
        if (is_last or self.simulation.standby is not None) and self.end_if_followed():
            return
        move = None if self._move is None or not is_last else self._move.move
        if is_last and all(each.alive for each in life.processes) and self.network.chance(0.5):
            life.end_for_heirs()
            self.start_workers(life, manifest, move)
            self.simulation.crash_while_taking_over()
            return
        self._committed = manifest
        self._check_not_followed("commits a cut")
        self.storage.cuts.commit(manifest)
        self.network.note("committed", manifest)
        if is_last:
            life.leave_alone()
            self.start_workers(move=move)
            return
        for process in self.life.processes:
            self._tell(process, lambda process: process.cut_committed(cut.moment))
        last = self._last_moment()
        if last is not None and self.life.acker.progress.of_all() == last:
            self._cut_if_due(last)


class _CutUnderWay:
    """The driver's view of the cut that it has begun."""

    def __init__(self, number: int, moment: Moment, missing: set[int], is_whole: bool) -> None:
        self.number = number
        self.moment = moment
        #: Whether it holds everything, and adds to no other one.
        self.is_whole = is_whole
        self.missing = missing
        self.parts: list[tuple[str, int]] = []
        self.positions: dict[int, int] = {}


class _MoveUnderWay:
    """The driver's view of a move of slices."""

    def __init__(self, move: Move, life: Life) -> None:
        self.move = move
        #: The moment at which the old owners end; None until it is known.
        self.moment: Moment | None = None
        self._missing = set(range(life.workers))
        #: A life may have let in nothing yet, and goes on from its cut.
        self._reached = TIME_MIN if life.cut is None else life.cut.manifest.moment[0]

    def note_bounded(self, worker: int, reached: int) -> bool:
        """The fronts of a worker hold. Returns whether all do by now, for the first time."""
        if worker not in self._missing:
            return False
        self._missing.remove(worker)
        self._reached = max(self._reached, reached)
        if not self._missing:
            self.moment = (self._reached + 1, FRONT_MIN)
            owners = self.move.owners.holding_from(self.moment)
            self.move = self.move._replace(owners=owners)
        return not self._missing

    def has_passed(self, minimal: Moment) -> bool:
        """Whether there will be no cut at the moment, since all elements have entered."""
        return minimal == AFTER_ALL or (self.moment is not None and minimal > self.moment)
