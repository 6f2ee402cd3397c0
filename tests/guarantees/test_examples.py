"""The paper's examples, and a case for each rule of its definitions, judged by hand."""

from __future__ import annotations

from typing import Any

import pytest

import emberflow as ef
from emberflow.errors import FunctionError, InputError
from emberflow.guarantees import Entered, Guarantee, judge
from emberflow.guarantees.verdict import NOTHING


def concatenation_of_two() -> ef.Flow:
    """Figure 1: an operation that concatenates the last two strings from asynchronous channels."""
    flow = ef.Flow("concatenation")
    channels = ef.merge(flow.front("x1"), flow.front("x2"))
    channels.key_by(lambda text: None).group(window=2).map("".join).sink("y")
    return flow


#: Table II. The operation takes d before b, as their global times here say.
TABLE_2 = {
    "x1": [ef.At(1, "a"), ef.At(4, "b"), ef.At(5, "e")],
    "x2": [ef.At(2, "c"), ef.At(3, "d")],
}


def test_table_2_is_exactly_once() -> None:
    outputs = {"y": ["a", "ac", "cd", "db", "be"]}
    verdict = judge(concatenation_of_two(), TABLE_2, outputs, failures=[5])
    assert verdict.guarantee is Guarantee.EXACTLY_ONCE
    assert verdict.exactly_once
    assert (verdict.first, verdict.delivery) == (None, "complete")


def test_table_2_with_another_order_after_the_recovery_is_inconsistent() -> None:
    """Section III D: the state becomes [b, d]. All inputs are applied once, and it is wrong."""
    outputs = {"y": ["a", "ac", "cd", "db", "de"]}
    verdict = judge(concatenation_of_two(), TABLE_2, outputs, failures=[5])
    assert verdict.guarantee is Guarantee.INCONSISTENT
    assert (verdict.at_least_once, verdict.at_most_once) == (False, False)
    assert verdict.first is not None
    assert verdict.first == verdict.unexplained
    assert (verdict.first.sink, verdict.first.position) == ("y", 4)
    assert (verdict.first.expected, verdict.first.held) == ("be", "de")
    assert verdict.first.cause == Entered(ef.GlobalTime(5, 0), "x1", "e")
    assert "expected 'be', made of 'e' (time 5 of front 'x1'); holds 'de'" in str(verdict)


def concatenation() -> ef.Flow:
    """Section II: a string that grows."""
    flow = ef.Flow("concatenation")
    letters = flow.front("letters").key_by(lambda letter: None)
    letters.reduce(first=str, combine=str.__add__).sink("texts")
    return flow


def judged(*texts: Any, letters: str = "abcd", **options: Any) -> Any:
    return judge(concatenation(), {"letters": list(letters)}, {"texts": list(texts)}, **options)


def test_the_example_of_section_2_is_inconsistent() -> None:
    verdict = judged("a", "ab", "bac", letters="abc")
    assert verdict.guarantee is Guarantee.INCONSISTENT
    assert verdict.first.position == 2


class TestAtLeastOnce:
    def test_a_suffix_that_entered_again_into_the_state_that_was(self) -> None:
        verdict = judged("a", "ab", "abc", "abcb", "abcbc", "abcbcd")
        assert verdict.guarantee is Guarantee.AT_LEAST_ONCE
        assert [element.payload for element in verdict.repeated] == ["b", "c"]
        assert (verdict.first.position, verdict.first.held) == (3, "abcb")
        assert verdict.at_most_once is False

    def test_going_back_to_an_earlier_state_is_inconsistent_where_state_shows(self) -> None:
        verdict = judged("a", "ab", "abc", "ab", "abc", "abcd")
        assert verdict.guarantee is Guarantee.INCONSISTENT
        assert verdict.delivery == "repeated"
        assert "restored its state and did not ask the sink" in verdict.why

    def test_going_back_is_at_least_once_where_no_state_shows(self) -> None:
        flow = ef.Flow("times")
        flow.front("words").with_time().map(tuple).sink("timed")
        outputs = {"timed": [(0, "a"), (1, "b"), (2, "c"), (1, "b"), (2, "c"), (3, "d")]}
        verdict = judge(flow, {"words": list("abcd")}, outputs)
        assert verdict.guarantee is Guarantee.AT_LEAST_ONCE
        assert [element.payload for element in verdict.repeated] == ["b", "c"]

    def test_repeats_into_a_flow_that_takes_an_element_once_are_not_seen(self) -> None:
        flow = ef.Flow("distinct")
        flow.front("words").distinct().sink("words")
        inputs = {"words": list("abcab")}
        assert judge(flow, inputs, {"words": list("abc")}).exactly_once
        # The search does not repeat elements that change nothing, so it ends, and soon.
        assert judge(flow, inputs, {"words": list("abb")}).guarantee is Guarantee.INCONSISTENT

    def test_a_failure_repeats_an_element_once(self) -> None:
        texts = ["a", "ab", "abb", "abbb", "abbbc"]
        assert judged(*texts, letters="abc", failures=2).at_least_once is True
        assert judged(*texts, letters="abc", failures=1).at_least_once is False

    def test_a_new_element_that_is_silent_after_a_replay_that_stopped_early(self) -> None:
        flow = ef.Flow("loud")
        loud = flow.front("words").filter(str.isupper).key_by(lambda word: None)
        loud.reduce(first=str, combine=str.__add__).sink("loud")
        outputs = {"loud": ["A", "AB", "ABA", "ABAC"]}
        verdict = judge(flow, {"words": ["A", "B", "x", "C"]}, outputs)
        assert verdict.guarantee is Guarantee.AT_LEAST_ONCE


