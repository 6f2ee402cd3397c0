"""The page of a live query in a real browser: it loads, moves, survives a recovery, and says what is wrong.

One query and one browser serve all tests, which run in the order of the file: the last of them ends the
query's server.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.commands.views.stored import StoredQuery
from emberflow.runners.live.query import LiveQuery
from emberflow.runners.live.web.server import close_all, opened, released, show
from tests.effort import SECONDS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, LocatorAssertions, Page
    from pyspark.sql import SparkSession

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium: scripts/ensure-chromium installs Debian's"
)
MS = SECONDS * 1_000


def shop() -> ef.Flow:
    flow = ef.Flow("shop")
    orders = flow.front("orders").map(lambda n: (n % 7, 1 // (n % 1_000)), name="parse")
    counts = orders.key_by(lambda order: order[0]).count(name="orders by customer")
    counts.sink("counts")
    return flow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page") / "checkpoint"


@pytest.fixture(scope="module")
def query(spark: SparkSession, checkpoint: Path) -> Iterator[LiveQuery]:
    query = (
        shop()
        .live(spark)
        .read(orders=fronts.Iterable(range(10_000_000), rate=1_000))
        .write(
            counts=sinks.Callback(lambda bundle: None), errors=sinks.Callback(lambda bundle: None)
        )
        .option("onError", "divert")
        .option("checkpointLocation", checkpoint)
        .option("uiPort", 0)
        .queryName("shop in a browser")
        .start()
    )
    yield query
    query.stop()
    close_all()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(browser: Browser, query: LiveQuery) -> Iterator[Page]:
    """A page that has come in, and has not had an error of its own."""
    page = entered(browser, query)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    assert problems == []
    page.close()


def entered(browser: Browser, query: LiveQuery, **look: Any) -> Page:
    assert query.ui is not None
    page = browser.new_context(**look).new_page()
    page.set_default_timeout(MS)
    page.goto(query.ui)
    page.wait_for_selector("text=Is it well?")
    return page


def ask(page: Page, question: str) -> None:
    page.get_by_role("tab", name=question).click()


def text_of(page: Page, selector: str) -> str:
    return page.locator(selector).first.inner_text()


def seen(locator: Locator) -> LocatorAssertions:
    """What is to become true of an element. (The page's policy forbids to wait by a script.)"""
    from playwright.sync_api import expect

    expect.set_options(timeout=MS)
    return expect(locator)


def wait_for_change(page: Page, selector: str) -> None:
    seen(page.locator(selector).first).not_to_have_text(text_of(page, selector))


def test_it_loads_and_moves(page: Page) -> None:
    seen(page.locator("#state")).to_have_text("Running")
    seen(page.locator("#figure-elements")).to_have_text(re.compile("/s$"))
    wait_for_change(page, ".figure .detail")
    assert "/enter" not in page.url
    assert page.locator("canvas").count() == 6
    assert "Running for" in text_of(page, ".verdict")


def test_it_shows_where_it_is_slow(page: Page) -> None:
    ask(page, "Where is it slow?")
    step = page.locator('[data-step="orders by customer"]')
    step.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".detail-of-step h2 >> text=orders by customer")
    assert "test_page_in_browser.py" in text_of(page, ".detail-of-step .where")
    seen(page.locator('[data-step="parse"]')).to_contain_text(re.compile(r"\d/s · "))
    assert page.locator(".graph .step").count() == 4
    assert "orders" in text_of(page, "table >> nth=1")


def test_it_reads_states_and_shows_what_was_put_aside(page: Page) -> None:
    ask(page, "What is in it?")
    page.get_by_label("State").select_option("orders by customer")
    page.get_by_role("button", name="Read").click()
    page.wait_for_selector(".answer td")
    assert page.locator(".answer tbody tr").count() == 7
    page.get_by_label("Key", exact=True).fill("3")
    page.get_by_role("button", name="Read").click()
    seen(page.locator(".answer tbody tr")).to_have_count(1)
    assert "state 'orders by customer'" in text_of(page, "#in-sql")
    page.wait_for_selector("td >> text=ZeroDivisionError")


