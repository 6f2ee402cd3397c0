"""What the tests of single machines share: scripts of what arrives, and an account of what is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from hypothesis import strategies as st

import emberflow as ef
from emberflow.engine.cuts.cut import Content, Row
from emberflow.engine.cuts.packed import PackedRows
from emberflow.engine.layout import Layout, Machines
from emberflow.graph.nodes import Graph
from emberflow.values.item import FlatItem, Place

#: Which item, which payload it gets if it is not there, and whether a batch ends behind it.
Step: TypeAlias = tuple[tuple[Place, int], int, bool]

#: Few places, of one global time and of several, some of them twice: two histories of one item.
PLACES: list[Place] = [(time, 0, *ids) for time in range(1, 5) for ids in ((), (0,), (0, 1), (2,))]
MARKS = (0, 2 * 77)


def with_packed_rows(looked: Any, operation: str) -> tuple[Any, list[Row], Any, Any]:
    """What a capture found (`trimming.Looked`), with packed rows among the others, in an order of their own."""
    found, rows, going_on, others, packed, count = looked
    unpacked = list(PackedRows(operation, packed, count))
    assert len(unpacked) == count
    return found, sorted([*rows, *unpacked], key=repr), going_on, others


def unpacked(content: Iterable[Content]) -> list[Any]:
    """Rows and scheduled items of a capture, with packed rows one by one."""
    rows: list[Any] = []
    for each in content:
        rows += each if isinstance(each, PackedRows) else [each]
    return rows


class Sent:
    """What was sent and not taken back.

    It is as strict as what stands behind a machine: an item is there at most once, and a tombstone
    finds its item, under the same place and mark, with the same payload.
    """

    def __init__(self) -> None:
        self.live: dict[tuple[Place, int], Any] = {}
        self.tombstones = 0

    def take(self, items: Iterable[FlatItem]) -> None:
        for place, mark, payload in items:
            if mark & 1:
                self.tombstones += 1
                assert (place, mark ^ 1) in self.live, f"a tombstone without an item at {place}"
                assert shown(self.live.pop((place, mark ^ 1))) == shown(payload)
            else:
                assert (place, mark) not in self.live, f"two items at {place} of one history"
                self.live[place, mark] = payload

    def by_place(self) -> list[tuple[tuple[Place, int], Any]]:
        return sorted(self.live.items(), key=lambda entry: entry[0])


def shown(payload: Any) -> Any:
    """Errors are equal if they say the same."""
    return str(payload) if isinstance(payload, Exception) else payload


def scripts(places: Sequence[Place] = PLACES, *, most: int = 30) -> st.SearchStrategy[list[Step]]:
    """What arrives, in any order of places. An item that is there already is taken back."""
    identity = st.tuples(st.sampled_from(places), st.sampled_from(MARKS))
    step = st.tuples(identity, st.integers(0, 7), st.booleans())
    return st.lists(step, max_size=most)


def batches(script: list[Step], live: dict[tuple[Place, int], Any]) -> Iterator[list[FlatItem]]:
    """The batches of a script; ``live`` is, behind each, what has arrived and is still there."""
    batch: list[FlatItem] = []
    for (place, mark), payload, ends in script:
        if (place, mark) in live:
            batch.append((place, mark | 1, live.pop((place, mark))))
        else:
            live[place, mark] = payload
            batch.append((place, mark, payload))
        if ends:
            yield batch
            batch = []
    yield batch


def by_key(
    live: dict[tuple[Place, int], Any], key: Callable[[Any], Any]
) -> dict[Any, list[tuple[Place, int, Any]]]:
    """What is there, by key and in order."""
    found: dict[Any, list[tuple[Place, int, Any]]] = {}
    for (place, mark), payload in sorted(live.items(), key=lambda entry: entry[0]):
        found.setdefault(key(payload), []).append((place, mark, payload))
    return found


def grouping(window: int, key: Callable[[Any], Any]) -> Any:
    """The machine of a grouping."""
    flow = ef.Flow("grouping")
    flow.front("in").key_by(key).group(window=window).sink("out")
    return only_machine(flow.graph())


def only_machine(graph: Graph) -> Any:
    (machine,) = Machines(Layout(graph)).stateful.values()
    return machine
