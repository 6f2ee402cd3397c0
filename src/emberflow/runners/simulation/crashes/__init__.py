"""The simulation with crashes: processes that die, and what outlives them."""
