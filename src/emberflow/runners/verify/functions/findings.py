"""A finding: one function of the user that is not pure, and the probable cause.

Every finding rests on two different results, or on an argument that was changed. The cause is the
best explanation of the difference; `why` also lists what else was seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from emberflow.errors import shortened
from emberflow.runners.verify.functions.clues import Clue, ClueKind, clues_in_code
from emberflow.runners.verify.functions.comparison import fresh, same
from emberflow.runners.verify.functions.sites import Site, attempt
from emberflow.runners.verify.functions.variables import changing, keeping, variables_of
from emberflow.values.functions import name_of

CLOCK = "reads a clock"
RANDOM = "reads random numbers"
STATE = "keeps state between calls"
ARGUMENT = "changes its argument in place"
ACCUMULATOR = "changes the accumulator in place"
SET = "depends on the order of a set"
HASH = "depends on hash()"
PROCESS = "depends on the process it runs in"
IDENTITY = "depends on the identity of its argument"
KEY = "returns an unstable key"
UNKNOWN = "gives different results for equal arguments"

ADVICE = {
    CLOCK: "Take the time from the item: .with_time() gives it with the payload.",
    RANDOM: "Draw from random.Random(seed) made within the call, with a seed taken from the payload.",
    STATE: "Keep it in the flow: reduce() or fold() carry a value along for each key.",
    ARGUMENT: "Return a new value and leave the argument as it was.",
    ACCUMULATOR: "Return a new accumulator and leave the old one as it was: a tuple, a frozen "
    "dataclass, or an ef.PersistentList where it grows.",
    SET: "Sort what comes out of a set before its order can matter: sorted(...).",
    HASH: "Use a hash that is the same in every process, such as zlib.crc32 or hashlib.",
    PROCESS: "Use only what is in the arguments.",
    IDENTITY: "Compare with ==: payloads are copied on their way between workers.",
    KEY: "Take the key from the payload: a string, a number, or a tuple of such.",
    UNKNOWN: "Use only what is in the arguments, and return a value made of it.",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """All fields are texts or numbers, so that a child process can send a finding."""

    #: None if no single function could be found.
    site: int | None
    cause: str
    why: tuple[str, ...]
    #: The call, as code.
    call: str
    #: The two results that differ, each with a label that says when it was seen.
    results: tuple[tuple[str, str], tuple[str, str]]


def changed_argument(site: Site, before: Any, after: Any) -> Finding | None:
    """The finding that a call changed an argument, given all arguments before and after it."""
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if not same(old, new):
            cause = ACCUMULATOR if site.accumulates and number == 0 else ARGUMENT
            return Finding(
                site.index,
                cause,
                (f"argument {number + 1} of {len(before)} has another value after the call",),
                _call(site, before),
                (("before the call", shortened(old)), ("after the call", shortened(new))),
            )
    return None


def changed_result(site: Site, arguments: bytes, before: Any, after: Any) -> Finding:
    """The finding that a call changed the value that an earlier call had returned."""
    why = ("its next call changes the value that it returned", *keeping(site.function))
    return Finding(
        site.index,
        STATE,
        why,
        _call(site, fresh(arguments)),
        (("when it returned", shortened(before)), ("after the next call", shortened(after))),
    )


def different_results(
    site: Site,
    arguments: bytes,
    results: tuple[tuple[str, Any], tuple[str, Any]],
    clues: Iterable[Clue],
    *,
    original: tuple[Any, ...] | None = None,
) -> Finding:
    """The finding that a function gave two results within one process.

    ``original`` are the argument objects of the first call. If the function repeats its first
    result for them, but not for equal copies, it depends on the identity of its arguments.
    """
    (_, first), _ = results
    if original is not None and all(same(first, attempt(site, original)) for _ in range(2)):
        if holds_a_set(original):
            cause, why = SET, ["a copy of the set that it gets is iterated in another order"]
        else:
            cause, why = (
                IDENTITY,
                ["it repeats its result for the same objects, but not for equal ones"],
            )
            why += _texts(clues, "id")
    else:
        cause, why = _changing_cause(site, arguments, list(clues))
    return _finding(site, cause, why, arguments, results)


def _changing_cause(site: Site, arguments: bytes, clues: list[Clue]) -> tuple[str, list[str]]:
    function = site.function
    held = any(isinstance(value, random.Random) for value in variables_of(function).values())
    sure = [clue for clue in clues if clue.sure or held]
    changed = changing(function, lambda: attempt(site, fresh(arguments)))
    guessed = clues_in_code(function)
    ranked: list[tuple[str, list[str]]] = [
        (RANDOM, _texts(sure, "random")),
        (CLOCK, _texts(sure, "clock")),
        (STATE, changed),
        (RANDOM, _texts(clues, "random") or _texts(guessed, "random")),
        (CLOCK, _texts(guessed, "clock")),
        (STATE, keeping(function)),
    ]
    for cause, why in ranked:
        if why:
            return cause, [*why, *(changed if cause is not STATE else [])]
    return UNKNOWN, ["nothing that it calls, and no variable that it keeps, explains it"]


def different_processes(
    site: Site,
    arguments: bytes,
    results: tuple[tuple[str, Any], tuple[str, Any]],
    clues: Iterable[Clue],
    *,
    cause: str,
) -> Finding:
    """The finding that a function gave another result in another process, for ``cause``."""
    clues = list(clues)
    if cause == SET and (calls := _texts(clues, "hash")):
        cause, why = HASH, [*calls, "hash() of text differs between processes"]
    elif cause == SET:
        why = ["its result changes with PYTHONHASHSEED, as the order of a set of strings does"]
    elif cause == STATE:
        why = ["its result differs in a process that made other calls before this one"]
        why += keeping(site.function)
    else:
        why = ["it differs between processes, also with the same PYTHONHASHSEED"]
        why += _texts(clues, "id", "process", "random", "clock")
        if " at 0x" in "".join(shortened(result) for _, result in results):
            why.append("it shows a memory address: some object in it has no repr() of its own")
    return _finding(site, cause, why, arguments, results)


def _finding(
    site: Site,
    cause: str,
    why: list[str],
    arguments: bytes,
    results: tuple[tuple[str, Any], tuple[str, Any]],
) -> Finding:
    if site.is_key:
        cause, why = KEY, [f"it {cause}", *why]
    (when, first), (then, second) = results
    return Finding(
        site.index,
        cause,
        tuple(dict.fromkeys(why)),
        _call(site, fresh(arguments)),
        ((when, shortened(first)), (then, shortened(second))),
    )


def _call(site: Site, arguments: tuple[Any, ...]) -> str:
    return f"{name_of(site.function)}({', '.join(map(shortened, arguments))})"


def _texts(clues: Iterable[Clue], *kinds: ClueKind) -> list[str]:
    return [clue.text for clue in clues if clue.kind in kinds]


def holds_a_set(value: Any, depth: int = 5) -> bool:
    """Whether there is a set within a value, down to this depth."""
    if isinstance(value, set | frozenset):
        return len(value) > 1
    if depth == 0 or isinstance(value, str | bytes):
        return False
    if isinstance(value, dict):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    else:
        parts = getattr(value, "__dict__", {}).values()
    return any(holds_a_set(part, depth - 1) for part in parts)
