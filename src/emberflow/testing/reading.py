"""Reading a front under a time limit: a reader that blocks is found out, and does not block the test.

A thread of its own runs the front's iterator, as in a live query.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from emberflow.errors import shortened
from emberflow.fronts.protocol import Batch, Element, FrontContract, Idle
from emberflow.testing.rules import ContractError

_END = object()
#: So many times a reader that waits must yield None before it is stopped.
_NAPS = 3


class Taken(NamedTuple):
    """What a reader gave, and whether it ended by itself."""

    elements: list[Element]
    ended: bool


class Reading:
    """One way through a partition, in a thread. Use it in a ``with`` statement."""

    def __init__(self, read: Callable[[], Iterator[Any]], where: str, seconds: float) -> None:
        self._read = read
        self._where = where
        self._seconds = seconds
        self._given: queue.Queue[Any] = queue.Queue(100)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reading {where}", daemon=True)

    def __enter__(self) -> Reading:
        self._thread.start()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._stop.set()
        if error is None:
            self._thread.join(self._seconds)
            if self._thread.is_alive():
                raise ContractError(
                    "waiting", f"{self._where} could not be closed within {self._seconds:g} s."
                )

    def next(self) -> Any:
        """What the reader gives next; `_END` when it has ended. Raises what it raised."""
        try:
            given = self._given.get(timeout=self._seconds)
        except queue.Empty:
            raise ContractError(
                "waiting",
                f"{self._where} gave nothing for {self._seconds:g} s. A reader yields None at least "
                f"once a second while there is nothing to read, so that it can be stopped.",
            ) from None
        if isinstance(given, BaseException):
            raise ContractError(
                "elements", f"{self._where} raised {type(given).__qualname__}: {given}"
            ) from given
        return given

    def all(self, contract: FrontContract, expected: int | None) -> Taken:
        """All elements that there are.

        The reader ends, or it yields None when it has given as many as are expected. It may yield
        None before that, but not for longer than the time limit.
        """
        elements: list[Element] = []
        quiet_since = time.monotonic()
        while (given := self.next()) is not _END:
            if given is None or isinstance(given, Idle):
                self._check_idle(contract, given)
                is_all = expected is not None and len(elements) >= expected
                if is_all or time.monotonic() - quiet_since > self._seconds:
                    return Taken(elements, ended=False)
                continue
            elements += self._elements(given)
            quiet_since = time.monotonic()
        return Taken(elements, ended=True)

    def naps(self) -> None:
        """Let a reader that has nothing to give wait for a while."""
        for _ in range(_NAPS):
            self.next()

    def _elements(self, given: Any) -> list[Element]:
        if isinstance(given, Element):
            return [given]
        if not isinstance(given, Batch):
            raise ContractError(
                "elements",
                f"{self._where} gave {shortened(given)}. It may give an Element, a Batch, an Idle or "
                f"None (emberflow.fronts).",
            )
        count = len(given.payloads)
        times = [None] * count if given.times is None else list(given.times)
        if not len(given.positions) == len(times) == count:
            raise ContractError(
                "elements",
                f"{self._where} gave a Batch of {len(given.positions)} positions, {count} payloads "
                f"and {len(times)} times. Its columns are of one length.",
            )
        return list(map(Element, given.positions, given.payloads, times))

    def _check_idle(self, contract: FrontContract, given: Idle | None) -> None:
        if given is None:
            return
        if not contract.promises:
            raise ContractError(
                "promises", f"{self._where} gave {given}, and the front has no promises = True."
            )
        if given.until.__class__ is not int or given.ahead.__class__ is not int:
            raise ContractError("promises", f"{self._where} gave {given}. Times are ints.")

    def _run(self) -> None:
        try:
            reading = self._read()
            try:
                for given in reading:
                    if not self._put(given):
                        return
            finally:
                if hasattr(reading, "close"):
                    reading.close()
            self._put(_END)
        except Exception as error:
            self._put(error)

    def _put(self, given: Any) -> bool:
        while not self._stop.is_set():
            try:
                self._given.put(given, timeout=0.02)
            except queue.Full:
                continue
            return not self._stop.is_set()
        return False
