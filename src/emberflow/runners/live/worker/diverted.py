"""Diverted records on the wire: a payload that does not travel must not end the query it was to save.

What an ordinary item holds has to be fit for the wire, or the query ends. A diverted record has the
payload only to show it. If it cannot be pickled (it holds a lock, a lambda, a generator), its
shortened ``repr`` goes instead. Whether it can is found out only when a message could not be made.
"""

from __future__ import annotations

import pickle
from typing import Any

from emberflow.engine.messages import Frame
from emberflow.errors import Diverted, shortened
from emberflow.sinks.protocol import StoredBundle


def fit_to_travel(body: Any) -> Any:
    """The same message, with its diverted records made fit.

    >>> from emberflow.values.item import GlobalTime
    >>> record = Diverted(1, 0, "map", "f", "raised", payload=(n for n in range(3)))
    >>> sent = fit_to_travel(StoredBundle("errors", 0, GlobalTime(1, 0), [record]))
    >>> sent.payloads[0].payload[:17]
    '<generator object'
    """
    if isinstance(body, Frame):
        return body._replace(
            parts=tuple(
                (node, [(place, mark, _fit(payload)) for place, mark, payload in items])
                for node, items in body.parts
            )
        )
    if isinstance(body, StoredBundle):
        return body._replace(payloads=[_fit(payload) for payload in body.payloads])
    return body


def _fit(payload: Any) -> Any:
    if not isinstance(payload, Diverted):
        return payload
    try:
        pickle.dumps(payload)
    except Exception:  # whatever a payload raises that is not made to be pickled
        return payload._replace(payload=shortened(payload.payload))
    return payload
