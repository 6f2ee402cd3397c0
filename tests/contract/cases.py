"""The cases on which all runners must agree: all examples, and random flows.

About half the fronts of random flows have elements out of order (`tests.disorder`): with ties, late
elements, times of the far future and malformed records, in several partitions. What is late or malformed
has sinks of its own, which must agree as well.

A live run takes a second or two to start, so several random flows run together, as parts of one
flow that share nothing. Each is a random flow of `tests.strategies`; the names of its fronts and
sinks say which one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import emberflow as ef
from emberflow.errors import OnError
from emberflow.graph.nodes import Graph
from emberflow.runners.elements import graph_for
from tests.disorder import out_of_order
from tests.effort import CONTRACT_ROUND, SOAK
from tests.strategies import Elements, random_flows_together

EXAMPLES = Path(__file__).parents[2] / "examples"

#: Seeds of random flows that run together. A round of a soak has twelve of its own.
FIRST = 12 * CONTRACT_ROUND
TOGETHER = [range(FIRST, FIRST + 6), range(FIRST + 6, FIRST + 12)] if SOAK else [range(3)]


@dataclass(frozen=True)
class Case:
    """A flow, and for each of its fronts a list of elements or the front itself."""

    name: str
    flow: ef.Flow
    elements: dict[str, Any]
    on_error: OnError = "fail"

    @property
    def graph(self) -> Graph:
        """The graph of the flow, with a sink for late elements if some are diverted."""
        return graph_for(self.flow.graph(), self.elements)


@contextmanager
def examples_importable() -> Iterator[None]:
    """Examples are scripts in one folder. Processes that unpickle their payloads import them."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        yield
    finally:
        sys.path.remove(str(EXAMPLES))


def _click_sessions(example: Any) -> Elements:
    return {"clicks": [ef.At(click.minute, click) for click in example.CLICKS]}


def _inverted_index(example: Any) -> Elements:
    more = example.generated_documents(12, words_per_document=20, seed=5)
    return {"docs": [*example.DOCUMENTS, *more]}


def _moving_average(example: Any) -> Elements:
    return {"readings": [ef.At(reading.minute, reading) for reading in example.READINGS]}


def _word_count(example: Any) -> Elements:
    draw = Random(5)
    lines = [" ".join(draw.choices(["dog", "cat", "hen"], k=draw.randrange(5))) for _ in range(40)]
    return {"lines": [*example.LINES, *lines]}


#: An example and the elements it gets.
EXAMPLE_ELEMENTS: dict[str, Callable[[Any], Elements]] = {
    "bank": lambda example: {"orders": list(example.ORDERS)},
    "catalogue": lambda example: example.elements(),
    "click_sessions": _click_sessions,
    "grouping": lambda example: {"numbers": list(example.NUMBERS)},
    "inverted_index": _inverted_index,
    "ledger": lambda example: {"deposits": example.DEPOSITS, "transfers": example.TRANSFERS},
    "moving_average": _moving_average,
    "orders": lambda example: example.elements(),
    "seats": lambda example: {"requests": example.REQUESTS + example.crowd(40)},
    "stock": lambda example: {
        "moves": example.MOVES,
        "deliveries": example.DELIVERIES,
        "orders": example.ORDERS,
    },
    "word_count": _word_count,
}


def example_case(name: str) -> Case:
    with examples_importable():
        example = importlib.import_module(name)
    return Case(name, example.flow, EXAMPLE_ELEMENTS[name](example))


def random_case(seeds: range) -> Case:
    flow, elements = random_flows_together([Random(seed) for seed in seeds])
    random = Random(f"event time {seeds.start}")
    disordered = out_of_order(random, elements, diverts=True, share=0.5)
    return Case(f"random flows {seeds.start} to {seeds.stop - 1}", flow, disordered, "divert")


def aggregates_case() -> Case:
    """Aggregates, windows and ranks, which the random flows of a run may lack. Functions are local, so
    that they are pickled by value; the classes of the results are not the user's."""

    class Halves:
        def containing(self, time: int) -> list[tuple[int, int]]:
            start = time - time % 10
            return [(start, start + 10), (start, start + 5)][: 2 if time % 10 < 5 else 1]

    flow = ef.Flow("aggregates and windows")
    bids = ef.merge(flow.front("one"), flow.front("other"))
    by_item = bids.key_by(lambda n: n % 3)
    several: dict[str, ef.Aggregate[int]] = {
        "number": ef.count(where=lambda n: n > 5),
        "total": ef.sum(),
        "kinds": ef.count_distinct(lambda n: n % 4),
        "best": ef.max(lambda n: -n, by=lambda n: n % 7),
    }
    by_item.aggregate(**several).key_by(lambda pair: pair[1]).sink("several", partitions=2)
    windows: list[ef.Stream[Any]] = []
    for spec in (ef.Tumbling(6, offset=2), ef.Cumulate(2, 6), Halves()):
        closed = by_item.window(spec, emit="close").aggregate(**several)
        windows += [closed, closed.per_window().top(2, by=lambda r: r.value.total)]
    ef.merge(*windows).sink("windows")
    rows: list[ef.Stream[Any]] = [
        by_item.over(rows=3).aggregate(**several),
        by_item.over(last=7).mean(),
        by_item.rank(by=lambda n: n % 5),
        bids.distinct(ttl=6),
    ]
    ef.merge(*rows).sink("rows")
    random = Random("aggregates")
    times = {name: sorted(random.sample(range(70), 30)) for name in ("one", "other")}
    elements = {
        name: [ef.At(at, random.randrange(20)) for at in given] for name, given in times.items()
    }
    return Case("aggregates and windows", flow, elements)


def expiring_case() -> Case:
    """Keys of reduces and states that expire, some of them again and again."""
    flow = ef.Flow("expiring")
    sales = ef.merge(flow.front("one"), flow.front("other"))
    by_item = sales.key_by(lambda n: n % 5)
    by_item.count(expire_after=4).key_by(lambda pair: pair[0]).sink("counts", partitions=2)
    by_item.reduce(
        first=lambda n: (n,), combine=lambda last, n: (*last[-3:], n), expire_after=6
    ).sink("last")
    by_item.aggregate(total=ef.sum(), mean=ef.mean(), expire_after=5).sink("several")
    spent = flow.state("spent", default=0, expire_after=7)
    counted = flow.state("counted", default=0, expire_after=3)
    with sales.transaction(name="alone") as tx:
        done = tx.key_by(lambda n: n % 3).update(counted, lambda value, n: value + 1)
        tx.output(done).sink("counted")
    with sales.transaction(name="both") as tx:
        limited = tx.key_by(lambda n: n % 4).update(
            spent, lambda value, n: value + n, check=lambda value: value < 40
        )
        seen = limited.key_by(lambda pair: pair[0] % 3).read(counted)
        tx.output(seen).sink("seen")
    tx.rejected.map(lambda rejected: rejected.element).sink("refused")
    random = Random("expiring")
    times = {name: sorted(random.sample(range(80), 35)) for name in ("one", "other")}
    elements = {
        name: [ef.At(at, random.randrange(20)) for at in given] for name, given in times.items()
    }
    return Case("expiring", flow, elements)


CASES = [
    *map(example_case, EXAMPLE_ELEMENTS),
    aggregates_case(),
    expiring_case(),
    *map(random_case, TOGETHER),
]
