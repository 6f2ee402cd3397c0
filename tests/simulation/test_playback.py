"""What a recorder saw is what happened, and the page has it, as text."""

from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.runners.playback import page
from emberflow.runners.playback.recorder import Recording
from tests.strategies import random_flow


def totals() -> ef.Flow:
    flow = ef.Flow("running totals")
    sales = ef.merge(flow.front("north"), flow.front("south"))
    sales.key_by(lambda sale: sale[0]).fold(
        initial=0, combine=lambda total, sale: total + sale[1], with_key=True, name="total"
    ).sink("totals")
    return flow


NORTH = [ef.At(2 * at, sale) for at, sale in enumerate([("tea", 1), ("oil", 2), ("tea", 5)])]
SOUTH = [ef.At(2 * at + 1, sale) for at, sale in enumerate([("tea", 10), ("tea", 20), ("oil", 30)])]


def counted(recording: Recording, sink: str, kind: Any) -> Counter[Any]:
    return Counter((event.place, repr(event.payload)) for event in recording.of(sink, kind))


def check_consistent(recording: Recording, outputs: dict[str, list[Any]]) -> int:
    """Released is computed less taken back, and is the output. How much was taken back."""
    taken_back = 0
    for sink, output in outputs.items():
        computed = counted(recording, sink, "computed")
        back = counted(recording, sink, "taken back")
        assert not back - computed
        assert computed - back == counted(recording, sink, "released")
        released = sorted(recording.of(sink, "released"), key=lambda event: event.place)
        assert [repr(event.payload) for event in released] == [*map(repr, output)]
        taken_back += back.total()
    ticks = [event.tick for event in recording.events]
    assert ticks == sorted(ticks)
    return taken_back


def test_what_is_released_is_what_was_computed_less_what_was_taken_back() -> None:
    taken_back = 0
    for seed in range(30):
        result = ef.simulate(totals(), north=NORTH, south=SOUTH, seed=seed, workers=3)
        taken_back += check_consistent(result.replay.recording(), result.outputs)
    assert taken_back > 10, "there has to be some speculation to look at"


@pytest.mark.parametrize("seed", range(12))
def test_random_flows_are_recorded_consistently(seed: int) -> None:
    flow, elements = random_flow(Random(seed))
    result = ef.simulate(flow, seed=seed, workers=2, **elements)
    check_consistent(result.replay.recording(), result.outputs)


def test_steps_are_those_that_the_user_wrote() -> None:
    result = ef.simulate(totals(), north=NORTH, south=SOUTH, workers=2)
    steps = [(step.name, step.role) for step in result.replay.recording().steps]
    assert steps == [("north", "front"), ("south", "front"), ("total", "state"), ("totals", "sink")]


def test_items_between_workers_are_on_the_way_for_some_time() -> None:
    recording = ef.simulate(
        totals(), north=NORTH, south=SOUTH, seed=2, workers=3
    ).replay.recording()
    assert recording.hops
    for hop in recording.hops:
        assert hop.sent < hop.received
        assert hop.source != hop.destination
        assert recording.steps[hop.origin].role in ("front", "state")


def test_diverted_elements_are_seen_at_the_errors_sink() -> None:
    flow = ef.Flow("inverse")
    flow.front("numbers").map(lambda number: 12 // number).sink("out")
    result = ef.simulate(flow, numbers=[3, 0, 4], on_error="divert", workers=2)
    recording = result.replay.recording()
    assert [event.payload for event in recording.of("out", "released")] == [4, 3]
    assert [event.payload.payload for event in recording.of("errors", "released")] == [0]


# --- The page -----------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Reads a page as a browser does, and complains about tags that do not close."""

    VOID = frozenset({"meta", "input", "br", "link", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        name = dict(self.tags[-1][1]).get("id") or self.tags[-1][0] if self.tags else ""
        self.texts[name] = self.texts.get(name, "") + data


def test_the_page_has_the_run_and_asks_nothing_of_a_network(tmp_path: Path) -> None:
    result = ef.simulate(totals(), north=NORTH, south=SOUTH, seed=3, workers=2)
    written = result.play(tmp_path / "run.html").read_text(encoding="utf-8")
    reader = Reader(written)
    data = json.loads(reader.texts["data"])
    released = [event for event in data["events"] if event["kind"] == "released"]
    released.sort(key=lambda event: event["rank"])
    assert [event["text"] for event in released] == [*map(repr, result.outputs["totals"])]
    assert (data["flow"], data["seed"], data["workers"]) == ("running totals", 3, 2)
    assert data["minimal"][-1]["time"] == "the end"
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", written)
    assert not [attributes for _, attributes in reader.tags if {"src", "href"} & attributes.keys()]


def test_whatever_a_payload_holds_is_text(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>{{flow}}{{data}}\ud800"
    flow = ef.Flow("</title><b>&amp;{{data}}")
    flow.front("in").map(lambda text: text, name="<i>").sink("out")
    result = ef.simulate(flow, **{"in": [evil]})
    written = result.play(tmp_path / "run.html").read_text(encoding="utf-8")
    data = json.loads(Reader(written).texts["data"])
    assert data["events"][-1]["text"] == repr(evil)
    assert data["flow"] == flow.name
    assert written.count("<script") == 2
    assert "<b>&" not in written


def test_a_run_that_is_too_long_or_gone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "EVENTS_MAX", 100)
    flow = ef.Flow("shout")
    flow.front("words").map(str.upper).sink("loud")
    with pytest.raises(ef.InputError, match="small flows"):
        ef.simulate(flow, words=["a"] * 50).play(tmp_path / "run.html")
    with pytest.raises(ef.InputError, match="without crashes"):
        ef.simulate(flow, words=["a"], crashes=1).play(tmp_path / "run.html")
    sent = pickle.loads(pickle.dumps(ef.simulate(flow, words=["a"])))
    with pytest.raises(ef.InputError, match="in the process that ran it"):
        sent.play(tmp_path / "run.html")


def test_a_function_that_is_not_pure_cannot_be_played(tmp_path: Path) -> None:
    calls: list[str] = []

    def grown(word: str) -> list[str]:
        calls.append(word)
        return [word] * len(calls)

    flow = ef.Flow("impure")
    flow.front("words").flat_map(grown).key_by(lambda word: word).count().sink("counts")
    result = ef.simulate(flow, words=["a", "b"], seed=1, workers=3)
    with pytest.raises(ef.NondeterminismError, match="not pure"):
        result.play(tmp_path / "run.html")
