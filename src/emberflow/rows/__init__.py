"""Rows: payloads as columns and as bytes, and back. It is how Spark, files and records hold payloads."""
