"""Lines: what the fronts of text share, from the bytes of a line to a payload and its time.

Guarantees:

1. *A line is whole or it is not read.* A line ends in a newline. Without one, the rest of the line may
   still come.
2. *Strict.* Bytes that are not UTF-8, malformed JSON, and a time that is missing or is neither an int nor
   a datetime are errors that name the place and show what was found. A guess would give another output on
   another day.

Such a line is `Malformed`. It has its place among the others, because its place in the source is
known. The query decides whether that ends it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from emberflow.errors import InputError, shortened
from emberflow.fronts.protocol import Malformed
from emberflow.values.functions import described
from emberflow.values.times import DEFAULT_UNIT, Time, TimeError, Unit, counted_time

#: A field of the payload, or a function of it.
TimeOf: TypeAlias = str | Callable[[Any], Time]

FORMATS = ("jsonl", "text")

#: A longer line is an error: the file is probably not text.
LINE_BYTES_MAX = 64 * 1024 * 1024


class LineFormat:
    """Makes payloads and times of lines.

    >>> lines = LineFormat("Files", "jsonl", "at")
    >>> lines.payload(b'{"at": 5, "word": "ash"}\\r', lambda: "words.jsonl, line 1")
    {'at': 5, 'word': 'ash'}
    >>> lines.time({"at": 5}, lambda: "words.jsonl, line 1")
    5
    """

    def __init__(
        self, front: str, format: str, time: TimeOf | None, unit: Unit = DEFAULT_UNIT
    ) -> None:
        if format not in FORMATS:
            raise InputError(
                f"fronts.{front}(format=) takes {' or '.join(map(repr, FORMATS))}, got {format!r}."
            )
        if time is not None and not isinstance(time, str) and not callable(time):
            raise InputError(
                f"fronts.{front}(time=) takes the name of a field or a function of the payload, "
                f"got {time!r}."
            )
        if format == "text" and isinstance(time, str):
            raise InputError(
                f"fronts.{front}(time={time!r}): a line of text has no fields. "
                "Give a function of the line, or format='jsonl'."
            )
        self._json = format == "jsonl"
        self._time = time
        self._unit: Unit = unit

    def is_element(self, line: bytes) -> bool:
        """Whether a line is an element. A blank line is text, but not JSON."""
        return not self._json or bool(line.strip())

    def payload(self, line: bytes, where: Callable[[], str]) -> Any:
        """The payload of a line without its newline. ``where`` is called only for an error."""
        try:
            text = line.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{where()} is not UTF-8 ({error.reason} at byte {error.start}): {shortened(line)}"
            ) from None
        if not self._json:
            return text
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{where()} is not JSON ({error}): {shortened(text)}. "
                "A line of JSON Lines is one JSON value; for other lines say format='text'."
            ) from None

    def time(self, payload: Any, where: Callable[[], str]) -> int | None:
        """The time of a payload; None if elements get the time of their arrival."""
        if self._time is None:
            return None
        at = self._computed(payload, where)
        try:
            return counted_time(at, self._unit)
        except TimeError as error:
            raise InputError(
                f"{where()}: {self._time_described()} is {shortened(at)}. {error} "
                f"The payload: {shortened(payload)}"
            ) from None

    def malformed(self, line: bytes, error: InputError) -> Malformed:
        """The payload of a line that `payload` or `time` refused.

        >>> LineFormat("Files", "jsonl", "at").malformed(b"{oops", InputError("line 1 is not JSON"))
        Malformed(raw='{oops', problem='line 1 is not JSON', before_next=True)
        """
        raw = line.removesuffix(b"\r").decode("utf-8", "backslashreplace")
        return Malformed(raw, str(error), self._time is not None)

    def _computed(self, payload: Any, where: Callable[[], str]) -> Any:
        try:
            return self._time(payload) if callable(self._time) else payload[self._time]
        except Exception as error:
            if isinstance(self._time, str):
                raise InputError(
                    f"{where()} has no field {self._time!r}, which time= names: "
                    f"{shortened(payload)}"
                ) from None
            raise InputError(
                f"{where()}: {self._time_described()} could not be taken: "
                f"{type(error).__qualname__}: {error}. The payload: {shortened(payload)}"
            ) from error

    def _time_described(self) -> str:
        if isinstance(self._time, str):
            return f"the time (field {self._time!r})"
        assert self._time is not None
        return f"the time (given by {described(self._time)})"
