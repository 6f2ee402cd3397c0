"""The last pass of a backfill: writes rows to the checkpoint and the sinks, outside of Spark.

A task gets the chunks of the ends (`ends`) by slot, and writes

- one part of the cut for the state that it got, and one for scheduled items;
- the bundles of the sink partitions that it got as a whole, in order (`sorting`).

Spark may run a task again, or twice at once, so everything it does can be repeated. Each part has a
name of its own, and the manifest names only the parts that the task reports to the driver. The task
asks a sink for its last global time and skips the items up to it: every run makes the same rows, so
they are the same output. A sink that lives in the driver gets its rows through a *spool*, a file
beside the checkpoint that the driver reads when the job is done. So no process holds more than one
bundle in memory.

Bundles are large enough to be worth a write, and never split a global time.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from emberflow.checkpoint.cuts.manifest import PartInfo
from emberflow.checkpoint.cuts.parts.new_part import NewPart
from emberflow.checkpoint.cuts.rows import SCHEDULED
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.files import location_of
from emberflow.engine.messages import Moment
from emberflow.errors import InputError
from emberflow.graph.nodes import Graph
from emberflow.rows.codec import column_of, joined_columns
from emberflow.rows.paths import front_of
from emberflow.runners.batch.passes.ends import EndTargets, row_of_scheduled, state_rows
from emberflow.runners.batch.plan.stages import Units
from emberflow.runners.batch.shuffle.bus import (
    HASH_BITS,
    HASH_MASK,
    Integers,
    Items,
    chunk,
    unchunked,
)
from emberflow.runners.batch.shuffle.sorting import Sorter, doubled_in
from emberflow.sinks.protocol import StoredBundle
from emberflow.sinks.writer import WriterThread
from emberflow.values.item import GlobalTime

#: How many items are passed on at once, and how many payloads, or bytes of them, make a bundle.
_ITEMS_AT_ONCE = 512
_BUNDLE_PAYLOADS = 10_000
_BUNDLE_BYTES = 8 << 20
_WAIT_SECONDS = 1.0
_JOIN_SECONDS = 60.0

_SPOOLED = pa.schema([pa.field("chunk", pa.binary())])

#: The folder of spools within a checkpoint.
SPOOLS = "backfill"
#: The reports of a task to the driver: pickled, one per row.
REPORT_SCHEMA = "report binary"


@dataclass(frozen=True, slots=True)
class Handover:
    """The arguments of a task."""

    graph: Graph
    moment: Moment
    checkpoint: str
    cut: int
    incarnation: int
    #: The sinks by name; None for a sink that lives in the driver.
    sinks: Mapping[str, Any]


def spool_path(incarnation: int) -> str:
    return f"{SPOOLS}/{incarnation:06d}-{uuid.uuid4().hex}.arrows"


class Spool(NamedTuple):
    """A file with the rows of one partition of a sink that lives in the driver."""

    sink: str
    partition: int
    path: str


def hand_over(given: Handover, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the last pass in a task, and return its reports as rows."""
    reports = handed_over(given, batches)
    data = [pickle.dumps(one) for one in reports]
    yield pa.RecordBatch.from_arrays([pa.array(data, pa.binary())], names=["report"])


def handed_over(given: Handover, batches: Iterable[pa.RecordBatch]) -> list[PartInfo | Spool]:
    """Write the rows; return the parts and spools that the driver has to know of."""
    targets = EndTargets(Units(given.graph))
    store = CheckpointStore(given.checkpoint)
    reports: list[PartInfo | Spool] = []
    with ExitStack() as opened:
        part = {
            kind: opened.enter_context(
                store.new_part(given.cut, "backfill", incarnation=given.incarnation, **named)
            )
            for kind, named in ((targets.state, {}), (targets.scheduled, {"kind": SCHEDULED}))
        }
        sinks = _Sinks(given, targets, reports)
        opened.enter_context(sinks)
        for batch in batches:
            slots = batch.column(0).to_pylist()
            for slot, data in zip(slots, batch.column(3), strict=True):
                target = slot >> HASH_BITS
                if target in part:
                    _add_rows(part[target], target == targets.state, unchunked(data.as_py()))
                else:
                    sinks.add(slot, data.as_py())
    reports += [one.info for one in part.values() if one.info is not None]
    return reports


def _add_rows(part: NewPart, is_state: bool, items: Items) -> None:
    _, times, paths, payloads = items
    if is_state:
        part.add([row for payload in payloads for row in state_rows(payload)])
    else:
        part.add(list(map(row_of_scheduled, times.tolist(), paths, payloads)))


