"""Reads of state by other processes: a service of the bridge for each state.

A scan of a large state does not fit into one message. So a reader opens a scan, requests one part of it
after another, and closes it; every part is as of the same time, because the workers retain that state
for it (`serving.reads.Pages`). If the keys are known, they are looked up instead.

Rows travel as Arrow, in the columns of a schema that the reader gives; before that it asks which columns
fit. Values that Spark has no type for travel as the bytes of raw rows. Requests are plain values: the
conditions on keys are data (`rows.conditions`), so no reader can run code here.

Bounds: the number of open scans is limited; a scan without requests for its time limit is closed; a
part fits into a message of the bridge.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from emberflow.checkpoint.cuts.scan import ColumnPage
from emberflow.errors import InputError, OutputError, shortened
from emberflow.rows.conditions import Condition, only_keys, passes
from emberflow.rows.schema_json import struct_of_json
from emberflow.runners.live.serving.bridge import CHUNK_BYTES, MESSAGE_BYTES_MAX
from emberflow.runners.live.serving.reads import LiveState, Pages, Reads
from emberflow.values.item import GlobalTime

if TYPE_CHECKING:
    import pyarrow as pa

    from emberflow.rows.state_columns import StateColumns

_SCANS_MAX = 16
_SECONDS_MAX = 600.0
_SAMPLE_ROWS = 1_000


class StateReads:
    """The open scans of all states. ``reads`` is set later, because the bridge begins first."""

    def __init__(self) -> None:
        self.reads: Reads | None = None
        self._scans: dict[int, _Scan] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def schema(self, state: str, as_of: Any, raw: bool, seconds: float) -> str:
        """The columns whose types fit the rows, as JSON."""
        from emberflow.rows.state_columns import found_schema

        sample = self._sample(state, as_of, seconds)
        return found_schema(state, sample, raw=bool(raw)).json()

    def key_type(self, state: str, as_of: Any, seconds: float) -> str | None:
        """The type of the keys, as JSON; None if they have none in Spark."""
        from emberflow.rows.state_columns import key_type

        found = key_type(self._sample(state, as_of, seconds).keys)
        return None if found is None else found.json()

    def opened(
        self,
        state: str,
        as_of: Any,
        schema: str,
        raw: bool,
        conditions: list[Any],
        hashes: Any,
        seconds: float,
    ) -> int:
        """The number of a new scan."""
        from emberflow.rows.state_columns import StateColumns, check_schema

        columns = StateColumns(state, struct_of_json(schema), bool(raw))
        check_schema(*columns[:2], raw=columns.raw)
        wanted = _Wanted(tuple(map(Condition.of_plain, conditions)), _range(hashes))
        live = self._live(state)
        with self._lock:
            self._close_idle()
            if len(self._scans) >= _SCANS_MAX:
                raise InputError(
                    f"{_SCANS_MAX} reads of the live query's states are in progress, which is the "
                    f"limit. Read again when some are done."
                )
            number = next(self._numbers)
            scan = self._scans[number] = _Scan(columns, _seconds(seconds))
        try:
            scan.begin(live, _as_of(as_of), wanted)
        except BaseException:
            self.close_one(number)
            raise
        return number

    def next(self, number: int) -> bytes | None:
        """The next part of a scan: rows as an Arrow stream, or None at its end."""
        with self._lock:
            scan = self._scans.get(number)
        if scan is None:
            raise InputError("this read was closed, because its reader was silent for too long.")
        part = scan.next()
        if part is None:
            self.close_one(number)
        return part

    def _live(self, state: str) -> LiveState:
        if self.reads is None:
            raise InputError("the live query has not begun yet: ask again.")
        return LiveState(self.reads, state)

    def _sample(self, state: str, as_of: Any, seconds: float) -> ColumnPage:
        pages = self._live(state).pages(as_of=_as_of(as_of), timeout=_seconds(seconds))
        try:
            return ColumnPage.of_first(map(_page, pages), _SAMPLE_ROWS)
        finally:
            pages.close()

    def close_one(self, number: int) -> None:
        with self._lock:
            scan = self._scans.pop(number, None)
        if scan is not None:
            scan.close()

    def close(self) -> None:
        with self._lock:
            scans, self._scans = list(self._scans.values()), {}
        for scan in scans:
            scan.close()

    def _close_idle(self) -> None:
        for number, scan in list(self._scans.items()):
            if scan.is_idle:
                del self._scans[number]
                scan.close()


class StateService:
    """The service of one state."""

    def __init__(self, all_reads: StateReads, state: str) -> None:
        self._all = all_reads
        self._state = state

    def serve(self, method: str, arguments: dict[str, Any]) -> Any:
        if method == "schema":
            return self._all.schema(self._state, **arguments)
        if method == "key_type":
            return self._all.key_type(self._state, **arguments)
        if method == "open":
            return self._all.opened(self._state, **arguments)
        if method == "next":
            return self._all.next(**arguments)
        if method == "close":
            return self._all.close_one(**arguments)
        raise InputError(f"a state cannot be asked to {method}.")

    def close(self) -> None:
        self._all.close()


class _Wanted(NamedTuple):
    """Which rows: those whose keys pass the conditions, in a range of hashes."""

    conditions: tuple[Condition, ...]
    hashes: tuple[int, int] | None

    @property
    def predicate(self) -> Callable[[Any, Any], bool] | None:
        """For workers; None if every row is wanted."""
        if not self.conditions and self.hashes is None:
            return None
        return partial(passes, self.conditions, self.hashes)

    @property
    def keys(self) -> list[Any] | None:
        """The only keys that can be wanted, if they are known."""
        keys = only_keys(self.conditions)
        if keys is None:
            return None
        return [key for key in keys if passes(self.conditions, self.hashes, key)]


class _Scan:
    """Rows as of one time, part by part. Only one thread at a time may use it."""

    def __init__(self, columns: StateColumns, seconds: float) -> None:
        from emberflow.rows.state_columns import PageWriter

        self._raw = columns.raw
        self._writer = PageWriter(columns)
        self._seconds = seconds
        self._asked_at = time.monotonic()
        self._pages: Pages | None = None
        self._parts: Iterator[bytes] = iter(())
        self._count = 0
        self._lock = threading.Lock()

    @property
    def is_idle(self) -> bool:
        return time.monotonic() - self._asked_at > self._seconds

    def begin(self, state: LiveState, as_of: Any, wanted: _Wanted) -> None:
        keys = wanted.keys
        if keys is not None:
            answer = state.get(*keys, default=False, as_of=as_of, timeout=self._seconds)
            self._parts = self._written(list(answer.items()), answer.as_of)
            return
        pages = state.pages(where=wanted.predicate, as_of=as_of, timeout=self._seconds)
        self._pages = pages
        self._parts = (part for rows in pages for part in self._written(rows, pages.as_of))

    def next(self) -> bytes | None:
        with self._lock:
            self._asked_at = time.monotonic()
            try:
                return next(self._parts, None)
            except OutputError as error:  # a value does not fit the schema
                raise InputError(str(error)) from error

    def close(self) -> None:
        if self._pages is not None:
            self._pages.close()

    def _written(self, rows: list[tuple[Any, Any]], as_of: GlobalTime) -> Iterator[bytes]:
        """Rows as Arrow streams, in parts that are small enough."""
        if not rows:
            return
        page = _page(rows, as_of if self._raw else None, self._count)
        part = _stream(self._writer.batch(page))
        if len(part) <= CHUNK_BYTES or len(rows) == 1:
            if len(part) > MESSAGE_BYTES_MAX // 2:
                raise InputError(
                    f"the value of the key {shortened(rows[0][0])} takes {len(part):,} bytes, more "
                    f"than can be read at once."
                )
            self._count += len(rows)
            yield part
            return
        middle = len(rows) // 2
        yield from self._written(rows[:middle], as_of)
        yield from self._written(rows[middle:], as_of)


def _page(
    rows: list[tuple[Any, Any]], as_of: GlobalTime | None = None, count_before: int = 0
) -> ColumnPage:
    """A live query does not tell when a value was made. Raw rows get places in order of arrival."""
    count = len(rows)
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    if as_of is None:
        unknown: list[Any] = [None] * count
        return ColumnPage(keys, unknown, unknown[:], [], values)
    numbers = [(number,) for number in range(count_before, count_before + count)]
    return ColumnPage(keys, [as_of.time] * count, [as_of.front] * count, list(numbers), values)


def _stream(batch: pa.RecordBatch) -> bytes:
    import pyarrow as pa

    file = pa.BufferOutputStream()
    with pa.ipc.new_stream(file, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(file.getvalue())


def _as_of(value: Any) -> Any:
    """None, a time, or a time and a front."""
    match value:
        case None | int():
            return value
        case [int(moment)]:
            return moment
        case [int(moment), int(front)]:
            return (moment, front)
    raise InputError("asOf is a time, or a time and a front.")


def _range(value: Any) -> tuple[int, int] | None:
    match value:
        case None:
            return None
        case [int(low), int(high)]:
            return low, high
    raise InputError("a range of hashes is two numbers.")


def _seconds(value: Any) -> float:
    if not isinstance(value, int | float) or not value > 0:
        raise InputError("the time limit of a read is a number of seconds above 0.")
    return min(float(value), _SECONDS_MAX)
