"""The rows of cold keys on a worker's own disk, in sorted runs (`engine.machines.cold`).

What is guaranteed: **what was put is given back, and nothing here outlives the process.** The store is a
cache: what it holds is in the last cut too, or the query takes none. So nothing is synced, and a file is
unlinked as soon as it is mapped (`blocks`). A process that is killed leaves nothing behind, and whoever
empties the folder meanwhile does no harm. A disk that is full is an `OSError` of ``put``, and what was to be
put stays in memory.

**Batches.** ``put`` writes one run. ``take`` looks up all keys of a batch in one run after the other, by a
search of numpy's over the sorted hashes.

**Merges.** Runs get more with every ``put``. When the newest ones together are large beside the one ahead of
them, they are merged, so there are few, and each row is written some times in all. Small ones are merged
at once; for large ones there is a thread, one at a time. What is taken while the thread works is taken from
the new run too, some of it with each batch, before that one is used.

**After a restore** the store may also have runs that are still in the files of the cut (`restored`), the
newest first. A key is in one of the store's own runs or in those of the cut, and there perhaps several
times, once for each cut of the chain. Its newest row counts, and who takes it takes them all. The thread
merges the runs of the cut at once, all of them together.

**Rows that are copied ahead** (`ahead`) come with newer cuts of the same chain, again and again, until the store
is that of a worker. What the thread has merged of the older ones stays among the runs of the cut, as the
oldest of them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from emberflow.checkpoint.cuts.columns import ColumnRun
from emberflow.checkpoint.cuts.rows import RowColumns
from emberflow.checkpoint.errors import CheckpointError
from emberflow.checkpoint.ranges import Ranges
from emberflow.engine.cuts.cut import KeptRows, Row
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Moment
from emberflow.runners.live.cold.blocks import (
    Block,
    Piece,
    Run,
    RunFiles,
    merged_pieces,
    run_on_disk,
)
from emberflow.runners.live.cold.encoding import encoded, hashes_of, numbers
from emberflow.runners.live.cold.restored import CutRun
from emberflow.values.hashing import HashRange
from emberflow.values.item import TIME_MIN

if TYPE_CHECKING:
    from emberflow.runners.live.cold.blocks import Flags, Hashes

#: So many runs or more are merged, when the first of them is not this many times as large as the others.
_MERGED_TOGETHER = 4
#: With so many rows or fewer, a merge takes some milliseconds, and nobody begins a thread for it.
_SMALL_ROWS = 1 << 16
#: So long after a restore the rows of the cut are left where they are: the first output needs some of them at once.
_AFTER_RESTORE_SECONDS = 5.0
#: So many keys that were taken during a merge are taken from the new run with each batch, and twice as many as
#: the batch has.
_TAKEN_AT_ONCE = 2_048
#: Rows of a piece of a merge; and of one that the loop reads between two rounds.
_PIECE_ROWS = 1 << 17
_READ_ROWS = 1 << 12


class SortedRuns:
    """A store of a machine, in a folder of this machine's disk.

    >>> import tempfile
    >>> store = SortedRuns(tempfile.gettempdir())
    >>> row = Row("count", hashes_of(["ada"])[0], "ada", (5, 0), 2)
    >>> len(store.put([row])), len(store)
    (0, 1)
    >>> store.take(["ada", "bob"]) == [row], len(store)
    (True, 0)
    """

    def __init__(self, folder: str, *, is_ahead: bool = False) -> None:
        """``is_ahead``: it may get rows of newer cuts."""
        self._folder = folder
        self._is_ahead = is_ahead
        self._operation = ""
        #: The oldest, and mostly the largest, first.
        self._runs: list[Run] = []
        #: Those of a cut, the newest first.
        self._of_cut: list[Run] = []
        self._ended = TIME_MIN - 1
        self._merge: Merge | None = None
        #: The bytes that were put, and the rows.
        self.put_bytes = self.put_rows = 0

    def __len__(self) -> int:
        return sum(run.left for run in self._runs) + sum(run.left for run in self._of_cut)

    @property
    def runs(self) -> int:
        return len(self._runs) + len(self._of_cut)

    def begin_with(self, operation: str, runs: Sequence[ColumnRun]) -> None:
        """Take the rows of a cut, which stay in its files until they are needed. The newest runs come first."""
        self._operation = operation
        self._of_cut = [CutRun(run, self._folder) for run in runs]
        self._merge_cut()

    def add_newer(self, runs: Sequence[ColumnRun]) -> None:
        """Take the rows of cuts that add to the one that it began with. The newest runs come first."""
        self._go_on()
        self._of_cut = [*(CutRun(run, self._folder) for run in runs), *self._of_cut]

    def adopt(self, other: SortedRuns) -> None:
        """Take all that another store has, which is of other keys. That one is not used any more."""
        other.close()
        other._go_on(sys.maxsize)
        self._operation = other._operation
        self._runs += other._runs
        self._of_cut += other._of_cut

    def put(self, rows: list[Row]) -> Collection[int]:
        import numpy as np

        self._go_on()
        columns, refused = encoded(rows)
        if columns is None:
            return refused
        self._operation = rows[0].operation
        hashes = numbers(columns[0], np.int32)
        block = Block(
            numbers(columns[1], np.int64),
            numbers(columns[2], np.int64),
            numbers(columns[3], np.int32),
            numbers(columns[4], np.int64),
            columns[5],
        )
        self._runs.append(run_on_disk(hashes, block, self._folder))
        self.put_bytes += len(block.records)
        self.put_rows += len(block)
        self._merge_if_due()
        return refused

    def take(self, keys: Collection[Any]) -> list[Row]:
        self._go_on(_TAKEN_AT_ONCE + 2 * len(keys))
        found = self._found(keys, [*self._runs, *self._of_cut], takes=True)
        if self._merge is not None:
            self._merge.taken_meanwhile += [row.key for row in found]
        return found

    def find(self, keys: Collection[Any]) -> list[Row]:
        return self._found(keys, [*self._runs, *self._of_cut], takes=False)

    def _found(self, keys: Collection[Any], runs: Sequence[Run], *, takes: bool) -> list[Row]:
        import numpy as np

        wanted = list(
            dict.fromkeys(keys)
        )  # a merge is told of keys that were taken, some of them twice
        hashes = np.array(hashes_of(wanted), np.int32)
        order = np.argsort(hashes)
        hashes, wanted = hashes[order], [wanted[number] for number in order.tolist()]
        found: list[Row] = []
        of_cuts: list[_Found] = []
        for run in runs:
            if not run.left or not wanted:
                continue
            is_here, positions = self._places(run, hashes, wanted)
            if not is_here:
                continue
            found += run.rows_at(positions, self._operation, self._ended)
            if takes:
                run.take(positions)
                if run.cut is not None:
                    own = [wanted[number] for number in is_here]
                    of_cuts.append(_Found(run.cut, hashes[is_here], own))
            hashes = np.delete(hashes, is_here)
            gone = set(is_here)
            wanted = [key for number, key in enumerate(wanted) if number not in gone]
        if of_cuts:
            self._take_older(of_cuts)
        return found

    def _places(self, run: Run, hashes: Hashes, keys: list[Any]) -> tuple[list[int], list[int]]:
        """Of keys in the order of their hashes, the numbers of those that a run has, and their positions there."""
        hits, firsts = run.search(hashes)
        places = run.places_of([keys[number] for number in hits], firsts)
        is_here = [number for number, place in zip(hits, places, strict=True) if place >= 0]
        return is_here, [place for place in places if place >= 0]

    def _take_older(self, found: Sequence[_Found]) -> None:
        """Take the rows that older cuts of the chain have of these keys. Each run is searched once, however many
        others had some of the keys."""
        import numpy as np

        of_newer, hashes, keys = 0, found[0].hashes[:0], list[Any]()
        for run in self._of_cut:
            newer = [each for each in found if run.cut is not None and run.cut < each.cut]
            if len(newer) != of_newer:
                of_newer = len(newer)
                hashes = np.concatenate([found[0].hashes[:0], *(each.hashes for each in newer)])
                keys = list(chain.from_iterable(each.keys for each in newer))
                order = np.argsort(hashes)
                hashes, keys = hashes[order], [keys[number] for number in order.tolist()]
            if keys and run.left:
                run.take(self._places(run, hashes, keys)[1])

    def all(self) -> Iterator[Row]:
        return iter(self.kept(self._operation, BEFORE_ALL, AFTER_ALL))

    def kept(self, operation: str, since: Moment, below: Moment) -> RowsOnDisk:
        self._merge_cut()  # when the cut counts, the files of those before it are removed
        own = [(run, run.taken.copy()) for run in self._runs if run.left]
        of_cut = [(run, run.taken.copy()) for run in self._of_cut if run.left]
        return RowsOnDisk(operation, own, of_cut, self._ended, since, below)

    def keep_only(self, ranges: Sequence[HashRange]) -> None:
        inside = Ranges(ranges)
        for run in [*self._runs, *self._of_cut]:
            run.keep_only(inside)
        if self._merge is not None:
            self._merge.kept_only.append(inside)

    def end(self, time: int) -> None:
        self._ended = max(self._ended, time)

    # Merges.

    def _merge_cut(self) -> None:
        if self._merge is None and (
            len(self._of_cut) > 1 or any(isinstance(run, CutRun) for run in self._of_cut)
        ):
            self._merge = Merge(self._folder, self._of_cut, self._ended, newest_counts=True)
            self._merge.start(_AFTER_RESTORE_SECONDS)

    def _merge_if_due(self) -> None:
        self._merge_cut()
        sources = () if self._merge is None else self._merge.sources
        under_way = set(map(id, sources))
        self._runs = [run for run in self._runs if run.left or id(run) in under_way]
        newest = [run for run in self._runs if id(run) not in under_way]
        for count in range(len(newest), _MERGED_TOGETHER - 1, -1):
            runs = newest[-count:]
            behind = sum(run.left for run in runs[1:])
            if runs[0].left > _MERGED_TOGETHER * behind:
                continue
            if runs[0].left + behind <= _SMALL_ROWS:
                merge = Merge(self._folder, runs, self._ended)
                merge.work()
                self._replace(merge)
            elif self._merge is None:
                self._merge = Merge(self._folder, runs, self._ended)
                self._merge.start()
            else:
                continue  # perhaps some of them are small
            return

    def _go_on(self, most: int = _TAKEN_AT_ONCE) -> None:
        """Use what the thread has merged, once all that was taken meanwhile is taken from it too: so many keys
        now."""
        merge = self._merge
        if merge is None or merge.is_alive():
            return
        if merge.is_done and merge.made is not None:
            some = merge.taken_meanwhile[-most:]
            del merge.taken_meanwhile[len(merge.taken_meanwhile) - len(some) :]
            if some:
                self._found(some, [merge.made], takes=True)
            if merge.taken_meanwhile:
                return
        self._merge = None
        self._replace(merge)

    def _replace(self, merge: Merge) -> None:
        """Use the run that a merge has made of others. If the disk is full, or the merge was ended, the
        others stay."""
        if not merge.is_done:
            return
        made = merge.made
        for inside in merge.kept_only:
            if made is not None:
                made.keep_only(inside)
        gone = set(map(id, merge.sources))
        left = [run for run in self._runs if id(run) not in gone]
        self._of_cut = [run for run in self._of_cut if id(run) not in gone]
        if merge.cut is not None and (self._of_cut or self._is_ahead):  # some are newer, or will be
            if made is not None:
                made.cut = merge.cut
                self._of_cut.append(made)
            return
        # What was put since then is behind them.
        ahead = [run for run in left if made is None or len(run) >= len(made)]
        behind = [run for run in left if made is not None and len(run) < len(made)]
        self._runs = [*ahead, *([] if made is None else [made]), *behind]

    def settle(self, seconds: float) -> None:
        """Wait for the merge under way, so long at most."""
        if self._merge is not None:
            self._merge.begins.set()
            self._merge.join(seconds)
            self._go_on(len(self._merge.taken_meanwhile))

    def close(self) -> None:
        """End the thread that merges."""
        if self._merge is not None:
            self._merge.end()


class _Found(NamedTuple):
    """Keys that a run of a cut had, in the order of their hashes."""

    cut: int
    hashes: Hashes
    keys: list[Any]


class RowsOnDisk(KeptRows):
    """The rows that a store had at one moment."""

    def __init__(
        self,
        operation: str,
        own: Sequence[tuple[Run, Flags]],
        of_cut: Sequence[tuple[Run, Flags]],
        ended: int,
        since: Moment,
        below: Moment,
    ) -> None:
        """Of each run there is what was taken by then."""
        self._operation = operation
        self._own, self._of_cut = own, of_cut
        self._ended = ended
        self._since, self._below = since, below

    def __iter__(self) -> Iterator[Row]:
        return chain.from_iterable(piece.rows(self._operation) for piece in self._pieces())

    def as_written(self) -> Iterator[RowColumns]:
        return chain.from_iterable(piece.columns(self._operation) for piece in self._pieces())

    def _pieces(self) -> Iterator[Piece]:
        for both, newest_counts in ((self._own, False), (self._of_cut, True)):
            runs, taken = [run for run, _ in both], [taken for _, taken in both]
            for piece in merged_pieces(
                runs, taken, self._ended, _READ_ROWS, newest_counts=newest_counts
            ):
                left = piece.between(self._since, self._below)
                if left is not None:
                    yield left


class Merge:
    """Makes one run of some others. If for each key the ``newest_counts``, they are the newest first."""

    def __init__(
        self, folder: str, sources: Sequence[Run], ended: int, *, newest_counts: bool = False
    ) -> None:
        self.sources = list(sources)
        #: The newest cut that it has rows of; None if the runs are the store's own.
        self.cut = max((run.cut for run in sources if run.cut is not None), default=None)
        #: What was taken when it began is left out.
        taken = [run.taken.copy() for run in sources]
        self._pieces = merged_pieces(
            self.sources, taken, ended, _PIECE_ROWS, newest_counts=newest_counts
        )
        self._folder = folder
        self._is_ended = threading.Event()
        #: Set when the thread has waited long enough.
        self.begins = threading.Event()
        self._rests_seconds = 0.0
        self._thread = threading.Thread(target=self.work, name="emberflow cold merge", daemon=True)
        #: What was taken since.
        self.taken_meanwhile: list[Any] = []
        #: The ranges of hashes that were kept since.
        self.kept_only: list[Ranges] = []
        #: Whether all is merged; and the run that was made, if anything is left.
        self.is_done = False
        self.made: Run | None = None

    def start(self, after_seconds: float = 0.0) -> None:
        """Merge in a thread, after some time."""
        self._rests_seconds = after_seconds
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def end(self) -> None:
        """Leave the rest."""
        self._is_ended.set()
        self.begins.set()
        self._thread.join()

    def work(self) -> None:
        self.begins.wait(self._rests_seconds)
        try:
            with RunFiles(self._folder) as files:
                for piece in self._pieces:
                    if self._is_ended.is_set():
                        return
                    files.add(piece.hashes, piece.block)
                if files.rows:
                    self.made = files.run()
        except (OSError, CheckpointError):
            return  # the disk is full, or the cut is damaged: then whoever needs its rows says so
        self.is_done = True
