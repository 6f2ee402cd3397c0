"""One local Spark session and one Kafka broker, each shared by all tests that use it."""

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


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A session takes seconds to start, and two would compete for the cores. With `--dist loadgroup`
    # all these tests run in the same process. Tests elsewhere that use the session have the same
    # mark.
    for item in items:
        if SPARK_TESTS in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    # Set by the Makefile; needed when pytest is called directly.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Imported here, so that a broken installation fails these tests and not the collection of all.
    from pyspark.sql import SparkSession

    # Without the connector, the tests that need it are skipped.
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
