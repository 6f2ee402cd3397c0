"""One local Spark session for all of Spark's tests, and one Kafka broker for all of Kafka's."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.adapters.kafka_broker import JARS, KafkaBroker, running_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_TESTS = Path(__file__).parent / "spark"


@pytest.hookimpl(tryfirst=True)  # xdist looks at the groups in this very hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A session takes seconds to start, and two of them would fight for the cores: with
    # `--dist loadgroup` all of these tests run in the same process. Others that
    # use the session say so with the same mark.
    for item in items:
        if SPARK_TESTS in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # As the Makefile does it, for those who call pytest themselves.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Inside, so that a broken set-up fails the tests rather than the collection of all tests.
    from pyspark.sql import SparkSession

    # Where the connector is not there, what needs it is skipped.
    connector = ",".join(map(str, (JARS / "spark").glob("*.jar")))
    builder = SparkSession.builder
    if connector:
        builder = builder.config("spark.jars", connector)
    session = (
        builder.master("local[4]")
        .appName("emberflow tests")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    with running_broker() as broker:
        yield broker
