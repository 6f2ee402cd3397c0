"""Random records out of order: a feed and a batch stamp each partition as the reference does.

The records have ties, late ones, times of the far future, and malformed ones between them
(`tests.disorder`). The feed's credits and the sizes of batches are random as well.
"""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import emberflow as ef
from emberflow.engine.messages import AFTER_ALL
from emberflow.engine.progress.waiting import Resume
from emberflow.errors import Diverted
from emberflow.fronts import Iterable
from emberflow.fronts.protocol import Malformed
from emberflow.rows.codec import encode
from emberflow.rows.inputs import Checked, Positioned, Stamps
from emberflow.rows.paths import front_of
from emberflow.rows.readers import Reader
from emberflow.runners.batch.passes.stamping import StampedRows
from emberflow.runners.elements import LateElement, MalformedElement, timed_elements
from emberflow.runners.live.worker.feed import Feed
from emberflow.runners.live.worker.reader import Beginning
from emberflow.values.item import TIME_MIN, front_index
from tests.disorder import front_out_of_order
from tests.effort import SECONDS

SEEDS = range(150)

flow = ef.Flow("numbers")
flow.front("numbers").sink("out")
NODE = flow.graph().fronts["numbers"]


def front_of_seed(seed: int) -> Iterable:
    random = Random(f"fed {seed}")
    return front_out_of_order(random, [random.randint(-9, 9) for _ in range(9)], diverts=True)


def by_the_reference(front: Iterable) -> tuple[list[Any], list[Any], list[Any]]:
    """Elements and late ones with their global times, and the errors, each in order."""
    elements, late, errors = [], [], []
    for at, _, payload in timed_elements(flow.graph(), {"numbers": front}):
        if isinstance(payload, LateElement):
            late.append((tuple(at), payload.record))
        elif isinstance(payload, MalformedElement):
            errors.append(Diverted(*at, str(NODE), "-", payload.problem, payload.payload))
        else:
            elements.append((tuple(at), payload))
    return elements, late, errors


def by_feeds(
    front: Iterable, random: Random, *, cuts: bool = False
) -> tuple[list[Any], list[Any], list[Any]]:
    """The same of feeds. With cuts, a second life goes on from a cut at any time of the first."""
    found: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for partition in range(front.partitions):
        first, feed = fed(front, partition, Beginning(), random, stops=cuts)
        resume, cut = feed.resume, feed.gate.done
        if cuts and isinstance(resume, Resume) and cut is not None:
            cut = (cut[0], cut[1] + 1)
            promised = (resume.promised, resume.tie)
            beginning = Beginning(resume.position, cut, promised=promised, late=resume.late)
            rest, feed = fed(front, partition, beginning, random)
            first = [[one for one in kind if one[0][:2] < cut] for kind in first]
            first = [kind + more for kind, more in zip(first, rest, strict=True)]
        elif cuts:
            first, feed = fed(front, partition, Beginning(), random)
        if front.event_time.on_late == "drop":
            assert feed.late == late_in(front, partition)
        else:
            assert feed.late == len(first[1])
        for kind, more in zip(found, first, strict=True):
            kind += more
    elements, late, errors = (sorted(kind, key=lambda one: one[0]) for kind in found)
    return elements, late, [record for _, record in errors]


def late_in(front: Iterable, partition: int) -> int:
    """How many records of a partition the reference would divert if they were not dropped."""
    diverting = copy.copy(front)
    diverting.event_time = front.event_time._replace(on_late="divert")
    _, late, _ = by_the_reference(diverting)
    return sum(record.partition == partition for _, record in late)


def fed(
    front: Iterable, partition: int, beginning: Beginning, random: Random, *, stops: bool = False
) -> tuple[list[list[Any]], Feed]:
    """The elements, late ones and errors of a feed with their places, up to its end or any time."""
    feed = Feed(
        "numbers",
        0,
        front,
        partition,
        front_index(0, 1, partition),
        random.choice((1, 3, 1_000)),
        step=str(NODE),
        diverts=True,
        late_node=1,
    )
    feed.start(beginning)
    feed.reader.thread.join(SECONDS)
    elements, late, errors = list[Any](), list[Any](), list[Any]()
    minimal = beginning.moment
    feed.minimal_time(minimal)
    while minimal != AFTER_ALL and not (stops and random.random() < 0.1):
        promised = feed.gate.promise
        entered = [feed.take(random.choice((1, 2, 1_000))), feed.take_late(), feed.aside.take()]
        assert all(one[0] >= promised for kind in entered for one in kind)
        for kind, more in zip((elements, late, errors), entered, strict=True):
            kind += more
        if feed.gate.promise > minimal:  # the coordinator tells of changes only
            minimal = feed.gate.promise
            feed.minimal_time(minimal)
    feed.halt()
    feed.join(SECONDS)
    pairs = [[(place, payload) for place, _, payload in kind] for kind in (elements, late)]
    return [*pairs, errors], feed


def by_batch(front: Iterable, random: Random) -> tuple[list[Any], list[Any]]:
    reader = Reader(NODE, ("_payload",), (None,), "bytes")
    stamps = Stamps(front.event_time, drops_malformed=True)
    rows = StampedRows(Checked(NODE, reader, "time", (), "ms", "part", 1, stamps, True))
    found: list[Any] = []
    for partition in range(front.partitions):
        records: list[Any] = list(front.read(partition, None))
        while records:
            count = random.randint(1, len(records))
            found.append(rows.add(as_rows(partition, records[:count])))
            records = records[count:]
    found.append(rows.end())
    elements, late = (
        sorted(
            ((time, front_of(path)), payload)
            for pair in found
            for time, path, payload in zip(*pair[which], strict=True)
        )
        for which in (0, 1)
    )
    return elements, late


def as_rows(partition: int, records: list[Any]) -> pa.RecordBatch:
    columns = {
        "_time": pa.array([one.time for one in records], pa.int64()),
        "_tied": pa.array([False] * len(records)),
        "_payload": pa.array([encode(Positioned(one.position, one.payload)) for one in records]),
        "_partition": pa.array([partition] * len(records), pa.int64()),
        "_position": pa.array([one.position for one in records], pa.int64()),
        "_promised": pa.array([TIME_MIN] * len(records), pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("first", range(0, len(SEEDS), 50))
def test_feeds_and_batches_stamp_as_the_reference_does(first: int) -> None:
    for seed in SEEDS[first : first + 50]:
        front, random = front_of_seed(seed), Random(f"sizes {seed}")
        elements, late, errors = by_the_reference(front)
        assert by_feeds(front, random) == (elements, late, errors), seed
        assert by_feeds(front, random, cuts=True) == (elements, late, errors), seed
        assert by_batch(front, random) == (elements, late), seed


def test_the_fronts_have_all_kinds_of_records() -> None:
    given = [front_of_seed(seed) for seed in SEEDS]
    found = [by_the_reference(front) for front in given]
    assert sum(bool(late) for _, late, _ in found) > 50
    assert sum("is not believed" in one.problem for _, _, errors in found for one in errors) > 20
    assert sum("is malformed" in one.problem for _, _, errors in found for one in errors) > 50
    assert sum(at[1] != 0 for elements, _, _ in found for at, _ in elements) > 500
    assert {front.partitions for front in given} == {1, 2, 3}
    assert any(front.event_time.watermark for front in given)
    assert any(
        isinstance(one.payload, Malformed) and one.payload.before_next
        for front in given
        for one in front.read(0, None)
        if one is not None
    )
