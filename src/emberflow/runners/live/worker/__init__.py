"""A worker's process: the loop, the fronts it feeds, the sinks and cuts it writes."""
