"""A live query goes over to another version of its flow; the output is that of the reference's versions."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.checkpoint.cuts.manifest import VersionNote
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.errors import UnfitCutError
from emberflow.engine.worker.routing import barrier_host
from emberflow.graph.versions import CarryError
from emberflow.runners.live.driver.coordinator import Coordinator
from emberflow.runners.live.lives.claims import Claims
from emberflow.runners.live.query import LiveQuery
from emberflow.runners.live.supervisor import Supervision
from emberflow.runners.live.wire.sockets import WireError
from emberflow.values.item import FRONT_MIN
from tests.effort import FAULTS_ROUND, SECONDS, SOAK
from tests.faults.test_kills import held_back
from tests.faults.toll import toll

#: So many numbers there are at the least.
LEAST = 2_000


def sums(generation: int, *, name: str = "sums", more: bool = False) -> ef.Flow:
    """State of several kinds; ``generation`` shows in all of its output."""
    flow = ef.Flow("sums")
    numbers = flow.front("numbers")
    keyed = numbers.key_by(lambda n: n % 5)
    totals = keyed.fold(initial=0, combine=lambda total, n: total + n + generation, name=name)
    totals.map(lambda total: (generation, total)).sink("sums")
    closed = keyed.window(ef.Tumbling(50), emit="close").count(name="windows")
    closed.map(lambda r: (generation, r.key, r.window.start, r.value)).sink("windows")
    if more:
        numbers.filter(lambda n: n % 7 == 0).map(lambda n: (generation, n)).sink("sevens")
    return flow


def until_there_is(may_end: Path) -> Callable[[], Iterator[int]]:
    """Numbers without an end until there is a file, so that no upgrade comes after the end."""

    def numbers() -> Iterator[int]:
        for number in count():
            yield number
            if number >= LEAST and may_end.exists():
                return

    return numbers


def given(kept: dict[str, Any]) -> range:
    """The numbers that there were: each has given a sum."""
    return range(len(kept["sums"].payloads(0)))


def started(
    spark: SparkSession, flow: ef.Flow, folder: Path, kept: dict[str, Any], **carry: Any
) -> LiveQuery:
    own = {name: kept.setdefault(name, sinks.Memory()) for name in flow.graph().sinks}
    return (
        flow.live(spark)
        .read(numbers=fronts.Iterable(until_there_is(folder / "end"), rate=1_500))
        .write(**own)
        .carry(carry)
        .option("workers", 2)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("checkpointInterval", 200)
        .start()
    )


def when(query: LiveQuery, count: int) -> None:
    """Wait until the query has taken in so many elements."""
    deadline = time.monotonic() + SECONDS
    while (progress := query.lastProgress) is None or progress["elements"] < count:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pids(query: LiveQuery) -> list[int]:
    """The processes of the workers, when all of them have told."""
    deadline = time.monotonic() + SECONDS
    while (progress := query.lastProgress) is None or len(progress["pids"]) < 2:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return sorted(progress["pids"])


def ended(query: LiveQuery, folder: Path) -> None:
    (folder / "end").touch()
    assert query.awaitTermination(SECONDS), query.status


def notes(folder: Path) -> list[VersionNote]:
    cut = CheckpointStore(folder / "checkpoint").latest()
    assert cut is not None
    return list(cut.versions)


def begin_of(note: VersionNote) -> int:
    """The first time that a version serves. There is one front, and each time once."""
    assert note.begins is not None
    time_, front = note.begins
    return time_ + (front > 0)


def expected(
    folder: Path, kept: dict[str, Any], first: ef.Flow, *later: Any
) -> dict[str, list[Any]]:
    """What the reference gives for these versions, from the times on that the query has noted."""
    begins = [begin_of(note) for note in notes(folder)[1:]]
    assert len(begins) == len(later)
    versions = ef.Versions(
        first, *((at, *version) for at, version in zip(begins, later, strict=True))
    )
    return ef.run(versions, numbers=given(kept))


def payloads(kept: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: memory.payloads(0) for name, memory in kept.items()}


def test_versions_take_over_while_the_query_runs(spark: SparkSession, tmp_path: Path) -> None:
    """State is carried and migrated, a step renamed, a sink added; a worker is killed in between."""
    migrate = ef.Migrate("totals", lambda key, total: -total)
    versions = [
        (sums(1, name="totals"), {"totals": "sums"}),
        (sums(2, name="totals", more=True), {"totals": migrate}),
        (sums(3, name="totals", more=True), None),
    ]
    kept: dict[str, Any] = {}
    query = started(spark, sums(0), tmp_path, kept)
    dice = Random(FAULTS_ROUND)
    try:
        for number, (flow, carry) in enumerate(versions):
            when(query, 300 * (number + 1))
            processes = pids(query)
            is_killed = SOAK or number == 1
            if is_killed:
                os.kill(dice.choice(processes), signal.SIGKILL)
                toll("worker")
                time.sleep(dice.uniform(0, 1.5))
            kept.update({name: sinks.Memory() for name in flow.graph().sinks if name not in kept})
            query.upgrade(flow, carry=carry, write=kept, timeout=SECONDS)
            assert query.graph.fingerprint == flow.graph().fingerprint
            assert is_killed or pids(query) == processes
        assert query.read({"totals": [1]})["totals"][1] is not None
        ended(query, tmp_path)
    finally:
        query.stop()
    assert payloads(kept) == expected(tmp_path, kept, sums(0), *versions)
    assert [note.told for note in notes(tmp_path)[1:3]] == [
        ("renamed: sums -> totals", "carried: windows", *told_changes(sums(0), versions[0][0])),
        ("migrated: totals", "carried: windows", *told_changes(versions[0][0], versions[1][0])),
    ]


def told_changes(old: ef.Flow, new: ef.Flow) -> list[str]:
    from emberflow.graph.description import changed_functions, steps_of

    return [f"changed: {step}" for step in changed_functions(steps_of(old.graph()), new.graph())]


def test_versions_take_over_at_a_given_time(spark: SparkSession, tmp_path: Path) -> None:
    """Also where a front waits for what is out of order, and one that comes with the new version."""

    def merged(generation: int) -> ef.Flow:
        flow = ef.Flow("merged")
        fronts_ = [flow.front(name) for name in ("one", "two", "three")[: 2 + generation]]
        numbers = ef.merge(*fronts_)
        numbers.key_by(lambda n: n % 3).count(name="counts").map(lambda kv: (generation, *kv)).sink(
            "out"
        )
        later = numbers.with_time().flat_map(
            lambda t: [ef.At(t.time + 40, (generation, t.payload))], name="later"
        )
        later.sink("later")
        return flow

    shuffled = [at + Random(at).randint(-20, 0) for at in range(20, 2_000)]
    given = {
        "one": fronts.Iterable([ef.At(at, at) for at in range(2_000)], rate=400),
        "two": fronts.Iterable([ef.At(at, at) for at in shuffled], rate=400, disorder=30),
        "three": fronts.Iterable([ef.At(at, at) for at in range(700, 1_500)]),
    }
    kept = {"out": sinks.Memory(), "later": sinks.Memory()}
    query = (
        merged(0)
        .live(spark)
        .read(one=given["one"], two=given["two"])
        .write(**kept)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        when(query, 100)
        with pytest.raises(ef.InputError, match=r"upgrade\(at=10\): elements up to the time"):
            query.upgrade(merged(1), at=10, read={"three": given["three"]})
        query.upgrade(merged(1), at=700, read={"three": given["three"]}, timeout=SECONDS)
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    expected = ef.run(ef.Versions(merged(0), (700, merged(1))), **given)
    assert payloads(kept) == {name: expected[name] for name in kept}


def test_what_is_due_at_the_given_time_is_for_the_new_version(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A front in order promises a time as soon as the one before it has entered."""

    def windows(generation: int) -> ef.Flow:
        flow = ef.Flow("windows")
        keyed = flow.front("numbers").key_by(lambda n: n % 3)
        closed = keyed.window(ef.Tumbling(50), emit="close").count(name="windows")
        closed.map(lambda r: (generation, r.key, r.window.start, r.value)).sink("windows")
        return flow

    kept = {"windows": sinks.Memory()}
    query = (
        windows(0)
        .live(spark)
        .read(numbers=fronts.Iterable(range(600), rate=400))
        .write(**kept)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.upgrade(windows(1), at=350, timeout=SECONDS)
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    versions = ef.Versions(windows(0), (350, windows(1)))
    assert payloads(kept) == ef.run(versions, numbers=range(600))
    assert notes(tmp_path)[-1].begins == (350, FRONT_MIN)


def test_each_version_serves_some_time(spark: SparkSession, tmp_path: Path) -> None:
    """Also if the next one is asked for at once: no version is lost between two of them."""
    versions = [(sums(1), None), (sums(2, name="totals"), {"totals": "sums"})]
    kept: dict[str, Any] = {}
    query = started(spark, sums(0), tmp_path, kept)
    try:
        when(query, 200)
        for flow, carry in versions:
            query.upgrade(flow, carry=carry, timeout=SECONDS)
        ended(query, tmp_path)
    finally:
        query.stop()
    assert payloads(kept) == expected(tmp_path, kept, sums(0), *versions)


@pytest.mark.skipif(
    not SOAK, reason="`make soak` has it; every run has versions in batch, and batch over logs"
)
def test_a_batch_over_the_logs_gives_what_the_versions_gave(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The query chooses when the next version begins; its checkpoint tells. Elements have times of arrival."""
    numbers = held_back(
        range(900), tmp_path / "end"
    )  # so that the upgrade does not come after the end
    source = fronts.Iterable(numbers, rate=1_500, arrival=True)
    kept = {"sums": sinks.Memory(), "windows": sinks.Memory()}
    checkpoint = tmp_path / "checkpoint"
    query = (
        sums(0)
        .live(spark)
        .read(numbers=source)
        .write(**kept)
        .option("checkpointLocation", str(checkpoint))
        .option("keepFrontLogs", True)
        .start()
    )
    later = sums(1, name="totals"), {"totals": ef.Migrate("sums", lambda key, total: -total)}
    try:
        when(query, 200)
        query.upgrade(later[0], carry=later[1], timeout=SECONDS)
        ended(query, tmp_path)
    finally:
        query.stop()
    versions = ef.Versions.served(checkpoint, sums(0), later)
    log = ef.front_log(spark, checkpoint, "numbers", source=source)
    found = versions.batch(spark, raw=True, partitions=2, numbers=log)
    assert {name: ef.payloads(df) for name, df in found.items()} == payloads(kept)
    with pytest.raises(ef.InputError, match=r"version 2, from \(\d+, -?\d+\) on, .* is missing"):
        ef.Versions.served(checkpoint, sums(0))
    with pytest.raises(ef.InputError, match=r"version 1, from the beginning on, .* is missing"):
        ef.Versions.served(checkpoint, later[0])


def test_partitions_that_are_apart_are_given_over_where_they_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One is behind the others, one waits for what is out of order, one has nothing for a while."""

    def counted(generation: int) -> ef.Flow:
        flow = ef.Flow("apart")
        numbers = ef.merge(*(flow.front(name) for name in ("ahead", "behind", "idle")))
        counts = numbers.key_by(lambda n: n % 7).count(name="counts")
        counts.map(lambda count: (generation, *count)).sink("out")
        return flow

    shuffled = [at + Random(at).randint(-20, 0) for at in range(20, 3_000)]
    given = {
        "ahead": fronts.Iterable([ef.At(at, at) for at in range(3_000)], rate=900),
        "behind": fronts.Iterable([ef.At(at, at) for at in shuffled], rate=600, disorder=30),
        "idle": fronts.Iterable([ef.At(at, at) for at in range(0, 3_000, 300)], rate=3),
    }
    kept = {"out": sinks.Memory()}
    query = (
        counted(0)
        .live(spark)
        .read(**given)
        .write(**kept)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("workers", 2)
        .start()
    )
    try:
        processes = pids(query)
        for generation in (1, 2, 3):
            when(query, 20)
            query.upgrade(counted(generation), timeout=SECONDS)
            assert pids(query) == processes
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    out = kept["out"].payloads(0)
    generations = [generation for generation, *_ in out]
    assert generations == sorted(generations)
    assert set(generations) == {0, 1, 2, 3}
    one_version = ef.run(counted(0), **given)["out"]
    assert [counts for _, *counts in out] == [counts for _, *counts in one_version]


def test_the_writer_of_a_sink_is_where_its_barrier_is(spark: SparkSession, tmp_path: Path) -> None:
    """Another version may number its steps otherwise, and so have the barrier on another worker."""

    def told(steps: int) -> ef.Flow:
        flow = ef.Flow("told")
        numbers = flow.front("numbers")
        for step in range(steps):
            numbers = numbers.map(lambda n, step=step: n)
        numbers.map(lambda n: [steps, n]).sink("out")
        return flow

    hosts = [barrier_host(told(steps).graph().sinks["out"], 0, 2) for steps in (1, 2)]
    assert hosts[0] != hosts[1]
    out = sinks.Files(tmp_path / "out")
    kept = {"out": out}
    query = started(spark, told(1), tmp_path, kept)
    try:
        processes = pids(query)
        for steps in (2, 3):
            when(query, len(out.payloads(0)) + 20)
            query.upgrade(told(steps), timeout=SECONDS)
            assert pids(query) == processes
        ended(query, tmp_path)
        assert query.recoveries == []
    finally:
        query.stop()
    rows = out.payloads(0)
    assert [number for _, number in rows] == list(range(len(rows)))
    generations = [steps for steps, _ in rows]
    assert generations == sorted(generations)
    assert set(generations) == {1, 2, 3}


def test_a_version_that_cannot_take_over_leaves_the_old_one_running(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[str, Any] = {}
    begun = Claims.begin_when_writable
    was_told: list[bool] = []

    def watched(claims: Claims) -> None:
        """An upgrade is told that it failed when the next life is there, which takes the next one."""
        begun(claims)
        was_told.append(claims._current.successor is None)

    monkeypatch.setattr(Claims, "begin_when_writable", watched)
    query = started(spark, sums(0), tmp_path, kept)
    try:
        when(query, 200)
        with pytest.raises(CarryError, match="the state of 'sums'"):
            query.upgrade(sums(1, name="totals"))
        lost = pids(query)
        wrong = ef.Migrate("sums", lambda key, total: total / 0)
        with pytest.raises(
            ef.EmberflowError, match="migration of step 'sums' raised ZeroDivisionError"
        ):
            query.upgrade(sums(1), carry={"sums": wrong}, timeout=SECONDS)
        assert was_told == [False]
        with pytest.raises(ef.InputError, match="sink 'sevens' is not given"):
            query.upgrade(sums(1, more=True))
        when(query, 200)
        deadline = time.monotonic() + SECONDS
        while (processes := pids(query)) == lost:  # the progress is still that of the life before
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(ModuleNotFoundError, match="not_on_workers"):
            query.upgrade(with_a_module_of_the_driver(), timeout=SECONDS)
        assert pids(query) == processes
        when(query, 600)
        ended(query, tmp_path)
    finally:
        query.stop()
    assert payloads(kept) == ef.run(sums(0), numbers=given(kept))
    assert notes(tmp_path) == []


def test_the_note_of_a_version_decides_who_goes_on_after_a_loss(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ahead of the note the old version does, and is asked again; behind it the new one."""
    kept: dict[str, Any] = {}
    query = started(spark, sums(0), tmp_path, kept)
    claimed, noted = Claims.claimed_for, Coordinator._take_over
    lost: list[str] = []

    def loses_a_worker(claims: Claims, *given: Any) -> Any:
        """While the workers take over."""
        if not lost:
            lost.append("ahead of the note")
            os.kill(pids(query)[0], signal.SIGKILL)
            toll("worker")
            deadline = time.monotonic() + SECONDS
            while claims._current.coordinator.failure is None:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        return claimed(claims, *given)

    def loses_its_life(coordinator: Coordinator, *given: Any) -> None:
        noted(coordinator, *given)
        if len(lost) == 1 and len(notes(tmp_path)) == 3:
            lost.append("behind the note")
            raise WireError("lost right behind the note")

    monkeypatch.setattr(Claims, "claimed_for", loses_a_worker)
    monkeypatch.setattr(Coordinator, "_take_over", loses_its_life)
    later = [(sums(1), None), (sums(2, name="totals"), {"totals": "sums"})]
    try:
        for number, (flow, carry) in enumerate(later, 1):
            when(query, 200)
            query.upgrade(flow, carry=carry, timeout=SECONDS)
            assert len(lost) == len(query.recoveries) == number
            assert query.graph.fingerprint == flow.graph().fingerprint
        when(query, 100)
        ended(query, tmp_path)
    finally:
        query.stop()
    assert lost == ["ahead of the note", "behind the note"]
    assert payloads(kept) == expected(tmp_path, kept, sums(0), *later)


def test_the_old_version_goes_on_if_the_next_one_is_lost_right_behind_its_end(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one has ended for a version that is given up then, or whose coordinator is lost."""
    lived = Supervision._live
    losses = [ef.EmberflowError("it failed right behind the end"), WireError("it was lost there")]

    def loses_the_next_one(lives: Supervision) -> Any:
        failure = lived(lives)
        successor = lives.current.successor
        if lives.coordinator.hands_over and losses:
            assert successor is not None
            assert successor.life is not None
            coordinator = successor.life[1]
            coordinator.fail(losses.pop(0))
            assert coordinator.wait(SECONDS)  # it has told why, in its own thread
            assert successor.over.is_set() == (len(losses) == 1)
        return failure

    monkeypatch.setattr(Supervision, "_live", loses_the_next_one)
    kept: dict[str, Any] = {}
    query = started(spark, sums(0), tmp_path, kept)
    try:
        when(query, 200)
        with pytest.raises(ef.EmberflowError, match="it failed right behind the end"):
            query.upgrade(sums(1), timeout=SECONDS)
        when(query, 200)
        query.upgrade(sums(1), timeout=SECONDS)
        assert [str(loss) for loss in query.recoveries] == ["it was lost there"]
        when(query, 100)
        ended(query, tmp_path)
    finally:
        query.stop()
    assert not losses
    assert payloads(kept) == expected(tmp_path, kept, sums(0), (sums(1), None))
    writers = [one.name for one in threading.enumerate() if "emberflow sink sums" in one.name]
    assert writers == []


def with_a_module_of_the_driver() -> ef.Flow:
    """A version with a function of a module that only this process has."""
    module = types.ModuleType("not_on_workers")
    exec("def shown(total): return (1, total)", module.__dict__)
    sys.modules["not_on_workers"] = module
    flow = ef.Flow("sums")
    keyed = flow.front("numbers").key_by(lambda n: n % 5)
    totals = keyed.fold(initial=0, combine=lambda total, n: total + n, name="sums")
    totals.map(module.shown).sink("sums")
    keyed.window(ef.Tumbling(50), emit="close").count(name="windows").sink("windows")
    return flow


def test_a_query_that_waits_for_its_next_version_can_be_stopped(
    spark: SparkSession, tmp_path: Path
) -> None:
    kept: dict[str, Any] = {}
    query = started(spark, sums(0), tmp_path, kept)
    when(query, 200)
    with pytest.raises(ef.EmberflowError, match="has not taken over within 1 s"):
        query.upgrade(sums(1), at=10**6, timeout=1)
    with pytest.raises(ef.EmberflowError, match="another version is taking over just now"):
        query.upgrade(sums(1))
    query.stop()
    assert query.exception() is None
    assert payloads(kept)["sums"] == ef.run(sums(0), numbers=given(kept))["sums"]


def test_a_restart_with_another_version_takes_over_from_the_last_cut(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept: dict[str, Any] = {}
    query = started(spark, sums(0), tmp_path, kept)
    when(query, 300)
    query.stop()
    with pytest.raises(UnfitCutError, match=r"the state of 'sums' .* would be lost"):
        started(spark, sums(1, name="totals"), tmp_path, kept)
    query = started(spark, sums(1, name="totals"), tmp_path, kept, totals="sums")
    assert "renamed: sums -> totals" in caplog.text
    try:
        when(query, 300)
        query.stop()
        with pytest.raises(UnfitCutError, match="earlier version"):
            started(spark, sums(0), tmp_path, kept)
        query = started(spark, sums(1, name="totals"), tmp_path, kept)
        ended(query, tmp_path)
    finally:
        query.stop()
    new = (sums(1, name="totals"), {"totals": "sums"})
    assert payloads(kept) == expected(tmp_path, kept, sums(0), new)


def test_a_restart_is_refused_where_sinks_are_ahead_of_the_last_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The query was lost: what its sinks hold behind the cut is of the old version."""

    def failing(generation: int) -> ef.Flow:
        flow = ef.Flow("failing")
        numbers = flow.front("numbers").map(lambda n: n // (n - 1_200) if not generation else n)
        numbers.key_by(lambda n: n % 5).count(name=f"count {generation}").sink("out")
        return flow

    kept: dict[str, Any] = {}
    query = started(spark, failing(0), tmp_path, kept)
    with pytest.raises(ef.FunctionError, match="division"):
        query.awaitTermination(SECONDS)
    with pytest.raises(UnfitCutError, match="sink 'out' already holds output of the old version"):
        started(spark, failing(1), tmp_path, kept, **{"count 1": "count 0"})
