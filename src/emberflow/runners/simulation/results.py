"""The result of a simulated run, and the error that it raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from emberflow.engine.interface import Statistics
from emberflow.engine.machines.state import AccessMachine
from emberflow.engine.messages import AFTER_ALL
from emberflow.engine.worker.worker import Worker
from emberflow.errors import EmberflowError, InputError
from emberflow.runners.notebook import Outputs, facts_table
from emberflow.runners.playback.page import page
from emberflow.runners.playback.recorder import Recording
from emberflow.runners.questions import Answer
from emberflow.runners.simulation.options import Faults, Options
from emberflow.runners.simulation.queries import Answered


class Replay:
    """Runs the simulation once more, with a recorder: the same seed gives the same run.

    So a run that nobody plays records nothing. A copy of a result in another process has no flow to run.
    """

    def __init__(self, run: Callable[[], Recording] | None = None) -> None:
        self._run = run

    def __reduce__(self) -> tuple[type[Replay], tuple[()]]:
        return Replay, ()

    def recording(self) -> Recording:
        if self._run is None:
            raise InputError(
                "this run cannot be played: play() takes the result of a simulation without crashes "
                "and versions, in the process that ran it."
            )
        return self._run()


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
    replay: Replay = field(default_factory=Replay, repr=False, compare=False)

    def _repr_html_(self) -> str:
        facts = {
            "workers": self.options.workers,
            "seed": self.options.seed,
            "crashes": 0 if self.faults is None else self.faults.crashes,
            "items per output": round(self.overhead, 2),
        }
        return facts_table(facts) + Outputs(self.outputs)._repr_html_()

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

    def play(self, path: str | PathLike[str]) -> Path:
        """Write a page that plays the run, and return its path. Open it in a browser.

        It shows, worker by worker, what was computed, what was taken back because an earlier item
        came later, and what was released. It is one file and needs no network. For small flows: a
        run of more than 5,000 events is refused.

        >>> import emberflow as ef
        >>> from tempfile import TemporaryDirectory
        >>> flow = ef.Flow("word count")
        >>> flow.front("lines").flat_map(str.split).key_by(lambda word: word).count().sink("counts")
        >>> result = ef.simulate(flow, lines=["the dog", "the cat"], seed=7, workers=3)
        >>> with TemporaryDirectory() as folder:
        ...     result.play(f"{folder}/run.html").stat().st_size > 10_000
        True
        """
        written = Path(path)
        written.write_text(page(self.replay.recording(), seed=self.options.seed), encoding="utf-8")
        return written


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
