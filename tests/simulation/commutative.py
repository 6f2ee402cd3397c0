"""Random flows whose output, as a multiset, does not depend on the order of arrival.

Without determinism the output cannot be compared to the byte. But some operators turn a multiset of
payloads into the same multiset, whatever the order: maps, filters, merges, copies; a count by key,
which gives 1, 2, ... n for a key with n payloads; the lengths of the tuples of a grouping;
distinct; and a loop whose rounds look at one payload only. Flows of these have one reference for
every order, and their counts show every item that was lost or counted twice, in the output or in
the state.

Payloads are small ints, as in `tests.strategies`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import emberflow as ef

ELEMENTS_MAX = 25
ROUNDS_MAX = 4


def commutative_flow(random: Random, *, cyclic: bool) -> tuple[ef.Flow, dict[str, list[int]]]:
    """A flow of some operators with 1 to 3 fronts, and up to 25 elements for each of them."""
    kinds = list(OPERATORS) + (["loop"] * 3 if cyclic else [])
    plan = random.choices(kinds, k=random.randint(2, 6))
    if cyclic and "loop" not in plan:
        plan.insert(random.randrange(len(plan) + 1), "loop")
    flow = ef.Flow(" ".join(plan))
    fronts = [f"front-{number}" for number in range(random.randint(1, 3))]
    streams = [flow.front(front) for front in fronts]
    for kind in plan:
        stream = streams.pop(random.randrange(len(streams)))
        if kind == "merge" and streams:
            other = streams.pop(random.randrange(len(streams)))
            streams.append(ef.merge(stream, other))
        elif kind == "broadcast" and len(streams) < 4:
            streams += stream.broadcast(2)
        elif kind == "loop":
            streams.append(_loop(random, flow, stream))
        else:
            streams.append(OPERATORS.get(kind, _map)(random, stream))
    for number, stream in enumerate(streams):
        if random.random() < 0.4:
            stream.key_by(_key(random)).sink(f"sink-{number}", partitions=3)
        else:
            stream.sink(f"sink-{number}")
    elements = {
        front: [random.randint(0, 9) for _ in range(random.randint(0, ELEMENTS_MAX))]
        for front in fronts
    }
    return flow, elements


def _key(random: Random) -> Callable[[int], int]:
    modulus = random.choice((1, 2, 3, 7))
    return lambda n: n % modulus


def _map(random: Random, stream: Any) -> Any:
    factor = random.randint(1, 4)
    return stream.map(lambda n: (factor * n + 1) % 10)


def _filter(random: Random, stream: Any) -> Any:
    modulus = random.randint(2, 4)
    return stream.filter(lambda n: n % modulus != 1)


def _several(random: Random, stream: Any) -> Any:
    return stream.flat_map(lambda n: [n, (n + 3) % 10] if n % 2 else [n])


def _count(random: Random, stream: Any) -> Any:
    return stream.key_by(_key(random)).count().map(lambda pair: (pair[0] + pair[1]) % 10)


def _lengths(random: Random, stream: Any) -> Any:
    return stream.key_by(_key(random)).group(window=random.randint(2, 5)).map(len)


def _distinct(random: Random, stream: Any) -> Any:
    return stream.distinct()


def _keyed(random: Random, stream: Any) -> Any:
    return stream.key_by(_key(random)).map(lambda n: (n + 1) % 10)


def _loop(random: Random, flow: ef.Flow, stream: Any) -> Any:
    """Each round looks at one payload only, and sends it to another worker by another key."""
    rounds = random.randint(1, ROUNDS_MAX)
    modulus = random.choice((2, 3, 7))
    again: Any = flow.loop()
    inputs = [stream.map(lambda n: (rounds, n)), again]
    random.shuffle(inputs)
    grouped = ef.merge(*inputs).key_by(lambda pair: sum(pair) % modulus).group(window=1)
    turned = grouped.map(lambda last: (last[0][0], (last[0][1] * 3 + 1) % 10))
    again.close(
        turned.flat_map(lambda pair: [(pair[0] - 1, (pair[1] + 1) % 10)] if pair[0] > 1 else [])
    )
    return turned.map(lambda pair: pair[1])


OPERATORS: dict[str, Callable[[Random, Any], Any]] = {
    "map": _map,
    "filter": _filter,
    "several": _several,
    "count": _count,
    "lengths": _lengths,
    "distinct": _distinct,
    "keyed": _keyed,
    "merge": _map,
    "broadcast": _map,
}
