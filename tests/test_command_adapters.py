"""Adapters of lakehouse tables and of Structured Streaming, as a command line gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import emberflow as ef
from emberflow import sinks
from emberflow.commands.adapters import given_fronts, given_sinks
from emberflow.errors import InputError
from emberflow.fronts import Structured
from tests.adapters.sinks_under_test import iceberg_config


def given_sink(place: str) -> Any:
    flow = ef.Flow("words")
    flow.front("words").sink("out")
    return given_sinks(flow.graph(), [f"out={place}"])["out"]


def test_a_delta_table_with_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sink = given_sink("delta:a/table?upsert=word,kind&evolve=true&commit_every=1 minute&name=index")
    assert isinstance(sink, sinks.Delta)
    assert (sink.upsert, sink.evolve, sink.name) == (["word", "kind"], True, "index")
    assert sink.commit_every == 60
    assert sink.place == str(tmp_path / "a" / "table")


def test_an_iceberg_table_with_its_catalog(tmp_path: Path) -> None:
    config = "&".join(f"catalog.{key}={value}" for key, value in iceberg_config(tmp_path).items())
    sink = given_sink(f"iceberg:shop.words?catalog=prod&commit_every=0.5&{config}")
    assert (sink.catalog, sink.commit_every, sink.upsert) == ("prod", 0.5, [])
    sink.check()
    assert (tmp_path / "catalog.db").exists()


def test_files_that_are_stored_now_and_then(tmp_path: Path) -> None:
    sink = given_sink(f"parquet:{tmp_path}/out?commit_every=2 s")
    assert (sink.folder, sink.format, sink.commit_every) == (tmp_path / "out", "parquet", 2)


def test_structured_streaming_in_and_out() -> None:
    flow = ef.Flow("words")
    flow.front("words").sink("out")
    (front,) = given_fronts(
        flow.graph(), ["words=structured:word?time=at&unit=us&disorder=5 seconds"]
    ).values()
    assert isinstance(front, Structured)
    assert (front.unit, front.arrival) == ("us", False)
    assert isinstance(given_sink("structured:word string, n long"), sinks.Structured)
    assert isinstance(given_sink("structured"), sinks.Structured)


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        ("delta:", "which folder"),
        ("delta:table?evolve=maybe", "evolve is true or false"),
        ("delta:table?commit_every=soon", "sink 'out': commit_every takes seconds"),
        ("iceberg:", "write iceberg:NAMESPACE.TABLE"),
        ("iceberg:shop.words?upset=word", "It has the options catalog, upsert, evolve"),
        ("iceberg:words", "takes 'namespace.table', got 'words'"),
    ],
)
def test_what_is_wrong_is_said(place: str, complaint: str) -> None:
    with pytest.raises(InputError) as raised:
        given_sink(place)
    assert complaint in str(raised.value)
