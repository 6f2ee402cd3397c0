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
from emberflow.graph.nodes import Front, Graph
from emberflow.runners.elements import timed_elements
from emberflow.runners.reference import Reference
from emberflow.runners.simulation import CrashSimulation, Faults, Options, SimulationResult
from emberflow.runners.simulation.checkers import CheckError, check_partitions
from tests.simulation.cases import Case, WrongError, always_trimming
from tests.strategies import Elements


@dataclass(frozen=True)
class CrashCase:
    """A graph, its elements, the options of the run, and its faults."""

    name: str
    graph: Graph
    elements: Elements
    options: Options
    faults: Faults
    trims_always: bool = False
    again: str = ""

    @classmethod
    def of(cls, seed: int) -> CrashCase:
        """The case of a seed, the same in every process. Some have few operators and much state."""
        case = Case.of(seed)
        if Random(f"dense {seed}").random() < 0.4:
            flow, elements = dense_flow(Random(seed))
            case = replace(case, name=flow.name, graph=flow.graph(), elements=elements)
        return cls.from_case(case, seed)

    @classmethod
    def from_case(cls, case: Case, seed: int) -> CrashCase:
        random = Random(f"crash case {seed}")
        fronts = [front.index for front in case.graph.fronts.values()]
        arrival = frozenset(index for index in fronts if random.random() < 0.3)
        return cls(
            name=case.name,
            graph=case.graph,
            elements=case.elements,
            options=case.options,
            faults=Faults.drawn(seed, crashes=random.randint(1, 4), arrival=arrival),
            trims_always=case.trims_always,
            again=f"python -m tests.simulation.soak --crashes --from {seed} --seeds 1",
        )

    def simulation(
        self,
        *,
        worker: type[Worker] = Worker,
        acker: type[Acker] = Acker,
        kind: type[CrashSimulation] = CrashSimulation,
    ) -> CrashSimulation:
        worker = always_trimming(worker) if self.trims_always else worker
        return kind(self.graph, self.options, self.faults, worker=worker, acker=acker)

    def entering(self) -> list[tuple[Moment, Front, Any]]:
        return list(timed_elements(self.graph, self.elements))

    def expected(self, simulation: CrashSimulation) -> dict[str, list[Any]]:
        """The reference's output for the elements with the times that they got."""
        reference = Reference(self.graph)
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
        check_partitions(case.graph, partitions, case.expected(simulation))
    except Exception as error:
        raise WrongError(f"{type(error).__name__}: {error}\n{case}") from error
    return result, simulation
