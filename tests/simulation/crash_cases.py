"""One seed is one case with crashes: a random flow, and everything that goes wrong while it runs.

`judged_with_crashes` runs a case and compares the final content of the sinks with the reference. If
fronts assign arrival times, the reference gets the times in their logs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import emberflow as ef
from emberflow.engine.messages import Moment
from emberflow.engine.progress.acker import Acker
from emberflow.engine.worker.worker import Worker
from emberflow.errors import ERRORS_SINK, OnError
from emberflow.fronts.protocol import is_front
from emberflow.graph.nodes import Front, Graph
from emberflow.runners.elements import timed_elements
from emberflow.runners.reference import Reference
from emberflow.runners.simulation import CrashSimulation, Faults, Options, SimulationResult
from emberflow.runners.simulation.checkers import CheckError, check_outputs, check_partitions
from tests.simulation.cases import Case, WrongError, always_trimming, disordered, wrong_by
from tests.strategies import Elements


@dataclass(frozen=True)
class CrashCase:
    """A graph, its elements, the options of the run, and its faults."""

    name: str
    graph: Graph
    #: A list for each front, or the front itself.
    elements: dict[str, Any]
    options: Options
    faults: Faults
    trims_always: bool = False
    again: str = ""
    on_error: OnError = "fail"

    @classmethod
    def of(cls, seed: int) -> CrashCase:
        """The case of a seed, the same in every process. Some have few operators and much state."""
        return cls.from_case(_flow_of(seed), seed)

    @classmethod
    def out_of_order(cls, seed: int) -> CrashCase:
        """The same, and for some seeds with fronts whose elements are out of order."""
        return cls.from_case(disordered(_flow_of(seed), seed), seed)

    @classmethod
    def moving(cls, seed: int) -> CrashCase:
        """The same, with slices that move between workers, some of which come or leave."""
        random = Random(f"moving case {seed}")
        case = cls.out_of_order(seed)
        drawn = Faults.drawn(
            seed,
            crashes=random.choice((0, 1, 2, 3)),
            arrival=case.faults.arrival,
            moves=random.randint(1, 5),
        )
        again = f"python -m tests.simulation.soak --moves --from {seed} --seeds 1"
        return replace(case, faults=drawn, again=again)

    @classmethod
    def ticking(cls, seed: int) -> CrashCase:
        """Windows that close, some of them late: their ticks move with their keys, several times."""
        random = Random(f"ticking case {seed}")
        flow, elements = ticking_flow(random)
        case = cls.moving(seed)
        faults = replace(
            case.faults,
            crashes=random.choice((0, 1, 2)),
            arrival=frozenset(),
            cut_ticks=random.choice((1, 10)),
            moves=random.randint(3, 6),
            moves_likely=random.choice((0.2, 1.0)),
        )
        options = replace(case.options, workers=random.choice((2, 3)))
        again = f"judged_with_crashes(CrashCase.ticking({seed}))"
        return replace(
            case,
            name=flow.name,
            graph=flow.graph(),
            elements=elements,
            options=options,
            faults=faults,
            again=again,
            on_error="fail",
        )

    @classmethod
    def standing_by(cls, seed: int) -> CrashCase:
        """The same, with drivers that stand by, and others that come back."""
        random = Random(f"standby case {seed}")
        case = cls.moving(seed)
        faults = replace(
            case.faults,
            standby=True,
            crashes=random.randint(1, 5),
            driver=random.choice((0.5, 1.0)),
            moves=random.choice((0, 2)),
        )
        again = f"python -m tests.simulation.soak --standby --from {seed} --seeds 1"
        return replace(case, faults=faults, again=again)

    @classmethod
    def from_case(cls, case: Case, seed: int) -> CrashCase:
        random = Random(f"crash case {seed}")
        fronts = case.graph.fronts.items()
        drawn = {name: front.index for name, front in fronts if random.random() < 0.3}
        arrival = [index for name, index in drawn.items() if not is_front(case.elements[name])]
        return cls(
            name=case.name,
            graph=case.graph,
            elements=case.elements,
            options=case.options,
            faults=Faults.drawn(seed, crashes=random.randint(1, 4), arrival=frozenset(arrival)),
            trims_always=case.trims_always,
            again=f"python -m tests.simulation.soak --crashes --from {seed} --seeds 1",
            on_error=case.on_error,
        )

    def simulation(
        self,
        *,
        worker: type[Worker] = Worker,
        acker: type[Acker] = Acker,
        kind: type[CrashSimulation] = CrashSimulation,
    ) -> CrashSimulation:
        worker = always_trimming(worker) if self.trims_always else worker
        return kind(
            self.graph,
            self.options,
            self.faults,
            worker=worker,
            acker=acker,
            on_error=self.on_error,
        )

    def entering(self) -> list[tuple[Moment, Front, Any]]:
        return list(timed_elements(self.graph, self.elements))

    def expected(self, simulation: CrashSimulation) -> dict[str, list[Any]]:
        """The reference's output for the elements with the times that they got."""
        reference = Reference(self.graph, on_error=self.on_error)
        for moment, front, payload in self.given(simulation):
            reference.enter(moment, front, payload)  # type: ignore[arg-type]
        reference.finish()
        return reference.outputs

    def given(self, simulation: CrashSimulation) -> list[tuple[Moment, Front, Any]]:
        """The elements, in the order of the times that they got."""
        given = []
        positions = dict.fromkeys(simulation.storage.logs, 0)
        for index in self.faults.arrival:
            if len(simulation.storage.logs[index].times) != len(simulation.sources[index]):
                raise CheckError(f"the log of front {index} is not that of its elements")
        for moment, front, payload in self.entering():
            if front.index in self.faults.arrival:
                times = simulation.storage.logs[front.index].times
                moment = (times[positions[front.index]], front.index)
                positions[front.index] += 1
            given.append((moment, front, payload))
        return sorted(given, key=lambda element: element[0])

    def with_faults(self, **changed: Any) -> CrashCase:
        return replace(self, faults=replace(self.faults, **changed))

    def __str__(self) -> str:
        return (
            f"  flow: {self.name}\n"
            f"  fused: {bool(self.graph.reductions)}, trims always: {self.trims_always}\n"
            f"  {self.options}\n"
            f"  {self.faults}\n"
            f"  again: {self.again}"
        )


