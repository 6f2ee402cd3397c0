"""How a live query is doing: a picture that is drawn anew on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

#: Rates are those of the last seconds, so that they neither jump nor lag.
_RATE_SECONDS = 3.0
_LINE_SECONDS = 5.0
_BAR_WIDTH = 14

Progress = Mapping[str, Any]


class Display:
    """Shows what it is told with `show`, for as long as its ``with`` block lasts."""

    def __init__(self, title: str, *, console: Console, drawn: bool) -> None:
        self._title = title
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if drawn else None
        self._began = time.monotonic()
        self._line_at = self._began
        self._running_since: float | None = None
        self._rates = Rates()

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, words: str) -> None:
        """A line that stays."""
        self._console.print(words, highlight=False, markup=False)

    def show(self, state: str, progress: Progress | None) -> None:
        now = time.monotonic()
        seconds = now - self._began
        if progress is not None and not progress["elements"]:
            progress = None  # the state says more
        if progress is not None:
            self._running_since = self._running_since or now
            self._rates.note(now, progress["elements"], progress["released"])
        if self._live is not None:
            heading = Text.assemble((self._title, "bold"), f"  {state}  {seconds:.0f} s")
            body = [figures(progress, self._rates)] if progress is not None else []
            self._live.update(Group(heading, *body, Text("Ctrl-C drains", "dim")), refresh=True)
        elif now - self._line_at >= _LINE_SECONDS:
            self._line_at = now
            what = state if progress is None else line(progress, self._rates)
            self.say(f"{seconds:4.0f} s  {what}")

    def summary(self, progress: Progress) -> None:
        """What came of it, in the end: rates since the first element was seen."""
        seconds = time.monotonic() - (self._running_since or self._began)
        rates = Rates.over(seconds, progress)
        self._console.print(figures(progress, rates, is_over=True))


class Rates:
    """Elements and outputs a second."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()
        self.elements = 0.0
        self.outputs = 0.0

    @classmethod
    def over(cls, seconds: float, progress: Progress) -> Rates:
        rates = cls()
        rates.note(0.0, 0, 0)
        rates.note(seconds, progress["elements"], progress["released"])
        return rates

    def note(self, now: float, elements: int, outputs: int) -> None:
        """
        >>> rates = Rates()
        >>> rates.note(10.0, 0, 0)
        >>> rates.note(12.0, 100, 300)
        >>> rates.elements, rates.outputs
        (50.0, 150.0)
        """
        self._seen.append((now, elements, outputs))
        # One that is older stays: the rate is taken from it.
        while len(self._seen) > 2 and self._seen[1][0] <= now - _RATE_SECONDS:
            self._seen.popleft()
        then, elements_then, outputs_then = self._seen[0]
        if now > then:
            self.elements = (elements - elements_then) / (now - then)
            self.outputs = (outputs - outputs_then) / (now - then)


def figures(progress: Progress, rates: Rates, *, is_over: bool = False) -> Table:
    """All there is to know, within 80 columns."""
    left = Table.grid(padding=(0, 2))
    left.add_column(style="dim")
    left.add_column(justify="right")
    left.add_column(justify="right", style="dim")
    left.add_row("elements", f"{progress['elements']:,}", _rate(rates.elements))
    left.add_row("outputs", f"{progress['released']:,}", _rate(rates.outputs))
    left.add_row("replay ratio", f"{progress['replayRatio']:.2f}", "")
    if not is_over:
        minimal = progress["minimalTime"]
        left.add_row("minimal time", "-" if minimal is None else str(minimal[0]), "")
    right = Table.grid(padding=(0, 2))
    right.add_column(style="dim")
    right.add_column()
    right.add_row("latency", latency(progress))
    for number, share in enumerate(shares(progress)):
        bar = Text("━" * round(share * _BAR_WIDTH), "cyan")
        right.add_row(f"worker {number}", Text.assemble(bar, f" {share:.0%}"))
    both = Table.grid(padding=(0, 4))
    both.add_row(left, right)
    return both


def line(progress: Progress, rates: Rates) -> str:
    load = ":".join(f"{share * 100:.0f}" for share in shares(progress))
    return (
        f"{progress['elements']:,} in ({_rate(rates.elements)}), "
        f"{progress['released']:,} out ({_rate(rates.outputs)}), "
        f"latency {latency(progress, ('p50', 'p99'))}, "
        f"replay ratio {progress['replayRatio']:.2f}, load {load or '-'}"
    )


def _rate(number: float) -> str:
    return f"{number:,.0f}/s" if number >= 10 else f"{number:.1f}/s"


def latency(progress: Progress, percentiles: tuple[str, ...] = ("p50", "p95", "p99")) -> str:
    """
    >>> latency({"latencyMs": {"p50": 1.234, "p95": 20.5, "p99": 31.0}})
    'p50 1.2  p95 20.5  p99 31.0 ms'
    """
    known = progress["latencyMs"]
    if not known:
        return "-"
    return "  ".join(f"{name} {known[name]:.1f}" for name in percentiles if name in known) + " ms"


def shares(progress: Progress) -> list[float]:
    """The part of the work that each worker did."""
    load = progress["loadPerWorker"]
    total = sum(load)
    return [items / total if total else 0.0 for items in load]
