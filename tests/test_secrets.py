"""No error shows a password, wherever in a mistyped address it stands."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.commands.adapters import given_fronts, given_sinks
from emberflow.commands.run import _pairs
from emberflow.errors import InputError
from emberflow.runners.live.builder import LiveBuilder

SECRET = "hunter2"


def flow() -> ef.Flow:
    flow = ef.Flow("shop")
    flow.front("orders").sink("changes")
    return flow


def told(call: Callable[[], Any]) -> str:
    """The error of a call, with all that a traceback shows of it."""
    with pytest.raises(InputError) as raised:
        call()
    return "".join(traceback.format_exception(raised.value, chain=True))


@pytest.mark.parametrize(
    "spec",
    [
        f"postgres:postgresql://ada:{SECRET}@db/shop?table=changes",
        f"postgresql://ada:{SECRET}@db/shop",
        f"host=db password={SECRET} dbname=shop?table=changes",
        f"changes=postgresql://ada:{SECRET}@db/shop",
        f"changes=host=db password={SECRET}:",
        f"changes=postgres:postgresql://ada:{SECRET}@db/shop",
        f"kafka://db:9092/changes?kafka.sasl.password={SECRET}",
        f"changes=kafka:db:9092/changes?kafka.sasl.password={SECRET}",
        f"changes=kafka://db:9092?kafka.sasl.password={SECRET}",
        f"changes=kafka://db:9092/a/b?kafka.sasl.password={SECRET}",
        f"changes=kafka://db/changes?kafka.sasl.password={SECRET}",
        f"changes=kafka://ada:{SECRET}@db/changes",
        f"changes=kafka://db:9092/changes?kafka.sasl.password=a&{SECRET}",
    ],
)
def test_a_sink_or_a_front_that_is_written_wrongly(spec: str) -> None:
    assert SECRET not in told(lambda: given_sinks(flow().graph(), [spec]))
    mistyped = spec.replace("changes=", "orders=", 1)
    assert SECRET not in told(lambda: given_fronts(flow().graph(), [mistyped]))


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://ada:{SECRET}%zz@127.0.0.1/shop",
        f"postgresql://ada:{SECRET}/x@127.0.0.1:1/shop",
        f"postgresql://ada:a@{SECRET}@127.0.0.1:1/shop",
        f"postgresql://ada:a#{SECRET}@127.0.0.1:1/shop",
        f"postgresql://ada:{SECRET}@127.0.0.1:1/shop",
        f"postgresql://127.0.0.1:1/shop?password={SECRET}%zz",
        f"host=127.0.0.1 port=1 password=a {SECRET}",
        f"host=127.0.0.1 port=1 password='a\\' {SECRET}",
        f"host=127.0.0.1 port={SECRET}",
        SECRET,
    ],
)
def test_a_dsn_that_libpq_refuses(dsn: str) -> None:
    assert SECRET not in told(sinks.Postgres(dsn, "changes").check)


def test_a_dsn_that_leads_nowhere_says_where() -> None:
    error = told(sinks.Postgres(f"postgresql://ada:{SECRET}@127.0.0.1:1/shop", "changes").check)
    assert "127.0.0.1" in error
    assert "refused" in error


@pytest.mark.parametrize(
    ("servers", "config"),
    [
        (f"ada:{SECRET}@db:9092", {}),
        (f"db:9092?sasl.password={SECRET}", {}),
        ("db:9092", {"sasl.password": SECRET, "security.protocol": SECRET}),
        ("db:9092", {"ssl.key.password": SECRET, "no.such.thing": SECRET}),
    ],
)
def test_settings_that_kafka_refuses(servers: str, config: dict[str, str]) -> None:
    def check() -> None:
        front = fronts.Kafka(servers, "orders", config=config)
        front.cluster.consumer()

    assert SECRET not in told(check)


def test_other_options() -> None:
    assert SECRET not in told(
        lambda: _pairs("--conf", [f"spark.password:{SECRET}"], "spark.ui.enabled=false")
    )
    no_spark: Any = None
    live = LiveBuilder(flow(), no_spark)
    for token in (SECRET.encode(), SECRET):
        assert SECRET not in told(lambda token=token: live.option("bridgeToken", token))
