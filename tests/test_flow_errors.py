"""Flows that cannot run are refused, with the step and the line of the user's code.

Each case is a function that builds a flow wrongly. The lines that its error has to name are marked
with `# told`; the words it has to say are listed above it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import emberflow as ef
from emberflow.graph.nodes import Front, Graph, Group, Input, Key, Map, Merge, Sink
from emberflow.values.functions import UserFunction, Where

Build = Callable[[ef.Flow], object]
CASES: list[Any] = []


def says(*words: str, error: type[Exception] = ef.FlowError) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        CASES.append(pytest.param(build, words, error, id=build.__name__))
        return build

    return register


def itself(payload: Any) -> Any:
    return payload


def newest(window: tuple[Any, ...]) -> Any:
    return window[-1]


# --- Loops ----------------------------------------------------------------------------------------


@says("loop 'again'", "is never closed", ".close(stream)")
def a_loop_that_is_never_closed(flow: ef.Flow) -> None:
    again = flow.loop(name="again")  # told
    ef.merge(flow.front("in"), again).sink("out")


@says("loop 'loop'", "is never closed")
def a_loop_that_is_never_closed_and_never_read(flow: ef.Flow) -> None:
    flow.loop()  # told
    flow.front("in").sink("out")


@says("loop 'loop'", "closed twice")
def a_loop_closed_twice(flow: ef.Flow) -> None:
    stream = flow.front("in")
    again = flow.loop()  # told
    again.close(stream)
    again.close(stream.map(itself))  # told


@says("loop 'loop'", "closed with itself")
def a_loop_closed_with_itself(flow: ef.Flow) -> None:
    again = flow.loop()  # told
    ef.merge(flow.front("in"), again).sink("out")
    again.close(again)  # told


@says("merge() at", "without a key")
def a_merge_of_a_keyed_stream(flow: ef.Flow) -> None:
    numbers = flow.front("in")
    ef.merge(numbers, numbers.key_by(itself)).sink("out")  # told


@says("close() at", "without a key")
def a_loop_closed_with_a_keyed_stream(flow: ef.Flow) -> None:
    again = flow.loop()
    merged = ef.merge(flow.front("in"), again)
    again.close(merged.key_by(itself))  # told


@says("closed with itself through other loops")
def loops_closed_with_each_other(flow: ef.Flow) -> None:
    one = flow.loop()  # told
    other = flow.loop()
    one.close(other)
    other.close(one)
    ef.merge(flow.front("in"), one).sink("out")


@says("loop 'loop'", "takes a stream, got None")
def a_loop_closed_with_what_sink_returns(flow: ef.Flow) -> None:
    again = flow.loop()  # told
    stream = ef.merge(flow.front("in"), again).key_by(itself).group(window=1)
    again.close(stream.sink("out"))  # told


@says("two flows", "'wrong'", "'other'")
def a_loop_closed_with_a_stream_of_another_flow(flow: ef.Flow) -> None:
    flow.loop().close(ef.Flow("other").front("in"))  # told


@says("cycle has no grouping", "merge 'merge'", "map 'more'")
def a_cycle_without_grouping(flow: ef.Flow) -> None:
    again = flow.loop()
    stream = ef.merge(flow.front("in"), again).map(itself, name="more")  # told
    again.close(stream)
    stream.sink("out")


@says("cycle has no map", "group 'group'", "flat_map or a filter")
def a_cycle_without_map(flow: ef.Flow) -> None:
    again = flow.loop()
    stream = ef.merge(flow.front("in"), again)  # told
    grouped = stream.key_by(itself).group(window=1)  # told
    again.close(grouped)
    grouped.sink("out")


@says("'merge'", "'map-2'", "cycle has no grouping")
def a_cycle_without_grouping_beside_one_with(flow: ef.Flow) -> None:
    good, bad = flow.loop(), flow.loop()
    merged = ef.merge(flow.front("in"), good, bad)  # told
    good.close(merged.key_by(itself).group(window=1).map(newest))
    round_ = merged.map(itself)  # told
    bad.close(round_)
    round_.sink("out")


# --- What leads nowhere, and what nothing leads to ------------------------------------------------


@says("map 'unread'", "goes nowhere", ".sink(name)")
def a_stream_that_goes_nowhere(flow: ef.Flow) -> None:
    stream = flow.front("in")
    stream.sink("out")
    stream.map(itself, name="unread")  # told


@says("front 'unread'", "goes nowhere")
def a_front_that_goes_nowhere(flow: ef.Flow) -> None:
    flow.front("in").sink("out")
    flow.front("unread")  # told


@says("output 1 of broadcast 'copies'", "goes nowhere")
def a_copy_that_goes_nowhere(flow: ef.Flow) -> None:
    first, _ = flow.front("in").broadcast(2, name="copies")  # told
    first.sink("out")


@says("map 'reduce/value'", "goes nowhere")
def a_composed_operator_that_goes_nowhere(flow: ef.Flow) -> None:
    stream = flow.front("in")
    stream.sink("out")
    stream.key_by(itself).reduce(first=itself, combine=max)  # told


@says("goes nowhere", "only goes round a loop")
def a_stream_that_only_goes_round_a_loop(flow: ef.Flow) -> None:
    stream = flow.front("in")
    stream.sink("out")
    again = flow.loop()
    again.close(ef.merge(stream, again).key_by(itself).group(window=1).map(newest))  # told


@says("nothing ever reaches", "no front leads into")
def a_loop_that_nothing_reaches(flow: ef.Flow) -> None:
    flow.front("in").sink("out")
    again = flow.loop()
    stream = again.key_by(itself).group(window=1).map(newest)  # told
    again.close(stream)
    stream.sink("never")


# --- Names ----------------------------------------------------------------------------------------


@says("two fronts", "'in'")
def a_front_named_twice(flow: ef.Flow) -> None:
    flow.front("in").sink("out")  # told
    flow.front("in")  # told


@says("two sinks", "'out'")
def a_sink_named_twice(flow: ef.Flow) -> None:
    stream = flow.front("in")
    stream.sink("out")  # told
    stream.sink("out")  # told


@says("two operations", "'step'", "another name")
def a_step_named_twice(flow: ef.Flow) -> None:
    stream = flow.front("in")
    stream.map(itself, name="step").sink("out")  # told
    stream.filter(itself, name="step").sink("also out")  # told


@says("two operations", "'step'")
def an_operator_with_the_name_of_a_step(flow: ef.Flow) -> None:
    stream = flow.front("in")
    stream.map(itself, name="step").sink("out")  # told
    stream.key_by(itself).count(name="step").sink("counts")  # told


@says("two operations", "'step'")
def a_step_with_the_name_of_an_operator(flow: ef.Flow) -> None:
    stream = flow.front("in")
    stream.key_by(itself).count(name="step").sink("counts")  # told
    stream.map(itself, name="step").sink("out")  # told


@says("two operations", "'step'")
def an_operator_named_twice(flow: ef.Flow) -> None:
    stream = flow.front("in").key_by(itself)
    stream.count(name="step").sink("counts")  # told
    stream.distinct(name="step").sink("out")  # told


@says("two operations", "'step'")
def a_loop_with_the_name_of_a_step(flow: ef.Flow) -> None:
    flow.front("in").map(itself, name="step").sink("out")  # told
    flow.loop(name="step")  # told


@says("without '/'", "'a/b'")
def a_name_with_a_slash(flow: ef.Flow) -> None:
    flow.front("in").map(itself, name="a/b")  # told


@says("without '/'", "''")
def an_operator_without_a_name(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).count(name="")  # told


@says("non-empty string", "7")
def a_sink_named_by_a_number(flow: ef.Flow) -> None:
    flow.front("in").sink(7)  # told


@says("name is a non-empty string", "None")
def a_flow_without_a_name(flow: ef.Flow) -> None:
    ef.Flow(None)  # told


# --- Keys, windows of grouping, copies, partitions ------------------------------------------------


@says("group() takes window", "at least 1", "got 0")
def a_grouping_of_window_0(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).group(window=0)  # told


@says("group() takes window", "got True")
def a_grouping_of_a_bool(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).group(window=True)  # told


@says("group() takes window", "got 2.0")
def a_grouping_of_a_float(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).group(window=2.0)  # told


@says("group() works on a keyed stream", ".key_by(function)", error=AttributeError)
def a_grouping_without_key(flow: ef.Flow) -> None:
    flow.front("in").group(window=2)  # told


@says("reduce() works on a keyed stream", error=AttributeError)
def a_reduce_behind_a_step_that_forgot_the_key(flow: ef.Flow) -> None:
    keyed = flow.front("in").key_by(itself)
    keyed.map(itself).reduce(first=itself, combine=max)  # told


@says("broadcast() takes copies", "got 0")
def a_broadcast_to_nobody(flow: ef.Flow) -> None:
    flow.front("in").broadcast(0)  # told


@says("top() takes n", "got -1")
def a_top_of_less_than_one(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).top(-1)  # told


@says("sink 'out'", "2 partitions", "no key")
def partitions_without_key(flow: ef.Flow) -> None:
    flow.front("in").sink("out", partitions=2)  # told


@says("sink() takes partitions", "got 0")
def a_sink_of_no_partitions(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).sink("out", partitions=0)  # told


# --- What is no stream ----------------------------------------------------------------------------


@says("merge() takes two or more streams, got one")
def a_merge_of_one(flow: ef.Flow) -> None:
    ef.merge(flow.front("in"))  # told


@says("merge() takes streams, got [1]")
def a_merge_of_a_list(flow: ef.Flow) -> None:
    ef.merge(flow.front("in"), [1])  # told


@says("mixes streams of two flows", "'wrong'", "'other'")
def a_merge_of_two_flows(flow: ef.Flow) -> None:
    ef.merge(flow.front("in"), ef.Flow("other").front("in"))  # told


@says("join()", "two flows")
def a_join_of_two_flows(flow: ef.Flow) -> None:
    other = ef.Flow("other").front("in").key_by(itself)
    flow.front("in").key_by(itself).join(other)  # told


@says("join() takes two keyed streams", ".key_by(function)")
def a_join_with_a_stream_without_key(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).join(flow.front("other"))  # told


@says("enrich() takes", "got 'table'")
def an_enrich_with_a_name(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).enrich("table", max)  # told


# --- What is no function --------------------------------------------------------------------------


@says("map() takes a function, got 7")
def a_map_of_a_number(flow: ef.Flow) -> None:
    flow.front("in").map(7)  # told


@says("flat_map() takes a function, got [1]")
def a_flat_map_of_a_list(flow: ef.Flow) -> None:
    flow.front("in").flat_map([1])  # told


@says("filter() takes a function, got None")
def a_filter_of_nothing(flow: ef.Flow) -> None:
    flow.front("in").filter(None)  # told


@says("key_by() takes a function, got 'word'", "write lambda payload: payload['word']")
def a_key_by_name(flow: ef.Flow) -> None:
    flow.front("in").key_by("word")  # told


@says("of= takes a function", "got 'price'", "write lambda payload: payload['price']")
def a_sum_by_name(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).sum("price")  # told


@says("sink() works on the results of windows", ".count()", error=AttributeError)
def windows_that_nothing_is_asked_of(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).window(ef.Tumbling(3)).sink("out")  # told


@says("map() works on the results of windows", error=AttributeError)
def rows_that_nothing_is_asked_of(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).over(rows=3).map(itself)  # told


@says("reduce() takes a function, got 0")
def a_reduce_with_an_initial_value(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).reduce(first=0, combine=max)  # told


@says("fold() takes a function, got 'max'")
def a_fold_of_a_name(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).fold(initial=0, combine="max")  # told


@says("of=", "function", "got 'price'")
def a_sum_of_a_name(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).sum(of="price")  # told


@says("by=", "function", "got 1")
def a_top_by_a_number(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).top(3, by=1)  # told


@says("join()", "function", "got 'left'")
def a_join_by_a_word(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).join(flow.front("other").key_by(itself), "left")  # told


@says("changes(deletes=)", "got 'gone'")
def changes_that_a_word_deletes(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).changes(deletes="gone")  # type: ignore[arg-type]  # told


@says("changes_from(format=)", "'upserts' or 'debezium'", "got 'maxwell'")
def changes_in_a_strange_format(flow: ef.Flow) -> None:
    ef.changes_from(flow.front("in"), format="maxwell")  # type: ignore[call-overload]  # told


@says("changes_from(format='debezium') needs key=", "got None")
def envelopes_without_a_key(flow: ef.Flow) -> None:
    ef.changes_from(flow.front("in"), format="debezium")  # type: ignore[call-overload]  # told


@says("changes_from(key=)", ".key_by(function).changes()")
def upserts_with_a_key(flow: ef.Flow) -> None:
    ef.changes_from(flow.front("in"), key="id")  # type: ignore[call-overload]  # told


@says("changes_from() takes a stream, got 3")
def changes_from_a_number(flow: ef.Flow) -> None:
    ef.changes_from(3)  # type: ignore[call-overload]  # told


@says("group_by() of changes takes a function, got 'city'")
def groups_by_a_word(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).changes().group_by("city")  # type: ignore[arg-type]  # told


@says("join() of a stream and changes", ".enrich(changes, combine)", ".changes().join(changes)")
def a_join_of_a_stream_and_changes(flow: ef.Flow) -> None:
    table = flow.front("table").key_by(itself).changes()
    flow.front("in").key_by(itself).join(table)  # type: ignore[call-overload]  # told


@says("join() of Changes takes Changes, got")
def a_join_of_changes_and_a_stream(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).changes().join(flow.front("other"))  # type: ignore[call-overload]  # told


@says("join()", "two flows")
def a_join_of_changes_of_two_flows(flow: ef.Flow) -> None:
    other = ef.Flow("other").front("in").key_by(itself).changes()
    flow.front("in").key_by(itself).changes().join(other)  # told


@says("enrich() takes two keyed streams", ".key_by(function)")
def enriched_with_a_stream_without_key(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).enrich(flow.front("other"), max)  # type: ignore[arg-type]  # told


@says("join(how=)", "one of inner, left, right, outer, semi, anti", "got 'full'", "is 'outer' here")
def a_join_of_no_kind(flow: ef.Flow) -> None:
    left, right = flow.front("in").key_by(itself), flow.front("other").key_by(itself)
    left.join(right, how="full")  # type: ignore[call-overload]  # told


@says("join(how=)", "Spark's 'left_anti' is 'anti' here")
def a_join_as_spark_calls_it(flow: ef.Flow) -> None:
    left, right = flow.front("in").key_by(itself), flow.front("other").key_by(itself)
    left.join(right, how="left_anti")  # type: ignore[call-overload]  # told


@says("count() of a table", ".group_by(function)", error=AttributeError)
def a_count_of_a_table(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).changes().count()  # told


@says("a table has no window()", ".as_stream()", ".latest()", error=AttributeError)
def windows_of_a_table(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).changes().window(ef.Tumbling(3))  # told


@says("join(how='left')", "within=", "window=", "this.changes().join(other.changes(), how='left')")
def a_left_join_without_an_end(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).join(flow.front("other").key_by(itself), how="left")  # told


@says("join(how='anti')", "nothing to combine")
def an_anti_join_with_a_function(flow: ef.Flow) -> None:
    left, right = flow.front("in").key_by(itself), flow.front("other").key_by(itself)
    left.join(right, max, how="anti", within=1)  # type: ignore[call-overload]  # told


@says("join() takes within= or window=, got both")
def a_join_with_two_bounds(flow: ef.Flow) -> None:
    left, right = flow.front("in").key_by(itself), flow.front("other").key_by(itself)
    left.join(right, within=1, window=ef.Tumbling(2))  # told


@says("join(window=) takes windows of time", "got CountWindow")
def a_join_in_windows_of_number(flow: ef.Flow) -> None:
    left, right = flow.front("in").key_by(itself), flow.front("other").key_by(itself)
    left.join(right, window=ef.CountWindow(2))  # told


@says("join()", "function", "got 0")
def a_join_by_zero(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).join(flow.front("other").key_by(itself), 0)  # told


@says("enrich() takes a function, got None")
def an_enrich_by_nothing(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).enrich(flow.front("other").key_by(itself), None)  # told


@says("of=", "function", "got 'price'")
def a_window_of_a_name(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).window(ef.Session(3)).sum(of="price")  # told


@says("combine=", "function", "got 7")
def a_window_reduced_by_a_number(flow: ef.Flow) -> None:
    windowed = flow.front("in").key_by(itself).window(ef.Session(3))
    windowed.reduce(first=itself, combine=7)  # told


# --- Windows of time and number, intervals --------------------------------------------------------


@says("Tumbling", "size", "got 0")
def a_window_of_no_time(flow: ef.Flow) -> None:
    ef.Tumbling(0)  # told


@says("Tumbling", "offset", "got 0.5")
def an_offset_of_half(flow: ef.Flow) -> None:
    ef.Tumbling(5, offset=0.5)  # told


@says("Sliding", "slide", "got True")
def a_slide_of_a_bool(flow: ef.Flow) -> None:
    ef.Sliding(5, slide=True)  # told


@says("Session", "gap", "got -1")
def a_session_of_a_negative_gap(flow: ef.Flow) -> None:
    ef.Session(gap=-1)  # told


@says("CountWindow", "size", "got '3'")
def a_count_window_of_text(flow: ef.Flow) -> None:
    ef.CountWindow("3")  # told


@says("CountWindow", "slide", "got 0")
def a_count_window_that_does_not_move(flow: ef.Flow) -> None:
    ef.CountWindow(3, slide=0)  # told


@says("Cumulate(step=, size=)", "a whole number of steps", "got 4 and 10")
def a_cumulating_window_that_does_not_come_out_even(flow: ef.Flow) -> None:
    ef.Cumulate(step=4, size=10)  # told


@says("window() takes Tumbling, Sliding, Cumulate", "windows of your own (ef.Windows), got 10")
def a_window_of_a_number(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).window(10)  # told


@says("window(emit=) takes 'update' or 'close', got 'closed'")
def a_window_that_emits_when_closed(flow: ef.Flow) -> None:
    flow.front("in").key_by(itself).window(ef.Tumbling(3), emit="closed")  # told


@says("join(within=)", "low <= high", "got (3, 1)")
def an_interval_the_wrong_way_round(flow: ef.Flow) -> None:
    left, right = flow.front("in").key_by(itself), flow.front("other").key_by(itself)
    left.join(right, within=(3, 1))  # told


@says("join(within=)", "got -2")
def an_interval_of_a_negative_span(flow: ef.Flow) -> None:
    left, right = flow.front("in").key_by(itself), flow.front("other").key_by(itself)
    left.join(right, within=-2)  # told


@says("join(within=)", "got (0, 1.5)")
def an_interval_of_a_float(flow: ef.Flow) -> None:
    left, right = flow.front("in").key_by(itself), flow.front("other").key_by(itself)
    left.join(right, within=(0, 1.5))  # told


# --- The test of all these ------------------------------------------------------------------------


def graph_of(build: Build) -> Graph:
    flow = ef.Flow("wrong")
    build(flow)
    return flow.graph()


@pytest.mark.parametrize(("build", "words", "error"), CASES)
def test_the_error_names_the_step_and_the_line(
    build: Build, words: tuple[str, ...], error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        graph_of(build)
    message = str(caught.value)
    for word in words:
        assert word in message
    lines, first = inspect.getsourcelines(build)
    told = [number for number, line in enumerate(lines, first) if line.endswith("  # told\n")]
    assert told
    for number in told:
        assert f"{Path(__file__).name}:{number}" in message


# --- The flow as a whole --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda flow: None, "flow 'empty' has no front"),
        (lambda flow: flow.front("in"), "goes nowhere"),
    ],
)
def test_an_empty_flow_has_nothing_to_run(build: Build, message: str) -> None:
    flow = ef.Flow("empty")
    build(flow)
    with pytest.raises(ef.FlowError, match=message):
        flow.graph()


def test_a_refused_step_leaves_the_flow_as_it_was() -> None:
    flow = ef.Flow("mended")
    stream = flow.front("in").key_by(itself)
    stream.count(name="step").sink("counts")
    for wrong in (
        lambda: stream.distinct(name="step"),
        lambda: stream.group(window=0),
        lambda: stream.sink("counts"),
        lambda: stream.join(stream, "left"),
        lambda: stream.window(ef.Session(3)).sum(of="price"),
        lambda: stream.top(3, by="price"),
    ):
        with pytest.raises(ef.FlowError):
            wrong()
    assert ef.run(flow, **{"in": "aba"}) == {"counts": [("a", 1), ("b", 1), ("a", 2)]}


def test_names_that_are_not_given_never_collide_with_given_ones() -> None:
    flow = ef.Flow("names")
    stream = flow.front("in").map(itself, name="map-2").map(itself).map(itself)
    stream = stream.map(itself, name="count").key_by(itself).count()
    stream.sink("out")
    names = [node.name for node in flow.graph().nodes]
    assert names[1:5] == ["map-2", "map", "map-3", "count"]
    assert "count-2/reduce/group" in names
    assert len(set(names)) == len(names)


# --- Graphs that no builder makes -----------------------------------------------------------------

HERE = Where(__file__, 1)
KEY = Key(itself, UserFunction("key", itself))
FRONT = Front(id=0, name="in", inputs=(), where=HERE, index=0)


def sink(number: int, source: int, **rest: Any) -> Sink:
    return Sink(id=number, name=f"out-{number}", inputs=(Input(source),), where=HERE, **rest)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ((FRONT, sink(2, 0)), "has id 2 at index 1"),
        ((FRONT, sink(1, 0), sink(2, 0)), "read output 0 of front 'in'"),
        (
            (FRONT, Merge(id=1, name="m", inputs=(Input(0), Input(0)), where=HERE), sink(2, 1)),
            "read output 0 of front 'in'",
        ),
        ((FRONT, sink(1, 7)), "does not exist"),
        ((FRONT, sink(1, -1)), "does not exist"),
        ((FRONT, sink(1, 0, partitions=0)), "0 partitions"),
        ((FRONT, sink(1, 0, partitions=2)), "no key"),
        ((FRONT, Merge(id=1, name="m", inputs=(Input(0),), where=HERE), sink(2, 1)), "1 inputs"),
        (
            (FRONT, Group(id=1, name="g", inputs=(Input(0),), where=HERE, window=2), sink(2, 1)),
            "has no key",
        ),
        (
            (
                FRONT,
                Group(id=1, name="g", inputs=(Input(0, key=KEY),), where=HERE, window=0),
                sink(2, 1),
            ),
            "has window 0",
        ),
        (
            (
                FRONT,
                *(
                    Map(
                        id=number,
                        name="same",
                        inputs=(Input(number - 1),),
                        where=HERE,
                        function=itself,
                        given=(),
                        mode="one",
                    )
                    for number in (1, 2)
                ),
                sink(3, 2),
            ),
            "two operations have the name 'same'",
        ),
    ],
)
def test_a_graph_checks_itself(nodes: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ef.FlowError) as caught:
        Graph("by hand", nodes)
    assert message in str(caught.value)
