"""The runners that have to agree with the reference. Another one is another entry of `RUNNERS`.

A runner takes a case and a function that gives the Spark session, and returns the bytes of each
partition of each sink.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import emberflow as ef
from emberflow import fronts, sinks
from tests.contract.cases import Case
from tests.contract.outputs import Bytes, as_bytes, by_partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 60
SEEDS_OF_NETWORKS = range(5)


@dataclass(frozen=True)
class Runner:
    run: Callable[[Case, Callable[[], SparkSession]], Bytes]
    on_spark: bool


def simulated(case: Case, spark: Callable[[], SparkSession], *, workers: int, seed: int) -> Bytes:
    result = ef.simulate(case.flow, workers=workers, seed=seed, **case.elements)
    return by_partition(case.flow, result.outputs)


def live(case: Case, spark: Callable[[], SparkSession], *, workers: int) -> Bytes:
    kept = {name: sinks.Memory() for name in case.flow.graph().sinks}
    query = (
        case.flow.live(spark())
        .read(**{name: fronts.Iterable(in_order(given)) for name, given in case.elements.items()})
        .write(**kept)
        .option("workers", workers)
        .start()
    )
    try:
        assert query.awaitTermination(SECONDS), query.status
    finally:
        query.stop()
    return {
        (name, partition): [as_bytes(payload) for payload in kept[name].payloads(partition)]
        for name, sink in case.flow.graph().sinks.items()
        for partition in range(sink.partitions)
    }


def in_order(elements: list[Any]) -> list[Any]:
    """A front gives its elements in the order of time; a list may have them in any."""
    if any(isinstance(element, ef.At) for element in elements):
        return sorted(elements, key=lambda element: element.time)
    return elements


RUNNERS: dict[str, Runner] = {
    **{
        f"simulation, {workers} workers, seed {seed}": Runner(
            partial(simulated, workers=workers, seed=seed), on_spark=False
        )
        for workers in (1, 2, 4)
        for seed in SEEDS_OF_NETWORKS
    },
    **{
        f"live, {workers} workers": Runner(partial(live, workers=workers), on_spark=True)
        for workers in (1, 2, 4)
    },
}
