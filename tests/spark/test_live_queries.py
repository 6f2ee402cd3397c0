"""The state of a live query, read while it runs: always a consistent cut, whatever dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import sinks
from emberflow.fronts import Batch, Element
from emberflow.runners.live.query import LiveQuery
from emberflow.runners.live.web import application as endpoint_module
from tests.effort import SECONDS, SOAK

ACCOUNTS = 60
BEGIN = 100
#: An object that cannot be pickled.
LOCK = threading.Lock()


def bank() -> ef.Flow:
    """Transfers between accounts with equal initial balances: the sum never changes."""
    flow = ef.Flow("bank")
    accounts = flow.state("accounts", default=BEGIN)
    last: ef.State[tuple[int, ...]] = flow.state("last", default=())
    with flow.front("transfers").transaction(name="transfer") as tx:
        sides = tx.flat_map(lambda t: [(t[0], -t[2]), (t[1], t[2])]).key_by(lambda side: side[0])
        sides.update(accounts, lambda b, side: b + side[1], check=lambda b: b >= 0)
        sides.update(last, lambda few, side: (*few, side[1])[-10:])
    tx.committed.key_by(lambda t: t[0]).count(name="counts").sink("counts")
    tx.rejected.map(lambda r: r.check).sink("refused")
    return flow


def drawn(partition: int, count: int) -> list[tuple[int, int, int]]:
    draw = Random(partition)
    return [
        (draw.randrange(ACCOUNTS), draw.randrange(ACCOUNTS), draw.randint(1, 60))
        for _ in range(count)
    ]


class Transfers:
    """Two partitions of this many transfers, and then silence: the query stays up."""

    partitions = 2
    increasing = True

    def __init__(self, count: int, rate: float | None = None, *, ends: bool = False) -> None:
        self.count = count
        self.rate = rate
        self.ends = ends

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        raise AssertionError("it has batches")

    def read_batches(self, partition: int, position: Any) -> Iterator[Element | Batch | None]:
        transfers = drawn(partition, self.count)
        begin, first = time.monotonic(), 0 if position is None else position + 1
        for start in range(first, self.count, 20):
            while self.rate and (start - first) / self.rate > time.monotonic() - begin:
                time.sleep(0.002)
                yield None
            some = transfers[start : start + 20]
            numbers = range(start, start + len(some))
            yield Batch(numbers, some, numbers)
        while not self.ends:
            time.sleep(0.02)
            yield None


def started(
    spark: SparkSession, front: Transfers, *, workers: int = 2, **options: Any
) -> LiveQuery:
    flow = bank()
    builder = flow.live(spark).read(transfers=front)
    builder = builder.write(counts=sinks.Memory(), refused=sinks.Memory())
    for name, value in {"workers": workers, "credit": 100, **options}.items():
        builder = builder.option(name, value)
    return builder.start()


@pytest.fixture(scope="module")
def settled(spark: SparkSession) -> Iterator[LiveQuery]:
    """A query whose fronts have emitted everything."""
    query = started(spark, Transfers(600), historyKept=100, httpPort=0)
    try:
        await_time(query, 599)
        yield query
    finally:
        query.stop()


def until(condition: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds} s for {what}")
        time.sleep(0.02)


def await_time(query: LiveQuery, last: int) -> None:
    """Wait until the transfers up to this time are final."""
    query.state("accounts").get(0, as_of=last - 1, timeout=SECONDS)
    until(
        lambda: query.state("accounts").get(0, timeout=SECONDS).as_of >= (last, 0),
        "the last transfers",
    )


def states_up_to(last: ef.GlobalTime, count: int) -> dict[str, dict[Any, Any]]:
    """The states after one transfer at a time, in order, up to the given global time."""
    accounts = dict.fromkeys(range(ACCOUNTS), BEGIN)
    few: dict[int, tuple[int, ...]] = {}
    counts: dict[int, int] = {}
    own = [drawn(partition, count) for partition in range(2)]
    for number in range(count):
        for partition in range(2):
            if (number, partition) > last:
                return {"accounts": accounts, "last": few, "counts": counts}
            source, target, amount = own[partition][number]
            after = dict(accounts)
            ok = True
            for account, change in ((source, -amount), (target, amount)):
                after[account] += change
                ok = ok and after[account] >= 0
            if ok:
                accounts = after
                counts[source] = counts.get(source, 0) + 1
                for account, change in ((source, -amount), (target, amount)):
                    few[account] = (*few.get(account, ()), change)[-10:]
    return {"accounts": accounts, "last": few, "counts": counts}


def check(answer: ef.Answer, count: int) -> None:
    """Three states read at once: all values are as of one time, and equal the reference's."""
    expected = states_up_to(answer.as_of, count)
    assert answer["accounts"] == expected["accounts"]
    assert answer["last"] == expected["last"]
    assert answer["counts"] == expected["counts"]


