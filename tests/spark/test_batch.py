"""Batch on Spark: the rows of every sink are the reference's output, to the byte, in any layout."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import emberflow as ef
from tests.strategies import random_flow
from tests.test_examples import EXAMPLES, example


def frame(
    spark: SparkSession, elements: list[Any], schema: str, partitions: int, seed: int = 0
) -> DataFrame:
    """A DataFrame of times and values, in any order and any partitions."""
    rows = [
        (e.time, e.payload) if isinstance(e, ef.At) else (number, e)
        for number, e in enumerate(elements)
    ]
    Random(seed).shuffle(rows)
    flat = [(time, *(p if isinstance(p, tuple) else (p,))) for time, p in rows]
    return spark.createDataFrame(flat, f"time long, {schema}").repartition(partitions)


def assert_equal(expected: dict[str, list[Any]], found: dict[str, DataFrame]) -> None:
    assert list(found) == list(expected)
    for name, df in found.items():
        assert repr(ef.payloads(df)) == repr(expected[name])


@pytest.mark.parametrize("seed", range(24))
def test_random_flows_in_batch_equal_the_reference(spark: SparkSession, seed: int) -> None:
    flow, elements = random_flow(Random(seed))
    partitions = (1, 3, 8)[seed % 3]
    frames = {
        name: frame(spark, given, "value long", (3, 8, 1)[seed % 3], seed)
        for name, given in elements.items()
    }
    found = flow.batch(spark, raw=True, partitions=partitions, **frames)
    assert_equal(ef.run(flow, **elements), found)


@pytest.mark.parametrize("partitions", [1, 3, 8])
def test_the_examples_in_batch_equal_the_reference(
    spark: SparkSession, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))  # tasks import from where the driver does
    clicks, average = example("click_sessions"), example("moving_average")
    index, orders = example("inverted_index"), example("orders")
    grouping, words = example("grouping"), example("word_count")
    numbers = [ef.At(number, number) for number in grouping.NUMBERS]
    documents = list(index.generated_documents(5, 8, 1))
    for flow, elements, schemas in (
        (
            clicks.flow,
            {"clicks": [ef.At(click.minute, click) for click in clicks.CLICKS]},
            {"clicks": (clicks.Click, "minute long, user string, page string")},
        ),
        (
            average.flow,
            {"readings": [ef.At(reading.minute, reading) for reading in average.READINGS]},
            {"readings": (average.Reading, "minute long, sensor string, celsius double")},
        ),
        (
            index.flow,
            {"docs": documents},
            {"docs": (index.Document, "id string, version long, text string")},
        ),
        (
            orders.flow,
            orders.elements(),
            {
                "customers": (orders.Customer, "minute long, name string, city string"),
                "orders": (
                    orders.Order,
                    "minute long, number long, customer string, product string, pieces long, "
                    "price long",
                ),
                "payments": (orders.Payment, "minute long, order long"),
            },
        ),
        (grouping.flow, {"numbers": numbers}, {"numbers": (None, "value long")}),
        (words.flow, {"lines": words.LINES}, {"lines": (None, "value string")}),
    ):
        given = {
            name: ef.rows(frame(spark, elements[name], schema, 3), time="time", payload=payload)
            for name, (payload, schema) in schemas.items()
        }
        found = flow.batch(spark, raw=True, partitions=partitions, **given)
        assert_equal(ef.run(flow, **elements), found)
