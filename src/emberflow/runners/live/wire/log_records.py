"""How what is logged on a worker reaches the driver's log.

What is guaranteed: **logging never holds up a worker's loop**, whatever functions log and however much. A
handler of the worker's process formats a record, cuts it and appends it to a bounded buffer. What exceeds
the rate is counted and dropped. The loop sends what is in the buffer with its next news.

The worker has the levels that the driver's loggers had when the life began, so what nobody would see is
not sent. Functions may be called again on replay: what they log is logged again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

#: A worker sends so many records a second, and as many more at once after a quiet time.
RECORDS_A_SECOND = 50
RECORDS_AT_ONCE = 200
CHARACTERS_MAX = 4_000
#: So many levels of the driver's loggers are sent to workers.
_LEVELS_MAX = 200


class Logged(NamedTuple):
    """A log record on its way: text, whatever the arguments of the record were."""

    level: int
    logger: str
    message: str
    created: float
    path: str
    line: int


class LoggedBatch(NamedTuple):
    """What a worker has logged since its last batch, and how many records it had to drop."""

    records: list[Logged]
    dropped: int


def levels() -> dict[str, int]:
    """The levels that were set in this process, by logger; ``""`` is the root."""
    root = logging.getLogger()
    found = {"": root.getEffectiveLevel()}
    for name, logger in sorted(logging.Logger.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and logger.level and len(found) < _LEVELS_MAX:
            found[name] = logger.level
    return found


class Capture(logging.Handler):
    """Keeps what is logged until the loop takes it.

    >>> capture = Capture()
    >>> capture.handle(logging.makeLogRecord({"name": "shop", "msg": "%d left", "args": (3,)}))
    True
    >>> [record.message for record in capture.taken().records]
    ['3 left']
    """

    def __init__(self) -> None:
        super().__init__()
        #: Takes warnings too: what Python does with them where nobody has set up logging.
        self.otherwise: logging.Handler | None = None
        self._guard = threading.Lock()
        self._records: list[Logged] = []
        self._dropped = 0
        self._allowed = float(RECORDS_AT_ONCE)
        self._allowed_at = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        with self._guard:
            now = time.monotonic()
            more = (now - self._allowed_at) * RECORDS_A_SECOND
            self._allowed, self._allowed_at = min(RECORDS_AT_ONCE, self._allowed + more), now
            if self._allowed < 1:
                self._dropped += 1
                return
            self._allowed -= 1
        otherwise = self.otherwise
        if otherwise is not None and record.levelno >= otherwise.level:
            otherwise.handle(record)
        logged = Logged(
            record.levelno,
            record.name,
            _message(record)[:CHARACTERS_MAX],
            record.created,
            record.pathname,
            record.lineno,
        )
        with self._guard:
            # A loop that takes nothing, because a function does not return, must not fill the memory.
            if len(self._records) < 2 * RECORDS_AT_ONCE:
                self._records.append(logged)
            else:
                self._dropped += 1

    def taken(self) -> LoggedBatch | None:
        """What was logged since the last call, if anything was."""
        if not self._records and not self._dropped:
            return None
        with self._guard:
            batch = LoggedBatch(self._records, self._dropped)
            self._records, self._dropped = [], 0
        return batch


def _message(record: logging.LogRecord) -> str:
    """The text of a record with its traceback, whatever its arguments do when they are formatted."""
    try:
        return logging.Formatter("%(message)s").format(record)
    except Exception as error:
        return f"{record.msg!r:.200} (cannot be formatted: {error!r:.200})"


#: That of this process. A worker's loop, and those of later versions in its process, take from it.
capture = Capture()


@contextmanager
def captured(given: Mapping[str, int]) -> Iterator[None]:
    """Capture what is logged in this process, at these levels. Spark uses a process for other tasks too."""
    root = logging.getLogger()
    before = {name: logging.getLogger(name).level for name in given}
    capture.taken()
    # The executor's log has warnings, as without this handler: the driver may be out of reach.
    capture.otherwise = None if root.handlers else logging.lastResort
    root.addHandler(capture)
    for name, level in given.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        root.removeHandler(capture)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
