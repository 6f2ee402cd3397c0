"""Bars on a terminal for long work: how much is done, how long it took and what is left.

``rich`` is imported when a bar is to be shown, because every ``import emberflow`` imports this module.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from emberflow.runners.bars.stages import stages_told
from emberflow.work import watching

if TYPE_CHECKING:
    from rich.console import Console


class Bars:
    """A watcher (`emberflow.work`) that draws a bar for each piece of work."""

    def __init__(self, console: Console) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            # What is printed on the same terminal goes above the bars; what goes elsewhere goes there.
            redirect_stdout=sys.stdout.isatty(),
        )

    def begin(self, what: str, total: int) -> Callable[[], None]:
        task = self._progress.add_task(what, total=total)
        return lambda: self._progress.advance(task)

    @contextmanager
    def shown(self) -> Iterator[None]:
        with self._progress, watching(self), stages_told(self):
            yield


@contextmanager
def bars(console: Console | None = None) -> Iterator[None]:
    """Show a bar with what is left for each piece of long work in a ``with`` block: the runs of
    ``ef.verify``, the elements of an audit, the stages of Spark's jobs (batch, backfill, ``ef.compare``).

    Bars are on standard error, if that is a terminal; elsewhere there is nothing, so that pipes and logs
    stay clean.

    >>> import emberflow as ef
    >>> flow = ef.Flow("shout")
    >>> flow.front("words").map(str.upper).sink("loud")
    >>> with ef.bars():
    ...     ef.run(flow, words=["a"])
    {'loud': ['A']}
    """
    if console is None and sys.stderr.isatty():
        from rich.console import Console

        console = Console(stderr=True)
    if console is not None and console.is_terminal:
        with Bars(console).shown():
            yield
    else:
        yield
