"""A cut of one version of a flow, as a cut of the next one.

Rows belong to steps by name, so a translation gives them other names (`graph.versions` says which),
calls the user's migrations, and leaves out what is dropped. Keys stay, and so do hashes and places: each
worker can translate its own rows, and they stay where they are. A scheduled item stays at its place,
whatever the name of its map: its time is what the user chose, and its order among items of that time is
that of the version that scheduled it.

What a step takes of a *backfill* is translated too (`backfilled_rows`, `backfilled_timers`), and added. It
begins as if it had been there always. So its scheduled items have the places that the map of the new
version would have given them, also where the backfill calls it by another name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from emberflow.engine.cuts.cut import Row, Scheduled, scheduled_row
from emberflow.engine.messages import Moment
from emberflow.errors import EmberflowError, shortened
from emberflow.graph.versions import Backfill, Carried, CarryPlan, written
from emberflow.values.item import scheduling_front
from emberflow.values.times import has_expired


class MigrationError(EmberflowError):
    """A user's migration raised an error; that is the ``__cause__``."""


def translated_rows(rows: Iterable[Row], plan: CarryPlan, moment: Moment) -> Iterator[Row]:
    """The rows of a full cut of the old version at a moment, for the new one. Keys whose time is over by
    then are not among them, however long they would live in the new version.

    >>> plan = CarryPlan(
    ...     {"old": Carried("new", lambda key, n: -n, None)}, {}, frozenset({"gone"}), ()
    ... )
    >>> rows = [Row("old", 1, "a", (1, 0), 5), Row("gone", 1, "a", (1, 0), 6)]
    >>> [(row.operation, row.key, row.payload) for row in translated_rows(rows, plan, (9, 0))]
    [('new', 'a', -5)]
    """
    kept = (row for row in rows if row.operation not in plan.dropped)
    yield from _given(kept, plan.carried, moment)


def backfilled_rows(rows: Iterable[Row], backfill: Backfill) -> Iterator[Row]:
    """The rows of the cut of a backfill that the new version begins with."""
    taken = backfill.carried
    return _given((row for row in rows if row.operation in taken), taken, backfill.cut.moment)


def _given(rows: Iterable[Row], taken: Mapping[str, Carried], moment: Moment) -> Iterator[Row]:
    #: By grouping and key: its items. The new grouping may keep fewer of them.
    groups: dict[tuple[str, Any], list[Row]] = {}
    for row in rows:
        carried = taken[row.operation]
        if has_expired(row.place[0], carried.expires, moment[0]):
            continue
        if carried.kept is None:
            yield row._replace(operation=carried.new, payload=_migrated(row, carried))
        else:
            groups.setdefault((row.operation, row.key), []).append(row)
    for (operation, _), items in groups.items():
        carried = taken[operation]
        items.sort(key=lambda row: row.place)
        for row in items[max(0, len(items) - (carried.kept or 0)) :]:
            yield row._replace(operation=carried.new, payload=_migrated(row, carried))


def translated_timers(scheduled: Iterable[Scheduled], plan: CarryPlan) -> Iterator[Scheduled]:
    """The scheduled items of a cut of the old version, for the new one."""
    for item in scheduled:
        timer = plan.timer(item.operation)
        if timer is not None:
            plan.check_place(item.operation, item.place)
            yield item._replace(operation=timer)


def backfilled_timers(scheduled: Iterable[Scheduled], backfill: Backfill) -> Iterator[Scheduled]:
    """The scheduled items of the cut of a backfill that the new version begins with."""
    for item in scheduled:
        timer = backfill.timer(item.operation)
        if timer is None:
            continue
        if timer == item.operation:
            yield item
        else:
            time, _, *rest = item.place
            place = (time, scheduling_front(timer), *rest)
            yield scheduled_row(timer, item.origin, place, item.payload)


def _migrated(row: Row, carried: Carried) -> Any:
    if carried.migrate is None:
        return row.payload
    try:
        return carried.migrate(row.key, row.payload)
    except Exception as error:
        raise MigrationError(
            f"the migration of step {written(carried.new)!r} raised {type(error).__name__}: {error}. It was called "
            f"with the key {shortened(row.key)} and the value {shortened(row.payload)}."
        ) from error
