"""A cut of another flow is refused, and the message says which step differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import emberflow as ef
from emberflow.checkpoint import Manifest, PartInfo, UnfitCutError, check_fits
from emberflow.graph.description import changed_functions
from emberflow.graph.nodes import Graph
from tests.effort import examples


def upper(word: str) -> str:
    return word.upper()


def flow(
    *, name: str = "shop", window: int = 3, split: str = "split", partitions: int = 1,
    key: Callable[[Any], Any] = str, more: bool = False,
) -> Graph:  # fmt: skip
    built = ef.Flow(name)
    words = built.front("words").flat_map(str.split, name=split)
    if more:
        words = words.map(upper, name="upper")
    tuples = words.key_by(key).group(window=window, name="last")
    tuples.key_by(str).sink("out", partitions=partitions)
    return built.graph()


def cut_of(graph: Graph) -> Manifest:
    return Manifest.of(graph, number=4, incarnation=2, time=(9, 0), parts=[])


def test_the_same_flow_fits() -> None:
    data = cut_of(flow()).to_json()
    check_fits(Manifest.from_json(data, "the manifest"), flow())


def test_a_function_that_was_renamed_moved_or_changed_fits() -> None:
    cut = cut_of(flow())
    check_fits(cut, flow(key=upper))
    assert changed_functions(cut.steps, flow()) == []
    [changed] = changed_functions(cut.steps, flow(key=upper))
    assert changed.startswith("group 'last' ("), changed


@pytest.mark.parametrize(
    ("now", "difference"),
    [
        (flow(window=4), r"group 'last' \(.*test_fit.py:\d+\): window was 3 and is 4"),
        (flow(split="cut"), r"map 'cut' \(.*\) was added\n(.*\n)*.*map 'split' was removed"),
        (flow(more=True), r"map 'upper' \(.*\) was added"),
        (flow(partitions=2), r"sink 'out' \(.*\): partitions was 1 and is 2"),
        (flow(name="store"), r"the flow was called 'shop' and is called 'store'"),
    ],
)
def test_another_flow_is_refused_by_what_differs(now: Graph, difference: str) -> None:
    cut = Manifest.from_json(cut_of(flow()).to_json(), "the manifest")
    with pytest.raises(UnfitCutError, match=difference) as caught:
        check_fits(cut, now)
    assert "cut 4 (incarnation 2)" in str(caught.value)


def test_steps_in_another_order_are_refused() -> None:
    def two(first: str, second: str) -> Graph:
        built = ef.Flow("two")
        for name in (first, second):
            built.front(name).map(upper, name=f"map {name}").sink(name)
        return built.graph()

    with pytest.raises(UnfitCutError, match=r"- front 'a'.*index was 0 and is 1"):
        check_fits(cut_of(two("a", "b")), two("b", "a"))


@dataclass(frozen=True)
class Offset:
    file: str
    line: int


POSITIONS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.text(),
        st.floats(allow_nan=False),
        st.binary(max_size=5),
        st.builds(Offset, st.text(max_size=3), st.integers()),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=5,
)


@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    positions=st.dictionaries(
        st.text(max_size=4), st.dictionaries(st.integers(0, 99), POSITIONS, max_size=3), max_size=3
    ),
    sinks=st.dictionaries(st.text(max_size=4), POSITIONS, max_size=3),
    time=st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**32), 2**31)),
)
def test_a_manifest_comes_back_as_it_was(positions: Any, sinks: Any, time: tuple[int, int]) -> None:
    part = PartInfo("bucket", 4, "1", "parts/x.parquet", 3, 99, "00ff", -5, 5)
    cut = Manifest.of(
        flow(), number=4, incarnation=2, time=time, parts=[None, part], positions=positions,
        sinks=sinks,
    )  # fmt: skip
    found = Manifest.from_json(cut.to_json(), "the manifest")
    assert found == cut
    # Types too: 1 is not True, and a tuple is not a list.
    assert repr({front: dict(own) for front, own in found.positions.items()}) == repr(positions)
    assert repr(dict(found.sinks)) == repr(sinks)
