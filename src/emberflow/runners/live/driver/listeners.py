"""Events for listeners, each of which has a thread and a queue of its own.

What is guaranteed: **a listener that raises or hangs neither ends the query nor slows it, nor keeps
another listener waiting.** Posting an event appends to a queue and returns. The queue has a bound: if a
listener does not keep up, its oldest events are dropped, and counted, so it gets the latest ones and
always the last. Exceptions are logged under the listener's name. At the end each listener gets a moment
for the rest of its queue. Nothing can end a thread that is stuck in a listener's code: this is logged
too, and the thread does not keep the process alive.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from emberflow.errors import InputError, shortened
from emberflow.runners.live.listener import LiveQueryListener

EVENTS_MAX = 100
_LOOK_SECONDS = 1.0
METHODS = tuple(name for name in vars(LiveQueryListener) if name.startswith("on"))

_log = logging.getLogger("emberflow")


def check_listener(listener: object) -> None:
    """Raises `InputError` for an object without any method of a listener."""
    if not any(callable(getattr(listener, method, None)) for method in METHODS):
        raise InputError(
            f"a listener has at least one of the methods {', '.join(METHODS)}; "
            f"{shortened(listener)} has none. See emberflow.LiveQueryListener."
        )
    if isinstance(listener, type):
        raise InputError(f"a listener is an object: write .listener({listener.__name__}()).")


class Listeners:
    """All listeners of a query."""

    def __init__(self, listeners: Iterable[object]) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._dropped_before = 0
        self._callers: list[_Caller] = []
        for listener in listeners:
            self.add(listener)

    @property
    def dropped(self) -> int:
        """The number of events that were dropped because listeners were too slow."""
        with self._lock:
            return self._dropped_before + sum(caller.dropped for caller in self._callers)

    def add(self, listener: object) -> None:
        """Send it all later events. After the end there are none."""
        check_listener(listener)
        with self._lock:
            if not self._closed:
                self._callers.append(_Caller(listener))

    def remove(self, listener: object) -> None:
        """Send it nothing more, not even the events in its queue."""
        with self._lock:
            for caller in [caller for caller in self._callers if caller.listener is listener]:
                self._callers.remove(caller)
                self._dropped_before += caller.dropped
                caller.end(hear_the_rest=False)

    def post(self, method: str, event: object) -> None:
        with self._lock:
            for caller in self._callers:
                caller.post(method, event)

    def is_calling(self) -> bool:
        """Whether this thread is a listener's: it must not wait for itself."""
        with self._lock:
            return any(caller.thread is threading.current_thread() for caller in self._callers)

    def close(self, seconds: float) -> None:
        """Let all listeners finish their queues, within so many seconds in all."""
        with self._lock:
            self._closed = True
            callers = list(self._callers)
        for caller in callers:
            caller.end(hear_the_rest=True)
        deadline = time.monotonic() + seconds
        for caller in callers:
            caller.join(max(0.0, deadline - time.monotonic()))


class _Caller:
    """The thread that calls one listener."""

    def __init__(self, listener: object) -> None:
        self.listener = listener
        self.name = type(listener).__qualname__
        self.dropped = 0
        self._events: deque[tuple[str, Any]] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._calling = ""
        self.thread = threading.Thread(
            target=self._run, name=f"emberflow listener {self.name}", daemon=True
        )
        self.thread.start()

    def post(self, method: str, event: object) -> None:
        with self._changed:
            if self._ended:
                return
            if len(self._events) == EVENTS_MAX:
                self._events.popleft()
                self.dropped += 1
                if self.dropped == 1:
                    _log.warning(
                        "listener %s does not keep up: it is in %s, %d events wait for it, and the "
                        "oldest ones are dropped from now on",
                        *(self.name, self._calling, EVENTS_MAX),
                    )
            self._events.append((method, event))
            self._changed.notify()

    def end(self, *, hear_the_rest: bool) -> None:
        with self._changed:
            self._ended = True
            if not hear_the_rest:
                self._events.clear()
            self._changed.notify()

    def join(self, seconds: float) -> None:
        self.thread.join(seconds)
        if self.thread.is_alive():
            _log.warning(
                "the query is over and listener %s is still in %s: its thread is abandoned, and the "
                "events in its queue are dropped",
                *(self.name, self._calling),
            )
            self.end(hear_the_rest=False)

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            method, event = taken
            function = getattr(self.listener, method, None)
            if function is None:
                continue
            self._calling = method
            try:
                function(event)
            except Exception as error:
                _log.warning(
                    "listener %s raised in %s: %s: %s. The query goes on.",
                    *(self.name, method, type(error).__qualname__, error),
                    exc_info=error,
                )

    def _next(self) -> tuple[str, Any] | None:
        with self._changed:
            while not self._events:
                if self._ended:
                    return None
                self._changed.wait(_LOOK_SECONDS)
            return self._events.popleft()
