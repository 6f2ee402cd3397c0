"""The watchdog: a minimal time that only a lost frame can hold back is an error, not silence.

What it looks for: **the least entry of the acker stays the same, no front holds the minimal time back,
and every worker has dealt with all that came to it, several times.** Then no process has the frame of
that entry, and none will ever ack it. Links notice what breaking connections lose (`wire.links`); this
is for whatever else may happen, a bug of ours among it.

A worker in whose function an element takes long sends no news, so it is not taken for idle.
"""

from __future__ import annotations

from emberflow.runners.live.wire.plan import WorkerNews
from emberflow.runners.live.wire.sockets import WireError
from emberflow.values.item import Place

#: How long the minimal time may stand still while nobody has anything to do.
STALLED_SECONDS = 15.0
#: News in which a worker has to have caught up since.
_CAUGHT_UP_MIN = 4


class StalledError(WireError):
    """Something in flight does not arrive, and nobody works on it."""


class Watchdog:
    """Hears the news of workers and looks at the least entry of the acker.

    >>> dog = Watchdog(workers=1)
    >>> dog.look(0.0, (5, 0))
    >>> dog.look(100.0, (5, 0))  # the worker has sent no news: it computes
    """

    def __init__(self, workers: int) -> None:
        self._news: dict[int, WorkerNews] = {}
        self._caught_up = [0] * workers
        self._least: Place | None = None
        self._since = 0.0

    def hear(self, news: WorkerNews) -> None:
        self._news[news.worker] = news
        if news.caught_up:
            self._caught_up[news.worker] += 1

    def look(self, now: float, least: Place | None) -> None:
        """``least`` is the least entry, if only entries hold the minimal time back."""
        if least != self._least:
            self._least, self._since = least, now
            self._caught_up = [0] * len(self._caught_up)
        elif (
            least is not None
            and now - self._since > STALLED_SECONDS
            and min(self._caught_up) >= _CAUGHT_UP_MIN
        ):
            raise StalledError(
                f"the minimal time has stood still at {least[:2]} for {now - self._since:.0f} s, "
                f"something of that time is in flight, and no worker has anything to do. "
                f"{self._lost()}"
            )

    def _lost(self) -> str:
        lost = [
            f"worker {worker} has sent {sent} messages to worker {peer}, which got "
            f"{got}; the last one was bound for {step or 'no step'}"
            for worker, news in self._news.items()
            for peer, (sent, step) in news.sent.items()
            if (got := self._news[peer].received.get(worker, 0)) != sent
        ]
        return "; ".join(lost) if lost else "Every message that workers sent to each other arrived"