class _Sinks:
    """The sink partitions of a task, one after another."""

    def __init__(
        self, given: Handover, targets: EndTargets, reports: list[PartInfo | Spool]
    ) -> None:
        self._given = given
        self._targets = targets
        self._reports = reports
        self._slot: int | None = None
        self._sorter = Sorter(doubled_in(given.graph))

    def __enter__(self) -> _Sinks:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if error is None:
                self._end()
        finally:
            self._sorter.close()

    def add(self, slot: int, data: bytes) -> None:
        """Add a chunk. All chunks of a slot arrive together."""
        if slot != self._slot:
            self._end()
            self._slot = slot
        self._sorter.add(data)

    def _end(self) -> None:
        """A slot is complete: write its items, in order."""
        if self._slot is None:
            return
        writer = self._opened(self._slot)
        try:
            for _, times, paths, payloads in self._sorter.ended():
                for start in range(0, len(paths), _ITEMS_AT_ONCE):
                    some = slice(start, start + _ITEMS_AT_ONCE)
                    writer.add(times[some], paths[some], payloads[some])
        except BaseException:
            writer.give_up()
            raise
        writer.end()

    def _opened(self, slot: int) -> BundleWriter | _SpoolWriter:
        given = self._given
        name = self._targets.sinks[slot >> HASH_BITS].name
        partition = slot & HASH_MASK
        sink = given.sinks[name]
        if sink is not None:
            return BundleWriter(sink, name, partition, given.moment)
        spool = Spool(name, partition, spool_path(given.incarnation))
        self._reports.append(spool)
        return _SpoolWriter(given.checkpoint, spool)


class BundleWriter:
    """Writes the items of one sink partition as bundles. Items are added in order."""

    def __init__(self, sink: Any, name: str, partition: int, moment: Moment) -> None:
        self._name, self._partition = name, partition
        self._writer = WriterThread(sink, name, partition)
        self._busy = False
        self._after = self._writer.last()
        self._payloads: list[Any] = []
        self._bytes = 0
        self._last: GlobalTime | None = None
        if self._after is not None and self._after >= moment:
            self.give_up()
            raise InputError(
                f"sink {name!r} partition {partition} has output up to {tuple(self._after)}, and a "
                f"backfill up to {moment} would have to come before it. Give the backfill a sink "
                f"that holds nothing but its own, earlier attempts."
            )

    def add(self, times: Integers, paths: list[bytes], payloads: list[Any]) -> None:
        """Add items, which follow those added before."""
        size = column_of(payloads).size // max(1, len(payloads))
        for time, path, payload in zip(times.tolist(), paths, payloads, strict=True):
            at = GlobalTime(time, front_of(path))
            if self._after is not None and at <= self._after:
                continue
            if at != self._last:
                if len(self._payloads) >= _BUNDLE_PAYLOADS or self._bytes >= _BUNDLE_BYTES:
                    self._store()
                self._last = at
            self._payloads.append(payload)
            self._bytes += size

    def end(self) -> None:
        """No more items: returns once everything is stored."""
        try:
            self._store()
            self._wait()
        finally:
            self._writer.close(_JOIN_SECONDS)

    def give_up(self) -> None:
        self._writer.close(_JOIN_SECONDS)

    def _store(self) -> None:
        self._wait()
        if self._payloads:
            assert self._last is not None
            self._writer.store(
                StoredBundle(self._name, self._partition, self._last, self._payloads)
            )
            self._busy = True
            self._payloads, self._bytes = [], 0

    def _wait(self) -> None:
        """Wait until the sink has stored the previous bundle. The sink decides how long it retries."""
        while self._busy:
            self._busy = not self._writer.stored(_WAIT_SECONDS)


class _SpoolWriter:
    """Writes the items of one sink partition to a spool, as chunks."""

    def __init__(self, checkpoint: str, spool: Spool) -> None:
        self._opened = ExitStack()
        self._file = self._opened.enter_context(location_of(checkpoint).new(spool.path))
        self._stream = pa.ipc.new_stream(self._file, _SPOOLED)

    def add(self, times: Integers, paths: list[bytes], payloads: list[Any]) -> None:
        kind, column = joined_columns([column_of(payloads)])
        data = chunk(np.zeros(len(paths), np.int64), times, paths, kind, column)
        self._stream.write_batch(
            pa.RecordBatch.from_arrays([pa.array([data], pa.binary())], schema=_SPOOLED)
        )

    def end(self) -> None:
        with self._opened:
            self._stream.close()

    def give_up(self) -> None:
        error = InterruptedError("the items of this spool are not whole")
        self._opened.__exit__(type(error), error, None)


def store_spool(checkpoint: str, spool: Spool, sink: Any, moment: Moment) -> None:
    """In the driver: write the items of a spool to their sink."""
    writer = BundleWriter(sink, spool.sink, spool.partition, moment)
    try:
        with location_of(checkpoint).open(spool.path) as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                for data in batch.column(0):
                    _, times, paths, payloads = unchunked(data.as_py())
                    writer.add(times, paths, payloads)
    except BaseException:
        writer.give_up()
        raise
    writer.end()
