"""Payloads on the wire that pickle does not take as they are.

- A payload that is nested too deeply for pickle travels flat (`values.nesting`), and arrives as it was. So
  it depends on no payload whether a query goes on, and the output does not depend on which items travel.
- A diverted record, or a failure, has its payload only to show it. If that cannot be pickled at all (it holds a lock, a
  lambda, a generator), its shortened ``repr`` travels instead. The same holds for the error in a vote of a transaction.
- Any other payload that cannot be pickled is a mistake of the flow, whatever the input. The query ends with
  an error that names the item.

The worker finds out only when a message could not be encoded.
"""

from __future__ import annotations

import copy
from typing import Any

from emberflow.engine.messages import Frame
from emberflow.errors import Diverted, EmberflowError, StepError, shortened
from emberflow.sinks.protocol import StoredBundle
from emberflow.values.nesting import Flat, can_be_pickled


def fit_to_travel(body: Any) -> Any:
    """The same message, with payloads that can travel.

    >>> from emberflow.values.item import GlobalTime
    >>> record = Diverted(1, 0, "map", "f", "raised", payload=(n for n in range(3)))
    >>> sent = fit_to_travel(StoredBundle("errors", 0, GlobalTime(1, 0), [record]))
    >>> sent.payloads[0].payload[:17]
    '<generator object'
    """
    if isinstance(body, Frame):
        return body._replace(
            parts=tuple(
                (node, [(place, mark, _fit(payload, place)) for place, mark, payload in items])
                for node, items in body.parts
            )
        )
    if isinstance(body, StoredBundle):
        return body._replace(payloads=[_fit(payload, body.last) for payload in body.payloads])
    return body


def _fit(payload: Any, place: tuple[int, ...]) -> Any:
    if can_be_pickled(payload):
        return payload
    if isinstance(payload, Diverted):
        return payload._replace(payload=_shown(payload.payload))
    if isinstance(payload, StepError):
        failure = copy.copy(payload)
        failure.payload = _shown(payload.payload)
        return failure
    flat = Flat(payload)
    if can_be_pickled(flat):
        return flat
    if isinstance(payload, tuple) and any(isinstance(part, StepError) for part in payload):
        return tuple(_fit(part, place) for part in payload)  # a vote
    raise EmberflowError(
        f"an item of the element with time={place[0]} front={place[1]} cannot travel between workers: it "
        f"cannot be pickled. Map it to plain values. The payload: {shortened(payload)}"
    )


def _shown(payload: Any) -> Any:
    flat = Flat(payload)
    return flat if can_be_pickled(flat) else shortened(payload)
