"""Transactions live on Spark while workers are killed: isolation, and money.

Two things are shown without the reference. A history of list-append transactions, recorded from the
final content of sinks, has no cycle of dependencies and follows the order of global times. And no
observer ever sees a sum of balances other than the initial one: not at the end, not in the outputs
and not in any cut, while the bank runs at full speed and workers are killed again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.guarantees.isolation import find_anomalies, find_disorder
from emberflow.runners.live.query import LiveQuery
from tests.effort import FAULTS_ROUND, SOAK
from tests.faults.test_kills import SECONDS, kill_workers, killed_worker, until
from tests.isolation.appending import appending_flow, drawn_work, recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


@pytest.mark.skipif(not SOAK, reason="`make soak` has it; every run kills while money moves")
def test_a_history_under_kills_is_serializable(spark: SparkSession, tmp_path: Path) -> None:
    """Complete, too: each transaction is told once, as committed with all that it did, or rejected."""
    dice = Random(f"history {FAULTS_ROUND}")
    keys, more_keys = 20, 2
    kills, count = (3, 900) if SOAK else (2, 300)
    elements = drawn_work(dice, count=count, keys=keys, more_keys=more_keys, looks=10)
    flow = appending_flow(keys, more_keys)
    query = (
        flow.live(spark)
        .read(
            left=fronts.Iterable(elements["left"], rate=count / 11),
            right=fronts.Iterable(elements["right"], rate=count / 11),
            looks=fronts.Iterable(elements["looks"]),
        )
        .write(**{name: sinks.Files(tmp_path / name) for name in flow.graph().sinks})
        .option("workers", 2)
        .option("checkpointLocation", tmp_path / "checkpoint")
        .option("checkpointInterval", 150)
        .start()
    )
    try:
        kill_workers(query, dice, kills)
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    outputs = {name: sinks.read_files(tmp_path / name) for name in flow.graph().sinks}
    history = recorded(elements, outputs)
    assert history.incomplete == []
    assert find_anomalies(history.transactions, final=history.final) == []
    assert find_disorder(history.transactions, final=history.final) == []
    assert {check for _, check, _ in outputs["rejected"]} == {"fits", "adds up"}


# --- Money -----------------------------------------------------------------------------------------

ACCOUNTS = 400
OPENING = 100
SUM = ACCOUNTS * OPENING


def transfers(first: int) -> Iterator[ef.At[Any]]:
    """Every second number, without end and always the same: source, target, amount, number."""
    for number in count(first, 2):
        dice = Random(number)
        source, target = dice.randrange(ACCOUNTS), dice.randrange(ACCOUNTS)
        yield ef.At(number, (source, target, dice.randint(0, 80), number))


def bank() -> ef.Flow:
    """Transfers among few accounts, also to oneself; one that would overdraw an account is refused."""
    flow = ef.Flow("bank under fire")
    accounts = flow.state("accounts", default=OPENING)

    def not_negative(balance: int) -> bool:
        return balance >= 0

    with ef.merge(flow.front("east"), flow.front("west")).transaction() as tx:
        taken = tx.key_by(lambda t: t[0]).update(
            accounts, lambda balance, t: balance - t[2], check=not_negative
        )
        given = tx.key_by(lambda t: t[1]).update(accounts, lambda balance, t: balance + t[2])
        after = [
            tx.output(side.map(lambda pair, who=who: [pair[0][who], pair[1]]))
            for who, side in enumerate((taken, given))
        ]
    tx.committed.map(list).sink("done")
    tx.rejected.map(lambda rejected: list(rejected.element)).sink("refused")
    ef.merge(*after).sink("balances")
    return flow


def total(balances: dict[int, int]) -> int:
    """The sum of all accounts; an untouched account holds its initial balance."""
    return sum(balances.get(account, OPENING) for account in range(ACCOUNTS))


#: Ways to look at the balances of a running query; None if there is nothing to see yet. The
#: balances of every answer must have the same sum, whatever was killed.
Observer = Callable[[LiveQuery, Path], dict[int, int] | None]


def by_the_newest_cut(query: LiveQuery, location: Path) -> dict[int, int] | None:
    cuts = CheckpointStore(location).cuts()
    return balances_of(location, cuts[-1]) if cuts else None


OBSERVERS: list[Observer] = [by_the_newest_cut]


def balances_of(location: Path, cut: Any) -> dict[int, int]:
    rows = CheckpointStore(location).rows(cut)
    return {key: balance for operation, _, key, _, balance in rows if operation == "accounts"}


def observed(query: LiveQuery, location: Path) -> Iterator[tuple[str, dict[int, int]]]:
    for observer in OBSERVERS:
        balances = observer(query, location)
        if balances is not None:
            yield observer.__name__, balances


def test_money_is_neither_made_nor_lost(spark: SparkSession, tmp_path: Path) -> None:
    dice = Random(f"money {FAULTS_ROUND}")
    location = tmp_path / "checkpoint"
    flow = bank()
    query = (
        flow.live(spark)
        .read(
            east=fronts.Iterable(lambda: transfers(0)), west=fronts.Iterable(lambda: transfers(1))
        )
        .write(**{name: sinks.Files(tmp_path / name) for name in flow.graph().sinks})
        .option("workers", 2)
        .option("checkpointLocation", location)
        .option("credit", 1_000)  # few, because all of it must be processed after the stop
        .option("checkpointInterval", 100)
        .option("checkpointsKept", 10_000)
        .start()
    )
    looks = 0

    def recovered(lives: int) -> bool:
        nonlocal looks
        for name, balances in observed(query, location):
            assert total(balances) == SUM, name
            looks += 1
        return len(query.recoveries) >= lives

    try:
        for lives in range(1, 4 if SOAK else 3):
            while not killed_worker(query, dice):
                assert query.isActive, query.exception()
            until(partial(recovered, lives), "the loss of a worker to be noticed", 120)
        seen = len(CheckpointStore(location).cuts())
        until(lambda: len(CheckpointStore(location).cuts()) > seen + 2, "cuts of the last life")
    finally:
        query.stop()
    failure = query.exception()  # a busy machine may not finish all elements in time
    assert failure is None or "did not drain" in str(failure), failure
    assert looks
    # In every cut of every life: no transfer is half applied.
    for cut in CheckpointStore(location).cuts():
        balances = balances_of(location, cut)
        assert total(balances) == SUM, cut
        assert min(balances.values(), default=0) >= 0, cut
    # In the outputs: each transfer appears once, and the committed ones, applied in order, give the
    # reported balances.
    done, refused, told = (
        sinks.read_files(tmp_path / name) for name in ("done", "refused", "balances")
    )
    numbers = sorted(transfer[3] for transfer in done + refused)
    for side in (0, 1):
        own = [number for number in numbers if number % 2 == side]
        assert own == list(range(side, 2 * len(own), 2))
        assert own
    assert refused
    accounts = dict.fromkeys(range(ACCOUNTS), OPENING)
    sides = []
    for source, target, amount, _ in done:
        accounts[source] -= amount
        sides.append([source, accounts[source]])
        assert accounts[source] >= 0
        accounts[target] += amount
        sides.append([target, accounts[target]])
    assert sides == told
    assert sum(accounts.values()) == SUM
