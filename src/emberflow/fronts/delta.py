"""`fronts.Delta`: the change data feed of a Delta table, commit by commit.

Guarantees:

1. *The same elements, in the same order, on every read.* A position is a version of the table and the
   number of a change in it. The front reads each version by itself, with the columns that the table had
   then. In which order the feed gives the rows of a version depends on who reads it. So the front sorts
   them: by their keys, or else by what they hold. Rows that are equal then cannot be told apart.
2. *A version is a step.* With ``key``, a version gives each key that it touches once: the row that the
   version leaves, or None where it leaves none. An update of a key is a delete of the old one and a row of
   the new one. So the changes of a version hold in any order, and the table after them is that of the
   version.
3. *Nothing is skipped.* A version whose change data is not there (the feed was not enabled, or ``VACUUM``
   or the clean-up of the log have removed it) is an error, not a gap.

A commit that only moves rows into other files, as ``OPTIMIZE`` does, changes nothing and gives nothing.

The changes of a version are in memory together while they are sorted. There is one partition: the log of
a table is one sequence.
"""

from __future__ import annotations

import os
import time as clock
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from emberflow.errors import InputError, shortened
from emberflow.extras import need
from emberflow.fronts.protocol import Batch, Element, Idle, Malformed
from emberflow.values.event_time import OnLate, event_time
from emberflow.values.functions import described
from emberflow.values.times import (
    DEFAULT_UNIT,
    PER_MILLISECOND,
    Duration,
    Time,
    TimeError,
    Unit,
    counted_time,
    milliseconds,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: ``"timestamp"``, ``"version"``, a column, or a function of the row.
TimeOf: TypeAlias = str | Callable[[dict[str, Any]], Time]

#: Values of ``time`` for which all changes of a version have one time.
_OF_COMMITS = ("timestamp", "version")
_KIND, _STAMP = "_change_type", "_commit_timestamp"
_OF_FEED = (_KIND, _STAMP, "_commit_version")
#: What a row was before. The row that took its place, or its delete, is in the feed too.
_BEFORE = "update_preimage"
_DELETED = (_BEFORE, "delete")
#: At least so often the reader says that there is nothing.
_PAUSE_SECONDS_MAX = 0.5


class _Change(NamedTuple):
    payload: Any
    #: The row that tells the time: of a delete, the row that is gone.
    row: dict[str, Any]


class Delta:
    """Reads what the commits of a Delta table change, by `delta-rs <https://delta-io.github.io/delta-rs>`_.

    ``table`` is a folder, or the URL of an object store that ``storage_options`` say how to reach. The table
    has its change data feed enabled (``delta.enableChangeDataFeed``).

    With ``key``, the column that identifies a row, or several, payloads are upserts, as
    `emberflow.changes_from` takes them: ``(key, row)``, and ``(key, None)`` for a row that is gone. A row is a
    dict. The key of several columns is a tuple. Without ``key``, payloads are the rows that are appended,
    and a commit that updates or deletes rows has a malformed element for each.

    ``time`` is ``"timestamp"`` (that of the commit, raised to that of the commit before it where it goes
    back), ``"version"`` (its number), a column, or a function of the row; of a row that is gone, as it was.
    For columns and functions, ``disorder`` is how far times may go back, and ``on_late`` what happens to a
    change that is later: `docs/event-time.md` explains both, ``watermark`` and ``ahead``. Datetimes and
    durations are counted in ``unit``. With ``idle_ms``, for ``time="timestamp"``, a table that has nothing
    new promises the present less ``idle_ms``: how long a commit may take from its timestamp until it can
    be read.

    The front reads from version ``begin``, by default 0. With ``snapshot=True`` that version gives all
    rows of the table instead of what it changed: for a table whose feed is younger than its rows. The
    front waits for more and looks every ``poll_ms``. With ``until_end=True`` it ends at the version that
    is the newest when reading begins.
    """

    partitions = 1
    arrival = False

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        key: str | Sequence[str] | None = None,
        time: TimeOf = "timestamp",
        begin: int = 0,
        snapshot: bool = False,
        idle_ms: float | Duration | None = None,
        poll_ms: float | Duration = 200,
        until_end: bool = False,
        storage_options: Mapping[str, str] | None = None,
        disorder: Duration = 0,
        watermark: Callable[[Any], Time | None] | None = None,
        ahead: Duration | None = None,
        on_late: OnLate = "divert",
        unit: Unit = DEFAULT_UNIT,
    ) -> None:
        _deltalake()
        place = os.fspath(table)
        if not place:
            raise InputError("fronts.Delta takes a folder or a URL, got none.")
        if "://" not in place:
            place = str(Path(place).absolute())  # workers may run in another folder
        if not isinstance(time, str) and not callable(time):
            raise InputError(
                f"fronts.Delta(time=) takes 'timestamp', 'version', the name of a column or a function of "
                f"the row, got {time!r}."
            )
        if isinstance(begin, bool) or not isinstance(begin, int) or begin < 0:
            raise InputError(f"fronts.Delta(begin=) takes a version, 0 or more, got {begin!r}.")
        self.place = place
        self.key = _key(key)
        self._key_is_one = isinstance(key, str)
        self.time = time
        self.begin = begin
        self.snapshot = snapshot
        self.until_end = until_end
        self.unit = unit
        self.event_time = event_time(
            "fronts.Delta",
            disorder=disorder,
            watermark=watermark,
            ahead=ahead,
            on_late=on_late,
            unit=unit,
        )
        self.is_of_commits = time in _OF_COMMITS
        if self.is_of_commits:
            if disorder or watermark is not None or ahead is not None:
                raise InputError(
                    f"fronts.Delta(time={time!r}) takes no disorder=, watermark= or ahead=: the order is "
                    f"that of the table's log. Name a column or give a function of the row."
                )
            self.event_time = self.event_time._replace(on_late="admit")
        if idle_ms is not None:
            if time != "timestamp":
                raise InputError(
                    f"fronts.Delta(idle_ms=) is for time='timestamp', whose clock is that of the present; "
                    f"got time={time!r}."
                )
            idle_ms = milliseconds(idle_ms, "fronts.Delta(idle_ms=)")
        self.idle_ms = idle_ms
        self.promises = idle_ms is not None
        self.poll_seconds = milliseconds(poll_ms, "fronts.Delta(poll_ms=)") / 1_000
        if not self.poll_seconds > 0:
            raise InputError(f"fronts.Delta(poll_ms=) takes milliseconds, got {poll_ms!r}.")
        self._storage_options = dict(storage_options or {}) or None

    def check(self) -> None:
        """Raises `InputError` if there is no such table, or it has no change data feed to read."""
        table = self.opened()
        enabled = table.metadata().configuration.get("delta.enableChangeDataFeed", "")
        if enabled != "true":
            raise InputError(
                f"fronts.Delta: {self.place!r} has no change data feed. Enable it, with the table's "
                f"property delta.enableChangeDataFeed = true, and begin at the version that it has then: "
                f"begin=, snapshot=True."
            )
        if self.begin > table.version():
            raise InputError(
                f"fronts.Delta(begin={self.begin}): {self.place!r} is at version {table.version()}."
            )
        columns = [field.name for field in table.schema().fields]
        named = [*self.key, *([self.time] if isinstance(self.time, str) else [])]
        for name in named:
            if name not in columns and not (name == self.time and self.is_of_commits):
                raise InputError(
                    f"fronts.Delta: {self.place!r} has no column {name!r}; it has {', '.join(columns)}."
                )

    def opened(self, version: int | None = None) -> DeltaTable:
        """The table, as it is now or was at a version."""
        delta = _deltalake()
        try:
            table: DeltaTable = delta.DeltaTable(
                self.place, version=version, storage_options=self._storage_options
            )
        except delta.exceptions.TableNotFoundError:
            raise InputError(f"fronts.Delta: there is no Delta table at {self.place!r}.") from None
        except (delta.exceptions.DeltaError, OSError) as error:
            at = "" if version is None else f"version {version} of "
            raise InputError(f"fronts.Delta: {at}{self.place!r} cannot be read: {error}") from error
        return table

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        for given in self.read_batches(partition, position):
            if isinstance(given, Batch):
                assert given.times is not None
                yield from map(Element, given.positions, given.payloads, given.times)
            else:
                yield None

    def read_batches(self, partition: int, position: Any) -> Iterator[Batch | Idle | None]:
        version, done = (self.begin, 0) if position is None else (position[0], position[1] + 1)
        table = self.opened()
        asked_ms = _now_ms()
        while True:
            newest = table.version()
            while version <= newest:
                batch = self._batch(version)
                count = len(batch.payloads)
                yield batch.part(done, count) if done < count else None
                version, done = version + 1, 0
            if self.until_end:
                return
            yield self._promise(asked_ms)
            yield from self._pause()
            asked_ms = _now_ms()
            table = self._refreshed(table)

    def _pause(self) -> Iterator[None]:
        seconds = self.poll_seconds
        while seconds > _PAUSE_SECONDS_MAX:
            clock.sleep(_PAUSE_SECONDS_MAX)
            seconds -= _PAUSE_SECONDS_MAX
            yield None
        clock.sleep(seconds)

    def _promise(self, asked_ms: int) -> Idle | None:
        """A promise, where the log had nothing newer when it was asked."""
        if self.idle_ms is None:
            return None
        until_ms = int(asked_ms - self.idle_ms)
        if self.unit == "s":
            return Idle(until_ms // 1_000, 1)
        return Idle(until_ms * PER_MILLISECOND[self.unit], 1_000 * PER_MILLISECOND[self.unit])

    def _refreshed(self, table: DeltaTable) -> DeltaTable:
        try:
            table.update_incremental()
        except (_deltalake().exceptions.DeltaError, OSError) as error:
            raise InputError(
                f"fronts.Delta: the log of {self.place!r} cannot be read: {error}"
            ) from error
        return table

    def _batch(self, version: int) -> Batch:
        """The changes of a version."""
        is_snapshot = self.snapshot and version == self.begin
        rows, stamp = self._snapshot(version) if is_snapshot else self._changed(version)
        changes = self._appended(rows, version) if not self.key else self._upserts(rows, version)
        payloads, times = [], []
        for change in changes:
            payload, at = change.payload, None
            try:
                at = self._time_of(change.row, version, stamp)
            except ValueError as error:
                payload = self._malformed(version, change.row, str(error))
            payloads.append(payload)
            times.append(at)
        return Batch(list(zip(repeat(version), range(len(payloads)))), payloads, times)

    def _changed(self, version: int) -> tuple[list[dict[str, Any]], int]:
        """The rows of a version's change data, and its timestamp in milliseconds."""
        import pyarrow as pa

        delta = _deltalake()
        # The table of this version: a later one may have other columns.
        table = self.opened(version)
        try:
            rows = pa.table(table.load_cdf(version, version)).to_pylist()
        except (delta.exceptions.DeltaError, OSError, pa.ArrowException) as error:
            raise InputError(
                f"fronts.Delta: the change data of version {version} of {self.place!r} cannot be read: "
                f"{error}. The feed has to be enabled since version {self.begin}, and VACUUM and the "
                f"clean-up of the log must leave what is not yet part of a cut. To begin with the rows of a "
                f"later version: begin=, snapshot=True."
            ) from error
        return rows, _milliseconds(rows[0][_STAMP]) if rows else 0

    def _snapshot(self, version: int) -> tuple[list[dict[str, Any]], int]:
        """All rows of the table as of a version, as if it had inserted them."""
        import pyarrow as pa

        delta = _deltalake()
        table = self.opened(version)
        try:
            rows = table.to_pyarrow_table().to_pylist()
            stamp = int(table.history(1)[0]["timestamp"])
        except (delta.exceptions.DeltaError, OSError, pa.ArrowException) as error:
            raise InputError(
                f"fronts.Delta: the rows of version {version} of {self.place!r} cannot be read: {error}. Were "
                f"they removed by VACUUM? Begin at a later version."
            ) from error
        for row in rows:
            row[_KIND] = "insert"
        return rows, stamp

    def _appended(self, rows: list[dict[str, Any]], version: int) -> list[_Change]:
        changes = []
        for row in sorted(rows, key=repr):
            kind = row[_KIND]
            own = _own(row)
            payload: Any = own
            if kind != "insert":
                payload = self._malformed(
                    version,
                    own,
                    f"the commit has a row of kind {kind!r}, and without key= the front reads appended rows "
                    f"only. Say which columns identify a row",
                )
            changes.append(_Change(payload, own))
        return changes

    def _upserts(self, rows: list[dict[str, Any]], version: int) -> list[_Change]:
        puts: dict[Any, list[dict[str, Any]]] = {}
        gone: dict[Any, dict[str, Any]] = {}
        changes = []
        for row in sorted(rows, key=repr):
            own = _own(row)
            key = self._key_of(own)
            if key is None:
                problem = f"the key {', '.join(self.key)} of a row is neither None nor NaN, no list and no row"
                changes.append(_Change(self._malformed(version, own, problem), own))
            elif row[_KIND] in _DELETED:
                gone[key] = own
            else:
                puts.setdefault(key, []).append(own)
        for key in sorted(puts.keys() | gone.keys()):
            put = puts.get(key, ())
            shown = key[0] if self._key_is_one else key
            if len(put) > 1:
                problem = f"the commit leaves {len(put)} rows with the key {shown!r}"
                changes.append(_Change(self._malformed(version, put[0], problem), put[0]))
            else:
                row = put[0] if put else gone[key]
                changes.append(_Change((shown, row if put else None), row))
        return changes

    def _key_of(self, row: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """The key of a row; None if it can be none."""
        values = tuple(row.get(name) for name in self.key)
        if any(
            value is None or value != value or isinstance(value, list | dict) for value in values
        ):
            return None
        return values

    def _time_of(self, row: dict[str, Any], version: int, stamp: int) -> int:
        """The time of a change. Raises `ValueError`."""
        if self.time == "version":
            return version
        if self.time == "timestamp":
            return stamp // 1_000 if self.unit == "s" else stamp * PER_MILLISECOND[self.unit]
        told = (
            f"given by {described(self.time)}" if callable(self.time) else f"column {self.time!r}"
        )
        try:
            at = self.time(row) if callable(self.time) else row[self.time]
        except Exception as error:
            raise ValueError(f"has no time ({told}: {type(error).__qualname__}: {error})") from None
        try:
            return counted_time(at, self.unit)
        except TimeError as error:
            raise ValueError(f"has the time {shortened(at)} ({told}). {error}") from None

    def _malformed(self, version: int, row: Mapping[str, Any], problem: str) -> Malformed:
        shown = repr(dict(row))
        return Malformed(
            shown,
            f"fronts.Delta: version {version} of {self.place!r}: {problem}: {shortened(row)}",
            not self.is_of_commits,
        )


def _key(key: str | Sequence[str] | None) -> tuple[str, ...]:
    names = (key,) if isinstance(key, str) else tuple(key or ())
    if not all(isinstance(name, str) and name for name in names) or (key is not None and not names):
        raise InputError(f"fronts.Delta(key=) takes a column or a list of columns, got {key!r}.")
    return names


def _own(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without the columns of the feed."""
    return {name: value for name, value in row.items() if name not in _OF_FEED}


def _milliseconds(stamp: Any) -> int:
    """The timestamp of a commit, which the feed gives as a datetime of UTC."""
    return counted_time(stamp, "ms")


def _now_ms() -> int:
    return clock.time_ns() // 1_000_000


def _deltalake() -> ModuleType:
    return need("deltalake", "deltalake.exceptions", "pyarrow", extra="delta", what="fronts.Delta")
