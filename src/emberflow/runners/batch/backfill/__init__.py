"""Backfill: a batch up to a time, handed over to a live query that goes on from there."""
