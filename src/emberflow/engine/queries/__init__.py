"""Queries of state: the coordinator's side, which picks the moment, and the worker's, which answers."""
