"""`Script`: a front that gives the elements of a list, with faults between them.

Guarantee: the elements, their positions and their times depend on the list alone, whatever faults
strike. So `emberflow.run` over `Script.elements` gives the output that a live query over the script
must give, however often it crashes.

A fault that ends a reader strikes once. The front travels to workers and is read again after each
crash, so it cannot remember in memory that a fault has struck: it leaves a file in ``folder``.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from emberflow.errors import InputError, shortened
from emberflow.fronts.protocol import Element, Malformed
from emberflow.values.item import At
from emberflow.values.times import DEFAULT_UNIT, TimeError, Unit, counted_time

_NAP_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Pause:
    """The source has nothing for a while: some seconds, or ``until`` a file is there."""

    seconds: float = 0.0
    until: str | os.PathLike[str] | None = None

    def is_over(self, since: float) -> bool:
        """Whether it is, given when it began, by `time.monotonic`."""
        if self.until is not None and not os.path.exists(self.until):
            return False
        return time.monotonic() - since >= self.seconds


@dataclass(frozen=True, slots=True)
class Repeat:
    """The last elements come again, as new ones: a producer that got no answer sent them twice."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class Raise:
    """Reading fails, once, which ends the query with this error."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Crash:
    """The process that reads the front is killed, once. The query begins its next life."""


class Script:
    """A front that gives the elements of a list, in order, and does what stands between them.

    A step is a payload, an `emberflow.At` (time and payload), a `fronts.Malformed`, or a fault: `Pause`,
    `Repeat`, `Raise` or `Crash`. ``folder`` is where the front notes that a `Raise` or `Crash` has
    struck; all workers reach it. An element has the time after that of the one before it, beginning
    with 0. With ``arrival=True`` elements get the time of their arrival. With ``ends=False`` the
    source waits for ever behind the last step, and the query runs until it is stopped. Datetimes are
    counted in ``unit``.

    >>> front = Script(["a", At(5, "b"), Repeat(2), "c"])
    >>> [(element.payload, element.time) for element in front.read(0, None)]
    [('a', 0), ('b', 5), ('a', 6), ('b', 7), ('c', 8)]
    """

    partitions = 1

    def __init__(
        self,
        steps: Iterable[Any],
        *,
        folder: str | os.PathLike[str] | None = None,
        arrival: bool = False,
        ends: bool = True,
        unit: Unit = DEFAULT_UNIT,
    ) -> None:
        self.arrival = arrival
        self.unit = unit
        self._ends = ends
        self._folder = None if folder is None else Path(folder).absolute()
        #: Workers are other processes than the one that makes the script.
        self._made_by = os.getpid()
        #: An element for each step that is one; else the fault itself.
        self._steps: list[Any] = []
        given: list[Any] = []
        at = -1
        for step in steps:
            if isinstance(step, Malformed):
                here = len(self._steps)
                self._steps.append(Element(here, step._replace(before_next=not arrival)))
            elif isinstance(step, Repeat):
                if not 0 < step.count <= len(given):
                    raise InputError(
                        f"testing.Repeat({step.count!r}) comes after {len(given)} elements. It "
                        f"repeats as many as there are, at least 1."
                    )
                for payload in given[-step.count :]:
                    at = self._add(payload, at + 1, given)
            elif isinstance(step, Pause | Raise | Crash):
                if self._folder is None and not isinstance(step, Pause):
                    raise InputError(
                        f"testing.Script has a {type(step).__name__}, which strikes once. Give "
                        f"folder= an empty folder that all workers reach: the front notes it there."
                    )
                self._steps.append(step)
            elif isinstance(step, At):
                try:
                    own = counted_time(step.time, unit)
                except TimeError as error:
                    raise InputError(f"testing.Script has {shortened(step)}. {error}") from None
                if own < at:
                    raise InputError(
                        f"testing.Script has {shortened(step)} behind an element of time {at}. "
                        f"They must not go back."
                    )
                at = self._add(step.payload, own, given)
            else:
                at = self._add(step, at + 1, given)

    def _add(self, payload: Any, at: int, given: list[Any]) -> int:
        given.append(payload)
        self._steps.append(Element(len(self._steps), payload, None if self.arrival else at))
        return at

    @property
    def elements(self) -> list[Any]:
        """The elements without the faults, as `emberflow.run` takes them."""
        return [
            step.payload if step.time is None else At(step.time, step.payload)
            for step in self._steps
            if isinstance(step, Element) and not isinstance(step.payload, Malformed)
        ]

    def check(self) -> None:
        """Raises `InputError` if the folder for faults is not there."""
        if self._folder is not None and not self._folder.is_dir():
            raise InputError(f"testing.Script: {self._folder} is not a folder. Make it first.")

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        for number in range(0 if position is None else position + 1, len(self._steps)):
            step = self._steps[number]
            if isinstance(step, Element):
                yield step
            elif isinstance(step, Pause):
                since = time.monotonic()
                while not step.is_over(since):
                    time.sleep(_NAP_SECONDS)
                    yield None
            elif self._strikes(number):
                if isinstance(step, Raise):
                    raise step.error
                self._crash()
        while not self._ends:
            time.sleep(_NAP_SECONDS)
            yield None

    def _strikes(self, number: int) -> bool:
        """Whether a fault strikes now: only the first reader that comes to it finds it."""
        assert self._folder is not None
        try:
            (self._folder / f"fault-{number}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _crash(self) -> NoReturn:
        if os.getpid() == self._made_by:
            raise InputError(
                "testing.Crash kills the process that reads the front, and that is the one that made "
                "the testing.Script. It is for the workers of a live query."
            )
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a process that was killed goes on")
