"""Every kind of impurity is found, and the right function, line and cause are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import emberflow as ef
from emberflow.runners.verify.functions import findings
from emberflow.values.functions import code_of
from tests.effort import SOAK, shortened
from tests.verify import impure

LINES = ["the dog and the cat", "a hen", "the cat sat on the mat", "dog", "to be or not to be"]
WORDS = ["dog", "cat", "hen", "ant", "bee"]


def mapping(function: Callable[[Any], Any]) -> ef.Flow:
    """A flow with the function between pure ones."""
    flow = ef.Flow("between")
    flow.front("words").map(lambda word: word).map(function).map(lambda image: image).sink("out")
    return flow


def blamed(
    flow: ef.Flow, function: Callable[..., Any], cause: str, **elements: Any
) -> ef.NondeterminismError:
    """Verify, and check that the error names the function, its line and this cause."""
    with pytest.raises(ef.NondeterminismError) as caught:
        ef.verify(flow, seeds=2, workers=(1, 2), **elements)
    error = caught.value
    code = code_of(function)
    assert code is not None
    file = code.co_filename.rpartition("/")[2]
    assert f"{file}:{code.co_firstlineno})" in error.function, error
    assert error.cause == cause, error
    assert error.elements is not None
    assert error.function in str(error)
    assert error.step in str(error)
    assert error.cause in str(error)
    return error


class TestClocks:
    @pytest.mark.parametrize(
        ("function", "clue"),
        [
            (impure.stamped, "time.time()"),
            (impure.stamped_with_datetime, "datetime.now()"),
        ],
    )
    def test_is_named_with_the_line_that_reads_it(
        self, function: Callable[[str], Any], clue: str
    ) -> None:
        error = blamed(mapping(function), function, findings.CLOCK, words=WORDS)
        line = function.__code__.co_firstlineno + 1
        assert f"it calls {clue} in tests/verify/impure.py:{line}" in str(error)

    def test_a_clock_too_coarse_to_differ_is_at_least_mentioned(self) -> None:
        import datetime

        flow = mapping(lambda word: (word, datetime.date.today().year))
        verification = ef.verify(flow, seeds=1, words=WORDS)
        assert "it calls date.today() in" in str(verification)
        assert "test_impurity.py" in verification.suspicions[0]


class TestRandomNumbers:
    @pytest.mark.parametrize(
        ("function", "clue"),
        [
            (impure.noisy, "Random.random()"),
            (impure.shuffled, "random.shuffle()"),
            (impure.with_uuid, "uuid.uuid4()"),
            (impure.with_token, "secrets.token_hex()"),
            (impure.through_a_helper, "posix.urandom()"),
        ],
    )
    def test_is_named_with_the_call(self, function: Callable[[str], Any], clue: str) -> None:
        words = ["antelope", "bumblebee", "crocodile"]
        error = blamed(mapping(function), function, findings.RANDOM, words=words)
        assert f"it calls {clue} in tests/verify/impure.py" in str(error)

    def test_a_generator_kept_between_calls(self) -> None:
        from random import Random

        generator = Random(7)

        def draw(word: str) -> tuple[str, float]:
            return word, generator.random()

        error = blamed(mapping(draw), draw, findings.RANDOM, words=WORDS)
        assert "the variable 'generator' that it closes over changes with a call" in str(error)


class TestState:
    def test_in_a_closure(self) -> None:
        calls = 0

        def number(word: str) -> tuple[str, int]:
            nonlocal calls
            calls += 1
            return word, calls

        error = blamed(mapping(number), number, findings.STATE, words=WORDS)
        assert "the variable 'calls' that it closes over changes with a call" in str(error)

    @pytest.mark.parametrize(
        ("function", "place"),
        [
            (impure.counting_globally, "the global variable '_total'"),
            (impure.counting_in_a_global_list, "the global variable '_seen_words'"),
            (impure.counting_in_a_default, "the default argument 'seen'"),
            (impure.counting_on_itself, "the attribute 'calls' of the function itself"),
            (impure.counting_on_a_class, "the attribute 'calls' of the class Shared"),
            (impure.numbered, "the global variable '_numbers'"),
            (impure.Tally(), "the attribute 'calls' of Tally"),
            (impure.Tally().method, "the attribute 'calls' of Tally"),
        ],
    )
    def test_is_named_with_its_place(self, function: Callable[[str], Any], place: str) -> None:
        error = blamed(mapping(function), function, findings.STATE, words=WORDS)
        assert place in str(error)

    def test_that_only_the_first_run_sees(self) -> None:
        """A hand-made filter of duplicates: after one run of the reference it has seen everything."""
        seen: set[str] = set()

        def is_new(word: str) -> bool:
            if word in seen:
                return False
            seen.add(word)
            return True

        flow = ef.Flow("distinct by hand")
        flow.front("words").filter(is_new).sink("new")
        error = blamed(flow, is_new, findings.STATE, words=["a", "b", "a"])
        assert "the variable 'seen' that it closes over is a set" in str(error)
        assert sum(map(len, (error.elements or {}).values())) == 1

    def test_that_only_another_order_sees(self) -> None:
        """The first word of a length decides for all: repeating calls in any order shows nothing."""
        first_of_length: dict[int, str] = {}

        def representative(word: str) -> str:
            return first_of_length.setdefault(len(word), word)

        error = blamed(mapping(representative), representative, findings.STATE, words=WORDS)
        assert "the variable 'first_of_length' that it closes over is a dict" in str(error)
        assert len((error.elements or {})["words"]) == 2

    def test_that_only_speculation_sees(self) -> None:
        """Caches by the number alone. In order each number meets one total: only a replay shows it."""
        remembered: dict[int, int] = {}

        def add(total: int, number: int) -> int:
            return remembered.setdefault(number, total + number)

        flow = ef.Flow("totals")
        numbers = ef.merge(flow.front("odd"), flow.front("even"))
        numbers.key_by(lambda number: None).reduce(first=lambda number: number, combine=add).sink(
            "totals"
        )
        with pytest.raises(ef.NondeterminismError) as caught:
            ef.verify(flow, seeds=8, workers=(2, 3, 5), odd=range(1, 21, 2), even=range(2, 22, 2))
        assert caught.value.cause == findings.STATE
        assert f"test_impurity.py:{add.__code__.co_firstlineno})" in caught.value.function
        assert "'remembered' that it closes over is a dict" in str(caught.value)

    def test_a_result_that_the_next_call_changes(self) -> None:
        buffer: list[str] = []

        def letters(word: str) -> list[str]:
            buffer[:] = word
            return buffer

        error = blamed(mapping(letters), letters, findings.STATE, words=WORDS)
        assert "its next call changes the value that it returned" in str(error)


class TestInPlace:
    @pytest.mark.parametrize(
        ("function", "elements"),
        [
            (impure.popping, [["a", "b"], ["c"]]),
            (impure.marking, [{"name": "x", "inner": {}}]),
        ],
    )
    def test_an_argument(self, function: Callable[[Any], Any], elements: list[Any]) -> None:
        copies = [dict(e) if isinstance(e, dict) else list(e) for e in elements]
        error = blamed(mapping(function), function, findings.ARGUMENT, words=elements)
        assert "before the call:" in str(error)
        assert elements == copies, "what the user gave is left alone"

    def test_the_accumulator_of_a_reduce(self) -> None:
        flow = ef.Flow("lists")
        flow.front("words").key_by(len).reduce(
            first=lambda word: [word], combine=impure.appending
        ).sink("lists")
        error = blamed(flow, impure.appending, findings.ACCUMULATOR, words=WORDS)
        assert "reduce/combine" in error.step
        assert "['" in str(error)

    def test_the_accumulator_that_all_keys_begin_with(self) -> None:
        flow = ef.Flow("lists")
        flow.front("words").key_by(len).fold(initial=[], combine=impure.appending).sink("lists")
        error = blamed(flow, impure.appending, findings.ACCUMULATOR, words=WORDS)
        assert "fold/combine" in error.step

    def test_the_accumulator_of_a_window(self) -> None:
        flow = ef.Flow("lists")
        windows = flow.front("words").key_by(len).window(ef.Tumbling(10), emit="close")
        windows.reduce(first=lambda word: [word], combine=impure.appending).sink("lists")
        blamed(flow, impure.appending, findings.ACCUMULATOR, words=WORDS)

    def test_the_payload_in_a_combine_is_not_the_accumulator(self) -> None:
        flow = ef.Flow("drained")
        flow.front("words").key_by(lambda _: None).fold(initial=0, combine=impure.draining).sink(
            "out"
        )
        blamed(flow, impure.draining, findings.ARGUMENT, words=[["a", "b"], ["c"]])

    def test_a_join_has_no_accumulator_of_the_users(self) -> None:
        flow = ef.Flow("joined")
        left = flow.front("left").key_by(lambda _: None)
        right = flow.front("right").key_by(lambda _: None)
        left.join(right, impure.appending).sink("out")
        blamed(flow, impure.appending, findings.ARGUMENT, left=[["a"]], right=["b"])


class TestOrderOfSets:
    @pytest.mark.parametrize("function", shortened([impure.distinct_words, impure.lengths]))
    def test_of_strings(self, function: Callable[[str], Any]) -> None:
        error = blamed(mapping(function), function, findings.SET, words=LINES)
        assert "PYTHONHASHSEED=" in str(error)
        assert "sorted(" in str(error)

    @pytest.mark.skipif(not SOAK, reason="`make soak` has it; every run has sets in functions")
    def test_in_a_generator(self) -> None:
        flow = ef.Flow("each")
        flow.front("lines").flat_map(impure.each_distinct_word).sink("words")
        blamed(flow, impure.each_distinct_word, findings.SET, lines=LINES)

    def test_that_is_a_payload(self) -> None:
        """A set has no order: the function that makes it is innocent, the one that lists it is not."""
        flow = ef.Flow("listed")
        sets = flow.front("lines").map(lambda line: frozenset(line.split()))
        sets.map(impure.members).sink("lists")
        blamed(flow, impure.members, findings.SET, lines=LINES)


class TestUnstableKeys:
    def keyed(self, key: Callable[[Any], Any]) -> ef.Flow:
        flow = ef.Flow("keyed")
        flow.front("words").key_by(key).count().sink("counts")
        return flow

    def test_hash(self) -> None:
        error = blamed(self.keyed(impure.hashed), impure.hashed, findings.KEY, words=WORDS)
        assert "it calls hash() in tests/verify/impure.py" in str(error)

    def test_id(self) -> None:
        error = blamed(self.keyed(impure.address), impure.address, findings.KEY, words=WORDS)
        assert "it calls id() in tests/verify/impure.py" in str(error)

    def test_id_of_what_has_one_address_in_a_process(self) -> None:
        blamed(self.keyed(impure.address), impure.address, findings.KEY, words=[None, None])

    def test_an_address_in_a_text(self) -> None:
        things = [impure.Thing("a"), impure.Thing("b")]
        blamed(self.keyed(impure.shown), impure.shown, findings.KEY, words=things)

    def test_random(self) -> None:
        error = blamed(self.keyed(impure.random_key), impure.random_key, findings.KEY, words=WORDS)
        assert "it reads random numbers" in str(error)

    def test_of_a_grouping_and_of_a_sink(self) -> None:
        flow = ef.Flow("grouped")
        words = flow.front("words")
        words.key_by(impure.address).group(window=2).sink("pairs")
        error = blamed(flow, impure.address, findings.KEY, words=WORDS)
        assert error.step.startswith("group ")
        flow = ef.Flow("partitioned")
        flow.front("words").key_by(impure.address).sink("parts", partitions=3)
        error = blamed(flow, impure.address, findings.KEY, words=WORDS)
        assert error.step.startswith("sink ")


def test_the_process_id() -> None:
    error = blamed(mapping(impure.process_id), impure.process_id, findings.PROCESS, words=WORDS)
    assert "it calls posix.getpid() in" in str(error)


def test_a_function_that_raises_in_some_processes() -> None:
    with pytest.raises(ef.NondeterminismError) as caught:
        ef.verify(mapping(impure.raising_elsewhere), seeds=1, words=WORDS)
    assert "raising_elsewhere" in caught.value.function
    assert "raised ValueError: not here" in str(caught.value)


def test_the_first_of_two_culprits_downstream_of_each_other() -> None:
    def stream(word: str) -> Iterator[Any]:
        yield impure.stamped(word)

    flow = ef.Flow("two")
    flow.front("words").flat_map(stream).map(impure.noisy).sink("out")
    blamed(flow, stream, findings.CLOCK, words=WORDS)