def _flow_of(seed: int) -> Case:
    case = Case.of(seed)
    if Random(f"dense {seed}").random() < 0.4:
        flow, elements = dense_flow(Random(seed))
        case = replace(case, name=flow.name, graph=flow.graph(), elements=elements)
    return case


def ticking_flow(random: Random) -> tuple[ef.Flow, Elements]:
    flow = ef.Flow("ticking")
    keys, length = random.choice((3, 7)), random.choice((40, 90))
    keyed = flow.front("numbers").key_by(lambda n: n % keys)
    keyed.window(ef.Tumbling(length), emit="close").count().sink("windows")
    sessions = keyed.window(ef.Session(length // 2), emit="close").collect()
    sessions.map(lambda r: (r.key, tuple(r.value))).sink("sessions")
    times = sorted(random.sample(range(150), 40))
    return flow, {"numbers": [ef.At(time, 13 * time) for time in times]}


def dense_flow(random: Random) -> tuple[ef.Flow, Elements]:
    """Every kind of state, with many keys, so that a loss hardly ever goes unseen."""
    flow = ef.Flow("dense")
    numbers = ef.merge(flow.front("one"), flow.front("two"))
    keys = random.choice((2, 5, 9))
    window = random.choice((2, 3, 5))
    keyed = numbers.key_by(lambda n: n % keys)
    folded = keyed.fold(initial=0, combine=lambda total, n: (3 * total + n) % 1009)
    folded.key_by(lambda n: n).sink("folded", partitions=2)
    keyed.group(window=window).map(lambda numbers: (len(numbers), sum(numbers))).sink("grouped")
    keyed.window(ef.Tumbling(random.choice((4, 15)))).collect().sink("windows")
    later = numbers.with_time().map(lambda timed: ef.At(timed.time + 30, timed.payload % 4))
    later.key_by(lambda n: n).count().sink("later")
    elements: Elements = {}
    for number, name in enumerate(("one", "two")):
        times = sorted(random.sample(range(90), 30))
        elements[name] = [ef.At(time, 7 * time + number) for time in times]
    return flow, elements


def judged_with_crashes(
    case: CrashCase, **machines: Any
) -> tuple[SimulationResult, CrashSimulation]:
    """Run a case; raise `WrongError` unless every sink holds exactly the right bytes."""
    simulation = case.simulation(**machines)
    try:
        result = simulation.run(case.entering())
        partitions = {name: sink.payloads for name, sink in simulation.storage.sinks.items()}
        expected = case.expected(simulation)
        check_partitions(case.graph, partitions, expected)
        if case.on_error == "divert":
            errors = {ERRORS_SINK: expected[ERRORS_SINK]}
            check_outputs({ERRORS_SINK: partitions[ERRORS_SINK, 0]}, errors)
    except Exception as error:
        raise WrongError(f"{type(error).__name__}: {error}\n{case}") from error
    return result, simulation


wrong = wrong_by(judged_with_crashes)
