"""The simulation: the real engine on many workers over a seeded fake network.

`options`    what is drawn per seed: one object that says everything about a run, one for its faults
`network`    virtual time, and links that are FIFO and slow
`checkers`   objects of their own, apart from the machines they check
`cluster`    workers, fronts and the acker, put together and run until all is drained
`recovery`   the same with crashes: incarnations, one after another, and the driver that starts them
`processes`  what crashes: workers with their fronts and their ways to the sinks
`storage`    what outlives crashes: cuts, logs, sinks
"""

from emberflow.runners.simulation.cluster import Simulation, simulate
from emberflow.runners.simulation.options import Faults, Options
from emberflow.runners.simulation.recovery import CrashSimulation
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
