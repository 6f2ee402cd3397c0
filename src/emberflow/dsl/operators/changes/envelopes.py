"""Debezium's envelopes: which upserts and deletes an envelope stands for.

An envelope is a dict with ``op``, ``before`` and ``after``, alone or as the ``payload`` beside its
``schema``. ``before`` and ``after`` are rows, dicts by column:

===========================  =======================================================================
``op``                       upserts
===========================  =======================================================================
``"c"``, ``"r"``, ``"u"``    the row ``after``; if it has another key than ``before``, that is deleted
``"d"``                      the key of ``before`` is deleted
no envelope, but None        none: it is the tombstone that follows a delete in a compacted topic
===========================  =======================================================================

Other envelopes are errors. A truncation (``"t"``) would delete keys that it does not name.

With `fronts.Kafka(key=...)` payloads are records of key and value. The key of a record names the row where
the envelope does not: of a delete without ``before``, as PostgreSQL writes it for a table without replica
identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from emberflow.errors import FlowError, shortened
from emberflow.values.functions import caller

_UPSERTS = ("c", "r", "u")
_RECORD_FIELDS = ("key", "value")


class Envelopes:
    """Makes upserts of a payload. ``key`` is a function of a row."""

    __slots__ = ("key",)

    def __init__(self, key: Callable[[Any], Any]) -> None:
        self.key = key

    @classmethod
    def by(cls, key: object) -> Envelopes:
        """``key`` names a column or several, or is a function of the row."""
        if callable(key):
            return cls(key)
        if isinstance(key, str) and key:
            return cls(itemgetter(key))
        if isinstance(key, Sequence) and key and all(isinstance(name, str) for name in key):
            return cls(itemgetter(*key))
        raise FlowError(
            f"changes_from(format='debezium') needs key=, the column of the primary key, a list of "
            f"columns, or a function of the row, got {key!r} at {caller()}."
        )

    def __call__(self, payload: Any) -> list[tuple[Any, Any]]:
        record_key, envelope = None, payload
        if getattr(payload, "_fields", None) == _RECORD_FIELDS:
            record_key, envelope = payload
        if envelope is None:
            return []
        envelope = _unwrapped(envelope)
        if not isinstance(envelope, dict) or "op" not in envelope:
            raise ValueError(f"not an envelope of Debezium: it has no 'op': {shortened(payload)}")
        op, before, after = envelope["op"], envelope.get("before"), envelope.get("after")
        if op in _UPSERTS:
            if not isinstance(after, dict):
                raise ValueError(
                    f"an envelope with op {op!r} has no row 'after': {shortened(payload)}"
                )
            key = self.key(after)
            moved = isinstance(before, dict) and self._moved_from(before, key)
            return [*([(self.key(before), None)] if moved else []), (key, after)]
        if op == "d":
            row = before if isinstance(before, dict) else _unwrapped(record_key)
            if not isinstance(row, dict):
                raise ValueError(
                    f"an envelope with op 'd' has no row 'before', and the record no key, so nobody knows "
                    f"what is deleted. Give the table a replica identity, or read keys with "
                    f"fronts.Kafka(key='json'): {shortened(payload)}"
                )
            return [(self.key(row), None)]
        raise ValueError(
            f"op {op!r} is none of 'c', 'r', 'u' and 'd'"
            + (": a truncation does not say which keys it deletes" if op == "t" else "")
            + f": {shortened(payload)}"
        )

    def _moved_from(self, before: dict[Any, Any], key: Any) -> bool:
        """Whether the row had another key. A row before may lack columns, and then it had this one."""
        try:
            return bool(self.key(before) != key)
        except (KeyError, TypeError):
            return False


def _unwrapped(envelope: Any) -> Any:
    """Without the schema that Kafka Connect may write around it."""
    if isinstance(envelope, dict) and envelope.keys() == {"schema", "payload"}:
        return envelope["payload"]
    return envelope
