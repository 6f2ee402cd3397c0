"""Bars on a terminal for long work: how much is done, how long it took and what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from emberflow.work import watching


class Bars:
    """A watcher (`emberflow.work`) that draws a bar for each piece of work."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )

    def begin(self, what: str, total: int) -> Callable[[], None]:
        task = self._progress.add_task(what, total=total)
        return lambda: self._progress.advance(task)

    @contextmanager
    def shown(self) -> Iterator[None]:
        with self._progress, watching(self):
            yield


@contextmanager
def bars(console: Console | None = None) -> Iterator[None]:
    """Show bars on standard error, if that is a terminal; else nothing, so that pipes stay clean."""
    console = Console(stderr=True) if console is None else console
    if console.is_terminal:
        with Bars(console).shown():
            yield
    else:
        yield