class TestAtMostOnce:
    def test_an_element_lost_with_all_it_causes(self) -> None:
        verdict = judged("a", "ac", "acd")
        assert verdict.guarantee is Guarantee.AT_MOST_ONCE
        assert [element.payload for element in verdict.lost] == ["b"]
        assert verdict.at_least_once is False

    def test_no_output_at_all(self) -> None:
        verdict = judged()
        assert verdict.guarantee is Guarantee.AT_MOST_ONCE
        assert len(verdict.lost) == 4
        assert verdict.first.held is NOTHING

    def test_an_output_that_is_missing_while_its_state_is_not(self) -> None:
        verdict = judged("a", "abc", "abcd")
        assert verdict.guarantee is Guarantee.INCONSISTENT
        assert verdict.delivery == "missing"

    def test_a_state_that_was_lost_behind_its_output(self) -> None:
        assert judged("a", "ab", "ac", "acd").guarantee is Guarantee.INCONSISTENT

    def test_half_of_what_an_element_causes(self) -> None:
        flow = ef.Flow("words")
        flow.front("lines").flat_map(str.split).sink("words")
        lines = {"lines": ["a b", "c d"]}
        assert judge(flow, lines, {"words": ["c", "d"]}).guarantee is Guarantee.AT_MOST_ONCE
        assert judge(flow, lines, {"words": ["b", "c", "d"]}).guarantee is Guarantee.INCONSISTENT


def test_one_lost_and_another_repeated_is_none_of_them() -> None:
    verdict = judged("a", "ab", "abb", "abbd")
    assert verdict.guarantee is Guarantee.INCONSISTENT
    # Up to here, repetition alone explains the output.
    assert verdict.first.position == 2
    assert (verdict.unexplained.position, verdict.unexplained.held) == (3, "abbd")


def test_an_output_can_keep_two_at_once() -> None:
    """The output is the parity of the count: one element less looks like one more."""
    flow = ef.Flow("parity")
    counts = flow.front("words").key_by(lambda word: None).window(ef.Tumbling(9), emit="close")
    counts.count().map(lambda result: result.value % 2).sink("odd")
    verdict = judge(flow, {"words": ["a", "b", "c"]}, {"odd": [0]}, failures=1)
    assert verdict.guarantee is Guarantee.AT_LEAST_ONCE
    assert verdict.at_most_once is True


class TestFailures:
    def test_without_any_only_exactly_once_is_left(self) -> None:
        assert judged("a", "ab", "abc", "abcd", failures=0).exactly_once
        verdict = judged("a", "ac", "acd", failures=[])
        assert verdict.guarantee is Guarantee.INCONSISTENT
        assert "No failure happened" in verdict.why

    def test_the_last_one_before_is_told(self) -> None:
        assert "before it was at time 1" in judged("a", "ab", "abd", failures=[1, 3]).why
        assert "was later, at time 3" in judged("a", "ab", "abd", failures=[3]).why

    @pytest.mark.parametrize("failures", [-1, True, "1", 1.5])
    def test_are_a_number_or_times(self, failures: Any) -> None:
        with pytest.raises(InputError, match=r"judge\(failures=\) takes the number"):
            judged("a", failures=failures)


class TestUnfinished:
    def test_a_beginning_is_exactly_once(self) -> None:
        assert judged("a", "ab", finished=False).exactly_once
        assert judged("a", "ab").guarantee is Guarantee.AT_MOST_ONCE

    def test_what_has_not_come_out_yet_is_not_lost(self) -> None:
        verdict = judged("a", "ac", letters="abcde", finished=False)
        assert verdict.guarantee is Guarantee.AT_MOST_ONCE
        assert [element.payload for element in verdict.lost] == ["b"]

    def test_what_is_wrong_stays_wrong(self) -> None:
        assert judged("a", "b", "c", finished=False).guarantee is Guarantee.INCONSISTENT


def test_silent_losses_are_found_behind_a_window_that_closes() -> None:
    flow = ef.Flow("sums")
    numbers = flow.front("numbers").key_by(lambda number: None)
    numbers.window(ef.Tumbling(4), emit="close").sum().map(lambda result: result.value).sink("sums")
    inputs = {"numbers": [1, 10, 100, 1000, 2, 20, 200, 2000]}
    assert judge(flow, inputs, {"sums": [1111, 2222]}).exactly_once
    lost = judge(flow, inputs, {"sums": [1101, 2022]}, failures=1)
    assert lost.guarantee is Guarantee.AT_MOST_ONCE
    assert sorted(element.payload for element in lost.lost) == [10, 200]
    again = judge(flow, inputs, {"sums": [1121, 2222]}, failures=1)
    assert again.guarantee is Guarantee.AT_LEAST_ONCE
    assert [element.payload for element in again.repeated] == [10]


