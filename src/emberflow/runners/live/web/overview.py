"""What the page, the metrics and ``emberflow top`` show of a query that runs.

An overview is plain JSON, made of the workers' latest news when somebody asks for it, and not before. All
counters count from the beginning of the present life; who shows a rate takes the difference of two.

**What holds the minimal time back** is either the front with the least promise, or work in flight: no
front can be blamed while something below all promises is not done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Moment
from emberflow.graph.nodes import Graph
from emberflow.runners.live.driver.chronicle import Chronicle, Cut, Event, History, Row
from emberflow.runners.live.driver.coordinator import Coordinator
from emberflow.runners.live.observation import Aside, Observation
from emberflow.runners.live.web.shape import Shape
from emberflow.runners.live.wire.plan import WorkerNews
from emberflow.values.item import TIME_MIN

#: Those who ask within this time get the same overview.
_SHARED_SECONDS = 0.4
_HOT_KEYS_MAX = 10
#: Integers up to this are exact in JavaScript.
_EXACT_MAX = 2**53


class Overview:
    """Makes the overviews of one query, and remembers what its last one was."""

    def __init__(
        self,
        *,
        identity: Mapping[str, Any],
        graph: Callable[[], Graph],
        coordinator: Callable[[], Coordinator],
        status: Callable[[], str],
        is_active: Callable[[], bool],
        progress: Callable[[], Mapping[str, Any] | None],
        failure: Callable[[], BaseException | None],
        chronicle: Chronicle,
        history: History,
    ) -> None:
        """The functions give what is so at present. ``identity`` has the id and the names."""
        self.chronicle = chronicle
        self.history = history
        self._identity = dict(identity)
        self._graph = graph
        self._coordinator = coordinator
        self._status = status
        self._is_active = is_active
        self._progress = progress
        self._failure = failure
        self._shape: tuple[Graph, Shape] | None = None
        self._made: tuple[float, dict[str, Any]] | None = None

    def shape(self) -> Shape:
        """The shape of the version that serves now."""
        graph = self._graph()
        if self._shape is None or self._shape[0] is not graph:
            self._shape = graph, Shape(graph)
        return self._shape[1]

    def summary(self) -> dict[str, Any]:
        """A line of the list of queries."""
        progress = self._progress() or {}
        failure = self._failure()
        return {
            **self._identity,
            "state": self._status(),
            "active": self._is_active(),
            "error": None if failure is None else str(failure),
            "begun": self.chronicle.begun_ms,
            "elements": progress.get("elements", 0),
            "lagMs": progress.get("minimalTimeLagMs", 0.0),
            "recoveries": progress.get("recoveries", 0),
        }

    def made(self) -> dict[str, Any]:
        """The overview as of now."""
        now = time.monotonic()
        if self._made is None or now - self._made[0] > _SHARED_SECONDS:
            self._made = now, self._new()
        return self._made[1]

    def _new(self) -> dict[str, Any]:
        coordinator, shape = self._coordinator(), self.shape()
        news = [own for _, own in sorted(coordinator.news.items())]
        seen = [(own.worker, own.observation) for own in news if own.observation is not None]
        fronts = [_front(front, worker) for worker, own in seen for front in own.fronts]
        progress = self._progress() or {}
        return {
            **self.summary(),
            "at": time.time_ns() // 1_000_000,
            "version": id(shape),
            "progress": {key: value for key, value in progress.items() if key != "cuts"},
            "workers": [_worker(own) for own in news],
            "steps": steps(shape, seen),
            "fronts": fronts,
            "sinks": sinks(seen),
            "heldBack": held_back(coordinator, fronts),
            "cuts": progress.get("cuts"),
        }


def _worker(news: WorkerNews) -> dict[str, Any]:
    return {
        "worker": news.worker,
        "pid": news.pid,
        "cpuSeconds": news.cpu_seconds,
        "memory": round(news.memory, 3),
        "residentBytes": 0 if news.observation is None else news.observation.resident_bytes,
        "items": news.statistics.items,
        "elements": news.statistics.elements,
        "busySeconds": round(sum(news.observation.busy_seconds.values()), 3)
        if news.observation is not None
        else 0.0,
    }


def steps(shape: Shape, seen: Iterable[tuple[int, Observation]]) -> dict[str, dict[str, Any]]:
    """By step: what all workers have done there, and each of them."""
    seen = list(seen)
    found = {}
    for step in shape.steps.values():
        by_worker = [_on_worker(shape, step.id, step.nodes, own) for _, own in seen]
        found[step.id] = {
            **{
                name: sum(one[name] for one in by_worker)
                for name in ("in", "out", "busySeconds", "replays", "keys", "held")
            },
            "hotKeys": _hot_keys(step.nodes, [own for _, own in seen]),
            "byWorker": by_worker,
        }
    return found


def _on_worker(shape: Shape, step: str, nodes: Iterable[int], seen: Observation) -> dict[str, Any]:
    known = [node for node in nodes if node in seen.nodes]
    sink = step.removeprefix("sink ") if step.startswith("sink ") else None
    released = sum(one.released for (name, _), one in seen.barriers.items() if name == sink)
    return {
        "in": sum(seen.nodes[node].items for node in shape.entries[step] if node in seen.nodes),
        "out": released
        if sink is not None
        else sum(
            seen.nodes[node].given[port]
            for node, port in shape.exits[step]
            if node in seen.nodes and port < len(seen.nodes[node].given)
        ),
        "busySeconds": round(sum(seen.busy_seconds.get(node, 0.0) for node in nodes), 3),
        "replays": sum(seen.nodes[node].replays for node in known),
        "keys": sum(seen.nodes[node].keys for node in known),
        "held": sum(seen.nodes[node].held for node in known),
    }


def _hot_keys(nodes: Iterable[int], seen: Iterable[Observation]) -> list[list[Any]]:
    """The keys with the most items, with their shares: those of a worker count by its share of items."""
    weights: dict[str, float] = {}
    total = 0.0
    for own in seen:
        for node in nodes:
            if own.hot_keys.get(node):
                items = own.nodes[node].items if node in own.nodes else 0
                total += items
                for key, share in own.hot_keys[node]:
                    weights[key] = weights.get(key, 0.0) + share * items
    hottest = sorted(weights.items(), key=lambda one: -one[1])[:_HOT_KEYS_MAX]
    return [[key, round(weight / total, 3)] for key, weight in hottest] if total else []


def _front(front: Any, worker: int) -> dict[str, Any]:
    return {
        "front": front.front,
        "partition": front.partition,
        "index": front.front_index,
        "worker": worker,
        "waiting": front.waiting,
        "ahead": front.ahead,
        "reached": _time(front.reached),
        "promised": _time(front.promised),
        "position": front.position,
        "late": front.late,
        "lagMs": round(front.lag_ms, 1),
        "over": front.over,
    }


def sinks(seen: Iterable[tuple[int, Observation]]) -> list[dict[str, Any]]:
    """Each partition of a sink: what its barrier holds, and what is not stored."""
    found = []
    for worker, own in seen:
        for one in own.sinks:
            barrier = own.barriers.get((one.sink, one.partition))
            found.append(
                {
                    "sink": one.sink,
                    "partition": one.partition,
                    "worker": worker,
                    "held": 0 if barrier is None else barrier.held,
                    "arrived": one.added if barrier is None else barrier.arrived,
                    "released": one.added if barrier is None else barrier.released,
                    "takenBack": 0 if barrier is None else barrier.tombstones,
                    "unstored": one.unstored,
                    "unstoredBytes": one.unstored_bytes,
                }
            )
    return sorted(found, key=lambda sink: (sink["sink"], sink["partition"]))


def held_back(
    coordinator: Coordinator, fronts: Iterable[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """What holds the minimal time back; None if all fronts have ended."""
    least = coordinator.least_in_flight
    if least is not None:
        return {"by": "work", "time": _time((least[0], least[1])), "front": None, "partition": None}
    promises = coordinator.promises
    if not promises:
        return None
    index, promise = min(promises.items(), key=lambda one: (one[1], one[0]))
    if promise == AFTER_ALL:
        return None
    for front in fronts:
        if front["index"] == index:
            return {
                "by": "front",
                "time": _time(promise),
                "front": front["front"],
                "partition": front["partition"],
            }
    return {"by": "front", "time": _time(promise), "front": None, "partition": None}


def _time(moment: Moment) -> int | str | None:
    """The time of a moment, if it is one and not before or after all times.

    A text where a number of JavaScript would not hold it.
    """
    at = moment[0]
    if moment <= BEFORE_ALL or moment >= AFTER_ALL or at <= TIME_MIN:
        return None
    return at if abs(at) <= _EXACT_MAX else str(at)


def rows_json(rows: Iterable[Row]) -> list[list[Any]]:
    """Each as a list, in the order of `ROW_NAMES`."""
    return [list(row) for row in rows]


#: The columns of the history.
ROW_NAMES = list(Row._fields)


def cuts_json(cuts: Iterable[Cut]) -> list[dict[str, Any]]:
    return [
        {
            "at": cut.at_ms,
            "number": cut.number,
            "time": _time(cut.moment),
            "ms": cut.ms,
            "rows": cut.rows,
            "bytes": cut.bytes,
            "whole": cut.is_whole,
        }
        for cut in cuts
    ]


def events_json(events: Iterable[Event]) -> list[dict[str, Any]]:
    return [
        {"at": event.at_ms, "kind": event.kind, "life": event.life, "text": event.text}
        for event in events
    ]


def aside_json(aside: Iterable[Aside]) -> list[dict[str, Any]]:
    return [one._asdict() for one in aside]