def test_the_keyboard_goes_from_one_question_to_the_next(page: Page) -> None:
    page.get_by_role("tab", name="What is in it?").focus()
    page.keyboard.press("ArrowRight")
    seen(page.get_by_role("tab", selected=True)).to_have_text("What happened?")
    assert page.evaluate("document.activeElement.innerText") == "What happened?"
    page.wait_for_selector(".timeline .cut")


def test_it_fits_a_phone_in_light_and_dark(page: Page) -> None:
    before = page.viewport_size
    assert before is not None
    page.set_viewport_size({"width": 390, "height": 844})
    for question in ("Is it well?", "Where is it slow?", "What is in it?", "What happened?"):
        ask(page, question)
        wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], f"{question} is wider than the screen"
    for scheme, is_dark in (("light", False), ("dark", True)):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        shown = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", shown))) < 100) == is_dark
    page.set_viewport_size(before)


def test_an_address_that_was_used_or_is_wrong_opens_nothing(
    browser: Browser, query: LiveQuery
) -> None:
    from playwright.sync_api import Error

    assert query.endpoint is not None
    used = query.ui
    assert used is not None
    stranger = browser.new_context().new_page()
    stranger.goto(used)
    with suppress(Error):  # the page may go somewhere by itself just now
        stranger.goto("about:blank")
    stranger.goto("about:blank")  # it would, once it may see nothing
    stranger.context.clear_cookies()
    for address in (used, f"{query.endpoint.url}/enter?token=wrong", query.endpoint.url):
        stranger.goto(address)
        assert "does not open the page" in stranger.inner_text("h1")
    assert stranger.context.cookies() == []
    stranger.context.close()


def test_it_survives_a_recovery_of_the_query(page: Page, query: LiveQuery) -> None:
    ask(page, "Is it well?")
    progress = query.lastProgress
    assert progress is not None
    os.kill(progress["pids"][1], signal.SIGKILL)
    page.wait_for_selector(".verdict >> text=recovered once")
    seen(page.locator("#state")).to_have_text("Running")
    wait_for_change(page, ".figure .detail")
    ask(page, "What happened?")
    page.wait_for_selector("td >> text=The life was lost")
    assert not page.locator("#trouble").is_visible()


def test_a_checkpoint_shows_the_same_page(
    browser: Browser, query: LiveQuery, checkpoint: Path
) -> None:
    stored = StoredQuery(str(checkpoint))
    (first, second) = (stored.message(since) for since in ({}, {"is_told": True}))
    assert {step["name"] for step in first["shape"]["steps"]} == {
        step.name for step in query._overview.shape().steps.values()
    } - {"errors"}
    assert "shape" not in second
    lives = [event["life"] for event in first["events"] if event["kind"] == "begun"]
    # One was killed. On a machine that has much other work another one may have been given up.
    assert lives == list(range(1, len(lives) + 1)), first["events"]
    assert len(lives) >= 2
    answer = stored.reads.read(
        {"orders by customer": [3]}, default=False, as_of=None, ordered=False, timeout=None
    )
    assert answer["orders by customer"][3]
    show(stored)
    server = opened("127.0.0.1", 0, "")
    page = browser.new_context().new_page()
    page.goto(server.entrance())
    page.wait_for_selector("select#queries")
    page.locator("#queries").select_option("checkpoint")
    page.wait_for_selector(".verdict >> text=what you see is its checkpoint")
    ask(page, "What happened?")
    page.wait_for_selector("td >> text=from cut")
    page.context.close()
    released(server)


def test_it_says_so_when_the_driver_is_dead(page: Page) -> None:
    assert not page.locator("#trouble").is_visible()
    close_all()
    page.wait_for_selector("#trouble >> text=The driver does not answer")
    assert text_of(page, "#state") == "No answer"