ALL: dict[str, Any] = {"accounts": range(ACCOUNTS), "last": ef.Scan(), "counts": ef.Scan()}


# --- A query that has come to rest -----------------------------------------------------------------


def test_keys_ranges_and_predicates(settled: LiveQuery) -> None:
    state = settled.state("accounts")
    expected = states_up_to(ef.GlobalTime(599, 1), 600)["accounts"]
    answer = state.get(3, 1, "nobody")
    assert answer == {3: expected[3], 1: expected[1], "nobody": BEGIN}
    assert list(answer) == [3, 1, "nobody"]
    assert state.get(3, "nobody", default=False) == {3: expected[3]}
    assert state.get() == {}
    scanned = state.scan(10, 20)
    assert list(scanned.items()) == [(key, expected[key]) for key in range(10, 20)]
    rich = state.where(lambda key, value: value > 150 and key % 2 == 0, high=50)
    assert rich == {k: v for k, v in expected.items() if v > 150 and k % 2 == 0 and k < 50}
    assert list(state.scan()) == sorted(expected)
    assert state.scan("a", "b") == {}
    assert list(state.scan(7, limit=3)) == [7, 8, 9]


def test_several_states_and_a_reduce_at_once(settled: LiveQuery) -> None:
    check(settled.read(ALL), 600)
    assert settled.state("counts").get("nobody") == {}


def test_a_time_that_is_kept_and_one_that_is_not(settled: LiveQuery) -> None:
    for as_of in (550, (550, 0), (550, 1), 580):
        answer = settled.read(ALL, as_of=as_of)
        check(answer, 600)
        assert settled.read(ALL, as_of=answer.as_of) == answer
    assert settled.read(ALL, as_of=(550, 0)).as_of == (550, 0)
    with pytest.raises(ef.NotKeptError, match="from time 500 to time 599"):
        settled.read(ALL, as_of=100)
    with pytest.raises(ef.ReadTimeoutError, match="minimal time has not come to time 9999"):
        settled.read(ALL, as_of=9999, timeout=0.2)


def test_an_ordered_read_has_a_place_behind_all_that_was_taken_in(settled: LiveQuery) -> None:
    answer = settled.read(ALL, ordered=True)
    assert answer.as_of >= (599, 0)
    check(answer, 600)


def test_pages_are_as_of_one_moment(settled: LiveQuery) -> None:
    with settled.state("accounts").pages() as pages:
        rows = [row for page in pages for row in page]
        assert dict(rows) == states_up_to(pages.as_of, 600)["accounts"]
    some = settled.state("accounts").pages(where=lambda key, value: key < 5)
    assert sorted(key for page in some for key, _ in page) == list(range(5))


