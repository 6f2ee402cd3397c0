"""Random flows, drawn from a seed, on which all runners must agree.

`random_flow(random)` draws a flow and the elements of its fronts. All payloads between operators
are small ints, so any operator can follow any other. What an operator needs inside (keys, tuples,
rounds left in a loop) it makes of ints and turns back into an int.

Every flow ends: whatever goes round a loop carries the number of rounds it has left. Every flow
stays small: a stream with too many items is thinned before it is read again.

The functions are closures over numbers and call nothing of this module, so that they can be pickled
by value. The name of a flow lists the operators it was drawn from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

from hypothesis import strategies as st

import emberflow as ef

Elements: TypeAlias = dict[str, list[Any]]
Ints: TypeAlias = "ef.Stream[int]"

FRONTS_MAX = 3
ELEMENTS_MAX = 12
OPERATORS_MIN, OPERATORS_MAX = 3, 10
ROUNDS_MAX = 3

#: About how many items an element may become on a stream before the stream is thinned.
BREADTH_MAX = 4.0


def random_flow(random: Random) -> tuple[ef.Flow, Elements]:
    """A flow of 3 to 10 operators with 1 to 3 fronts, and 0 to 12 elements for each front."""
    plan = _plan(random)
    flow = ef.Flow(" ".join(plan))
    return flow, _add_random(random, flow, plan)


def random_flows_together(randoms: list[Random]) -> tuple[ef.Flow, Elements]:
    """Several random flows as parts of one flow, for runners that take long to start."""
    flow = ef.Flow("several random flows")
    elements: Elements = {}
    for number, random in enumerate(randoms):
        elements |= _add_random(random, flow, _plan(random), f"{number}-")
    return flow, elements


def _plan(random: Random) -> list[str]:
    return random.choices(list(OPERATORS), k=random.randint(OPERATORS_MIN, OPERATORS_MAX))


def _add_random(random: Random, flow: ef.Flow, plan: list[str], prefix: str = "") -> Elements:
    draft = _Draft(random, flow, prefix)
    fronts = [f"{prefix}front-{number}" for number in range(random.randint(1, FRONTS_MAX))]
    for front in fronts:
        draft.add(flow.front(front), 1.0)
    for operator in plan:
        OPERATORS[operator](draft)
    draft.end()
    return {front: _elements(random) for front in fronts}


def random_flows() -> st.SearchStrategy[tuple[ef.Flow, Elements]]:
    """The same for hypothesis, which can shrink a failing flow."""
    return st.randoms(use_true_random=False).map(random_flow)


def _elements(random: Random) -> list[Any]:
    # The greater of two draws: flows without elements are worth testing, but rarely.
    length = max(random.randint(0, ELEMENTS_MAX), random.randint(0, ELEMENTS_MAX))
    payloads = [random.randint(-9, 9) for _ in range(length)]
    if random.random() < 0.4:
        return payloads
    times = random.sample(range(-12, 30), len(payloads))  # in any order
    return [ef.At(time, payload) for time, payload in zip(times, payloads, strict=True)]


@dataclass
class _Open:
    """A stream that may be read (again), and about how many items an element becomes on it."""

    stream: Ints
    breadth: float
    is_read: bool = False


class _Draft:
    """A flow under construction."""

    def __init__(self, random: Random, flow: ef.Flow, prefix: str) -> None:
        self.random = random
        self.flow = flow
        self.prefix = prefix
        self.streams: list[_Open] = []

    def add(self, stream: Ints, breadth: float) -> None:
        self.streams.append(_Open(stream, breadth))

    def take(self) -> tuple[Ints, float]:
        """A stream to read: mostly one that nothing reads yet."""
        unread = [open_ for open_ in self.streams if not open_.is_read]
        read_again = not unread or self.random.random() < 0.15
        taken = self.random.choice(self.streams if read_again else unread)
        taken.is_read = True
        stream, breadth = taken.stream, taken.breadth
        while breadth > BREADTH_MAX:
            stream = stream.filter(thinning(self.random.randint(0, 2)))
            breadth /= 3
        return stream, breadth

    def take_anywhere(self) -> tuple[Ints, float]:
        """As `take`; some streams get a key first, which must not change the output."""
        stream, breadth = self.take()
        if self.random.random() < 0.25:
            stream = stream.key_by(self.key())
        return stream, breadth

    def take_keyed(self) -> tuple[ef.KeyedStream[Any, int], float]:
        stream, breadth = self.take()
        return stream.key_by(self.key()), breadth

    def key(self) -> Callable[[int], Any]:
        return self.random.choice([modulo_key(1), modulo_key(2), modulo_key(3), mixed_key()])

    def change(self) -> Callable[[int], int]:
        return affine(self.random.randint(1, 5), self.random.randint(-3, 3))

    def flip(self) -> bool:
        return self.random.random() < 0.5

    def end(self) -> None:
        """Send every unread stream to a sink: some merged, some with partitions."""
        unread = [open_.stream for open_ in self.streams if not open_.is_read]
        while len(unread) > 3 or (len(unread) > 1 and self.random.random() < 0.3):
            self.random.shuffle(unread)
            unread = [ef.merge(*unread[:2]), *unread[2:]]
        for number, stream in enumerate(unread):
            if self.random.random() < 0.3:
                stream.key_by(self.key()).sink(f"{self.prefix}sink-{number}", partitions=3)
            else:
                stream.sink(f"{self.prefix}sink-{number}")


def lifetime(random: Random) -> int | None:
    """A time to live for what a step keeps, or none. All other draws are as they would be without it."""
    own = Random(repr(random.getstate()))
    return own.choice((None, None, 1, 3, 8)) if own.random() < 0.6 else None


# --- The operators: each takes streams of ints from the draft and adds streams of ints to it ------


def _map(draft: _Draft) -> None:
    stream, breadth = draft.take_anywhere()
    draft.add(stream.map(draft.change()), breadth)


def _flat_map(draft: _Draft) -> None:
    stream, breadth = draft.take_anywhere()
    draft.add(stream.flat_map(several(draft.change(), draft.random.randint(2, 4))), 1.5 * breadth)


def _filter(draft: _Draft) -> None:
    stream, breadth = draft.take_anywhere()
    draft.add(stream.filter(unless(draft.random.randint(2, 4))), breadth)


def _with_time(draft: _Draft) -> None:
    stream, breadth = draft.take_anywhere()
    draft.add(stream.with_time().map(of_timed()), breadth)


def _schedule(draft: _Draft) -> None:
    """Schedule for later, for now and later, or for the times at which windows end."""
    stream, breadth = draft.take_anywhere()
    kind = draft.random.choice([later, echo, together])
    draft.add(stream.with_time().flat_map(kind(draft.change())), 2 * breadth)


def _diamond(draft: _Draft) -> None:
    """One stream split into two or three, and merged again."""
    stream, breadth = draft.take()
    copies = draft.random.randint(2, 3)
    branches = stream.broadcast(copies) if draft.flip() else (stream,) * copies
    ways = [branch.map(draft.change()) if draft.flip() else branch for branch in branches[:-1]]
    ways.append(branches[-1].key_by(draft.key()).group(window=2).map(of_tuple()))
    draft.random.shuffle(ways)
    draft.add(ef.merge(*ways), copies * breadth)


def _broadcast(draft: _Draft) -> None:
    stream, breadth = draft.take_anywhere()
    for copy in stream.broadcast(2):
        draft.add(copy, breadth)


def _merge(draft: _Draft) -> None:
    (one, breadth), (other, breadth_of_other) = draft.take(), draft.take()
    draft.add(ef.merge(one, other), breadth + breadth_of_other)


def _group(draft: _Draft) -> None:
    stream, breadth = draft.take_keyed()
    draft.add(stream.group(window=draft.random.randint(1, 4)).map(of_tuple()), breadth)


def _reduce(draft: _Draft) -> None:
    stream, breadth = draft.take_keyed()
    mixing = mixed(draft.random.randint(2, 4))
    life = lifetime(draft.random)
    if draft.flip():
        reduced = stream.reduce(first=draft.change(), combine=mixing, expire_after=life)
    else:
        pairs = stream.reduce(
            first=draft.change(), combine=mixing, with_key=True, expire_after=life
        )
        reduced = pairs.map(of_pair())
    draft.add(reduced, breadth)


def _drift_by_hand(draft: _Draft) -> None:
    """`reduce` written with a loop, as a user would, so that no runner recognises it."""
    stream, breadth = draft.take()
    accumulator = draft.flow.loop()
    mapped = stream.map(marked(draft.key()))
    tuples = ef.merge(mapped, accumulator).key_by(first_of()).group(window=2)
    combined = tuples.flat_map(drifting(mixed(draft.random.randint(2, 4))))
    accumulator.close(combined)
    draft.add(combined.map(last_of()), breadth)


def _fold(draft: _Draft) -> None:
    stream, breadth = draft.take_keyed()
    life = lifetime(draft.random)
    folded = stream.fold(initial=draft.random.randint(-9, 9), combine=mixed(3), expire_after=life)
    draft.add(folded, breadth)


def _aggregate(draft: _Draft) -> None:
    """count, sum, min, max, mean or top."""
    stream, breadth = draft.take_keyed()
    of = draft.random.choice([None, draft.change()])
    life = lifetime(draft.random)
    pairs: ef.Stream[Any] = draft.random.choice(
        [
            lambda: stream.count(expire_after=life),
            lambda: stream.sum(of, expire_after=life),
            lambda: stream.min(of, expire_after=life),
            lambda: stream.max(of, expire_after=life),
            lambda: stream.mean(of, expire_after=life),
            lambda: stream.top(draft.random.randint(1, 3), by=of, expire_after=life),
        ]
    )()
    draft.add(pairs.map(of_pair()), breadth)


def _several(draft: _Draft) -> None:
    """Several aggregates at once, some of them over some payloads only."""
    stream, breadth = draft.take_keyed()
    life = lifetime(draft.random)
    draft.add(stream.aggregate(expire_after=life, **_aggregates(draft)).map(of_pair()), breadth)


def _aggregates(draft: _Draft) -> dict[str, Any]:
    of = draft.random.choice([None, draft.change()])
    where = draft.random.choice([None, unless(draft.random.randint(2, 3))])
    known: dict[str, Callable[[], Any]] = {
        "number": lambda: ef.count(where=where),
        "total": lambda: ef.sum(of, where=where),
        "low": lambda: ef.min(of, where=where),
        "best": lambda: ef.max(of, by=draft.change(), where=where),
        "mean": lambda: ef.mean(of, where=where),
        "first": lambda: ef.first(of, where=where),
        "last": lambda: ef.last(of),
        "all": lambda: ef.collect(of, where=where),
        "values": lambda: ef.distinct(of),
        "kinds": lambda: ef.count_distinct(of, where=where),
        "top": lambda: ef.top(2, by=of, where=where),
        "own": lambda: ef.Aggregate(first=draft.change(), combine=mixed(3)),
    }
    chosen = draft.random.sample(sorted(known), draft.random.randint(1, 4))
    return {name: known[name]() for name in chosen}


def _distinct(draft: _Draft) -> None:
    stream, breadth = draft.take()
    ttl = draft.random.choice([None, 1, 4, 9])
    draft.add((stream.key_by(draft.key()) if draft.flip() else stream).distinct(ttl=ttl), breadth)


def _rank(draft: _Draft) -> None:
    stream, breadth = draft.take_keyed()
    by = draft.random.choice([None, draft.change()])
    draft.add(stream.rank(by=by).map(of_pair()), breadth)


def _over(draft: _Draft) -> None:
    stream, breadth = draft.take_keyed()
    random = draft.random
    over = (
        stream.over(rows=random.randint(1, 4))
        if draft.flip()
        else stream.over(last=random.randint(0, 7))
    )
    if draft.flip():
        draft.add(over.aggregate(**_aggregates(draft)).map(of_pair()), breadth)
    else:
        draft.add(over.sum().map(of_pair()), breadth)


def _time_window(draft: _Draft) -> None:
    random = draft.random
    kind = random.choice(["tumbling", "sliding", "cumulate", "own"])
    if kind == "own":
        _window(draft, own_windows(random.randint(2, 6)), 2.0)
    elif kind == "cumulate":
        step, steps = random.choice([(1, 3), (3, 1), (2, 3)])
        _window(draft, ef.Cumulate(step, step * steps, offset=random.choice([0, 1])), steps / 1.5)
    elif kind == "tumbling":
        _window(draft, ef.Tumbling(random.choice([1, 3, 5]), offset=random.choice([0, -1, 2])), 1.0)
    else:
        size, slide = random.choice([(5, 5), (6, 2), (2, 3), (10, 5)])
        _window(draft, ef.Sliding(size, slide, offset=random.choice([0, 1])), max(1, size / slide))


def _session(draft: _Draft) -> None:
    _window(draft, ef.Session(draft.random.randint(1, 5)), 1.0)


def _per_window(draft: _Draft) -> None:
    """The results of all keys of a window."""
    stream, breadth = draft.take_keyed()
    spec: Any = draft.random.choice(
        [ef.Tumbling(4), ef.Sliding(4, 2), ef.Session(3), ef.Cumulate(2, 4), own_windows(3)]
    )
    together = stream.window(spec, emit="close").sum().per_window()
    results: ef.Stream[ef.WindowResult] = draft.random.choice(
        [
            lambda: together.count(),
            lambda: together.aggregate(
                total=ef.sum(last_of()), best=ef.max(last_of(), by=last_of())
            ),
            lambda: together.top(2, by=last_of()).map(values_of()),
        ]
    )()
    draft.add(results.map(of_window()), breadth)


def _count_window(draft: _Draft) -> None:
    size, slide = draft.random.choice([(1, None), (3, None), (3, 1), (2, 3)])
    _window(draft, ef.CountWindow(size, slide), 3.0 if slide == 1 else 1.0)


def _window(draft: _Draft, windows: Any, broadening: float) -> None:
    stream, breadth = draft.take_keyed()
    windowed = stream.window(windows, emit=draft.random.choice(["update", "close"]))
    of = draft.random.choice([None, draft.change()])
    results: ef.Stream[ef.WindowResult] = draft.random.choice(
        [
            lambda: windowed.count(),
            lambda: windowed.sum(of),
            lambda: windowed.min(of),
            lambda: windowed.max(of),
            lambda: windowed.mean(of),
            lambda: windowed.collect(),
            lambda: windowed.reduce(first=draft.change(), combine=mixed(3)),
            lambda: windowed.fold(initial=1, combine=mixed(2)),
            lambda: windowed.top(2, by=of),
            lambda: windowed.aggregate(**_aggregates(draft)),
        ]
    )()
    draft.add(results.map(of_window()), broadening * breadth)


def _join(draft: _Draft) -> None:
    """All kinds of joins: of everything, within an interval, in windows, and with the latest."""
    (left, breadth), (right, breadth_of_other) = draft.take(), draft.take()
    random, key = draft.random, draft.key()
    one, other = left.key_by(key), right.key_by(key)
    bound: dict[str, Any] = random.choice(
        [
            {},
            {"within": random.choice([3, (0, 4), (-4, -1), (1, 5), (-2, 0)])},
            {"window": random.choice([ef.Tumbling(4), ef.Sliding(6, 3), ef.Session(2)])},
        ]
    )
    how: Any = random.choice(
        ["inner", "semi", *(["left", "right", "outer", "anti"] if bound else [])]
    )
    if not bound and draft.flip():
        draft.add(one.join_latest(other, mixed(3)), breadth + breadth_of_other)
    elif how in ("semi", "anti"):
        draft.add(one.join(other, how=how, **bound), breadth)
    else:
        combine = mixed_where_there(random.randint(2, 4))
        # All pairs are many, so what is joined without a bound is thinned first.
        if not bound:
            one, other = (side.filter(unless(2)).key_by(key) for side in (left, right))
        draft.add(one.join(other, combine, how=how, **bound), 2.0 * (breadth + breadth_of_other))


def _enrich(draft: _Draft) -> None:
    (stream, breadth), (table, _) = draft.take(), draft.take()
    key = draft.key()
    enriched = stream.key_by(key).enrich(table.key_by(key), mixed(4), default=5)
    draft.add(enriched, breadth)


def _changes(draft: _Draft) -> None:
    """A table of the latest values, mapped or filtered, in groups, aggregated."""
    stream, breadth = draft.take_keyed()
    random = draft.random
    table: ef.Changes[Any, int] = stream.changes(
        deletes=thinning(random.randint(0, 2)) if draft.flip() else None
    )
    table = random.choice(
        [
            lambda: table,
            lambda: table.map(draft.change()),
            lambda: table.filter(unless(random.randint(2, 4))),
        ]
    )()
    groups = table.group_by(draft.key())
    of = random.choice([None, draft.change()])
    changes: ef.Changes[Any, Any] = random.choice(
        [
            lambda: groups.count(),
            lambda: groups.sum(of),
            lambda: groups.mean(of),
            lambda: groups.min(of),
            lambda: groups.max(of),
            lambda: groups.count_distinct(of),
            lambda: groups.collect(of),
            lambda: groups.fold(initial=3, combine=mixed(2)),
            lambda: ef.changes_from(table.latest()),
        ]
    )()
    if draft.flip():
        draft.add(changes.latest().map(of_upsert()), 2 * breadth)
    else:
        draft.add(changes.as_stream().map(of_change()), 2 * breadth)


def _changes_join(draft: _Draft) -> None:
    """Two tables joined, by key or by groups; or a stream enriched with a table."""
    (left, breadth), (right, breadth_of_other) = draft.take(), draft.take()
    random, key, group = draft.random, draft.key(), draft.key()
    other = right.key_by(key).changes(deletes=thinning(1))
    how: Any = random.choice(["inner", "left", "right", "outer", "semi", "anti"])
    combine: Any = () if how in ("semi", "anti") else (mixed_where_there(3),)
    kind = random.choice(["by key", "by group", "enrich"])
    if kind == "enrich":
        draft.add(left.key_by(key).enrich(other, mixed(3), default=4), breadth)
        return
    table = left.key_by(key).changes()
    joined: ef.Changes[Any, int] = (
        table.join(other, *combine, how=how)
        if kind == "by key"
        else table.group_by(group).join(other.group_by(group), *combine, how=how)
    )
    draft.add(joined.as_stream().map(of_change()), 2.0 * (breadth + breadth_of_other))


def _loop(draft: _Draft) -> None:
    """A general loop, whose items are ``(rounds left, value)``.

    The key depends on the value, so it changes from round to round. The loop contains a grouping, a
    reduce or a window. It feeds back at once or later, once or twice, and its output is taken before
    or after the feedback.
    """
    stream, breadth = draft.take()
    random = draft.random
    again = draft.flow.loop()
    entering = stream.map(with_rounds(ROUNDS_MAX))
    inputs = [entering, again]
    random.shuffle(inputs)
    keyed = ef.merge(*inputs).key_by(on_value(draft.key()))
    round_: ef.Stream[Any] = random.choice(
        [
            lambda: keyed.group(window=random.randint(1, 3)).map(round_of_tuple()),
            lambda: keyed.reduce(first=round_kept(), combine=round_mixed()),
            lambda: keyed.distinct(),
            lambda: (
                keyed.window(ef.Tumbling(3), emit="close")
                .reduce(first=round_kept(), combine=round_mixed())
                .map(last_of())
            ),
            lambda: keyed.enrich(draft.take()[0].key_by(draft.key()), round_enriched(), default=2),
        ]
    )()
    changed = round_.map(round_changed(draft.change()))
    ways = changed.broadcast(2) if draft.flip() else (changed, changed)
    out, back = ways if draft.flip() else ways[::-1]
    feedback = random.choice(
        [
            lambda: back.flat_map(next_round()),
            lambda: back.flat_map(two_next_rounds()),
            lambda: back.with_time().flat_map(next_round_later()),
        ]
    )()
    again.close(feedback)
    if draft.flip():
        out = out.filter(rounds_over())
    draft.add(out.map(last_of()), 3 * breadth)


def _two_loops(draft: _Draft) -> None:
    """Two loops around one grouping; one of them has a second grouping."""
    stream, breadth = draft.take()
    near, far = draft.flow.loop(), draft.flow.loop()
    entering = stream.map(with_rounds(ROUNDS_MAX + 1))
    merged = (
        ef.merge(ef.merge(entering, far), near) if draft.flip() else ef.merge(far, near, entering)
    )
    grouped = merged.key_by(on_value(draft.key())).group(window=2).map(round_of_tuple())
    near.close(grouped.filter(rounds_odd(1)).flat_map(next_round()))
    beyond = grouped.map(round_changed(draft.change())).key_by(on_value(draft.key()))
    beyond_grouped = beyond.group(window=2).map(round_of_tuple())
    far.close(beyond_grouped.filter(rounds_odd(0)).flat_map(next_round()))
    draft.add(beyond_grouped.map(last_of()), 3 * breadth)


OPERATORS: dict[str, Callable[[_Draft], None]] = {
    "map": _map,
    "flat_map": _flat_map,
    "filter": _filter,
    "with_time": _with_time,
    "schedule": _schedule,
    "diamond": _diamond,
    "broadcast": _broadcast,
    "merge": _merge,
    "group": _group,
    "reduce": _reduce,
    "drift_by_hand": _drift_by_hand,
    "fold": _fold,
    "aggregate": _aggregate,
    "several": _several,
    "distinct": _distinct,
    "rank": _rank,
    "over": _over,
    "time_window": _time_window,
    "session": _session,
    "count_window": _count_window,
    "per_window": _per_window,
    "join": _join,
    "enrich": _enrich,
    "changes": _changes,
    "changes_join": _changes_join,
    "loop": _loop,
    "two_loops": _two_loops,
}


# --- Functions on ints from -9 to 9 ---------------------------------------------------------------


def affine(factor: int, summand: int) -> Callable[[int], int]:
    return lambda n: (factor * n + summand) % 19 - 9


def several(change: Callable[[int], int], modulus: int) -> Callable[[int], list[int]]:
    return lambda n: [change(n + i) for i in range(n % modulus)]


def unless(modulus: int) -> Callable[[int], bool]:
    return lambda n: n % modulus != 0


def thinning(rest: int) -> Callable[[int], bool]:
    return lambda n: n % 3 == rest


def mixed(factor: int) -> Callable[[int, int], int]:
    """A function of two ints that depends on their order."""
    return lambda one, other: (factor * one + other + 1) % 19 - 9


def mixed_where_there(factor: int) -> Callable[[int | None, int | None], int]:
    """The same, also for one that is not there."""

    def of(one: int | None, other: int | None) -> int:
        return (factor * (7 if one is None else one) + (5 if other is None else other) + 1) % 19 - 9

    return of


def modulo_key(modulus: int) -> Callable[[int], int]:
    return lambda n: n % modulus


def mixed_key() -> Callable[[int], Any]:
    """Keys of several types; `True` and `1` are one key."""
    return lambda n: (None, "a", ("a", n % 2), 1, True)[n % 5]


def of_tuple() -> Callable[[tuple[int, ...]], int]:
    return lambda ns: sum((i + 1) * n for i, n in enumerate(ns)) % 19 - 9


def of_value() -> Callable[[Any], int]:
    """From a number, None or (named) tuples of them to an int; a mean is a float."""

    def code(value: Any) -> int:
        if isinstance(value, tuple):
            return sum((i + 1) * code(v) for i, v in enumerate(value))
        return 7 if value is None else int(4 * value)

    return code


def of_pair() -> Callable[[tuple[Any, Any]], int]:
    """From ``(key, value)`` to an int."""
    code = of_value()
    return lambda pair: (code(pair[1]) + len(str(pair[0]))) % 19 - 9


def of_upsert() -> Callable[[tuple[Any, Any]], int]:
    """From ``(key, number, numbers or None)`` to an int."""

    def of(upsert: tuple[Any, Any]) -> int:
        key, value = upsert
        values = value if isinstance(value, tuple) else (7 if value is None else value,)
        return (sum((i + 2) * int(4 * v) for i, v in enumerate(values)) + len(str(key))) % 19 - 9

    return of


def of_change() -> Callable[[ef.Change[Any, Any]], int]:
    upsert = of_upsert()
    return lambda change: (
        (3 * upsert((change.key, change.before)) + upsert((change.key, change.after))) % 19 - 9
    )


def of_window() -> Callable[[ef.WindowResult], int]:
    code = of_value()

    def of(result: ef.WindowResult) -> int:
        return (code(result.value) + 2 * result.window.start + 3 * result.window.end) % 19 - 9

    return of


def values_of() -> Callable[[ef.WindowResult], ef.WindowResult]:
    """Of the results of several keys, their values."""
    return lambda result: result._replace(value=tuple(each.value for each in result.value))


def own_windows(size: int) -> ef.Windows:
    """Windows of a user's own: some times are in none, some in two that end together."""

    class Own:
        def containing(self, time: int) -> list[tuple[int, int]]:
            start = time - time % (2 * size)
            windows = [(start, start + size), (start + 1, start + size)]
            return [window for window in windows if window[0] <= time < window[1]]

    return Own()


