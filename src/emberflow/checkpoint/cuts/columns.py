"""The rows of a cut by columns, read a row group at a time, and never decoded.

For a worker that leaves the keys of a cut out of memory (`runners.live.cold`). To open a cut reads the
footers of its parts and the column of hashes, which is a small share of a part; `ColumnRun.read` reads the
other columns of one row group, when somebody needs a key of it.

A run has the rows of one step, in some ranges of hashes. Runs are the newest first. A row stands for its
key if no newer cut of the chain has one: who reads the runs has to compare the hashes, and the keys where
hashes are equal. That a bucket is no more is a row, too: its time is `GONE`, which is before all times.

Steps with payloads that continue lists of an earlier part (`cuts.lists`) are not offered, since these payloads
cannot be read alone. Nor are those with other lists, as far as the first rows tell: a list that was
restored with the rest of the chain can be continued by the next cut.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from emberflow.checkpoint.cuts.arrays import int64s
from emberflow.checkpoint.cuts.lists import has_lists
from emberflow.checkpoint.cuts.tables import SCHEMA, Source, damage_of, opened_runs
from emberflow.checkpoint.ranges import Ranges
from emberflow.values.hashing import HashRange
from emberflow.values.item import TIME_MIN

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]
    Hashes = npt.NDArray[np.int32]
    Flags = npt.NDArray[np.bool_]

_OPERATION, _HASH = SCHEMA.get_field_index("operation"), SCHEMA.get_field_index("key_hash")
#: In the place of the time of a bucket that is no more.
GONE = TIME_MIN - 1
#: So many rows tell whether the payloads of a step have lists.
_LOOKED_AT = 100


class Columns(NamedTuple):
    """Some rows: their global times, and the pickles of their keys and payloads."""

    times: Numbers
    fronts: Numbers
    keys: pa.Array
    payloads: pa.Array


class _Group(NamedTuple):
    number: int
    hashes: Hashes
    #: The positions of the rows that are wanted; None if all are.
    chosen: Numbers | None


class _Part:
    """The file of a part. Several threads may read it, one at a time."""

    def __init__(self, source: Source, file: Any, files: ExitStack) -> None:
        self.source = source
        self._file = file
        self._files = files  # closes nothing: the files live as long as this object
        self._lock = threading.Lock()

    def read(self, group: int, columns: list[str]) -> pa.Table:
        with self._lock, damage_of(self.source):
            return self._file.read_row_group(group, columns=columns, use_threads=False)


class ColumnRun:
    """Rows of one step, sorted by hash, in the row groups of a part."""

    def __init__(self, part: _Part, groups: Sequence[_Group]) -> None:
        import numpy as np

        self.cut = part.source.cut
        self.hashes: Hashes = np.concatenate([group.hashes for group in groups])
        #: The position at which each row group begins.
        self.begins: list[int] = np.cumsum([0, *map(len, (g.hashes for g in groups))])[:-1].tolist()
        self._part = part
        self._groups = [(group.number, group.chosen) for group in groups]

    def __len__(self) -> int:
        return len(self.hashes)

    def read(self, number: int) -> Columns:
        """The rows of one of the row groups."""
        of_part, chosen = self._groups[number]
        table = self._part.read(of_part, ["key", "time", "front", "payload"])
        if chosen is not None:
            table = table.take(int64s(chosen))
        keys, times, fronts, payloads = (column.combine_chunks() for column in table.columns)
        return Columns(
            times.fill_null(GONE).to_numpy(),
            fronts.fill_null(0).to_numpy(),
            keys,
            payloads.fill_null(b""),
        )


def opened_columns(
    sources: Sequence[Source], ranges: Sequence[HashRange], steps: Collection[str]
) -> dict[str, list[ColumnRun]]:
    """The rows of steps, as far as they can be read like this, in ranges of hashes; the newest runs first.

    ``sources`` are the parts of a chain, oldest first.
    """
    inside = Ranges(ranges)
    found: dict[str, list[ColumnRun]] = {step: [] for step in steps}
    for source in reversed(sources):
        files = ExitStack()
        file, runs = opened_runs(source, lambda group: _may_have(group, steps), files)
        part = _Part(source, file, files)
        for groups in runs:
            by_step: dict[str, list[_Group]] = {}
            for index in groups:
                for step, group in _groups(part, index, file, found, inside):
                    by_step.setdefault(step, []).append(group)
            for step, own in by_step.items():
                if step in found:
                    found[step].append(ColumnRun(part, own))
    return {step: runs for step, runs in found.items() if not _may_have_lists(runs)}


def scheduled_columns(
    sources: Sequence[Source], ranges: Sequence[HashRange], time: tuple[int, int]
) -> pa.Table:
    """What parts of a chain have scheduled in ranges of hashes, at or above a global time, undecoded and in no
    order. Some items may be there several times."""
    import numpy as np

    inside = Ranges(ranges)
    names = [name for name in SCHEMA.names if name != "follows"]
    found = [pa.table({name: pa.array([], SCHEMA.field(name).type) for name in names})]
    for source in sources:
        with ExitStack() as files:
            file, runs = opened_runs(source, lambda group: True, files)
            for group in chain.from_iterable(runs):
                with damage_of(source):
                    table = file.read_row_group(group, columns=names, use_threads=False)
                times, fronts = table["time"].to_numpy(), table["front"].to_numpy()
                wanted = (times > time[0]) | ((times == time[0]) & (fronts >= time[1]))
                own = inside.those(table["key_hash"].to_numpy().astype(np.int32))
                if own is not None:
                    wanted &= own
                found.append(table if wanted.all() else table.take(int64s(np.flatnonzero(wanted))))
    large = {"key": pa.large_binary(), "payload": pa.large_binary()}
    schema = pa.schema([pa.field(name, large.get(name, SCHEMA.field(name).type)) for name in names])
    made = [table.select(names).cast(schema) for table in found]
    return pa.concat_tables(made).combine_chunks()


def _may_have(group: Any, steps: Collection[str]) -> bool:
    statistics = group.column(_OPERATION).statistics
    return any(statistics.min <= step <= statistics.max for step in steps)


def _groups(
    part: _Part, index: int, file: Any, found: dict[str, Any], inside: Ranges
) -> list[tuple[str, _Group]]:
    """What a row group has of each step. A step with payloads that cannot be read alone is struck off."""
    import numpy as np

    statistics = file.metadata.row_group(index).column(_OPERATION).statistics
    is_of_one = statistics.min == statistics.max
    columns = ["key_hash", "follows"] if is_of_one else ["operation", "key_hash", "follows"]
    table = part.read(index, columns)
    hashes = table["key_hash"].to_numpy().astype(np.int32)
    wanted = inside.those(hashes)
    follows = None
    if table["follows"].null_count < len(hashes):
        follows = table["follows"].is_valid().to_numpy()
    groups = []
    for step in [step for step in found if statistics.min <= step <= statistics.max]:
        own = wanted
        if not is_of_one:
            is_of_step = np.array([name == step for name in table["operation"].to_pylist()])
            own = is_of_step if own is None else own & is_of_step
        if follows is not None and (follows if own is None else follows & own).any():
            del found[step]
        elif own is None or own.all():
            groups.append((step, _Group(index, hashes, None)))
        elif own.any():
            groups.append((step, _Group(index, hashes[own], np.flatnonzero(own))))
    return groups


def _may_have_lists(runs: Sequence[ColumnRun]) -> bool:
    """Whether the first rows have lists."""
    return bool(runs) and any(map(has_lists, runs[0].read(0).payloads[:_LOOKED_AT].to_pylist()))
