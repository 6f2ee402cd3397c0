"""The writer of a sink's partition: a thread that stores one bundle after another.

Guarantees: bundles are stored in order. After a bundle that cannot be stored, no other is. A writer
that finds that another one has stored in its partition stops (`SinkMovedError`). Whoever gives bundles
to the thread never waits for the sink. Live queries and backfills both store through this thread.

A sink that fails is tried again for as long as its contract says. A file system that takes no writes (it
is full, or read-only) is no failure of the sink: the thread tries again until it does.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from emberflow.checkpoint.files import is_unwritable
from emberflow.errors import EmberflowError, PayloadError
from emberflow.sinks.protocol import SinkMovedError, StoredBundle, Writer, sink_contract
from emberflow.values.item import GlobalTime

_PAUSE_SECONDS_MIN = 0.05
_PAUSE_SECONDS_MAX = 2.0
#: Bundles of a partition that were given to the thread and are not known to be stored.
UNDER_WAY_MAX = 8

_log = logging.getLogger("emberflow")


class SinkFailedError(EmberflowError):
    """A sink raised while it stored a bundle; the original exception is the ``__cause__``."""


class WriterThread:
    """Stores bundles in order, off the loop that serves the wire. Bundles that wait are stored as one.

    When a writer raises, the thread closes it, pauses, opens another one and asks what it has: the
    first one may have stored the bundle and only failed to say so. If the sink has anything else than
    this thread stored, another life has stored it, and this one must end (`SinkMovedError`).
    """

    def __init__(
        self, sink: Any, name: str, partition: int, *, ring: Callable[[], None] = lambda: None
    ) -> None:
        """``ring`` wakes whoever asks what is `stored` when something is, or has failed."""
        self._sink = sink
        self._ring = ring
        self._name = name
        self._partition = partition
        self._writer: Writer | None = opened(sink, name, partition)
        self._last = self._writer.last()
        self._retry_seconds = sink_contract(sink).retry_seconds
        self._bundles: queue.Queue[StoredBundle | None] = queue.Queue(UNDER_WAY_MAX)
        self._results: queue.SimpleQueue[Exception | int] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"emberflow sink {name} {partition}", daemon=True
        )
        self._thread.start()

    def last(self) -> GlobalTime | None:
        """The last global time that was stored when the sink was opened. Ask before storing."""
        return self._last

    def store(self, bundle: StoredBundle) -> None:
        self._bundles.put_nowait(bundle)

    def stored(self, seconds: float = 0.0) -> int:
        """How many bundles have been stored since the last call, waiting for the first one if asked to.

        Raises the error of the sink.
        """
        count = 0
        with contextlib.suppress(queue.Empty):
            while True:
                wait = seconds > 0 and not count
                result = self._results.get(wait, seconds if wait else None)
                if isinstance(result, Exception):
                    raise result
                count += result
        return count

    def close(self, seconds: float) -> None:
        self._closed.set()
        if self._thread.is_alive():
            with contextlib.suppress(queue.Full):
                self._bundles.put(None, timeout=seconds)
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while bundles := self._waiting():
                self._store(_as_one(bundles))
                self._tell(len(bundles))
        except SinkMovedError as moved:
            self._tell(moved)
        except Exception as error:
            failure = SinkFailedError(
                f"sink {self._name!r} partition {self._partition} failed: "
                f"{type(error).__qualname__}: {error}"
            )
            failure.__cause__ = error
            self._tell(failure)
        if self._writer is not None:
            self._writer.close()

    def _tell(self, result: Exception | int) -> None:
        self._results.put(result)
        self._ring()

    def _waiting(self) -> list[StoredBundle]:
        """All bundles that wait, at least one; none when the thread is to end."""
        bundles: list[StoredBundle] = []
        bundle = self._bundles.get()
        with contextlib.suppress(queue.Empty):
            while bundle is not None:
                bundles.append(bundle)
                bundle = self._bundles.get_nowait()
        if bundle is None and bundles:
            self._bundles.put(
                None
            )  # there is space: bundles were taken, and nothing comes behind the None
        return bundles

    def _store(self, bundle: StoredBundle) -> None:
        begin = time.monotonic()
        pause = _PAUSE_SECONDS_MIN
        while True:
            try:
                if self._writer is None:
                    self._writer = opened(self._sink, self._name, self._partition)
                    if self._has(self._writer.last(), bundle):
                        break
                self._writer.store(bundle)
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
                    "sink %r partition %d failed and is tried again: %s",
                    self._name,
                    self._partition,
                    error,
                )
                if self._closed.wait(pause):
                    raise
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)
        self._last = bundle.last

    def _has(self, last: GlobalTime | None, bundle: StoredBundle) -> bool:
        """Whether a sink that was opened again has stored the bundle."""
        if last is None or last == self._last:
            return False
        if last == bundle.last:
            return True
        raise SinkMovedError(
            f"sink {self._name!r} partition {self._partition} had stored up to {self._last} and "
            f"has stored up to {last} now, which is the work of another writer."
        )

    def _give_up_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(Exception):  # the writer is broken, and its error is known
                writer.close()


def _as_one(bundles: list[StoredBundle]) -> StoredBundle:
    """Bundles of one partition, in order, as one."""
    last = bundles[-1]
    if len(bundles) == 1:
        return last
    places = [place for bundle in bundles for place in bundle.places or ()]
    return last._replace(
        payloads=[payload for bundle in bundles for payload in bundle.payloads],
        places=None if last.places is None else places,
    )


def opened(sink: Any, name: str, partition: int) -> Writer:
    """Open a partition of a sink. Raises an error that says which one."""
    try:
        writer: Writer = sink.open(partition)
    except Exception as error:
        raise SinkFailedError(
            f"sink {name!r} partition {partition} cannot be opened: "
            f"{type(error).__qualname__}: {error}"
        ) from error
    return writer
