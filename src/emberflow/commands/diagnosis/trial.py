"""A trial of live: starts Spark here, runs a small flow live, and prints what came of it as JSON.

`emberflow doctor --start` runs this as a process of its own, ``python -m emberflow.commands.diagnosis.trial``,
so that it can end it when it takes too long.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from emberflow import Flow, fronts, sinks
from emberflow.commands.session import spark_session
from emberflow.errors import InternalError

_WORDS = ["ash", "ember", "flame"]


def trial() -> dict[str, Any]:
    """The slots of a local session, and how long it took to start it and to run the flow."""
    from emberflow.runners.live.driver.cluster import slots_of

    began = time.monotonic()
    with spark_session(master="local[*]", name="emberflow doctor") as spark:
        started = time.monotonic()
        slots = slots_of(spark) or 1
        flow = Flow("trial")
        flow.front("words").map(str.upper).sink("loud")
        loud = sinks.Memory()
        query = (
            flow.live(spark)
            .read(words=fronts.Iterable(_WORDS))
            .write(loud=loud)
            .option("workers", min(2, slots))
            .start()
        )
        query.awaitTermination()
        if loud.payloads() != [word.upper() for word in _WORDS]:
            raise InternalError(f"the flow of the trial gave {loud.payloads()}")
        return {
            "slots": slots,
            "session_seconds": started - began,
            "flow_seconds": time.monotonic() - started,
        }


def main() -> None:
    try:
        found = trial()
    except Exception as error:
        notes = getattr(error, "__notes__", ())
        found = {"error": "\n".join([f"{type(error).__qualname__}: {error}", *notes])}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
