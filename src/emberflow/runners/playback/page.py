"""A recording as a page: one HTML file that asks nothing of any network.

What is guaranteed: **whatever a payload holds is shown as text.** The data is JSON in an element that
browsers do not execute, with every ``<`` escaped, and the script puts it into the page as text only. The
page's own policy forbids it to load anything.

The page is `page.html` beside this module; the script in it explains how it draws.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from importlib.resources import files
from typing import Any

from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Moment
from emberflow.errors import InputError, shortened
from emberflow.runners.playback.recorder import Recording
from emberflow.values.item import TIE, Place

#: A page with more than this is no picture any more.
EVENTS_MAX = 5_000

_FLOW, _DATA = "{{flow}}", "{{data}}"


def page(recording: Recording, *, seed: int) -> str:
    """The recording as HTML. Raises `InputError` if it has too many events to look at."""
    if len(recording.events) > EVENTS_MAX:
        raise InputError(
            f"play() is for small flows: this run has {len(recording.events):,} events, more than "
            f"{EVENTS_MAX:,}. Give it fewer elements."
        )
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    head, behind = template.split(_DATA)
    return "".join(
        [head.replace(_FLOW, _escaped(recording.flow)), _json(_data(recording, seed)), behind]
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _json(data: dict[str, Any]) -> str:
    # A lone surrogate has no UTF-8: JSON's own escapes stand for everything that is not ASCII.
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _data(recording: Recording, seed: int) -> dict[str, Any]:
    places = sorted({event.place for event in recording.events})
    # JavaScript cannot compare places, whose numbers may exceed 53 bits: it gets their ranks.
    rank = {place: number for number, place in enumerate(places)}
    return {
        "flow": recording.flow,
        "seed": seed,
        "workers": recording.workers,
        "steps": [step._asdict() for step in recording.steps],
        "events": [
            {
                "tick": event.tick,
                "kind": event.kind,
                "worker": event.worker,
                "step": event.step,
                "item": event.item,
                "rank": rank[event.place],
                "time": shown_time(event.place),
                "text": shortened(event.payload, 120),
            }
            for event in recording.events
        ],
        "hops": [hop._asdict() for hop in recording.hops],
        "minimal": [
            {"tick": tick, "rank": bisect_left(places, moment), "time": shown_moment(moment)}
            for tick, moment in recording.minimal_times
        ],
    }


def shown_time(place: Place) -> str:
    """The time of a place, and how many elements of that time and partition are before it.

    >>> shown_time((3, 0, 1)), shown_time((3, 2 * TIE, 0))
    ('3', '3+2')
    """
    time, front, *_ = place
    return f"{time}+{front // TIE}" if front >= TIE else f"{time}"


def shown_moment(moment: Moment) -> str:
    """A minimal time in words that fit behind 'nothing before ... can change'."""
    if moment == AFTER_ALL:
        return "the end"
    return "" if moment == BEFORE_ALL else shown_time(moment)
