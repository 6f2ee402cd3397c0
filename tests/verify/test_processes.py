"""Children that crash, hang or cannot load the flow; and mistakes that are not impurity."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.runners.simulation import Options, Simulation, SimulationResult
from emberflow.runners.verify import blame, verification
from emberflow.runners.verify.child_runs import OtherRun
from emberflow.runners.verify.functions.comparison import fresh, saved
from emberflow.runners.verify.functions.findings import STATE
from emberflow.runners.verify.processes import children, nursery, tasks
from emberflow.runners.verify.processes.children import ChildError, Job, results_of
from emberflow.runners.verify.processes.tasks import Calls, Checked, Rerun
from emberflow.runners.verify.trial import Case, Subject
from tests.verify import impure


def mapping(function: Callable[[Any], Any]) -> ef.Flow:
    flow = ef.Flow("mapped")
    flow.front("words").map(function).sink("out")
    return flow


class TestChildren:
    def test_that_crash_are_told_with_what_they_wrote(self) -> None:
        with pytest.raises(ChildError) as caught:
            ef.verify(mapping(impure.crashing_elsewhere), seeds=1, words=["a"])
        assert "PYTHONHASHSEED=2 ended with exit code 7" in str(caught.value)
        assert "stderr: about to end" in str(caught.value)

    def test_that_hang_are_stopped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verification, "WAIT_SECONDS_MIN", 1.5)
        with pytest.raises(ChildError, match="was not done after 2 seconds"):
            ef.verify(mapping(impure.hanging_elsewhere), seeds=1, words=["a"])

    def test_that_cannot_load_the_flow_say_what_is_missing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = types.ModuleType("only_here")
        exec("def shout(word):\n    return word.upper()", module.__dict__)
        monkeypatch.setitem(sys.modules, "only_here", module)
        with pytest.raises(ChildError, match="could not load the flow: ModuleNotFoundError"):
            ef.verify(mapping(module.shout), seeds=1, words=["a"])

    def test_that_print_do_not_disturb_the_reply(self) -> None:
        def loud(word: str) -> str:
            sys.stdout.write("hello\n" * 10_000)
            return word

        assert ef.verify(mapping(loud), seeds=1, words=["a"]).calls == 1

    def test_have_the_hash_seed_they_are_given(self) -> None:
        graph = mapping(impure.hashed).graph()
        call = Calls([(0, saved(("word",)))])
        one, same_seed, other = results_of(
            saved(graph), [Job(1, [call]), Job(1, [call]), Job(2, [call])]
        )
        assert one == same_seed
        assert one != other

    def test_of_the_nursery_begin_afresh_and_survive_a_crash(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        call = Calls([(0, saved(("word",)))])
        with Subject(mapping(impure.Tally()).graph()) as subject:
            assert [subject.performed([call]) for _ in range(3)] == [
                [[saved(("word", 1))]] for _ in range(3)
            ]
        with Subject(mapping(impure.crashing_elsewhere).graph()) as subject:
            for _ in range(2):
                with pytest.raises(ChildError, match="crashed"):
                    subject.performed([call], hash_seed=2)
            assert subject.performed([call], hash_seed=1) == [[saved("word")]]
        monkeypatch.setattr(nursery, "TRY_SECONDS_MAX", 0.8)
        with (
            Subject(mapping(impure.hanging_elsewhere).graph()) as subject,
            pytest.raises(ChildError, match="did not end well"),
        ):
            subject.performed([call], hash_seed=3)


class TestMistakesThatAreNoImpurity:
    def test_a_function_that_raises(self) -> None:
        with pytest.raises(ef.FunctionError, match="ValueError"):
            ef.verify(mapping(int), words=["1", "two"])

    def test_a_key_without_a_stable_hash(self) -> None:
        flow = ef.Flow("keyed")
        flow.front("words").key_by(lambda word: {word}).count().sink("out")
        with pytest.raises(ef.UnstableKeyError):
            ef.verify(flow, words=["a"])

    def test_a_flow_that_cannot_travel(self) -> None:
        lock = threading.Lock()

        def locked(word: str) -> str:
            with lock:
                return word

        with pytest.raises(ef.FlowError, match=r"cannot be sent to another process.*lock"):
            ef.verify(mapping(locked), words=["a"])

    def test_elements_that_cannot_travel(self) -> None:
        with pytest.raises(ef.InputError, match="front 'words': element 1 cannot be copied"):
            ef.verify(mapping(str), words=["a", threading.Lock()])

    @pytest.mark.parametrize("name", ["seeds", "workers", "generate"])
    def test_a_front_with_the_name_of_a_parameter(self, name: str) -> None:
        flow = ef.Flow("clash")
        flow.front(name).sink("out")
        with pytest.raises(ef.InputError, match=f"front '{name}'.*Rename the front"):
            ef.verify(flow, **{name: [1, 2]})  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("arguments", "complaint"),
        [
            ({"words": ["a"], "seeds": 0}, "seeds="),
            ({"words": ["a"], "workers": ()}, "workers="),
            ({"words": ["a"], "workers": (0,)}, "workers="),
            ({"words": ["a"], "workers": 3}, "workers="),
            ({"words": ["a"], "generate": 3}, "generate="),
            ({"generate": lambda random: [1]}, "generate= returns a dict"),
            ({"words": ["a"], "generate": lambda random: {"words": []}}, "not given otherwise"),
            ({"words": 3}, "takes an iterable"),
            ({"words": ["a"], "wards": ["b"]}, "no front 'wards'"),
            ({}, "no elements for front 'words'"),
        ],
    )
    def test_wrong_arguments(self, arguments: dict[str, Any], complaint: str) -> None:
        with pytest.raises(ef.InputError, match=complaint):
            ef.verify(mapping(str), **arguments)

    def test_a_bug_of_emberflow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Broken(Simulation):
            def run(self, elements: Any) -> SimulationResult:
                result = super().run(elements)
                result.outputs["out"].reverse()
                return result

        monkeypatch.setattr(tasks, "Simulation", Broken)
        with pytest.raises(ef.InternalError, match=r"not to blame.*seed=0, workers=1") as caught:
            ef.verify(mapping(str.upper), seeds=3, words=["a", "b"])
        assert "the output of 'out' is not that of the reference" in str(caught.value)


def test_one_function_after_the_other_finds_who_makes_the_difference() -> None:
    """The last resort, for impurity that no single call shows."""
    calls = 0

    def number(word: str) -> tuple[str, int]:
        nonlocal calls
        calls += 1
        return word, calls

    flow = ef.Flow("numbered")
    flow.front("words").map(str.upper).map(number).map(str).sink("out")
    data = saved({"words": ["a", "b"]})
    with Subject(flow.graph()) as subject:
        case = Case(fresh(data), data, Checked(None, saved({"out": []})))
        other = OtherRun(case, 1, Options.drawn(1, workers=2), "it differs")
        finding = blame._by_memory(subject, other)
        assert finding.cause == STATE
        assert finding.site is not None
        assert subject.sites[finding.site].function is number


def test_outputs_are_those_of_the_runners() -> None:
    flow = mapping(str.upper)
    with Subject(flow.graph()) as subject:
        task = Rerun(saved({"words": ["a", "b"]}), Options.drawn(3, workers=2))
        ran = tasks.ran(subject.graph, subject.sites, task)
        assert ran.outputs is not None
        assert fresh(ran.outputs) == {"out": ["A", "B"]}
        assert children.saved_graph(subject.graph) == subject.data


def test_draws_of_generated_elements_are_the_same_each_time() -> None:
    drawn: list[list[int]] = []

    def generate(random: Random) -> dict[str, list[Any]]:
        numbers = [random.randint(0, 99) for _ in range(3)]
        drawn.append(numbers)
        return {"words": numbers}

    for _ in range(2):
        with pytest.raises(ef.NondeterminismError):
            ef.verify(mapping(lambda word: impure.noisy(str(word))), seeds=1, generate=generate)
    assert drawn[:5] == drawn[5:]
