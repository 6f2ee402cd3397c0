"""Gives the rows of a front their global times, by its rule of event time.

Guarantee: rows with positions get the global times, and are late or not, exactly as the records of a
live front are. The same machine decides, `engine.progress.event_time.Stamper`, on the same records in
the same order.

Spark brings the rows of a source's partition to one task, in the order of their positions. They stream
through a stamper, which holds only those that wait for earlier ones. So memory is bounded by the
disorder, not by the rows. Where no row waits and times do not go back, a batch costs a few comparisons of columns.

A batch has no sink for errors. A malformed record, or one whose time is not believed (`Leap`), fails the
job, or is left out where the DataFrame says so (`rows.inputs.with_rule`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import ge, le, lt
from typing import Any, NamedTuple

import pyarrow as pa

from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Moment
from emberflow.engine.progress.event_time import Attached, LateBy, Leap, Stamper, parts_of
from emberflow.errors import InputError, Late
from emberflow.fronts.protocol import Malformed
from emberflow.rows.inputs import Checked, Records
from emberflow.rows.paths import encoded_int
from emberflow.runners.elements import watermark_failed, with_checked_watermark
from emberflow.values.item import TIME_MAX, TIME_MIN

#: Payloads that a stamper gives and that are no elements of the flow.
_SPECIAL = {Attached, LateBy, Malformed}


class Columns(NamedTuple):
    """Elements with their places: times, paths and payloads."""

    times: list[int]
    paths: list[bytes]
    payloads: list[Any]

    def between(self, begin: int, end: int) -> Columns:
        return Columns(self.times[begin:end], self.paths[begin:end], self.payloads[begin:end])

    def add(self, moment: Sequence[int], payload: Any) -> None:
        self.times.append(moment[0])
        self.paths.append(encoded_int(moment[1]))
        self.payloads.append(payload)


class StampedRows:
    """The rows of a task, which are sorted by partition and position."""

    def __init__(
        self, front: Checked, since: Moment | None = None, until: Moment | None = None
    ) -> None:
        """Elements outside of these moments are left out, but they count for what is late."""
        assert front.stamps is not None
        self._front = front
        self._stamps = front.stamps
        self._rule = with_checked_watermark(self._stamps.rule, self._watermark_failed)
        self._drops_malformed = self._stamps.drops_malformed
        self._since = BEFORE_ALL if since is None else since
        self._until = AFTER_ALL if until is None else until
        self._partition: int | None = None
        self._position: Any = None
        self._stamper = Stamper(0, self._rule)
        self._index = 0
        #: What has left and was not taken: elements of the flow, and late ones.
        self._elements = Columns([], [], [])
        self._late = Columns([], [], [])

    def add(self, batch: pa.RecordBatch) -> tuple[Columns, Columns]:
        """Add rows. Returns the elements, and the late ones, that have got their global times."""
        records = self._front.records(batch)
        begin = 0
        for partition, rows in groupby(records.partitions):
            end = begin + sum(1 for _ in rows)
            if partition != self._partition:
                self._end_partition()
                self._begin_partition(partition)
            self._add(records if end - begin == batch.num_rows else records.between(begin, end))
            begin = end
        return self._taken()

    def end(self) -> tuple[Columns, Columns]:
        """There are no more rows. Returns what is left."""
        self._end_partition()
        return self._taken()

    def _taken(self) -> tuple[Columns, Columns]:
        taken = self._elements, self._late
        self._elements, self._late = Columns([], [], []), Columns([], [], [])
        return taken

    def _begin_partition(self, partition: int) -> None:
        self._partition, self._position = partition, None
        self._index = self._front.index(partition)
        self._stamper = Stamper(self._index, self._rule)

    def _end_partition(self) -> None:
        if self._partition is not None:
            for thing in self._stamper.end():
                self._refuse(thing)
            self._let_leave()

    def _add(self, records: Records) -> None:
        self._check_positions(records.positions)
        times, stamper = records.times, self._stamper
        if (
            records.promised is not None
            or Malformed in set(map(type, records.payloads))
            or None in times
            or min(times) < TIME_MIN
            or max(times) > TIME_MAX
        ):
            self._add_each(records)
        elif self._rule.waits:
            stamper.add_all(records.positions, records.payloads, times)
        elif times[0] >= stamper.promised and all(map(le, times, times[1:])):
            fronts = stamper.stamp_all(times, all(map(lt, times, times[1:])))
            self._leave_in_order(times, fronts, records.payloads)
        else:
            self._add_each(records)
        self._let_leave()

    def _add_each(self, records: Records) -> None:
        stamper = self._stamper
        for number, (position, payload, time) in enumerate(
            zip(records.positions, records.payloads, records.times, strict=True)
        ):
            if records.promised is not None:
                stamper.raise_to(records.promised[number])
                position, payload = payload
            if payload.__class__ is Malformed and (payload.before_next or time is None):
                self._refuse(payload)
                continue
            self._front.check_time(time)
            assert time is not None
            if self._rule.waits:
                stamper.add(position, payload, time)
            else:
                moment, is_late = stamper.stamp(time)
                late = LateBy(time, moment[0], position, payload) if is_late else payload
                self._leave(moment, late)

    def _watermark_failed(self, payload: Any, error: Exception) -> Exception:
        moment = (self._stamper.promised, self._index)
        return watermark_failed(self._front.front, self._stamps.rule, moment, payload, error)

    def _check_positions(self, positions: list[Any]) -> None:
        """Positions say which row comes first, so each has one, and no two have the same."""
        if None in positions:
            problem: Any = None
        else:
            before = positions[:1] if self._position is None else [self._position]
            doubled = list(map(ge, [*before, *positions[:-1]], positions))
            doubled[0] = doubled[0] and self._position is not None
            self._position = positions[-1]
            if True not in doubled:
                return
            problem = positions[doubled.index(True)]
        raise InputError(
            f"front {self._front.front.name!r}: the position column has a row of position {problem!r} "
            f"in partition {self._partition}"
            f"{' twice' if problem is not None else ''}. Every row of a partition has a position of "
            f"its own."
        )

    # Elements that have their global times.

    def _let_leave(self) -> None:
        while (stamped := self._stamper.take()) is not None:
            kinds = set(map(type, stamped.payloads))
            if not _SPECIAL & kinds:
                self._leave_in_order(stamped.times, stamped.fronts, stamped.payloads)
            else:
                for moment, _, payload in stamped.items(self._index):
                    self._leave(moment, payload)  # type: ignore[arg-type]

    def _leave_in_order(
        self, times: Sequence[int], fronts: Sequence[int] | None, payloads: Sequence[Any]
    ) -> None:
        """Elements that are none of the special ones; without fronts, all the first of their times."""
        begin = self._first_from(self._since, times, fronts)
        end = self._first_from(self._until, times, fronts)
        elements = self._elements
        elements.times.extend(times[begin:end])
        if fronts is None:
            elements.paths.extend([encoded_int(self._index)] * (end - begin))
        else:
            elements.paths.extend(map(encoded_int, fronts[begin:end]))
        elements.payloads.extend(payloads[begin:end])

    def _first_from(
        self, moment: Moment, times: Sequence[int], fronts: Sequence[int] | None
    ) -> int:
        """The number of the first element that is not below a moment."""
        number = bisect_left(times, moment[0])
        while number < len(times) and times[number] == moment[0]:
            if (self._index if fronts is None else fronts[number]) >= moment[1]:
                break
            number += 1
        return number

    def _leave(self, moment: Moment, given: Any) -> None:
        if not self._since <= tuple(moment) < self._until:
            return
        assert self._partition is not None
        name, on_late = self._front.front.name, self._rule.on_late
        things, late, payload = parts_of(given)
        for thing in things:
            self._refuse(thing)
        if payload.__class__ is Malformed:
            self._refuse(payload)
        elif late is None or on_late == "admit":
            self._elements.add(moment, payload)
        elif on_late == "fail":
            raise InputError(f"front {name!r}: {late.told(self._partition, self._rule.disorder)}")
        elif on_late == "divert":
            self._late.add(moment, late.record(name, self._partition))

    def _refuse(self, thing: Any) -> None:
        """A record that is none: an error, unless such records are left out."""
        if self._drops_malformed:
            return
        name = self._front.front.name
        if isinstance(thing, Leap):
            assert self._partition is not None
            raise InputError(thing.told(name, self._partition, self._rule.ahead))
        raise InputError(f"front {name!r}: {thing.problem}")


def sampled(front: Checked, batch: pa.RecordBatch) -> Iterator[Late]:
    """Rows as if all were late, whatever their order is: they show the types."""
    records = front.records(batch)
    for time, payload, partition, position in zip(*records[:4], strict=True):
        if front.is_logged:
            position, payload = payload
        if time is not None and payload.__class__ is not Malformed:
            yield Late(time, front.front.name, partition, position, 0, payload)
