"""`Flow.backfill`: history in batch, continued live, with the output of a single run.

::

    rows ──> passes of all steps ──> Exchange by end ──> Sort ──> last pass ──> sinks, parts of a cut
             (`passes`, `ends`)                                   (`handover`)        then its manifest

The claim: a backfill up to T and a live query that continues from it give together the output of
one run. Below T: the batch runs the elements below T and everything below T that they cause;
nothing at or above T could change that. From T on: the live query restores a cut at T.
`engine.cuts.cut` says what such a cut holds and why it is enough, no matter who made it. The
backfill writes the cut in the same format, by key hash, so any number of workers can restore it.

**Killed and repeated.** The manifest commits a backfill. It is written once all sinks have stored
everything and all parts are durable. Before that, a repetition starts over: the sinks skip what
they have stored, and no manifest names the parts of earlier attempts. After that, a repetition
finds the cut and does nothing. If another driver, such as a live query, has claimed the checkpoint
meanwhile, it fences the backfill off (`checkpoint.cuts.store`).

**Where fronts continue.** A DataFrame does not know the positions of the source that a live front
will read. Positions that the user passes go into the manifest. A front without a position there
reads its source from the beginning and skips the elements below T, by their times
(`live.worker.feed`). With a disorder the records below T may come behind others, so the front stamps them
again, and leaves out what is below T. Elements without times of their own are new by definition: they get times when
they arrive.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from emberflow.checkpoint.cuts.manifest import Manifest, PartInfo, check_fits
from emberflow.checkpoint.files import location_of
from emberflow.dsl.flow import Flow
from emberflow.dsl.versions import When
from emberflow.engine.messages import Moment
from emberflow.errors import InputError
from emberflow.graph.nodes import Graph
from emberflow.rows.inputs import FrontRows
from emberflow.runners.batch.failures import failure_of
from emberflow.runners.batch.plan.stages import Units
from emberflow.runners.batch.runner import (
    PlanBuilder,
    checked_inputs,
    ending,
    graph_of,
    shuffle_partitions,
    sink_dataframes,
    task_of,
)
from emberflow.sinks.protocol import sink_contract
from emberflow.values.item import TIME_MIN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from emberflow.checkpoint.cuts.store import CheckpointStore

_OPTIONS = (
    "until",
    "checkpoint",
    "write",
    "positions",
    "schema",
    "partitions",
    "raw",
    "ordered",
)
#: The state has at most this many parts. Each is a range of hashes, and a file that workers open.
_PARTS_MAX = 64


def backfill(
    flow: Flow,
    spark: SparkSession,
    *,
    until: When,
    checkpoint: str | os.PathLike[str],
    write: Mapping[str, Any],
    positions: Mapping[str, Any],
    schema: Any,
    partitions: int | None,
    raw: bool,
    ordered: bool,
    fronts: Mapping[str, Any],
) -> dict[str, DataFrame]:
    """See `emberflow.Flow.backfill`."""
    graph = flow.graph()
    inputs = checked_inputs(graph, fronts, partitions, "backfill", _OPTIONS)
    graph = graph_of(graph, inputs)
    end = ending(graph, inputs, until, "backfill")
    _check_sinks(graph, write)
    known = _positions(graph, positions)
    location = _location(checkpoint)
    units = Units(graph)
    rest = [name for name in graph.sinks if name not in write]
    # First: a missing schema should be reported before an hour of work, not after it.
    dataframes = sink_dataframes(spark, units, inputs, rest, schema, partitions, raw, ordered, end)
    for sink in write.values():
        sink_contract(sink).check()
    promised = _promised(inputs, known)
    _Backfill(spark, units, inputs, end, location, write, known, promised, partitions).run()
    return dataframes


def _check_sinks(graph: Graph, write: Mapping[str, Any]) -> None:
    for name, sink in write.items():
        if name not in graph.sinks:
            known = ", ".join(map(repr, graph.sinks))
            raise InputError(
                f"backfill(write=): flow {graph.flow!r} has no sink {name!r}; it has {known}."
            )
        contract = sink_contract(sink, f"backfill(write=): sink {name!r}")
        if contract.places or contract.placed is not None:
            raise InputError(
                f"backfill(write=): sink {name!r} is {type(sink).__qualname__}, which belongs to a "
                f"live query. Leave it out: backfill() returns a DataFrame for each sink that "
                f"write= does not name."
            )


def _positions(graph: Graph, given: Mapping[str, Any]) -> dict[str, dict[int, Any]]:
    """Positions by front and partition. A value that is not a dict is for the only partition."""
    positions: dict[str, dict[int, Any]] = {}
    for name, position in given.items():
        if name not in graph.fronts:
            known = ", ".join(map(repr, graph.fronts))
            raise InputError(
                f"backfill(positions=): flow {graph.flow!r} has no front {name!r}; it has {known}."
            )
        positions[name] = dict(position) if isinstance(position, Mapping) else {0: position}
        if set(positions[name]) != set(range(len(positions[name]))):
            raise InputError(
                f"backfill(positions=): front {name!r} has positions for the partitions "
                f"{sorted(positions[name])}. Give one for each, counted from 0; None for one that "
                f"nothing was read from."
            )
    return positions


def _promised(
    inputs: Mapping[str, FrontRows], positions: Mapping[str, Mapping[int, Any]]
) -> dict[str, dict[int, tuple[int, int]]]:
    """What the records up to the positions promise, for fronts whose records wait for others.

    All of them are below the cut. So they promise less than the first record behind them, and it does
    not matter how much.
    """
    promised = {}
    for name, partitions in positions.items():
        rule = inputs[name].rule
        if rule.ahead is not None or rule.watermark is not None:
            raise InputError(
                f"backfill(positions=): front {name!r} has ahead= or watermark=, so what is late depends "
                f"on all its records. Leave its positions out: it reads its source from the beginning."
            )
        if rule.waits:
            promised[name] = dict.fromkeys(partitions, (TIME_MIN, -1))
    return promised


def _location(checkpoint: Any) -> str:
    if not isinstance(checkpoint, str | os.PathLike) or not str(checkpoint):
        raise InputError(f"backfill(checkpoint=) takes a path or a URI, got {checkpoint!r}.")
    text = os.fspath(checkpoint)
    return text if "://" in text else os.path.abspath(text)


class _Backfill:
    """One attempt."""

    def __init__(
        self,
        spark: SparkSession,
        units: Units,
        inputs: Mapping[str, FrontRows],
        moment: Moment,
        location: str,
        write: Mapping[str, Any],
        positions: Mapping[str, Mapping[int, Any]],
        promised: Mapping[str, Mapping[int, tuple[int, int]]],
        partitions: int | None,
    ) -> None:
        # pyarrow is an optional dependency, and this module is imported with the package.
        from emberflow.checkpoint.cuts.store import CheckpointStore

        self._spark = spark
        self._units = units
        self._graph = units.graph
        self._inputs = inputs
        self._moment = moment
        self._location = location
        self._store = CheckpointStore(location)
        self._write = write
        self._positions = positions
        self._promised = promised
        self._partitions = partitions

    def run(self) -> None:
        if self._is_done(self._store):
            return
        life = self._store.begin(self._nothing_before)
        try:
            parts = self._stored(life.next_cut, life.incarnation)
        finally:
            self._remove_spools(life.incarnation)
        manifest = Manifest.of(
            self._graph,
            number=life.next_cut,
            incarnation=life.incarnation,
            time=self._moment,
            parts=parts,
            positions=self._positions,
            promised=self._promised,
        )
        self._store.commit(manifest)
        self._store.prune(1, incarnation=life.incarnation)

    def _is_done(self, store: CheckpointStore) -> bool:
        """Whether an earlier attempt has completed. Checked before any other driver is fenced off."""
        cut = store.latest()
        if cut is None:
            if location_of(self._location).names("fronts"):
                raise InputError(
                    f"{store} has the logs of a live query, so a backfill would come too late. "
                    f"Give it a checkpoint location of its own."
                )
            return False
        check_fits(cut, self._graph)
        if cut.time == self._moment:
            return True
        raise InputError(
            f"{store} has a cut at {cut.time} already, so a backfill up to {self._moment} cannot "
            f"begin there. Give it an empty location, and empty sinks."
        )

    def _nothing_before(self, store: CheckpointStore) -> None:
        if store.latest() is not None:
            raise InputError(f"{store} is in use: another driver has just made a cut there.")

    def _remove_spools(self, incarnation: int) -> None:
        """Remove the spools of this attempt, and those that earlier attempts left behind."""
        from emberflow.runners.batch.backfill.handover import SPOOLS

        location = location_of(self._location)
        for temporary in (False, True):
            for name in location.names(SPOOLS, temporary=temporary):
                if int(name.lstrip(".").partition("-")[0]) <= incarnation:
                    location.remove(f"{SPOOLS}/{name}")

    def _stored(self, cut: int, incarnation: int) -> list[PartInfo]:
        """Run the job, then store the output of sinks that live in the driver."""
        from emberflow.runners.batch.backfill.handover import Handover, Spool, store_spool

        handover = Handover(
            self._graph,
            self._moment,
            self._location,
            cut,
            incarnation,
            {
                name: None if sink_contract(sink).on_driver else sink
                for name, sink in self._write.items()
            },
        )
        try:
            rows = self._handed_over(handover).collect()
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            raise failure from error
        parts = []
        for (data,) in rows:
            report = pickle.loads(data)
            if isinstance(report, Spool):
                store_spool(self._location, report, self._write[report.sink], self._moment)
            else:
                parts.append(report)
        return parts

    def _handed_over(self, handover: Any) -> DataFrame:
        from emberflow.runners.batch.backfill.handover import REPORT_SCHEMA, hand_over
        from emberflow.runners.batch.passes.passes import Pass
        from emberflow.runners.batch.shuffle.bus import Spread

        partitions = self._partitions or shuffle_partitions(self._spark)
        parts = min(partitions, _PARTS_MAX)
        given = Pass(
            self._graph,
            None,
            until=self._moment,
            written=frozenset(self._write),
            parts=parts,
            spread=Spread(partitions, ends_from=self._units.sink_target),
        )
        rows = PlanBuilder(self._units, self._inputs, given, self._partitions).joined()
        writers = sum(self._graph.sinks[name].partitions for name in self._write)
        slots = rows.select(self._slot().alias("lane"), "time", "path", "payload")
        spread = slots.repartition(parts + writers, "lane")
        in_order = spread.sortWithinPartitions("lane", "time", "path")
        return in_order.mapInArrow(task_of(hand_over, handover), REPORT_SCHEMA)

    def _slot(self) -> Column:
        """`EndTargets.slot_of` as a Spark expression."""
        from pyspark.sql import functions as sql

        from emberflow.runners.batch.passes.ends import SPREAD_BITS, EndTargets
        from emberflow.runners.batch.shuffle.bus import HASH_BITS, HASH_MASK

        lane = sql.col("lane")
        low = lane.bitwiseAND(sql.lit(HASH_MASK))
        is_for_sink = sql.shiftright(lane, HASH_BITS) > EndTargets(self._units).scheduled
        return lane - low + sql.when(is_for_sink, sql.shiftright(low, SPREAD_BITS)).otherwise(low)
