"""From upserts to changes: each value replaces the one before of its key.

An *upsert* is a pair ``(key, value)``; the value None deletes. A grouping of window 2 by key has both
values of a change next to each other. So it needs no cycle, and keeps the last value of each key.

Whatever enters as changes enters as upserts first, also Debezium's envelopes, which have both values.
What an envelope says of the value before may be incomplete or missing, and the first envelope of a key
may be an update. The changes of a stream always follow from each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from emberflow.dsl.operators.changes.change import Change, changed, key_of
from emberflow.dsl.operators.changes.envelopes import Envelopes
from emberflow.errors import FlowError, shortened
from emberflow.values.functions import UserFunction, caller

if TYPE_CHECKING:
    from emberflow.dsl.streams import KeyedStream, Stream


def changes(
    stream: KeyedStream[Any, Any], deletes: Callable[[Any], object] | None, name: str | None
) -> Stream[Change[Any, Any]]:
    """See `KeyedStream.changes`."""
    if deletes is not None and not callable(deletes):
        raise FlowError(
            f"changes(deletes=) takes a function of the payload, got {deletes!r} at {caller()}."
        )
    key, flow = stream._key, stream.flow
    given = () if deletes is None else (UserFunction("deletes", deletes),)
    with flow._scope("changes", name):
        payloads = flow._stream(stream._input.node, stream._input.port)
        upserts = payloads._map(
            _Upsert(key.function, deletes), "one", key.given, *given, name="upsert", schedules=False
        )
        return _from_upserts(upserts, key.given)


def changes_from(
    stream: Stream[Any], format: str, key: object, name: str | None
) -> Stream[Change[Any, Any]]:
    """See `emberflow.changes_from`."""
    upserts: Callable[[Any], Any] = _as_upsert
    given: tuple[UserFunction, ...] = ()
    if format == "debezium":
        envelopes = Envelopes.by(key)
        upserts, given = envelopes, (UserFunction("key", envelopes.key),)
    elif format != "upserts":
        raise FlowError(
            f"changes_from(format=) takes 'upserts' or 'debezium', got {format!r} at {caller()}."
        )
    elif key is not None:
        raise FlowError(
            f"changes_from(key=) at {caller()} is for format='debezium': an upsert is a pair (key, value), "
            f"and has its key. To take it from the payload, use .key_by(function).changes()."
        )
    with stream.flow._scope("changes_from", name):
        made = stream._map(upserts, "many", *given, name="upserts", schedules=False)
        return _from_upserts(made, UserFunction("key", key_of))


def _from_upserts(upserts: Stream[Any], key: UserFunction) -> Stream[Change[Any, Any]]:
    grouped = upserts.key_by(key_of).group(window=2, name="group")
    return grouped._map(_change, "many", key, name="change", schedules=False)


class _Upsert:
    __slots__ = ("deletes", "key")

    def __init__(self, key: Callable[[Any], Any], deletes: Callable[[Any], object] | None) -> None:
        self.key = key
        self.deletes = deletes

    def __call__(self, payload: Any) -> tuple[Any, Any]:
        deletes = self.deletes is not None and self.deletes(payload)
        return self.key(payload), None if deletes else payload


def _as_upsert(payload: Any) -> tuple[Any, ...]:
    if not isinstance(payload, tuple) or len(payload) != 2:
        raise ValueError(
            f"an upsert is a pair (key, value), with None as the value to delete, got "
            f"{shortened(payload)}"
        )
    return (payload,)


def _change(upserts: tuple[tuple[Any, Any], ...]) -> tuple[Change[Any, Any], ...]:
    key, after = upserts[-1]
    before = upserts[0][1] if len(upserts) == 2 else None
    return changed(key, before, after)
