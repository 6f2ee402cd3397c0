"""What a notebook shows of flows, results and queries: the same values, escaped and bounded."""

from __future__ import annotations

import json
import pickle
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import emberflow as ef
from emberflow.graph.picture import picture
from emberflow.runners.notebook import COLUMNS_MAX, ROWS_MAX, Outputs, payload_table
from tests.strategies import random_flow
from tests.test_examples import EXAMPLES, example

EVIL = "<script>alert(1)</script>&\"'\x00\ud800"
SVG = "{http://www.w3.org/2000/svg}"


def texts(drawn: str) -> list[str]:
    return [one.text or "" for one in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


# --- Flows --------------------------------------------------------------------------------------------


def test_a_flow_draws_its_steps_as_they_were_written() -> None:
    flow = ef.Flow("word count")
    words = flow.front("lines").flat_map(str.split, name="words")
    words.key_by(len).count(name="counted").sink("counts")
    drawn = flow._repr_svg_()
    assert drawn is not None
    assert {"lines", "words", "flat_map str.split", "counted", "by len", "counts"} <= {
        *texts(drawn)
    }
    assert drawn == flow._repr_svg_()


def test_a_flow_that_is_not_complete_is_shown_as_text() -> None:
    flow = ef.Flow("empty")
    flow.front("lines").map(str.upper)
    assert flow._repr_svg_() is None


@pytest.mark.parametrize(
    "name", ["bank", "click_sessions", "inverted_index", "ledger", "word_count"]
)
def test_examples_are_drawn_without_boxes_on_top_of_each_other(name: str) -> None:
    assert (EXAMPLES / f"{name}.py").exists()
    check_picture(picture(example(name).flow.graph()))


def test_random_flows_are_drawn() -> None:
    from random import Random

    for seed in range(40):
        flow, _ = random_flow(Random(seed))
        check_picture(picture(flow.graph()))


def check_picture(drawn: str) -> None:
    root = ElementTree.fromstring(drawn)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    boxes = [
        tuple(float(one.attrib[name]) for name in ("x", "y", "width", "height"))
        for one in root.iter(f"{SVG}rect")
        if "x" in one.attrib
    ]
    assert boxes
    for number, (x, y, wide, high) in enumerate(boxes):
        assert x >= 0
        assert y >= 0
        assert x + wide <= width
        assert y + high <= height
        for other_x, other_y, other_wide, other_high in boxes[:number]:
            assert (
                x >= other_x + other_wide
                or other_x >= x + wide
                or y >= other_y + other_high
                or other_y >= y + high
            )


def test_names_are_text_in_a_picture() -> None:
    flow = ef.Flow(EVIL)
    flow.front("in").map(str.upper, name="<b>").sink("out")
    drawn = flow._repr_svg_()
    assert drawn is not None
    assert "<b>" in texts(drawn)
    assert "<script" not in drawn


# --- Results ------------------------------------------------------------------------------------------


class Reading(NamedTuple):
    place: str
    degrees: float


def test_outputs_are_the_dict_that_they_were() -> None:
    flow = ef.Flow("shout")
    flow.front("words").map(str.upper).sink("loud")
    outputs = ef.run(flow, words=["a", "b"])
    assert outputs == {"loud": ["A", "B"]}
    assert outputs == {"loud": ["A", "B"]}
    assert repr(outputs) == "{'loud': ['A', 'B']}"
    assert isinstance(outputs, dict)
    assert json.loads(json.dumps(outputs)) == outputs
    assert pickle.loads(pickle.dumps(outputs)) == outputs


@pytest.mark.parametrize(
    ("payloads", "head"),
    [
        ([Reading("oslo", 3.5), Reading("rome", 20.0)], ["place", "degrees"]),
        ([{"word": "a", "n": 1}, {"word": "b", "n": 2}], ["word", "n"]),
        ([("a", 1), ("b", 2)], ["0", "1"]),
        ([("a", 1), ("b",)], ["payload"]),
        ([1, 2], ["payload"]),
        ([tuple(range(COLUMNS_MAX + 1))], ["payload"]),
    ],
)
def test_payloads_of_the_same_fields_have_a_column_each(
    payloads: list[Any], head: list[str]
) -> None:
    table = payload_table(payloads)
    assert "".join(f"<th>{name}</th>" for name in head) in table
    assert table.count("<th>") == len(head)
    assert table.count("<tr>") == len(payloads) + 1


def test_tables_are_bounded_and_escaped() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError

    shown = Outputs({EVIL: [EVIL] * 1_000, "shy": [Shy()], "none": []})._repr_html_()
    assert "<script" not in shown
    assert shown.count("<tr>") == 1 + ROWS_MAX + 2
    assert f"and {1_000 - ROWS_MAX} more" in shown
    assert "whose repr() raises" in shown
    assert "nothing" in shown


def test_a_simulation_shows_its_outputs_and_its_circumstances() -> None:
    flow = ef.Flow("shout")
    flow.front("words").map(str.upper).sink("loud")
    shown = ef.simulate(flow, words=["a"], seed=7, workers=3)._repr_html_()
    assert "<td>A</td>" in shown
    assert "<td>seed</td><td>7</td>" in shown


# --- Queries ------------------------------------------------------------------------------------------


def test_a_display_is_refreshed_until_its_query_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import threading
    from types import ModuleType

    from emberflow.runners import notebook

    shown: list[str] = []
    over = threading.Event()

    class Handle:
        def update(self, html: str) -> None:
            shown.append(html)
            if html == "2":
                over.set()

    def display(html: str, *, display_id: bool) -> Handle:
        assert display_id
        shown.append(html)
        return Handle()

    module = ModuleType("IPython.display")
    module.HTML = str  # type: ignore[attr-defined]
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(notebook, "REFRESH_SECONDS", 0.001)

    active = iter([True, True, False])
    text: Callable[[], str] = iter("012").__next__
    notebook.Display(text, lambda: next(active)).begin()
    assert over.wait(60)
    assert shown == ["0", "1", "2"]
