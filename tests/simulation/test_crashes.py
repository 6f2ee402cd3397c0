"""Crashes at random: whoever dies when, every sink ends up with what the reference has.

Workers and the driver crash, connections break, cuts are abandoned or torn, sinks' answers get lost, replaced
processes linger, clocks are off. For more seeds, ``make soak``. A failing seed shows how to
reproduce it.
"""

from __future__ import annotations

from collections import Counter

import pytest

import emberflow as ef
from emberflow.runners.simulation import CrashSimulation
from emberflow.runners.simulation.crashes.recovery import Driver
from tests.effort import tried
from tests.simulation.crash_cases import CrashCase, judged_with_crashes

SEEDS = tried("simulated flows with crashes")
CHUNK = 25


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_the_sinks_have_what_the_reference_has(first: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        case = CrashCase.out_of_order(seed)
        result, simulation = judged_with_crashes(case)
        assert result.incarnations == len(simulation.lives)
        assert 1 < result.incarnations <= 1 + case.faults.crashes
        happened += what_happened(simulation)
    # Check that all these faults really happened.
    assert happened["restored"] > 5
    assert happened["restored rows"] > 25
    assert happened["increments"] > 8
    assert happened["refused bundles"] > 8
    assert happened["lost messages"] > 5


def what_happened(simulation: CrashSimulation) -> Counter[str]:
    lives, manifests = simulation.lives, simulation.storage.cuts.manifests
    restored = [life.cut for life in lives if life.cut is not None]
    return Counter(
        {
            "restored": len(restored),
            "restored rows": sum(len(cut.rows) for cut in restored),
            "restored scheduled items": sum(len(cut.scheduled) for cut in restored),
            "increments": sum(manifest.parent is not None for manifest in manifests),
            "cuts passed over": simulation.storage.cuts.passed_over,
            "refused bundles": sum(life.fenced for life in lives),
            "lost messages": simulation.messages_lost,
            "other numbers of workers": len({life.workers for life in lives}) - 1,
        }
    )


def test_the_rarer_things_happen_too() -> None:
    happened: Counter[str] = Counter()
    seeds = tried("rare events of crashes")
    for seed in range(seeds):
        happened += what_happened(judged_with_crashes(CrashCase.of(5_800 + seed))[1])
    assert happened["restored scheduled items"] > seeds / 4
    assert happened["cuts passed over"] > seeds / 40
    assert happened["other numbers of workers"] > seeds / 4


def test_the_same_seed_gives_the_same_trace() -> None:
    seeds = range(tried("traces of a seed with crashes"))

    def traces() -> list[str]:
        return [judged_with_crashes(CrashCase.of(seed))[0].trace for seed in seeds]

    assert traces() == traces()


def word_count() -> ef.Flow:
    flow = ef.Flow("word count")
    flow.front("words").key_by(lambda word: word).count().sink("counts")
    return flow


def test_crashes_are_a_parameter_of_simulate() -> None:
    words = [*"the quick brown fox jumps over the lazy dog and the dog barks"]
    expected = ef.run(word_count(), words=words)
    cuts = 0
    for seed in range(20):
        result = ef.simulate(word_count(), words=words, seed=seed, workers=3, crashes=2)
        assert result.outputs == expected
        assert result.incarnations in (2, 3)  # a crash may come before the previous one was noticed
        assert len(result.statistics) >= 1
        cuts += result.cuts
    assert cuts > 20


@pytest.mark.parametrize("crashes", [-1, 1.5, "two"])
def test_a_number_of_crashes_that_is_none_is_refused(crashes: object) -> None:
    with pytest.raises(ef.InputError, match=r"simulate\(crashes=\) takes an int"):
        ef.simulate(word_count(), words=[], crashes=crashes)  # type: ignore[arg-type]


def test_a_front_cannot_be_called_crashes() -> None:
    flow = ef.Flow("clash")
    flow.front("crashes").sink("out")
    with pytest.raises(ef.InputError, match="which is a parameter of simulate"):
        ef.simulate(flow)


def test_what_fails_fails_after_crashes_as_well() -> None:
    """A poisoned element: every incarnation meets it, and no cut leads past it."""
    flow = ef.Flow("poisoned")

    def inverse(number: int) -> float:
        return 1 / number

    numbers = flow.front("numbers").map(inverse, name="inverse")
    numbers.key_by(lambda n: n > 0.2).count().sink("counts")
    for seed in range(30):
        with pytest.raises(ef.FunctionError, match="division by zero") as raised:
            ef.simulate(flow, numbers=[5, 4, 3, 2, 1, 0, 7, 8], seed=seed, workers=2, crashes=3)
        assert raised.value.global_time == (5, 0)


def test_arrival_times_are_given_once() -> None:
    """Whatever a clock says after a crash: what the log has is what was given, and is in order."""
    given, seeds = 0, tried("arrival times over crashes")
    for seed in range(seeds):
        case = CrashCase.of(seed)
        everywhere = frozenset(front.index for front in case.graph.fronts.values())
        case = case.with_faults(arrival=everywhere, skew_ticks_max=500)
        _, simulation = judged_with_crashes(case)
        for log in simulation.storage.logs.values():
            assert log.times == sorted(set(log.times))
            given += len(log.times)
    assert given > 16 * seeds


def test_without_a_cut_all_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts make recovery quick; that it is right does not depend on them."""
    for seed in range(tried("crashes without a cut")):
        monkeypatch.setattr(Driver, "_cut_if_due", lambda self, moment: None)
        result, _ = judged_with_crashes(CrashCase.of(seed))
        assert result.cuts == 0
