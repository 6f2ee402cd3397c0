"""What a simulated run is like: one frozen object, drawn from a seed, printed on failure."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Times are ticks of the simulated clock."""

    seed: int
    workers: int
    #: How many elements of a front may be at or above the minimal time.
    credit: int
    #: A front emits up to this many at once ...
    burst_max: int
    #: ... and then pauses for up to this long. Some fronts are `skew` times slower.
    pause_ticks_max: int
    skew: int
    #: A frame is under way for 1 to this long; on a slow link, `slowness` times as long.
    delay_ticks_max: int
    slowness: int
    slow_links: float
    #: A worker takes up to this long before it looks at its frames, a slow one more.
    work_ticks_max: int
    slow_workers: float
    #: Whether a worker takes all frames that wait, or one at a time.
    takes_all: bool
    #: From then on the network is calm and everything must drain.
    calm_after_ticks: int

    @classmethod
    def drawn(cls, seed: int, *, workers: int | None = None) -> Options:
        """The options of a seed. The same in every process.

        >>> Options.drawn(7) == Options.drawn(7)
        True
        """
        random = Random(f"emberflow options {seed}")
        drawn_workers = random.choice((1, 2, 2, 3, 4, 5, 8))
        return cls(
            seed=seed,
            workers=drawn_workers if workers is None else workers,
            credit=random.choice((1, 2, 5, 20, 1000)),
            burst_max=random.choice((1, 1, 3, 10, 1000)),
            pause_ticks_max=random.choice((1, 5, 40)),
            skew=random.choice((1, 1, 10, 100)),
            delay_ticks_max=random.choice((1, 5, 30, 100)),
            slowness=random.choice((1, 10, 50)),
            slow_links=random.choice((0.0, 0.2, 0.5)),
            work_ticks_max=random.choice((1, 5, 50)),
            slow_workers=random.choice((0.0, 0.3)),
            takes_all=random.random() < 0.5,
            calm_after_ticks=random.choice((200, 2000, 20000)),
        )
