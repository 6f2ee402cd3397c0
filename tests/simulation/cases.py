"""One seed is one case: a random flow, its elements, and the circumstances of the run.

`judged` runs a case and compares it with the reference. An error shows the seed, the options and
the command that reproduces it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any, ParamSpec, Self, TypeVar

from emberflow.engine.messages import Effects, Frame, Progress
from emberflow.engine.progress.acker import Acker
from emberflow.engine.worker.worker import Worker
from emberflow.errors import OnError
from emberflow.graph.nodes import Graph
from emberflow.runners.elements import graph_for, timed_elements
from emberflow.runners.reference import Reference
from emberflow.runners.simulation import Options, Simulation, SimulationResult
from emberflow.runners.simulation.checkers import check_outputs
from tests.disorder import out_of_order
from tests.strategies import random_flow

P = ParamSpec("P")


class WrongError(AssertionError):
    """A case differs from the reference, or broke an invariant on the way."""


def wrong_by(judge: Callable[P, object]) -> Callable[P, str | None]:
    """What is wrong with a case, by what judges it; None if it is right. For hunts of mutations."""

    def wrong(*case: P.args, **machines: P.kwargs) -> str | None:
        try:
            judge(*case, **machines)
        except WrongError as error:
            return str(error)
        return None

    return wrong


@dataclass(frozen=True)
class Case:
    """A graph, its elements, and the options of the run."""

    name: str
    graph: Graph
    #: A list for each front, or the front itself.
    elements: dict[str, Any]
    options: Options
    #: Small flows never reach the usual interval of trimming. If set, workers trim at every
    #: progress.
    trims_always: bool = False
    again: str = ""
    on_error: OnError = "fail"

    @classmethod
    def of(cls, seed: int, *, workers: int | None = None) -> Self:
        """The case of a seed: the same in every process."""
        flow, elements = random_flow(Random(seed))
        random = Random(f"case {seed}")
        graph = flow.graph()
        if random.random() < 0.2:
            graph = replace(graph, reductions=())
        return cls(
            name=flow.name,
            graph=graph,
            elements=elements,
            options=Options.drawn(seed, workers=workers),
            trims_always=random.random() < 0.5,
            again=f"python -m tests.simulation.soak --from {seed} --seeds 1",
        )

    @classmethod
    def out_of_order(cls, seed: int) -> Self:
        """The same, and for some seeds with fronts whose elements are out of order."""
        return disordered(cls.of(seed), seed)

    @cached_property
    def expected(self) -> dict[str, list[Any]]:
        reference = Reference(self.graph, on_error=self.on_error)
        for global_time, front, payload in timed_elements(self.graph, self.elements):
            reference.enter(global_time, front, payload)
        reference.finish()
        return reference.outputs

    def simulation(
        self,
        *,
        worker: type[Worker] = Worker,
        acker: type[Acker] = Acker,
        kind: type[Simulation] = Simulation,
    ) -> Simulation:
        worker = always_trimming(worker) if self.trims_always else worker
        return kind(self.graph, self.options, worker=worker, acker=acker, on_error=self.on_error)

    def run(self, **machines: Any) -> SimulationResult:
        return self.simulation(**machines).run(timed_elements(self.graph, self.elements))

    def __str__(self) -> str:
        return (
            f"  flow: {self.name}\n"
            f"  fused: {bool(self.graph.reductions)}, trims always: {self.trims_always}\n"
            f"  {self.options}\n"
            f"  again: {self.again}"
        )


AnyCase = TypeVar("AnyCase", bound=Case)


def disordered(case: AnyCase, seed: int, *, share: float = 0.4) -> AnyCase:
    """This share of cases gets fronts out of order. Its draws are its own: all else stays as it is."""
    random = Random(f"event time {seed}")
    if random.random() >= share:
        return case
    has_states = any(node.kind == "state" for node in case.graph.nodes)
    # Transactions have another graph where errors are diverted, so that was decided already.
    diverts = case.on_error == "divert" if has_states else random.random() < 0.6
    elements = out_of_order(random, case.elements, diverts=diverts)
    return replace(
        case,
        graph=graph_for(case.graph, elements),
        elements=elements,
        on_error="divert" if diverts else "fail",
    )


def judged(case: Case, **machines: Any) -> SimulationResult:
    """Run a case; raise `WrongError` if anything is wrong."""
    expected = case.expected
    try:
        result = case.run(**machines)
        check_outputs(result.outputs, expected)
        if repr(result.outputs) != repr(expected):
            raise AssertionError("equal outputs that do not look alike")
    except Exception as error:
        raise WrongError(f"{type(error).__name__}: {error}\n{case}") from error
    return result


def always_trimming(worker: type[Worker]) -> type[Worker]:
    """Trims whenever it may: everything, or the buckets that have waited longest."""

    class AlwaysTrimming(worker):  # type: ignore[valid-type, misc]
        progresses = 0

        def progress(self, progress: Progress, frames: Sequence[Frame] = ()) -> Effects:
            effects = super().progress(progress, frames)
            self.progresses += 1
            self.trim((None, 1, 3)[self.progresses % 3])
            return effects

    return AlwaysTrimming
