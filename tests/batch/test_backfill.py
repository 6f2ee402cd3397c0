"""Backfill without Spark: the cut holds the reference's state, and the engine continues from it.

Passes, last pass, checkpoint and sinks are real. Only the shuffle is simulated, and the engine's
machines continue from the cut over fake links. `tests/spark/test_backfill.py` tests the same with
Spark and live queries.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow import sinks
from emberflow.checkpoint import SCHEDULED, Manifest
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.engine.cuts.cut import Row, Scheduled
from emberflow.engine.messages import Moment
from emberflow.graph.nodes import Graph
from emberflow.runners.batch.backfill import handover as handing
from emberflow.runners.batch.backfill.handover import Handover, Spool, handed_over, store_spool
from emberflow.sinks.writer import SinkFailedError
from emberflow.values.hashing import hash_ranges
from emberflow.values.item import Place
from tests.batch.local import BUS, cut, ends
from tests.batch.test_transactions import random_case as random_transactions_or_one_key
from tests.batch.test_transactions import reference_of
from tests.effort import blocks
from tests.engine.test_cut import CuttingLink, Watched, check_state, watched
from tests.strategies import Elements, random_flow


def case(seed: int) -> tuple[Random, Graph, Elements, int]:
    """A flow, sometimes with unfused cycles, its elements, and a time among theirs."""
    random = Random(f"backfill {seed}")
    flow, elements = random_flow(random)
    graph = flow.graph()
    if random.random() < 0.2:
        graph = replace(graph, reductions=())
    return random, graph, elements, random.choice([random.randint(-12, 31), random.randint(1, 12)])


def backfilled(
    graph: Graph, elements: Elements, until: int, folder: Path, random: Random
) -> tuple[CheckpointStore, Manifest, dict[str, sinks.Memory]]:
    """A backfill as `Flow.backfill` does it, with tasks in this process."""
    store = CheckpointStore(folder)
    life = store.begin()
    written = {name: sinks.Memory() for name in graph.sinks}
    # A Memory sink lives in the driver and would be spooled; here tasks and driver are one process.
    given = Handover(graph, (until, 0), str(folder), 1, life.incarnation, written)
    rows = list(ends(graph, elements, until=until, partitions=3, seed=random.randrange(99)))
    parts: list[Any] = []
    for task in range(2):
        own = [row for row in rows if row[0] % 2 == task]
        parts += handed_over(given, cut(own, random, BUS))
    manifest = Manifest.of(
        graph, number=1, incarnation=life.incarnation, time=(until, 0), parts=parts
    )
    store.commit(manifest)
    return store, manifest, written


def check_output(
    graph: Graph, written: dict[str, sinks.Memory], reference: Watched, moment: Moment
) -> None:
    """Check that the sinks hold what the reference gives below the moment."""
    for sink in graph.sinks.values():
        below = [(place, payload) for place, payload in reference.left[sink.name] if place < moment]
        found = [written[sink.name].payloads(partition) for partition in range(sink.partitions)]
        if sink.partitions == 1:
            assert repr(found[0]) == repr([payload for _, payload in below])
        else:
            together = [payload for partition in found for payload in partition]
            assert sorted(map(repr, together)) == sorted(repr(payload) for _, payload in below)
        lasts = [written[sink.name].open(partition).last() for partition in range(sink.partitions)]
        last = max((at for at in lasts if at is not None), default=None)
        assert last == (below[-1][0][:2] if below else None)


def gone_on(
    graph: Graph,
    elements: Elements,
    store: CheckpointStore,
    manifest: Manifest,
    workers: int,
    random: Random,
) -> dict[str, list[tuple[Place, Any]]]:
    """The output of the engine from the cut on."""
    link = CuttingLink(graph, workers, random)
    link.committed = manifest.time
    released: dict[str, list[tuple[Place, Any]]] = {name: [] for name in graph.sinks}
    noted = link._effects

    def effects(worker: int, effects: Any) -> None:
        for bundle in effects.bundles:
            released[bundle.sink] += [(place, payload) for place, _, payload in bundle.items]
        noted(worker, effects)

    link._effects = effects  # type: ignore[method-assign]
    for index, own in enumerate(hash_ranges(workers)):
        rows = [Row._make(row) for row in store.rows(manifest, own.low, own.high)]
        items = store.rows(manifest, own.low, own.high, kind=SCHEDULED)
        restored = link.workers[index].restore(
            manifest.time, rows, [Scheduled._make(row) for row in items]
        )
        link._effects(index, restored)
    for index in range(workers):  # before any front reports
        if link.acks[index]:
            link.deliver_ack(index)
    link.enter_all(elements, manifest.time)
    return released


@pytest.mark.parametrize("seeds", blocks("flows handed over from batch", 20), ids=str)
def test_a_backfill_and_a_run_from_its_cut_are_one_run(seeds: range, tmp_path: Path) -> None:
    states = scheduled = 0
    for seed in seeds:
        random, graph, elements, until = case(seed)
        found = check_handover(random, graph, elements, until, tmp_path / str(seed))
        states, scheduled = states + found[0], scheduled + found[1]
    assert states > 4 * len(seeds)
    assert scheduled > len(seeds) // 20


def test_updates_of_windows_are_handed_over_too(tmp_path: Path) -> None:
    """The windows that are known, and the ticks that are in flight."""
    scheduled = 0
    for seed in range(5):
        random = Random(f"updates handed over {seed}")
        spec = random.choice([ef.Tumbling(5), ef.Sliding(6, 2), ef.Session(2), ef.Session(3)])
        flow = ef.Flow("updates")
        numbers = flow.front("numbers").key_by(lambda n: n % 2)
        corrected = numbers.window(
            spec, emit="close", early=2, time=lambda n: n // 100, late="update"
        )
        corrected.collect().sink("corrected")
        numbers.window(spec, emit="close", early=3).sum().sink("early")
        given = [
            ef.At(at, 100 * (at - random.choice((0, 0, 1, 3, 9))) + random.randrange(100))
            for at in range(30)
        ]
        until, folder = random.randint(5, 30), tmp_path / str(seed)
        scheduled += check_handover(random, flow.graph(), {"numbers": given}, until, folder)[1]
    assert scheduled > 5


def check_handover(
    random: Random, graph: Graph, elements: Elements, until: int, folder: Path
) -> tuple[int, int]:
    """Check a backfill and a run from its cut. Returns how many rows and scheduled items the cut has."""
    reference = watched(graph, elements)
    store, manifest, written = backfilled(graph, elements, until, folder, random)
    rows = [Row._make(row) for row in store.rows(manifest)]
    check_state(graph, rows, reference, manifest.time)
    check_output(graph, written, reference, manifest.time)
    released = gone_on(graph, elements, store, manifest, random.randint(1, 5), random)
    for sink, left in reference.left.items():
        expected = [entry for entry in left if entry[0] >= manifest.time]
        assert sorted(released[sink], key=lambda entry: entry[0]) == expected, (folder.name, sink)
    return len(rows), sum(part.rows for part in manifest.parts if part.kind == SCHEDULED)


@pytest.mark.parametrize("seeds", blocks("transactions handed over from batch", 20), ids=str)
def test_transactions_are_handed_over_too(seeds: range, tmp_path: Path) -> None:
    told = 0
    for seed in seeds:
        random = Random(f"handing over {seed}")
        flow, elements = random_transactions_or_one_key(seed)
        graph = flow.graph()
        until = random.randint(0, 1 + max(map(len, elements.values())))
        store, manifest, written = backfilled(graph, elements, until, tmp_path / str(seed), random)
        below = {
            front: [
                element for element in map(timed, range(len(given)), given) if element.time < until
            ]
            for front, given in elements.items()
        }
        found: dict[str, dict[Any, Any]] = {}
        for row in map(Row._make, store.rows(manifest)):
            found.setdefault(row.operation, {})[row.key] = row.payload
        for state, values in reference_of(graph, below).states.items():
            assert found.get(state, {}) == values, (seed, state)
            told += len(values)
        released = gone_on(graph, elements, store, manifest, random.randint(1, 4), random)
        for sink, expected in reference_of(graph, elements).outputs.items():
            after = [payload for _, payload in sorted(released[sink], key=lambda entry: entry[0])]
            assert repr(written[sink].payloads() + after) == repr(expected), (seed, sink)
    assert told > len(seeds)


def timed(number: int, element: Any) -> ef.At[Any]:
    return element if isinstance(element, ef.At) else ef.At(number, element)


# --- Bundles --------------------------------------------------------------------------------------


def splitting() -> ef.Flow:
    flow = ef.Flow("splitting")
    flow.front("numbers").flat_map(lambda n: [n] * (n % 4)).sink("out")
    return flow


class Dying(sinks.Memory):
    """Fails after this many bundles."""

    retry_seconds = 0

    def __init__(self, bundles_max: int) -> None:
        super().__init__()
        self.bundles_max = bundles_max

    def open(self, partition: int) -> Any:
        writer: Any = super().open(partition)
        store, left = writer.store, iter(range(self.bundles_max))

        def dying(bundle: Any) -> None:
            if next(left, None) is None:
                raise OSError("the sink has gone")
            store(bundle)

        writer.store = dying
        return writer


@pytest.mark.parametrize("spooled", [False, True])
def test_bundles_split_no_global_time_and_go_on_where_the_sink_was_left(
    spooled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handing, "_BUNDLE_PAYLOADS", 2)
    graph = splitting().graph()
    elements = {"numbers": list(range(20))}
    rows = list(ends(graph, elements, until=15, partitions=2, seed=1))
    sink = Dying(3)
    for attempt in range(50):
        given = Handover(
            graph, (15, 0), str(tmp_path), 1, attempt, {"out": None if spooled else sink}
        )
        try:
            for told in handed_over(given, cut(rows, Random(attempt), BUS)):
                assert isinstance(told, Spool)
                store_spool(str(tmp_path), told, sink, (15, 0))
            break
        except SinkFailedError:
            continue
    bundles = sink.bundles()
    assert 1 < attempt < 49
    assert sink.payloads() == [n for n in range(15) for _ in range(n % 4)]
    times = [set(bundle.payloads) for bundle in bundles]  # here a payload is its own time
    assert sum(map(len, times)) == len(set.union(*times))
    assert [bundle.last for bundle in bundles] == [(max(held), 0) for held in times]
    assert max(len(bundle.payloads) for bundle in bundles) <= 2 + 3


def test_a_task_that_fails_leaves_nothing_that_is_half(tmp_path: Path) -> None:
    flow = ef.Flow("two ends")
    numbers = flow.front("numbers")
    numbers.key_by(lambda n: n % 7).count().sink("counts")
    numbers.sink("out")
    rows = list(ends(flow.graph(), {"numbers": list(range(20))}, until=9, partitions=1, seed=1))

    def torn() -> Any:
        yield from cut(rows, Random(1), BUS)
        raise OSError("the shuffle has gone")

    given = Handover(flow.graph(), (9, 0), str(tmp_path), 1, 1, {"counts": None, "out": None})
    with pytest.raises(OSError, match="shuffle"):
        handed_over(given, torn())
    # The spool of the first sink was complete, but no report reached the driver: it removes the
    # spool.
    (left,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left.parent.name == handing.SPOOLS
    assert left.name.startswith("000001-")


def test_growing_lists_are_restored_as_they_were(tmp_path: Path) -> None:
    flow = ef.Flow("growing")
    numbers = flow.front("numbers").key_by(lambda n: n % 2)
    grown = numbers.reduce(
        first=lambda n: ef.PersistentList([n]), combine=lambda held, n: held.append(n)
    )
    grown.map(list).sink("lists")
    elements = {"numbers": list(range(9))}
    store, manifest, _ = backfilled(flow.graph(), elements, 6, tmp_path, Random(1))
    assert {row[2]: list(row[4]) for row in store.rows(manifest)} == {0: [0, 2, 4], 1: [1, 3, 5]}
    released = gone_on(flow.graph(), elements, store, manifest, 2, Random(2))
    assert [payload for _, payload in sorted(released["lists"])] == [
        [0, 2, 4, 6],
        [1, 3, 5, 7],
        [0, 2, 4, 6, 8],
    ]
