"""Versions of a flow are verified as a flow is: every run goes through all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import emberflow as ef
from emberflow import cli

WORDS = ["a", "A", "b", "A", "B", "a"]


def words(*, shown: Callable[[Any], Any] = tuple) -> ef.Flow:
    flow = ef.Flow("words")
    flow.front("words").key_by(lambda w: w.lower()).count(name="counts").map(shown).sink("counts")
    return flow


def migrated(function: Callable[[str, int], int]) -> dict[str, Any]:
    return {"counts": ef.Migrate("counts", function)}


def test_pure_versions_pass_and_migrations_are_checked_too() -> None:
    versions = ef.Versions(words(), (3, words(), migrated(lambda word, count: count + len(word))))
    found = ef.verify(versions, words=WORDS, seeds=8)
    assert str(found).startswith("2 versions of flow 'words' are deterministic as far as tried")
    # Keys, and tuples of counts, for each word; and the migration for the two words below 3.
    assert (found.versions, found.calls) == (2, 6 + 6 + 2)


def test_a_function_of_a_later_version_is_named_with_its_version() -> None:
    versions = ef.Versions(words(), (3, words(shown=lambda count: (count, time.perf_counter_ns()))))
    with pytest.raises(ef.NondeterminismError) as raised:
        ef.verify(versions, words=WORDS, seeds=4)
    assert raised.value.cause == "reads a clock"
    assert raised.value.step.endswith("from 3 on")
    # An element of the first version does not show it; times stay as they are when others are left out.
    assert raised.value.elements == {"words": [ef.At(5, "a")]}


def test_a_migration_that_keeps_state_is_named() -> None:
    seen: list[str] = []

    def numbered(word: str, count: int) -> int:
        seen.append(word)
        return count + len(seen)

    with pytest.raises(ef.NondeterminismError) as raised:
        ef.verify(ef.Versions(words(), (3, words(), migrated(numbered))), words=WORDS, seeds=4)
    assert raised.value.cause == "keeps state between calls"
    assert raised.value.function.startswith(
        "migrate=test_a_migration_that_keeps_state_is_named.numbered"
    )
    assert raised.value.step == "migration to 'counts', from 3 on"


def test_elements_that_no_version_takes_are_an_error() -> None:
    more = ef.Flow("words")
    ef.merge(more.front("words"), more.front("more")).key_by(str).count(name="counts").sink(
        "counts"
    )
    with pytest.raises(ef.InputError, match="no such front"):
        ef.verify(ef.Versions(words(), (3, more)), words=WORDS, more=WORDS, seeds=1)
    with pytest.raises(ef.InputError, match="no version of flow 'words' has a front 'others'"):
        ef.verify(ef.Versions(words(), (3, more)), words=WORDS, others=WORDS, seeds=1)


def test_the_command_takes_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "upgraded.py").write_text(
        """
import time
import emberflow as ef

def words(shown):
    flow = ef.Flow("words")
    flow.front("words").key_by(str).count(name="counts").map(shown).sink("counts")
    return flow

def stamped(count):
    return count, time.perf_counter_ns()

versions = ef.Versions(words(tuple), (3, words(stamped)))
elements = {"words": ["a", "A", "b", "A", "B", "a"]}
"""
    )
    monkeypatch.chdir(tmp_path)
    target = ["verify", "upgraded.py:versions", "--elements", "upgraded.py", "--seeds", "2"]
    result = CliRunner().invoke(cli.app, target)
    assert result.exit_code != 0
    assert "stamped" in str(result.exception)
    assert "from 3 on" in str(result.exception)
