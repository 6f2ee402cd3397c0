"""``emberflow run``: a flow live on Spark, until its fronts end or someone presses Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console

from emberflow.checkpoint.errors import FencedError
from emberflow.commands.adapters import given_fronts, given_sinks
from emberflow.commands.display import Display
from emberflow.commands.session import spark_session
from emberflow.dsl.flow import Flow
from emberflow.dsl.loading import load_flow
from emberflow.errors import InputError, beginning
from emberflow.extras import need
from emberflow.fronts.protocol import front_contract
from emberflow.graph.versions import Backfilled, Carry, Drop, Source
from emberflow.runners.diversion import checked_on_error
from emberflow.sinks import Callback
from emberflow.sinks.protocol import sink_contract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from emberflow.runners.live.builder import LiveBuilder
    from emberflow.runners.live.query import LiveQuery

_LOOK_SECONDS = 0.2
_EXIT_INTERRUPTED = 130
_SHOW_CURSOR = b"\x1b[?25h"


def run(
    target: str,
    *,
    fronts: Sequence[str],
    sinks: Sequence[str],
    workers: int,
    master: str | None = None,
    name: str | None = None,
    on_error: str = "fail",
    options: Sequence[str] = (),
    conf: Sequence[str] = (),
    log: Path | None = None,
    carry: Carry | None = None,
    standby: bool = False,
) -> None:
    """Run a flow between adapters that are given as text. Raises what the query does.

    ``standby``: when no other driver runs it, and not at all if its query comes to its end.
    """
    need("pyspark", "pyarrow", "zmq", extra="spark", what="emberflow run")
    flow = load_flow(target)
    graph = flow.graph()
    settings = _pairs("--conf", conf, "spark.executor.memory=4g")
    chosen = {"workers": str(workers), **_pairs("--option", options, "batch=500")}
    chosen.setdefault("onError", on_error)
    chosen.setdefault("upgrades", "true")
    if standby and "checkpointLocation" not in chosen:
        raise InputError(
            "--standby waits for the query of a checkpoint: give its --checkpoint LOCATION."
        )
    reads = given_fronts(graph, fronts)
    writes = given_sinks(graph, sinks, checked_on_error(graph, chosen["onError"], "--on-error"))
    name = name or flow.name
    master = master or f"local[{workers}]"
    _builder(flow, None, chosen)
    if master.startswith("local"):  # elsewhere a worker may see what this machine does not
        for front in reads.values():
            front_contract(front).check()
        for sink in writes.values():
            sink_contract(sink).check()
    console = Console(stderr=True)
    # What a console sink prints would land in the middle of the picture.
    drawn = console.is_terminal and not any(isinstance(sink, Callback) for sink in writes.values())
    title = f"{name} on {master}, {_counted(int(chosen['workers']), 'worker')}"
    console.print(f"Starting Spark for {title} ...", style="dim", highlight=False)
    with spark_session(master=master, name=name, conf=settings, log=log) as spark:
        builder = _builder(flow, spark, chosen).read(**reads).write(**writes).queryName(name)
        if carry:
            builder.carry(carry)
        # Spark's own answer to Ctrl-C is to cancel all jobs. Ours replaces it.
        with Interrupts() as interrupts, Display(title, console=console, drawn=drawn) as display:
            query = _followed(builder, interrupts, display) if standby else builder.start()
            if query is None:
                return
            if (page := query.ui) is not None:
                display.say(f"The page, at an address that works once: {page}")
            progress = _watched(query, interrupts, display)
        display.say("Drained and ended." if interrupts.asked else "The fronts have ended.")
        if progress is not None:
            display.summary(progress)


def given_carry(
    carry: Sequence[str] | None, drop: Sequence[str] | None, begin: Sequence[str] | None = None
) -> Carry:
    """What ``--carry NEW=OLD``, ``--drop STEP`` and ``--begin STEP=CHECKPOINT`` say.

    >>> given_carry(["totals=sums"], ["old"], ["by page=history"])
    {'totals': 'sums', 'by page': Backfilled(checkpoint='history', step=None), 'old': Drop(step='old')}
    """
    found: dict[str, Source] = dict(_pairs("--carry", carry or (), "totals=sums"))
    for name, checkpoint in _pairs("--begin", begin or (), "totals=history").items():
        found[name] = Backfilled(checkpoint)
    return {**found, **{name: Drop(name) for name in drop or ()}}


def _followed(builder: LiveBuilder, interrupts: Interrupts, display: Display) -> LiveQuery | None:
    """Start the query when no other driver runs it; None if nobody is to."""
    display.say("Standing by. This takes over when the driver of the query is lost.")
    while builder.stand_by(given_up=lambda: interrupts.asked):
        try:
            query = builder.start()
        except FencedError:
            display.say("Another driver was faster. Standing by again.")
        else:
            display.say("The driver of the query is lost: taking over.")
            return query
    display.say("Ended." if interrupts.asked else "The query has come to its end.")
    return None


def _builder(flow: Flow, spark: SparkSession | None, options: Mapping[str, str]) -> LiveBuilder:
    """A builder with its options, which it checks; it needs Spark only when it starts the query."""
    from emberflow.runners.live.builder import LiveBuilder

    builder = LiveBuilder(flow, cast("SparkSession", spark))
    for key, value in options.items():
        builder.option(key, value)
    return builder


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _watched(query: LiveQuery, interrupts: Interrupts, display: Display) -> dict[str, Any] | None:
    """Show the query until it is over; its last progress."""
    stopping: threading.Thread | None = None
    while not query.awaitTermination(_LOOK_SECONDS):
        if interrupts.asked and stopping is None:
            display.say("Draining. Ctrl-C again ends at once.")
            stopping = threading.Thread(target=query.stop, name="emberflow stop", daemon=True)
            stopping.start()
        display.show(query.status["message"], query.lastProgress)
    query.stop()  # its last progress may come after its end, and before this returns
    return query.lastProgress


class Interrupts:
    """For the time of a ``with`` block the first Ctrl-C, or SIGTERM, is a request; the second ends."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            # The display has hidden it. Nothing else here: a handler may have cut in anywhere.
            if os.isatty(2):
                os.write(2, _SHOW_CURSOR)
            os._exit(_EXIT_INTERRUPTED)
        self.asked = True


def _pairs(option: str, given: Sequence[str], example: str) -> dict[str, str]:
    pairs = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise InputError(f"{option} takes KEY=VALUE, as in {example}, got {beginning(text)}.")
        pairs[key] = value
    return pairs
