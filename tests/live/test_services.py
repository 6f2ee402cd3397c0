"""What a live query offers to streaming queries: checked before anything starts."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import emberflow as ef
from emberflow.errors import InputError
from emberflow.runners.live.builder import LiveBuilder
from emberflow.runners.live.driver.cluster import CoordinatorAddress
from emberflow.runners.live.life import Settings
from emberflow.runners.live.serving.addresses import UnknownQueryError, address_of
from emberflow.runners.live.serving.bridge import BridgeClient
from emberflow.runners.live.serving.services import OfferedServices
from emberflow.runners.live.serving.tokens import new_token
from emberflow.values.owners import equal_owners
from tests.adapters.structured import SCHEMA, Sender, graph, placed_front


def builder() -> LiveBuilder:
    flow = ef.Flow("offered")
    flow.front("docs").sink("out")
    no_spark: Any = None  # the error comes before Spark is needed
    return LiveBuilder(flow, no_spark)


def test_it_needs_a_checkpoint() -> None:
    query = builder().read(docs=ef.fronts.Structured()).write(out=ef.sinks.Memory())
    with pytest.raises(InputError, match=r"fronts.Structured keeps .* set .option\('checkpointLoc"):
        query.start()
    query = builder().read(docs=ef.fronts.Iterable([])).write(out=ef.sinks.Structured())
    with pytest.raises(InputError, match=r"sinks.Structured keeps .* set .option\('checkpointLoc"):
        query.start()


def test_it_needs_the_order_of_time(tmp_path: Path) -> None:
    query = builder().read(docs=ef.fronts.Structured()).write(out=ef.sinks.Memory())
    query.option("checkpointLocation", tmp_path).option("ordering", "arrival")
    with pytest.raises(
        InputError, match="'docs' cannot be read or written by Structured Streaming"
    ):
        query.start()


def test_a_weak_token_is_refused() -> None:
    with pytest.raises(InputError, match="the token is too weak"):
        builder().option("bridgeToken", "guess")


def settings(folder: Path, front: Any, token: str | None = None) -> Settings:
    return Settings(
        graph=graph(),
        fronts={"docs": front},
        sinks={"counts": ef.sinks.Memory()},
        workers=1,
        owners=equal_owners(1),
        credit=1,
        batch=1,
        on_error="fail",
        place=CoordinatorAddress("127.0.0.1", 0, "127.0.0.1"),
        guarantee="exactly-once",
        checkpoint=str(folder),
        interval_ms=1,
        kept=1,
        keep_logs=False,
        bridge_place=CoordinatorAddress("127.0.0.1", 0, "127.0.0.1"),
        bridge_token=token,
    )


def test_a_second_query_of_the_name_takes_nothing_from_the_first(tmp_path: Path) -> None:
    name = str(uuid.uuid4())
    front = placed_front(tmp_path, "word")
    token = new_token()
    first = OfferedServices.of(settings(tmp_path, front, token), name, "run 1")
    try:
        with pytest.raises(InputError, match="runs already"):
            OfferedServices.of(settings(tmp_path, front), name, "run 2")
        assert address_of(name) == first.address
        assert first.address is not None
        assert first.address.token == token
        with BridgeClient(first.address) as client:
            client.ask("front docs", "check", schema=SCHEMA.json())

            class Remote:
                def serve(self, method: str, arguments: dict[str, Any]) -> Any:
                    return client.ask("front docs", method, **arguments)

            remote: Any = Remote()
            assert Sender().send(remote, 0, [(1, "ash")])
    finally:
        first.close()
    with pytest.raises(UnknownQueryError):
        address_of(name)


def test_a_query_without_anything_to_offer_has_no_door(tmp_path: Path) -> None:
    offered = OfferedServices.of(settings(tmp_path, ef.fronts.Iterable([])), None, "run 1")
    assert offered.address is None
    offered.close()
