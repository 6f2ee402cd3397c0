"""Removes elements as long as the rest still fails, within bounds of tries and time.

Greedy, as in delta debugging: it leaves out halves, then quarters, and so on down to single
elements, and starts over after every success. In the end no single element can be left out, unless
the bounds were met first. A try that raises counts as not failing.
"""

from __future__ import annotations

import time
from typing import Any

from emberflow.runners.verify.functions.findings import Finding
from emberflow.runners.verify.trial import Elements, Fails

TRIES_MAX = 400
SECONDS_MAX = 15.0


def shrunk(
    elements: Elements,
    finding: Finding,
    fails: Fails,
    *,
    tries_max: int = TRIES_MAX,
    seconds_max: float = SECONDS_MAX,
) -> tuple[Elements, Finding]:
    """The smallest failing elements found, and the finding that they lead to."""
    deadline = time.monotonic() + seconds_max
    kept = [(front, element) for front, given in elements.items() for element in given]
    tries = 0
    size = max(1, len(kept) // 2)
    while kept:
        start = 0
        removed = False
        while start < len(kept):
            if tries >= tries_max or time.monotonic() > deadline:
                return _by_front(elements, kept), finding
            tries += 1
            rest = kept[:start] + kept[start + size :]
            found = _tried(_by_front(elements, rest), fails)
            if found is not None:
                kept, finding, removed = rest, found, True
            else:
                start += size
        if size == 1 and not removed:
            break
        size = max(1, size // 2) if not removed else min(size, max(1, len(kept) // 2))
    return _by_front(elements, kept), finding


def _by_front(elements: Elements, kept: list[tuple[str, Any]]) -> Elements:
    return {front: [element for name, element in kept if name == front] for front in elements}


def _tried(elements: Elements, fails: Fails) -> Finding | None:
    try:
        return fails(elements)
    except Exception:
        return None