def test_it_says_undecided_where_the_effort_ends() -> None:
    texts = ["x" * number for number in range(1, 30)]
    verdict = judged(*texts, "y", letters="x" * 40, effort=50)
    assert verdict.guarantee is Guarantee.UNDECIDED
    assert (verdict.at_least_once, verdict.at_most_once) == (None, None)
    assert "given up after 50 elements" in verdict.why


def test_long_stretches_take_few_steps() -> None:
    """Far fewer than there are pairs of elements, for which the effort would not suffice."""
    flow = ef.Flow("last three")
    numbers = flow.front("numbers").key_by(lambda number: number % 5)
    numbers.reduce(first=lambda n: (n,), combine=lambda last, n: (*last[-2:], n)).sink("last")
    every = list(range(1_000))
    again = every[:400] + every[350:700] + every[600:]
    partly = every[:200] + every[280:600] + every[650:]
    for walked, guarantee in (
        (again, Guarantee.AT_LEAST_ONCE),
        (partly, Guarantee.AT_MOST_ONCE),
    ):
        outputs = ef.run(flow, numbers=walked)
        verdict = judge(flow, {"numbers": every}, outputs, effort=8_000)
        assert verdict.guarantee is guarantee


class TestInputs:
    def test_a_log_is_ordered_by_its_global_times(self) -> None:
        log = [
            (ef.GlobalTime(7, 3), "x1", "c"),
            (ef.GlobalTime(7, 1), "x2", "b"),
            ((2, 0), "x1", "a"),
        ]
        assert judge(concatenation_of_two(), log, {"y": ["a", "ab", "bc"]}).exactly_once

    def test_a_global_time_is_given_once(self) -> None:
        log = [((2, 0), "x1", "a"), ((2, 0), "x1", "b")]
        with pytest.raises(InputError, match=r"two elements have the global time"):
            judge(concatenation_of_two(), log, {"y": []})

    def test_fronts_are_those_of_the_flow(self) -> None:
        with pytest.raises(InputError, match=r"no front 'x3'; its fronts are 'x1', 'x2'"):
            judge(concatenation_of_two(), [((2, 0), "x3", "a")], {"y": []})
        with pytest.raises(InputError, match=r"\(global time, front, payload\) each"):
            judge(concatenation_of_two(), [(2, "x1", "a")], {"y": []})  # type: ignore[list-item]

    def test_what_the_flow_raises_is_raised(self) -> None:
        flow = ef.Flow("inverse")
        flow.front("numbers").map(lambda number: 1 / number).sink("inverse")
        with pytest.raises(FunctionError, match="ZeroDivisionError"):
            judge(flow, {"numbers": [1, 0]}, {"inverse": [1.0]})

    def test_a_function_that_refuses_what_never_came_explains_nothing(self) -> None:
        flow = ef.Flow("gapless")

        def follow(last: int, number: int) -> int:
            if number != last + 1:
                raise ValueError("a gap")
            return number

        flow.front("numbers").key_by(lambda number: None).reduce(first=int, combine=follow).sink(
            "numbers"
        )
        verdict = judge(flow, {"numbers": [1, 2, 3]}, {"numbers": [1, 3]})
        assert verdict.guarantee is Guarantee.INCONSISTENT


class TestOutputs:
    def test_sinks_are_those_of_the_flow(self) -> None:
        with pytest.raises(InputError, match=r"no sink 'z'; its sinks are 'y'"):
            judge(concatenation_of_two(), TABLE_2, {"z": []})
        with pytest.raises(InputError, match=r"no outputs to judge"):
            judge(concatenation_of_two(), TABLE_2, {})
        with pytest.raises(InputError, match=r"a list of payloads"):
            judge(concatenation_of_two(), TABLE_2, {"y": "abc"})
        with pytest.raises(InputError, match=r"partitions 0 to 0, and .* partition 1"):
            judge(concatenation_of_two(), TABLE_2, {"y": {1: []}})

    def test_types_count(self) -> None:
        flow = ef.Flow("as it is")
        flow.front("values").sink("values")
        assert judge(flow, {"values": [1, (2,)]}, {"values": [1, (2,)]}).exactly_once
        assert not judge(flow, {"values": [1, (2,)]}, {"values": [1.0, (2,)]}).exactly_once
        assert not judge(flow, {"values": [1, (2,)]}, {"values": [1, [2]]}).exactly_once

    def test_a_form_says_how_a_sink_keeps_a_payload(self) -> None:
        flow = ef.Flow("as it is")
        flow.front("values").sink("values")
        kept = {"values": [[1], [2]]}
        assert judge(flow, {"values": [(1,), (2,)]}, kept, forms={"values": list}).exactly_once

    def test_a_sink_that_is_not_given_is_not_judged(self) -> None:
        flow = ef.Flow("two")
        words = flow.front("words")
        words.sink("as they are")
        words.map(str.upper).sink("loud")
        assert judge(flow, {"words": ["a"]}, {"loud": ["A"]}).exactly_once
