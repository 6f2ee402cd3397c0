"""What a worker tells of itself step by step, for the page, the metrics and ``emberflow top``.

What is guaranteed: **a query that nobody may look at pays nothing for it.** Only where the plan says that
it is observed, a worker adds an `Observation` to its news, four times a second, and a thread samples what
the loop is busy with. The counters themselves are plain ints that the engine counts by batch.

*Busy* is the share of a worker's time that its loop spends in a step. The engine has no clock, so nothing
is measured there: the thread looks some fifty times a second which node runs (`Sampler`), and gives the
node the time since the last look. On a machine with too few processors that is more than the processor
time. *Hot keys* are found the same way: the thread draws one item of the batch that runs, and asks for
its key. Both are estimates, good to some percent after a few seconds.

*Records put aside* (diverted errors, late elements) are noted as short texts, the newest of them.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from emberflow.engine.interface import BarrierStatistics, EngineWorker, NodeStatistics
from emberflow.engine.layout import Layout
from emberflow.engine.messages import Bundle, Moment
from emberflow.errors import ERRORS_SINK, LATE_SINK, Diverted, shortened
from emberflow.graph.nodes import Graph
from emberflow.graph.transactions import Access
from emberflow.runners.interpreter import memory_used
from emberflow.values.item import FlatItem

SAMPLE_SECONDS = 0.02
#: Keys that a sampler counts for a node; when there are more, all counts are halved.
_KEYS_COUNTED_MAX = 200
_KEYS_TOLD = 10
#: Records that were put aside: how many the news carry at most, and how long each may be.
ASIDE_MAX = 100
_TEXT_MAX = 300


class FrontObservation(NamedTuple):
    """One partition of a front, on the worker that feeds it."""

    front: str
    partition: int
    front_index: int
    #: Elements read and not yet entered; elements that have entered and are not final.
    waiting: int
    ahead: int
    #: All that it has let in is below ``reached``; it lets nothing more in below ``promised``.
    reached: Moment
    promised: Moment
    position: str
    late: int
    lag_ms: float
    over: bool


class SinkObservation(NamedTuple):
    """One partition of a sink, on the worker that holds its barrier."""

    sink: str
    partition: int
    added: int
    unstored: int
    unstored_bytes: int


class Aside(NamedTuple):
    """A record that was diverted or late."""

    sink: str
    time: int
    front: int
    #: The step and the function that failed; empty for what was late.
    step: str
    problem: str
    payload: str


class Observation(NamedTuple):
    """What one worker tells of itself."""

    nodes: dict[int, NodeStatistics]
    busy_seconds: dict[int, float]
    #: By node: its keys that were met most often, each with the share of all that were met.
    hot_keys: dict[int, list[tuple[str, float]]]
    barriers: dict[tuple[str, int], BarrierStatistics]
    fronts: list[FrontObservation]
    sinks: list[SinkObservation]
    aside: list[Aside]
    resident_bytes: int


class Observer:
    """Looks at the worker of one loop. All but the sampling happens in the loop's thread."""

    def __init__(self, graph: Graph, engine: EngineWorker) -> None:
        self._engine = engine
        self._aside: deque[Aside] = deque(maxlen=ASIDE_MAX)
        self._sampler = Sampler(_key_functions(graph), lambda: engine.running)
        self._sampler.start()

    def close(self) -> None:
        self._sampler.close()

    def note_released(self, bundles: Iterable[Bundle]) -> None:
        """Note what was put aside among the output that has become final."""
        for bundle in bundles:
            if bundle.sink in (ERRORS_SINK, LATE_SINK):
                newest = bundle.items[-ASIDE_MAX:]
                self._aside += [_aside(bundle.sink, item) for item in newest]

    def observed(self, feeds: Iterable[Any], stores: Iterable[Any]) -> Observation:
        """As of now. ``feeds`` and ``stores`` are those of the loop."""
        engine, aside = self._engine, list(self._aside)
        self._aside.clear()
        return Observation(
            nodes=engine.node_statistics(),
            busy_seconds=dict(self._sampler.seconds),
            hot_keys=self._sampler.hot_keys(),
            barriers=engine.barrier_statistics(),
            fronts=[_front(feed) for feed in feeds],
            sinks=[
                SinkObservation(
                    store.sink, store.partition, store.added, store.unstored, store.unstored_bytes
                )
                for store in stores
            ],
            aside=aside,
            resident_bytes=memory_used().resident,
        )


