"""Sessions: the clicks of a user, as long as the next one comes within half an hour.

A session gives one output, when it closes: half an hour after its last click. The close is not a
timer of the machine. The flow schedules an item for that time, so the output is the same on every run.

Ada's click of minute 25 comes last in the list: her phone had been in a tunnel. Her clicks of
minutes 5 and 40 are more than half an hour apart, and only this click makes them one session. The
flow processes it at its own time, as if it had come in time: the front says that clicks may come up to
70 minutes late. `live` runs the same flow on the same list on Spark, and gives the same sessions.

    $ python examples/click_sessions.py
    bob   7 to 10     3 minutes  start, prices
    ada   5 to 45    40 minutes  start, search, basket, pay
    ada  90 to 95     5 minutes  start, help
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import emberflow as ef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GAP_MINUTES = 30
LATE_MINUTES_MAX = 70


class Click(NamedTuple):
    minute: int
    user: str
    page: str


CLICKS = [
    Click(5, "ada", "start"),
    Click(7, "bob", "start"),
    Click(10, "bob", "prices"),
    Click(40, "ada", "basket"),
    Click(45, "ada", "pay"),
    Click(90, "ada", "start"),
    Click(95, "ada", "help"),
    Click(25, "ada", "search"),  # came late
]


class Visit(NamedTuple):
    user: str
    start: int
    end: int  # the last click; the session itself closes a gap later
    pages: tuple[str, ...]


def visit(session: ef.WindowResult) -> Visit:
    clicks: tuple[Click, ...] = session.value
    return Visit(
        session.key, clicks[0].minute, clicks[-1].minute, tuple(click.page for click in clicks)
    )


flow = ef.Flow("click sessions")
clicks = flow.front("clicks").key_by(lambda click: click.user)
clicks.window(ef.Session(gap=GAP_MINUTES), emit="close").collect().map(visit).sink("visits")


def front() -> ef.fronts.Iterable:
    """The clicks as they come."""
    return ef.fronts.Iterable(
        [ef.At(click.minute, click) for click in CLICKS], disorder=LATE_MINUTES_MAX
    )


def live(spark: SparkSession) -> list[Visit]:
    visits = ef.sinks.Memory()
    query = flow.live(spark).read(clicks=front()).write(visits=visits).start()
    query.awaitTermination()
    return visits.payloads(0)


def main() -> None:
    for user, start, end, pages in ef.run(flow, clicks=front())["visits"]:
        print(f"{user}  {start:2} to {end:2}    {end - start:2} minutes  {', '.join(pages)}")


if __name__ == "__main__":
    main()