@pytest.mark.parametrize(
    ("ask", "kind", "message"),
    [
        (lambda q: q.state("purse"), ef.InputError, "no state 'purse'; there is 'accounts'"),
        (lambda q: q.state("accounts").get([1]), ef.InputError, "no state has such a key"),
        (lambda q: q.read({"accounts": [1]}, as_of=3, ordered=True), ef.InputError, "leave out"),
        (lambda q: q.read({"accounts": [1]}, as_of="now"), ef.InputError, "takes a time"),
        (
            lambda q: q.state("accounts").where(lambda key, value: 1 // 0),
            ef.ReadError,
            "ZeroDivisionError",
        ),
        (
            lambda q: q.state("accounts").where(lambda key, value: LOCK.locked()),
            ef.InputError,
            "cannot be sent to the workers",
        ),
    ],
)
def test_what_cannot_be_asked_is_told_and_nothing_else_happens(
    settled: LiveQuery, ask: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        ask(settled)
    assert settled.isActive
    check(settled.read(ALL), 600)


def test_arrival_has_no_times(spark: SparkSession) -> None:
    flow = ef.Flow("words")
    flow.front("words").key_by(lambda word: word).count(name="counts").sink("out")
    query = (
        flow.live(spark)
        .read(words=Silent())
        .write(out=sinks.Memory())
        .option("workers", 1)
        .option("ordering", "arrival")
        .option("guarantee", "at-least-once")
        .start()
    )
    try:
        with pytest.raises(ef.InputError, match="runs with ordering='arrival'"):
            query.state("counts")
    finally:
        query.stop()
    with pytest.raises(ef.InputError, match="leave out 'httpPort'"):
        (
            flow.live(spark)
            .read(words=Silent())
            .write(out=sinks.Memory())
            .option("ordering", "arrival")
            .option("guarantee", "at-least-once")
            .option("httpPort", 0)
            .start()
        )


class Silent:
    partitions = 1

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        while True:
            time.sleep(0.02)
            yield None


# --- While it runs ---------------------------------------------------------------------------------


def test_every_query_sees_the_sum_at_full_load(spark: SparkSession) -> None:
    count = 2_000
    query = started(spark, Transfers(count))
    try:
        moments = set()
        while True:
            answer = query.read(
                {"accounts": range(ACCOUNTS), "last": range(ACCOUNTS)}, timeout=SECONDS
            )
            assert sum(answer["accounts"].values()) == ACCOUNTS * BEGIN
            moments.add(answer.as_of)
            ordered = query.state("accounts").scan(ordered=True, timeout=SECONDS)
            assert sum(ordered.values()) == BEGIN * len(ordered)
            assert ordered.as_of >= answer.as_of
            if answer.as_of >= (count - 1, 0):
                break
        assert len(moments) > 3, "it was over before it was asked"
        check(query.read(ALL), count)
    finally:
        query.stop()
    with pytest.raises(ef.ReadError, match="is over"):
        query.state("accounts").get(1)


class Counting:
    """The numbers below a limit, again and again: element ``i`` has time ``i``."""

    partitions = 1
    increasing = True

    def __init__(self, keys: int) -> None:
        self.keys = keys

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        raise AssertionError("it has batches")

    def read_batches(self, partition: int, position: Any) -> Iterator[Element | Batch | None]:
        for first in range(0, 2**62, 50):
            times = range(first, first + 50)
            yield Batch(times, [number % self.keys for number in times], times)
            time.sleep(0.02 if first > self.keys else 0)


def test_a_scan_of_many_pages_is_as_of_one_moment_while_all_of_it_changes(
    spark: SparkSession,
) -> None:
    keys = 6_000
    flow = ef.Flow("numbers")
    counts = flow.front("numbers").key_by(lambda n: n).count(name="counts")
    counts.filter(lambda pair: pair[1] < 0).sink("none")
    query = (
        flow.live(spark)
        .read(numbers=Counting(keys))
        .write(none=sinks.Memory())
        .option("workers", 2)
        .option("credit", 2_000)
        .start()
    )
    try:
        state = query.state("counts")
        state.get(1, as_of=keys, timeout=SECONDS)
        for _ in range(3):
            with state.pages(timeout=SECONDS) as pages:
                rows = []
                for page in pages:
                    assert len(page) <= 1_000
                    rows += page
                    time.sleep(0.02)
            found = dict(rows)
            assert len(found) == len(rows) == keys
            # All elements below its time, and no others.
            assert sum(found.values()) == pages.as_of.time
            assert max(found.values()) - min(found.values()) <= 1
        assert list(state.scan(limit=5, timeout=SECONDS)) == [0, 1, 2, 3, 4]
        left_early = state.pages(timeout=SECONDS)
        next(iter(left_early))
        left_early.close()
        many = [state.pages(timeout=SECONDS) for _ in range(16)]
        with pytest.raises(ef.ReadError, match="16 scans are open already"):
            state.scan(timeout=SECONDS)
        for pages in many:
            pages.close()
        until(lambda: can_scan(query), "the scans to be closed")
    finally:
        query.stop()


def can_scan(query: LiveQuery) -> bool:
    try:
        return len(query.state("counts").scan(timeout=SECONDS)) > 0
    except ef.ReadError:
        return False


def test_queries_go_on_while_workers_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    """Each answer equals the reference at its time, and no answer is older than an earlier one."""
    count, kills = (1_600, 2) if SOAK else (800, 2)
    query = started(
        spark,
        Transfers(count, rate=160),
        checkpointLocation=str(tmp_path / "cuts"),
        checkpointInterval=200,
        historyKept=50,
    )
    answers: list[ef.Answer] = []
    problems: list[BaseException] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            try:
                answers.append(query.read(ALL, timeout=SECONDS))
                time.sleep(0.02)  # ten moments between two cuts are enough
            except BaseException as error:
                problems.append(error)
                return

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for kill in range(kills):
            until(lambda: bool(answers) and answers[-1].as_of[0] > 200 * (kill + 1), "answers")  # noqa: B023
            progress = query.lastProgress
            assert progress is not None
            os.kill(progress.pids[kill % 2], signal.SIGKILL)
            until(lambda: len(query.recoveries) > kill, "the loss to be noticed")  # noqa: B023
        until(lambda: answers[-1].as_of >= (count - 1, 0) or bool(problems), "the end")
    finally:
        ended.set()
        asking.join(SECONDS)
        query.stop()
    assert problems == []
    assert [answer.as_of for answer in answers] == sorted(answer.as_of for answer in answers)
    distinct = {answer.as_of: answer for answer in answers}
    assert len(distinct) > 20, (
        "how many a machine gives in this time differs; both kills lie amid them"
    )
    moments = sorted(distinct.values(), key=lambda answer: answer.as_of)
    for answer in Random(1).sample(moments, min(50, len(moments))):
        check(answer, count)


def test_state_is_there_after_a_restart_though_nothing_new_comes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Everything below the cut is final: a read need not wait for an element."""
    options = {"checkpointLocation": str(tmp_path / "cuts"), "checkpointInterval": 100}
    query = started(spark, Transfers(300), **options)
    await_time(query, 299)
    query.stop()
    query = started(spark, Transfers(300), **options)
    try:
        answer = query.read(ALL, timeout=SECONDS)
        assert answer.as_of >= (299, 0)
        check(answer, 300)
    finally:
        query.stop()


# --- Over HTTP -------------------------------------------------------------------------------------


def fetched(
    query: LiveQuery, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    assert query.endpoint is not None
    given = query.endpoint.headers if headers is None else headers
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(query.endpoint.url + path, data=data, headers=given)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_reads_over_http(settled: LiveQuery) -> None:
    expected = states_up_to(ef.GlobalTime(599, 1), 600)
    assert fetched(settled, "/states") == (
        200,
        {
            "states": [
                {"name": "accounts", "kind": "state", "default": BEGIN},
                {"name": "last", "kind": "state", "default": []},
                {"name": "counts", "kind": "reduce"},
            ]
        },
    )
    status, answer = fetched(settled, "/states/accounts?key=3&key=%221%22")
    assert status == 200
    assert answer["rows"] == [
        {"key": 3, "value": expected["accounts"][3]},
        {"key": "1", "value": BEGIN},
    ]
    assert fetched(settled, "/states/accounts?key=nobody&default=false")[1]["rows"] == []
    status, answer = fetched(settled, "/states/accounts?low=5&limit=2")
    assert [row["key"] for row in answer["rows"]] == [5, 6]
    assert answer["more"]
    status, answer = fetched(settled, "/states/accounts?low=58")
    assert [row["key"] for row in answer["rows"]] == [58, 59]
    assert not answer["more"]
    wanted = {"states": {"accounts": [3, 4], "last": {"low": 3, "high": 5}}, "as_of": [550, 1]}
    status, answer = fetched(settled, "/read", wanted)
    earlier = states_up_to(ef.GlobalTime(550, 1), 600)
    assert (status, answer["asOf"]) == (200, [550, 1])
    assert answer["states"] == {
        "accounts": [{"key": key, "value": earlier["accounts"][key]} for key in (3, 4)],
        "last": [{"key": key, "value": list(earlier["last"][key])} for key in (3, 4)],
    }
    assert fetched(settled, "/states/accounts?key=3&ordered=true")[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/states/purse?key=1", None, 404, "no state 'purse'"),
        ("/", None, 404, "There are GET /states"),
        ("/write", {}, 404, "no POST /write"),
        ("/read", b"{", 400, "no JSON"),
        ("/read", b"[" * 100_000, 400, "no JSON"),
        ("/read", [1], 400, "object 'states'"),
        ("/read", {"states": {"accounts": 3}}, 400, "takes a list of keys"),
        ("/read", {"states": {"accounts": [{"a": 1}]}}, 400, "a key is a text"),
        ("/read", {"states": {"purse": [1]}}, 404, "no state 'purse'"),
        ("/read", {"states": {}, "as_off": 3}, 400, "has no 'as_off'"),
        ("/read", {"states": {"accounts": [1]}, "as_of": 3}, 410, "not kept"),
        ("/read", {"states": {"accounts": [1]}, "timeout": -1}, 400, "number of seconds"),
        ("/read", b" " * 1_000_001, 413, "at most"),
        ("/states/accounts?key=1&low=3", None, 400, "not both"),
        ("/states/accounts?limit=many", None, 400, "'limit' is an int"),
        ("/states/accounts?key=1&default=perhaps", None, 400, "true or false"),
        ("/states/accounts?key=1&as_of=9999&timeout=0.1", None, 504, "has not come to"),
    ],
)
def test_what_http_refuses(
    settled: LiveQuery, path: str, body: Any, status: int, message: str
) -> None:
    found, answer = fetched(settled, path, body)
    assert (found, message in answer["error"]) == (status, True), answer


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic c2VzYW1l"},
        {"Authorization": "Bearer t\u00f6ken"},
    ],
)
def test_nothing_is_told_without_the_token(settled: LiveQuery, headers: dict[str, str]) -> None:
    for path, body in (("/states", None), ("/states/accounts?key=1", None), ("/read", b"{")):
        status, answer = fetched(settled, path, body, headers)
        assert status == 401
        assert "accounts" not in json.dumps(answer)
    assert settled.endpoint is not None
    status, _ = fetched(settled, "/states", None, {"Authorization": settled.endpoint.token})
    assert status == 401
    assert settled.endpoint.token not in repr(settled.endpoint)


def test_other_methods_are_refused(settled: LiveQuery) -> None:
    assert settled.endpoint is not None
    for method in ("PUT", "DELETE", "PATCH"):
        request = urllib.request.Request(
            settled.endpoint.url + "/states/accounts",
            method=method,
            headers=settled.endpoint.headers,
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=SECONDS)
        assert refused.value.code == 501
        refused.value.close()


def test_who_says_nothing_keeps_nobody_waiting(settled: LiveQuery) -> None:
    assert settled.endpoint is not None
    host, _, port = settled.endpoint.url.removeprefix("http://").partition(":")
    with contextlib.ExitStack() as silent:
        for _ in range(2 * endpoint_module.READS_MAX):
            silent.enter_context(socket.create_connection((host, int(port))))
        assert fetched(settled, "/states")[0] == 200


def test_a_port_that_is_taken(spark: SparkSession) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ef.InputError, match="cannot listen on"),
    ):
        started(spark, Transfers(1), httpPort=taken.getsockname()[1])
    with pytest.raises(ef.InputError, match="an int from 0 to 65,535"):
        started(spark, Transfers(1), httpPort=-1)


def test_the_endpoint_ends_with_the_query(spark: SparkSession) -> None:
    query = started(spark, Transfers(10), workers=1, httpPort=0)
    assert fetched(query, "/states")[0] == 200
    query.stop()
    with contextlib.suppress(urllib.error.URLError):  # the server stays while other queries use it
        assert fetched(query, "/states")[0] == 401
