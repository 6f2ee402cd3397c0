"""Live with errors diverted: the stream goes on, and the error records equal the reference's."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from tests.effort import SECONDS, SOAK
from tests.strategies import random_flow


def live(
    spark: SparkSession, flow: ef.Flow, workers: int, reads: dict[str, Any], **options: Any
) -> dict[str, list[Any]]:
    """The live output and the diverted errors. All sinks have one partition."""
    kept = {name: sinks.Memory() for name in [*flow.graph().sinks, "errors"]}
    builder = flow.live(spark).read(**reads).write(**kept).option("workers", workers)
    for key, value in options.items():
        builder.option(key, value)
    query = builder.option("onError", "divert").start()
    try:
        assert query.awaitTermination(SECONDS), query.status
    finally:
        query.stop()
    return {name: memory.payloads() for name, memory in kept.items()}


def orders() -> ef.Flow:
    """A flow in which every kind of function fails for some orders."""
    flow = ef.Flow("orders")
    # The first front is beside the barrier of the errors sink; the second one is not.
    flow.front("notes").map(lambda note: note / 2).sink("notes")
    parsed = flow.front("orders").filter(lambda order: 100 // (order["id"] % 17) > 0)
    lines = parsed.flat_map(lambda order: [(order["who"], n) for n in order["amounts"]])
    keyed = lines.key_by(lambda line: line[0][0])

    def add(total: int, line: tuple[str, int]) -> int:
        if (total + line[1]) % 7 == 3:
            raise ValueError(f"{total} and {line[1]}")
        return total + line[1]

    totals = keyed.reduce(first=lambda line: 12 // line[1], combine=add, with_key=True)
    totals.sink("totals")
    keyed.window(ef.Tumbling(50), emit="close").reduce(
        first=lambda line: line[1], combine=lambda best, line: best // line[1]
    ).map(lambda result: (result.key, result.window.end, result.value)).sink("windows")
    return flow


def order(number: int) -> dict[str, Any]:
    who = ["ada", "bob", "", "cyd"][number % 4]
    amounts = [number * 5 % 11 - 2, number % 3, "x"][: 1 + number % 3]
    return {"id": number, "at": 3 * number, "who": who, "amounts": amounts}


ORDERS = [order(number) for number in range(1, 200)]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_fails_is_diverted_as_by_the_reference(spark: SparkSession, workers: int) -> None:
    flow = orders()
    given = [ef.At(order["at"], order) for order in ORDERS]
    notes = [1, "note", 3]
    expected = ef.run(flow, on_error="divert", orders=given, notes=notes)
    assert len({error.step for error in expected["errors"]}) >= 4
    assert len(expected["errors"]) > 50
    reads = {"orders": fronts.Iterable(given), "notes": fronts.Iterable(notes)}
    output = live(spark, flow, workers, reads, batch=13)
    assert output == expected
    assert repr(output) == repr(expected)


MALFORMED = {
    3: ["{oops", '{"at": "soon"}'],
    40: ["[1, 2]"],
    41: ["caf\udce9"],
    100: ["1", "nonsense", "{}"],
    199: ["the", "end"],
}


def written(folder: Path) -> list[tuple[int, str]]:
    """Write orders to two files, with malformed lines before some. Returns those lines, by order."""
    ahead: list[tuple[int, str]] = []
    for name, numbers in (("1.jsonl", range(1, 90)), ("2.jsonl", range(90, 200))):
        with open(folder / name, "w", encoding="utf-8", errors="surrogateescape") as file:
            for number in numbers:
                for line in MALFORMED.get(number, ()):
                    file.write(f"{line}\n")
                    ahead.append((number, line))
                if number < 199:
                    file.write(f"{json.dumps(order(number))}\n")
    return ahead


@pytest.mark.parametrize("workers", [1, 2])
def test_malformed_lines_go_to_the_errors_sink_in_their_places(
    spark: SparkSession, workers: int, tmp_path: Path
) -> None:
    ahead = written(tmp_path)
    flow = orders()
    given = [ef.At(3 * number, order(number)) for number in range(1, 199)]
    expected = ef.run(flow, on_error="divert", orders=given, notes=[])
    front = fronts.Files(tmp_path, time="at", until_end=True)
    output = live(spark, flow, workers, {"orders": front, "notes": fronts.Iterable([])}, batch=7)
    assert {name: output[name] for name in flow.graph().sinks} == {
        name: expected[name] for name in flow.graph().sinks
    }
    malformed = [error for error in output["errors"] if error.function == "-"]
    assert [error for error in output["errors"] if error.function != "-"] == expected["errors"]
    # At the time of the order after them; the last ones after the last order.
    times = [3 * number if number < 199 else 3 * 198 + 1 for number, _ in ahead]
    assert [error.time for error in malformed] == times
    assert [error.payload for error in malformed] == [
        line.replace("\udce9", "\\xe9") for _, line in ahead
    ]
    assert all(error.step.startswith("front 'orders' (") for error in malformed)
    assert "1.jsonl, line 3, is not JSON" in malformed[0].problem
    # In one order with all others, before any error of the order itself.
    assert [error.time for error in output["errors"]] == sorted(e.time for e in output["errors"])
    for before, after in zip(output["errors"], output["errors"][1:], strict=False):
        assert before.time < after.time or not (before.function != "-" == after.function)


@pytest.mark.parametrize(
    ("failing", "told"),
    [
        (2, "ZeroDivisionError"),  # the order before the line
        (3, r"front 'orders' .*1\.jsonl, line 3, is not JSON"),
    ],
)
def test_the_first_problem_ends_the_query_whoever_finds_another_one_sooner(
    spark: SparkSession, tmp_path: Path, failing: int, told: str
) -> None:
    written(tmp_path)
    flow = ef.Flow("orders")
    flow.front("notes").map(lambda note: note / 2).sink("notes")
    flow.front("orders").map(lambda order: 1 // (order["id"] - failing)).sink("ratios")
    front = fronts.Files(tmp_path, time="at", until_end=True)
    kept = {name: sinks.Memory() for name in flow.graph().sinks}
    query = flow.live(spark).read(orders=front, notes=fronts.Iterable([])).write(**kept).start()
    with pytest.raises(ef.EmberflowError, match=told):
        query.awaitTermination(SECONDS)


@pytest.mark.parametrize("seed", [703, 706, 707, 710])
def test_random_flows_live_equal_the_reference(spark: SparkSession, seed: int) -> None:
    """Their functions take ints, and a third of the elements are not ints."""
    flow, elements = random_flow(Random(seed))
    random = Random(seed)
    elements = {
        name: [random.choice([None, *range(-9, 9, 9)]) for _ in given]
        for name, given in elements.items()
    }
    expected = ef.run(flow, on_error="divert", **elements)
    assert expected["errors"]
    reads = {name: fronts.Iterable(given) for name, given in elements.items()}
    output = live(spark, flow, 1 + seed % 2, reads)
    for name in expected:
        if name == "errors" or flow.graph().sinks[name].partitions == 1:
            assert repr(output[name]) == repr(expected[name])


def test_a_payload_that_does_not_travel_is_shown(spark: SparkSession) -> None:
    flow = ef.Flow("does not travel")
    made = flow.front("numbers").map(lambda number: (number for _ in range(3)))
    made.map(lambda generator: generator + 1).sink("out")
    for workers in (1, 2):
        output = live(spark, flow, workers, {"numbers": fronts.Iterable([1, 2])})
        assert [error.time for error in output["errors"]] == [0, 1]
        assert all("generator object" in error.payload for error in output["errors"])


def test_a_second_start_diverts_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    flow = ef.Flow("inverse")
    flow.front("numbers").map(lambda n: 60 // n).sink("out")
    numbers = [n % 5 for n in range(100)]

    def run(given: list[int]) -> None:
        reads = fronts.Iterable(given)
        writes = {name: sinks.Files(tmp_path / name) for name in ("out", "errors")}
        builder = flow.live(spark).read(numbers=reads).write(**writes)
        assert builder.option("onError", "divert").start().awaitTermination(SECONDS)

    run(numbers[:47])
    run(numbers)
    expected = ef.run(flow, on_error="divert", numbers=numbers)
    assert sinks.read_files(tmp_path / "out") == expected["out"]
    assert sinks.read_files(tmp_path / "errors") == [e._asdict() for e in expected["errors"]]


def transfers() -> ef.Flow:
    """Transactions in which functions fail: of maps, keys, updates, and of a constraint."""
    flow = ef.Flow("transfers")
    accounts = flow.state("accounts", default=50)
    with flow.front("transfers").transaction() as tx:
        sides = tx.flat_map(lambda t: [(t[0], -t[2]), (t[1], 60 // t[2])])
        left = sides.key_by(lambda side: "abcdefghijkl"[side[0]]).update(
            accounts, lambda balance, side: balance + side[1], check=lambda balance: balance % 9
        )
        tx.output(left.map(lambda pair: 100 // (pair[1] % 13))).sink("left")
        tx.require(lambda values: 12 // (sum(values.values()) % 11), name="adds up")
    tx.committed.sink("done")
    tx.rejected.map(lambda rejected: rejected.element).sink("refused")
    return flow


TRANSFERS = [(n * 11 % 12, n * n % 31 % 13, n * 3 % 17) for n in range(1, 150)]


def test_a_query_that_an_error_of_a_transaction_ended_goes_on_when_it_diverts(
    spark: SparkSession, tmp_path: Path
) -> None:
    """From the cut of a query that did not, and with sinks that hold nothing behind the error."""
    flow = transfers()
    expected = ef.run(flow, on_error="divert", transfers=TRANSFERS)
    assert all(len(output) > 20 for output in expected.values())
    assert len({error.function for error in expected["errors"]}) == 4
    good = expected["errors"][0].time

    may_end = tmp_path / "end"

    def first_ones() -> Iterator[Any]:
        yield from TRANSFERS[:good]
        while not may_end.exists():
            time.sleep(0.02)

    def started(given: Any, on_error: str, *names: str) -> ef.LiveQuery:
        writes = {name: sinks.Files(tmp_path / name) for name in names}
        builder = flow.live(spark).read(transfers=fronts.Iterable(given)).write(**writes)
        builder.option("checkpointLocation", tmp_path / "checkpoint")
        return builder.option("onError", on_error).start()

    query = started(first_ones, "fail", "left", "done", "refused")
    query.processAllAvailable()
    query.stop()
    may_end.touch()
    # Whoever began at the beginning would fail at the first ones.
    going_on = [None] * good + TRANSFERS[good:]
    with pytest.raises(ef.FunctionError) as ended:
        started(going_on, "fail", "left", "done", "refused").awaitTermination(SECONDS)
    assert ended.value.global_time == (good, 0)
    query = started(going_on, "divert", *expected)
    assert query.awaitTermination(SECONDS), query.status
    stored = {name: sinks.read_files(tmp_path / name) for name in expected}
    assert [error._asdict() for error in expected["errors"]] == [
        {**record, "payload": _tuples(record["payload"])} for record in stored.pop("errors")
    ]
    assert stored == {name: [*map(_plain, expected[name])] for name in stored}


def _tuples(payload: Any) -> Any:
    return tuple(map(_tuples, payload)) if isinstance(payload, list) else payload


def _plain(payload: Any) -> Any:
    return json.loads(json.dumps(payload))


def test_it_says_what_is_missing(spark: SparkSession) -> None:
    flow = orders()
    kept = {name: sinks.Memory() for name in flow.graph().sinks}
    ready = (
        flow.live(spark).read(orders=fronts.Iterable([]), notes=fronts.Iterable([])).write(**kept)
    )
    with pytest.raises(ef.InputError, match=r"no sink for them\. Add \.write\(errors=\.\.\.\)"):
        ready.option("onError", "divert").start()
    with pytest.raises(ef.InputError, match=r"takes 'fail' or 'divert', got 'ignore'"):
        ready.option("onError", "ignore")
    ready.option("onError", "fail").write(errors=sinks.Memory())
    with pytest.raises(ef.InputError, match=r"nothing is diverted .*Add \.option\('onError', 'div"):
        ready.start()
    clash = ef.Flow("clash")
    clash.front("numbers").sink("errors")
    with pytest.raises(ef.InputError, match=r"has a sink 'errors'.*another name"):
        clash.live(spark).option("onError", "divert")


FLOW = """
import emberflow as ef

flow = ef.Flow("inverse")
flow.front("numbers").map(lambda n: 60 // n).sink("out")
"""


@pytest.mark.early
@pytest.mark.skipif(not SOAK, reason="`make soak` has it; every run diverts until Ctrl-C")
def test_the_command_line_diverts_until_the_end(tmp_path: Path) -> None:
    """In a process of its own: Spark allows one session per process."""
    (tmp_path / "inverse.py").write_text(FLOW)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text("3\n0\n{oops\n4\n")
    command = [
        *(sys.executable, "-m", "emberflow", "run", "inverse.py:flow"),
        *("--front", "numbers=files:in/?until_end=true", "--sink", "out=files:out/"),
        *("--on-error", "divert", "--sink", "errors=files:bad/"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert sinks.read_files(tmp_path / "out") == [20, 15]
    inverse, oops = sinks.read_files(tmp_path / "bad")
    assert inverse["payload"] == 0
    assert "raised ZeroDivisionError" in inverse["problem"]
    assert oops["payload"] == "{oops"
    assert "1.jsonl, line 3, is not JSON" in oops["problem"]
