"""The log of a query: one line an event, and what its functions log on the workers.

What is guaranteed: a record says which query, which life and, where there is one, which worker it is
about: as words in its message and as attributes (``query``, ``life``, ``worker``, ``event``), for formatters
that write JSON. **No handler holds up the coordinator**: records that come from workers, and those that
the coordinator's own thread makes, are handed to a thread. So many wait for it at most, then records are
dropped, and the log says how many.

======== ======= ==========================================================================
event    level
======== ======= ==========================================================================
started  INFO    the query begins, with how many workers, from which checkpoint
running  INFO    a life of the workers runs, and from which cut
cut      INFO    a cut counts, with its size and how long it took
lost     WARNING a life was lost, and why; the next one begins
upgraded INFO    another version, or other owners of keys, have taken over
kept     WARNING what the query would do by itself about its load could not be done
leaving  WARNING Spark decommissions an executor, and what becomes of its workers
left     WARNING they have left it
ended    INFO    the query is over; ERROR if it failed, with the error
logged   its own a function, a front or a sink logged something on a worker
======== ======= ==========================================================================
"""

from __future__ import annotations

import logging
import queue
import threading

from emberflow.runners.live.wire.log_records import Logged, LoggedBatch

#: So many records wait for slow handlers.
WAITING_MAX = 1_000

_log = logging.getLogger("emberflow")


class QueryLog:
    """The log of one query, on the driver."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(WAITING_MAX)
        self._dropped = 0
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    def event(
        self, level: int, event: str, life: int, message: str, *, worker: int | None = None
    ) -> None:
        """Log an event, in the caller's thread."""
        record = self._record(level, event, life, message, worker)
        if record is not None:
            _log.handle(record)

    def event_later(self, level: int, event: str, life: int, message: str) -> None:
        """Log an event in the thread of this log: for threads that must not wait for a handler."""
        record = self._record(level, event, life, message, None)
        if record is not None:
            self._put(record)

    def relay(self, worker: int, life: int, batch: LoggedBatch) -> None:
        """Log what was logged on a worker, under the names of its loggers."""
        for logged in batch.records:
            logger = logging.getLogger(logged.logger)
            if logger.isEnabledFor(logged.level):
                self._put(self._relayed(worker, life, logged))
        if batch.dropped:
            self.event_later(
                logging.WARNING,
                "logged",
                life,
                f"worker {worker} logged more than can be sent: {batch.dropped:,} records are dropped",
            )

    def close(self, seconds: float) -> None:
        """Log what waits, as far as there is time for it."""
        with self._guard:
            thread, self._thread = self._thread, None
        if thread is not None:
            try:
                self._waiting.put(None, timeout=seconds)
            except queue.Full:
                return  # a handler hangs; the thread ends with the process
            thread.join(seconds)

    def _record(
        self, level: int, event: str, life: int, message: str, worker: int | None
    ) -> logging.LogRecord | None:
        if not _log.isEnabledFor(level):
            return None
        line = "; ".join(part.strip() for part in message.splitlines())
        about = f"query {self._query}, life {life}" if life else f"query {self._query}"
        about += "" if worker is None else f", worker {worker}"
        # As one argument: whatever a name or an error holds, it is no format.
        record = _log.makeRecord(_log.name, level, __file__, 0, "%s", (f"{about}: {line}",), None)
        return self._marked(record, event, life, worker)

    def _relayed(self, worker: int, life: int, logged: Logged) -> logging.LogRecord:
        logger = logging.getLogger(logged.logger)
        record = logger.makeRecord(
            logger.name, logged.level, logged.path, logged.line, "%s", (logged.message,), None
        )
        record.created = logged.created
        record.msecs = (logged.created - int(logged.created)) * 1_000
        return self._marked(record, "logged", life, worker)

    def _marked(
        self, record: logging.LogRecord, event: str, life: int, worker: int | None
    ) -> logging.LogRecord:
        record.query, record.life, record.worker, record.event = self._query, life, worker, event
        return record

    def _put(self, record: logging.LogRecord) -> None:
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="emberflow log", daemon=True)
                self._thread.start()
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def _run(self) -> None:
        while (record := self._waiting.get()) is not None:
            logging.getLogger(record.name).handle(record)
            dropped, self._dropped = self._dropped, 0
            if dropped:
                _log.warning("query %s: %d log records are dropped", self._query, dropped)
