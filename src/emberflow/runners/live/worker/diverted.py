"""Diverted records on the wire: a payload that cannot travel must not end the query.

The payload of an ordinary item must be fit for the wire, or the query ends. A diverted record has its
payload only to show it. If that payload cannot be pickled (it holds a lock, a lambda, a generator), its
shortened ``repr`` travels instead. The worker finds that out only when a message could not be encoded.
"""

from __future__ import annotations

import pickle
from typing import Any

from emberflow.engine.messages import Frame
from emberflow.errors import Diverted, shortened
from emberflow.sinks.protocol import StoredBundle


def fit_to_travel(body: Any) -> Any:
    """The same message, with diverted records that can travel.

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
    except Exception:  # pickling an arbitrary payload can raise anything
        return payload._replace(payload=shortened(payload.payload))
    return payload
