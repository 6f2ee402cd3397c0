"""Long work that can be watched: what it is, how much there is of it, and how much is done.

What is guaranteed: work that nobody watches costs nothing but a look at a variable when it begins. A
watcher is set for a block of code by `watching`; the command line sets one that draws a bar
(`runners.bars`). Libraries and notebooks are quiet unless they set one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

T = TypeVar("T")


class Watcher(Protocol):
    """Hears of work."""

    def begin(self, what: str, total: int) -> Callable[[], None]:
        """Work of so many steps begins. What is returned is called after each step."""
        ...


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Let a watcher hear of all work in a ``with`` block."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def watched(what: str, items: Iterable[T], total: int) -> Iterable[T]:
    """The items, each a step of work: ``for seed in watched("seeds", seeds, len(seeds))``.

    >>> class Printed:
    ...     def begin(self, what, total):
    ...         return lambda: print("one of", total, what)
    >>> with watching(Printed()):
    ...     list(watched("seeds", "ab", 2))
    one of 2 seeds
    one of 2 seeds
    ['a', 'b']
    """
    watcher = _watcher.get()
    return items if watcher is None else _told(items, watcher.begin(what, total))


def _told(items: Iterable[T], done: Callable[[], None]) -> Iterator[T]:
    for item in items:
        yield item
        done()
