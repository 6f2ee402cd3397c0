"""What a worker tells of its steps, how it becomes the figures of the page and of Prometheus."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import emberflow as ef
from emberflow.commands.views.top import picture
from emberflow.engine.layout import Layout
from emberflow.engine.messages import AFTER_ALL, Bundle
from emberflow.engine.worker.worker import Worker
from emberflow.errors import ERRORS_SINK, Diverted
from emberflow.runners.live.driver import chronicle
from emberflow.runners.live.driver.chronicle import Chronicle, Cut, History
from emberflow.runners.live.observation import ASIDE_MAX, Aside, Observer, Sampler
from emberflow.runners.live.web.metrics import metrics_text
from emberflow.runners.live.web.overview import Overview, held_back, steps
from emberflow.runners.live.web.shape import Shape
from emberflow.values.item import GlobalTime


def shop() -> ef.Flow:
    flow = ef.Flow("shop")
    orders = flow.front("orders").map(lambda order: order, name="clean")
    orders.key_by(lambda order: order[0]).count(name="counts").sink("counts")
    orders.filter(lambda order: order[1] > 2, name="large").sink("large")
    return flow


ORDERS = [("ada", 1), ("bob", 5), ("ada", 3), ("ada", 9)]


class Watched:
    """One worker that has taken in the orders, and an observer of it."""

    def __init__(self) -> None:
        self.graph = shop().graph()
        self.shape = Shape(self.graph)
        self.worker = Worker(Layout(self.graph), 0, 1)
        self.observer = Observer(self.graph, self.worker)
        node = self.graph.fronts["orders"].id
        elements = [((at, 0), order) for at, order in enumerate(ORDERS)]
        self.worker.enter(node, elements, {0: AFTER_ALL})

    def observation(self) -> Any:
        return self.observer.observed([], [])


@pytest.fixture
def watched() -> Any:
    watched = Watched()
    yield watched
    watched.observer.close()


def test_the_steps_are_those_that_the_user_named() -> None:
    shape = Shape(shop().graph())
    assert {step.id: step.kind for step in shape.steps.values()} == {
        "front orders": "front",
        "clean": "map",
        "counts": "count",
        "large": "filter",
        "sink counts": "sink",
        "sink large": "sink",
    }
    assert {(edge.origin, edge.reader) for edge in shape.edges} == {
        ("front orders", "clean"),
        ("clean", "counts"),
        ("clean", "large"),
        ("counts", "sink counts"),
        ("large", "sink large"),
    }
    (counts,) = [step for step in shape.steps.values() if step.id == "counts"]
    assert "test_observation.py" in counts.where
    assert any("lambda" in function for function in counts.functions)


def test_a_step_counts_what_comes_in_and_what_it_gives(watched: Watched) -> None:
    found = steps(watched.shape, [(0, watched.observation())])
    assert {step: (own["in"], own["out"]) for step, own in found.items()} == {
        "front orders": (4, 4),
        "clean": (4, 8),  # two steps read it
        "counts": (4, 4),
        "large": (4, 3),
        "sink counts": (4, 0),  # nothing is final yet
        "sink large": (3, 0),
    }
    assert found["counts"]["keys"] == 2
    assert found["counts"]["byWorker"] == [
        {"in": 4, "out": 4, "busySeconds": 0.0, "replays": 0, "keys": 2, "held": 0}
    ]


def test_the_sampler_gives_time_to_the_node_that_runs_and_counts_its_keys() -> None:
    items = [((at, 0), 0, order) for at, order in enumerate(ORDERS)]
    running: list[Any] = [None, (7, items), (8, items), None]
    sampler = Sampler({7: lambda order: order[0]}, lambda: running[0])
    for _ in range(400):
        sampler.look(0.01)
        running.append(running.pop(0))
    assert sampler.seconds == {7: pytest.approx(1.0), 8: pytest.approx(1.0)}
    shares = dict(sampler.hot_keys()[7])
    assert shares.keys() == {"'ada'", "'bob'"}
    assert shares["'ada'"] > shares["'bob'"]


def test_a_sampler_keeps_a_bounded_number_of_keys_and_finds_the_hot_one() -> None:
    cold = iter(range(100_000))
    batch = [((0, 0), 0, None)]
    sampler = Sampler(
        {1: lambda _: "hot" if next(cold) % 3 == 0 else next(cold)}, lambda: (1, batch)
    )
    for _ in range(5_000):
        sampler.look(0.01)
    assert len(sampler._met[1]) <= 201
    assert sampler.hot_keys()[1][0][0] == "'hot'"


def test_a_key_function_that_raises_does_not_end_the_sampler() -> None:
    sampler = Sampler({1: lambda payload: payload["key"]}, lambda: (1, [((0, 0), 0, 5)]))
    sampler.look(0.5)
    assert sampler.seconds == {1: 0.5}


def test_hot_keys_of_a_fused_reduction_are_those_of_the_user(watched: Watched) -> None:
    entry = watched.shape.entries["counts"][0]
    items = [((at, 0), 0, order) for at, order in enumerate(ORDERS)]
    sampler = Sampler(watched.observer._sampler._keys, lambda: (entry, items))
    for _ in range(100):
        sampler.look(0.01)
    assert {key for key, _ in sampler.hot_keys()[entry]} == {"'ada'", "'bob'"}


def test_what_was_put_aside_is_told_once_and_bounded(watched: Watched) -> None:
    record = Diverted(3, 0, "map 'clean'", "clean", "it raised", "x" * 10_000)
    many = [((at, 0), 0, record) for at in range(3 * ASIDE_MAX)]
    watched.observer.note_released([Bundle(ERRORS_SINK, 0, GlobalTime(3, 0), many)])
    first, second = watched.observation().aside, watched.observation().aside
    assert len(first) == ASIDE_MAX
    assert (first[-1].time, first[-1].problem) == (3 * ASIDE_MAX - 1, "it raised")
    assert len(first[-1].payload) <= 300
    assert second == []


def coordinator(watched: Watched, **changed: Any) -> Any:
    news = SimpleNamespace(
        worker=0,
        pid=1,
        cpu_seconds=2.0,
        memory=0.5,
        settled=0,
        statistics=watched.worker.statistics(),
        observation=watched.observation(),
    )
    given = {"news": {0: news}, "least_in_flight": None, "promises": {0: (4, 0)}, "committer": None}
    return SimpleNamespace(**{**given, "aside": [], **changed})


PROGRESS: dict[str, Any] = {
    "elements": 4,
    "released": 0,
    "latencyMs": {"p50": 3.0, "p99": 9.0},
    "minimalTimeLagMs": 12.0,
    "waiting": 0,
    "heldAtBarriers": 7,
    "unstored": 0,
    "cpuPerWorker": [0.5],
    "recoveries": 1,
    "cuts": {"count": 3, "lastMs": 5.0, "lastBytes": 100},
}


def overview_of(watched: Watched) -> Overview:
    return Overview(
        identity={"id": "1", "name": "shop"},
        graph=lambda: watched.graph,
        coordinator=lambda: coordinator(watched),
        status=lambda: "Running",
        is_active=lambda: True,
        progress=lambda: PROGRESS,
        failure=lambda: None,
        chronicle=Chronicle(),
        history=History(),
    )


def test_the_minimal_time_is_held_back_by_the_least_promise_or_by_work(watched: Watched) -> None:
    fronts = [
        {"index": 0, "front": "a", "partition": 0},
        {"index": 1, "front": "b", "partition": 2},
    ]
    promises = {0: (9, 0), 1: (4, 1)}
    found = held_back(coordinator(watched, promises=promises), fronts)
    assert found == {"by": "front", "time": 4, "front": "b", "partition": 2}
    found = held_back(coordinator(watched, promises=promises, least_in_flight=(3, 0, 1)), fronts)
    assert found is not None
    assert (found["by"], found["time"]) == ("work", 3)
    assert held_back(coordinator(watched, promises={0: AFTER_ALL}), fronts) is None


def test_prometheus_reads_what_a_query_tells(watched: Watched) -> None:
    query = SimpleNamespace(overview=overview_of(watched))
    families = {
        family.name: family
        for family in text_string_to_metric_families(metrics_text([query]).decode())
    }
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    own = ("query", "shop")
    assert samples["emberflow_elements_total", own] == 4
    assert samples["emberflow_up", own] == 1
    assert samples["emberflow_recoveries_total", own] == 1
    assert samples["emberflow_latency_seconds", ("quantile", "0.99"), own] == 0.009
    assert samples["emberflow_step_items_in_total", own, ("step", "counts")] == 4
    assert samples["emberflow_step_keys", own, ("step", "counts")] == 2
    assert samples["emberflow_worker_cpu_seconds_total", own, ("worker", "0")] == 2.0
    assert all(family.documentation for family in families.values())


def test_top_shows_a_query_with_the_words_of_the_page(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    look = overview_of(watched).made()
    hot = {"step": "counts", "key": "'ada'", "worker": 0, "share": 0.914}
    look = {**look, "progress": {**look["progress"], "hotKeys": [hot]}}
    earlier = {**look, "at": look["at"] - 2_000, "progress": {**PROGRESS, "elements": 0}}
    Console(width=100).print(picture([earlier, look]))
    shown = capsys.readouterr().out
    assert "elements in  2.0/s" in shown
    assert "recovered once" in shown
    assert "Key 'ada' of counts is too hot for one worker: it takes 91%" in shown
    assert "counts" in shown


def test_rates_of_the_history_survive_a_recovery(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(chronicle.time, "monotonic", lambda: now)
    history = History()
    for elements in (1_000, 3_000, 500):  # workers of the next life count from 0 again
        now += 2.0
        history.note({**PROGRESS, "elements": elements}, coordinator(watched))
        history.note({**PROGRESS, "elements": 10**9}, coordinator(watched))  # too soon for a row
    assert [row.elements for row in history.rows()] == [500.0, 1_000.0, 250.0]


def test_the_history_is_bounded(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(chronicle.time, "monotonic", lambda: now)
    history = History()
    for number in range(2 * chronicle.ROWS_MAX):
        now += 1.0
        cut = Cut(number, number, (number, 0), 1.0, 1, 1)
        aside = Aside("late", number, 0, "", "late", "x")
        committer = SimpleNamespace(recent=[cut])
        told = coordinator(watched, committer=committer)
        told.aside = chronicle.deque([aside])
        history.note(PROGRESS, told)
    assert len(history.rows()) == chronicle.ROWS_MAX
    assert len(history.cuts()) == chronicle.CUTS_MAX
    assert len(history.aside()) == ASIDE_MAX
    events = Chronicle()
    for life in range(2 * chronicle.EVENTS_MAX):
        events.note("lost", life, "x\ny" * 10_000)
    assert len(events.events()) == chronicle.EVENTS_MAX
    assert events.events()[-1].text == "x"


def test_the_grafana_dashboard_asks_for_metrics_that_there_are(watched: Watched) -> None:
    board = (Path(__file__).parents[2] / "deploy/grafana/emberflow.json").read_text()
    asked = set(re.findall(r"emberflow_[a-z_]+", " ".join(_expressions(json.loads(board)))))
    overview: Any = overview_of(watched)
    front = {"front": "orders", "partition": 0, "waiting": 0, "ahead": 0, "lagMs": 0.0, "late": 0}
    sink = {"sink": "counts", "partition": 0, "released": 0, "held": 0, "unstored": 0}
    made = {**overview.made(), "fronts": [front], "sinks": [sink], "cuts": PROGRESS["cuts"]}
    query: Any = SimpleNamespace(overview=SimpleNamespace(made=lambda: made))
    told = set(re.findall(r"^(emberflow_\w+)\{", metrics_text([query]).decode(), re.MULTILINE))
    assert len(asked) > 10
    assert asked <= told


def _expressions(board: Any) -> list[str]:
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
