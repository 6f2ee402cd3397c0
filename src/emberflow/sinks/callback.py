"""`sinks.Callback`: a function in the driver that is called with each bundle."""

from __future__ import annotations

from collections.abc import Callable as AnyCallable
from typing import Any

from emberflow.errors import InputError
from emberflow.sinks.protocol import StoredBundle
from emberflow.values.item import GlobalTime


class Callback:
    """Calls a function with each bundle, in order. An exception of the function ends the query.

    >>> Callback(lambda bundle: print(bundle.payloads)).open(0).store(
    ...     StoredBundle("s", 0, GlobalTime(1, 0), ["a"])
    ... )
    ['a']
    """

    on_driver = True
    #: A function that raised would raise again.
    retry_seconds = 0

    def __init__(self, function: AnyCallable[[StoredBundle], Any]) -> None:
        if not callable(function):
            raise InputError(f"sinks.Callback takes a function of a bundle, got {function!r}.")
        self._function = function
        #: By partition. It is in the driver, so it outlives the workers.
        self._last: dict[int, GlobalTime] = {}

    def open(self, partition: int) -> _CallbackWriter:
        return _CallbackWriter(self._function, partition, self._last)


class _CallbackWriter:
    def __init__(
        self,
        function: AnyCallable[[StoredBundle], Any],
        partition: int,
        last: dict[int, GlobalTime],
    ) -> None:
        self._function = function
        self._partition = partition
        self._last = last

    def last(self) -> GlobalTime | None:
        return self._last.get(self._partition)

    def store(self, bundle: StoredBundle) -> None:
        self._function(bundle)
        self._last[self._partition] = bundle.last

    def close(self) -> None:
        pass
