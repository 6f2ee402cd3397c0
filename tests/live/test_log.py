"""What is logged on workers reaches the driver's log, bounded, and holds nobody up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pytest

from emberflow.runners.live.driver import log as log_module
from emberflow.runners.live.driver.log import QueryLog
from emberflow.runners.live.wire import log_records
from emberflow.runners.live.wire.log_records import (
    CHARACTERS_MAX,
    RECORDS_AT_ONCE,
    Capture,
    Logged,
    LoggedBatch,
    captured,
    levels,
)
from tests.effort import SECONDS


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def kept() -> Iterator[Kept]:
    """What arrives at the loggers 'emberflow' and 'shop', at INFO."""
    handler = Kept()
    loggers = [logging.getLogger("emberflow"), logging.getLogger("shop")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def logged(message: str, level: int = logging.INFO) -> Logged:
    return Logged(level, "shop", message, 1_000.5, "/shop.py", 7)


# --- On a worker --------------------------------------------------------------------------------------


def test_a_worker_logs_at_the_levels_of_the_driver_and_forgets_them() -> None:
    shop, other = logging.getLogger("shop"), logging.getLogger("shop.other")
    with captured({"": logging.WARNING, "shop": logging.INFO}):
        logging.getLogger("elsewhere").info("not for anybody")
        shop.info("%d pieces", 3)
        other.warning("low")
        shop.debug("too fine")
        batch = log_records.capture.taken()
    shop.warning("after the task")
    assert batch is not None
    assert [(one.logger, one.message) for one in batch.records] == [
        ("shop", "3 pieces"),
        ("shop.other", "low"),
    ]
    assert batch.dropped == 0
    assert shop.level == logging.NOTSET
    assert log_records.capture.taken() is None
    assert levels()[""] == logging.getLogger().level


def test_a_function_that_logs_for_every_element_is_cut_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(log_records.time, "monotonic", lambda: clock[0])
    capture = Capture()
    record = logging.makeLogRecord({"name": "shop", "msg": "x" * 2 * CHARACTERS_MAX})
    for _ in range(10_000):
        capture.handle(record)
    batch = capture.taken()
    assert batch is not None
    assert len(batch.records) == RECORDS_AT_ONCE
    assert batch.dropped == 10_000 - RECORDS_AT_ONCE
    assert {len(one.message) for one in batch.records} == {CHARACTERS_MAX}
    clock[0] = 1.0
    for _ in range(10_000):
        capture.handle(record)
    batch = capture.taken()
    assert batch is not None
    assert len(batch.records) == log_records.RECORDS_A_SECOND


def test_what_nobody_takes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr(log_records.time, "monotonic", lambda: 100.0 * next(clock))
    capture = Capture()
    for _ in range(2_000):
        capture.handle(logging.makeLogRecord({"msg": "again"}))
    batch = capture.taken()
    assert batch is not None
    assert len(batch.records) == 2 * RECORDS_AT_ONCE
    assert batch.dropped == 2_000 - 2 * RECORDS_AT_ONCE


def test_a_record_that_cannot_be_formatted_is_told_and_harms_nobody() -> None:
    capture = Capture()
    assert capture.handle(logging.makeLogRecord({"msg": "%d", "args": ("three",)}))
    batch = capture.taken()
    assert batch is not None
    assert "cannot be formatted" in batch.records[0].message


def test_a_traceback_comes_along() -> None:
    capture = Capture()
    logger = logging.Logger("shop")
    logger.addHandler(capture)
    try:
        _ = 1 // 0
    except ZeroDivisionError:
        logger.exception("no")
    batch = capture.taken()
    assert batch is not None
    assert "ZeroDivisionError" in batch.records[0].message


def test_warnings_are_in_the_log_of_the_executor_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with captured({"": logging.INFO}):
        logging.getLogger("shop").info("as expected")
        logging.getLogger("shop").warning("low")
        batch = log_records.capture.taken()
    assert batch is not None
    assert [one.message for one in batch.records] == ["as expected", "low"]
    assert capsys.readouterr().err == "low\n"


# --- On the driver ------------------------------------------------------------------------------------


def test_records_say_query_life_and_worker(kept: Kept) -> None:
    log = QueryLog("count%ing")
    log.event(logging.WARNING, "lost", 2, "gone:\n  a worker %s", worker=1)
    log.relay(1, 2, LoggedBatch([logged("3 left"), logged("%s", logging.DEBUG)], 5))
    log.close(SECONDS)
    assert kept.messages == [
        "query count%ing, life 2, worker 1: gone:; a worker %s",
        "3 left",
        "query count%ing, life 2: worker 1 logged more than can be sent: 5 records are dropped",
    ]
    lost, left, _ = kept.records
    about = [(one.name, one.query, one.life, one.worker, one.event) for one in (lost, left)]  # type: ignore[attr-defined]
    assert about == [
        ("emberflow", "count%ing", 2, 1, "lost"),
        ("shop", "count%ing", 2, 1, "logged"),
    ]
    assert (left.created, left.pathname, left.lineno) == (1_000.5, "/shop.py", 7)


def test_a_handler_that_hangs_holds_nobody_up(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "WAITING_MAX", 10)
    go, begun = threading.Event(), threading.Event()

    def hang(record: logging.LogRecord) -> bool:
        begun.set()
        return go.wait(SECONDS)

    kept.addFilter(hang)
    log = QueryLog("counting")
    log.relay(0, 1, LoggedBatch([logged("first")], 0))
    assert begun.wait(SECONDS)
    log.relay(0, 1, LoggedBatch([logged(str(number)) for number in range(100)], 0))
    log.close(0)  # it returns
    go.set()
    deadline = time.monotonic() + SECONDS
    while len(kept.records) < 12 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert kept.messages[0] == "first"
    assert "query counting: 90 log records are dropped" in kept.messages