class Sampler:
    """A thread that looks again and again at what another one does.

    ``running`` gives the node that runs and its items. ``keys`` are the key functions, by node.
    """

    def __init__(
        self,
        keys: Mapping[int, Callable[[Any], Any]],
        running: Callable[[], tuple[int, list[FlatItem]] | None],
    ) -> None:
        self._keys = keys
        self._running = running
        #: By node: how long it ran.
        self.seconds: dict[int, float] = {}
        self._met: dict[int, Counter[str]] = {}
        self._ended = threading.Event()
        self._random = random.Random(0)
        self._thread = threading.Thread(target=self._run, name="emberflow sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        looked_at = time.monotonic()
        while not self._ended.wait(SAMPLE_SECONDS):
            now = time.monotonic()
            self.look(now - looked_at)
            looked_at = now

    def look(self, elapsed: float) -> None:
        """Give the node that runs now the time since the last look."""
        running = self._running()
        if running is None:
            return
        node, items = running
        self.seconds[node] = self.seconds.get(node, 0.0) + elapsed
        key_of = self._keys.get(node)
        if key_of is not None:
            # The item may be one that is to be taken back, for which the function never was called.
            with contextlib.suppress(Exception):
                met = self._met.setdefault(node, Counter())
                met[shortened(key_of(self._random.choice(items)[2]), 80)] += 1
                if len(met) > _KEYS_COUNTED_MAX:
                    self._met[node] = Counter({key: n // 2 for key, n in met.items() if n > 1})

    def hot_keys(self) -> dict[int, list[tuple[str, float]]]:
        """By node: the keys that were met most often. One that was met once says nothing."""
        return {
            node: [(key, count / total) for key, count in met.most_common(_KEYS_TOLD) if count > 1]
            for node, met in list(self._met.items())
            if (total := sum(met.values()))
        }


def _key_functions(graph: Graph) -> dict[int, Callable[[Any], Any]]:
    """By node: what gives the key of a payload that runs there."""
    found = {
        node.id: node.inputs[0].own_key.function
        for node in graph.nodes
        if node.inputs and node.inputs[0].own_key is not None
    }
    found |= {node.id: node.by.function for node in graph.nodes if isinstance(node, Access)}
    for entry, fused in Layout(graph).fused.items():
        # A machine that is entered at the pairing of keys and payloads takes the payloads.
        if fused.reduction.key is not None and entry == fused.reduction.pair:
            found[entry] = fused.reduction.key
    return found


def _front(feed: Any) -> FrontObservation:
    return FrontObservation(
        front=feed.name,
        partition=feed.partition,
        front_index=feed.index,
        waiting=feed.waiting,
        ahead=feed.gate.ahead,
        reached=feed.gate.reached,
        promised=feed.reported,
        position="" if feed.taken is None else shortened(feed.taken[0], 80),
        late=feed.late,
        lag_ms=feed.lag_ms,
        over=feed.over,
    )


def _aside(sink: str, item: FlatItem) -> Aside:
    place, _, record = item
    if isinstance(record, Diverted):
        step = f"{record.step}, {record.function}" if record.function else str(record.step)
        payload, problem = record.payload, str(record.problem)
    else:
        step, payload, problem = "", record, "late"
    return Aside(sink, place[0], place[1], step, problem[:_TEXT_MAX], shortened(payload, _TEXT_MAX))
