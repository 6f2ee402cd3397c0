"""``emberflow top NAME``: how a query that runs on this machine is doing, in a terminal.

The words are those of the page. The query is found by its name, as ``emberflow upgrade`` finds it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from emberflow.commands.display import latency
from emberflow.errors import InputError
from emberflow.extras import need

_LOOKS = 4
_ASK_SECONDS = 5.0

Look = Mapping[str, Any]


def top(name: str, *, once: bool = False, seconds: float = 1.0) -> None:
    """Show the query of a name until it is over or somebody presses Ctrl-C; or only ``once``."""
    need("zmq", extra="spark", what="emberflow top")
    from emberflow.runners.live.serving.addresses import UnknownQueryError, address_of
    from emberflow.runners.live.serving.bridge import BridgeAwayError, BridgeClient

    console = Console()
    looks: deque[Look] = deque(maxlen=_LOOKS)
    with BridgeClient(address_of(name), seconds=_ASK_SECONDS) as client:

        def look() -> RenderableType:
            try:
                looks.append(client.ask("overview", "look"))
            except InputError as error:
                if "offers no overview" not in str(error):
                    raise
                raise InputError(
                    f"the query {name!r} does not tell how it is doing. Start it with 'emberflow "
                    f"run', or with .option('uiPort', 0)."
                ) from error
            return picture(list(looks))

        if once:
            look()
            time.sleep(seconds)  # rates are of two looks
            console.print(look())
            return
        try:
            with Live(look(), console=console, auto_refresh=False) as live:
                while looks[-1]["active"]:
                    time.sleep(seconds)
                    live.update(look(), refresh=True)
        except KeyboardInterrupt:
            return
        except (BridgeAwayError, UnknownQueryError):
            console.print(f"The query {name} has ended.", highlight=False)


def picture(looks: list[Look]) -> RenderableType:
    """The last of these looks at a query, with the rates since the first."""
    look = looks[-1]
    progress = look["progress"]
    heading = Text.assemble(
        (str(look["name"]), "bold"), f"  {look['state']}", *_recovered(look["recoveries"])
    )
    figures = Table.grid(padding=(0, 2))
    for _ in range(3):
        figures.add_column(style="dim")
        figures.add_column(justify="right")
    if progress:
        figures.add_row(
            *("elements in", _rate(looks, "progress", "elements")),
            *("outputs", _rate(looks, "progress", "released")),
            *("lag", f"{progress['minimalTimeLagMs']:,.0f} ms"),
        )
    parts: list[RenderableType] = [heading, figures]
    if progress:
        parts.append(Text(f"latency {latency(progress)}", "dim"))
    parts += [Text(told, "yellow") for told in [*too_hot(progress or {}), *leaving(progress or {})]]
    parts += [Text(held_back(look), "dim"), _steps(looks), _fronts(look), _sinks(look)]
    return Group(*parts)


def held_back(look: Look) -> str:
    """What holds the minimal time back, in words.

    >>> held_back({"heldBack": {"by": "front", "front": "orders", "partition": 2, "time": 7}})
    'The minimal time is as far as front orders, partition 2, has promised.'
    """
    found = look["heldBack"]
    if found is None:
        return "Nothing holds the minimal time back: all fronts have ended."
    if found["by"] == "work":
        return "Work in flight holds the minimal time back, not a front."
    if found["front"] is None:
        return "The minimal time waits for a front that has not begun."
    return (
        f"The minimal time is as far as front {found['front']}, partition {found['partition']}, "
        f"has promised."
    )


def too_hot(progress: Mapping[str, Any]) -> list[str]:
    """The keys that are too hot for one worker, in words.

    >>> too_hot({"hotKeys": [{"step": "counts", "key": "'ada'", "worker": 1, "share": 0.914}]})
    ["Key 'ada' of counts is too hot for one worker: it takes 91% of what worker 1 does."]
    """
    return [
        f"Key {hot['key']} of {hot['step']} is too hot for one worker: it takes {100 * hot['share']:.0f}% "
        f"of what worker {hot['worker']} does."
        for hot in progress.get("hotKeys", ())
    ]


def leaving(progress: Mapping[str, Any]) -> list[str]:
    """The workers that have to leave their executors, in words.

    >>> leaving({"leaving": [0, 2]})
    ['Spark decommissions the executor of worker 0, 2: it is about to end.']
    """
    workers = ", ".join(map(str, progress.get("leaving", ())))
    return [f"Spark decommissions the executor of worker {workers}: it is about to end."] * bool(
        workers
    )


def _recovered(times: int) -> list[tuple[str, str]]:
    return [(f"  recovered {times} times" if times != 1 else "  recovered once", "yellow")] * bool(
        times
    )


def _steps(looks: list[Look]) -> Table:
    table = _table("step", "in", "out", "busy", "replays", "keys", "held")
    for step, known in looks[-1]["steps"].items():
        table.add_row(
            step,
            _rate(looks, "steps", step, "in"),
            _rate(looks, "steps", step, "out"),
            _share(looks, "steps", step, "busySeconds"),
            *(f"{known[name]:,}" for name in ("replays", "keys", "held")),
        )
    return table


def _fronts(look: Look) -> Table:
    table = _table("front", "lag", "backlog", "in flight", "late", "position")
    for front in look["fronts"]:
        table.add_row(
            f"{front['front']} {front['partition']}",
            f"{front['lagMs']:,.0f} ms",
            *(f"{front[name]:,}" for name in ("waiting", "ahead", "late")),
            str(front["position"]),
        )
    return table


def _sinks(look: Look) -> Table:
    table = _table("sink", "outputs", "at its barrier", "taken back", "unstored")
    for sink in look["sinks"]:
        table.add_row(
            f"{sink['sink']} {sink['partition']}",
            *(f"{sink[name]:,}" for name in ("released", "held", "takenBack", "unstored")),
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _growth(looks: list[Look], *path: str) -> float | None:
    """How much a counter grows in a second."""
    if len(looks) < 2:
        return None
    seconds = float(looks[-1]["at"] - looks[0]["at"]) / 1_000
    before, now = _at(looks[0], path), _at(looks[-1], path)
    if before is None or now is None or seconds <= 0:
        return None
    # After a recovery workers count from 0 again.
    return (now - before if now >= before else now) / seconds


def _at(look: Look, path: tuple[str, ...]) -> float | None:
    found: Any = look
    for name in path:
        found = found.get(name)
        if found is None:
            return None
    return float(found)


def _rate(looks: list[Look], *path: str) -> str:
    growth = _growth(looks, *path)
    return "-" if growth is None else f"{growth:,.0f}/s" if growth >= 10 else f"{growth:.1f}/s"


def _share(looks: list[Look], *path: str) -> str:
    growth = _growth(looks, *path)
    return "-" if growth is None else f"{100 * growth / max(1, len(looks[-1]['workers'])):.1f}%"