def of_timed() -> Callable[[ef.Timed[int]], int]:
    return lambda timed: (timed.time + 2 * timed.payload) % 19 - 9


def later(change: Callable[[int], int]) -> Callable[[ef.Timed[int]], list[Any]]:
    return lambda timed: [ef.At(timed.time + 1 + timed.payload % 4, change(timed.payload))]


def echo(change: Callable[[int], int]) -> Callable[[ef.Timed[int]], list[Any]]:
    def images(timed: ef.Timed[int]) -> list[Any]:
        time, n = timed
        scheduled = [ef.At(time + 2, change(n)), ef.At(time + 2, n), ef.At(time + 1, change(n + 1))]
        return [n, *scheduled[: n % 4]]

    return images


def together(change: Callable[[int], int]) -> Callable[[ef.Timed[int]], list[Any]]:
    def images(timed: ef.Timed[int]) -> list[Any]:
        time, n = timed
        return [ef.At((time // 5 + 1) * 5, change(n)), *([n] if n % 2 else [])]

    return images


# --- Drifting state by hand: payloads are ``(key, is accumulator, value)`` ------------------------


def first_of() -> Callable[[Any], Any]:
    return lambda parts: parts[0]


def last_of() -> Callable[[Any], Any]:
    """The last part of a triple, of a window's result, or of ``(rounds, value)``."""
    return lambda parts: parts[-1]


def marked(key: Callable[[int], Any]) -> Callable[[int], tuple[Any, bool, int]]:
    return lambda n: (key(n), False, n)


def drifting(combine: Callable[[int, int], int]) -> Callable[[tuple[Any, ...]], list[Any]]:
    def combined(window: tuple[Any, ...]) -> list[Any]:
        key, newest_is_accumulator, value = window[-1]
        if newest_is_accumulator:
            return []
        if len(window) == 1:
            return [(key, True, value)]
        _, is_accumulator, held = window[0]
        return [(key, True, combine(held, value))] if is_accumulator else []

    return combined


# --- In loops: payloads are ``(rounds left, value)`` ----------------------------------------------


def with_rounds(most: int) -> Callable[[int], tuple[int, int]]:
    return lambda n: (n % (most + 1), n)


def on_value(key: Callable[[int], Any]) -> Callable[[tuple[int, int]], Any]:
    return lambda pair: key(pair[1])


def round_of_tuple() -> Callable[[tuple[tuple[int, int], ...]], tuple[int, int]]:
    """The result has the rounds of the newest item: no other item may give it more."""
    return lambda pairs: (
        pairs[-1][0],
        sum((i + 1) * value for i, (_, value) in enumerate(pairs)) % 19 - 9,
    )


def round_kept() -> Callable[[tuple[int, int]], tuple[int, int]]:
    return lambda pair: pair


def round_mixed() -> Callable[[tuple[int, int], tuple[int, int]], tuple[int, int]]:
    return lambda held, pair: (pair[0], (2 * held[1] + pair[1]) % 19 - 9)


def round_enriched() -> Callable[[tuple[int, int], int], tuple[int, int]]:
    return lambda pair, n: (pair[0], (pair[1] + 3 * n) % 19 - 9)


def round_changed(change: Callable[[int], int]) -> Callable[[tuple[int, int]], tuple[int, int]]:
    return lambda pair: (pair[0], change(pair[1]))


def rounds_over() -> Callable[[tuple[int, int]], bool]:
    return lambda pair: pair[0] == 0


def rounds_odd(rest: int) -> Callable[[tuple[int, int]], bool]:
    return lambda pair: pair[0] % 2 == rest


def next_round() -> Callable[[tuple[int, int]], list[tuple[int, int]]]:
    return lambda pair: [(pair[0] - 1, pair[1])] if pair[0] > 0 else []


def two_next_rounds() -> Callable[[tuple[int, int]], list[tuple[int, int]]]:
    return lambda pair: [(pair[0] - 1, pair[1]), (0, -pair[1])] if pair[0] > 0 else []


def next_round_later() -> Callable[[ef.Timed[tuple[int, int]]], list[Any]]:
    def images(timed: ef.Timed[tuple[int, int]]) -> list[Any]:
        time, (rounds, value) = timed
        return [ef.At(time + 1 + value % 3, (rounds - 1, value))] if rounds > 0 else []

    return images
