"""Bars on a terminal for long work, and what Spark says of its stages."""
