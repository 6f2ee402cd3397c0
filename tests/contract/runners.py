"""The runners that must agree with the reference. A new runner is a new entry of `RUNNERS`.

A runner takes a case and a function that returns the Spark session, and returns the bytes of each
partition of each sink: of all sinks, except in batch (`asked_of_batch`).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.errors import ERRORS_SINK
from emberflow.fronts.protocol import is_front
from emberflow.rows.codec import decode, encode
from emberflow.rows.inputs import (
    DEFAULT_TIME,
    RAW_PARTITION,
    RAW_POSITION,
    Rows,
    with_rule,
)
from emberflow.rows.readers import RAW
from emberflow.runners.live import life
from tests.cold_workers import ALL_COLD
from tests.contract.cases import CASES, Case
from tests.contract.outputs import Bytes, as_bytes, by_partition
from tests.effort import SECONDS, SOAK, in_turn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEEDS_OF_NETWORKS = range(5)
#: Partitions of each shuffle of a batch.
PARTITIONS = (1, 3, 8)
#: Workers of a live query.
WORKERS = (1, 2, 4)


@dataclass(frozen=True)
class Runner:
    run: Callable[[Case, Callable[[], SparkSession]], Bytes]
    on_spark: bool
    #: Whether this run asks it for anything of a case.
    takes: Callable[[Case], bool] = lambda case: True


def simulated(case: Case, spark: Callable[[], SparkSession], *, workers: int, seed: int) -> Bytes:
    result = ef.simulate(
        case.flow, workers=workers, seed=seed, on_error=case.on_error, **case.elements
    )
    return by_partition(case.graph, result.outputs)


def live(case: Case, spark: Callable[[], SparkSession], *, workers: int) -> Bytes:
    """Where there are several workers, all their keys are cold, but for those that are being touched."""
    partitions_of = {name: sink.partitions for name, sink in case.graph.sinks.items()}
    if case.on_error == "divert":
        partitions_of[ERRORS_SINK] = 1
    kept = {name: sinks.Memory() for name in partitions_of}
    # Elsewhere so many workers have an acker in the driver; here the most of them have accounts.
    accounts_from = mock.patch.object(life, "ACCOUNTS_FROM", WORKERS[-1])
    # With several fronts, elements of equal times are ordered by partition.
    partitions = workers if len(case.elements) == 1 else 1
    builder = (
        case.flow.live(spark())
        .read(
            **{
                name: given
                if is_front(given)
                else fronts.Iterable(in_order(given), partitions=partitions)
                for name, given in case.elements.items()
            }
        )
        .write(**kept)
        .option("workers", workers)
        .option("onError", case.on_error)
    )
    if workers > 1:
        builder = builder.option("stateMemory", ALL_COLD)
    with accounts_from:
        query = builder.start()
        try:
            assert query.awaitTermination(SECONDS), query.status
        finally:
            query.stop()
    return {
        (name, partition): [as_bytes(payload) for payload in kept[name].payloads(partition)]
        for name, count in partitions_of.items()
        for partition in range(count)
    }


def batch(case: Case, spark: Callable[[], SparkSession], *, partitions: int) -> Bytes:
    """The sinks that `asked_of_batch` names for this number of partitions, in one job."""
    from pyspark.sql import functions as sql

    names = asked_of_batch(case, partitions)
    given = {
        name: positioned(spark(), elements, Random(f"{partitions} {name}"))
        if is_front(elements)
        else shuffled(spark(), elements, Random(f"{partitions} {name}"))
        for name, elements in case.elements.items()
    }
    found = case.flow.batch(spark(), raw=True, ordered=False, partitions=partitions, **given)
    frames = [
        found[name].select(
            sql.lit(name).alias("sink"),
            "_time",
            "_path",
            "_payload",
            sql.col("_partition") if "_partition" in found[name].columns else sql.lit(0),
        )
        for name in names
    ]
    rows = reduce(lambda one, other: one.union(other), frames).collect()
    got: Bytes = {
        (name, partition): []
        for name in names
        for partition in range(case.graph.sinks[name].partitions)
    }
    for sink, _, _, payload, partition in sorted(map(tuple, rows)):
        got[sink, partition].append(as_bytes(decode(bytes(payload))))
    return got


def asked_of_batch(case: Case, partitions: int) -> list[str]:
    """The sinks that are computed with this many partitions.

    Each sink is a plan of its own and costs as much as a small flow. So a test run takes each sink of
    all cases with one number of partitions, in turn; `make soak` takes all with all.
    """
    names = list(case.graph.sinks)
    if SOAK:
        return names
    first = sum(len(other.graph.sinks) for other in CASES[: CASES.index(case)])
    turn = PARTITIONS.index(partitions)
    return [name for at, name in enumerate(names, first) if at % len(PARTITIONS) == turn]


def _is_asked(case: Case, *, partitions: int) -> bool:
    return bool(asked_of_batch(case, partitions))


def _is_live(case: Case, *, turn: int) -> bool:
    """Whether a case runs live with this number of workers: with one of them, `make soak` with all.

    Random flows run with all of them on every run.
    """
    return case.name.startswith("random") or in_turn(CASES.index(case), len(WORKERS), turn)


def shuffled(spark: SparkSession, elements: list[Any], random: Random) -> Rows:
    """The elements as rows of a few partitions, in any order; pickled, so any payload will do."""
    rows = [
        (element.time, pickle.dumps(element.payload))
        if isinstance(element, ef.At)
        else (number, pickle.dumps(element))
        for number, element in enumerate(elements)
    ]
    random.shuffle(rows)
    df = spark.createDataFrame(rows, "time long, pickled binary").repartition(random.randint(1, 3))
    return ef.rows(df, payload=lambda row: pickle.loads(row.pickled), unique=True)


def positioned(spark: SparkSession, front: Any, random: Random) -> DataFrame:
    """The records of a front as rows with partitions and positions, in any order, and its rule.

    A batch has no sink for malformed records, so they are left out.
    """
    rows = [
        (record.time, partition, record.position, encode(record.payload))
        for partition in range(front.partitions)
        for record in front.read(partition, None)
    ]
    random.shuffle(rows)
    schema = f"{DEFAULT_TIME} long, {RAW_PARTITION} int, {RAW_POSITION} long, {RAW} binary"
    df = spark.createDataFrame(rows, schema).repartition(random.randint(1, 3))
    return with_rule(df, front.event_time, drops_malformed=True)


def in_order(elements: list[Any]) -> list[Any]:
    """Elements by time: a front emits them in that order, while a list may have any."""
    if any(isinstance(element, ef.At) for element in elements):
        return sorted(elements, key=lambda element: element.time)
    return elements


RUNNERS: dict[str, Runner] = {
    **{
        f"simulation, {workers} workers, seed {seed}": Runner(
            partial(simulated, workers=workers, seed=seed), on_spark=False
        )
        for workers in WORKERS
        for seed in SEEDS_OF_NETWORKS
    },
    **{
        f"live, {workers} workers": Runner(
            partial(live, workers=workers), on_spark=True, takes=partial(_is_live, turn=turn)
        )
        for turn, workers in enumerate(WORKERS)
    },
    **{
        f"batch, {partitions} partitions": Runner(
            partial(batch, partitions=partitions),
            on_spark=True,
            takes=partial(_is_asked, partitions=partitions),
        )
        for partitions in PARTITIONS
    },
}
