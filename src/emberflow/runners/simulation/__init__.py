"""The simulation: the real engine on many workers over a seeded fake network.

`options`   what is drawn per seed: one object that says everything about a run
`network`   virtual time, and links that are FIFO and slow
`checkers`  objects of their own, apart from the machines they check
`cluster`   workers, fronts and the acker, put together and run until all is drained
"""

from emberflow.runners.simulation.cluster import Simulation, SimulationResult, simulate
from emberflow.runners.simulation.options import Options

__all__ = ["Options", "Simulation", "SimulationResult", "simulate"]
