"""Where the coordinator listens and how workers find it. Slots are tested on real clusters."""

from __future__ import annotations

from typing import Any

import pytest
import zmq

import emberflow as ef
from emberflow import sinks
from emberflow.runners.live.driver.cluster import (
    ClusterError,
    CoordinatorAddress,
    coordinator_address,
    too_few,
)
from emberflow.runners.live.driver.coordinator import Coordinator
from emberflow.runners.live.wire.sockets import Wire, WireKeys

NO_SESSION: Any = None  # the user's own setting needs no session


def test_a_name_is_listened_on_by_its_address() -> None:
    assert coordinator_address(NO_SESSION, "localhost") == CoordinatorAddress(
        "127.0.0.1", 0, "localhost"
    )
    assert coordinator_address(NO_SESSION, "127.0.0.1:4711") == CoordinatorAddress(
        "127.0.0.1", 4711, "127.0.0.1"
    )


def test_an_address_that_others_know_us_by_is_listened_on_everywhere() -> None:
    """Of a network for documentation, which no machine has."""
    assert coordinator_address(NO_SESSION, "192.0.2.1:4711") == CoordinatorAddress(
        "0.0.0.0", 4711, "192.0.2.1"
    )


@pytest.mark.parametrize("wanted", ["", ":80", "host:", "host:no", "host:0", "host:65536"])
def test_what_is_no_host_is_refused(wanted: str) -> None:
    with pytest.raises(ef.InputError, match="takes a host, or host:port"):
        coordinator_address(NO_SESSION, wanted)


def test_a_host_that_nobody_knows_is_refused() -> None:
    with pytest.raises(
        ClusterError, match=r"'no\.such\.invalid', which this machine cannot resolve"
    ):
        coordinator_address(NO_SESSION, "no.such.invalid")


def test_a_port_that_is_taken_is_told_and_nothing_is_left_open() -> None:
    flow = ef.Flow("as it is")
    flow.front("numbers").sink("out")
    keys = WireKeys.made()
    other = Wire(keys, 1)
    try:
        _, address = other.listening(zmq.PULL, "127.0.0.1")
        port = int(address.rpartition(":")[2])
        with pytest.raises(ClusterError, match=rf"cannot listen on 127\.0\.0\.1, port {port}: "):
            Coordinator(
                flow.graph(),
                workers=1,
                incarnation=1,
                keys=keys,
                place=CoordinatorAddress("127.0.0.1", port, "127.0.0.1"),
                fronts={"numbers": ef.fronts.Iterable([])},
                sinks={"out": sinks.Files("not opened")},
            )
    finally:
        other.close()


def test_too_few_slots_say_what_to_do() -> None:
    assert too_few(4, 2).endswith(
        "and Spark has 2. Set .option('workers', 2), or start the session with more cores, such as "
        "master('local[4]'), or executors with 4 cores in all."
    )
    assert "Spark has 0 after 30 s" in too_few(4, 0, 30.0)
    assert ".option" not in too_few(4, 0, 30.0)
