"""The circumstances of a simulated run: frozen objects, drawn from a seed, printed on failure.

Moves of slices are drawn by random numbers of their own, so cases without moves are as they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from emberflow.engine.staffing import Staffing, staffed
from emberflow.runners.simulation.judges import NAMES
from emberflow.values.owners import SLICES, Owners, weighted_owners

#: To so many workers a move goes, at the most.
_WORKERS_MAX = 5
#: The share of runs in which workers have accounts.
_ACCOUNTS = 0.3
#: The same of cases whose frames leave before their event is over.
_AHEAD = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The circumstances of a run without its faults. Times are ticks of the simulated clock."""

    seed: int
    workers: int
    #: How many elements of a front may be at or above the minimal time.
    credit: int
    #: A front emits up to this many elements at once ...
    burst_max: int
    #: ... and then pauses for up to this long. Some fronts are `skew` times slower.
    pause_ticks_max: int
    skew: int
    #: A message takes 1 to this many ticks; on a slow link, `slowness` times as many.
    delay_ticks_max: int
    slowness: int
    slow_links: float
    #: A worker waits up to this long before it takes its frames; a slow one waits longer.
    work_ticks_max: int
    slow_workers: float
    #: Whether a worker takes all frames that wait, or one at a time.
    takes_all: bool
    #: Whether a worker takes the frames that wait together with progress.
    takes_together: bool
    #: From this tick on the network is calm, and everything must drain.
    calm_after_ticks: int
    #: Who decides whether a stateful node waits for its frontier (`judges`).
    patience: str = "adaptive"
    #: The probability that a worker evicts buckets from its memory, at each progress and each delivery.
    evictions: float = 0.0
    #: Whether each worker has an account of what it has sent, in place of one acker (`progress.accounts`).
    accounts: bool = False
    #: How long a worker waits at most until it makes a statement of its account.
    statement_ticks_max: int = 1
    #: Whether frames leave before their event is over.
    sends_ahead: bool = False

    @classmethod
    def drawn(cls, seed: int, *, workers: int | None = None) -> Options:
        """The options of a seed. The same in every process.

        >>> Options.drawn(7) == Options.drawn(7)
        True
        """
        random = Random(f"emberflow options {seed}")
        apart = Random(f"emberflow accounts {seed}")
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
            patience=random.choice(NAMES),
            takes_together=random.random() < 0.5,
            evictions=random.choice((0.0, 0.3, 1.0)),
            accounts=apart.random() < _ACCOUNTS,
            statement_ticks_max=apart.choice((0, 1, 30)),
            sends_ahead=apart.random() < _AHEAD,
        )

    def owners(self, workers: int, life: int = 0) -> Owners:
        """A random owner table for this many workers; different in each life."""
        random = Random(f"emberflow shares {self.seed} {life}")
        return weighted_owners([random.choice((1, 1, 2, 3)) for _ in range(workers)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong in a simulated run with crashes, and when. Probabilities are from 0 to 1."""

    crashes: int
    #: A crash comes up to this many events after the previous one, or after the beginning.
    crash_events_max: int
    #: The probability that the driver crashes instead of a worker.
    driver: float
    #: The driver notices the death of a worker, or is itself restarted, after up to this long.
    restart_ticks_max: int
    #: The probability that a process lives on for up to this long after it was replaced.
    lingers: float
    linger_ticks_max: int
    #: Whether the next incarnation may have another number of workers.
    workers_change: bool
    #: The least pause between two cuts, and the probability that a cut is abandoned half way.
    cut_ticks: int
    cuts_lost: float
    #: How many buckets a capture visits between two events, and how long it then pauses.
    capture_limit: int
    capture_ticks_max: int
    #: Writing a cut, a bundle or a log entry takes up to this long. A crash tears the part of a cut
    #: that was written last with probability `torn`.
    write_ticks_max: int
    sink_ticks_max: int
    log_ticks_max: int
    torn: float
    #: The probability that a sink's answer is lost, and when the worker sends the bundle again.
    answers_lost: float
    retry_ticks: int
    #: Indexes of the fronts that assign arrival times, and how far off their clocks may be.
    arrival: frozenset[int] = frozenset()
    skew_ticks_max: int = 100
    #: The probability that a connection breaks where otherwise a process would crash.
    breaks: float = 0.0
    #: The probability of one more crash while workers take over from another version in memory. There are
    #: up to `TAKEOVER_CRASHES_MAX` of them.
    takeovers: float = 0.0
    #: How many moves of slices begin, at the most; and the probability of one at each progress.
    moves: int = 0
    moves_likely: float = 0.0
    #: Whether a driver stands by, and takes over when the lease of the one that works lapses.
    standby: bool = False

    @classmethod
    def drawn(
        cls, seed: int, *, crashes: int, arrival: frozenset[int] = frozenset(), moves: int = 0
    ) -> Faults:
        """The faults of a seed. The same in every process.

        >>> Faults.drawn(7, crashes=2) == Faults.drawn(7, crashes=2)
        True
        """
        random = Random(f"emberflow faults {seed}")
        moving = Random(f"emberflow moves {seed}")
        return cls(
            crashes=crashes,
            crash_events_max=random.choice((60, 300, 300, 1500)),
            driver=random.choice((0.0, 0.3, 0.3, 1.0)),
            restart_ticks_max=random.choice((1, 20, 200)),
            lingers=random.choice((0.0, 0.5, 1.0)),
            linger_ticks_max=random.choice((10, 200, 2000)),
            workers_change=random.random() < 0.6,
            cut_ticks=random.choice((1, 1, 10, 100)),
            cuts_lost=random.choice((0.0, 0.0, 0.3)),
            capture_limit=random.choice((1, 3, 1000)),
            capture_ticks_max=random.choice((1, 5, 40)),
            write_ticks_max=random.choice((1, 5, 100)),
            sink_ticks_max=random.choice((1, 10, 100)),
            log_ticks_max=random.choice((1, 30, 300)),
            torn=random.choice((0.0, 0.0, 0.3)),
            answers_lost=random.choice((0.0, 0.1, 0.5)),
            retry_ticks=random.choice((50, 400)),
            arrival=arrival,
            skew_ticks_max=random.choice((0, 20, 500)),
            breaks=random.choice((0.0, 0.3, 1.0)),
            takeovers=random.choice((0.0, 0.3, 1.0)),
            moves=moves,
            moves_likely=moving.choice((0.05, 0.2, 1.0)) if moves else 0.0,
        )


class Move(NamedTuple):
    """Other owners, and perhaps other workers."""

    staffing: Staffing
    owners: Owners


class MoveDraws:
    """Draws the moves of a run, across its lives."""

    def __init__(self, options: Options, faults: Faults) -> None:
        self._random = Random(f"emberflow moves of {options.seed}")
        self._leaving = Random(f"emberflow departures of {options.seed}")
        self._likely = faults.moves_likely
        self._left = faults.moves
        #: How many were made in memory.
        self.made = 0

    def next(self, owners: Owners) -> Move | None:
        """What moves now, or None if nothing does."""
        random = self._random
        if not self._left or random.random() >= self._likely:
            return None
        self._left -= 1
        if random.random() < 0.6:
            workers = random.randint(1, _WORKERS_MAX)
            staffing = staffed(owners.workers, workers, self._drawn_leaving(owners.workers))
            weights = [random.choice((1, 1, 2, 3)) for _ in range(workers)]
            return Move(staffing, staffing.renamed(owners).rescaled(weights))
        of_slice = list(owners.of_slice)
        for _ in range(random.choice((1, 1, 5))):
            first = random.randrange(SLICES)
            beyond = min(SLICES, first + random.choice((1, 50, 400)))
            of_slice[first:beyond] = [random.randrange(owners.workers)] * (beyond - first)
        staffing = staffed(owners.workers, owners.workers)
        return Move(staffing, owners.next(of_slice, owners.workers))

    def _drawn_leaving(self, workers: int) -> set[int]:
        """The workers whose machines are taken away, whatever their numbers."""
        if self._leaving.random() < 0.25:
            return set()
        return {worker for worker in range(workers) if self._leaving.random() < 0.4}
