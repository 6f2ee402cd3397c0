"""The simulation: the real engine on many workers over a seeded fake network.

`options`    the circumstances of a run, and its faults: one object each, drawn from the seed
`network`    virtual time; FIFO links with delays; all randomness
`checkers`   invariants, in objects apart from the machines that they check
`cluster`    workers, fronts and the acker, run until everything is drained; nothing crashes
`accounts`   the same without an acker: each worker has an account of what it has sent
`queries`    reads of state, asked while everything else goes on
`results`    what a run returns, or raises
`crashes`    the same with crashes: one incarnation after another, and the driver that starts them
             (`recovery`); processes that crash, workers with their fronts and outlets to sinks
             (`processes`); what survives: cuts, logs, sinks (`storage`)
"""

from emberflow.runners.simulation.cluster import Simulation, simulate
from emberflow.runners.simulation.crashes.recovery import CrashSimulation
from emberflow.runners.simulation.options import Faults, Options
from emberflow.runners.simulation.results import SimulationError, SimulationResult

__all__ = [
    "CrashSimulation",
    "Faults",
    "Options",
    "Simulation",
    "SimulationError",
    "SimulationResult",
    "simulate",
]
