"""The hottest loops of the engine, in Python. Each has a compiled twin in `emberflow.native`."""
