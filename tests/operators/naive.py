"""Event time, windows and interval joins by brute force, from their definitions alone.

Nothing of the library is used here. Each moment is looked at, one after another, and at each of them all
windows are found anew from all rows that have entered by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

Span = tuple[int, int]


class Row(NamedTuple):
    """A row of a source: its own time, a key, and a number that tells it from all others."""

    at: int
    key: str
    number: int


class Entry(NamedTuple):
    """A row as it enters: when, its rank among those of all partitions, and whether it is late."""

    rank: tuple[int, int, int]
    row: Row
    is_late: bool

    @property
    def time(self) -> int:
        return self.rank[0]


def entries(
    partitions: list[list[Row]], disorder: int, *, front: int = 0, fronts: int = 1
) -> list[Entry]:
    """All rows of a front, in order. A row below what its partition has promised is late."""
    found = []
    for number, rows in enumerate(partitions):
        times: list[int] = []
        for place, row in enumerate(rows):
            promised = max((one.at for one in rows[:place]), default=row.at) - disorder
            time = max(row.at, promised)
            tie = times.count(time)
            times.append(time)
            found.append(Entry((time, tie, front + fronts * number), row, row.at < promised))
    return sorted(found)


class Update(NamedTuple):
    """What is told of a window of a key, and when."""

    time: int
    kind: str
    window: Span
    value: Any


class Windows(NamedTuple):
    """A window operator: a size and slide, or a gap, and what it tells.

    Windows of a size and a slide also come in steps if there is one: those that are shorter.
    """

    size: int = 0
    slide: int = 0
    step: int = 0
    offset: int = 0
    gap: int = 0
    emit: str = "update"
    early: int | None = None
    #: None: for ever. 0 for windows that take no late rows.
    keep: int | None = 0

    def spans(self, own_times: list[int]) -> set[Span]:
        """All windows that hold rows of these times."""
        if self.gap:
            return set(self._sessions(sorted(own_times)))
        return {span for own in own_times for span in self.spans_of(own)}

    def spans_of(self, own: int) -> list[Span]:
        """All windows that contain a time, by trying every start."""
        if self.gap:
            return [(own, own + self.gap)]
        starts = range(own - self.size + 1, own + 1)
        step = self.step or self.size
        return [
            (start, end)
            for start in starts
            if (start - self.offset) % self.slide == 0
            for end in range(start + step, start + self.size + 1, step)
            if own < end
        ]

    def _sessions(self, own_times: list[int]) -> Iterator[Span]:
        while own_times:
            first = last = own_times[0]
            while own_times and own_times[0] - last < self.gap:
                last = own_times.pop(0)
            yield first, last + self.gap

    def has_forgotten(self, span: Span, time: int) -> bool:
        return self.keep is not None and span[1] + self.keep <= time


def updates(windows: Windows, given: list[tuple[int, int, Any]]) -> list[Update]:
    """All that is told of the windows of a key, by the item's time, own time and value of its rows."""
    told: list[Update] = []
    shown: set[Span] = set()  # windows that have a row in a consumer's table
    changed: set[Span] = set()  # windows whose value was not told since it changed
    entered: list[tuple[int, Any]] = []
    spans: set[Span] = set()

    def add(own: int, value: Any) -> set[Span]:
        """The windows that are no more."""
        nonlocal spans
        entered.append((own, value))
        before, spans = spans, windows.spans([own for own, _ in entered])
        return before - spans

    def tell(time: int, kind: str, span: Span) -> None:
        value = tuple(value for own, value in entered if span[0] <= own < span[1])
        told.append(Update(time, kind, span, value))
        shown.add(span)
        changed.discard(span)

    def enter(time: int, own: int, value: Any) -> None:
        mine = windows.spans_of(own)
        if windows.gap:
            ((start, end),) = mine
            met = [span for span in spans if span[0] < end and start < span[1]]
            lost = [span for span in met or mine if windows.has_forgotten(span, time)]
            if lost:
                told.append(Update(time, "missed", (start, end), value))
                return
            gone = sorted(add(own, value) & shown)
            told.extend(Update(time, "gone", span, None) for span in gone)
            mine = [span for span in spans if span[0] <= own < span[1]]
        else:
            add(own, value)
        for span in mine:
            if windows.has_forgotten(span, time):
                told.append(Update(time, "missed", span, value))
            elif span[1] <= time:
                tell(time, "late", span)
            elif windows.emit == "update":
                tell(time, "early", span)
            else:
                changed.add(span)

    times = [time for time, _, _ in given]
    ends = [end for _, own, _ in given for _, end in windows.spans_of(own)]
    for time in range(min(times, default=0), max(times + ends, default=0) + 1):
        if windows.emit == "close":
            for span in sorted(spans):
                is_early_time = windows.early and (time - span[0]) % windows.early == 0
                if span[1] == time:
                    tell(time, "final", span)
                elif span in changed and is_early_time and span[0] < time < span[1]:
                    tell(time, "early", span)
        for at, own, value in given:
            if at == time:
                enter(time, own, value)
    return told


def table(windows: Windows, given: list[tuple[int, int, Any]], time: int) -> dict[Span, Any]:
    """The windows that have ended by a time, and their values: those of rows that have entered by then."""
    entered = [(own, value) for at, own, value in given if at <= time]
    return {
        span: tuple(value for own, value in entered if span[0] <= own < span[1])
        for span in windows.spans([own for own, _ in entered])
        if span[1] <= time
    }


def pairs(left: list[Entry], right: list[Entry], low: int, high: int) -> list[tuple[Row, Row]]:
    """Each pair of equal keys with ``low <= right's time - left's <= high``, at its later row."""
    found = []
    for one in left:
        for other in right:
            if one.row.key == other.row.key and low <= other.time - one.time <= high:
                later, earlier = max(one.rank, other.rank), min(one.rank, other.rank)
                found.append((later, earlier, (one.row, other.row)))
    return [pair for _, _, pair in sorted(found)]
