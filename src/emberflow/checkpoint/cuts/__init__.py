"""Stored cuts: rows, Parquet tables, manifests, and the store of them."""
