"""Speculation: how far a worker computes ahead of what is certain, and when it waits instead."""
