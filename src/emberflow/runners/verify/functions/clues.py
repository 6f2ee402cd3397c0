"""What a function was seen to call that makes it look impure: clocks, random numbers, ``hash``, ``id``.

While a function runs, `Witness` is told of every builtin that it or anything under it calls
(`sys.setprofile`), and notes the suspicious ones with the user's line. What has no builtin to be seen
(NumPy) is looked for in the names that the code uses. Clues explain two different results; they
never stand in for them, because a function may well time itself and be pure.
"""

from __future__ import annotations

import builtins
import datetime
import gc
import os
import random
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from emberflow.runners.verify.functions.variables import (
    globals_of,
    is_of_python,
    names_in,
    reached_by,
)
from emberflow.values.functions import Where

ClueKind: TypeAlias = Literal["clock", "random", "hash", "id", "process"]

_OURS = str(Path(__file__).parents[1])
_CLOCKS = frozenset(
    f"{name}{unit}"
    for name in (
        "time",
        "monotonic",
        "perf_counter",
        "process_time",
        "thread_time",
        "clock_gettime",
    )
    for unit in ("", "_ns")
) | {"localtime", "gmtime", "ctime", "asctime"}
_BUILTINS: dict[tuple[str, str], ClueKind] = {
    **{("time", name): "clock" for name in _CLOCKS},
    (os.name, "urandom"): "random",
    (os.name, "getrandom"): "random",
    ("_uuid", "generate_time_safe"): "random",
    ("builtins", "hash"): "hash",
    ("builtins", "id"): "id",
    (os.name, "getpid"): "process",
}
_MODULES: dict[str, ClueKind] = {
    "time": "clock",
    "datetime": "clock",
    "random": "random",
    "secrets": "random",
    "uuid": "random",
    "numpy.random": "random",
}


@dataclass(frozen=True, slots=True)
class Clue:
    """Something that a function calls. ``sure`` ones differ from call to call by their nature."""

    kind: ClueKind
    text: str
    sure: bool = True


class Witness:
    """Notes clues while it is entered. Not of logging: it reads a clock, and only for the log."""

    def __init__(self) -> None:
        self.clues: dict[Clue, None] = {}

    def __enter__(self) -> Witness:
        # A garbage collection calls whatever has asked to be told of it (tools that time it, say),
        # in the middle of whoever happens to run: none of that is the function's doing.
        self._collecting = gc.isenabled()
        gc.disable()
        self._before = sys.getprofile()
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)
        if self._collecting:
            gc.enable()

    def _event(self, frame: types.FrameType, event: str, called: Any) -> None:
        if event != "c_call":
            return
        kind, sure = _kind_of(called)
        if kind is None:
            return
        name = f"{_owner_name(called)}{called.__name__}()"
        at: types.FrameType | None = frame
        while at is not None and is_of_python(at.f_code.co_filename):
            module = at.f_globals.get("__name__", "")
            if module == "logging":
                return
            name = f"{module}.{at.f_code.co_name}()"  # shuffle, and not the getrandbits under it
            at = at.f_back
        text = f"it calls {name}"
        if at is not None and not at.f_code.co_filename.startswith(_OURS):
            text += f" in {Where(at.f_code.co_filename, at.f_lineno)}"
        self.clues[Clue(kind, text, sure)] = None


def _kind_of(called: Any) -> tuple[ClueKind | None, bool]:
    owner = getattr(called, "__self__", None)
    if isinstance(owner, random.Random):
        # Another generator than the common one may have been made, from a seed, in this very call.
        return "random", owner is random._inst
    if isinstance(owner, type) and issubclass(owner, datetime.date):
        return ("clock" if called.__name__ in ("now", "utcnow", "today") else None), True
    if isinstance(owner, types.ModuleType):
        return _BUILTINS.get((owner.__name__, called.__name__)), True
    return None, True


def _owner_name(called: Any) -> str:
    owner = called.__self__
    if owner is builtins:
        return ""
    if isinstance(owner, types.ModuleType | type):
        return f"{owner.__name__}."
    return f"{type(owner).__name__}."


def clues_in_code(function: Callable[..., Any]) -> list[Clue]:
    """Clues in the names that a function uses, for what no witness can see."""
    found: dict[Clue, None] = {}
    for reached in reached_by(function):
        for name, value in globals_of(reached).items():
            module = value.__name__ if isinstance(value, types.ModuleType) else None
            if module == "numpy" and "random" in names_in(reached.__code__):
                module = "numpy.random"
            module = module or (getattr(value, "__module__", None) if callable(value) else None)
            if module in _MODULES:
                found[Clue(_MODULES[module], f"it uses {name}, of the module {module}", False)] = (
                    None
                )
    return list(found)
