"""Stored cuts: rows, Parquet tables, manifests, and the store that keeps them."""
