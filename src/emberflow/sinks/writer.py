"""The writer of a sink's partition, or of several: a thread that stores one bundle after another.

Guarantees: bundles of a partition are stored in order. After a bundle that cannot be stored, no other is.
A writer that finds that another one has stored in its partition stops (`SinkMovedError`). Whoever gives
bundles to the thread never waits for the sink. Live queries and backfills both store through this thread.

**An old life opens nothing.** A worker of an old life may live on, and opens its writers again after an
error. It would shut out those of its successor, and store output of elements whose times no log has: the
successor has opened the logs already. So whoever opens a writer asks, before it stores, whether its life
is still the newest (``confirm``). A life is claimed first, then opens its sinks, and then its logs. If a
writer was confirmed, a newer life is claimed after that, and shuts it out when it opens the sink. So what
an old life has stored was stored before its successor opened a log, and the logs have all of it.

A sink that fails is tried again for as long as its contract says. A file system that takes no writes (it
is full, or read-only) is no failure of the sink: the thread tries again until it does.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from emberflow.checkpoint.files import is_unwritable
from emberflow.errors import EmberflowError, PayloadError
from emberflow.sinks.protocol import (
    GroupWriter,
    SinkMovedError,
    StoredBundle,
    Writer,
    sink_contract,
)
from emberflow.values.item import GlobalTime
from emberflow.values.members import nothing

_PAUSE_SECONDS_MIN = 0.05
_PAUSE_SECONDS_MAX = 2.0
_JOIN_SECONDS = 5.0
#: Bundles of a partition that were given to the thread and are not known to be stored.
UNDER_WAY_MAX = 8

#: By partition, the last global time that it has stored.
Lasts: TypeAlias = dict[int, GlobalTime | None]

_log = logging.getLogger("emberflow")


class SinkFailedError(EmberflowError):
    """A sink raised while it stored a bundle; the original exception is the ``__cause__``."""


class WriterThread:
    """Stores bundles in order, off the loop that serves the wire. Bundles that wait are stored as one.

    When a writer raises, the thread closes it, pauses, opens another one and asks what it has: the
    first one may have stored the bundles, or some of them, and only failed to say so. If the sink has
    anything else than this thread stored, another life has stored it, and this one must end
    (`SinkMovedError`).
    """

    def __init__(
        self,
        sink: Any,
        name: str,
        *partitions: int,
        ring: Callable[[], None] = nothing,
        confirm: Callable[[], None] = nothing,
    ) -> None:
        """Several partitions are those of a sink with ``open_group``.

        ``ring`` wakes whoever asks what is `stored` when something is, or has failed. ``confirm``
        raises `SinkMovedError` if there is a newer life.
        """
        self._sink = sink
        self._ring = ring
        #: Called whenever a writer was opened.
        self.confirm = confirm
        self._name = name
        self._partitions = partitions
        self._writer: GroupWriter | None = self._opened()
        self._lasts = self._writer.lasts()
        self._retry_seconds = sink_contract(sink).retry_seconds
        #: What is stored together, if nothing else waits.
        self._given: queue.Queue[tuple[StoredBundle, ...] | None] = queue.Queue(
            UNDER_WAY_MAX * len(partitions)
        )
        self._results: queue.SimpleQueue[Exception | Counter[int]] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"emberflow sink {name} {self._numbers}", daemon=True
        )
        self._thread.start()

    def last(self, partition: int | None = None) -> GlobalTime | None:
        """The last global time that a partition had stored when it was opened. Ask before storing.

        Without a partition, that of the only one.
        """
        return self._lasts[self._partitions[0] if partition is None else partition]

    def store(self, *bundles: StoredBundle) -> None:
        """Store bundles, in order if they are of one partition."""
        self._given.put_nowait(bundles)

    def stored(self, seconds: float = 0.0) -> Counter[int]:
        """How many bundles of each partition have been stored since the last call.

        It waits for the first one if asked to. Raises the error of the sink.
        """
        counts: Counter[int] = Counter()
        if not seconds and self._results.empty():  # as mostly: an exception would take longer
            return counts
        with contextlib.suppress(queue.Empty):
            while True:
                wait = seconds > 0 and not counts
                result = self._results.get(wait, seconds if wait else None)
                if isinstance(result, Exception):
                    raise result
                counts += result
        return counts

    def close(self, seconds: float) -> None:
        self._closed.set()
        if self._thread.is_alive():
            with contextlib.suppress(queue.Full):
                self._given.put(None, timeout=seconds)
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while bundles := self._waiting():
                self._store(_as_one(bundles))
                self._tell(Counter(bundle.partition for bundle in bundles))
        except SinkMovedError as moved:
            self._tell(moved)
        except Exception as error:
            failure = SinkFailedError(
                f"sink {self._name!r} partition {self._numbers} failed: "
                f"{type(error).__qualname__}: {error}"
            )
            failure.__cause__ = error
            self._tell(failure)
        if self._writer is not None:
            self._writer.close()

    def _tell(self, result: Exception | Counter[int]) -> None:
        self._results.put(result)
        self._ring()

    def _waiting(self) -> list[StoredBundle]:
        """All bundles that wait, at least one; none when the thread is to end."""
        bundles: list[StoredBundle] = []
        given = self._given.get()
        with contextlib.suppress(queue.Empty):
            while given is not None:
                bundles += given
                given = self._given.get_nowait()
        if given is None and bundles:
            # There is space: some were taken, and nothing comes behind the None.
            self._given.put(None)
        return bundles

    def _store(self, bundles: Sequence[StoredBundle]) -> None:
        """Store bundles of different partitions."""
        begin = time.monotonic()
        pause = _PAUSE_SECONDS_MIN
        while True:
            try:
                if self._writer is None:
                    self._writer = self._opened()
                    bundles = self._left(self._writer.lasts(), bundles)
                if bundles:
                    self._writer.store(bundles)
                break
            except (PayloadError, SinkMovedError):
                raise
            except Exception as error:
                self._give_up_writer()
                now = time.monotonic()
                if is_unwritable(error):
                    begin = now
                elif now - begin + pause > self._retry_seconds:
                    raise
                _log.warning(
                    "sink %r partition %s failed and is tried again: %s",
                    self._name,
                    self._numbers,
                    error,
                )
                if self._closed.wait(pause):
                    raise
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)
        self._lasts.update({bundle.partition: bundle.last for bundle in bundles})

    def _left(self, lasts: Lasts, bundles: Sequence[StoredBundle]) -> list[StoredBundle]:
        """The bundles that a sink which was opened again does not have."""
        given = {bundle.partition: bundle for bundle in bundles}
        for partition, last in lasts.items():
            if last is None or last == self._lasts[partition]:
                continue
            if partition not in given or last != given[partition].last:
                raise SinkMovedError(
                    f"sink {self._name!r} partition {partition} had stored up to "
                    f"{self._lasts[partition]} and has stored up to {last} now, which is the work of "
                    f"another writer."
                )
            self._lasts[partition] = given.pop(partition).last
        return list(given.values())

    def _give_up_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(Exception):  # the writer is broken, and its error is known
                writer.close()

    def _opened(self) -> GroupWriter:
        writer = self._opened_unconfirmed()
        try:
            self.confirm()
        except BaseException:
            writer.close()
            raise
        return writer

    def _opened_unconfirmed(self) -> GroupWriter:
        if len(self._partitions) == 1:
            return _Alone(opened(self._sink, self._name, self._partitions[0]), self._partitions[0])
        with _opening(self._name, self._numbers):
            open_group = sink_contract(self._sink).open_group
            assert open_group is not None
            return open_group(self._partitions)

    @property
    def _numbers(self) -> str:
        return ", ".join(map(str, self._partitions))


class _Alone:
    """A `Writer` of one partition as a `GroupWriter`."""

    def __init__(self, writer: Writer, partition: int) -> None:
        self._writer = writer
        self._partition = partition
        self.close = writer.close

    def lasts(self) -> Lasts:
        return {self._partition: self._writer.last()}

    def store(self, bundles: Sequence[StoredBundle]) -> None:
        for bundle in bundles:
            self._writer.store(bundle)


def writers_of(
    sink: Any,
    name: str,
    partitions: Sequence[int],
    *,
    ring: Callable[[], None],
    confirm: Callable[[], None],
) -> dict[int, WriterThread]:
    """By partition, the threads that store what one worker holds of a sink.

    All partitions have the same thread where the sink stores several together.
    """
    told = {"ring": ring, "confirm": confirm}
    if len(partitions) > 1 and sink_contract(sink).open_group is not None:
        return dict.fromkeys(partitions, WriterThread(sink, name, *partitions, **told))
    writers: dict[int, WriterThread] = {}
    try:
        for partition in partitions:
            writers[partition] = WriterThread(sink, name, partition, **told)
    except BaseException:
        for writer in writers.values():
            writer.close(_JOIN_SECONDS)
        raise
    return writers


def kept_of(
    writers: Mapping[tuple[str, int], WriterThread], own: Collection[tuple[str, int]]
) -> dict[tuple[str, int], WriterThread]:
    """Those of the writers, by sink and partition, that go on where a worker has only these partitions.

    A writer of several has to be opened anew if one of them is another worker's: that one shuts it out.
    """
    lost = {writer for key, writer in writers.items() if key not in own}
    return {key: writer for key, writer in writers.items() if writer not in lost}


def _as_one(bundles: list[StoredBundle]) -> list[StoredBundle]:
    """Bundles in order, those of a partition as one."""
    if len(bundles) == 1:
        return bundles
    by_partition: dict[int, list[StoredBundle]] = {}
    for bundle in bundles:
        by_partition.setdefault(bundle.partition, []).append(bundle)
    return [own[0] if len(own) == 1 else _joined(own) for own in by_partition.values()]


def _joined(bundles: list[StoredBundle]) -> StoredBundle:
    last = bundles[-1]
    places = [place for bundle in bundles for place in bundle.places or ()]
    return last._replace(
        payloads=[payload for bundle in bundles for payload in bundle.payloads],
        places=None if last.places is None else places,
    )


def opened(sink: Any, name: str, partition: int) -> Writer:
    """Open a partition of a sink. Raises an error that says which one."""
    with _opening(name, str(partition)):
        writer: Writer = sink.open(partition)
        return writer


@contextlib.contextmanager
def _opening(name: str, partitions: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise SinkFailedError(
            f"sink {name!r} partition {partitions} cannot be opened: "
            f"{type(error).__qualname__}: {error}"
        ) from error
