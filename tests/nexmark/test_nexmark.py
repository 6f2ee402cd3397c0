"""NEXMark: the generator keeps its rules, and every query is right, on every runner.

Each query is compared with an oracle of plain loops (`tests.nexmark.oracle`) on the reference, and every
other runner with the reference. To save time, runners get one flow with all queries.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

import emberflow as ef
from emberflow.rows.codec import decode
from tests.contract.cases import EXAMPLES, examples_importable
from tests.contract.runners import positioned
from tests.effort import SECONDS, SOAK
from tests.nexmark import oracle

with examples_importable():
    import nexmark.__main__
    from nexmark.generator import BEGIN_MS, Auction, Bid, Event, Person, front, generated
    from nexmark.queries import QUERIES, flow_of_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000

#: Half a minute of events that come out of order by seconds.
QUICK = {"count": 2_000, "rate": 60, "disorder": 3_000, "in_flight": 10, "seed": 1}
#: Two days of events, in order.
SLOW = {"count": 600, "rate": 0.003, "in_flight": 10, "seed": 2}
#: For runners that take longer. It begins shortly before midnight.
FEW = {"count": 200, "rate": 10, "in_flight": 5, "begin": BEGIN_MS + 24 * HOUR_MS - 5_000}

#: What batch does on every run, of different kinds. All others are left to `make soak`.
IN_BATCH = [*QUERIES] if SOAK else ["q5", "q6"]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))  # workers import from the driver's path
    return


def events_of(given: dict[str, Any]) -> list[Event]:
    return list(generated(**given))


def outputs_of(given: dict[str, Any]) -> dict[str, list[Any]]:
    return _outputs(tuple(given.items()))


@cache
def _outputs(given: tuple[tuple[str, Any], ...]) -> dict[str, list[Any]]:
    arguments = dict(given)
    return ef.run(flow_of_all(), events=front_of(arguments))


def front_of(given: dict[str, Any]) -> ef.fronts.Iterable:
    return front(events_of(given), disorder=given.get("disorder", 0))


def in_order(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda event: event.date_time)


def table(outputs: list[Any], query: str) -> dict[Any, Any]:
    """What a consumer has that applies all updates. Rows of aggregates begin with their key."""
    if query == "q15":
        return {row[0]: row for row in outputs}
    if query in ("q16", "q17"):
        return {row[:2]: row for row in outputs}
    found = {change.key: change.after for change in outputs}
    return {key: tuple(row) for key, row in found.items()} if query == "q9" else found


# --- The generator ----------------------------------------------------------------------------------


def test_events_are_those_of_their_seed() -> None:
    assert events_of(QUICK) == events_of(QUICK) != events_of({**QUICK, "seed": 3})


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_rest_are_bids() -> None:
    kinds = Counter(map(type, generated(10_000)))
    assert kinds == {Person: 200, Auction: 600, Bid: 9_200}


def test_times_are_those_of_the_rate_and_ids_are_consecutive() -> None:
    events = list(generated(5_000, rate=400))
    assert [event.date_time for event in events] == [
        BEGIN_MS + n * 1_000 // 400 for n in range(5_000)
    ]
    for kind in (Person, Auction):
        ids = [event.id for event in events if isinstance(event, kind)]
        assert ids == list(range(1_000, 1_000 + len(ids)))


def test_events_out_of_order_are_the_same_and_none_of_them_is_late() -> None:
    events = events_of(QUICK)
    times = [event.date_time for event in events]
    assert times != sorted(times)
    assert sorted(events, key=repr) == sorted(generated(**{**QUICK, "disorder": 0}), key=repr)
    seen = times[0]
    for time in times:
        assert time >= seen - QUICK["disorder"]
        seen = max(seen, time)
    assert outputs_of(QUICK)["late"] == []


def test_hot_auctions_bidders_and_sellers_and_channels_have_their_shares() -> None:
    events = list(generated(15_000))
    bids = [event for event in events if isinstance(event, Bid)]
    auctions = [event for event in events if isinstance(event, Auction)]

    def share(found: Iterator[bool], total: list[Any]) -> float:
        return sum(found) / len(total)

    hot = share((bid.auction % 100 == 0 for bid in bids), bids)
    assert hot == pytest.approx(0.5, abs=0.02)
    assert share((bid.bidder % 100 == 1 for bid in bids), bids) == pytest.approx(0.75, abs=0.02)
    assert share((a.seller % 100 == 0 for a in auctions), auctions) == pytest.approx(0.75, abs=0.04)
    known = share((bid.channel in ("Google", "Facebook", "Baidu", "Apple") for bid in bids), bids)
    assert known == pytest.approx(0.5, abs=0.02)
    assert {auction.category for auction in auctions} == {10, 11, 12, 13, 14}
    dear = share((bid.price >= 1_000_000 for bid in bids), bids)
    assert dear == pytest.approx(1 / 3, abs=0.02), "two of six powers of ten"
    assert all(100 <= bid.price <= 100_000_000 for bid in bids)


def test_an_auction_is_open_on_average_until_a_hundred_others_are_made() -> None:
    auctions = [event for event in generated(15_000) if isinstance(event, Auction)]
    open_ms = [auction.expires - auction.date_time for auction in auctions]
    assert min(open_ms) >= 1
    expected = 100 * 50 / 3 / 10  # ten events a millisecond
    assert sum(open_ms) / len(open_ms) == pytest.approx(expected, rel=0.1)


# --- The queries ------------------------------------------------------------------------------------


def test_every_query_has_an_oracle() -> None:
    assert list(QUERIES) == [f"q{number}" for number in range(23)]
    assert sorted([*oracle.ROWS, *oracle.TABLES]) == sorted(QUERIES)


@pytest.mark.parametrize("given", [QUICK, SLOW], ids=["quick, out of order", "slow"])
@pytest.mark.parametrize("query", oracle.ROWS)
def test_the_rows_are_those_of_the_sql(query: str, given: dict[str, Any]) -> None:
    expected = oracle.ROWS[query](oracle.Database(in_order(events_of(given))))
    assert expected or given is SLOW, "an empty result would show nothing"
    assert Counter(outputs_of(given)[query]) == Counter(expected)


@pytest.mark.parametrize("given", [QUICK, SLOW], ids=["quick, out of order", "slow"])
@pytest.mark.parametrize("query", oracle.TABLES)
def test_the_updated_table_is_that_of_the_sql_now_and_before(
    query: str, given: dict[str, Any]
) -> None:
    events, outputs = in_order(events_of(given)), outputs_of(given)[query]
    assert table(outputs, query) == oracle.TABLES[query](oracle.Database(events))
    # Whatever comes later, the first outputs are those of the first events.
    before = ef.run(flow_of_all([query]), events=front(events[:400]))[query]
    assert outputs[: len(before)] == before
    assert table(before, query) == oracle.TABLES[query](oracle.Database(events[:400]))


def test_of_equal_leaders_all_are_told() -> None:
    prices = {1: 500, 2: 900, 3: 900, 4: 700}
    bids = [
        Bid(auction, 7, price, "Apple", "https://x/a/b/c/", BEGIN_MS + auction, "")
        for auction, price in prices.items()
    ]
    outputs = ef.run(flow_of_all(["q5", "q7"]), events=front(bids))
    assert [row[0] for row in outputs["q7"]] == [2, 3]
    assert outputs["q5"] == [(auction, 1) for auction in prices] * 5, "five windows have all"
    database = oracle.Database(bids)
    assert Counter(outputs["q5"]) == Counter(oracle.q5(database))
    assert Counter(outputs["q7"]) == Counter(oracle.q7(database))


def test_each_bid_gives_a_row_of_its_statistics() -> None:
    bids = sum(isinstance(event, Bid) for event in events_of(QUICK))
    for query in ("q15", "q16", "q17"):
        assert len(outputs_of(QUICK)[query]) == bids


def test_the_order_of_arrival_makes_no_difference() -> None:
    given = {**FEW, "disorder": 2_000}
    in_time = ef.run(flow_of_all(), events=front(in_order(events_of(given))))
    assert outputs_of(given) == in_time


# --- The other runners ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(1, 20 if SOAK else 3))
def test_the_simulation_agrees_with_the_reference(seed: int) -> None:
    given = {**FEW, "disorder": seed % 2 * 2_000}
    result = ef.simulate(flow_of_all(), workers=3, seed=seed, events=front_of(given))
    assert result.outputs == outputs_of(given)


@pytest.mark.parametrize("disorder", [0, 2_000])
def test_live_agrees_with_the_reference(spark: SparkSession, tmp_path: Path, disorder: int) -> None:
    given = {**FEW, "disorder": disorder}
    kept = {name: ef.sinks.Memory() for name in (*QUERIES, "late")}
    query = (
        flow_of_all()
        .live(spark)
        .read(events=front_of(given))
        .write(**kept)
        .option("workers", 2)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        assert query.awaitTermination(SECONDS), query.status
    finally:
        query.stop()
    assert {name: sink.payloads(0) for name, sink in kept.items()} == outputs_of(given)


def test_batch_agrees_with_the_reference(spark: SparkSession) -> None:
    given = {**FEW, "disorder": 2_000}
    rows = positioned(spark, front_of(given), Random(5))
    found = flow_of_all(IN_BATCH).batch(spark, raw=True, ordered=False, partitions=2, events=rows)
    for query in IN_BATCH:
        got = sorted(map(tuple, found[query].select("_time", "_path", "_payload").collect()))
        assert [decode(bytes(payload)) for *_, payload in got] == outputs_of(given)[query], query


# --- The script -------------------------------------------------------------------------------------


def test_the_script_prints_what_its_docstring_shows() -> None:
    told = nexmark.__main__.__doc__
    assert told is not None
    _, _, shown = told.partition("    $ python examples/nexmark ")
    arguments, _, wanted = shown.partition("\n")
    script = subprocess.run(
        [sys.executable, str(EXAMPLES / "nexmark"), *arguments.split()],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (script.stdout, script.stderr) == (dedent(wanted), "")
