"""A flow of list-append transactions, and the history that its outputs show.

Each element is a transaction over two states of lists. In this order, which is that of places, it

1. reads some keys of ``lists``,
2. appends to some keys of ``lists``; a check of the resulting list may refuse,
3. appends to some keys of ``more``,
4. *chases*: reads a key of ``lists``, and its value decides to which key of ``more`` it appends,
5. reads some keys of both,

and a constraint over the lengths of all lists may refuse the whole transaction. Both refusals
depend on the lengths of lists, so a transaction that sees one value more or less than it should
decides differently. *Looks* read all keys of both states at once; the last look comes after
everything else and shows the final state.

A value names the transaction that appended it: it is the transaction's number and a count. All
outputs consist of lists, strings and ints, so that they can be read back from JSON files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import emberflow as ef
from emberflow.guarantees.isolation import Append, Observed, Read

#: How many values a transaction may append.
VALUES = 100


class Work(NamedTuple):
    """An element: the keys for each of the five parts above."""

    number: int
    reads: tuple[int, ...] = ()
    appends: tuple[int, ...] = ()
    mores: tuple[int, ...] = ()
    chases: tuple[int, ...] = ()
    ends: tuple[tuple[str, int], ...] = ()


class Step(NamedTuple):
    """The arguments of an access."""

    number: int
    part: int
    count: int
    key: int
    value: int = -1


def fits(values: tuple[int, ...]) -> bool:
    return (values[-1] * 31 + len(values)) % 7 != 0


def adds_up(values: ef.Values) -> bool:
    return sum(map(len, values.values())) % 11 != 10


def append(values: tuple[int, ...], step: Step) -> tuple[int, ...]:
    return (*values, step.value)


def appending_flow(keys: int, more_keys: int) -> ef.Flow:
    flow = ef.Flow("appending")
    lists: ef.State[tuple[int, ...]] = flow.state("lists", default=())
    more: ef.State[tuple[int, ...]] = flow.state("more", default=())

    def steps(part: int, keys: Iterable[int], work: Work) -> list[Step]:
        value = work.number * VALUES + part * 20
        return [
            Step(work.number, part, count, key, value + count) for count, key in enumerate(keys)
        ]

    def chased(pair: tuple[Step, tuple[int, ...]]) -> tuple[Step, list[Any]]:
        """The next step, and what led to it."""
        step, seen = pair
        return step._replace(key=(sum(seen) + len(seen)) % more_keys), [step.key, list(seen)]

    def told(kind: str, state: str) -> Any:
        def tell(pair: tuple[Step, tuple[int, ...]]) -> list[Any]:
            step, values = pair
            order = [step.part, step.count]
            return [step.number, order, kind, state, step.key, step.value, list(values)]

        return tell

    def told_chase(pair: tuple[tuple[Step, list[Any]], tuple[int, ...]]) -> list[Any]:
        (step, led), values = pair
        return [*told("chase", "more")((step, values)), led]

    work = ef.merge(flow.front("left"), flow.front("right"))
    with work.transaction(name="work") as tx:
        first = tx.flat_map(lambda w: steps(0, w.reads, w)).key_by(lambda s: s.key).read(lists)
        appended = (
            tx.flat_map(lambda w: steps(1, w.appends, w))
            .key_by(lambda s: s.key)
            .update(lists, append, check=fits)
        )
        mored = (
            tx.flat_map(lambda w: steps(2, w.mores, w)).key_by(lambda s: s.key).update(more, append)
        )
        chasing = tx.flat_map(lambda w: steps(3, w.chases, w)).key_by(lambda s: s.key).read(lists)
        chase = (
            chasing.map(chased)
            .key_by(lambda pair: pair[0].key)
            .update(more, lambda values, pair: append(values, pair[0]))
        )
        ends = [
            tx.flat_map(
                lambda w, name=state.name, part=part: [
                    Step(w.number, part, count, key)
                    for count, (own, key) in enumerate(w.ends)
                    if own == name
                ]
            )
            .key_by(lambda s: s.key)
            .read(state)
            for part, state in ((4, lists), (5, more))
        ]
        tx.require(adds_up, name="adds up")
        seen = [
            tx.output(first.map(told("read", "lists"))),
            tx.output(appended.map(told("append", "lists"))),
            tx.output(mored.map(told("append", "more"))),
            tx.output(chase.map(told_chase)),
            tx.output(ends[0].map(told("read", "lists"))),
            tx.output(ends[1].map(told("read", "more"))),
        ]
    with flow.front("looks").transaction(name="look") as look:
        views = []
        for part, (state, number) in enumerate(((lists, keys), (more, more_keys))):
            view = look.flat_map(
                lambda n, part=part, number=number: [
                    Step(n, part, key, key) for key in range(number)
                ]
            )
            views.append(
                look.output(view.key_by(lambda s: s.key).read(state).map(told("read", state.name)))
            )
    ef.merge(*seen, *views).sink("seen")
    tx.committed.map(lambda w: w.number).sink("committed")
    look.committed.sink("looked")
    tx.rejected.map(
        lambda r: [
            r.element.number,
            r.check,
            [[state, key, list(values)] for (state, key), values in r.values.items()],
        ]
    ).sink("rejected")
    return flow


def drawn_work(
    random: Random, *, count: int, keys: int, more_keys: int, looks: int
) -> dict[str, list[Any]]:
    """Elements at distinct times: of two fronts in turn, with looks in between and at the end."""

    def some(most: int) -> tuple[int, ...]:
        # A few keys are much more frequent.
        return tuple(
            min(random.randrange(keys), random.randrange(keys))
            for _ in range(random.randint(0, most))
        )

    elements: dict[str, list[Any]] = {"left": [], "right": [], "looks": []}
    every = max(1, count // looks)
    for number in range(count):
        work = Work(
            number,
            reads=some(2),
            appends=some(2),
            mores=tuple(random.randrange(more_keys) for _ in range(random.choice((0, 0, 1)))),
            chases=some(1),
            ends=tuple(
                ("lists", random.randrange(keys))
                if random.random() < 0.5
                else ("more", random.randrange(more_keys))
                for _ in range(random.randint(0, 2))
            ),
        )
        elements[random.choice(("left", "right"))].append(ef.At(2 * number, work))
        if number % every == every - 1:
            elements["looks"].append(ef.At(2 * number + 1, count + number))
    elements["looks"].append(ef.At(2 * count + 1, 2 * count + 1))
    return elements


@dataclass(frozen=True)
class History:
    """The history that the outputs show, and whether it is complete."""

    transactions: list[Observed]
    final: dict[Any, list[int]]
    #: Elements that were neither committed nor rejected, and outputs that belong to no commit.
    incomplete: list[str]


def recorded(elements: dict[str, list[Any]], outputs: dict[str, list[Any]]) -> History:
    """The history, derived from elements and outputs alone."""
    works = {at.payload.number: at for name in ("left", "right") for at in elements[name]}
    looks = {at.payload: at for at in elements["looks"]}
    seen: dict[int, list[Any]] = {}
    for line in outputs["seen"]:
        seen.setdefault(line[0], []).append(line)
    transactions = [
        Observed(number, _committed(seen.pop(number, ())), True, works[number].time)
        for number in outputs["committed"]
    ]
    transactions += [
        Observed(number, _rejected(works[number].payload, values), False, works[number].time)
        for number, _, values in outputs["rejected"]
    ]
    looked = [
        Observed(number, _committed(seen.pop(number, ())), True, looks[number].time)
        for number in outputs["looked"]
    ]
    transactions += looked
    told = {transaction.name for transaction in transactions}
    incomplete = [f"{number} put something out and is not committed" for number in seen]
    incomplete += [
        f"{number} was neither committed nor rejected"
        for number in [*works, *looks]
        if number not in told
    ]
    for transaction in transactions:
        if transaction.committed and transaction.name in works:
            work, done = works[transaction.name].payload, transaction.operations
            reads = sum(isinstance(one, Read) for one in done)
            appends = len(done) - reads
            expected = len(work.appends) + len(work.mores) + len(work.chases)
            if appends != expected or reads != sum(map(len, work[1:])) + len(work.chases):
                incomplete.append(f"{work} did only {done}")
    last = looked[-1].operations if looked else ()
    final = {one.key: list(one.seen) for one in last if isinstance(one, Read)}
    return History(transactions, final, incomplete)  # type: ignore[arg-type]


def _committed(lines: Iterable[Any]) -> list[Append | Read]:
    """The operations in order. The new value that an update returns counts as a read after it."""
    done: list[Append | Read] = []
    for _, _, kind, state, key, value, values, *led in sorted(lines, key=lambda line: line[1]):
        if kind == "chase":
            done.append(Read(("lists", led[0][0]), led[0][1]))
        if kind != "read":
            done.append(Append((state, key), value))
        done.append(Read((state, key), values))
    return done


def _rejected(work: Work, values: Iterable[Any]) -> list[Append | Read]:
    """What it is known to have read, with its own appends, and what it would have appended."""
    done: list[Append | Read] = []
    appended = set()
    for state, key, seen in values:
        for value in seen:
            if value // VALUES == work.number:
                done.append(Append((state, key), value))
                appended.add(value)
        done.append(Read((state, key), seen))
    for part, state, keys in ((1, "lists", work.appends), (2, "more", work.mores)):
        for count, key in enumerate(keys):
            value = work.number * VALUES + part * 20 + count
            if value not in appended:
                done.append(Append((state, key), value))
    return done
