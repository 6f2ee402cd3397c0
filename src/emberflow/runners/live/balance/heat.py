"""Keys that are too hot for one worker.

All items of a key at a step are work of one worker, whatever the number of workers. So a key that takes most of
what a busy worker can do bounds the whole query: neither more workers nor other owners help, only another flow
does. Whoever runs it is told, by the name of the key.
"""

from __future__ import annotations

from typing import NamedTuple

from emberflow.runners.live.balance.ledger import Load

#: A worker that works for so much of its time is busy.
_BUSY = 0.8
#: A key that takes so much of that is too hot: without all its other keys the worker would gain half at most.
_SHARE = 0.6


class HotKey(NamedTuple):
    """A key that alone takes this share of all that its worker does."""

    step: str
    key: str
    worker: int
    share: float


def hot_keys(load: Load) -> list[HotKey]:
    """The keys that are too hot for one worker, the hottest first.

    >>> from emberflow.engine.worker.loads import KeyLoad
    >>> ada, bob = KeyLoad("counts", "'ada'", 0.9), KeyLoad("counts", "'bob'", 0.7)
    >>> hot_keys(Load((0.96, 0.3), {}, {}, {}, (0.8, 0.3), ((ada,), (bob,)), True))
    [HotKey(step='counts', key="'ada'", worker=0, share=0.75)]
    """
    if not load.is_ripe:
        return []
    found = [
        HotKey(each.step, each.key, worker, round(each.share * keyed / busy, 3))
        for worker, (busy, keyed) in enumerate(zip(load.workers, load.keyed, strict=True))
        if busy >= _BUSY
        for each in load.hot_keys[worker]
    ]
    return sorted((key for key in found if key.share >= _SHARE), key=_coolness)


def _coolness(key: HotKey) -> tuple[float, int, str, str]:
    return (-key.share, key.worker, key.step, key.key)
