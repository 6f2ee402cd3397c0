"""A front reports only what a restart would give again."""

from __future__ import annotations

import time
from pathlib import Path

from emberflow.checkpoint.logs.front_log import FrontLogWriter
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL
from emberflow.runners.live.worker.journal import Journal

FRONT = 3


def journal(folder: Path, incarnation: int = 1) -> Journal:
    return Journal(FrontLogWriter(folder, "words", 0, incarnation), "words 0", FRONT)


def until_reportable(
    log: Journal, promise: tuple[int, int], own: tuple[int, int] = BEFORE_ALL
) -> None:
    deadline = time.monotonic() + 30
    while log.reportable(promise, own) != promise:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_an_element_is_reported_only_when_it_is_durable(tmp_path: Path) -> None:
    log = journal(tmp_path)
    assert log.reportable((5, FRONT), BEFORE_ALL) == BEFORE_ALL
    log.note([0, 1], [10, 12], None)
    # nothing is synced: the thread has not started
    assert log.reportable((13, FRONT), (13, FRONT)) == (10, FRONT)
    log.start()
    until_reportable(log, (13, FRONT), (13, FRONT))
    log.close(5)


def test_what_is_reserved_is_no_leave_to_report_beyond_an_element(tmp_path: Path) -> None:
    log = journal(tmp_path)
    log.reserve(100)
    log.start()
    until_reportable(log, (1_000, FRONT))  # a second ahead
    log.close(5)
    # The thread has ended: what is noted now never becomes durable.
    later = journal(tmp_path, 2)
    later.note([0], [2_000], None)
    assert later.reportable((2_001, FRONT), (2_001, FRONT)) == (2_000, FRONT)
    assert later.reportable(AFTER_ALL, AFTER_ALL) == (2_000, FRONT)


def test_the_next_life_begins_behind_what_may_have_been_promised(tmp_path: Path) -> None:
    log = journal(tmp_path)
    log.note(["a", "b"], [10, 12], None)
    log.reserve(100)
    log.start()
    until_reportable(log, (500, FRONT))
    log.close(5)
    following = journal(tmp_path, 2)
    assert following.floor(promises=False) == following.floor(promises=True) == 1_100
    assert list(following.given_before(None, (11, 0))) == [("b", 12)]
    assert list(following.given_before(None, (12, FRONT + 1))) == []
    assert list(following.given_before("a", (11, 0))) == [("b", 12)]
    assert list(following.given_before("b", (11, 0))) == []
    assert list(following.given_before("before all", (0, 0))) == [("a", 10), ("b", 12)]
    following.close(5)
