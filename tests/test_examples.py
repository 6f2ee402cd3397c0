"""The examples print what their docstrings show, and their results match an independent oracle.

Each example runs as a script. Each flow is also compared with a few lines that compute the same
from the whole input at once, without Emberflow.
"""

from __future__ import annotations

import doctest
import importlib
import io
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import fmean
from textwrap import dedent
from typing import Any

import pytest
from rich.console import Console

import emberflow as ef
from tests.effort import SECONDS, SOAK

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "conftest")


def example(name: str) -> Any:
    """An example, imported as scripts import each other: from its own folder."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXAMPLES))


catalogue = example("catalogue")
click_sessions = example("click_sessions")
demo = example("demo")
grouping = example("grouping")
inverted_index = example("inverted_index")
moving_average = example("moving_average")
orders = example("orders")
word_count = example("word_count")


def promised(name: str) -> str:
    """The output that the docstring shows; '...' stands for what varies."""
    _, command, output = example(name).__doc__.partition(f"    $ python examples/{name}.py\n")
    assert command, f"the docstring of {name}.py shows no run"
    return dedent(output)


def ran(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        cwd=ROOT,
        # The output must not depend on the terminal's colours and width.
        env={
            **os.environ,
            "NO_COLOR": "1",
            "TERM": "dumb",
            "COLUMNS": "80",
            "PYTHONUTF8": "1",
            **environment,
        },
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
    )


@pytest.mark.parametrize(
    "name",
    [
        # With Spark's own tests, so that no two sessions fight for the cores.
        pytest.param(name, marks=pytest.mark.early) if name == "demo" else name
        for name in NAMES
        if SOAK or name != "bank_upgrade"  # it starts a JVM, as the demonstration does
    ],
)
def test_script_prints_what_its_docstring_shows(name: str) -> None:
    script = ran(name)
    assert (script.returncode, script.stderr) == (0, ""), script.stdout
    want = promised(name)
    if not doctest.OutputChecker().check_output(want, script.stdout, doctest.ELLIPSIS):
        assert script.stdout == want  # fails, and shows the difference
    assert max(map(len, script.stdout.splitlines())) <= 80
    assert "\x1b" not in script.stdout


def test_every_example_has_a_flow() -> None:
    for name in NAMES:
        assert isinstance(example(name).flow, ef.Flow), name


# Word count


def test_word_count_is_the_figure_of_the_paper() -> None:
    outputs = ef.run(word_count.flow, lines=["dog", "dog"])
    assert [tuple(map(str, entries)) for entries in outputs["tuples"]] == [
        ("m[dog,1]",),
        ("m[dog,1]", "a[dog,1]"),
        ("a[dog,1]", "m[dog,1]"),
        ("m[dog,1]", "a[dog,2]"),
    ]
    assert [list(map(str, word_count.combined(entries))) for entries in outputs["tuples"]] == [
        ["a[dog,1]"],
        [],
        ["a[dog,2]"],
        [],
    ]


def test_word_count_by_hand_and_by_reduce_and_by_counter() -> None:
    draw = random.Random(5)
    lines = [" ".join(draw.choices(["dog", "cat", "hen"], k=draw.randrange(5))) for _ in range(40)]
    outputs = ef.run(word_count.flow, lines=lines)
    counter: Counter[str] = Counter()
    expected = []
    for word in " ".join(lines).split():
        counter[word] += 1
        expected.append((word, counter[word]))
    assert outputs["with_reduce"] == outputs["by_hand"] == expected
    assert len(outputs["tuples"]) == 2 * len(expected)  # every mapped item, every accumulator


# Grouping


def test_grouping_gives_the_tuples_of_the_paper() -> None:
    assert ef.run(grouping.flow, numbers=range(1, 9))["tuples"] == [
        (1,),
        (2,),
        (1, 3),
        (2, 4),
        (1, 3, 5),
        (2, 4, 6),
        (3, 5, 7),
        (4, 6, 8),
    ]


def test_grouping_of_any_numbers() -> None:
    draw = random.Random(1)
    numbers = [draw.randrange(100) for _ in range(200)]
    expected = [
        tuple([n for n in numbers[: place + 1] if n % 2 == number % 2][-3:])
        for place, number in enumerate(numbers)
    ]
    assert ef.run(grouping.flow, numbers=numbers)["tuples"] == expected


# Moving average


def averages(readings: list[Any]) -> dict[str, list[Any]]:
    return ef.run(moving_average.flow, readings=[ef.At(r.minute, r) for r in readings])


def drawn_readings(seed: int) -> list[Any]:
    draw = random.Random(seed)
    return [
        moving_average.Reading(minute, draw.choice(["cellar", "kitchen"]), draw.randrange(10, 30))
        for minute in draw.sample(range(100), k=40)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_moving_averages_agree_with_those_of_the_sorted_list(seed: int) -> None:
    readings = drawn_readings(seed)
    outputs = averages(readings)
    in_order = sorted(readings)
    assert outputs["by_number"] == [
        last._replace(
            celsius=fmean([r.celsius for r in in_order[: n + 1] if r.sensor == last.sensor][-3:])
        )
        for n, last in enumerate(in_order)
    ]
    expected = {}
    for start in range(-10, 105, 5):
        for sensor in ("cellar", "kitchen"):
            held = [
                r.celsius for r in in_order if r.sensor == sensor and start <= r.minute < start + 10
            ]
            if held:
                expected[sensor, (start, start + 10)] = fmean(held)
    got = {(result.key, tuple(result.window)): result.value for result in outputs["by_time"]}
    assert got == pytest.approx(expected)
    assert len(outputs["by_time"]) == len(expected), "each window speaks once"
    ends = [result.window.end for result in outputs["by_time"]]
    assert ends == sorted(ends)


def test_moving_averages_do_not_depend_on_the_order_of_arrival() -> None:
    readings = moving_average.READINGS
    assert averages(readings) == averages(sorted(readings)) == averages(readings[::-1])


# Click sessions


def visits(clicks: list[Any]) -> list[Any]:
    elements = [ef.At(click.minute, click) for click in clicks]
    return ef.run(click_sessions.flow, clicks=elements)["visits"]


def sessions_by_scan(clicks: list[Any]) -> list[Any]:
    """The visits, computed from the sorted list, in the order in which they close."""
    found: dict[str, list[list[Any]]] = {}
    for click in sorted(clicks):
        of_user = found.setdefault(click.user, [])
        if of_user and click.minute - of_user[-1][-1].minute < click_sessions.GAP_MINUTES:
            of_user[-1].append(click)
        else:
            of_user.append([click])
    sessions = [session for of_user in found.values() for session in of_user]
    sessions.sort(key=lambda session: session[-1].minute)
    return [
        click_sessions.Visit(s[0].user, s[0].minute, s[-1].minute, tuple(c.page for c in s))
        for s in sessions
    ]


@pytest.mark.parametrize("seed", range(5))
def test_sessions_agree_with_a_scan_of_the_sorted_clicks(seed: int) -> None:
    draw = random.Random(seed)
    clicks = [
        click_sessions.Click(minute, draw.choice(["ada", "bob", "eve"]), draw.choice("xyz"))
        for minute in draw.sample(range(1000), k=60)
    ]
    assert visits(clicks) == sessions_by_scan(clicks)


def test_the_late_click_makes_two_sessions_one() -> None:
    *in_time, late = click_sessions.CLICKS
    assert late.minute < in_time[-1].minute
    of_ada = [visit for visit in visits(in_time) if visit.user == "ada"]
    assert [(visit.start, visit.end) for visit in of_ada] == [(5, 5), (40, 45), (90, 95)]
    of_ada = [visit for visit in visits(click_sessions.CLICKS) if visit.user == "ada"]
    assert [(visit.start, visit.end) for visit in of_ada] == [(5, 45), (90, 95)]


# Orders


def test_orders_agree_with_a_search_through_all_records() -> None:
    draw = random.Random(3)
    people, cities, products = ["ada", "bob", "eve"], ["Rome", "Oslo"], ["tea", "jam", "ham", "oil"]
    minutes = iter(sorted(draw.sample(range(10_000), k=400)))
    customers = [
        orders.Customer(next(minutes), draw.choice(people), draw.choice(cities)) for _ in range(2)
    ]
    placed: list[Any] = []
    payments: list[Any] = []
    for minute in minutes:
        if draw.random() < 0.1:
            customers.append(orders.Customer(minute, draw.choice(people), draw.choice(cities)))
            continue
        number = len(placed)
        pieces, price = draw.randint(1, 5), draw.randint(1, 9)
        placed.append(
            orders.Order(minute, number, draw.choice(people), draw.choice(products), pieces, price)
        )
        payments.append(orders.Payment(minute + draw.randint(0, 60), number))
    # Times within a front are unique: of two payments in one minute the first is kept.
    payments = list({payment.minute: payment for payment in reversed(payments)}.values())
    outputs = ef.run(
        orders.flow,
        customers=[ef.At(c.minute, c) for c in customers],
        orders=[ef.At(o.minute, o) for o in placed],
        payments=[ef.At(p.minute, p) for p in payments],
    )

    pairs = [(placed[p.order], p) for p in sorted(payments)]
    assert outputs["paid"] == [(o, p) for o, p in pairs if p.minute - o.minute <= 30]

    def city(order: Any) -> str:
        homes = [c.city for c in customers if c.name == order.customer and c.minute < order.minute]
        return homes[-1] if homes else "?"

    assert outputs["sales"] == [orders.Sale(o, city(o), o.pieces * o.price) for o in placed]

    totals: Counter[tuple[str, str]] = Counter()
    for (ranked_city, ranking), sale in zip(outputs["rankings"], outputs["sales"], strict=True):
        totals[sale.city, sale.order.product] += sale.euro
        here = [(p, total) for (c, p), total in totals.items() if c == sale.city]
        here.sort(key=lambda entry: (-entry[1], entry[0]))
        assert (ranked_city, ranking) == (sale.city, tuple(here[:3]))


# Inverted index


def changes_of(documents: list[Any]) -> list[Any]:
    return ef.run(inverted_index.flow, docs=documents)["changes"]


@pytest.mark.parametrize("seed", range(5))
def test_change_records_build_the_index_at_every_version(seed: int) -> None:
    documents = list(inverted_index.generated_documents(8, words_per_document=20, seed=seed))
    changes = changes_of(documents)
    place = {(document.id, document.version): n for n, document in enumerate(documents)}
    for n in range(len(documents)):
        so_far = [change for change in changes if place[change.document, change.version] <= n]
        assert inverted_index.applied(so_far) == inverted_index.built(documents[: n + 1])
    assert [place[c.document, c.version] for c in changes] == sorted(
        place[c.document, c.version] for c in changes
    )


def test_change_records_know_in_how_many_documents_a_word_is() -> None:
    documents = list(inverted_index.generated_documents(20, words_per_document=30, seed=2))
    holding: dict[str, set[str]] = {}
    for change in changes_of(documents):
        held = holding.setdefault(change.word, set())
        (held.add if change.after else held.discard)(change.document)
        assert change.documents == len(held)


def test_a_word_that_vanished_leaves_the_index() -> None:
    document = inverted_index.Document
    changes = changes_of([document("d", 1, "cat dog"), document("d", 2, "dog")])
    assert changes[-1] == inverted_index.Change("cat", "d", 2, before=1, after=0, documents=0)
    assert inverted_index.applied(changes) == {"dog": {"d": 1}}


def test_a_version_without_a_difference_changes_nothing() -> None:
    document = inverted_index.Document("d", 1, "cat dog")
    assert changes_of([document, document._replace(version=2)]) == changes_of([document])


def test_change_records_that_do_not_fit_are_refused() -> None:
    changes = changes_of(inverted_index.DOCUMENTS)
    with pytest.raises(ValueError, match="another count than the one before"):
        inverted_index.applied(changes[1:] + changes[:1] + changes[:1])


def test_generated_documents_are_those_of_their_seed() -> None:
    def generated(seed: int) -> list[Any]:
        return list(inverted_index.generated_documents(50, words_per_document=60, seed=seed))

    assert generated(1) == generated(1) != generated(2)
    last = {document.id: document.version for document in generated(1)}
    assert len(last) == 50
    assert set(last.values()) == set(range(1, inverted_index.VERSIONS_MAX + 1))
    counts = Counter(word for document in generated(1) for word in document.text.split())
    first, second, third = (counts[inverted_index.made_up_word(rank)] for rank in range(3))
    assert first / second == pytest.approx(2, rel=0.25)
    assert first / third == pytest.approx(3, rel=0.25)


# The demonstration


PROGRESS = {
    "elements": 4,
    "released": 9,
    "latencyMs": {"p50": 1.5, "p95": 2.0, "p99": 2.5},
    "replayRatio": 1.25,
}


class EndedQuery:
    """A query without Spark that shows one progress and ends."""

    def __init__(self) -> None:
        self.lastProgress = PROGRESS
        self._looks = 3

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
        self._looks -= 1
        return self._looks == 0


def drawn(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), width=80, force_terminal=terminal, highlight=False)


def test_demo_shows_a_bar_on_a_terminal() -> None:
    console = drawn(terminal=True)
    demo.watch(EndedQuery(), console)
    assert "p50 1.5 ms" in console.file.getvalue()
    assert f"4/{demo.VERSIONS}" in console.file.getvalue()


def test_demo_shows_what_a_query_has_done() -> None:
    documents = inverted_index.DOCUMENTS
    console = drawn(terminal=False)
    console.print(demo.summary(documents, changes_of(documents), PROGRESS))
    shown = " ".join(console.file.getvalue().split())
    assert "versions of documents 4 " in shown
    assert "latency, median 1.5 ms " in shown
    assert "replay ratio 1.25" in shown


def test_demo_fails_when_the_output_is_not_that_of_the_reference_runner() -> None:
    changes = changes_of(inverted_index.DOCUMENTS)
    console = drawn(terminal=False)
    assert demo.verdict(changes, changes, console) == 0
    assert demo.verdict(changes[:-1], changes, console) == 1
    assert demo.verdict([*changes[:2], *changes[3:], changes[2]], changes, console) == 1
    right, short, wrong = filter(None, re.split("(?=[✓✗])", console.file.getvalue().strip()))
    assert right.startswith("✓")
    assert short.startswith("✗")
    assert f"after {len(changes) - 1} that are the" in short
    assert "after 2 that are the" in wrong


def test_demo_says_what_to_do_without_java(tmp_path: Path) -> None:
    script = ran("demo", JAVA_HOME=str(tmp_path))
    assert script.returncode == 1
    assert "✗ Spark needs Java 17 or newer" in script.stdout
    assert "JAVA_HOME" in script.stdout
    assert script.stderr == ""


def test_catalogue_is_worth_what_its_latest_prices_are() -> None:
    draw = random.Random(7)
    table: dict[str, Any] = {}
    envelopes, stock = [], []
    for _ in range(60):
        name = draw.choice(["tea", "milk", "jam"])
        before = table.pop(name, None)
        if before is None or draw.random() < 0.8:
            table[name] = catalogue.Item(
                name, draw.choice(["drinks", "food"]), draw.randrange(1, 9)
            )
        after = table.get(name)
        op = "d" if after is None else "c" if before is None else "u"
        envelopes.append(catalogue.envelope(op, before, after))
        stock.append(catalogue.Stock(draw.choice(["tea", "milk", "jam"]), draw.randrange(99)))
    outputs = ef.run(
        catalogue.flow, catalogue=envelopes, stock=stock, shown=["tea"], orders=["jam", "tea"]
    )
    worth = Counter[str]()
    for item in table.values():
        worth[item.category] += item.price
    now = dict(outputs["worth"])
    assert {category: euro for category, euro in now.items() if euro is not None} == worth
    latest = {change.key: change.after for change in outputs["in stock"]}
    pieces = {each.item: each.pieces for each in stock}
    assert {key: row for key, row in latest.items() if row is not None} == {
        name: (item.price, pieces[name]) for name, item in table.items()
    }
    assert outputs["unseen"] == ["jam"]
