"""What a simulated run gives back, or raises."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from emberflow.engine.interface import Statistics
from emberflow.engine.machines.state import AccessMachine
from emberflow.engine.messages import AFTER_ALL
from emberflow.engine.worker.worker import Worker
from emberflow.errors import EmberflowError
from emberflow.runners.questions import Answer
from emberflow.runners.simulation.options import Faults, Options
from emberflow.runners.simulation.queries import Answered


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What came out, what it took, and under which circumstances."""

    outputs: dict[str, list[Any]]
    statistics: list[Statistics]
    options: Options
    trace: str
    #: Of a run with crashes: what went wrong, how many lives it took, how many cuts were committed.
    faults: Faults | None = None
    incarnations: int = 1
    cuts: int = 0
    #: Key to value, of each state, at the end.
    states: dict[str, dict[Any, Any]] = field(default_factory=dict)
    #: What came of each query.
    answered: list[Answered | None] = field(default_factory=list)

    @property
    def answers(self) -> list[Answer]:
        """The answers to the queries, in the order they were given."""
        return [
            each.answer for each in self.answered if each is not None and each.answer is not None
        ]

    @property
    def overhead(self) -> float:
        """Items that arrived at barriers for each one released: 1.0 when nothing was replayed."""
        released = sum(worker.released for worker in self.statistics)
        return sum(worker.arrived for worker in self.statistics) / released if released else 1.0

    @property
    def waited(self) -> float:
        """How many ticks an item of the output was at its barrier, on average."""
        released = sum(worker.released for worker in self.statistics)
        return sum(worker.waited for worker in self.statistics) / released if released else 0.0


class SimulationError(EmberflowError):
    """The engine broke an invariant in a simulated run. Carries all that is needed to see it again."""

    def __init__(self, problem: str, options: Options, faults: Faults | None = None) -> None:
        self.options = options
        self.faults = faults
        told = "" if faults is None else f"  {faults}\n"
        crashes = "" if faults is None else f", crashes={faults.crashes}"
        super().__init__(
            f"{problem}\n  {options}\n{told}"
            f"  again: emberflow.simulate(flow, ..., seed={options.seed}, "
            f"workers={options.workers}{crashes})"
        )


def states_of(workers: Iterable[Worker]) -> dict[str, dict[Any, Any]]:
    """The committed values of all states, when all is decided."""
    states: dict[str, dict[Any, Any]] = {}
    for worker in workers:
        for machine in worker.machines.stateful.values():
            if isinstance(machine, AccessMachine):
                state = states.setdefault(machine.node.name, {})
                state.update((row.key, row.payload) for row in machine.committed(AFTER_ALL))
    return states
