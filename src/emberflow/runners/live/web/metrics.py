"""``/metrics``: the queries of a process for Prometheus, in names by its conventions.

Counters count from the beginning of the present life of a query's workers, as Prometheus expects of
processes that start again. The figures are those of the page (`overview`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from emberflow.runners.live.web.overview import Overview

METRICS_TYPE = CONTENT_TYPE_LATEST


class Measured(Protocol):
    """What may have an overview: a query that runs here."""

    overview: Overview | None


def metrics_text(queries: Sequence[Measured]) -> bytes:
    """The exposition of all queries that have an overview."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Queries([query.overview for query in queries if query.overview is not None]))
    return generate_latest(registry)


class _Queries(Collector):
    def __init__(self, queries: Iterable[Overview]) -> None:
        self._queries = list(queries)

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for query in self._queries:
            overview = query.made()
            name = overview["name"] or overview["id"]
            for kind, metric, help, labels, value in _samples(overview):
                family = families.get(metric)
                if family is None:
                    made = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
                    family = families[metric] = made(metric, help, labels=["query", *labels])
                family.add_metric([name, *map(str, labels.values())], value)  # type: ignore[attr-defined]
        yield from families.values()


_Sample = tuple[str, str, str, dict[str, Any], float]


def _samples(overview: dict[str, Any]) -> Iterator[_Sample]:
    yield from _of_query(overview)
    for worker in overview["workers"]:
        own = {"worker": worker["worker"]}
        yield (
            "counter",
            "emberflow_worker_cpu_seconds",
            "Processor time.",
            own,
            worker["cpuSeconds"],
        )
        yield (
            *("gauge", "emberflow_worker_resident_bytes", "Memory of the process."),
            *(own, worker["residentBytes"]),
        )
        yield (
            *("gauge", "emberflow_worker_memory_ratio", "Share of the memory that is in use."),
            *(own, worker["memory"]),
        )
    for step, figures in overview["steps"].items():
        own = {"step": step}
        for name, key, help in _OF_STEPS:
            kind = "gauge" if key in ("keys", "held") else "counter"
            yield kind, f"emberflow_step_{name}", help, own, figures[key]
    for front in overview["fronts"]:
        own = {"front": front["front"], "partition": front["partition"]}
        yield (
            *("gauge", "emberflow_front_waiting", "Elements read and not yet taken in."),
            *(own, front["waiting"]),
        )
        yield (
            *("gauge", "emberflow_front_ahead", "Elements taken in that are not final."),
            *(own, front["ahead"]),
        )
        yield (
            *(
                "gauge",
                "emberflow_front_lag_seconds",
                "Age of its oldest element that is not final.",
            ),
            *(own, front["lagMs"] / 1_000),
        )
        yield "counter", "emberflow_front_late", "Late elements.", own, front["late"]
    for sink in overview["sinks"]:
        own = {"sink": sink["sink"], "partition": sink["partition"]}
        yield "counter", "emberflow_sink_released", "Outputs that are final.", own, sink["released"]
        yield (
            *("gauge", "emberflow_sink_held", "Outputs at the barrier, not yet final."),
            *(own, sink["held"]),
        )
        yield (
            *("gauge", "emberflow_sink_unstored", "Final outputs that wait for the sink."),
            *(own, sink["unstored"]),
        )


_OF_STEPS = (
    ("items_in", "in", "Items that came to the step."),
    ("items_out", "out", "Items that the step gave."),
    ("busy_seconds", "busySeconds", "Time that workers spent in the step, sampled."),
    ("replays", "replays", "Items computed again because an earlier one came late."),
    ("keys", "keys", "Keys that the step keeps."),
    ("held", "held", "Items that wait until the step's input is complete."),
)


def _of_query(overview: dict[str, Any]) -> Iterator[_Sample]:
    progress = overview["progress"]
    is_up = overview["error"] is None and overview["active"]
    yield "gauge", "emberflow_up", "Whether the query is active.", {}, float(is_up)
    yield "counter", "emberflow_recoveries", "Lives that were lost.", {}, overview["recoveries"]
    if not progress:
        return
    yield "counter", "emberflow_elements", "Elements taken in.", {}, progress["elements"]
    yield "counter", "emberflow_released", "Outputs that are final.", {}, progress["released"]
    yield (
        *("gauge", "emberflow_minimal_time_lag_seconds", "Age of the oldest element not final."),
        *({}, progress["minimalTimeLagMs"] / 1_000),
    )
    for percent, ms in progress["latencyMs"].items():
        yield (
            *("gauge", "emberflow_latency_seconds", "From taking an element in to stored output."),
            *({"quantile": f"0.{percent.removeprefix('p')}"}, ms / 1_000),
        )
    cuts = overview["cuts"]
    if cuts:
        yield "counter", "emberflow_cuts", "Cuts of the present life.", {}, cuts["count"]
        yield (
            *("gauge", "emberflow_cut_seconds", "How long the last cut took."),
            *({}, cuts["lastMs"] / 1_000),
        )
        yield "gauge", "emberflow_cut_bytes", "What the last cut added.", {}, cuts["lastBytes"]
