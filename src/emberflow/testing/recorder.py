"""`Recorder`: a sink that remembers the bundles it stored, and fails when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

from emberflow.errors import EmberflowError, InputError
from emberflow.sinks.protocol import StoredBundle
from emberflow.values.item import GlobalTime


class Recorder:
    """Keeps all bundles in the driver's memory; refuses one that it has stored already.

    ``fail_before`` and ``fail_after`` are the numbers of the attempts to store, counted from 0 over
    all partitions, that fail: before anything is stored, or when the bundle is stored and only the
    answer is lost. The query then opens a writer again, asks for its last time, and goes on. A query
    makes at least one attempt, and one more for each that fails; how many bundles it makes of its
    output depends on the moment. With ``retry_seconds=0`` the first failure ends the query.

    >>> recorder = Recorder(fail_after={0})
    >>> recorder.open(0).store(StoredBundle("words", 0, GlobalTime(7, 0), ["ash"]))
    Traceback (most recent call last):
    OSError: attempt 0 fails, as testing.Recorder was told: after the bundle was stored
    >>> recorder.open(0).last(), recorder.payloads()
    (GlobalTime(time=7, front=0), ['ash'])
    """

    on_driver = True

    def __init__(
        self,
        *,
        fail_before: Collection[int] = (),
        fail_after: Collection[int] = (),
        retry_seconds: float = 30.0,
    ) -> None:
        both = set(fail_before) & set(fail_after)
        if both:
            raise InputError(
                f"testing.Recorder: attempt {min(both)} is in fail_before= and in fail_after=. "
                f"An attempt fails once."
            )
        self.retry_seconds = retry_seconds
        #: The attempts that have failed so far.
        self.failed: list[int] = []
        #: How many attempts to store there were.
        self.attempts = 0
        self._before, self._after = frozenset(fail_before), frozenset(fail_after)
        self._lock = threading.Lock()
        self._bundles: dict[int, list[StoredBundle]] = {}

    def open(self, partition: int) -> _RecorderWriter:
        with self._lock:
            return _RecorderWriter(self, self._bundles.setdefault(partition, []))

    def payloads(self, partition: int = 0) -> list[Any]:
        """What a partition has stored so far."""
        return [payload for bundle in self.bundles(partition) for payload in bundle.payloads]

    def bundles(self, partition: int = 0) -> list[StoredBundle]:
        with self._lock:
            return list(self._bundles.get(partition, ()))

    def _store(self, bundles: list[StoredBundle], bundle: StoredBundle) -> None:
        with self._lock:
            attempt, self.attempts = self.attempts, self.attempts + 1
            if attempt in self._before:
                self._fail(attempt, "before the bundle was stored")
            if bundles and bundle.last <= bundles[-1].last:
                raise EmberflowError(
                    f"testing.Recorder has stored up to {bundles[-1].last} and was given a bundle "
                    f"that ends at {bundle.last}."
                )
            bundles.append(bundle)
            if attempt in self._after:
                self._fail(attempt, "after the bundle was stored")

    def _fail(self, attempt: int, when: str) -> None:
        self.failed.append(attempt)
        raise OSError(f"attempt {attempt} fails, as testing.Recorder was told: {when}")


class _RecorderWriter:
    def __init__(self, recorder: Recorder, bundles: list[StoredBundle]) -> None:
        self._recorder = recorder
        self._bundles = bundles

    def last(self) -> GlobalTime | None:
        return self._bundles[-1].last if self._bundles else None

    def store(self, bundle: StoredBundle) -> None:
        self._recorder._store(self._bundles, bundle)

    def close(self) -> None:
        pass
