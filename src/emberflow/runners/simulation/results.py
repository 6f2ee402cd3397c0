"""The result of a simulated run, and the error that it raises."""

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
    """The outputs of a run, its statistics, and the circumstances that were drawn."""

    outputs: dict[str, list[Any]]
    statistics: list[Statistics]
    options: Options
    trace: str
    #: For a run with crashes: its faults, its incarnations and its committed cuts.
    faults: Faults | None = None
    incarnations: int = 1
    cuts: int = 0
    #: The final value of each key, by state.
    states: dict[str, dict[Any, Any]] = field(default_factory=dict)
    #: The result of each query, in the order given.
    answered: list[Answered | None] = field(default_factory=list)

    @property
    def answers(self) -> list[Answer]:
        """The answers to the queries that were answered, in the order given."""
        return [
            each.answer for each in self.answered if each is not None and each.answer is not None
        ]

    @property
    def overhead(self) -> float:
        """Items that arrived at barriers per item released: 1.0 when nothing was replayed."""
        released = sum(worker.released for worker in self.statistics)
        return sum(worker.arrived for worker in self.statistics) / released if released else 1.0

    @property
    def waited(self) -> float:
        """How many ticks an output item waited at its barrier, on average."""
        released = sum(worker.released for worker in self.statistics)
        return sum(worker.waited for worker in self.statistics) / released if released else 0.0


class SimulationError(EmberflowError):
    """The engine broke an invariant in a simulated run. The message says how to reproduce it."""

    def __init__(self, problem: str, options: Options, faults: Faults | None = None) -> None:
        self.options = options
        self.faults = faults
        drawn_faults = "" if faults is None else f"  {faults}\n"
        crashes = "" if faults is None else f", crashes={faults.crashes}"
        super().__init__(
            f"{problem}\n  {options}\n{drawn_faults}"
            f"  again: emberflow.simulate(flow, ..., seed={options.seed}, "
            f"workers={options.workers}{crashes})"
        )


def states_of(workers: Iterable[Worker]) -> dict[str, dict[Any, Any]]:
    """The committed values of all states, once every transaction is decided."""
    states: dict[str, dict[Any, Any]] = {}
    for worker in workers:
        for machine in worker.machines.stateful.values():
            if isinstance(machine, AccessMachine):
                state = states.setdefault(machine.node.name, {})
                state.update((row.key, row.payload) for row in machine.committed(AFTER_ALL))
    return states
