"""Random flows in which a path may keep its key up to the partitions of a sink, and may lose it on the way.

What is drawn: reduces, groupings, windows that close, joins and filters, one behind the other by the same
key or by another one; maps that keep the key where it was, move it, or lose it; items for later; and sinks
by the key, by something else, or with one partition. Some functions raise, and errors end the run or are
diverted. Links and workers are slow as in all cases, so ranges wait for each other, or need not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TypeAlias

import emberflow as ef
from tests.simulation.cases import Case, disordered
from tests.simulation.crash_cases import CrashCase
from tests.simulation.failing import failing
from tests.strategies import Elements

#: A stream of pairs, whose first part is what was the key last, as far as the draws have kept it.
Pairs: TypeAlias = "ef.Stream[tuple[int, int]]"
Step: TypeAlias = Callable[[Pairs, Random], Pairs]

_TIMES = 60
_LENGTH_MAX = 30


def keyed_flow(random: Random, *, raises: bool = False) -> tuple[ef.Flow, Elements]:
    drawn = [*STEPS, *[_raises, *[_raising_reduce] * 7] * raises]
    return flow_of([random.choice(drawn) for _ in range(random.randint(1, 4))], random)


def flow_of(plan: list[Step], random: Random) -> tuple[ef.Flow, Elements]:
    flow = ef.Flow(" ".join(step.__name__.strip("_") for step in plan))
    fronts = [f"front-{number}" for number in range(random.randint(1, 3))]
    keys = random.choice((2, 5, 11, 40))
    numbers = [flow.front(front) for front in fronts]
    merged = numbers[0] if len(numbers) == 1 else ef.merge(*numbers)
    pairs: Pairs = merged.map(lambda n: (n % keys, n))
    for number, step in enumerate(plan):
        if number and random.random() < 0.15:
            _end(pairs, random, f"aside-{number}")
        pairs = step(pairs, random)
    for number in range(random.choice((1, 1, 2))):
        _end(pairs, random, f"sink-{number}")
    elements: Elements = {}
    for front in fronts:
        times = sorted(random.sample(range(_TIMES), random.randint(0, _LENGTH_MAX)))
        elements[front] = [ef.At(time, random.randrange(100)) for time in times]
    return flow, elements


def _end(pairs: Pairs, random: Random, name: str) -> None:
    partitions = random.choice((1, 2, 2, 3, 5, 8))
    if partitions == 1 and random.random() < 0.5:
        pairs.sink(name)
    elif random.random() < 0.8:
        pairs.key_by(lambda pair: pair[0]).sink(name, partitions=partitions)
    else:
        pairs.key_by(lambda pair: pair[1] % 7).sink(name, partitions=partitions)


def _keyed(pairs: Pairs, random: Random) -> ef.KeyedStream[int, tuple[int, int]]:
    if random.random() < 0.85:
        return pairs.key_by(lambda pair: pair[0])
    return pairs.key_by(lambda pair: pair[1] % 3)


def _sum(pairs: Pairs, random: Random) -> Pairs:
    return _keyed(pairs, random).sum(of=lambda pair: pair[1])


def _reduce(pairs: Pairs, random: Random) -> Pairs:
    return _keyed(pairs, random).fold(
        initial=0, combine=lambda total, pair: (3 * total + pair[1]) % 1009, with_key=True
    )


def _expiring(pairs: Pairs, random: Random) -> Pairs:
    return _keyed(pairs, random).count(expire_after=random.choice((3, 10)))


def _group(pairs: Pairs, random: Random) -> Pairs:
    last = random.choice((-1, 0))
    return _keyed(pairs, random).group(window=random.choice((1, 2, 3))).map(lambda each: each[last])


def _window(pairs: Pairs, random: Random) -> Pairs:
    size = random.choice((3, 10))
    results = _keyed(pairs, random).window(ef.Tumbling(size), emit="close").count()
    return results.map(lambda result: (result.key, result.value))


def _first(pairs: Pairs, random: Random) -> Pairs:
    return _keyed(pairs, random).distinct()


def _join(pairs: Pairs, random: Random) -> Pairs:
    low, high = random.choice(((0, 5), (-4, 4)))
    others = pairs.filter(lambda pair: pair[1] % 2)
    joined = _keyed(pairs, random).join(
        others.key_by(lambda pair: pair[0]), lambda one, _: one, within=(low, high)
    )
    return joined.filter(lambda pair: pair[1] % 3)


def _change(pairs: Pairs, random: Random) -> Pairs:
    factor = random.randint(1, 5)
    return pairs.map(lambda pair: (pair[0], pair[1] * factor + 1))


def _branch(pairs: Pairs, random: Random) -> Pairs:
    return pairs.map(lambda pair: pair if pair[1] % 4 else (pair[1] % 3, pair[0]))


def _swap(pairs: Pairs, random: Random) -> Pairs:
    return pairs.map(lambda pair: (pair[1], pair[0]))


def _later(pairs: Pairs, random: Random) -> Pairs:
    by = random.randint(1, 9)
    return pairs.with_time().map(lambda timed: ef.At(timed.time + by, timed.payload))


def _several(pairs: Pairs, random: Random) -> Pairs:
    return pairs.flat_map(lambda pair: [(pair[0], pair[1]), (pair[0] + pair[1] % 2, 7)])


def _twice(pairs: Pairs, random: Random) -> Pairs:
    return ef.merge(pairs, pairs.map(lambda pair: (pair[0], -pair[1])))


def _raises(pairs: Pairs, random: Random) -> Pairs:
    return pairs.map(failing(lambda pair: (pair[0], pair[1]), random, (20, 60)))


def _raising_reduce(pairs: Pairs, random: Random) -> Pairs:
    combine = failing(lambda total, pair: (3 * total + pair[1]) % 1009, random, (3, 20))
    return _keyed(pairs, random).fold(initial=0, combine=combine, with_key=True)


def _beside(pairs: Pairs, random: Random) -> Pairs:
    """A reduce, and what it is of: one of them is further along than the other."""
    return ef.merge(pairs, _keyed(pairs, random).sum(of=lambda pair: pair[1] % 8))


STEPS: list[Step] = [
    *[_sum, _sum, _reduce, _reduce, _expiring, _group, _window, _window, _first, _join],
    *[_change, _change, _branch, _swap, _later, _several, _twice, _beside],
]


def keyed_case(seed: int, plan: list[Step] | None = None, *, raises: bool | None = None) -> Case:
    """The case of a seed, with these steps if they are given. Where functions raise, errors are diverted."""
    random = Random(f"keyed {seed}")
    drawn = random.random() < 0.2
    raises = drawn if raises is None else raises
    flow, elements = keyed_flow(random, raises=raises) if plan is None else flow_of(plan, random)
    case = replace(
        Case.of(seed),
        name=flow.name,
        graph=flow.graph(on_error="divert") if raises else flow.graph(),
        elements=elements,
        on_error="divert" if raises else "fail",
        again=f"python -m tests.simulation.soak --keys --from {seed} --seeds 1",
    )
    return case if raises else disordered(case, seed, share=0.2)


def two_stages(seed: int) -> Case:
    """Frames have items for both of two nodes that keep the key."""
    return keyed_case(seed, [_beside, _sum], raises=False)


def diverting(seed: int) -> Case:
    """A node that keeps the key fails now and then."""
    return keyed_case(seed, [_raising_reduce], raises=True)


def keyed_crash_case(seed: int) -> CrashCase:
    """The same with crashes, and with slices that move."""
    random = Random(f"keyed crash case {seed}")
    case = CrashCase.from_case(keyed_case(seed), seed)
    if random.random() < 0.5:
        case = case.with_faults(moves=random.randint(1, 5), moves_likely=random.choice((0.05, 0.2)))
    return replace(
        case, again=f"python -m tests.simulation.soak --keys --crashes --from {seed} --seeds 1"
    )
