"""The rows of cold keys on a worker's own disk, in sorted runs (`engine.machines.cold`).

What is guaranteed: **what was put is given back, and nothing here outlives the process.** The store is a
cache: what it holds is in the last cut too, or the query takes none. So nothing is synced, and a file is
unlinked as soon as it is mapped. A process that is killed leaves nothing behind, and whoever empties the
folder meanwhile does no harm. A disk that is full is an `OSError` of ``put``, and what was to be put stays
in memory.

A *run* is four arrays in files, mapped into memory, sorted by the hash of the key::

    hashes   32 bits    what a search looks at
    times    64 bits    of the rows, to drop those that have ended
    ends     64 bits    where each record ends
    records             pickles of (key, front, payload)

A run never changes. Whether a row was taken is a byte beside the run, in memory. So to take a row costs a
search and no write, and who reads all rows keeps the bytes as they were and goes on undisturbed.

**Batches.** ``put`` writes one run. ``take`` looks up all keys of a batch in one run after the other, by a
search of numpy's over the sorted hashes. The kernel keeps in its page cache what is looked up often, and
drops it when it needs the memory.

**Merges.** Runs get more with every ``put``. When the newest ones together are large beside the one ahead of
them, they are merged, so there are few, and each row is written some times in all. Small ones are merged
at once; for large ones there is a thread, one at a time. A merge goes by ranges of hashes, in pieces of
bounded size, and leaves out what was taken and what has ended. What is taken while the thread works is taken
from the new run too, before that is used.
"""

from __future__ import annotations

import itertools
import mmap
import os
import pickle
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from operator import attrgetter
from typing import TYPE_CHECKING, Any, BinaryIO

from emberflow.engine.cuts.cut import Row
from emberflow.values.hashing import key_hash
from emberflow.values.item import TIME_MIN

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]
    Hashes = npt.NDArray[np.int32]
    Flags = npt.NDArray[np.bool_]

PROTOCOL = 5
#: So many runs or more are merged, when the first of them is not this many times as large as the others.
_MERGED_TOGETHER = 4
#: With so many rows or fewer, a merge takes some milliseconds, and nobody begins a thread for it.
_SMALL_ROWS = 1 << 16
#: Rows of a piece of a merge.
_PIECE_ROWS = 1 << 17
_HASHES = 1 << 32
_LEAST_HASH = -(1 << 31)

_hash_of = attrgetter("key_hash")


class Run:
    """Rows sorted by hash, and which of them were taken."""

    def __init__(self, hashes: Hashes, times: Numbers, ends: Numbers, records: memoryview) -> None:
        import numpy as np

        self.hashes, self.times, self.ends, self.records = hashes, times, ends, records
        self.taken: Flags = np.zeros(len(hashes), np.bool_)
        #: How many were not taken.
        self.left = len(hashes)

    def __len__(self) -> int:
        return len(self.hashes)

    def record(self, position: int) -> tuple[Any, int, Any]:
        begin = int(self.ends[position - 1]) if position else 0
        key_front_payload: tuple[Any, int, Any] = pickle.loads(
            self.records[begin : self.ends[position]]
        )
        return key_front_payload

    def first_of(self, hashed: int) -> int:
        """The position of the first row of this hash, or behind it."""
        import numpy as np

        is_behind_all = (
            hashed >= _HASHES + _LEAST_HASH
        )  # which is no hash, so it has no type for it
        return len(self) if is_behind_all else int(np.searchsorted(self.hashes, np.int32(hashed)))

    def search(self, hashes: Hashes) -> tuple[list[int], list[int]]:
        """Of sorted hashes, those that are here: the position in the list, and the first one in the run."""
        import numpy as np

        firsts = np.searchsorted(self.hashes, hashes)
        inside = np.minimum(firsts, len(self.hashes) - 1)
        hits = np.flatnonzero(self.hashes[inside] == hashes)
        return hits.tolist(), firsts[hits].tolist()


