"""Storing: one bundle under way for each partition of a sink, whoever is slow.

What a barrier released waits here while the sink is busy with the bundle before it; then all that
waits goes as one bundle. So bundles are small while a sink is quick, and grow when it is slow.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Bundle, Moment
from emberflow.errors import EmberflowError
from emberflow.item import FlatItem, GlobalTime
from emberflow.sinks.protocol import StoredBundle, Writer


class SinkFailedError(EmberflowError):
    """A sink raised while it stored a bundle; the original exception is the ``__cause__``."""


class Store:
    """A partition of a sink: what waits for it, and whether it is busy."""

    def __init__(self, sink: str, partition: int) -> None:
        self.sink = sink
        self.partition = partition
        self.busy = False
        self._waiting: list[FlatItem] = []
        self._last: GlobalTime | None = None
        self._under_way = 0
        self._under_way_from: Moment = BEFORE_ALL

    @property
    def settled(self) -> Moment:
        """Of what has come, all below this is stored."""
        if self.busy:
            return self._under_way_from
        if self._waiting:
            place = self._waiting[0][0]
            return place[0], place[1]
        return AFTER_ALL

    @property
    def unstored(self) -> int:
        return len(self._waiting) + self._under_way

    def add(self, bundle: Bundle) -> None:
        self._waiting += bundle.items
        self._last = bundle.last

    def next(self) -> StoredBundle | None:
        """The next bundle, if there is one and the sink is free."""
        if self.busy or not self._waiting:
            return None
        self.busy = True
        items, self._waiting = self._waiting, []
        self._under_way = len(items)
        place = items[0][0]
        self._under_way_from = place[0], place[1]
        assert self._last is not None
        payloads = [payload for _, _, payload in items]
        return StoredBundle(self.sink, self.partition, self._last, payloads)

    def stored(self) -> None:
        self.busy = False
        self._under_way = 0


class WriterThread:
    """Stores bundles one after another, off the loop that serves the wire."""

    def __init__(self, name: str, writer: Writer) -> None:
        self._writer = writer
        self._bundles: queue.Queue[StoredBundle | None] = queue.Queue(1)
        self._results: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"emberflow {name}", daemon=True)
        self._thread.start()

    def last(self) -> GlobalTime | None:
        """The last global time that is stored. To be asked before anything is."""
        return self._writer.last()

    def store(self, bundle: StoredBundle) -> None:
        self._bundles.put_nowait(bundle)

    def is_stored(self) -> bool:
        """Whether a bundle has been stored since this was last asked. Raises what the sink did."""
        try:
            error = self._results.get_nowait()
        except queue.Empty:
            return False
        if error is not None:
            raise error
        return True

    def close(self, seconds: float) -> None:
        if self._thread.is_alive():
            self._bundles.put(None, timeout=seconds)
            self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            bundle = self._bundles.get()
            if bundle is None:
                self._writer.close()
                return
            try:
                self._writer.store(bundle)
                self._results.put(None)
            except Exception as error:
                failure = SinkFailedError(
                    f"sink {bundle.sink!r} partition {bundle.partition} failed: "
                    f"{type(error).__qualname__}: {error}"
                )
                failure.__cause__ = error
                self._results.put(failure)


def opened(sink: Any, name: str, partition: int) -> Writer:
    """Open a partition of a sink, with an error that says which one could not be."""
    try:
        writer: Writer = sink.open(partition)
    except Exception as error:
        raise SinkFailedError(
            f"sink {name!r} partition {partition} cannot be opened: "
            f"{type(error).__qualname__}: {error}"
        ) from error
    return writer
