"""Arrangements: who computes the transactions of a region, and from when on. The acker's side.

Transactions that conflict cost messages and replays where their rows are on several workers. So a region
can be *gathered*: one worker, the host, computes all of it (`speculation.gathering`). The arrangement of
a region changes at a moment, ``since``: what is below it goes by the one before, all else by the new one.

What is guaranteed: **nothing below the moment is in flight any more when the first item at or above it
enters the region, and each worker knows the moment by then.** The acker goes through four phases, each
when all workers have said that they have dealt with the one before:

1. *Close.* Workers let in no element above those that they have let in, and say which is the last.
2. *Tell.* The moment is above all of these. Workers let in what is below it.
3. *Open.* A worker goes by the new arrangement as soon as the minimal time has reached the moment.
4. *Done.* All do. Now a worker may wish for another one.

A wish counts only if its worker knows the present arrangement. Of several, one does.
"""

from __future__ import annotations

from collections.abc import Mapping

from emberflow.engine.messages import BEFORE_ALL, Arrangement, Phase, Said

_FIRST = Arrangement(0, None, Phase.DONE, BEFORE_ALL)
_NOTHING = Said(0, Phase.DONE, BEFORE_ALL)


class Arrangements:
    """The arrangements of all regions, by rank.

    >>> arrangements = Arrangements(workers=1)
    >>> arrangements.hear(0, {7: Said(0, Phase.DONE, BEFORE_ALL, wishes=True, wish=0)})
    >>> arrangements.current[0][1].phase.name
    'CLOSE'
    >>> arrangements.hear(0, {7: Said(1, Phase.CLOSE, (5, 0))})
    >>> arrangements.current[0][1].since
    (5, 1)
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._by_rank: dict[int, Arrangement] = {}
        self._said: dict[int, list[Said]] = {}
        #: As progress has them.
        self.current: tuple[tuple[int, Arrangement], ...] = ()

    def hear(self, worker: int, said: Mapping[int, Said]) -> None:
        for rank, own in said.items():
            by_worker = self._said.setdefault(rank, [_NOTHING] * self._workers)
            by_worker[worker] = own
            before = self._by_rank.get(rank, _FIRST)
            now = _next(before, by_worker)
            if now is not before:
                self._by_rank[rank] = now
                self.current = tuple(sorted(self._by_rank.items()))


def _next(now: Arrangement, said: list[Said]) -> Arrangement:
    number, _, phase, _ = now
    if phase == Phase.DONE:
        for own in said:
            if own.wishes and own.number == number and own.wish != now.host:
                return Arrangement(number + 1, own.wish, Phase.CLOSE, now.since)
        return now
    if any(own.number != number or own.phase < phase for own in said):
        return now
    since = now.since
    if phase == Phase.CLOSE:
        time, front = max([since, *(own.through for own in said)])
        since = (time, front + 1)
    return now._replace(phase=Phase(phase + 1), since=since)