class SortedRuns:
    """A store of a machine, in a folder of this machine's disk.

    >>> store = SortedRuns(tempfile.gettempdir())
    >>> row = Row("count", key_hash("ada"), "ada", (5, 0), 2)
    >>> len(store.put([row])), len(store)
    (0, 1)
    >>> store.take(["ada", "bob"]) == [row], len(store)
    (True, 0)
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._operation = ""
        #: The oldest, and mostly the largest, first.
        self._runs: list[Run] = []
        self._ended = TIME_MIN - 1
        self._merge: Merge | None = None
        #: The bytes that were put, and the rows.
        self.put_bytes = self.put_rows = 0

    def __len__(self) -> int:
        return sum(run.left for run in self._runs)

    @property
    def runs(self) -> int:
        return len(self._runs)

    def put(self, rows: list[Row]) -> Collection[int]:
        import numpy as np

        self._go_on()
        records, refused = _records(rows)
        if refused:
            rows = [row for number, row in enumerate(rows) if number not in refused]
        if not rows:
            return refused
        self._operation = rows[0].operation
        count = len(rows)
        hashes = np.fromiter(map(_hash_of, rows), np.int32, count)
        order = np.argsort(hashes, kind="stable")
        times = np.fromiter((row.place[0] for row in rows), np.int64, count)[order]
        records = [records[number] for number in order.tolist()]
        ends = np.cumsum(np.fromiter(map(len, records), np.int64, count))
        with _RunFiles(self._folder) as files:
            files.add(hashes[order], times, ends, b"".join(records))
            self._runs.append(files.run())
        self.put_bytes += int(ends[-1])
        self.put_rows += count
        self._merge_if_due()
        return refused

    def take(self, keys: Collection[Any]) -> list[Row]:
        self._go_on()
        found = self._found(keys, takes=True)
        if self._merge is not None:
            self._merge.taken_meanwhile += [row.key for row in found]
        return found

    def find(self, keys: Collection[Any]) -> list[Row]:
        return self._found(keys, takes=False)

    def _found(self, keys: Collection[Any], *, takes: bool) -> list[Row]:
        import numpy as np

        wanted = list(keys)
        hashes = np.fromiter(map(key_hash, wanted), np.int32, len(wanted))
        order = np.argsort(hashes)
        hashes, wanted = hashes[order], [wanted[number] for number in order.tolist()]
        found: list[Row] = []
        for run in self._runs:
            if not run.left or not wanted:
                continue
            is_here: list[int] = []
            for number, position in zip(*run.search(hashes), strict=True):
                row = self._row_of(run, position, int(hashes[number]), wanted[number], takes=takes)
                if row is not None:
                    is_here.append(number)
                    if row.place[0] > self._ended:
                        found.append(row)
            if is_here:
                hashes = np.delete(hashes, is_here)
                gone = set(is_here)
                wanted = [key for number, key in enumerate(wanted) if number not in gone]
        return found

    def _row_of(self, run: Run, position: int, hashed: int, key: Any, *, takes: bool) -> Row | None:
        """The row of a key, among those of its hash, which begin at a position."""
        while position < len(run) and run.hashes[position] == hashed:
            if not run.taken[position]:
                own, front, payload = run.record(position)
                if own == key:
                    if takes:
                        run.taken[position] = True
                        run.left -= 1
                    time = int(run.times[position])
                    return Row(self._operation, hashed, own, (time, front), payload)
            position += 1
        return None

    def all(self) -> Iterator[Row]:
        return self._all([(run, run.taken.copy()) for run in self._runs if run.left], self._ended)

    def _all(self, runs: list[tuple[Run, Flags]], ended: int) -> Iterator[Row]:
        import numpy as np

        for run, taken in runs:
            for position in np.flatnonzero(~taken & (run.times > ended)).tolist():
                key, front, payload = run.record(position)
                place = (int(run.times[position]), front)
                yield Row(self._operation, int(run.hashes[position]), key, place, payload)

    def end(self, time: int) -> None:
        self._ended = max(self._ended, time)

    # Merges.

    def _merge_if_due(self) -> None:
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

    def _go_on(self) -> None:
        """Use what the thread has merged."""
        merge = self._merge
        if merge is not None and not merge.is_alive():
            self._merge = None
            self._replace(merge)

    def _replace(self, merge: Merge) -> None:
        """Use the run that a merge has made of others. If the disk is full, or the merge was ended, the
        others stay."""
        if not merge.is_done:
            return
        made = merge.made
        if made is not None and merge.taken_meanwhile:
            all_runs, self._runs = self._runs, [made]
            self._found(merge.taken_meanwhile, takes=True)
            self._runs = all_runs
        gone = set(map(id, merge.sources))
        left = [run for run in self._runs if id(run) not in gone]
        # What was put since then is behind them.
        ahead = [run for run in left if made is None or len(run) >= len(made)]
        behind = [run for run in left if made is not None and len(run) < len(made)]
        self._runs = [*ahead, *([] if made is None else [made]), *behind]

    def settle(self, seconds: float) -> None:
        """Wait for the merge under way, so long at most."""
        if self._merge is not None:
            self._merge.join(seconds)
            self._go_on()

    def close(self) -> None:
        """End the thread that merges."""
        if self._merge is not None:
            self._merge.end()


def _records(rows: Sequence[Row]) -> tuple[list[bytes], set[int]]:
    """The records of rows, and the numbers of those that pickle does not take."""
    dumps = pickle.dumps
    try:
        return [dumps((row[2], row[3][1], row[4]), PROTOCOL) for row in rows], set()
    except Exception:
        records, refused = [], set()
        for number, row in enumerate(rows):
            try:
                records.append(dumps((row[2], row[3][1], row[4]), PROTOCOL))
            except Exception:
                refused.add(number)
        return records, refused


class _RunFiles:
    """The files of a run that is being written. They are unlinked in the end, whatever happens."""

    _NAMES = ("hashes", "times", "ends", "records")

    def __init__(self, folder: str) -> None:
        self._stack = ExitStack()
        self._rows = self._bytes = 0
        os.makedirs(folder, exist_ok=True)
        self._files: list[BinaryIO] = []
        try:
            for _ in self._NAMES:
                # Without a name, where the file system can do that; else it is unlinked at once.
                file = self._stack.enter_context(
                    tempfile.TemporaryFile(dir=folder, prefix="emberflow-cold-")  # noqa: SIM115
                )
                self._files.append(file)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> _RunFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, hashes: Hashes, times: Numbers, ends: Numbers, records: Any) -> None:
        """Add sorted rows behind the others; ``ends`` count from the first of them."""
        if not len(hashes):
            return
        for file, array in zip(self._files, (hashes, times, ends + self._bytes), strict=False):
            file.write(memoryview(array).cast("B"))  # type: ignore[arg-type]
        self._files[3].write(records)
        self._rows += len(hashes)
        self._bytes += int(ends[-1])

    @property
    def rows(self) -> int:
        return self._rows

    def run(self) -> Run:
        """The run that was written, mapped. The mappings live as long as the run."""
        import numpy as np

        for file in self._files:
            file.flush()
        mapped = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in self._files]
        hashes = np.frombuffer(mapped[0], np.int32)
        times, ends = (np.frombuffer(each, np.int64) for each in mapped[1:3])
        return Run(hashes, times, ends, memoryview(mapped[3]))


class Merge:
    """Makes one run of some others."""

    def __init__(self, folder: str, sources: list[Run], ended: int) -> None:
        self.sources = sources
        #: What was taken when it began is left out.
        self._alive = [~run.taken & (run.times > ended) for run in sources]
        self._folder = folder
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self.work, name="emberflow cold merge", daemon=True)
        #: What was taken since.
        self.taken_meanwhile: list[Any] = []
        #: Whether all is merged; and the run that was made, if anything is left.
        self.is_done = False
        self.made: Run | None = None

    def start(self) -> None:
        """Merge in a thread."""
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def end(self) -> None:
        """Leave the rest."""
        self._is_ended.set()
        self._thread.join()

    def work(self) -> None:
        try:
            with _RunFiles(self._folder) as files:
                for low, high in self._ranges():
                    if self._is_ended.is_set():
                        return
                    files.add(*self._piece(low, high))
                if files.rows:
                    self.made = files.run()
        except OSError:
            return  # the disk is full
        self.is_done = True

    def _ranges(self) -> Iterable[tuple[int, int]]:
        """Ranges of hashes, from one to below the next, with about so many rows each."""
        rows = sum(map(len, self.sources))
        pieces = -(-rows // _PIECE_ROWS)
        bounds = [_LEAST_HASH + _HASHES * piece // pieces for piece in range(pieces + 1)]
        return itertools.pairwise(bounds)

    def _piece(self, low: int, high: int) -> tuple[Hashes, Numbers, Numbers, Any]:
        """The rows of a range of hashes, in order."""
        import numpy as np
        import pyarrow as pa

        hashes, times, records = [], [], []
        for run, alive in zip(self.sources, self._alive, strict=True):
            begin, end = run.first_of(low), run.first_of(high)
            chosen = np.flatnonzero(alive[begin:end])
            hashes.append(run.hashes[begin:end][chosen])
            times.append(run.times[begin:end][chosen])
            offsets = np.empty(end - begin + 1, np.int64)
            offsets[0] = run.ends[begin - 1] if begin else 0
            offsets[1:] = run.ends[begin:end]
            array = pa.Array.from_buffers(
                pa.large_binary(),
                end - begin,
                [None, pa.py_buffer(offsets), pa.py_buffer(run.records)],
            )
            records.append(array.take(_indices(chosen)))
        hashed = np.concatenate(hashes)
        order = np.argsort(hashed, kind="stable")
        sorted_records = pa.concat_arrays(records).take(_indices(order))
        _, offsets_of_all, data = sorted_records.buffers()
        ends = np.frombuffer(offsets_of_all, np.int64)[1 : len(hashed) + 1]
        size = int(ends[-1]) if len(ends) else 0
        return hashed[order], np.concatenate(times)[order], ends, memoryview(data or b"")[:size]


def _indices(positions: Numbers) -> Any:
    """Positions as an array of Arrow's; see `checkpoint.cuts.arrays` for why not by ``pyarrow.array``."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(positions), [None, pa.py_buffer(positions)])
