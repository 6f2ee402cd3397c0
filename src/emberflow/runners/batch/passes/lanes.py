"""Which lane an item goes to: the one of its unit and of the hash of its key.

Keys repeat, and so do short texts: what is known of them is cached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, TypeAlias

from emberflow.graph.calls import Balance
from emberflow.rows.paths import decoded_path
from emberflow.runners.batch.shuffle.bus import HASH_MASK
from emberflow.values.hashing import key_hash

#: How many keys' lanes are cached. When the cache is full, it is cleared.
_KNOWN_MAX = 200_000

#: Texts longer than this on average hardly repeat, so they are not cached.
_TEXT_LENGTH = 32
_TEXT = {str}

#: ``(times, paths, payloads) -> (lanes, payloads)``
Placed: TypeAlias = Callable[[list[int], list[bytes], list[Any]], tuple[Sequence[int], list[Any]]]


def placed_by(key_of: Callable[[Any], Any], balance: Balance, target: int) -> Placed:
    known = Known(target)
    texts = _Texts(key_of, known)

    def placed(
        times: list[int], paths: list[bytes], payloads: list[Any]
    ) -> tuple[Sequence[int], list[Any]]:
        short = _TEXT_LENGTH * len(payloads)
        if set(map(type, payloads)) == _TEXT and sum(map(len, payloads)) <= short:
            with suppress(Exception):  # reported below
                return texts.placed(payloads)
        try:
            return [known[key_of(payload)] for payload in payloads], payloads
        # the key function raised, or a key has no stable hash: item by item, for the right error
        except Exception:
            return [
                target | balance(payload, (time, decoded_path(path)[0]))[1] & HASH_MASK
                for time, path, payload in zip(times, paths, payloads, strict=True)
            ], payloads

    return placed


class Known(dict[Any, int]):
    """Caches the lane of each key: keys repeat, and a lookup is cheaper than a hash."""

    def __init__(self, target: int) -> None:
        self.target = target

    def __missing__(self, key: Any) -> int:
        if len(self) >= _KNOWN_MAX:
            self.clear()
        lane = self[key] = self.target | key_hash(key) & HASH_MASK
        return lane


def spread_lane(known: Known, key_of: Callable[[Any], Any], payload: Any) -> int:
    """The lane of a transaction. An error here occurs again, and is raised, when it runs."""
    try:
        return known[key_of(payload)]
    except Exception:
        return known.target


class _Texts(dict[str, int]):
    """Caches short texts, by number, and the lane of each.

    Equal texts are interchangeable, so one object replaces all of them: it stays in the processor's
    cache while sorting, is serialized once per chunk, and its key is computed once.
    """

    def __init__(self, key_of: Callable[[Any], Any], known: Known) -> None:
        self._key_of = key_of
        self._known = known
        self._texts: list[str] = []
        self._lanes: list[int] = []

    def __missing__(self, text: str) -> int:
        self._lanes.append(self._known[self._key_of(text)])
        self._texts.append(text)
        number = self[text] = len(self)
        return number

    def placed(self, texts: list[str]) -> tuple[Sequence[int], list[str]]:
        if len(self) >= _KNOWN_MAX:
            self.clear()
            self._texts, self._lanes = [], []
        numbers = list(map(self.__getitem__, texts))
        if len(numbers) < 2:
            return [self._lanes[number] for number in numbers], texts
        pick = itemgetter(*numbers)
        return pick(self._lanes), list(pick(self._texts))
